//! One pixel after the other: the selected neighbours are gathered, then their product sum is computed in tiles that stay
//! in registers. Lanes are images, so the order of additions (the window's) is that of a plain loop for every element.

use std::sync::atomic::{AtomicBool, Ordering};

use super::CoherenceMap;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::operators::OperatorError;
use crate::operators::coherence_matrix::Layout;
use crate::operators::matrices::{Kernel, Lanes};
use crate::operators::shp_mask::{Masks, Window};
use crate::operators::stack::{Cell, Missing, Strided};

/// Rows of a tile of the product: with real and imaginary sums, eight vectors.
const ROWS: usize = 4;

/// Images as stored: whole tiles and whole vectors.
fn padded(images: usize) -> usize {
    images.next_multiple_of(8)
}

/// The samples of one window: real parts of a neighbour's images, then imaginary parts.
pub fn sample_bytes(window: &Window, images: usize) -> usize {
    capacity_for(window.cells() * 2 * padded(images) * 8)
}

/// The product sums of one pixel, rows of real and imaginary parts, and the reciprocal lengths of the images.
pub fn sum_bytes(images: usize) -> usize {
    capacity_for((padded(images) + 1) * 2 * padded(images) * 8)
}

pub struct Coherences<'a, T> {
    pub operator: &'a CoherenceMap,
    pub slc: Strided<'a>,
    /// Azimuth, range and image strides of the stack.
    pub strides: [isize; 3],
    pub masks: Masks<'a>,
    pub missing: Missing<T>,
    /// Rows and columns to compute.
    pub core: [(i64, i64); 2],
    pub samples: &'a mut [f64],
    pub sums: &'a mut [f64],
    pub out: &'a mut [T],
    pub stop: &'a AtomicBool,
}

impl<T: Cell + PartialEq> Kernel for Coherences<'_, T> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let length = self.operator.layout.length(self.operator.images);
        let [(first_row, last_row), (first_col, last_col)] = self.core;
        let mut pixel = 0;
        for row in first_row..last_row {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            for col in first_col..last_col {
                let selected = self.gather(row, col);
                if selected > 0 && selected as u64 >= self.operator.min_count {
                    self.multiply::<V>(selected);
                    self.finish(pixel);
                } else {
                    self.out[pixel * length..][..length].fill(T::nan());
                }
                pixel += 1;
            }
        }
        Ok(())
    }
}

impl<T: Cell + PartialEq> Coherences<'_, T> {
    /// Collects the selected pixels of a window; their number. Fewer than `min_count` are counted only.
    #[inline(always)]
    fn gather(&mut self, row: i64, col: i64) -> usize {
        let CoherenceMap { window, size, images, min_count, .. } = self.operator;
        let stride = padded(*images);
        let neighbour = |line: usize, cell: usize| {
            let (y, x) = (row + line as i64 - window.half.0 as i64, col + cell as i64 - window.half.1 as i64);
            ((0..size[0]).contains(&y) && (0..size[1]).contains(&x)).then_some((y, x))
        };
        if *min_count > 1 {
            let mut count = 0u64;
            self.masks.each(row, col, |line, cell| count += u64::from(neighbour(line, cell).is_some()));
            if count < *min_count {
                return count as usize;
            }
        }
        let mut selected = 0;
        let origin = self.slc.offset(&[0, 0, 0]);
        let (slc, missing, samples, strides) = (&self.slc, &self.missing, &mut *self.samples, self.strides);
        self.masks.each(row, col, |line, cell| {
            let Some((y, x)) = neighbour(line, cell) else { return };
            let (re, im) = samples[selected * 2 * stride..][..2 * stride].split_at_mut(stride);
            let start = origin + y as isize * strides[0] + x as isize * strides[1];
            for image in 0..*images {
                let z = missing.wide(slc.get::<T>(start + image as isize * strides[2]));
                (re[image], im[image]) = (z.re, z.im);
            }
            // Buffers hold what their last user left.
            re[*images..].fill(0.0);
            im[*images..].fill(0.0);
            selected += 1;
        });
        selected
    }

    /// The upper triangle of `S_mj = sum z_m * conj(z_j)`, in whole tiles.
    #[inline(always)]
    fn multiply<V: Lanes>(&mut self, selected: usize) {
        let images = self.operator.images;
        let stride = padded(images);
        let samples = &self.samples[..selected * 2 * stride];
        for first in (0..images).step_by(ROWS) {
            for column in (first / V::COUNT * V::COUNT..images).step_by(V::COUNT) {
                let mut re = [V::zero(); ROWS];
                let mut im = [V::zero(); ROWS];
                for sample in samples.chunks_exact(2 * stride) {
                    let (z_re, z_im) = sample.split_at(stride);
                    let (j_re, j_im) = (V::load(&z_re[column..]), V::load(&z_im[column..]));
                    let (m_re, m_im) = (&z_re[first..first + ROWS], &z_im[first..first + ROWS]);
                    for r in 0..ROWS {
                        let (a, b) = (V::splat(m_re[r]), V::splat(m_im[r]));
                        re[r] = b.mul_add(j_im, a.mul_add(j_re, re[r]));
                        im[r] = a.mul_sub_from(j_im, b.mul_add(j_re, im[r]));
                    }
                }
                for r in 0..ROWS {
                    let row = &mut self.sums[(first + r) * 2 * stride..][..2 * stride];
                    re[r].store(&mut row[column..]);
                    im[r].store(&mut row[stride + column..]);
                }
            }
        }
    }

    /// Divides by the lengths and writes one pixel.
    #[inline(always)]
    fn finish(&mut self, pixel: usize) {
        let images = self.operator.images;
        let stride = padded(images);
        let (sums, reciprocal) = self.sums.split_at_mut(stride * 2 * stride);
        for m in 0..images {
            reciprocal[m] = 1.0 / sums[m * 2 * stride + m].sqrt();
        }
        let length = self.operator.layout.length(images);
        let out = &mut self.out[pixel * length..][..length];
        let mut pair = 0;
        for m in 0..images {
            let row = &sums[m * 2 * stride..][..2 * stride];
            if self.operator.layout == Layout::Full {
                let power = row[m];
                out[m * images + m] = if power > 0.0 && power < f64::INFINITY { T::new(1.0, 0.0) } else { T::nan() };
            }
            for j in m + 1..images {
                let scale = reciprocal[m] * reciprocal[j];
                let (re, im) = (row[j] * scale, row[stride + j] * scale);
                match self.operator.layout {
                    Layout::Pairs => out[pair] = T::new(re, im),
                    Layout::Full => {
                        out[m * images + j] = T::new(re, im);
                        out[j * images + m] = T::new(re, -im);
                    }
                }
                pair += 1;
            }
        }
    }
}
