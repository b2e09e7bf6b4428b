//! A job's inputs as the plan sees them: one array each, fed by one or more sources (`stack`, `concat`), seen through
//! basic slices (`select`).

use std::sync::Arc;

use super::{OpenError, Source};
use crate::array::{AxisGrid, Region, Scalar};
use crate::config::select::{self, AxisSelect};
use crate::config::{InputPlace, InputSpec, Join, table::nearest};
use crate::operators::ArrayMeta;

/// Planning takes some 130 bytes and 0.5 us per chunk or block along an axis. A job that fits is planned in 0.2 s and 50 MB
/// at this many; where memory is so short that many sizes of blocks smaller than chunks are tried, it is 1 to 2 s and 200 MB.
const MAX_AXIS_CHUNKS: u64 = 1 << 18;

/// One source array's part of an input.
#[derive(Clone)]
pub struct Feed {
    pub source: Arc<dyn Source>,
    /// The part of the input (in its coordinates) that this source gives.
    pub extent: Region,
    /// Per axis of the source.
    pub axes: Vec<FeedAxis>,
}

/// How coordinates of the input become coordinates of the source: `source = start + (x - extent.start) * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedAxis {
    /// Axis of the input; `None`: dropped by an integer in `select`, always at `start`.
    pub view: Option<usize>,
    pub start: i64,
    pub step: i64,
}

/// An input of the job.
#[derive(Clone)]
pub struct InputArray {
    pub meta: ArrayMeta,
    pub feeds: Vec<Feed>,
    pub fill_value: Scalar,
    pub zarr_format: Option<u8>,
    /// Path inside a group that also holds other arrays: the output becomes a group too.
    pub array_path: Option<String>,
    pub identity: Vec<String>,
    /// Sizes and times of the stored files when the input was opened, per source.
    pub stamps: Vec<String>,
    pub notes: Vec<String>,
}

impl InputArray {
    /// Opens the sources of an input and fits them together.
    pub fn open(spec: &InputSpec) -> Result<Self, OpenError> {
        let sources = open_sources(spec)?;
        let place = |source: &Arc<dyn Source>| source.meta().place.display().to_string();
        for source in &sources {
            let most = source.meta().grid.0.iter().map(AxisGrid::cells).max().unwrap_or(0);
            if most > MAX_AXIS_CHUNKS {
                let reason = format!("has {most} chunks along an axis, more than {MAX_AXIS_CHUNKS}; use larger chunks");
                return Err(OpenError::refused(place(source), reason));
            }
        }
        let mut parts = Vec::new();
        for source in &sources {
            let shape = &source.meta().array.shape;
            let selected = select::resolve(spec.select.as_deref().unwrap_or(&[]), shape)
                .map_err(|e| OpenError::refused(place(source), e))?;
            parts.push(selected);
        }
        let first = sources.first().ok_or_else(|| OpenError::Wrong("the list of paths is empty".to_owned()))?;
        for other in &sources[1..] {
            if other.meta().array.dtype != first.meta().array.dtype {
                let (a, b) = (first.meta().array.dtype, other.meta().array.dtype);
                return Err(OpenError::refused(
                    place(other),
                    format!("has dtype {b}, {} has {a}: arrays that are joined must have one dtype", place(first)),
                ));
            }
        }
        let mut input = Self::assemble(spec, &sources, &parts)?;
        for source in &sources {
            input.identity.push(source.meta().identity.clone());
            input.notes.extend(source.meta().notes.iter().cloned());
        }
        Ok(input)
    }

    /// An input over one source, unsliced: tests and arrays in memory.
    pub fn of(source: Arc<dyn Source>) -> Self {
        let meta = source.meta().clone();
        let axes = (0..meta.array.rank()).map(|a| FeedAxis { view: Some(a), start: 0, step: 1 }).collect();
        Self {
            feeds: vec![Feed { extent: Region::whole(&meta.array.shape), axes, source }],
            fill_value: meta.fill_value,
            zarr_format: meta.zarr_format,
            array_path: meta.array_path,
            identity: vec![meta.identity],
            stamps: Vec::new(),
            notes: meta.notes,
            meta: meta.array,
        }
    }

    fn assemble(spec: &InputSpec, sources: &[Arc<dyn Source>], parts: &[Vec<AxisSelect>]) -> Result<Self, OpenError> {
        let first = sources[0].meta();
        let shape_of = |part: &[AxisSelect]| part.iter().filter(|a| !a.dropped).map(|a| a.len).collect::<Vec<u64>>();
        let base = shape_of(&parts[0]);
        let kept: Vec<usize> = (0..parts[0].len()).filter(|&a| !parts[0][a].dropped).collect();
        let mut meta = first.array.clone();
        meta.name = spec.name.clone();
        meta.shape = base.clone();
        // A strided axis meets `step` times fewer cells per chunk.
        let per_chunk = |a: usize| (first.array.chunk[a] / parts[0][a].step.unsigned_abs().max(1)).max(1);
        meta.chunk = kept.iter().map(|&a| per_chunk(a)).collect();
        meta.dimension_names = kept.iter().map(|&a| first.array.dimension_names.get(a).cloned().flatten()).collect();
        let axis_of = |axis: i64, rank: usize, what: &str| -> Result<usize, OpenError> {
            let at = if axis < 0 { axis + rank as i64 } else { axis };
            usize::try_from(at)
                .ok()
                .filter(|a| *a < rank)
                .ok_or_else(|| OpenError::Wrong(format!("{what} = {axis} is not an axis of a {rank}-d result")))
        };
        let mut extents: Vec<Region> = Vec::new();
        // Views: which input axis each kept source axis becomes.
        let views: Vec<usize>;
        match spec.join {
            None if sources.len() > 1 => {
                return Err(OpenError::Wrong(format!(
                    "{} arrays match: say `stack = 0` (a new axis) or `concat = 0` (along an axis they have)",
                    sources.len()
                )));
            }
            None => {
                views = (0..base.len()).collect();
                extents.push(Region::whole(&base));
            }
            Some(Join::Stack(axis)) => {
                let at = axis_of(axis, base.len() + 1, "stack")?;
                for (source, part) in sources.iter().zip(parts) {
                    if shape_of(part) != base {
                        let what =
                            format!("has shape {:?}, the first array has {base:?}: stacked arrays must agree", shape_of(part));
                        return Err(OpenError::refused(source.meta().place.display().to_string(), what));
                    }
                }
                views = (0..base.len()).map(|a| if a < at { a } else { a + 1 }).collect();
                meta.shape.insert(at, sources.len() as u64);
                meta.chunk.insert(at, 1);
                meta.dimension_names.insert(at, None);
                for i in 0..sources.len() as i64 {
                    let mut extent = Region::whole(&meta.shape);
                    (extent.start[at], extent.stop[at]) = (i, i + 1);
                    extents.push(extent);
                }
            }
            Some(Join::Concat(axis)) => {
                let at = axis_of(axis, base.len(), "concat")?;
                views = (0..base.len()).collect();
                let mut total = 0u64;
                for (source, part) in sources.iter().zip(parts) {
                    let shape = shape_of(part);
                    let fits = shape.len() == base.len() && (0..base.len()).all(|a| a == at || shape[a] == base[a]);
                    if !fits {
                        let what = format!("has shape {shape:?}, the first array has {base:?}: all axes but {at} must agree");
                        return Err(OpenError::refused(source.meta().place.display().to_string(), what));
                    }
                    let mut extent = Region::whole(&shape);
                    extent.start[at] = total as i64;
                    total =
                        total.checked_add(shape[at]).ok_or_else(|| OpenError::Wrong("the joined axis is too long".to_owned()))?;
                    extent.stop[at] = total as i64;
                    extents.push(extent);
                }
                meta.shape[at] = total;
            }
        }
        let feeds = sources
            .iter()
            .zip(parts)
            .zip(extents)
            .map(|((source, part), extent)| {
                let mut next = views.iter();
                let axes = part
                    .iter()
                    .map(|a| FeedAxis { view: if a.dropped { None } else { next.next().copied() }, start: a.start, step: a.step })
                    .collect();
                Feed { source: source.clone(), extent, axes }
            })
            .collect();
        Ok(Self {
            meta,
            feeds,
            fill_value: first.fill_value,
            zarr_format: first.zarr_format,
            array_path: if sources.len() == 1 { first.array_path.clone() } else { None },
            identity: vec![format!("select {:?} join {:?}", spec.select, spec.join)],
            stamps: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// The stamps as they are now.
    pub fn stamps(&self) -> Result<Vec<String>, super::SourceError> {
        let mut stamps = Vec::new();
        for feed in &self.feeds {
            stamps.push(feed.source.stamp()?);
        }
        Ok(stamps)
    }
}

fn open_sources(spec: &InputSpec) -> Result<Vec<Arc<dyn Source>>, OpenError> {
    if let InputPlace::Sample(sample) = &spec.from {
        return Ok(vec![Arc::new(super::sample::open(sample)?)]);
    }
    let found = spec.paths().map_err(OpenError::Wrong)?;
    let mut sources: Vec<Arc<dyn Source>> = Vec::with_capacity(found.len());
    for path in found.iter().map(std::path::Path::new) {
        if let Err(error) = crate::files::followed(path) {
            if !crate::files::is_absent(&error) {
                return Err(OpenError::Io { path: path.display().to_string(), error });
            }
            let hint = sibling_hint(path).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
            return Err(OpenError::refused(path.display().to_string(), format!("no such file or folder{hint}")));
        }
        sources.push(open_source(path, spec)?);
    }
    Ok(sources)
}

/// What lies at a path, by its suffix or by what the job says of it.
fn open_source(path: &std::path::Path, spec: &InputSpec) -> Result<Arc<dyn Source>, OpenError> {
    let suffix = path.extension().and_then(|s| s.to_str()).unwrap_or_default().to_ascii_lowercase();
    let source: Arc<dyn Source> = match (&spec.raw, suffix.as_str()) {
        (Some(raw), _) => Arc::new(super::flat::open_raw(path, raw)?),
        (None, "npy") => Arc::new(super::flat::open_npy(path)?),
        (None, "bed") => Arc::new(super::bed::open(path)?),
        _ => return Ok(Arc::new(super::zarr::open(path, spec.array.as_deref(), spec.missing)?)),
    };
    match &spec.array {
        Some(name) => {
            let reason = format!("is one array, there is none called \"{name}\" in it; leave `array` out");
            Err(OpenError::refused(path.display().to_string(), reason))
        }
        None => Ok(source),
    }
}

/// The entry beside a missing path whose name is nearest to it.
fn sibling_hint(path: &std::path::Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let names: Vec<String> =
        std::fs::read_dir(parent).ok()?.take(1000).flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}
