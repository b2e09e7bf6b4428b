//! One input through one job: filled, planned within its share of memory, executed, on a thread of its own. Whatever goes
//! wrong, a panic included, becomes an outcome of this input only.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::effects::same;
use super::fault::{self, Verdict};
use super::record::Numbers;
use super::scan::{self, Fingerprint};
use crate::config::service::WatchSpec;
use crate::config::units::format_bytes;
use crate::config::{IfExists, JobSpec};
use crate::engine::execute::{ExecuteError, Executed, execute};
use crate::engine::record;
use crate::engine::{JobError, Observer, Progress};
use crate::plan::machine::Machine;
use crate::plan::{Plan, PlanError};

/// What a job needs to know.
pub struct Order {
    pub watch: Arc<WatchSpec>,
    pub relpath: String,
    pub fingerprint: Fingerprint,
    /// Hashes of the jobs that made this input's earlier outputs: those may be replaced.
    pub made: Vec<String>,
    /// Bytes that this job may use, and all jobs together.
    pub grant: u64,
    pub memory: u64,
    pub workers: usize,
    pub devices: Option<Vec<String>>,
    pub stop: Arc<AtomicBool>,
    pub progress: Arc<Mutex<Progress>>,
    /// Told the job's hash before anything is written, so that it is noted before an output has it.
    pub planned: Box<dyn Fn(&str) -> Result<(), String> + Send>,
}

/// How it ended.
#[derive(Debug)]
pub enum Outcome {
    Done {
        hash: String,
        outputs: Vec<PathBuf>,
        numbers: Numbers,
    },
    /// It needs more than its share; with this many bytes it runs.
    Needs(u64),
    /// The input is another one than was announced.
    Changed,
    /// The input is not there.
    Gone,
    Stopped,
    Failed {
        verdict: Verdict,
        reason: String,
    },
}

/// Runs a job to its outcome.
pub fn run(order: &Order) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| attempt(order))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        let reason = format!("the job panicked: {}; please report this", text.unwrap_or_default());
        Outcome::Failed { verdict: Verdict::Bad, reason }
    })
}

/// Gives freed memory back to the system. A job's threads come and go, and what they freed stays in the allocator's arenas,
/// scattered between what lives on: without this some megabytes pile up over thousands of jobs. Costs a millisecond at most,
/// since large buffers are mapped one by one and lie in no arena.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: works on the allocator's own state, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Whether the input is still what was announced.
fn look(order: &Order) -> Option<Outcome> {
    let path = scan::place(&order.watch.directory, order.relpath.as_bytes());
    match scan::fingerprint(&path) {
        Ok(found) if same(&found, &order.fingerprint, order.watch.content) => None,
        Ok(_) => Some(Outcome::Changed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(Outcome::Gone),
        Err(error) => {
            let reason = format!("the input could not be looked at: {}: {error}", path.display());
            Some(Outcome::Failed { verdict: Verdict::Passing, reason })
        }
    }
}

fn attempt(order: &Order) -> Outcome {
    if let Some(outcome) = look(order) {
        return outcome;
    }
    let bad = |reason: String| Outcome::Failed { verdict: Verdict::Bad, reason };
    let mut job = match order.watch.job.fill(&order.watch.filling(&order.relpath)) {
        Ok(job) => job,
        Err(problems) => {
            let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return bad(format!("{}: {}", order.watch.job.path.display(), list.join("; ")));
        }
    };
    let wanted = job.engine.memory;
    job.engine.memory = Some(wanted.map_or(order.grant, |own| own.min(order.grant)));
    job.engine.workers.get_or_insert(order.workers);
    if job.engine.devices.is_none() {
        job.engine.devices.clone_from(&order.devices);
    }
    allow_own_outputs(&mut job, &order.made);
    let plan = match Plan::new(&job, &Machine::detect()) {
        Ok(plan) => Arc::new(plan),
        Err(errors) => return refused(order, &errors, wanted),
    };
    if let Err(reason) = (order.planned)(&plan.hash) {
        return Outcome::Failed { verdict: Verdict::Place, reason };
    }
    let observer: Arc<dyn Observer> = Arc::new(Noting(order.progress.clone()));
    let mut outputs: Vec<PathBuf> = plan.outputs.iter().map(|o| o.path.clone()).collect();
    outputs.dedup();
    match execute(&plan, true, observer, order.stop.clone()) {
        Ok(Executed::Ran(report)) => {
            let numbers = Numbers {
                wall_s: report.wall_s,
                bytes_read: report.bytes_read,
                bytes_written: report.bytes_written,
                filled_chunks: report.filled_chunks,
                bottleneck: report.bottleneck.clone(),
            };
            Outcome::Done { hash: plan.hash.clone(), outputs, numbers }
        }
        Ok(Executed::Finished | Executed::AlreadyDone | Executed::PartDone { .. }) => {
            Outcome::Done { hash: plan.hash.clone(), outputs, numbers: Numbers::default() }
        }
        Err(ExecuteError::Stopped { .. }) => Outcome::Stopped,
        Err(ExecuteError::Job(JobError::Changed(_))) => Outcome::Changed,
        Err(error) => match look(order) {
            // What was read while it was being rewritten or removed is nobody's fault.
            Some(moved @ (Outcome::Changed | Outcome::Gone)) => moved,
            _ => Outcome::Failed { verdict: fault::of_execute(&error), reason: error.to_string() },
        },
    }
}

fn refused(order: &Order, errors: &[PlanError], wanted: Option<u64>) -> Outcome {
    if let [PlanError::Memory { smallest, .. }] = errors {
        let ceiling = wanted.map_or(order.memory, |own| own.min(order.memory));
        if *smallest > order.grant && *smallest <= ceiling {
            return Outcome::Needs(*smallest);
        }
        if wanted.is_none_or(|own| own >= *smallest) {
            let reason = format!(
                "this job needs at least {} ({smallest} bytes), the service has {}: raise service.memory",
                format_bytes(*smallest),
                format_bytes(order.memory)
            );
            return Outcome::Failed { verdict: Verdict::Bad, reason };
        }
    }
    if let Some(moved @ (Outcome::Changed | Outcome::Gone)) = look(order) {
        return moved;
    }
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Outcome::Failed { verdict: fault::of_plan(errors), reason: list.join("; ") }
}

/// Outputs that this very input made in an earlier version are replaced; they stand until the new ones are whole.
fn allow_own_outputs(job: &mut JobSpec, made: &[String]) {
    for output in &mut job.outputs {
        let hash = record::hash(&output.path).ok().flatten();
        if hash.is_some_and(|hash| made.contains(&hash)) {
            output.if_exists = IfExists::Overwrite;
        }
    }
}

/// Keeps the last progress for whoever asks.
struct Noting(Arc<Mutex<Progress>>);

impl Observer for Noting {
    fn progress(&self, now: &Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *now;
    }
}
