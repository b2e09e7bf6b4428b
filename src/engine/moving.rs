//! Threads that move blocks whole: each reads the chunks of a block and writes its objects, while the bytes are in its core's cache.
//!
//! Where hardly anything is computed, and nothing decoded or shared, handing a block from stage to stage costs more than the work
//! on it: every hand wakes a thread, and the next core fetches the block from the last one's. The stages' own code runs here, one after
//! the other, on one thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::context::Context;
use super::stage::{Halt, Onward};
use crate::compute::Worker;
use crate::halo;
use crate::plan::frontier::Bricks;
use crate::reader::stage::Fetcher;
use crate::trim::Trimmer;
use crate::writer::stage::OwnObjects;

/// Moves blocks until none is left; `next` is the first that no thread has taken. Returns how many this one moved.
pub fn run(ctx: &Context, next: &AtomicU64, number: usize) -> Result<u64, Halt> {
    let plan = ctx.phase();
    let mut bricks = Bricks::new(&plan.phase, &plan.grid, &plan.feeds, plan.counts_packed);
    let mut fetcher = Fetcher::new(ctx);
    let mut onward = Worker::new(ctx, number, Box::new(Trimmer::new(ctx, Box::new(OwnObjects::new(ctx)))));
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
                        // First: who waits for its turn must hold no memory, which the block before may wait for.
                        let ticket = halo::enter(ctx, seq)?;
                        let chunks = fetcher.block(number_of_brick, &brick, &position)?;
                        let place = (seq, plan.traversal.number(&block), core);
                        onward.pass(halo::of_own(ctx, ticket, place, chunks)?)?;
                        halo::note_sent(ctx);
                        moved += 1;
                    }
                }
                own = take();
            }
            seq += u64::from(!is_done);
        }
    }
    Box::new(onward).end()?;
    Ok(moved)
}
