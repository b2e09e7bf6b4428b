//! Turns a plan into running stages and back into a report. Knows nothing of a service, a terminal or a config file:
//! it takes an [`Observer`].

mod claim;
pub mod context;
mod ending;
pub mod execute;
pub mod journal;
pub mod moving;
pub mod partition;
pub mod publish;
pub mod record;
pub mod report;
pub mod resume;
pub mod stage;
pub mod staging;
mod store;
pub mod supervise;
pub mod sweeping;
pub mod topology;
pub mod verify;
pub mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::array::Account;
use crate::compute::gpu::fleet::Fleet;
use crate::compute::running::Running;
use crate::operators::NextPass;
use crate::plan::{Kept, Plan, Rounds};
use crate::reader::SourceError;
use crate::reader::again::Again;
use crate::reader::kept::KeepError;
use crate::writer::{Sink, SinkError};
use context::{Accounts, Clocks, Context, Parking, Totals};
use report::{RunReport, StageReport, resident};
use resume::Done;
use stage::{Cause, Doing, Fault};
use supervise::{Ending, supervise};
use window::Window;

/// Hears what happens: the progress bar, the ledger, tests.
pub trait Observer: Send + Sync {
    /// A block of a phase is computed (not yet stored).
    fn block_done(&self, _phase: usize, _number: u64) {}
    /// An object of an output is stored.
    fn object_written(&self, _target: usize, _object: &[u64], _bytes: u64) {}
    /// About ten times a second.
    fn progress(&self, _now: &Progress) {}
    /// What a thread did; only told to who asks for it, since that costs time.
    fn span(&self, _span: &Span) {}
    fn hears_spans(&self) -> bool {
        false
    }
}

/// A thread of a stage worked or waited.
#[derive(Clone, Debug)]
pub struct Span {
    pub stage: &'static str,
    pub doing: Doing,
    /// What it worked on.
    pub unit: String,
    pub since: Instant,
    pub until: Instant,
}

/// Nobody listens.
pub struct Silent;
impl Observer for Silent {}

/// A moment of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub phase: usize,
    pub phases: usize,
    pub blocks_done: u64,
    pub blocks_total: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Bytes of chunks in memory by the budget.
    pub leased_bytes: u64,
    /// Time that threads worked so far, by stage as in [`RunReport::stages`].
    pub busy: [Duration; 5],
}

/// Why a run did not finish.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("stopped")]
    Stopped,
    #[error("{0}")]
    Sink(#[from] SinkError),
    #[error("{0}")]
    Keep(#[from] KeepError),
    /// What a pass left could not be read back, or the inputs not be looked at again.
    #[error("{0}")]
    State(#[from] SourceError),
    #[error("{0}")]
    Publish(#[from] publish::PublishError),
    #[error("the threads of the devices do not start: {0}")]
    Threads(std::io::Error),
    #[error("input `{0}` was changed while it was being read; run the job again")]
    Changed(String),
}

/// Runs all phases. `sinks` has one entry per graph target; they are finished here, publishing is the caller's.
pub fn run(
    plan: Arc<Plan>,
    sinks: Vec<Arc<dyn Sink>>,
    observer: Arc<dyn Observer>,
    stop: Arc<AtomicBool>,
) -> Result<RunReport, JobError> {
    resume(plan, sinks, Done::default(), observer, stop)
}

/// The same, without what an earlier run of the same job has stored.
pub fn resume(
    plan: Arc<Plan>,
    sinks: Vec<Arc<dyn Sink>>,
    done: Done,
    observer: Arc<dyn Observer>,
    stop: Arc<AtomicBool>,
) -> Result<RunReport, JobError> {
    let since = Instant::now();
    let baseline = resident().0;
    let done = Arc::new(done);
    let fleet = plan.devices.start().map_err(JobError::Threads)?.map(Arc::new);
    let run = Run { plan: plan.clone(), sinks: Arc::new(sinks), observer, stop: stop.clone(), fleet };
    let mut report = RunReport {
        memory_limit_bytes: plan.memory_limit,
        predicted_peak_bytes: plan.peak_bytes_of_run(done.is_empty()),
        baseline_rss_bytes: baseline,
        job_hash: plan.hash.clone(),
        arithmetic: plan.arithmetic,
        version: env!("CARGO_PKG_VERSION"),
        ..RunReport::default()
    };
    let mut stages: Vec<StageReport> =
        ["reader", "halo", "compute", "trim", "writer"].map(|name| StageReport { name, ..StageReport::default() }).into();
    // Faults and signals use one flag; which of them it was is told by the ending.
    let results = Account::new("results", kept_bytes(&plan));
    for (phase, phase_plan) in plan.phases.iter().enumerate() {
        for kept in &phase_plan.kept {
            match plan.scratch.as_ref().filter(|_| kept.in_scratch) {
                Some(folder) => kept.array.in_folder(folder)?,
                None => kept.array.in_memory(&results, &stop)?,
            }
        }
        match &phase_plan.rounds {
            None => run.pass(phase, done.clone(), None, &mut report, &mut stages)?,
            Some(rounds) => run.passes(phase, rounds, &mut report, &mut stages)?,
        }
        for result in &phase_plan.released {
            result.clear();
        }
    }
    for sink in run.sinks.iter() {
        report.bytes_written += sink.finish()?;
    }
    for feed in plan.inputs.iter().flat_map(|input| &input.feeds) {
        let requests = feed.source.requests();
        report.store_requests += requests.sent;
        report.store_requests_again += requests.again;
    }
    report.stages = stages;
    if let Some(fleet) = &run.fleet {
        report.devices = fleet.reports();
        report.device_blocks_halved = fleet.halved.load(Ordering::Relaxed);
        report.device_failovers = fleet.failed_over.load(Ordering::Relaxed);
    }
    report.name_bottleneck();
    report.wall_s = since.elapsed().as_secs_f64();
    report.peak_rss_bytes = resident().1;
    Ok(report)
}

/// What all passes of a run have in common.
struct Run {
    plan: Arc<Plan>,
    sinks: Arc<Vec<Arc<dyn Sink>>>,
    observer: Arc<dyn Observer>,
    stop: Arc<AtomicBool>,
    fleet: Option<Arc<Fleet>>,
}

impl Run {
    /// Streams a phase until its control is content. What an earlier run stored says nothing about the state: its passes
    /// are made again.
    fn passes(&self, phase: usize, rounds: &Rounds, report: &mut RunReport, stages: &mut [StageReport]) -> Result<(), JobError> {
        let Rounds { state, found, control, .. } = rounds;
        let mut first = vec![0.0; if rounds.is_controlled { (state.copy_bytes() / 8) as usize } else { 0 }];
        control.begin(&mut first);
        if rounds.is_controlled {
            state.store(&first)?;
        }
        drop(first);
        let plan = &self.plan.phases[phase];
        let again = Some(plan.reservation.again).filter(|bytes| *bytes > 0);
        let again = again.map(|bytes| Arc::new(Again::new(bytes, plan.park_again)));
        for pass in 0.. {
            self.pass(phase, Arc::new(Done::default()), again.clone(), report, stages)?;
            report.passes += 1;
            let found = found.numbers()?;
            let mut next = if rounds.is_controlled { state.numbers()? } else { Vec::new() };
            let then = control.after(pass, &found, &mut next).map_err(|error| Fault {
                stage: "compute",
                place: format!("step `{}`, after pass {}", rounds.name, pass + 1),
                message: error.to_string(),
                cause: Cause::Final,
            })?;
            if matches!(then, NextPass::Again | NextPass::Done) {
                match rounds.is_controlled {
                    true => state.store(&next)?,
                    false => state.turn(),
                }
            }
            if matches!(then, NextPass::Done | NextPass::DoneBefore) {
                break;
            }
        }
        Ok(())
    }

    /// Streams a phase once.
    fn pass(
        &self,
        phase: usize,
        done: Arc<Done>,
        again: Option<Arc<Again>>,
        report: &mut RunReport,
        stages: &mut [StageReport],
    ) -> Result<(), JobError> {
        let Run { plan, sinks, observer, stop, .. } = self;
        let phase_plan = plan.phases[phase].of_run(done.is_empty());
        report.source_chunks += phase_plan.chunks;
        report.blocks_total += phase_plan.traversal.block_count();
        let accounts = Accounts::new(phase_plan);
        let ctx = Context {
            plan: plan.clone(),
            phase,
            accounts: accounts.clone(),
            running: Arc::new(Running::new(accounts.fold.clone())),
            clocks: Clocks::of(observer),
            totals: Arc::new(Totals::default()),
            stop: stop.clone(),
            window: Window::new(phase_plan.concurrency.window),
            sinks: sinks.clone(),
            observer: observer.clone(),
            parking: Arc::new(Parking::new(phase_plan)),
            done: done.clone(),
            again: again.clone(),
            fleet: self.fleet.clone(),
        };
        let tick = {
            let (ctx, total) = (ctx.clone(), phase_plan.traversal.block_count());
            let before = (report.bytes_read, report.bytes_written);
            let busy_before: Vec<f64> = stages.iter().map(|stage| stage.busy_s).collect();
            Box::new(move || {
                ctx.observer.progress(&Progress {
                    phase: ctx.phase,
                    phases: ctx.plan.phases.len(),
                    blocks_done: ctx.totals.blocks_done.load(Ordering::Relaxed),
                    blocks_total: total,
                    bytes_read: before.0 + ctx.totals.bytes_read.load(Ordering::Relaxed),
                    bytes_written: before.1 + ctx.totals.bytes_written.load(Ordering::Relaxed),
                    leased_bytes: ctx.accounts.leased(),
                    busy: std::array::from_fn(|stage| {
                        let now = Duration::from_nanos(ctx.clocks.all()[stage].busy_ns.load(Ordering::Relaxed));
                        now + Duration::from_secs_f64(busy_before.get(stage).copied().unwrap_or(0.0))
                    }),
                })
            })
        };
        let ending = supervise(topology::stages(&ctx), stop.clone(), tick);
        let threads = topology::threads(phase_plan);
        for (entry, (clock, threads)) in stages.iter_mut().zip(ctx.clocks.all().into_iter().zip(threads)) {
            entry.add(clock, threads);
        }
        let total = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        report.bytes_read += total(&ctx.totals.bytes_read);
        report.bytes_written += total(&ctx.totals.bytes_written);
        report.source_chunk_reads += total(&ctx.totals.chunk_reads);
        report.filled_chunks += total(&ctx.totals.filled_chunks);
        report.objects_written += total(&ctx.totals.objects_written);
        report.blocks_computed += total(&ctx.totals.blocks_done);
        report.blocks_resumed += total(&ctx.totals.blocks_resumed);
        report.blocks_in_flight_max = report.blocks_in_flight_max.max(total(&ctx.totals.blocks_in_flight_max));
        for account in accounts.all() {
            report.note_account(account.name(), account.peak(), account.limit());
            account.release_idle();
        }
        if let Some((peak, limit)) = again.map(|again| again.peak()) {
            report.note_account("again", peak, limit);
        }
        match ending {
            Ending::Failed(fault) => return Err(fault.into()),
            Ending::Stopped => return Err(JobError::Stopped),
            Ending::Done(passed) => check_counts(&ctx, &passed)?,
        }
        Ok(())
    }
}

/// Room for everything that is kept in memory. Each phase's own limit is the plan's; this one only counts.
fn kept_bytes(plan: &Plan) -> u64 {
    let in_memory = |k: &&Kept| !(k.in_scratch && plan.scratch.is_some());
    plan.phases.iter().flat_map(|p| &p.kept).filter(in_memory).map(|k| k.array.byte_len() + 2 * 64).sum()
}

/// Every stage has said that it is done: what it passed on must be what the plan says (I7).
fn check_counts(ctx: &Context, passed: &[(&'static str, u64)]) -> Result<(), Fault> {
    let (plan, phase_plan, totals) = (&ctx.plan, ctx.phase(), &ctx.totals);
    let of = |name: &str| passed.iter().find(|p| p.0 == name).map_or(0, |p| p.1);
    // A stage without threads of its own passes nothing on.
    let is_moved = phase_plan.moving.is_some();
    let or_counted = |stage: &str, is_within: bool, count: &std::sync::atomic::AtomicU64| {
        if is_within { count.load(Ordering::Relaxed) } else { of(stage) }
    };
    let blocks = phase_plan.traversal.block_count() - totals.blocks_resumed.load(Ordering::Relaxed);
    // A resumed job reads what its remaining blocks need: the readers' own count is then the plan.
    let reads = if ctx.done.is_empty() { phase_plan.frontier.reads } else { totals.chunk_reads.load(Ordering::Relaxed) };
    let objects: u64 = plan
        .outputs
        .iter()
        .enumerate()
        .filter(|(t, _)| {
            let direct = phase_plan.phase.targets.iter().any(|p| p.output() == Some(*t));
            direct || phase_plan.phase.folds.iter().any(|f| f.outputs.iter().any(|o| o.targets.contains(t)))
        })
        .map(|(t, o)| o.layout.object_grid().cells().unwrap_or(u64::MAX) - ctx.done.of_target(t))
        .sum();
    let checks = [
        ("reader", or_counted("reader", is_moved, &totals.chunk_reads), reads),
        ("halo", if is_moved { of(topology::MOVER) } else { of("halo") }, blocks),
        ("compute", ctx.clocks.compute.chunks.load(Ordering::Relaxed), blocks),
        ("trim", totals.blocks_done.load(Ordering::Relaxed), blocks),
        ("writer", or_counted("writer", is_moved || phase_plan.concurrency.encoders == 0, &totals.objects_written), objects),
    ];
    for (stage, got, planned) in checks {
        if got != planned {
            let message = format!("ended after {got} items, the plan has {planned}: the output is not complete");
            return Err(Fault { stage, place: format!("phase {}", ctx.phase + 1), message, cause: Cause::Final });
        }
    }
    Ok(())
}
