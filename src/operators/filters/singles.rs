//! Smoothing in float32, fused multiply-adds over a tile of singles: `out[i]` from `tile[i + k * step]`.
//!
//! Weights that are nowhere negative and add up to one cannot cancel, so rounding in float32 costs a result no more than its
//! last bits: half a unit per pass for the result and its share of those of the sums before it. float64 would cost twice the
//! arithmetic, and the conversions. Cells are added from the first to the last on any path.

use super::lines::Filter;
use super::shifted;
use crate::simd::{Vectored, fused, has_avx512};

/// Sums of more cells than this are left to float64.
const MOST_CELLS: usize = 129;

/// The weights of a smoothing pass.
#[derive(Clone, Debug)]
pub struct Singles(Vec<f32>);

impl Singles {
    /// Rounded weights that still add up to one, as closely as the middle one can make them; `None` where it takes float64.
    pub fn new(weights: &[f64]) -> Option<Self> {
        let is_mean = weights.iter().all(|w| *w >= 0.0) && (weights.iter().sum::<f64>() - 1.0).abs() < 1e-9;
        if !is_mean || weights.len().is_multiple_of(2) || weights.len() > MOST_CELLS {
            return None;
        }
        let mut rounded: Vec<f32> = weights.iter().map(|w| *w as f32).collect();
        let middle = weights.len() / 2;
        rounded[middle] = 0.0;
        rounded[middle] = (1.0 - rounded.iter().map(|w| f64::from(*w)).sum::<f64>()) as f32;
        Some(Self(rounded))
    }

    /// `n` results at the start of the tile, which holds `n + (cells - 1) * step` cells.
    pub fn apply(&self, tile: &mut [f32], step: usize, n: usize) {
        debug_assert_eq!(tile.len(), n + (self.0.len() - 1) * step);
        let weights = &self.0;
        match has_avx512() {
            true => fused(Smooth::<4, 64> { tile, step, n, weights }),
            false => fused(Smooth::<4, 16> { tile, step, n, weights }),
        }
    }

    /// The results of a line, from cells that follow each other.
    fn apply_to(&self, cells: &[f32], out: &mut [f32]) {
        debug_assert_eq!(cells.len(), out.len() + self.0.len() - 1);
        if !shifted::line(cells, out, &self.0) {
            fused(Line { cells, out, weights: &self.0 });
        }
    }

    /// The results of lines side by side, see [`Filter::rows`]; `is_last`: no pass comes behind this one.
    fn apply_rows(&self, rows: &[&[f32]], out: &mut [f32], step: usize, is_last: bool) {
        debug_assert!(rows.len() >= self.0.len());
        let weights = &self.0;
        match (has_avx512(), is_last) {
            (true, false) => fused(Rows::<4, 64, false> { rows, out, step, weights }),
            (true, true) => fused(Rows::<4, 64, true> { rows, out, step, weights }),
            (false, false) => fused(Rows::<4, 16, false> { rows, out, step, weights }),
            (false, true) => fused(Rows::<4, 16, true> { rows, out, step, weights }),
        }
    }
}

/// One per pass.
impl Filter<f32> for &[Singles] {
    fn tile(&mut self, pass: usize, tile: &mut [f32], step: usize, n: usize) {
        self[pass].apply(tile, step, n);
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn line(&mut self, pass: usize, cells: &[f32], out: &mut [f32]) {
        self[pass].apply_to(cells, out);
    }

    fn rows(&mut self, pass: usize, rows: &[&[f32]], out: &mut [f32], step: usize) {
        self[pass].apply_rows(rows, out, step, pass + 1 == self.len());
    }
}

/// Rows that are computed together, and lanes of each: as many sums as the machine has registers for.
struct Smooth<'a, const ROWS: usize, const LANES: usize> {
    tile: &'a mut [f32],
    step: usize,
    n: usize,
    weights: &'a [f32],
}

impl<const ROWS: usize, const LANES: usize> Vectored for Smooth<'_, ROWS, LANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { tile, step, n, weights } = self;
        if !step.is_multiple_of(LEAST) || !n.is_multiple_of(step) || weights.len() < ROWS {
            return line::<LINE>(tile, step, n, weights);
        }
        let whole = n - n % (ROWS * step);
        for at in (0..whole).step_by(ROWS * step) {
            let mut x = 0;
            while x + LANES <= step {
                rows::<ROWS, LANES>(tile, at + x, step, weights);
                x += LANES;
            }
            while x < step {
                rows::<ROWS, LEAST>(tile, at + x, step, weights);
                x += LEAST;
            }
        }
        for at in (whole..n).step_by(LEAST) {
            let results = sum::<LEAST>(tile, at, step, weights);
            tile[at..][..LEAST].copy_from_slice(&results);
        }
    }
}

/// Lanes of the narrowest stripe, of the next, and of those of a line.
const LEAST: usize = 16;
const BETWEEN: usize = 32;
const LINE: usize = 64;

/// Rows of results from rows of cells that lie anywhere, `ROWS` of them and `LANES` of each at a time.
struct Rows<'a, const ROWS: usize, const LANES: usize, const IS_LAST: bool> {
    rows: &'a [&'a [f32]],
    out: &'a mut [f32],
    step: usize,
    weights: &'a [f32],
}

impl<const ROWS: usize, const LANES: usize, const IS_LAST: bool> Vectored for Rows<'_, ROWS, LANES, IS_LAST> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let size = self.weights.len();
        let results = self.rows.len() + 1 - size;
        let whole = if size < ROWS { 0 } else { results - results % ROWS };
        for r in (0..whole).step_by(ROWS) {
            self.across::<ROWS>(r);
        }
        for r in whole..results {
            self.across::<1>(r);
        }
    }
}

impl<const ROWS: usize, const LANES: usize, const IS_LAST: bool> Rows<'_, ROWS, LANES, IS_LAST> {
    /// `R` rows of results, stripe after stripe; the last one begins as far back as it has to.
    #[inline(always)]
    fn across<const R: usize>(&mut self, at: usize) {
        let width = self.rows[at].len();
        let mut x = 0;
        while x + LANES <= width {
            self.block::<R, LANES>(at, x);
            x += LANES;
        }
        // Few sums wait for each other: better some cells twice.
        while LANES > BETWEEN && width > x + LEAST && width >= BETWEEN {
            let first = x.min(width - BETWEEN);
            self.block::<R, BETWEEN>(at, first);
            x = first + BETWEEN;
        }
        while x + LEAST <= width {
            self.block::<R, LEAST>(at, x);
            x += LEAST;
        }
        match width {
            _ if x == width => {}
            LEAST.. => self.block::<R, LEAST>(at, width - LEAST),
            8.. => {
                self.block::<R, 8>(at, 0);
                self.block::<R, 8>(at, width - 8);
            }
            4.. => {
                self.block::<R, 4>(at, 0);
                self.block::<R, 4>(at, width - 4);
            }
            _ => {
                for x in 0..width {
                    self.block::<R, 1>(at, x);
                }
            }
        }
    }

    #[inline(always)]
    fn block<const R: usize, const L: usize>(&mut self, at: usize, x: usize) {
        let rows = &self.rows[at..at + self.weights.len() + R - 1];
        let sums = sums::<R, L>(|j| &rows[j][x..], self.weights);
        for (r, sum) in sums.into_iter().enumerate() {
            let sum = if IS_LAST { one_nan(sum) } else { sum };
            self.out[(at + r) * self.step + x..][..L].copy_from_slice(&sum);
        }
    }
}

/// A line of results from cells that follow each other.
struct Line<'a> {
    cells: &'a [f32],
    out: &'a mut [f32],
    weights: &'a [f32],
}

impl Vectored for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { cells, out, weights } = self;
        match out.len() {
            LINE.. => line_to::<LINE>(cells, out, weights),
            LEAST.. => line_to::<LEAST>(cells, out, weights),
            _ => line_to::<1>(cells, out, weights),
        }
    }
}

/// Stripe after stripe, the last one as far back as it has to begin.
#[inline(always)]
fn line_to<const L: usize>(cells: &[f32], out: &mut [f32], weights: &[f32]) {
    let n = out.len();
    for at in (0..n).step_by(L) {
        let at = at.min(n - L);
        out[at..][..L].copy_from_slice(&sum::<L>(cells, at, 1, weights));
    }
}

/// Results that lie anyhow: stripe after stripe. The last cells are no stripe of their own, so theirs is computed first.
#[inline(always)]
fn line<const LANES: usize>(tile: &mut [f32], step: usize, n: usize, weights: &[f32]) {
    if n < LEAST {
        for at in 0..n {
            let [result] = sum::<1>(tile, at, step, weights);
            tile[at] = result;
        }
        return;
    }
    match n < LANES {
        true => stripes::<LEAST>(tile, step, n, weights),
        false => stripes::<LANES>(tile, step, n, weights),
    }
}

#[inline(always)]
fn stripes<const L: usize>(tile: &mut [f32], step: usize, n: usize, weights: &[f32]) {
    let last = sum::<L>(tile, n - L, step, weights);
    for at in (0..=n - L).step_by(L) {
        let results = sum::<L>(tile, at, step, weights);
        tile[at..][..L].copy_from_slice(&results);
    }
    tile[n - L..n].copy_from_slice(&last);
}

#[inline(always)]
fn sum<const L: usize>(tile: &[f32], at: usize, step: usize, weights: &[f32]) -> [f32; L] {
    let mut sum = [0f32; L];
    for (k, weight) in weights.iter().enumerate() {
        add::<L>(&mut sum, &tile[at + k * step..], *weight);
    }
    one_nan(sum)
}

/// The same for rows of results that follow each other.
#[inline(always)]
fn rows<const R: usize, const L: usize>(tile: &mut [f32], at: usize, step: usize, weights: &[f32]) {
    let sums = sums::<R, L>(|j| &tile[at + j * step..], weights);
    for (r, sum) in sums.into_iter().enumerate() {
        tile[at + r * step..][..L].copy_from_slice(&one_nan(sum));
    }
}

/// Sums of `R` windows that begin a row after each other (there are as many weights at least): a row of cells is read once for
/// all of them.
#[inline(always)]
fn sums<'a, const R: usize, const L: usize>(row: impl Fn(usize) -> &'a [f32], weights: &[f32]) -> [[f32; L]; R] {
    let (mut sums, size) = ([[0f32; L]; R], weights.len());
    // The first rows of cells are not in the windows of all results, nor are the last.
    let (first, last) = (&weights[..R], &weights[size - R..]);
    for j in 0..R - 1 {
        let cells = row(j);
        for r in 0..j + 1 {
            add::<L>(&mut sums[r], cells, first[j - r]);
        }
    }
    for j in R - 1..size {
        let (cells, weights) = (row(j), &weights[j + 1 - R..][..R]);
        for r in 0..R {
            add::<L>(&mut sums[r], cells, weights[R - 1 - r]);
        }
    }
    for j in 0..R - 1 {
        let cells = row(size + j);
        for r in j + 1..R {
            add::<L>(&mut sums[r], cells, last[R + j - r]);
        }
    }
    sums
}

#[inline(always)]
fn add<const L: usize>(sum: &mut [f32; L], cells: &[f32], weight: f32) {
    let cells = &cells[..L];
    for l in 0..L {
        sum[l] = cells[l].mul_add(weight, sum[l]);
    }
}

/// Which NaN arithmetic makes is up to the machine.
#[inline(always)]
fn one_nan<const L: usize>(mut sum: [f32; L]) -> [f32; L] {
    for value in &mut sum {
        *value = if value.is_nan() { f32::NAN } else { *value };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Random;
    use super::super::gaussian::weights;
    use super::*;

    #[test]
    fn singles_are_near_doubles_and_equal_on_all_paths() {
        let mut random = Random::new(4);
        for _ in 0..200 {
            let weights = weights(0.3 + 8.0 * random.unit(), 0, random.below(65) as usize);
            let singles = Singles::new(&weights).expect("weights of a mean");
            let (step, n) = match random.below(2) {
                0 => (1 + random.below(5) as usize, 1 + random.below(150) as usize),
                _ => {
                    let step = 16 * (1 + random.below(7) as usize);
                    (step, step * (1 + random.below(11) as usize))
                }
            };
            let tile: Vec<f32> = (0..n + (weights.len() - 1) * step).map(|_| random.unit() as f32 - 0.5).collect();
            let want = |i: usize| -> f64 { weights.iter().enumerate().map(|(k, w)| w * f64::from(tile[i + k * step])).sum() };
            let mut seen: Vec<Vec<u32>> = Vec::new();
            crate::simd::both_paths(|_| {
                let mut got = tile.clone();
                singles.apply(&mut got, step, n);
                if step == 1 {
                    let mut line = vec![0.0; n];
                    singles.apply_to(&tile, &mut line);
                    assert_eq!(line, got[..n]);
                }
                assert!((0..n).all(|i| (f64::from(got[i]) - want(i)).abs() < 1e-7), "{} weights", weights.len());
                seen.push(got[..n].iter().map(|v| v.to_bits()).collect());
            });
            assert!(seen.iter().all(|bits| *bits == seen[0]));
        }
    }

    /// Bits of a line's results, whichever way they are found.
    fn of_line(singles: &Singles, cells: &[f32]) -> Vec<u32> {
        let mut out = vec![0.0; cells.len() + 1 - singles.0.len()];
        singles.apply_to(cells, &mut out);
        out.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn rows_and_lines_of_any_length_have_the_same_bits() {
        let mut random = Random::new(8);
        for case in 0..300 {
            let radius = random.below(20) as usize;
            let singles = Singles::new(&weights(0.3 + 5.0 * random.unit(), 0, radius)).expect("weights of a mean");
            let (size, width) = (singles.0.len(), 1 + random.below(if case % 2 == 0 { 40 } else { 330 }) as usize);
            let count = size + random.below(11) as usize;
            // One in three has cells that are no numbers.
            let odd = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0];
            let mut cell = || match case % 3 == 0 && random.below(60) == 0 {
                true => odd[random.below(odd.len() as u64) as usize],
                false => random.unit() as f32 - 0.5,
            };
            let rows: Vec<Vec<f32>> = (0..count).map(|_| (0..width).map(|_| cell()).collect()).collect();
            let results = count + 1 - size;
            let mut seen: Vec<Vec<u32>> = Vec::new();
            crate::simd::both_paths(|_| {
                let views: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                let step = width + 3;
                let mut out = vec![7.0f32; (results - 1) * step + width];
                singles.apply_rows(&views, &mut out, step, true);
                let by_rows = (0..results * width).map(|i| out[i / width * step + i % width].to_bits());
                let by_lines = (0..width).map(|x| of_line(&singles, &rows.iter().map(|row| row[x]).collect::<Vec<_>>()));
                let by_lines: Vec<Vec<u32>> = by_lines.collect();
                assert!(by_rows.eq((0..results * width).map(|i| by_lines[i % width][i / width])), "case {case}");
                assert!(out.chunks(step).all(|row| row[width.min(row.len())..].iter().all(|v| *v == 7.0)));
                // What is no number between the passes is one that stays.
                singles.apply_rows(&views, &mut out, step, false);
                let nans = (0..results * width).map(|i| out[i / width * step + i % width].is_nan());
                assert!(nans.eq((0..results * width).map(|i| f32::from_bits(by_lines[i % width][i / width]).is_nan())));
                let across = rows.iter().filter(|row| row.len() >= size).map(|row| of_line(&singles, row));
                seen.push(by_lines.iter().flatten().copied().chain(across.flatten()).collect());
            });
            assert!(seen.iter().all(|bits| *bits == seen[0]), "case {case}");
        }
    }

    #[test]
    fn an_even_field_stays_as_it_is() {
        for sigma in [0.5, 1.0, 2.0, 3.0, 7.7, 16.0] {
            let radius = (4.0 * sigma + 0.5) as usize;
            let singles = Singles::new(&weights(sigma, 0, radius)).expect("weights of a mean");
            let mut tile = vec![1.0f32; 2 * radius + 40];
            singles.apply(&mut tile, 1, 40);
            assert!(tile[..40].iter().all(|v| (v - 1.0).abs() <= f32::EPSILON), "{sigma}: {}", tile[0]);
        }
    }

    #[test]
    fn what_can_cancel_or_is_long_is_left_to_doubles() {
        assert!(Singles::new(&weights(1.0, 1, 4)).is_none());
        assert!(Singles::new(&weights(30.0, 0, 65)).is_none());
        assert!(Singles::new(&[0.5, 0.5]).is_none());
        assert!(Singles::new(&[0.25, 0.5, 0.5]).is_none());
    }
}
