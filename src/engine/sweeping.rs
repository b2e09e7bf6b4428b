//! Threads that sweep over blocks: a strip of the input is read, filtered and written before the next one is looked at.
//!
//! Blocks whose chunks and objects lie in files as they are need not be held to be computed: of the input only a strip's rows are
//! there, of the operator's own the window that moves along with the strips, of the result a slab. All of it stays in the core's
//! cache, in memory that is touched again and again. What two blocks need is read once, and kept for the other one.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::stage::{Fault, Halt, working_on};
use crate::array::Dims;
use crate::compute::evaluate::Failure;
use crate::halo;
use crate::operators::{Kind, Sweep, Workspace};
use crate::plan::phase::Destination;
use crate::reader::margins::{Margins, Shared};
use crate::reader::strips::StripReader;
use crate::writer::parts::OpenObjects;

pub struct Sweeper<'c> {
    ctx: &'c Context,
    sweep: &'c dyn Sweep,
    target: usize,
    reader: StripReader<'c>,
}

impl<'c> Sweeper<'c> {
    pub fn new(ctx: &'c Context, margins: &'c Margins) -> Result<Self, Halt> {
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
        let reader = StripReader::new(ctx, margins, (sweep.axis(), sweep.joined()), ctx.phase().bytes.inputs)?;
        Ok(Self { ctx, sweep, target, reader })
    }

    /// The margins between a block and those before and behind it, where these are still to be made.
    fn shared(&self, block: &[u64]) -> Vec<Shared> {
        let (plan, axis) = (self.ctx.phase(), self.sweep.axis());
        let cells = plan.grid.0[axis].cells();
        let firsts = [block[axis].checked_sub(1), (block[axis] + 1 < cells).then_some(block[axis])];
        let at = |place: u64| {
            let mut other = Dims::from(block);
            other[axis] = place;
            other
        };
        let margin = |first: u64| {
            let cores = [first, first + 1].map(|place| plan.core(&at(place)));
            let [before, behind] = &cores;
            if cores.iter().any(|core| self.ctx.is_done(core)) {
                return None;
            }
            let rows = self.sweep.needs(behind).start[axis]..self.sweep.needs(before).stop[axis];
            let mut core = before.clone();
            core.stop[axis] = behind.stop[axis];
            (!rows.is_empty()).then(|| Shared { first: at(first), rows, core })
        };
        firsts.into_iter().flatten().filter_map(margin).collect()
    }

    /// Makes all of a block.
    pub fn block(&mut self, seq: u64, number: u64, block: &[u64]) -> Result<(), Halt> {
        let ctx = self.ctx;
        let core = &ctx.phase().core(block);
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
        let mut strips = self.sweep.begin(core, true, &mut work).map_err(fail)?;
        let mut objects = OpenObjects::begin(ctx, self.target, core, self.sweep.axis())?;
        let shared = self.shared(block);
        self.reader.begin();
        let (mut taken, mut given) = (0, 0);
        while let Some(wanted) = strips.next() {
            self.reader.read(&wanted, core, &shared, |parts| {
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
