//! Which input an array of the graph runs along, axis by axis: what is said of the input's axes still holds for these.

use super::graph::{ArrayId, Graph, Producer};
use crate::operators::{LaidLength, OutAxis};

/// Where an array comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub input: usize,
    /// `None`: an axis of its own (pairs of images, bins), or one without global coordinates.
    pub axes: Vec<Option<OriginAxis>>,
}

/// An axis that follows one of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginAxis {
    pub axis: usize,
    /// Entries of the input for one of its own.
    pub per: u64,
}

impl Graph {
    /// Follows the inputs whose axes steps have as their own; `None`: made of nothing but the state of passes.
    pub fn origin(&self, array: ArrayId) -> Option<Origin> {
        self.origin_within(array, self.arrays.len())
    }

    /// In so many steps at most.
    fn origin_within(&self, array: ArrayId, most: usize) -> Option<Origin> {
        let most = most.checked_sub(1)?;
        let (step, output) = match self.arrays[array].producer {
            Producer::Input(input) => {
                let axes = (0..self.arrays[array].meta.rank()).map(|axis| Some(OriginAxis { axis, per: 1 })).collect();
                return Some(Origin { input, axes });
            }
            // A state that passes map has the axes of the next one.
            Producer::State { of } => return self.origin_within(self.loops[of].next?, most),
            Producer::Step { step, output } => (&self.steps[step], output),
        };
        let origin = self.origin_within(step.inputs[step.binding.reference], most)?;
        let follow = |axis: &OutAxis| match axis {
            OutAxis::Carried(axis) => origin.axes[*axis],
            OutAxis::Laid { axis, length: LaidLength::Every(per) } => {
                origin.axes[*axis].map(|own| OriginAxis { per: own.per.saturating_mul(*per), ..own })
            }
            OutAxis::New { .. } | OutAxis::Laid { .. } => None,
        };
        Some(Origin { input: origin.input, axes: step.binding.outputs[output].axes.iter().map(follow).collect() })
    }
}
