//! Stage 3: evaluates the steps of a block. CPU: one thread per worker with blocking receive.

pub mod device;
pub mod evaluate;
pub mod fold;
pub mod gpu;
pub mod running;
pub mod strips;

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::array::chunk::{ComputedBlock, HaloBlock};
use crate::engine::context::Context;
use crate::engine::stage::{Halt, Inlet, Onward, working_on};
use crate::operators::{Kind, Workspace};

/// One CPU worker: takes the memory for a whole block before it begins, so that no two workers wait for each other.
pub struct Worker<'c> {
    ctx: &'c Context,
    number: usize,
    out: Option<Box<dyn Onward<ComputedBlock> + 'c>>,
}

impl<'c> Worker<'c> {
    pub fn new(ctx: &'c Context, number: usize, out: Box<dyn Onward<ComputedBlock> + 'c>) -> Self {
        Self { ctx, number, out: Some(out) }
    }
}

/// Works until no block comes any more.
pub fn work(mut worker: Worker<'_>, mut blocks: Inlet<HaloBlock>) -> Result<u64, Halt> {
    while let Some(block) = blocks.receive()? {
        worker.pass(block)?;
    }
    Box::new(worker).end()?;
    Ok(blocks.received)
}

impl Onward<HaloBlock> for Worker<'_> {
    fn pass(&mut self, block: HaloBlock) -> Result<(), Halt> {
        let (ctx, plan) = (self.ctx, self.ctx.phase());
        let clock = &ctx.clocks.compute;
        let bytes_in: u64 = block.inputs.iter().flatten().map(|p| p.block.byte_len() as u64).sum();
        working_on(|t| {
            let _ = write!(t, "block {} (core {})", block.number, block.core);
        });
        let lease = clock.blocked(|| ctx.accounts.compute.lease(plan.bytes.evaluation, &ctx.stop))?;
        let done = clock.busy(|| {
            let mut work = Workspace::new(lease, &ctx.stop);
            work.fleet = ctx.fleet.as_deref();
            evaluate::evaluate(plan, block, self.number, &ctx.running, &mut work)
        })?;
        clock.count(bytes_in, done.outputs.iter().map(|o| o.block.byte_len() as u64).sum());
        if let Some(out) = &mut self.out {
            out.pass(done)?;
        }
        if ctx.stop.load(Ordering::Relaxed) {
            return Err(Halt::Stopped);
        }
        Ok(())
    }

    fn end(mut self: Box<Self>) -> Result<(), Halt> {
        self.out.take().map_or(Ok(()), Onward::end)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        for step in &self.ctx.phase().phase.steps {
            if let Kind::Map(map) = &step.binding.kind {
                map.close(self.number);
            }
        }
    }
}
