//! The lines of a block as products read them: standardised and rounded to the products' precision, tile by tile.
//!
//! What a line is shifted and scaled by comes from the line alone, which a block holds whole; so it is found anew in each
//! pass, in double precision, and no pass of its own is needed.

use super::product::{Float, LINES, PLACES, Tiles};
use crate::array::Block;
use crate::operators::matrices::{Kernel, Lanes, run};
use crate::operators::reduce::element::Real;
use crate::operators::reduce::sum_lanes;
use crate::simd::fetch;

/// What values of a line are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// sqrt(p (1 - p)), where p is half the mean: the frequency of an allele.
    Patterson,
    /// sqrt(2 p (1 - p)): the standard deviation of genotypes in Hardy-Weinberg equilibrium.
    Hwe,
}

/// What a missing value counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// The mean of the line's other values.
    Mean,
    Zero,
}

/// What is done to a line before it is multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Standard<T> {
    /// The mean is subtracted.
    pub centers: bool,
    pub scale: Option<Scale>,
    pub missing: Option<(T, Filling)>,
}

impl<T> Standard<T> {
    /// Whether a line's values depend on the rest of the line.
    pub fn is_by_line(&self) -> bool {
        self.centers || self.scale.is_some() || matches!(self.missing, Some((_, Filling::Mean)))
    }
}

/// A line: a value becomes `(value - shift) * factor`, rounded once; a missing one `filling`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    shift: f64,
    factor: f64,
    filling: f64,
}

const UNCHANGED: Change = Change { shift: 0.0, factor: 1.0, filling: 0.0 };

/// The lines of a block (its first axis), a panel of them at a time.
pub struct Lines<'a, T> {
    block: &'a Block,
    standard: Standard<T>,
    first: usize,
    count: usize,
    changes: [Change; LINES],
}

impl<'a, T: Real> Lines<'a, T> {
    /// The lines from `first` on, as many as a panel has.
    pub fn panel(block: &'a Block, standard: Standard<T>, first: usize) -> Self {
        let count = block.shape()[0].saturating_sub(first).min(LINES);
        let mut lines = Self { block, standard, first, count, changes: [UNCHANGED; LINES] };
        if standard.is_by_line() {
            run(Measure { lines: &mut lines });
        }
        lines
    }

    /// Values of a line from a place on, at most a tile's. Where they don't follow each other they are gathered.
    #[inline(always)]
    fn part<'p>(&'p self, line: usize, from: usize, gathered: &'p mut [T; PLACES]) -> &'p [T] {
        let ((data, offset), strides, size) = (self.block.raw(), self.block.strides(), size_of::<T>());
        let count = (self.block.shape()[1] - from).min(PLACES);
        let begin = offset + (self.first + line) as isize * strides[0] + from as isize * strides[1];
        if strides[1] == size as isize {
            // Two tiles on: a tile is a few bytes out of each of many lines, which processors don't see coming.
            fetch(data.as_ptr().wrapping_offset(begin + 2 * (PLACES * size) as isize));
            return bytemuck::cast_slice(&data[begin as usize..begin as usize + count * size]);
        }
        for (place, value) in gathered[..count].iter_mut().enumerate() {
            let at = (begin + place as isize * strides[1]) as usize;
            *value = bytemuck::pod_read_unaligned(&data[at..at + size]);
        }
        &gathered[..count]
    }

    /// What is done to a line, from its mean.
    fn change(&self, sum: f64, present: f64) -> Change {
        let places = self.block.shape()[1] as f64;
        let count = if matches!(self.standard.missing, Some((_, Filling::Zero))) { places } else { present };
        let mean = if count > 0.0 { sum / count } else { 0.0 };
        let frequency = mean / 2.0;
        let variance = frequency * (1.0 - frequency);
        let factor = match self.standard.scale {
            None => 1.0,
            // A line of one value says nothing.
            Some(_) if variance <= 0.0 => 0.0,
            Some(Scale::Patterson) => 1.0 / variance.sqrt(),
            Some(Scale::Hwe) => 1.0 / (2.0 * variance).sqrt(),
        };
        let shift = if self.standard.centers { mean } else { 0.0 };
        let filled = match self.standard.missing {
            Some((_, Filling::Zero)) => 0.0,
            _ => mean,
        };
        Change { shift, factor, filling: (filled - shift) * factor }
    }
}

/// Finds the changes of a panel's lines.
struct Measure<'a, 'b, T> {
    lines: &'a mut Lines<'b, T>,
}

impl<T: Real> Kernel for Measure<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let lines = self.lines;
        let mut gathered = [T::zeroed(); PLACES];
        for line in 0..lines.count {
            let (mut sum, mut present) = (0.0, 0.0);
            for from in (0..lines.block.shape()[1]).step_by(PLACES) {
                let values = lines.part(line, from, &mut gathered);
                let [s, n] = match lines.standard.missing {
                    None => [sum_lanes(values.iter().map(|v| [v.wide()]))[0], values.len() as f64],
                    Some((missing, _)) => sum_lanes(values.iter().map(|v| match v.is(missing) {
                        true => [0.0, 0.0],
                        false => [v.wide(), 1.0],
                    })),
                };
                sum += s;
                present += n;
            }
            lines.changes[line] = lines.change(sum, present);
        }
    }
}

impl<F: Float, T: Real> Tiles<F> for Lines<'_, T> {
    fn lines(&self) -> usize {
        self.count
    }

    fn places(&self) -> usize {
        self.block.shape()[1]
    }

    #[inline(always)]
    fn fill(&self, from: usize, tile: &mut [[F; PLACES]]) {
        let mut gathered = [T::zeroed(); PLACES];
        let is_plain = !self.standard.is_by_line();
        for (line, to) in tile.iter_mut().enumerate() {
            let values = self.part(line, from, &mut gathered);
            let Change { shift, factor, filling } = self.changes[line];
            to[values.len()..].fill(F::zero());
            let pairs = to.iter_mut().zip(values);
            match self.standard.missing {
                None if is_plain => pairs.for_each(|(to, value)| *to = F::of(value.wide())),
                None => pairs.for_each(|(to, value)| *to = F::of((value.wide() - shift) * factor)),
                Some((missing, _)) => pairs.for_each(|(to, value)| {
                    let changed = (value.wide() - shift) * factor;
                    *to = F::of(if value.is(missing) { filling } else { changed });
                }),
            }
        }
    }
}
