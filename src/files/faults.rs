//! Faults that tests inject below everything that is stored: a call is refused, done and told as failed, or done in part.
//! They hold below one folder, so that tests run side by side.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Which call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Resolve,
    Stat,
    Open,
    Create,
    Read,
    Write,
    /// Shortening a file.
    Cut,
    Sync,
    SyncFileSystem,
    Lock,
    List,
    MakeFolder,
    Rename,
    Exchange,
    Remove,
    RemoveTree,
}

/// What becomes of a call.
#[derive(Debug)]
pub enum Fate {
    Done,
    /// Not done, fails.
    Refused(io::Error),
    /// Done, and fails all the same.
    Late(io::Error),
    /// Only so many bytes are read or written, so many entries of a tree removed; then it fails, or without an error the
    /// rest is a call of its own. Other calls are done.
    Part(usize, Option<io::Error>),
}

/// Decides over every call, from any thread; may take its time, too.
pub trait Faults: Send + Sync {
    /// `path` is the target of a rename; files keep the name under which they were opened.
    fn fate(&self, kind: Kind, path: &Path) -> Fate;

    /// Told after the call, with what really happened to the file system.
    fn happened(&self, _kind: Kind, _path: &Path, _is_done: bool) {}
}

static INJECTED: AtomicUsize = AtomicUsize::new(0);
static BELOW: RwLock<Vec<(PathBuf, Arc<dyn Faults>)>> = RwLock::new(Vec::new());

/// Faults hold until this is dropped.
pub struct Injected(PathBuf);

/// Lets `faults` decide over every call below `folder`.
pub fn inject(folder: &Path, faults: Arc<dyn Faults>) -> Injected {
    BELOW.write().unwrap_or_else(PoisonError::into_inner).push((folder.to_path_buf(), faults));
    INJECTED.fetch_add(1, Ordering::SeqCst);
    Injected(folder.to_path_buf())
}

impl Drop for Injected {
    fn drop(&mut self) {
        let mut below = BELOW.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = below.iter().rposition(|(folder, _)| *folder == self.0) {
            below.remove(at);
            INJECTED.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[inline]
pub(super) fn are_injected() -> bool {
    INJECTED.load(Ordering::Relaxed) > 0
}

/// The faults that decide over a path.
#[derive(Clone)]
pub(super) struct Watch {
    faults: Arc<dyn Faults>,
    path: PathBuf,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.path.display())
    }
}

impl Watch {
    #[inline]
    pub fn of(path: &Path) -> Option<Self> {
        if are_injected() { Self::find(path) } else { None }
    }

    #[cold]
    fn find(path: &Path) -> Option<Self> {
        let below = BELOW.read().unwrap_or_else(PoisonError::into_inner);
        let (_, faults) = below.iter().rfind(|(folder, _)| path.starts_with(folder))?;
        Some(Self { faults: faults.clone(), path: path.to_path_buf() })
    }

    pub fn call<T>(&self, kind: Kind, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.faults.fate(kind, &self.path) {
            Fate::Refused(error) => Err(error),
            Fate::Part(entries, Some(error)) if kind == Kind::RemoveTree => {
                remove_some(&self.path, &mut { entries })?;
                Err(error)
            }
            fate => {
                let done = run();
                self.faults.happened(kind, &self.path, done.is_ok());
                match fate {
                    Fate::Late(error) => done.and(Err(error)),
                    _ => done,
                }
            }
        }
    }

    /// A call over `len` bytes that may be done in pieces.
    pub fn pieces(&self, kind: Kind, len: usize, mut run: impl FnMut(Range<usize>) -> io::Result<()>) -> io::Result<()> {
        let mut at = 0;
        loop {
            let (end, error) = match self.faults.fate(kind, &self.path) {
                Fate::Refused(error) => (at, Some(error)),
                Fate::Late(error) => (len, Some(error)),
                Fate::Part(bytes, error) => ((at + bytes).min(len), error),
                Fate::Done => (len, None),
            };
            if end > at {
                run(at..end)?;
                self.faults.happened(kind, &self.path, true);
            }
            match error {
                Some(error) => return Err(error),
                None if end == len => return Ok(()),
                None => at = end,
            }
        }
    }
}

/// Removes files of a tree until `left` is used up.
fn remove_some(folder: &Path, left: &mut usize) -> io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            remove_some(&entry.path(), left)?;
        } else if *left > 0 {
            *left -= 1;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[inline]
pub(super) fn call<T>(kind: Kind, path: &Path, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match Watch::of(path) {
        None => run(),
        Some(watch) => watch.call(kind, run),
    }
}
