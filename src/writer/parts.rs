//! Objects that are stored as they are, part by part: what is made of them goes to their files while it is in the cache, and none is
//! ever held as a whole.
//!
//! Objects appear under their names whole, like any other. Costs one write a run of bytes, which is a row of the object or more.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::{OutputLayout, SinkError};
use crate::array::block::{c_strides, copy_strided};
use crate::array::grid::{for_each_cell, for_each_index};
use crate::array::{Dims, Region};
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, working_on};
use crate::zarr::FileStore;
use crate::zarr::store::Pending;

/// An object that is being written; dropped before its end it leaves nothing.
pub struct OpenObject {
    pending: Pending,
    place: String,
    bytes: u64,
    /// Of runs that ended within a page, what lies in it, by their ends: a page that is written in two parts costs more than a copy.
    tails: HashMap<u64, Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

const PAGE: u64 = 4096;
/// More tails than this are not kept.
const MOST_TAILS: u64 = 1024;

impl OpenObject {
    /// Of so many bytes, all 0 as yet.
    pub fn begin(store: &FileStore, key: &str, place: String, bytes: u64) -> Result<Self, SinkError> {
        let begun = store.begin(key).and_then(|mut pending| pending.stretch(bytes).map(|()| pending));
        match begun {
            Ok(pending) => Ok(Self { pending, place, bytes, tails: HashMap::new(), spare: Vec::new() }),
            Err(error) => Err(SinkError::Io { place, error }),
        }
    }

    /// Begins a run with what was kept of the one that ended here; returns how much that is. `rows` has room for `bytes` more then.
    fn begin_run(&mut self, offset: u64, bytes: usize, rows: &mut Vec<u8>) -> usize {
        let tail = self.tails.remove(&offset).unwrap_or_default();
        if rows.len() < tail.len() + bytes {
            rows.resize(tail.len() + bytes, 0);
        }
        rows[..tail.len()].copy_from_slice(&tail);
        let kept = tail.len();
        if kept > 0 {
            self.spare.push(tail);
        }
        kept
    }

    /// Writes a run that ends at `end`, of it whole pages only where tails are kept.
    fn end_run(&mut self, run: &[u8], end: u64, keeps_tails: bool) -> Result<(), SinkError> {
        let kept = if keeps_tails && end < self.bytes { (end % PAGE).min(run.len() as u64) as usize } else { 0 };
        let (pages, rest) = run.split_at(run.len() - kept);
        self.put(pages, end - run.len() as u64)?;
        if !rest.is_empty() {
            let mut tail = self.spare.pop().unwrap_or_default();
            tail.clear();
            tail.extend_from_slice(rest);
            self.tails.insert(end, tail);
        }
        Ok(())
    }

    fn put(&self, bytes: &[u8], offset: u64) -> Result<(), SinkError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.pending.write_all_at(bytes, offset).map_err(|error| SinkError::Io { place: self.place.clone(), error })
    }

    /// Gives it its name; returns the bytes stored.
    pub fn commit(mut self) -> Result<u64, SinkError> {
        for (end, tail) in std::mem::take(&mut self.tails) {
            self.put(&tail, end - tail.len() as u64)?;
        }
        let Self { pending, place, bytes, .. } = self;
        pending.commit(false).map(|()| bytes).map_err(|error| SinkError::Io { place, error })
    }
}

struct Open {
    object: Dims<u64>,
    cells: Region,
    file: OpenObject,
}

/// All objects of a region of a target that are still to be made.
pub struct OpenObjects<'c> {
    ctx: &'c Context,
    target: usize,
    layout: &'c OutputLayout,
    open: Vec<Open>,
    keeps_tails: bool,
    /// Rows of an object, brought together.
    rows: Vec<u8>,
}

impl<'c> OpenObjects<'c> {
    /// `region` holds its objects whole, and comes in strips along an axis.
    pub fn begin(ctx: &'c Context, target: usize, region: &Region, axis: usize) -> Result<Self, Halt> {
        let sink = &ctx.sinks[target];
        let (layout, grid) = (sink.layout(), sink.layout().object_grid());
        let mut open = Vec::new();
        for_each_cell(&grid.cells_of(region), |object| {
            if !ctx.done.has(target, sink.as_ref(), object) {
                name(ctx, target, object);
                let file = ctx.clocks.writer.busy(|| sink.begin(object)).map_err(failed)?;
                open.push(Open { object: object.into(), cells: grid.region(object), file });
            }
            Ok::<(), Halt>(())
        })?;
        let shape: Dims<u64> = region.shape().iter().map(|&n| n as u64).collect();
        Ok(Self { ctx, target, layout, open, keeps_tails: tail_bytes(layout, &shape, axis) > 0, rows: Vec::new() })
    }

    /// Writes values in C order to where they belong.
    pub fn write(&mut self, region: &Region, values: &[u8]) -> Result<(), Halt> {
        let (ctx, target) = (self.ctx, self.target);
        let run = Run { layout: self.layout, region, values, keeps_tails: self.keeps_tails };
        ctx.clocks.writer.busy(|| {
            for Open { object, cells, file } in &mut self.open {
                let part = cells.intersect(region);
                if !part.is_empty() {
                    name(ctx, target, object);
                    run.write(cells, &part, file, &mut self.rows).map_err(failed)?;
                }
            }
            Ok(())
        })
    }

    /// Gives the objects their names.
    pub fn commit(self) -> Result<(), Halt> {
        let (ctx, target) = (self.ctx, self.target);
        for Open { object, file, .. } in self.open {
            name(ctx, target, &object);
            let stored = ctx.clocks.writer.busy(|| file.commit()).map_err(failed)?;
            ctx.clocks.writer.count(stored, stored);
            ctx.totals.bytes_written.fetch_add(stored, Ordering::Relaxed);
            ctx.totals.objects_written.fetch_add(1, Ordering::Relaxed);
            ctx.observer.object_written(target, &object, stored);
        }
        Ok(())
    }
}

/// Bytes of the longest run of a part with these lengths, tail and all.
pub fn run_bytes(layout: &OutputLayout, part: &[u64]) -> u64 {
    let full = layout.object_shape();
    let first = first_of_run(full.len(), |a| part[a] >= full[a]);
    let bytes = (first..full.len()).fold(layout.dtype.size() as u64, |n, a| n.saturating_mul(part[a].min(full[a])));
    bytes.max(layout.dtype.size() as u64).saturating_add(PAGE)
}

/// Bytes of the tails of a block that comes in strips along an axis; 0 where there would be too many.
pub fn tail_bytes(layout: &OutputLayout, block: &[u64], axis: usize) -> u64 {
    let object = layout.object_shape();
    let objects = block.iter().zip(object).fold(1u64, |n, (b, o)| n.saturating_mul(b.div_ceil(*o)));
    let tails = (0..axis).fold(objects, |n, a| n.saturating_mul(block[a].min(object[a])));
    if tails <= MOST_TAILS { tails * PAGE } else { 0 }
}

/// The axis from which on a part is one run of bytes, given the axes that it has all of.
fn first_of_run(rank: usize, is_whole: impl Fn(usize) -> bool) -> usize {
    (0..rank).rev().find(|&a| !is_whole(a)).unwrap_or(0)
}

/// Values of a region on their way to objects.
struct Run<'a> {
    layout: &'a OutputLayout,
    region: &'a Region,
    values: &'a [u8],
    keeps_tails: bool,
}

impl Run<'_> {
    /// Writes a part of an object, a run of bytes at a time.
    fn write(&self, cells: &Region, part: &Region, file: &mut OpenObject, rows: &mut Vec<u8>) -> Result<(), SinkError> {
        let (rank, size) = (cells.rank(), self.layout.dtype.size());
        let full: Dims<usize> = self.layout.object_shape().iter().map(|&n| n as usize).collect();
        let shape = part.shape();
        let is_whole = |a: usize| part.axis(a) == cells.axis(a);
        let first = first_of_run(rank, is_whole);
        // What an object at the array's end holds beyond it is 0, and part of the run.
        let mut run = full.clone();
        if let Some(length) = run.get_mut(first).filter(|_| !is_whole(first)) {
            *length = shape[first];
        }
        let bytes: usize = run[first..].iter().product::<usize>() * size;
        let (to, from) = (c_strides(&full, size), c_strides(&self.region.shape(), size));
        let strides = c_strides(&run[first..], size);
        let is_padded = (first..rank).any(|a| run[a] != shape[a]);
        let lists: Vec<Vec<u64>> = (0..first).map(|a| (0..shape[a] as u64).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        for_each_index(&lists, |index| {
            let (mut offset, mut source) = (0isize, 0isize);
            for a in 0..rank {
                let i = index.get(a).copied().unwrap_or(0) as i64;
                offset += (part.start[a] - cells.start[a] + i) as isize * to[a];
                source += (part.start[a] - self.region.start[a] + i) as isize * from[a];
            }
            let kept = file.begin_run(offset as u64, bytes, rows);
            let out = &mut rows[kept..kept + bytes];
            if is_padded {
                out.fill(0);
            }
            copy_strided(out, 0, &strides, self.values, source, &from[first..], &shape[first..], size);
            file.end_run(&rows[..kept + bytes], (offset as usize + bytes) as u64, self.keeps_tails)
        })
    }
}

fn name(ctx: &Context, target: usize, object: &[u64]) {
    working_on(|t| {
        let _ = std::fmt::Write::write_str(t, "object ");
        t.cell(object);
        let _ = std::fmt::Write::write_fmt(t, format_args!(" of {}", ctx.plan.outputs[target].path.display()));
    });
}

fn failed(error: SinkError) -> Halt {
    Halt::Fault(Fault::here("writer", error.to_string()).because(error.cause()))
}
