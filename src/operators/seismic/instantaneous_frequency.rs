//! `instantaneous_frequency`: how fast the phase of the analytic signal turns, in hertz.
//!
//! The steps of the phase from sample to sample are unwrapped (those beyond half a turn are the shorter way round), and the
//! frequency is their gradient: the mean of the steps before and after a sample, the only one at a trace's ends, over `2 pi dt`.
//! Unwrapping the phase itself would add up steps along the trace only to subtract them again. Negative where the
//! phase turns back, as it does between two events.
//!
//! Where a trace is exactly zero at two samples in a row (a mute) and its transform changes sign between them, the step is half a
//! turn, and both ways are as short. Its sign is that of the step; numpy's is the accident of its transform's rounding.

use std::f64::consts::PI;
use std::sync::Arc;

use super::super::{Info, Operator, Param};
use super::analytic::{ANALYTIC, Analytic, Attribute};
use super::instantaneous_phase::phase;
use super::traces::{LANES, Lane};
use super::{AXIS, read_axis, read_positive};
use crate::config::table::Table;
use crate::simd::{Vectored, widest};

pub static INFO: Info = Info {
    name: "instantaneous_frequency",
    summary: "frequency of the analytic signal of traces, in Hz: the gradient of its unwrapped phase",
    cost: "two Fourier transforms of a trace, of half its length where that is even; an arc tangent a sample",
    source: "numpy.gradient(numpy.unwrap(numpy.angle(scipy.signal.hilbert(x)))) / (2 pi dt) of whole traces",
    params: &[AXIS, Param { name: "dt", kind: "number", default: "", doc: "seconds from one sample to the next" }],
    build,
    ..ANALYTIC
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    if !table.has("dt") {
        table.problem("dt", "missing; give the seconds from one sample to the next, such as dt = 0.004");
    }
    let (axis, dt) = (read_axis(table), read_positive(table, "dt", 0.0));
    let attribute = Arc::new(Frequency { dt: dt? });
    Some(Box::new(Analytic { op: "instantaneous_frequency", axis: axis?, least: 2, attribute }))
}

struct Frequency {
    dt: f64,
}

impl Attribute for Frequency {
    fn compute(&self, trace: &mut [Lane], quadrature: &mut [Lane], _spare: &mut [Lane]) {
        frequency(trace, quadrature, self.dt);
    }
}

/// The frequency replaces the trace, of two samples or more; the quadrature is used up.
pub fn frequency(trace: &mut [Lane], quadrature: &mut [Lane], dt: f64) {
    phase(trace, quadrature);
    widest(Gradient { phase: trace, steps: quadrature, per_step: 1.0 / (2.0 * PI * dt) });
}

struct Gradient<'a> {
    /// Becomes the frequency.
    phase: &'a mut [Lane],
    steps: &'a mut [Lane],
    per_step: f64,
}

impl Vectored for Gradient<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { phase, steps, per_step } = self;
        for (step, pair) in steps.iter_mut().zip(phase.windows(2)) {
            for lane in 0..LANES {
                let turn = pair[1][lane] - pair[0][lane];
                let back = if turn > PI { 2.0 * PI } else { 0.0 };
                let on = if turn < -PI { 2.0 * PI } else { 0.0 };
                step[lane] = (turn - back + on) * per_step;
            }
        }
        let last = phase.len() - 1;
        (phase[0], phase[last]) = (steps[0], steps[last - 1]);
        for (frequency, pair) in phase[1..last].iter_mut().zip(steps.windows(2)) {
            for lane in 0..LANES {
                frequency[lane] = (pair[0][lane] + pair[1][lane]) * 0.5;
            }
        }
    }
}
