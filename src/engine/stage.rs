//! What all stages share: counted inlets and outlets on bounded channels, clocks for every wait, ends that are explicit.
//!
//! A message between threads costs some microseconds, as much as a small chunk itself: small items travel together.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};

use super::{Observer, Span};
use crate::array::budget::BudgetError;
use crate::array::chunk::Hop;
use crate::array::{Account, Dims, Lease};
use crate::remote;

/// Waiting stages look up this often to see whether the job was stopped.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Queued items go out together when they come to this many bytes: then the message is small beside the work on them.
const BATCH_BYTES: u64 = 1 << 20;

/// And when there are this many of them, whatever their size.
const BATCH_ITEMS: usize = 64;

/// Why a stage stopped before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// Something failed: the job's reason.
    Fault(Fault),
    /// The stage before went away without a word (I7). Its own reason, if it gives one, comes first: its channel closes
    /// before it can speak.
    Orphaned(Fault),
    /// The job was stopped, by a signal or by a fault elsewhere.
    Stopped,
}

/// What failed, where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{stage}: {place}: {message}")]
pub struct Fault {
    pub stage: &'static str,
    /// Step, block and region, or file and chunk.
    pub place: String,
    pub message: String,
    pub cause: Cause,
}

/// What a fault comes from, for whoever decides what follows; messages are for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The data, the job or a defect of ours: the same run fails again.
    Final,
    /// The system refused a call, with this error number.
    System(i32),
    /// Somebody died or was too slow: another run may do better.
    Passing,
}

impl Cause {
    /// An error of an object store says it itself; another one without a number is our own word about the data.
    pub fn of(error: &std::io::Error) -> Self {
        match remote::fault::Fault::of(error) {
            Some(fault) if fault.is_passing() => Cause::Passing,
            Some(_) => Cause::Final,
            None => error.raw_os_error().map_or(Cause::Final, Cause::System),
        }
    }
}

impl Fault {
    /// One of the data or of ours, in what this thread works on.
    pub fn here(stage: &'static str, message: impl Into<String>) -> Self {
        Self { stage, place: current(), message: message.into(), cause: Cause::Final }
    }

    pub fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }
}

impl From<BudgetError> for Halt {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::Stopped => Halt::Stopped,
            overrun => Halt::Fault(Fault::here("budget", overrun.to_string())),
        }
    }
}

/// What a thread works on: words, and among them a chunk or object, whose numbers become digits only when somebody asks.
pub struct Unit {
    words: String,
    /// With the place of its words.
    cell: Option<(usize, Dims<u64>)>,
}

impl Unit {
    /// Names a chunk or object here; of several the last.
    pub fn cell(&mut self, cell: &[u64]) {
        self.cell = Some((self.words.len(), cell.into()));
    }
}

impl fmt::Write for Unit {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        self.words.push_str(words);
        Ok(())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((at, cell)) = &self.cell else { return f.write_str(&self.words) };
        let (before, behind) = self.words.split_at(*at);
        write!(f, "{before}{cell:?}{behind}")
    }
}

thread_local! {
    /// What this thread works on, for faults and panics.
    static UNIT: RefCell<Unit> = const { RefCell::new(Unit { words: String::new(), cell: None }) };
}

/// Notes what this thread works on from now on.
pub fn working_on(unit: impl FnOnce(&mut Unit)) {
    UNIT.with_borrow_mut(|now| {
        now.words.clear();
        now.cell = None;
        unit(now);
    });
}

/// What this thread works on.
pub fn current() -> String {
    UNIT.with_borrow(|unit| if unit.words.is_empty() { "at its start".to_owned() } else { unit.to_string() })
}

/// What a thread's time goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Working,
    /// No room further down.
    Blocked,
    /// Nothing to do.
    Starved,
}

/// The five numbers of a stage (I8), summed over its threads.
#[derive(Default)]
pub struct Clock {
    pub busy_ns: AtomicU64,
    pub starved_ns: AtomicU64,
    pub blocked_ns: AtomicU64,
    pub chunks: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Who hears of spans, and as what.
    hears: Option<(&'static str, Arc<dyn Observer>)>,
}

impl Clock {
    /// The clock of a stage, whose spans an observer hears if it wants to.
    pub fn of(stage: &'static str, observer: &Arc<dyn Observer>) -> Self {
        let hears = observer.hears_spans().then(|| (stage, observer.clone()));
        Self { hears, ..Self::default() }
    }

    pub fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let result = work();
        self.note(Doing::Working, since);
        result
    }

    /// Time waited for room further down.
    pub fn blocked<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let result = wait();
        self.note(Doing::Blocked, since);
        result
    }

    fn note(&self, doing: Doing, since: Instant) {
        let until = Instant::now();
        let sum = match doing {
            Doing::Working => &self.busy_ns,
            Doing::Blocked => &self.blocked_ns,
            Doing::Starved => &self.starved_ns,
        };
        sum.fetch_add(until.duration_since(since).as_nanos() as u64, Ordering::Relaxed);
        if let Some((stage, observer)) = &self.hears {
            let unit = if doing == Doing::Working { current() } else { String::new() };
            observer.span(&Span { stage, doing, unit, since, until });
        }
    }

    pub fn count(&self, bytes_in: u64, bytes_out: u64) {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
    }
}

/// The receiving end of an arrow.
pub struct Inlet<T> {
    rx: Receiver<Hop<T>>,
    clock: Arc<Clock>,
    stop: Arc<AtomicBool>,
    stage: &'static str,
    /// Ends still to come: one per sender.
    open: usize,
    announced: u64,
    /// What came with the last message and is not taken yet.
    ready: std::vec::IntoIter<T>,
    pub received: u64,
}

impl<T> Inlet<T> {
    pub fn new(rx: Receiver<Hop<T>>, senders: usize, clock: Arc<Clock>, stop: Arc<AtomicBool>, stage: &'static str) -> Self {
        Self { rx, clock, stop, stage, open: senders, announced: 0, ready: Vec::new().into_iter(), received: 0 }
    }

    /// The next item; `None` after every sender said that it is done. A channel that closes before is a fault (I7).
    pub fn receive(&mut self) -> Result<Option<T>, Halt> {
        let mut since = None;
        loop {
            if let Some(item) = self.ready.next() {
                self.received += 1;
                return Ok(Some(item));
            }
            if self.open == 0 {
                return Ok(None);
            }
            let hop = match self.rx.try_recv() {
                Ok(hop) => hop,
                Err(_) => {
                    since.get_or_insert_with(Instant::now);
                    match self.rx.recv_timeout(LOOK_UP) {
                        Ok(hop) => hop,
                        Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => return Err(Halt::Stopped),
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) if self.stop.load(Ordering::Relaxed) => return Err(Halt::Stopped),
                        Err(RecvTimeoutError::Disconnected) => {
                            let message = "the stage before it ended without saying so".to_owned();
                            return Err(Halt::Orphaned(Fault {
                                stage: self.stage,
                                place: format!("after {} items", self.received),
                                message,
                                cause: Cause::Final,
                            }));
                        }
                    }
                }
            };
            if let Some(since) = since.take() {
                self.clock.note(Doing::Starved, since);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Halt::Stopped);
            }
            match hop {
                Hop::Items(items) => self.ready = items.into_iter(),
                Hop::End { count } => {
                    self.open -= 1;
                    self.announced += count;
                }
            }
        }
    }

    /// True when the next item needs no waiting.
    pub fn is_ready(&self) -> bool {
        !self.ready.as_slice().is_empty()
    }

    /// What the senders said they sent, once all are done.
    pub fn announced(&self) -> u64 {
        self.announced
    }
}

/// Where a stage passes its items on to: the threads of the next stage, or the next stage itself, on this very thread, where
/// its work is less than a message costs.
pub trait Onward<T> {
    fn pass(&mut self, item: T) -> Result<(), Halt>;
    /// Nothing more comes.
    fn end(self: Box<Self>) -> Result<(), Halt>;
}

/// A channel to so many threads.
struct ToThreads<T> {
    out: Outlet<T>,
    receivers: usize,
}

impl<T> Onward<T> for ToThreads<T> {
    fn pass(&mut self, item: T) -> Result<(), Halt> {
        self.out.send(item)
    }

    fn end(self: Box<Self>) -> Result<(), Halt> {
        self.out.end(self.receivers).map(drop)
    }
}

/// The sending end of an arrow.
pub struct Outlet<T> {
    tx: Sender<Hop<T>>,
    clock: Arc<Clock>,
    stop: Arc<AtomicBool>,
    /// Queued items and their bytes. Whoever queues flushes before any wait of its own: others may wait for what lies here.
    queued: Vec<T>,
    queued_bytes: u64,
    pub sent: u64,
}

impl<T> Outlet<T> {
    pub fn new(tx: Sender<Hop<T>>, clock: Arc<Clock>, stop: Arc<AtomicBool>) -> Self {
        Self { tx, clock, stop, queued: Vec::new(), queued_bytes: 0, sent: 0 }
    }

    /// Sends an item now, behind those that are queued.
    pub fn send(&mut self, item: T) -> Result<(), Halt> {
        self.queued.push(item);
        self.flush()
    }

    /// Sends an item that stands for `bytes`, soon: with the next ones, if they are small.
    pub fn queue(&mut self, item: T, bytes: u64) -> Result<(), Halt> {
        self.queued.push(item);
        self.queued_bytes += bytes;
        match Self::is_enough(self.queued.len(), self.queued_bytes) {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// True when so many items, of so many bytes together, are a message of their own.
    pub fn is_enough(items: usize, bytes: u64) -> bool {
        bytes >= BATCH_BYTES || items >= BATCH_ITEMS
    }

    /// Sends what is queued.
    pub fn flush(&mut self) -> Result<(), Halt> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let count = self.queued.len();
        // The next message will be about as long.
        let items = std::mem::replace(&mut self.queued, Vec::with_capacity(count));
        self.queued_bytes = 0;
        self.push(Hop::Items(items))?;
        self.sent += count as u64;
        Ok(())
    }

    /// Room for the next item. When there is none, what is queued goes out first: it may be what holds the room.
    pub fn lease(&mut self, account: &Account, bytes: u64) -> Result<Lease, Halt> {
        if let Some(lease) = account.try_lease(bytes) {
            return Ok(lease);
        }
        self.flush()?;
        Ok(self.clock.blocked(|| account.lease(bytes, &self.stop))?)
    }

    /// As the way on of a stage.
    pub fn to_threads<'a>(self, receivers: usize) -> Box<dyn Onward<T> + 'a>
    where
        T: 'a,
    {
        Box::new(ToThreads { out: self, receivers })
    }

    /// Says to `receivers` threads that nothing more comes.
    pub fn end(mut self, receivers: usize) -> Result<u64, Halt> {
        self.flush()?;
        for n in 0..receivers {
            // The count is told once; the others only learn that it is over.
            self.push(Hop::End { count: if n == 0 { self.sent } else { 0 } })?;
        }
        Ok(self.sent)
    }

    /// Tries first; starts the clock only when the channel is full.
    fn push(&mut self, hop: Hop<T>) -> Result<(), Halt> {
        let mut hop = match self.tx.try_send(hop) {
            Ok(()) => return Ok(()),
            Err(flume::TrySendError::Full(hop)) => hop,
            Err(flume::TrySendError::Disconnected(_)) => return Err(Halt::Stopped),
        };
        let since = Instant::now();
        let result = loop {
            match self.tx.send_timeout(hop, LOOK_UP) {
                Ok(()) => break Ok(()),
                // The receiver is gone: it has reported why.
                Err(SendTimeoutError::Disconnected(_)) => break Err(Halt::Stopped),
                Err(SendTimeoutError::Timeout(_)) if self.stop.load(Ordering::Relaxed) => break Err(Halt::Stopped),
                Err(SendTimeoutError::Timeout(back)) => hop = back,
            }
        };
        self.clock.note(Doing::Blocked, since);
        result
    }
}
