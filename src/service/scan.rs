//! Reads a watched directory: which entries are inputs, and a fingerprint of each.
//!
//! One `lstat` per entry and, for folders, per file below: a store of 10,000 chunks takes some 20 ms. Links are never
//! followed, so nothing outside the directory is ever looked at.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::service::WatchSpec;

/// Deeper trees are no data of anybody.
const MAX_TREE_DEPTH: usize = 64;
/// Folders below the directory that are looked through for a pattern with `**`.
const MAX_PATTERN_DEPTH: usize = 32;

/// Size and times of a whole tree, condensed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    pub files: u64,
    pub bytes: u64,
    /// Of names, sizes and modification times; of names and content where the watch says so.
    pub hash: u64,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:016x}", self.files, self.bytes, self.hash)
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    /// Never followed.
    Link,
}

/// An entry that matches the pattern.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path below the directory, as the file system has it.
    pub relpath: Vec<u8>,
    pub kind: Kind,
    /// Size and modification time of the entry itself, to see cheaply that it was touched.
    pub own: (u64, i64, i64),
}

/// FNV-1a with a final mix: sums of it tell changed trees apart, in any order.
fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

fn facts(path: &[u8], metadata: &fs::Metadata) -> u64 {
    let mut text = path.to_vec();
    text.extend(metadata.len().to_le_bytes());
    text.extend(metadata.mtime().to_le_bytes());
    text.extend(metadata.mtime_nsec().to_le_bytes());
    fnv(&text)
}

/// The fingerprint of a file or folder; `NotFound` when it is gone.
pub fn fingerprint(path: &Path) -> io::Result<Fingerprint> {
    let metadata = fs::symlink_metadata(path)?;
    let mut sum = Fingerprint { files: 0, bytes: 0, hash: 0 };
    if metadata.is_dir() {
        visit(path, &mut Vec::new(), 0, &mut sum)?;
    } else {
        sum = Fingerprint { files: 1, bytes: metadata.len(), hash: facts(b"", &metadata) };
    }
    Ok(sum)
}

fn visit(folder: &Path, below: &mut Vec<u8>, depth: usize, sum: &mut Fingerprint) -> io::Result<()> {
    if depth > MAX_TREE_DEPTH {
        return Err(io::Error::other(format!("has more than {MAX_TREE_DEPTH} folders in each other")));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let length = below.len();
        below.push(b'/');
        below.extend(entry.file_name().as_bytes());
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                sum.hash = sum.hash.wrapping_add(fnv(below));
                visit(&entry.path(), below, depth + 1, sum)?;
            }
            Ok(metadata) => {
                sum.files += 1;
                sum.bytes = sum.bytes.wrapping_add(metadata.len());
                sum.hash = sum.hash.wrapping_add(facts(below, &metadata));
            }
            // Renamed away since the folder was listed: that is a change like any other.
            Err(error) if error.kind() == io::ErrorKind::NotFound => sum.hash = sum.hash.wrapping_add(1),
            Err(error) => return Err(error),
        }
        below.truncate(length);
    }
    Ok(())
}

/// The path of an entry.
pub fn place(directory: &Path, relpath: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(relpath))
}

/// Every entry that matches, in no order. `excluded` are folders of the service itself.
pub fn entries(watch: &WatchSpec, excluded: &[PathBuf]) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let depth = watch.pattern.depth.unwrap_or(MAX_PATTERN_DEPTH);
    walk(watch, excluded, &watch.directory, &mut Vec::new(), depth, &mut found)?;
    Ok(found)
}

fn walk(
    watch: &WatchSpec,
    excluded: &[PathBuf],
    folder: &Path,
    below: &mut Vec<u8>,
    depth: usize,
    found: &mut Vec<Entry>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let length = below.len();
        if length > 0 {
            below.push(b'/');
        }
        below.extend(entry.file_name().as_bytes());
        visit_entry(watch, excluded, &entry, below, depth, found)?;
        below.truncate(length);
    }
    Ok(())
}

fn visit_entry(
    watch: &WatchSpec,
    excluded: &[PathBuf],
    entry: &fs::DirEntry,
    below: &mut Vec<u8>,
    depth: usize,
    found: &mut Vec<Entry>,
) -> io::Result<()> {
    let path = entry.path();
    // Patterns see names that are not UTF-8 with the marks that people see.
    let relpath = String::from_utf8_lossy(below).into_owned();
    let name = relpath.rsplit('/').next().unwrap_or(&relpath);
    if watch.ignores(name, &relpath) || excluded.contains(&path) {
        return Ok(());
    }
    let metadata = match entry.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let kind = match metadata.file_type() {
        t if t.is_file() => Kind::File,
        t if t.is_dir() => Kind::Folder,
        t if t.is_symlink() => Kind::Link,
        // Pipes, sockets and devices have no end that could be reached.
        _ => return Ok(()),
    };
    if watch.pattern.matches(&relpath) {
        found.push(Entry { relpath: below.clone(), kind, own: (metadata.len(), metadata.mtime(), metadata.mtime_nsec()) });
    } else if kind == Kind::Folder && depth > 1 {
        match walk(watch, excluded, &path, below, depth - 1, found) {
            // One folder that can't be read, or went away, hides nothing of the others.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = ?path, %error, "a folder of the watch could not be read"),
            Ok(()) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_changes() {
        let folder = std::env::temp_dir().join(format!("halostream-service-scan-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("a.zarr/c/0")).unwrap();
        let store = folder.join("a.zarr");
        let mut seen = vec![fingerprint(&store).unwrap()];
        let step = |seen: &mut Vec<Fingerprint>, what: &str| {
            let now = fingerprint(&store).unwrap();
            assert!(!seen.contains(&now), "{what} changes nothing");
            assert_eq!(fingerprint(&store).unwrap(), now);
            seen.push(now);
        };
        fs::write(store.join("c/0/1"), [1u8; 100]).unwrap();
        step(&mut seen, "a new file");
        fs::write(store.join("c/0/1"), [1u8; 101]).unwrap();
        step(&mut seen, "another size");
        let file = fs::File::options().write(true).open(store.join("c/0/1")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        step(&mut seen, "another time");
        fs::rename(store.join("c/0/1"), store.join("c/0/2")).unwrap();
        step(&mut seen, "another name");
        fs::create_dir(store.join("c/1")).unwrap();
        step(&mut seen, "a new folder");
        assert_eq!((seen[2].files, seen[2].bytes), (1, 101));
        fs::remove_dir_all(&store).unwrap();
        assert_eq!(fingerprint(&store).unwrap_err().kind(), io::ErrorKind::NotFound);
        let _ = fs::remove_dir_all(&folder);
    }
}
