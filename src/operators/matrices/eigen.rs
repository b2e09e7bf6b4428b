//! The smallest eigenvalue of Hermitian matrices and its eigenvector.
//!
//! 1. Householder reflections make the matrix tridiagonal (`8/3 n^3` multiply-adds): `A = Q T Q'`. The phases of T's
//!    off-diagonal elements are set aside so that it becomes real, with elements `-e`, `e >= 0`, beside the diagonal.
//! 2. The smallest eigenvalue lies between Gershgorin's bound and the smallest diagonal element. `T - x` is positive
//!    definite exactly when x is below it; [`ROUNDS`] rounds cut the interval in four each time. The lower end then is
//!    below the eigenvalue by less than 2^-32 of the interval, whatever the matrix.
//! 3. Inverse iteration from there, [`STEPS`] times, started with ones. As `T - x` is positive definite with nothing positive
//!    beside its diagonal, its inverse has no negative element and neither has the eigenvector: no step cancels, and the
//!    start is never orthogonal to what is sought. Each step leaves of another eigenvector at most the ratio of 2^-32 of
//!    the interval to the gap between the eigenvalues. Where they are equal the answer is one vector of their space.
//! 4. The eigenvalue is the Rayleigh quotient, the eigenvector goes back through the reflections.
//!
//! A fixed number of iterations needs no test of convergence, and lanes never wait for or disturb each other. A matrix
//! with a NaN gives NaN or anything: callers mask it.

use super::{Lanes, row, row_mut, triangle};

/// Rounds of the search for the eigenvalue, two bits each.
const ROUNDS: usize = 16;
/// Steps of inverse iteration.
const STEPS: usize = 4;

/// A complex number in each lane.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Complex<V> {
    pub re: V,
    pub im: V,
}

// SAFETY: two of `V` without padding, each plain data.
unsafe impl<V: Lanes> bytemuck::Zeroable for Complex<V> {}
unsafe impl<V: Lanes> bytemuck::Pod for Complex<V> {}

impl<V: Lanes> Complex<V> {
    #[inline(always)]
    pub fn zero() -> Self {
        Self { re: V::zero(), im: V::zero() }
    }

    #[inline(always)]
    pub fn norm_squared(self) -> V {
        self.re.mul_add(self.re, self.im.mul(self.im))
    }

    #[inline(always)]
    pub fn scaled(self, by: V) -> Self {
        Self { re: self.re.mul(by), im: self.im.mul(by) }
    }

    /// `self + a * b`
    #[inline(always)]
    pub fn plus_product(self, a: Self, b: Self) -> Self {
        Self { re: a.im.mul_sub_from(b.im, a.re.mul_add(b.re, self.re)), im: a.im.mul_add(b.re, a.re.mul_add(b.im, self.im)) }
    }

    /// `self + conj(a) * b`
    #[inline(always)]
    pub fn plus_conj_product(self, a: Self, b: Self) -> Self {
        Self { re: a.im.mul_add(b.im, a.re.mul_add(b.re, self.re)), im: a.im.mul_sub_from(b.re, a.re.mul_add(b.im, self.im)) }
    }

    /// `self - a * b`
    #[inline(always)]
    pub fn minus_product(self, a: Self, b: Self) -> Self {
        Self {
            re: a.im.mul_add(b.im, a.re.mul_sub_from(b.re, self.re)),
            im: a.im.mul_sub_from(b.re, a.re.mul_sub_from(b.im, self.im)),
        }
    }

    /// `self - a * conj(b)`
    #[inline(always)]
    pub fn minus_product_conj(self, a: Self, b: Self) -> Self {
        Self {
            re: a.im.mul_sub_from(b.im, a.re.mul_sub_from(b.re, self.re)),
            im: a.im.mul_sub_from(b.re, a.re.mul_add(b.im, self.im)),
        }
    }
}

/// Vectors of doubles that [`Space`] takes for matrices of order `n`, beside the matrix.
pub const fn space_len(n: usize) -> usize {
    12 * n
}

/// Working memory: views of one buffer.
pub struct Space<'a, V> {
    /// Diagonal and off-diagonal of T, the latter without sign or phase.
    diagonal: &'a mut [V],
    beside: &'a mut [V],
    /// Scale of each reflection; the vectors lie in the matrix.
    scale: &'a mut [V],
    solution: &'a mut [V],
    pivot: &'a mut [V],
    ratio: &'a mut [V],
    /// Phase of each off-diagonal element; the vector of the present reflection, then the eigenvector; its image.
    phase: &'a mut [Complex<V>],
    vector: &'a mut [Complex<V>],
    image: &'a mut [Complex<V>],
}

impl<'a, V: Lanes> Space<'a, V> {
    /// `memory`: at least [`space_len`] elements.
    pub fn new(memory: &'a mut [V], n: usize) -> Self {
        let (reals, complex) = memory[..space_len(n)].split_at_mut(6 * n);
        let complex: &mut [Complex<V>] = bytemuck::cast_slice_mut(complex);
        let mut reals = reals.chunks_exact_mut(n.max(1));
        let mut complex = complex.chunks_exact_mut(n.max(1));
        let mut real = || reals.next().unwrap_or_default();
        let (diagonal, beside, scale, solution, pivot, ratio) = (real(), real(), real(), real(), real(), real());
        let mut next = || complex.next().unwrap_or_default();
        Self { diagonal, beside, scale, solution, pivot, ratio, phase: next(), vector: next(), image: next() }
    }

    /// The eigenvector that [`smallest`] found, its largest element near one before it went back through the reflections.
    pub fn eigenvector(&self) -> &[Complex<V>] {
        self.vector
    }
}

/// The smallest eigenvalue of the Hermitian matrix whose lower triangle is `a`, which is overwritten. Its eigenvector is
/// left in `space`.
#[inline(always)]
pub fn smallest<V: Lanes>(a: &mut [Complex<V>], n: usize, space: &mut Space<'_, V>) -> V {
    debug_assert!(n > 0 && a.len() >= triangle(n));
    tridiagonalise(a, n, space);
    let below = lower_bound(space.diagonal, space.beside, false);
    let value = iterate(below, n, space);
    reflect_back(a, n, space);
    value
}

/// The smallest and the largest eigenvalue alone, to 2^-32 of the range that Gershgorin's circles span. `a` is overwritten.
#[inline(always)]
pub fn extremes<V: Lanes>(a: &mut [Complex<V>], n: usize, space: &mut Space<'_, V>) -> (V, V) {
    tridiagonalise(a, n, space);
    let low = lower_bound(space.diagonal, space.beside, false);
    let high = lower_bound(space.diagonal, space.beside, true);
    (low, V::zero().sub(high))
}

/// Reflections `1 - g u u'` from the first column on. u stays in the column below the diagonal.
#[inline(always)]
fn tridiagonalise<V: Lanes>(a: &mut [Complex<V>], n: usize, space: &mut Space<'_, V>) {
    let (zero, one) = (V::zero(), V::splat(1.0));
    for k in 0..n {
        space.diagonal[k] = row(a, k)[k].re;
        if k + 1 == n {
            break;
        }
        let u = &mut space.vector[..n];
        let mut tail = zero;
        for i in k + 1..n {
            u[i] = row(a, i)[k];
            tail = tail.add(u[i].norm_squared());
        }
        let head = u[k + 1];
        let head_length = head.norm_squared().sqrt();
        let is_zero = zero.select(head_length.greater(zero), one.greater(zero));
        let direction =
            Complex { re: one.select(is_zero, head.re.div(head_length)), im: zero.select(is_zero, head.im.div(head_length)) };
        space.phase[k] = direction;
        if k + 2 == n {
            space.beside[k] = head_length;
            continue;
        }
        let length = tail.sqrt();
        space.beside[k] = length;
        // u = x + direction * |x|, so that nothing cancels; the reflection makes x into -direction * |x|, and the
        // off-diagonal element's sign is the one wanted.
        u[k + 1] = Complex { re: direction.re.mul_add(length, head.re), im: direction.im.mul_add(length, head.im) };
        let weight = length.mul(length.add(head_length));
        let scale = one.div(weight).and(weight.greater(zero));
        space.scale[k] = scale;
        for i in k + 1..n {
            row_mut(a, i)[k] = u[i];
        }

        // image = scale * A u, each element of the triangle used for both of its places.
        let image = &mut space.image[..n];
        image[k + 1..].fill(Complex::zero());
        for i in k + 1..n {
            let own = &row(a, i)[k + 1..];
            let (ui, mut sum) = (u[i], Complex::zero());
            let (before, rest) = image.split_at_mut(i);
            for ((value, uj), out) in own[..i - k - 1].iter().zip(&u[k + 1..i]).zip(&mut before[k + 1..]) {
                sum = sum.plus_product(*value, *uj);
                *out = out.plus_conj_product(*value, ui);
            }
            let middle = own[i - k - 1].re;
            rest[0] = Complex { re: middle.mul_add(ui.re, sum.re), im: middle.mul_add(ui.im, sum.im) };
        }
        let mut overlap = zero;
        for i in k + 1..n {
            image[i] = image[i].scaled(scale);
            overlap = u[i].im.mul_add(image[i].im, u[i].re.mul_add(image[i].re, overlap));
        }
        let half = overlap.mul(scale).mul(V::splat(0.5));
        for i in k + 1..n {
            image[i] = Complex { re: half.mul_sub_from(u[i].re, image[i].re), im: half.mul_sub_from(u[i].im, image[i].im) };
        }
        // A - u image' - image u'
        for i in k + 1..n {
            let (ui, qi) = (u[i], image[i]);
            let own = &mut row_mut(a, i)[k + 1..];
            for ((value, uj), qj) in own.iter_mut().zip(&u[k + 1..=i]).zip(&image[k + 1..=i]) {
                *value = value.minus_product_conj(ui, *qj).minus_product_conj(qi, *uj);
            }
        }
    }
}

/// A number below the smallest eigenvalue of T (or of -T), and near it.
#[inline(always)]
fn lower_bound<V: Lanes>(diagonal: &[V], beside: &[V], is_negated: bool) -> V {
    let n = diagonal.len();
    let zero = V::zero();
    let sign = V::splat(if is_negated { -1.0 } else { 1.0 });
    let at = |i: usize| diagonal[i].mul(sign);
    let (mut low, mut high) = (V::splat(f64::INFINITY), V::splat(f64::INFINITY));
    for i in 0..n {
        let left = if i > 0 { beside[i - 1] } else { zero };
        let right = if i + 1 < n { beside[i] } else { zero };
        low = low.min(at(i).sub(left).sub(right));
        high = high.min(at(i));
    }
    // Below all rounding of what follows, so that T - low has an inverse even where the bound is the eigenvalue.
    let margin = low.abs().max(high.abs()).mul(V::splat(1e-13)).max(V::splat(1e-280));
    low = low.sub(margin);
    let quarter = high.sub(low).mul(V::splat(0.25));
    let mut step = quarter;
    for _ in 0..ROUNDS {
        let points = [low.add(step), low.add(step.add(step)), low.add(step.mul(V::splat(3.0)))];
        // Pivots of T - x for three x side by side, which hides the latency of the divisions.
        let (mut pivots, mut is_below) = (points, points);
        for (pivot, below) in pivots.iter_mut().zip(&mut is_below) {
            *pivot = at(0).sub(*pivot);
            *below = pivot.greater(zero);
        }
        for i in 1..n {
            let square = beside[i - 1].mul(beside[i - 1]);
            for ((pivot, below), x) in pivots.iter_mut().zip(&mut is_below).zip(&points) {
                *pivot = at(i).sub(*x).sub(square.div(*pivot));
                *below = below.and(pivot.greater(zero));
            }
        }
        for (x, below) in points.into_iter().zip(is_below) {
            low = x.select(below, low);
        }
        step = step.mul(V::splat(0.25));
    }
    low.sub(margin)
}

/// The eigenvector of T near `below`, which lies under all eigenvalues; it is left in `solution`. The answer is its
/// Rayleigh quotient.
#[inline(always)]
fn iterate<V: Lanes>(below: V, n: usize, space: &mut Space<'_, V>) -> V {
    let (zero, one) = (V::zero(), V::splat(1.0));
    let (diagonal, beside) = (&space.diagonal[..n], &space.beside[..n]);
    let (solution, reciprocal, ratio) = (&mut space.solution[..n], &mut space.pivot[..n], &mut space.ratio[..n]);
    reciprocal[0] = one.div(diagonal[0].sub(below));
    for i in 1..n {
        ratio[i - 1] = beside[i - 1].mul(reciprocal[i - 1]);
        reciprocal[i] = one.div(beside[i - 1].mul_sub_from(ratio[i - 1], diagonal[i].sub(below)));
    }
    solution.fill(one);
    for _ in 0..STEPS {
        for i in 1..n {
            solution[i] = ratio[i - 1].mul_add(solution[i - 1], solution[i]);
        }
        solution[n - 1] = solution[n - 1].mul(reciprocal[n - 1]);
        let mut most = solution[n - 1];
        for i in (0..n - 1).rev() {
            solution[i] = ratio[i].mul_add(solution[i + 1], solution[i].mul(reciprocal[i]));
            most = most.max(solution[i]);
        }
        let scale = one.div(most);
        solution.iter_mut().for_each(|v| *v = v.mul(scale));
    }
    let (mut energy, mut squares) = (zero, zero);
    for i in 0..n {
        let square = solution[i].mul(solution[i]);
        energy = diagonal[i].mul_add(square, energy);
        squares = squares.add(square);
        if i + 1 < n {
            let cross = solution[i].add(solution[i]).mul(solution[i + 1]);
            energy = beside[i].mul_sub_from(cross, energy);
        }
    }
    energy.div(squares)
}

/// The eigenvector of the matrix from that of T.
#[inline(always)]
fn reflect_back<V: Lanes>(a: &[Complex<V>], n: usize, space: &mut Space<'_, V>) {
    let x = &mut space.vector[..n];
    let mut phase = Complex { re: V::splat(1.0), im: V::zero() };
    for i in 0..n {
        x[i] = phase.scaled(space.solution[i]);
        if i + 1 < n {
            // T's element is -direction * e where it was reflected, and +direction * e in the last row: there the sign
            // that makes it -e goes into the phase.
            let next = Complex::zero().plus_product(phase, space.phase[i]);
            phase = if i + 2 == n { next.scaled(V::splat(-1.0)) } else { next };
        }
    }
    for k in (0..n.saturating_sub(2)).rev() {
        let mut sum = Complex::zero();
        for i in k + 1..n {
            sum = sum.plus_conj_product(row(a, i)[k], x[i]);
        }
        let sum = sum.scaled(space.scale[k]);
        for i in k + 1..n {
            x[i] = x[i].minus_product(sum, row(a, i)[k]);
        }
    }
}
