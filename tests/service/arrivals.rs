//! Data arrives in every way that people have: nothing is read early, everything is processed once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use halostream::service::clock::{Clock, SystemClock};

use crate::kit::*;

const STEP: Duration = Duration::from_millis(15);

/// The files of a store, metadata first or last.
fn files(store: &Path, metadata_first: bool) -> Vec<PathBuf> {
    fn visit(folder: &Path, list: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() { visit(&path, list) } else { list.push(path) }
        }
    }
    let mut list = Vec::new();
    visit(store, &mut list);
    list.sort();
    list.sort_by_key(|p| p.ends_with("zarr.json") != metadata_first);
    list.iter().map(|p| p.strip_prefix(store).expect("below").to_path_buf()).collect()
}

fn place(to: &Path) -> &Path {
    fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    to
}

fn append_slowly(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("a chunk");
    let mut file = File::create(place(to)).expect("a file");
    for part in bytes.chunks(bytes.len().div_ceil(3).max(1)) {
        file.write_all(part).expect("room");
        sleep(STEP);
    }
}

fn preallocate(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("a chunk");
    let mut file = File::create(place(to)).expect("a file");
    file.set_len(bytes.len() as u64).expect("room");
    sleep(STEP);
    file.seek(SeekFrom::Start(0)).expect("a place");
    file.write_all(&bytes).expect("room");
}

fn as_rsync_does(from: &Path, to: &Path) {
    let name = to.file_name().expect("a name").to_string_lossy().into_owned();
    let temporary = place(to).with_file_name(format!(".{name}.x9Ab3Z"));
    fs::copy(from, &temporary).expect("room");
    sleep(STEP);
    fs::rename(temporary, to).expect("a name");
}

fn truncate_and_rewrite(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("a chunk");
    fs::write(place(to), vec![7u8; bytes.len() + 3]).expect("room");
    sleep(STEP);
    File::create(to).expect("a file");
    sleep(STEP);
    fs::write(to, bytes).expect("room");
}

/// Brings one input in the way number `way`.
fn bring(aside: &Path, inbox: &Path, way: u64, name: &str) {
    let to = inbox.join(name);
    let each = |first: bool, put: &dyn Fn(&Path, &Path)| {
        for file in files(aside, first) {
            put(&aside.join(&file), &to.join(&file));
        }
    };
    match way {
        0 => each(true, &append_slowly),
        1 => {
            // Copied under a temporary name, then renamed.
            let temporary = inbox.join(format!("{name}.part"));
            for file in files(aside, true) {
                fs::copy(aside.join(&file), place(&temporary.join(&file))).expect("room");
                sleep(STEP);
            }
            fs::rename(temporary, to).expect("a name");
        }
        2 => each(true, &preallocate),
        3 => each(true, &as_rsync_does),
        4 => each(true, &|from, to| {
            fs::copy(from, place(to)).expect("room");
            sleep(STEP);
        }),
        5 => each(false, &|from, to| {
            fs::copy(from, place(to)).expect("room");
            sleep(STEP);
        }),
        6 => each(true, &truncate_and_rewrite),
        _ => {
            // Pauses in the middle for longer than any settling time: only its marker says when it is done.
            let list = files(aside, true);
            let pause = Duration::from_secs(size("HALOSTREAM_PAUSE", 3));
            for (n, file) in list.iter().enumerate() {
                append_slowly(&aside.join(file), &to.join(file));
                sleep(if n == list.len() / 2 { pause } else { STEP });
            }
            fs::write(inbox.join(format!("{name}.done")), "").expect("a marker");
        }
    }
}

/// An input whose array lies two groups deep.
fn write_nested(path: &Path, seed: u64) {
    write_input(&path.join("deep/u"), seed);
    for group in ["deep/zarr.json", "zarr.json"] {
        fs::write(path.join(group), r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#).expect("room");
    }
}

const WAYS: u64 = 8;

/// All ways at once, while the service runs. A job that starts before its writer has ended would be an early read.
#[test]
fn every_way_and_nothing_early() {
    let count = size("HALOSTREAM_ARRIVALS", 42);
    let held = "[[watch]]\nname = \"held\"\ndirectory = \"held\"\npattern = \"*.zarr\"\ncomplete = [\"settle:100ms\", \"marker:{name}.done\"]\njob = \"job.toml\"\noutput = \"out/{stem}.zarr\"\npoll = \"100ms\"\n";
    let folder = set_up("arrivals", "max_jobs = 2", &format!("complete = [\"settle:2s\", \"zarr\"]\n{held}"));
    fs::write(folder.path("job.toml"), COPY.replace("[output]", "array = \"deep/u\"\n[output]")).expect("a job");
    fs::create_dir(folder.path("held")).expect("a folder");
    let service = Service::ready(&folder);
    let aside = |seed: u64| folder.path("aside").join(format!("{seed}.zarr"));
    (0..count).for_each(|seed| write_nested(&aside(seed), seed));
    let written = Mutex::new(BTreeMap::new());
    let arrive = |seed: u64| {
        let inbox = folder.path(if seed % WAYS == 7 { "held" } else { "in" });
        bring(&aside(seed), &inbox, seed % WAYS, &format!("n{seed}.zarr"));
        let now = SystemClock::new().wall_ms();
        written.lock().expect("no panic").insert(format!("n{seed}.zarr"), now);
    };
    std::thread::scope(|scope| {
        // Those that pause do so all together.
        let arrive = &arrive;
        (7..count).step_by(WAYS as usize).for_each(|seed| drop(scope.spawn(move || arrive(seed))));
        for lane in 0..4 {
            scope.spawn(move || (lane..count).step_by(4).filter(|seed| seed % WAYS != 7).for_each(arrive));
        }
    });
    let done = || {
        let status = service.status(&folder);
        status["watches"].as_array().into_iter().flatten().filter_map(|w| w["inputs"]["done"].as_u64()).sum::<u64>()
    };
    wait_until(&format!("{count} inputs done; {}", service.log_tail()), || (done() == count).then_some(()));
    assert_eq!(service.events("job_started"), count as usize, "each is started once");
    assert_eq!(service.events("input_quarantined") + service.events("job_retried"), 0);
    assert_eq!(service.stop(), 0);
    assert_all_done_once(&folder, count as usize);
    let written = written.into_inner().expect("no panic");
    let early: Vec<_> = records(&folder).into_iter().filter(|r| r.started_ms < written.get(&r.name).copied()).collect();
    assert!(early.is_empty(), "read early: {early:?}");
    (0..count).for_each(|seed| assert_output(&folder, &format!("n{seed}"), seed));
    println!("{count} arrivals in {WAYS} ways: 0 early, each processed once");
}

#[test]
fn a_manifest_is_believed_only_when_everything_fits() {
    let folder = set_up("manifest", "", "complete = [\"manifest:MANIFEST.json\"]");
    let service = Service::ready(&folder);
    let (aside, to) = (folder.path("aside/0.zarr"), folder.path("in/a.zarr"));
    write_input(&aside, 6);
    let entries: Vec<_> = files(&aside, true)
        .iter()
        .map(|f| serde_json::json!({ "path": f, "size": fs::metadata(aside.join(f)).expect("a file").len() }))
        .collect();
    fs::create_dir_all(&to).expect("a folder");
    fs::write(to.join("MANIFEST.json"), serde_json::json!({ "files": entries }).to_string()).expect("room");
    for file in files(&aside, true) {
        assert_eq!(service.events("job_started"), 0, "before {}", file.display());
        append_slowly(&aside.join(&file), &to.join(&file));
    }
    service.wait_for(&folder, "done", 1);
    assert_eq!(service.stop(), 0);
    assert_output(&folder, "a", 6);
}

/// A processed input that changes is a new version, and its output is replaced.
#[test]
fn a_changed_input_is_processed_again() {
    let folder = set_up("changed", "", "complete = [\"settle:300ms\", \"zarr\"]");
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 1);
    assert_output(&folder, "a", 1);
    fs::remove_dir_all(folder.path("in/a.zarr")).expect("removed");
    drop_input(&folder, "a.zarr", 2);
    wait_until("the second version", || (service.events("job_done") == 2).then_some(()));
    // What does not change is not looked at twice.
    sleep(Duration::from_millis(600));
    assert_eq!(service.events("job_done"), 2);
    assert_eq!(service.stop(), 0);
    assert_output(&folder, "a", 2);
    assert!(record(&folder, "a.zarr").made.len() == 2);
}

/// Twenty thousand entries at the start: they are all known, and what is complete is not held up.
#[test]
fn a_full_inbox() {
    let folder = set_up("many", "", "complete = [\"marker:{name}.done\"]");
    for n in 0..20_000 {
        File::create(folder.path("in").join(format!("x{n}.zarr"))).expect("a file");
    }
    for seed in 0..3 {
        drop_input(&folder, &format!("real{seed}.zarr"), seed);
        fs::write(folder.path("in").join(format!("real{seed}.zarr.done")), "").expect("a marker");
    }
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 3);
    service.wait_for(&folder, "seen", 20_000);
    assert_eq!(service.get(&folder, "/healthz").0, 200);
    assert_eq!(service.stop(), 0);
    (0..3).for_each(|seed| assert_output(&folder, &format!("real{seed}"), seed));
    assert_eq!(records(&folder).len(), 20_003);
}

/// Patterns with folders in them, and names that differ by their folder only.
#[test]
fn nested_folders() {
    let folder = set_up("nested", "", "complete = [\"rename\"]");
    let text = fs::read_to_string(folder.path("service.toml")).expect("a file");
    let text = text.replace("\"*.zarr\"", "\"**/*.zarr\"").replace("out/{stem}.zarr", "out/{relpath}");
    write_whole(&folder.path("service.toml"), text.as_bytes());
    for (seed, name) in ["a.zarr", "x/a.zarr", "x/y/a.zarr"].iter().enumerate() {
        fs::create_dir_all(place(&folder.path("in").join(name)).parent().expect("a folder")).expect("a folder");
        drop_input(&folder, name, seed as u64);
    }
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_all_done_once(&folder, 3);
    assert_output(&folder, "a", 0);
    assert_output(&folder, "x/a", 1);
    assert_output(&folder, "x/y/a", 2);
}
