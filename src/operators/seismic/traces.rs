//! Traces of a block, eight side by side as doubles: one vector holds a sample of eight traces, and a trace's result does not
//! depend on which others lie beside it.

use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;

use super::super::OperatorError;
use super::super::filters::lines::Layout;
use super::super::filters::sample::{Sample, with_sample};
use crate::array::block::c_strides;
use crate::array::budget::BudgetError;
use crate::array::{Block, DType};
use crate::simd::{Vectored, widest};

pub const LANES: usize = 8;

/// One sample of eight traces.
pub type Lane = [f64; LANES];

/// Where results go: the traces' `samples` results in C order over the input's shape, save along the axis of the samples.
pub struct Target<'a> {
    pub out: &'a mut [u8],
    /// float32 or float64.
    pub dtype: DType,
    pub samples: usize,
}

/// Calls `each` with eight traces of `input` at a time, whose samples are `tile`, and stores what it leaves at the tile's
/// start. Where the last tile has fewer traces, its first one fills the lanes that are left.
pub fn each_tile(
    input: &Block,
    axis: usize,
    tile: &mut [Lane],
    mut target: Target<'_>,
    stop: &AtomicBool,
    mut each: impl FnMut(&mut [Lane]),
) -> Result<(), OperatorError> {
    let shape = input.shape();
    let mut goal = shape.to_vec();
    goal[axis] = target.samples;
    let to = c_strides(&goal, 1);
    let traces: usize = (0..shape.len()).filter(|a| *a != axis).map(|a| shape[a]).product();
    for first in (0..traces).step_by(LANES) {
        if stop.load(Ordering::Relaxed) {
            return Err(BudgetError::Stopped.into());
        }
        let count = LANES.min(traces - first);
        let numbers: [usize; LANES] = std::array::from_fn(|lane| if lane < count { first + lane } else { first });
        with_sample!(input.dtype(), S => {
            let (cells, layout) = Layout::of::<S>(input);
            let starts = numbers.map(|n| layout.offset + start(shape, &layout.strides, axis, n));
            widest(Gather { cells, starts, step: layout.strides[axis], tile: &mut *tile });
        });
        each(tile);
        let starts = numbers.map(|n| start(shape, &to, axis, n));
        let results = &tile[..target.samples];
        match target.dtype {
            DType::F64 => widest(Scatter::<f64> { results, starts, count, step: to[axis], out: cast(&mut target) }),
            _ => widest(Scatter::<f32> { results, starts, count, step: to[axis], out: cast(&mut target) }),
        }
    }
    Ok(())
}

fn cast<'a, T: Pod>(target: &'a mut Target<'_>) -> &'a mut [T] {
    bytemuck::cast_slice_mut(target.out)
}

/// Elements from the first trace's first sample to that of trace `number`, counted in C order.
fn start(shape: &[usize], strides: &[isize], axis: usize, number: usize) -> isize {
    let mut rest = number;
    let others = (0..shape.len()).rev().filter(|a| *a != axis);
    others.fold(0, |at, a| {
        let index = rest % shape[a];
        rest /= shape[a];
        at + index as isize * strides[a]
    })
}

struct Gather<'a, S> {
    cells: &'a [S],
    starts: [isize; LANES],
    step: isize,
    tile: &'a mut [Lane],
}

impl<S: Sample> Vectored for Gather<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { cells, starts, step, tile } = self;
        if step == 1 {
            let rows = starts.map(|at| &cells[at as usize..][..tile.len()]);
            for (i, samples) in tile.iter_mut().enumerate() {
                for lane in 0..LANES {
                    samples[lane] = rows[lane][i].to_f64();
                }
            }
        } else {
            for (i, samples) in tile.iter_mut().enumerate() {
                for lane in 0..LANES {
                    samples[lane] = cells[(starts[lane] + i as isize * step) as usize].to_f64();
                }
            }
        }
    }
}

/// A float as attributes are stored: rounded, with one NaN.
pub trait Stored: Pod {
    fn of(value: f64) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        if value.is_nan() { f32::NAN } else { value as f32 }
    }
}

impl Stored for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        if value.is_nan() { f64::NAN } else { value }
    }
}

struct Scatter<'a, T> {
    results: &'a [Lane],
    starts: [isize; LANES],
    /// Lanes that are traces.
    count: usize,
    step: isize,
    out: &'a mut [T],
}

impl<T: Stored> Vectored for Scatter<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { results, starts, count, step, out } = self;
        for (lane, start) in starts.iter().enumerate().take(count) {
            if step == 1 {
                let row = &mut out[*start as usize..][..results.len()];
                row.iter_mut().zip(results).for_each(|(cell, samples)| *cell = T::of(samples[lane]));
            } else {
                for (i, samples) in results.iter().enumerate() {
                    out[(start + i as isize * step) as usize] = T::of(samples[lane]);
                }
            }
        }
    }
}
