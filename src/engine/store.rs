//! One output of a job, a Zarr store or a file: what stands at its name, how it is laid out in its staging folder, and how it
//! gets its name once it is whole.

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
use crate::reader::OpenError;
use crate::writer::npy::is_npy;
use crate::writer::{Sink, npy, points, zarr};

pub struct Store {
    pub staged: PathBuf,
    pub last: PathBuf,
    /// Graph targets that it holds.
    pub targets: Vec<usize>,
    /// False when it stands under its name already.
    pub is_staged: bool,
    if_exists: IfExists,
    /// What it says of the job.
    record: Value,
}

/// What stands at an output's path.
enum Standing {
    Nothing,
    /// Made by the job with this hash.
    Job(String),
    Other,
}

fn standing(path: &Path) -> Result<Standing, PublishError> {
    if files::find(path).map_err(io_at(path))?.is_none() {
        return Ok(Standing::Nothing);
    }
    let hash = match record::hash(path) {
        Err(OpenError::Io { path, error }) => return Err(PublishError::Io { path, error }),
        // What cannot be read as ours is somebody else's.
        read => read.ok().flatten(),
    };
    Ok(hash.map_or(Standing::Other, Standing::Job))
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
    let is_interrupted = by_path.keys().any(|path| {
        let folders = [path.to_path_buf(), staging::name(path, &plan.hash)];
        folders.iter().any(|folder| is_whole(folder, &plan.hash))
    });
    let mut stores = Vec::new();
    for (path, targets) in by_path {
        let if_exists = plan.outputs[targets[0]].if_exists;
        let is_staged = !check_standing(plan, path, if_exists, is_interrupted)?;
        make_room(path, &plan.hash)?;
        let (staged, last, record) = (staging::name(path, &plan.hash), path.to_path_buf(), record::of(plan));
        stores.push(Store { staged, last, targets, is_staged, if_exists, record });
    }
    Ok(stores)
}

impl Store {
    /// True when it lacks nothing but its name.
    pub fn is_whole(&self, hash: &str) -> bool {
        !self.is_staged || is_whole(&self.staged, hash)
    }

    /// True when its name was given to what this job made, by whatever process.
    pub fn stands(&self, hash: &str) -> Result<bool, PublishError> {
        Ok(matches!(standing(&self.last)?, Standing::Job(found) if found == hash))
    }

    /// What another job gave the name to in the meantime is not overwritten unless the job says so.
    pub fn check_name(&self) -> Result<(), PublishError> {
        if !self.is_staged || self.if_exists == IfExists::Overwrite || matches!(standing(&self.last)?, Standing::Nothing) {
            return Ok(());
        }
        let reason = "was made by somebody else while this job was running; move it away and run the job again".to_owned();
        Err(PublishError::Exists { path: self.last.display().to_string(), reason })
    }

    /// Lays out what is staged; opens what stands where it stands: nothing more is put into that.
    pub fn lay_out(&self, plan: &Plan, sync: bool, sinks: &mut [Option<Arc<dyn Sink>>]) -> Result<(), PublishError> {
        let at = if self.is_staged { &self.staged } else { &self.last };
        if is_npy(&self.last) {
            for &target in &self.targets {
                let layout = plan.outputs[target].layout.clone();
                let sink = if self.is_staged { npy::create(at, layout, sync)? } else { npy::standing(at, layout) };
                sinks[target] = Some(Arc::new(sink));
            }
            return Ok(());
        }
        let is_group = plan.outputs[self.targets[0]].target.member.is_some();
        if is_group && self.is_staged {
            let attributes: Map<String, Value> = [(ATTRIBUTE.to_owned(), self.record.clone())].into_iter().collect();
            zarr::create_group(at, "", plan.outputs[self.targets[0]].layout.zarr_format, &attributes)?;
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
                (None, true) => Arc::new(zarr::create(at, member, layout, sync)?),
                (None, false) => Arc::new(zarr::reopen(at, member, layout, sync)?),
            });
        }
        Ok(())
    }

    /// Gives the output its name.
    pub fn give_name(&self, sync: bool) -> Result<(), PublishError> {
        match is_npy(&self.last) {
            true => self.name_file(sync),
            false => self.name_folder(sync),
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
        let [name, parts] = [journal::NAME, journal::PARTS].map(|name| self.last.join(name));
        let left = [name, parts, self.staged.clone(), staging::aside(&self.staged)];
        left.iter().for_each(|path| staging::sweep(path));
    }

    /// Removes what there is of an output that does not come to be.
    pub fn abandon(&self) {
        if self.is_staged {
            staging::sweep(&self.staged);
        }
    }
}
