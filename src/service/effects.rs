//! What follows a job: moving or removing its input, and the user's commands. Runs on a thread of its own, in the order in
//! which jobs ended; the ledger holds the intent, so that a kill in between loses nothing and repeats nothing.
//!
//! ```text
//! inbox/a.zarr --rename--> inbox/.halostream-trash/12/a.zarr --rename or copy--> archive/a.zarr
//! ```
//! The first rename is the decision: what is looked at there can't be changed under its name any more. A new input of the
//! same name that arrived in between is told by its fingerprint and put back.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::record::Effect;
use super::scan::{self, Fingerprint};

/// Inside the watched directory, so that the first rename stays on its file system.
pub const TRASH: &str = ".halostream-trash";
/// A command that takes longer is ended.
const COMMAND_TIME: Duration = Duration::from_secs(60);
/// Most bytes of a command's words in the log.
const MAX_WORDS: u64 = 4096;

/// Where one input is on its way out.
pub struct Removal {
    pub directory: PathBuf,
    pub input: PathBuf,
    pub id: u64,
    pub fingerprint: Fingerprint,
    /// Content counts, not times.
    pub content: bool,
    pub effect: Effect,
}

/// Carries an effect out, or the rest of it. False when the input is another one by now and was left alone.
pub fn remove(removal: &Removal) -> io::Result<bool> {
    let trash = removal.directory.join(TRASH).join(removal.id.to_string());
    let name = removal.input.file_name().unwrap_or(OsStr::new("input"));
    let inside = trash.join(name);
    if fs::symlink_metadata(&inside).is_err() && fs::symlink_metadata(&removal.input).is_ok() {
        fs::create_dir_all(&trash)?;
        fs::rename(&removal.input, &inside)?;
        let found = scan::fingerprint(&inside)?;
        if !same(&found, &removal.fingerprint, removal.content) {
            if fs::symlink_metadata(&removal.input).is_err() {
                fs::rename(&inside, &removal.input)?;
            }
            sweep(&trash);
            return Ok(false);
        }
    }
    if fs::symlink_metadata(&inside).is_ok() {
        match &removal.effect {
            Effect::Delete => delete(&inside)?,
            Effect::Archive(to) => carry(&inside, Path::new(to))?,
            // Its own way, not through the trash.
            Effect::Quarantine => {}
        }
    }
    sweep(&trash);
    Ok(true)
}

/// Whether two fingerprints are of one version.
pub fn same(a: &Fingerprint, b: &Fingerprint, content: bool) -> bool {
    if content { (a.files, a.bytes) == (b.files, b.bytes) } else { a == b }
}

fn sweep(trash: &Path) {
    // Empty folders only: what could not be put back stays for somebody to look at.
    let _ = fs::remove_dir(trash);
    if let Some(all) = trash.parent() {
        let _ = fs::remove_dir(all);
    }
}

fn delete(path: &Path) -> io::Result<()> {
    let result = if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A place in an archive that nothing has yet: `a.zarr`, else `a.zarr.2`, ...
pub fn free_place(folder: &Path, name: &str) -> PathBuf {
    let first = folder.join(name);
    let is_free = |p: &PathBuf| fs::symlink_metadata(p).is_err();
    if is_free(&first) {
        return first;
    }
    (2u64..).map(|n| folder.join(format!("{name}.{n}"))).find(is_free).unwrap_or(first)
}

/// Moves a file or folder, also to another file system: there it appears under its name whole.
pub fn carry(from: &Path, to: &Path) -> io::Result<()> {
    let folder = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    match fs::rename(from, to) {
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {}
        result => return result,
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(".halostream-copy");
    let copy = folder.join(name);
    if fs::symlink_metadata(&copy).is_ok() {
        delete(&copy)?;
    }
    copy_tree(from, &copy)?;
    File::open(folder)?.sync_all()?;
    fs::rename(&copy, to)?;
    File::open(folder)?.sync_all()?;
    delete(from)
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if metadata.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if !metadata.is_dir() {
        fs::copy(from, to)?;
        let file = File::open(to)?;
        file.set_modified(metadata.modified()?)?;
        return file.sync_all();
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_tree(&entry.path(), &to.join(entry.file_name()))?;
    }
    File::open(to)?.sync_all()
}

/// Writes a file that appears under its name whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".part");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// Runs a user's command with a job as JSON on its stdin; its words when it fails.
pub fn tell(command: &[String], document: &Value) -> Result<(), String> {
    let (program, args) = command.split_first().ok_or("the command is empty")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("`{program}` cannot be started: {e}"))?;
    // Both pipes by threads of their own: a command that reads nothing, or says much, holds up nobody.
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let text = document.to_string() + "\n";
    std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(text.as_bytes())));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut words = Vec::new();
        if let Some(mut pipe) = stderr {
            let _ = pipe.by_ref().take(MAX_WORDS).read_to_end(&mut words);
            let _ = tell.send(String::from_utf8_lossy(&words).trim().to_owned());
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
    });
    let until = Instant::now() + COMMAND_TIME;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("`{program}` did not end within {COMMAND_TIME:?}"));
            }
            Err(error) => break Err(format!("`{program}`: {error}")),
        }
    };
    let status = status?;
    if status.success() {
        return Ok(());
    }
    // Its own children may keep the pipe open: they are not waited for.
    let words = told.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Err(format!("`{program}` ended with {status}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("halostream-service-effects-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("in/a.zarr/c")).unwrap();
        fs::write(path.join("in/a.zarr/c/0"), "0").unwrap();
        path
    }

    fn removal(at: &Path, effect: Effect) -> Removal {
        let input = at.join("in/a.zarr");
        let fingerprint = scan::fingerprint(&input).unwrap();
        Removal { directory: at.join("in"), input, id: 4, fingerprint, content: false, effect }
    }

    #[test]
    fn every_cut_is_finished_by_the_next_call() {
        let at = folder("cut");
        let to = at.join("archive/a.zarr");
        let removal = removal(&at, Effect::Archive(to.to_str().unwrap().to_owned()));
        // Killed after the rename to the trash.
        fs::create_dir_all(at.join("in").join(TRASH).join("4")).unwrap();
        fs::rename(at.join("in/a.zarr"), at.join("in").join(TRASH).join("4/a.zarr")).unwrap();
        assert!(remove(&removal).unwrap());
        assert_eq!(fs::read_to_string(to.join("c/0")).unwrap(), "0");
        // Killed after everything.
        assert!(remove(&removal).unwrap());
        assert_eq!(fs::read_dir(at.join("in")).unwrap().count(), 0);
        let _ = fs::remove_dir_all(&at);
    }

    #[test]
    fn a_newer_version_is_left_alone() {
        let at = folder("newer");
        let removal = removal(&at, Effect::Delete);
        fs::write(at.join("in/a.zarr/c/1"), "new").unwrap();
        assert!(!remove(&removal).unwrap());
        assert!(at.join("in/a.zarr/c/1").exists());
        assert_eq!(fs::read_dir(at.join("in")).unwrap().count(), 1);
        let _ = fs::remove_dir_all(&at);
    }

    #[test]
    fn copies_are_whole() {
        let at = folder("copy");
        copy_tree(&at.join("in"), &at.join("out")).unwrap();
        assert_eq!(scan::fingerprint(&at.join("in")).unwrap(), scan::fingerprint(&at.join("out")).unwrap());
        assert_eq!(free_place(&at, "in"), at.join("in.2"));
        let _ = fs::remove_dir_all(&at);
    }

    #[test]
    fn commands_are_told_and_their_failure_is_heard() {
        let run = |script: &str| tell(&["sh".to_owned(), "-c".to_owned(), script.to_owned()], &serde_json::json!({ "id": 7 }));
        assert_eq!(run("grep -q '\"id\":7'"), Ok(()));
        assert!(run("echo no room >&2; exit 3").unwrap_err().contains("no room"));
        assert!(tell(&["/no/such/program".to_owned()], &Value::Null).unwrap_err().contains("cannot be started"));
    }
}
