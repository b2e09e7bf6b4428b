//! A full disk: the job fails with the file's name, and goes on once there is room.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use crate::common::Folder;
use crate::{count, halostream, job, names, report, tree};

/// A file system in memory, mounted for a test.
struct Disk(PathBuf);

impl Disk {
    /// `None` when this user may not mount.
    fn new(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        mount(at, 0, "size=50m").then(|| Self(at.to_path_buf()))
    }

    fn grow(&self) {
        assert!(mount(&self.0, libc::MS_REMOUNT, "size=200m"), "the disk does not grow");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = CString::new(self.0.display().to_string()).expect("a path");
        // SAFETY: a valid C string.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(at: &Path, flags: libc::c_ulong, data: &str) -> bool {
    let text = |t: &str| CString::new(t).expect("no NUL");
    let (at, kind, data) = (text(&at.display().to_string()), text("tmpfs"), text(data));
    // SAFETY: all are valid C strings that live through the call.
    unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) == 0 }
}

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
    let Some(disk) = Disk::new(&folder.path("disk")) else {
        println!("skipped: this user may not mount a file system");
        return;
    };
    job(&folder, JOB);
    for more in [&[][..], &["--no-sync"]] {
        let ended = halostream(&folder.0, &[&["run", "job.toml", "--quiet"], more].concat());
        ended.fails(1, &["disk/.out.zarr.halostream-", "No space left on device"]);
        assert!(!folder.path("disk/out.zarr").exists());
    }
    disk.grow();
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
    let Some(disk) = Disk::new(&folder.path("disk")) else {
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
    disk.grow();
    halostream(&folder.0, &["run", "job.toml", "--quiet"]).done();
}
