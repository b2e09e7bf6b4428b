//! Some entries of a source's axes, in its order, as a source of its own.
//!
//! A chunk of the subset is what is kept of one chunk of the source, so each is read once like any other; chunks of which nothing
//! is kept are not there. Cells are as long as what is kept of them: the grid is given by its edges. Costs the source's chunk
//! beside the one that is made of it, and eight bytes for each entry that is kept.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::block::c_strides;
use crate::array::grid::{AxisGrid, for_each_index};
use crate::array::{Dims, Grid};
use crate::remote::Requests;

/// A source seen through lists of entries.
pub struct Subset {
    inner: Arc<dyn Source>,
    /// Per axis of the source; `None`: all of it.
    axes: Vec<Option<KeptAxis>>,
    meta: SourceMeta,
    /// Chunks of the source that workers make theirs of: as many as read at once.
    chunks: Mutex<Vec<Vec<u8>>>,
}

/// What is kept of an axis.
struct KeptAxis {
    /// Ascending.
    indices: Arc<[u64]>,
    /// The chunk of the source behind each cell.
    chunks: Vec<u64>,
}

impl Subset {
    /// `kept`: per axis of the source the entries that are kept, ascending and inside the axis; `None`: all.
    pub fn new(inner: Arc<dyn Source>, kept: Vec<Option<Arc<[u64]>>>) -> Self {
        let mut meta = inner.meta().clone();
        let mut axes = Vec::with_capacity(kept.len());
        for (axis, indices) in kept.into_iter().enumerate() {
            let Some(indices) = indices else {
                axes.push(None);
                continue;
            };
            let (mut chunks, mut edges) = (Vec::new(), vec![0]);
            for (at, index) in indices.iter().enumerate() {
                let chunk = meta.grid.0[axis].cell_of(*index);
                if chunks.last() != Some(&chunk) {
                    edges.extend((at > 0).then_some(at as u64));
                    chunks.push(chunk);
                }
            }
            edges.extend((!indices.is_empty()).then_some(indices.len() as u64));
            let grid = AxisGrid::edges(edges);
            meta.array.shape[axis] = indices.len() as u64;
            meta.array.chunk[axis] = (indices.len() as u64).div_ceil(grid.cells().max(1)).max(1);
            meta.chunk_shape[axis] = grid.longest().max(1);
            meta.resident_bytes += 8 * (indices.len() + 2 * chunks.len()) as u64;
            meta.grid.0[axis] = grid;
            axes.push(Some(KeptAxis { indices, chunks }));
        }
        let whole = inner.meta().chunk_shape.iter().product::<u64>() * meta.array.dtype.size() as u64;
        meta.transient_bytes = meta.transient_bytes.saturating_add(whole);
        Self { inner, axes, meta, chunks: Mutex::default() }
    }

    fn grid(&self) -> &Grid {
        &self.inner.meta().grid
    }
}

impl Source for Subset {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn requests(&self) -> Requests {
        self.inner.requests()
    }

    fn enter(&self, stop: &Arc<AtomicBool>) {
        self.inner.enter(stop);
    }

    fn leave(&self) {
        self.inner.leave();
        // Nothing is held when nobody reads.
        drop(self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop());
    }

    fn stamp(&self) -> Result<String, SourceError> {
        self.inner.stamp()
    }

    fn names(&self, axis: usize, each: &mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> {
        match self.axes.get(axis) {
            Some(Some(kept)) => self.inner.names(axis, &mut |number, name| {
                if let Ok(at) = kept.indices.binary_search(&number) {
                    each(at as u64, name);
                }
            }),
            _ => self.inner.names(axis, each),
        }
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        self.read_part(chunk, 0..out.len(), out, transient)
    }

    fn read_part(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let cells = self.meta.chunk(chunk, out.len())?;
        let size = self.meta.array.dtype.size();
        let inner = self.inner.meta();
        let mut source_chunk = Dims::from(chunk);
        // Where the kept entries lie in the source's chunk, per axis.
        let mut places: Vec<Vec<u64>> = Vec::with_capacity(cells.len());
        for (axis, cells) in cells.iter().enumerate() {
            places.push(match &self.axes[axis] {
                None => (0..cells.end - cells.start).collect(),
                Some(kept) => {
                    source_chunk[axis] = kept.chunks[chunk[axis] as usize];
                    let first = self.grid().0[axis].range(source_chunk[axis]).start;
                    kept.indices[cells.start as usize..cells.end as usize].iter().map(|index| index - first).collect()
                }
            });
        }
        let lengths = |shape: &[u64]| shape.iter().map(|&n| n as usize).collect::<Vec<usize>>();
        let from_strides = c_strides(&lengths(&inner.chunk_shape), size);
        let to_strides = c_strides(&lengths(&self.meta.chunk_shape), size);
        // Of the first axis only what the part meets.
        let rows = match to_strides.first() {
            Some(&row) => part.start / row as usize..part.end.div_ceil(row as usize).min(places[0].len()),
            None => 0..0,
        };
        if rows.is_empty() || places.iter().any(Vec::is_empty) {
            return Ok(ChunkRead::Data { encoded_bytes: 0 });
        }
        let first_row = rows.start;
        places[0] = places[0][rows].to_vec();
        let reach = |pick: fn(&Vec<u64>) -> Option<&u64>| -> usize {
            places.iter().zip(&from_strides).map(|(at, stride)| *pick(at).unwrap_or(&0) as usize * *stride as usize).sum()
        };
        let needed = reach(|at| at.first())..reach(|at| at.last()) + size;

        let lock = || self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut whole = lock().pop().unwrap_or_default();
        whole.resize(inner.chunk_shape.iter().product::<u64>() as usize * size, 0);
        let read = self.inner.read_part(&source_chunk, needed, &mut whole, transient);
        if read.is_ok() {
            // Axes behind the last list are whole in both: they make one run.
            let last = (0..places.len()).rev().find(|&a| self.axes[a].is_some()).unwrap_or(0);
            let run = to_strides[last] as usize;
            let counts: Vec<Vec<u64>> = places[..last].iter().map(|at| (0..at.len() as u64).collect()).collect();
            let counts: Vec<&[u64]> = counts.iter().map(Vec::as_slice).collect();
            let done = for_each_index::<std::convert::Infallible>(&counts, |index| {
                let (mut from, mut to) = (0, first_row * to_strides[0] as usize);
                for (axis, &at) in index.iter().enumerate() {
                    from += places[axis][at as usize] as usize * from_strides[axis] as usize;
                    to += at as usize * to_strides[axis] as usize;
                }
                gather(&whole[from..], &places[last], run, &mut out[to..]);
                Ok(())
            });
            let Ok(()) = done;
        }
        lock().push(whole);
        read
    }
}

/// Puts runs of bytes that lie at `places` (in runs) side by side.
fn gather(from: &[u8], places: &[u64], run: usize, out: &mut [u8]) {
    if run == 1 {
        out.iter_mut().zip(places).for_each(|(out, &at)| *out = from[at as usize]);
        return;
    }
    for (out, &at) in out.chunks_exact_mut(run).zip(places) {
        let at = at as usize * run;
        out.copy_from_slice(&from[at..at + run]);
    }
}

#[cfg(test)]
#[path = "subset_tests.rs"]
mod tests;
