//! `run --verify N`: recomputes N blocks of the outputs by another way and says what differs.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::run::{Options, Watcher, watch_signals};
use super::{Exit, complain, complain_plan, say};
use crate::config::JobSpec;
use crate::engine::JobError;
use crate::engine::verify::{Compared, VerifyError, verify};
use crate::plan::machine::Machine;
use crate::plan::{Plan, PlanError};
use crate::telemetry::progress::ProgressView;

/// What was asked for on the command line.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub blocks: u64,
    pub seed: Option<u64>,
}

/// A verification that is planned before the job runs, so that nobody waits for a job to learn that it can't be verified.
pub struct Verification {
    plan: Arc<Plan>,
    seed: u64,
    blocks: u64,
    /// Why an output, by graph target, can't be compared.
    skipped: Vec<Option<String>>,
}

impl Verification {
    pub fn new(job: &JobSpec, path: &Path, wanted: Wanted) -> Result<Self, Exit> {
        let machine = Machine::detect();
        let refused = |errors: Vec<PlanError>| complain_plan(path, &errors);
        let usual = Plan::new(job, &machine).map_err(refused)?;
        // A device's results may be compared with its own only.
        let can_deepen = usual.arithmetic == "cpu";
        let deep = if can_deepen { Plan::other_way(job, &machine, true).ok() } else { None };
        let plan = match deep {
            Some(plan) => plan,
            None => Plan::other_way(job, &machine, false).map_err(refused)?,
        };
        let skipped: Vec<Option<String>> = usual
            .outputs
            .iter()
            .map(|output| {
                let why = match (usual.graph.arrays[output.target.array].has_open_length, output.layout.points) {
                    (true, _) => "its cells follow the blocks (trim = false or block_shape)",
                    (_, Some(_)) => "it is a list of points; verify a raster of the same step",
                    _ => return None,
                };
                Some(format!("output `{}` was not verified: {why}", output.name))
            })
            .collect();
        if skipped.iter().all(Option::is_some) {
            for why in skipped.iter().flatten() {
                complain(format!("{}: --verify: {why}", path.display()));
            }
            return Err(Exit::Usage);
        }
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        // Short enough to be typed again.
        let seed = wanted.seed.unwrap_or(clock % 1_000_000_007);
        Ok(Self { plan: Arc::new(plan), seed, blocks: wanted.blocks, skipped })
    }

    /// Compares with the outputs, which stand under their names.
    pub fn run(self, path: &Path, options: &Options) -> Exit {
        let stop = Arc::default();
        let signal = watch_signals(&stop);
        let view = (!options.quiet).then(|| Arc::new(ProgressView::new()));
        let observer = Arc::new(Watcher { view: view.clone(), profile: None, trace: None });
        let skips = |target: usize| self.skipped[target].is_some();
        let result = verify(&self.plan, self.blocks, self.seed, skips, observer, stop);
        if let Some(view) = &view {
            view.finish();
        }
        match result {
            Ok(found) => self.tell(&found, path, options),
            Err(VerifyError::Job(JobError::Stopped)) => {
                super::run::stopped(path, signal.load(std::sync::atomic::Ordering::SeqCst), 0)
            }
            Err(error) => {
                complain(format!("{}: --verify: {error}", path.display()));
                Exit::Failed
            }
        }
    }

    fn tell(&self, found: &[Compared], path: &Path, options: &Options) -> Exit {
        let deep = &self.plan.deepened;
        let how = match deep.len() {
            0 => "in other blocks".to_owned(),
            _ => format!("in other blocks and with twice the halo of {}", deep.join(", ")),
        };
        let mut exit = Exit::Done;
        for output in found {
            let Compared { name, objects, objects_total, cells, difference } = output;
            match difference {
                Some(difference) => {
                    exit = Exit::Failed;
                    complain(format!(
                        "{}: --verify: output `{name}` depends on how it is cut: {difference}; {objects} of {objects_total} blocks \
                         ({cells} cells) were recomputed {how} (seed {}). {}",
                        path.display(),
                        self.seed,
                        self.advice()
                    ));
                }
                None if !options.quiet => say(format!(
                    "verified {name}: {objects} of {objects_total} blocks ({cells} cells) recomputed {how}, no difference (seed {})",
                    self.seed
                )),
                None => {}
            }
        }
        for why in self.skipped.iter().flatten().filter(|_| !options.quiet) {
            say(why);
        }
        exit
    }

    fn advice(&self) -> String {
        let external: Vec<&str> = self.plan.graph.steps.iter().filter(|s| s.op == "external").map(|s| s.name.as_str()).collect();
        match external.is_empty() {
            true => "Please report this job".to_owned(),
            false => {
                format!("Raise the depth of {}, or have its function depend on its block's values only", external.join(", "))
            }
        }
    }
}
