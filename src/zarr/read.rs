//! Where arrays are read from: a folder, or a place in an object store. A folder's way is a branch longer than the file
//! itself, without another allocation.

use std::io;
use std::path::{Path, PathBuf};

use super::store::FileStore;
use crate::files::File;
use crate::files::stamp::Hash;
pub use crate::remote::Part;
use crate::remote::{self, RemoteStore, Requests};

/// Arrays in folders with at most this many objects are stamped by their keys, others by what lies in their folder.
const STAMPED_KEYS: u64 = 1 << 20;

/// Above so many objects a remote array's stamp is that of its metadata: a listing names a thousand a request.
const LISTED: u64 = 1 << 17;

/// One folder or place as a store of keys that is read. Errors carry the reason; the caller adds [`ReadStore::place`].
#[derive(Debug)]
pub enum ReadStore {
    Folder(FileStore),
    Remote(RemoteStore),
}

/// What lies under a key, open.
#[derive(Debug)]
pub enum Object {
    /// With its size.
    File(File, u64),
    Remote(remote::Object),
}

impl Object {
    pub fn size(&self) -> u64 {
        match self {
            Self::File(_, size) => *size,
            Self::Remote(object) => object.size(),
        }
    }

    /// Says that it will be read soon, piece by piece.
    pub fn will_be_read(&self) {
        if let Self::File(file, _) = self {
            file.will_be_read();
        }
    }

    /// Fills `out` from an offset on; an object that ends before is `UnexpectedEof`.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.read_exact_at(out, offset),
            Self::Remote(object) => object.read_exact_at(out, offset),
        }
    }
}

impl ReadStore {
    /// An existing folder, or a URL, of which nothing is asked yet.
    pub fn open(path: &Path) -> io::Result<Self> {
        match path.to_str() {
            Some(url) if remote::is_url(path) => RemoteStore::open(url).map(Self::Remote),
            _ => FileStore::new(path).map(Self::Folder),
        }
    }

    /// The folder with links followed, or the URL.
    pub fn root(&self) -> PathBuf {
        match self {
            Self::Folder(store) => store.root().to_owned(),
            Self::Remote(store) => store.place("").into(),
        }
    }

    /// The file or URL behind a key, for messages.
    pub fn place(&self, key: &str) -> String {
        match self {
            Self::Folder(store) => store.place(key),
            Self::Remote(store) => store.place(key),
        }
    }

    /// Opens what lies under a key; `None` when nothing does. `part` is what of it is read first.
    pub fn object(&self, key: &str, part: Part) -> io::Result<Option<Object>> {
        match self {
            Self::Folder(store) => Ok(store.open(key)?.map(|(file, size)| Object::File(file, size))),
            Self::Remote(store) => Ok(store.object(key, part)?.map(Object::Remote)),
        }
    }

    /// A whole object of at most `cap` bytes.
    pub fn get(&self, key: &str, cap: u64) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(store) => store.get(key, cap),
            Self::Remote(store) => store.get(key, cap),
        }
    }

    /// True when something lies under a key.
    pub fn has(&self, key: &str) -> io::Result<bool> {
        match self {
            Self::Folder(store) => Ok(store.size(key)?.is_some()),
            Self::Remote(store) => Ok(store.version(key)?.is_some()),
        }
    }

    /// Names of folders right below a key; `None` where there is none, or where nobody can tell.
    pub fn folders(&self, key: &str) -> io::Result<Option<Vec<String>>> {
        match self {
            Self::Folder(store) => {
                let listed = store.list_dir(key)?;
                Ok(listed.map(|entries| entries.into_iter().filter(|e| e.is_dir).map(|e| e.name).collect()))
            }
            Self::Remote(store) => store.folders(key),
        }
    }

    /// True where every request is a way over a network, so that several should be under way.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    pub fn requests(&self) -> Requests {
        match self {
            Self::Folder(_) => Requests::default(),
            Self::Remote(store) => store.requests(),
        }
    }

    /// The state of an array's objects, condensed: another number means that one was changed. `count` objects have their
    /// keys from `key`, all below `array`, whose metadata has the keys `documents`. An error comes with its key.
    pub fn stamp(
        &self,
        array: &str,
        documents: &[&str],
        count: Option<u64>,
        key: impl Fn(u64) -> String + Sync,
    ) -> Result<u64, (String, io::Error)> {
        let at_array = |error| (array.to_owned(), error);
        match (self, count) {
            // A look at each key is cheaper than listing its folders, as long as the grid is not mostly empty.
            (Self::Folder(store), Some(count)) if count <= STAMPED_KEYS => store.stamp_of(count, key),
            (Self::Folder(store), _) => store.stamp(array).map_err(at_array),
            (Self::Remote(store), count) => {
                let listed = match count {
                    Some(count) if count <= LISTED => stamp_of_list(store, array).map_err(at_array)?,
                    _ => None,
                };
                listed.map_or_else(|| stamp_of_documents(store, array, documents), Ok)
            }
        }
    }
}

fn stamp_of(key: &str, version: &str) -> u64 {
    Hash::START.with(key.as_bytes()).with(b"\0").with(version.as_bytes()).mixed()
}

/// Of all objects below a key; `None` where they can't be listed, or are too many.
fn stamp_of_list(store: &RemoteStore, below: &str) -> io::Result<Option<u64>> {
    let (mut sum, mut count) = (0u64, 0);
    let is_listed = store.list(below, |key, _, version| {
        sum = sum.wrapping_add(stamp_of(key, version));
        count += 1;
        // More than the array has are somebody else's.
        count <= 2 * LISTED
    })?;
    Ok(Some(sum).filter(|_| is_listed && count <= 2 * LISTED))
}

fn stamp_of_documents(store: &RemoteStore, array: &str, names: &[&str]) -> Result<u64, (String, io::Error)> {
    let mut sum = 0u64;
    for name in names {
        let key = if array.is_empty() { (*name).to_owned() } else { format!("{array}/{name}") };
        match store.version(&key) {
            Ok(version) => sum = sum.wrapping_add(stamp_of(name, &version.unwrap_or_default())),
            Err(error) => return Err((key, error)),
        }
    }
    Ok(sum)
}
