//! The real binary as a user drives it: exit codes, messages, signals, the files shipped in `config/` and `examples/`.

#[path = "../common/mod.rs"]
mod common;

mod config;
mod formats;
mod messages;
mod outputs;
mod report;
mod sample;
mod signals;
mod terminal;
mod verify;

use std::path::Path;
use std::process::{Command, Stdio};

use common::Folder;

/// A command that has ended.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    /// The exit code and all of stderr; nothing on stdout.
    #[track_caller]
    fn fails(&self, code: i32, err: &str) {
        assert_eq!((self.code, self.err.as_str(), self.out.as_str()), (code, err, ""));
    }

    #[track_caller]
    fn done(self) -> Self {
        assert_eq!((self.code, self.err.as_str()), (0, ""));
        self
    }
}

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(args).current_dir(&folder.0).env_remove("HALOSTREAM_LOG").stdin(Stdio::null());
    command
}

/// Runs `halostream ARGS` in a folder; its path is FOLDER in what was printed.
fn halostream(folder: &Folder, args: &[&str]) -> Ended {
    finish(folder, &mut command(folder, args))
}

fn finish(folder: &Folder, command: &mut Command) -> Ended {
    let ended = command.output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder.0.display().to_string(), "FOLDER");
    let code = ended.status.code().expect("no signal ended it");
    Ended { code, out: text(&ended.stdout), err: text(&ended.stderr) }
}

fn job(folder: &Folder, text: &str) {
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
}

/// A job of a few blocks that works.
const SMALL: &str = "[input]
path = \"sample:volume\"
shape = [8, 40, 30]
chunks = [4, 20, 10]
[[step]]
op = \"cast\"
dtype = \"float64\"
[output]
path = \"out.zarr\"
";

/// Every file below a folder with its content and time of change.
fn files(path: &Path) -> Vec<(std::path::PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(path).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            list.extend(files(&path));
        } else {
            let time = entry.metadata().and_then(|m| m.modified()).expect("a file");
            list.push((path.clone(), std::fs::read(&path).expect("a file"), time));
        }
    }
    list.sort();
    list
}
