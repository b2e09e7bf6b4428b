//! The walk of a one-dimensional filter over an n-dimensional array, one axis after the other.
//!
//! Lines along the axis are filtered in *tiles*: all lines of up to 128 neighbours side by side, converted once into the type
//! that the filter computes in, filtered in place, and stored. In a tile the cells of a line lie `step` apart (what lies between
//! the last line and the next cells is filtered, too, and not stored), so that one kernel serves every axis: `out[i] = f(tile[i], tile[i + step], tile[i + 2 step], ...)`, vectorised along `i`.
//! A pass costs one read and one write of its lines. It may work within one buffer, since a tile holds its lines whole.

use bytemuck::Pod;

use super::direct::{Direct, Stretch};
use super::sample::Sample;
use crate::array::boundary::{Run, RunFrom};
use crate::array::{Block, Dims, Region};
use crate::simd::{Vectored, fetch, widest};

/// Lines side by side: a window of rows of this many doubles stays in the first-level cache.
const TILE_WIDTH: usize = 128;
/// Of lines so long that a tile of them would leave the second-level cache, fewer lie side by side, but not fewer than this.
const NARROWEST: usize = 16;
const TILE_BYTES: usize = 512 << 10;
/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Lines of `cells` cells that lie side by side in a tile.
fn width_for(cells: usize, size: usize) -> usize {
    let width = (TILE_BYTES / (cells.max(1) * size)).clamp(NARROWEST, TILE_WIDTH);
    width - width % NARROWEST
}

/// From row to row of a tile of so many lines side by side: rows of whole vectors have no odd cells at their ends.
fn step_for(width: usize) -> usize {
    if width < NARROWEST { width } else { width.next_multiple_of(NARROWEST) }
}

/// Elements of a tile for lines of up to `cells` cells.
pub fn tile_len(cells: u64, size: usize) -> u64 {
    let most = cells.saturating_mul(TILE_WIDTH as u64).min((TILE_BYTES / size) as u64);
    most.max(cells.saturating_mul(NARROWEST as u64))
}

/// What a filter computes in, and how elements become that.
pub trait Lane<S>: Pod {
    fn load(value: S) -> Self;
    fn store(self) -> S;

    /// Elements as what the filter computes in, where that is the same.
    fn of(_elements: &[S]) -> Option<&[Self]> {
        None
    }
    fn of_mut(_elements: &mut [S]) -> Option<&mut [Self]> {
        None
    }
}

impl<S: Sample> Lane<S> for f64 {
    #[inline(always)]
    fn load(value: S) -> f64 {
        value.to_f64()
    }
    #[inline(always)]
    fn store(self) -> S {
        S::from_f64(self)
    }
}

/// For filters whose rounding float32 bears.
impl Lane<f32> for f32 {
    #[inline(always)]
    fn load(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn store(self) -> f32 {
        self
    }
    fn of(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
    fn of_mut(elements: &mut [f32]) -> Option<&mut [f32]> {
        Some(elements)
    }
}

/// A key, told apart from the numbers that linear filters compute in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Keyed<K>(pub K);

// SAFETY: a transparent wrapper of plain data.
unsafe impl<K: Pod> bytemuck::Zeroable for Keyed<K> {}
// SAFETY: as above.
unsafe impl<K: Pod> Pod for Keyed<K> {}

impl<S: Sample> Lane<S> for Keyed<S::Key> {
    #[inline(always)]
    fn load(value: S) -> Self {
        Keyed(value.key())
    }
    #[inline(always)]
    fn store(self) -> S {
        S::from_key(self.0)
    }
}

/// What happens to a result where the output holds one already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    Set,
    Add,
    /// Its square is kept, or added.
    SetSquare,
    AddSquare,
    /// It is taken from the output, or the output from it.
    Subtract,
    SubtractFrom,
}

impl Combine {
    #[inline(always)]
    pub fn apply<S: Sample>(self, cell: &mut S, value: S) {
        *cell = match self {
            Combine::Set => value,
            Combine::Add => cell.plus(value),
            Combine::SetSquare => value.times(value),
            Combine::AddSquare => cell.plus(value.times(value)),
            Combine::Subtract => cell.minus(value),
            Combine::SubtractFrom => value.minus(*cell),
        };
    }
}

/// A strided box of elements in a slice, as offsets and strides in elements.
#[derive(Clone, Debug)]
pub struct Layout {
    pub offset: isize,
    pub strides: Dims<isize>,
}

impl Layout {
    /// A block, its whole buffer seen as elements.
    pub fn of<S: Pod>(block: &Block) -> (&[S], Layout) {
        let size = size_of::<S>() as isize;
        let (bytes, offset) = block.raw();
        let whole = bytes.len() - bytes.len() % size_of::<S>();
        let strides = block.strides().iter().map(|s| s / size).collect();
        (bytemuck::cast_slice(&bytes[..whole]), Layout { offset: offset / size, strides })
    }

    /// A box that begins at `region`'s start inside a C-order buffer over `buffer`.
    pub fn within(buffer: &Region, region: &Region) -> Layout {
        let strides = crate::array::block::c_strides(&buffer.shape(), 1);
        let offset = (0..region.rank()).map(|a| (region.start[a] - buffer.start[a]) as isize * strides[a]).sum();
        Layout { offset, strides }
    }
}

/// Where a pass reads and writes: two slices, or one.
pub trait Ends<S> {
    fn source(&self) -> &[S];
    fn target(&mut self) -> &mut [S];
    /// Where they are two.
    fn both(&mut self) -> Option<(&[S], &mut [S])> {
        None
    }
}

pub struct Apart<'a, S>(pub &'a [S], pub &'a mut [S]);
pub struct Within<'a, S>(pub &'a mut [S]);

impl<S> Ends<S> for Apart<'_, S> {
    fn source(&self) -> &[S] {
        self.0
    }
    fn target(&mut self) -> &mut [S] {
        self.1
    }
    fn both(&mut self) -> Option<(&[S], &mut [S])> {
        Some((self.0, self.1))
    }
}

impl<S> Ends<S> for Within<'_, S> {
    fn source(&self) -> &[S] {
        self.0
    }
    fn target(&mut self) -> &mut [S] {
        self.0
    }
}

/// The arithmetic of passes.
pub trait Filter<W> {
    /// Leaves `n` results at the start of the tile.
    fn tile(&mut self, pass: usize, tile: &mut [W], step: usize, n: usize);

    /// Whether [`Filter::line`] and [`Filter::rows`] are there.
    fn is_direct(&self) -> bool {
        false
    }

    /// A line whose cells follow each other, to where its results belong: no tile in between.
    fn line(&mut self, _pass: usize, _cells: &[W], _out: &mut [W]) {}

    /// Lines side by side, by their cells: `out[r * step + i]` from cell `i` of `rows[r]`, `rows[r + 1]`, ... See `direct`.
    fn rows(&mut self, _pass: usize, _rows: &[&[W]], _out: &mut [W], _step: usize) {}
}

impl<W, F: FnMut(usize, &mut [W], usize, usize)> Filter<W> for F {
    fn tile(&mut self, pass: usize, tile: &mut [W], step: usize, n: usize) {
        self(pass, tile, step, n);
    }
}

/// One pass: lines of the box `shape` (as it comes out) along `axis`.
pub struct Pass<'a, W> {
    pub axis: usize,
    pub shape: &'a [usize],
    /// The cells of a line as it goes in, places relative to the source layout's first cell.
    pub runs: &'a [Run],
    /// What lies beyond the ends where the rule is a constant.
    pub constants: [W; 2],
    pub source: &'a Layout,
    pub target: &'a Layout,
    pub combine: Combine,
}

impl<W: Pod> Pass<'_, W> {
    /// Runs pass `number` of the filter. Called by pointers once a tile, so that the walk is compiled once per type of element,
    /// not per use.
    pub fn run<S: Sample>(&self, ends: &mut dyn Ends<S>, tile: &mut [W], number: usize, filter: &mut dyn Filter<W>)
    where
        W: Lane<S>,
    {
        if self.shape.contains(&0) {
            return;
        }
        let (axis, rank) = (self.axis, self.shape.len());
        let cells: usize = self.runs.last().map_or(0, |r| r.dst + r.len);
        let results = self.shape[axis];
        // Axes behind the filtered one that follow each other without gaps on both sides are one row.
        let (mut outer, mut row) = (rank, 1usize);
        while outer > axis + 1 {
            let a = outer - 1;
            let follows = |l: &Layout| self.shape[a] == 1 || l.strides[a] == row as isize;
            if !follows(self.source) || !follows(self.target) {
                break;
            }
            row *= self.shape[a];
            outer = a;
        }
        if row >= NARROWEST && self.combine == Combine::Set && filter.is_direct() && self.direct(ends, number, filter) {
            return;
        }
        let loops: Vec<usize> = (0..outer).filter(|&a| a != axis).collect();
        let (step_in, step_out) = (self.source.strides[axis], self.target.strides[axis]);
        let most = width_for(cells, size_of::<W>());
        let is_line = row == 1 && step_in == 1 && step_out == 1 && self.combine == Combine::Set && filter.is_direct();
        let mut index = vec![0usize; loops.len()];
        let (mut from, mut to) = (self.source.offset, self.target.offset);
        loop {
            for first in (0..row).step_by(most) {
                let width = most.min(row - first);
                let (from, to) = (from + first as isize, to + first as isize);
                if is_line && self.line(ends, [from, to], [cells, results], tile, number, filter) {
                    continue;
                }
                let step = step_for(width);
                widest(Load { pass: self, source: ends.source(), at: from, step: step_in, width, apart: step, tile });
                filter.tile(number, &mut tile[..cells * step], step, results * step);
                let tile = &tile[..results * step];
                widest(Store { tile, width, apart: step, target: ends.target(), at: to, step: step_out, combine: self.combine });
            }
            let mut l = loops.len();
            loop {
                if l == 0 {
                    return;
                }
                l -= 1;
                let a = loops[l];
                index[l] += 1;
                from += self.source.strides[a];
                to += self.target.strides[a];
                if index[l] < self.shape[a] {
                    break;
                }
                from -= self.source.strides[a] * self.shape[a] as isize;
                to -= self.target.strides[a] * self.shape[a] as isize;
                index[l] = 0;
            }
        }
    }
}

impl<W: Pod> Pass<'_, W> {
    /// The pass without tiles. False where elements are converted, or the results go where the cells lie.
    fn direct<S: Sample>(&self, ends: &mut dyn Ends<S>, number: usize, filter: &mut dyn Filter<W>) -> bool
    where
        W: Lane<S>,
    {
        let Some((source, target)) = ends.both() else { return false };
        let (Some(cells), Some(target)) = (W::of(source), W::of_mut(target)) else { return false };
        let (axis, runs, constants) = (self.axis, self.runs, self.constants);
        let stretches = [Stretch { cells, layout: self.source.clone(), first: 0, len: usize::MAX }];
        Direct { axis, shape: self.shape, runs, constants, stretches: &stretches, target: self.target }
            .run(target, number, filter);
        true
    }

    /// One line from where it lies, or from a tile where it reaches beyond the array. False where elements are converted.
    fn line<S: Sample>(
        &self,
        ends: &mut dyn Ends<S>,
        [from, to]: [isize; 2],
        [cells, results]: [usize; 2],
        tile: &mut [W],
        number: usize,
        filter: &mut dyn Filter<W>,
    ) -> bool
    where
        W: Lane<S>,
    {
        let to = to as usize..to as usize + results;
        if let ([Run { from: RunFrom::Cells { src, step: 1 }, .. }], Some((source, target))) = (self.runs, ends.both()) {
            let first = (from + *src as isize) as usize;
            let (source, target) = (W::of(&source[first..first + cells]), W::of_mut(&mut target[to]));
            return source.zip(target).map(|(source, target)| filter.line(number, source, target)).is_some();
        }
        widest(Load { pass: self, source: ends.source(), at: from, step: 1, width: 1, apart: 1, tile });
        W::of_mut(&mut ends.target()[to]).map(|target| filter.line(number, &tile[..cells], target)).is_some()
    }
}

/// Asks for the part of a row that the next tile takes: rows lie too far apart for the machine to foresee it.
#[inline(always)]
fn soon<S>(row: &[S], at: usize, width: usize) {
    let place = row.as_ptr().wrapping_add(at).cast::<u8>();
    (0..width * size_of::<S>()).step_by(LINE).for_each(|byte| fetch(place.wrapping_add(byte)));
}

/// Lines side by side on their way into a tile.
struct Load<'a, S, W> {
    pass: &'a Pass<'a, W>,
    source: &'a [S],
    at: isize,
    step: isize,
    width: usize,
    apart: usize,
    tile: &'a mut [W],
}

impl<S: Sample, W: Lane<S>> Vectored for Load<'_, S, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { pass, source, at, step, width, apart, tile } = self;
        for run in pass.runs {
            let tile = &mut tile[run.dst * apart..(run.dst + run.len) * apart];
            match run.from {
                RunFrom::Constant(side) => tile.fill(pass.constants[side]),
                RunFrom::Cells { src, step: sign } => {
                    let (start, stride) = (at + src as isize * step, sign as isize * step);
                    if width == 1 && stride == 1 {
                        load(&source[start as usize..][..run.len], tile);
                    } else if width == 1 {
                        for (i, cell) in tile.iter_mut().enumerate() {
                            *cell = W::load(source[(start + i as isize * stride) as usize]);
                        }
                    } else {
                        for (i, row) in tile.chunks_exact_mut(apart).enumerate() {
                            let first = (start + i as isize * stride) as usize;
                            soon(source, first + width, width);
                            load(&source[first..][..width], &mut row[..width]);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn load<S: Sample, W: Lane<S>>(values: &[S], lanes: &mut [W]) {
    for (value, lane) in values.iter().zip(lanes) {
        *lane = W::load(*value);
    }
}

/// Results side by side on their way out of a tile.
struct Store<'a, S, W> {
    tile: &'a [W],
    width: usize,
    apart: usize,
    target: &'a mut [S],
    at: isize,
    step: isize,
    combine: Combine,
}

impl<S: Sample, W: Lane<S>> Vectored for Store<'_, S, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        // One loop per case, so that each is vectorised.
        macro_rules! each {
            ($($case:ident),*) => {
                match self.combine {
                    $(Combine::$case => self.rows(|lane, cell| Combine::$case.apply(cell, lane.store())),)*
                }
            };
        }
        each!(Set, Add, SetSquare, AddSquare, Subtract, SubtractFrom);
    }
}

impl<S: Sample, W: Lane<S>> Store<'_, S, W> {
    #[inline(always)]
    fn rows(self, keep: impl Fn(&W, &mut S)) {
        let Self { tile, width, apart, target, at, step, .. } = self;
        let all = |row: &[W], cells: &mut [S]| row.iter().zip(cells).for_each(|(lane, cell)| keep(lane, cell));
        if width == 1 && step == 1 {
            return all(tile, &mut target[at as usize..][..tile.len()]);
        }
        for (i, row) in tile.chunks_exact(apart).enumerate() {
            let first = (at + i as isize * step) as usize;
            soon(target, first + width, width);
            all(&row[..width], &mut target[first..][..width]);
        }
    }
}
