//! Recomputes parts of outputs that stand by another way and compares: other blocks, and steps that compute beyond what is
//! asked of them, so that what is asked for comes from twice the halo ([`Way::Other`](crate::plan::Way)). What differs then
//! was decided by the blocks and not by the data: a depth that is too small, or a function that looks beyond its input.
//!
//! Parts are the outputs' objects (chunks or shards), chosen by a seed. To the engine all others are done, so that only what
//! the chosen ones need is read and computed; folds below later steps, and passes of iterative steps, are made again whole.
//! A chosen object is compared as it would be written: one at a time, which holds a decoded chunk more than the plan counts.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::resume::Done;
use super::{JobError, Observer, resume};
use crate::array::grid::for_each_index;
use crate::array::{DType, Scalar};
use crate::config::Missing;
use crate::plan::{OutputPlan, Plan};
use crate::reader::{OpenError, Source, SourceError, flat, zarr};
use crate::writer::npy::is_npy;
use crate::writer::{OutputLayout, Sink, SinkError};

/// What recomputing an output showed.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The output, and the array in it where it has several.
    pub name: String,
    pub objects: u64,
    pub objects_total: u64,
    pub cells: u64,
    pub difference: Option<Difference>,
}

#[derive(Clone, Debug)]
pub struct Difference {
    pub cells: u64,
    /// The first object that differs, and the first cell in it, in array coordinates.
    pub object: Vec<u64>,
    pub at: Vec<u64>,
    pub stored: f64,
    pub recomputed: f64,
    /// Largest distance of finite real parts.
    pub largest: f64,
    pub largest_at: Vec<u64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cells, object, at, stored, recomputed, largest, largest_at } = self;
        write!(
            f,
            "{cells} cells differ, the first at {at:?} in block {object:?} (stored {stored}, recomputed {recomputed}), most by {largest} at {largest_at:?}"
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{place} has shape {found:?}, the job makes {wanted:?}: it is not this job's output")]
    Shape { place: String, found: Vec<u64>, wanted: Vec<u64> },
}

/// Compares `count` objects of the outputs that `plan` makes in another way than they were made. Those of targets that
/// `skips` names are left alone.
pub fn verify(
    plan: &Arc<Plan>,
    count: u64,
    seed: u64,
    skips: impl Fn(usize) -> bool,
    observer: Arc<dyn Observer>,
    stop: Arc<AtomicBool>,
) -> Result<Vec<Compared>, VerifyError> {
    let totals: Vec<u64> = plan.outputs.iter().map(|o| o.layout.object_grid().cells().unwrap_or(u64::MAX)).collect();
    let open: Vec<u64> = totals.iter().enumerate().map(|(t, n)| if skips(t) { 0 } else { *n }).collect();
    let chosen = choose(&open, count, seed);
    let reading = Arc::new(Mutex::new(Reading::default()));
    let mut sinks = Vec::new();
    for (target, output) in plan.outputs.iter().enumerate() {
        let member = output.target.member.as_deref();
        let source = if skips(target) { None } else { Some(stored(output)?) };
        if let Some(source) = &source
            && source.meta().array.shape != output.layout.shape
        {
            return Err(VerifyError::Shape {
                place: output.path.display().to_string(),
                found: source.meta().array.shape.clone(),
                wanted: output.layout.shape.clone(),
            });
        }
        let found = Mutex::new(Compared {
            name: member.map_or_else(|| output.name.clone(), |member| format!("{}.{member}", output.name)),
            objects: 0,
            objects_total: totals[target],
            cells: 0,
            difference: None,
        });
        sinks.push(Arc::new(Comparison {
            layout: output.layout.clone(),
            place: output.path.clone(),
            source,
            reading: reading.clone(),
            found,
        }));
    }
    let done = Done::all_but(chosen, totals);
    let writing: Vec<Arc<dyn Sink>> = sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect();
    resume(plan.clone(), writing, done, observer, stop)?;
    let found = |sink: &Arc<Comparison>| sink.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(sinks.iter().enumerate().filter(|(t, _)| !skips(*t)).map(|(_, sink)| found(sink)).collect())
}

/// An output that stands. Missing chunks are never left out by the writer: one that is gone is a difference like any other.
pub fn stored(output: &OutputPlan) -> Result<Box<dyn Source>, OpenError> {
    Ok(match is_npy(&output.path) {
        true => Box::new(flat::open_npy(&output.path)?),
        false => Box::new(zarr::open(&output.path, output.target.member.as_deref(), Missing::Fill)?),
    })
}

/// `count` different numbers out of as many as `totals` add up to, by the set that each falls into.
fn choose(totals: &[u64], count: u64, seed: u64) -> Vec<HashSet<u64>> {
    let mut chosen = vec![HashSet::new(); totals.len()];
    let all: u64 = totals.iter().fold(0, |n, t| n.saturating_add(*t));
    let mut put = |mut number: u64| {
        for (set, &total) in chosen.iter_mut().zip(totals) {
            if number < total {
                return set.insert(number);
            }
            number -= total;
        }
        false
    };
    if count >= all {
        (0..all).for_each(|number| {
            put(number);
        });
        return chosen;
    }
    // splitmix64. Few of many are drawn until they differ; of the rest, those that are not drawn are taken.
    let mut state = seed;
    let mut left = count;
    while left > 0 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        left -= u64::from(put((z ^ (z >> 31)) % all));
    }
    chosen
}

/// Memory for the one object that is being compared.
#[derive(Default)]
struct Reading {
    values: Vec<u8>,
    transient: Vec<u8>,
}

/// Takes objects to be written and compares them with what stands.
struct Comparison {
    layout: OutputLayout,
    place: PathBuf,
    source: Option<Box<dyn Source>>,
    reading: Arc<Mutex<Reading>>,
    found: Mutex<Compared>,
}

impl Comparison {
    fn compare(&self, source: &dyn Source, object: &[u64], values: &[u8]) -> Result<(), SourceError> {
        let (meta, rank) = (source.meta(), self.layout.shape.len());
        let (size, full) = (self.layout.dtype.size(), self.layout.object_shape());
        let origin: Vec<u64> = object.iter().zip(full).map(|(i, n)| i * n).collect();
        let stop: Vec<u64> = (0..rank).map(|a| (origin[a] + full[a]).min(self.layout.shape[a])).collect();
        let chunk_shape = &meta.chunk_shape;
        let lists: Vec<Vec<u64>> = (0..rank).map(|a| meta.grid.0[a].cells_of(origin[a], stop[a]).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let Reading { values: stored, transient } = &mut *reading;
        stored.resize(chunk_shape.iter().product::<u64>() as usize * size, 0);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.objects += 1;
        for_each_index(&lists, |chunk| {
            source.read_chunk(chunk, stored, transient)?;
            let first: Vec<u64> = (0..rank).map(|a| meta.grid.0[a].range(chunk[a]).start).collect();
            let ranges: Vec<Vec<u64>> =
                (0..rank).map(|a| (first[a].max(origin[a])..(first[a] + chunk_shape[a]).min(stop[a])).collect()).collect();
            // Rows along the last axis: most are equal and need no look at single cells.
            let lead: Vec<&[u64]> = ranges.iter().take(rank.saturating_sub(1)).map(Vec::as_slice).collect();
            let (from, to) = ranges.last().map_or((0, 1), |r| (r.first().copied().unwrap_or(0), r.last().map_or(0, |l| l + 1)));
            for_each_index(&lead, |row| {
                let at = |shape: &[u64], base: &[u64], last: u64| {
                    let cell = row.iter().copied().chain((rank > 0).then_some(last));
                    let flat = cell.enumerate().fold(0, |n, (a, x)| n * shape[a] + (x - base[a]));
                    flat as usize * size
                };
                let len = (to - from) as usize * size;
                let (a, b) = (at(chunk_shape, &first, from), at(full, &origin, from));
                let (old, new) = (&stored[a..a + len], &values[b..b + len]);
                found.cells += to - from;
                if old != new {
                    for (x, (old, new)) in (from..to).zip(old.chunks_exact(size).zip(new.chunks_exact(size))) {
                        let place = || row.iter().copied().chain((rank > 0).then_some(x)).collect();
                        note(&mut found.difference, self.layout.dtype, object, place, old, new);
                    }
                }
                Ok::<(), SourceError>(())
            })
        })
    }
}

/// A cell that is compared.
fn note(found: &mut Option<Difference>, dtype: DType, object: &[u64], place: impl Fn() -> Vec<u64>, old: &[u8], new: &[u8]) {
    if old == new {
        return;
    }
    let value = |bytes: &[u8]| Scalar::from_bytes(dtype, bytes).map_or(f64::NAN, |s| s.to_f64());
    let (stored, recomputed) = (value(old), value(new));
    let found = found.get_or_insert_with(|| Difference {
        cells: 0,
        object: object.to_vec(),
        at: place(),
        stored,
        recomputed,
        largest: 0.0,
        largest_at: place(),
    });
    found.cells += 1;
    let distance = (stored - recomputed).abs();
    if distance.is_finite() && distance > found.largest {
        (found.largest, found.largest_at) = (distance, place());
    }
}

impl Sink for Comparison {
    fn layout(&self) -> &OutputLayout {
        &self.layout
    }

    fn transient_bytes(&self) -> u64 {
        self.source.as_ref().map_or(0, |s| s.meta().transient_bytes)
    }

    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let Some(source) = &self.source else { return Ok(0) };
        self.compare(source.as_ref(), object, values).map(|()| 0).map_err(|error| SinkError::Encode {
            place: self.place.display().to_string(),
            reason: format!("block {} can't be read back: {error}", self.layout.object_number(object)),
        })
    }

    fn resume(&self, _among: &Range<u64>, _trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        Ok(HashSet::new())
    }

    fn finish(&self) -> Result<u64, SinkError> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_differ_and_follow_the_seed() {
        for (totals, count) in [(vec![5u64, 0, 7], 4u64), (vec![1 << 40], 30), (vec![3, 2], 9), (vec![6], 5)] {
            let chosen = choose(&totals, count, 9);
            let found: u64 = chosen.iter().map(|s| s.len() as u64).sum();
            assert_eq!(found, count.min(totals.iter().sum()));
            assert!(chosen.iter().zip(&totals).all(|(s, total)| s.iter().all(|n| n < total)));
            assert_eq!(choose(&totals, count, 9), chosen);
        }
        assert_ne!(choose(&[1 << 40], 3, 1), choose(&[1 << 40], 3, 2));
    }

    #[test]
    fn differences_are_counted_and_the_largest_is_kept() {
        let mut found = None;
        let pairs = [(1.0f32, 1.0f32), (2.0, 2.5), (0.0, f32::NAN), (3.0, 9.0)];
        for (i, (old, new)) in pairs.iter().enumerate() {
            note(&mut found, DType::F32, &[1], || vec![i as u64], &old.to_ne_bytes(), &new.to_ne_bytes());
        }
        let found = found.expect("three differ");
        assert_eq!((found.cells, &found.at, found.largest, &found.largest_at), (3, &vec![1], 6.0, &vec![3]));
        assert!(found.to_string().starts_with("3 cells differ, the first at [1] in block [1] (stored 2, recomputed 2.5)"));
    }
}
