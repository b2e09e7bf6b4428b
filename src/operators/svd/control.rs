//! What follows a pass: the singular values and vectors that the subspace holds so far, and the basis of the next pass.
//!
//! With `Y = A Q` the columns of `U = Y T` are orthonormal when `T` comes from `Y^T Y`, and `U^T A = T^T (A^T Y)^T` is the matrix
//! on that subspace: its singular values are the estimates (N. Halko, P.-G. Martinsson and J. A. Tropp, "Finding structure with
//! randomness", SIAM Review 53 (2011), algorithms 4.4 and 5.1). `A^T Y` spans the next basis. So a pass takes one look at the
//! matrix where the textbook's takes two, and nothing as long as the folded axis is held.
//!
//! The next basis is not just orthonormal but the singular vectors so far: then the columns of `Y` are nearly orthogonal, and
//! `Y^T Y` loses no digits of the small ones.

use super::dense::{Svd, add, qr, svd};
use super::layout::{Found, NextState, Sizes};
use super::product::binary_scale;
use crate::operators::{NextPass, OperatorError, PassControl};
use crate::random::Key;

#[derive(Debug)]
pub struct Control {
    pub sizes: Sizes,
    pub passes: u64,
    pub tol: f64,
    /// What sums of products are off by: directions of `Y` below that are none.
    pub rounding: f64,
    pub key: Key,
}

/// A normal value, by Box and Muller's transform.
fn normal(key: Key, at: u64) -> f64 {
    let (radius, turn) = (1.0 - key.unit(2 * at), key.unit(2 * at + 1));
    (-2.0 * libm::log(radius)).sqrt() * libm::cos(2.0 * std::f64::consts::PI * turn)
}

/// What the subspace of a pass holds.
struct Subspace {
    /// In rows: a row of `width` for each place. Orthonormal columns, those of the largest values first.
    vectors: Vec<f64>,
    values: Vec<f64>,
    /// `Y` times these columns (each `width` long) are the vectors on the other side; a column for each value.
    factors: Vec<f64>,
}

impl Control {
    fn subspace(&self, found: &Found<'_>) -> Subspace {
        let Sizes { places, width, .. } = self.sizes;
        let gram = |i: usize, j: usize| found.gram[i.max(j) * width + i.min(j)];
        // Columns of Y are brought to length 1, so that small ones count like large ones.
        let lengths: Vec<f64> = (0..width).map(|j| gram(j, j).sqrt()).collect();
        let mut cosines = Vec::with_capacity(width * width);
        for j in 0..width {
            let of = |i: usize| lengths[i] * lengths[j];
            cosines.extend((0..width).map(|i| if of(i) > 0.0 { gram(i, j) / of(i) } else { 0.0 }));
        }
        let Svd { values: squares, right: directions, .. } = svd(cosines, width, width);
        let least = self.rounding * width as f64;
        let rank = squares.iter().take_while(|square| **square > least).count();
        let mut factors = directions[..rank * width].to_vec();
        for (column, square) in factors.chunks_exact_mut(width).zip(&squares) {
            for (factor, length) in column.iter_mut().zip(&lengths) {
                *factor = if *length > 0.0 { *factor / (length * square.sqrt()) } else { 0.0 };
            }
        }
        // A^T Y = Q R; then U^T A = (R T)^T Q^T, and R T is small.
        let scale = binary_scale(found.image.iter().fold(0f64, |most, v| most.max(v.abs())));
        let mut columns: Vec<f64> = vec![0.0; places * width];
        for (place, row) in found.image.chunks_exact(width).enumerate() {
            row.iter().enumerate().for_each(|(j, value)| columns[j * places + place] = value / scale);
        }
        let upper = qr(&mut columns, places, width);
        let product = |by: &[f64], columns: &[f64], len: usize| {
            let mut out = vec![0.0; len];
            columns.chunks_exact(len).zip(by).for_each(|(column, factor)| add(&mut out, *factor, column));
            out
        };
        let small: Vec<f64> = factors.chunks_exact(width).flat_map(|t| product(t, &upper, width)).collect();
        // Its own range, so that squares of its values are numbers.
        let range = binary_scale(small.iter().fold(0f64, |most, v| most.max(v.abs())));
        let Svd { values, left, right } = svd(small.iter().map(|v| v / range).collect(), width, rank);
        let factors = right.chunks_exact(rank.max(1)).flat_map(|x| product(x, &factors, width)).collect();
        let mut vectors = vec![0.0; places * width];
        for (j, turn) in left.chunks_exact(width).enumerate() {
            let vector = product(turn, &columns, places);
            vector.iter().enumerate().for_each(|(place, value)| vectors[place * width + j] = *value);
        }
        Subspace { vectors, values: values.iter().map(|v| v * range * scale).collect(), factors }
    }

    /// Singular vectors and factors, the largest component of each vector positive.
    fn finish(&self, found: &Subspace, state: &mut NextState<'_>) {
        let Sizes { places, wanted, width } = self.sizes;
        let signs: Vec<f64> = (0..wanted)
            .map(|j| {
                let largest = (0..places).map(|place| found.vectors[place * width + j]);
                let largest = largest.fold(0f64, |most, v| if v.abs() > most.abs() { v } else { most });
                if largest < 0.0 { -1.0 } else { 1.0 }
            })
            .collect();
        let mut vectors = Vec::with_capacity(places * wanted);
        let mut factors = Vec::with_capacity(places * wanted);
        for (row, basis) in found.vectors.chunks_exact(width).zip(state.read().basis().chunks_exact(width)) {
            vectors.extend(row.iter().zip(&signs).map(|(value, sign)| value * sign));
            for (j, sign) in signs.iter().enumerate() {
                let column = found.factors.get(j * width..(j + 1) * width).unwrap_or_default();
                factors.push(basis.iter().zip(column).fold(0.0, |sum, (a, b)| sum + a * b) * sign);
            }
        }
        let (to_vectors, to_factors) = state.last();
        to_vectors.copy_from_slice(&vectors);
        to_factors.copy_from_slice(&factors);
    }

    /// Whether no wanted value moved by more than `tol` of itself, rounding aside.
    fn is_settled(&self, before: &[f64], now: &[f64]) -> bool {
        let rounding = 4.0 * self.rounding * now.first().unwrap_or(&0.0);
        before.iter().zip(now).all(|(a, b)| (a - b).abs() <= (self.tol * b).max(rounding))
    }
}

impl PassControl for Control {
    fn begin(&self, state: &mut [f64]) {
        let width = self.sizes.width;
        let mut state = NextState { sizes: &self.sizes, words: state };
        for (place, row) in state.basis().chunks_exact_mut(width).enumerate() {
            let key = self.key.at(place as u64);
            row.iter_mut().enumerate().for_each(|(j, value)| *value = normal(key, j as u64));
        }
    }

    fn after(&self, pass: u64, found: &[f64], state: &mut [f64]) -> Result<NextPass, OperatorError> {
        if found.iter().any(|v| !v.is_finite()) {
            return Err(OperatorError::data("products of the values leave the range of their dtype; scale them first"));
        }
        let found = Found::of(&self.sizes, found);
        let mut state = NextState { sizes: &self.sizes, words: state };
        if pass == 0 {
            state.set_norm_squared(found.norm_squared);
        }
        let subspace = self.subspace(&found);
        let mut values = subspace.values.clone();
        values.resize(self.sizes.wanted, 0.0);
        let is_settled = pass > 0 && self.tol > 0.0 && self.is_settled(state.read().values(), &values);
        let is_last = is_settled || pass + 1 >= self.passes;
        state.values().copy_from_slice(&values);
        state.count_pass();
        match is_last {
            true => self.finish(&subspace, &mut state),
            false => state.basis().copy_from_slice(&subspace.vectors),
        }
        Ok(if is_last { NextPass::Done } else { NextPass::Again })
    }

    fn most_passes(&self) -> u64 {
        self.passes
    }

    fn scratch_bytes(&self) -> u64 {
        let Sizes { places, wanted, width } = self.sizes;
        // The columns of A^T Y, one more and the vectors made of them; vectors and factors as they are stored; small squares.
        let long = (2 * width + 2 * wanted + 1) as u64;
        (places as u64).saturating_mul(long * 8).saturating_add(12 * 8 * (width as u64).saturating_mul(width as u64 + 1))
    }
}
