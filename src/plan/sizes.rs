//! Bytes of one block at each stage: what the halo stage hands over, what a worker holds, what comes out.

use super::feeds::FeedUse;
use super::needs::axis_needs;
use super::phase::{ArrayAxis, Phase, PhaseStep, PhaseTarget};
use crate::array::buffer::capacity_for;
use crate::array::{AxisGrid, Grid, Rule};
use crate::operators::{Kind, LaidLength};
use crate::writer::OutputLayout;

/// How the halo stage hands an input of the phase over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Only this use wants it, as one box: padded and filled for it.
    Padded { step: usize, input: usize },
    /// The parts inside the array; the worker fills boundaries for each use.
    Pieces,
    /// It is written as it is, and no output object lies in two chunks: the chunks themselves, nothing copied.
    Chunks,
    /// Its only use goes through it strip by strip: the parts of chunks, nothing copied.
    Strips { step: usize },
}

/// Largest bytes over all blocks of a grid.
#[derive(Clone, Debug, Default)]
pub struct BlockBytes {
    /// All inputs of a block, as delivered.
    pub inputs: u64,
    /// Most a worker holds at once beside the inputs: intermediates, outputs, scratch.
    pub evaluation: u64,
    /// What leaves the worker.
    pub outputs: u64,
    /// Fold states of one block.
    pub states: u64,
    pub children: u64,
    /// Of the inputs, those that are delivered as [`Delivery::Strips`]: their bytes stay those of their chunks.
    pub in_strips: u64,
}

/// Largest extents along one axis over the blocks of a grid: everything is monotone in them.
struct AxisMost {
    arrays: Vec<u64>,
    array_parts: Vec<u64>,
    steps: Vec<u64>,
    step_parts: Vec<u64>,
    core: u64,
}

/// Beyond this many blocks on an axis only its ends and a stretch of its middle are looked at; blocks in between repeat.
const LOOKED_AT: u64 = 2048;

fn axis_most(phase: &Phase, axis: usize, grid: &AxisGrid) -> AxisMost {
    let mut most = AxisMost {
        arrays: vec![0; phase.arrays.len()],
        array_parts: vec![0; phase.arrays.len()],
        steps: vec![0; phase.steps.len()],
        step_parts: vec![0; phase.steps.len()],
        core: grid.longest(),
    };
    for b in looked_at(grid.cells()) {
        let core = grid.range(b);
        let needs = axis_needs(phase, axis, (core.start as i64, core.end as i64));
        for (i, need) in needs.arrays.iter().enumerate() {
            most.arrays[i] = most.arrays[i].max(need.total());
            most.array_parts[i] = most.array_parts[i].max(need.parts() as u64);
        }
        for (i, need) in needs.steps.iter().enumerate() {
            most.steps[i] = most.steps[i].max(need.total());
            most.step_parts[i] = most.step_parts[i].max(need.parts() as u64);
        }
    }
    most
}

/// Blocks of an axis that stand for all `n`.
pub fn looked_at(n: u64) -> impl Iterator<Item = u64> {
    let middle = n / 2;
    let looked = match n <= 3 * LOOKED_AT {
        true => [0..n, 0..0, 0..0],
        false => [0..LOOKED_AT, middle..middle + LOOKED_AT, n - LOOKED_AT..n],
    };
    looked.into_iter().flatten()
}

/// How each input is delivered. `layouts`: of each of the phase's targets.
pub fn deliveries(
    phase: &Phase,
    grid: &Grid,
    feeds: &[FeedUse],
    layouts: &[(usize, OutputLayout)],
    in_strips: bool,
) -> Vec<Delivery> {
    let most: Vec<AxisMost> = grid.0.iter().enumerate().map(|(a, g)| axis_most(phase, a, g)).collect();
    let mut found = deliveries_of(phase, &most, in_strips);
    for (n, delivery) in found.iter_mut().enumerate() {
        let is_read = phase.steps.iter().any(|s| s.inputs.contains(&phase.inputs[n]));
        let targets = phase.targets.iter().filter(|t| t.array == phase.inputs[n]);
        let holds = |layout: &OutputLayout| feeds.iter().filter(|f| f.input == n).all(|f| chunks_hold_objects(f, layout));
        let is_held = |t: &PhaseTarget| t.output().and_then(|t| layouts.iter().find(|l| l.0 == t)).is_some_and(|l| holds(&l.1));
        if !is_read && targets.clone().next().is_some() && targets.into_iter().all(is_held) {
            *delivery = Delivery::Chunks;
        }
    }
    found
}

/// True when no object of an output that is the input itself lies in two chunks of a feed, or beyond it.
fn chunks_hold_objects(used: &FeedUse, layout: &OutputLayout) -> bool {
    let (feed, grid) = (&used.feed, &used.feed.source.meta().grid);
    if layout.points.is_some() {
        return false;
    }
    let is_edge =
        |view: usize, at: i64| at as u64 == layout.shape[view] || (at as u64).is_multiple_of(layout.object_shape()[view]);
    // Also along axes that the source does not have: arrays that are stacked.
    let ends_at_edges = (0..feed.extent.rank()).all(|view| {
        let (from, to) = feed.extent.axis(view);
        is_edge(view, from) && is_edge(view, to)
    });
    ends_at_edges
        && feed.axes.iter().zip(&grid.0).all(|(axis, chunks)| match axis.view {
            None => true,
            Some(view) => {
                let (from, to) = feed.extent.axis(view);
                let is_inside = |at: &i64| *at > from && *at < to;
                let mut edges = (0..chunks.cells()).map(|c| from + chunks.range(c).start as i64 - axis.start).filter(is_inside);
                axis.step == 1 && edges.all(|at| is_edge(view, at))
            }
        })
}

fn deliveries_of(phase: &Phase, most: &[AxisMost], in_strips: bool) -> Vec<Delivery> {
    phase
        .inputs
        .iter()
        .map(|&array| {
            let mut uses = phase.steps.iter().enumerate().flat_map(|(s, step)| {
                step.inputs.iter().enumerate().filter(move |(_, a)| **a == array).map(move |(i, _)| (s, i))
            });
            let (first, second) = (uses.next(), uses.next());
            let is_target = phase.targets.iter().any(|t| t.array == array);
            match (first, second) {
                (Some((step, input)), None) if !is_target => {
                    let one_box = phase.steps[step].reference_axes.iter().all(|&a| most[a].step_parts[step] <= 1);
                    match one_box {
                        true if in_strips && is_swept(&phase.steps[step]) => Delivery::Strips { step },
                        true => Delivery::Padded { step, input },
                        false => Delivery::Pieces,
                    }
                }
                _ => Delivery::Pieces,
            }
        })
        .collect()
}

/// Whether a step goes through its only input in strips, axis by axis as it lies.
fn is_swept(step: &PhaseStep) -> bool {
    let sweeps = matches!(&step.binding.kind, Kind::Map(map) if map.sweep().is_some());
    let [input] = &step.binding.inputs[..] else { return false };
    sweeps && !step.on_device && input.axes.iter().enumerate().all(|(k, axis)| *axis == Some(k))
}

/// The edges of the blocks along an axis where results are laid side by side.
pub fn laid_edges(grid: &AxisGrid, length: &LaidLength) -> AxisGrid {
    let mut edges = vec![0u64];
    for b in 0..grid.cells() {
        let last = edges[edges.len() - 1];
        edges.push(last + laid_length(grid, b, length));
    }
    AxisGrid::edges(edges)
}

pub fn laid_length(grid: &AxisGrid, block: u64, length: &LaidLength) -> u64 {
    match length {
        LaidLength::Fixed(n) => *n,
        LaidLength::Every(step) => {
            let core = grid.range(block);
            let begun_before = |cell: u64| cell.div_ceil(*step).min(grid.len() / step);
            begun_before(core.end) - begun_before(core.start)
        }
        LaidLength::Padded { depth, rules } => {
            let core = grid.range(block);
            let (a, b) = crate::array::boundary::clip_none(
                core.start as i64 - depth.0 as i64,
                core.end as i64 + depth.1 as i64,
                grid.len() as i64,
                rules,
            );
            (b - a).max(0) as u64
        }
    }
}

/// `in_strips`: an input may be delivered as [`Delivery::Strips`].
pub fn block_bytes(phase: &Phase, grid: &Grid, in_strips: bool) -> BlockBytes {
    let most: Vec<AxisMost> = grid.0.iter().enumerate().map(|(a, g)| axis_most(phase, a, g)).collect();
    let deliveries = deliveries_of(phase, &most, in_strips);
    let bytes_of = |array: usize, len: &dyn Fn(usize) -> u64| {
        let a = &phase.arrays[array];
        (0..a.axes.len()).fold(a.dtype.size() as u64, |n, k| n.saturating_mul(len(k)))
    };
    let rounded = |bytes: u64| if bytes >= 1 << 50 { bytes } else { capacity_for(bytes as usize) as u64 };
    // The padded input of one use: its core (or core parts) and the depth around each.
    let padded = |s: usize, i: usize| {
        let step = &phase.steps[s];
        let bound = &step.binding.inputs[i];
        let array = step.inputs[i];
        let bytes = bytes_of(array, &|k| match bound.axes[k] {
            None => phase.arrays[array].shape[k],
            Some(j) => {
                let m = &most[step.reference_axes[j]];
                let parts = m.step_parts[s].max(1);
                let grown = m.steps[s] + (bound.depth[k].0 + bound.depth[k].1) * parts;
                // Where nothing is filled in, a part is no longer than the array.
                let is_inside = bound.boundary[k] == [Rule::None; 2];
                if is_inside { grown.min(phase.arrays[array].shape[k].saturating_mul(parts)) } else { grown }
            }
        });
        rounded(bytes)
    };
    let needed = |array: usize| {
        let axes = &phase.arrays[array].axes;
        let parts: u64 = axes.iter().map(|a| most[a.phase_axis()].array_parts[array].max(1)).product();
        rounded(bytes_of(array, &|k| most[axes[k].phase_axis()].arrays[array])) + (parts - 1) * 4096
    };
    let mut found = BlockBytes::default();
    for (n, delivery) in deliveries.iter().enumerate() {
        found.inputs += match delivery {
            Delivery::Padded { step, input } => padded(*step, *input),
            Delivery::Strips { step } => {
                found.in_strips += padded(*step, 0);
                padded(*step, 0)
            }
            Delivery::Pieces | Delivery::Chunks => needed(phase.inputs[n]),
        };
    }
    let target_bytes = |array: usize| {
        let a = &phase.arrays[array];
        rounded(bytes_of(array, &|k| match &a.axes[k] {
            ArrayAxis::Phase(axis) => most[*axis].core,
            ArrayAxis::Laid { axis, length } => {
                let grid = &grid.0[*axis];
                (0..grid.cells()).map(|b| laid_length(grid, b, length)).max().unwrap_or(0)
            }
        }))
    };
    // Arrays live from their step to their last use; targets to the end.
    let last_use = |array: usize| phase.steps.iter().rposition(|s| s.inputs.contains(&array));
    let mut live: Vec<(usize, u64)> = Vec::new();
    let by_strips = |s: usize| deliveries.contains(&Delivery::Strips { step: s });
    for (s, step) in phase.steps.iter().enumerate() {
        let mut here = 0u64;
        for (i, bound) in step.binding.inputs.iter().enumerate() {
            let is_delivered = deliveries.contains(&Delivery::Padded { step: s, input: i }) || by_strips(s);
            let has_halo = bound.depth.iter().any(|d| *d != (0, 0));
            if has_halo && !is_delivered {
                here += padded(s, i);
            }
        }
        let reference: Vec<u64> = step.reference_axes.iter().map(|&a| most[a].steps[s]).collect();
        match &step.binding.kind {
            Kind::Map(map) => {
                // What the operator returns may be padded (trim cuts it): at most the padded reference.
                let bound = &step.binding.inputs[step.binding.reference];
                let grow = |axis: usize| {
                    bound.axes.iter().position(|a| *a == Some(axis)).map_or(0, |k| bound.depth[k].0 + bound.depth[k].1)
                };
                let mut outputs = Vec::new();
                for (output, array) in step.binding.outputs.iter().zip(&step.outputs) {
                    let Some(array) = array else { continue };
                    let len = |k: usize| match &output.axes[k] {
                        crate::operators::OutAxis::Carried(j) if map.returns_halo() => {
                            most[step.reference_axes[*j]].steps[s] + grow(*j) * most[step.reference_axes[*j]].step_parts[s].max(1)
                        }
                        crate::operators::OutAxis::Carried(j) => most[step.reference_axes[*j]].steps[s],
                        crate::operators::OutAxis::New { len, .. } => *len,
                        crate::operators::OutAxis::Laid { axis, length } => {
                            let grid = &grid.0[step.reference_axes[*axis]];
                            (0..grid.cells()).map(|b| laid_length(grid, b, length)).max().unwrap_or(0)
                        }
                    };
                    let bytes = if map.passes_through() { 0 } else { rounded(bytes_of(*array, &len)) };
                    outputs.push((*array, bytes + 4096 * step_boxes(&most, step, s)));
                }
                here = here.saturating_add(match map.sweep().filter(|_| by_strips(s)) {
                    Some(sweep) => sweep.bytes(&reference, false),
                    None => map.scratch_bytes(&reference),
                });
                here = here.saturating_add(super::devices::step_host_bytes(step, &reference));
                live.extend(outputs);
            }
            // Their states are the folds' own, block after block.
            Kind::Fold { fold, .. } if fold.is_order_free() => {}
            Kind::Fold { fold, axes } => {
                let kept = (0..reference.len()).filter(|j| !axes.contains(j)).map(|j| reference[j]);
                let state = kept.fold(fold.state_bytes() as u64, u64::saturating_mul);
                let nodes = phase.folds.iter().find(|f| f.step == s).map_or(1, |f| {
                    f.nodes_of_block(&phase.axes, |axis| {
                        let at = step.reference_axes.iter().position(|a| *a == axis);
                        at.map_or(1, |j| reference[j])
                    })
                });
                // Beside them the leaf that is being made.
                let states = state.saturating_mul(nodes.saturating_add(1));
                found.states = found.states.saturating_add(rounded(states));
                here = here.saturating_add(states);
            }
        }
        let total: u64 = live.iter().map(|l| l.1).sum::<u64>().saturating_add(here).saturating_add(found.states);
        found.evaluation = found.evaluation.max(total);
        live.retain(|(array, _)| phase.targets.iter().any(|t| t.array == *array) || last_use(*array).is_some_and(|u| u > s));
        found.children += step.binding.child_bytes;
    }
    for target in &phase.targets {
        let is_input = phase.inputs.contains(&target.array);
        if !is_input {
            found.outputs = found.outputs.saturating_add(target_bytes(target.array));
        }
    }
    // A block that is returned with its halo keeps it until it is written.
    found.outputs = found.outputs.max(live.iter().map(|l| l.1).sum());
    found.outputs = found.outputs.saturating_add(found.states);
    found.evaluation = found.evaluation.max(found.outputs);
    found
}

fn step_boxes(most: &[AxisMost], step: &PhaseStep, s: usize) -> u64 {
    step.reference_axes.iter().map(|&a| most[a].step_parts[s].max(1)).product()
}
