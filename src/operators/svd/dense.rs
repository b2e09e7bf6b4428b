//! Small dense algebra between passes, in plain loops of doubles: a QR factorisation of tall matrices and a singular value
//! decomposition of small ones. Libraries choose their loops by the machine; these give the same bits on any (I1).
//!
//! Matrices lie column by column.

use crate::operators::reduce::sum_lanes;
use crate::simd::{Vectored, vectored};

/// Sweeps of rotations; a handful is what it takes.
const MOST_SWEEPS: usize = 60;

struct Dot<'a>(&'a [f64], &'a [f64]);

impl Vectored for Dot<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        sum_lanes(self.0.iter().zip(self.1).map(|(a, b)| [a * b]))[0]
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    vectored(Dot(a, b))
}

struct Add<'a>(&'a mut [f64], f64, &'a [f64]);

impl Vectored for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().zip(self.2).for_each(|(to, value)| *to += self.1 * value);
    }
}

/// `to += factor * values`
pub fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    vectored(Add(to, factor, values));
}

/// Replaces a matrix of `rows` by `columns <= rows` by its Q, whose columns are orthonormal whatever the matrix's rank, and
/// gives R (upper triangle, column by column). Householder's reflections (Golub and Van Loan, Matrix Computations, 5.2).
pub fn qr(matrix: &mut [f64], rows: usize, columns: usize) -> Vec<f64> {
    let mut r = vec![0.0; columns * columns];
    let mut factors = vec![0.0; columns];
    for j in 0..columns {
        let (left, right) = matrix.split_at_mut((j + 1) * rows);
        let (above, reflector) = left[j * rows..].split_at_mut(j);
        r[j * columns..][..j].copy_from_slice(above);
        let norm = dot(reflector, reflector).sqrt();
        let diagonal = if reflector[0] > 0.0 { -norm } else { norm };
        r[j * columns + j] = diagonal;
        reflector[0] -= diagonal;
        let squares = dot(reflector, reflector);
        if squares == 0.0 {
            continue; // a column of zeros is reflected by nothing
        }
        factors[j] = 2.0 / squares;
        for column in right.chunks_exact_mut(rows) {
            let column = &mut column[j..];
            let factor = -factors[j] * dot(reflector, column);
            add(column, factor, reflector);
        }
    }
    // Q is what the reflections make of the first columns of the identity, the last of them first.
    for j in (0..columns).rev() {
        let (left, right) = matrix.split_at_mut((j + 1) * rows);
        let column = &mut left[j * rows..];
        let reflector = column[j..].to_vec();
        for other in right.chunks_exact_mut(rows) {
            let other = &mut other[j..];
            let factor = -factors[j] * dot(&reflector, other);
            add(other, factor, &reflector);
        }
        column.fill(0.0);
        column[j] = 1.0;
        add(&mut column[j..], -factors[j] * reflector[0], &reflector);
    }
    r
}

/// A singular value decomposition.
pub struct Svd {
    /// Largest first.
    pub values: Vec<f64>,
    /// Columns of the length of the matrix's rows, orthonormal even where values are 0; as many as the matrix has rows.
    pub left: Vec<f64>,
    /// One column for each value, orthonormal.
    pub right: Vec<f64>,
}

/// Of a matrix of `rows` by `columns <= rows`, by rotations of its columns until they are orthogonal (Hestenes 1958), which
/// keeps the digits of small values beside large ones.
pub fn svd(mut matrix: Vec<f64>, rows: usize, columns: usize) -> Svd {
    let mut right = vec![0.0; columns * columns];
    (0..columns).for_each(|j| right[j * columns + j] = 1.0);
    // What is left of an inner product is its rounding.
    let orthogonal = f64::EPSILON * rows as f64;
    for _ in 0..MOST_SWEEPS {
        let mut is_done = true;
        for p in 0..columns {
            for q in p + 1..columns {
                let (a, b) = pair(&mut matrix, rows, p, q);
                let (alpha, beta, gamma) = (dot(a, a), dot(b, b), dot(a, b));
                if gamma == 0.0 || gamma.abs() <= orthogonal * (alpha * beta).sqrt() {
                    continue;
                }
                is_done = false;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                rotate(a, b, cosine, cosine * tangent);
                let (a, b) = pair(&mut right, columns, p, q);
                rotate(a, b, cosine, cosine * tangent);
            }
        }
        if is_done {
            break;
        }
    }
    let norms: Vec<f64> = matrix.chunks_exact(rows).map(|column| dot(column, column).sqrt()).collect();
    let mut order: Vec<usize> = (0..columns).collect();
    order.sort_by(|a, b| norms[*b].total_cmp(&norms[*a]));
    let values: Vec<f64> = order.iter().map(|&j| norms[j]).collect();
    let mut left = vec![0.0; rows * rows];
    for ((to, &j), &norm) in left.chunks_exact_mut(rows).zip(&order).zip(&values).filter(|(_, norm)| **norm > 0.0) {
        to.iter_mut().zip(&matrix[j * rows..]).for_each(|(to, value)| *to = value / norm);
    }
    let sorted = order.iter().flat_map(|&j| right[j * columns..][..columns].iter().copied()).collect();
    // Columns without a direction become some that are orthogonal to the others; those keep theirs.
    let signs = qr(&mut left, rows, rows);
    for (j, column) in left.chunks_exact_mut(rows).enumerate() {
        if signs[j * rows + j] < 0.0 {
            column.iter_mut().for_each(|value| *value = -*value);
        }
    }
    Svd { values, left, right: sorted }
}

/// Two columns, the first before the second.
fn pair(matrix: &mut [f64], rows: usize, p: usize, q: usize) -> (&mut [f64], &mut [f64]) {
    let (before, behind) = matrix.split_at_mut(q * rows);
    (&mut before[p * rows..][..rows], &mut behind[..rows])
}

struct Rotate<'a>(&'a mut [f64], &'a mut [f64], f64, f64);

impl Vectored for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self(a, b, cosine, sine) = self;
        for (a, b) in a.iter_mut().zip(b) {
            (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
        }
    }
}

fn rotate(a: &mut [f64], b: &mut [f64], cosine: f64, sine: f64) {
    vectored(Rotate(a, b, cosine, sine));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::testing::Random;

    fn random(n: usize, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..n).map(|_| random.unit() - 0.5).collect()
    }

    /// `a` (rows by inner) times `b` (inner by columns).
    fn times(a: &[f64], rows: usize, b: &[f64], inner: usize) -> Vec<f64> {
        let of = |j: usize, i: usize| (0..inner).map(|k| a[k * rows + i] * b[j * inner + k]).sum::<f64>();
        (0..b.len() / inner).flat_map(|j| (0..rows).map(move |i| (i, j))).map(|(i, j)| of(j, i)).collect()
    }

    fn is_near(a: &[f64], b: &[f64], by: f64) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by)
    }

    fn check_orthonormal(q: &[f64], rows: usize) {
        for (i, a) in q.chunks(rows).enumerate() {
            for (j, b) in q.chunks(rows).enumerate() {
                assert!((dot(a, b) - f64::from(u8::from(i == j))).abs() < 1e-13, "{i}, {j}: {}", dot(a, b));
            }
        }
    }

    #[test]
    fn qr_gives_back_any_matrix_and_orthonormal_columns() {
        for (rows, columns) in [(1, 1), (5, 5), (40, 7), (300, 20)] {
            for rank in [columns, columns / 2, 0] {
                let (a, b) = (random(rows * rank.max(1), 1), random(rank.max(1) * columns, 2));
                let whole = if rank == 0 { vec![0.0; rows * columns] } else { times(&a, rows, &b, rank) };
                let mut q = whole.clone();
                let r = qr(&mut q, rows, columns);
                check_orthonormal(&q, rows);
                assert!((0..columns).all(|j| r[j * columns + j + 1..(j + 1) * columns].iter().all(|v| *v == 0.0)));
                assert!(is_near(&times(&q, rows, &r, columns), &whole, 1e-13), "{rows} x {columns} of rank {rank}");
            }
        }
    }

    #[test]
    fn svd_has_the_values_that_a_matrix_is_made_of() {
        for (rows, columns) in [(1, 1), (4, 3), (6, 6), (20, 20), (20, 11)] {
            let (mut u, mut v) = (random(rows * columns, 3), random(columns * columns, 4));
            qr(&mut u, rows, columns);
            qr(&mut v, columns, columns);
            let mut values: Vec<f64> = (0..columns).map(|j| 10f64.powi(-(j as i32))).collect();
            values[columns - 1] = if columns > 3 { 0.0 } else { values[columns - 1] };
            let scaled: Vec<f64> = u.chunks(rows).zip(&values).flat_map(|(c, s)| c.iter().map(move |x| x * s)).collect();
            let transposed: Vec<f64> = (0..columns * columns).map(|i| v[i % columns * columns + i / columns]).collect();
            let matrix = times(&scaled, rows, &transposed, columns);
            let found = svd(matrix.clone(), rows, columns);
            assert!(is_near(&found.values, &values, 1e-14), "{:?}", found.values);
            check_orthonormal(&found.left, rows);
            check_orthonormal(&found.right, columns);
            let scaled: Vec<f64> =
                found.left.chunks(rows).zip(&found.values).flat_map(|(c, s)| c.iter().map(move |x| x * s)).collect();
            let v = &found.right;
            let transposed: Vec<f64> = (0..columns * columns).map(|i| v[i % columns * columns + i / columns]).collect();
            assert!(is_near(&times(&scaled, rows, &transposed, columns), &matrix, 1e-14), "{rows} x {columns}");
        }
    }

    #[test]
    fn i1_vector_code_gives_the_same_bits() {
        let matrix = random(37 * 12, 5);
        let mut seen: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
        crate::simd::both_paths(|_| {
            let mut q = matrix.clone();
            qr(&mut q, 37, 12);
            seen.push((q, svd(matrix.clone(), 37, 12).left));
        });
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
