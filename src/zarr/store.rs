//! Keys of a Zarr store as files below one folder.
//!
//! Reads take a cap, so that no file can ask for more memory than its reader planned. Writes go to a temporary name in
//! the same folder and are renamed, so that a file under its own name is whole. A key cannot leave the root, nor can a
//! symlink. Cost per chunk: open, fstat, read (get); create, write, rename (put), by the
//! handle of their folder. The check of a folder is cached.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::files::folder::{Folder, Near};
use crate::files::stamp::{self, Hash};
use crate::files::{self, Facts, File, is_absent};

/// Folders whose check is remembered; the set starts anew when full, so memory does not grow with the array.
const KNOWN_FOLDERS: usize = 4096;

/// A folder with more entries than this is not a group's folder.
const MAX_ENTRIES: usize = 1 << 20;

const TEMPORARY: &str = ".halostream-";

/// How the temporary names of this process begin. Drawn, since processes of several machines may share the folder, and their
/// numbers are often alike.
static OWN: LazyLock<String> = LazyLock::new(|| format!("{TEMPORARY}{:016x}-", RandomState::new().hash_one(std::process::id())));

/// One folder as a store of keys (`c/0/1`). Errors carry the reason; the caller adds [`FileStore::place`].
#[derive(Debug)]
pub struct FileStore {
    root: PathBuf,
    /// Keys of folders known to lie below the root once links are followed.
    inside: RwLock<HashSet<Box<str>>>,
    near: Near,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub is_dir: bool,
    pub bytes: u64,
}

impl FileStore {
    /// A store over an existing folder.
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = files::canonicalize(root)?;
        if !files::followed(&root)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder"));
        }
        Ok(Self { root, inside: RwLock::default(), near: Near::default() })
    }

    /// A store over a folder that is made when it is not there.
    pub fn create(root: &Path) -> io::Result<Self> {
        files::make_folders(root)?;
        Self::new(root)
    }

    /// The folder, links followed.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file behind a key, for messages.
    pub fn place(&self, key: &str) -> String {
        if key.is_empty() { self.root.display().to_string() } else { self.root.join(key).display().to_string() }
    }

    fn path(&self, key: &str) -> io::Result<PathBuf> {
        check(key)?;
        Ok(self.below(key))
    }

    /// The path of a key that is known to be good.
    fn below(&self, key: &str) -> PathBuf {
        if key.is_empty() { self.root.clone() } else { self.root.join(key) }
    }

    /// The handle of a folder that is known to be good.
    fn folder(&self, folder: &str) -> io::Result<Arc<Folder>> {
        self.near.get(folder, || self.below(folder))
    }

    /// Follows the links of a path and refuses what lies outside the root.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let real = files::canonicalize(path)?;
        if real.starts_with(&self.root) {
            return Ok(real);
        }
        let reason = format!("a symlink leads out of the store, to {}; copy the data into the store", real.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }

    fn is_known(&self, folder: &str) -> bool {
        folder.is_empty() || self.inside.read().unwrap_or_else(PoisonError::into_inner).contains(folder)
    }

    fn remember(&self, folder: &str) {
        let mut inside = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        if inside.len() >= KNOWN_FOLDERS {
            inside.clear();
        }
        inside.insert(folder.into());
    }

    /// Makes sure that a folder lies below the root. Only a link can lead elsewhere, so one look at each part that is not
    /// known yet does.
    fn check_folder(&self, folder: &str) -> io::Result<()> {
        if self.is_known(folder) {
            return Ok(());
        }
        self.check_folder(folder_of(folder))?;
        let path = self.below(folder);
        match files::find(&path)? {
            Some(found) if found.is_symlink() => drop(self.resolve(&path)?),
            Some(found) if found.is_dir() => {}
            Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        self.remember(folder);
        Ok(())
    }

    /// Makes a folder below the root where there is none; what is there is checked.
    fn make_folder(&self, folder: &str) -> io::Result<()> {
        if self.is_known(folder) {
            return Ok(());
        }
        self.make_folder(folder_of(folder))?;
        let path = self.below(folder);
        match files::make_folder(&path) {
            Ok(()) => {
                self.remember(folder);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.check_folder(folder),
            // What was known above it has been removed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                files::make_folders(&path)?;
                self.check_folder(folder)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file with its size; `None` when there is none.
    pub fn open(&self, key: &str) -> io::Result<Option<(File, u64)>> {
        check(key)?;
        let (folder, name) = split(key);
        let found = self.check_folder(folder).and_then(|()| self.folder(folder)?.open_file(name));
        let file = match found {
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => match self.resolve(&self.below(key)) {
                Err(e) if is_absent(&e) => return Ok(None),
                real => File::open(&real?)?,
            },
            other => other?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
        }
        Ok(Some((file, metadata.len())))
    }

    /// A whole file of at most `cap` bytes.
    pub fn get(&self, key: &str, cap: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((file, size)) = self.open(key)? else { return Ok(None) };
        if size > cap {
            let reason = format!("the file holds {size} bytes, at most {cap} are expected");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).map_err(torn)?;
        Ok(Some(bytes))
    }

    /// `len` bytes from `offset`; a range that leaves the file is an error.
    pub fn get_range(&self, key: &str, offset: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((file, size)) = self.open(key)? else { return Ok(None) };
        if offset.checked_add(len).is_none_or(|stop| stop > size) {
            let reason = format!("bytes {offset} to {offset} + {len} lie outside the file of {size} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, offset).map_err(torn)?;
        Ok(Some(bytes))
    }

    pub fn size(&self, key: &str) -> io::Result<Option<u64>> {
        Ok(self.open(key)?.map(|(_, size)| size))
    }

    /// Writes a file in one piece: it appears under its name whole. With `sync` it is on disk on return.
    pub fn put(&self, key: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
        let mut pending = self.begin(key)?;
        pending.write_all(bytes)?;
        pending.commit(sync)
    }

    /// Starts a file that is written in several pieces and appears under its name on [`Pending::commit`].
    pub fn begin(&self, key: &str) -> io::Result<Pending> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        check(key)?;
        let (folder, name) = split(key);
        self.make_folder(folder)?;
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{}{count}.tmp", *OWN);
        let create = || {
            let folder = self.folder(folder)?;
            folder.create_new(&temporary).map(|file| (folder, file))
        };
        let (folder, file) = match create() {
            // The folder was known and has been removed since.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.near.forget(folder);
                files::make_folders(&self.below(folder)).and_then(|()| create())
            }
            other => other,
        }?;
        Ok(Pending { file, folder, temporary, name: name.to_owned(), is_committed: false })
    }

    /// The entries of a folder (`""`: the root) by name, without temporary files; `None` when it is not there.
    pub fn list_dir(&self, key: &str) -> io::Result<Option<Vec<Entry>>> {
        let folder = if key.is_empty() { self.root.clone() } else { self.path(key)? };
        let listed = self.check_folder(key).and_then(|()| files::list(&folder));
        let listed = match listed {
            Err(e) if is_absent(&e) => return Ok(None),
            other => other?,
        };
        let mut entries = Vec::new();
        for entry in listed {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_temporary(&name) {
                continue;
            }
            if entries.len() == MAX_ENTRIES {
                return Err(io::Error::other(format!("the folder has more than {MAX_ENTRIES} entries")));
            }
            let mut metadata = files::metadata_of(&entry)?;
            if metadata.is_symlink() {
                let Ok(followed) = self.resolve(&entry.path()).and_then(|path| files::followed(&path)) else { continue };
                metadata = followed;
            }
            entries.push(Entry { name, is_dir: metadata.is_dir(), bytes: metadata.len() });
        }
        entries.sort();
        Ok(Some(entries))
    }

    /// Sizes and times of the files behind `count` keys, condensed; those that are not there count as such. An error comes
    /// with its key. Many files are asked for side by side: each answer may take its way over a network.
    pub fn stamp_of(&self, count: u64, key: impl Fn(u64) -> String + Sync) -> Result<u64, (String, io::Error)> {
        // Not the handles of folders that are read from: what is under their names now is asked for.
        let facts = |last: &mut Option<(String, Folder)>, key: &str| {
            check(key)?;
            let (folder, name) = split(key);
            match last {
                Some((near, handle)) if near == folder => handle.facts(name),
                _ => last.insert((folder.to_owned(), Folder::open(&self.below(folder))?)).1.facts(name),
            }
        };
        stamp::of(count, |last, n| {
            let key = key(n);
            match facts(last, &key) {
                Ok(found) => Ok(Some(Hash::START.with(key.as_bytes()).facts(found))),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err((key, error)),
            }
        })
    }

    /// Sizes and times of all files below a folder, condensed; the order in which they are listed does not matter.
    pub fn stamp(&self, key: &str) -> io::Result<u64> {
        fn visit(folder: &Path, path: Hash, sum: &mut u64) -> io::Result<()> {
            for entry in files::list(folder)? {
                let entry = entry?;
                let path = path.with(b"/").with(entry.file_name().as_bytes());
                if entry.file_type()?.is_dir() {
                    visit(&entry.path(), path, sum)?;
                } else {
                    *sum = sum.wrapping_add(path.facts(Facts::of(&files::metadata_of(&entry)?)));
                }
            }
            Ok(())
        }
        let mut sum = 0;
        let folder = if key.is_empty() { self.root.clone() } else { self.path(key)? };
        visit(&folder, Hash::START, &mut sum)?;
        Ok(sum)
    }

    /// Removes a file; one that is not there is fine.
    pub fn remove(&self, key: &str) -> io::Result<()> {
        match files::remove_file(&self.path(key)?) {
            Err(error) if !is_absent(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes everything written so far durable: one `syncfs` of the file system, far cheaper than one fsync per chunk.
    pub fn sync(&self) -> io::Result<()> {
        files::sync_file_system(&self.root)
    }

    /// Removes the temporary files that killed writers left, in the whole tree; returns how many. Only when nobody
    /// else writes here.
    pub fn sweep(&self) -> io::Result<u64> {
        fn visit(folder: &Path) -> io::Result<u64> {
            let mut removed = 0;
            for entry in files::list(folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    removed += visit(&entry.path())?;
                } else if entry.file_name().to_str().is_some_and(is_temporary) {
                    files::remove_file(&entry.path())?;
                    removed += 1;
                }
            }
            Ok(removed)
        }
        visit(&self.root)
    }
}

/// Refuses keys that lead elsewhere.
pub(crate) fn check(key: &str) -> io::Result<()> {
    let is_bad = |part: &[u8]| matches!(part, b"" | b"." | b"..");
    if key.bytes().any(|b| matches!(b, b'\\' | b'\0')) || key.as_bytes().split(|b| *b == b'/').any(is_bad) {
        let reason = format!("the key {key:?} is refused: parts may not be empty, `.`, `..`, or hold `\\` or NUL");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(())
}

/// The key of the folder that a key lies in, that of the root is empty; and its name there.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}

fn folder_of(key: &str) -> &str {
    split(key).0
}

/// A name that only an unfinished put has.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY) && name.ends_with(".tmp")
}

/// Says it when a file ends before the size that it had.
fn torn(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the file is torn: it became shorter while it was read"),
        _ => error,
    }
}

/// A file being written; dropped without a commit it leaves nothing.
#[derive(Debug)]
pub struct Pending {
    file: File,
    folder: Arc<Folder>,
    temporary: String,
    name: String,
    is_committed: bool,
}

impl Pending {
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Makes the file that long, of zeros where nothing is written.
    pub fn stretch(&mut self, len: u64) -> io::Result<()> {
        self.file.cut(len)
    }

    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Gives the file its name.
    pub fn commit(mut self, sync: bool) -> io::Result<()> {
        if sync {
            self.file.sync_all()?;
        }
        self.folder.rename(&self.temporary, &self.name)?;
        self.is_committed = true;
        if sync { files::sync_folder(self.folder.path()) } else { Ok(()) }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_committed {
            // Nothing to be told: the error that led here is on its way, and a sweep finds what stays.
            let _ = self.folder.remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A folder of its own for a test, removed on drop.
    pub struct Scratch(pub PathBuf);

    impl Scratch {
        #[allow(clippy::new_without_default)]
        pub fn new() -> Self {
            static COUNTER: AtomicU64 = AtomicU64::new(0);
            let name = format!("halostream-test-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn puts_are_whole_and_leave_no_temporary_files() {
        let scratch = Scratch::new();
        let store = FileStore::create(&scratch.0.join("a/b")).unwrap();
        store.put("c/0/1", b"hello", true).unwrap();
        assert_eq!(store.get("c/0/1", 5).unwrap().unwrap(), b"hello");
        assert_eq!(store.get("c/0/1", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(store.get_range("c/0/1", 1, 3).unwrap().unwrap(), b"ell");
        assert!(store.get_range("c/0/1", 3, u64::MAX).is_err());
        assert_eq!(store.size("c/0/1").unwrap(), Some(5));
        assert!(store.get("c/0/2", 5).unwrap().is_none());
        assert!(store.get("c/0/1/2", 5).unwrap().is_none());
        let mut pending = store.begin("c/0/2").unwrap();
        pending.write_all(b"half").unwrap();
        assert!(store.size("c/0/2").unwrap().is_none());
        drop(pending);
        assert_eq!(fs::read_dir(store.root().join("c/0")).unwrap().count(), 1);
        std::mem::forget(store.begin("c/0/3").unwrap());
        assert_eq!(store.list_dir("c/0").unwrap().unwrap().len(), 1);
        assert_eq!((store.sweep().unwrap(), store.sweep().unwrap()), (1, 0));
        store.sync().unwrap();
    }

    #[test]
    fn keys_and_links_stay_inside() {
        let scratch = Scratch::new();
        fs::write(scratch.0.join("secret"), b"secret").unwrap();
        fs::create_dir(scratch.0.join("outside")).unwrap();
        fs::write(scratch.0.join("outside/0"), b"secret").unwrap();
        let store = FileStore::create(&scratch.0.join("s.zarr")).unwrap();
        for key in ["", "../secret", "/etc/passwd", "a//b", "a/./b", "c/..", "a\\b", "a\0"] {
            assert_eq!(store.get(key, 100).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{key:?}");
            assert!(store.put(key, b"x", false).is_err());
        }
        store.put("inside/0", b"data", false).unwrap();
        symlink("../secret", store.root().join("file")).unwrap();
        symlink("../outside", store.root().join("folder")).unwrap();
        symlink("inside/0", store.root().join("good")).unwrap();
        symlink("nowhere", store.root().join("dangling")).unwrap();
        symlink("loop", store.root().join("loop")).unwrap();
        for key in ["file", "folder/0"] {
            assert_eq!(store.get(key, 100).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{key}");
        }
        assert!(store.put("folder/1", b"x", false).is_err());
        assert_eq!(store.get("good", 100).unwrap().unwrap(), b"data");
        assert!(store.get("dangling", 100).unwrap().is_none());
        assert!(store.get("loop", 100).is_err());
        assert!(store.list_dir("folder").is_err());
        assert!(store.get("inside", 100).is_err(), "a folder is no chunk");
    }
}
