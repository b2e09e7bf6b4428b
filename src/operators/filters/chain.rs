//! Passes along single axes, one after the other, from a block of the input to a region of the result.
//!
//! A pass needs the halo of the axes that are still to come, and no other; cells outside the array come from `frame`'s maps at
//! every pass. What lies between two passes should lie in the cache: the region is walked in *strips* along the axis of one of
//! the passes. The passes before that one go on where the last strip ended, in a *window* that moves along with the strips
//! and keeps what the next one needs again. That pass and those after it work on the strip *slab* by slab, along an axis that none
//! of them filters.
//!
//! ```text
//! block --passes before--> window (strip and halo) --the pass along the strips' axis--> slab of the strip --passes after--> result
//! ```

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

impl Reach {
    /// The halo that it takes: as deep on one side as on the other, see `frame`.
    fn depth(&self) -> u64 {
        self.before.max(self.after) as u64
    }
}

/// What lies between two passes takes no more than this, where strips of a few rows do: a core's share of the last cache.
const CACHE: u64 = 8 << 20;
/// The fewest rows of a strip, however short its window.
const THINNEST: u64 = 8;
/// A slab takes about this between passes: a core's own cache holds it beside a tile.
const SLAB: u64 = 128 << 10;

/// Rows of a strip that is worth its window.
pub(super) fn thinnest(reach: &Reach) -> u64 {
    (2 * reach.depth()).max(THINNEST)
}

fn cache() -> u64 {
    #[cfg(test)]
    if let Some(bytes) = TEST_CACHE.get() {
        return bytes;
    }
    CACHE
}

pub(super) fn slab() -> u64 {
    #[cfg(test)]
    if let Some(bytes) = TEST_CACHE.get() {
        return bytes / 4;
    }
    SLAB
}

#[cfg(test)]
thread_local! {
    /// What tests say instead of [`CACHE`], so that small arrays are walked in strips.
    pub static TEST_CACHE: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// A walk: along the axis of this pass, so many rows at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strips {
    pub pass: usize,
    pub rows: u64,
}

/// Part of a strip: along this axis, so many cells at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slabs {
    pub axis: usize,
    pub cells: u64,
}

/// All in one strip.
const WHOLE: Strips = Strips { pass: 0, rows: u64::MAX };

/// Depth per axis that these passes need.
pub fn depth_of(reaches: &[Reach], rank: usize) -> Vec<u64> {
    let mut depth = vec![0; rank];
    for reach in reaches {
        depth[reach.axis] = reach.depth();
    }
    depth
}

/// Passes over a frame.
pub struct Chain<'a> {
    pub frame: &'a Frame,
    /// One per pass, no axis twice.
    pub reaches: &'a [Reach],
}

impl Chain<'_> {
    /// Elements of the buffer between passes, enough for every core up to this shape.
    pub fn between_len(&self, core: &[u64]) -> u64 {
        let least = self.strips(core).map_or(u64::MAX, |strips| self.takes(core, &strips));
        self.takes(core, &WHOLE).min(least.max(self.cached_len()))
    }

    /// Elements that should lie between two passes at most.
    fn cached_len(&self) -> u64 {
        cache() / self.frame.dtype.size() as u64
    }

    /// The thinnest strips that are worth it, along the axis where they take least; `None` where no axis can be cut.
    fn strips(&self, core: &[u64]) -> Option<Strips> {
        let of = |(pass, reach): (usize, &Reach)| {
            // Rows of the innermost axis stay whole, and so does an axis whose ends need each other.
            let is_cut = reach.axis + 1 < core.len() && !self.frame.needs_whole(reach.axis);
            is_cut.then(|| Strips { pass, rows: thinnest(reach) })
        };
        self.reaches.iter().enumerate().filter_map(of).min_by_key(|strips| self.takes(core, strips))
    }

    /// How a core of this shape is walked.
    fn walk(&self, core: &[u64]) -> Strips {
        let takes = |strips: &Strips| self.takes(core, strips);
        let limit = self.cached_len();
        let Some(least) = self.strips(core).filter(|_| takes(&WHOLE) > limit) else { return WHOLE };
        // As many rows as the cache holds, all strips about as thick.
        let row = takes(&Strips { rows: least.rows + 1, ..least }) - takes(&least);
        let more = limit.saturating_sub(takes(&least)).checked_div(row).unwrap_or(u64::MAX);
        let all = core[self.reaches[least.pass].axis];
        let count = all.div_ceil(least.rows.saturating_add(more)).max(1);
        let strips = Strips { rows: all.div_ceil(count).max(least.rows), ..least };
        if takes(&strips) < takes(&WHOLE) { strips } else { WHOLE }
    }

    fn takes(&self, core: &[u64], strips: &Strips) -> u64 {
        let [window, strip] = self.buffer_len(core, strips);
        window.saturating_add(strip)
    }

    /// Elements of the window and of the strip.
    fn buffer_len(&self, core: &[u64], strips: &Strips) -> [u64; 2] {
        let Some(at) = self.reaches.get(strips.pass) else { return [0, 0] };
        let mut core = core.to_vec();
        core[at.axis] = core[at.axis].min(strips.rows);
        let held = |n: usize| {
            let shape = self.frame.grown_shape(&core, &depth_of(&self.reaches[n..], self.frame.rank()));
            shape.iter().fold(1u64, |n, len| n.saturating_mul(*len))
        };
        let window = if strips.pass == 0 { 0 } else { held(1) };
        let mut strip = if strips.pass + 1 < self.reaches.len() { held(strips.pass + 1) } else { 0 };
        if let Some(slabs) = self.slabs(&core, strips) {
            // Slabs of less are thicker: never less room than for a thick one of these.
            let most = slab() / self.frame.dtype.size() as u64;
            strip = strip.min(most.max(strip / core[slabs.axis].max(1)));
        }
        [window, strip]
    }

    /// How a strip of this shape is cut for the passes from its own on; `None`: as a whole.
    pub(super) fn slabs(&self, strip: &[u64], strips: &Strips) -> Option<Slabs> {
        let rest = self.reaches.get(strips.pass..)?;
        let axis = (0..strip.len()).find(|&a| strip[a] > 1 && rest.iter().all(|reach| reach.axis != a))?;
        let mut one = strip.to_vec();
        one[axis] = 1;
        let shape = self.frame.grown_shape(&one, &depth_of(rest.get(1..)?, self.frame.rank()));
        let bytes = shape.iter().fold(self.frame.dtype.size() as u64, |n, len| n.saturating_mul(*len));
        Some(Slabs { axis, cells: (slab() / bytes.max(1)).clamp(1, strip[axis]) })
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
        out: (&mut [S], Combine),
        between: &mut [S],
        tile: &mut [W],
        filter: &mut dyn Filter<W>,
    ) {
        let (cells, layout) = Layout::of::<S>(block);
        self.run_cells((cells, layout, have), core, out, between, tile, filter);
    }

    /// The same from cells that lie in memory as `source` says.
    pub fn run_cells<S: Sample, W: Lane<S>>(
        &self,
        (cells, mut source, have): (&[S], Layout, &Region),
        core: &Region,
        (out, combine): (&mut [S], Combine),
        between: &mut [S],
        tile: &mut [W],
        filter: &mut dyn Filter<W>,
    ) {
        if self.reaches.is_empty() {
            source.offset += offset_of(core, have, &source);
            return copy(&source, &Layout::within(core, core), core, (cells, out), combine, tile);
        }
        let shape = super::shape_of(core);
        let strips = self.walk(&shape);
        let Reach { axis, .. } = self.reaches[strips.pass];
        let [window, strip] = self.buffer_len(&shape, &strips);
        let (window, rest) = between.split_at_mut(window as usize);
        let strip = &mut rest[..strip as usize];
        // Where the window lies, and the row that it holds cells up to.
        let mut slot = Region::default();
        let (mut done, (mut start, end)) = (i64::MIN, core.axis(axis));
        while start < end {
            let mut part = core.clone();
            (part.start[axis], part.stop[axis]) = (start, end.min(start.saturating_add_unsigned(strips.rows)));
            start = part.stop[axis];
            let (first, last) = self.held(&part, strips.pass).axis(axis);
            if strips.pass > 0 {
                slot = self.moved(slot, self.held(&part, 1), axis, &strips, done, window);
            }
            let fresh = (first.max(done), last);
            done = last;
            for n in 0..strips.pass {
                let (mut goes_in, mut comes_out) = (self.held(&part, n), self.held(&part, n + 1));
                for region in [&mut goes_in, &mut comes_out] {
                    (region.start[axis], region.stop[axis]) = fresh;
                }
                let from = if n == 0 { within(&source, &goes_in, have) } else { Layout::within(&slot, &goes_in) };
                let to = Layout::within(&slot, &comes_out);
                let sides = (&goes_in, &comes_out, &from, &to, Combine::Set);
                match n {
                    0 => self.pass(n, sides, &mut Apart(cells, window), tile, filter),
                    _ => self.pass(n, sides, &mut Within(window), tile, filter),
                }
            }
            let slabs = self.slabs(&super::shape_of(&part), &strips);
            for slab in slabs_of(&part, slabs) {
                let goes_in = self.held(&slab, strips.pass);
                let from = match strips.pass {
                    0 => (cells, within(&source, &goes_in, have)),
                    _ => (&*window, Layout::within(&slot, &goes_in)),
                };
                self.through(strips.pass, (&slab, from, core), (&mut *out, combine), &mut *strip, tile, filter);
            }
        }
    }

    /// The passes from `first` on: from what goes into it for `slab`, to the slab's place in `out`, which covers `whole`.
    fn through<S: Sample, W: Lane<S>>(
        &self,
        first: usize,
        (slab, (cells, source), whole): (&Region, (&[S], Layout), &Region),
        (out, combine): (&mut [S], Combine),
        strip: &mut [S],
        tile: &mut [W],
        filter: &mut dyn Filter<W>,
    ) {
        let is_last = first + 1 == self.reaches.len();
        let (goes_in, comes_out) = (self.held(slab, first), self.held(slab, first + 1));
        let to = Layout::within(if is_last { whole } else { &comes_out }, &comes_out);
        let (target, how) = if is_last { (&mut *out, combine) } else { (&mut *strip, Combine::Set) };
        self.pass(first, (&goes_in, &comes_out, &source, &to, how), &mut Apart(cells, target), tile, filter);
        self.rest(first + 1, (slab, whole), (out, combine), strip, tile, filter);
    }

    /// The passes from `next` on, from what the one before left in `strip` for the slab.
    pub(super) fn rest<S: Sample, W: Lane<S>>(
        &self,
        next: usize,
        (slab, whole): (&Region, &Region),
        (out, combine): (&mut [S], Combine),
        strip: &mut [S],
        tile: &mut [W],
        filter: &mut dyn Filter<W>,
    ) {
        let base = self.held(slab, next);
        for n in next..self.reaches.len() {
            let (goes_in, comes_out) = (self.held(slab, n), self.held(slab, n + 1));
            let from = Layout::within(&base, &goes_in);
            let is_last = n + 1 == self.reaches.len();
            let to = Layout::within(if is_last { whole } else { &base }, &comes_out);
            let sides = (&goes_in, &comes_out, &from, &to, if is_last { combine } else { Combine::Set });
            match is_last {
                true => self.pass(n, sides, &mut Apart(strip, out), tile, filter),
                false => self.pass(n, sides, &mut Within(strip), tile, filter),
            }
        }
    }

    /// The region that goes into a pass: what it and those after it need.
    pub(super) fn held(&self, part: &Region, n: usize) -> Region {
        self.frame.grow(part, &depth_of(&self.reaches[n..], self.frame.rank()))
    }

    /// The window's next place, which holds `region`, with the rows that it has up to `done` moved along.
    fn moved<S: Sample>(
        &self,
        from: Region,
        region: Region,
        axis: usize,
        strips: &Strips,
        done: i64,
        window: &mut [S],
    ) -> Region {
        let mut slot = region;
        let depth = self.reaches[strips.pass].depth();
        let len = self.frame.grown_len(axis, strips.rows, depth);
        slot.stop[axis] = slot.start[axis].saturating_add_unsigned(len);
        if done > slot.start[axis] {
            let inner: usize = (axis + 1..slot.rank()).map(|a| slot.len(a)).product();
            let first = (slot.start[axis] - from.start[axis]) as usize * inner;
            let count = (done - slot.start[axis]) as usize * inner;
            for plane in window[..slot.count()].chunks_exact_mut(len as usize * inner) {
                plane.copy_within(first..first + count, 0);
            }
        }
        slot
    }

    /// The cells of a pass's lines, of which those in `have` are there.
    pub(super) fn runs(&self, n: usize, comes_out: &Region, have: (i64, i64)) -> Vec<Run> {
        let Reach { axis, before, after } = self.reaches[n];
        let (start, stop) = comes_out.axis(axis);
        self.frame.runs(axis, (start - before as i64, stop + after as i64), have)
    }

    /// What lies beyond the ends of a pass's lines. Where a side has no constant, no run asks for it.
    pub(super) fn constants<S: Sample, W: Lane<S>>(&self, n: usize) -> [W; 2] {
        let constants = &self.frame.constants[self.reaches[n].axis];
        constants.map(|c| W::load(c.map_or_else(S::zeroed, |c| bytemuck::pod_read_unaligned(c.bytes()))))
    }

    pub(super) fn pass<S: Sample, W: Lane<S>>(
        &self,
        n: usize,
        (goes_in, comes_out, source, target, combine): (&Region, &Region, &Layout, &Layout, Combine),
        ends: &mut dyn Ends<S>,
        tile: &mut [W],
        filter: &mut dyn Filter<W>,
    ) {
        let axis = self.reaches[n].axis;
        let runs = self.runs(n, comes_out, goes_in.axis(axis));
        let constants = self.constants(n);
        let shape = comes_out.shape();
        Pass { axis, shape: &shape, runs: &runs, constants, source, target, combine }.run(ends, tile, n, filter);
    }
}

/// A strip, slab by slab.
pub(super) fn slabs_of(part: &Region, slabs: Option<Slabs>) -> impl Iterator<Item = Region> {
    let mut rest = Some(part.clone());
    std::iter::from_fn(move || {
        let mut slab = rest.take()?;
        if let Some(Slabs { axis, cells }) = slabs {
            let end = slab.stop[axis];
            slab.stop[axis] = end.min(slab.start[axis].saturating_add_unsigned(cells));
            if slab.stop[axis] < end {
                let mut behind = slab.clone();
                (behind.start[axis], behind.stop[axis]) = (slab.stop[axis], end);
                rest = Some(behind);
            }
        }
        Some(slab)
    })
}

/// The layout of a region of what lies as `layout` says, from the first cell of `have` on.
fn within(layout: &Layout, region: &Region, have: &Region) -> Layout {
    Layout { offset: layout.offset + offset_of(region, have, layout), strides: layout.strides.clone() }
}

/// Elements from the first cell of `have`, which has this layout, to that of `region`.
fn offset_of(region: &Region, have: &Region, layout: &Layout) -> isize {
    (0..region.rank()).map(|a| (region.start[a] - have.start[a]) as isize * layout.strides[a]).sum()
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
        0,
        &mut |_, _: &mut [W], _, _| {},
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Rule;
    use crate::operators::testing::{Random, Whole};
    use crate::operators::{ArrayMeta, StepInput};

    fn frame(shape: &[u64], boundary: Vec<[Rule; 2]>) -> Frame {
        let cells: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let meta: ArrayMeta = Whole::new(Block::from_values(&cells, &vec![0f32; cells.iter().product()])).meta;
        Frame::new("filter", &[StepInput { meta, boundary: Some(boundary), depth: None }], false).unwrap()
    }

    fn reaches(depths: &[usize]) -> Vec<Reach> {
        depths.iter().enumerate().map(|(axis, &d)| Reach { axis, before: d, after: d }).collect()
    }

    #[test]
    fn strips_are_as_thick_as_the_cache_allows() {
        let frame = frame(&[50, 1104, 1104], vec![[Rule::Reflect; 2]; 3]);
        let reaches = reaches(&[12, 12, 12]);
        let chain = Chain { frame: &frame, reaches: &reaches };
        let walk = |core: &[u64]| {
            let strips = chain.walk(core);
            let len = chain.takes(core, &strips);
            assert!(len <= chain.between_len(core));
            (strips.pass, strips.rows, len * 4)
        };
        // Along y: a window of its rows is less than planes with the halo of both. Three strips, and of them a plane at a time.
        assert_eq!(walk(&[50, 276, 276]), (1, 92, (50 * (92 + 24) * 300 + (128 << 10) / 4) * 4));
        // What the cache holds is not cut.
        assert_eq!(walk(&[10, 60, 60]), (0, u64::MAX, 10 * 84 * 84 * 4));
        // One pass needs nothing between.
        let one = Chain { frame: &frame, reaches: &reaches[1..2] };
        assert_eq!((one.between_len(&[50, 276, 276]), one.walk(&[50, 276, 276]).rows), (0, u64::MAX));
        // Two in a plane: strips of the first, whose results all lie in the strip.
        let plane = Chain { frame: &frame, reaches: &reaches[1..] };
        let strips = plane.walk(&[1, 1104, 1104]);
        assert_eq!((strips.pass, plane.buffer_len(&[1, 1104, 1104], &strips)[0]), (0, 0));
    }

    #[test]
    fn what_lies_between_is_never_more_for_a_smaller_core() {
        let mut random = Random::new(8);
        for _ in 0..300 {
            let rules = [Rule::Reflect, Rule::Periodic, Rule::Constant(0.0)];
            let mut rule = || rules[random.below(3) as usize];
            let boundary: Vec<[Rule; 2]> = (0..3).map(|_| [rule(), rule()]).collect();
            let shape: Vec<u64> = (0..3).map(|_| 1 + random.below(60)).collect();
            let frame = frame(&shape, boundary);
            let mut list = reaches(&[0; 3].map(|_: usize| random.below(9) as usize));
            list.rotate_left(random.below(3) as usize);
            list.truncate(1 + random.below(3) as usize);
            let chain = Chain { frame: &frame, reaches: &list };
            TEST_CACHE.set(Some(1 << random.below(18)));
            let most = chain.between_len(&shape);
            let core: Vec<u64> = shape.iter().map(|&n| 1 + random.below(n)).collect();
            let needed = chain.takes(&core, &chain.walk(&core));
            TEST_CACHE.set(None);
            assert!(needed <= most, "{needed} of {most} for {core:?} of {shape:?}, {list:?}");
        }
    }
}
