//! One output of a job, a Zarr store or a file: what stands at its name, how it is laid out in its staging folder, and how it
//! gets its name once it is whole. In an object store nothing can be renamed: there objects lie under their final keys at once
//! and metadata comes last ([`crate::writer::remote`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::journal::{self, Ledger};
use super::publish::{PublishError, io_at};
use super::record::{self, ATTRIBUTE};
use super::staging;
use crate::config::IfExists;
use crate::files;
use crate::plan::Plan;
use crate::plan::carried::Surroundings;
use crate::reader::OpenError;
use crate::remote::is_url;
use crate::writer::npy::is_npy;
use crate::writer::remote::{self, Refused, RemoteOutput};
use crate::writer::store::WriteStore;
use crate::writer::{Sink, SinkError, consolidated, coordinates, npy, points, zarr};

pub struct Store {
    /// Its folder beside the output; unused in an object store.
    pub staged: PathBuf,
    pub last: PathBuf,
    /// Graph targets that it holds.
    pub targets: Vec<usize>,
    /// False when it stands under its name already.
    pub is_staged: bool,
    if_exists: IfExists,
    /// The job's.
    hash: String,
    /// What it says of the job.
    record: Value,
    /// The output in an object store, once it was begun.
    remote: Option<Arc<RemoteOutput>>,
}

/// What stands at an output's path.
enum Standing {
    Nothing,
    /// Made by the job with this hash.
    Job(String),
    Other,
}

fn standing(path: &Path) -> Result<Standing, PublishError> {
    let found = match is_url(path) {
        // Without metadata nothing stands there, whatever objects there are.
        true => zarr::read_attributes(path).map(|found| found.map(|attributes| record::hash_in(attributes.get(ATTRIBUTE)))),
        false if files::find(path).map_err(io_at(path))?.is_none() => Ok(None),
        false => record::hash(path).map(Some),
    };
    match found {
        Err(OpenError::Io { path, error }) => Err(PublishError::Io { path, error }),
        Ok(None) => Ok(Standing::Nothing),
        // What cannot be read as ours is somebody else's.
        Err(_) | Ok(Some(None)) => Ok(Standing::Other),
        Ok(Some(Some(hash))) => Ok(Standing::Job(hash)),
    }
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

/// True when all objects lie in a folder, made by the job with this hash, and only names are missing.
fn is_whole(folder: &Path, hash: &str) -> bool {
    Ledger::peek(folder).is_some_and(|n| n.hash == hash && n.can_be_published())
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

/// The stores of a job, those aside that must not be touched: they are an error.
pub fn find(plan: &Plan) -> Result<Vec<Store>, PublishError> {
    let mut by_path: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
    for (t, output) in plan.outputs.iter().enumerate() {
        by_path.entry(&output.path).or_default().push(t);
    }
    // Names that some outputs have and others lack are an unfinished publishing of this job, whatever `if_exists` says.
    let mut is_interrupted = false;
    for path in by_path.keys() {
        is_interrupted |= match is_url(path) {
            true => remote::is_complete(path, &plan.hash).map_err(io_at(path))?,
            false => [path.to_path_buf(), staging::name(path, &plan.hash)].iter().any(|folder| is_whole(folder, &plan.hash)),
        };
    }
    let mut stores = Vec::new();
    for (path, targets) in by_path {
        let if_exists = plan.outputs[targets[0]].if_exists;
        let is_staged = !check_standing(plan, path, if_exists, is_interrupted)?;
        if !is_url(path) {
            make_room(path, &plan.hash)?;
        }
        let (staged, last) = (staging::name(path, &plan.hash), path.to_path_buf());
        let (hash, record) = (plan.hash.clone(), record::of(plan));
        stores.push(Store { staged, last, targets, is_staged, if_exists, hash, record, remote: None });
    }
    // What fails in folders, such as a lock that another run has, fails before anything is marked elsewhere.
    stores.sort_by_key(|store| is_url(&store.last));
    Ok(stores)
}

impl Store {
    /// True when it lies in a folder, under a lock and with a ledger, until it is whole.
    pub fn has_ledger(&self) -> bool {
        self.is_staged && !is_url(&self.last)
    }

    /// True when it lacks nothing but its name.
    pub fn is_whole(&self) -> Result<bool, PublishError> {
        match is_url(&self.last) {
            _ if !self.is_staged => Ok(true),
            true => remote::is_complete(&self.last, &self.hash).map_err(io_at(&self.last)),
            false => Ok(is_whole(&self.staged, &self.hash)),
        }
    }

    /// True when its name was given to what this job made, by whatever process.
    pub fn stands(&self) -> Result<bool, PublishError> {
        Ok(matches!(standing(&self.last)?, Standing::Job(found) if found == self.hash))
    }

    /// What another job gave the name to in the meantime is not overwritten unless the job says so.
    pub fn check_name(&self) -> Result<(), PublishError> {
        if !self.is_staged || self.if_exists == IfExists::Overwrite || matches!(standing(&self.last)?, Standing::Nothing) {
            return Ok(());
        }
        let reason = "was made by somebody else while this job was running; move it away and run the job again".to_owned();
        Err(PublishError::Exists { path: self.last.display().to_string(), reason })
    }

    /// Begins the output in its object store, goes on with it, or looks at it where it stands.
    fn open_remote(&self) -> Result<RemoteOutput, PublishError> {
        let path = self.last.display().to_string();
        if !self.is_staged {
            return RemoteOutput::standing(&self.last, &self.hash).map_err(io_at(&self.last));
        }
        let begun = RemoteOutput::begin(&self.last, &self.hash, self.if_exists == IfExists::Overwrite);
        begun.map_err(|refused| match refused {
            Refused::Taken(reason) => PublishError::Exists { path, reason },
            Refused::Io(error) => PublishError::Io { path, error },
        })
    }

    /// Lays out what is staged; opens what stands where it stands: nothing more is put into that. `trusts_names`: what lies under
    /// its name was stored whole by an earlier run.
    pub fn lay_out(
        &mut self,
        plan: &Plan,
        sync: bool,
        trusts_names: bool,
        sinks: &mut [Option<Arc<dyn Sink>>],
    ) -> Result<(), PublishError> {
        if is_url(&self.last) && self.remote.is_none() {
            self.remote = Some(Arc::new(self.open_remote()?));
        }
        let at = if self.is_staged { &self.staged } else { &self.last };
        if is_npy(&self.last) {
            for &target in &self.targets {
                let layout = plan.outputs[target].layout.clone();
                let sink = if self.is_staged { npy::create(at, layout, sync)? } else { npy::standing(at, layout) };
                sinks[target] = Some(Arc::new(sink));
            }
            return Ok(());
        }
        let open = || match &self.remote {
            Some(output) => Ok(WriteStore::Remote(output.clone())),
            None => WriteStore::folder(at).map_err(|error| SinkError::Io { place: at.display().to_string(), error }),
        };
        let is_group = plan.outputs[self.targets[0]].target.member.is_some();
        if is_group && self.is_staged {
            let mut groups = plan.surroundings.get(&self.last).map(|found| found.groups.clone()).unwrap_or_default();
            groups.entry(String::new()).or_default().insert(ATTRIBUTE.to_owned(), self.record.clone());
            for (path, attributes) in groups {
                zarr::create_group_in(&open()?, &path, plan.outputs[self.targets[0]].layout.zarr_format, &attributes)?;
            }
        }
        for &target in &self.targets {
            let output = &plan.outputs[target];
            let mut layout = output.layout.clone();
            layout.attributes.remove(ATTRIBUTE);
            let mut attributes: Map<String, Value> = Map::new();
            if !is_group {
                attributes.insert(ATTRIBUTE.to_owned(), self.record.clone());
            }
            if layout.points.is_none() {
                layout.attributes.append(&mut attributes);
            }
            let member = output.target.member.as_deref().unwrap_or("");
            sinks[target] = Some(match (layout.points, self.is_staged) {
                (Some(points), is_staged) => {
                    Arc::new(points::PointSink::new(at, member, layout, points, &attributes, is_staged, sync)?)
                }
                (None, true) => Arc::new(zarr::create_in(open()?, member, layout, sync)?),
                (None, false) => Arc::new(zarr::reopen_in(open()?, member, layout, sync)?),
            });
        }
        match plan.surroundings.get(&self.last).filter(|_| self.is_staged) {
            Some(found) => self.lay_out_beside(plan, found, open, sync, trusts_names),
            None => Ok(()),
        }
    }

    /// Coordinates, and the metadata once more in one document.
    fn lay_out_beside(
        &self,
        plan: &Plan,
        found: &Surroundings,
        open: impl Fn() -> Result<WriteStore, SinkError>,
        sync: bool,
        trusts_names: bool,
    ) -> Result<(), PublishError> {
        for carried in &found.coordinates {
            coordinates::put(carried, open()?, sync, trusts_names)?;
        }
        if found.is_consolidated {
            let groups = found.groups.keys().map(String::as_str);
            let arrays = self.targets.iter().filter_map(|&target| plan.outputs[target].target.member.as_deref());
            let nodes: Vec<&str> = groups.chain(arrays).chain(found.coordinates.iter().map(|c| c.path.as_str())).collect();
            consolidated::put(&open()?, plan.outputs[self.targets[0]].layout.zarr_format, &nodes, sync)?;
        }
        Ok(())
    }

    /// Notes that all objects are stored, where no ledger does.
    pub fn note_complete(&self) -> Result<(), PublishError> {
        let staged = self.remote.as_ref().filter(|_| self.is_staged);
        staged.map_or(Ok(()), |output| output.note_complete().map_err(io_at(&self.last)))
    }

    /// Gives the output its name.
    pub fn give_name(&self, sync: bool) -> Result<(), PublishError> {
        match &self.remote {
            Some(output) => output.publish().map_err(io_at(&self.last)),
            None if is_npy(&self.last) => self.name_file(sync),
            None => self.name_folder(sync),
        }
    }

    fn name_folder(&self, sync: bool) -> Result<(), PublishError> {
        let (staged, last) = (&self.staged, &self.last);
        if files::find(last).map_err(io_at(last))?.is_some() {
            staging::exchange(staged, last).map_err(io_at(last))?;
            // What stood there before.
            staging::remove(staged).map_err(io_at(staged))?;
        } else {
            files::rename(staged, last).map_err(io_at(last))?;
        }
        for ledger in [journal::PARTS, journal::NAME].map(|name| last.join(name)) {
            staging::remove(&ledger).map_err(io_at(&ledger))?;
        }
        if sync {
            for folder in [last.as_path(), staging::folder_of(last)] {
                files::sync_folder(folder).map_err(io_at(folder))?;
            }
        }
        Ok(())
    }

    fn name_file(&self, sync: bool) -> Result<(), PublishError> {
        let (staged, last) = (&self.staged, &self.last);
        let made = staged.join(npy::ARRAY);
        // Without the file that it speaks of, a record says nothing.
        record::put_beside(last, &made, &self.record, sync).map_err(io_at(last))?;
        if files::find(last).map_err(io_at(last))?.is_some() {
            staging::exchange(&made, last).map_err(io_at(last))?;
        } else {
            files::rename(&made, last).map_err(io_at(last))?;
        }
        if sync {
            files::sync_folder(staging::folder_of(last)).map_err(io_at(last))?;
        }
        // With the ledger, and what stood there before.
        staging::remove(staged).map_err(io_at(staged))
    }

    /// Removes what a publishing that was cut short left of an output that stands.
    pub fn sweep(&self) {
        if is_url(&self.last) {
            if let Err(error) = remote::unmark(&self.last, &self.hash) {
                tracing::warn!(path = %self.last.display(), %error, "marks of an output could not be removed");
            }
            return;
        }
        let [name, parts] = [journal::NAME, journal::PARTS].map(|name| self.last.join(name));
        let left = [name, parts, self.staged.clone(), staging::aside(&self.staged)];
        left.iter().for_each(|path| staging::sweep(path));
    }

    /// Removes what there is of an output that does not come to be.
    pub fn abandon(&self) {
        match &self.remote {
            _ if !self.is_staged => {}
            Some(output) => {
                if let Err(error) = output.abandon() {
                    tracing::warn!(path = %self.last.display(), %error, "an unfinished output could not be removed");
                }
            }
            None => staging::sweep(&self.staged),
        }
    }
}
