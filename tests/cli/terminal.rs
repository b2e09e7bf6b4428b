//! On a terminal a bar shows how far the run is.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;

use crate::common::Folder;
use crate::{command, job};

/// Both ends of a pseudo terminal, 120 columns wide: ours, the program's.
fn terminal() -> Option<(File, OwnedFd)> {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptors are written before they are read; null asks for no name and the default modes.
    let failed = unsafe { libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) } != 0;
    // SAFETY: openpty made both for us, nobody else owns them.
    (!failed).then(|| unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) })
}

#[test]
fn bar() {
    let folder = Folder::new("cli-bar");
    job(
        &folder,
        "[input]\npath = \"sample:volume\"\nshape = [96, 128, 128]\nchunks = [32, 32, 32]\n[output]\npath = \"out.zarr\"\n\
         codec = { name = \"gzip\", level = 9 }\n[engine]\nworkers = 1\n",
    );
    let Some((mut ours, theirs)) = terminal() else {
        println!("skipped: no pseudo terminal here");
        return;
    };
    let mut command = command(&folder, &["run", "job.toml"]);
    let child = command.env("TERM", "xterm").stderr(Stdio::from(theirs)).stdout(Stdio::piped()).spawn();
    // Else it would keep the terminal open.
    drop(command);
    let child = child.expect("the binary starts");
    let mut seen = Vec::new();
    // A terminal whose other end is closed gives an error where a file ends.
    let _ = ours.read_to_end(&mut seen);
    let ended = child.wait_with_output().expect("it ends");
    let (seen, out) = (String::from_utf8_lossy(&seen), String::from_utf8_lossy(&ended.stdout));
    assert!(ended.status.success() && out.starts_with("wrote out.zarr in "), "{out}");
    for part in [" blocks  ", "/s  ", " left  memory ", "█"] {
        assert!(seen.contains(part), "no {part:?} in {seen:?}");
    }
}
