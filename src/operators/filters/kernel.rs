//! One-dimensional linear filters over a tile of doubles, in place: `out[i]` from `tile[i + k * step]`.
//!
//! The order of the additions is scipy's (`correlate1d`): a kernel that is symmetric or antisymmetric adds the two cells
//! at equal distance first, from the outermost pair inwards; any other begins with its last weight. So doubles agree with
//! scipy's to the bit. No fused multiply-add, on any path.

use super::window::each_stripe;
use crate::simd::{Vectored, vectored, widest};

/// Sums of more cells than this are built by doubling; fewer are added one after the other.
const DIRECT_SUM: usize = 8;

/// What a pass computes from the window of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    Weights(Weights),
    /// The mean of this many cells. Sums are exact for integers below 2^53; for floats they are added in a tree that
    /// depends on the window's length alone, so there is no running sum that drifts along the line.
    Mean(usize),
}

/// Weights of a correlation, with the symmetry that decides the order of additions.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// Those before the centre, and the centre's.
    Symmetric(Vec<f64>, f64),
    Antisymmetric(Vec<f64>, f64),
    Plain(Vec<f64>),
}

impl Weights {
    pub fn new(weights: &[f64]) -> Self {
        let (n, half) = (weights.len(), weights.len() / 2);
        let all = |test: fn(f64, f64) -> f64| {
            n % 2 == 1 && (0..half).all(|i| test(weights[i], weights[n - 1 - i]).abs() <= f64::EPSILON)
        };
        if all(|a, b| a - b) {
            Weights::Symmetric(weights[..half].to_vec(), weights[half])
        } else if all(|a, b| a + b) {
            Weights::Antisymmetric(weights[..half].to_vec(), weights[half])
        } else {
            Weights::Plain(weights.to_vec())
        }
    }
}

impl Kernel {
    pub fn correlation(weights: &[f64]) -> Self {
        Kernel::Weights(Weights::new(weights))
    }

    /// Cells in a window.
    pub fn size(&self) -> usize {
        match self {
            Kernel::Weights(Weights::Symmetric(half, _) | Weights::Antisymmetric(half, _)) => 2 * half.len() + 1,
            Kernel::Weights(Weights::Plain(all)) => all.len(),
            Kernel::Mean(size) => *size,
        }
    }

    /// Whether a second tile is needed to work in.
    pub fn needs_spare(&self) -> bool {
        matches!(self, Kernel::Mean(size) if *size > DIRECT_SUM)
    }

    /// `n` results at the start of the tile, which holds `n + (size - 1) * step` cells.
    pub fn apply(&self, tile: &mut [f64], spare: &mut [f64], step: usize, n: usize) {
        debug_assert_eq!(tile.len(), n + (self.size() - 1) * step);
        match self {
            Kernel::Weights(weights) => widest(Correlate { tile, step, n, weights }),
            Kernel::Mean(size) if *size <= DIRECT_SUM => vectored(ShortMean { tile, step, n, size: *size }),
            Kernel::Mean(size) => vectored(LongMean { tile, spare, step, n, size: *size }),
        }
    }
}

struct Correlate<'a> {
    tile: &'a mut [f64],
    step: usize,
    n: usize,
    weights: &'a Weights,
}

impl Vectored for Correlate<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { tile, step, n, weights } = self;
        match weights {
            Weights::Symmetric(half, centre) => each_stripe!(n, at, L => {
                store::<L>(tile, at, pairs::<L>(tile, at, step, half, *centre, |a, b| a + b));
            }),
            Weights::Antisymmetric(half, centre) => each_stripe!(n, at, L => {
                store::<L>(tile, at, pairs::<L>(tile, at, step, half, *centre, |a, b| a - b));
            }),
            Weights::Plain(all) => each_stripe!(n, at, L => {
                let Some((last, first)) = all.split_last() else { return };
                let mut sum = [0.0; L];
                add::<L>(&mut sum, tile, at + first.len() * step, *last, true);
                for (k, weight) in first.iter().enumerate() {
                    add::<L>(&mut sum, tile, at + k * step, *weight, false);
                }
                store::<L>(tile, at, sum);
            }),
        }
    }
}

#[inline(always)]
fn pairs<const L: usize>(
    tile: &[f64],
    at: usize,
    step: usize,
    half: &[f64],
    centre: f64,
    pair: impl Fn(f64, f64) -> f64,
) -> [f64; L] {
    let reach = half.len();
    let middle = &tile[at + reach * step..][..L];
    let mut sum = [0.0; L];
    for l in 0..L {
        sum[l] = middle[l] * centre;
    }
    for (k, weight) in half.iter().enumerate() {
        let (a, b) = (&tile[at + k * step..][..L], &tile[at + (2 * reach - k) * step..][..L]);
        for l in 0..L {
            sum[l] += pair(a[l], b[l]) * weight;
        }
    }
    sum
}

#[inline(always)]
fn add<const L: usize>(sum: &mut [f64; L], tile: &[f64], at: usize, weight: f64, is_first: bool) {
    let cells = &tile[at..][..L];
    for l in 0..L {
        let term = cells[l] * weight;
        sum[l] = if is_first { term } else { sum[l] + term };
    }
}

#[inline(always)]
fn store<const L: usize>(tile: &mut [f64], at: usize, values: [f64; L]) {
    tile[at..][..L].copy_from_slice(&values);
}

struct ShortMean<'a> {
    tile: &'a mut [f64],
    step: usize,
    n: usize,
    size: usize,
}

impl Vectored for ShortMean<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { tile, step, n, size } = self;
        let count = size as f64;
        each_stripe!(n, at, L => {
            let mut sum = [0.0; L];
            sum.copy_from_slice(&tile[at..][..L]);
            for k in 1..size {
                let cells = &tile[at + k * step..][..L];
                for l in 0..L {
                    sum[l] += cells[l];
                }
            }
            for l in 0..L {
                sum[l] /= count;
            }
            store::<L>(tile, at, sum);
        });
    }
}

/// Sums of 1, 2, 4, ... cells in the tile; those that make up the window's length, lowest bit first, in `spare`.
struct LongMean<'a> {
    tile: &'a mut [f64],
    spare: &'a mut [f64],
    step: usize,
    n: usize,
    size: usize,
}

impl Vectored for LongMean<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { tile, spare, step, n, size } = self;
        let spare = &mut spare[..n];
        let (mut covered, mut length) = (0, 1);
        loop {
            if size & length != 0 {
                let cells = &tile[covered * step..][..n];
                match covered {
                    0 => spare.copy_from_slice(cells),
                    _ => spare.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell),
                }
                covered += length;
            }
            if 2 * length > size {
                break;
            }
            // Sums of twice the length, as many as the window still reaches.
            let reach = tile.len() - (2 * length - 1) * step;
            each_stripe!(reach, at, L => {
                let mut sum = [0.0; L];
                sum.copy_from_slice(&tile[at..][..L]);
                let next = &tile[at + length * step..][..L];
                for l in 0..L {
                    sum[l] += next[l];
                }
                store::<L>(tile, at, sum);
            });
            length *= 2;
        }
        let count = size as f64;
        tile[..n].iter_mut().zip(spare).for_each(|(out, sum)| *out = *sum / count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Random;
    use super::*;

    fn naive(kernel: &Kernel, weights: &[f64], tile: &[f64], step: usize, n: usize) -> Vec<f64> {
        let window = |i: usize| (0..kernel.size()).map(move |k| tile[i + k * step]);
        (0..n)
            .map(|i| match kernel {
                Kernel::Mean(size) => window(i).sum::<f64>() / *size as f64,
                _ => window(i).zip(weights).map(|(v, w)| v * w).sum(),
            })
            .collect()
    }

    #[test]
    fn every_kernel_is_the_weighted_sum_of_its_window_on_both_paths() {
        let mut random = Random::new(3);
        for round in 0..60 {
            let size = 1 + random.below(23) as usize;
            let mut weights: Vec<f64> = (0..size).map(|_| random.unit() - 0.5).collect();
            let kernel = match round % 4 {
                0 => Kernel::Mean(size),
                kind => {
                    for i in 0..size / 2 {
                        match kind {
                            1 => weights[size - 1 - i] = weights[i],
                            2 => weights[size - 1 - i] = -weights[i],
                            _ => {}
                        }
                    }
                    Kernel::correlation(&weights)
                }
            };
            let (step, n) = (1 + random.below(5) as usize, 1 + random.below(90) as usize);
            let tile: Vec<f64> = (0..n + (size - 1) * step).map(|_| random.unit()).collect();
            let want = naive(&kernel, &weights, &tile, step, n);
            let mut seen: Vec<Vec<u64>> = Vec::new();
            crate::simd::both_paths(|_| {
                let (mut got, mut spare) = (tile.clone(), vec![0.0; tile.len()]);
                kernel.apply(&mut got, &mut spare, step, n);
                assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-12), "{kernel:?}");
                seen.push(got[..n].iter().map(|v| v.to_bits()).collect());
            });
            assert!(seen.iter().all(|bits| *bits == seen[0]), "{kernel:?}");
        }
    }
}
