//! `run` and `plan`: a job file as a plan, the plan as a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::quicklook::pictures;
use super::verify::{Verification, Wanted};
use super::{Exit, complain, complain_plan, read_job, say};
use crate::config::JobSpec;
use crate::config::units::format_bytes;
use crate::engine::execute::{ExecuteError, Executed, execute};
use crate::engine::journal::LedgerError;
use crate::engine::partition::Partition;
use crate::engine::publish::PublishError;
use crate::engine::report::{PartitionReport, RunReport};
use crate::engine::{Observer, Progress, Span};
use crate::plan::machine::Machine;
use crate::plan::{Plan, PlanError, smallest_memory};
use crate::telemetry::page::page;
use crate::telemetry::profile::Profile;
use crate::telemetry::progress::ProgressView;
use crate::telemetry::trace::Trace;

#[derive(Default)]
pub struct Options {
    pub report: Option<PathBuf>,
    pub sync: bool,
    pub quiet: bool,
    /// Where spans of the run go.
    pub trace: Option<PathBuf>,
    /// Where pictures of the outputs go.
    pub quicklook: Option<PathBuf>,
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
    if let Some(folder) = &options.quicklook
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        complain(format!("--quicklook {}: {error}", folder.display()));
        return Exit::Usage;
    }
    let trace = match options.trace.as_deref().map(Trace::create).transpose() {
        Ok(trace) => trace.map(Arc::new),
        Err(error) => {
            let to = options.trace.as_deref().unwrap_or(Path::new(""));
            complain(format!("--trace {}: {error}", to.display()));
            return Exit::Usage;
        }
    };
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
    let profile = options.report.as_deref().is_some_and(is_page).then(|| Arc::new(Profile::new()));
    let observer: Arc<dyn Observer> = Arc::new(Watcher { view: view.clone(), profile: profile.clone(), trace: trace.clone() });
    let result = execute(&plan, options.sync, observer, stop);
    if let Some(view) = &view {
        view.finish();
    }
    if let Some(Err(error)) = trace.as_deref().map(Trace::finish) {
        complain(format!("the trace is not whole: {error}"));
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
            let result = result_line(&plan, &report);
            if !write_report(options, path, &result, &plan, &report, profile.as_deref()) {
                return Exit::Failed;
            }
            if !options.quiet {
                say(result);
            }
            look(options, &plan)
        }
        Ok(nothing) => {
            tracing::info!(job = %plan.hash, "nothing to do");
            let result = match nothing {
                Executed::PartDone { complete } => part_done(&plan, complete),
                Executed::Finished => format!("wrote {}: it was complete before, and has its name now", outputs(&plan)),
                _ => format!("nothing to do: this very job has made {} before", outputs(&plan)),
            };
            if !write_report(options, path, &result, &plan, &nothing_done(&plan), profile.as_deref()) {
                return Exit::Failed;
            }
            if !options.quiet {
                say(result);
            }
            look(options, &plan)
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

/// Pictures of outputs that stand.
fn look(options: &Options, plan: &Plan) -> Exit {
    let Some(folder) = &options.quicklook else { return Exit::Done };
    match pictures(plan, folder) {
        Ok(told) => {
            told.iter().filter(|_| !options.quiet).for_each(say);
            Exit::Done
        }
        Err(error) => {
            complain(format!("--quicklook: the outputs stand, but not all pictures of them: {error}"));
            Exit::Failed
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
    pub profile: Option<Arc<Profile>>,
    pub trace: Option<Arc<Trace>>,
}

impl Observer for Watcher {
    fn progress(&self, now: &Progress) {
        if let Some(view) = &self.view {
            view.progress(now);
        }
        if let Some(profile) = &self.profile {
            profile.progress(now);
        }
    }

    fn span(&self, span: &Span) {
        if let Some(trace) = &self.trace {
            trace.span(span);
        }
    }

    fn hears_spans(&self) -> bool {
        self.trace.is_some()
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

/// A report for people.
fn is_page(report: &Path) -> bool {
    report.extension().is_some_and(|e| e.eq_ignore_ascii_case("html"))
}

/// Writes the report if one is wanted; false when that failed (and was told).
fn write_report(options: &Options, job: &Path, result: &str, plan: &Plan, report: &RunReport, profile: Option<&Profile>) -> bool {
    let Some(to) = &options.report else {
        return true;
    };
    let text = match profile {
        Some(profile) => Ok(page(&job.display().to_string(), result, plan, report, &profile.samples())),
        None => serde_json::to_string_pretty(report).map_err(std::io::Error::other),
    };
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
