//! When an input is complete. Nothing is ever read early: what is not proved complete is not.
//!
//! A [`Pending`] follows one entry from scan to scan. Times are those of a clock that only goes forward, and count from the
//! moment at which *we* saw the entry unchanged: modification times may lie (copies keep them, clocks are set back).
//!
//! ```text
//! settle:10s       scan at   0 s   4 s   8 s   12 s  18 s
//!                  tree       A     A     B     B     B
//!                  unchanged  0     4     0     4     10 -> complete
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::scan::{Entry, Fingerprint, Kind};
use super::{manifest, whole};
use crate::config::fill::Filling;
use crate::config::service::{Policy, WatchSpec};

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Complete,
    /// Not yet; `more` says how long it has to stay as it is, when that is all.
    Incomplete {
        why: String,
        more: Option<Duration>,
    },
    /// It never will be: a link.
    Refused(String),
}

/// An entry between its first sight and its completeness.
#[derive(Debug)]
pub struct Pending {
    pub fingerprint: Fingerprint,
    /// When the fingerprint was first seen.
    pub unchanged_since: Duration,
    pub first_seen: Duration,
    /// The version that was last looked into (chunks, manifests) and found complete: looking costs more than a scan.
    proved: Option<Fingerprint>,
    /// The version last told to the service as complete.
    pub told: Option<Fingerprint>,
    /// Its hash where content counts, with the fingerprint it was made for.
    pub content: Option<(Fingerprint, u64)>,
}

impl Pending {
    pub fn new(fingerprint: Fingerprint, now: Duration) -> Self {
        Self { fingerprint, unchanged_since: now, first_seen: now, proved: None, told: None, content: None }
    }

    /// Notes what a scan saw.
    pub fn observe(&mut self, fingerprint: Fingerprint, now: Duration) {
        if fingerprint != self.fingerprint {
            if self.told == Some(self.fingerprint) {
                // From now on it is a new version, which may stall like any other.
                self.first_seen = now;
            }
            self.fingerprint = fingerprint;
            self.unchanged_since = now;
        }
    }

    /// Whether all policies of the watch hold now.
    pub fn standing(&mut self, watch: &WatchSpec, entry: &Entry, path: &Path, now: Duration) -> Standing {
        if entry.kind == Kind::Link {
            let reason = "is a link; links are not followed out of the watched directory: move or copy the data itself";
            return Standing::Refused(reason.to_owned());
        }
        let unchanged = now.saturating_sub(self.unchanged_since);
        if let Some(more) = watch.settle().and_then(|t| t.checked_sub(unchanged)).filter(|more| !more.is_zero()) {
            return Standing::Incomplete { why: "was changed a moment ago".to_owned(), more: Some(more) };
        }
        let names = names(&entry.relpath);
        for policy in &watch.complete {
            let why = match policy {
                Policy::Settle(_) | Policy::Rename => None,
                Policy::Marker(name) => beside(path, &names.text(name), entry.kind)
                    .is_none()
                    .then(|| format!("waits for its marker {}", names.text(name))),
                // Looked into once per version: nothing that is proved of a tree is lost while the tree is unchanged.
                Policy::Zarr | Policy::Manifest(_) if self.proved == Some(self.fingerprint) => None,
                Policy::Zarr => whole::missing(path, watch.job.fills_missing && watch.settle().is_some()).err(),
                Policy::Manifest(name) => match beside(path, &names.text(name), entry.kind) {
                    None => Some(format!("waits for its manifest {}", names.text(name))),
                    Some(list) => manifest::check(&list, path).err(),
                },
            };
            if let Some(why) = why {
                return Standing::Incomplete { why, more: None };
            }
        }
        self.proved = Some(self.fingerprint);
        Standing::Complete
    }
}

fn names(relpath: &[u8]) -> Filling {
    let relpath = String::from_utf8_lossy(relpath);
    let name = relpath.rsplit('/').next().unwrap_or(&relpath).to_owned();
    let stem = Path::new(&name).file_stem().and_then(|s| s.to_str()).unwrap_or(&name).to_owned();
    Filling::new(vec![("name", name), ("stem", stem)])
}

/// The regular file of that name inside the entry, or beside it.
fn beside(path: &Path, name: &str, kind: Kind) -> Option<PathBuf> {
    let is_file = |p: &PathBuf| fs::symlink_metadata(p).is_ok_and(|m| m.is_file());
    let inside = (kind == Kind::Folder).then(|| path.join(name));
    inside.filter(is_file).or_else(|| Some(path.with_file_name(name)).filter(is_file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(hash: u64) -> Fingerprint {
        Fingerprint { files: 1, bytes: 10, hash }
    }

    /// (seconds, version seen) -> seconds unchanged. The wall clock plays no part, so setting it back changes nothing.
    #[test]
    fn unchanged_time_is_a_table() {
        let mut pending = Pending::new(seen(1), Duration::ZERO);
        for (at, version, unchanged) in [(4, 1, 4), (8, 2, 0), (12, 2, 4), (18, 2, 10), (19, 1, 0), (20, 1, 1)] {
            let now = Duration::from_secs(at);
            pending.observe(seen(version), now);
            assert_eq!(now - pending.unchanged_since, Duration::from_secs(unchanged), "at {at} s");
        }
        assert_eq!(pending.first_seen, Duration::ZERO);
        pending.told = Some(seen(1));
        pending.observe(seen(3), Duration::from_secs(30));
        assert_eq!(pending.first_seen, Duration::from_secs(30), "a new version of what was complete");
    }
}
