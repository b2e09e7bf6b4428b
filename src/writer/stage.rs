//! The writer stage: one assembler collects parts of output objects, encoders put each object once, complete.
//!
//! A block that is exactly one object goes to an encoder as it is; everything else is copied into the object's buffer.
//! No object is ever read back or put twice (I3).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::array::block::{c_strides, copy_strided};
use crate::array::chunk::TrimmedBlock;
use crate::array::grid::for_each_index;
use crate::array::{Block, Buffer, Region};
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, Inlet, Outlet, working_on};
use crate::engine::window::Ticket;

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
    Block(Block),
    Assembled(Buffer),
}

struct Open {
    buffer: Buffer,
    /// Cells still to come.
    missing: usize,
}

pub fn assemble(ctx: &Context, mut blocks: Inlet<TrimmedBlock>, mut out: Outlet<Put>, encoders: usize) -> Result<u64, Halt> {
    let mut open: HashMap<(usize, Vec<u64>), Open> = HashMap::new();
    while let Some(trimmed) = blocks.receive()? {
        working_on(|t| *t = format!("block {}", trimmed.number));
        for (target, region, block) in trimmed.outputs {
            parts(ctx, &mut open, &mut out, target, &region, &block, &trimmed.ticket)?;
        }
        // The next block may wait for this one's ticket.
        out.flush()?;
    }
    if let Some(((target, object), left)) = open.iter().next() {
        let message =
            format!("object {object:?} of {} lacks {} cells at the end", ctx.plan.outputs[*target].path.display(), left.missing);
        return Err(Halt::Fault(Fault::here("writer", message)));
    }
    out.end(encoders)
}

#[allow(clippy::too_many_arguments)]
fn parts(
    ctx: &Context,
    open: &mut HashMap<(usize, Vec<u64>), Open>,
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
        if part == cells && cells.shape() == full && source.is_contiguous() {
            let source_bytes = source.byte_len() as u64;
            let put = Put { target, object: object.to_vec(), values: Values::Block(source), _ticket: ticket.clone() };
            return out.queue(put, source_bytes);
        }
        let key = (target, object.to_vec());
        if !open.contains_key(&key) {
            let bytes = full.iter().product::<usize>() * size;
            let lease = out.lease(&ctx.accounts.assemble, bytes as u64)?;
            let mut buffer = Buffer::new(lease, bytes)?;
            if cells.shape() != full {
                // What an edge object holds beyond the array is 0, whoever used the buffer before.
                clock.busy(|| buffer.fill(0));
            }
            open.insert(key.clone(), Open { buffer, missing: cells.count() });
        }
        let Some(entry) = open.get_mut(&key) else { return Ok(()) };
        let strides = c_strides(&full, size);
        let offset: isize = part.start.iter().zip(&cells.start).zip(&strides).map(|((p, c), s)| (p - c) as isize * s).sum();
        let (src, src_offset) = source.raw();
        clock.busy(|| copy_strided(&mut entry.buffer, offset, &strides, src, src_offset, source.strides(), source.shape(), size));
        entry.missing = entry.missing.checked_sub(part.count()).ok_or_else(|| {
            let message = format!("object {object:?} of {} got a part twice", ctx.plan.outputs[target].path.display());
            Halt::Fault(Fault::here("writer", message))
        })?;
        if entry.missing == 0
            && let Some(done) = open.remove(&key)
        {
            let bytes = done.buffer.len() as u64;
            out.queue(Put { target, object: key.1, values: Values::Assembled(done.buffer), _ticket: None }, bytes)?;
        }
        Ok(())
    })
}

/// One encoder: encodes and stores objects until the assembler is done.
pub fn encode(ctx: &Context, mut puts: Inlet<Put>) -> Result<u64, Halt> {
    let clock = &ctx.clocks.writer;
    while let Some(put) = puts.receive()? {
        let sink = &ctx.sinks[put.target];
        working_on(|t| *t = format!("object {:?} of {}", put.object, ctx.plan.outputs[put.target].path.display()));
        let values: &[u8] = match &put.values {
            Values::Block(block) => block.bytes().unwrap_or(&[]),
            Values::Assembled(buffer) => buffer,
        };
        let stored = clock
            .busy(|| sink.put(&put.object, values))
            .map_err(|e| Halt::Fault(Fault::here("writer", e.to_string()).because(e.cause())))?;
        clock.count(values.len() as u64, stored);
        ctx.totals.bytes_written.fetch_add(stored, Ordering::Relaxed);
        ctx.totals.objects_written.fetch_add(1, Ordering::Relaxed);
        ctx.observer.object_written(put.target, &put.object, stored);
    }
    Ok(puts.received)
}
