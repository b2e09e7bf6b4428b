//! Handles of folders: what lies in one is reached without walking the way to it again, which costs as much as the call itself.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The handles that one store has among [`LAST`]; they go with it.
#[derive(Debug)]
pub struct Near {
    store: u64,
}

/// A folder's handle with its store and its key there.
type Known = (u64, Box<str>, Arc<Folder>);

/// Handles of the folders that were used last, the newest first. Of all stores together: a stack of thousands of arrays must
/// not hold thousands of open folders.
static LAST: RwLock<Vec<Known>> = RwLock::new(Vec::new());
const MOST: usize = 64;

impl Default for Near {
    fn default() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self { store: COUNT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Near {
    fn is(&self, known: &Known, key: &str) -> bool {
        known.0 == self.store && *known.1 == *key
    }

    /// The folder of a key, opened where it is not among them.
    pub fn get(&self, key: &str, path: impl FnOnce() -> PathBuf) -> io::Result<Arc<Folder>> {
        if let Some(known) = LAST.read().unwrap_or_else(PoisonError::into_inner).iter().find(|known| self.is(known, key)) {
            return Ok(known.2.clone());
        }
        let folder = Arc::new(Folder::open(&path())?);
        let mut last = LAST.write().unwrap_or_else(PoisonError::into_inner);
        last.truncate(MOST - 1);
        last.insert(0, (self.store, key.into(), folder.clone()));
        Ok(folder)
    }

    /// What is under the key's name is another folder now, or none.
    pub fn forget(&self, key: &str) {
        LAST.write().unwrap_or_else(PoisonError::into_inner).retain(|known| !self.is(known, key));
    }
}

impl Drop for Near {
    /// A handle would keep a removed folder's space, and a disk from being unmounted.
    fn drop(&mut self) {
        LAST.write().unwrap_or_else(PoisonError::into_inner).retain(|known| known.0 != self.store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_few_and_go_with_their_store() {
        let path = std::env::temp_dir().join(format!("halostream-near-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let held = |store: &Near| LAST.read().unwrap().iter().filter(|known| known.0 == store.store).count();
        let stores: Vec<Near> = (0..3 * MOST).map(|_| Near::default()).collect();
        for store in &stores {
            store.get("", || path.clone()).unwrap();
        }
        assert!(stores.iter().map(held).sum::<usize>() <= MOST && LAST.read().unwrap().len() <= MOST);
        let last = Near::default();
        // Other tests take their turns: asked for again until it is found among them.
        while held(&last) == 0 {
            last.get("", || path.clone()).unwrap();
        }
        last.forget("");
        assert_eq!(held(&last), 0);
        let number = last.store;
        last.get("", || path.clone()).unwrap();
        drop(last);
        assert!(LAST.read().unwrap().iter().all(|known| known.0 != number));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn entries_are_reached_by_the_handle() {
        let path = std::env::temp_dir().join(format!("halostream-folder-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        let mut file = folder.create_new("a").unwrap();
        file.write_all(b"four").unwrap();
        assert_eq!(folder.create_new("a").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        folder.rename("a", "b").unwrap();
        assert_eq!(folder.open_file("a").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(folder.facts("b").unwrap(), Facts::of(&fs::metadata(path.join("b")).unwrap()));
        let mut bytes = [0; 4];
        folder.open_file("b").unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"four");
        assert!(folder.open_file("b\0").is_err());
        std::os::unix::fs::symlink("b", path.join("link")).unwrap();
        assert_eq!(folder.open_file("link").unwrap_err().raw_os_error(), Some(libc::ELOOP));
        // It stays itself when its name goes.
        fs::rename(&path, path.with_extension("moved")).unwrap();
        folder.remove_file("b").unwrap();
        assert!(folder.facts("b").is_err());
        fs::remove_dir_all(path.with_extension("moved")).unwrap();
    }
}
