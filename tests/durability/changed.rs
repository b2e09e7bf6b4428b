//! Inputs that change: while they are read the job fails, between two runs the old progress is not used.

use std::path::Path;

use crate::common::{Array, Folder, read, write};
use crate::resume::{slow, started};
use crate::{count, halostream, job, names, objects, report, staged};
use halostream::config::CodecName;

/// Writes a chunk anew: other values, same length.
fn change(folder: &Folder, chunk: &str) {
    let values: Vec<f64> = (0..12).map(|i| f64::from(i) * 0.5).collect();
    std::fs::write(folder.path("x.zarr").join(chunk), bytemuck::cast_slice(&values)).expect("a chunk");
}

fn is_right(folder: &Folder) {
    assert_eq!(read(&folder.path("out.zarr"), None), read(&folder.path("x.zarr"), None));
}

#[test]
fn while_it_is_read() {
    let folder = Folder::new("changed-reading");
    job(&folder, &slow(&folder));
    let running = started(&folder, 1);
    change(&folder, "c/0");
    running.end().fails(1, &["input `input` was changed while it was being read; run the job again"]);
    assert_eq!(names(&folder.0), ["job.toml", "x.zarr"]);
    halostream(&folder.0, &["run", "job.toml"]).done();
    is_right(&folder);
    assert_eq!(names(&folder.0), ["job.toml", "out.zarr", "x.zarr"]);
}

#[test]
fn taken_away_while_it_is_read() {
    let folder = Folder::new("changed-gone");
    let text = slow(&folder);
    job(&folder, &text);
    let running = started(&folder, 1);
    // Torn: shorter than the metadata says.
    std::fs::write(folder.path("x.zarr/c/7"), "short").expect("a chunk");
    let ended = running.end();
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("x.zarr"), "{}", ended.err);
    assert!(!folder.path("out.zarr").exists());
}

fn old_progress(folder: &Folder) -> std::path::PathBuf {
    let running = started(folder, 3);
    running.signal(libc::SIGKILL);
    drop(running);
    let old = staged(&folder.path("out.zarr")).expect("progress");
    assert!(objects(&old).len() >= 3);
    old
}

fn runs_anew(folder: &Folder, old: &Path) {
    let ended = halostream(&folder.0, &["run", "job.toml", "--report", "r.json"]).done();
    assert!(ended.err.contains("unfinished output of another job; `halostream clean` removes it"), "{}", ended.err);
    assert_eq!((count(&report(&folder.0), "blocks_resumed"), count(&report(&folder.0), "objects_written")), (0, 8));
    is_right(folder);
    assert!(old.exists(), "it stays until it is cleaned");
    let cleaned = halostream(&folder.0, &["clean", "out.zarr"]).done();
    assert!(cleaned.out.starts_with("removed .out.zarr.halostream-"), "{}", cleaned.out);
    assert_eq!(names(&folder.0), ["job.toml", "out.zarr", "r.json", "x.zarr"]);
}

#[test]
fn between_two_runs() {
    let folder = Folder::new("changed-between");
    job(&folder, &slow(&folder));
    let old = old_progress(&folder);
    change(&folder, "c/1");
    runs_anew(&folder, &old);
}

#[test]
fn replaced_between_two_runs() {
    // A whole new array under the old name.
    let folder = Folder::new("changed-replaced");
    job(&folder, &slow(&folder));
    let old = old_progress(&folder);
    std::fs::remove_dir_all(folder.path("x.zarr")).expect("the input");
    let x: Vec<f64> = (0..96).map(|i| f64::from(i) + 1000.0).collect();
    write(&folder.path("x.zarr"), &Array::new(&[96], &x), &[12], None, CodecName::None);
    runs_anew(&folder, &old);
}
