//! The value of a given rank among the cells of a window.
//!
//! Up to 255 cells go through a *selection network*: a sorting network without the comparators that the wanted rank does
//! not depend on, applied to a stripe of windows at once, one vector lane each. Larger windows of 8- and 16-bit values keep
//! a histogram that slides along the row; cells enter and leave on its rim only. Other large windows select in a copy.

use super::lines::Layout;
use super::sample::Sample;
use super::window::{Rows, each_stripe, flat};
use crate::operators::ks_test::kernel::sorting_network;
use crate::simd::{Vectored, vectored};

/// Largest window that a network takes; its wires are numbered in bytes.
const MAX_NETWORK: usize = 255;
/// The widest stripe.
const LANES: usize = 32;

/// What a comparator leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    Both,
    Smaller,
    Larger,
}

/// How the value of a rank is found, for one window.
pub enum Selection {
    Network {
        comparators: Vec<(u8, u8, Keep)>,
        cells: usize,
        rank: usize,
    },
    /// Offsets (in cells, C order) that enter when the window moves on by one, and that leave.
    Histogram {
        entering: Vec<Vec<i64>>,
        leaving: Vec<Vec<i64>>,
        rank: usize,
    },
    Copy {
        cells: usize,
        rank: usize,
    },
}

impl Selection {
    /// For a window with these cells, of values of `size` bytes that are (`narrow`) integers.
    pub fn new(offsets: &[Vec<i64>], rank: usize, narrow: bool) -> Self {
        let cells = offsets.len();
        if cells <= MAX_NETWORK {
            return Selection::Network { comparators: network(cells, rank), cells, rank };
        }
        if !narrow {
            return Selection::Copy { cells, rank };
        }
        // C order is the order of these lists, so a cell is found by bisection.
        let moved = |by: i64| {
            let is_rim = |offset: &&Vec<i64>| {
                let mut next = (*offset).clone();
                if let Some(last) = next.last_mut() {
                    *last += by;
                }
                offsets.binary_search(&next).is_err()
            };
            offsets.iter().filter(is_rim).cloned().collect()
        };
        Selection::Histogram { entering: moved(1), leaving: moved(-1), rank }
    }

    /// Bytes of working memory for keys of this size (1 or 2 where a histogram is kept).
    pub fn bytes(&self, size: usize) -> u64 {
        let bytes = match self {
            Selection::Network { cells, .. } => cells * LANES * size,
            Selection::Histogram { .. } => ((1 << (8 * size)) + GROUPS) * 4,
            Selection::Copy { cells, .. } => cells * size,
        };
        bytes as u64
    }

    /// What enters and leaves a histogram, in elements of a block.
    pub fn rims(&self, layout: &Layout) -> (Vec<isize>, Vec<isize>) {
        match self {
            Selection::Histogram { entering, leaving, .. } => (flat(layout, entering), flat(layout, leaving)),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// One row of results. `scratch` has [`Selection::bytes`] and, for a histogram, is zero before and after.
    pub fn row<S: Sample>(&self, rows: &Rows<'_, S>, rims: &(Vec<isize>, Vec<isize>), out: &mut [S], scratch: &mut [u8]) {
        match self {
            Selection::Network { comparators, rank, .. } => {
                let keys = bytemuck::cast_slice_mut(scratch);
                vectored(Network { rows, out, comparators, rank: *rank, keys });
            }
            Selection::Histogram { rank, .. } => slide(rows, rims, *rank, out, bytemuck::cast_slice_mut(scratch)),
            Selection::Copy { rank, .. } => {
                let keys: &mut [S::Key] = bytemuck::cast_slice_mut(scratch);
                for (i, out) in out.iter_mut().enumerate() {
                    for (key, offset) in keys.iter_mut().zip(rows.offsets) {
                        *key = rows.cell(*offset, i).key();
                    }
                    *out = S::from_key(*keys.select_nth_unstable(*rank).1);
                }
            }
        }
    }
}

/// A sorting network less what the wire `rank` does not need.
fn network(cells: usize, rank: usize) -> Vec<(u8, u8, Keep)> {
    let mut needed = vec![false; cells.max(rank + 1)];
    needed[rank] = true;
    let mut kept = Vec::new();
    for (low, high) in sorting_network(cells).into_iter().rev() {
        let keep = match (needed[usize::from(low)], needed[usize::from(high)]) {
            (false, false) => continue,
            (true, true) => Keep::Both,
            (true, false) => Keep::Smaller,
            (false, true) => Keep::Larger,
        };
        needed[usize::from(low)] = true;
        needed[usize::from(high)] = true;
        kept.push((low, high, keep));
    }
    kept.reverse();
    kept
}

struct Network<'a, S: Sample> {
    rows: &'a Rows<'a, S>,
    out: &'a mut [S],
    comparators: &'a [(u8, u8, Keep)],
    rank: usize,
    keys: &'a mut [S::Key],
}

impl<S: Sample> Vectored for Network<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { rows, out, comparators, rank, keys } = self;
        each_stripe!(out.len(), at, L => {
            let keys = &mut keys.as_chunks_mut::<L>().0[..rows.offsets.len()];
            for (k, key) in keys.iter_mut().enumerate() {
                *key = rows.stripe::<L>(k, at).map(S::key);
            }
            for &(low, high, keep) in comparators {
                compare(keys, usize::from(low), usize::from(high), keep);
            }
            for (cell, key) in out[at..at + L].iter_mut().zip(keys[rank]) {
                *cell = S::from_key(key);
            }
        });
    }
}

#[inline(always)]
fn compare<K: Ord + Copy, const L: usize>(keys: &mut [[K; L]], low: usize, high: usize, keep: Keep) {
    let (a, b) = (keys[low], keys[high]);
    let (mut small, mut large) = (a, b);
    for l in 0..L {
        small[l] = if b[l] < a[l] { b[l] } else { a[l] };
        large[l] = if b[l] < a[l] { a[l] } else { b[l] };
    }
    if keep != Keep::Larger {
        keys[low] = small;
    }
    if keep != Keep::Smaller {
        keys[high] = large;
    }
}

/// A histogram that follows the window along a row.
fn slide<S: Sample>(rows: &Rows<'_, S>, rims: &(Vec<isize>, Vec<isize>), rank: usize, out: &mut [S], counts: &mut [u32]) {
    let (entering, leaving) = rims;
    let mut histogram = Histogram::new(counts);
    rows.offsets.iter().for_each(|o| histogram.add(rows.cell(*o, 0).bin()));
    let last = out.len().saturating_sub(1);
    for (i, out) in out.iter_mut().enumerate() {
        if i > 0 {
            leaving.iter().for_each(|o| histogram.remove(rows.cell(*o, i - 1).bin()));
            entering.iter().for_each(|o| histogram.add(rows.cell(*o, i).bin()));
        }
        *out = S::from_bin(histogram.find(rank));
    }
    // Cheaper than clearing 65,536 counts for the next row.
    rows.offsets.iter().for_each(|o| histogram.remove(rows.cell(*o, last).bin()));
}

/// Counts of values, and of groups of them under which a rank is found in two steps.
struct Histogram<'a> {
    groups: &'a mut [u32],
    values: &'a mut [u32],
    /// Values in a group.
    group: usize,
}

/// Groups in a histogram.
const GROUPS: usize = 256;

impl<'a> Histogram<'a> {
    fn new(counts: &'a mut [u32]) -> Self {
        let (groups, values) = counts.split_at_mut(GROUPS);
        let group = if values.len() > GROUPS { values.len() / GROUPS } else { 16 };
        Self { groups, values, group }
    }

    fn add(&mut self, bin: usize) {
        self.values[bin] += 1;
        self.groups[bin / self.group] += 1;
    }

    fn remove(&mut self, bin: usize) {
        self.values[bin] -= 1;
        self.groups[bin / self.group] -= 1;
    }

    /// The bin that holds the value of this rank.
    fn find(&self, rank: usize) -> usize {
        let mut left = rank as u32;
        let mut at = 0;
        while self.groups[at] <= left {
            left -= self.groups[at];
            at += 1;
        }
        at *= self.group;
        while self.values[at] <= left {
            left -= self.values[at];
            at += 1;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network is right for every input when it is for every input of 0 and 1.
    #[test]
    fn networks_find_every_rank() {
        for cells in 1..=11 {
            for rank in 0..cells {
                let comparators = network(cells, rank);
                for bits in 0..1u32 << cells {
                    let mut keys: Vec<[u8; 1]> = (0..cells).map(|i| [(bits >> i & 1) as u8]).collect();
                    for &(low, high, keep) in &comparators {
                        compare(&mut keys, usize::from(low), usize::from(high), keep);
                    }
                    let zeros = cells - bits.count_ones() as usize;
                    assert_eq!(keys[rank][0], u8::from(rank >= zeros), "{cells} cells, rank {rank}, {bits:b}");
                }
            }
        }
    }

    #[test]
    fn histograms_find_every_rank() {
        for size in [256usize, 65536] {
            let mut counts = vec![0u32; GROUPS + size];
            let mut histogram = Histogram::new(&mut counts);
            let values = [0, 3, 3, 17, 200, size - 1, size - 1];
            values.iter().for_each(|v| histogram.add(*v));
            histogram.add(5);
            histogram.remove(5);
            for (rank, value) in values.iter().enumerate() {
                assert_eq!(histogram.find(rank), *value);
            }
        }
    }
}
