//! When to stop: scikit-image's test on the energy of the whole array, for passes of several iterations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::operators::{NextPass, OperatorError, PassControl};

/// Iteration `i` has the energy of the state before its update. With the energies of a pass's iterations the test is made
/// for each of them; where it says stop at one that is not the pass's first, the pass is made again up to there.
#[derive(Debug)]
pub struct Control {
    eps: f64,
    /// Updates after which the result is made in any case.
    most: u64,
    per_pass: u64,
    cells: f64,
    /// Updates that the current pass makes.
    now: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Updates made by finished passes.
    done: u64,
    first: f64,
    previous: f64,
    /// The current pass is the last: it ends where the test said stop.
    is_last: bool,
}

impl Control {
    pub fn new(eps: f64, most: u64, per_pass: u64, cells: f64) -> Self {
        let control = Self { eps, most, per_pass, cells, now: AtomicU64::new(0), state: Mutex::default() };
        control.restart();
        control
    }

    fn restart(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
        self.now.store(self.most.min(self.per_pass), Ordering::Relaxed);
    }

    pub fn updates(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

impl PassControl for Control {
    fn begin(&self, _state: &mut [f64]) {
        self.restart();
    }

    fn after(&self, _pass: u64, sums: &[f64], _state: &mut [f64]) -> Result<NextPass, OperatorError> {
        Ok(self.decide(sums))
    }

    fn most_passes(&self) -> u64 {
        self.most.div_ceil(self.per_pass) + u64::from(self.eps > 0.0)
    }
}

impl Control {
    fn decide(&self, sums: &[f64]) -> NextPass {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_last {
            return NextPass::Done;
        }
        let now = self.updates();
        for (n, sum) in (0..now).zip(sums) {
            let energy = sum / self.cells;
            if state.done + n == 0 {
                state.first = energy;
            } else if (state.previous - energy).abs() < self.eps * state.first {
                if n == 0 {
                    return NextPass::DoneBefore;
                }
                state.is_last = true;
                self.now.store(n, Ordering::Relaxed);
                return NextPass::Redo;
            }
            state.previous = energy;
        }
        state.done += now;
        self.now.store((self.most - state.done).min(self.per_pass), Ordering::Relaxed);
        if state.done >= self.most { NextPass::Done } else { NextPass::Again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_where_one_iteration_after_the_other_would() {
        // Energies 8, 6, 5, 4.9, 4.89: with eps 0.02 the change from 5 to 4.9 is the first below 0.16.
        let control = Control::new(0.02, 100, 2, 1.0);
        assert_eq!((control.updates(), control.decide(&[8.0, 6.0])), (2, NextPass::Again));
        // Iteration 3 stops: the state after 3 updates, one into this pass.
        assert_eq!(control.decide(&[5.0, 4.9]), NextPass::Redo);
        assert_eq!((control.updates(), control.decide(&[5.0, 0.0])), (1, NextPass::Done));
        // At the first iteration of a pass nothing has to be made again.
        control.restart();
        assert_eq!(control.decide(&[8.0, 6.0]), NextPass::Again);
        assert_eq!(control.decide(&[5.9, 4.9]), NextPass::DoneBefore);
        // The last pass is shorter.
        let control = Control::new(0.0, 3, 2, 1.0);
        assert_eq!((control.decide(&[1.0, 1.0]), control.updates()), (NextPass::Again, 1));
        assert_eq!((control.decide(&[1.0, 0.0]), control.most_passes()), (NextPass::Done, 2));
        // A NaN is no reason to stop, as in scikit-image.
        let control = Control::new(0.1, 4, 2, 1.0);
        assert_eq!(control.decide(&[f64::NAN, f64::NAN]), NextPass::Again);
    }
}
