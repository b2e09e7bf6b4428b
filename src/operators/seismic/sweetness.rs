//! `sweetness`: the envelope over the root of the frequency. High where strong events are slow, as over gas sands in shale.
//!
//! `envelope / sqrt(max(min_frequency, mean of the instantaneous frequency over a window))`. Beyond a trace's ends the window
//! sees the frequency of its first or last sample. Each mean is summed for itself, in the order of the samples.

use std::sync::Arc;

use super::super::{Info, Operator, Param};
use super::analytic::{ANALYTIC, Analytic, Attribute};
use super::envelope::envelope;
use super::instantaneous_frequency::frequency;
use super::traces::{LANES, Lane};
use super::{AXIS, reach, read_axis, read_positive, read_window};
use crate::config::table::Table;
use crate::simd::{Vectored, widest};

pub static INFO: Info = Info {
    name: "sweetness",
    summary: "envelope of traces over the root of their smoothed instantaneous frequency",
    cost: "as instantaneous_frequency, and an addition a sample of the window",
    source: "B. S. Hart, Channel detection in 3-D seismic data using sweetness, AAPG Bulletin 92 (2008); frequency smoothed as by scipy.ndimage.uniform_filter1d, mode nearest",
    params: &[
        AXIS,
        Param {
            name: "dt",
            kind: "number",
            default: "0.004",
            doc: "seconds from one sample to the next; another value scales the result by its root, as long as min_frequency is not reached",
        },
        Param {
            name: "window",
            kind: "int",
            default: "11",
            doc: "samples over which the frequency is averaged; an even number reaches further back",
        },
        Param {
            name: "min_frequency",
            kind: "number",
            default: "1.0",
            doc: "in Hz: lower means, which noise makes, count as this",
        },
    ],
    build,
    ..ANALYTIC
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let (axis, dt) = (read_axis(table), read_positive(table, "dt", 0.004));
    let (window, min_frequency) = (read_window(table, Some(11)), read_positive(table, "min_frequency", 1.0));
    let (before, after) = reach(window?);
    let attribute =
        Arc::new(Sweetness { dt: dt?, before: before as usize, after: after as usize, min_frequency: min_frequency? });
    Some(Box::new(Analytic { op: "sweetness", axis: axis?, least: 2, attribute }))
}

struct Sweetness {
    dt: f64,
    /// Samples of the window beside the one it belongs to.
    before: usize,
    after: usize,
    min_frequency: f64,
}

impl Attribute for Sweetness {
    fn compute(&self, trace: &mut [Lane], quadrature: &mut [Lane], spare: &mut [Lane]) {
        spare.copy_from_slice(trace);
        envelope(spare, quadrature);
        frequency(trace, quadrature, self.dt);
        quadrature.copy_from_slice(trace);
        widest(Quotients { sweetness: self, out: trace, frequency: quadrature, envelope: spare });
    }
}

struct Quotients<'a> {
    sweetness: &'a Sweetness,
    out: &'a mut [Lane],
    frequency: &'a [Lane],
    envelope: &'a [Lane],
}

impl Vectored for Quotients<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { sweetness: &Sweetness { before, after, min_frequency, .. }, out, frequency, envelope } = self;
        let (last, count) = (frequency.len() - 1, (before + after + 1) as f64);
        for (i, (out, envelope)) in out.iter_mut().zip(envelope).enumerate() {
            let mut sum = [0.0; LANES];
            for k in 0..=before + after {
                let sample = &frequency[(i + k).saturating_sub(before).min(last)];
                for lane in 0..LANES {
                    sum[lane] += sample[lane];
                }
            }
            for lane in 0..LANES {
                let mean = sum[lane] / count;
                let mean = if mean < min_frequency { min_frequency } else { mean };
                out[lane] = envelope[lane] / mean.sqrt();
            }
        }
    }
}
