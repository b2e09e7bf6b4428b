//! What a watch and a service may say about inputs that change, and about memory.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use halostream::service::record::State;

use crate::kit::*;

/// Every file of a store gets another time.
fn touch(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            touch(&entry.path());
        } else {
            let file = File::options().write(true).open(entry.path()).expect("a file");
            file.set_modified(SystemTime::now() + Duration::from_secs(5)).expect("a time");
        }
    }
}

/// A processed input changes: its outputs stand, and it is given up or left alone as the watch says.
#[test]
fn changed_after_it_was_processed() {
    for (policy, state) in [("quarantine", State::Quarantined), ("ignore", State::Done)] {
        let folder = set_up(policy, "", &format!("complete = [\"settle:200ms\"]\non_change = \"{policy}\""));
        drop_input(&folder, "a.zarr", 1);
        let service = Service::ready(&folder);
        service.wait_for(&folder, "done", 1);
        fs::remove_dir_all(folder.path("in/a.zarr")).expect("removed");
        drop_input(&folder, "a.zarr", 2);
        if state == State::Quarantined {
            service.wait_for(&folder, "quarantined", 1);
        }
        drop_input(&folder, "b.zarr", 3);
        service.wait_for(&folder, "done", 1 + u64::from(state == State::Done));
        assert_eq!((service.events("job_started"), service.stop()), (2, 0), "{policy}");
        let record = record(&folder, "a.zarr");
        assert_eq!(record.state, state, "{policy}");
        assert!(state == State::Done || record.reason.is_some_and(|r| r.contains("after it was processed")));
        assert_output(&folder, "a", 1);
    }
}

/// With `identity = "content"` times don't make an input new, and bytes do, although times and sizes are as before.
#[test]
fn told_apart_by_content() {
    let folder = set_up("content", "", "complete = [\"settle:200ms\"]\nidentity = \"content\"");
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 1);
    touch(&folder.path("in/a.zarr"));
    drop_input(&folder, "b.zarr", 2);
    service.wait_for(&folder, "done", 2);
    assert_eq!((service.events("job_started"), service.stop()), (2, 0), "touched");
    // Seen by the next start, too.
    touch(&folder.path("in/a.zarr"));
    let service = Service::ready(&folder);
    drop_input(&folder, "c.zarr", 3);
    service.wait_for(&folder, "done", 3);
    assert_eq!(service.events("job_started"), 1);
    fs::remove_dir_all(folder.path("in/a.zarr")).expect("removed");
    drop_input(&folder, "a.zarr", 4);
    wait_until("the new content", || (service.events("job_done") == 2).then_some(()));
    assert_eq!(service.stop(), 0);
    assert_eq!(record(&folder, "a.zarr").version, 2);
    assert_output(&folder, "a", 4);
}

/// Jobs that need more than an equal share wait until that much is free, and run one after the other.
#[test]
fn jobs_share_one_memory_limit() {
    let folder = set_up("shares", "", "complete = [\"rename\"]");
    write_input(&folder.path("one.zarr"), 1);
    let job = COPY.replace("{input}", "one.zarr").replace("{output}", "one.out.zarr");
    fs::write(folder.path("plan.toml"), job).expect("a job");
    let (code, plan, err) = halostream(&folder, &["plan", "plan.toml", "--json"]);
    assert_eq!(code, 0, "{err}");
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("one object");
    let smallest = plan["smallest_memory_bytes"].as_u64().expect("a number");
    let memory = smallest + smallest / 2;
    write_service(&folder, &format!("max_jobs = 4\nmemory = \"{memory}B\""), "complete = [\"rename\"]");
    (0..6).for_each(|seed| drop_input(&folder, &format!("n{seed}.zarr"), seed));
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 6);
    let waits = service.details("job_waits");
    assert_eq!(waits.len(), 6, "each is told once");
    let is_more = |bytes: u64| bytes > memory / 4 && bytes <= memory;
    assert!(waits.iter().all(|wait| wait["needs_bytes"].as_u64().is_some_and(is_more)), "{memory}: {waits:?}");
    assert_eq!(service.stop(), 0);
    (0..6).for_each(|seed| assert_output(&folder, &format!("n{seed}"), seed));
    assert!(records(&folder).iter().all(|r| (r.state, r.attempts) == (State::Done, 1)));
}
