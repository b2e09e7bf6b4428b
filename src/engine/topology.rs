//! The stages of a phase and the bounded channels between them.
//!
//! ```text
//! dispatcher -> readers -> halo -> workers -> trim -> assembler -> encoders
//! ```
//! A phase that only moves bytes has threads that do all of it, one block at a time ([`super::moving`]).
//!
//! Capacities belong to the receiving stage: one waiting item per thread keeps it busy, more would only hold memory that
//! the plan then has to reserve.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use flume::{Sender, bounded};

use super::context::Context;
use super::moving;
use super::stage::{Inlet, Onward, Outlet};
use super::supervise::{Body, StageSpec};
use crate::array::chunk::{ComputedBlock, HaloBlock, Hop, TrimmedBlock};
use crate::compute::Worker;
use crate::plan::PhasePlan;
use crate::reader::margins::Margins;
use crate::trim::Trimmer;
use crate::writer::stage::Assembler;
use crate::{compute, halo, reader, trim, writer};

/// The stage of threads that move blocks.
pub const MOVER: &str = "mover";

/// Threads of the stages of a phase. One without threads of its own is done by that before it, where a message would cost
/// more than its work: workers cut their blocks themselves unless these come together, and the halo stage hands on itself what
/// nothing is computed of. Or where what waits would be memory: workers encode large blocks themselves.
pub fn threads(plan: &PhasePlan) -> [usize; 5] {
    let c = plan.concurrency;
    if plan.moving.is_some() {
        return [plan.movers(); 5];
    }
    let is_trimmed_apart = !Trimmer::is_of_single_blocks(&plan.phase);
    let is_computed = is_trimmed_apart || !plan.phase.steps.is_empty();
    [c.readers, 1, if is_computed { c.workers } else { 0 }, usize::from(is_trimmed_apart), c.encode_threads()]
}

pub fn stages(ctx: &Context) -> Vec<StageSpec> {
    if ctx.phase().moving.is_some() {
        return vec![movers(ctx)];
    }
    let c = ctx.phase().concurrency;
    let [readers, _, workers, trimmers, encoders] = threads(ctx.phase());
    let clocks = &ctx.clocks;
    // Tasks hold leases in order; a short queue keeps readers busy without promising memory far ahead.
    let (task_tx, task_rx) = bounded(readers);
    let (raw_tx, raw_rx) = bounded(readers);
    // Of blocks none may have to wait: then the account they are leased from says so, not the channel.
    let (halo_tx, halo_rx) = bounded(c.queue.max(1));
    let (done_tx, done_rx) = bounded(1);
    let (trim_tx, trim_rx) = bounded(1);
    let (put_tx, put_rx) = bounded(encoders);
    let inlet_stop = || ctx.stop.clone();

    let mut reading = StageSpec { name: "reader", threads: Vec::new() };
    let (own, out) = (ctx.clone(), Outlet::new(task_tx, clocks.reader.clone(), inlet_stop()));
    reading.threads.push(Box::new(move || reader::stage::dispatch(&own, out, readers).map(|_| 0)));
    for _ in 0..readers {
        let own = ctx.clone();
        let inlet = Inlet::new(task_rx.clone(), 1, clocks.reader.clone(), inlet_stop(), "reader");
        let out = Outlet::new(raw_tx.clone(), clocks.reader.clone(), inlet_stop());
        reading.threads.push(Box::new(move || reader::stage::work(&own, inlet, out)));
    }
    drop((task_rx, raw_tx));

    let last_stage = Writing { assembler: (c.encoders > 0).then_some(trim_tx) };

    let mut exchanging = StageSpec { name: "halo", threads: Vec::new() };
    // Nobody holds an end of a channel that it does not use: it would not be seen to close.
    let (own, last) = (ctx.clone(), (workers == 0).then(|| last_stage.clone()));
    let inlet = Inlet::new(raw_rx, readers, clocks.halo.clone(), inlet_stop(), "halo");
    let out = Outlet::new(halo_tx, clocks.halo.clone(), inlet_stop());
    exchanging.threads.push(Box::new(move || {
        let onward: Box<dyn Onward<HaloBlock> + '_> = match last {
            Some(last) => Box::new(Worker::new(&own, 0, Box::new(Trimmer::new(&own, last.onward(&own))))),
            None => out.to_threads(workers),
        };
        halo::run(&own, inlet, onward)
    }));

    let mut computing = StageSpec { name: "compute", threads: Vec::new() };
    for number in 0..workers {
        let (own, last) = (ctx.clone(), (trimmers == 0).then(|| last_stage.clone()));
        let inlet = Inlet::new(halo_rx.clone(), 1, clocks.compute.clone(), inlet_stop(), "compute");
        let out = Outlet::new(done_tx.clone(), clocks.compute.clone(), inlet_stop());
        computing.threads.push(Box::new(move || {
            let onward: Box<dyn Onward<ComputedBlock> + '_> = match last {
                Some(last) => Box::new(Trimmer::new(&own, last.onward(&own))),
                None => out.to_threads(trimmers),
            };
            compute::work(Worker::new(&own, number, onward), inlet)
        }));
    }
    drop((halo_rx, done_tx));

    let mut trimming = StageSpec { name: "trim", threads: Vec::new() };
    for _ in 0..trimmers {
        let (own, last) = (ctx.clone(), last_stage.clone());
        let inlet = Inlet::new(done_rx.clone(), workers, clocks.trim.clone(), inlet_stop(), "trim");
        trimming.threads.push(Box::new(move || trim::run(Trimmer::new(&own, last.onward(&own)), inlet)));
    }
    drop(last_stage);
    let cutting = if trimmers > 0 { trimmers } else { workers.max(1) };

    let mut writing = StageSpec { name: "writer", threads: Vec::new() };
    if c.encoders == 0 {
        return vec![reading, exchanging, computing];
    }
    let own = ctx.clone();
    let inlet = Inlet::new(trim_rx, cutting, clocks.writer.clone(), inlet_stop(), "writer");
    let out = Outlet::new(put_tx, clocks.writer.clone(), inlet_stop());
    writing.threads.push(Box::new(move || writer::stage::assemble(Assembler::new(&own, out, encoders), inlet)));
    for _ in 0..encoders {
        let own = ctx.clone();
        let inlet = Inlet::new(put_rx.clone(), 1, clocks.writer.clone(), inlet_stop(), "writer");
        writing.threads.push(Box::new(move || writer::stage::encode(&own, inlet)));
    }
    [reading, exchanging, computing, trimming, writing].into_iter().filter(|stage| !stage.threads.is_empty()).collect()
}

/// Where trimmed blocks go: to the assembler's thread, or to one on the thread that has them.
#[derive(Clone)]
struct Writing {
    assembler: Option<Sender<Hop<TrimmedBlock>>>,
}

impl Writing {
    fn onward<'c>(&self, ctx: &'c Context) -> Box<dyn Onward<TrimmedBlock> + 'c> {
        match &self.assembler {
            Some(to) => Outlet::new(to.clone(), ctx.clocks.trim.clone(), ctx.stop.clone()).to_threads(1),
            None => Box::new(Assembler::encoding(ctx)),
        }
    }
}

fn movers(ctx: &Context) -> StageSpec {
    let (next, margins) = (Arc::new(AtomicU64::new(0)), Arc::new(Margins::default()));
    let threads = (0..ctx.phase().movers()).map(|number| {
        let (own, next, margins) = (ctx.clone(), next.clone(), margins.clone());
        Box::new(move || moving::run(&own, &next, &margins, number)) as Body
    });
    StageSpec { name: MOVER, threads: threads.collect() }
}
