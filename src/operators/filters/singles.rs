//! Smoothing in float32, fused multiply-adds over a tile of singles: `out[i]` from `tile[i + k * step]`.
//!
//! Weights that are nowhere negative and add up to one cannot cancel, so rounding in float32 costs a result no more than its
//! last bits: half a unit per pass for the result and its share of those of the sums before it. float64 would cost twice the
//! arithmetic, and the conversions. Even and odd cells are added up apart, each from the first to the last: chains that
//! don't wait for each other, the same on any path.

use crate::simd::{Vectored, fused};

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
        fused(Smooth { tile, step, n, weights: &self.0 });
    }
}

struct Smooth<'a> {
    tile: &'a mut [f32],
    step: usize,
    n: usize,
    weights: &'a [f32],
}

impl Vectored for Smooth<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { tile, step, n, weights } = self;
        let mut at = 0;
        while at + 64 <= n {
            stripe::<64>(tile, at, step, weights);
            at += 64;
        }
        while at + 16 <= n {
            stripe::<16>(tile, at, step, weights);
            at += 16;
        }
        while at < n {
            stripe::<1>(tile, at, step, weights);
            at += 1;
        }
    }
}

#[inline(always)]
fn stripe<const L: usize>(tile: &mut [f32], at: usize, step: usize, weights: &[f32]) {
    let mut sums = [[0f32; L]; 2];
    let mut pairs = weights.chunks_exact(2);
    let mut from = at;
    for pair in &mut pairs {
        for (sum, weight) in sums.iter_mut().zip(pair) {
            let cells = &tile[from..][..L];
            for l in 0..L {
                sum[l] = cells[l].mul_add(*weight, sum[l]);
            }
            from += step;
        }
    }
    if let [weight] = pairs.remainder() {
        let cells = &tile[from..][..L];
        for l in 0..L {
            sums[0][l] = cells[l].mul_add(*weight, sums[0][l]);
        }
    }
    let out = &mut tile[at..][..L];
    for l in 0..L {
        let sum = sums[0][l] + sums[1][l];
        // Which NaN arithmetic makes is up to the machine.
        out[l] = if sum.is_nan() { f32::NAN } else { sum };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Random;
    use super::super::gaussian::weights;
    use super::*;

    #[test]
    fn singles_are_near_doubles_and_equal_on_all_paths() {
        let mut random = Random::new(4);
        for _ in 0..60 {
            let weights = weights(0.3 + 8.0 * random.unit(), 0, random.below(65) as usize);
            let singles = Singles::new(&weights).expect("weights of a mean");
            let (step, n) = (1 + random.below(5) as usize, 1 + random.below(150) as usize);
            let tile: Vec<f32> = (0..n + (weights.len() - 1) * step).map(|_| random.unit() as f32 - 0.5).collect();
            let want = |i: usize| -> f64 { weights.iter().enumerate().map(|(k, w)| w * f64::from(tile[i + k * step])).sum() };
            let mut seen: Vec<Vec<u32>> = Vec::new();
            crate::simd::both_paths(|_| {
                let mut got = tile.clone();
                singles.apply(&mut got, step, n);
                assert!((0..n).all(|i| (f64::from(got[i]) - want(i)).abs() < 1e-7), "{} weights", weights.len());
                seen.push(got[..n].iter().map(|v| v.to_bits()).collect());
            });
            assert!(seen.iter().all(|bits| *bits == seen[0]));
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
