//! The world fails for a while: the service waits, says so, and goes on.

use std::fs;
use std::os::unix::fs::MetadataExt;

use halostream::service::record::State;

use crate::common::Disk;
use crate::kit::*;

const WATCH: &str = "complete = [\"settle:200ms\"]\nretries = 1";

/// Fails more often than `retries`, and is done once there is room: no input is to blame for a disk.
fn waits_for_the_disk(name: &str, first: (libc::c_ulong, &str), then: (libc::c_ulong, &str)) {
    let folder = set_up(name, "", WATCH);
    let Some(disk) = Disk::new(&folder.path("out"), "size=64m") else {
        println!("skipped: this user may not mount a file system");
        return;
    };
    fs::write(folder.path("out/full"), vec![1u8; 1 << 20]).expect("room");
    disk.remount(first.0, first.1);
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    wait_until("some failures", || (service.events("job_retried") >= 3).then_some(()));
    assert_eq!(service.events("input_quarantined"), 0);
    disk.remount(then.0, then.1);
    service.wait_for(&folder, "done", 1);
    assert_eq!(service.stop(), 0);
    assert_output(&folder, "a", 1);
    drop(disk);
}

#[test]
fn a_full_disk_that_later_has_room() {
    waits_for_the_disk("full", (0, "size=1m"), (0, "size=64m"));
}

#[test]
fn an_output_that_can_not_be_written() {
    waits_for_the_disk("readonly", (libc::MS_RDONLY, "size=64m"), (0, "size=64m"));
}

/// What can't be noted does not happen: a state folder without room holds everything up, until it has room again. A job
/// that ends meanwhile is not lost.
#[test]
fn a_full_state_folder() {
    let folder = set_up("statefull", "", "complete = [\"marker:{name}.done\"]");
    let Some(disk) = Disk::new(&folder.path("state"), "size=64m") else {
        println!("skipped: this user may not mount a file system");
        return;
    };
    let arrive = |name: &str, seed: u64| {
        drop_input(&folder, name, seed);
        fs::write(folder.path("in").join(format!("{name}.done")), "").expect("a marker");
    };
    fs::write(folder.path("job.toml"), slow_job(300)).expect("a job");
    let service = Service::ready(&folder);
    arrive("a.zarr", 1);
    // Its plan is noted before it writes: from here on it needs nothing of the ledger until it ends.
    wait_until("the first output's beginning", || fs::read_dir(folder.path("out")).ok()?.next().map(drop));
    fs::write(folder.path("state/full"), vec![1u8; 1 << 20]).expect("room");
    let used: u64 =
        fs::read_dir(&disk.0).expect("entries").flatten().filter_map(|e| e.metadata().ok()).map(|m| m.blocks() * 512).sum();
    disk.remount(0, &format!("size={used}"));
    // More of them than the room that the ledger has left.
    for n in 0..5000 {
        fs::File::create(folder.path("in").join(format!("{n:0>100}.zarr"))).expect("a file");
    }
    arrive("b.zarr", 2);
    wait_until("failures of the ledger", || (service.events("ledger_failed") >= 3).then_some(()));
    wait_until("the first output", || folder.path("out/a.zarr").exists().then_some(()));
    assert_eq!(service.events("job_started"), 1);
    assert_eq!(service.get(&folder, "/metrics").0, 200);
    fs::remove_file(folder.path("state/full")).expect("removed");
    disk.remount(0, "size=64m");
    service.wait_for(&folder, "done", 2);
    service.wait_for(&folder, "seen", 5000);
    assert_eq!(service.events("job_started"), 2);
    assert_eq!(service.stop(), 0);
    assert_eq!(records(&folder).iter().filter(|r| r.state == State::Done && r.version == 1).count(), 2);
    for (stem, seed) in [("a", 1), ("b", 2)] {
        let made: Vec<f64> = crate::common::read(&folder.path(&format!("out/{stem}.zarr")), None).values();
        assert_eq!(made, array(seed).values::<u16>().into_iter().map(f64::from).collect::<Vec<_>>());
    }
    drop(disk);
}

#[test]
fn nothing_starts_below_min_free() {
    let folder = set_up("minfree", "min_free = \"900PiB\"", WATCH);
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "settled", 1);
    wait_until("the notice", || service.status(&folder)["waiting_for_disk"]["free_bytes"].as_u64());
    assert_eq!(service.events("job_started"), 0);
    write_service(&folder, "min_free = \"1B\"", WATCH);
    service.wait_for(&folder, "done", 1);
    assert_eq!(service.stop(), 0);
}

/// A directory that vanishes (an unmounted disk) and returns: nothing is forgotten, nothing runs twice.
#[test]
fn a_watch_directory_that_vanishes() {
    let folder = set_up("vanish", "", WATCH);
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 1);
    fs::rename(folder.path("in"), folder.path("away")).expect("a name");
    wait_until("the loss", || (service.status(&folder)["watches"][0]["up"] == false).then_some(()));
    assert!(service.get(&folder, "/metrics").1.contains("halostream_watch_up{watch=\"w\"} 0"));
    fs::rename(folder.path("away"), folder.path("in")).expect("a name");
    drop_input(&folder, "b.zarr", 2);
    service.wait_for(&folder, "done", 2);
    assert_eq!((service.events("watch_lost"), service.events("watch_found")), (1, 1));
    assert_eq!(service.stop(), 0);
    assert_all_done_once(&folder, 2);
}

/// A child that dies may live the next time; what a user's function says is final, whatever it says.
#[test]
fn children_that_die_and_functions_that_fail() {
    for (function, retries) in [("dies", 1), ("error", 0)] {
        let folder = set_up(function, "", WATCH);
        fs::write(folder.path("job.toml"), child_job(&format!("function = \"{function}\""))).expect("a job");
        drop_input(&folder, "a.zarr", 1);
        let service = Service::ready(&folder);
        service.wait_for(&folder, "quarantined", 1);
        assert_eq!((service.events("job_started"), service.events("job_retried")), (1 + retries, retries), "{function}");
        assert_eq!(service.stop(), 0);
        assert!(!folder.path("out/a.zarr").exists());
    }
}

/// A fault that may pass is tried again with a pause, and given up after `retries`.
#[test]
fn retries_end() {
    let folder = set_up("retries", "", WATCH);
    // A file where the outputs' folder should be: no data will change that, and no disk is full.
    fs::write(folder.path("out"), "").expect("a file");
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "quarantined", 1);
    assert_eq!((service.events("job_started"), service.events("job_retried")), (2, 1));
    fs::remove_file(folder.path("out")).expect("removed");
    let (code, ..) = halostream(&folder, &["requeue", "service.toml", "--all"]);
    assert_eq!(code, 0);
    service.wait_for(&folder, "done", 1);
    assert_eq!(service.stop(), 0);
    assert_eq!(record(&folder, "a.zarr").state, State::Done);
}
