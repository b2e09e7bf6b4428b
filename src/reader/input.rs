//! A job's inputs as the plan sees them: one array each, fed by one or more sources (`stack`, `concat`), seen through
//! basic slices (`select`).

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::beside::Beside;
use super::keep::List;
use super::sources::{self, Joined};
use super::subset::Subset;
use super::{OpenError, Source};
use crate::array::{AxisGrid, Region, Scalar};
use crate::config::{InputSpec, Join, KeepBy, KeepSpec, select};
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
    /// The group that it lies in, where that also holds other arrays: the output becomes a group too.
    pub beside: Option<Beside>,
    pub identity: Vec<String>,
    /// Sizes and times of the stored files when the input was opened, per source and group.
    pub stamps: Vec<String>,
    pub notes: Vec<String>,
}

impl InputArray {
    /// Opens the sources of an input and fits them together.
    pub fn open(spec: &InputSpec) -> Result<Self, OpenError> {
        let (sources, join) = sources::open(spec)?;
        let first = sources.first().ok_or_else(|| OpenError::Wrong("the list of paths is empty".to_owned()))?;
        for source in &sources {
            let most = source.meta().grid.0.iter().map(AxisGrid::cells).max().unwrap_or(0);
            if most > MAX_AXIS_CHUNKS {
                let reason = format!("has {most} chunks along an axis, more than {MAX_AXIS_CHUNKS}; use larger chunks");
                return Err(OpenError::refused(place(source), reason));
            }
        }
        for other in &sources[1..] {
            if other.meta().array.dtype != first.meta().array.dtype {
                let (a, b) = (first.meta().array.dtype, other.meta().array.dtype);
                return Err(OpenError::refused(
                    place(other),
                    format!("has dtype {b}, {} has {a}: arrays that are joined must have one dtype", place(first)),
                ));
            }
        }
        let mut input = Self::assemble(spec, &sources, join)?;
        for source in &sources {
            input.identity.push(source.meta().identity.clone());
            input.notes.extend(source.meta().notes.iter().cloned());
        }
        if let Some(beside) = &input.beside {
            input.identity.extend(beside.groups.iter().map(|group| group.identity()));
            input.notes.extend(beside.groups.iter().flat_map(|group| group.notes.iter().cloned()));
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
            beside: None,
            identity: vec![meta.identity],
            stamps: Vec::new(),
            notes: meta.notes,
            meta: meta.array,
        }
    }

    /// Joins the sources, takes what lists keep of the whole, then what `select` takes of that.
    fn assemble(spec: &InputSpec, sources: &[Arc<dyn Source>], join: Option<Joined>) -> Result<Self, OpenError> {
        let mut whole = Whole::new(sources, join)?;
        let mut identity = vec![format!("select {:?} join {:?}", spec.select, spec.join)];
        let lists = whole.lists(&spec.keep, sources)?;
        for (axis, indices) in &lists {
            let hash = Sha256::digest(indices.iter().flat_map(|index| index.to_le_bytes()).collect::<Vec<u8>>());
            identity.push(format!("keep {axis} sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>()));
        }
        let (all, edges, shape) = (sources, whole.edges(), whole.shape.clone());
        let sources = &whole.keep(&lists, sources)[..];
        let first = sources[0].meta();
        let parts = select::resolve(spec.select.as_deref().unwrap_or(&[]), &whole.shape)
            .map_err(|e| OpenError::refused(place(&sources[0]), e))?;
        let beside = Beside::of(all, &whole.axes, edges, &lists, &parts, (&shape, &whole.names));
        let kept: Vec<usize> = (0..parts.len()).filter(|&a| !parts[a].dropped).collect();
        // A strided axis meets `step` times fewer cells per chunk.
        let per_chunk = |a: usize| (whole.chunk[a] / parts[a].step.unsigned_abs().max(1)).max(1);
        let mut meta = first.array.clone();
        meta.name = spec.name.clone();
        meta.shape = kept.iter().map(|&a| parts[a].len).collect();
        meta.chunk = kept.iter().map(|&a| per_chunk(a)).collect();
        meta.dimension_names = kept.iter().map(|&a| whole.names[a].clone()).collect();
        // Per axis of the whole: what a source gives of the selection.
        let shown = |extent: &Region| -> Vec<(i64, i64)> {
            parts.iter().enumerate().map(|(a, part)| part.within(extent.axis(a))).collect()
        };
        let feed = |(source, extent): (&Arc<dyn Source>, &Region)| {
            let shown = shown(extent);
            let axes = whole.axes.iter().map(|&a| FeedAxis {
                view: kept.iter().position(|&k| k == a),
                start: parts[a].start + shown[a].0 * parts[a].step - extent.start[a],
                step: parts[a].step,
            });
            let ranges: Vec<(i64, i64)> = kept.iter().map(|&a| shown[a]).collect();
            Feed { source: source.clone(), extent: Region::from_ranges(&ranges), axes: axes.collect() }
        };
        // Sources that give nothing are not read.
        let gives = |extent: &Region| shown(extent).iter().all(|(from, to)| from < to);
        let pairs = || sources.iter().zip(&whole.extents);
        let mut feeds: Vec<Feed> = pairs().filter(|(_, extent)| gives(extent)).map(feed).collect();
        if feeds.is_empty() {
            feeds.extend(pairs().take(1).map(feed));
        }
        Ok(Self {
            meta,
            feeds,
            fill_value: first.fill_value,
            zarr_format: first.zarr_format,
            beside,
            identity,
            stamps: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Path of the array in its group.
    pub fn array_path(&self) -> Option<&str> {
        self.beside.as_ref().map(|beside| beside.group().array.as_str())
    }

    /// The stamps as they are now.
    pub fn stamps(&self) -> Result<Vec<String>, super::SourceError> {
        let mut stamps = Vec::new();
        for feed in &self.feeds {
            stamps.push(feed.source.stamp()?);
        }
        if let Some(beside) = &self.beside {
            stamps.extend(beside.stamps()?);
        }
        Ok(stamps)
    }
}

/// The sources as one array, before anything is selected.
struct Whole {
    shape: Vec<u64>,
    chunk: Vec<u64>,
    names: Vec<Option<String>>,
    /// Which of its axes each axis of a source is.
    axes: Vec<usize>,
    /// What each source gives.
    extents: Vec<Region>,
}

impl Whole {
    fn new(sources: &[Arc<dyn Source>], join: Option<Joined>) -> Result<Self, OpenError> {
        let first = &sources[0].meta().array;
        let rank = first.shape.len();
        let disagree = |source: &Arc<dyn Source>, must: String| {
            let (shape, base) = (&source.meta().array.shape, &first.shape);
            OpenError::refused(place(source), format!("has shape {shape:?}, the first array has {base:?}: {must}"))
        };
        let mut whole = Self {
            shape: first.shape.clone(),
            chunk: first.chunk.clone(),
            names: (0..rank).map(|a| first.dimension_names.get(a).cloned().flatten()).collect(),
            axes: (0..rank).collect(),
            extents: vec![Region::whole(&first.shape)],
        };
        match join {
            None if sources.len() > 1 => {
                return Err(OpenError::Wrong(format!(
                    "{} arrays match: say `stack = 0` (a new axis) or `concat = 0` (along an axis they have)",
                    sources.len()
                )));
            }
            None => {}
            Some(Joined::Inside(axis)) => {
                let at = axis_of(axis, rank, "stack")?;
                // The first axis moves to `at`, those before it make room.
                whole.shape[..=at].rotate_left(1);
                whole.chunk[..=at].rotate_left(1);
                whole.names[..=at].rotate_left(1);
                whole.axes[..=at].rotate_right(1);
                whole.extents = vec![Region::whole(&whole.shape)];
            }
            Some(Joined::Each(Join::Stack(axis))) => {
                let at = axis_of(axis, rank + 1, "stack")?;
                if let Some(other) = sources.iter().find(|s| s.meta().array.shape != first.shape) {
                    return Err(disagree(other, "stacked arrays must agree".to_owned()));
                }
                whole.axes = (0..rank).map(|a| if a < at { a } else { a + 1 }).collect();
                whole.shape.insert(at, sources.len() as u64);
                whole.chunk.insert(at, 1);
                whole.names.insert(at, None);
                whole.extents.clear();
                for i in 0..sources.len() as i64 {
                    let mut extent = Region::whole(&whole.shape);
                    (extent.start[at], extent.stop[at]) = (i, i + 1);
                    whole.extents.push(extent);
                }
            }
            Some(Joined::Each(Join::Concat(axis))) => {
                let at = axis_of(axis, rank, "concat")?;
                whole.extents.clear();
                let mut total = 0u64;
                for source in sources {
                    let shape = &source.meta().array.shape;
                    let fits = shape.len() == rank && (0..rank).all(|a| a == at || shape[a] == first.shape[a]);
                    if !fits {
                        return Err(disagree(source, format!("all axes but {at} must agree")));
                    }
                    let mut extent = Region::whole(shape);
                    extent.start[at] = total as i64;
                    total =
                        total.checked_add(shape[at]).ok_or_else(|| OpenError::Wrong("the joined axis is too long".to_owned()))?;
                    extent.stop[at] = total as i64;
                    whole.extents.push(extent);
                }
                whole.shape[at] = total;
            }
        }
        Ok(whole)
    }

    /// The axis along which the sources follow each other, where each begins on it, and where the last one ends.
    fn edges(&self) -> Option<(usize, Arc<[u64]>)> {
        let axis = *self.axes.iter().find(|&&axis| self.extents.iter().any(|e| e.axis(axis) != self.extents[0].axis(axis)))?;
        let starts = self.extents.iter().map(|extent| extent.start[axis] as u64);
        Some((axis, starts.chain([self.shape[axis]]).collect()))
    }

    /// Per axis with a list: the entries that are kept, ascending.
    fn lists(&self, keep: &[KeepSpec], sources: &[Arc<dyn Source>]) -> Result<Vec<(usize, Arc<[u64]>)>, OpenError> {
        let mut lists: Vec<(usize, Arc<[u64]>)> = Vec::new();
        for spec in keep {
            let axis = axis_of(spec.axis, self.shape.len(), "keep: axis")?;
            if lists.iter().any(|(other, _)| *other == axis) {
                return Err(OpenError::Wrong(format!("keep has two lists for axis {axis}; put both into one file")));
            }
            let list = List::read(&spec.file)?;
            let own = self.axes.iter().position(|&a| a == axis);
            let along = |extent: &Region| extent.axis(axis);
            let is_joined = self.extents.iter().any(|extent| along(extent) != along(&self.extents[0]));
            let indices = list.resolve(spec, self.shape[axis], &|each| {
                let Some(own) = own else { return Ok(None) };
                let count = if is_joined { sources.len() } else { 1 };
                let mut place = None;
                for (source, extent) in sources[..count].iter().zip(&self.extents) {
                    let first = along(extent).0 as u64;
                    place = source.names(own, &mut |number, name| each(first + number, name))?;
                    if place.is_none() {
                        break;
                    }
                }
                Ok(place)
            })?;
            // Arrays that are joined along another axis must mean the same by a name.
            for other in sources.iter().skip(1).filter(|_| !is_joined && spec.by != Some(KeepBy::Index)) {
                let Some(own) = own else { break };
                if list.resolve(spec, self.shape[axis], &|each| other.names(own, each))? != indices {
                    let reason = format!("has the entries that {} names at other places", spec.file.display());
                    return Err(OpenError::refused(place(other), reason));
                }
            }
            lists.push((axis, indices.into()));
        }
        Ok(lists)
    }

    /// Takes the entries of the lists only; sources of which nothing is kept are left out.
    fn keep(&mut self, lists: &[(usize, Arc<[u64]>)], sources: &[Arc<dyn Source>]) -> Vec<Arc<dyn Source>> {
        if lists.is_empty() {
            return sources.to_vec();
        }
        let (mut kept, mut extents) = (Vec::new(), Vec::new());
        for (source, extent) in sources.iter().zip(&self.extents) {
            let mut extent = extent.clone();
            let mut own: Vec<Option<Arc<[u64]>>> = vec![None; self.axes.len()];
            for (axis, indices) in lists {
                let (start, stop) = extent.axis(*axis);
                let within = [start, stop].map(|end| indices.partition_point(|index| (*index as i64) < end));
                let here = &indices[within[0]..within[1]];
                if let Some(at) = self.axes.iter().position(|a| a == axis)
                    && here.len() as i64 != stop - start
                {
                    let is_all = here.len() == indices.len() && start == 0;
                    own[at] = Some(if is_all { indices.clone() } else { here.iter().map(|i| i - start as u64).collect() });
                }
                (extent.start[*axis], extent.stop[*axis]) = (within[0] as i64, within[1] as i64);
            }
            if lists.iter().any(|(axis, _)| extent.len(*axis) == 0) {
                continue;
            }
            let is_whole = own.iter().all(Option::is_none);
            kept.push(if is_whole { source.clone() } else { Arc::new(Subset::new(source.clone(), own)) });
            extents.push(extent);
        }
        for (axis, indices) in lists {
            self.shape[*axis] = indices.len() as u64;
            if let (Some(own), Some(source)) = (self.axes.iter().position(|a| a == axis), kept.first()) {
                self.chunk[*axis] = source.meta().array.chunk[own];
            }
        }
        self.extents = extents;
        kept
    }
}

fn axis_of(axis: i64, rank: usize, what: &str) -> Result<usize, OpenError> {
    let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let at = at.and_then(|at| usize::try_from(at).ok()).filter(|a| *a < rank);
    at.ok_or_else(|| OpenError::Wrong(format!("{what} = {axis} is not an axis of a {rank}-d result")))
}

fn place(source: &Arc<dyn Source>) -> String {
    source.meta().place.display().to_string()
}
