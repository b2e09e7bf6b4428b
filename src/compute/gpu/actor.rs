//! One actor per device, on its own thread: takes jobs from the queue that all devices share, keeps several in flight on the
//! device's three queues, and answers each.
//!
//! Out of memory: buffers kept for reuse go first, then the actor waits for a job in flight to land, and only a job that is
//! alone on its device is given back, for its worker to halve. Lost: everything is given back, the thread ends, and the
//! other devices go on with the same queue. Hung (`pulse`): lost as well, but nothing that the device was given is touched
//! again, since it may wake up and use it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flume::{Receiver, Sender, TryRecvError};

use super::job::{Job, rounded};
use super::pulse::{Patience, Pulse};
use super::{Device, DeviceError, HostMemory, Mark, Memory, Queue};

/// One is uploaded, one computed, one downloaded: more would only hold memory.
const IN_FLIGHT: usize = 3;
/// How often the oldest job is looked at while others may come: short beside a copy of 1 MiB.
const LOOK_UP: Duration = Duration::from_micros(100);

/// A job on its way to a device, with the host memory that holds its inputs and takes its outputs.
pub struct Ticket {
    pub job: Arc<Job>,
    pub staging: Box<dyn HostMemory>,
    /// Number of the device that took it; [`NOBODY`] before.
    pub taken_by: Arc<AtomicUsize>,
    pub reply: Sender<Result<Box<dyn HostMemory>, Refusal>>,
}

/// No device has this number.
pub const NOBODY: usize = usize::MAX;

/// Why a job came back undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It needs more than the device's budget: halve it.
    TooLarge,
    /// The device had less than its budget: halve it.
    OutOfMemory,
    /// The device is gone: another may do it.
    Lost(String),
    /// It would fail anywhere.
    Failed(String),
}

/// What an actor did, for reports.
pub struct Tally {
    /// `cuda:0`
    pub label: String,
    /// Its place among the devices of the run.
    pub number: usize,
    pub pulse: Pulse,
    pub jobs: AtomicU64,
    pub bytes_up: AtomicU64,
    pub bytes_down: AtomicU64,
    /// Time with at least one job in flight.
    pub busy_ns: AtomicU64,
    pub out_of_memory: AtomicU64,
    /// Most bytes allocated on the device at once.
    pub peak_bytes: AtomicU64,
    /// The largest job that it takes now; 0 once it is lost.
    pub room: AtomicU64,
    pub lost: Mutex<Option<String>>,
}

impl Tally {
    /// Of a device that takes jobs of up to `room` bytes.
    pub fn new(label: String, number: usize, room: u64, patience: Patience) -> Self {
        Self {
            label,
            number,
            pulse: Pulse::new(patience),
            jobs: AtomicU64::new(0),
            bytes_up: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            out_of_memory: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            room: AtomicU64::new(room),
            lost: Mutex::new(None),
        }
    }

    /// Notes that the device takes no more jobs. The first reason stays.
    pub fn lose(&self, why: &str) {
        self.room.store(0, Ordering::Relaxed);
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.is_none() {
            tracing::warn!(device = %self.label, why, "device lost");
            *lost = Some(why.to_owned());
        }
    }

    /// Gives the device up when it has been silent for too long; whether it is given up.
    pub fn look(&self) -> bool {
        if let Some(why) = self.pulse.look() {
            self.lose(&why);
        }
        self.pulse.is_given_up()
    }
}

struct Flight {
    ticket: Ticket,
    buffers: Vec<(usize, Memory)>,
    /// Passed when the outputs are in the staging.
    landed: Option<Mark>,
}

struct Actor {
    device: Box<dyn Device>,
    budget: u64,
    inbox: Receiver<Ticket>,
    tally: Arc<Tally>,
    flying: VecDeque<Flight>,
    /// Taken from the inbox, but without room on the device yet.
    waiting: Option<Ticket>,
    /// Buffers kept for the next job: freeing one would wait for the whole device.
    idle: Vec<(usize, Memory)>,
    /// Bytes allocated: in flight and idle.
    held: u64,
    busy_since: Option<Instant>,
}

/// Serves a device until the inbox closes or the device is lost.
pub fn serve(device: Box<dyn Device>, budget: u64, inbox: Receiver<Ticket>, tally: Arc<Tally>) {
    if !tally.pulse.is_given_up() {
        tally.room.store(budget, Ordering::Relaxed);
    }
    let mut actor = Actor {
        device,
        budget,
        inbox,
        tally,
        flying: VecDeque::new(),
        waiting: None,
        idle: Vec::new(),
        held: 0,
        busy_since: None,
    };
    let ended = catch_unwind(AssertUnwindSafe(|| actor.run()));
    let why = match ended {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(_) => Some("its actor panicked".to_owned()),
    };
    actor.count_busy();
    if actor.tally.pulse.is_given_up() {
        return actor.abandon();
    }
    actor.tally.pulse.beat();
    // Nobody may take staging back while the device could still write to it.
    let _ = catch_unwind(AssertUnwindSafe(|| actor.device.quiesce()));
    if let Some(why) = why {
        actor.tally.lose(&why);
        // Its memory went with it: nothing is freed.
        for ticket in actor.flying.drain(..).map(|f| f.ticket).chain(actor.waiting.take()) {
            let _ = ticket.reply.send(Err(Refusal::Lost(why.clone())));
        }
    } else {
        actor.free_idle();
    }
    let tally = actor.tally.clone();
    drop(actor);
    tally.pulse.rest();
}

impl Actor {
    /// `Err`: the device is lost.
    fn run(&mut self) -> Result<(), String> {
        loop {
            while self.flying.len() < IN_FLIGHT {
                self.answers()?;
                let ticket = match self.waiting.take() {
                    Some(ticket) => ticket,
                    None if self.flying.is_empty() => {
                        self.tally.pulse.rest();
                        match self.inbox.recv() {
                            Ok(ticket) => ticket,
                            Err(_) => return Ok(()),
                        }
                    }
                    None => match self.inbox.try_recv() {
                        Ok(ticket) => ticket,
                        Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                    },
                };
                self.tally.pulse.beat();
                ticket.taken_by.store(self.tally.number, Ordering::SeqCst);
                self.start(ticket)?;
                if self.waiting.is_some() {
                    break;
                }
            }
            self.land()?;
        }
    }

    /// `Err`: the device was given up, by this actor or by a worker that waits for it.
    fn answers(&self) -> Result<(), String> {
        match self.tally.look() {
            true => Err("it hangs".to_owned()),
            false => Ok(()),
        }
    }

    /// Ends without another call to a device that does not answer: such a call may never return, and what the device was
    /// given it may still use. Leaked are its own things and the staging of the jobs in flight.
    fn abandon(mut self) {
        let why = self.tally.lost.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        for flight in self.flying.drain(..) {
            let Ticket { staging, reply, .. } = flight.ticket;
            std::mem::forget(staging);
            let _ = reply.send(Err(Refusal::Lost(why.clone())));
        }
        if let Some(Ticket { staging, reply, .. }) = self.waiting.take() {
            std::mem::forget(staging);
            let _ = reply.send(Err(Refusal::Lost(why)));
        }
        std::mem::forget(self.device);
    }

    /// Enqueues a job, answers it, or keeps it waiting for room.
    fn start(&mut self, ticket: Ticket) -> Result<(), String> {
        let job = ticket.job.clone();
        if job.device_bytes() > self.budget {
            let _ = ticket.reply.send(Err(Refusal::TooLarge));
            return Ok(());
        }
        let buffers = match self.provide(&job) {
            Ok(buffers) => buffers,
            Err(error) => return self.refuse(ticket, error),
        };
        self.busy_since.get_or_insert_with(Instant::now);
        // In flight before anything is enqueued, so that a loss in between finds it.
        self.flying.push_back(Flight { ticket, buffers, landed: None });
        match self.enqueue() {
            Ok(()) => Ok(()),
            Err(DeviceError::Lost(why)) => Err(why),
            Err(error) => {
                self.device.quiesce();
                let Some(flight) = self.flying.pop_back() else { return Ok(()) };
                let has_idle = !self.idle.is_empty();
                self.idle.extend(flight.buffers);
                match error {
                    // What was kept for reuse may be all that a launch lacks.
                    DeviceError::OutOfMemory(_) if has_idle => {
                        self.free_idle();
                        self.waiting = Some(flight.ticket);
                        Ok(())
                    }
                    error => self.refuse(flight.ticket, error),
                }
            }
        }
    }

    /// Kernels and buffers of a job. `OutOfMemory` also where the budget is what is used up.
    fn provide(&mut self, job: &Job) -> Result<Vec<(usize, Memory)>, DeviceError> {
        let mut prepared = self.device.prepare(&job.program);
        if matches!(prepared, Err(DeviceError::OutOfMemory(_))) && !self.idle.is_empty() {
            self.free_idle();
            prepared = self.device.prepare(&job.program);
        }
        // A device that the kernels cannot be made ready for is as good as none: another, or the CPU, may do it.
        prepared.map_err(|error| match error {
            DeviceError::Failed(why) => DeviceError::Lost(why),
            other => other,
        })?;
        let mut buffers = Vec::new();
        for size in job.sizes().map(rounded) {
            match self.take(size) {
                Ok(memory) => buffers.push((size, memory)),
                Err(error) => {
                    self.idle.append(&mut buffers);
                    return Err(error);
                }
            }
        }
        Ok(buffers)
    }

    /// What becomes of a job that could not be enqueued: it waits for room while others fly, else it is given back.
    fn refuse(&mut self, ticket: Ticket, error: DeviceError) -> Result<(), String> {
        let refusal = match error {
            DeviceError::Lost(why) => {
                self.waiting = Some(ticket);
                return Err(why);
            }
            DeviceError::OutOfMemory(_) if !self.flying.is_empty() => {
                self.free_idle();
                self.waiting = Some(ticket);
                return Ok(());
            }
            // It has the device to itself: what does not fit now will not fit later.
            DeviceError::OutOfMemory(_) => {
                self.free_idle();
                self.tally.out_of_memory.fetch_add(1, Ordering::Relaxed);
                self.budget = self.budget.min(ticket.job.device_bytes() - 1);
                self.tally.room.store(self.budget, Ordering::Relaxed);
                Refusal::OutOfMemory
            }
            DeviceError::Failed(why) => Refusal::Failed(why),
        };
        if self.flying.is_empty() {
            self.count_busy();
        }
        let _ = ticket.reply.send(Err(refusal));
        Ok(())
    }

    /// A buffer of `size` bytes: an idle one, or a new one inside the budget.
    fn take(&mut self, size: usize) -> Result<Memory, DeviceError> {
        if let Some(at) = self.idle.iter().position(|(own, _)| *own == size) {
            return Ok(self.idle.swap_remove(at).1);
        }
        if self.held + size as u64 > self.budget {
            self.free_idle();
        }
        if self.held + size as u64 > self.budget {
            return Err(DeviceError::OutOfMemory(size as u64));
        }
        let found = match self.device.alloc(size) {
            Err(DeviceError::OutOfMemory(_)) if !self.idle.is_empty() => {
                self.free_idle();
                self.device.alloc(size)
            }
            found => found,
        };
        let memory = found?;
        self.held += size as u64;
        self.tally.peak_bytes.fetch_max(self.held, Ordering::Relaxed);
        Ok(memory)
    }

    fn free_idle(&mut self) {
        for (size, memory) in self.idle.drain(..) {
            self.device.free(memory);
            self.held -= size as u64;
        }
    }

    /// The newest flight onto the device's queues: kernels wait for its upload, its download for the kernels.
    fn enqueue(&mut self) -> Result<(), DeviceError> {
        let Some(flight) = self.flying.back_mut() else { return Ok(()) };
        let job = &flight.ticket.job;
        let memory: Vec<Memory> = flight.buffers.iter().map(|b| b.1).collect();
        let staging = flight.ticket.staging.bytes_mut();
        let device = &mut self.device;
        // SAFETY: staging and buffers stay with the flight, which is let go when `landed` is passed or after `quiesce`.
        // Buffers are as long as the job says, and whoever made the job answers for its launches.
        unsafe {
            for i in 0..job.inputs.len() {
                device.upload(&staging[job.staged(i)], memory[i])?;
            }
            let uploaded = device.mark(Queue::Upload)?;
            device.wait(Queue::Compute, uploaded)?;
            for launch in &job.launches {
                device.launch(&job.program, launch, &memory)?;
            }
            let computed = device.mark(Queue::Compute)?;
            device.wait(Queue::Download, computed)?;
            for i in job.inputs.len()..job.inputs.len() + job.outputs.len() {
                device.download(memory[i], &mut staging[job.staged(i)])?;
            }
        }
        flight.landed = Some(device.mark(Queue::Download)?);
        Ok(())
    }

    /// Lets the oldest flight land, or returns with a new job in `waiting` when one comes first.
    fn land(&mut self) -> Result<(), String> {
        while let Some(mark) = self.flying.front().and_then(|f| f.landed) {
            match self.device.is_passed(mark) {
                Ok(true) => break,
                Ok(false) => self.answers()?,
                Err(error) => return Err(error.to_string()),
            }
            if self.waiting.is_some() || self.flying.len() == IN_FLIGHT {
                std::thread::sleep(LOOK_UP);
                continue;
            }
            match self.inbox.recv_timeout(LOOK_UP) {
                Ok(ticket) => {
                    self.waiting = Some(ticket);
                    return Ok(());
                }
                Err(flume::RecvTimeoutError::Timeout) => {}
                Err(flume::RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_UP),
            }
        }
        let Some(flight) = self.flying.pop_front() else { return Ok(()) };
        match self.flying.is_empty() {
            true => self.tally.pulse.rest(),
            false => self.tally.pulse.beat(),
        }
        let job = &flight.ticket.job;
        let bytes = |list: &[usize]| list.iter().sum::<usize>() as u64;
        self.tally.jobs.fetch_add(1, Ordering::SeqCst);
        self.tally.bytes_up.fetch_add(bytes(&job.inputs), Ordering::Relaxed);
        self.tally.bytes_down.fetch_add(bytes(&job.outputs), Ordering::Relaxed);
        self.idle.extend(flight.buffers);
        if self.flying.is_empty() {
            self.count_busy();
        }
        let _ = flight.ticket.reply.send(Ok(flight.ticket.staging));
        Ok(())
    }

    fn count_busy(&mut self) {
        if let Some(since) = self.busy_since.take() {
            self.tally.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
