//! The stages of a phase and the bounded channels between them.
//!
//! ```text
//! dispatcher -> readers -> halo -> workers -> trim -> assembler -> encoders
//! ```
//! Capacities belong to the receiving stage: one waiting item per thread keeps it busy, more would only hold memory that
//! the plan then has to reserve.

use flume::bounded;

use super::context::Context;
use super::stage::{Inlet, Outlet};
use super::supervise::StageSpec;
use crate::{compute, halo, reader, trim, writer};

pub fn stages(ctx: &Context) -> Vec<StageSpec> {
    let c = ctx.phase().concurrency;
    let clocks = &ctx.clocks;
    // Tasks hold leases in order; a short queue keeps readers busy without promising memory far ahead.
    let (task_tx, task_rx) = bounded(c.readers);
    let (raw_tx, raw_rx) = bounded(c.readers);
    // Of blocks none may have to wait: then the account they are leased from says so, not the channel.
    let (halo_tx, halo_rx) = bounded(c.queue.max(1));
    let (done_tx, done_rx) = bounded(1);
    let (trim_tx, trim_rx) = bounded(1);
    let (put_tx, put_rx) = bounded(c.encoders);
    let inlet_stop = || ctx.stop.clone();

    let mut reading = StageSpec { name: "reader", threads: Vec::new() };
    let (own, out) = (ctx.clone(), Outlet::new(task_tx, clocks.reader.clone(), inlet_stop()));
    reading.threads.push(Box::new(move || reader::stage::dispatch(&own, out, c.readers).map(|_| 0)));
    for _ in 0..c.readers {
        let own = ctx.clone();
        let inlet = Inlet::new(task_rx.clone(), 1, clocks.reader.clone(), inlet_stop(), "reader");
        let out = Outlet::new(raw_tx.clone(), clocks.reader.clone(), inlet_stop());
        reading.threads.push(Box::new(move || reader::stage::work(&own, inlet, out)));
    }
    drop((task_rx, raw_tx));

    let mut exchanging = StageSpec { name: "halo", threads: Vec::new() };
    let own = ctx.clone();
    let inlet = Inlet::new(raw_rx, c.readers, clocks.halo.clone(), inlet_stop(), "halo");
    let out = Outlet::new(halo_tx, clocks.halo.clone(), inlet_stop());
    exchanging.threads.push(Box::new(move || halo::run(&own, inlet, out, c.workers)));

    let mut computing = StageSpec { name: "compute", threads: Vec::new() };
    for worker in 0..c.workers {
        let own = ctx.clone();
        let inlet = Inlet::new(halo_rx.clone(), 1, clocks.compute.clone(), inlet_stop(), "compute");
        let out = Outlet::new(done_tx.clone(), clocks.compute.clone(), inlet_stop());
        computing.threads.push(Box::new(move || compute::work(&own, inlet, out, worker)));
    }
    drop((halo_rx, done_tx));

    let mut trimming = StageSpec { name: "trim", threads: Vec::new() };
    let own = ctx.clone();
    let inlet = Inlet::new(done_rx, c.workers, clocks.trim.clone(), inlet_stop(), "trim");
    let out = Outlet::new(trim_tx, clocks.trim.clone(), inlet_stop());
    trimming.threads.push(Box::new(move || trim::run(&own, inlet, out)));

    let mut writing = StageSpec { name: "writer", threads: Vec::new() };
    let own = ctx.clone();
    let inlet = Inlet::new(trim_rx, 1, clocks.writer.clone(), inlet_stop(), "writer");
    let out = Outlet::new(put_tx, clocks.writer.clone(), inlet_stop());
    writing.threads.push(Box::new(move || writer::stage::assemble(&own, inlet, out, c.encoders).map(|_| 0)));
    for _ in 0..c.encoders {
        let own = ctx.clone();
        let inlet = Inlet::new(put_rx.clone(), 1, clocks.writer.clone(), inlet_stop(), "writer");
        writing.threads.push(Box::new(move || writer::stage::encode(&own, inlet)));
    }
    vec![reading, exchanging, computing, trimming, writing]
}
