//! How well linked phases explain the phases of all pairs of images.
//!
//! For coherence C and phases p (unit modulus), `t = |sum over i < j of C_ij / |C_ij| * conj(p_i) * p_j| / pairs`, between 0
//! and 1. With `weighted = true` each pair counts by `w = max(0, (|C|^2 - 1/L) / (1 - 1/L))`, the squared coherence less what
//! L looks of noise would show, and the sum is divided by that of the weights; L is the third input, such as
//! `select_shp.count`. NaN in a pixel's matrix or phases gives NaN, and so does a coherence of zero, which has no phase
//! (weighted: no weight at all). Sums in the order of the pairs, in double precision but for parts of the plain mean over
//! complex64 (`single`), which costs t no accuracy that float32 has.

mod double;
mod single;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::double::Double;
use self::single::Single;
use super::coherence_matrix::{Layout, Matrices, MatrixShape, Pixels};
use super::matrices;
use super::phase_linking::LAYOUT;
use super::stack::{self, Cell, computed, plain_input, real_of};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded,
    Param, StepInput, Workspace,
};
use crate::array::buffer::capacity_for;
use crate::array::{DType, Region};
use crate::config::table::Table;
use crate::with_complex;

pub static INFO: Info = Info {
    name: "temporal_coherence",
    summary: "how well the linked phases explain the coherence of all pairs, from 0 to 1",
    kind: "map",
    inputs: "coherence (.., pair) or (.., image, image); phases of length one, with an axis of images; weighted: the looks (..)",
    outputs: "float32 (float64 of complex128), the axes before those of the matrix",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "N^2 / 2 complex products a pixel for N images",
    source: "A. Ferretti et al., A new algorithm for processing interferometric data-stacks: SqueeSAR, IEEE Trans. Geosci. Remote Sens. 49 (2011): its gamma",
    params: &[
        Param {
            name: "weighted",
            kind: "bool",
            default: "false",
            doc: "weight pairs by their coherence beyond what so many looks of noise show; takes the number of looks as third input",
        },
        LAYOUT,
        Param { name: "image_axis", kind: "int", default: "-1", doc: "the phases' axis of images" },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let is_weighted = table.bool("weighted").unwrap_or(false);
    let layout = Layout::read(table)?;
    let image_axis = stack::read_image_axis(table)?;
    Some(Box::new(TemporalCoherence { is_weighted, layout, image_axis }))
}

struct TemporalCoherence {
    is_weighted: bool,
    layout: Option<Layout>,
    image_axis: i64,
}

impl Operator for TemporalCoherence {
    fn reads(&self, input: usize, op: &str, output: Option<&str>) -> Option<&'static str> {
        match (input, op, output) {
            (1, "emi" | "evd", None) => Some("phase"),
            (2, "select_shp", None) => Some("count"),
            _ => None,
        }
    }

    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let (coherence, phase, looks) = match (self.is_weighted, inputs) {
            (false, [coherence, phase]) => (coherence, phase, None),
            (true, [coherence, phase, looks]) => (coherence, phase, Some(looks)),
            (false, _) => {
                return Err(format!(
                    "temporal_coherence takes two inputs, such as inputs = [\"coherence\", \"emi.phase\"]; the step gives it {}",
                    inputs.len()
                ));
            }
            (true, _) => {
                return Err(format!(
                    "weighted temporal_coherence takes three inputs, such as inputs = [\"coherence\", \"emi.phase\", \
                     \"select_shp.count\"]; the step gives it {}",
                    inputs.len()
                ));
            }
        };
        inputs.iter().try_for_each(|input| plain_input("temporal_coherence", input))?;
        let meta = &coherence.meta;
        let shape = MatrixShape::of("temporal_coherence", meta, self.layout)?;
        let image = stack::image_axis(self.image_axis, phase.meta.rank())?;
        let mut expected = meta.shape[..shape.leading].to_vec();
        if phase.meta.rank() == shape.leading + 1 {
            expected.insert(image, shape.images as u64);
        }
        if phase.meta.shape != expected || phase.meta.dtype != meta.dtype {
            return Err(format!(
                "the phases of {} ({} {:?}) do not fit the coherence of {}: {} {expected:?} expected; image_axis says where the \
                 images are",
                phase.meta.name, phase.meta.dtype, phase.meta.shape, meta.name, meta.dtype
            ));
        }
        let mut phase_binding = InputBinding::plain(phase.meta.rank());
        phase_binding.axes = (0..shape.leading).map(Some).collect();
        phase_binding.axes.insert(image, None);
        let mut bindings = vec![InputBinding::plain(meta.rank()), phase_binding];
        if let Some(looks) = looks {
            if looks.meta.shape != meta.shape[..shape.leading] || looks.meta.dtype.is_complex() {
                return Err(format!(
                    "the looks of {} ({} {:?}) are not one real number for each pixel of {}",
                    looks.meta.name, looks.meta.dtype, looks.meta.shape, meta.name
                ));
            }
            bindings.push(InputBinding::plain(shape.leading));
        }
        let mut output = OutputBinding::like("temporal_coherence", real_of(meta.dtype), meta);
        output.axes = (0..shape.leading).map(OutAxis::Carried).collect();
        output.attributes.shift_remove("layout");
        let whole = shape.matrix_axes(meta.rank());
        let map = TemporalMap { shape, image, is_weighted: self.is_weighted, dtype: meta.dtype };
        Ok(Binding {
            reference: 0,
            inputs: bindings,
            outputs: vec![output],
            whole,
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct TemporalMap {
    shape: MatrixShape,
    /// The phases' axis of images.
    image: usize,
    is_weighted: bool,
    dtype: DType,
}

impl TemporalMap {
    /// Whether single precision does: see `single`.
    fn is_single(&self) -> bool {
        self.dtype == DType::C64 && !self.is_weighted
    }

    /// Bytes of one batch.
    fn batch_bytes(&self) -> usize {
        if self.is_single() { single::phase_bytes(self.shape.images) } else { double::batch_bytes(self) }
    }

    fn fill<T: Cell>(
        &self,
        inputs: &[Padded],
        core: &Region,
        out: &mut [u8],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let [coherence, phase, looks @ ..] = inputs else { return Err(OperatorError::data("two or three inputs expected")) };
        let leading = self.shape.leading;
        let mut memory = work.buffer(self.batch_bytes())?;
        if self.is_single() {
            let out = bytemuck::cast_slice_mut(out);
            return matrices::run(Single::new(self, [coherence, phase], core, out, &mut memory, work.stop));
        }
        matrices::run(Double::<T> {
            operator: self,
            pixels: Matrices::new(coherence, &self.shape, core),
            phases: Pixels::new(phase, (0..=leading).filter(|a| *a != self.image), core),
            looks: looks.first().map(|looks| Pixels::new(looks, 0..leading, core)),
            out: bytemuck::cast_slice_mut(out),
            memory: &mut memory,
            stop: work.stop,
        })
    }
}

impl MapOperator for TemporalMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let region = &task.outputs[0];
        let dtype = real_of(self.dtype);
        let mut out = work.buffer(region.count() * dtype.size())?;
        with_complex!(self.dtype, T => self.fill::<T>(&inputs, task.core, &mut out, work)?);
        Ok(vec![computed(Some(out), dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        capacity_for(self.batch_bytes()) as u64
    }
}
