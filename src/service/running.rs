//! Starts jobs while there is room for them, and takes in how they ended.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::disk;
use super::effects;
use super::events::Event;
use super::fault::Verdict;
use super::inputs::output_text;
use super::job::{self, Order, Outcome};
use super::ledger::{Change, Ledger};
use super::manager::{Manager, Message, Mode};
use super::queue::{Next, pause};
use super::record::{Effect, Key, Record, State};
use crate::config::service::{After, WatchSpec};
use crate::config::units::format_bytes;
use crate::engine::Progress;

/// A job that runs.
pub struct Running {
    pub id: u64,
    /// Of the watch when it started: it ends under that, whatever is reloaded meanwhile.
    pub spec: Arc<WatchSpec>,
    pub name: String,
    pub grant: u64,
    pub stop: Arc<AtomicBool>,
    pub progress: Arc<Mutex<Progress>>,
    pub since: Instant,
}

/// Whether there is room on the disks that are written to.
#[derive(Default)]
pub struct Disk {
    looked: Option<(Duration, String)>,
    pub low: Option<(String, u64)>,
}

/// A disk is asked at most this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Attempts that the service did not survive, beyond `retries`: more of them, and the input is to blame.
const INTERRUPTIONS: u32 = 20;

impl Manager {
    /// What the ledger says is open when the service starts.
    pub fn resume(&mut self, open: Vec<(Key, Record)>) {
        let mut records = Vec::new();
        for (key, mut record) in open {
            let Some(spec) = self.watches.get(key.watch()).map(|w| w.spec.clone()) else { continue };
            match record.state {
                State::Running => {
                    record.interrupted += 1;
                    if record.interrupted > INTERRUPTIONS + spec.retries {
                        let reason = format!("the service ended {} times while it ran this input", record.interrupted);
                        self.quarantine(&key, record, reason, &mut records);
                        continue;
                    }
                    record.attempts = record.attempts.saturating_sub(1);
                    record.state = State::Settled;
                    self.queue.push(key.clone(), spec.priority, self.clock.now(), 0);
                    self.inputs.put_later(&key, &record, &mut records);
                }
                State::Settled => self.queue.push(key.clone(), spec.priority, self.clock.now(), 0),
                State::Failed => {
                    let wait = pause(record.attempts, (self.random)());
                    self.queue.push(key.clone(), spec.priority, self.clock.now() + wait, 0);
                }
                State::Seen | State::Done | State::Quarantined => {}
            }
            if record.effect.is_some() || record.hook {
                self.follow_up(&key, &record);
            }
        }
        self.inputs.write(records);
    }

    pub(super) fn start_jobs(&mut self) {
        while self.draining.is_none() && self.running.len() < self.spec.max_jobs {
            let now = self.clock.now();
            let Some(Next { key, needs }) = self.queue.peek(now) else { return };
            let share = (self.memory / self.spec.max_jobs as u64).max(1);
            let grant = needs.max(share);
            let reserved: u64 = self.running.values().map(|r| r.grant).sum();
            // Whoever needs much goes next all the same: smaller ones that pass it by would keep it waiting for ever.
            if reserved.saturating_add(grant) > self.memory && !self.running.is_empty() {
                return;
            }
            if self.is_disk_low(&key, now) {
                return;
            }
            self.queue.take(&key);
            self.start(&key, grant);
        }
    }

    fn is_disk_low(&mut self, key: &Key, now: Duration) -> bool {
        if self.spec.min_free == 0 {
            return false;
        }
        let Some(watch) = self.watches.get(key.watch()) else { return false };
        let output = watch.spec.output_of(&key.name());
        let is_recent = |(at, of): &(Duration, String)| now.saturating_sub(*at) < LOOK_EVERY && of == key.watch();
        if self.disk.looked.as_ref().is_some_and(is_recent) {
            return self.disk.low.is_some();
        }
        self.disk.looked = Some((now, key.watch().to_owned()));
        let places = [output.parent().unwrap_or(Path::new("/")).to_owned(), self.spec.state.clone()];
        let low = places.iter().find_map(|place| {
            let free = disk::free_bytes(place).ok()?;
            (free < self.spec.min_free).then(|| (place.display().to_string(), free))
        });
        match (&low, &self.disk.low) {
            (Some((place, free)), None) => self.emit(&Event::DiskLow { place, free_bytes: *free }),
            (None, Some(_)) => self.emit(&Event::DiskFreed),
            _ => {}
        }
        self.reporter.metrics.disk_waiting.set(i64::from(low.is_some()));
        self.disk.low = low;
        self.disk.low.is_some()
    }

    fn start(&mut self, key: &Key, grant: u64) {
        let (Some(watch), Some(mut record)) = (self.watches.get(key.watch()), self.inputs.get(key)) else { return };
        let spec = watch.spec.clone();
        let Some(fingerprint) = record.fingerprint else { return };
        record.state = State::Running;
        record.attempts += 1;
        record.started_ms = Some(self.clock.wall_ms());
        // Noted before anything happens: an input that brings the service down is found out.
        self.inputs.put(key, &record);
        self.emit(&Event::JobStarted(&record));
        let stop = Manager::stop_flag();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (ledger, noted) = (self.inputs.ledger.clone(), key.clone());
        let order = Order {
            watch: spec.clone(),
            relpath: String::from_utf8_lossy(key.relpath()).into_owned(),
            fingerprint,
            made: record.made.clone(),
            grant: grant.min(self.memory),
            memory: self.memory,
            workers: (self.cores / self.spec.max_jobs).max(1),
            devices: self.spec.devices.clone(),
            stop: stop.clone(),
            progress: progress.clone(),
            planned: Box::new(move |hash| note_hash(&ledger, &noted, hash)),
        };
        let running = Running { id: record.id, spec, name: record.name.clone(), grant, stop, progress, since: Instant::now() };
        self.running.insert(key.clone(), running);
        let (tell, ended) = (self.tell.clone(), key.clone());
        let work = move || {
            let outcome = job::run(&order);
            // What the job held is given back before its end is told.
            drop(order);
            job::give_back();
            let _ = tell.send(Message::JobEnded(ended, outcome));
        };
        if let Err(error) = std::thread::Builder::new().name(format!("job-{}", record.id)).spawn(work) {
            let reason = format!("can't start a thread: {error}");
            self.job_ended(key, Outcome::Failed { verdict: Verdict::Passing, reason });
        }
    }

    pub(super) fn job_ended(&mut self, key: &Key, outcome: Outcome) {
        let Some(running) = self.running.remove(key) else { return };
        let Some(mut record) = self.inputs.get(key) else { return };
        let spec = &running.spec;
        let now = self.clock.now();
        record.ended_ms = Some(self.clock.wall_ms());
        if !matches!(outcome, Outcome::Failed { verdict: Verdict::Place, .. })
            && let Some(slim) = self.inputs.slim_mut(key)
        {
            slim.place_failures = 0;
        }
        match outcome {
            Outcome::Done { hash, outputs, numbers } => {
                record.state = State::Done;
                (record.reason, record.interrupted) = (None, 0);
                record.outputs = outputs.iter().map(|p| output_text(&job_plain(p))).collect();
                note(&mut record, &hash);
                record.numbers = Some(numbers);
                record.effect = effect_of(spec, &record);
                record.hook = self.spec.on_done.is_some();
                self.inputs.put(key, &record);
                self.tally.done += 1;
                self.emit(&Event::JobDone(&record));
                self.follow_up(key, &record);
                self.look_again(spec, key);
            }
            Outcome::Needs(bytes) => {
                record.state = State::Settled;
                record.attempts -= 1;
                record.reason = Some(format!("waits until {} of service.memory are free", format_bytes(bytes)));
                self.inputs.put(key, &record);
                self.emit(&Event::JobWaits { record: &record, needs_bytes: bytes });
                self.queue.push(key.clone(), spec.priority, now, bytes);
            }
            Outcome::Stopped => {
                record.state = State::Settled;
                record.attempts -= 1;
                record.reason = Some("stopped with the service; progress is kept".to_owned());
                self.tally.cut += 1;
                self.inputs.put(key, &record);
                self.emit(&Event::JobStopped(&record));
            }
            Outcome::Gone if !self.inputs.is_present(key) => self.gone_while_running(key, record),
            Outcome::Changed | Outcome::Gone => {
                record.state = State::Seen;
                record.attempts -= 1;
                record.reason = Some("was changed while it was being read".to_owned());
                self.inputs.put(key, &record);
                self.emit(&Event::InputChanged(&record));
                self.look_again(spec, key);
                self.watches.forget(key.watch(), key.relpath());
            }
            Outcome::Failed { verdict, reason } => self.failed(key, record, verdict, reason, &running.spec.clone()),
        }
    }

    /// Its watch has told that it is gone, and won't again: what was processed before stays so, anything else is dropped.
    fn gone_while_running(&mut self, key: &Key, mut record: Record) {
        self.emit(&Event::InputGone(&record));
        if record.numbers.is_none() {
            return self.inputs.remove(std::slice::from_ref(key));
        }
        record.state = State::Done;
        record.reason = Some("a newer version went before it was processed".to_owned());
        self.inputs.put(key, &record);
    }

    /// A version that came while an older one was running.
    fn look_again(&mut self, spec: &WatchSpec, key: &Key) {
        if let Some(latest) = self.inputs.slim(key).and_then(|s| s.latest) {
            let mut records = Vec::new();
            self.decide(spec, key, latest, &mut records);
            self.inputs.write(records);
        }
    }

    fn failed(&mut self, key: &Key, mut record: Record, verdict: Verdict, reason: String, spec: &WatchSpec) {
        let is_given_up = match verdict {
            Verdict::Bad => true,
            Verdict::Passing => record.attempts > spec.retries,
            Verdict::Place => false,
        };
        if is_given_up {
            let reason = match record.attempts {
                1 => reason,
                n => format!("after {n} attempts: {reason}"),
            };
            let mut records = Vec::new();
            self.quarantine(key, record, reason, &mut records);
            return self.inputs.write(records);
        }
        let failures = match verdict {
            Verdict::Place => {
                record.attempts -= 1;
                self.inputs.slim_mut(key).map_or(1, |slim| {
                    slim.place_failures = slim.place_failures.saturating_add(1);
                    slim.place_failures
                })
            }
            _ => record.attempts,
        };
        record.state = State::Failed;
        record.reason = Some(reason);
        let wait = pause(failures, (self.random)());
        self.inputs.put(key, &record);
        self.tally.retried += 1;
        self.emit(&Event::JobRetried { record: &record, pause_s: wait.as_secs_f64() });
        self.queue.push(key.clone(), spec.priority, self.clock.now() + wait, 0);
    }

    /// Waiting inputs that a service which ends does not wait for: their outputs' place failed again and again.
    pub(super) fn left_waiting(&self) -> usize {
        if self.mode != Mode::Once {
            return 0;
        }
        let is_left = |key: &Key| {
            let retries = self.watches.get(key.watch()).map_or(0, |w| w.spec.retries);
            self.inputs.slim(key).is_some_and(|s| s.place_failures > retries)
        };
        self.inputs.iter().filter(|(key, slim)| slim.state == State::Failed && is_left(key)).count()
    }
}

fn job_plain(path: &Path) -> std::path::PathBuf {
    crate::config::job::plain(path)
}

/// What is to become of the input, decided once: a second look after a kill must find the same place.
fn effect_of(spec: &WatchSpec, record: &Record) -> Option<Effect> {
    match &spec.after {
        After::Keep => None,
        After::Delete => Some(Effect::Delete),
        After::Archive(folder) => {
            let name = record.name.replace('/', "_");
            Some(Effect::Archive(output_text(&effects::free_place(folder, &name))))
        }
    }
}

fn note(record: &mut Record, hash: &str) {
    record.made.retain(|made| made != hash);
    record.made.push(hash.to_owned());
    // More versions than this don't stand anywhere any more.
    let extra = record.made.len().saturating_sub(16);
    record.made.drain(..extra);
}

/// Notes the hash of a job before it writes anything: if the service dies between publishing and noting the end, the
/// output is known as this input's own.
fn note_hash(ledger: &Ledger, key: &Key, hash: &str) -> Result<(), String> {
    let found = ledger.get(key).map_err(|e| e.to_string())?;
    let Some(mut record) = found.filter(|r| !r.made.iter().any(|made| made == hash)) else { return Ok(()) };
    note(&mut record, hash);
    ledger.commit(&[Change::Put(key.clone(), Box::new(record))]).map_err(|e| e.to_string())
}
