//! How a run ends: outputs are published, or what is stored is kept for the next run.

use super::JobError;
use super::publish::{Published, Staging};
use super::report::{PartitionReport, RunReport};
use crate::plan::Plan;

impl Staging {
    /// Publishes a run that came to its end over inputs that did not change; keeps the progress of any other. `stored`:
    /// objects that stand, of this run and of earlier ones.
    pub fn end(self, plan: &Plan, result: Result<RunReport, JobError>, stored: u64) -> Result<RunReport, JobError> {
        let ended = result.and_then(|report| check_inputs(plan).map(|()| report));
        match ended {
            Ok(mut report) => {
                let published = self.publish()?;
                report.partition = plan.partition.map(|partition| PartitionReport {
                    index: partition.index(),
                    count: partition.count(),
                    complete: match published {
                        Published::Whole => partition.count(),
                        Published::Part { complete } => complete,
                    },
                    is_published: published == Published::Whole,
                });
                Ok(report)
            }
            Err(error) => {
                match error {
                    // What was made of both the old and the new input is worth nothing.
                    JobError::Changed(_) => self.abandon(),
                    _ => self.keep(stored),
                }
                Err(error)
            }
        }
    }
}

/// The files of the inputs must be those that the plan saw.
fn check_inputs(plan: &Plan) -> Result<(), JobError> {
    for input in &plan.inputs {
        if input.stamps()? != input.stamps {
            return Err(JobError::Changed(input.meta.name.clone()));
        }
    }
    Ok(())
}
