//! Handles of folders: what lies in one is reached without walking the way to it again, which costs as much as the call itself.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::faults::{self, Kind, call};
use super::{Facts, File, TO_READ};

/// An open folder. It stays the same one when something else is put under its name.
#[derive(Debug)]
pub struct Folder {
    folder: fs::File,
    path: PathBuf,
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let folder = call(Kind::Open, path, || OpenOptions::new().read(true).custom_flags(flags).open(path))?;
        Ok(Self { folder, path: path.to_path_buf() })
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A call that names an entry; 0 or more is success.
    fn at(&self, kind: Kind, name: &str, run: impl Fn(i32, &CStr) -> i32) -> io::Result<i32> {
        let make = || {
            let entry = CString::new(name)?;
            loop {
                match run(self.folder.as_raw_fd(), &entry) {
                    done @ 0.. => return Ok(done),
                    _ => match io::Error::last_os_error() {
                        error if error.kind() == io::ErrorKind::Interrupted => {}
                        error => return Err(error),
                    },
                }
            }
        };
        if faults::are_injected() { call(kind, &self.path.join(name), make) } else { make() }
    }

    fn file(&self, kind: Kind, name: &str, flags: i32) -> io::Result<File> {
        // SAFETY: the descriptor is open, the name a C string; the mode is read where a file is made.
        let opened = self.at(kind, name, |folder, entry| unsafe { libc::openat(folder, entry.as_ptr(), flags, 0o666) })?;
        // SAFETY: opened just now, and nobody else's.
        let file = unsafe { fs::File::from_raw_fd(opened) };
        Ok(File::opened(file, || self.path.join(name)))
    }

    /// A file for reading, as [`File::open`].
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        self.file(Kind::Open, name, libc::O_RDONLY | TO_READ)
    }

    /// A file for writing that is not there yet.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        self.file(Kind::Create, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC)
    }

    /// Gives an entry another name here.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let from = CString::new(from)?;
        // SAFETY: the descriptor is open, both names are C strings.
        let renamed = |folder, to: &CStr| unsafe { libc::renameat(folder, from.as_ptr(), folder, to.as_ptr()) };
        self.at(Kind::Rename, to, renamed).map(drop)
    }

    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        // SAFETY: the descriptor is open, the name a C string.
        self.at(Kind::Remove, name, |folder, entry| unsafe { libc::unlinkat(folder, entry.as_ptr(), 0) }).map(drop)
    }

    /// Facts of an entry, links followed.
    pub fn facts(&self, name: &str) -> io::Result<Facts> {
        let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
        let place = found.as_mut_ptr();
        // SAFETY: the descriptor is open, the name a C string, the place large enough.
        self.at(Kind::Stat, name, |folder, entry| unsafe { libc::fstatat(folder, entry.as_ptr(), place, 0) })?;
        // SAFETY: the system has filled it, as it said.
        let found = unsafe { found.assume_init() };
        Ok(Facts { len: found.st_size as u64, seconds: found.st_mtime, nanoseconds: found.st_mtime_nsec })
    }
}

/// Handles of the folders that were used last, by their keys in a store.
#[derive(Debug, Default)]
pub struct Near(RwLock<Vec<(Box<str>, Arc<Folder>)>>);

/// Threads of a stage work side by side, so these are theirs and those that come next.
const NEAR: usize = 8;

impl Near {
    /// The folder of a key, opened where it is not among them.
    pub fn get(&self, key: &str, path: impl FnOnce() -> PathBuf) -> io::Result<Arc<Folder>> {
        if let Some((_, found)) = self.0.read().unwrap_or_else(PoisonError::into_inner).iter().find(|(known, _)| **known == *key)
        {
            return Ok(found.clone());
        }
        let folder = Arc::new(Folder::open(&path())?);
        let mut near = self.0.write().unwrap_or_else(PoisonError::into_inner);
        near.truncate(NEAR - 1);
        near.insert(0, (key.into(), folder.clone()));
        Ok(folder)
    }

    /// What is under the key's name is another folder now, or none.
    pub fn forget(&self, key: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| **known != *key);
    }
}
