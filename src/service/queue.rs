//! Inputs waiting for their turn: by priority, then fair between watches, then first come first served; failed ones after
//! a pause. Pure data: time and randomness are passed in.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::record::Key;

/// First pause after a failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Pause after the `attempt`th failure (from 1): 1, 2, 4 .. 60 s, times 0.5 to 1 by `random` (0 to 1), so that many that
/// failed together don't come back together.
pub fn pause(attempt: u32, random: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Order of arrival.
    ticket: u64,
    /// Not before, on the forward clock.
    ready_at: Duration,
    priority: i64,
    /// Bytes it is known to need; 0: an equal share is enough.
    needs: u64,
}

/// The next input to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    pub key: Key,
    pub needs: u64,
}

#[derive(Default)]
pub struct Queue {
    places: HashMap<Key, Place>,
    /// Ready ones by watch and ticket.
    ready: BTreeMap<String, BTreeMap<u64, Key>>,
    /// Pausing ones by time.
    pausing: BTreeMap<(Duration, u64), Key>,
    /// When each watch was last served, as a count of services.
    served: HashMap<String, u64>,
    services: u64,
    tickets: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.places.contains_key(key)
    }

    /// Puts an input in, or at another place.
    pub fn push(&mut self, key: Key, priority: i64, ready_at: Duration, needs: u64) {
        self.remove(&key);
        self.tickets += 1;
        let place = Place { ticket: self.tickets, ready_at, priority, needs };
        self.pausing.insert((ready_at, place.ticket), key.clone());
        self.places.insert(key, place);
    }

    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(place) = self.places.remove(key) else { return false };
        self.pausing.remove(&(place.ready_at, place.ticket));
        if let Some(list) = self.ready.get_mut(key.watch()) {
            list.remove(&place.ticket);
            if list.is_empty() {
                self.ready.remove(key.watch());
            }
        }
        true
    }

    /// The one whose turn it is, left in the queue. `None` when nothing is ready.
    pub fn peek(&mut self, now: Duration) -> Option<Next> {
        self.wake(now);
        let first = |list: &BTreeMap<u64, Key>| list.values().next().cloned();
        let turn = self.ready.iter().filter_map(|(watch, list)| {
            let key = first(list)?;
            let place = self.places.get(&key)?;
            Some((std::cmp::Reverse(place.priority), self.served.get(watch).copied().unwrap_or(0), place.ticket, key))
        });
        let (.., key) = turn.min()?;
        let needs = self.places.get(&key).map_or(0, |p| p.needs);
        Some(Next { key, needs })
    }

    /// Takes one out to run it.
    pub fn take(&mut self, key: &Key) {
        if self.remove(key) {
            self.services += 1;
            self.served.insert(key.watch().to_owned(), self.services);
        }
    }

    fn wake(&mut self, now: Duration) {
        while let Some(entry) = self.pausing.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((_, ticket), key) = entry.remove_entry();
            self.ready.entry(key.watch().to_owned()).or_default().insert(ticket, key);
        }
    }

    /// When the next pausing one is ready.
    pub fn next_ready(&self) -> Option<Duration> {
        self.pausing.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn pauses_are_a_table() {
        for (attempt, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (6, 32), (7, 60), (33, 60), (u32::MAX, 60)] {
            assert_eq!(pause(attempt, 1.0), S(seconds), "attempt {attempt}");
            assert_eq!(pause(attempt, 0.0), S(seconds) / 2, "attempt {attempt}");
        }
    }

    fn order(queue: &mut Queue, now: Duration) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(next) = queue.peek(now) {
            names.push(next.key.name());
            queue.take(&next.key);
        }
        names
    }

    #[test]
    fn watches_take_turns_and_priority_goes_first() {
        let mut queue = Queue::default();
        for n in 0..4 {
            queue.push(Key::new("busy", format!("b{n}").as_bytes()), 0, S(0), 0);
        }
        for n in 0..2 {
            queue.push(Key::new("quiet", format!("q{n}").as_bytes()), 0, S(0), 0);
        }
        queue.push(Key::new("urgent", b"u"), 5, S(0), 0);
        queue.push(Key::new("idle", b"i"), -1, S(0), 0);
        assert_eq!(order(&mut queue, S(0)), ["u", "b0", "q0", "b1", "q1", "b2", "b3", "i"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn pausing_ones_wait_without_holding_up_others() {
        let mut queue = Queue::default();
        queue.push(Key::new("w", b"late"), 9, S(4), 7);
        queue.push(Key::new("w", b"now"), 0, S(0), 0);
        assert_eq!(order(&mut queue, S(1)), ["now"]);
        assert_eq!((queue.len(), queue.next_ready()), (1, Some(S(4))));
        assert_eq!(queue.peek(S(4)), Some(Next { key: Key::new("w", b"late"), needs: 7 }));
        // Put in again, it has one place only.
        queue.push(Key::new("w", b"late"), 0, S(5), 0);
        assert!(queue.peek(S(4)).is_none() && queue.len() == 1);
        assert!(queue.remove(&Key::new("w", b"late")) && queue.next_ready().is_none());
    }
}
