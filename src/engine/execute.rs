//! One plan from what stands on disk to published outputs: the call that `run` and `serve` share.
//!
//! Finds what an earlier run of the same job left, computes the rest, makes sure that the inputs are still what the plan
//! saw, and gives the outputs their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use super::journal::ObjectId;
use super::publish::{Prepared, PublishError, prepare};
use super::report::RunReport;
use super::{JobError, Observer, Progress, Span, resume};
use crate::plan::Plan;
use crate::writer::Sink;

/// How a job ended well.
#[derive(Debug)]
pub enum Executed {
    /// Computed and published; a partition's outputs may still wait for others ([`RunReport::partition`]).
    Ran(Box<RunReport>),
    /// All outputs were complete; an interrupted publishing was finished.
    Finished,
    /// This very job had made its outputs before.
    AlreadyDone,
    /// This partition had made its share before; so many partitions have.
    PartDone { complete: u64 },
}

/// Why a job has no outputs yet.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// Nothing was computed: what stands at the outputs' places, or the places themselves, do not allow it.
    #[error("{0}")]
    Prepare(PublishError),
    /// Stopped by its flag; `stored` objects are kept for the next run.
    #[error("stopped with {stored} objects stored")]
    Stopped { stored: u64 },
    #[error("{0}")]
    Job(JobError),
}

/// Runs a plan to published outputs. `sync` waits for the disk; `stop` ends the run within a block's time.
pub fn execute(
    plan: &Arc<Plan>,
    sync: bool,
    observer: Arc<dyn Observer>,
    stop: Arc<AtomicBool>,
) -> Result<Executed, ExecuteError> {
    let (staging, sinks, done, kept) = match prepare(plan, sync).map_err(ExecuteError::Prepare)? {
        Prepared::Ready { staging, sinks, done, stored } => (staging, sinks, done, stored),
        Prepared::PartDone { complete } => return Ok(Executed::PartDone { complete }),
        Prepared::Finished => return Ok(Executed::Finished),
        Prepared::AlreadyDone => return Ok(Executed::AlreadyDone),
    };
    tracing::info!(
        job = %plan.hash,
        blocks = plan.blocks_total(),
        memory_limit_bytes = plan.memory_limit,
        workers = plan.workers,
        "job started"
    );
    let noting = Arc::new(Noting { inner: observer, teller: staging.teller(), sinks: sinks.clone(), stored: AtomicU64::new(0) });
    let result = resume(plan.clone(), sinks, done, noting.clone(), stop);
    let stored = kept + noting.stored.load(Ordering::Relaxed);
    // The journal ends when nobody can tell it anything any more.
    drop(noting);
    match staging.end(plan, result, stored) {
        Ok(report) => Ok(Executed::Ran(Box::new(report))),
        Err(JobError::Stopped) => Err(ExecuteError::Stopped { stored }),
        Err(error) => Err(ExecuteError::Job(error)),
    }
}

/// Tells the ledger of stored objects, and the caller's observer of everything.
struct Noting {
    inner: Arc<dyn Observer>,
    teller: Option<Sender<ObjectId>>,
    sinks: Vec<Arc<dyn Sink>>,
    stored: AtomicU64,
}

impl Observer for Noting {
    fn block_done(&self, phase: usize, number: u64) {
        self.inner.block_done(phase, number);
    }

    fn object_written(&self, target: usize, object: &[u64], bytes: u64) {
        let noted = self.sinks[target].noted(object);
        self.stored.fetch_add(noted.len() as u64, Ordering::Relaxed);
        if let Some(teller) = &self.teller {
            // A ledger that can't be written is told when it is closed; the objects count by their names all the same.
            let _ = noted.into_iter().try_for_each(|number| teller.send((target as u32, number)));
        }
        self.inner.object_written(target, object, bytes);
    }

    fn progress(&self, now: &Progress) {
        self.inner.progress(now);
    }

    fn span(&self, span: &Span) {
        self.inner.span(span);
    }

    fn hears_spans(&self) -> bool {
        self.inner.hears_spans()
    }
}
