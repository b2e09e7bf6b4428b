//! The record of the job that made an output: its hash, the job as it was resolved, what it read. A Zarr array or group has it as an
//! attribute. A file without attributes has it beside itself, with its own size and time: one that was replaced since is nobody's.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::files::{self, Facts, File};
use crate::plan::Plan;
use crate::reader::OpenError;
use crate::writer::npy::is_npy;
use crate::writer::zarr::read_attributes;

/// The attribute that says which job made an output.
pub const ATTRIBUTE: &str = "halostream";

/// Behind the name of a file: the record beside it.
const BESIDE: &str = ".halostream.json";
/// In a staging folder: the record on its way.
const STAGED: &str = "record.json";
/// Larger files are no records.
const MOST_BYTES: u64 = 16 << 20;

/// What a job says of itself in its outputs.
pub fn of(plan: &Plan) -> Value {
    // How it is computed changes nothing: an output says what was asked for, and a resumed run says the same.
    let mut resolved = plan.resolved.clone();
    if let Some(job) = resolved.as_object_mut() {
        job.remove("engine");
    }
    json!({
        "hash": plan.hash,
        "version": env!("CARGO_PKG_VERSION"),
        "arithmetic": plan.arithmetic,
        "inputs": plan.identities,
        // Absolute, since `.` says nothing once the output has been moved.
        "folder": std::path::absolute(&plan.folder).unwrap_or_else(|_| plan.folder.clone()),
        "job": resolved,
    })
}

/// The record of the output at a path; `None` where there is none, or none of what stands there now.
pub fn read(output: &Path) -> Result<Option<Value>, OpenError> {
    if !is_npy(output) || output.is_dir() {
        return Ok(read_attributes(output)?.and_then(|mut attributes| attributes.remove(ATTRIBUTE)));
    }
    let failed = |error| OpenError::Io { path: output.display().to_string(), error };
    let mut file = match File::open(&beside(output)) {
        Err(error) if files::is_absent(&error) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let text = file.read_to_end(MOST_BYTES).map_err(failed)?;
    let facts = facts(output).map_err(failed)?;
    let record: Option<Value> = serde_json::from_slice(&text).ok();
    Ok(record.filter(|record| record["file"] == facts))
}

/// The hash of the job that made the output at a path.
pub fn hash(output: &Path) -> Result<Option<String>, OpenError> {
    Ok(hash_in(read(output)?.as_ref()))
}

/// The hash in a record.
pub fn hash_in(record: Option<&Value>) -> Option<String> {
    record?.get("hash")?.as_str().map(str::to_owned)
}

/// Where the record of a file lies.
pub fn beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(BESIDE);
    name.into()
}

/// Puts the record of a file beside the name that it will have: `file` is where it still is, in a staging folder.
pub fn put_beside(output: &Path, file: &Path, record: &Value, sync: bool) -> io::Result<()> {
    let mut record = record.clone();
    record["file"] = facts(file)?;
    let staged = file.with_file_name(STAGED);
    files::remove(&staged)?;
    let mut to = File::create_new(&staged)?;
    to.write_all(format!("{record:#}\n").as_bytes())?;
    if sync {
        to.sync_all()?;
    }
    drop(to);
    files::rename(&staged, &beside(output))
}

/// By which a file is known again: renaming changes neither.
fn facts(file: &Path) -> io::Result<Value> {
    let Facts { len, seconds, nanoseconds } = Facts::of(&files::followed(file)?);
    Ok(json!({"bytes": len, "modified": [seconds, nanoseconds]}))
}
