//! How far blocks may run ahead of the oldest one that is not finished.
//!
//! The plan counts on at most `size` blocks between the halo stage and the writer's last copy, and on none that is
//! `size` ahead of a straggler: output objects stay open for stragglers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub struct Window {
    size: u64,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// All blocks below are finished.
    low: u64,
    /// Finished ones above.
    done: BTreeSet<u64>,
    /// Somebody waits for it to move.
    is_awaited: bool,
}

/// A block's place in the window; dropped when its last byte is copied or stored.
pub struct Ticket {
    window: Arc<Window>,
    seq: u64,
}

impl Window {
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size: size.max(1) as u64, state: Mutex::default(), moved: Condvar::new() })
    }

    /// Waits until block `seq` may start; `None` when the job stops first.
    pub fn enter(self: &Arc<Self>, seq: u64, stop: &AtomicBool) -> Option<Arc<Ticket>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while seq >= state.low + self.size {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            state.is_awaited = true;
            state = self.moved.wait_timeout(state, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Arc::new(Ticket { window: self.clone(), seq }))
    }

    /// Blocks finished, without gaps.
    pub fn low(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).low
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.window.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done.insert(self.seq);
        while state.done.first() == Some(&state.low) {
            state.done.pop_first();
            state.low += 1;
        }
        if std::mem::take(&mut state.is_awaited) {
            drop(state);
            self.window.moved.notify_all();
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_holds_the_window() {
        let stopped = AtomicBool::new(true);
        let window = Window::new(2);
        let first = window.enter(0, &stopped).unwrap();
        let second = window.enter(1, &stopped).unwrap();
        drop(second);
        assert!(window.enter(2, &stopped).is_none(), "block 0 is not finished");
        drop(first);
        assert_eq!(window.low(), 2);
        assert!(window.enter(3, &stopped).is_some());
    }
}
