//! The plain mean over complex64, in single precision: unit vectors, their products and the sums of up to eight of them are
//! floats, what is added up beyond that are doubles. So t is as near to the exact mean as its own rounding.
//!
//! Sixteen pixels (eight with AVX2) one a lane: groups of eight pairs are turned into lanes in registers, so memory is read
//! once and in order. The pairs of image i are summed up before they are multiplied by its phase.
//!
//! `|C|^2` must be a normal float with room for rounding. Numbers so small or large that it is not (and zeros, infinities,
//! NaN) are divided by their length in double precision: a rule for each number alone, so batches do not show.

use std::sync::atomic::{AtomicBool, Ordering};

use num_complex::Complex32;

use super::TemporalMap;
use crate::array::Region;
use crate::array::budget::BudgetError;
use crate::operators::coherence_matrix::{Layout, MatrixShape, Pixels};
use crate::operators::matrices::eigen::Complex;
use crate::operators::matrices::singles::{GROUP, GROUP_BYTES, GROUP_FLOATS, MOST_SINGLES, Rows, Singles};
use crate::operators::matrices::{Kernel, Lanes};
use crate::operators::{OperatorError, Padded};
use crate::simd::fetch;

/// Squares between these take the short way.
const LEAST_SQUARE: f32 = 1e-24;
const MOST_SQUARE: f32 = 1e24;

/// A batch of numbers may take so much of the second cache.
const CACHED_BYTES: usize = 256 << 10;

/// Bytes of one batch's phases.
pub fn phase_bytes(images: usize) -> usize {
    2 * images * MOST_SINGLES * 4
}

pub struct Single<'a> {
    operator: &'a TemporalMap,
    coherence: Numbers<'a>,
    phases: Numbers<'a>,
    out: &'a mut [f32],
    memory: &'a mut [u8],
    stop: &'a AtomicBool,
}

impl<'a> Single<'a> {
    /// `memory`: [`phase_bytes`].
    pub fn new(
        operator: &'a TemporalMap,
        [coherence, phase]: [&'a Padded; 2],
        core: &Region,
        out: &'a mut [f32],
        memory: &'a mut [u8],
        stop: &'a AtomicBool,
    ) -> Self {
        let MatrixShape { layout, images, leading } = operator.shape;
        let strides = coherence.block.strides();
        let place = match layout {
            Layout::Pairs => Place::Line(strides[leading]),
            Layout::Full => Place::Matrix(strides[leading], strides[leading + 1]),
        };
        let coherence = Numbers::new(Pixels::new(coherence, 0..leading, core), operator.shape.pairs(), place);
        let place = Place::Line(phase.block.strides()[operator.image]);
        let axes = (0..=leading).filter(|a| *a != operator.image);
        Self { operator, coherence, phases: Numbers::new(Pixels::new(phase, axes, core), images, place), out, memory, stop }
    }
}

impl Kernel for Single<'_> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let memory = std::mem::take(&mut self.memory);
        let phases: &mut [V::Singles] = &mut bytemuck::cast_slice_mut(memory)[..2 * self.operator.shape.images];
        let (coherence, numbers) = (&self.coherence, &self.phases);
        // A batch waits until the one after it is known, so that it can be fetched meanwhile.
        let (mut batch, mut next) = (Batch::default(), Batch::default());
        let offsets = coherence.pixels.offsets().zip(numbers.pixels.offsets());
        for (pixel, (start, phase)) in offsets.enumerate() {
            coherence.fetch_after(start);
            // Pixels that were left out are NaN all over, and need no lane.
            if coherence.is_nan_at(start) || numbers.is_nan_at(phase) {
                self.out[pixel] = f32::NAN;
                continue;
            }
            next.add(pixel, start, phase);
            if next.count == V::Singles::COUNT {
                if batch.count > 0 {
                    solve(coherence, numbers, phases, [&batch, &next], self.out);
                }
                (batch, next) = (next, Batch::default());
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
            }
        }
        if batch.count > 0 {
            solve(coherence, numbers, phases, [&batch, &next], self.out);
        }
        if next.count > 0 {
            solve(coherence, numbers, phases, [&next, &next], self.out);
        }
        Ok(())
    }
}

/// Pixels in hand. Lanes without one hold the first once more.
#[derive(Default)]
struct Batch {
    count: usize,
    pixels: [usize; MOST_SINGLES],
    coherence: [isize; MOST_SINGLES],
    phases: [isize; MOST_SINGLES],
}

impl Batch {
    #[inline(always)]
    fn add(&mut self, pixel: usize, coherence: isize, phase: isize) {
        if self.count == 0 {
            (self.coherence, self.phases) = ([coherence; MOST_SINGLES], [phase; MOST_SINGLES]);
        }
        (self.pixels[self.count], self.coherence[self.count], self.phases[self.count]) = (pixel, coherence, phase);
        self.count += 1;
    }
}

/// How the complex numbers of a pixel lie behind its first byte.
enum Place {
    /// So many bytes from one to the next.
    Line(isize),
    /// A matrix, whose pairs above the diagonal are meant: bytes from row to row and from column to column.
    Matrix(isize, isize),
}

/// The complex numbers of each pixel: its coherence by pairs, or its phases.
struct Numbers<'a> {
    pixels: Pixels<'a>,
    count: usize,
    place: Place,
}

impl<'a> Numbers<'a> {
    fn new(pixels: Pixels<'a>, count: usize, place: Place) -> Self {
        Self { pixels, count, place }
    }

    /// Bytes to number `index`, which is that of pair (i, j).
    #[inline(always)]
    fn offset(&self, index: usize, (i, j): (usize, usize)) -> isize {
        match self.place {
            Place::Line(step) => index as isize * step,
            Place::Matrix(row, column) => i as isize * row + j as isize * column,
        }
    }

    #[inline(always)]
    fn is_nan_at(&self, start: isize) -> bool {
        let z = self.pixels.source.get::<Complex32>(start + self.offset(0, (0, 1)));
        z.re.is_nan() || z.im.is_nan()
    }

    /// Fetches the beginning of a pixel two batches on, where they lie one behind the other.
    #[inline(always)]
    fn fetch_after(&self, start: isize) {
        let ahead = 2 * MOST_SINGLES * self.count * size_of::<Complex32>();
        fetch(self.pixels.source.bytes(start, 0).as_ptr().wrapping_add(ahead));
    }

    /// The bytes of each pixel's numbers, where [`Singles::columns`] can read them.
    #[inline(always)]
    fn rows(&self, batches: [&[isize; MOST_SINGLES]; 2]) -> Option<[Rows<'_>; 2]> {
        let is_line = matches!(self.place, Place::Line(step) if step == size_of::<Complex32>() as isize);
        if !is_line || self.count < GROUP {
            return None;
        }
        let mut rows = [[&[][..]; MOST_SINGLES]; 2];
        for (rows, starts) in rows.iter_mut().zip(batches) {
            for (row, start) in rows.iter_mut().zip(starts) {
                *row = self.pixels.source.bytes(*start, self.count * size_of::<Complex32>());
            }
        }
        let [these, next] = rows;
        Some([Rows::new(these), Rows::new(next)])
    }

    /// Real and imaginary parts of up to a group of numbers from `first` on, which is that of pair (i, j) of `images`; they
    /// begin at the float that is returned. `rows`: of this batch and of the next.
    #[inline(always)]
    fn group<S: Singles>(
        &self,
        rows: &Option<[Rows<'_>; 2]>,
        starts: &[isize; MOST_SINGLES],
        first: usize,
        (mut i, mut j, images): (usize, usize, usize),
        to: &mut [S; GROUP_FLOATS],
    ) -> usize {
        if let Some([rows, next]) = rows {
            // The last group reaches back into the one before, rather than beyond the pixel.
            let begin = first.min(self.count - GROUP);
            let at = begin * size_of::<Complex32>();
            // Where both batches' numbers are too many for the second cache, what comes soon in this one's.
            let is_small = S::COUNT * self.count * size_of::<Complex32>() <= CACHED_BYTES;
            let (soon, then) = if is_small { (next, at) } else { (rows, at + 16 * GROUP_BYTES) };
            S::columns(rows, at, soon, then, to);
            return 2 * (first - begin);
        }
        let count = GROUP.min(self.count - first);
        for (k, parts) in to.chunks_exact_mut(2).enumerate().take(count) {
            let offset = self.offset(first + k, (i, j));
            let (mut re, mut im) = ([0.0; MOST_SINGLES], [0.0; MOST_SINGLES]);
            for (lane, start) in starts.iter().enumerate() {
                let z = self.pixels.source.get::<Complex32>(start + offset);
                (re[lane], im[lane]) = (z.re, z.im);
            }
            (parts[0], parts[1]) = (S::load(&re), S::load(&im));
            j += 1;
            if j == images {
                i += 1;
                j = i + 1;
            }
        }
        0
    }
}

/// t of the pixels in hand. `next`: those that come after them, if any.
#[inline(always)]
fn solve<S: Singles>(
    coherence: &Numbers<'_>,
    phases: &Numbers<'_>,
    phase: &mut [S],
    [batch, next]: [&Batch; 2],
    out: &mut [f32],
) {
    let next = if next.count > 0 { next } else { batch };
    let zero = S::splat(0.0);
    let (images, pairs) = (phases.count, coherence.count);
    let mut columns = [zero; GROUP_FLOATS];
    let rows = phases.rows([&batch.phases, &next.phases]);
    for first in (0..images).step_by(GROUP) {
        let begin = phases.group(&rows, &batch.phases, first, (0, 0, images), &mut columns);
        let floats = 2 * GROUP.min(images - first);
        phase[2 * first..][..floats].copy_from_slice(&columns[begin..][..floats]);
    }
    let mut sum = [Complex::<S::Doubles>::zero(); 2];
    let rows = coherence.rows([&batch.coherence, &next.coherence]);
    let (mut i, mut j) = (0, 1);
    for first in (0..pairs).step_by(GROUP) {
        let mut at = coherence.group(&rows, &batch.coherence, first, (i, j, images), &mut columns);
        let mut left = GROUP.min(pairs - first);
        while left > 0 {
            // What the group has of image i.
            let count = left.min(images - j);
            let (mut re, mut im) = (zero, zero);
            for (c, p) in columns[at..][..2 * count].chunks_exact(2).zip(phase[2 * j..].chunks_exact(2)) {
                let (u_re, u_im) = unit(c[0], c[1]);
                re = u_im.mul_sub_from(p[1], u_re.mul_add(p[0], re));
                im = u_im.mul_add(p[0], u_re.mul_add(p[1], im));
            }
            let p = &phase[2 * i..][..2];
            let turned = (im.mul_add(p[1], re.mul(p[0])).widen(), re.mul_sub_from(p[1], im.mul(p[0])).widen());
            for half in 0..2 {
                sum[half].re = sum[half].re.add(turned.0[half]);
                sum[half].im = sum[half].im.add(turned.1[half]);
            }
            at += 2 * count;
            left -= count;
            j += count;
            if j == images {
                i += 1;
                j = i + 1;
            }
        }
    }
    let mut found = [0.0; MOST_SINGLES];
    for (sum, found) in sum.iter().zip(found.chunks_exact_mut(S::Doubles::COUNT)) {
        sum.norm_squared().sqrt().div(Lanes::splat(pairs as f64)).store(found);
    }
    for (value, &pixel) in found.iter().zip(&batch.pixels[..batch.count]) {
        // One NaN, whichever the arithmetic made.
        out[pixel] = if value.is_nan() { f32::NAN } else { *value as f32 };
    }
}

/// Complex numbers by their lengths.
#[inline(always)]
fn unit<S: Singles>(re: S, im: S) -> (S, S) {
    let square = re.mul_add(re, im.mul(im));
    let scale = square.rsqrt();
    let (u_re, u_im) = (re.mul(scale), im.mul(scale));
    if square.is_between(LEAST_SQUARE, MOST_SQUARE) {
        return (u_re, u_im);
    }
    let mut lanes = [[0.0; MOST_SINGLES]; 4];
    u_re.store(&mut lanes[0]);
    u_im.store(&mut lanes[1]);
    re.store(&mut lanes[2]);
    im.store(&mut lanes[3]);
    repair(&mut lanes);
    (S::load(&lanes[0]), S::load(&lanes[1]))
}

/// Replaces unit vectors (the first two rows) of numbers (the last two) that are too small or too large for them.
#[cold]
fn repair([u_re, u_im, re, im]: &mut [[f32; MOST_SINGLES]; 4]) {
    for lane in 0..MOST_SINGLES {
        let square = re[lane].mul_add(re[lane], im[lane] * im[lane]);
        if LEAST_SQUARE < square && square < MOST_SQUARE {
            continue;
        }
        let (wide_re, wide_im) = (f64::from(re[lane]), f64::from(im[lane]));
        let length = (wide_re * wide_re + wide_im * wide_im).sqrt();
        (u_re[lane], u_im[lane]) = ((wide_re / length) as f32, (wide_im / length) as f32);
    }
}
