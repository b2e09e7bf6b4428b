//! Passes along single axes, one after the other, from a block of the input to a region of the result.
//!
//! The first pass reads the block, those between work within one buffer, the last one writes the result. A pass needs the
//! halo of the axes that are still to come, and no other; cells outside the array come from `frame`'s maps at every pass.

use super::frame::Frame;
use super::lines::{Apart, Combine, Ends, Filter, Lane, Layout, Pass, Within};
use super::sample::Sample;
use crate::array::boundary::{Run, RunFrom};
use crate::array::{Block, Dims, Region};

/// The window of a pass: cells before and after the one it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    pub axis: usize,
    pub before: usize,
    pub after: usize,
}

/// Depth per axis that these passes need.
pub fn depth_of(reaches: &[Reach], rank: usize) -> Vec<u64> {
    let mut depth = vec![0; rank];
    for reach in reaches {
        depth[reach.axis] = reach.before.max(reach.after) as u64;
    }
    depth
}

/// Passes over a frame; `filter(n, tile, step, count)` is the arithmetic of pass `n`.
pub struct Chain<'a> {
    pub frame: &'a Frame,
    /// One per pass, no axis twice.
    pub reaches: &'a [Reach],
}

impl Chain<'_> {
    /// Elements of the buffer between passes, for a core of this shape.
    pub fn between_len(&self, core: &[u64]) -> u64 {
        if self.reaches.len() < 2 {
            return 0;
        }
        let shape = self.frame.grown_shape(core, &depth_of(&self.reaches[1..], self.frame.rank()));
        shape.iter().fold(1u64, |n, len| n.saturating_mul(*len))
    }

    /// Cells of the longest line in a tile, for a core of this shape.
    pub fn line_len(&self, core: &[u64]) -> u64 {
        let len = |axis: usize| core.get(axis).copied().unwrap_or(1);
        let lines = self.reaches.iter().map(|r| len(r.axis).saturating_add((r.before + r.after) as u64));
        lines.max().unwrap_or_else(|| core.last().copied().unwrap_or(1))
    }

    /// Filters `core` of the array into `out` (C order) from `block`, which covers `have`.
    pub fn run<S: Sample, W: Lane<S>>(
        &self,
        (block, have): (&Block, &Region),
        core: &Region,
        (out, combine): (&mut [S], Combine),
        between: &mut [S],
        tile: &mut [W],
        filter: &mut dyn FnMut(usize, &mut [W], usize, usize),
    ) {
        let rank = self.frame.rank();
        let (cells, mut source) = Layout::of::<S>(block);
        // The region that goes into a pass is what the passes from it on need; the buffer holds that of the second.
        let held = |n: usize| self.frame.grow(core, &depth_of(&self.reaches[n..], rank));
        let first = held(0);
        source.offset += (0..rank).map(|a| (first.start[a] - have.start[a]) as isize * source.strides[a]).sum::<isize>();
        let goal = Layout::within(core, core);
        let passes = self.reaches.len();
        if passes == 0 {
            return copy(&source, &goal, core, (cells, out), combine, tile);
        }
        let base = held(1.min(passes));
        let inner = |region: &Region| Layout::within(&base, region);
        for n in 0..passes {
            let (goes_in, comes_out) = (held(n), held(n + 1));
            let (is_first, is_last) = (n == 0, n + 1 == passes);
            let from = if is_first { source.clone() } else { inner(&goes_in) };
            let to = if is_last { goal.clone() } else { inner(&comes_out) };
            let kept = if is_last { combine } else { Combine::Set };
            let filter: Filter<'_, W> = &mut |tile, step, count| filter(n, tile, step, count);
            let sides = (&goes_in, &comes_out, &from, &to, kept);
            match (is_first, is_last) {
                (true, true) => self.pass(n, sides, &mut Apart(cells, out), tile, filter),
                (true, false) => self.pass(n, sides, &mut Apart(cells, between), tile, filter),
                (false, false) => self.pass(n, sides, &mut Within(between), tile, filter),
                (false, true) => self.pass(n, sides, &mut Apart(between, out), tile, filter),
            }
        }
    }

    fn pass<S: Sample, W: Lane<S>>(
        &self,
        n: usize,
        (goes_in, comes_out, source, target, combine): (&Region, &Region, &Layout, &Layout, Combine),
        ends: &mut dyn Ends<S>,
        tile: &mut [W],
        filter: Filter<'_, W>,
    ) {
        let Reach { axis, before, after } = self.reaches[n];
        let (start, stop) = comes_out.axis(axis);
        let runs = self.frame.runs(axis, (start - before as i64, stop + after as i64), goes_in.axis(axis));
        // Where a side has no constant, no run asks for it.
        let constants =
            self.frame.constants[axis].map(|c| W::load(c.map_or_else(S::zeroed, |c| bytemuck::pod_read_unaligned(c.bytes()))));
        let shape = comes_out.shape();
        Pass { axis, shape: &shape, runs: &runs, constants, source, target, combine }.run(ends, tile, filter);
    }
}

/// No pass at all: the cells themselves.
fn copy<S: Sample, W: Lane<S>>(
    source: &Layout,
    target: &Layout,
    core: &Region,
    (cells, out): (&[S], &mut [S]),
    combine: Combine,
    tile: &mut [W],
) {
    let (mut source, mut target, mut shape) = (source.clone(), target.clone(), core.shape());
    if shape.is_empty() {
        // A single number is a line of one cell.
        (source.strides, target.strides, shape) = (Dims::from_slice(&[1]), Dims::from_slice(&[1]), Dims::from_slice(&[1]));
    }
    let axis = shape.len() - 1;
    let runs = [Run { dst: 0, len: shape[axis], from: RunFrom::Cells { src: 0, step: 1 } }];
    let (source, target, constants) = (&source, &target, [W::zeroed(); 2]);
    Pass { axis, shape: &shape, runs: &runs, constants, source, target, combine }.run(
        &mut Apart(cells, out),
        tile,
        &mut |_, _, _| {},
    );
}
