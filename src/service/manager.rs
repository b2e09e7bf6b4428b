//! The service's one thread that decides: it owns the ledger, the queue and what runs. Everything else tells it what
//! happened through one channel and waits for nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flume::{Receiver, RecvTimeoutError, Sender};
use serde_json::Value;

use super::Served;
use super::after::{After, AfterEnded};
use super::clock::Clock;
use super::commands::Command;
use super::events::{Event, Reporter};
use super::inputs::{Inputs, is_over};
use super::job::Outcome;
use super::queue::Queue;
use super::record::{Key, Record};
use super::reload::Files;
use super::running::Running;
use super::systemd::Notifier;
use super::view::View;
use super::watch;
use super::watches::Watches;
use crate::config::service::ServiceSpec;

/// How the service ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forever,
    /// When what is there is worked off.
    Once,
    /// When nothing happened for so long.
    UntilIdle(Duration),
}

/// What the manager is told.
pub enum Message {
    Scanned(watch::Report),
    JobEnded(Key, Outcome),
    AfterEnded(AfterEnded),
    SamplesEnded(Result<(), String>),
    Signal(i32),
    /// With the place for the answer.
    Command(Command, Sender<Value>),
}

/// Why it stops.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    pub since: Duration,
    pub signal: i32,
    /// Running jobs were told to stop.
    pub is_cut: bool,
}

/// Numbers of this run of the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub done: u64,
    pub quarantined: u64,
    pub retried: u64,
    /// Stopped before their end.
    pub cut: u64,
    pub failures: u64,
}

pub struct Manager {
    pub spec: Arc<ServiceSpec>,
    pub mode: Mode,
    pub memory: u64,
    pub cores: usize,
    pub inputs: Inputs,
    pub queue: Queue,
    pub watches: Watches,
    pub running: HashMap<Key, Running>,
    pub after: After,
    pub files: Files,
    pub reporter: Arc<Reporter>,
    pub view: Arc<View>,
    pub clock: Arc<dyn Clock>,
    /// From 0 to 1, for pauses.
    pub random: Box<dyn FnMut() -> f64 + Send>,
    pub notifier: Notifier,
    pub tell: Sender<Message>,
    pub told: Receiver<Message>,
    pub draining: Option<Draining>,
    pub tally: Tally,
    pub samples_open: bool,
    /// When something last ended or began: what is scanned after that is all there is.
    pub last_change: Duration,
    pub idle_since: Option<Duration>,
    pub is_ready: bool,
    pub disk: super::running::Disk,
    pub next_keeping: Duration,
    pub next_beat: Duration,
    pub next_show: Duration,
}

/// Longest time between two looks at clocks, files and the disk.
const TICK: Duration = Duration::from_millis(500);
/// Messages worked off before the queue is looked at again.
const BURST: usize = 64;
/// Between two looks for records that are older than `ledger_keep`.
const KEEPING: Duration = Duration::from_secs(3600);

impl Manager {
    /// Decides until there is nothing left to decide.
    pub fn run(mut self) -> Served {
        self.show();
        loop {
            let wait = self.wait();
            match self.told.recv_timeout(wait) {
                Ok(message) => {
                    self.handle(message);
                    for _ in 0..BURST {
                        let Ok(message) = self.told.try_recv() else { break };
                        self.handle(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.housekeep();
            self.start_jobs();
            self.show();
            if self.is_over() {
                break;
            }
        }
        self.watches.stop();
        Served {
            tally: self.tally,
            draining: self.draining,
            incomplete: self.watches.iter().map(|w| w.incomplete).sum(),
            lost: self.watches.iter().filter(|w| w.error.is_some()).count() as u64,
            waiting: self.queue.len() as u64,
        }
    }

    fn wait(&self) -> Duration {
        let now = self.clock.now();
        let next = self.queue.next_ready().map(|at| at.saturating_sub(now));
        next.map_or(TICK, |next| next.min(TICK)).max(Duration::from_millis(1))
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Scanned(report) => self.scanned(report),
            Message::JobEnded(key, outcome) => {
                self.last_change = self.clock.now();
                self.job_ended(&key, outcome);
            }
            Message::AfterEnded(ended) => {
                self.last_change = self.clock.now();
                self.after_ended(ended);
            }
            Message::SamplesEnded(result) => {
                self.last_change = self.clock.now();
                self.samples_open = false;
                if let Err(error) = result {
                    self.tally.failures += 1;
                    self.emit(&Event::SampleFailed { error: &error });
                }
            }
            Message::Signal(libc::SIGHUP) => self.reload(true),
            Message::Signal(signal) => self.drain(signal),
            Message::Command(command, answer) => {
                let value = self.command(command);
                // Whoever asked may have gone.
                let _ = answer.try_send(value);
            }
        }
    }

    pub fn emit(&self, event: &Event<'_>) {
        self.reporter.emit(event, self.clock.wall_ms());
    }

    /// Starts nothing more; jobs get `grace` to end, then they are stopped and keep their progress. A second signal does
    /// not wait.
    fn drain(&mut self, signal: i32) {
        let now = self.clock.now();
        match &mut self.draining {
            Some(draining) => draining.since = now.saturating_sub(self.spec.grace),
            None => {
                self.draining = Some(Draining { since: now, signal, is_cut: false });
                self.emit(&Event::ServiceDraining { running: self.running.len() });
                self.notifier.tell("STOPPING=1");
            }
        }
    }

    fn housekeep(&mut self) {
        let now = self.clock.now();
        if let Some(draining) = &mut self.draining
            && !draining.is_cut
            && now.saturating_sub(draining.since) >= self.spec.grace
        {
            draining.is_cut = true;
            for running in self.running.values() {
                running.stop.store(true, Ordering::SeqCst);
            }
        }
        self.reload(false);
        self.after.retry(now);
        if self.watches.are_scanned() && !self.is_ready && self.draining.is_none() {
            self.is_ready = true;
            self.next_show = Duration::ZERO;
            self.emit(&Event::ServiceReady);
            self.notifier.tell("READY=1");
            self.next_keeping = now;
        }
        if self.is_ready && now >= self.next_keeping {
            self.next_keeping = now + KEEPING;
            self.forget_old();
        }
        if let Some(every) = self.notifier.watchdog
            && now >= self.next_beat
        {
            self.next_beat = now + every;
            self.notifier.tell("WATCHDOG=1");
        }
    }

    /// Records of inputs that are gone are kept for `ledger_keep`. What is still there is never forgotten: it would run
    /// again. A clock that was set back makes records younger, never older.
    fn forget_old(&mut self) {
        let keep = i64::try_from(self.spec.ledger_keep.as_millis()).unwrap_or(i64::MAX);
        let now = self.clock.wall_ms();
        let is_old = |record: &Record| {
            is_over(record.state) && now.checked_sub(record.ended_ms.unwrap_or(0)).is_some_and(|age| age > keep)
        };
        let is_gone = |key: &Key| self.watches.is_up(key.watch()) && !self.inputs.is_present(key);
        let old = self.inputs.ledger.fold(Vec::new, |old, key, record| {
            if is_old(&record) && is_gone(&key) {
                old.push(key);
            }
        });
        match old {
            Ok(old) => self.inputs.remove(&old),
            Err(error) => self.emit(&Event::LedgerFailed { error: &error.to_string() }),
        }
    }

    /// Nothing runs, waits, settles or is on its way, and every directory was scanned since the last time that it did.
    fn is_idle(&self) -> bool {
        let waits = self.queue.len() > self.left_waiting();
        !self.samples_open
            && !waits
            && self.running.is_empty()
            && self.after.is_empty()
            && self.watches.are_quiet(self.last_change)
    }

    fn is_over(&mut self) -> bool {
        if self.draining.is_some() {
            return self.running.is_empty() && self.after.is_empty();
        }
        let now = self.clock.now();
        if !self.is_idle() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        match self.mode {
            Mode::Forever => false,
            Mode::Once => true,
            Mode::UntilIdle(time) => now.saturating_sub(since) >= time,
        }
    }

    /// A flag of its own for each job, so that one can be stopped without the others.
    pub fn stop_flag() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(false))
    }
}
