//! Outputs are absent or complete (I4): staged beside their final names with a ledger of progress, renamed there
//! together at the end (`store` knows how). Running the same job again is always safe: it does nothing, finishes an interrupted publishing,
//! or goes on where the last run was stopped.
//!
//! A store under its final name carries the hash of the job that made it, so what another job (or a person) made is
//! never overwritten by accident.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::{claim, sweep, take};
use super::journal::{self, Grouping, Journal, Ledger, LedgerError, Noted, Within, boot_id};
use super::partition::Partition;
use super::resume::Done;
use super::staging;
use super::store::{self, Store};
use crate::files::advice;
use crate::plan::Plan;
use crate::writer::coordinates::CoordinateError;
use crate::writer::{Sink, SinkError};

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Bad usage: exit 2.
    #[error("{path}: {reason}")]
    Exists { path: String, reason: String },
    #[error("{path}: {error}{}", advice(error))]
    Io { path: String, error: io::Error },
    #[error("{path}: the folder {folder} cannot be made: {error}{}", advice(error))]
    Folder { path: String, folder: String, error: io::Error },
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error(transparent)]
    Coordinate(#[from] CoordinateError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

pub(super) fn io_at(path: &Path) -> impl Fn(io::Error) -> PublishError + '_ {
    move |error| PublishError::Io { path: path.display().to_string(), error }
}

/// The stores of a job while they are being written.
pub struct Staging {
    stores: Vec<Store>,
    journal: Option<Box<Journal>>,
    /// Locked until every output has its name.
    ledgers: Vec<Ledger>,
    sync: bool,
    hash: String,
    partition: Option<Partition>,
}

/// What preparing found.
pub enum Prepared {
    /// All outputs stand, made by this very job.
    AlreadyDone,
    /// All outputs were complete; an interrupted publishing was finished.
    Finished,
    /// This partition had made its objects before; so many partitions have.
    PartDone { complete: u64 },
    /// `stored`: objects that need not be made, not counting those of other partitions.
    Ready { staging: Staging, sinks: Vec<Arc<dyn Sink>>, done: Done, stored: u64 },
}

/// What publishing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// All outputs have their names.
    Whole,
    /// They wait for other partitions; so many are complete.
    Part { complete: u64 },
}

/// Checks what stands at the outputs' paths, finds what an earlier run left, and lays out what is missing.
pub fn prepare(plan: &Plan, sync: bool) -> Result<Prepared, PublishError> {
    prepare_with(plan, sync, Arc::new(Within(journal::GROUP)))
}

/// The same, with groups of the ledger as the caller wants them.
pub fn prepare_with(plan: &Plan, sync: bool, grouping: Arc<dyn Grouping>) -> Result<Prepared, PublishError> {
    let stores = store::find(plan)?;
    if stores.iter().all(|s| !s.is_staged) {
        stores.iter().for_each(Store::sweep);
        return Ok(Prepared::AlreadyDone);
    }
    // Complete stores lack only their names.
    let mut lacks_objects = false;
    for store in &stores {
        lacks_objects |= !store.is_whole()?;
    }
    if !lacks_objects {
        let (hash, partition) = (plan.hash.clone(), plan.partition);
        let mut staging = Staging { stores, journal: None, ledgers: Vec::new(), sync, hash, partition };
        let mut sinks = vec![None; plan.outputs.len()];
        for store in staging.stores.iter_mut().filter(|s| s.is_staged && !s.has_ledger()) {
            store.lay_out(plan, sync, true, &mut sinks)?;
        }
        for store in staging.stores.iter().filter(|s| s.has_ledger()) {
            let taken = take(&store.staged, &plan.hash, sync, partition)?;
            let Some((ledger, _)) = taken.filter(|(_, noted)| noted.hash == plan.hash) else {
                return prepare_with(plan, sync, grouping);
            };
            if sync {
                // The run that made it may have been one without.
                ledger.sync_data().map_err(io_at(&store.staged))?;
            }
            staging.ledgers.push(ledger);
        }
        staging.give_names()?;
        return Ok(Prepared::Finished);
    }
    let mut fresh = Vec::new();
    let opened = open_stores(plan, stores, sync, grouping.clone(), &mut fresh);
    if !matches!(opened, Ok(Some(_))) {
        // Nothing is in them but their metadata.
        fresh.iter().for_each(|staged| staging::sweep(staged));
    }
    match opened? {
        Some(prepared) => Ok(prepared),
        // Another process has published since we looked.
        None => prepare_with(plan, sync, grouping),
    }
}

/// Locks the ledgers, lays out stores and finds what is done; `None` when an output has appeared in the meantime. Staging
/// folders without progress are told in `fresh`.
fn open_stores(
    plan: &Plan,
    mut stores: Vec<Store>,
    sync: bool,
    grouping: Arc<dyn Grouping>,
    fresh: &mut Vec<PathBuf>,
) -> Result<Option<Prepared>, PublishError> {
    let mut sinks: Vec<Option<Arc<dyn Sink>>> = vec![None; plan.outputs.len()];
    let mut done = vec![HashSet::new(); plan.outputs.len()];
    let mut ledgers = Vec::new();
    let mut store_of = vec![usize::MAX; plan.outputs.len()];
    let totals: Vec<u64> = plan.outputs.iter().map(|o| o.layout.object_grid().cells().unwrap_or(u64::MAX)).collect();
    let own: Vec<Range<u64>> = totals.iter().map(|&total| plan.partition.map_or(0..total, |p| p.of(total))).collect();
    let mut is_part_done = plan.partition.is_some();
    for store in &mut stores {
        let claim = match store.has_ledger() {
            true => match claim(&store.staged, &plan.hash, plan.partition, sync)? {
                Some(claim) => Some(claim),
                None => return Ok(None),
            },
            false => None,
        };
        if claim.as_ref().is_some_and(|claim| claim.noted.hash.is_empty()) && plan.partition.is_none() {
            fresh.push(store.staged.clone());
        }
        if store.is_staged && store.stands()? {
            return Ok(None);
        }
        let noted = claim.as_ref().map(|c| &c.noted);
        store.lay_out(plan, sync, noted.is_none_or(trusts_names), &mut sinks)?;
        for &t in &store.targets {
            if let Some(sink) = &sinks[t] {
                done[t] = find_done(t, sink.as_ref(), &own[t], noted)?;
            }
        }
        if let Some(claim) = claim {
            is_part_done &= claim.is_complete;
            store.targets.iter().for_each(|&t| store_of[t] = ledgers.len());
            ledgers.push(claim.settle().map_err(io_at(&store.staged))?);
        }
    }
    let (hash, partition) = (plan.hash.clone(), plan.partition);
    if is_part_done {
        drop(ledgers);
        let staging = Staging { stores, journal: None, ledgers: Vec::new(), sync, hash, partition };
        return staging.gather().map(|published| match published {
            Published::Whole => Some(Prepared::Finished),
            Published::Part { complete } => Some(Prepared::PartDone { complete }),
        });
    }
    let stored = done.iter().map(|objects| objects.len() as u64).sum();
    let journal = Journal::start(ledgers, store_of, grouping).map_err(io_at(Path::new("journal")))?;
    let staging = Staging { stores, journal: Some(Box::new(journal)), ledgers: Vec::new(), sync, hash, partition };
    let done = Done::new(done, own, totals);
    Ok(Some(Prepared::Ready { staging, sinks: sinks.into_iter().flatten().collect(), done, stored }))
}

/// In the same boot a name is proof enough: names are given to whole objects only, and the page cache is still there.
fn trusts_names(noted: &Noted) -> bool {
    !noted.hash.is_empty() && noted.boot == boot_id()
}

/// Objects of a target that need not be made again.
fn find_done(target: usize, sink: &dyn Sink, own: &Range<u64>, noted: Option<&Noted>) -> Result<HashSet<u64>, SinkError> {
    let (objects, trusts) = match noted {
        None => (None, true),
        Some(noted) if noted.hash.is_empty() => return Ok(HashSet::new()),
        Some(noted) => (Some(&noted.objects), trusts_names(noted)),
    };
    sink.resume(own, &|number| trusts || objects.is_some_and(|o| o.contains(&(target as u32, number))))
}

impl Staging {
    /// Hears of stored objects, for the ledger. Without syncs there is nothing that it would note.
    pub fn teller(&self) -> Option<std::sync::mpsc::Sender<journal::ObjectId>> {
        self.journal.as_ref().filter(|_| self.sync).and_then(|journal| journal.teller())
    }

    /// All objects are stored and durable: notes that, then gives every output its name, or leaves that to the last
    /// partition. What another job gave that name to in the meantime is not overwritten unless the job says so.
    pub fn publish(mut self) -> Result<Published, PublishError> {
        self.stores.iter().try_for_each(Store::check_name)?;
        self.close(true)?;
        match self.partition {
            None => self.give_names().map(|()| Published::Whole),
            Some(_) => self.gather(),
        }
    }

    /// Gives the outputs their names when all partitions have noted that they are complete. Each notes it before it looks, so
    /// the last one finds all; where two do, one gives the names.
    fn gather(mut self) -> Result<Published, PublishError> {
        let Some(partition) = self.partition else { return Ok(Published::Whole) };
        self.ledgers.clear();
        let mut ledgers = Vec::new();
        let staged: Vec<&Path> = self.stores.iter().filter(|s| s.is_staged).map(|s| s.staged.as_path()).collect();
        let is_noted = |path: &Path| Ledger::peek_at(path).is_some_and(|n| n.hash == self.hash && n.can_be_published());
        let is_complete = |p: &Partition| staged.iter().all(|folder| is_noted(&journal::part(folder, *p)));
        let complete = partition.all().filter(is_complete).count() as u64;
        if complete == partition.count() {
            for folder in staged {
                // A new ledger lies in what a swap of names has put there.
                let taken = take(folder, &self.hash, self.sync, Some(partition))?;
                let Some((mut ledger, _)) = taken.filter(|(_, noted)| noted.hash == self.hash) else { break };
                sweep(folder)?;
                ledger.note_complete().map_err(io_at(folder))?;
                ledgers.push(ledger);
            }
        }
        let staged = self.stores.iter().filter(|s| s.is_staged).count();
        if complete == partition.count() && ledgers.len() == staged {
            self.ledgers = ledgers;
            self.give_names()?;
            return Ok(Published::Whole);
        }
        // Another partition gives the names, or did so before we could look.
        let mut stand = 0;
        for store in &self.stores {
            stand += usize::from(store.stands()?);
        }
        Ok(if stand == self.stores.len() { Published::Whole } else { Published::Part { complete } })
    }

    /// The run ended before its end: what is stored stays, for the next run. Without a single object nothing stays.
    pub fn keep(mut self, objects: u64) {
        if let Err(error) = self.close(false) {
            tracing::warn!(%error, "the last progress could not be noted");
        }
        if objects == 0 && self.partition.is_none() {
            self.abandon();
        }
    }

    /// Nothing of this job stays: its input changed, or it wrote nothing. A partition leaves the folder, which is the others',
    /// too, but nothing in it counts as its own.
    pub fn abandon(mut self) {
        if self.partition.is_none() {
            return self.stores.iter().for_each(Store::abandon);
        }
        let closed = self.close(false).map_err(|error| error.to_string());
        let disowned = closed.and_then(|()| {
            let hash = self.hash.clone();
            self.ledgers.iter_mut().try_for_each(|ledger| ledger.disown(&hash)).map_err(|error| error.to_string())
        });
        if let Err(error) = disowned {
            tracing::warn!(%error, "what this partition stored could not be disowned; `halostream clean` removes it");
        }
    }

    fn close(&mut self, is_complete: bool) -> Result<(), PublishError> {
        let Some(journal) = self.journal.take() else { return Ok(()) };
        self.ledgers = journal.stop()?;
        if is_complete {
            self.stores.iter().try_for_each(Store::note_complete)?;
        }
        for ledger in &mut self.ledgers {
            if is_complete {
                let path = ledger.path().to_path_buf();
                if !ledger.is_in_place().map_err(io_at(&path))? {
                    let reason = "the folder was removed while it was being written; run the job again";
                    return Err(io_at(staging::folder_of(&path))(io::Error::other(reason)));
                }
                ledger.note_complete().map_err(io_at(&path))?;
            }
        }
        Ok(())
    }

    fn give_names(&self) -> Result<(), PublishError> {
        self.stores.iter().filter(|s| s.is_staged).try_for_each(|store| store.give_name(self.sync))?;
        self.stores.iter().for_each(Store::sweep);
        Ok(())
    }
}
