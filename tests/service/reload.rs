//! The configuration changes while the service runs.

use std::fs;

use crate::kit::*;

const WATCH: &str = "complete = [\"rename\"]";

#[test]
fn bad_then_good() {
    let folder = set_up("reload", "", WATCH);
    let mut service = Service::ready(&folder);
    drop_input(&folder, "a.zarr", 1);
    service.wait_for(&folder, "done", 1);
    // Refused, with the reason, and the old one goes on.
    write_service(&folder, "max_jbos = 3", WATCH);
    let error = wait_until("the refusal", || service.status(&folder)["config_error"].as_str().map(str::to_owned));
    assert!(error.contains("max_jbos") && error.contains("max_jobs"), "{error}");
    assert!(service.get(&folder, "/metrics").1.contains("halostream_config_ok 0"));
    drop_input(&folder, "b.zarr", 2);
    service.wait_for(&folder, "done", 2);
    // A listen address can't move.
    let text = fs::read_to_string(folder.path("service.toml"))
        .expect("a file")
        .replace("max_jbos = 3", "")
        .replace("127.0.0.1:0", "127.0.0.1:1");
    write_whole(&folder.path("service.toml"), text.as_bytes());
    wait_until("the second refusal", || {
        service.status(&folder)["config_error"].as_str()?.contains("service.listen").then_some(())
    });
    // Right again, and with another job: what comes from now on runs under it.
    fs::write(folder.path("job.toml"), format!("{COPY}codec = \"none\"\n")).expect("a job");
    write_service(&folder, "max_jobs = 2", &format!("{WATCH}\npriority = 3"));
    wait_until("the reload", || {
        let status = service.status(&folder);
        (status["max_jobs"] == 2 && status["config_error"].is_null()).then_some(())
    });
    drop_input(&folder, "c.zarr", 3);
    service.wait_for(&folder, "done", 3);
    assert!(service.is_running() && service.get(&folder, "/metrics").1.contains("halostream_config_ok 1"));
    // `--changed`: those that ran under the old job run again, the third does not.
    let (code, out, err) = halostream(&folder, &["requeue", "service.toml", "--changed"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().count(), 2, "{out}");
    wait_until("the others", || (service.events("job_done") == 5).then_some(()));
    assert_eq!(service.stop(), 0);
    for (seed, stem) in [(1, "a"), (2, "b"), (3, "c")] {
        assert_output(&folder, stem, seed);
    }
}

#[test]
fn asked_for_by_signal_and_a_new_watch() {
    let folder = set_up("hup", "", WATCH);
    let service = Service::ready(&folder);
    fs::create_dir_all(folder.path("in2")).expect("a folder");
    let second = "[[watch]]\nname = \"second\"\ndirectory = \"in2\"\npattern = \"*.zarr\"\ncomplete = [\"rename\"]\njob = \"job.toml\"\noutput = \"out2/{stem}.zarr\"\n";
    write_service(&folder, "", &format!("{WATCH}\n{second}"));
    service.signal(libc::SIGHUP);
    wait_until("the second watch", || (service.status(&folder)["watches"].as_array()?.len() == 2).then_some(()));
    write_input(&folder.path("aside/1.zarr"), 1);
    fs::rename(folder.path("aside/1.zarr"), folder.path("in2/a.zarr")).expect("a name");
    wait_until("its output", || folder.path("out2/a.zarr").exists().then_some(()));
    assert_eq!(service.stop(), 0);
}

/// Another name for a watch is another set of inputs. Their outputs stand already, and nobody fights over them.
#[test]
fn a_renamed_watch() {
    let folder = set_up("renamed", "", WATCH);
    (0..3).for_each(|seed| drop_input(&folder, &format!("n{seed}.zarr"), seed));
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 3 in"), "{out}{err}");
    let text = fs::read_to_string(folder.path("service.toml")).expect("a file");
    write_whole(&folder.path("service.toml"), text.replace("name = \"w\"", "name = \"v\"").as_bytes());
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 3 in"), "{out}{err}");
    assert!(records(&folder).iter().filter(|r| r.watch == "v").all(|r| r.numbers.as_ref().is_some_and(|n| n.bytes_written == 0)));
}

/// A job in flight ends under what it started with.
#[test]
fn during_a_job() {
    let folder = set_up("inflight", "", WATCH);
    fs::write(folder.path("job.toml"), slow_job(300)).expect("a job");
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "running", 1);
    fs::write(folder.path("job.toml"), COPY).expect("a job");
    wait_until("the reload", || (service.events("reloaded") == 1).then_some(()));
    service.wait_for(&folder, "done", 1);
    drop_input(&folder, "b.zarr", 2);
    service.wait_for(&folder, "done", 2);
    assert_eq!(service.stop(), 0);
    assert_eq!(crate::common::read(&folder.path("out/a.zarr"), None).dtype, halostream::array::DType::F64);
    assert_output(&folder, "b", 2);
}
