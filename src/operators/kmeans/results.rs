//! What is made of the last state: labels of the rows, and the centers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::Sizes;
use super::nearest::{ROWS, nearest, take};
use super::pass::{Tiles, state};
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{Block, DType};
use crate::operators::reduce::element::with_type;
use crate::operators::reduce::write_float;
use crate::operators::{
    ArrayMeta, Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, OutAxis, OutputBinding, Padded,
    Workspace,
};

fn map(reference_rank: usize, whole: usize, inputs: usize, outputs: Vec<OutputBinding>, map: Arc<dyn MapOperator>) -> Binding {
    let mut bound = vec![InputBinding::plain(reference_rank)];
    bound.extend((1..inputs).map(|_| InputBinding { axes: vec![None], ..InputBinding::plain(1) }));
    Binding { reference: 0, inputs: bound, outputs, whole: vec![whole], kind: Kind::Map(map), is_exact: false, child_bytes: 0 }
}

fn output(name: &str, dtype: DType, axes: Vec<OutAxis>, is_default: bool, meta: &ArrayMeta) -> OutputBinding {
    OutputBinding { axes, is_default, attributes: Default::default(), ..OutputBinding::like(name, dtype, meta) }
}

/// From the table and the state: `labels`, and `distance`, the squared distance of each row from its center.
pub fn labels(meta: &ArrayMeta, sizes: Sizes) -> Binding {
    let rows = || vec![OutAxis::Carried(0)];
    let outputs = vec![output("labels", DType::I32, rows(), true, meta), output("distance", DType::F64, rows(), false, meta)];
    map(2, 1, 2, outputs, Arc::new(Labels { sizes }))
}

/// From the state: `centers`, and `n_iter`, the rounds that it took.
pub fn centers(meta: &ArrayMeta, to: DType, sizes: Sizes) -> Binding {
    let new = |len: usize, name: Option<String>| OutAxis::New { len: len as u64, name };
    let axes = vec![new(sizes.clusters, Some("cluster".to_owned())), new(sizes.features, meta.dimension_names[1].clone())];
    let outputs = vec![output("centers", to, axes, true, meta), output("n_iter", DType::I32, Vec::new(), false, meta)];
    map(1, 0, 1, outputs, Arc::new(Centers { sizes, to }))
}

struct Labels {
    sizes: Sizes,
}

impl MapOperator for Labels {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [table, given] = &inputs[..] else { return Err(OperatorError::data("labels need a table and centers")) };
        let d = self.sizes.features;
        let panels = state(given)?.panels(d);
        let own = &task.outputs[0];
        let rows = crate::array::Region::from_ranges(&[own.axis(0), table.region.axis(1)]);
        let block = table.block.cut(&table.region, &rows);
        let mut labels = work.buffer(own.count() * 4)?;
        let mut distances = work.buffer(own.count() * 8)?;
        let mut tile = work.buffer(ROWS * d * 8)?;
        tile.fill(0);
        let (tile, mut tiles) = (tile.as_mut_slice_of::<f64>(), Tiles::of(&block));
        loop {
            let loaded = with_type!(real block.dtype(), T => tiles.load::<T>(tile), else None);
            let Some((first, count)) = loaded else { break };
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            for (row, near) in (first..first + count).zip(nearest(tile, d, panels)) {
                labels.as_mut_slice_of::<i32>()[row] = near.center as i32;
                distances.as_mut_slice_of::<f64>()[row] = near.distance;
            }
        }
        let made = [(labels, DType::I32), (distances, DType::F64)];
        let computed = |(at, (buffer, dtype)): (usize, (_, DType))| {
            let block = Block::new(buffer, dtype, own.shape());
            task.wanted[at].then(|| Computed { region: own.clone(), block })
        };
        Ok(made.into_iter().enumerate().map(computed).collect())
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        // Labels and distances are made together, whichever is asked for.
        let rows = usize::try_from(core[0].saturating_mul(8)).unwrap_or(usize::MAX);
        (capacity_for(rows) as u64).saturating_add(capacity_for(ROWS * self.sizes.features * 8) as u64)
    }
}

struct Centers {
    sizes: Sizes,
    to: DType,
}

impl MapOperator for Centers {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let Sizes { clusters, features, .. } = self.sizes;
        let given = inputs.first().ok_or_else(|| OperatorError::data("no state was given"))?;
        let state = state(given)?;
        let mut outputs = vec![None, None];
        if task.wanted[0] {
            let mut buffer = work.buffer(clusters * features * self.to.size())?;
            let values = (0..clusters).flat_map(|c| take(state.panels(features), c, features));
            buffer.chunks_exact_mut(self.to.size()).zip(values).for_each(|(out, value)| write_float(self.to, value, 0.0, out));
            let block = Block::new(buffer, self.to, vec![clusters, features]);
            outputs[0] = Some(Computed { region: task.outputs[0].clone(), block });
        }
        if task.wanted[1] {
            let mut buffer = work.buffer(4)?;
            buffer.copy_from_slice(&(state.iterations() as i32).to_ne_bytes());
            outputs[1] = Some(Computed { region: task.outputs[1].clone(), block: Block::new(buffer, DType::I32, Vec::new()) });
        }
        Ok(outputs)
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}
