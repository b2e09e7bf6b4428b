//! The code that talks to CUDA, without a device: the binary finds a driver and an NVRTC that are the CPU (`driver.cpp`),
//! which do everything as late as they may, in an order of their own, and abort when they are used wrongly. Jobs must write
//! the CPU's files, leave nothing behind, and end whatever the driver does.

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Folder;
use serde_json::Value;

const KS: &str = "[[step]]\nop = 'ks_test'\nhalf_window = [3, 2]\n";
const NOTHING_LEFT: &str = "contexts 0, streams 0, events 0, modules 0, memory 0, pinned 0, launches some\n";

/// A folder with the driver in it; `None` where there is no C++ compiler.
fn driver(name: &str) -> Option<Folder> {
    let folder = Folder::new(name);
    std::fs::create_dir(folder.path("lib")).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/driver.cpp");
    let library = folder.path("lib/libcuda.so");
    let compile = Command::new("c++").args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).output();
    match compile {
        Err(_) => {
            eprintln!("skipped: jobs on a fake driver, no C++ compiler here");
            return None;
        }
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
    for name in ["libcuda.so.1", "libnvrtc.so"] {
        std::fs::copy(&library, folder.path("lib").join(name)).expect("a copy");
    }
    Some(folder)
}

struct Ended {
    code: i32,
    err: String,
    report: Value,
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// What the driver was left with; empty where it was not asked for a device.
    books: String,
}

impl Ended {
    fn devices(&self) -> Vec<Value> {
        self.report["devices"].as_array().cloned().unwrap_or_default()
    }

    fn sum(&self, key: &str) -> u64 {
        self.devices().iter().map(|d| d[key].as_u64().expect("a count")).sum()
    }
}

fn collect(folder: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>, root: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into, root);
        } else if path.extension().is_none_or(|e| e != "json") {
            // Metadata holds the job, [engine] and all.
            into.insert(path.strip_prefix(root).expect("below it").to_owned(), std::fs::read(&path).expect("a file"));
        }
    }
}

/// Runs a job with these steps and lines in `[engine]` on the fake driver with these settings.
fn run(folder: &Folder, settings: &str, steps: &str, engine: &str) -> Ended {
    let _ = std::fs::remove_dir_all(folder.path("out.zarr"));
    let _ = std::fs::remove_file(folder.path("books"));
    let _ = std::fs::remove_file(folder.path("report.json"));
    let text = format!(
        "[input]\npath = 'sample:slc'\nshape = [40, 60, 9]\nchunks = [16, 16, 9]\nseed = 3\n{steps}\n[output]\npath = 'out.zarr'\n\
         codec = 'none'\nif_exists = 'overwrite'\n[engine]\nmemory = '400MiB'\nworkers = 3\nblock = [16, 32]\n{engine}\n"
    );
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    let output = Command::new(env!("CARGO_BIN_EXE_halostream"))
        .args(["run", "job.toml", "--no-sync", "--report", "report.json"])
        .current_dir(&folder.0)
        .env_remove("HALOSTREAM_NVRTC")
        .env("LD_LIBRARY_PATH", folder.path("lib"))
        .env("HALOSTREAM_CACHE", folder.path("cache"))
        .env("FAKE_CUDA", settings)
        .env("FAKE_CUDA_FOLDER", &folder.0)
        .env("FAKE_CUDA_SHIM", Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compute/gpu/shim.h"))
        .output()
        .expect("the binary starts");
    let mut files = BTreeMap::new();
    collect(&folder.path("out.zarr"), &mut files, &folder.path("out.zarr"));
    let report = std::fs::read(folder.path("report.json")).ok().and_then(|b| serde_json::from_slice(&b).ok());
    Ended {
        code: output.status.code().unwrap_or(-1),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        report: report.unwrap_or_default(),
        files,
        books: std::fs::read_to_string(folder.path("books")).unwrap_or_default(),
    }
}

/// The same, which must end well and with these files.
#[track_caller]
fn same(folder: &Folder, settings: &str, steps: &str, engine: &str, want: &Ended) -> Ended {
    let ended = run(folder, settings, steps, engine);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(!ended.files.is_empty() && ended.files == want.files, "other files than the CPU's: {settings}, {engine}");
    ended
}

#[test]
fn jobs_through_the_driver_give_the_cpus_files_and_leave_nothing_i9() {
    let Some(folder) = driver("gpu-jobs") else { return };
    let cpu = run(&folder, "", KS, "devices = ['cpu']");
    assert_eq!((cpu.code, cpu.books.as_str()), (0, ""), "{}", cpu.err);
    for (settings, engine, seats) in [
        ("", "devices = 'auto'", 1),
        ("devices=2", "devices = 'auto'", 2),
        ("", "devices = ['cuda:0', 'cuda:0']", 2),
        ("devices=2", "devices = ['cuda:1', 'cpu', 'cuda:0']", 2),
        // Halved again and again, so that staging and buffers of many sizes come and go.
        ("", "devices = ['cuda:0']\ndevice_memory = 60000", 1),
    ] {
        let ended = same(&folder, settings, KS, engine, &cpu);
        assert_eq!((ended.devices().len(), ended.books.as_str()), (seats, NOTHING_LEFT), "{engine}");
        assert!(ended.devices().iter().all(|d| d["lost"].is_null()), "{}", ended.report);
        assert!(engine.contains("'cpu'") || ended.sum("jobs") >= 6, "{}", ended.report);
    }
    // Amplitudes go to a device only where one is named.
    let steps = "[[step]]\nop = 'amplitude'\n";
    let cpu = run(&folder, "", steps, "devices = ['cpu']");
    let ended = same(&folder, "", steps, "devices = ['cuda:0']", &cpu);
    assert!(ended.sum("jobs") >= 6 && ended.books == NOTHING_LEFT, "{}", ended.report);
    let ended = same(&folder, "", steps, "devices = 'auto'", &cpu);
    assert!(ended.devices().is_empty() && ended.books.is_empty(), "{}", ended.books);
    // Kernels come from the cache now: the compiler is there, and not used.
    let built =
        || std::fs::read_dir(&folder.0).unwrap().flatten().filter(|e| e.path().extension() == Some("so".as_ref())).count();
    assert_eq!(built(), 2, "one library for each program, from all the runs together");
}

#[test]
fn a_driver_without_room_halves_or_waits() {
    let Some(folder) = driver("gpu-room") else { return };
    let cpu = run(&folder, "", KS, "devices = ['cpu']");
    // Less than the job was told: what a device says is free bounds its budget.
    let ended = same(&folder, "memory=100000", KS, "devices = ['cuda:0']\ndevice_memory = '1MiB'", &cpu);
    assert!(ended.report["device_blocks_halved"].as_u64() >= Some(1) || ended.sum("jobs") > 6, "{}", ended.report);
    // A launch that finds no room: its part waits or is halved, the device stays.
    let ended = same(&folder, "full=1", KS, "devices = ['cuda:0']", &cpu);
    assert!(ended.sum("out_of_memory") == 1 && ended.report["device_blocks_halved"].as_u64() >= Some(1), "{}", ended.report);
    assert_eq!(ended.books, NOTHING_LEFT);
}

#[test]
fn a_broken_context_fails_over_i6() {
    let Some(folder) = driver("gpu-fault") else { return };
    let cpu = run(&folder, "", KS, "devices = ['cpu']");
    for (settings, engine) in [
        ("fault=3", "devices = ['cuda:0']\nfallback = 'cpu'"),
        ("fault=1,devices=2", "devices = ['cuda:0', 'cuda:1']"),
        ("fault=4", "devices = 'auto'"),
    ] {
        let ended = same(&folder, settings, KS, engine, &cpu);
        // Of two, the other may have been quick enough to do it all.
        let first = &ended.devices()[0];
        let is_idle = settings.contains("devices=2") && first["bytes_up"] == 0 && first["lost"].is_null();
        let is_lost = first["lost"].as_str().is_some_and(|l| l.contains("ILLEGAL_ADDRESS"));
        assert!(is_idle || is_lost, "{settings}: {}", ended.report);
    }
    let ended = run(&folder, "fault=3", KS, "devices = ['cuda:0']");
    assert!(ended.code == 1 && ended.err.contains("no device is left (cuda:0: ") && ended.files.is_empty(), "{}", ended.err);
}

#[test]
fn kernels_that_a_device_cannot_have_are_left_to_the_cpu() {
    let Some(folder) = driver("gpu-refuse") else { return };
    let cpu = run(&folder, "", KS, "devices = ['cpu']");
    for (settings, words) in [("refuse=1", "error: refused"), ("refuse=2", "NVRTC may be newer than the driver")] {
        let ended = same(&folder, settings, KS, "devices = 'auto'", &cpu);
        let lost = &ended.devices()[0]["lost"];
        assert!(lost.as_str().is_some_and(|l| l.contains(words)), "{}", ended.report);
        let ended = run(&folder, settings, KS, "devices = ['cuda:0']");
        assert!(ended.code == 1 && ended.err.contains(words) && ended.err.contains("no device is left"), "{}", ended.err);
    }
}

#[test]
fn a_driver_that_hangs_holds_up_nobody_i6() {
    let Some(folder) = driver("gpu-hang") else { return };
    let cpu = run(&folder, "", KS, "devices = ['cpu']");
    for launch in [1, 4] {
        let settings = format!("hang={launch}");
        let ended = same(&folder, &settings, KS, "devices = ['cuda:0']\nfallback = 'cpu'\ndevice_timeout = '3s'", &cpu);
        let lost = &ended.devices()[0]["lost"];
        assert!(lost.as_str().is_some_and(|l| l.starts_with("it hangs: nothing came back for 3s")), "{}", ended.report);
    }
    // The device works, only memory is not pinned any more.
    for call in [1, 2] {
        let ended = same(&folder, &format!("hang_pin={call}"), KS, "devices = ['cuda:0']\ndevice_timeout = '3s'", &cpu);
        assert!(ended.devices()[0]["lost"].is_null() && ended.sum("jobs") >= 6, "{}", ended.report);
    }
    let ended = run(&folder, "hang=2", KS, "devices = ['cuda:0']\ndevice_timeout = '3s'");
    assert!(ended.code == 1 && ended.err.contains("no device is left (cuda:0: it hangs"), "{}", ended.err);
}
