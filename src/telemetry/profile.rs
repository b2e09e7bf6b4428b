//! What a run did over its time: memory, bytes and busy threads, sampled ten times a second, later less often, so that a
//! run of days takes no more room than one of minutes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::report::resident;
use crate::engine::{Observer, Progress};

/// From here on every other sample goes, and they come half as often.
const MOST_SAMPLES: usize = 1200;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    pub resident_bytes: u64,
    pub now: Progress,
}

/// Collects samples of one run.
pub struct Profile {
    since: Instant,
    samples: Mutex<Samples>,
}

struct Samples {
    kept: Vec<Sample>,
    /// One of so many is kept.
    every: u64,
    seen: u64,
}

impl Profile {
    pub fn new() -> Self {
        Self { since: Instant::now(), samples: Mutex::new(Samples { kept: Vec::new(), every: 1, seen: 0 }) }
    }

    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).kept.clone()
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::new()
    }
}

impl Samples {
    fn add(&mut self, sample: impl FnOnce() -> Sample) {
        if self.seen.is_multiple_of(self.every) {
            self.kept.push(sample());
        }
        self.seen += 1;
        if self.kept.len() >= MOST_SAMPLES {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }
}

impl Observer for Profile {
    fn progress(&self, now: &Progress) {
        let sample = || Sample { at: self.since.elapsed(), resident_bytes: resident().0, now: *now };
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).add(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_evenly_spread_samples() {
        let mut samples = Samples { kept: Vec::new(), every: 1, seen: 0 };
        for n in 0..100_000u64 {
            samples.add(|| Sample { at: Duration::from_secs(n), resident_bytes: 0, now: Progress::default() });
        }
        assert!((MOST_SAMPLES / 2..MOST_SAMPLES).contains(&samples.kept.len()), "{}", samples.kept.len());
        let steps: Vec<Duration> = samples.kept.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        assert!(steps.iter().all(|step| *step == Duration::from_secs(samples.every)), "{steps:?}");
    }
}
