//! What is made of the last state: the singular values and vectors along a line, which it holds, and by one more look at the
//! matrix the vectors across the lines.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::Sizes;
use super::lines::{Lines, Standard};
use super::pass::{lines, state};
use super::product::{Float, Forward, LINES, Space};
use crate::array::budget::BudgetError;
use crate::array::{Block, DType, Region};
use crate::operators::matrices::run;
use crate::operators::reduce::element::Real;
use crate::operators::reduce::write_float;
use crate::operators::{
    ArrayMeta, Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, OutAxis, OutputBinding, Padded,
    Workspace,
};

/// The singular vectors of each side, by the axis of the matrix that they run along.
const SIDES: [&str; 2] = ["u", "v"];

/// The axis of singular values.
fn components(sizes: Sizes) -> OutAxis {
    OutAxis::New { len: sizes.wanted as u64, name: Some("component".to_owned()) }
}

fn output(name: &str, dtype: DType, axes: Vec<OutAxis>, meta: &ArrayMeta) -> OutputBinding {
    OutputBinding { axes, attributes: Default::default(), ..OutputBinding::like(name, dtype, meta) }
}

fn map(inputs: Vec<InputBinding>, whole: usize, outputs: Vec<OutputBinding>, map: Arc<dyn MapOperator>) -> Binding {
    Binding { reference: 0, inputs, outputs, whole: vec![whole], kind: Kind::Map(map), is_exact: false, child_bytes: 0 }
}

/// From the state: the values `s`, the vectors along a line (`v` of rows), and `residual`.
pub fn along_lines(meta: &ArrayMeta, to: DType, sizes: Sizes, along: usize) -> Binding {
    let places = OutAxis::New { len: sizes.places as u64, name: meta.dimension_names[1 - along].clone() };
    let outputs = vec![
        output("s", DType::F64, vec![components(sizes)], meta),
        output(SIDES[1 - along], to, vec![places, components(sizes)], meta),
        output("residual", DType::F64, Vec::new(), meta),
    ];
    map(vec![InputBinding::plain(1)], 0, outputs, Arc::new(AlongLines { sizes, to }))
}

/// From the matrix and the state: the vectors across the lines (`u` of rows).
pub fn across_lines<T: Real + 'static, F: Float + 'static>(
    meta: &ArrayMeta,
    to: DType,
    sizes: Sizes,
    standard: Standard<T>,
    along: usize,
) -> Binding {
    let state = InputBinding { axes: vec![None], ..InputBinding::plain(1) };
    let outputs = vec![output(SIDES[along], to, vec![OutAxis::Carried(along), components(sizes)], meta)];
    let operator = AcrossLines { sizes, standard, along, precision: PhantomData::<fn() -> F> };
    map(vec![InputBinding::plain(2), state], 1 - along, outputs, Arc::new(operator))
}

struct AlongLines {
    sizes: Sizes,
    to: DType,
}

impl MapOperator for AlongLines {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let given = inputs.first().ok_or_else(|| OperatorError::data("no state was given"))?;
        let state = state(&self.sizes, given)?;
        // What is left of the matrix without its projection on the vectors, relative to the matrix.
        let (all, held) = (state.norm_squared(), state.values().iter().fold(0.0, |sum, s| sum + s * s));
        let residual = if all > 0.0 { ((all - held).max(0.0) / all).sqrt() } else { 0.0 };
        let made = [(DType::F64, state.values()), (self.to, state.vectors()), (DType::F64, &[residual])];
        let mut outputs = Vec::with_capacity(made.len());
        for ((region, wanted), (dtype, values)) in task.outputs.iter().zip(task.wanted).zip(made) {
            if !wanted {
                outputs.push(None);
                continue;
            }
            let mut buffer = work.buffer(values.len() * dtype.size())?;
            buffer.chunks_exact_mut(dtype.size()).zip(values).for_each(|(out, value)| write_float(dtype, *value, 0.0, out));
            outputs.push(Some(Computed { region: region.clone(), block: Block::new(buffer, dtype, region.shape()) }));
        }
        Ok(outputs)
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}

struct AcrossLines<T, F> {
    sizes: Sizes,
    standard: Standard<T>,
    along: usize,
    precision: PhantomData<fn() -> F>,
}

impl<T: Real, F: Float> MapOperator for AcrossLines<T, F> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [matrix, given] = &inputs[..] else { return Err(OperatorError::data("vectors need a matrix and a state")) };
        let (state, wanted) = (state(&self.sizes, given)?, self.sizes.wanted);
        let own = &task.outputs[0];
        let mut ranges = [matrix.region.axis(0), matrix.region.axis(1)];
        ranges[self.along] = own.axis(0);
        let block = lines(&matrix.block.cut(&matrix.region, &Region::from_ranges(&ranges)), self.along);
        let mut vectors = work.buffer(own.count() * size_of::<F>())?;
        let _room = work.reserve(Space::<F>::bytes(wanted))?;
        let mut space = Space::<F>::new(wanted);
        let panels = vectors.as_mut_slice_of::<F>().chunks_mut((LINES * wanted).max(1));
        for (first, panel) in (0..block.shape()[0]).step_by(LINES).zip(panels) {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            let tiles = Lines::panel(&block, self.standard, first);
            run(Forward { tiles: &tiles, basis: state.factors(), space: &mut space, squares: None });
            let rows = panel.chunks_exact_mut(wanted);
            rows.zip(space.rows(LINES)).for_each(|(to, row)| to.copy_from_slice(row));
        }
        let dtype = if size_of::<F>() == 4 { DType::F32 } else { DType::F64 };
        Ok(vec![Some(Computed { region: own.clone(), block: Block::new(vectors, dtype, own.shape()) })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        Space::<F>::bytes(self.sizes.wanted)
    }
}
