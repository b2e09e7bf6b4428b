//! Sums of integers, exact: 128 bits in two planes, which no array overflows.
//!
//! A sum is its low 64 bits as a signed number, and how often those went over or under. The low parts of all cells lie side
//! by side, and so do the others: these are hardly ever touched, since whole vectors of additions are seen to stay inside.

use super::super::reduce::element::Whole;
use super::super::reduce::walk::Take;
use super::super::reduce::{Reducing, Reduction, write_float};
use super::super::{Binding, OperatorError};
use crate::array::dtype::f16_from_f64;
use crate::array::{DType, Scalar};
use crate::simd::{Vectored, widest};

/// Cells whose additions are looked at together.
const STRIPE: usize = 32;

/// `N`: 2 planes, or 3 with the count of those taken.
pub struct Exact<T, const N: usize> {
    to: DType,
    ignore: Option<T>,
    is_mean: bool,
}

/// The planes of all states: low parts, overflows, and counts where there are any.
struct Planes<'a> {
    low: &'a mut [i64],
    high: &'a mut [i64],
    count: &'a mut [i64],
}

impl<'a> Planes<'a> {
    fn of(states: &'a mut [i64], planes: usize) -> Self {
        let cells = states.len() / planes;
        let (low, rest) = states.split_at_mut(cells);
        let (high, count) = rest.split_at_mut(cells);
        Self { low, high, count }
    }

    fn add(&mut self, cell: usize, value: i128) {
        let sum = joined(self.low[cell], self.high[cell]) + value;
        (self.low[cell], self.high[cell]) = parted(sum);
    }
}

fn joined(low: i64, high: i64) -> i128 {
    (i128::from(high) << 64) + i128::from(low)
}

fn parted(sum: i128) -> (i64, i64) {
    let low = sum as i64;
    (low, ((sum - i128::from(low)) >> 64) as i64)
}

impl<T: Whole, const N: usize> Exact<T, N> {
    pub fn bind(of: Reducing<'_>, to: DType) -> Binding {
        let ignore = of.ignored();
        of.binding(to, Vec::new(), Self { to, ignore, is_mean: false })
    }

    pub fn bind_mean(of: Reducing<'_>, to: DType) -> Binding {
        let ignore = of.ignored();
        of.binding(to, Vec::new(), Self { to, ignore, is_mean: true })
    }

    fn rounded(&self, sum: i128) -> Result<Scalar, OperatorError> {
        if self.to.is_integer() {
            return Scalar::from_integer(self.to, sum)
                .map_err(|e| OperatorError::data(format!("the sum {e}; give a wider dtype, such as dtype = \"float64\"")));
        }
        let mut bytes = [0; 16];
        match self.to {
            // Rounded once: by way of a double a single would round twice.
            DType::F32 | DType::C64 => bytes[..4].copy_from_slice(&(sum as f32).to_ne_bytes()),
            // Exact in a double as far as half precision reaches.
            DType::F16 => bytes[..2].copy_from_slice(&f16_from_f64(sum as f64).to_bits().to_ne_bytes()),
            _ => bytes[..8].copy_from_slice(&(sum as f64).to_ne_bytes()),
        }
        Scalar::from_bytes(self.to, &bytes[..self.to.size()]).ok_or_else(|| OperatorError::data("a dtype changed its size"))
    }

    fn is_left_out(&self, value: T) -> bool {
        self.ignore.is_some_and(|ignored| value.is(ignored))
    }
}

impl<T: Whole, const N: usize> Take for Exact<T, N> {
    type Element = T;
    type State = i64;

    fn width(&self) -> usize {
        N
    }

    fn run(&self, values: &[T], _at: u64, cell: &mut [i64]) {
        let (sum, taken) = match self.ignore {
            None => (T::total(values.iter().copied()), values.len()),
            Some(ignored) => {
                let left_out = values.iter().filter(|v| v.is(ignored)).count();
                (T::total(values.iter().copied()) - left_out as i128 * ignored.exact(), values.len() - left_out)
            }
        };
        let mut planes = Planes::of(cell, N);
        planes.add(0, sum);
        planes.count.iter_mut().for_each(|count| *count += taken as i64);
    }

    fn run_into(&self, values: &[T], at: u64, states: &mut [i64], cell: usize) {
        let cells = states.len() / N;
        let mut one: [i64; N] = std::array::from_fn(|plane| states[plane * cells + cell]);
        self.run(values, at, &mut one);
        one.iter().enumerate().for_each(|(plane, part)| states[plane * cells + cell] = *part);
    }

    fn each_into(&self, values: &[T], _at: u64, states: &mut [i64], first: usize) {
        let mut planes = Planes::of(states, N);
        if N > 2 {
            let counts = planes.count[first..].iter_mut().zip(values);
            counts.for_each(|(count, value)| *count += i64::from(!self.is_left_out(*value)));
        }
        let mut at = 0;
        while at < values.len() {
            let low = &mut planes.low[first + at..][..values.len() - at];
            at += widest(Add { values: &values[at..], low, ignore: self.ignore });
            // Some of these cells do not stay inside 64 bits, or they are the last few.
            for value in values[at..].iter().take(STRIPE) {
                if !self.is_left_out(*value) {
                    planes.add(first + at, value.exact());
                }
                at += 1;
            }
        }
    }
}

/// Adds to low parts, stripe by stripe, up to one in which some sum would go over; says where.
struct Add<'a, T> {
    values: &'a [T],
    low: &'a mut [i64],
    ignore: Option<T>,
}

impl<T: Whole> Vectored for Add<'_, T> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { values, low, ignore } = self;
        match ignore {
            None => stripes(values, low, |v: T| v.low()),
            Some(ignored) => stripes(values, low, |v: T| if v.is(ignored) { 0 } else { v.low() }),
        }
    }
}

#[inline(always)]
fn stripes<T: Whole>(values: &[T], low: &mut [i64], part: impl Fn(T) -> i64) -> usize {
    let mut done = 0;
    for (values, low) in values.chunks_exact(STRIPE).zip(low.chunks_exact_mut(STRIPE)) {
        let (mut sums, mut over) = ([0i64; STRIPE], 0i64);
        for l in 0..STRIPE {
            let value = part(values[l]);
            sums[l] = low[l].wrapping_add(value);
            // The sign is wrong where both had the other one; large unsigned numbers look negative themselves.
            over |= (low[l] ^ sums[l]) & (value ^ sums[l]);
            over |= if T::IS_WIDE_UNSIGNED { value } else { 0 };
        }
        if over < 0 {
            break;
        }
        low.copy_from_slice(&sums);
        done += STRIPE;
    }
    done
}

impl<T: Whole + 'static, const N: usize> Reduction for Exact<T, N> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [i64], other: &[i64]) {
        let cells = other.len() / N;
        let mut planes = Planes::of(into, N);
        for cell in 0..cells {
            planes.add(cell, joined(other[cell], other[cells + cell]));
        }
        planes.count.iter_mut().zip(&other[2 * cells..]).for_each(|(a, b)| *a += b);
    }

    fn finish(&self, states: &[i64], count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        let (low, rest) = states.split_at(states.len() / N);
        let (high, counts) = rest.split_at(low.len());
        // The usual case in one go.
        let is_low = match self.to {
            _ if self.is_mean => false,
            DType::I64 => high.iter().all(|high| *high == 0),
            DType::U64 => high.iter().zip(low).all(|(high, low)| *high == 0 && *low >= 0),
            _ => false,
        };
        if is_low {
            out.copy_from_slice(bytemuck::cast_slice(low));
            return Ok(());
        }
        for (cell, out) in out.chunks_exact_mut(self.to.size()).enumerate() {
            let sum = joined(low[cell], high[cell]);
            if self.is_mean {
                let taken = if N > 2 { counts[cell] as f64 } else { count as f64 };
                write_float(self.to, sum as f64 / taken, 0.0, out);
            } else {
                out.copy_from_slice(self.rounded(sum)?.bytes());
            }
        }
        Ok(())
    }
}
