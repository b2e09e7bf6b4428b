//! The arithmetic of one row along the last axis, in scikit-image's order of operations, in the image's own dtype.
//!
//! Rows are computed in stripes of [`LANES`] cells whose values stay in registers from the first load to the last store.
//! The last stripe may reach beyond the row: rows lie in fields with room for it, and nobody reads what it leaves there. A
//! root and `ndim` divisions a cell keep the divider busy nearly all the time; loads and sums hide behind them.

use super::load::Float;
use crate::simd::{Vectored, widest};

/// Cells of a stripe.
pub const LANES: usize = 16;

/// `for $a in $from..$rank`, unrolled by hand where ranks are common: compilers leave a loop around arrays as it is, and
/// the arrays in memory.
macro_rules! each_axis {
    ($from:literal, $rank:expr, $a:ident => $body:block) => {{
        each_axis!(@one $from, 0, $rank, $a => $body);
        each_axis!(@one $from, 1, $rank, $a => $body);
        each_axis!(@one $from, 2, $rank, $a => $body);
        for $a in 3..$rank $body
    }};
    (@one $from:literal, $axis:literal, $rank:expr, $a:ident => $body:block) => {
        if $from <= $axis && $axis < $rank {
            let $a = $axis;
            $body
        }
    };
}

/// Rows of equal length in fields of one layout.
#[derive(Default)]
pub struct Rows {
    /// Where each begins.
    pub first: Vec<usize>,
    /// Per row and axis: the first cell's neighbour, where the array has one.
    pub near: Vec<Option<usize>>,
    pub len: usize,
    /// The array ends with these rows along the last axis: their first cell (looking back) or their last (looking ahead) has
    /// no neighbour there.
    pub at_edge: bool,
}

/// `out = image - div p` along rows; `near` are the cells before.
pub struct Diverge<'r, T> {
    pub rank: usize,
    pub image: &'r [T],
    /// The components, `apart` cells from one to the next.
    pub p: &'r [T],
    pub apart: usize,
    pub out: &'r mut [T],
    /// Gets the divergence's negative: for single rows.
    pub seen: Option<&'r mut [T]>,
}

/// `p = (p - tau g) / (1 + factor |g|)` along rows, `g` the gradient of `field`; `near` are the cells after.
pub struct Descend<'r, T> {
    pub rank: usize,
    pub field: &'r [T],
    pub p: &'r mut [T],
    pub apart: usize,
    pub tau: T,
    pub factor: T,
    /// `p` is 0 so far, whatever is stored.
    pub is_fresh: bool,
    /// Gets the gradient's length: for single rows.
    pub seen: Option<&'r mut [T]>,
    /// A cell per axis to work with.
    pub spare: &'r mut [T],
}

/// A row of [`Rows`]: where it begins, and its neighbours; none along the last axis if `IS_EDGE`.
#[derive(Clone, Copy)]
pub struct Row<'r, const IS_EDGE: bool> {
    first: usize,
    near: &'r [Option<usize>],
}

impl<const IS_EDGE: bool> Row<'_, IS_EDGE> {
    #[inline(always)]
    fn near(&self, rank: usize, axis: usize) -> Option<usize> {
        if IS_EDGE && axis + 1 == rank { None } else { self.near[axis] }
    }
}

/// What is done to rows.
pub trait Stripes {
    fn rank(&self) -> usize;
    fn stripe<const L: usize, const IS_EDGE: bool>(&mut self, rank: usize, row: Row<'_, IS_EDGE>, x: usize);
    fn edge(&mut self, rank: usize, row: Row<'_, false>, len: usize, is_before: bool);
}

impl<T: Float> Stripes for Diverge<'_, T> {
    fn rank(&self) -> usize {
        self.rank
    }

    #[inline(always)]
    fn stripe<const L: usize, const IS_EDGE: bool>(&mut self, rank: usize, row: Row<'_, IS_EDGE>, x: usize) {
        let at = row.first + x;
        let mut d = cells::<T, L>(self.p, at);
        each_axis!(1, rank, a => {
                   let p = cells::<T, L>(self.p, a * self.apart + at);
                   for l in 0..L {
        d[l] = d[l] + p[l];
        }
               });
        for l in 0..L {
            d[l] = -d[l];
        }
        each_axis!(0, rank, a => {
                   if let Some(before) = row.near(rank, a) {
                       let p = cells::<T, L>(self.p, a * self.apart + before + x);
                       for l in 0..L {
        d[l] = d[l] + p[l];
        }
                   }
               });
        if let Some(seen) = &mut self.seen {
            seen[x..][..L].copy_from_slice(&d);
        }
        let image = cells::<T, L>(self.image, at);
        for l in 0..L {
            d[l] = image[l] + d[l];
        }
        self.out[at..][..L].copy_from_slice(&d);
    }

    #[inline(always)]
    fn edge(&mut self, rank: usize, row: Row<'_, false>, _len: usize, is_before: bool) {
        if !is_before {
            // The stripes took what lies before the first cell for a neighbour.
            self.stripe::<1, true>(rank, Row { first: row.first, near: row.near }, 0);
        }
    }
}

impl<T: Float> Stripes for Descend<'_, T> {
    fn rank(&self) -> usize {
        self.rank
    }

    #[inline(always)]
    fn stripe<const L: usize, const IS_EDGE: bool>(&mut self, rank: usize, row: Row<'_, IS_EDGE>, x: usize) {
        let at = row.first + x;
        let here = cells::<T, L>(self.field, at);
        let g = gradient(self.field, &here, row.near(rank, 0), x);
        let mut norm = [T::ZERO; L];
        for l in 0..L {
            norm[l] = g[l] * g[l];
        }
        each_axis!(1, rank, a => {
                   let g = gradient(self.field, &here, row.near(rank, a), x);
                   for l in 0..L {
        norm[l] = norm[l] + g[l] * g[l];
        }
               });
        for l in 0..L {
            norm[l] = norm[l].root();
        }
        if let Some(seen) = &mut self.seen {
            seen[x..][..L].copy_from_slice(&norm);
        }
        for l in 0..L {
            norm[l] = norm[l] * self.factor + T::ONE;
        }
        each_axis!(0, rank, a => {
                   let g = gradient(self.field, &here, row.near(rank, a), x);
                   let place = a * self.apart + at;
                   let mut p = if self.is_fresh { [T::ZERO; L] } else { cells::<T, L>(self.p, place) };
                   for l in 0..L {
        p[l] = (p[l] - self.tau * g[l]) / norm[l];
        }
                   self.p[place..][..L].copy_from_slice(&p);
               });
    }

    #[inline(always)]
    fn edge(&mut self, rank: usize, row: Row<'_, false>, len: usize, is_before: bool) {
        // The last cell has no neighbour. Cells change where they lie, so what stripes make of it is taken back.
        let cell = row.first + len - 1;
        if is_before {
            return (0..rank).for_each(|a| self.spare[a] = self.p[a * self.apart + cell]);
        }
        (0..rank).for_each(|a| self.p[a * self.apart + cell] = self.spare[a]);
        self.stripe::<1, true>(rank, Row { first: row.first, near: row.near }, len - 1);
    }
}

/// Differences to the next cells along an axis; none where the array ends.
#[inline(always)]
fn gradient<T: Float, const L: usize>(field: &[T], here: &[T; L], after: Option<usize>, x: usize) -> [T; L] {
    let Some(after) = after else { return [T::ZERO; L] };
    let mut g = cells::<T, L>(field, after + x);
    for l in 0..L {
        g[l] = g[l] - here[l];
    }
    g
}

#[inline(always)]
fn cells<T: Float, const L: usize>(field: &[T], at: usize) -> [T; L] {
    let mut values = [T::ZERO; L];
    values.copy_from_slice(&field[at..][..L]);
    values
}

/// Computes rows.
pub fn compute(job: &mut impl Stripes, rows: &Rows) {
    widest(Sweep(job, rows));
}

struct Sweep<'s, J>(&'s mut J, &'s Rows);

impl<J: Stripes> Vectored for Sweep<'_, J> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        // Common ranks as constants, for the loops over axes to unroll.
        match self.0.rank() {
            1 => self.rows(1),
            2 => self.rows(2),
            3 => self.rows(3),
            rank => self.rows(rank),
        }
    }
}

impl<J: Stripes> Sweep<'_, J> {
    #[inline(always)]
    fn rows(self, rank: usize) {
        let Rows { first, near, len, at_edge } = self.1;
        for (&first, near) in first.iter().zip(near.chunks_exact(rank)) {
            let row = Row { first, near };
            if *at_edge {
                self.0.edge(rank, row, *len, true);
            }
            for x in (0..*len).step_by(LANES) {
                self.0.stripe::<LANES, false>(rank, row, x);
            }
            if *at_edge {
                self.0.edge(rank, row, *len, false);
            }
        }
    }
}

/// Sets energies to the squares of a divergence.
pub struct Square<'r, T>(pub &'r [T], pub &'r mut [f64]);

impl<T: Float> Vectored for Square<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (energy, d) in self.1.iter_mut().zip(self.0) {
            *energy = d.wide() * d.wide();
        }
    }
}

/// Adds weighted lengths of gradients to energies.
pub struct Weigh<'r, T>(pub &'r [T], pub f64, pub &'r mut [f64]);

impl<T: Float> Vectored for Weigh<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (energy, norm) in self.2.iter_mut().zip(self.0) {
            *energy += self.1 * norm.wide();
        }
    }
}
