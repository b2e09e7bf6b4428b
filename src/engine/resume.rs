//! What an earlier run of the same job left done: objects that are not made again, blocks that are not computed again.

use std::collections::HashSet;
use std::ops::Range;

use crate::array::Region;
use crate::array::grid::for_each_cell;
use crate::plan::{PhasePlan, Plan};
use crate::writer::Sink;

/// Objects that are stored already, per graph target, by their number in C order.
#[derive(Default)]
pub struct Done {
    targets: Vec<Objects>,
    count: u64,
}

/// Numbers of objects: those listed, or all others; and all that are not this process's own.
struct Objects {
    listed: HashSet<u64>,
    is_listed_open: bool,
    own: Range<u64>,
    count: u64,
}

impl Objects {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn has(&self, number: u64) -> bool {
        !self.is_empty() && (!self.own.contains(&number) || self.listed.contains(&number) != self.is_listed_open)
    }
}

impl Done {
    /// These, and all outside the ranges, of targets with so many objects.
    pub fn new(stored: Vec<HashSet<u64>>, own: Vec<Range<u64>>, totals: Vec<u64>) -> Self {
        let objects = |((listed, own), total): ((HashSet<u64>, Range<u64>), u64)| {
            let others = total.saturating_sub(own.end - own.start);
            Objects { count: others + listed.len() as u64, listed, is_listed_open: false, own }
        };
        Self::of(stored.into_iter().zip(own).zip(totals).map(objects).collect())
    }

    /// All objects but these, of targets with so many.
    pub fn all_but(open: Vec<HashSet<u64>>, totals: Vec<u64>) -> Self {
        let objects = |(listed, total): (HashSet<u64>, u64)| Objects {
            count: total.saturating_sub(listed.len() as u64),
            listed,
            is_listed_open: true,
            own: 0..u64::MAX,
        };
        Self::of(open.into_iter().zip(totals).map(objects).collect())
    }

    fn of(targets: Vec<Objects>) -> Self {
        let count = targets.iter().fold(0, |n: u64, t| n.saturating_add(t.count));
        Self { targets, count }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Objects of a target that are not made here.
    pub fn of_target(&self, target: usize) -> u64 {
        self.targets.get(target).map_or(0, |t| t.count)
    }

    pub fn has(&self, target: usize, sink: &dyn Sink, object: &[u64]) -> bool {
        self.targets.get(target).is_some_and(|t| !t.is_empty() && t.has(sink.layout().object_number(object)))
    }

    /// True when every object that a region of a target touches is done.
    fn covers(&self, plan: &Plan, target: usize, region: &Region) -> bool {
        let Some(done) = self.targets.get(target) else { return false };
        if region.is_empty() {
            return true;
        }
        let grid = plan.outputs[target].layout.object_grid();
        let layout = &plan.outputs[target].layout;
        for_each_cell(&grid.cells_of(region), |object| if done.has(layout.object_number(object)) { Ok(()) } else { Err(()) })
            .is_ok()
    }

    /// True when a block has nothing left to give: all that it writes is stored, and no later phase needs its fold.
    pub fn has_block(&self, plan: &Plan, phase: &PhasePlan, core: &Region) -> bool {
        if self.is_empty() {
            return false;
        }
        let direct = phase.phase.targets.iter().all(|t| {
            let region = phase.target_region(t.array, core);
            // The state of a loop is not stored: its passes are made again.
            region.is_none_or(|region| t.output().is_some_and(|target| self.covers(plan, target, &region)))
        });
        direct && (0..phase.phase.folds.len()).all(|f| self.has_fold(plan, phase, f, core))
    }

    /// True when the part of a fold's result that a block contributes to is stored, and nobody reads it.
    pub fn has_fold(&self, plan: &Plan, phase: &PhasePlan, fold: usize, core: &Region) -> bool {
        let fold = &phase.phase.folds[fold];
        let kept: Vec<(i64, i64)> = fold.kept.iter().map(|&a| core.axis(a)).collect();
        !self.is_empty() && self.has_kept(plan, fold, &Region::from_ranges(&kept))
    }

    /// The same, by the region on the fold's kept axes.
    pub fn has_kept(&self, plan: &Plan, fold: &crate::plan::phase::PhaseFold, kept: &Region) -> bool {
        !self.is_empty()
            && fold.outputs.iter().all(|output| {
                let region = output.region(kept);
                !output.is_kept && output.targets.iter().all(|&t| self.covers(plan, t, &region))
            })
    }
}
