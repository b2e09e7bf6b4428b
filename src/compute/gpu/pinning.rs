//! Pins and unpins host memory on a thread of its own: both are calls of the driver, which may wait for a device that hangs,
//! and neither a worker nor the engine may wait with it. Whoever asks for memory waits no longer than a device may be silent
//! and takes ordinary memory then; what is let go of goes back to the thread, wherever that happens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use flume::{Receiver, RecvTimeoutError, Sender};

use super::fleet::{LOOK_UP, SOON};
use super::pulse::{Patience, Pulse};
use super::{HostMemory, Pinner};

/// Makes the pinner, on the thread that will use it: that is a call of the driver too.
pub type Open = Box<dyn FnOnce() -> Option<Box<dyn Pinner>> + Send>;

enum Request {
    Pin {
        bytes: usize,
        answer: Sender<Option<Box<dyn HostMemory>>>,
    },
    /// To be dropped there.
    Unpin(Box<dyn HostMemory>),
}

/// The thread, from outside.
pub struct Pinning {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
    pulse: Arc<Pulse>,
}

impl Pinning {
    pub fn start(open: Open, patience: Patience) -> std::io::Result<Self> {
        let (requests, inbox) = flume::unbounded();
        let pulse = Arc::new(Pulse::new(patience));
        pulse.beat();
        let own = pulse.clone();
        let thread = std::thread::Builder::new().name("pinning".to_owned()).spawn(move || {
            // A driver that panics closes the inbox: the jobs go on with ordinary memory.
            let _ = catch_unwind(AssertUnwindSafe(|| serve(open, &inbox, &own)));
            own.rest();
        })?;
        Ok(Self { requests, thread, pulse })
    }

    /// Pinned memory; `None` where none is to be had, or not before `is_over` or the end of patience.
    pub fn pin(&self, bytes: usize, is_over: impl Fn() -> bool) -> Option<Box<dyn HostMemory>> {
        if self.is_given_up() {
            return None;
        }
        let (answer, coming) = flume::bounded(1);
        self.requests.send(Request::Pin { bytes, answer }).ok()?;
        loop {
            match coming.recv_timeout(LOOK_UP) {
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(memory) => return Some(Box::new(Homing { memory, home: self.requests.clone() })),
                Err(RecvTimeoutError::Timeout) if is_over() || self.is_given_up() => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Whether the thread hangs, after a look.
    pub fn is_given_up(&self) -> bool {
        if let Some(why) = self.pulse.look() {
            tracing::warn!(why, "host memory is not pinned any more");
        }
        self.pulse.is_given_up()
    }

    /// Waits until what was let go of is unpinned, or for as long as the thread may be silent.
    pub fn end(self) {
        let Self { requests, thread, pulse } = self;
        drop(requests);
        while !thread.is_finished() && pulse.look().is_none() && !pulse.is_given_up() {
            std::thread::sleep(SOON);
        }
    }
}

/// Until nobody can ask any more and all memory has come back.
fn serve(open: Open, inbox: &Receiver<Request>, pulse: &Pulse) {
    let pinner = open();
    loop {
        pulse.rest();
        let request = inbox.recv();
        // To let the pinner go may hang as well.
        pulse.beat();
        let Ok(request) = request else { return };
        match request {
            // Whoever waited for it may be gone: then it is unpinned here at once.
            Request::Pin { bytes, answer } => drop(answer.send(pinner.as_ref().and_then(|p| p.pin(bytes)))),
            Request::Unpin(memory) => drop(memory),
        }
    }
}

/// Pinned memory that finds its way back.
struct Homing {
    memory: Option<Box<dyn HostMemory>>,
    home: Sender<Request>,
}

impl HostMemory for Homing {
    fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut())
    }
}

impl Drop for Homing {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // A thread that panicked takes nothing back, and it is not this thread's to unpin.
        if let Err(refused) = self.home.send(Request::Unpin(memory)) {
            std::mem::forget(refused);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    /// The call that does not come back before it is released: to open (0), or the nth to pin. Counts what is pinned.
    #[derive(Clone, Default)]
    struct Stuck {
        at: u64,
        calls: Arc<AtomicU64>,
        pinned: Arc<AtomicU64>,
        release: Arc<AtomicBool>,
    }

    impl Stuck {
        fn call(&self, number: u64) {
            self.calls.store(number + 1, Ordering::SeqCst);
            while number == self.at && !self.release.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    struct Memory(Vec<u8>, Arc<AtomicU64>);

    impl Pinner for Stuck {
        fn pin(&self, bytes: usize) -> Option<Box<dyn HostMemory>> {
            self.call(self.calls.load(Ordering::SeqCst));
            self.pinned.fetch_add(1, Ordering::SeqCst);
            Some(Box::new(Memory(vec![0; bytes], self.pinned.clone())))
        }
    }

    impl HostMemory for Memory {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn start(stuck: &Stuck, patience: Patience) -> Pinning {
        let stuck = stuck.clone();
        let open = move || {
            stuck.call(0);
            Some(Box::new(stuck) as Box<dyn Pinner>)
        };
        Pinning::start(Box::new(open), patience).unwrap()
    }

    #[test]
    fn memory_goes_back_to_be_unpinned() {
        let never = Stuck { at: u64::MAX, ..Stuck::default() };
        let pinning = start(&never, Patience::new(Duration::from_secs(3600)));
        let mut memory: Vec<_> = (0..3).map(|n| pinning.pin(100 + n, || false).unwrap()).collect();
        memory[2].bytes_mut()[101] = 7;
        assert_eq!((memory[2].bytes().len(), memory[2].bytes()[101], never.pinned.load(Ordering::SeqCst)), (102, 7, 3));
        drop(memory);
        pinning.end();
        assert_eq!(never.pinned.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_call_that_does_not_return_holds_up_nobody_i7() {
        for at in 0..4 {
            let seconds = Arc::new(AtomicU64::new(0));
            let clock = seconds.clone();
            let patience = Patience::by(Duration::from_secs(10), move || Duration::from_secs(clock.load(Ordering::SeqCst)));
            let stuck = Stuck { at, ..Stuck::default() };
            let pinning = start(&stuck, patience);
            let before: Vec<_> = (1..at).map(|_| pinning.pin(10, || false).expect("pinned")).collect();
            std::thread::scope(|scope| {
                // One is inside the call, or waits for it to open; the other comes behind.
                let waiting = [(); 2].map(|()| scope.spawn(|| pinning.pin(10, || false).is_none()));
                while stuck.calls.load(Ordering::SeqCst) < at + 1 {
                    std::thread::yield_now();
                }
                seconds.store(100, Ordering::SeqCst);
                assert_eq!(waiting.map(|w| w.join().unwrap()), [true, true]);
            });
            assert!(pinning.is_given_up() && pinning.pin(10, || false).is_none());
            drop(before);
            pinning.end();
            stuck.release.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_need_not_wait_any_more_does_not() {
        let stuck = Stuck { at: 1, ..Stuck::default() };
        let pinning = start(&stuck, Patience::new(Duration::from_secs(3600)));
        assert!(pinning.pin(10, || true).is_none());
        stuck.release.store(true, Ordering::SeqCst);
        pinning.end();
        assert_eq!(stuck.pinned.load(Ordering::SeqCst), 0, "what nobody took is unpinned");
    }
}
