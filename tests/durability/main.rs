//! Outputs are absent or complete (I4) and one bad input hurts nobody else (I6), whatever happens: kills, crashes between
//! any two steps of publishing, failing disks, inputs that change, hostile inputs.

#[path = "../common/mod.rs"]
mod common;

mod changed;
mod disk;
mod faults;
mod hostile;
mod kill;
mod partition;
mod publish;
mod resume;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Folder;
use halostream::engine::staging;

/// A command that has ended.
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert!(self.code == code && words.iter().all(|w| self.err.contains(w)), "exit {}: {}", self.code, self.err);
    }
}

pub fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(args).current_dir(folder).env_remove("HALOSTREAM_LOG").stdin(Stdio::null());
    command
}

pub fn halostream(folder: &Path, args: &[&str]) -> Ended {
    let ended = command(folder, args).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: ended.status.code().expect("no signal ended it"), out: text(&ended.stdout), err: text(&ended.stderr) }
}

/// A run that is still going on; ended by the test if the test fails before.
pub struct Running(pub Child);

impl Running {
    pub fn start(folder: &Path, args: &[&str]) -> Self {
        let child = command(folder, args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        Self(child.expect("the binary starts"))
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, signal) };
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_none()
    }

    /// What it says on stderr until its end.
    pub fn error(&mut self) -> String {
        let mut err = String::new();
        let pipe = self.0.stderr.as_mut().expect("a pipe");
        std::io::Read::read_to_string(pipe, &mut err).expect("text");
        err
    }

    /// Its end: exit code and stderr.
    pub fn end(mut self) -> Ended {
        let err = self.error();
        let code = self.0.wait().expect("it ends").code().expect("no signal ended it");
        Ended { code, out: String::new(), err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "waited a minute for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn job(folder: &Folder, text: &str) {
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
}

pub fn hash(folder: &Folder, text: &str) -> String {
    common::plan(text, &folder.0).expect("a job").hash
}

/// Every file below a folder by its path there; a file by itself has an empty one.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn visit(root: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(root, &path, found);
            } else {
                let name = path.strip_prefix(root).expect("below it").to_path_buf();
                // A file may go between listing and reading while a run goes on.
                found.insert(name, std::fs::read(&path).unwrap_or_default());
            }
        }
    }
    if root.is_file() {
        return BTreeMap::from([(PathBuf::new(), std::fs::read(root).unwrap_or_default())]);
    }
    let mut found = BTreeMap::new();
    visit(root, root, &mut found);
    found
}

/// Chunk files of a store by their path there: without metadata, ledger and unfinished files.
pub fn objects(root: &Path) -> Vec<PathBuf> {
    let is_object = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name != "zarr.json" && !name.starts_with('.')
    };
    tree(root).into_keys().filter(is_object).collect()
}

/// The staging folder of an output for any job.
pub fn staged(output: &Path) -> Option<PathBuf> {
    staging::beside(output).first().map(|left| left.path.clone())
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub fn report(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("r.json")).expect("a report")).expect("JSON")
}

pub fn count(report: &serde_json::Value, key: &str) -> u64 {
    report[key].as_u64().expect("a number")
}
