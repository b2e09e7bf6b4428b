//! Phase linking by EMI (eigendecomposition-based maximum-likelihood estimator of interferometric phase; Ansari, De Zan and
//! Bamler, 2018).
//!
//! With C the coherence matrix and G = |C| (ones on the diagonal), `M = inv(G) o C`, element by element; v is the
//! eigenvector of M's smallest eigenvalue. `phase = v * conj(v[ref])`, each of length one; `quality` is that eigenvalue: 1 for
//! phases that close in every triangle, more where they don't. Everything is computed in double precision.
//!
//! G must be positive definite for the estimate to mean anything. With few looks it is not: it is then inverted all the same
//! (the quality falls below one or is far off, the phases are mostly fair), unless a pivot vanishes beside the rounding of the
//! input (`N * 2^-24` of complex64), as when all coherences are one: then phase and quality are NaN. `beta` repairs both: C
//! becomes `(1 - beta) C + beta I`. `beta = "adaptive"` does so only where G is indefinite or its condition is above 1e5, with
//! the larger of `2d / (1 + 2d)`, where -d is G's negative eigenvalue, and the beta that brings the condition to 1e5. NaN in
//! a pixel's matrix gives NaN.
//!
//! Cost for N images: about 4 N^3 multiply-adds.

use super::matrices::eigen::{self, Complex, Space};
use super::matrices::{Lanes, inverse, row_mut};
use super::phase_linking::{Batch, IMAGE_AXIS, LAYOUT, Method, PhaseLinking, REF};
use super::stack::all_pairs;
use super::{Info, Operator, Param};
use crate::config::table::{self, Table};

pub static INFO: Info = Info {
    name: "emi",
    summary: "phase linking: the phase of each image that fits the coherence of all pairs best (EMI)",
    kind: "map",
    inputs: "coherence as the operator of that name makes it: (.., pair), or (.., image, image)",
    outputs: "phase: the input's dtype (.., image), of length one; quality: float32 (float64 of complex128), 1 is perfect",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "about 4 N^3 multiply-adds a pixel for N images",
    source: "H. Ansari, F. De Zan and R. Bamler, Efficient phase estimation for interferogram stacks, IEEE Trans. Geosci. Remote Sens. 56 (2018)",
    params: &[
        REF,
        Param {
            name: "beta",
            kind: "number | \"adaptive\"",
            default: "0",
            doc: "share of the identity mixed into the matrix; adaptive: where it is indefinite or its condition is above 1e5",
        },
        LAYOUT,
        IMAGE_AXIS,
    ],
    build,
};

/// The condition number that adaptive regularisation aims at.
const CONDITION: f64 = 1e5;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let method = read_beta(table).map(Emi);
    Some(Box::new(PhaseLinking::read("emi", table, method)?))
}

fn read_beta(table: &mut Table<'_>) -> Option<Beta> {
    let Some(node) = table.get("beta") else { return Some(Beta::Fixed(0.0)) };
    if node.get_ref().as_str() == Some("adaptive") {
        return Some(Beta::Adaptive);
    }
    match table::number(node.get_ref()) {
        Some(beta) if (0.0..=1.0).contains(&beta) => Some(Beta::Fixed(beta)),
        _ => {
            table.problem("beta", "expected a number from 0 to 1, or \"adaptive\"");
            None
        }
    }
}

#[derive(Clone, Copy)]
enum Beta {
    Fixed(f64),
    Adaptive,
}

#[derive(Clone)]
struct Emi(Beta);

impl Method for Emi {
    #[inline(always)]
    fn prepare<V: Lanes>(&self, batch: &mut Batch<'_, V>, space: &mut Space<'_, V>, n: usize, rounding: f64) -> V {
        let (zero, one) = (V::zero(), V::splat(1.0));
        let keep = match self.0 {
            Beta::Fixed(beta) => V::splat(1.0 - beta),
            Beta::Adaptive => one.sub(adaptive_beta(batch, space, n)),
        };
        let Batch { pairs, matrix, real, column } = batch;
        for (pair, (i, j)) in pairs.iter_mut().zip(all_pairs(n)) {
            *pair = pair.scaled(keep);
            row_mut(real, j)[i] = pair.norm_squared().sqrt();
        }
        (0..n).for_each(|i| row_mut(real, i)[i] = one);
        let pivots = inverse::negative_inverse(real, n, n as f64 * rounding, column);
        for (pair, (i, j)) in pairs.iter().zip(all_pairs(n)) {
            // Below the diagonal: the conjugate.
            let weight = row_mut(real, j)[i];
            row_mut(matrix, j)[i] = Complex { re: zero.sub(weight).mul(pair.re), im: weight.mul(pair.im) };
        }
        for i in 0..n {
            row_mut(matrix, i)[i] = Complex { re: zero.sub(row_mut(real, i)[i]), im: zero };
        }
        pivots.is_singular
    }

    #[inline(always)]
    fn quality<V: Lanes>(&self, smallest: V, _n: usize) -> V {
        smallest
    }
}

/// The beta of each lane: zero where G's condition is good.
#[inline(always)]
fn adaptive_beta<V: Lanes>(batch: &mut Batch<'_, V>, space: &mut Space<'_, V>, n: usize) -> V {
    let (zero, one) = (V::zero(), V::splat(1.0));
    let matrix = &mut *batch.matrix;
    for (pair, (i, j)) in batch.pairs.iter().zip(all_pairs(n)) {
        row_mut(matrix, j)[i] = Complex { re: pair.norm_squared().sqrt(), im: zero };
    }
    (0..n).for_each(|i| row_mut(matrix, i)[i] = Complex { re: one, im: zero });
    let (low, high) = eigen::extremes(matrix, n, space);
    // ((1 - b) high + b) / ((1 - b) low + b) = condition, solved for b / (1 - b).
    let condition = V::splat(CONDITION);
    let ratio = high.sub(condition.mul(low)).div(V::splat(CONDITION - 1.0)).max(zero);
    let by_condition = ratio.div(one.add(ratio));
    let negative = zero.sub(low).max(zero);
    let twice = negative.add(negative);
    by_condition.max(twice.div(one.add(twice)))
}

#[cfg(test)]
mod tests;
