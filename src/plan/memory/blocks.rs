//! Block grids and orders worth trying.

use super::super::graph::Producer;
use super::super::phase::PhaseAxis;
use super::super::sizes::block_bytes;
use super::super::traversal::Traversal;
use super::Setting;
use crate::array::{AxisGrid, Grid};
use crate::config::BlockSpec;

/// A block whose results and inputs are at least this large costs little overhead per byte.
const SMALL_BLOCK: u64 = 1 << 20;
/// Blocks of fold-only phases are cut to about this: the states of their cells stay in the cache while chunk after chunk adds to
/// them, and workers seldom meet at one.
const LARGE_BLOCK: u64 = 2 << 20;
/// They are not cut where that makes more than this of the bytes that each cell brings: halo is copied and computed again.
const MOST_HALO: f64 = 1.25;
/// Traversals of more blocks than this are not tried in every order.
pub(super) const MANY_BLOCKS: u64 = 200_000;

impl Setting<'_> {
    /// The block grid that the job asks for, or that suits its outputs.
    pub(super) fn preferred_block(&self) -> Result<Grid, String> {
        let axes = &self.phase.axes;
        // The highest-rank input's axes are the first phase axes.
        let from_job = |a: &usize| matches!(self.graph.arrays[self.phase.arrays[*a].id].producer, Producer::Input(_));
        let highest = |a: &usize| (from_job(a), self.phase.arrays[*a].axes.len(), std::cmp::Reverse(*a));
        let reference = self.phase.inputs.iter().copied().max_by_key(highest);
        let source_chunk = |axis: usize| {
            self.phase
                .inputs
                .iter()
                .filter_map(|&a| {
                    let array = &self.phase.arrays[a];
                    array.axes.iter().position(|x| x.phase_axis() == axis).map(|k| (array.axes.len(), array.chunk[k]))
                })
                .max_by_key(|(rank, _)| *rank)
                .map_or(axes[axis].len, |(_, chunk)| chunk)
        };
        let mut lengths: Vec<u64> =
            (0..axes.len()).map(|a| if axes[a].is_whole { axes[a].len } else { source_chunk(a) }).collect();
        match &self.job.engine.block {
            BlockSpec::Shape(shape) => {
                let Some(reference) = reference else { return Ok(Grid::regular(&[], &[])) };
                let array = &self.phase.arrays[reference];
                if shape.len() > array.axes.len() {
                    return Err(format!(
                        "engine.block has {} entries, {} has {} axes",
                        shape.len(),
                        array.name,
                        array.axes.len()
                    ));
                }
                for (k, axis) in array.axes.iter().enumerate() {
                    let axis = axis.phase_axis();
                    // Axes left out are whole, and so are those that an operator needs whole.
                    let asked = shape.get(k).copied().unwrap_or(axes[axis].len).max(1);
                    lengths[axis] = if axes[axis].is_whole { axes[axis].len } else { asked };
                }
                Ok(grid(axes, &lengths))
            }
            BlockSpec::Source => {
                let mut found = grid(axes, &lengths);
                if let Some(feed) = self.feeds.first() {
                    for (s, axis) in feed.feed.axes.iter().enumerate() {
                        let Some(view) = axis.view else { continue };
                        let a = self.phase.arrays[self.phase.inputs[feed.input]].axes[view].phase_axis();
                        let own = &feed.feed.source.meta().grid.0[s];
                        if !axes[a].is_whole && axis.step == 1 && axis.start == 0 && own.len() == axes[a].len {
                            found.0[a] = own.clone();
                        }
                    }
                }
                Ok(found)
            }
            BlockSpec::Auto => {
                let mut unit = lengths.clone();
                let laid = self.phase.arrays.iter().any(|a| a.axes.iter().any(|x| x.depends_on_grid()));
                if !laid {
                    // A whole number of output objects on the axes that outputs have.
                    let layouts = self.layouts(&grid(axes, &lengths))?;
                    for (target, layout) in layouts.iter().rev().filter(|(_, layout)| layout.points.is_none()) {
                        let (parts, _) = self.parts(&grid(axes, &lengths), *target);
                        for ((axis, part), &object) in parts.iter().zip(layout.object_shape()) {
                            if !axes[*axis].is_whole && part.len() == axes[*axis].len {
                                unit[*axis] = object.clamp(1, axes[*axis].len.max(1));
                            }
                        }
                    }
                }
                for fold in &self.phase.folds {
                    for &axis in &fold.reduced {
                        if let Some(leaf) = fold.leaf_on(axis)
                            && !axes[axis].is_whole
                        {
                            unit[axis] = unit[axis].next_multiple_of(leaf).min(axes[axis].len.max(1));
                        }
                    }
                }
                Ok(self.resized(unit))
            }
        }
    }

    /// Blocks whose edges lie elsewhere: three fifths as long, which is no whole part.
    pub(super) fn other_block(&self, usual: &Grid) -> Grid {
        let other = |(axis, grid): (&PhaseAxis, &AxisGrid)| match grid.longest() {
            len if axis.is_whole => len,
            1 => 2.min(axis.len),
            len => (len * 3 / 5).max(1),
        };
        let axes = &self.phase.axes;
        grid(axes, &axes.iter().zip(&usual.0).map(other).collect::<Vec<_>>())
    }

    /// Grows small blocks by whole units; cuts the blocks of a phase that only folds.
    pub(super) fn resized(&self, unit: Vec<u64>) -> Grid {
        let axes = &self.phase.axes;
        let mut lengths = unit.clone();
        let weight = |lengths: &[u64]| {
            let bytes = block_bytes(self.phase, &grid(axes, lengths), false);
            bytes.inputs.max(bytes.outputs)
        };
        // Compact blocks bring the least halo, and few states of folds.
        let mut depths = self.phase.steps.iter().flat_map(|s| &s.binding.inputs).flat_map(|input| &input.depth);
        let wants_compact = !self.phase.folds.is_empty() || depths.any(|depth| *depth != (0, 0));
        while weight(&lengths) < SMALL_BLOCK {
            let blocks = |a: usize| axes[a].len.div_ceil(lengths[a].max(1));
            let all: u64 = (0..axes.len()).map(blocks).fold(1, u64::saturating_mul);
            // The axis with the most blocks left keeps blocks compact; else long rows lie together, in memory and in folders.
            let axis = (0..axes.len())
                .filter(|&a| !axes[a].is_whole && blocks(a) > 1)
                .max_by_key(|&a| (if wants_compact { blocks(a) } else { 0 }, a));
            match axis {
                Some(axis) if all > 4 * self.workers as u64 => {
                    lengths[axis] = (lengths[axis] + unit[axis].max(lengths[axis])).min(axes[axis].len)
                }
                _ => break,
            }
        }
        if self.phase.targets.is_empty() {
            while weight(&lengths) > LARGE_BLOCK {
                let leaf = |a: usize| self.phase.folds.iter().filter_map(|f| f.leaf_on(a)).max().unwrap_or(1);
                let cut = |a: usize| {
                    let mut shorter = lengths.clone();
                    shorter[a] = (lengths[a] / 2).next_multiple_of(leaf(a)).min(lengths[a] - 1);
                    shorter
                };
                // A block with a halo brings more of it for each of its cells, the smaller it is.
                let per_cell = |lengths: &[u64]| weight(lengths) as f64 / lengths.iter().map(|&n| n as f64).product::<f64>();
                let most = per_cell(&lengths) * MOST_HALO;
                // Kept axes first, and of them the slowest: what is left is long rows, and nothing to merge.
                let axis = (0..axes.len())
                    .filter(|&a| !axes[a].is_whole && lengths[a] >= 2 * leaf(a) && per_cell(&cut(a)) <= most)
                    .min_by_key(|&a| (axes[a].is_reduced, a));
                match axis {
                    Some(a) => lengths = cut(a),
                    None => break,
                }
            }
        }
        grid(axes, &lengths)
    }

    /// The grid with its longest axis halved; `None` when blocks are small enough already.
    pub(super) fn smaller(&self, now: &Grid) -> Option<Grid> {
        let axes = &self.phase.axes;
        let bytes = block_bytes(self.phase, now, false);
        if bytes.inputs.max(bytes.evaluation) < 64 << 10 {
            return None;
        }
        // Of axes of one length the slower: long rows are worth more.
        let may_halve = |a: &usize| !axes[*a].is_whole && now.0[*a].longest() > 1;
        let axis = (0..axes.len()).filter(may_halve).max_by_key(|&a| (now.0[a].longest(), std::cmp::Reverse(a)))?;
        let mut next = now.clone();
        next.0[axis] = AxisGrid::regular(axes[axis].len, now.0[axis].longest().div_ceil(2));
        Some(next)
    }

    /// Orders worth trying. Reduced axes go innermost, so that a kept block is finished before the next begins.
    pub(super) fn traversals(&self, grid: &Grid) -> Vec<Traversal> {
        let is_reduced = |a: usize| self.phase.axes[a].is_reduced;
        let natural: Vec<usize> = (0..grid.0.len()).collect();
        let mut orders = vec![natural.clone()];
        let split: Vec<usize> = natural.iter().copied().filter(|&a| grid.0[a].cells() > 1).collect();
        let blocks: u64 = grid.0.iter().map(|a| a.cells()).fold(1, u64::saturating_mul);
        let mut by_count = split.clone();
        by_count.sort_by_key(|&a| std::cmp::Reverse(grid.0[a].cells()));
        if self.lists_points() {
            // Rows are appended as they come.
        } else if split.len() <= 3 && blocks <= MANY_BLOCKS {
            orders.extend(permutations(&split));
        } else {
            orders.push(by_count);
        }
        let mut found: Vec<Traversal> = Vec::new();
        for order in orders {
            let mut whole: Vec<usize> = natural.iter().copied().filter(|a| !order.contains(a)).collect();
            whole.extend(order);
            whole.sort_by_key(|&a| is_reduced(a)); // stable: keeps the order among each
            let t = Traversal::new(grid, whole);
            if !found.contains(&t) {
                found.push(t);
            }
        }
        found
    }
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    match items {
        [] => vec![vec![]],
        _ => items
            .iter()
            .flat_map(|&first| {
                let rest: Vec<usize> = items.iter().copied().filter(|&x| x != first).collect();
                permutations(&rest).into_iter().map(move |mut p| {
                    p.insert(0, first);
                    p
                })
            })
            .collect(),
    }
}

fn grid(axes: &[PhaseAxis], lengths: &[u64]) -> Grid {
    Grid(axes.iter().zip(lengths).map(|(a, &n)| AxisGrid::regular(a.len, if a.is_whole { a.len } else { n })).collect())
}
