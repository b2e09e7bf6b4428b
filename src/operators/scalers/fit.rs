//! What the statistics of a feature come to: a map over the features, with one output for each value that is fitted.

use std::sync::Arc;

use crate::array::buffer::capacity_for;
use crate::array::{Block, DType};
use crate::operators::{
    ArrayMeta, Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, OutAxis, OutputBinding, Padded,
    Workspace,
};

/// The arithmetic of a fit.
pub trait Fit: Send + Sync + 'static {
    /// Statistics that a feature has.
    const STATISTICS: usize;
    /// Names of the fitted values.
    const NAMES: &'static [&'static str];

    /// The fitted values of a feature.
    fn fit(&self, statistics: &[f64], fitted: &mut [f64]);
}

/// A map whose input has the statistics on its first axis, and then the axes `features` of `meta`.
pub fn fit<F: Fit>(of: F, features: &[usize], meta: &ArrayMeta) -> Binding {
    let rank = features.len() + 1;
    let outputs = F::NAMES
        .iter()
        .map(|name| OutputBinding {
            axes: (1..rank).map(OutAxis::Carried).collect(),
            is_default: false,
            attributes: Default::default(),
            ..OutputBinding::like(name, DType::F64, meta)
        })
        .collect();
    Binding {
        reference: 0,
        inputs: vec![InputBinding::plain(rank)],
        outputs,
        whole: vec![0],
        kind: Kind::Map(Arc::new(Fitting(of))),
        is_exact: false,
        child_bytes: 0,
    }
}

struct Fitting<F>(F);

impl<F: Fit> MapOperator for Fitting<F> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let input = inputs.first().ok_or_else(|| OperatorError::data("no statistics were given"))?;
        let features: usize = (1..input.region.rank()).map(|a| input.region.len(a)).product();
        let mut statistics = work.buffer(features * F::STATISTICS * 8)?;
        input.block.copy_to(&mut statistics);
        let statistics = statistics.as_slice_of::<f64>();
        let mut outputs = Vec::with_capacity(F::NAMES.len());
        for wanted in task.wanted {
            outputs.push(if *wanted { Some(work.buffer(features * 8)?) } else { None });
        }
        let (mut found, mut fitted) = (vec![0.0; F::STATISTICS], vec![0.0; F::NAMES.len()]);
        for feature in 0..features {
            found.iter_mut().enumerate().for_each(|(s, value)| *value = statistics[s * features + feature]);
            self.0.fit(&found, &mut fitted);
            for (output, value) in outputs.iter_mut().zip(&fitted) {
                if let Some(output) = output {
                    output.as_mut_slice_of::<f64>()[feature] = *value;
                }
            }
        }
        let given = outputs.into_iter().zip(task.outputs);
        Ok(given
            .map(|(output, region)| {
                output.map(|buffer| Computed { block: Block::new(buffer, DType::F64, region.shape()), region: region.clone() })
            })
            .collect())
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        let cells = core.iter().fold(8u64, |n, len| n.saturating_mul(*len));
        capacity_for(usize::try_from(cells).unwrap_or(usize::MAX)) as u64
    }
}
