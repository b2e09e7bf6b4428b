//! `kill -9` at any moment while inputs come: every input has one complete output with the right bytes, and what is done
//! stays done.

use std::time::Duration;

use halostream::service::record::State;

use crate::common::Random;
use crate::kit::*;

#[test]
fn at_random_moments() {
    let kills = size("HALOSTREAM_KILLS", 10);
    let folder = set_up("kill", "max_jobs = 2", "complete = [\"settle:100ms\", \"zarr\"]\nafter = \"archive:archive\"");
    let mut random = Random(kills);
    let mut seed = 0;
    let mut starts = 0;
    let mut done = Vec::new();
    let names = |service: &Service| service.details("job_done").into_iter().map(|d| d["name"].to_string()).collect::<Vec<_>>();
    for _ in 0..kills {
        let service = Service::start(&folder, &[]);
        let until = std::time::Instant::now() + Duration::from_millis(random.range(0, 1200));
        while std::time::Instant::now() < until {
            drop_input(&folder, &format!("n{seed}.zarr"), seed);
            seed += 1;
            std::thread::sleep(Duration::from_millis(random.range(5, 120)));
        }
        let log = service.kill();
        starts += log.events("job_started");
        done.extend(names(&log));
    }
    let service = Service::ready(&folder);
    wait_until(&format!("an end of all {seed} inputs; {}", service.log_tail()), || {
        (service.count(&folder, "done") == seed).then_some(())
    });
    wait_until("an empty inbox", || (std::fs::read_dir(folder.path("in")).ok()?.count() == 0).then_some(()));
    starts += service.events("job_started");
    done.extend(names(&service));
    assert_eq!(service.stop(), 0);
    // What the log has as done was in the ledger before: no restart does it again.
    let told = done.len();
    done.sort();
    done.dedup();
    assert_eq!(done.len(), told, "something was done twice");
    let records = records(&folder);
    assert_eq!(records.len() as u64, seed, "one record per input");
    for record in &records {
        assert_eq!((record.state, record.version, record.effect.clone()), (State::Done, 1, None), "{}", record.name);
    }
    for n in 0..seed {
        assert_output(&folder, &format!("n{n}"), n);
        assert!(folder.path(&format!("archive/n{n}.zarr/zarr.json")).exists());
    }
    assert_eq!(std::fs::read_dir(folder.path("out")).expect("outputs").count() as u64, seed, "no leftovers");
    // Only what ran at a kill runs again: at most two each time.
    assert!(starts as u64 <= seed + 2 * kills, "{starts} starts for {seed} inputs and {kills} kills");
    println!("{kills} kills, {seed} inputs, {starts} job starts");
}
