//! Filters over windows that are not made of lines: every output row reads the rows of its window's cells.
//!
//! The block comes with the cells outside the array filled in, so a window is a list of offsets. Rows are computed in
//! stripes of neighbours, one vector lane each; the cells of a window are always taken in C order.

use super::lines::{Combine, Layout};
use super::order::Extreme;
use super::sample::Sample;
use crate::array::{Block, Region};
use crate::simd::{Vectored, vectored};

/// Cuts `0..n` into stripes of 32, then 8, then single cells: `$body` is compiled for each width.
macro_rules! each_stripe {
    ($n:expr, $at:ident, $l:ident => $body:block) => {{
        let n = $n;
        let mut $at = 0;
        {
            const $l: usize = 32;
            while $at + $l <= n {
                $body
                $at += $l;
            }
        }
        {
            const $l: usize = 8;
            while $at + $l <= n {
                $body
                $at += $l;
            }
        }
        {
            const $l: usize = 1;
            while $at < n {
                $body
                $at += $l;
            }
        }
    }};
}
pub(super) use each_stripe;

/// The rows along the last axis that a window's cells start at, for one row of results.
pub struct Rows<'a, S> {
    cells: &'a [S],
    /// The first result's own cell.
    pub at: isize,
    /// From one result to the next.
    pub stride: isize,
    /// From a cell to each cell of its window.
    pub offsets: &'a [isize],
}

impl<S: Copy> Rows<'_, S> {
    /// Cell `k` of the windows of results `first..first + L`.
    #[inline(always)]
    pub fn stripe<const L: usize>(&self, k: usize, first: usize) -> [S; L] {
        let at = self.at + self.offsets[k] + first as isize * self.stride;
        let mut out = [self.cells[at as usize]; L];
        if self.stride == 1 {
            out.copy_from_slice(&self.cells[at as usize..][..L]);
        } else {
            for (l, value) in out.iter_mut().enumerate() {
                *value = self.cells[(at + l as isize * self.stride) as usize];
            }
        }
        out
    }

    /// The cell at `offset` from that of result `i`.
    #[inline(always)]
    pub fn cell(&self, offset: isize, i: usize) -> S {
        self.cells[(self.at + offset + i as isize * self.stride) as usize]
    }
}

/// Offsets along the axes as distances in elements.
pub fn flat(layout: &Layout, offsets: &[Vec<i64>]) -> Vec<isize> {
    let distance = |offset: &Vec<i64>| offset.iter().zip(&layout.strides).map(|(o, s)| *o as isize * s).sum();
    offsets.iter().map(distance).collect()
}

/// Calls `fill(rows, out)` for every row of results: `out` is the part of the result that `rows` stands for.
pub fn each_row<S: Sample>(
    (block, have): (&Block, &Region),
    core: &Region,
    offsets: &[Vec<i64>],
    out: &mut [S],
    mut fill: impl FnMut(&Rows<'_, S>, &mut [S]),
) {
    if core.is_empty() {
        return;
    }
    let (cells, layout) = Layout::of::<S>(block);
    let rank = core.rank();
    let flat = flat(&layout, offsets);
    let (row, stride) = if rank == 0 { (1, 1) } else { (core.len(rank - 1), layout.strides[rank - 1]) };
    let mut at = layout.offset + (0..rank).map(|a| (core.start[a] - have.start[a]) as isize * layout.strides[a]).sum::<isize>();
    let mut index = vec![0usize; rank.saturating_sub(1)];
    for out in out.chunks_exact_mut(row) {
        fill(&Rows { cells, at, stride, offsets: &flat }, out);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            at += layout.strides[axis];
            if index[axis] < core.len(axis) {
                break;
            }
            at -= layout.strides[axis] * core.len(axis) as isize;
            index[axis] = 0;
        }
    }
}

/// The extremum over the window's cells.
pub fn extremum<S: Sample>(
    block: &Block,
    have: &Region,
    core: &Region,
    offsets: &[Vec<i64>],
    extreme: Extreme,
    out: &mut [S],
    combine: Combine,
) {
    each_row((block, have), core, offsets, out, |rows, out| match extreme {
        Extreme::Smallest => vectored(Extremum::<S, false> { rows, out, combine }),
        Extreme::Largest => vectored(Extremum::<S, true> { rows, out, combine }),
    });
}

struct Extremum<'a, S, const LARGEST: bool> {
    rows: &'a Rows<'a, S>,
    out: &'a mut [S],
    combine: Combine,
}

impl<S: Sample, const LARGEST: bool> Vectored for Extremum<'_, S, LARGEST> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { rows, out, combine } = self;
        each_stripe!(out.len(), at, L => {
            let mut best = rows.stripe::<L>(0, at).map(S::key);
            for k in 1..rows.offsets.len() {
                let cells = rows.stripe::<L>(k, at);
                for l in 0..L {
                    let key = cells[l].key();
                    best[l] = if (best[l] < key) != LARGEST { best[l] } else { key };
                }
            }
            for (cell, key) in out[at..at + L].iter_mut().zip(best) {
                combine.apply(cell, S::from_key(key));
            }
        });
    }
}

/// The weighted sum over the window's cells, in float64 and in their order.
pub fn weighted<S: Sample>(
    (block, have): (&Block, &Region),
    core: &Region,
    offsets: &[Vec<i64>],
    weights: &[f64],
    out: &mut [S],
) {
    each_row((block, have), core, offsets, out, |rows, out| vectored(Weighted { rows, out, weights }));
}

struct Weighted<'a, S> {
    rows: &'a Rows<'a, S>,
    out: &'a mut [S],
    weights: &'a [f64],
}

impl<S: Sample> Vectored for Weighted<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { rows, out, weights } = self;
        each_stripe!(out.len(), at, L => {
            let mut sum = [0.0; L];
            for (k, weight) in weights.iter().enumerate() {
                let cells = rows.stripe::<L>(k, at);
                for l in 0..L {
                    sum[l] += cells[l].to_f64() * weight;
                }
            }
            for (cell, sum) in out[at..at + L].iter_mut().zip(sum) {
                *cell = S::from_f64(sum);
            }
        });
    }
}
