//! The two products of a pass on panels of lines: `Y = A Q`, then `A^T Y`, in single or double precision.
//!
//! A tile is [`LINES`] lines by [`PLACES`] places of the matrix, converted (and standardised) on the way from its dtype; the
//! matrix is never held in floats. Within a tile a block of lines (or of places) goes through all terms of its sums in
//! registers. Each element of a result is a sum over the places of a tile in order, then over tiles in order (for `A^T Y`: over
//! the lines of a panel), of multiply-adds that are rounded once, whatever the vectors are (I1).

use bytemuck::{Pod, Zeroable};

use crate::operators::matrices::singles::Singles;
use crate::operators::matrices::{Kernel, Lanes};

/// Lines of a panel: what a sum in single precision goes over.
pub const LINES: usize = 256;
/// Places of a tile.
pub const PLACES: usize = 32;
/// Rows of products are padded to whole vectors of any form.
const ROUND: usize = 16;

/// The precision of products.
pub trait Float: Pod + Zeroable + Send + Sync + PartialOrd {
    /// What a sum of products may be off by, relative to its terms.
    const ROUNDING: f64;
    type Vector<V: Lanes>: Vector<Self>;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn zero() -> Self {
        Self::zeroed()
    }
}

/// Numbers side by side.
pub trait Vector<F>: Copy {
    const COUNT: usize;
    fn splat(value: F) -> Self;
    fn load(from: &[F]) -> Self;
    fn store(self, to: &mut [F]);
    fn add(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
}

impl Float for f32 {
    const ROUNDING: f64 = f32::EPSILON as f64;
    type Vector<V: Lanes> = Narrow<V::Singles>;
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Float for f64 {
    const ROUNDING: f64 = f64::EPSILON;
    type Vector<V: Lanes> = Wide<V>;
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
}

/// A vector of floats.
#[derive(Clone, Copy)]
pub struct Narrow<S>(S);

/// A vector of doubles.
#[derive(Clone, Copy)]
pub struct Wide<V>(V);

macro_rules! vector {
    ($name:ident<$form:ident: $trait:ident>, $float:ty) => {
        impl<$form: $trait> Vector<$float> for $name<$form> {
            const COUNT: usize = $form::COUNT;
            #[inline(always)]
            fn splat(value: $float) -> Self {
                Self($form::splat(value))
            }
            #[inline(always)]
            fn load(from: &[$float]) -> Self {
                Self($form::load(from))
            }
            #[inline(always)]
            fn store(self, to: &mut [$float]) {
                self.0.store(to);
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self(self.0.add(other.0))
            }
            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                Self(self.0.mul_add(factor.0, addend.0))
            }
        }
    };
}
vector!(Narrow<S: Singles>, f32);
vector!(Wide<V: Lanes>, f64);

/// Where lines come from: fills tiles.
pub trait Tiles<F> {
    /// Lines of the panel, at most [`LINES`].
    fn lines(&self) -> usize;
    /// Places of a line.
    fn places(&self) -> usize;
    /// Fills the first lines of a tile that begins at a place; what lies outside becomes 0. `#[inline(always)]`, so that it
    /// is compiled for the vectors of the product.
    fn fill(&self, from: usize, tile: &mut [[F; PLACES]]);
}

/// Memory for the products of panels: made once, for matrices of `width` columns.
pub struct Space<F> {
    width: usize,
    tile: Vec<[F; PLACES]>,
    /// Rows of a basis for the places of a tile.
    right: Vec<F>,
    /// Y, a padded row for each line.
    product: Vec<F>,
}

/// A row of a product as it lies in memory.
fn padded(width: usize) -> usize {
    width.next_multiple_of(ROUND)
}

impl<F: Float> Space<F> {
    pub fn new(width: usize) -> Self {
        let rows = |n: usize| vec![F::zero(); n * padded(width)];
        Self { width, tile: vec![[F::zero(); PLACES]; LINES], right: rows(PLACES), product: rows(LINES) }
    }

    /// Bytes that [`Space::new`] takes.
    pub fn bytes(width: usize) -> u64 {
        let words = (LINES * PLACES) as u64 + (LINES + PLACES) as u64 * padded(width) as u64;
        words.saturating_mul(size_of::<F>() as u64)
    }

    /// The rows of the last product.
    pub fn rows(&self, lines: usize) -> impl Iterator<Item = &[F]> {
        self.product.chunks_exact(padded(self.width)).take(lines).map(|row| &row[..self.width])
    }

    /// The largest magnitude in the last product.
    fn largest(&self, lines: usize) -> f64 {
        let all = &self.product[..lines * padded(self.width)];
        all.iter().fold(0f64, |most, v| most.max(v.wide().abs()))
    }

    fn scale(&mut self, lines: usize, factor: f64) {
        self.product[..lines * padded(self.width)].iter_mut().for_each(|v| *v = F::of(v.wide() * factor));
    }
}

/// The power of two at or below a magnitude, which can be multiplied and divided by without rounding. 1 for what has none.
pub fn binary_scale(magnitude: f64) -> f64 {
    if !magnitude.is_normal() {
        return 1.0;
    }
    let exponent = (magnitude.to_bits() >> 52) as i64 & 0x7ff;
    f64::from_bits((exponent.clamp(2, 0x7fd) as u64) << 52)
}

/// `Y = A Q`, into the space; optionally the squares of A are added up.
pub struct Forward<'a, F, T> {
    pub tiles: &'a T,
    /// A row of `width` numbers for each place.
    pub basis: &'a [f64],
    pub space: &'a mut Space<F>,
    pub squares: Option<&'a mut f64>,
}

impl<F: Float, T: Tiles<F>> Kernel for Forward<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { tiles, basis, space, mut squares } = self;
        let (lines, width) = (tiles.lines(), space.width);
        let row = padded(width);
        space.product.fill(F::zero());
        for (from, basis) in (0..tiles.places()).step_by(PLACES).zip(basis.chunks(PLACES * width)) {
            let tile = &mut space.tile[..lines];
            tiles.fill(from, tile);
            if let Some(sum) = &mut squares {
                **sum += sum_of_squares(tile);
            }
            space.right.fill(F::zero());
            for (to, row) in space.right.chunks_exact_mut(row).zip(basis.chunks_exact(width)) {
                to.iter_mut().zip(row).for_each(|(to, value)| *to = F::of(*value));
            }
            // What rows of a block lie behind the last line are computed, too, and never looked at.
            let tile = &space.tile[..lines.next_multiple_of(8)];
            match V::COUNT {
                8.. => forward::<F, F::Vector<V>, 8, 2>(tile, &space.right, &mut space.product, row, width),
                _ => forward::<F, F::Vector<V>, 4, 3>(tile, &space.right, &mut space.product, row, width),
            }
        }
    }
}

#[inline(always)]
fn sum_of_squares<F: Float>(tile: &[[F; PLACES]]) -> f64 {
    let mut sums = [0f64; PLACES];
    for line in tile {
        for (sum, value) in sums.iter_mut().zip(line) {
            let value = value.wide();
            *sum += value * value;
        }
    }
    sums.iter().sum()
}

/// Adds the product of a tile with its rows of a basis, `N` vectors of the result's rows at a time.
#[inline(always)]
fn forward<F: Float, X: Vector<F>, const M: usize, const N: usize>(
    tile: &[[F; PLACES]],
    right: &[F],
    product: &mut [F],
    row: usize,
    width: usize,
) {
    let vectors = width.div_ceil(X::COUNT);
    for first in (0..vectors).step_by(N) {
        let at = first * X::COUNT;
        match vectors - first {
            1 => forward_strip::<F, X, M, 1>(tile, right, product, row, at),
            2 => forward_strip::<F, X, M, 2>(tile, right, product, row, at),
            _ => forward_strip::<F, X, M, N>(tile, right, product, row, at),
        }
    }
}

#[inline(always)]
fn forward_strip<F: Float, X: Vector<F>, const M: usize, const N: usize>(
    tile: &[[F; PLACES]],
    right: &[F],
    product: &mut [F],
    row: usize,
    at: usize,
) {
    for (lines, to) in tile.as_chunks::<M>().0.iter().zip(product.chunks_exact_mut(M * row)) {
        let mut sums = [[X::splat(F::zero()); N]; M];
        for (place, right) in right.chunks_exact(row).enumerate().take(PLACES) {
            let right: [X; N] = std::array::from_fn(|n| X::load(&right[at + n * X::COUNT..]));
            for (sums, line) in sums.iter_mut().zip(lines) {
                let value = X::splat(line[place]);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = value.mul_add(right, *sum);
                }
            }
        }
        for (sums, to) in sums.iter().zip(to.chunks_exact_mut(row)) {
            for (n, sum) in sums.iter().enumerate() {
                let to = &mut to[at + n * X::COUNT..];
                X::load(to).add(*sum).store(to);
            }
        }
    }
}

/// `A^T Y` for the product in the space, added to `image` (a row of `width` numbers for each place), and the lower triangle of
/// `Y^T Y`, added to `gram`.
pub struct Backward<'a, F, T> {
    pub tiles: &'a T,
    pub space: &'a mut Space<F>,
    pub image: &'a mut [f64],
    pub gram: &'a mut [f64],
}

impl<F: Float, T: Tiles<F>> Kernel for Backward<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { tiles, space, image, gram } = self;
        let (lines, width) = (tiles.lines(), space.width);
        let row = padded(width);
        add_gram(space, lines, gram);
        // Small numbers would be lost in the product of both, and large ones be infinite: Y goes in as numbers about 1.
        let scale = binary_scale(space.largest(lines));
        space.scale(lines, 1.0 / scale);
        for (from, image) in (0..tiles.places()).step_by(PLACES).zip(image.chunks_mut(PLACES * width)) {
            tiles.fill(from, &mut space.tile[..lines]);
            let tile = &space.tile[..lines];
            match V::COUNT {
                8.. => backward::<F, F::Vector<V>, 8, 2>(tile, &space.product, &mut space.right, row, width),
                _ => backward::<F, F::Vector<V>, 4, 3>(tile, &space.product, &mut space.right, row, width),
            }
            for (to, from) in image.chunks_exact_mut(width).zip(space.right.chunks_exact(row)) {
                to.iter_mut().zip(from).for_each(|(to, value)| *to += value.wide() * scale);
            }
        }
    }
}

#[inline(always)]
fn add_gram<F: Float>(space: &Space<F>, lines: usize, gram: &mut [f64]) {
    let mut line = vec![0f64; space.width];
    for values in space.rows(lines) {
        line.iter_mut().zip(values).for_each(|(to, value)| *to = value.wide());
        for (i, sums) in gram.chunks_exact_mut(space.width).enumerate() {
            let factor = line[i];
            sums[..=i].iter_mut().zip(&line).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}

/// The product of a transposed tile with the rows of Y.
#[inline(always)]
fn backward<F: Float, X: Vector<F>, const M: usize, const N: usize>(
    tile: &[[F; PLACES]],
    product: &[F],
    image: &mut [F],
    row: usize,
    width: usize,
) {
    let vectors = width.div_ceil(X::COUNT);
    for first in (0..vectors).step_by(N) {
        let at = first * X::COUNT;
        match vectors - first {
            1 => backward_strip::<F, X, M, 1>(tile, product, image, row, at),
            2 => backward_strip::<F, X, M, 2>(tile, product, image, row, at),
            _ => backward_strip::<F, X, M, N>(tile, product, image, row, at),
        }
    }
}

#[inline(always)]
fn backward_strip<F: Float, X: Vector<F>, const M: usize, const N: usize>(
    tile: &[[F; PLACES]],
    product: &[F],
    image: &mut [F],
    row: usize,
    at: usize,
) {
    for (places, to) in image.chunks_exact_mut(M * row).enumerate().take(PLACES / M) {
        let mut sums = [[X::splat(F::zero()); N]; M];
        for (line, product) in tile.iter().zip(product.chunks_exact(row)) {
            let values = &line.as_chunks::<M>().0[places];
            let product: [X; N] = std::array::from_fn(|n| X::load(&product[at + n * X::COUNT..]));
            for (sums, value) in sums.iter_mut().zip(values) {
                let value = X::splat(*value);
                for (sum, product) in sums.iter_mut().zip(product) {
                    *sum = value.mul_add(product, *sum);
                }
            }
        }
        for (sums, to) in sums.iter().zip(to.chunks_exact_mut(row)) {
            sums.iter().enumerate().for_each(|(n, sum)| sum.store(&mut to[at + n * X::COUNT..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::matrices::run;
    use crate::operators::testing::Random;

    /// A matrix as it is.
    struct Whole<F> {
        lines: usize,
        places: usize,
        values: Vec<F>,
    }

    impl<F: Float> Tiles<F> for Whole<F> {
        fn lines(&self) -> usize {
            self.lines
        }
        fn places(&self) -> usize {
            self.places
        }
        #[inline(always)]
        fn fill(&self, from: usize, tile: &mut [[F; PLACES]]) {
            for (line, to) in tile.iter_mut().enumerate() {
                let of = |place: usize| self.values[line * self.places + place];
                to.iter_mut()
                    .enumerate()
                    .for_each(|(at, to)| *to = if from + at < self.places { of(from + at) } else { F::zero() });
            }
        }
    }

    /// The sums in their order, one by one.
    fn naive<F: Float>(matrix: &Whole<F>, basis: &[f64], width: usize, fused: fn(F, F, F) -> F) -> [Vec<f64>; 3] {
        let Whole { lines, places, values } = matrix;
        let mut product = vec![F::zero(); lines * width];
        for (line, j) in (0..*lines).flat_map(|line| (0..width).map(move |j| (line, j))) {
            let mut sum = F::zero();
            for from in (0..*places).step_by(PLACES) {
                let term = |part: F, place: usize| fused(values[line * places + place], F::of(basis[place * width + j]), part);
                sum = F::of(sum.wide() + (from..(from + PLACES).min(*places)).fold(F::zero(), term).wide());
            }
            product[line * width + j] = sum;
        }
        let scale = binary_scale(product.iter().fold(0f64, |most, v| most.max(v.wide().abs())));
        let mut image = vec![0.0; places * width];
        for (place, j) in (0..*places).flat_map(|place| (0..width).map(move |j| (place, j))) {
            let scaled = |line: usize| F::of(product[line * width + j].wide() / scale);
            let sum = (0..*lines).fold(F::zero(), |sum, line| fused(values[line * places + place], scaled(line), sum));
            image[place * width + j] = sum.wide() * scale;
        }
        let mut gram = vec![0.0; width * width];
        for (i, j) in (0..width).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            let of = |line: usize, j: usize| product[line * width + j].wide();
            gram[i * width + j] = (0..*lines).fold(0.0, |sum, line| sum + of(line, i) * of(line, j));
        }
        [product.iter().map(|v| v.wide()).collect(), image, gram]
    }

    fn check<F: Float>(fused: fn(F, F, F) -> F) {
        let mut random = Random::new(8);
        let shapes = [(1, 1, 1), (3, 5, 2), (8, 32, 16), (256, 33, 20), (77, 100, 33), (256, 64, 7), (13, 31, 50)];
        for (lines, places, width) in shapes {
            for range in [1.0, 1e-28, 1e28] {
                let values = (0..lines * places).map(|_| F::of((random.unit() - 0.3) * range)).collect();
                let basis: Vec<f64> = (0..places * width).map(|_| random.unit() - 0.5).collect();
                let matrix = Whole { lines, places, values };
                let want = naive(&matrix, &basis, width, fused);
                crate::simd::both_paths(|scalar| {
                    // What earlier panels left does not count.
                    let mut space = Space::<F>::new(width);
                    space.right.fill(F::of(f64::INFINITY));
                    space.product.fill(F::of(f64::NAN));
                    let (mut squares, mut image, mut gram) = (0.0, vec![0.0; places * width], vec![0.0; width * width]);
                    let sum = Some(&mut squares);
                    run(Forward { tiles: &matrix, basis: &basis, space: &mut space, squares: sum });
                    let product: Vec<f64> = space.rows(lines).flatten().map(|v| v.wide()).collect();
                    run(Backward { tiles: &matrix, space: &mut space, image: &mut image, gram: &mut gram });
                    assert!([product, image, gram] == want, "{lines} x {places} x {width} at {range}, scalar {scalar}");
                    let all = matrix.values.iter().map(|v| v.wide() * v.wide()).sum::<f64>();
                    assert!((squares - all).abs() <= 1e-12 * all, "{squares} for {all}");
                });
            }
        }
    }

    #[test]
    fn i1_products_are_the_sums_in_their_order() {
        check::<f32>(f32::mul_add);
        check::<f64>(f64::mul_add);
    }

    #[test]
    fn scales_are_powers_of_two() {
        for (magnitude, scale) in
            [(1.0, 1.0), (1.9, 1.0), (2.0, 2.0), (0.3, 0.25), (0.0, 1.0), (f64::INFINITY, 1.0), (1e-320, 1.0)]
        {
            assert_eq!(binary_scale(magnitude), scale, "{magnitude}");
        }
        assert!((1.0 / binary_scale(f64::MAX)).is_normal() && (1.0 / binary_scale(f64::MIN_POSITIVE)).is_normal());
    }
}
