//! The memory budget: one account per stage, leases that come back on drop, buffers kept for reuse inside the account.
//!
//! The plan reserves bytes for each stage; the sum is what `engine.memory` bounds. A stage waits only on its own
//! account, whose bytes are held by itself or by stages further down, so waiting always ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::buffer::Memory;

/// Why a lease was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    #[error("the job was stopped")]
    Stopped,
    /// The plan reserved too little: a defect of the plan, not of the input.
    #[error("{account} asked for {asked} bytes at once, its reservation is {limit}; please report this plan")]
    Overrun { account: &'static str, asked: u64, limit: u64 },
}

/// Bytes reserved for one stage.
#[derive(Clone)]
pub struct Account(Arc<Inner>);

struct Inner {
    name: &'static str,
    limit: u64,
    state: Mutex<State>,
    freed: Condvar,
    /// Highest sum of leases seen, for the report.
    peak: AtomicU64,
    waited_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Bytes promised to leases.
    leased: u64,
    /// Bytes of live buffers: at most `leased`.
    live: u64,
    /// Freed buffers by capacity, kept because fresh pages cost as much as light arithmetic. `live + idle <= limit`.
    idle: BTreeMap<usize, Vec<Memory>>,
    idle_bytes: u64,
    /// The least that somebody waits for: who gives back less wakes nobody. Waking costs a system call.
    wanted: Option<u64>,
}

impl Account {
    pub fn new(name: &'static str, limit: u64) -> Self {
        Self(Arc::new(Inner {
            name,
            limit,
            state: Mutex::new(State::default()),
            freed: Condvar::new(),
            peak: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }))
    }

    /// An account without a bound, for tests and for one-off work outside a job.
    pub fn unbounded(name: &'static str) -> Self {
        Self::new(name, u64::MAX / 2)
    }

    pub fn name(&self) -> &'static str {
        self.0.name
    }

    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    pub fn leased(&self) -> u64 {
        self.lock().leased
    }

    /// Time stages spent waiting for bytes of this account.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.0.waited_ns.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held can't leave the sums half done: each update is one statement.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` are free, or `stop` is set.
    pub fn lease(&self, bytes: u64, stop: &AtomicBool) -> Result<Lease, BudgetError> {
        if bytes > self.0.limit {
            return Err(BudgetError::Overrun { account: self.0.name, asked: bytes, limit: self.0.limit });
        }
        let mut state = self.lock();
        let mut since = None;
        while state.leased + bytes > self.0.limit {
            if stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped);
            }
            since.get_or_insert_with(Instant::now);
            state.wanted = Some(state.wanted.map_or(bytes, |wanted| wanted.min(bytes)));
            state = self.0.freed.wait_timeout(state, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(since) = since {
            self.0.waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        Ok(self.grant(state, bytes))
    }

    /// The lease if the bytes are free now.
    pub fn try_lease(&self, bytes: u64) -> Option<Lease> {
        let state = self.lock();
        (state.leased + bytes <= self.0.limit).then(|| self.grant(state, bytes))
    }

    fn grant(&self, mut state: MutexGuard<'_, State>, bytes: u64) -> Lease {
        state.leased += bytes;
        self.0.peak.fetch_max(state.leased, Ordering::Relaxed);
        Lease { account: self.clone(), bytes }
    }

    /// A buffer of `capacity` bytes: an idle one of that size, else a fresh one, after idle ones of other sizes made room.
    pub(super) fn take_memory(&self, capacity: usize) -> Memory {
        let mut state = self.lock();
        let reused = state.idle.get_mut(&capacity).and_then(Vec::pop);
        state.live += capacity as u64;
        if let Some(memory) = reused {
            state.idle_bytes -= capacity as u64;
            return memory;
        }
        let mut evicted = Vec::new();
        while state.idle_bytes > 0 && state.live + state.idle_bytes > self.0.limit {
            // The largest first: they are the ones that no longer fit what is asked for.
            let Some(mut entry) = state.idle.last_entry() else { break };
            match entry.get_mut().pop() {
                Some(memory) => {
                    state.idle_bytes -= memory.capacity() as u64;
                    evicted.push(memory);
                }
                None => {
                    entry.remove();
                }
            }
        }
        drop(state);
        drop(evicted);
        Memory::new(capacity)
    }

    /// Gives idle buffers back to the system, between phases.
    pub fn release_idle(&self) {
        let mut state = self.lock();
        state.idle_bytes = 0;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}, {} of {})", self.0.name, self.leased(), self.0.limit)
    }
}

/// A share of an account, given back on drop.
#[derive(Debug)]
pub struct Lease {
    account: Account,
    bytes: u64,
}

impl Lease {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Takes the bytes of another lease of the same account in.
    pub fn join(&mut self, mut other: Lease) {
        debug_assert!(Arc::ptr_eq(&self.account.0, &other.account.0), "leases of one account");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Cuts `bytes` off into a lease of their own.
    pub fn split(&mut self, bytes: u64) -> Result<Lease, BudgetError> {
        if bytes > self.bytes {
            return Err(BudgetError::Overrun { account: self.account.0.name, asked: bytes, limit: self.bytes });
        }
        self.bytes -= bytes;
        Ok(Lease { account: self.account.clone(), bytes })
    }
}

impl Lease {
    /// Gives the bytes back, and with them the buffer that they were for.
    pub(super) fn give_back(&mut self, memory: Option<Memory>) {
        let account = &self.account.0;
        let mut state = self.account.lock();
        if let Some(memory) = memory {
            let capacity = memory.capacity();
            state.live -= capacity as u64;
            if account.limit < u64::MAX / 2 && capacity > 0 {
                state.idle_bytes += capacity as u64;
                state.idle.entry(capacity).or_default().push(memory);
            }
        }
        state.leased -= std::mem::take(&mut self.bytes);
        if state.wanted.is_some_and(|wanted| state.leased + wanted <= account.limit) {
            state.wanted = None;
            drop(state);
            account.freed.notify_all();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.give_back(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::Buffer;
    use super::*;

    #[test]
    fn leases_wait_come_back_and_never_pass_the_limit() {
        let account = Account::new("test", 100);
        let go = AtomicBool::new(false);
        let mut a = account.lease(60, &go).unwrap();
        assert!(account.try_lease(41).is_none());
        let b = a.split(20).unwrap();
        assert_eq!((a.bytes(), account.leased()), (40, 60));
        drop(a);
        assert_eq!(account.leased(), 20);
        let mut c = account.try_lease(30).unwrap();
        c.join(account.try_lease(10).unwrap());
        assert_eq!((c.bytes(), account.leased()), (40, 60));
        drop(c);
        assert_eq!(account.leased(), 20);
        assert!(account.try_lease(80).is_some());
        drop(b);
        assert!(matches!(account.lease(101, &go), Err(BudgetError::Overrun { asked: 101, limit: 100, .. })));
        let stop = AtomicBool::new(true);
        let _all = account.lease(100, &go).unwrap();
        assert_eq!(account.lease(1, &stop).unwrap_err(), BudgetError::Stopped);
        assert_eq!(account.peak(), 100);
    }

    #[test]
    fn a_freed_buffer_is_used_again_and_others_make_room() {
        let account = Account::new("test", 64 << 10);
        let go = AtomicBool::new(false);
        let first = Buffer::new(account.lease(16 << 10, &go).unwrap(), 16 << 10).unwrap();
        let at = first.as_ptr();
        drop(first);
        let again = Buffer::new(account.lease(16 << 10, &go).unwrap(), 16 << 10).unwrap();
        assert_eq!(again.as_ptr(), at);
        drop(again);
        let whole = Buffer::new(account.lease(64 << 10, &go).unwrap(), 64 << 10).unwrap();
        assert_eq!(account.lock().idle_bytes, 0, "the idle 16 KiB made room");
        drop(whole);
        assert_eq!(account.leased(), 0);
    }
}
