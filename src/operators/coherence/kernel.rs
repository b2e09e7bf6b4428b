//! One pixel after the other: the selected neighbours are listed, then their product sums are computed in registers. Rows are
//! converted to doubles once, into a ring around a tile of columns.
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
use crate::operators::matrices::{Kernel, Lanes, MOST_LANES};
use crate::operators::shp_mask::{Masks, Window};
use crate::operators::stack::{Cell, Missing, Strided};

/// Most shifts summed at once: with real and imaginary parts, ten vectors beside the power and the four that are multiplied,
/// of the sixteen that AVX2 has. Of the 32 of AVX-512 there are enough for all that two vectors hold.
const fn most_shifts<V: Lanes>() -> usize {
    if V::SHUFFLES { V::COUNT } else { 5 }
}

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

/// Widest tile: the samples around it should stay in the second cache.
const TILE: usize = 64;
const CACHED_BYTES: usize = 4 << 20;

/// Columns that are computed before the next tile.
fn tile(window: &Window, images: usize) -> usize {
    let mut tile = TILE;
    while tile > 1 && ring_len(window, images, tile) * 8 > CACHED_BYTES {
        tile /= 2;
    }
    tile
}

/// Doubles of the rows around a tile.
fn ring_len(window: &Window, images: usize, tile: usize) -> usize {
    let (height, breadth) = window.shape();
    height * (tile + breadth - 1) * 2 * sample_stride(images)
}

/// The samples around a tile, row by row: real parts of a pixel's images, then imaginary parts.
pub fn sample_bytes(window: &Window, images: usize) -> usize {
    capacity_for(ring_len(window, images, tile(window, images)) * 8)
}

/// Where the samples of a window's cells lie, and which of them are selected: a number each.
pub fn cell_bytes(window: &Window) -> usize {
    capacity_for(window.cells() * 2 * size_of::<usize>())
}

/// The sums of one pixel, by shift real and imaginary parts (of shift 0, the power, the real part alone); the reciprocal
/// lengths of the images, with the first half once more; the coherences by shift.
fn sum_lens(images: usize) -> [usize; 3] {
    let row = padded(images);
    [shifts(images) * 2 * row, row + padded(shifts(images)), shifts(images) * 2 * row]
}

pub fn sum_bytes(images: usize) -> usize {
    capacity_for(sum_lens(images).iter().sum::<usize>() * 8)
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
    pub cells: &'a mut [usize],
    pub sums: &'a mut [f64],
    pub out: &'a mut [T],
    pub stop: &'a AtomicBool,
}

/// A cell outside the image.
const NOWHERE: usize = usize::MAX;

impl<T: Cell + PartialEq> Kernel for Coherences<'_, T> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let CoherenceMap { window, size, images, layout, min_count, .. } = self.operator;
        let (length, min_count) = (layout.length(*images), *min_count);
        let [(first_row, last_row), (first_col, last_col)] = self.core;
        let (above, beside) = (window.half.0 as i64, window.half.1 as i64);
        let width = (last_col - first_col) as usize;
        let mut left = first_col;
        while left < last_col {
            let right = (left + tile(window, *images) as i64).min(last_col);
            let cols = ((left - beside).max(0), (right + beside).min(size[1]));
            let mut loaded = (first_row - above).max(0);
            for row in first_row..last_row {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
                while loaded < (row + above + 1).min(size[0]) {
                    self.load(loaded, cols, left);
                    loaded += 1;
                }
                self.place(row);
                for col in left..right {
                    let pixel = (row - first_row) as usize * width + (col - first_col) as usize;
                    let selected = self.select(row, col, left);
                    if selected > 0 && selected as u64 >= min_count {
                        self.multiply::<V>(selected);
                        self.finish(pixel);
                    } else {
                        self.out[pixel * length..][..length].fill(T::nan());
                    }
                }
            }
            left = right;
        }
        Ok(())
    }
}

impl<T: Cell + PartialEq> Coherences<'_, T> {
    /// Columns of the ring.
    #[inline(always)]
    fn columns(&self) -> usize {
        let window = &self.operator.window;
        tile(window, self.operator.images) + window.shape().1 - 1
    }

    /// Converts a row around the tile that begins at `left`.
    #[inline(always)]
    fn load(&mut self, row: i64, (from, to): (i64, i64), left: i64) {
        let CoherenceMap { window, images, .. } = self.operator;
        let stride = sample_stride(*images);
        let columns = self.columns();
        let slot = row as usize % window.shape().0 * columns;
        let (slc, missing, strides) = (&self.slc, &self.missing, self.strides);
        let origin = slc.offset(&[0, 0, 0]) + row as isize * strides[0];
        for col in from..to {
            let at = slot + (col - left + window.half.1 as i64) as usize;
            let (re, im) = self.samples[at * 2 * stride..][..2 * stride].split_at_mut(stride);
            let start = origin + col as isize * strides[1];
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
        }
    }

    /// Finds the places of a row's cells in the ring, for the tile's first column.
    #[inline(always)]
    fn place(&mut self, row: i64) {
        let CoherenceMap { window, size, images, .. } = self.operator;
        let (height, breadth) = window.shape();
        let (columns, sample) = (self.columns(), 2 * sample_stride(*images));
        for line in 0..height {
            let there = row + line as i64 - window.half.0 as i64;
            for cell in 0..breadth {
                self.cells[line * breadth + cell] = match (0..size[0]).contains(&there) {
                    true => (there as usize % height * columns + cell) * sample,
                    false => NOWHERE,
                };
            }
        }
    }

    /// Lists the samples that a pixel's mask selects; their number.
    #[inline(always)]
    fn select(&mut self, row: i64, col: i64, left: i64) -> usize {
        let CoherenceMap { window, size, images, .. } = self.operator;
        let (breadth, beside) = (window.shape().1, window.half.1 as i64);
        let (places, list) = self.cells.split_at_mut(window.cells());
        let here = (col - left) as usize * 2 * sample_stride(*images);
        let is_inside = col >= beside && col + beside < size[1];
        let mut selected = 0;
        self.masks.each(row, col, |cell| {
            let is_in_row = is_inside || (0..size[1]).contains(&(col + (cell % breadth) as i64 - beside));
            if places[cell] != NOWHERE && is_in_row {
                list[selected] = places[cell] + here;
                selected += 1;
            }
        });
        selected
    }

    /// `sum z_m * conj(z_(m + s))` for every image m and shift s.
    #[inline(always)]
    fn multiply<V: Lanes>(&mut self, selected: usize) {
        let images = self.operator.images;
        let shifts = shifts(images);
        // What is left of the images beyond whole vectors: lanes are images as before, or the shifts of one image.
        let rest = images % V::COUNT;
        let by_shift = rest > 0 && rest * (shifts - 1).div_ceil(V::COUNT) < shifts - 1;
        let end = if by_shift { images - rest } else { images };
        for column in (0..end).step_by(V::COUNT) {
            let mut shift = 1;
            while shift < shifts {
                let (left, most) = (shifts - shift, most_shifts::<V>());
                // Groups of a kind, as a small one at the end would wait for its own sums; but whole vectors to shuffle.
                let count = if V::SHUFFLES { left.min(most) } else { left.div_ceil(left.div_ceil(most)) };
                match count {
                    1 => self.group::<V, 1>(selected, column, shift),
                    2 => self.group::<V, 2>(selected, column, shift),
                    3 => self.group::<V, 3>(selected, column, shift),
                    4 => self.group::<V, 4>(selected, column, shift),
                    5 => self.group::<V, 5>(selected, column, shift),
                    6 => self.group::<V, 6>(selected, column, shift),
                    7 => self.group::<V, 7>(selected, column, shift),
                    _ => self.group::<V, 8>(selected, column, shift),
                }
                shift += count;
            }
        }
        for image in end..images {
            let mut shift = 1;
            while shift < shifts {
                let vectors = (shifts - shift).div_ceil(V::COUNT);
                match vectors {
                    1 => self.image::<V, 1>(selected, image, shift),
                    2 => self.image::<V, 2>(selected, image, shift),
                    _ => self.image::<V, 4>(selected, image, shift),
                }
                shift += V::COUNT * if vectors > 2 { 4 } else { vectors };
            }
        }
    }

    /// The samples on the list.
    #[inline(always)]
    fn listed(&self, selected: usize) -> impl Iterator<Item = (&[f64], &[f64])> {
        let CoherenceMap { window, images, .. } = self.operator;
        let stride = sample_stride(*images);
        let list = &self.cells[window.cells()..][..selected];
        list.iter().map(move |at| self.samples[*at..][..2 * stride].split_at(stride))
    }

    /// `COUNT` vectors of shifts from `shift` on, for one image, and its power: the same products and sums.
    #[inline(always)]
    fn image<V: Lanes, const COUNT: usize>(&mut self, selected: usize, image: usize, shift: usize) {
        let (mut power, mut re, mut im) = (V::zero(), [V::zero(); COUNT], [V::zero(); COUNT]);
        // A group of four may reach beyond the shifts: those lanes are computed from the sample's end and not kept.
        let reach = sample_stride(self.operator.images) - V::COUNT;
        for (z_re, z_im) in self.listed(selected) {
            let (m_re, m_im) = (V::splat(z_re[image]), V::splat(z_im[image]));
            power = m_im.mul_add(m_im, m_re.mul_add(m_re, power));
            for n in 0..COUNT {
                let at = (image + shift + n * V::COUNT).min(reach);
                let (j_re, j_im) = (V::load(&z_re[at..]), V::load(&z_im[at..]));
                re[n] = m_im.mul_add(j_im, m_re.mul_add(j_re, re[n]));
                im[n] = m_re.mul_sub_from(j_im, m_im.mul_add(j_re, im[n]));
            }
        }
        let (width, shifts) = (padded(self.operator.images), shifts(self.operator.images));
        let mut lanes = [0.0; MOST_LANES];
        power.store(&mut lanes);
        self.sums[image] = lanes[0];
        for n in 0..COUNT {
            let first = shift + n * V::COUNT;
            for (part, vector) in [re[n], im[n]].into_iter().enumerate() {
                vector.store(&mut lanes);
                for (lane, value) in lanes[..V::COUNT].iter().enumerate().take(shifts.saturating_sub(first)) {
                    self.sums[((first + lane) * 2 + part) * width + image] = *value;
                }
            }
        }
    }

    /// `COUNT` shifts from `shift` on, for the images of one vector; with the first of them their power.
    #[inline(always)]
    fn group<V: Lanes, const COUNT: usize>(&mut self, selected: usize, column: usize, shift: usize) {
        match shift {
            1 => self.group_of::<V, COUNT, true>(selected, column, shift),
            _ => self.group_of::<V, COUNT, false>(selected, column, shift),
        }
    }

    #[inline(always)]
    fn group_of<V: Lanes, const COUNT: usize, const HAS_POWER: bool>(&mut self, selected: usize, column: usize, shift: usize) {
        // Forms with fewer registers need no code for what they never do.
        if COUNT > most_shifts::<V>() {
            return;
        }
        let (mut power, mut re, mut im) = (V::zero(), [V::zero(); COUNT], [V::zero(); COUNT]);
        for (z_re, z_im) in self.listed(selected) {
            let (m_re, m_im) = (V::load(&z_re[column..]), V::load(&z_im[column..]));
            if HAS_POWER {
                power = m_im.mul_add(m_im, m_re.mul_add(m_re, power));
            }
            let before = column + shift - 1;
            let (all_re, all_im) = (V::span(&z_re[before..]), V::span(&z_im[before..]));
            for s in 0..COUNT {
                let (j_re, j_im) = (V::within(&z_re[before..], all_re, s + 1), V::within(&z_im[before..], all_im, s + 1));
                re[s] = m_im.mul_add(j_im, m_re.mul_add(j_re, re[s]));
                im[s] = m_re.mul_sub_from(j_im, m_im.mul_add(j_re, im[s]));
            }
        }
        let width = padded(self.operator.images);
        if HAS_POWER {
            power.store(&mut self.sums[column..]);
        }
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
        let (width, shifts) = (padded(images), shifts(images));
        let [sums, lengths, _] = sum_lens(images);
        let (sums, rest) = self.sums.split_at_mut(sums);
        let (reciprocal, found) = rest.split_at_mut(lengths);
        let found: &mut [T] = bytemuck::cast_slice_mut(&mut found[..shifts * width * (size_of::<T>() / 8)]);
        for (reciprocal, power) in reciprocal.iter_mut().zip(&sums[..images]) {
            *reciprocal = 1.0 / power.sqrt();
        }
        reciprocal.copy_within(..shifts.min(images), images);
        // Loops without branches over images, by shift, for the compiler to vectorise.
        for shift in 1..shifts {
            let (re, im) = sums[shift * 2 * width..][..2 * width].split_at(width);
            let lengths = reciprocal[..images].iter().zip(&reciprocal[shift..][..images]);
            let sums = re.iter().zip(im);
            for ((found, (m, j)), (re, im)) in found[shift * width..].iter_mut().zip(lengths).zip(sums) {
                let (re, im) = (re * (m * j), im * (m * j));
                // One NaN, whichever the arithmetic made.
                let is_nan = re.is_nan() || im.is_nan();
                *found = T::new(if is_nan { f64::NAN } else { re }, if is_nan { f64::NAN } else { im });
            }
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
            // Beyond half way round the sum is found from the other side, as its conjugate.
            let half = (images / 2).min(images - 1 - i);
            let near = (1..=half).map(|shift| found[shift * width + i]);
            let far = (i + half + 1..images).map(|j| found[(images + i - j) * width + j].conjugate());
            match self.operator.layout {
                Layout::Pairs => {
                    let row = &mut out[pair..][..images - 1 - i];
                    row.iter_mut().zip(near).for_each(|(out, z)| *out = z);
                    row[half..].iter_mut().zip(far).for_each(|(out, z)| *out = z);
                    pair += images - 1 - i;
                }
                Layout::Full => {
                    for (j, z) in (i + 1..images).zip(near.chain(far)) {
                        out[i * images + j] = z;
                        out[j * images + i] = z.conjugate();
                    }
                }
            }
        }
    }
}
