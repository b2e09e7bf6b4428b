//! The machine's clock is set while the service runs: it decides nothing about what is complete, and makes no record older.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use halostream::service::record::State;

use crate::common::Folder;
use crate::kit::*;

/// Preloaded into the service: its wall clock stands the seconds of a file away from the machine's.
const SHIM: &str = r#"
use std::ffi::{c_char, c_int, c_void};
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}
type Call = unsafe extern "C" fn(c_int, *mut [i64; 2]) -> c_int;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int {
    const NEXT: *mut c_void = -1isize as *mut c_void;
    const REALTIME: c_int = 0;
    unsafe {
        let next: Call = std::mem::transmute(dlsym(NEXT, c"clock_gettime".as_ptr()));
        let result = next(clock, time);
        if clock == REALTIME && result == 0 {
            let file = std::env::var_os("WALL_CLOCK_OFFSET").unwrap_or_default();
            let text = std::fs::read_to_string(file).unwrap_or_default();
            (*time)[0] += text.trim().parse::<i64>().unwrap_or(0);
        }
        result
    }
}
"#;

/// `None` where no compiler is.
fn shim(folder: &Folder) -> Option<PathBuf> {
    let (source, library) = (folder.path("shim.rs"), folder.path("shim.so"));
    fs::write(&source, SHIM).expect("a file");
    let rustc = PathBuf::from(env!("CARGO")).with_file_name("rustc");
    let ended =
        Command::new(rustc).args(["--crate-type", "cdylib", "--edition", "2024", "-O", "-o"]).arg(&library).arg(&source).output();
    ended.is_ok_and(|e| e.status.success()).then_some(library)
}

const YEAR: i64 = 365 * 86_400;

#[test]
fn set_back_and_forth() {
    let folder = set_up("clock", "ledger_keep = \"1h\"", "complete = [\"settle:300ms\", \"zarr\"]");
    let Some(library) = shim(&folder) else {
        println!("skipped: no rustc beside cargo");
        return;
    };
    let offset = folder.path("offset");
    let set = |seconds: i64| write_whole(&offset, seconds.to_string().as_bytes());
    let start = || Service::ready_with(&folder, &[("LD_PRELOAD", &library), ("WALL_CLOCK_OFFSET", &offset)]);
    set(0);
    let service = start();
    drop_input(&folder, "a.zarr", 1);
    service.wait_for(&folder, "done", 1);
    // Back by ten years, in the middle of a settling.
    drop_input(&folder, "b.zarr", 2);
    service.wait_for(&folder, "seen", 1);
    set(-10 * YEAR);
    service.wait_for(&folder, "done", 2);
    assert_eq!((service.events("job_started"), service.stop()), (2, 0));
    let (a, b) = (record(&folder, "a.zarr"), record(&folder, "b.zarr"));
    assert!(b.ended_ms.expect("an end") < a.started_ms.expect("a start") - 9 * YEAR * 1000, "the shim works");

    // An input that is gone, and whose record is of the future: kept.
    fs::remove_dir_all(folder.path("in/a.zarr")).expect("removed");
    let service = start();
    drop_input(&folder, "c.zarr", 3);
    service.wait_for(&folder, "done", 3);
    assert_eq!((service.events("job_started"), service.stop()), (1, 0));
    assert_all_done_once(&folder, 3);

    // Forward again: the record of what is gone is old now. What is still there is never forgotten, however old.
    set(2 * 3600);
    let service = start();
    service.wait_for(&folder, "done", 2);
    assert_eq!((service.events("job_started"), service.stop()), (0, 0));
    let left: Vec<_> = records(&folder).into_iter().map(|r| (r.name, r.state)).collect();
    assert_eq!(left, [("b.zarr".to_owned(), State::Done), ("c.zarr".to_owned(), State::Done)]);
    (1..).zip(["a", "b", "c"]).for_each(|(seed, stem)| assert_output(&folder, stem, seed));
}
