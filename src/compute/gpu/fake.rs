//! Devices that play budget, overlap, out of memory, slowness and loss, for the tests of the scheduler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::job::{Arg, Launch, Program};
use super::{Device, DeviceError, Mark, Memory, Queue};

/// Polls after which a mark passes though its gate is closed: a scheduler that waits for the wrong thing ends, and is seen.
const PATIENCE: u64 = 20_000;

/// A device without kernels: a launch writes buffer 1 as buffer 0 with every byte one higher.
#[derive(Default)]
pub struct PlainDevice {
    buffers: HashMap<u64, Vec<u8>>,
    next: u64,
}

impl Device for PlainDevice {
    fn prepare(&mut self, _: &Program) -> Result<(), DeviceError> {
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        self.next += 1;
        self.buffers.insert(self.next, vec![0xee; bytes]);
        Ok(Memory(self.next))
    }

    fn free(&mut self, memory: Memory) {
        self.buffers.remove(&memory.0).expect("allocated here, freed once");
    }

    unsafe fn upload(&mut self, from: &[u8], to: Memory) -> Result<(), DeviceError> {
        self.buffers.get_mut(&to.0).expect("allocated here")[..from.len()].copy_from_slice(from);
        Ok(())
    }

    unsafe fn launch(&mut self, _: &Program, launch: &Launch, buffers: &[Memory]) -> Result<(), DeviceError> {
        assert_eq!(launch.args, [Arg::Buffer(0), Arg::Buffer(1)]);
        let higher = self.buffers[&buffers[0].0].iter().map(|b| b.wrapping_add(1)).collect::<Vec<_>>();
        self.buffers.insert(buffers[1].0, higher);
        Ok(())
    }

    unsafe fn download(&mut self, from: Memory, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&self.buffers[&from.0][..to.len()]);
        Ok(())
    }

    fn mark(&mut self, _: Queue) -> Result<Mark, DeviceError> {
        Ok(Mark(0))
    }

    fn wait(&mut self, _: Queue, _: Mark) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_passed(&mut self, _: Mark) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn quiesce(&mut self) {}
}

/// What happens on a device, in the order in which it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Upload(Memory),
    Launch(Memory),
    Download(Memory),
    Mark(Queue, Mark),
    Wait(Queue, Mark),
    Passed(Mark),
}

/// How a [`Trial`] goes wrong; nothing does by default.
#[derive(Clone, Default)]
pub struct Faults {
    /// Bytes that it really has.
    pub capacity: Option<u64>,
    /// Bytes that a launch takes of those, beside its buffers.
    pub launch_takes: u64,
    /// Launches that it does before it is lost.
    pub launches: Option<u64>,
    /// No mark ever passes.
    pub is_silent: bool,
    /// A launch does not return before this is set.
    pub stuck_until: Option<Arc<AtomicBool>>,
    /// Panics instead of being lost.
    pub panics: bool,
    /// Marks pass only when this counter has reached the number.
    pub gate: Option<(Arc<AtomicU64>, u64)>,
    /// Raised by one with each upload, and with each mark passed.
    pub uploads: Arc<AtomicU64>,
    pub passed: Arc<AtomicU64>,
    /// Marks that passed without their gate.
    pub forced: Arc<AtomicU64>,
    pub log: Arc<Mutex<Vec<Event>>>,
}

/// Another device, with faults.
pub struct Trial {
    inner: Box<dyn Device>,
    faults: Faults,
    sizes: HashMap<Memory, u64>,
    marks: u64,
    polls: u64,
    launched: u64,
}

impl Trial {
    pub fn new(inner: Box<dyn Device>, faults: Faults) -> Self {
        Self { inner, faults, sizes: HashMap::new(), marks: 0, polls: 0, launched: 0 }
    }

    fn note(&self, event: Event) {
        self.faults.log.lock().unwrap().push(event);
    }
}

impl Device for Trial {
    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        self.inner.prepare(program)
    }

    fn alloc(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        let held: u64 = self.sizes.values().sum();
        if self.faults.capacity.is_some_and(|c| held + bytes as u64 > c) {
            return Err(DeviceError::OutOfMemory(bytes as u64));
        }
        let memory = self.inner.alloc(bytes)?;
        self.sizes.insert(memory, bytes as u64);
        Ok(memory)
    }

    fn free(&mut self, memory: Memory) {
        assert!(self.sizes.remove(&memory).is_some(), "freed once");
        self.inner.free(memory);
    }

    unsafe fn upload(&mut self, from: &[u8], to: Memory) -> Result<(), DeviceError> {
        self.faults.uploads.fetch_add(1, Ordering::SeqCst);
        self.note(Event::Upload(to));
        // SAFETY: as for this call.
        unsafe { self.inner.upload(from, to) }
    }

    unsafe fn launch(&mut self, program: &Program, launch: &Launch, buffers: &[Memory]) -> Result<(), DeviceError> {
        if self.faults.launches.is_some_and(|n| self.launched >= n) {
            assert!(!self.faults.panics, "the fake driver panics, as the test wants");
            return Err(DeviceError::Lost("it fell off the bus".to_owned()));
        }
        let held: u64 = self.sizes.values().sum();
        if self.faults.capacity.is_some_and(|c| held + self.faults.launch_takes > c) {
            return Err(DeviceError::OutOfMemory(self.faults.launch_takes));
        }
        while self.faults.stuck_until.as_ref().is_some_and(|free| !free.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        self.launched += 1;
        self.note(Event::Launch(buffers[0]));
        // SAFETY: as for this call.
        unsafe { self.inner.launch(program, launch, buffers) }
    }

    unsafe fn download(&mut self, from: Memory, to: &mut [u8]) -> Result<(), DeviceError> {
        self.note(Event::Download(from));
        // SAFETY: as for this call.
        unsafe { self.inner.download(from, to) }
    }

    fn mark(&mut self, queue: Queue) -> Result<Mark, DeviceError> {
        self.marks += 1;
        self.note(Event::Mark(queue, Mark(self.marks)));
        Ok(Mark(self.marks))
    }

    fn wait(&mut self, queue: Queue, mark: Mark) -> Result<(), DeviceError> {
        self.note(Event::Wait(queue, mark));
        Ok(())
    }

    fn is_passed(&mut self, mark: Mark) -> Result<bool, DeviceError> {
        self.polls += 1;
        if self.faults.is_silent {
            return Ok(false);
        }
        let is_open = self.faults.gate.as_ref().is_none_or(|(counter, n)| counter.load(Ordering::SeqCst) >= *n);
        if !is_open && self.polls < PATIENCE {
            return Ok(false);
        }
        self.faults.forced.fetch_add(u64::from(!is_open), Ordering::SeqCst);
        self.polls = 0;
        self.faults.passed.fetch_add(1, Ordering::SeqCst);
        self.note(Event::Passed(mark));
        Ok(true)
    }

    fn quiesce(&mut self) {
        self.inner.quiesce();
    }
}
