//! Running states of order-free folds: each block adds to what earlier blocks left for the same kept cells, where they lie.
//! A state for each block would be written, read and merged by somebody: several times the bytes of the block itself.
//!
//! A state is with one worker at a time; another that needs it meanwhile begins one of its own, and whoever gives back
//! second merges. So there are at most as many more states as workers, all on the folds' account.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::array::budget::BudgetError;
use crate::array::{Account, Buffer, Region};
use crate::operators::{FoldOperator, OperatorError};

/// Fold of the phase, kept cells.
type Key = (usize, Region);

pub struct Running {
    account: Account,
    waiting: Mutex<HashMap<Key, Buffer>>,
}

impl Running {
    pub fn new(account: Account) -> Self {
        Self { account, waiting: Mutex::default() }
    }

    /// The state so far, or a fresh one of `bytes` zeros.
    pub fn take(&self, fold: usize, kept: &Region, bytes: usize) -> Result<Buffer, BudgetError> {
        if let Some(state) = self.finish(fold, kept) {
            return Ok(state);
        }
        let asked = bytes as u64;
        let overrun = || BudgetError::Overrun { account: self.account.name(), asked, limit: self.account.limit() };
        let mut state = Buffer::new(self.account.try_lease(asked).ok_or_else(overrun)?, bytes)?;
        state.fill(0);
        Ok(state)
    }

    /// Gives a state back for the next block.
    pub fn give(&self, fold: usize, kept: &Region, mut state: Buffer, operator: &dyn FoldOperator) -> Result<(), OperatorError> {
        loop {
            let other = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                match waiting.remove(&(fold, kept.clone())) {
                    Some(other) => other,
                    None => {
                        waiting.insert((fold, kept.clone()), state);
                        return Ok(());
                    }
                }
            };
            operator.merge(&mut state, &other)?;
        }
    }

    /// Takes a state out for good: every block has added what it has.
    pub fn finish(&self, fold: usize, kept: &Region) -> Option<Buffer> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&(fold, kept.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Padded;

    /// Adds numbers of 64 bits.
    struct Adding;

    impl FoldOperator for Adding {
        fn state_bytes(&self) -> usize {
            8
        }
        fn is_order_free(&self) -> bool {
            true
        }
        fn leaf(&self, _: &[Padded], _: &[usize], state: &mut [u8]) -> Result<(), OperatorError> {
            let state: &mut [u64] = bytemuck::cast_slice_mut(state);
            state[0] += 1;
            Ok(())
        }
        fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
            let (into, other): (&mut [u64], &[u64]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
            into[0] += other[0];
            Ok(())
        }
        fn finish(&self, _: &[u8], _: u64, _: &mut [&mut [u8]]) -> Result<(), OperatorError> {
            Ok(())
        }
    }

    #[test]
    fn workers_share_a_state_and_none_is_left() {
        const WORKERS: usize = 4;
        let kept = [Region::from_ranges(&[(0, 1)]), Region::from_ranges(&[(1, 2)])];
        let account = Account::new("fold", 64 * (WORKERS + 1) as u64);
        let running = Running::new(account.clone());
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    for n in 0..1000 {
                        let kept = &kept[n % 2];
                        let mut state = running.take(0, kept, 8).unwrap();
                        Adding.leaf(&[], &[], &mut state).unwrap();
                        running.give(0, kept, state, &Adding).unwrap();
                    }
                });
            }
        });
        for kept in &kept {
            let state = running.finish(0, kept).expect("all gave theirs back");
            assert_eq!(state.as_slice_of::<u64>(), [500 * WORKERS as u64]);
            assert!(running.finish(0, kept).is_none());
        }
        assert_eq!(account.leased(), 0);
        assert!(matches!(running.take(0, &kept[0], 1 << 20), Err(BudgetError::Overrun { .. })));
    }
}
