//! Every file-system call of stores, staging folders, ledgers and scratch files, in one place, so that tests can make
//! each of them fail ([`faults`]) and messages say what to do about it ([`advice`]).
//!
//! Cost: one relaxed load per call beside the call itself.

pub mod faults;
pub mod folder;
pub mod natural;
pub mod stamp;

use std::ffi::CString;
use std::fs::{self, DirEntry, Metadata, OpenOptions, ReadDir};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::remote::fault::Fault;
use faults::{Kind, Watch, call};

/// What the user can do about an error of the file system or of an object store; goes behind its text.
pub fn advice(error: &io::Error) -> &'static str {
    if let Some(fault) = Fault::of(error) {
        return fault.advice;
    }
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room, then run the same command again",
        Some(libc::EROFS) => "; the file system is read-only: mount it for writing or choose another path",
        Some(libc::EACCES | libc::EPERM) => "; check the permissions or choose another path",
        Some(libc::EIO) => "; the disk or its connection fails: check it, then run the same command again",
        Some(libc::EMFILE | libc::ENFILE) => "; too many files are open: raise `ulimit -n` or use fewer workers",
        Some(libc::ESTALE | libc::ENODEV | libc::ENXIO | libc::ENOTCONN) => {
            "; mount the file system again, then run the same command"
        }
        _ => "",
    }
}

/// How files are opened for reading: neither is a link in the last part followed nor the other end of a pipe waited for.
const TO_READ: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// True when the error says that there is nothing at a path.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An open file.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    /// Injected faults, found when it was opened.
    watch: Option<Watch>,
    is_locked: AtomicBool,
}

impl File {
    /// One that was opened at a path, which is asked for where tests make calls fail.
    fn opened(file: fs::File, path: impl FnOnce() -> PathBuf) -> Self {
        let watch = if faults::are_injected() { Watch::of(&path()) } else { None };
        Self { file, watch, is_locked: AtomicBool::new(false) }
    }

    fn with(options: &OpenOptions, kind: Kind, path: &Path) -> io::Result<Self> {
        let file = call(kind, path, || options.open(path))?;
        Ok(Self::opened(file, || path.to_path_buf()))
    }

    /// For reading. Neither follows a link in the last part nor waits for the other end of a pipe.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with(OpenOptions::new().read(true).custom_flags(TO_READ), Kind::Open, path)
    }

    /// For writing a file that is not there yet.
    pub fn create_new(path: &Path) -> io::Result<Self> {
        Self::with(OpenOptions::new().write(true).create_new(true), Kind::Create, path)
    }

    /// For reading and writing; made when it is not there and `create` says so.
    pub fn open_to_change(path: &Path, create: bool) -> io::Result<Self> {
        let kind = if create { Kind::Create } else { Kind::Open };
        Self::with(OpenOptions::new().read(true).write(true).create(create).truncate(false), kind, path)
    }

    /// A file of `bytes` zeros in a folder, for reading and writing, that has no name and goes with its last handle. Space
    /// is taken as it is written.
    pub fn unnamed(folder: &Path, bytes: u64) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".halostream-scratch-{}-{count}", std::process::id()));
            match Self::with(OpenOptions::new().read(true).write(true).create_new(true).mode(0o600), Kind::Create, &path) {
                Ok(mut file) => {
                    remove_file(&path)?;
                    file.cut(bytes)?;
                    return Ok(file);
                }
                // Left by a process that was killed between making and removing it, and had our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free name for a scratch file"))
    }

    fn call<T>(&self, kind: Kind, run: impl FnOnce(&fs::File) -> io::Result<T>) -> io::Result<T> {
        match &self.watch {
            None => run(&self.file),
            Some(watch) => watch.call(kind, || run(&self.file)),
        }
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.call(Kind::Stat, fs::File::metadata)
    }

    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.watch {
            None => self.file.read_exact_at(out, offset),
            Some(watch) => watch.pieces(Kind::Read, out.len(), |part| {
                let at = offset + part.start as u64;
                self.file.read_exact_at(&mut out[part], at)
            }),
        }
    }

    /// What is left of the file from its start, at most `cap` bytes.
    pub fn read_to_end(&mut self, cap: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.call(Kind::Read, |mut file| {
            file.seek(SeekFrom::Start(0))?;
            file.take(cap).read_to_end(&mut bytes)
        })?;
        Ok(bytes)
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &self.watch {
            None => self.file.write_all(bytes),
            Some(watch) => watch.pieces(Kind::Write, bytes.len(), |part| (&self.file).write_all(&bytes[part])),
        }
    }

    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match &self.watch {
            None => self.file.write_all_at(bytes, offset),
            Some(watch) => watch.pieces(Kind::Write, bytes.len(), |part| {
                let at = offset + part.start as u64;
                self.file.write_all_at(&bytes[part], at)
            }),
        }
    }

    /// Says that the file will be read soon, piece by piece: the system then fetches it in one go. Just a hint.
    pub fn will_be_read(&self) {
        // SAFETY: the descriptor is open for the length of the call, which looks at nothing of ours.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_WILLNEED) };
    }

    /// Cuts the file to `len` bytes, or makes it that long with zeros; what is written next follows them.
    pub fn cut(&mut self, len: u64) -> io::Result<()> {
        self.call(Kind::Cut, |mut file| {
            file.set_len(len)?;
            file.seek(SeekFrom::Start(len)).map(|_| ())
        })
    }

    /// Makes data and metadata durable.
    pub fn sync_all(&self) -> io::Result<()> {
        self.call(Kind::Sync, fs::File::sync_all)
    }

    /// Makes the data durable, and what is needed to find it.
    pub fn sync_data(&self) -> io::Result<()> {
        self.call(Kind::Sync, fs::File::sync_data)
    }

    /// Makes everything in the file's file system durable: far cheaper than one sync per file.
    pub fn sync_file_system(&self) -> io::Result<()> {
        self.call(Kind::SyncFileSystem, |file| {
            // SAFETY: the descriptor is open for the length of the call.
            match unsafe { libc::syncfs(file.as_raw_fd()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }

    /// Takes the file's lock, which goes with the file; false when somebody else has it.
    pub fn try_lock(&self) -> io::Result<bool> {
        self.call(Kind::Lock, |file| {
            // SAFETY: the descriptor is open; flock has no other effect.
            match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
                0 => {
                    self.is_locked.store(true, Ordering::Relaxed);
                    Ok(true)
                }
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    error => Err(error),
                },
            }
        })
    }

    /// True when the path still leads to this file.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let held = self.metadata()?;
        match call(Kind::Stat, path, || fs::metadata(path)) {
            Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for File {
    /// Closing would leave the lock with a child that another thread has forked and that has not become its program yet.
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            // SAFETY: the descriptor is open; flock has no other effect.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

/// Size and time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub len: u64,
    pub seconds: i64,
    pub nanoseconds: i64,
}

impl Facts {
    pub fn of(found: &Metadata) -> Self {
        Self { len: found.len(), seconds: found.mtime(), nanoseconds: found.mtime_nsec() }
    }
}

/// A path with all links followed.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    call(Kind::Resolve, path, || fs::canonicalize(path))
}

/// What is at a path, a link not followed; `None` when nothing is.
pub fn find(path: &Path) -> io::Result<Option<Metadata>> {
    match call(Kind::Stat, path, || fs::symlink_metadata(path)) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is at a path, links followed.
pub fn followed(path: &Path) -> io::Result<Metadata> {
    call(Kind::Stat, path, || fs::metadata(path))
}

/// What an entry of a folder is, a link not followed.
pub fn metadata_of(entry: &DirEntry) -> io::Result<Metadata> {
    if faults::are_injected() { call(Kind::Stat, &entry.path(), || entry.metadata()) } else { entry.metadata() }
}

pub fn list(folder: &Path) -> io::Result<ReadDir> {
    call(Kind::List, folder, || fs::read_dir(folder))
}

pub fn make_folder(path: &Path) -> io::Result<()> {
    call(Kind::MakeFolder, path, || fs::create_dir(path))
}

/// Makes a folder and those above it that are not there.
pub fn make_folders(path: &Path) -> io::Result<()> {
    call(Kind::MakeFolder, path, || fs::create_dir_all(path))
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    call(Kind::Rename, to, || fs::rename(from, to))
}

/// Swaps two names at once. `EINVAL` or `ENOSYS` where the file system has no such call.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (from, to) = (name(a)?, name(b)?);
    call(Kind::Exchange, b, || {
        // SAFETY: both are valid C strings that live through the call.
        let swapped = unsafe {
            libc::syscall(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::RENAME_EXCHANGE as libc::c_uint,
            )
        };
        if swapped == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    call(Kind::Remove, path, || fs::remove_file(path))
}

/// Removes a file, a link or a whole folder; one that is not there is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match find(path)? {
        Some(found) if found.is_dir() => call(Kind::RemoveTree, path, || fs::remove_dir_all(path)),
        Some(_) => remove_file(path),
        None => Ok(()),
    };
    match removed {
        Err(error) if !is_absent(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Makes the entries of a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::with(OpenOptions::new().read(true), Kind::Open, folder)?.sync_all()
}

/// Makes everything in a folder's file system durable.
pub fn sync_file_system(folder: &Path) -> io::Result<()> {
    File::with(OpenOptions::new().read(true), Kind::Open, folder)?.sync_file_system()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_goes_with_its_file_and_not_with_copies_that_a_fork_made() {
        let path = std::env::temp_dir().join(format!("halostream-files-lock-{}", std::process::id()));
        let held = File::open_to_change(&path, true).unwrap();
        assert!(held.try_lock().unwrap());
        let other = File::open_to_change(&path, false).unwrap();
        assert!(!other.try_lock().unwrap());
        // What a child has between fork and exec.
        let copy = held.file.try_clone().unwrap();
        drop(held);
        assert!(other.try_lock().unwrap());
        drop(copy);
        fs::remove_file(&path).unwrap();
    }
}
