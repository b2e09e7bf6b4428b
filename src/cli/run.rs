//! `run` and `plan`: a job file as a plan, the plan as a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::verify::{Verification, Wanted};
use super::{Exit, complain, complain_plan, read_job, say};
use crate::config::JobSpec;
use crate::config::units::format_bytes;
use crate::engine::execute::{ExecuteError, Executed, execute};
use crate::engine::journal::LedgerError;
use crate::engine::partition::Partition;
use crate::engine::publish::PublishError;
use crate::engine::report::{PartitionReport, RunReport};
use crate::engine::{Observer, Progress};
use crate::plan::machine::Machine;
use crate::plan::{Plan, PlanError, smallest_memory};
use crate::telemetry::progress::ProgressView;

pub struct Options {
    pub report: Option<PathBuf>,
    pub sync: bool,
    pub quiet: bool,
    /// This process makes a share of the outputs.
    pub partition: Option<Partition>,
}

pub fn run(path: &Path, sets: &[String], verify: Option<Wanted>, options: &Options) -> Exit {
    let job = match read_job(path, sets) {
        Ok(job) => job,
        Err(exit) => return exit,
    };
    let verification = match verify.map(|wanted| Verification::new(&job, path, wanted)).transpose() {
        Ok(verification) => verification,
        Err(exit) => return exit,
    };
    match (run_job(&job, path, options), verification) {
        (Exit::Done, Some(verification)) => verification.run(path, options),
        (exit, _) => exit,
    }
}

/// Runs a job that is already read; `path` is what messages name.
pub fn run_job(job: &JobSpec, path: &Path, options: &Options) -> Exit {
    if let Some(to) = &options.report
        && let Some(folder) = to.parent().filter(|f| !f.as_os_str().is_empty() && !f.is_dir())
    {
        // Found out after the run, it would be too late.
        complain(format!("--report {}: there is no folder {}", to.display(), folder.display()));
        return Exit::Usage;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let signal = watch_signals(&stop);
    let plan = Plan::new(job, &Machine::detect()).and_then(|plan| match options.partition {
        Some(partition) => plan.share(partition).map_err(|error| vec![error]),
        None => Ok(plan),
    });
    let plan = match plan {
        Ok(plan) => Arc::new(plan),
        Err(errors) => return complain_plan(path, &errors),
    };
    for note in &plan.notes {
        tracing::info!(job = %plan.hash, note = %note);
    }
    let view = (!options.quiet).then(|| Arc::new(ProgressView::new()));
    let observer: Arc<dyn Observer> = Arc::new(Watcher { view: view.clone() });
    let result = execute(&plan, options.sync, observer, stop);
    if let Some(view) = &view {
        view.finish();
    }
    match result {
        Ok(Executed::Ran(report)) => {
            tracing::info!(
                job = %report.job_hash,
                wall_s = report.wall_s,
                bytes_read = report.bytes_read,
                bytes_written = report.bytes_written,
                peak_rss_bytes = report.peak_rss_bytes,
                bottleneck = %report.bottleneck,
                "job done"
            );
            if !write_report(options, &report) {
                return Exit::Failed;
            }
            if !options.quiet {
                say(result_line(&plan, &report));
            }
            Exit::Done
        }
        Ok(nothing) => {
            tracing::info!(job = %plan.hash, "nothing to do");
            if !write_report(options, &nothing_done(&plan)) {
                return Exit::Failed;
            }
            if !options.quiet {
                say(match nothing {
                    Executed::PartDone { complete } => part_done(&plan, complete),
                    Executed::Finished => format!("wrote {}: it was complete before, and has its name now", outputs(&plan)),
                    _ => format!("nothing to do: this very job has made {} before", outputs(&plan)),
                });
            }
            Exit::Done
        }
        Err(ExecuteError::Stopped { stored }) => stopped(path, signal.load(Ordering::SeqCst), stored),
        Err(error) => {
            complain(format!("{}: {error}", path.display()));
            match error {
                ExecuteError::Prepare(PublishError::Exists { .. } | PublishError::Ledger(LedgerError::Busy { .. })) => {
                    Exit::Usage
                }
                _ => Exit::Failed,
            }
        }
    }
}

pub fn stopped(path: &Path, signal: i32, stored: u64) -> Exit {
    let kept = if stored > 0 { "; progress is kept, the same command goes on" } else { "; the same command runs it again" };
    match signal {
        SIGTERM => {
            complain(format!("{}: stopped by SIGTERM before it was done{kept}", path.display()));
            Exit::Terminated
        }
        _ => {
            complain(format!("{}: interrupted before it was done{kept}", path.display()));
            Exit::Interrupted
        }
    }
}

/// Hears of the run for the progress bar.
pub struct Watcher {
    pub view: Option<Arc<ProgressView>>,
}

impl Observer for Watcher {
    fn progress(&self, now: &Progress) {
        if let Some(view) = &self.view {
            view.progress(now);
        }
    }
}

/// SIGINT and SIGTERM stop the job within a block's time; a second one ends the process.
pub fn watch_signals(stop: &Arc<AtomicBool>) -> Arc<AtomicI32> {
    let seen = Arc::new(AtomicI32::new(0));
    let (stop, signal) = (stop.clone(), seen.clone());
    match Signals::new([SIGINT, SIGTERM]) {
        Ok(mut signals) => {
            let watch = move || {
                for number in signals.forever() {
                    if signal.swap(number, Ordering::SeqCst) != 0 {
                        std::process::exit(if number == SIGTERM { 75 } else { 130 });
                    }
                    stop.store(true, Ordering::SeqCst);
                }
            };
            if let Err(error) = std::thread::Builder::new().name("signals".to_owned()).spawn(watch) {
                tracing::warn!(%error, "signals are not watched");
            }
        }
        Err(error) => tracing::warn!(%error, "signals are not watched"),
    }
    seen
}

fn outputs(plan: &Plan) -> String {
    let mut paths: Vec<String> = plan.outputs.iter().map(|o| o.path.display().to_string()).collect();
    paths.dedup();
    paths.join(", ")
}

fn result_line(plan: &Plan, report: &RunReport) -> String {
    let rate = (report.bytes_read + report.bytes_written) as f64 / report.wall_s.max(1e-9);
    let filled = match report.filled_chunks {
        0 => String::new(),
        1 => "; 1 missing chunk read as the fill value".to_owned(),
        n => format!("; {n} missing chunks read as the fill value"),
    };
    format!(
        "{} in {:.2} s, {}/s ({} read, {} written), peak memory {} (limit {}), bottleneck {}{filled}",
        wrote(plan, report),
        report.wall_s,
        format_bytes(rate as u64),
        format_bytes(report.bytes_read),
        format_bytes(report.bytes_written),
        format_bytes(report.peak_rss_bytes),
        format_bytes(report.memory_limit_bytes),
        report.bottleneck
    )
}

/// What stands now.
fn wrote(plan: &Plan, report: &RunReport) -> String {
    match &report.partition {
        Some(part) if part.is_published => {
            format!("wrote {} (partition {}/{} was the last)", outputs(plan), part.index, part.count)
        }
        Some(PartitionReport { index, count, complete, .. }) => {
            format!("wrote partition {index}/{count} of {} ({complete} of {count} are complete)", outputs(plan))
        }
        None => format!("wrote {}", outputs(plan)),
    }
}

fn part_done(plan: &Plan, complete: u64) -> String {
    let (name, count) = plan.partition.map_or_else(Default::default, |p| (p.to_string(), p.count()));
    format!("nothing to do: partition {name} of {} was made before ({complete} of {count} are complete)", outputs(plan))
}

/// The report of a run that found everything done.
fn nothing_done(plan: &Plan) -> RunReport {
    RunReport {
        memory_limit_bytes: plan.memory_limit,
        predicted_peak_bytes: plan.predicted_peak_bytes(),
        blocks_total: plan.blocks_total(),
        blocks_resumed: plan.blocks_total(),
        bottleneck: "none".to_owned(),
        job_hash: plan.hash.clone(),
        arithmetic: plan.arithmetic,
        version: env!("CARGO_PKG_VERSION"),
        ..RunReport::default()
    }
}

/// Writes the report if one is wanted; false when that failed (and was told).
fn write_report(options: &Options, report: &RunReport) -> bool {
    let Some(to) = &options.report else {
        return true;
    };
    let text = serde_json::to_string_pretty(report).map_err(std::io::Error::other);
    match text.and_then(|text| std::fs::write(to, text + "\n")) {
        Ok(()) => true,
        Err(error) => {
            complain(format!("--report {}: the outputs stand, but the report could not be written: {error}", to.display()));
            false
        }
    }
}

pub fn plan(path: &Path, sets: &[String], as_json: bool) -> Exit {
    let mut job = match read_job(path, sets) {
        Ok(job) => job,
        Err(exit) => return exit,
    };
    let machine = Machine::detect();
    let smallest = match smallest_memory(&job, &machine) {
        Ok(smallest) => smallest,
        Err(errors) => return complain_plan(path, &errors),
    };
    match Plan::new(&job, &machine) {
        Ok(plan) if as_json => say(plan.to_json(smallest)),
        Ok(plan) => {
            say(&plan);
            say(format!("           works from {} on", format_bytes(smallest)));
        }
        Err(errors) => {
            let limit = match errors[..] {
                [PlanError::Memory { limit, .. }] => limit,
                _ => return complain_plan(path, &errors),
            };
            if as_json {
                // What it would be like with just enough.
                job.engine.memory = Some(smallest);
                let mut object = match Plan::new(&job, &machine) {
                    Ok(plan) => plan.to_json(smallest),
                    Err(_) => json!({ "smallest_memory_bytes": smallest, "predicted_peak_bytes": smallest, "frontier_bytes": 0 }),
                };
                object["memory_limit_bytes"] = json!(limit);
                object["refused"] = json!(true);
                say(object);
            }
            return complain_plan(path, &errors);
        }
    }
    Exit::Done
}
