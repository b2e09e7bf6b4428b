//! A signal ends a run within a block's time, and nothing stands under the final name.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::Folder;
use crate::{command, job};

/// Minutes of work in blocks of a tenth of a second.
const SLOW: &str = "[input]
path = \"sample:volume\"
shape = [4096, 512, 512]
chunks = [64, 64, 64]
[output]
path = \"out.zarr\"
chunks = [64, 64, 64]
codec = { name = \"gzip\", level = 9 }
[engine]
workers = 1
memory = \"64MiB\"
";

/// Ended by the test if the test fails before.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the slow job, waits for its first progress line, sends the signal: exit code and last line.
fn stopped_by(signal: i32) -> (i32, String) {
    let folder = Folder::new("cli-signal");
    job(&folder, SLOW);
    let child = command(&folder, &["run", "job.toml", "--no-sync"]).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut running = Running(child);
    let mut lines = BufReader::new(running.0.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line of progress").expect("text");
    // "3/4096 blocks  12.3MiB/s  1min30s left  memory 12.0MiB"
    let parts = ["/4096 blocks  ", "/s  ", " left  memory "];
    assert!(parts.iter().all(|p| first.contains(p)), "{first}");
    let since = Instant::now();
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(running.0.id() as libc::pid_t, signal) };
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = running.0.wait().expect("it ends");
    // A block takes a tenth of a second; the rest is for machines that are busy with other tests.
    assert!(since.elapsed() < Duration::from_secs(60), "took {:?} to stop", since.elapsed());
    for entry in std::fs::read_dir(&folder.0).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name == "job.toml" || name.starts_with(".out.zarr.halostream-"), "{name} was left");
    }
    assert_eq!(rest.len(), 1, "progress lines are rare: {rest:?}");
    (status.code().expect("an exit code"), rest[0].clone())
}

#[test]
fn interrupt() {
    let want = "halostream: job.toml: interrupted before it was done; progress is kept, the same command goes on";
    assert_eq!(stopped_by(libc::SIGINT), (130, want.to_owned()));
}

#[test]
fn terminate() {
    let want = "halostream: job.toml: stopped by SIGTERM before it was done; progress is kept, the same command goes on";
    assert_eq!(stopped_by(libc::SIGTERM), (75, want.to_owned()));
}
