//! What a block needs of every array, one phase axis at a time.
//!
//! Needs are inferred backwards from what is written, as sets of disjoint intervals: depths add up along a chain, and a
//! periodic edge needs both ends of an axis but not its middle. A region of an array is the product over its axes.

use super::lists::Lists;
use super::phase::{ArrayAxis, Phase};
use crate::array::{AxisGrid, Intervals, Region, boundary};
use crate::operators::Kind;

/// Needs along one phase axis for one block position on it.
#[derive(Clone, Debug, Default)]
pub struct AxisNeeds {
    /// Per array of the phase: cells needed along its axis (empty for arrays without that axis).
    pub arrays: Vec<Intervals>,
    /// Per step: the core on its reference axis; what it computes, without halo.
    pub steps: Vec<Intervals>,
}

/// What blocks along one phase axis need of the inputs.
pub struct InputNeeds {
    /// Per input of the phase, per block: cells of the input, clipped to it.
    pub inputs: Vec<Lists<(i64, i64)>>,
}

impl InputNeeds {
    /// Of blocks `span` of an axis' grid.
    pub fn new(phase: &Phase, axis: usize, grid: &AxisGrid, span: (u64, u64)) -> Self {
        let mut inputs: Vec<Lists<(i64, i64)>> = phase.inputs.iter().map(|_| Lists::default()).collect();
        for block in span.0..span.1 {
            let core = grid.range(block);
            let needs = axis_needs(phase, axis, (core.start as i64, core.end as i64));
            for (list, &array) in inputs.iter_mut().zip(&phase.inputs) {
                needs.arrays[array].iter().for_each(|part| list.push(part));
                list.close();
            }
        }
        inputs.iter_mut().for_each(Lists::shrink);
        Self { inputs }
    }

    pub fn blocks(&self) -> usize {
        self.inputs.first().map_or(0, Lists::len)
    }
}

/// The needs of a block, per phase axis.
pub fn block_needs(phase: &Phase, core: &Region) -> Vec<AxisNeeds> {
    (0..phase.axes.len()).map(|axis| axis_needs(phase, axis, core.axis(axis))).collect()
}

/// The needs of a block whose core on phase axis `axis` is `core`.
pub fn axis_needs(phase: &Phase, axis: usize, core: (i64, i64)) -> AxisNeeds {
    let mut needs =
        AxisNeeds { arrays: vec![Intervals::empty(); phase.arrays.len()], steps: vec![Intervals::empty(); phase.steps.len()] };
    let len = phase.axes[axis].len as i64;
    for target in &phase.targets {
        if phase.arrays[target.array].axes.contains(&ArrayAxis::Phase(axis)) {
            needs.arrays[target.array].add(core.0, core.1);
        }
    }
    for (at, step) in phase.steps.iter().enumerate().rev() {
        let mut own = Intervals::empty();
        if step.reference_axes.contains(&axis) {
            match &step.binding.kind {
                Kind::Fold { .. } => {
                    for fold in phase.folds.iter().filter(|f| f.step == at) {
                        let (start, stop) = match fold.leaf_on(axis) {
                            // A leaf belongs to the block in which it begins, whole.
                            Some(leaf) => {
                                let leaf = leaf as i64;
                                let up = |x: i64| if x >= len { len } else { ((x + leaf - 1) / leaf * leaf).min(len) };
                                (up(core.0), up(core.1))
                            }
                            None => core,
                        };
                        own.add(start, stop);
                    }
                }
                Kind::Map(_) => {
                    for output in step.outputs.iter().flatten() {
                        if phase.arrays[*output].axes.contains(&ArrayAxis::Phase(axis)) {
                            own.union(&needs.arrays[*output]);
                        } else {
                            // Laid side by side, or dropped (then the axis is one block).
                            own.add(core.0, core.1);
                        }
                    }
                }
            }
        }
        for (input, bound) in step.inputs.iter().zip(&step.binding.inputs) {
            let array = &phase.arrays[*input];
            for (k, follows) in bound.axes.iter().enumerate() {
                if array.axes[k].phase_axis() != axis {
                    continue;
                }
                match follows {
                    None => needs.arrays[*input].add(0, array.shape[k] as i64),
                    Some(_) => {
                        let (before, after) = bound.depth[k];
                        for (a, b) in own.iter() {
                            let found =
                                boundary::needed(a - before as i64, b + after as i64, array.shape[k] as i64, &bound.boundary[k]);
                            needs.arrays[*input].union(&found);
                        }
                    }
                }
            }
        }
        needs.steps[at] = own;
    }
    needs
}
