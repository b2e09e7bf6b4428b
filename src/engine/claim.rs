//! Takes a staging folder for this process: the lock of its ledger, what is noted as done in it, and nothing in it that no
//! ledger of the job speaks for.
//!
//! A whole run holds the folder's ledger until its end. Partitions hold it only while they lay the store out, and then a
//! ledger each; so a whole run finds them busy and they find it busy.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::journal::{self, Ledger, LedgerError, Noted, boot_id};
use super::partition::Partition;
use super::publish::{PublishError, io_at};
use super::staging;
use crate::files::{self, is_absent};
use crate::zarr::FileStore;

/// So long a partition waits for others that lay out or publish the same outputs, and looks again so often.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// A staging folder that is ours, or of which a share is.
pub struct Claim {
    /// For our own notes.
    pub ledger: Ledger,
    /// What it says, and other ledgers of the same job.
    pub noted: Noted,
    /// The folder's ledger while a partition holds it.
    whole: Option<Ledger>,
    is_of_another_boot: bool,
    /// Our own ledger says that all that we are to make is done.
    pub is_complete: bool,
}

/// `None` when the folder went while we were waiting for it: its outputs have appeared.
pub fn claim(staged: &Path, hash: &str, partition: Option<Partition>, sync: bool) -> Result<Option<Claim>, PublishError> {
    if files::find(staged).map_err(io_at(staged))?.is_some_and(|m| !m.is_dir()) {
        staging::remove(staged).map_err(io_at(staged))?;
    }
    let is_new = match files::make_folder(staged) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => made.map(|()| true).map_err(io_at(staged))?,
    };
    let taken = take(staged, hash, sync, partition).inspect_err(|error| {
        if is_new && partition.is_none() && matches!(error, LedgerError::Io { .. }) {
            staging::sweep(staged);
        }
    })?;
    let Some((whole, mut noted)) = taken else { return Ok(None) };
    let parts = journal::parts(staged).map_err(io_at(staged))?;
    // Those of as many partitions have objects of their own, and need not be read by each.
    for path in parts.iter().filter(|path| partition.is_none_or(|own| !journal::is_part_like(path, own))) {
        drop(journal::lock_one(path)?);
        noted.absorb(Ledger::peek_at(path).unwrap_or_default());
    }
    if noted.hash.is_empty() && parts.is_empty() {
        // What is there without a ledger of this job is no progress of it: the leavings of a swap. Removed only now, under
        // the lock, so that nobody loses a folder that was just made.
        for entry in files::list(staged).map_err(io_at(staged))?.flatten().filter(|e| e.file_name() != journal::NAME) {
            staging::remove(&entry.path()).map_err(io_at(staged))?;
        }
    }
    let Some(partition) = partition else {
        sweep(staged)?;
        let is_of_another_boot = !noted.hash.is_empty() && noted.boot != boot_id();
        let is_complete = noted.can_be_published();
        return Ok(Some(Claim { ledger: whole, noted, whole: None, is_of_another_boot, is_complete }));
    };
    let path = journal::part(staged, partition);
    let folder = staged.join(journal::PARTS);
    files::make_folders(&folder).map_err(io_at(&folder))?;
    let (ledger, own) = Ledger::open_at(path, hash, sync)?;
    let is_of_another_boot = !own.hash.is_empty() && own.boot != boot_id();
    let is_complete = own.can_be_published();
    let mut all = own;
    all.absorb(noted);
    Ok(Some(Claim { ledger, noted: all, whole: Some(whole), is_of_another_boot, is_complete }))
}

impl Claim {
    /// The store is laid out, and what of it does not count is gone: others may come, and names count from here on.
    pub fn settle(mut self) -> io::Result<Ledger> {
        if self.is_of_another_boot {
            self.ledger.note_boot()?;
        }
        drop(self.whole);
        Ok(self.ledger)
    }
}

/// The lock of a folder's own ledger, which a partition waits for; `None` when the folder goes meanwhile.
pub fn take(staged: &Path, hash: &str, sync: bool, partition: Option<Partition>) -> Result<Option<(Ledger, Noted)>, LedgerError> {
    let since = Instant::now();
    loop {
        match Ledger::open(staged, hash, sync) {
            Err(LedgerError::Busy { .. }) if partition.is_some() && since.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            Err(LedgerError::Io { error, .. }) if partition.is_some() && is_absent(&error) => return Ok(None),
            taken => return taken.map(Some),
        }
    }
}

/// Removes what killed writers left half written. Only when nobody else writes there.
pub fn sweep(staged: &Path) -> Result<(), PublishError> {
    let swept = FileStore::new(staged).and_then(|s| s.sweep()).map_err(io_at(staged))?;
    if swept > 0 {
        tracing::info!(path = %staged.display(), files = swept, "unfinished files of an earlier run removed");
    }
    Ok(())
}
