//! Tells a device that hangs from one that works: an actor beats when it gets somewhere and rests while it waits for work;
//! too long between two beats, and the device counts as lost. The actor looks while it polls its device, and so do the
//! workers that wait for it, since an actor can be stuck inside a call of the driver. Costs a clock and two atomics a look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a device may be silent (`engine.device_timeout`), by a clock that tests pass in.
#[derive(Clone)]
pub struct Patience {
    limit: Duration,
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Patience {
    pub fn new(limit: Duration) -> Self {
        let since = Instant::now();
        Self::by(limit, move || since.elapsed())
    }

    pub fn by(limit: Duration, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { limit, now: Arc::new(now) }
    }
}

/// The life sign of one device.
pub struct Pulse {
    patience: Patience,
    /// When the last beat was, in ns and one more; 0 while it rests.
    beat: AtomicU64,
    gave_up: AtomicBool,
}

impl Pulse {
    pub fn new(patience: Patience) -> Self {
        Self { patience, beat: AtomicU64::new(0), gave_up: AtomicBool::new(false) }
    }

    /// Something was begun or done.
    pub fn beat(&self) {
        self.beat.store((self.patience.now)().as_nanos() as u64 + 1, Ordering::SeqCst);
    }

    /// Nothing is under way: silence means nothing until the next beat.
    pub fn rest(&self) {
        self.beat.store(0, Ordering::SeqCst);
    }

    /// Looks at the clock. `Some`, once: the device has just been given up, and why.
    pub fn look(&self) -> Option<String> {
        let beat = self.beat.load(Ordering::SeqCst);
        let silent = Duration::from_nanos(((self.patience.now)().as_nanos() as u64 + 1).saturating_sub(beat));
        let is_over = beat != 0 && silent > self.patience.limit;
        (is_over && !self.gave_up.swap(true, Ordering::SeqCst))
            .then(|| format!("it hangs: nothing came back for {}s (engine.device_timeout)", self.patience.limit.as_secs_f64()))
    }

    /// Whether the device was given up: whatever it was given stays its own, since it may still use it.
    pub fn is_given_up(&self) -> bool {
        self.gave_up.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_with_work_under_way_is_a_hang() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = now.clone();
        let pulse = Pulse::new(Patience::by(Duration::from_secs(10), move || Duration::from_secs(clock.load(Ordering::SeqCst))));
        let at = |second: u64| {
            now.store(second, Ordering::SeqCst);
            pulse.look()
        };
        assert_eq!(at(1000), None, "it has not begun");
        pulse.beat();
        assert_eq!(at(1010), None);
        pulse.beat();
        assert_eq!(at(1020), None);
        pulse.rest();
        assert_eq!(at(5000), None);
        assert!(!pulse.is_given_up());
        pulse.beat();
        assert_eq!(at(5011).as_deref(), Some("it hangs: nothing came back for 10s (engine.device_timeout)"));
        assert!(pulse.is_given_up());
        // Told once, and for good.
        pulse.beat();
        assert_eq!(at(9000), None);
        assert!(pulse.is_given_up());
    }
}
