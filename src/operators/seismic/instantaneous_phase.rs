//! `instantaneous_phase`: the argument of the analytic signal, `atan2(h, x)`, in radians from -pi to pi; 0 where the signal
//! is zero. The arc tangent is `libm`'s (the system's differs by CPU).

use std::sync::Arc;

use super::super::{Info, Operator};
use super::analytic::{ANALYTIC, Analytic, Attribute};
use super::traces::{LANES, Lane};
use super::{AXIS, read_axis};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "instantaneous_phase",
    summary: "phase of the analytic signal of traces, in radians from -pi to pi",
    cost: "two Fourier transforms of a trace, of half its length where that is even; an arc tangent a sample",
    source: "numpy.angle(scipy.signal.hilbert(x)) of whole traces",
    params: &[AXIS],
    build,
    ..ANALYTIC
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    Some(Box::new(Analytic { op: "instantaneous_phase", axis: read_axis(table)?, least: 1, attribute: Arc::new(Phase) }))
}

struct Phase;

impl Attribute for Phase {
    fn compute(&self, trace: &mut [Lane], quadrature: &mut [Lane], _spare: &mut [Lane]) {
        phase(trace, quadrature);
    }
}

/// The phase replaces the trace.
pub fn phase(trace: &mut [Lane], quadrature: &[Lane]) {
    for (x, h) in trace.iter_mut().zip(quadrature) {
        for lane in 0..LANES {
            // Zeros lose their sign, which would turn silence by half a turn.
            x[lane] = libm::atan2(h[lane] + 0.0, x[lane] + 0.0);
        }
    }
}
