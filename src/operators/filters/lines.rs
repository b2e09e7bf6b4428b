//! The walk of a one-dimensional filter over an n-dimensional array, one axis after the other.
//!
//! Lines along the axis are filtered in *tiles*: all lines of up to 128 neighbours side by side, converted once into the type
//! that the filter computes in, filtered in place, and stored. In a tile the cells of a line lie `step` apart, so that
//! one kernel serves every axis: `out[i] = f(tile[i], tile[i + step], tile[i + 2 step], ...)`, vectorised along `i`.
//! A pass costs one read and one write of its lines. It may work within one buffer, since a tile holds its lines whole.

use bytemuck::Pod;

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
    (TILE_BYTES / (cells.max(1) * size)).clamp(NARROWEST, TILE_WIDTH)
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
}

impl<S> Ends<S> for Within<'_, S> {
    fn source(&self) -> &[S] {
        self.0
    }
    fn target(&mut self) -> &mut [S] {
        self.0
    }
}

/// The arithmetic of a pass: `filter(tile, step, n)`.
pub type Filter<'a, W> = &'a mut dyn FnMut(&mut [W], usize, usize);

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
    /// Runs `filter(tile, step, n)`, which leaves its `n` results at the start of the tile. Called by pointers once a tile, so
    /// that the walk is compiled once per type of element, not per use.
    pub fn run<S: Sample>(&self, ends: &mut dyn Ends<S>, tile: &mut [W], filter: Filter<'_, W>)
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
        let loops: Vec<usize> = (0..outer).filter(|&a| a != axis).collect();
        let (step_in, step_out) = (self.source.strides[axis], self.target.strides[axis]);
        let widest = width_for(cells, size_of::<W>());
        let mut index = vec![0usize; loops.len()];
        let (mut from, mut to) = (self.source.offset, self.target.offset);
        loop {
            for first in (0..row).step_by(widest) {
                let width = widest.min(row - first);
                let (from, to) = (from + first as isize, to + first as isize);
                self.load(ends.source(), from, step_in, width, tile);
                filter(&mut tile[..cells * width], width, results * width);
                self.store(ends.target(), to, step_out, width, results, tile);
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

    fn load<S: Sample>(&self, source: &[S], at: isize, step: isize, width: usize, tile: &mut [W])
    where
        W: Lane<S>,
    {
        for run in self.runs {
            let tile = &mut tile[run.dst * width..(run.dst + run.len) * width];
            match run.from {
                RunFrom::Constant(side) => tile.fill(self.constants[side]),
                RunFrom::Cells { src, step: sign } => {
                    let (start, stride) = (at + src as isize * step, sign as isize * step);
                    if width == 1 && stride == 1 {
                        widest(Load(&source[start as usize..start as usize + run.len], tile));
                    } else if width == 1 {
                        for (i, cell) in tile.iter_mut().enumerate() {
                            *cell = W::load(source[(start + i as isize * stride) as usize]);
                        }
                    } else {
                        for (i, row) in tile.chunks_exact_mut(width).enumerate() {
                            let first = (start + i as isize * stride) as usize;
                            soon(source, first + width, width);
                            widest(Load(&source[first..first + width], row));
                        }
                    }
                }
            }
        }
    }

    fn store<S: Sample>(&self, target: &mut [S], at: isize, step: isize, width: usize, results: usize, tile: &[W])
    where
        W: Lane<S>,
    {
        let combine = self.combine;
        if width == 1 && step == 1 {
            let at = at as usize;
            widest(Keep(&tile[..results], &mut target[at..at + results], combine));
        } else {
            for (i, row) in tile[..results * width].chunks_exact(width).enumerate() {
                let first = (at + i as isize * step) as usize;
                soon(target, first + width, width);
                widest(Keep(row, &mut target[first..first + width], combine));
            }
        }
    }
}

/// Asks for the part of a row that the next tile takes: rows lie too far apart for the machine to foresee it.
#[inline(always)]
fn soon<S>(row: &[S], at: usize, width: usize) {
    let place = row.as_ptr().wrapping_add(at).cast::<u8>();
    (0..width * size_of::<S>()).step_by(LINE).for_each(|byte| fetch(place.wrapping_add(byte)));
}

struct Load<'a, S, W>(&'a [S], &'a mut [W]);

impl<S: Copy, W: Lane<S>> Vectored for Load<'_, S, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (value, lane) in self.0.iter().zip(self.1) {
            *lane = W::load(*value);
        }
    }
}

struct Keep<'a, S, W>(&'a [W], &'a mut [S], Combine);

impl<S: Sample, W: Lane<S>> Vectored for Keep<'_, S, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        // One loop per case, so that each is vectorised.
        macro_rules! each {
            ($($case:ident),*) => {
                match self.2 {
                    $(Combine::$case => self.0.iter().zip(self.1).for_each(|(lane, cell)| {
                        Combine::$case.apply(cell, lane.store());
                    }),)*
                }
            };
        }
        each!(Set, Add, SetSquare, AddSquare, Subtract, SubtractFrom);
    }
}
