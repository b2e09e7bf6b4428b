//! The steps of one block, in order, inside one worker: chained steps never touch the disk.
//!
//! Exactness at array edges: each step's boundary rule applies to that step's input *array*. Cells outside it are filled
//! from the previous step's valid results, never computed from padded input.

use super::fold::{NodeKey, Tree};
use super::running::Running;
use super::{gpu, strips};
use crate::array::boundary::{clip_none, constants};
use crate::array::chunk::{ComputedBlock, ComputedOutput, FoldPart, HaloBlock, Piece};
use crate::array::{Block, Buffer, Intervals, Region};
use crate::engine::stage::{Cause, Fault, Halt, current};
use crate::halo::assemble::{Field, assemble, view};
use crate::operators::{FoldOperator, InputBinding, Kind, MapTask, OperatorError, OutAxis, Padded, Workspace};
use crate::plan::PhasePlan;
use crate::plan::needs::block_needs;
use crate::plan::phase::{ArrayAxis, PhaseFold, PhaseStep};
use crate::plan::sizes::Delivery;

/// Why a block failed: the step's name and the operator's reason.
pub struct Failure {
    pub step: String,
    pub error: OperatorError,
}

impl Failure {
    pub fn is_stop(&self) -> bool {
        matches!(self.error, OperatorError::Budget(crate::array::budget::BudgetError::Stopped))
    }
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        if failure.is_stop() {
            return Halt::Stopped;
        }
        Halt::Fault(Fault {
            stage: "compute",
            place: format!("step `{}`, {}", failure.step, current()),
            message: failure.error.to_string(),
            cause: if matches!(failure.error, OperatorError::Passing(_)) { Cause::Passing } else { Cause::Final },
        })
    }
}

pub fn evaluate(
    plan: &PhasePlan,
    block: HaloBlock,
    worker: usize,
    running: &Running,
    work: &mut Workspace<'_>,
) -> Result<ComputedBlock, Failure> {
    let HaloBlock { seq, number, core, inputs, ticket } = block;
    let phase = &plan.phase;
    let needs = block_needs(phase, &core);
    let at = |axis: usize| &needs[axis];
    let is_first = |axis: usize| core.start[axis] == 0;

    // Who is active in this block, and what they need: arrays, then steps, from the end.
    let targets: Vec<_> = phase.targets.iter().filter_map(|t| Some((t, plan.target_region(t.array, &core)?))).collect();
    let mut wanted = vec![false; phase.arrays.len()];
    for (target, _) in &targets {
        wanted[target.array] = true;
    }
    let folds_here = |s: usize| {
        let axes = &phase.steps[s].reference_axes;
        let is_owner = (0..phase.axes.len()).all(|a| is_first(a) || axes.contains(&a));
        is_owner && axes.iter().all(|&a| !at(a).steps[s].is_empty())
    };
    let mut active = vec![false; phase.steps.len()];
    for (s, step) in phase.steps.iter().enumerate().rev() {
        active[s] = match step.binding.kind {
            Kind::Fold { .. } => phase.folds.iter().any(|f| f.step == s) && folds_here(s),
            Kind::Map(_) => step.outputs.iter().flatten().any(|&a| wanted[a]),
        };
        if active[s] {
            step.inputs.iter().for_each(|&a| wanted[a] = true);
        }
    }

    let mut arrays: Vec<Vec<Piece>> = vec![Vec::new(); phase.arrays.len()];
    for (&array, pieces) in phase.inputs.iter().zip(inputs) {
        arrays[array] = pieces;
    }
    let mut folds = Vec::new();
    for (s, step) in phase.steps.iter().enumerate() {
        if !active[s] {
            continue;
        }
        let fail = |error: OperatorError| Failure { step: step.name.clone(), error };
        let parts: Vec<Intervals> = step.reference_axes.iter().map(|&a| at(a).steps[s].clone()).collect();
        for own in Region::product(&parts) {
            let mut padded = Vec::with_capacity(step.inputs.len());
            let mut swept = None;
            match &step.binding.kind {
                Kind::Map(map) if plan.deliveries.contains(&Delivery::Strips { step: s }) => {
                    swept = strips::sweep(map.as_ref(), &own, &step.binding, &arrays[step.inputs[0]], work).map_err(fail)?;
                }
                _ => {
                    for i in 0..step.inputs.len() {
                        padded.push(gather(plan, step, i, &own, &arrays[step.inputs[i]], work).map_err(fail)?);
                    }
                }
            }
            // What nobody reads after this step may go into it, buffer and all.
            for &array in &step.inputs {
                let is_last = !phase.steps[s + 1..].iter().any(|later| later.inputs.contains(&array));
                let is_target = targets.iter().any(|(t, _)| t.array == array);
                if is_last && !is_target && parts.iter().all(|p| p.parts() <= 1) {
                    arrays[array].clear();
                }
            }
            match &step.binding.kind {
                Kind::Map(map) => {
                    let regions: Vec<Region> =
                        step.binding.outputs.iter().map(|o| output_region(plan, step, &o.axes, &own, &core)).collect();
                    let asked: Vec<bool> = step.outputs.iter().map(|o| o.is_some_and(|a| wanted[a])).collect();
                    let task = MapTask { number, core: &own, outputs: &regions, wanted: &asked, worker };
                    let on_device = match (work.fleet, map.device()) {
                        (Some(fleet), Some(entry)) if step.on_device => {
                            let dtypes: Vec<_> = step.binding.outputs.iter().map(|o| o.dtype).collect();
                            gpu::apply::apply(fleet, entry, &dtypes, &padded, &task, work).map_err(fail)?
                        }
                        _ => None,
                    };
                    let results = match (swept.take(), on_device) {
                        (Some(result), _) => vec![Some(result)],
                        (None, Some(results)) => results,
                        (None, None) => map.apply(padded, &task, work).map_err(fail)?,
                    };
                    for (o, result) in results.into_iter().enumerate() {
                        let (Some(computed), Some(array)) = (result, step.outputs[o]) else { continue };
                        if !computed.region.contains(&regions[o]) || *computed.block.shape() != *computed.region.shape() {
                            let text = format!(
                                "output `{}` covers {}, block needs {}",
                                step.binding.outputs[o].name, computed.region, regions[o]
                            );
                            return Err(fail(OperatorError::Data(text)));
                        }
                        let is_read = phase.steps[s + 1..].iter().any(|later| later.inputs.contains(&array));
                        // Later steps must not see halo cells; the trim stage cuts what is only written.
                        let piece = if is_read {
                            Piece { block: computed.block.cut(&computed.region, &regions[o]), region: regions[o].clone() }
                        } else {
                            Piece { block: computed.block, region: computed.region }
                        };
                        arrays[array].push(piece);
                    }
                }
                Kind::Fold { fold, axes } => {
                    for (f, spec) in phase.folds.iter().enumerate().filter(|(_, spec)| spec.step == s) {
                        let kept: Vec<(i64, i64)> = (0..own.rank()).filter(|j| !axes.contains(j)).map(|j| own.axis(j)).collect();
                        let kept = Region::from_ranges(&kept);
                        let fold = fold.as_ref();
                        let nodes = match &spec.leaf {
                            Some(leaf) => leaves(spec, leaf, fold, step, axes, &padded, &own, plan, work),
                            None => add(running, f, fold, step, axes, &padded, &own, &kept).map(|()| Vec::new()),
                        };
                        folds.push(FoldPart { fold: f, kept, nodes: nodes.map_err(fail)? });
                    }
                }
            }
        }
        for (array, pieces) in arrays.iter_mut().enumerate() {
            let is_read = phase.steps[s + 1..].iter().any(|later| later.inputs.contains(&array));
            if !is_read && !targets.iter().any(|(t, _)| t.array == array) {
                pieces.clear();
            }
        }
    }

    let mut outputs = Vec::with_capacity(targets.len());
    for (target, own) in targets {
        let pieces = &arrays[target.array];
        if let Some(piece) = pieces.iter().find(|p| p.region.contains(&own)) {
            outputs.push(ComputedOutput { to: target.to, core: own, region: piece.region.clone(), block: piece.block.clone() });
            continue;
        }
        // An input that is written as it is comes in the chunks that hold it.
        let mut covered = 0;
        for piece in pieces {
            let core = piece.region.intersect(&own);
            if !core.is_empty() {
                covered += core.count();
                outputs.push(ComputedOutput { to: target.to, core, region: piece.region.clone(), block: piece.block.clone() });
            }
        }
        if covered != own.count() {
            let name = &phase.arrays[target.array].name;
            let text = format!("{covered} of {} cells were computed for {own} of {name}", own.count());
            return Err(Failure { step: name.clone(), error: OperatorError::Data(text) });
        }
    }
    Ok(ComputedBlock { seq, number, outputs, folds, ticket })
}

/// The region of an output for a step's own core.
fn output_region(plan: &PhasePlan, step: &PhaseStep, axes: &[OutAxis], own: &Region, core: &Region) -> Region {
    let ranges: Vec<(i64, i64)> = axes
        .iter()
        .map(|axis| match axis {
            OutAxis::Carried(j) => own.axis(*j),
            OutAxis::New { len, .. } => (0, *len as i64),
            OutAxis::Laid { axis, length } => {
                plan.axis_part(&ArrayAxis::Laid { axis: step.reference_axes[*axis], length: length.clone() }, core)
            }
        })
        .collect();
    Region::from_ranges(&ranges)
}

/// Input `i` of a step for the core `own`, halo filled: a view where one piece holds it, else assembled.
fn gather(
    plan: &PhasePlan,
    step: &PhaseStep,
    i: usize,
    own: &Region,
    pieces: &[Piece],
    work: &mut Workspace<'_>,
) -> Result<Padded, OperatorError> {
    let array = &plan.phase.arrays[step.inputs[i]];
    let bound = &step.binding.inputs[i];
    let ranges: Vec<(i64, i64)> = (0..array.axes.len())
        .map(|k| {
            let len = array.shape[k] as i64;
            match bound.axes[k] {
                None => (0, len),
                Some(j) => {
                    let (a, b) = own.axis(j);
                    clip_none(a - bound.depth[k].0 as i64, b + bound.depth[k].1 as i64, len, &bound.boundary[k])
                }
            }
        })
        .collect();
    let region = Region::from_ranges(&ranges);
    if let Some(block) = view(&region, pieces) {
        return Ok(Padded { region, block });
    }
    let values = constants(&bound.boundary, array.dtype).map_err(OperatorError::Data)?;
    let field = Field { shape: &array.shape, dtype: array.dtype, boundary: &bound.boundary, constants: &values };
    let mut buffer = work.buffer(region.count() * array.dtype.size())?;
    assemble(&mut buffer, &region, &field, pieces);
    let block = Block::new(buffer, array.dtype, region.shape());
    Ok(Padded { region, block })
}

/// Adds a block of an order-free fold to the running state of its kept cells.
#[allow(clippy::too_many_arguments)]
fn add(
    running: &Running,
    number: usize,
    fold: &dyn FoldOperator,
    step: &PhaseStep,
    axes: &[usize],
    inputs: &[Padded],
    own: &Region,
    kept: &Region,
) -> Result<(), OperatorError> {
    let mut state = running.take(number, kept, kept.count() * fold.state_bytes())?;
    fold.leaf(&cut(step, inputs, own), axes, &mut state)?;
    running.give(number, kept, state, fold)
}

/// The part of a fold's inputs that belongs to a part of its reference.
fn cut(step: &PhaseStep, inputs: &[Padded], part: &Region) -> Vec<Padded> {
    let one = |(input, bound): (&Padded, &InputBinding)| {
        // Axes that follow no reference axis stay whole.
        let side = |k: usize| bound.axes[k].map_or(input.region.axis(k), |j| part.axis(j));
        let region = Region::from_ranges(&(0..bound.axes.len()).map(side).collect::<Vec<_>>());
        Padded { block: input.block.cut(&input.region, &region), region }
    };
    inputs.iter().zip(&step.binding.inputs).map(one).collect()
}

/// The nodes of a block: its leaves, siblings among them already merged.
#[allow(clippy::too_many_arguments)]
fn leaves(
    spec: &PhaseFold,
    leaf: &[u64],
    fold: &dyn FoldOperator,
    step: &PhaseStep,
    axes: &[usize],
    inputs: &[Padded],
    own: &Region,
    plan: &PhasePlan,
    work: &mut Workspace<'_>,
) -> Result<Vec<(NodeKey, Buffer)>, OperatorError> {
    let kept_cells: usize = (0..own.rank()).filter(|j| !axes.contains(j)).map(|j| own.len(j)).product();
    let counts: Vec<u64> = spec.reduced.iter().zip(leaf).map(|(&a, leaf)| plan.grid.0[a].len().div_ceil(*leaf)).collect();
    let mut tree = Tree::reusing(counts);
    let lists: Vec<Vec<u64>> = axes
        .iter()
        .zip(leaf)
        .map(|(&j, leaf)| (own.start[j] as u64 / leaf..(own.stop[j] as u64).div_ceil(*leaf)).collect())
        .collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let mut whole = None;
    crate::array::grid::for_each_index(&lists, |index| {
        let mut part = own.clone();
        for ((&j, &i), &leaf) in axes.iter().zip(index).zip(leaf) {
            part.start[j] = (i * leaf) as i64;
            part.stop[j] = ((i + 1).saturating_mul(leaf)).min(own.stop[j] as u64) as i64;
        }
        let mut state = match tree.spare() {
            Some(state) => state,
            None => work.buffer(kept_cells * fold.state_bytes())?,
        };
        state.fill(0);
        fold.leaf(&cut(step, inputs, &part), axes, &mut state)?;
        if let Some(root) = tree.insert::<OperatorError>(NodeKey::leaf(index.to_vec()), state, fold, Ok)? {
            whole = Some(root);
        }
        Ok::<(), OperatorError>(())
    })?;
    Ok(match whole {
        Some(root) => vec![(NodeKey::root(), root)],
        None => tree.into_nodes(),
    })
}
