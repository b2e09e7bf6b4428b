//! What the attributes of the analytic signal share: whole traces, the trace itself as real part and its Hilbert transform as
//! imaginary part (M. T. Taner, F. Koehler and R. E. Sheriff, Complex seismic trace analysis, Geophysics 44, 1979).
//!
//! A block holds the axis of the samples whole. A trace with a NaN or an infinite sample has no transform: all its samples
//! become NaN, as scipy's do; other traces are not touched by it.

use std::sync::Arc;

use super::super::pointwise::{guarded, only_input, refuse_missing};
use super::super::stack::{computed, plain_input, take};
use super::super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, Padded, StepInput, Workspace,
    axis_at,
};
use super::fourier::Wave;
use super::hilbert::Hilbert;
use super::traces::{Lane, Target, each_tile};
use crate::array::buffer::capacity_for;
use crate::array::{DType, Scalar};

/// What their entries have in common.
pub const ANALYTIC: Info = Info {
    halo: "none; the axis of the samples is whole in every block",
    boundary: "\"none\" (default), and no other: the transform takes a trace as periodic",
    ..super::ATTRIBUTE
};

/// A transform beyond this would take tables of tens of megabytes.
const MOST_SAMPLES: u64 = 1 << 18;

/// What an attribute makes of eight traces.
pub trait Attribute: Send + Sync {
    /// Real and imaginary part of the analytic signal; the attribute replaces the first. `spare` is as long.
    fn compute(&self, trace: &mut [Lane], quadrature: &mut [Lane], spare: &mut [Lane]);
}

/// An attribute before its input is known.
pub struct Analytic<A> {
    pub op: &'static str,
    pub axis: i64,
    /// Samples that a trace must have.
    pub least: u64,
    pub attribute: Arc<A>,
}

impl<A: Attribute + 'static> Operator for Analytic<A> {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input(self.op, inputs)?;
        plain_input(self.op, input)?;
        let meta = &input.meta;
        let dtype = super::attribute_dtype(self.op, meta.dtype)?;
        let axis = axis_at("axis", self.axis, meta.rank())?;
        let samples = meta.shape[axis];
        if !(self.least..=MOST_SAMPLES).contains(&samples) {
            return Err(format!(
                "{} takes traces of {} to {MOST_SAMPLES} samples, axis {axis} of {} has {samples}; is it the axis of the samples?",
                self.op, self.least, meta.name
            ));
        }
        let map = AnalyticMap {
            axis,
            samples: samples as usize,
            hilbert: Hilbert::new(samples as usize),
            attribute: self.attribute.clone(),
            dtype,
            guard: guarded(meta),
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![super::output(self.op, dtype, meta)],
            whole: vec![axis],
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct AnalyticMap<A> {
    axis: usize,
    samples: usize,
    hilbert: Hilbert,
    attribute: Arc<A>,
    dtype: DType,
    guard: Option<Scalar>,
}

impl<A> AnalyticMap<A> {
    /// Bytes of a tile, and of what the transform works in, which is the attribute's spare tile afterwards.
    fn sizes(&self) -> [usize; 2] {
        let tile = self.samples * size_of::<Lane>();
        [tile, tile.max(self.hilbert.work_len() * size_of::<Wave>())]
    }
}

impl<A: Attribute> MapOperator for AnalyticMap<A> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let region = &task.outputs[0];
        if region.len(self.axis) != self.samples {
            return Err(OperatorError::data(format!("{region} is asked for, which does not hold traces whole")));
        }
        let block = input.block.cut(&input.region, region);
        refuse_missing(&block, region, &self.guard)?;
        let mut out = work.buffer(region.count() * self.dtype.size())?;
        let [tile, transform] = self.sizes();
        let (mut trace, mut quadrature, mut waves) = (work.buffer(tile)?, work.buffer(tile)?, work.buffer(transform)?);
        let quadrature = quadrature.as_mut_slice_of::<Lane>();
        let target = Target { out: &mut out, dtype: self.dtype, samples: self.samples };
        each_tile(&block, self.axis, trace.as_mut_slice_of(), target, work.stop, |trace| {
            self.hilbert.run(trace, quadrature, waves.as_mut_slice_of());
            let spare = &mut waves.as_mut_slice_of::<Lane>()[..trace.len()];
            self.attribute.compute(trace, quadrature, spare);
        })?;
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        let [tile, transform] = self.sizes();
        (2 * capacity_for(tile) + capacity_for(transform)) as u64
    }
}
