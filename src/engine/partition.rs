//! One process of several that make a job's outputs together (`run --partition I/N`).
//!
//! To a process all objects but its own are done, so that it reads and computes only what its own need: the halo comes from
//! the shared input, never from another process, and the edge of a partition is no edge to any step. What objects hold does not depend on
//! who makes them, so any number of partitions gives the same bytes.

use std::fmt;
use std::ops::Range;

/// Partition `index` of `count`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    index: u64,
    count: u64,
}

impl Partition {
    /// `None` unless `index < count`.
    pub fn new(index: u64, count: u64) -> Option<Self> {
        (index < count).then_some(Self { index, count })
    }

    pub fn index(self) -> u64 {
        self.index
    }

    pub fn count(self) -> u64 {
        self.count
    }

    /// All partitions of the same job.
    pub fn all(self) -> impl Iterator<Item = Self> {
        (0..self.count).map(move |index| Self { index, ..self })
    }

    /// The numbers of its own among `objects` objects in C order: sizes differ by one at most.
    pub fn of(self, objects: u64) -> Range<u64> {
        let bound = |index: u64| (u128::from(index) * u128::from(objects) / u128::from(self.count)) as u64;
        bound(self.index)..bound(self.index + 1)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_one_owner() {
        for objects in [0, 1, 7, 16, 1000, u64::MAX] {
            for count in [1, 2, 3, 16, 1001] {
                let ranges: Vec<_> = Partition::new(0, count).unwrap().all().map(|p| p.of(objects)).collect();
                assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, objects));
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes = ranges.iter().map(|r| r.end - r.start);
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            }
        }
        assert_eq!(Partition::new(3, 3), None);
        assert_eq!(Partition::new(0, 0), None);
    }
}
