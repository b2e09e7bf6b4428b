//! Where arrays are written to: a folder, or a place in an object store. A folder's way is a branch longer than the file
//! itself.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::remote::RemoteOutput;
use crate::remote::Upload;
use crate::zarr::FileStore;
use crate::zarr::store;

/// Larger documents are nobody's.
const MOST_DOCUMENT_BYTES: u64 = 64 << 20;

/// One store that an array is written to. Errors carry the reason; the caller adds [`WriteStore::place`].
#[derive(Debug)]
pub enum WriteStore {
    Folder(FileStore),
    /// Shared by all arrays of an output.
    Remote(Arc<RemoteOutput>),
}

/// An object being written; dropped without a commit it leaves nothing.
#[derive(Debug)]
pub enum Pending {
    File(store::Pending),
    Upload(Upload),
}

impl Pending {
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(pending) => pending.write_all(bytes),
            Self::Upload(upload) => upload.write_all(bytes),
        }
    }

    /// Gives the object its name.
    pub fn commit(self) -> io::Result<()> {
        match self {
            Self::File(pending) => pending.commit(false),
            Self::Upload(upload) => upload.commit(),
        }
    }
}

impl WriteStore {
    /// A folder, made when it is not there.
    pub fn folder(root: &Path) -> io::Result<Self> {
        FileStore::create(root).map(Self::Folder)
    }

    /// The file or URL behind a key, for messages.
    pub fn place(&self, key: &str) -> String {
        match self {
            Self::Folder(store) => store.place(key),
            Self::Remote(output) => output.place(key),
        }
    }

    /// Writes an object in one piece: it appears under its name whole.
    pub fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Folder(store) => store.put(key, bytes, false),
            Self::Remote(output) => output.put(key, bytes),
        }
    }

    /// Starts an object that is written in several pieces.
    pub fn begin(&self, key: &str) -> io::Result<Pending> {
        match self {
            Self::Folder(store) => store.begin(key).map(Pending::File),
            Self::Remote(output) => output.begin_object(key).map(Pending::Upload),
        }
    }

    /// Writes metadata: in a folder now, in an object store when the output is published.
    pub fn put_document(&self, key: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
        match self {
            Self::Folder(store) => store.put(key, bytes, sync),
            Self::Remote(output) => {
                output.put_document(key, bytes);
                Ok(())
            }
        }
    }

    /// Metadata that was written.
    pub fn document(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(store) => store.get(key, MOST_DOCUMENT_BYTES),
            Self::Remote(output) => Ok(output.document(key)),
        }
    }

    pub fn has_document(&self, key: &str) -> io::Result<bool> {
        match self {
            Self::Folder(store) => Ok(store.size(key)?.is_some()),
            Self::Remote(output) => Ok(output.has_document(key)),
        }
    }

    /// True when an object was put, in an object store by an earlier run.
    pub fn is_stored(&self, key: &str) -> bool {
        match self {
            Self::Folder(store) => matches!(store.size(key), Ok(Some(_))),
            Self::Remote(output) => output.is_stored(key),
        }
    }

    pub fn remove(&self, key: &str) -> io::Result<()> {
        match self {
            Self::Folder(store) => store.remove(key),
            Self::Remote(output) => output.remove(key),
        }
    }

    /// Makes everything written so far durable.
    pub fn sync(&self) -> io::Result<()> {
        match self {
            Self::Folder(store) => store.sync(),
            // What a store has answered for is.
            Self::Remote(_) => Ok(()),
        }
    }
}
