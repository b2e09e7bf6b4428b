//! One pixel after the other: the selected neighbours are gathered, then their product sums are computed in registers.
//!
//! Lanes are images. For a shift s the sums `S[m, m + s]` of all m lie side by side, indices taken round the end, so shifts
//! 0 to N / 2 have every pair once and hardly a lane is wasted. (Tiles of the triangle waste a third of them at N = 17.)
//! For that each neighbour's images are stored with the first half of them once more behind the last. Every sum has an
//! accumulator of its own, and its order of additions is the window's: lanes and groups do not show in the result.

use std::sync::atomic::{AtomicBool, Ordering};

use super::CoherenceMap;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::operators::OperatorError;
use crate::operators::coherence_matrix::Layout;
use crate::operators::matrices::{Kernel, Lanes};
use crate::operators::shp_mask::{Masks, Window};
use crate::operators::stack::{Cell, Missing, Strided};

/// Shifts summed at once: with real and imaginary parts, ten vectors beside the four that are multiplied.
const GROUP: usize = 5;

/// Images in whole vectors of any form.
fn padded(images: usize) -> usize {
    images.next_multiple_of(8)
}

/// Shifts from 0 to half the number of images.
fn shifts(images: usize) -> usize {
    images / 2 + 1
}

/// Real (or imaginary) parts of one neighbour: its images, and what shifted vectors reach beyond them.
fn sample_stride(images: usize) -> usize {
    padded(images) + padded(shifts(images))
}

/// The samples of one window: real parts of a neighbour's images, then imaginary parts.
pub fn sample_bytes(window: &Window, images: usize) -> usize {
    capacity_for(window.cells() * 2 * sample_stride(images) * 8)
}

/// The sums of one pixel, by shift real and imaginary parts, and the reciprocal lengths of the images.
pub fn sum_bytes(images: usize) -> usize {
    capacity_for((shifts(images) * 2 + 1) * padded(images) * 8)
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
        let stride = sample_stride(*images);
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
            for part in [re, im] {
                let (images, beyond) = part.split_at_mut(*images);
                let again = shifts(images.len()).min(images.len());
                beyond[..again].copy_from_slice(&images[..again]);
                // Buffers hold what their last user left.
                beyond[again..].fill(0.0);
            }
            selected += 1;
        });
        selected
    }

    /// `sum z_m * conj(z_(m + s))` for every image m and shift s.
    #[inline(always)]
    fn multiply<V: Lanes>(&mut self, selected: usize) {
        let images = self.operator.images;
        for column in (0..images).step_by(V::COUNT) {
            let mut shift = 0;
            while shift < shifts(images) {
                let count = match shifts(images) - shift {
                    rest @ 1..=3 => rest,
                    // Two groups of a kind hide the latency better than a full one and a rest.
                    4 | 8 => 4,
                    6 => 3,
                    _ => GROUP,
                };
                match count {
                    1 => self.group::<V, 1>(selected, column, shift),
                    2 => self.group::<V, 2>(selected, column, shift),
                    3 => self.group::<V, 3>(selected, column, shift),
                    4 => self.group::<V, 4>(selected, column, shift),
                    _ => self.group::<V, GROUP>(selected, column, shift),
                }
                shift += count;
            }
        }
    }

    /// `COUNT` shifts from `shift` on, for the images of one vector.
    #[inline(always)]
    fn group<V: Lanes, const COUNT: usize>(&mut self, selected: usize, column: usize, shift: usize) {
        let images = self.operator.images;
        let stride = sample_stride(images);
        let (mut re, mut im) = ([V::zero(); COUNT], [V::zero(); COUNT]);
        for sample in self.samples[..selected * 2 * stride].chunks_exact(2 * stride) {
            let (z_re, z_im) = sample.split_at(stride);
            let (m_re, m_im) = (V::load(&z_re[column..]), V::load(&z_im[column..]));
            for s in 0..COUNT {
                let (j_re, j_im) = (V::load(&z_re[column + shift + s..]), V::load(&z_im[column + shift + s..]));
                re[s] = m_im.mul_add(j_im, m_re.mul_add(j_re, re[s]));
                im[s] = m_re.mul_sub_from(j_im, m_im.mul_add(j_re, im[s]));
            }
        }
        let width = padded(images);
        for s in 0..COUNT {
            let sums = &mut self.sums[(shift + s) * 2 * width..][..2 * width];
            re[s].store(&mut sums[column..]);
            im[s].store(&mut sums[width + column..]);
        }
    }

    /// Divides by the lengths and writes one pixel.
    #[inline(always)]
    fn finish(&mut self, pixel: usize) {
        let images = self.operator.images;
        let width = padded(images);
        let (sums, reciprocal) = self.sums.split_at_mut(shifts(images) * 2 * width);
        for m in 0..images {
            reciprocal[m] = 1.0 / sums[m].sqrt();
        }
        let length = self.operator.layout.length(images);
        let out = &mut self.out[pixel * length..][..length];
        if self.operator.layout == Layout::Full {
            for m in 0..images {
                let has_power = sums[m] > 0.0 && sums[m] < f64::INFINITY;
                out[m * images + m] = if has_power { T::new(1.0, 0.0) } else { T::nan() };
            }
        }
        let mut pair = 0;
        for i in 0..images {
            for j in i + 1..images {
                // Beyond half way round the sum is found from the other side, as its conjugate.
                let (m, shift, sign) = if 2 * (j - i) <= images { (i, j - i, 1.0) } else { (j, images + i - j, -1.0) };
                let row = &sums[shift * 2 * width..][..2 * width];
                let scale = reciprocal[i] * reciprocal[j];
                let (re, im) = (row[m] * scale, sign * row[width + m] * scale);
                match self.operator.layout {
                    Layout::Pairs => out[pair] = T::new(re, im),
                    Layout::Full => {
                        out[i * images + j] = T::new(re, im);
                        out[j * images + i] = T::new(re, -im);
                    }
                }
                pair += 1;
            }
        }
    }
}
