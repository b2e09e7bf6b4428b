//! What the paths of an input stand for: a Zarr array or group (in a folder or at a URL), a TIFF file, a folder of them, an `.npy`, raw or `.bed` file, or a
//! sample.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decoded::decoded;
use super::{OpenError, Source, bed, command, flat, sample, tiff, zarr};
use crate::config::{InputPlace, InputSpec, Join, table::nearest};
use crate::files;
use crate::remote::is_url;
use crate::tiff::{files_in, is_tiff_name};
use crate::zarr::find_zarr;

/// How the sources of an input are one array.
#[derive(Clone, Copy, Debug)]
pub enum Joined {
    /// There is one source, whose first axis is the new one: it goes here.
    Inside(i64),
    Each(Join),
}

/// Opens the sources of an input. Files of a stack of TIFFs are one source, so that thousands of them cost no more to plan
/// than one array; a single folder of TIFFs stands for its files, stacked unless the job says how they are joined.
pub fn open(spec: &InputSpec) -> Result<(Vec<Arc<dyn Source>>, Option<Joined>), OpenError> {
    if let InputPlace::Sample(wanted) = &spec.from {
        return Ok((vec![Arc::new(sample::open(wanted)?)], None));
    }
    if let InputPlace::Command(wanted) = &spec.from {
        return Ok((vec![Arc::new(command::open(wanted)?)], None));
    }
    let found: Vec<PathBuf> = spec.paths().map_err(OpenError::Wrong)?.into_iter().map(PathBuf::from).collect();
    let place = found.first().map_or(Path::new(""), PathBuf::as_path);
    let may_be_folder = found.len() == 1 && spec.raw.is_none() && !is_url(place);
    let folder = if may_be_folder { look_into(place)? } else { None };
    let join = if folder.is_some() { Some(spec.join.unwrap_or(Join::Stack(0))) } else { spec.join };
    let images = match folder {
        Some(files) => Some(files),
        None if spec.raw.is_none() && found.iter().all(|path| is_tiff_name(path)) => {
            Some(found.iter().map(|path| resolved(path)).collect::<Result<Vec<_>, _>>()?)
        }
        None => None,
    };
    if images.is_some() {
        refuse_zarr_keys(spec, place)?;
    }
    let sources: Result<Vec<Arc<dyn Source>>, OpenError> = match (images, join) {
        (Some(files), Some(Join::Stack(axis))) => {
            return Ok((vec![Arc::new(tiff::open_stack(files, place)?)], Some(Joined::Inside(axis))));
        }
        (Some(files), _) => files.iter().map(|file| Ok(Arc::new(tiff::open(file)?) as _)).collect(),
        (None, _) => found.iter().map(|path| open_one(spec, path)).collect(),
    };
    Ok((sources?, join.map(Joined::Each)))
}

/// What lies at a path, by its suffix or by what the job says of it.
fn open_one(spec: &InputSpec, path: &Path) -> Result<Arc<dyn Source>, OpenError> {
    if is_url(path) {
        return Ok(Arc::new(zarr::open(path, spec.array.as_deref(), spec.missing)?));
    }
    files::followed(path).map_err(|error| unusable(path, error))?;
    let suffix = path.extension().and_then(|s| s.to_str()).unwrap_or_default().to_ascii_lowercase();
    let source: Arc<dyn Source> = match (&spec.raw, suffix.as_str()) {
        (Some(raw), _) => Arc::new(flat::open_raw(path, raw)?),
        (None, "npy") => Arc::new(flat::open_npy(path)?),
        (None, "bed") => Arc::new(bed::open(path)?),
        (None, "tif" | "tiff") => Arc::new(tiff::open(&resolved(path)?)?),
        _ => match look_into(path)? {
            Some(files) => Arc::new(tiff::open_stack(files, path)?),
            None => {
                let array = zarr::open(path, spec.array.as_deref(), spec.missing)?;
                return Ok(if spec.decode_cf { decoded(array)?.into() } else { Arc::new(array) });
            }
        },
    };
    refuse_zarr_keys(spec, path)?;
    Ok(source)
}

/// Only Zarr groups hold arrays with names, and only Zarr arrays attributes.
fn refuse_zarr_keys(spec: &InputSpec, path: &Path) -> Result<(), OpenError> {
    let reason = match (&spec.array, spec.decode_cf) {
        (Some(name), _) => format!("is one array, there is none called \"{name}\" in it; leave `array` out"),
        (None, true) => "has no attributes that decode_cf could follow, it is no Zarr array; leave `decode_cf` out".to_owned(),
        (None, false) => return Ok(()),
    };
    Err(OpenError::refused(path.display().to_string(), reason))
}

/// The TIFF files of a folder that is no Zarr store.
fn look_into(path: &Path) -> Result<Option<Vec<PathBuf>>, OpenError> {
    let failed = |error| unusable(path, error);
    let found = files::followed(path).map_err(failed)?;
    if !found.is_dir() || find_zarr(path).map_err(failed)? {
        return Ok(None);
    }
    let files = files_in(&files::canonicalize(path).map_err(failed)?).map_err(failed)?;
    Ok(Some(files).filter(|files| !files.is_empty()))
}

/// Links that lead to a file are followed; those in a folder that stands for its files are not (`File::open`).
fn resolved(path: &Path) -> Result<PathBuf, OpenError> {
    files::canonicalize(path).map_err(|error| unusable(path, error))
}

/// Why there is nothing to open at a path.
fn unusable(path: &Path, error: std::io::Error) -> OpenError {
    let path_text = path.display().to_string();
    if !files::is_absent(&error) {
        return OpenError::Io { path: path_text, error };
    }
    let hint = sibling_hint(path).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
    OpenError::refused(path_text, format!("no such file or folder{hint}"))
}

/// The entry beside a missing path whose name is nearest to it.
fn sibling_hint(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names: Vec<String> =
        std::fs::read_dir(parent).ok()?.take(1000).flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}
