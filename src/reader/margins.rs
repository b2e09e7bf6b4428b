//! Rows that two blocks need which are swept apart: read by the first of them that comes there, kept for the other.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::array::{Buffer, Dims, Region};
use crate::engine::stage::Halt;

/// Parts of an input that lie behind each other, with their bytes' place.
pub type Column = Vec<(Region, Range<usize>)>;

/// Rows of an input, in columns.
pub struct Margin {
    pub columns: Vec<Column>,
    pub room: Buffer,
}

/// A margin that a block shares with the one before or behind it, which is still to be made.
pub struct Shared {
    /// The first of the two blocks, by its place in the grid.
    pub first: Dims<u64>,
    pub rows: Range<i64>,
    /// The core of both blocks.
    pub core: Region,
}

enum State {
    BeingRead,
    There(Arc<Margin>),
}

/// The margins of a phase that one of two blocks has come to.
#[derive(Default)]
pub struct Margins {
    by_first: Mutex<HashMap<Dims<u64>, State>>,
    changed: Condvar,
}

impl Margins {
    fn lock(&self) -> MutexGuard<'_, HashMap<Dims<u64>, State>> {
        self.by_first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The margin behind a block. Each of two blocks asks once: the first one reads, and waits for nobody while it does.
    pub fn get(
        &self,
        first: &Dims<u64>,
        stop: &AtomicBool,
        read: impl FnOnce() -> Result<Margin, Halt>,
    ) -> Result<Arc<Margin>, Halt> {
        let mut known = self.lock();
        loop {
            match known.get(first) {
                None => break,
                Some(State::There(margin)) => {
                    let margin = margin.clone();
                    known.remove(first);
                    return Ok(margin);
                }
                Some(State::BeingRead) if stop.load(Ordering::Relaxed) => return Err(Halt::Stopped),
                Some(State::BeingRead) => {
                    let waited = self.changed.wait_timeout(known, Duration::from_millis(50));
                    known = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        known.insert(first.clone(), State::BeingRead);
        drop(known);
        let margin = read().map(Arc::new);
        let mut known = self.lock();
        match &margin {
            Ok(margin) => known.insert(first.clone(), State::There(margin.clone())),
            Err(_) => known.remove(first),
        };
        drop(known);
        self.changed.notify_all();
        margin
    }
}
