//! Threads that sweep over blocks: a strip of the input is read, filtered and written before the next one is looked at.
//!
//! Blocks whose chunks and objects lie in files as they are need not be held to be computed: of the input only a strip's rows are
//! there, of the operator's own the window that moves along with the strips, of the result a slab. All of it stays in the core's
//! cache, in memory that is touched again and again. What two blocks need is read by both.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::stage::{Fault, Halt, working_on};
use crate::array::Region;
use crate::compute::evaluate::Failure;
use crate::halo;
use crate::operators::{Kind, Sweep, Workspace};
use crate::plan::phase::Destination;
use crate::reader::strips::StripReader;
use crate::writer::parts::OpenObjects;

pub struct Sweeper<'c> {
    ctx: &'c Context,
    sweep: &'c dyn Sweep,
    target: usize,
    reader: StripReader<'c>,
}

impl<'c> Sweeper<'c> {
    pub fn new(ctx: &'c Context) -> Result<Self, Halt> {
        let phase = &ctx.phase().phase;
        let sweep = phase.steps.first().and_then(|step| match &step.binding.kind {
            Kind::Map(map) => map.sweep(),
            Kind::Fold { .. } => None,
        });
        let target = phase.targets.first().and_then(|target| match target.to {
            Destination::Output(target) => Some(target),
            Destination::State(_) => None,
        });
        let (Some(sweep), Some(target)) = (sweep, target) else {
            return Err(Halt::Fault(Fault::here("mover", "the phase has nothing to sweep")));
        };
        let reader = StripReader::new(ctx, (sweep.axis(), sweep.joined()), ctx.phase().bytes.inputs)?;
        Ok(Self { ctx, sweep, target, reader })
    }

    /// Makes all of a block.
    pub fn block(&mut self, seq: u64, number: u64, core: &Region) -> Result<(), Halt> {
        let ctx = self.ctx;
        let fail = |error| {
            let step = ctx.phase().phase.steps.first().map_or_else(String::new, |step| step.name.clone());
            Halt::from(Failure { step, error })
        };
        let _ticket = halo::enter(ctx, seq)?;
        halo::note_sent(ctx);
        working_on(|t| {
            let _ = write!(t, "block {number} (core {core})");
        });
        let clock = &ctx.clocks.compute;
        let lease = clock.blocked(|| ctx.accounts.compute.lease(ctx.phase().bytes.evaluation, &ctx.stop))?;
        let mut work = Workspace::new(lease, &ctx.stop);
        let mut strips = self.sweep.begin(core, &mut work).map_err(fail)?;
        let mut objects = OpenObjects::begin(ctx, self.target, core, self.sweep.axis())?;
        let (mut taken, mut given) = (0, 0);
        while let Some(wanted) = strips.next() {
            self.reader.read(&wanted, core, |parts| {
                taken += parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>();
                clock.busy(|| strips.take(parts));
            })?;
            while let Some((region, values)) = clock.busy(|| strips.slab()) {
                given += values.len() as u64;
                objects.write(&region, values)?;
            }
            if ctx.stop.load(Ordering::Relaxed) {
                return Err(Halt::Stopped);
            }
        }
        objects.commit()?;
        clock.count(taken, given);
        ctx.totals.blocks_done.fetch_add(1, Ordering::Relaxed);
        ctx.observer.block_done(ctx.phase, number);
        Ok(())
    }
}
