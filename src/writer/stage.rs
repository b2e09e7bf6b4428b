//! The writer stage: one assembler collects parts of output objects, encoders put each object once, complete.
//!
//! An object that lies in one block goes to an encoder as a view of it, which lays it out there; parts from several blocks
//! are copied into the object's buffer. No object is ever read back or put twice (I3). Rows of a raster of which only points
//! are stored are passed on in order.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::array::block::{c_strides, copy_strided};
use crate::array::chunk::TrimmedBlock;
use crate::array::grid::for_each_index;
use crate::array::{Block, Buffer, Region};
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, Inlet, Outlet, working_on};
use crate::engine::window::Ticket;
use crate::writer::{OutputLayout, SinkError};

/// A complete object on its way to an encoder.
pub struct Put {
    /// Graph target.
    target: usize,
    object: Vec<u64>,
    values: Values,
    /// Held until the values are stored, when they are a block's own.
    _ticket: Option<Arc<Ticket>>,
}

enum Values {
    /// Those of the object's cells inside the array, as they lie in their block.
    Block(Block),
    Assembled(Buffer),
}

impl Values {
    fn len(&self) -> u64 {
        match self {
            Values::Block(block) => block.byte_len() as u64,
            Values::Assembled(buffer) => buffer.len() as u64,
        }
    }

    /// The object's values in C order; `own` is the encoder's memory to lay them out in.
    fn bytes<'v>(&'v self, layout: &OutputLayout, own: &'v mut Vec<u8>) -> &'v [u8] {
        let block = match self {
            Values::Assembled(buffer) => return buffer,
            Values::Block(block) => block,
        };
        let full: Vec<usize> = layout.object_shape().iter().map(|&n| n as usize).collect();
        let is_full = block.shape() == full;
        if is_full && let Some(bytes) = block.bytes() {
            return bytes;
        }
        let size = layout.dtype.size();
        own.resize(full.iter().product::<usize>() * size, 0);
        if !is_full {
            // What an edge object holds beyond the array is 0, whatever was laid out before.
            own.fill(0);
        }
        let (src, offset) = block.raw();
        copy_strided(own, 0, &c_strides(&full, size), src, offset, block.strides(), block.shape(), size);
        own
    }
}

struct Open {
    buffer: Buffer,
    /// Cells still to come.
    missing: usize,
}

/// Complete objects of a list of points that wait for those before them.
struct Waiting {
    next: u64,
    objects: BTreeMap<u64, Put>,
}

/// What the assembler holds.
#[derive(Default)]
struct Held {
    open: HashMap<(usize, Vec<u64>), Open>,
    waiting: HashMap<usize, Waiting>,
}

impl Held {
    /// Passes a complete object on; one of a list of points once all before it have gone.
    fn pass(&mut self, ctx: &Context, out: &mut Outlet<Put>, put: Put) -> Result<(), Halt> {
        let target = put.target;
        let layout = ctx.sinks[target].layout();
        if layout.points.is_none() {
            return queue(out, put);
        }
        // What an earlier run left of a list is its beginning.
        let fresh = || Waiting { next: ctx.done.of_target(target), objects: BTreeMap::new() };
        let waiting = self.waiting.entry(target).or_insert_with(fresh);
        waiting.objects.insert(layout.object_number(&put.object), put);
        while let Some(put) = waiting.objects.remove(&waiting.next) {
            waiting.next += 1;
            queue(out, put)?;
        }
        Ok(())
    }
}

fn queue(out: &mut Outlet<Put>, put: Put) -> Result<(), Halt> {
    let bytes = put.values.len();
    out.queue(put, bytes)
}

pub fn assemble(ctx: &Context, mut blocks: Inlet<TrimmedBlock>, mut out: Outlet<Put>, encoders: usize) -> Result<u64, Halt> {
    let mut held = Held::default();
    while let Some(trimmed) = blocks.receive()? {
        working_on(|t| {
            let _ = write!(t, "block {}", trimmed.number);
        });
        for (target, region, block) in trimmed.outputs {
            parts(ctx, &mut held, &mut out, target, &region, &block, &trimmed.ticket)?;
        }
        // The next block may wait for this one's ticket.
        out.flush()?;
    }
    if let Some(((target, object), left)) = held.open.iter().next() {
        let message =
            format!("object {object:?} of {} lacks {} cells at the end", ctx.plan.outputs[*target].path.display(), left.missing);
        return Err(Halt::Fault(Fault::here("writer", message)));
    }
    if let Some((target, waiting)) = held.waiting.iter().find(|(_, waiting)| !waiting.objects.is_empty()) {
        let message = format!("object {} of {} never came", waiting.next, ctx.plan.outputs[*target].path.display());
        return Err(Halt::Fault(Fault::here("writer", message)));
    }
    out.end(encoders)
}

#[allow(clippy::too_many_arguments)]
fn parts(
    ctx: &Context,
    held: &mut Held,
    out: &mut Outlet<Put>,
    target: usize,
    region: &Region,
    block: &Block,
    ticket: &Option<Arc<Ticket>>,
) -> Result<(), Halt> {
    if region.is_empty() {
        return Ok(());
    }
    let clock = &ctx.clocks.writer;
    let layout = ctx.sinks[target].layout();
    let grid = layout.object_grid();
    let full: Vec<usize> = layout.object_shape().iter().map(|&n| n as usize).collect();
    let size = layout.dtype.size();
    let lists: Vec<Vec<u64>> =
        grid.0.iter().enumerate().map(|(a, g)| g.cells_of(region.start[a] as u64, region.stop[a] as u64).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    for_each_index(&lists, |object| {
        if ctx.done.has(target, ctx.sinks[target].as_ref(), object) {
            return Ok(()); // stored by an earlier run
        }
        let ranges: Vec<(i64, i64)> = grid
            .0
            .iter()
            .zip(object)
            .map(|(g, &i)| {
                let r = g.range(i);
                (r.start as i64, r.end as i64)
            })
            .collect();
        let cells = Region::from_ranges(&ranges);
        let part = cells.intersect(region);
        let source = block.cut(region, &part);
        // What waits for its turn must not hold on to blocks.
        if part == cells && layout.points.is_none() {
            return queue(out, Put { target, object: object.to_vec(), values: Values::Block(source), _ticket: ticket.clone() });
        }
        let key = (target, object.to_vec());
        if !held.open.contains_key(&key) {
            let bytes = full.iter().product::<usize>() * size;
            let lease = out.lease(&ctx.accounts.assemble, bytes as u64)?;
            let mut buffer = Buffer::new(lease, bytes)?;
            if cells.shape() != full {
                // What an edge object holds beyond the array is 0, whoever used the buffer before.
                clock.busy(|| buffer.fill(0));
            }
            held.open.insert(key.clone(), Open { buffer, missing: cells.count() });
        }
        let Some(entry) = held.open.get_mut(&key) else { return Ok(()) };
        let strides = c_strides(&full, size);
        let offset: isize = part.start.iter().zip(&cells.start).zip(&strides).map(|((p, c), s)| (p - c) as isize * s).sum();
        let (src, src_offset) = source.raw();
        clock.busy(|| copy_strided(&mut entry.buffer, offset, &strides, src, src_offset, source.strides(), source.shape(), size));
        entry.missing = entry.missing.checked_sub(part.count()).ok_or_else(|| {
            let message = format!("object {object:?} of {} got a part twice", ctx.plan.outputs[target].path.display());
            Halt::Fault(Fault::here("writer", message))
        })?;
        if entry.missing == 0
            && let Some(done) = held.open.remove(&key)
        {
            held.pass(ctx, out, Put { target, object: key.1, values: Values::Assembled(done.buffer), _ticket: None })?;
        }
        Ok(())
    })
}

/// Tells all sinks when an encoder leaves before the end: another may be waiting for what it had in hand.
struct Leaving<'a>(Option<&'a Context>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.into_iter().flat_map(|ctx| ctx.sinks.iter()).for_each(|sink| sink.give_up());
    }
}

/// One encoder: encodes and stores objects until the assembler is done.
pub fn encode(ctx: &Context, mut puts: Inlet<Put>) -> Result<u64, Halt> {
    let clock = &ctx.clocks.writer;
    let mut leaving = Leaving(Some(ctx));
    let mut own = Vec::new();
    while let Some(put) = puts.receive()? {
        let sink = &ctx.sinks[put.target];
        working_on(|t| {
            let _ = write!(t, "object {:?} of {}", put.object, ctx.plan.outputs[put.target].path.display());
        });
        let (len, stored) = clock.busy(|| {
            let values = put.values.bytes(sink.layout(), &mut own);
            (values.len() as u64, sink.put(&put.object, values))
        });
        let stored = stored.map_err(|e| match e {
            SinkError::GivenUp => Halt::Stopped,
            e => Halt::Fault(Fault::here("writer", e.to_string()).because(e.cause())),
        })?;
        clock.count(len, stored);
        ctx.totals.bytes_written.fetch_add(stored, Ordering::Relaxed);
        ctx.totals.objects_written.fetch_add(1, Ordering::Relaxed);
        ctx.observer.object_written(put.target, &put.object, stored);
    }
    leaving.0 = None;
    Ok(puts.received)
}
