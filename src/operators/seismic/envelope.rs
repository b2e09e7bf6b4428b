//! `envelope`: the instantaneous amplitude of a trace, `sqrt(x^2 + h^2)` with its Hilbert transform `h`, in the input's unit.
//!
//! Doubles beyond 1e154 overflow to infinity in their square.

use std::sync::Arc;

use super::super::{Info, Operator};
use super::analytic::{ANALYTIC, Analytic, Attribute};
use super::traces::{LANES, Lane};
use super::{AXIS, read_axis};
use crate::config::table::Table;
use crate::simd::{Vectored, widest};

pub static INFO: Info = Info {
    name: "envelope",
    summary: "instantaneous amplitude of traces: the length of the analytic signal",
    cost: "two Fourier transforms of a trace, of half its length where that is even",
    source: "numpy.abs(scipy.signal.hilbert(x)) of whole traces",
    params: &[AXIS],
    build,
    ..ANALYTIC
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    Some(Box::new(Analytic { op: "envelope", axis: read_axis(table)?, least: 1, attribute: Arc::new(Envelope) }))
}

struct Envelope;

impl Attribute for Envelope {
    fn compute(&self, trace: &mut [Lane], quadrature: &mut [Lane], _spare: &mut [Lane]) {
        envelope(trace, quadrature);
    }
}

/// The envelope replaces the trace.
pub fn envelope(trace: &mut [Lane], quadrature: &[Lane]) {
    widest(Lengths(trace, quadrature));
}

struct Lengths<'a>(&'a mut [Lane], &'a [Lane]);

impl Vectored for Lengths<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (x, h) in self.0.iter_mut().zip(self.1) {
            for lane in 0..LANES {
                x[lane] = (x[lane] * x[lane] + h[lane] * h[lane]).sqrt();
            }
        }
    }
}
