//! Threads that do all of a block by themselves: each reads what it needs and writes its objects, while the bytes are in its
//! core's cache.
//!
//! Where hardly anything is computed, and nothing decoded or shared, handing a block from stage to stage costs more than the work
//! on it: every hand wakes a thread, and the next core fetches the block from the last one's. The stages' own code runs here, one after
//! the other, on one thread. A thread takes the next block, or the next column of blocks that are folded together.

use std::sync::atomic::{AtomicU64, Ordering};

use super::context::Context;
use super::stage::{Halt, Onward};
use super::sweeping::Sweeper;
use crate::array::Region;
use crate::array::chunk::HaloBlock;
use crate::compute::Worker;
use crate::halo;
use crate::plan::frontier::{Brick, Bricks};
use crate::plan::moving::Moving;
use crate::reader::margins::Margins;
use crate::reader::stage::Fetcher;
use crate::trim::Trimmer;
use crate::writer::stage::Assembler;

/// Moves blocks until none is left; `next` is the first block, or column, that no thread has taken. Returns how many blocks this
/// one moved.
pub fn run(ctx: &Context, next: &AtomicU64, margins: &Margins, number: usize) -> Result<u64, Halt> {
    if ctx.phase().moving == Some(Moving::Sweeps) {
        let mut sweeper = Sweeper::new(ctx, margins)?;
        return each_own(ctx, next, |own| sweeper.block(own.seq, own.number, own.block));
    }
    let mut onward = Worker::new(ctx, number, Box::new(Trimmer::new(ctx, Box::new(Assembler::encoding(ctx)))));
    let moved = match ctx.phase().moving {
        Some(Moving::Columns) => columns(ctx, next, &mut onward)?,
        _ => blocks(ctx, next, &mut onward)?,
    };
    Box::new(onward).end()?;
    Ok(moved)
}

fn blocks(ctx: &Context, next: &AtomicU64, onward: &mut dyn Onward<HaloBlock>) -> Result<u64, Halt> {
    let mut fetcher = Fetcher::new(ctx);
    each_own(ctx, next, |own| {
        // First: who waits for its turn must hold no memory, which the block before may wait for.
        let ticket = halo::enter(ctx, own.seq)?;
        let chunks = fetcher.block(own.number_of_brick, own.brick, own.position)?;
        onward.pass(halo::of_own(ctx, ticket, (own.seq, own.number, own.core), chunks)?)?;
        halo::note_sent(ctx);
        Ok(())
    })
}

/// A block that a thread has taken.
struct Own<'a> {
    seq: u64,
    number: u64,
    /// In the whole grid.
    block: &'a [u64],
    core: Region,
    number_of_brick: u64,
    brick: &'a Brick,
    /// In its brick.
    position: &'a [u64],
}

/// Takes blocks until none is left; those that an earlier run has done are passed over. Returns how many were taken.
fn each_own(ctx: &Context, next: &AtomicU64, mut act: impl FnMut(Own<'_>) -> Result<(), Halt>) -> Result<u64, Halt> {
    let plan = ctx.phase();
    let mut bricks = Bricks::new(&plan.phase, &plan.grid, &plan.feeds, plan.counts_packed);
    let take = || next.fetch_add(1, Ordering::Relaxed);
    // Every thread walks past all blocks and stops at its own. Those that are done have a place, but no number in the sequence.
    let (mut own, mut place, mut seq, mut moved) = (take(), 0u64, 0u64, 0u64);
    for (number_of_brick, range) in (0u64..).zip(plan.traversal.each_brick()) {
        let brick = bricks.brick(&range);
        for position in plan.traversal.blocks_of(&range) {
            let is_own = place == own;
            place += 1;
            if !is_own && ctx.done.is_empty() {
                seq += 1;
                continue;
            }
            let block = plan.traversal.block(&range, &position);
            let core = plan.core(&block);
            let is_done = ctx.is_done(&core);
            if is_own {
                match is_done {
                    true => drop(ctx.totals.blocks_resumed.fetch_add(1, Ordering::Relaxed)),
                    false => {
                        let number = plan.traversal.number(&block);
                        act(Own { seq, number, block: &block, core, number_of_brick, brick: &brick, position: &position })?;
                        moved += 1;
                    }
                }
                own = take();
            }
            seq += u64::from(!is_done);
        }
    }
    Ok(moved)
}

/// Each brick of the traversal is a column: no other has a byte that it needs, or a cell of its objects.
fn columns(ctx: &Context, next: &AtomicU64, onward: &mut dyn Onward<HaloBlock>) -> Result<u64, Halt> {
    let plan = ctx.phase();
    let mut bricks = Bricks::new(&plan.phase, &plan.grid, &plan.feeds, plan.counts_packed);
    let whole = bricks.brick(&plan.traversal.blocks.iter().map(|&n| (0, n)).collect::<Vec<_>>());
    let mut fetcher = Fetcher::new(ctx);
    let mut own = next.fetch_add(1, Ordering::Relaxed);
    let mut moved = 0u64;
    for (column, range) in (0u64..).zip(plan.traversal.each_brick()) {
        if column != own {
            continue;
        }
        // The column's turn is that of its blocks.
        let ticket = halo::enter(ctx, column)?;
        for position in plan.traversal.blocks_of(&range) {
            let block = plan.traversal.block(&range, &position);
            let (number, core) = (plan.traversal.number(&block), plan.core(&block));
            if ctx.is_done(&core) {
                ctx.totals.blocks_resumed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // By itself, a block needs its own part of chunks.
            let alone: Vec<(u64, u64)> = block.iter().map(|&b| (b, b + 1)).collect();
            let chunks = fetcher.parts(number, &bricks.brick(&alone), &whole)?;
            onward.pass(halo::of_own(ctx, ticket.clone(), (column, number, core), chunks)?)?;
            halo::note_sent(ctx);
            moved += 1;
        }
        own = next.fetch_add(1, Ordering::Relaxed);
    }
    Ok(moved)
}
