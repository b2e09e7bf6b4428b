//! What nobody should put into an inbox: refused or handled, logged, counted; the service lives and others are served.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use halostream::service::record::State;

use crate::kit::*;

/// An array of 10^18 chunks.
const HUGE: &str = r#"{"zarr_format":3,"node_type":"array","shape":[1000000000000000000],"data_type":"float64","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}"#;

#[test]
fn an_inbox_of_traps() {
    let folder = set_up("hostile", "quarantine = \"q\"", "complete = [\"settle:300ms\"]");
    // Names that are more than names.
    let names = [
        "a \"quoted\" 'name'.zarr",
        "line\nbreak.zarr",
        "${HOME}{input}{stem}.zarr",
        "-rf.zarr",
        "[engine]\nworkers = 9.zarr",
        "ünï.zarr",
    ];
    for (seed, name) in names.iter().enumerate() {
        drop_input(&folder, name, seed as u64);
    }
    // Links, out of the directory and in it.
    write_input(&folder.path("outside.zarr"), 90);
    std::os::unix::fs::symlink(folder.path("outside.zarr"), folder.path("in/link.zarr")).expect("a link");
    std::os::unix::fs::symlink("/", folder.path("in/root.zarr")).expect("a link");
    drop_input(&folder, "inner.zarr", 91);
    fs::remove_file(folder.path("in/inner.zarr/c/0/0")).expect("a chunk");
    // What it leads to would be a good chunk.
    std::os::unix::fs::symlink(folder.path("outside.zarr/c/0/0"), folder.path("in/inner.zarr/c/0/0")).expect("a link");
    // Metadata that claims everything there is, or nothing that can be read.
    let bomb = |name: &str, text: &str| {
        fs::create_dir_all(folder.path("in").join(name)).expect("a folder");
        fs::write(folder.path("in").join(name).join("zarr.json"), text).expect("a file");
    };
    bomb("huge.zarr", HUGE);
    bomb("chunk.zarr", &HUGE.replace("[1]", "[1000000000000000000]"));
    bomb("deep.zarr", &"[".repeat(200_000));
    bomb("wide.zarr", &format!("{{\"x\":\"{}\"}}", "y".repeat(20 << 20)));
    fs::write(folder.path("in/file.zarr"), "no store").expect("a file");
    // No regular file, and a name that no text holds.
    let pipe = CString::new(folder.path("in/pipe.zarr").display().to_string()).expect("a path");
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    fs::create_dir(folder.path("in").join(OsStr::from_bytes(b"bad\xff.zarr"))).expect("a folder");
    drop_input(&folder, "good.zarr", 92);

    let mut service = Service::ready(&folder);
    service.wait_for(&folder, "done", names.len() as u64 + 1);
    service.wait_for(&folder, "quarantined", 9);
    assert!(service.is_running() && service.get(&folder, "/healthz").0 == 200);
    let log = service.log();
    assert!(log.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()), "a name broke the log");
    wait_until("all records", || (fs::read_dir(folder.path("q")).ok()?.count() == 9).then_some(()));
    let (code, out, _) = halostream(&folder, &["status", "service.toml"]);
    assert!(code == 0 && out.contains("line\\nbreak.zarr"), "{out}");
    assert_eq!(service.stop(), 0);
    for (seed, name) in names.iter().enumerate() {
        assert_output(&folder, name.strip_suffix(".zarr").expect("a suffix"), seed as u64);
    }
    assert_output(&folder, "good", 92);
    for record in records(&folder).iter().filter(|r| r.state == State::Quarantined) {
        assert!(record.reason.as_ref().is_some_and(|r| !r.is_empty() && r.len() < 6000), "{record:?}");
    }
    assert!(record(&folder, "link.zarr").reason.is_some_and(|r| r.contains("is a link")));
    let outputs = fs::read_dir(folder.path("out")).expect("outputs").count();
    assert_eq!(outputs, names.len() + 1, "nothing half, nothing else");
}

/// Stores that promise more than anybody could look for, or what lies elsewhere: looked at cheaply, never complete.
#[test]
fn promises_that_are_not_kept() {
    let folder = set_up("promises", "", "complete = [\"zarr\"]\nstalled_after = \"1ms\"");
    write_input(&folder.path("outside.zarr"), 90);
    let put = |name: &str, text: &str| {
        fs::create_dir_all(folder.path("in").join(name)).expect("a folder");
        fs::write(folder.path("in").join(name).join("zarr.json"), text).expect("a file");
    };
    let group = |names: &[&str]| {
        let members: Vec<String> = names.iter().map(|name| format!("{name:?}:{HUGE}")).collect();
        let metadata = members.join(",");
        format!(
            r#"{{"zarr_format":3,"node_type":"group","attributes":{{}},"consolidated_metadata":{{"kind":"inline","must_understand":false,"metadata":{{{metadata}}}}}}}"#
        )
    };
    put("huge.zarr", HUGE);
    put("above.zarr", &group(&["../outside.zarr"]));
    put("nameless.zarr", &group(&[""]));
    put("itself.zarr", &group(&["."]));
    put("rooted.zarr", &group(&["/etc"]));
    let many: Vec<String> = (0..10_000).map(|n| format!("a{n}")).collect();
    put("many.zarr", &group(&many.iter().map(String::as_str).collect::<Vec<_>>()));
    drop_input(&folder, "linked.zarr", 91);
    fs::remove_dir_all(folder.path("in/linked.zarr/c")).expect("removed");
    std::os::unix::fs::symlink(folder.path("outside.zarr/c"), folder.path("in/linked.zarr/c")).expect("a link");
    let service = Service::ready(&folder);
    drop_input(&folder, "good.zarr", 92);
    service.wait_for(&folder, "done", 1);
    wait_until("all of them to be stalled", || (service.events("input_stalled") == 7).then_some(()));
    for (name, why) in [
        ("huge.zarr", "chunk c/0 is not there yet"),
        ("above.zarr", "refused"),
        ("nameless.zarr", "without a name"),
        ("itself.zarr", "refused"),
        ("rooted.zarr", "without a name"),
        ("many.zarr", "a0 has no metadata yet"),
        ("linked.zarr", "out of the store"),
    ] {
        let told = service.details("input_stalled").into_iter().find(|d| d["name"] == name).expect(name);
        assert!(told["why"].as_str().is_some_and(|text| text.contains(why)), "{told}");
    }
    assert_eq!((service.events("job_started"), service.stop()), (1, 0));
    assert_output(&folder, "good", 92);
}
