//! The command line: arguments, and one function per command. Exit codes are decided here.

mod clean;
mod frames;
mod inspect;
mod ops;
mod partition;
mod quicklook;
mod run;
mod sample;
mod serve;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::job::VERSION;
use crate::config::{self, JobSpec, Problem};
use crate::plan::PlanError;
use crate::service::commands::Which;
use crate::service::manager::Mode;
use crate::telemetry::{LogFormat, start_logging, tell};

/// How a command ended, as the process says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The job failed.
    Failed,
    /// Bad usage or config, or a limit refused.
    Usage,
    /// SIGTERM, progress kept.
    Terminated,
    /// SIGINT, progress kept.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Terminated => 75,
            Exit::Interrupted => 130,
        })
    }
}

#[derive(Parser)]
#[command(
    name = "halostream",
    version,
    about = "Streams arrays larger than memory through windowed operators, reductions and user functions"
)]
struct Args {
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one job.
    Run {
        job: PathBuf,
        /// Change a key of the job file: `--set engine.memory=2GiB`.
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// Write what was done and where time went, as JSON or (with a profile over time) as a page.
        #[arg(long, value_name = "FILE.json|.html")]
        report: Option<PathBuf>,
        /// Do not wait for the disk: faster, for scratch work.
        #[arg(long)]
        no_sync: bool,
        /// Neither progress nor result line; errors are always told.
        #[arg(long)]
        quiet: bool,
        /// Then recompute N random blocks of the outputs in other blocks and with twice the halo: exit 1 if any value differs.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        verify: Option<u64>,
        /// The same blocks again.
        #[arg(long, value_name = "SEED", requires = "verify")]
        verify_seed: Option<u64>,
        /// Write what each thread did when, for Perfetto or chrome://tracing.
        #[arg(long, value_name = "FILE.json")]
        trace: Option<PathBuf>,
        /// Write a picture of each output to this folder: its two longest axes, in the middle of the others.
        #[arg(long, value_name = "FOLDER", conflicts_with = "partition")]
        quicklook: Option<PathBuf>,
        /// Make a share of the outputs' objects, as one of N processes that share the file system: I from 0 to N - 1, or `auto`
        /// for the number that Slurm, LSF, PBS, SGE, Kubernetes, AWS, Google Batch or Cloud Run gives this task.
        #[arg(long, value_name = "I/N", conflicts_with_all = ["no_sync", "verify"])]
        partition: Option<String>,
        /// Added to I, for sites whose arrays of tasks are shorter than N.
        #[arg(long, value_name = "K", requires = "partition", default_value_t = 0)]
        partition_offset: u64,
    },
    /// Say what a job will do, with bytes and memory, and do nothing.
    Plan {
        job: PathBuf,
        /// Change a key of the job file: `--set engine.memory=2GiB`.
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// One JSON object on stdout, also when the memory limit is refused.
        #[arg(long)]
        json: bool,
    },
    /// Check job and service files: every problem, with its line.
    Check {
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Lift files of an older grammar to this one. There is none older: it says so of each file that is right.
        #[arg(long)]
        migrate: bool,
    },
    /// List the operators, or show one with its parameters.
    Ops {
        name: Option<String>,
        /// All of them with their parameters, as `docs/operators.md` has them.
        #[arg(long, hide = true)]
        markdown: bool,
    },
    /// Show an array or a group, or TIFF files as the array that a job reads from them.
    Inspect {
        path: PathBuf,
        /// Array inside a group.
        #[arg(long)]
        array: Option<String>,
        /// Print the job file that made this output.
        #[arg(long)]
        job: bool,
    },
    /// Write a realistic example input.
    Sample {
        /// slc, volume, genotypes, seismic, tiff
        name: String,
        /// A Zarr array (OUT.zarr); of tiff a folder of frames.
        out: PathBuf,
        /// Lengths of the axes: `--shape 2500,1834,17`.
        #[arg(long, value_delimiter = ',', value_name = "N,N,..")]
        shape: Option<Vec<u64>>,
        /// Lengths of a chunk.
        #[arg(long, value_delimiter = ',', value_name = "N,N,..")]
        chunks: Option<Vec<u64>>,
        /// As numpy names it; each kind of sample makes a few.
        #[arg(long)]
        dtype: Option<String>,
        /// none, zstd (default), blosc-lz4, blosc-zstd, gzip
        #[arg(long)]
        codec: Option<String>,
        /// Other values of the same kind.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Most bytes of chunks in memory: `--memory 256MiB`.
        #[arg(long, value_name = "SIZE")]
        memory: Option<String>,
        /// Do not wait for the disk: faster, for scratch work.
        #[arg(long)]
        no_sync: bool,
        /// Neither progress nor result line; errors are always told.
        #[arg(long)]
        quiet: bool,
    },
    /// Remove what unfinished jobs left beside their outputs; those that are running keep theirs.
    Clean {
        /// An output, or a folder that is searched with all below it.
        path: PathBuf,
    },
    /// Run for ever, fed by watched directories.
    Serve {
        service: PathBuf,
        /// Work off what is there, wait for what is settling, and end.
        #[arg(long, conflicts_with = "until_idle")]
        once: bool,
        /// End when nothing happened for so long: `--until-idle 5min`.
        #[arg(long, value_name = "TIME")]
        until_idle: Option<String>,
    },
    /// Show what a service does and did, whether it runs or not.
    Status {
        service: PathBuf,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Have a service process inputs again.
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Requeue {
        service: PathBuf,
        /// An input's name, WATCH/NAME or number.
        #[arg(group = "which")]
        name: Option<String>,
        /// Everything that failed or was given up.
        #[arg(long, group = "which")]
        all: bool,
        /// Everything that was processed under another job file or output.
        #[arg(long, group = "which")]
        changed: bool,
    },
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let shown = error.print();
            let is_help = !error.use_stderr() && shown.is_ok();
            return if is_help { Exit::Done.into() } else { Exit::Usage.into() };
        }
    };
    // Who leaves a service running reads its log; who runs a job reads its result.
    let level = if matches!(args.command, Command::Serve { .. }) { "info,actix_server=warn" } else { "warn" };
    start_logging(args.log_format, level);
    let exit = match args.command {
        Command::Run {
            job,
            sets,
            report,
            no_sync,
            quiet,
            verify,
            verify_seed,
            trace,
            quicklook,
            partition,
            partition_offset,
        } => {
            let partition = partition.map(|text| partition::parse(&text, partition_offset, |name| std::env::var(name).ok()));
            match partition.transpose() {
                Ok(partition) => {
                    let verify = verify.map(|blocks| verify::Wanted { blocks, seed: verify_seed });
                    let options = run::Options { report, sync: !no_sync, quiet, trace, quicklook, partition };
                    run::run(&job, &sets, verify, &options)
                }
                Err(wrong) => {
                    complain(wrong);
                    Exit::Usage
                }
            }
        }
        Command::Plan { job, sets, json } => run::plan(&job, &sets, json),
        Command::Check { files, migrate } => check(&files, migrate),
        Command::Ops { markdown: true, .. } => ops::all(),
        Command::Ops { name, .. } => ops::ops(name.as_deref()),
        Command::Inspect { path, array, job } => inspect::inspect(&path, array.as_deref(), job),
        Command::Sample { name, out, shape, chunks, dtype, codec, seed, memory, no_sync, quiet } => {
            let wanted = sample::Wanted { name, out, shape, chunks, dtype, codec, seed, memory };
            sample::sample(&wanted, &run::Options { sync: !no_sync, quiet, ..run::Options::default() })
        }
        Command::Serve { service, once, until_idle } => match mode(once, until_idle.as_deref()) {
            Ok(mode) => serve::serve(&service, mode),
            Err(message) => {
                complain(message);
                Exit::Usage
            }
        },
        Command::Status { service, json } => serve::status(&service, json),
        Command::Requeue { service, name, all, .. } => serve::requeue(
            &service,
            &match (name, all) {
                (Some(name), _) => Which::Named(name),
                (None, true) => Which::All,
                (None, false) => Which::Changed,
            },
        ),
        Command::Clean { path } => clean::clean(&path),
    };
    exit.into()
}

/// How a service is to end.
fn mode(once: bool, until_idle: Option<&str>) -> Result<Mode, String> {
    match (once, until_idle) {
        (true, _) => Ok(Mode::Once),
        (false, None) => Ok(Mode::Forever),
        (false, Some(time)) => config::units::parse_duration(time).map(Mode::UntilIdle).map_err(|e| format!("--until-idle {e}")),
    }
}

/// Prints to stdout; a reader that went away is no error of ours.
fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn complain(text: impl std::fmt::Display) {
    tell(tracing::Level::ERROR, text);
}

fn complain_all(file: &Path, problems: &[Problem]) {
    let file = file.display().to_string();
    for problem in problems.iter().map(ToString::to_string) {
        // What was wrong with the file itself names it already.
        let is_named = problem.strip_prefix(&file).is_some_and(|rest| rest.starts_with(": "));
        complain(if is_named { problem } else { format!("{file}: {problem}") });
    }
}

/// Reads a job file; problems are printed and exit 2.
fn read_job(path: &Path, sets: &[String]) -> Result<JobSpec, Exit> {
    let mut pairs = Vec::new();
    for set in sets {
        match set.split_once('=') {
            Some((key, value)) => pairs.push((key.trim().to_owned(), value.trim().to_owned())),
            None => {
                complain(format!("--set {set}: expected KEY=VALUE, as in --set engine.memory=2GiB"));
                return Err(Exit::Usage);
            }
        }
    }
    config::job::read(path, &pairs).map_err(|problems| {
        complain_all(path, &problems);
        Exit::Usage
    })
}

fn complain_plan(path: &Path, errors: &[PlanError]) -> Exit {
    for error in errors {
        complain(format!("{}: {error}", path.display()));
    }
    Exit::Usage
}

fn check(files: &[PathBuf], migrate: bool) -> Exit {
    if files.is_empty() {
        complain("check: name at least one job or service file");
        return Exit::Usage;
    }
    let mut exit = Exit::Done;
    for file in files {
        let read = match config::service::is_service(file) {
            true => config::service::read(file).map(drop),
            false => config::job::read(file, &[]).map(drop),
        };
        match read {
            Ok(()) if migrate => {
                say(format!("{}: ok, nothing to lift: version {VERSION} of the grammar is the first", file.display()))
            }
            Ok(()) => say(format!("{}: ok", file.display())),
            Err(problems) => {
                complain_all(file, &problems);
                exit = Exit::Usage;
            }
        }
    }
    exit
}
