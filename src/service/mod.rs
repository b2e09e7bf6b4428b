//! The long-lived process around the engine: `halostream serve`.
//!
//! ```text
//!   watch (a thread each)          after (a thread)    HTTP (a thread)
//!     scan, settle                   archive, hooks      metrics, jobs, commands
//!        | news                         | ended            | commands
//!        +---------------+--------------+------------------+
//!                        v
//!                    manager (one thread): ledger, queue, what runs
//!                        | orders                 ^ outcomes
//!                        v                        |
//!                    job (a thread each, up to max_jobs): plan, execute
//! ```
//!
//! Never early: [`settle`] proves completeness, the job looks again before it reads and after it has read. Never twice:
//! one record per input in the [`ledger`], whose version is its fingerprint. Never lost: scanning is the truth, events only
//! shorten the wait. Never half: outputs are published by the engine as a whole, then noted, then the input is moved.

pub mod after;
mod arrivals;
pub mod client;
pub mod clock;
pub mod commands;
pub mod disk;
pub mod effects;
pub mod events;
pub mod fault;
pub mod http;
pub mod inputs;
pub mod job;
pub mod ledger;
pub mod lock;
pub mod manager;
pub mod manifest;
pub mod metrics;
pub mod quarantine;
pub mod queue;
pub mod record;
pub mod reload;
pub mod running;
pub mod samples;
pub mod scan;
pub mod settle;
pub mod systemd;
pub mod token;
pub mod view;
pub mod watch;
pub mod watches;
pub mod whole;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::service::ServiceSpec;
use crate::plan::machine::Machine;
use clock::{Clock, SystemClock};
use events::{Event, Reporter};
use inputs::Inputs;
use ledger::{Ledger, LedgerError};
use lock::{LockError, StateLock};
use manager::{Draining, Manager, Message, Mode, Tally};
use metrics::Metrics;
use view::View;

/// The ledger's file in the state folder.
pub const LEDGER: &str = "ledger.redb";

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Lock(#[from] LockError),
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    #[error("{0}")]
    Token(String),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: std::net::SocketAddr, error: std::io::Error },
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// How a service ended.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub tally: Tally,
    pub draining: Option<Draining>,
    /// Inputs that were left because they are not complete.
    pub incomplete: u64,
    /// Directories that could not be read at the end.
    pub lost: u64,
    /// Inputs whose last attempt failed and that wait for another.
    pub waiting: u64,
}

/// Bytes of chunks for all jobs together.
pub fn memory_limit(spec: &ServiceSpec) -> u64 {
    spec.memory.unwrap_or_else(|| Machine::detect().memory_available / 2).max(1)
}

/// Where the ledger of a service lies.
pub fn ledger_path(spec: &ServiceSpec) -> std::path::PathBuf {
    spec.state.join(LEDGER)
}

/// Runs a service to its end.
pub fn serve(spec: ServiceSpec, mode: Mode) -> Result<Served, ServeError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut lock = StateLock::take(&spec.state, &spec.path)?;
    let token = spec.token_file.as_deref().map(token::read_or_make).transpose().map_err(ServeError::Token)?;
    let reporter = Arc::new(Reporter::new(Metrics::new()?));
    reporter.metrics.started.set(clock.wall_ms() as f64 / 1000.0);
    reporter.metrics.config_ok.set(1);
    let ledger = Arc::new(Ledger::open(&ledger_path(&spec))?);
    let (inputs, open) = Inputs::load(ledger.clone(), reporter.clone(), clock.clone())?;
    let (tell, told) = flume::unbounded();
    watch_signals(&tell)?;
    let view = Arc::new(View::new(clock.clone()));
    let http = match spec.listen {
        None => None,
        Some(listen) => {
            let shared = http::Shared {
                view: view.clone(),
                reporter: reporter.clone(),
                ledger,
                tell: tell.clone(),
                token,
                is_open: !listen.ip().is_loopback(),
            };
            let http = http::Http::start(listen, shared).map_err(|error| ServeError::Listen { address: listen, error })?;
            lock.listens(http.address)?;
            Some(http)
        }
    };
    let address = http.as_ref().map(|h| h.address.to_string());
    reporter.emit(&Event::ServiceStarted { address, watches: spec.watches.len() }, clock.wall_ms());

    let stop = Arc::new(AtomicBool::new(false));
    let samples = write_samples(&spec, &stop, &tell)?;
    let spec = Arc::new(spec);
    let mut watches = watches::Watches::default();
    watches.follow(&spec, &clock, &tell)?;
    let mut manager = Manager {
        mode,
        memory: memory_limit(&spec),
        cores: Machine::detect().cores,
        inputs,
        queue: queue::Queue::default(),
        watches,
        running: HashMap::new(),
        after: after::After::start(tell.clone())?,
        files: reload::Files::new(&spec.files, clock.wall_ms()),
        reporter: reporter.clone(),
        view,
        clock: clock.clone(),
        random: random(),
        notifier: systemd::Notifier::from_env(),
        tell,
        told,
        draining: None,
        tally: Tally::default(),
        samples_open: samples.is_some(),
        last_change: clock.now(),
        idle_since: None,
        is_ready: false,
        disk: running::Disk::default(),
        next_keeping: Duration::ZERO,
        next_beat: Duration::ZERO,
        next_show: Duration::ZERO,
        spec,
    };
    manager.resume(open);
    let served = manager.run();
    stop.store(true, Ordering::SeqCst);
    if let Some(samples) = samples {
        let _ = samples.join();
    }
    let reason = match (served.draining, mode) {
        (Some(draining), _) if draining.signal == SIGINT => "interrupted",
        (Some(_), _) => "told to stop",
        (None, Mode::UntilIdle(_)) => "idle",
        (None, _) => "everything that was there is done",
    };
    reporter.emit(&Event::ServiceStopped { reason }, clock.wall_ms());
    if let Some(http) = http {
        http.stop();
    }
    drop(lock);
    Ok(served)
}

fn write_samples(
    spec: &ServiceSpec,
    stop: &Arc<AtomicBool>,
    tell: &flume::Sender<Message>,
) -> std::io::Result<Option<std::thread::JoinHandle<()>>> {
    if spec.samples.is_empty() {
        return Ok(None);
    }
    // Where they will lie: a directory that is watched is there before it is looked at.
    for sample in &spec.samples {
        std::fs::create_dir_all(Path::new(&sample.path).parent().unwrap_or(Path::new("/")))?;
    }
    let (samples, stop, tell) = (spec.samples.clone(), stop.clone(), tell.clone());
    let thread = std::thread::Builder::new().name("samples".to_owned()).spawn(move || {
        let _ = tell.send(Message::SamplesEnded(samples::write_all(&samples, &stop)));
    })?;
    Ok(Some(thread))
}

/// Signals as messages. A third SIGINT or SIGTERM ends the process where it stands: everything is safe against that.
fn watch_signals(tell: &flume::Sender<Message>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let tell = tell.clone();
    let watch = move || {
        let mut ends = 0;
        for number in signals.forever() {
            ends += u32::from(number != SIGHUP);
            if ends > 2 {
                std::process::exit(if number == SIGTERM { 75 } else { 130 });
            }
            if tell.send(Message::Signal(number)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// Numbers from 0 to 1 that spread pauses (splitmix64, seeded by the process and the time).
fn random() -> Box<dyn FnMut() -> f64 + Send> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut state = now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32);
    Box::new(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    })
}

/// True when another path is the same state folder's service file; used by commands that talk to it.
pub fn holder_of(spec: &ServiceSpec) -> std::io::Result<Option<lock::Holder>> {
    lock::holder(&spec.state, Path::new(&spec.path))
}
