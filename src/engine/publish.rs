//! Outputs are absent or complete (I4): staged beside their final names with a ledger of progress, renamed there
//! together at the end; in object stores, where nothing can be renamed, put under their final keys with the metadata last
//! ([`crate::writer::remote`]). Running the same job again is always safe: it does nothing, finishes an interrupted publishing,
//! or goes on where the last run was stopped.
//!
//! A store under its final name carries the hash of the job that made it, so what another job (or a person) made is
//! never overwritten by accident.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::journal::{self, Clock, Journal, Ledger, LedgerError, Noted, SystemClock, boot_id};
use super::resume::Done;
use super::staging;
use crate::config::IfExists;
use crate::files::{self, advice};
use crate::plan::Plan;
use crate::reader::OpenError;
use crate::remote::is_url;
use crate::writer::remote::{self, Refused, RemoteOutput};
use crate::writer::store::WriteStore;
use crate::writer::{Sink, SinkError, points, zarr};
use crate::zarr::FileStore;

/// The attribute that says which job made an output.
pub const ATTRIBUTE: &str = "halostream";

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
    Ledger(#[from] LedgerError),
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> PublishError + '_ {
    move |error| PublishError::Io { path: path.display().to_string(), error }
}

/// The stores of a job while they are being written.
pub struct Staging {
    stores: Vec<Store>,
    journal: Option<Journal>,
    /// Locked until every output has its name.
    ledgers: Vec<Ledger>,
    sync: bool,
    hash: String,
}

struct Store {
    /// Its folder beside the output; unused in an object store.
    staged: PathBuf,
    last: PathBuf,
    /// Graph targets that it holds.
    targets: Vec<usize>,
    /// False when it stands under its name already.
    is_staged: bool,
    if_exists: IfExists,
    /// The output in an object store, once it has begun.
    remote: Option<Arc<RemoteOutput>>,
}

/// What preparing found.
pub enum Prepared {
    /// All outputs stand, made by this very job.
    AlreadyDone,
    /// All outputs were complete; an interrupted publishing was finished.
    Finished,
    Ready {
        staging: Staging,
        sinks: Vec<Arc<dyn Sink>>,
        done: Done,
    },
}

/// What stands at an output's path.
enum Standing {
    Nothing,
    /// Made by the job with this hash.
    Job(String),
    Other,
}

fn standing(path: &Path) -> Result<Standing, PublishError> {
    let is_remote = is_url(path);
    if !is_remote && files::find(path).map_err(io_at(path))?.is_none() {
        return Ok(Standing::Nothing);
    }
    let attributes = match zarr::read_attributes(path) {
        Err(OpenError::Io { path, error }) => return Err(PublishError::Io { path, error }),
        // Without metadata nothing stands there, whatever objects there are.
        Ok(None) if is_remote => return Ok(Standing::Nothing),
        // What cannot be read as ours is somebody else's.
        read => read.ok().flatten().unwrap_or_default(),
    };
    let hash = attributes.get(ATTRIBUTE).and_then(|a| a.get("hash")).and_then(Value::as_str);
    Ok(hash.map_or(Standing::Other, |h| Standing::Job(h.to_owned())))
}

/// Checks what stands at the outputs' paths, finds what an earlier run left, and lays out what is missing.
pub fn prepare(plan: &Plan, sync: bool) -> Result<Prepared, PublishError> {
    prepare_with(plan, sync, Arc::new(SystemClock::default()))
}

/// The same, with the clock that groups of the ledger follow.
pub fn prepare_with(plan: &Plan, sync: bool, clock: Arc<dyn Clock>) -> Result<Prepared, PublishError> {
    let stores = find_stores(plan)?;
    if stores.iter().all(|s| !s.is_staged) {
        stores.iter().for_each(|store| store.sweep(&plan.hash));
        return Ok(Prepared::AlreadyDone);
    }
    // Complete stores lack only their names.
    let mut lacks_objects = false;
    for store in stores.iter().filter(|s| s.is_staged) {
        lacks_objects |= !store.is_complete(&plan.hash)?;
    }
    if !lacks_objects {
        let mut staging = Staging { stores, journal: None, ledgers: Vec::new(), sync, hash: plan.hash.clone() };
        let mut sinks = vec![None; plan.outputs.len()];
        for store in staging.stores.iter_mut().filter(|s| s.is_staged && s.is_remote()) {
            store.begin_remote(&plan.hash)?;
            lay_out(plan, store, sync, &mut sinks)?;
        }
        for store in staging.stores.iter().filter(|s| s.is_staged && !s.is_remote()) {
            let ledger = Ledger::open(&store.staged, &plan.hash, sync)?.0;
            if sync {
                // The run that made it may have been one without.
                ledger.sync_data().map_err(io_at(&store.staged))?;
            }
            staging.ledgers.push(ledger);
        }
        staging.rename_all()?;
        return Ok(Prepared::Finished);
    }
    let mut fresh = Vec::new();
    let opened = open_stores(plan, stores, sync, clock.clone(), &mut fresh);
    if !matches!(opened, Ok(Some(_))) {
        // Nothing is in them but their metadata.
        fresh.iter().for_each(|staged| staging::sweep(staged));
    }
    match opened? {
        Some(prepared) => Ok(prepared),
        // Another process has published since we looked.
        None => prepare_with(plan, sync, clock),
    }
}

fn is_complete(staged: &Path, hash: &str) -> bool {
    Ledger::peek(staged).is_some_and(|n| n.hash == hash && n.can_be_published())
}

fn find_stores(plan: &Plan) -> Result<Vec<Store>, PublishError> {
    let mut by_path: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
    for (t, output) in plan.outputs.iter().enumerate() {
        by_path.entry(&output.path).or_default().push(t);
    }
    // Names that some outputs have and others lack are an unfinished publishing of this job, whatever `if_exists` says.
    let mut is_interrupted = false;
    for path in by_path.keys() {
        is_interrupted |= match is_url(path) {
            true => remote::is_complete(path, &plan.hash).map_err(io_at(path))?,
            false => [path.to_path_buf(), staging::name(path, &plan.hash)].iter().any(|folder| is_complete(folder, &plan.hash)),
        };
    }
    let mut stores = Vec::new();
    for (path, targets) in by_path {
        let is_staged = !check_standing(plan, path, plan.outputs[targets[0]].if_exists, is_interrupted)?;
        if !is_url(path) {
            make_room(path, &plan.hash)?;
        }
        let if_exists = plan.outputs[targets[0]].if_exists;
        let (staged, last) = (staging::name(path, &plan.hash), path.to_path_buf());
        stores.push(Store { staged, last, targets, is_staged, if_exists, remote: None });
    }
    Ok(stores)
}

/// Makes the folder of an output, and tells of what other jobs left beside it.
fn make_room(path: &Path, hash: &str) -> Result<(), PublishError> {
    let folder = staging::folder_of(path);
    files::make_folders(folder).map_err(|error| {
        let (path, folder) = (path.display().to_string(), folder.display().to_string());
        PublishError::Folder { path, folder, error }
    })?;
    for left in staging::beside(path).iter().filter(|left| left.hash != hash) {
        let hash = &left.hash;
        tracing::warn!(path = %left.path.display(), hash, "unfinished output of another job; `halostream clean` removes it");
    }
    Ok(())
}

/// Locks the ledgers, lays out stores and finds what is done; `None` when an output has appeared in the meantime. Staging
/// folders without progress are told in `fresh`.
fn open_stores(
    plan: &Plan,
    mut stores: Vec<Store>,
    sync: bool,
    clock: Arc<dyn Clock>,
    fresh: &mut Vec<PathBuf>,
) -> Result<Option<Prepared>, PublishError> {
    // What fails in folders, such as a lock that another run has, fails before anything is marked elsewhere.
    stores.sort_by_key(Store::is_remote);
    let mut sinks: Vec<Option<Arc<dyn Sink>>> = vec![None; plan.outputs.len()];
    let mut done = vec![HashSet::new(); plan.outputs.len()];
    let mut ledgers = Vec::new();
    let mut store_of = vec![usize::MAX; plan.outputs.len()];
    for store in &mut stores {
        if store.is_remote() {
            match store.is_staged {
                true => store.begin_remote(&plan.hash)?,
                false => store.reopen_remote(&plan.hash)?,
            }
        }
        let noted = match store.is_staged && !store.is_remote() {
            true => {
                let (ledger, noted) = open_ledger(store, &plan.hash, sync)?;
                if noted.hash.is_empty() {
                    fresh.push(store.staged.clone());
                }
                store.targets.iter().for_each(|&t| store_of[t] = ledgers.len());
                ledgers.push(ledger);
                Some(noted)
            }
            false => None,
        };
        if store.is_staged && matches!(standing(&store.last)?, Standing::Job(hash) if hash == plan.hash) {
            return Ok(None);
        }
        // A store that stands is opened where it stands; nothing more is put into it.
        lay_out(plan, store, sync, &mut sinks)?;
        for &t in &store.targets {
            if let Some(sink) = &sinks[t] {
                done[t] = find_done(t, sink.as_ref(), noted.as_ref())?;
            }
        }
        if let (Some(noted), Some(ledger)) = (&noted, ledgers.last_mut())
            && noted.boot != boot_id()
            && !noted.hash.is_empty()
        {
            ledger.note_boot().map_err(io_at(&store.staged))?;
        }
    }
    let journal = Journal::start(ledgers, store_of, clock).map_err(io_at(Path::new("journal")))?;
    let staging = Staging { stores, journal: Some(journal), ledgers: Vec::new(), sync, hash: plan.hash.clone() };
    Ok(Some(Prepared::Ready { staging, sinks: sinks.into_iter().flatten().collect(), done: Done::new(done) }))
}

/// True when the output stands, made by this job; an error when something stands that must not be touched.
fn check_standing(plan: &Plan, path: &Path, if_exists: IfExists, is_interrupted: bool) -> Result<bool, PublishError> {
    let exists = |reason: &str| Err(PublishError::Exists { path: path.display().to_string(), reason: reason.to_owned() });
    match (standing(path)?, if_exists) {
        (Standing::Nothing, _) => Ok(false),
        (Standing::Job(hash), _) if is_interrupted && hash == plan.hash => Ok(true),
        (_, IfExists::Error) => exists("exists already (if_exists = \"error\")"),
        (Standing::Job(hash), _) if hash == plan.hash => Ok(true),
        (_, IfExists::Overwrite) => Ok(false),
        (Standing::Job(_), IfExists::Resume) => {
            exists("was made by another job; choose another path, or say if_exists = \"overwrite\"")
        }
        (Standing::Other, IfExists::Resume) => {
            exists("exists and was not made by halostream; choose another path, or say if_exists = \"overwrite\"")
        }
    }
}

fn open_ledger(store: &Store, hash: &str, sync: bool) -> Result<(Ledger, Noted), PublishError> {
    let staged = &store.staged;
    if files::find(staged).map_err(io_at(staged))?.is_some_and(|m| !m.is_dir()) {
        staging::remove(staged).map_err(io_at(staged))?;
    }
    let is_new = match files::make_folder(staged) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => made.map(|()| true).map_err(io_at(staged))?,
    };
    let (ledger, noted) = Ledger::open(staged, hash, sync).inspect_err(|error| {
        if is_new && matches!(error, LedgerError::Io { .. }) {
            staging::sweep(staged);
        }
    })?;
    if noted.hash.is_empty() {
        // What is there without a ledger of this job is no progress of it: the leavings of a swap. Removed only now, under
        // the lock, so that nobody loses a folder that was just made.
        for entry in files::list(staged).map_err(io_at(staged))?.flatten().filter(|e| e.file_name() != journal::NAME) {
            staging::remove(&entry.path()).map_err(io_at(staged))?;
        }
    }
    let swept = FileStore::new(staged).and_then(|s| s.sweep()).map_err(io_at(staged))?;
    if swept > 0 {
        tracing::info!(path = %staged.display(), files = swept, "unfinished files of an earlier run removed");
    }
    Ok((ledger, noted))
}

/// Objects of a target that need not be made again.
fn find_done(target: usize, sink: &dyn Sink, noted: Option<&Noted>) -> Result<HashSet<u64>, SinkError> {
    // In the same boot a name is proof enough: names are given to whole objects only, and the page cache is still there.
    let (objects, trusts_names) = match noted {
        None => (None, true),
        Some(noted) if noted.hash.is_empty() => return Ok(HashSet::new()),
        Some(noted) => (Some(&noted.objects), noted.boot == boot_id()),
    };
    sink.resume(&|number| trusts_names || objects.is_some_and(|o| o.contains(&(target as u32, number))))
}

fn lay_out(plan: &Plan, store: &Store, sync: bool, sinks: &mut [Option<Arc<dyn Sink>>]) -> Result<(), PublishError> {
    // How it is computed changes nothing: an output says what was asked for, and a resumed run says the same.
    let mut resolved = plan.resolved.clone();
    if let Some(job) = resolved.as_object_mut() {
        job.remove("engine");
    }
    let record = json!({
        "hash": plan.hash,
        "version": env!("CARGO_PKG_VERSION"),
        "arithmetic": plan.arithmetic,
        "inputs": plan.identities,
        // Absolute, since `.` says nothing once the output has been moved.
        "folder": std::path::absolute(&plan.folder).unwrap_or_else(|_| plan.folder.clone()),
        "job": resolved,
    });
    let at = if store.is_staged { &store.staged } else { &store.last };
    let open = || match &store.remote {
        Some(output) => Ok(WriteStore::Remote(output.clone())),
        None => WriteStore::folder(at).map_err(|error| SinkError::Io { place: at.display().to_string(), error }),
    };
    let is_group = plan.outputs[store.targets[0]].target.member.is_some();
    if is_group && store.is_staged {
        let attributes: Map<String, Value> = [(ATTRIBUTE.to_owned(), record.clone())].into_iter().collect();
        zarr::create_group_in(&open()?, "", plan.outputs[store.targets[0]].layout.zarr_format, &attributes)?;
    }
    for &target in &store.targets {
        let output = &plan.outputs[target];
        let mut layout = output.layout.clone();
        layout.attributes.remove(ATTRIBUTE);
        let mut attributes: Map<String, Value> = Map::new();
        if !is_group {
            attributes.insert(ATTRIBUTE.to_owned(), record.clone());
        }
        if layout.points.is_none() {
            layout.attributes.append(&mut attributes);
        }
        let member = output.target.member.as_deref().unwrap_or("");
        sinks[target] = Some(match (layout.points, store.is_staged) {
            (Some(points), is_staged) => {
                Arc::new(points::PointSink::new(at, member, layout, points, &attributes, is_staged, sync)?)
            }
            (None, true) => Arc::new(zarr::create_in(open()?, member, layout, sync)?),
            (None, false) => Arc::new(zarr::reopen_in(open()?, member, layout, sync)?),
        });
    }
    Ok(())
}

impl Store {
    fn is_remote(&self) -> bool {
        is_url(&self.last)
    }

    /// True when only its name is missing.
    fn is_complete(&self, hash: &str) -> Result<bool, PublishError> {
        match self.is_remote() {
            true => remote::is_complete(&self.last, hash).map_err(io_at(&self.last)),
            false => Ok(is_complete(&self.staged, hash)),
        }
    }

    /// Begins the output in its object store, or goes on with it.
    fn begin_remote(&mut self, hash: &str) -> Result<(), PublishError> {
        let path = || self.last.display().to_string();
        let begun = RemoteOutput::begin(&self.last, hash, self.if_exists == IfExists::Overwrite);
        let output = begun.map_err(|refused| match refused {
            Refused::Taken(reason) => PublishError::Exists { path: path(), reason },
            Refused::Io(error) => PublishError::Io { path: path(), error },
        })?;
        self.remote = Some(Arc::new(output));
        Ok(())
    }

    fn reopen_remote(&mut self, hash: &str) -> Result<(), PublishError> {
        self.remote = Some(Arc::new(RemoteOutput::standing(&self.last, hash).map_err(io_at(&self.last))?));
        Ok(())
    }

    /// Removes what a publishing that was cut short left of an output that stands.
    fn sweep(&self, hash: &str) {
        if self.is_remote() {
            if let Err(error) = remote::unmark(&self.last, hash) {
                tracing::warn!(path = %self.last.display(), %error, "marks of an output could not be removed");
            }
            return;
        }
        let left = [self.last.join(journal::NAME), self.staged.clone(), staging::aside(&self.staged)];
        left.iter().for_each(|path| staging::sweep(path));
    }
}

impl Staging {
    /// Hears of stored objects, for the ledger. Without syncs there is nothing that it would note.
    pub fn teller(&self) -> Option<std::sync::mpsc::Sender<journal::ObjectId>> {
        self.journal.as_ref().filter(|_| self.sync).and_then(Journal::teller)
    }

    /// All objects are stored and durable: notes that, then gives every output its name. What another job gave that name
    /// to in the meantime is not overwritten unless the job says so.
    pub fn publish(mut self) -> Result<(), PublishError> {
        for store in self.stores.iter().filter(|s| s.is_staged && s.if_exists != IfExists::Overwrite) {
            if !matches!(standing(&store.last)?, Standing::Nothing) {
                let reason =
                    "was made by somebody else while this job was running; move it away and run the job again".to_owned();
                return Err(PublishError::Exists { path: store.last.display().to_string(), reason });
            }
        }
        self.close(true)?;
        self.rename_all()
    }

    /// The run ended before its end: what is stored stays, for the next run. Without a single object nothing stays.
    pub fn keep(mut self, objects: u64) {
        if let Err(error) = self.close(false) {
            tracing::warn!(%error, "the last progress could not be noted");
        }
        if objects == 0 {
            self.abandon();
        }
    }

    /// Nothing of this job stays: its input changed, or it wrote nothing.
    pub fn abandon(&self) {
        for store in self.stores.iter().filter(|s| s.is_staged) {
            match &store.remote {
                Some(output) => {
                    if let Err(error) = output.abandon() {
                        tracing::warn!(path = %store.last.display(), %error, "an unfinished output could not be removed");
                    }
                }
                None => staging::sweep(&store.staged),
            }
        }
    }

    fn close(&mut self, is_complete: bool) -> Result<(), PublishError> {
        let Some(journal) = self.journal.take() else { return Ok(()) };
        self.ledgers = journal.stop()?;
        for store in self.stores.iter().filter(|s| is_complete && s.is_staged) {
            if let Some(output) = &store.remote {
                output.note_complete().map_err(io_at(&store.last))?;
            }
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

    fn rename_all(&self) -> Result<(), PublishError> {
        for store in self.stores.iter().filter(|s| s.is_staged) {
            let (staged, last) = (&store.staged, &store.last);
            if let Some(output) = &store.remote {
                output.publish().map_err(io_at(last))?;
                continue;
            }
            if files::find(last).map_err(io_at(last))?.is_some() {
                staging::exchange(staged, last).map_err(io_at(last))?;
                staging::remove(staged).map_err(io_at(staged))?;
            } else {
                files::rename(staged, last).map_err(io_at(last))?;
            }
            let ledger = last.join(journal::NAME);
            staging::remove(&ledger).map_err(io_at(&ledger))?;
            if self.sync {
                for folder in [last.as_path(), staging::folder_of(last)] {
                    files::sync_folder(folder).map_err(io_at(folder))?;
                }
            }
        }
        self.stores.iter().for_each(|store| store.sweep(&self.hash));
        Ok(())
    }
}
