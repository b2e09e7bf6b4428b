//! An output in an object store while it is being written: objects go to their keys at once and metadata comes last, so that
//! nobody opens half an output.
//!
//! Marks below `.halostream-HASH/` say whose objects lie there: `begun` before the first, `complete` once all are stored.
//! Objects appear whole and durable, so what lies under its key is done, and a listing is all the ledger there is: one
//! request for a thousand objects, when a run begins.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::remote::fault::Fault;
use crate::remote::{RemoteStore, Upload};

/// Between a dot and the job's hash, as beside outputs in folders.
const MARKS: &str = ".halostream-";
const BEGUN: &str = "begun";
const COMPLETE: &str = "complete";

/// What makes a key an array or a group; what comes before it says more of it.
const NODES: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];

/// An output with more objects is not listed.
const MOST_OBJECTS: usize = 1 << 22;

/// Why an output can't begin.
#[derive(Debug)]
pub enum Refused {
    /// Something lies there that is not this job's.
    Taken(String),
    Io(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// One output. Errors carry the reason; the caller adds [`RemoteOutput::place`].
#[derive(Debug)]
pub struct RemoteOutput {
    store: RemoteStore,
    hash: String,
    /// Keys of what an earlier run left.
    stored: HashSet<String>,
    /// Metadata that is put last, by key.
    documents: Mutex<Vec<(String, Vec<u8>)>>,
}

fn open(url: &Path) -> io::Result<RemoteStore> {
    RemoteStore::open(&url.display().to_string())
}

fn mark(hash: &str, name: &str) -> String {
    format!("{MARKS}{hash}/{name}")
}

/// All keys of an output.
fn keys(store: &RemoteStore) -> io::Result<Vec<String>> {
    let mut keys = Vec::new();
    let is_listed = store.list("", |key, _, _| {
        keys.push(key.to_owned());
        keys.len() <= MOST_OBJECTS
    })?;
    match (is_listed, keys.len() > MOST_OBJECTS) {
        (false, _) => Err(Fault::denied("the bucket may not be listed, which outputs need").into()),
        (_, true) => Err(Fault::refused(format!("more than {MOST_OBJECTS} objects lie there")).into()),
        _ => Ok(keys),
    }
}

/// Metadata of the root first, so that what is left is nothing that can be opened.
fn removal_order(mut keys: Vec<String>) -> Vec<Vec<String>> {
    keys.sort_by_key(|key| key.contains('/') || key == ".zattrs");
    let root = keys.iter().take_while(|key| !key.contains('/') && *key != ".zattrs").count();
    let rest = keys.split_off(root);
    vec![keys, rest]
}

/// True when all objects of a job's output are stored, and perhaps only metadata is missing.
pub fn is_complete(url: &Path, hash: &str) -> io::Result<bool> {
    Ok(open(url)?.version(&mark(hash, COMPLETE))?.is_some())
}

/// Removes the marks of a job from an output that stands: `complete` first, since it alone would mean nothing.
pub fn unmark(url: &Path, hash: &str) -> io::Result<()> {
    let store = open(url)?;
    [COMPLETE, BEGUN].into_iter().try_for_each(|name| store.remove(&[mark(hash, name)]))
}

impl RemoteOutput {
    /// Begins an output, or goes on with it. What lies there without this job's mark is removed if `may_clear` says so.
    pub fn begin(url: &Path, hash: &str, may_clear: bool) -> Result<Self, Refused> {
        let store = open(url)?;
        let found = keys(&store)?;
        let begun = mark(hash, BEGUN);
        let stored = match found.contains(&begun) {
            true => found.into_iter().filter(|key| !key.starts_with(MARKS)).collect(),
            false => {
                if !found.is_empty() && !may_clear {
                    let is_ours = found.iter().any(|key| key.starts_with(MARKS));
                    return Err(Refused::Taken(match is_ours {
                        true => {
                            "an unfinished output of another job lies there: finish it, remove it with `halostream clean`, or \
                                 say if_exists = \"overwrite\""
                                .to_owned()
                        }
                        false => format!(
                            "{} objects lie there that no array or group holds; remove them, choose another path, or say \
                             if_exists = \"overwrite\"",
                            found.len()
                        ),
                    }));
                }
                for keys in removal_order(found) {
                    store.remove(&keys)?;
                }
                store.put(&begun, env!("CARGO_PKG_VERSION").as_bytes())?;
                HashSet::new()
            }
        };
        Ok(Self { store, hash: hash.to_owned(), stored, documents: Mutex::default() })
    }

    /// An output that stands: nothing more is put into it.
    pub fn standing(url: &Path, hash: &str) -> io::Result<Self> {
        let store = open(url)?;
        let stored = keys(&store)?.into_iter().collect();
        Ok(Self { store, hash: hash.to_owned(), stored, documents: Mutex::default() })
    }

    /// The URL of a key, for messages.
    pub fn place(&self, key: &str) -> String {
        self.store.place(key)
    }

    /// True when an earlier run put it.
    pub fn is_stored(&self, key: &str) -> bool {
        self.stored.contains(key)
    }

    pub fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.store.put(key, bytes)
    }

    pub fn begin_object(&self, key: &str) -> io::Result<Upload> {
        self.store.begin(key)
    }

    pub fn remove(&self, key: &str) -> io::Result<()> {
        self.store.remove(&[key.to_owned()])
    }

    /// Metadata, put when the output is published; of one key the last.
    pub fn put_document(&self, key: &str, bytes: &[u8]) {
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|(known, _)| known != key);
        documents.push((key.to_owned(), bytes.to_vec()));
    }

    /// Metadata that will be put.
    pub fn document(&self, key: &str) -> Option<Vec<u8>> {
        let documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.iter().find(|(known, _)| known == key).map(|(_, bytes)| bytes.clone())
    }

    pub fn has_document(&self, key: &str) -> bool {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(known, _)| known == key)
    }

    /// Notes that all objects are stored.
    pub fn note_complete(&self) -> io::Result<()> {
        self.store.put(&mark(&self.hash, COMPLETE), b"")
    }

    /// Puts the metadata, that of the root last, which makes an output of it.
    pub fn publish(&self) -> io::Result<()> {
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let depth = |key: &str| key.matches('/').count();
        let is_node = |key: &str| NODES.contains(&key.rsplit('/').next().unwrap_or(key));
        documents.sort_by_key(|(key, _)| (Reverse(depth(key)), is_node(key)));
        for (key, bytes) in documents {
            self.store.put(&key, &bytes)?;
        }
        Ok(())
    }

    /// Removes everything of an output that did not come to be.
    pub fn abandon(&self) -> io::Result<()> {
        let own = format!("{MARKS}{}/", self.hash);
        let (marks, objects): (Vec<_>, Vec<_>) = keys(&self.store)?.into_iter().partition(|key| key.starts_with(&own));
        self.store.remove(&objects)?;
        self.store.remove(&marks)
    }
}

/// What `clean` removed.
#[derive(Debug, PartialEq, Eq)]
pub struct Cleaned {
    pub objects: u64,
    pub bytes: u64,
}

/// Removes what unfinished jobs left of an output: all objects where no metadata makes them one, else marks alone.
pub fn clean(url: &Path) -> io::Result<Cleaned> {
    let store = open(url)?;
    let mut found = Vec::new();
    let is_listed = store.list("", |key, bytes, _| {
        found.push((key.to_owned(), bytes));
        found.len() <= MOST_OBJECTS
    })?;
    if !is_listed {
        return Err(Fault::denied("the bucket may not be listed").into());
    }
    let is_marked = found.iter().any(|(key, _)| key.starts_with(MARKS));
    let stands = found.iter().any(|(key, _)| NODES.contains(&key.as_str()));
    found.retain(|(key, _)| is_marked && (!stands || key.starts_with(MARKS)));
    // Marks last: without them nobody knows what the rest is.
    found.sort_by_key(|(key, _)| key.starts_with(MARKS));
    let cleaned = Cleaned { objects: found.len() as u64, bytes: found.iter().map(|(_, bytes)| bytes).sum() };
    let first_mark = found.iter().position(|(key, _)| key.starts_with(MARKS)).unwrap_or(found.len());
    let marks = found.split_off(first_mark);
    for part in [found, marks] {
        store.remove(&part.into_iter().map(|(key, _)| key).collect::<Vec<_>>())?;
    }
    Ok(cleaned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_an_output_goes_first() {
        let keys = ["c/0/0", ".zattrs", "zarr.json", "a/zarr.json", ".zgroup"].map(str::to_owned).to_vec();
        assert_eq!(removal_order(keys), [vec!["zarr.json", ".zgroup"], vec!["c/0/0", ".zattrs", "a/zarr.json"]]);
    }
}
