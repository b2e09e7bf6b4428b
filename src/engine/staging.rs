//! Staging folders beside outputs (`.NAME.halostream-HASH`): their names, finding them, removing those that nobody holds,
//! swapping one with what stands at its output's name.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::journal::{self, LedgerError};
use crate::files;
pub use crate::files::remove;
use crate::writer::zarr::is_zarr;

/// Between an output's name and its job's hash.
const STAGING: &str = ".halostream-";

/// After the name of a staging folder: the old output, while names are swapped in steps.
const ASIDE: &str = ".old";

/// Deeper folders are not searched: nobody's outputs lie there, and links could be followed for ever.
const MAX_DEPTH: usize = 32;

/// Something of a job beside the name of its output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    pub path: PathBuf,
    /// The output it belongs to.
    pub output: PathBuf,
    /// Of the job.
    pub hash: String,
    /// The old output on its way out, not the staging folder.
    pub is_aside: bool,
}

/// What became of a leftover.
#[derive(Debug)]
pub enum Cleaned {
    /// With the bytes of its files.
    Removed(u64),
    /// Its job is running.
    Busy,
    /// The only copy of an output that was to be replaced.
    Needed,
}

pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The staging folder of an output.
pub fn name(output: &Path, hash: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(output.file_name().unwrap_or_default());
    name.push(STAGING);
    name.push(hash);
    output.with_file_name(name)
}

/// Where an old output waits on a file system that cannot swap two names at once.
pub fn aside(staged: &Path) -> PathBuf {
    let mut name = staged.as_os_str().to_owned();
    name.push(ASIDE);
    name.into()
}

/// Reads the name of a folder's entry.
fn leftover(folder: &Path, entry: &str) -> Option<Leftover> {
    let (name, is_aside) = entry.strip_suffix(ASIDE).map_or((entry, false), |name| (name, true));
    let (output, hash) = name.strip_prefix('.')?.rsplit_once(STAGING)?;
    let is_hash = hash.len() >= 8 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let left = Leftover { path: folder.join(entry), output: folder.join(output), hash: hash.to_owned(), is_aside };
    (is_hash && !output.is_empty()).then_some(left)
}

/// What jobs left beside an output.
pub fn beside(output: &Path) -> Vec<Leftover> {
    let Ok(entries) = files::list(folder_of(output)) else { return Vec::new() };
    let folder = output.parent().unwrap_or(Path::new(""));
    let names = entries.flatten().filter_map(|e| leftover(folder, e.file_name().to_str()?));
    let mut found: Vec<Leftover> = names.filter(|left| left.output.file_name() == output.file_name()).collect();
    found.sort();
    found
}

/// What jobs left in a folder and the folders below it; links are not followed, Zarr stores not searched.
pub fn below(folder: &Path) -> io::Result<Vec<Leftover>> {
    fn visit(folder: &Path, depth: usize, found: &mut Vec<Leftover>) -> io::Result<()> {
        for entry in files::list(folder)? {
            let entry = entry?;
            if let Some(left) = entry.file_name().to_str().and_then(|name| leftover(folder, name)) {
                found.push(left);
            } else if entry.file_type()?.is_dir() && depth < MAX_DEPTH && !is_zarr(&entry.path()) {
                visit(&entry.path(), depth + 1, found)?;
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    visit(folder, 0, &mut found)?;
    found.sort();
    Ok(found)
}

/// Removes a leftover unless its job is running.
pub fn clean(left: &Leftover) -> io::Result<Cleaned> {
    if left.is_aside && files::find(&left.output)?.is_none() {
        return Ok(Cleaned::Needed);
    }
    // Held until it is gone, so that no run starts in it.
    let _locks = match journal::lock(&left.path) {
        Ok(locks) => locks,
        Err(LedgerError::Busy { .. }) => return Ok(Cleaned::Busy),
        Err(LedgerError::Io { error, .. }) => return Err(error),
    };
    let bytes = bytes(&left.path)?;
    remove(&left.path)?;
    Ok(Cleaned::Removed(bytes))
}

fn bytes(path: &Path) -> io::Result<u64> {
    let Some(metadata) = files::find(path)? else { return Ok(0) };
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut sum = 0;
    for entry in files::list(path)? {
        sum += bytes(&entry?.path())?;
    }
    Ok(sum)
}

/// Removes a file, a link or a whole folder that hurts nobody if it stays.
pub fn sweep(path: &Path) {
    if let Err(error) = remove(path) {
        tracing::warn!(path = %path.display(), %error, "a leftover could not be removed");
    }
}

/// Swaps two names at once, so that one of both stores stands at any instant; file systems without that swap in steps.
pub fn exchange(staged: &Path, last: &Path) -> io::Result<()> {
    match files::exchange(staged, last) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {}
        swapped => return swapped,
    }
    let aside = aside(staged);
    files::rename(last, &aside)?;
    files::rename(staged, last)?;
    files::rename(&aside, staged)
}
