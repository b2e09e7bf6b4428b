//! The writer stage: an assembler collects parts of output objects, encoders put each object once, complete: on threads of their
//! own, or on that of the assembler where a thread has blocks and objects of its own.
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
use crate::array::grid::for_each_cell;
use crate::array::{Block, Buffer, Dims, Grid, Lease, Region};
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, Inlet, Onward, Outlet, working_on};
use crate::engine::window::Ticket;
use crate::writer::{OutputLayout, SinkError};

/// A complete object on its way to an encoder.
pub struct Put {
    /// Graph target.
    target: usize,
    object: Dims<u64>,
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
        let full: Dims<usize> = layout.object_shape().iter().map(|&n| n as usize).collect();
        let is_full = *block.shape() == *full;
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

/// How a target is cut into objects, found once.
struct Objects {
    grid: Grid,
    shape: Dims<usize>,
    size: usize,
    is_list: bool,
    /// Storing one waits long.
    is_far: bool,
}

impl Objects {
    fn of(layout: &OutputLayout) -> Self {
        Self {
            grid: layout.object_grid(),
            shape: layout.object_shape().iter().map(|&n| n as usize).collect(),
            size: layout.dtype.size(),
            is_list: layout.points.is_some(),
            is_far: layout.is_remote,
        }
    }
}

/// Where complete objects go.
trait Complete {
    /// Room for an object.
    fn lease(&mut self, bytes: u64) -> Result<Lease, Halt>;
    /// `is_far`: storing it waits long.
    fn put(&mut self, put: Put, is_far: bool) -> Result<(), Halt>;
    /// Nothing more comes before others may have to wait for what came.
    fn flush(&mut self) -> Result<(), Halt>;
    fn end(self: Box<Self>) -> Result<(), Halt>;
}

/// To so many threads that encode.
struct ToEncoders<'c> {
    ctx: &'c Context,
    out: Outlet<Put>,
    encoders: usize,
}

impl Complete for ToEncoders<'_> {
    fn lease(&mut self, bytes: u64) -> Result<Lease, Halt> {
        self.out.lease(&self.ctx.accounts.assemble, bytes)
    }

    fn put(&mut self, put: Put, is_far: bool) -> Result<(), Halt> {
        let bytes = put.values.len();
        match is_far {
            // Objects of one message would wait one after the other.
            true => self.out.send(put),
            false => self.out.queue(put, bytes),
        }
    }

    fn flush(&mut self) -> Result<(), Halt> {
        self.out.flush()
    }

    fn end(self: Box<Self>) -> Result<(), Halt> {
        self.out.end(self.encoders).map(drop)
    }
}

impl Complete for Encoder<'_> {
    fn lease(&mut self, bytes: u64) -> Result<Lease, Halt> {
        let ctx = self.ctx;
        Ok(ctx.clocks.writer.blocked(|| ctx.accounts.assemble.lease(bytes, &ctx.stop))?)
    }

    fn put(&mut self, put: Put, _is_far: bool) -> Result<(), Halt> {
        self.encode(&put)
    }

    fn flush(&mut self) -> Result<(), Halt> {
        Ok(())
    }

    fn end(mut self: Box<Self>) -> Result<(), Halt> {
        self.leaving.0 = None;
        Ok(())
    }
}

/// Makes objects of blocks.
pub struct Assembler<'c> {
    ctx: &'c Context,
    out: Box<dyn Complete + 'c>,
    /// Per graph target.
    objects: Vec<Objects>,
    open: HashMap<(usize, Dims<u64>), Open>,
    waiting: HashMap<usize, Waiting>,
}

/// Assembles until no block comes any more.
pub fn assemble(mut assembler: Assembler<'_>, mut blocks: Inlet<TrimmedBlock>) -> Result<u64, Halt> {
    while let Some(trimmed) = blocks.receive()? {
        assembler.pass(trimmed)?;
    }
    Box::new(assembler).end()?;
    Ok(0)
}

impl<'c> Assembler<'c> {
    /// One that passes objects on to so many threads.
    pub fn new(ctx: &'c Context, out: Outlet<Put>, encoders: usize) -> Self {
        Self::onto(ctx, Box::new(ToEncoders { ctx, out, encoders }))
    }

    /// One that encodes and stores objects itself.
    pub fn encoding(ctx: &'c Context) -> Self {
        Self::onto(ctx, Box::new(Encoder::new(ctx)))
    }

    fn onto(ctx: &'c Context, out: Box<dyn Complete + 'c>) -> Self {
        let objects = ctx.sinks.iter().map(|sink| Objects::of(sink.layout())).collect();
        Self { ctx, out, objects, open: HashMap::new(), waiting: HashMap::new() }
    }
}

impl Onward<TrimmedBlock> for Assembler<'_> {
    fn pass(&mut self, trimmed: TrimmedBlock) -> Result<(), Halt> {
        working_on(|t| {
            let _ = write!(t, "block {}", trimmed.number);
        });
        for (target, region, block) in trimmed.outputs {
            self.take(target, &region, &block, &trimmed.ticket)?;
        }
        // The next block may wait for this one's ticket.
        self.out.flush()
    }

    fn end(self: Box<Self>) -> Result<(), Halt> {
        let path = |target: &usize| self.ctx.plan.outputs[*target].path.display();
        if let Some(((target, object), left)) = self.open.iter().next() {
            let message = format!("object {object:?} of {} lacks {} cells at the end", path(target), left.missing);
            return Err(Halt::Fault(Fault::here("writer", message)));
        }
        if let Some((target, waiting)) = self.waiting.iter().find(|(_, waiting)| !waiting.objects.is_empty()) {
            let message = format!("object {} of {} never came", waiting.next, path(target));
            return Err(Halt::Fault(Fault::here("writer", message)));
        }
        self.out.end()
    }
}

impl Assembler<'_> {
    /// Passes the objects on that a part of a target completes.
    fn take(&mut self, target: usize, region: &Region, block: &Block, ticket: &Option<Arc<Ticket>>) -> Result<(), Halt> {
        if region.is_empty() {
            return Ok(());
        }
        let ctx = self.ctx;
        for_each_cell(&self.objects[target].grid.cells_of(region), |object| {
            if ctx.done.has(target, ctx.sinks[target].as_ref(), object) {
                return Ok(()); // stored by an earlier run
            }
            let objects = &self.objects[target];
            let cells = objects.grid.region(object);
            let part = cells.intersect(region);
            let source = block.cut(region, &part);
            // What waits for its turn must not hold on to blocks.
            if part == cells && !objects.is_list {
                let (object, values) = (object.into(), Values::Block(source));
                return self.queue(Put { target, object, values, _ticket: ticket.clone() });
            }
            self.copy(target, object, &cells, &part, &source)
        })
    }

    /// Copies a part of an object to its place there.
    fn copy(&mut self, target: usize, object: &[u64], cells: &Region, part: &Region, source: &Block) -> Result<(), Halt> {
        let clock = &self.ctx.clocks.writer;
        let Objects { shape: full, size, .. } = &self.objects[target];
        let key = (target, Dims::from(object));
        if !self.open.contains_key(&key) {
            let bytes = full.iter().product::<usize>() * size;
            let lease = self.out.lease(bytes as u64)?;
            let mut buffer = Buffer::new(lease, bytes)?;
            if cells.shape() != *full {
                // What an edge object holds beyond the array is 0, whoever used the buffer before.
                clock.busy(|| buffer.fill(0));
            }
            self.open.insert(key.clone(), Open { buffer, missing: cells.count() });
        }
        let Some(entry) = self.open.get_mut(&key) else { return Ok(()) };
        let strides = c_strides(full, *size);
        let offset: isize = part.start.iter().zip(&cells.start).zip(&strides).map(|((p, c), s)| (p - c) as isize * s).sum();
        let (src, src_offset) = source.raw();
        clock
            .busy(|| copy_strided(&mut entry.buffer, offset, &strides, src, src_offset, source.strides(), source.shape(), *size));
        entry.missing = entry.missing.checked_sub(part.count()).ok_or_else(|| {
            let path = self.ctx.plan.outputs[target].path.display();
            Halt::Fault(Fault::here("writer", format!("object {object:?} of {path} got a part twice")))
        })?;
        if entry.missing == 0
            && let Some(done) = self.open.remove(&key)
        {
            self.complete(Put { target, object: key.1, values: Values::Assembled(done.buffer), _ticket: None })?;
        }
        Ok(())
    }

    /// Passes a complete object on; one of a list of points once all before it have gone.
    fn complete(&mut self, put: Put) -> Result<(), Halt> {
        let target = put.target;
        if !self.objects[target].is_list {
            return self.queue(put);
        }
        // What an earlier run left of a list is its beginning.
        let fresh = || Waiting { next: self.ctx.done.of_target(target), objects: BTreeMap::new() };
        let waiting = self.waiting.entry(target).or_insert_with(fresh);
        waiting.objects.insert(self.ctx.sinks[target].layout().object_number(&put.object), put);
        while let Some(put) = self.next(target) {
            self.queue(put)?;
        }
        Ok(())
    }

    /// The next object of a list, if it is here.
    fn next(&mut self, target: usize) -> Option<Put> {
        let waiting = self.waiting.get_mut(&target)?;
        let put = waiting.objects.remove(&waiting.next)?;
        waiting.next += 1;
        Some(put)
    }

    fn queue(&mut self, put: Put) -> Result<(), Halt> {
        let is_far = self.objects[put.target].is_far;
        self.out.put(put, is_far)
    }
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
    let mut encoder = Encoder::new(ctx);
    while let Some(put) = puts.receive()? {
        encoder.encode(&put)?;
    }
    encoder.leaving.0 = None;
    Ok(puts.received)
}

/// Encodes and stores objects, one after the other.
struct Encoder<'c> {
    ctx: &'c Context,
    /// Memory to lay objects out in.
    own: Vec<u8>,
    leaving: Leaving<'c>,
}

impl<'c> Encoder<'c> {
    fn new(ctx: &'c Context) -> Self {
        Self { ctx, own: Vec::new(), leaving: Leaving(Some(ctx)) }
    }

    fn encode(&mut self, put: &Put) -> Result<(), Halt> {
        let (ctx, own) = (self.ctx, &mut self.own);
        let clock = &ctx.clocks.writer;
        let sink = &ctx.sinks[put.target];
        working_on(|t| {
            let _ = t.write_str("object ");
            t.cell(&put.object);
            let _ = write!(t, " of {}", ctx.plan.outputs[put.target].path.display());
        });
        let (len, stored) = clock.busy(|| {
            let values = put.values.bytes(sink.layout(), own);
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
        Ok(())
    }
}
