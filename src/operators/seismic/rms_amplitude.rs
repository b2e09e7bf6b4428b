//! `rms_amplitude`: the root of the mean square over a window along the trace, in the input's unit.
//!
//! Each mean is its window's alone: there is no running sum along the trace. A window with a NaN gives NaN.

use std::sync::Arc;

use super::super::filters::kernel::Kernel;
use super::super::filters::{buffer_bytes, buffers};
use super::super::pointwise::{guarded, only_input, refuse_missing};
use super::super::stack::{computed, take};
use super::super::{
    Binding, Computed, Info, Kind, MapOperator, MapTask, Operator, OperatorError, Padded, Param, StepInput, Workspace, axis_at,
};
use super::traces::{LANES, Lane, Target, each_tile};
use super::{ATTRIBUTE, AXIS, attribute_dtype, output, reach, read_axis, read_window, windowed};
use crate::array::{DType, Scalar};
use crate::config::table::Table;
use crate::simd::{Vectored, widest};

pub static INFO: Info = Info {
    name: "rms_amplitude",
    summary: "root of the mean square over a window along traces",
    halo: "half the window on both sides of the axis of the samples",
    cost: "a multiplication, a square root and fewer than 8 additions a sample, or twice the binary logarithm of the window",
    source: "numpy.sqrt(scipy.ndimage.uniform_filter1d(x * x, window)), to the rounding of its running sums",
    params: &[
        AXIS,
        Param { name: "window", kind: "int", default: "", doc: "samples of the window; an even number reaches further back" },
    ],
    build,
    ..ATTRIBUTE
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let (axis, window) = (read_axis(table), read_window(table, None));
    Some(Box::new(RmsAmplitude { axis: axis?, window: window? }))
}

struct RmsAmplitude {
    axis: i64,
    window: u64,
}

impl Operator for RmsAmplitude {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("rms_amplitude", inputs)?;
        let meta = &input.meta;
        let dtype = attribute_dtype("rms_amplitude", meta.dtype)?;
        let axis = axis_at("axis", self.axis, meta.rank())?;
        let mut depth = vec![(0, 0); meta.rank()];
        depth[axis] = reach(self.window);
        let map = RmsMap { axis, mean: Kernel::Mean(self.window as usize), dtype, guard: guarded(meta) };
        Ok(Binding {
            reference: 0,
            inputs: vec![windowed("rms_amplitude", input, &depth)?],
            outputs: vec![output("rms_amplitude", dtype, meta)],
            whole: Vec::new(),
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct RmsMap {
    axis: usize,
    mean: Kernel,
    dtype: DType,
    guard: Option<Scalar>,
}

impl RmsMap {
    /// Bytes of a tile of traces with their halo, and of the one that long means need beside.
    fn sizes(&self, samples: u64) -> [u64; 2] {
        let tile = samples.saturating_add(self.mean.size() as u64 - 1).saturating_mul(size_of::<Lane>() as u64);
        [tile, if self.mean.needs_spare() { tile } else { 0 }]
    }
}

impl MapOperator for RmsMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        refuse_missing(&input.block, &input.region, &self.guard)?;
        let region = &task.outputs[0];
        let samples = region.len(self.axis);
        let mut out = work.buffer(region.count() * self.dtype.size())?;
        let [mut tile, mut spare] = buffers(work, self.sizes(samples as u64))?;
        let spare = spare.as_mut_slice_of::<f64>();
        let target = Target { out: &mut out, dtype: self.dtype, samples };
        each_tile(&input.block, self.axis, tile.as_mut_slice_of(), target, work.stop, |tile| {
            let tile = tile.as_flattened_mut();
            widest(Squares(tile));
            self.mean.apply(tile, spare, LANES, samples * LANES);
            widest(Roots(&mut tile[..samples * LANES]));
        })?;
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        buffer_bytes(&self.sizes(core.get(self.axis).copied().unwrap_or(1)))
    }
}

struct Squares<'a>(&'a mut [f64]);

impl Vectored for Squares<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|v| *v *= *v);
    }
}

struct Roots<'a>(&'a mut [f64]);

impl Vectored for Roots<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|v| *v = v.sqrt());
    }
}
