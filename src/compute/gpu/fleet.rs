//! The devices of a run behind one queue: whoever is free takes the next job.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use flume::{RecvTimeoutError, SendTimeoutError, Sender, TrySendError};
use serde::Serialize;

use super::actor::{NOBODY, Refusal, Tally, Ticket, serve};
use super::apply::staging_class;
use super::job::Job;
use super::pinning::{self, Pinning};
use super::pulse::Patience;
use super::{Device, DeviceError, HostMemory};

/// Waiting workers look up this often to see whether the job was stopped, or a device hangs.
pub(super) const LOOK_UP: Duration = Duration::from_millis(50);

/// How often an ending fleet looks whether its threads have ended.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// A device before its actor runs.
pub struct Seat {
    pub label: String,
    /// Bytes that jobs may hold on it at once.
    pub budget: u64,
    /// Opens it, on the actor's own thread; the device, and the bytes free on it where it knows.
    pub open: Box<dyn FnOnce() -> Result<(Box<dyn Device>, Option<u64>), DeviceError> + Send>,
}

/// What workers do where the devices cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuShare {
    /// A block that no device is free for is computed by its worker.
    pub mixes: bool,
    /// When the last device is lost, workers go on alone.
    pub takes_over: bool,
}

/// Why a job was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Undone {
    /// Halve it.
    TooLarge,
    /// No device is free now (asked with `only_if_free`).
    Busy,
    /// No device is left.
    NoneLeft,
    Failed(String),
    Stopped,
}

pub struct Fleet {
    /// Rendezvous: a job leaves its worker when an actor takes it, so none waits behind a slow device.
    tx: Option<Sender<Ticket>>,
    tallies: Vec<Arc<Tally>>,
    threads: Vec<JoinHandle<()>>,
    /// There until the end.
    pinning: Option<Pinning>,
    /// Staging that was used before.
    idle: Mutex<Vec<Box<dyn HostMemory>>>,
    pub cpu: CpuShare,
    pub halved: AtomicU64,
    pub failed_over: AtomicU64,
}

/// A device's part of the run report.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    pub device: String,
    /// Parts of blocks computed there.
    pub jobs: u64,
    pub busy_s: f64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub peak_device_bytes: u64,
    pub out_of_memory: u64,
    /// Why it was lost, if it was.
    pub lost: Option<String>,
}

impl Fleet {
    pub fn start(seats: Vec<Seat>, cpu: CpuShare, pinner: pinning::Open, patience: Patience) -> std::io::Result<Self> {
        let (tx, rx) = flume::bounded(0);
        let mut fleet = Self {
            tx: Some(tx),
            tallies: Vec::new(),
            threads: Vec::new(),
            pinning: Some(Pinning::start(pinner, patience.clone())?),
            idle: Mutex::new(Vec::new()),
            cpu,
            halved: AtomicU64::new(0),
            failed_over: AtomicU64::new(0),
        };
        for (number, seat) in seats.into_iter().enumerate() {
            // Before it is open it may be asked for all of its budget; it says no if it has less.
            let tally = Arc::new(Tally::new(seat.label.clone(), number, seat.budget, patience.clone()));
            fleet.tallies.push(tally.clone());
            tally.pulse.beat();
            let inbox = rx.clone();
            let thread = std::thread::Builder::new().name(seat.label).spawn(move || {
                // A driver that panics must not look like a device that works.
                let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(seat.open));
                match opened {
                    // The rest of the device's memory belongs to the driver and to others.
                    Ok(Ok((device, free))) => {
                        let budget = free.map_or(seat.budget, |free| seat.budget.min(free / 10 * 9));
                        serve(device, budget, inbox, tally);
                    }
                    Ok(Err(error)) => closed(&tally, &format!("it does not open: {error}")),
                    Err(_) => closed(&tally, "its driver panicked when it was opened"),
                }
            })?;
            fleet.threads.push(thread);
        }
        Ok(fleet)
    }

    /// The largest job that every device takes; `None` when all are lost.
    pub fn room(&self) -> Option<u64> {
        self.tallies.iter().map(|t| t.room.load(Ordering::Relaxed)).filter(|room| *room > 0).min()
    }

    /// Whether some device has stopped answering, after a look at all of them.
    fn hangs(&self) -> bool {
        self.tallies.iter().filter(|tally| tally.look()).count() > 0
    }

    /// Host memory of at least `bytes`: used before, pinned, or ordinary.
    pub fn staging(&self, bytes: usize, stop: &AtomicBool) -> Box<dyn HostMemory> {
        let bytes = staging_class(bytes);
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = idle.iter().position(|own| own.bytes().len() == bytes) {
                return idle.swap_remove(at);
            }
            // Sizes change at an array's edges; what has another size goes, so that no more is held than is in use.
            idle.clear();
        }
        // Beside a device that hangs nothing would come.
        let is_over = || stop.load(Ordering::Relaxed) || self.hangs();
        let pinning = self.pinning.as_ref().filter(|_| !is_over());
        let pinned = pinning.and_then(|pinning| pinning.pin(bytes, is_over));
        pinned.unwrap_or_else(|| Box::new(vec![0; bytes]))
    }

    /// Keeps staging for the next job.
    pub fn give_back(&self, staging: Box<dyn HostMemory>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
    }

    /// Runs a job whose inputs are in `staging` on whichever device is free, and waits for it. A job that loses its device
    /// goes to another.
    pub fn run(
        &self,
        job: &Arc<Job>,
        mut staging: Box<dyn HostMemory>,
        refill: impl Fn(&mut [u8]),
        only_if_free: bool,
        stop: &AtomicBool,
    ) -> Result<Box<dyn HostMemory>, Undone> {
        let Some(tx) = &self.tx else { return Err(Undone::NoneLeft) };
        loop {
            let (reply, answer) = flume::bounded(1);
            let taken_by = Arc::new(AtomicUsize::new(NOBODY));
            let mut ticket = Ticket { job: job.clone(), staging, taken_by: taken_by.clone(), reply };
            // Staging that no device took is kept.
            let kept = |ticket: Ticket, why| {
                self.give_back(ticket.staging);
                Err(why)
            };
            if only_if_free {
                match tx.try_send(ticket) {
                    Ok(()) => {}
                    Err(TrySendError::Full(ticket)) => return kept(ticket, Undone::Busy),
                    Err(TrySendError::Disconnected(ticket)) => return kept(ticket, Undone::NoneLeft),
                }
            } else {
                loop {
                    ticket = match tx.send_timeout(ticket, LOOK_UP) {
                        Ok(()) => break,
                        Err(SendTimeoutError::Disconnected(ticket)) => return kept(ticket, Undone::NoneLeft),
                        Err(SendTimeoutError::Timeout(ticket)) => ticket,
                    };
                    if stop.load(Ordering::Relaxed) {
                        return kept(ticket, Undone::Stopped);
                    }
                    // An actor that is stuck in its driver keeps the queue open.
                    if self.hangs() && self.room().is_none() {
                        return kept(ticket, Undone::NoneLeft);
                    }
                }
            }
            let refusal = loop {
                match answer.recv_timeout(LOOK_UP) {
                    Ok(Ok(staging)) => return Ok(staging),
                    Ok(Err(refusal)) => break refusal,
                    // The staging stays with the actor until the device is through with it.
                    Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Undone::Stopped),
                    Err(RecvTimeoutError::Timeout) => {
                        let holder = self.tallies.get(taken_by.load(Ordering::SeqCst));
                        if self.hangs() && holder.is_some_and(|tally| tally.pulse.is_given_up()) {
                            break Refusal::Lost("it hangs".to_owned());
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => break Refusal::Lost("its actor ended".to_owned()),
                }
            };
            match refusal {
                Refusal::TooLarge | Refusal::OutOfMemory => return Err(Undone::TooLarge),
                Refusal::Failed(why) => return Err(Undone::Failed(why)),
                Refusal::Lost(_) => {
                    self.failed_over.fetch_add(1, Ordering::Relaxed);
                    staging = self.staging(job.staging_bytes(), stop);
                    refill(staging.bytes_mut());
                }
            }
        }
    }

    /// Why each lost device was lost, in one text.
    pub fn losses(&self) -> String {
        let mut text = Vec::new();
        for tally in &self.tallies {
            if let Some(why) = tally.lost.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                text.push(format!("{}: {why}", tally.label));
            }
        }
        text.join("; ")
    }

    pub fn reports(&self) -> Vec<DeviceReport> {
        let of = |n: &AtomicU64| n.load(Ordering::SeqCst);
        let report = |t: &Arc<Tally>| DeviceReport {
            device: t.label.clone(),
            jobs: of(&t.jobs),
            busy_s: Duration::from_nanos(of(&t.busy_ns)).as_secs_f64(),
            bytes_up: of(&t.bytes_up),
            bytes_down: of(&t.bytes_down),
            peak_device_bytes: of(&t.peak_bytes),
            out_of_memory: of(&t.out_of_memory),
            lost: t.lost.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        self.tallies.iter().map(report).collect()
    }
}

impl Drop for Fleet {
    /// Closes the queue and waits for the actors, which finish what is in flight. One whose device hangs is left alone, and
    /// so is pinned memory then: to give it back is a call that may wait for that device.
    fn drop(&mut self) {
        self.tx = None;
        for (thread, tally) in self.threads.drain(..).zip(&self.tallies) {
            while !thread.is_finished() && !tally.look() {
                std::thread::sleep(SOON);
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.tallies.iter().any(|tally| tally.pulse.is_given_up()) {
            return std::mem::forget(idle);
        }
        drop(idle);
        if let Some(pinning) = self.pinning.take() {
            pinning.end();
        }
    }
}

/// A device that never came to take jobs.
fn closed(tally: &Tally, why: &str) {
    tally.lose(why);
    tally.pulse.rest();
}
