//! Phases: the graph cut at folds and into independent parts, each streamed once over its own axes.
//!
//! Axes of different arrays that run along each other (a filter's input and output, a mask beside its stack) are one
//! *phase axis*. The block grid divides the phase axes; every array of the phase follows through its axis map. All
//! needs, frontiers and sizes are products over phase axes, which keeps planning cheap for millions of blocks.

use std::collections::BTreeMap;

use super::graph::{ArrayId, Graph, Producer};
use crate::array::{DType, Region};
use crate::operators::{Binding, Kind, LaidLength, OutAxis};

/// One pass over some inputs.
pub struct Phase {
    pub axes: Vec<PhaseAxis>,
    pub arrays: Vec<PhaseArray>,
    /// Arrays (indices into `arrays`) that are read: job inputs and results of earlier folds.
    pub inputs: Vec<usize>,
    /// In an order in which inputs come before users.
    pub steps: Vec<PhaseStep>,
    pub targets: Vec<PhaseTarget>,
    pub folds: Vec<PhaseFold>,
    /// Index into `Graph::loops`: the phase runs again until the loop's control is content.
    pub repeats: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct PhaseAxis {
    pub len: u64,
    /// One block over its whole length.
    pub is_whole: bool,
    /// Some fold reduces it.
    pub is_reduced: bool,
    pub name: Option<String>,
}

pub struct PhaseArray {
    pub id: ArrayId,
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Preferred chunk length per axis.
    pub chunk: Vec<u64>,
    pub axes: Vec<ArrayAxis>,
}

/// How an axis of an array follows the phase.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrayAxis {
    Phase(usize),
    Laid { axis: usize, length: LaidLength },
}

impl ArrayAxis {
    pub fn phase_axis(&self) -> usize {
        match self {
            ArrayAxis::Phase(a) | ArrayAxis::Laid { axis: a, .. } => *a,
        }
    }

    /// Whether the axis looks different on another block grid.
    pub fn depends_on_grid(&self) -> bool {
        matches!(self, ArrayAxis::Laid { length, .. } if length.depends_on_grid())
    }
}

pub struct PhaseStep {
    /// Index into `Graph::steps`.
    pub step: usize,
    pub name: String,
    pub binding: Binding,
    pub inputs: Vec<usize>,
    /// `None`: nobody in this phase asks for it.
    pub outputs: Vec<Option<usize>>,
    /// Phase axis of each axis of the reference input.
    pub reference_axes: Vec<usize>,
    /// Its blocks go to the job's devices.
    pub on_device: bool,
}

/// An array that leaves the phase block by block.
#[derive(Clone, Debug)]
pub struct PhaseTarget {
    pub array: usize,
    pub to: Destination,
}

/// Where an array goes that leaves a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Index into `Graph::targets`.
    Output(usize),
    /// It is the next state of a loop, kept under this array.
    State(ArrayId),
}

impl PhaseTarget {
    /// Index into `Graph::targets`; `None` for what is not written.
    pub fn output(&self) -> Option<usize> {
        match self.to {
            Destination::Output(target) => Some(target),
            Destination::State(_) => None,
        }
    }
}

/// A fold: where its leaves lie and where its results go.
pub struct PhaseFold {
    /// Index into `steps`.
    pub step: usize,
    /// Phase axes that it reduces, in the order of the reference's axes.
    pub reduced: Vec<usize>,
    /// Phase axes that it keeps, in order.
    pub kept: Vec<usize>,
    /// Leaf length on each of `reduced`; `None`: leaves follow the blocks (order-free operators).
    pub leaf: Option<Vec<u64>>,
    pub outputs: Vec<FoldOutput>,
}

#[derive(Clone, Debug)]
pub struct FoldOutput {
    /// Which output of the step.
    pub output: usize,
    pub array: ArrayId,
    pub dtype: DType,
    pub axes: Vec<FoldAxis>,
    /// Index into `Graph::targets` if it is written.
    pub targets: Vec<usize>,
    /// A later phase reads it.
    pub is_kept: bool,
}

/// An axis of a fold's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FoldAxis {
    /// A kept axis: index into `PhaseFold::kept`.
    Kept(usize),
    /// A new one of this length, whole in every part of the result.
    New(u64),
}

impl PhaseFold {
    /// Leaf length on a phase axis, where it is reduced and leaves do not follow the blocks.
    pub fn leaf_on(&self, axis: usize) -> Option<u64> {
        let at = self.reduced.iter().position(|a| *a == axis)?;
        self.leaf.as_ref().map(|leaf| leaf[at])
    }

    /// Most nodes of the tree that a block hands on, given its length on each reduced phase axis: along the last axis that
    /// has several leaves siblings are merged as they come.
    pub fn nodes_of_block(&self, axes: &[PhaseAxis], len: impl Fn(usize) -> u64) -> u64 {
        let (mut nodes, mut is_row) = (1u64, true);
        for (&axis, &leaf) in self.reduced.iter().zip(self.leaf.as_deref().unwrap_or_default()).rev() {
            let all = axes[axis].len.div_ceil(leaf).max(1);
            let here = len(axis).div_ceil(leaf).max(1);
            let levels = 64 - (here - 1).leading_zeros() as u64;
            nodes = nodes.saturating_mul(if is_row { here.min(2 * levels + 2) } else { here });
            is_row &= all == 1;
        }
        nodes
    }
}

impl FoldOutput {
    /// The part of the output that belongs to a region of the kept axes.
    pub fn region(&self, kept: &Region) -> Region {
        let side = |axis: &FoldAxis| match axis {
            FoldAxis::Kept(k) => kept.axis(*k),
            FoldAxis::New(len) => (0, *len as i64),
        };
        Region::from_ranges(&self.axes.iter().map(side).collect::<Vec<_>>())
    }

    /// Elements of the output per kept cell.
    pub fn cells_per_kept(&self) -> u64 {
        let len = |axis: &FoldAxis| match axis {
            FoldAxis::Kept(_) => 1,
            FoldAxis::New(len) => *len,
        };
        self.axes.iter().map(len).fold(1, u64::saturating_mul)
    }
}

/// Leaf length on each of the axes that a fold reduces: constant, so that results never depend on blocks; small, so that
/// the error of a float sum stays near that of pairwise summation. An axis that blocks hold whole is not cut; where such
/// axes are long, leaves are shorter on the others, so that a leaf is no burden to hold.
fn leaf_lengths(binding: &Binding, reduced: &[usize], shape: &[u64]) -> Vec<u64> {
    let is_whole = |axis: &usize| binding.whole.contains(axis);
    let usual: u64 = match reduced.iter().filter(|a| !is_whole(a)).count() {
        0 | 1 => 256,
        2 => 16,
        3 => 8,
        _ => 4,
    };
    let beside = reduced.iter().filter(|a| is_whole(a)).fold(1u64, |n, &a| n.saturating_mul(shape[a].max(1)));
    let cut = usual.min((LEAF_CELLS / beside).next_power_of_two()).max(usual.min(SHORT_LEAF));
    reduced.iter().map(|a| if is_whole(a) { shape[*a].max(1) } else { cut }).collect()
}

/// Cells of a leaf over axes that it holds whole, about.
const LEAF_CELLS: u64 = 1 << 20;
/// It is cut to no less than this: each leaf has a state.
const SHORT_LEAF: u64 = 32;

/// Cuts the graph into phases, in the order in which they run.
pub fn phases(graph: &Graph) -> Vec<Phase> {
    let levels = graph.steps.iter().map(|s| s.level).chain(graph.arrays.iter().map(|a| a.level)).max().unwrap_or(0) + 1;
    let mut by_level: Vec<Vec<Goal>> = (0..levels).map(|_| Vec::new()).collect();
    // Folds and loops that something needs, found from the last level back.
    let mut needed_folds = vec![false; graph.steps.len()];
    let mut needed_loops = vec![false; graph.loops.len()];
    for (at, target) in graph.targets.iter().enumerate() {
        match graph.arrays[target.array].producer {
            Producer::Step { step, .. } if graph.steps[step].is_fold() => needed_folds[step] = true,
            // A map may be at a higher level than its inputs: it reads the last state of a loop.
            _ => by_level[graph.arrays[target.array].level].push(Goal::Target(at)),
        }
    }
    let mut phases = Vec::new();
    let mut groups: Vec<Vec<Goal>> = Vec::new();
    for level in (0..levels).rev() {
        let folds = (0..graph.steps.len()).filter(|&s| needed_folds[s] && graph.steps[s].level == level);
        by_level[level].extend(folds.map(Goal::Fold));
        let loops: Vec<Goal> =
            (0..graph.loops.len()).filter(|&l| needed_loops[l] && graph.loops[l].level == level).map(Goal::Loop).collect();
        for &goal in by_level[level].iter().chain(&loops) {
            for array in closure(graph, goal).arrays {
                match graph.arrays[array].producer {
                    // A fold below this level feeds this goal: it is to run, at its own level (which is lower).
                    Producer::Step { step, .. } if graph.steps[step].is_fold() => needed_folds[step] = true,
                    Producer::State { of } => needed_loops[of] = true,
                    _ => {}
                }
            }
        }
        // A loop has passes of its own, whatever else reads the same inputs.
        let here = components(graph, std::mem::take(&mut by_level[level]));
        groups.splice(0..0, loops.into_iter().map(|l| vec![l]).chain(here));
    }
    let mut kept = vec![false; graph.arrays.len()];
    for goal in groups.iter().flatten() {
        for array in closure(graph, *goal).arrays {
            if let Producer::Step { step, .. } = graph.arrays[array].producer
                && graph.steps[step].is_fold()
            {
                kept[array] = true;
            }
        }
        if let Goal::Loop(of) = goal {
            kept[graph.loops[*of].found] = true;
        }
    }
    for goals in groups {
        phases.push(build(graph, &goals, &kept));
    }
    phases
}

#[derive(Clone, Copy)]
enum Goal {
    /// Index into `Graph::targets`.
    Target(usize),
    /// Index into `Graph::steps`.
    Fold(usize),
    /// Index into `Graph::loops`.
    Loop(usize),
}

/// What a goal needs of its own phase: map steps back to inputs and fold results.
struct Closure {
    arrays: Vec<ArrayId>,
    steps: Vec<usize>,
}

fn closure(graph: &Graph, goal: Goal) -> Closure {
    let mut found = Closure { arrays: Vec::new(), steps: Vec::new() };
    let mut open: Vec<ArrayId> = match goal {
        Goal::Target(at) => vec![graph.targets[at].array],
        Goal::Fold(step) => {
            found.steps.push(step);
            graph.steps[step].inputs.clone()
        }
        Goal::Loop(of) => {
            let fold = graph.loops[of].fold_step;
            found.steps.push(fold);
            graph.steps[fold].inputs.iter().copied().chain(graph.loops[of].next).collect()
        }
    };
    while let Some(array) = open.pop() {
        if found.arrays.contains(&array) {
            continue;
        }
        found.arrays.push(array);
        if let Producer::Step { step, .. } = graph.arrays[array].producer
            && !graph.steps[step].is_fold()
        {
            if !found.steps.contains(&step) {
                found.steps.push(step);
            }
            open.extend(&graph.steps[step].inputs);
        }
    }
    found
}

/// Goals that share an array run in one phase; others have nothing in common and run one after the other.
fn components(graph: &Graph, goals: Vec<Goal>) -> Vec<Vec<Goal>> {
    let mut groups: Vec<(Vec<ArrayId>, Vec<Goal>)> = Vec::new();
    for goal in goals {
        let mut arrays = closure(graph, goal).arrays;
        let mut members = vec![goal];
        let mut rest = Vec::new();
        for (other, goals) in groups {
            if other.iter().any(|a| arrays.contains(a)) {
                arrays.extend(other);
                members.splice(0..0, goals);
            } else {
                rest.push((other, goals));
            }
        }
        rest.push((arrays, members));
        groups = rest;
    }
    groups.into_iter().map(|(_, goals)| goals).collect()
}

/// Union-find over the axes of a phase's arrays.
struct Axes {
    parent: Vec<usize>,
    start: BTreeMap<ArrayId, usize>,
}

impl Axes {
    fn node(&self, array: ArrayId, axis: usize) -> usize {
        self.start[&array] + axis
    }

    fn root(&self, mut node: usize) -> usize {
        while self.parent[node] != node {
            node = self.parent[node];
        }
        node
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a.max(b)] = a.min(b);
    }
}

fn build(graph: &Graph, goals: &[Goal], kept: &[bool]) -> Phase {
    let mut ids: Vec<ArrayId> = Vec::new();
    let mut steps: Vec<usize> = Vec::new();
    for goal in goals {
        let part = closure(graph, *goal);
        ids.extend(part.arrays);
        steps.extend(part.steps);
    }
    ids.sort_unstable();
    ids.dedup();
    steps.sort_unstable(); // steps refer to earlier ones only: their numbers are an order
    steps.dedup();

    let mut axes = Axes { parent: Vec::new(), start: BTreeMap::new() };
    for &id in &ids {
        axes.start.insert(id, axes.parent.len());
        axes.parent.extend(axes.parent.len()..axes.parent.len() + graph.arrays[id].meta.rank());
    }
    let mut whole_nodes = Vec::new();
    let mut reduced_nodes = Vec::new();
    // Nodes of axes that blocks may divide: those that run along a target or a fold's input.
    let mut divided = Vec::new();
    for &s in &steps {
        let step = &graph.steps[s];
        let reference = step.inputs[step.binding.reference];
        for (input, bound) in step.inputs.iter().zip(&step.binding.inputs) {
            for (axis, follows) in bound.axes.iter().enumerate() {
                if let Some(j) = follows {
                    axes.unite(axes.node(*input, axis), axes.node(reference, *j));
                }
            }
        }
        whole_nodes.extend(step.binding.whole.iter().map(|&j| axes.node(reference, j)));
        match &step.binding.kind {
            Kind::Map(_) => {
                for (output, bound) in step.outputs.iter().zip(&step.binding.outputs) {
                    if !ids.contains(output) {
                        continue;
                    }
                    for (axis, from) in bound.axes.iter().enumerate() {
                        let node = axes.node(*output, axis);
                        match from {
                            OutAxis::Carried(j) => axes.unite(node, axes.node(reference, *j)),
                            OutAxis::New { .. } => whole_nodes.push(node),
                            OutAxis::Laid { axis: j, .. } => axes.unite(node, axes.node(reference, *j)),
                        }
                    }
                }
            }
            Kind::Fold { axes: reduced, .. } => {
                reduced_nodes.extend(reduced.iter().map(|&j| axes.node(reference, j)));
                divided.extend((0..graph.arrays[reference].meta.rank()).map(|j| axes.node(reference, j)));
            }
        }
    }
    for goal in goals {
        let array = match goal {
            Goal::Target(at) => Some(graph.targets[*at].array),
            Goal::Loop(of) => graph.loops[*of].next,
            Goal::Fold(_) => None,
        };
        let nodes = |id: ArrayId| (0..graph.arrays[id].meta.rank()).map(move |a| (id, a));
        divided.extend(array.into_iter().flat_map(nodes).map(|(id, a)| axes.node(id, a)));
    }

    // Number the classes: axes of the highest-rank input first (the block's axes in a job file), then the others; what the
    // engine keeps itself after the job's own inputs.
    let is_leaf = |id: ArrayId| match graph.arrays[id].producer {
        Producer::Input(_) | Producer::State { .. } => true,
        Producer::Step { step, .. } => graph.steps[step].is_fold(),
    };
    let is_input = |id: ArrayId| matches!(graph.arrays[id].producer, Producer::Input(_));
    let mut order: Vec<ArrayId> = ids.clone();
    order.sort_by_key(|&id| (!is_input(id), !is_leaf(id), std::cmp::Reverse(graph.arrays[id].meta.rank()), id));
    let mut class_of: BTreeMap<usize, usize> = BTreeMap::new();
    let mut phase_axes: Vec<PhaseAxis> = Vec::new();
    for &id in &order {
        let meta = &graph.arrays[id].meta;
        for axis in 0..meta.rank() {
            let root = axes.root(axes.node(id, axis));
            class_of.entry(root).or_insert_with(|| {
                phase_axes.push(PhaseAxis {
                    len: meta.shape[axis],
                    is_whole: true,
                    is_reduced: false,
                    name: meta.dimension_names[axis].clone(),
                });
                phase_axes.len() - 1
            });
        }
    }
    let class = |node: usize| class_of[&axes.root(node)];
    for node in divided {
        phase_axes[class(node)].is_whole = false;
    }
    for node in whole_nodes {
        phase_axes[class(node)].is_whole = true;
    }
    for node in reduced_nodes {
        phase_axes[class(node)].is_reduced = true;
    }
    for &id in &ids {
        // Two axes of one array that run along each other (x beside its transpose) can't be divided.
        let rank = graph.arrays[id].meta.rank();
        for a in 0..rank {
            if (0..a).any(|b| class(axes.node(id, a)) == class(axes.node(id, b))) {
                phase_axes[class(axes.node(id, a))].is_whole = true;
            }
        }
    }

    let local = |id: ArrayId| ids.binary_search(&id).ok();
    let laid_of = |id: ArrayId, axis: usize| match graph.arrays[id].producer {
        Producer::Step { step, output } => match &graph.steps[step].binding.outputs[output].axes[axis] {
            OutAxis::Laid { length, .. } => Some(length.clone()),
            _ => None,
        },
        Producer::Input(_) | Producer::State { .. } => None,
    };
    let arrays: Vec<PhaseArray> = ids
        .iter()
        .map(|&id| {
            let meta = &graph.arrays[id].meta;
            let axis_of = |a: usize| {
                let axis = class(axes.node(id, a));
                match laid_of(id, a) {
                    Some(length) => ArrayAxis::Laid { axis, length },
                    None => ArrayAxis::Phase(axis),
                }
            };
            PhaseArray {
                id,
                name: meta.name.clone(),
                shape: meta.shape.clone(),
                dtype: meta.dtype,
                chunk: meta.chunk.clone(),
                axes: (0..meta.rank()).map(axis_of).collect(),
            }
        })
        .collect();
    let phase_steps: Vec<PhaseStep> = steps
        .iter()
        .map(|&s| {
            let step = &graph.steps[s];
            let reference = step.inputs[step.binding.reference];
            let is_fold = step.is_fold();
            PhaseStep {
                step: s,
                name: step.name.clone(),
                binding: step.binding.clone(),
                inputs: step.inputs.iter().filter_map(|&id| local(id)).collect(),
                outputs: step.outputs.iter().map(|&id| if is_fold { None } else { local(id) }).collect(),
                reference_axes: (0..graph.arrays[reference].meta.rank()).map(|j| class(axes.node(reference, j))).collect(),
                on_device: false,
            }
        })
        .collect();
    let targets = goals
        .iter()
        .filter_map(|goal| match goal {
            Goal::Target(at) => local(graph.targets[*at].array).map(|array| PhaseTarget { array, to: Destination::Output(*at) }),
            Goal::Loop(of) => {
                let state = Destination::State(graph.loops[*of].state);
                graph.loops[*of].next.and_then(local).map(|array| PhaseTarget { array, to: state })
            }
            Goal::Fold(_) => None,
        })
        .collect();
    let folds = goals
        .iter()
        .filter_map(|goal| match goal {
            Goal::Fold(s) => Some(*s),
            Goal::Loop(of) => Some(graph.loops[*of].fold_step),
            Goal::Target(_) => None,
        })
        .filter_map(|s| Some(fold(graph, s, phase_steps.iter().position(|p| p.step == s)?, &phase_steps, kept)))
        .collect();
    let inputs = (0..arrays.len()).filter(|&a| is_leaf(arrays[a].id)).collect();
    let repeats = goals.iter().find_map(|goal| match goal {
        Goal::Loop(of) => Some(*of),
        _ => None,
    });
    Phase { axes: phase_axes, arrays, inputs, steps: phase_steps, targets, folds, repeats }
}

fn fold(graph: &Graph, s: usize, at: usize, steps: &[PhaseStep], kept_arrays: &[bool]) -> PhaseFold {
    let step = &graph.steps[s];
    let axes = &steps[at].reference_axes;
    let Kind::Fold { fold, axes: reduced } = &step.binding.kind else { unreachable!("goals of kind Fold name folds") };
    let kept: Vec<usize> = (0..axes.len()).filter(|j| !reduced.contains(j)).collect();
    let outputs = step
        .outputs
        .iter()
        .enumerate()
        .map(|(output, &array)| FoldOutput {
            output,
            array,
            dtype: graph.arrays[array].meta.dtype,
            axes: step.binding.outputs[output]
                .axes
                .iter()
                .map(|a| match a {
                    OutAxis::Carried(j) => kept.iter().position(|k| k == j).map_or(FoldAxis::New(1), FoldAxis::Kept),
                    OutAxis::New { len, .. } => FoldAxis::New(*len),
                    OutAxis::Laid { .. } => FoldAxis::New(1),
                })
                .collect(),
            targets: (0..graph.targets.len()).filter(|&t| graph.targets[t].array == array).collect(),
            is_kept: kept_arrays[array],
        })
        .filter(|o: &FoldOutput| o.is_kept || !o.targets.is_empty())
        .collect();
    PhaseFold {
        step: at,
        reduced: reduced.iter().map(|&j| axes[j]).collect(),
        kept: kept.iter().map(|&j| axes[j]).collect(),
        leaf: (!fold.is_order_free()).then(|| {
            let reference = step.inputs[step.binding.reference];
            leaf_lengths(&step.binding, reduced, &graph.arrays[reference].meta.shape)
        }),
        outputs,
    }
}
