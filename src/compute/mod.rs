//! Stage 3: evaluates the steps of a block. CPU: one thread per worker with blocking receive.

pub mod device;
pub mod evaluate;
pub mod fold;
pub mod gpu;
pub mod running;

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::array::chunk::{ComputedBlock, HaloBlock};
use crate::engine::context::Context;
use crate::engine::stage::{Halt, Inlet, Outlet, working_on};
use crate::operators::{Kind, Workspace};

/// One CPU worker: takes the memory for a whole block before it begins, so that no two workers wait for each other.
pub fn work(ctx: &Context, mut blocks: Inlet<HaloBlock>, mut out: Outlet<ComputedBlock>, worker: usize) -> Result<u64, Halt> {
    let result = run(ctx, &mut blocks, &mut out, worker);
    for step in &ctx.phase().phase.steps {
        if let Kind::Map(map) = &step.binding.kind {
            map.close(worker);
        }
    }
    result?;
    out.end(1)
}

fn run(ctx: &Context, blocks: &mut Inlet<HaloBlock>, out: &mut Outlet<ComputedBlock>, worker: usize) -> Result<(), Halt> {
    let plan = ctx.phase();
    let clock = &ctx.clocks.compute;
    while let Some(block) = blocks.receive()? {
        let bytes_in: u64 = block.inputs.iter().flatten().map(|p| p.block.byte_len() as u64).sum();
        working_on(|t| {
            let _ = write!(t, "block {} (core {})", block.number, block.core);
        });
        let lease = clock.blocked(|| ctx.accounts.compute.lease(plan.bytes.evaluation, &ctx.stop))?;
        let done = clock.busy(|| {
            let mut work = Workspace::new(lease, &ctx.stop);
            work.fleet = ctx.fleet.as_deref();
            evaluate::evaluate(plan, block, worker, &ctx.running, &mut work)
        })?;
        clock.count(bytes_in, done.outputs.iter().map(|o| o.block.byte_len() as u64).sum());
        out.send(done)?;
        if ctx.stop.load(Ordering::Relaxed) {
            return Err(Halt::Stopped);
        }
    }
    Ok(())
}
