//! Starts and ends: once, when idle, drained, twice on one state folder, and told by systemd.

use std::fs;

use halostream::service::record::State;

use crate::kit::*;

const WATCH: &str = "complete = [\"rename\"]";

#[test]
fn once_and_again() {
    let folder = set_up("once", "", "complete = [\"settle:400ms\", \"zarr\"]");
    drop_input(&folder, "a.zarr", 1);
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 1 in"), "{out}{err}");
    let made = fs::metadata(folder.path("out/a.zarr/zarr.json")).expect("an output").modified().expect("a time");
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 0 in"), "{out}{err}");
    // A ledger that was lost: the output is known by its hash, and stays.
    fs::remove_dir_all(folder.path("state")).expect("removed");
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 1 in"), "{out}{err}");
    assert_eq!(fs::metadata(folder.path("out/a.zarr/zarr.json")).expect("an output").modified().expect("a time"), made);
    // What is not complete is left, and told.
    fs::create_dir(folder.path("in/b.zarr")).expect("a folder");
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--until-idle", "300ms"]);
    assert!(code == 0 && out.contains("1 left incomplete"), "{out}{err}");
    let (code, out, _) = halostream(&folder, &["status", "service.toml"]);
    assert!(code == 0 && out.contains("stopped") && out.contains("a.zarr") && out.contains("b.zarr"), "{out}");
}

#[test]
fn the_second_on_one_state_folder_is_refused() {
    let folder = set_up("second", "", WATCH);
    let mut service = Service::ready(&folder);
    wait_until("a status that says so", || (service.status(&folder)["state"] == "ready").then_some(()));
    let (code, _, err) = halostream(&folder, &["serve", "service.toml"]);
    assert!(code == 2 && err.contains(&format!("process {}", service.pid())) && err.contains("service.toml"), "{err}");
    assert!(service.is_running());
    let (code, out, _) = halostream(&folder, &["status", "service.toml", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert!(code == 0 && status["pid"] == service.pid() && status["state"] == "ready", "{out}");
    assert_eq!(service.stop(), 0);
}

/// SIGTERM: within `grace` the job ends; after it the job stops, keeps its progress, and goes on at the next start.
#[test]
fn drained_and_cut() {
    for (grace, code) in [("100s", 0), ("0s", 75)] {
        let folder = set_up("drain", &format!("grace = \"{grace}\""), WATCH);
        fs::write(folder.path("job.toml"), slow_job(200)).expect("a job");
        drop_input(&folder, "a.zarr", 1);
        drop_input(&folder, "b.zarr", 2);
        let service = Service::ready(&folder);
        wait_until("some progress", || (service.status(&folder)["running"][0]["blocks_done"].as_u64()? >= 2).then_some(()));
        assert_eq!(service.stop(), code, "grace {grace}");
        let states: Vec<State> = records(&folder).iter().map(|r| r.state).collect();
        let first = if code == 0 { State::Done } else { State::Settled };
        assert!(states.contains(&first) && states.contains(&State::Settled), "grace {grace}: {states:?}");
        let (ended, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
        assert_eq!(ended, 0, "{out}{err}");
        assert_all_done_once(&folder, 2);
    }
}

/// Looking at a directory is no event in it: when nothing happens, it is read once in each `poll`.
#[test]
fn a_quiet_directory_is_left_alone() {
    let folder = set_up("quiet", "", "complete = [\"marker:{name}.done\"]");
    let text = fs::read_to_string(folder.path("service.toml")).expect("a file").replace("poll = \"100ms\"", "poll = \"10h\"");
    write_whole(&folder.path("service.toml"), text.as_bytes());
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    let scans = || {
        let text = service.get(&folder, "/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix("halostream_scans_total{watch=\"w\"} "));
        line.and_then(|n| n.parse::<u64>().ok()).expect("a count")
    };
    // What was dropped before may be heard of once more.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(scans() <= 3, "{} scans of a directory in which nothing happens", scans());
    // Events are heard: nobody waits for ten hours.
    fs::write(folder.path("in/a.zarr.done"), "").expect("a marker");
    service.wait_for(&folder, "done", 1);
    assert_eq!(service.stop(), 0);
}

/// Readiness is told once every directory was scanned.
#[test]
fn the_service_manager_is_told() {
    let folder = set_up("notify", "", WATCH);
    let place = folder.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&place).expect("a socket");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a timeout");
    let mut command = command(&folder, &["serve", "service.toml"]);
    let child = command.env("NOTIFY_SOCKET", &place).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = child.spawn().expect("the binary starts");
    let hear = || {
        let mut text = [0u8; 200];
        let n = socket.recv(&mut text).expect("a word");
        String::from_utf8_lossy(&text[..n]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    let signal = |n: i32| {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, n) };
    };
    signal(libc::SIGHUP);
    assert!(hear().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(hear(), "READY=1");
    signal(libc::SIGTERM);
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
