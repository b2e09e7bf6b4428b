//! In double precision: complex128, and the weighted mean, whose weights may be small differences. One pixel a lane.

use std::sync::atomic::{AtomicBool, Ordering};

use super::TemporalMap;
use crate::array::budget::BudgetError;
use crate::operators::OperatorError;
use crate::operators::coherence_matrix::{self, Matrices, Pixels};
use crate::operators::matrices::eigen::Complex;
use crate::operators::matrices::{Kernel, Lanes, MOST_LANES};
use crate::operators::stack::{Cell, all_pairs};

/// Doubles of one batch, for vectors of one lane: pairs, phases, looks.
fn doubles(operator: &TemporalMap) -> usize {
    2 * operator.shape.pairs() + 2 * operator.shape.images + 1
}

/// Bytes of one batch.
pub fn batch_bytes(operator: &TemporalMap) -> usize {
    doubles(operator) * MOST_LANES * 8
}

pub struct Double<'a, T: Cell> {
    pub operator: &'a TemporalMap,
    pub pixels: Matrices<'a>,
    pub phases: Pixels<'a>,
    pub looks: Option<Pixels<'a>>,
    pub out: &'a mut [T::Real],
    /// [`batch_bytes`].
    pub memory: &'a mut [u8],
    pub stop: &'a AtomicBool,
}

impl<T: Cell> Kernel for Double<'_, T> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let memory = std::mem::take(&mut self.memory);
        let vectors: &mut [V] = &mut bytemuck::cast_slice_mut::<u8, V>(memory)[..doubles(self.operator)];
        let (looks, numbers) = vectors.split_at_mut(1);
        let numbers: &mut [Complex<V>] = bytemuck::cast_slice_mut(numbers);
        let (pairs, phases) = numbers.split_at_mut(self.operator.shape.pairs());
        let mut here = [0usize; MOST_LANES];
        let mut count = 0;
        for pixel in 0..self.pixels.count() {
            if self.load::<V>(pixel, count, pairs, phases, looks) {
                here[count] = pixel;
                count += 1;
            } else {
                self.out[pixel] = T::real(f64::NAN);
            }
            if count == V::COUNT {
                self.solve(pairs, phases, looks[0], &here[..count]);
                count = 0;
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
            }
        }
        if count > 0 {
            self.solve(pairs, phases, looks[0], &here[..count]);
        }
        Ok(())
    }
}

impl<T: Cell> Double<'_, T> {
    #[inline(always)]
    fn load<V: Lanes>(
        &self,
        pixel: usize,
        lane: usize,
        pairs: &mut [Complex<V>],
        phases: &mut [Complex<V>],
        looks: &mut [V],
    ) -> bool {
        if !self.pixels.load::<T, V>(pixel, lane, pairs) {
            return false;
        }
        if let Some(pixels) = &self.looks {
            bytemuck::cast_slice_mut::<V, f64>(looks)[lane] = pixels.source.number(pixels.offset(pixel));
        }
        let (start, source) = (self.phases.offset(pixel), &self.phases.source);
        let step = source.strides[self.operator.image];
        (0..self.operator.shape.images)
            .all(|image| coherence_matrix::put::<T, V>(source, start + image as isize * step, phases, image, lane))
    }

    #[inline(always)]
    fn solve<V: Lanes>(&mut self, pairs: &[Complex<V>], phases: &[Complex<V>], looks: V, pixels: &[usize]) {
        let (zero, one) = (V::zero(), V::splat(1.0));
        let noise = one.div(looks);
        let scale = one.div(one.sub(noise));
        let (mut sum, mut weights) = (Complex::<V>::zero(), zero);
        for (coherence, (i, j)) in pairs.iter().zip(all_pairs(self.operator.shape.images)) {
            let square = coherence.norm_squared();
            let model = Complex::zero().plus_conj_product(phases[i], phases[j]);
            let product = Complex::zero().plus_product(*coherence, model);
            let unit = product.scaled(square.rsqrt());
            if self.operator.is_weighted {
                let weight = square.sub(noise).mul(scale);
                let counts = weight.greater(zero);
                sum =
                    Complex { re: sum.re.add(unit.re.mul(weight).and(counts)), im: sum.im.add(unit.im.mul(weight).and(counts)) };
                weights = weights.add(weight.and(counts));
            } else {
                sum = Complex { re: sum.re.add(unit.re), im: sum.im.add(unit.im) };
                weights = weights.add(one);
            }
        }
        let mut found = [0.0; MOST_LANES];
        sum.norm_squared().sqrt().div(weights).store(&mut found);
        for (value, &pixel) in found.iter().zip(pixels) {
            self.out[pixel] = T::real(*value);
        }
    }
}
