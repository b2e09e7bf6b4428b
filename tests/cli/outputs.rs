//! What stands at an output's path decides what a run does; `inspect` shows what stands there.

use crate::common::{Array, Folder, read, write};
use crate::{SMALL, files, halostream, job};
use halostream::config::CodecName;

#[test]
fn again_does_nothing() {
    let folder = Folder::new("cli-again");
    job(&folder, SMALL);
    let first = halostream(&folder, &["run", "job.toml"]).done();
    assert!(first.out.starts_with("wrote out.zarr in "), "{}", first.out);
    let words = ["/s (", " read, ", " written), peak memory ", " (limit ", "), bottleneck "];
    assert!(words.iter().all(|w| first.out.contains(w)), "{}", first.out);
    let before = files(&folder.0);
    // Other ways to run are the same job.
    for more in [&[][..], &["--set", "engine.workers=1"], &["--set", "output.if_exists=overwrite"]] {
        let ended = halostream(&folder, &[&["run", "job.toml"], more].concat()).done();
        assert_eq!(ended.out, "nothing to do: this very job has made out.zarr before\n");
    }
    assert_eq!(files(&folder.0), before);
    let report = halostream(&folder, &["run", "job.toml", "--quiet", "--report", "r.json"]).done();
    assert_eq!(report.out, "");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path("r.json")).expect("a report")).expect("JSON");
    assert_eq!((&report["blocks_computed"], &report["blocks_resumed"]), (&0.into(), &report["blocks_total"]));
}

#[test]
fn what_stands_there_is_kept() {
    let folder = Folder::new("cli-stands");
    job(&folder, SMALL);
    halostream(&folder, &["run", "job.toml"]).done();
    let before = files(&folder.path("out.zarr"));
    let fails = |set: &str, want: &str| {
        halostream(&folder, &["run", "job.toml", "--set", set]).fails(2, &format!("halostream: job.toml: out.zarr: {want}\n"));
        assert_eq!(files(&folder.path("out.zarr")), before);
    };
    fails("output.if_exists=error", "exists already (if_exists = \"error\")");
    fails("input.seed=1", "was made by another job; choose another path, or say if_exists = \"overwrite\"");
    fails("output.codec=gzip", "was made by another job; choose another path, or say if_exists = \"overwrite\"");

    // The old one stays until the new one is whole: here it never is.
    let sets = ["--set", "output.if_exists=overwrite", "--set", "step.0.dtype=uint8"];
    let ended = halostream(&folder, &[&["run", "job.toml"][..], &sets].concat());
    assert!(ended.code == 1 && ended.err.contains("is no uint8 value"), "{}", ended.err);
    assert_eq!(files(&folder.path("out.zarr")), before);

    halostream(&folder, &["run", "job.toml", "--set", "output.if_exists=overwrite", "--set", "input.seed=1"]).done();
    assert_ne!(files(&folder.path("out.zarr")), before);
    let left: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_others_made_is_kept() {
    let folder = Folder::new("cli-others");
    job(&folder, SMALL);
    write(&folder.path("out.zarr"), &Array::new::<u8>(&[2], &[1, 2]), &[2], None, CodecName::None);
    let before = files(&folder.0);
    let want = "halostream: job.toml: out.zarr: exists and was not made by halostream; choose another path, or say if_exists = \"overwrite\"\n";
    halostream(&folder, &["run", "job.toml"]).fails(2, want);
    assert_eq!(files(&folder.0), before);
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("a folder to remove");
    std::fs::write(folder.path("out.zarr"), "notes").expect("a file");
    halostream(&folder, &["run", "job.toml"]).fails(2, want);
    halostream(&folder, &["run", "job.toml", "--set", "output.if_exists=overwrite"]).done();
    assert_eq!(read(&folder.path("out.zarr"), None).shape, [8, 40, 30]);
}

#[test]
fn inspect_shows_array_and_job() {
    let folder = Folder::new("cli-inspect");
    job(&folder, SMALL);
    halostream(&folder, &["run", "job.toml"]).done();
    let shown = halostream(&folder, &["inspect", "out.zarr"]).done().out;
    let start = "zarr v3 array\n.  float64 [8, 40, 30]\n  chunks      [4, 20, 10]\n  codecs      zstd\n  fill value  0\n  dimensions  z, y, x\n";
    assert!(shown.starts_with(start), "{shown}");
    assert!(shown.contains(" in 12 objects\n") && shown.contains("`inspect --job` prints the job"), "{shown}");

    let text = halostream(&folder, &["inspect", "out.zarr", "--job"]).done().out;
    assert!(
        text.starts_with(concat!("# made by halostream ", env!("CARGO_PKG_VERSION"), "; relative paths start at FOLDER\n")),
        "{text}"
    );
    std::fs::write(folder.path("again.toml"), &text).expect("a job file");
    let said = halostream(&folder, &["run", "again.toml"]).done().out;
    assert!(said.starts_with("nothing to do: "), "the same job: {said}");
    let before = read(&folder.path("out.zarr"), None);
    halostream(&folder, &["run", "again.toml", "--set", "output.path=again.zarr"]).done();
    assert_eq!(read(&folder.path("again.zarr"), None), before);
}

#[test]
fn inspect_of_other_things() {
    let folder = Folder::new("cli-no-array");
    std::fs::create_dir(folder.path("empty")).expect("a folder");
    std::fs::write(folder.path("file"), "x").expect("a file");
    write(&folder.path("in.zarr"), &Array::new::<u8>(&[2], &[1, 2]), &[2], None, CodecName::None);
    let fails = |args: &[&str], want: &str| {
        halostream(&folder, &[&["inspect"], args].concat()).fails(2, &format!("halostream: {want}\n"))
    };
    fails(&["nowhere"], "nowhere: no such file or folder");
    fails(&["empty"], "empty: neither a Zarr array nor a group: no zarr.json, .zarray, .zgroup or .zmetadata in it");
    fails(&["file"], "file: not a folder");
    fails(&["in.zarr", "--job"], "in.zarr: was not made by halostream (no attribute `halostream`)");
    fails(&["empty", "--job"], "empty: was not made by halostream (no attribute `halostream`)");
}
