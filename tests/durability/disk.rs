//! A full disk: the job fails with the file's name, and goes on once there is room.

use std::path::PathBuf;

use crate::common::{Disk, Folder};
use crate::{count, halostream, job, names, report, tree};

const JOB: &str = "[input]
path = \"sample:volume\"
shape = [32, 500, 500]
chunks = [8, 250, 250]
[[step]]
op = \"cast\"
dtype = \"float64\"
[output]
path = \"disk/out.zarr\"
chunks = [8, 125, 125]
codec = \"none\"
";

#[test]
fn full() {
    let folder = Folder::new("disk-full");
    let Some(disk) = Disk::new(&folder.path("disk"), "size=50m") else {
        println!("skipped: this user may not mount a file system");
        return;
    };
    job(&folder, JOB);
    for more in [&[][..], &["--no-sync"]] {
        let ended = halostream(&folder.0, &[&["run", "job.toml", "--quiet"], more].concat());
        ended.fails(1, &["disk/.out.zarr.halostream-", "No space left on device"]);
        assert!(!folder.path("disk/out.zarr").exists());
    }
    disk.remount(0, "size=200m");
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--report", "r.json"]).done();
    let written = count(&report(&folder.0), "objects_written");
    assert!(written < 64, "what was stored before is kept: {written}");
    assert_eq!(names(&folder.path("disk")), ["out.zarr"]);
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--set", "output.path=out.zarr"]).done();
    let metadata = PathBuf::from("zarr.json");
    let (mut got, mut want) = (tree(&folder.path("disk/out.zarr")), tree(&folder.path("out.zarr")));
    assert!(got.remove(&metadata).is_some() && want.remove(&metadata).is_some());
    assert!(got == want);
}

#[test]
fn full_from_the_start() {
    let folder = Folder::new("disk-start");
    let Some(disk) = Disk::new(&folder.path("disk"), "size=50m") else {
        println!("skipped: this user may not mount a file system");
        return;
    };
    job(&folder, JOB);
    // Not even the metadata fits.
    let filler = folder.path("disk/filler");
    let filled = std::fs::write(&filler, vec![1u8; 64 << 20]);
    assert!(filled.is_err());
    halostream(&folder.0, &["run", "job.toml", "--quiet"]).fails(1, &["disk/.out.zarr.halostream-", "No space left on device"]);
    assert_eq!(names(&folder.path("disk")), ["filler"]);
    std::fs::remove_file(&filler).expect("a file");
    disk.remount(0, "size=200m");
    halostream(&folder.0, &["run", "job.toml", "--quiet"]).done();
}
