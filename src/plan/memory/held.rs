//! What a block grid and its traversal take of each stage, and how blocks fill the objects that are written.

use super::super::feeds::FeedUse;
use super::super::frontier::{Filling, Frontier, open_objects};
use super::super::phase::{ArrayAxis, FoldAxis, FoldOutput, PhaseFold, PhaseStep};
use super::super::sizes::{BlockBytes, laid_edges};
use super::super::traversal::Traversal;
use super::{Concurrency, Reservation, Setting};
use crate::array::{AxisGrid, DType, Grid};
use crate::codec::{Park, pack_scratch_bytes, unpack_scratch_bytes};
use crate::config::CodecName;
use crate::operators::{FoldOperator, Kind};
use crate::trim::Trimmer;
use crate::writer::OutputLayout;

/// What a small buffer may take beyond its length.
pub(super) const ROUNDING: u64 = 64;

/// Per axis of an array: the phase axis and the blocks' parts along it; and the phase axes that the array lacks, with the
/// block position that delivers.
pub type Parts = (Vec<(usize, AxisGrid)>, Vec<(usize, u64)>);

impl Setting<'_> {
    /// Everything but the source's reservation.
    pub(super) fn fixed(
        &self,
        grid: &Grid,
        traversal: &Traversal,
        layouts: &[(usize, OutputLayout)],
        bytes: &BlockBytes,
        c: Concurrency,
        counts_packed: bool,
    ) -> Reservation {
        let n = traversal.block_count().max(1);
        let count = |limit: usize| (limit as u64).min(n);
        let shares_inputs = self.shares_inputs();
        let mut r = Reservation { kept: self.held, ..Reservation::default() };
        for feed in self.feeds {
            let meta = feed.feed.source.meta();
            let chunk: u64 = meta.chunk_shape.iter().product::<u64>().saturating_mul(feed.itemsize);
            // A chunk that is packed is decoded and cut beside its parked bytes.
            let cut = if feed.packed_bits(counts_packed).is_some() { chunk } else { 0 };
            r.decode = r.decode.max(chunk.saturating_add(cut).saturating_add(meta.transient_bytes));
            r.kept = r.kept.saturating_add(meta.resident_bytes);
        }
        r.decode = r.decode.saturating_mul(c.readers as u64);
        if counts_packed {
            // The halo stage unpacks one chunk at a time.
            let packed = self.feeds.iter().filter(|f| f.bits.is_some());
            r.decode += packed.map(|f| f.feed.source.meta().chunk_shape.iter().product::<u64>() * f.itemsize).max().unwrap_or(0);
        }
        if !matches!(self.park, Park::Auto | Park::None) {
            let largest = self
                .feeds
                .iter()
                .map(|f| f.feed.source.meta().chunk_shape.iter().product::<u64>() * f.itemsize)
                .max()
                .unwrap_or(0);
            r.decode = r.decode.saturating_add(self.pack_bytes(self.park, largest, c));
        }
        let held_inputs = if shares_inputs { c.window } else { c.workers + c.queue + 1 };
        r.blocks = bytes.inputs.saturating_sub(bytes.in_strips).saturating_mul(count(held_inputs));
        // An encoder has its own; else a result is its worker's until it is written.
        let after = c.window.saturating_sub(c.workers).max(c.encoders.min(1));
        r.compute = bytes.evaluation.saturating_mul(count(c.workers)).saturating_add(bytes.outputs.saturating_mul(count(after)));
        for (target, layout) in layouts {
            let object = layout.object_bytes();
            let objects: u64 = layout.object_grid().cells().unwrap_or(u64::MAX);
            if layout.points.is_some() {
                let waiting = self.in_order(grid, traversal, *target, layout, c.window as u64);
                let buffers = waiting.saturating_add(c.encode_threads() as u64 + 1).min(objects);
                r.assemble = r.assemble.saturating_add((object + ROUNDING).saturating_mul(buffers));
                r.encode = r.encode.max(layout.encode_bytes().saturating_mul(count(c.encode_threads()).min(objects)));
                continue;
            }
            let (filling, fits) = self.filling(grid, *target, layout);
            // Asked again and again, for other levels and limits of the same order.
            let lengths: Vec<u64> = grid.0.iter().map(AxisGrid::longest).collect();
            let order = traversal.joined();
            let asked = (lengths, *target, order.clone(), c.window);
            let mut known = self.open.borrow_mut();
            let open = *known.entry(asked).or_insert_with(|| open_objects(&filling, &order, c.window));
            if open > 0 {
                let buffers = (open + c.encode_threads() as u64 + 1).min(objects);
                r.assemble = r.assemble.saturating_add(object.saturating_mul(buffers));
            }
            // An encoder lays out what lies in a block as part of something larger.
            let own = if fits || !filling.has_whole() { 0 } else { object };
            r.encode =
                r.encode.max(layout.encode_bytes().saturating_add(own).saturating_mul(count(c.encode_threads()).min(objects)));
        }
        for fold in &self.phase.folds {
            r.fold = r.fold.saturating_add(self.fold_bytes(fold, grid, traversal, c));
        }
        r
    }

    /// Of [`Setting::fixed`], the room to cut or to unpack chunks in where none is cut or packed.
    pub(super) fn idle_room(&self, frontier: &Frontier, c: Concurrency, counts_packed: bool) -> u64 {
        let is_reread = self.feeds.iter().any(|feed| feed.is_reread);
        let comes_late = frontier.margin_bytes > 0 && !frontier.is_whole;
        if frontier.cuts || comes_late || is_reread || !self.may_thin(counts_packed) {
            return 0;
        }
        self.cutting_room(c)
    }

    /// Of [`Setting::fixed`], the room to cut chunks in.
    pub(super) fn cutting_room(&self, c: Concurrency) -> u64 {
        let transient = |feed: &FeedUse| feed.feed.source.meta().transient_bytes;
        let chunk = |feed: &FeedUse| feed.feed.source.meta().chunk_shape.iter().product::<u64>().saturating_mul(feed.itemsize);
        let most = self.feeds.iter().map(|feed| chunk(feed).saturating_add(transient(feed))).max().unwrap_or(0);
        let least = self.feeds.iter().map(transient).max().unwrap_or(0);
        most.saturating_sub(least).saturating_mul(c.readers as u64)
    }

    /// Most objects of a list of points that are open or wait for those before them: all of the slabs, whole blocks along
    /// the first axis, in which unfinished blocks may lie.
    fn in_order(&self, grid: &Grid, traversal: &Traversal, target: usize, layout: &OutputLayout, window: u64) -> u64 {
        let objects = layout.object_grid();
        let all = objects.cells().unwrap_or(u64::MAX);
        let is_folded = self.phase.folds.iter().any(|f| f.outputs.iter().any(|o| o.targets.contains(&target)));
        let (parts, _) = self.parts(grid, target);
        let (Some((axis, blocks)), false) = (parts.first(), is_folded) else { return all };
        let before = traversal.order.iter().take_while(|a| *a != axis);
        if before.into_iter().any(|&a| traversal.blocks[a] > 1) {
            return all;
        }
        let others = (0..traversal.blocks.len()).filter(|a| a != axis);
        let is_cut = others.clone().any(|a| traversal.brick[a] < traversal.blocks[a]);
        let thick = if is_cut { traversal.brick[*axis] } else { 1 };
        let in_slab = others.fold(thick, |n, a| n.saturating_mul(traversal.blocks[a]));
        let slabs = 1 + window.div_ceil(in_slab.max(1));
        let rows = blocks.longest().saturating_mul(thick).div_ceil(layout.object_shape()[0].max(1)) + 1;
        let inner = objects.0[1..].iter().fold(1u64, |n, o| n.saturating_mul(o.cells()));
        slabs.saturating_mul(rows).saturating_mul(inner).min(all)
    }

    /// Whether points are stored of something that this phase makes: then blocks come in the order of their rows.
    pub(super) fn lists_points(&self) -> bool {
        let direct = self.phase.targets.iter().filter_map(|t| t.output());
        let folded = self.phase.folds.iter().flat_map(|f| f.outputs.iter().flat_map(|o| o.targets.iter().copied()));
        direct.chain(folded).any(|target| self.job.outputs[self.graph.targets[target].output].is_points)
    }

    /// What packing by the readers and unpacking by the halo stage hold beside the chunks.
    pub(super) fn pack_bytes(&self, park: Park, chunk: u64, c: Concurrency) -> u64 {
        let most = |scratch: &dyn Fn(DType) -> u64| {
            self.feeds.iter().map(|f| scratch(f.feed.source.meta().array.dtype)).max().unwrap_or(0)
        };
        let packing = most(&|dtype| pack_scratch_bytes(park, dtype, chunk)).saturating_mul(c.readers as u64);
        packing.saturating_add(chunk).saturating_add(most(&|dtype| unpack_scratch_bytes(park, dtype, chunk)))
    }

    /// True when a result may be its input's own buffer, which then lives until it is written.
    pub(super) fn shares_inputs(&self) -> bool {
        let passes = |s: &PhaseStep| matches!(&s.binding.kind, Kind::Map(m) if m.passes_through());
        self.phase.steps.iter().any(passes) || self.phase.targets.iter().any(|t| self.phase.inputs.contains(&t.array))
    }

    /// Whether threads may do what a level says: workers encode what they make where each block is an object, of local files.
    pub(super) fn may_run(&self, grid: &Grid, layouts: &[(usize, OutputLayout)], level: &Concurrency) -> bool {
        let is_object = |(target, layout): &(usize, OutputLayout)| {
            let (parts, _) = self.parts(grid, *target);
            layout.points.is_none()
                && !layout.is_remote
                && layout.codec.name != CodecName::None
                && parts.iter().zip(layout.object_axes()).all(|((_, blocks), objects)| *blocks == objects)
        };
        let is_computed = !self.phase.steps.is_empty() && Trimmer::is_of_single_blocks(self.phase);
        level.encoders > 0 || (is_computed && !layouts.is_empty() && layouts.iter().all(is_object))
    }

    /// How blocks fill the objects of a target, and whether every block is exactly one whole object.
    pub fn filling(&self, grid: &Grid, target: usize, layout: &OutputLayout) -> (Filling, bool) {
        let (parts, absent) = self.parts(grid, target);
        let objects = layout.object_grid();
        let fits = parts.iter().zip(&objects.0).zip(layout.object_shape()).all(|(((_, blocks), objects), &full)| {
            let same =
                blocks.cells() == objects.cells() && (0..blocks.cells().min(1)).all(|i| blocks.range(i) == objects.range(i));
            same && blocks.len().is_multiple_of(full)
        });
        let fits = fits && self.comes_exact(grid, target);
        (Filling::new(&parts, &objects, absent), fits)
    }

    /// True when the values of a target's block lie in a buffer of exactly that block. A view into something larger (a
    /// result with its halo, a chunk that holds several blocks) has to be copied to be encoded.
    pub(super) fn comes_exact(&self, grid: &Grid, target: usize) -> bool {
        let wanted = self.graph.targets[target].array;
        let Some(mut array) = self.phase.arrays.iter().position(|a| a.id == wanted) else { return true };
        loop {
            if self.phase.steps.iter().any(|s| s.inputs.contains(&array)) && !self.phase.inputs.contains(&array) {
                return false; // computed for later steps too, perhaps with more around it
            }
            let maker = self.phase.steps.iter().find(|s| s.outputs.contains(&Some(array)));
            match maker.map(|s| (s, &s.binding.kind)) {
                Some((s, Kind::Map(map))) if map.passes_through() => array = s.inputs[0],
                Some((_, Kind::Map(map))) => return !map.returns_halo(),
                Some((_, Kind::Fold { .. })) => return true,
                None => break,
            }
        }
        // An input: exact when blocks are its chunks and nobody needs more of it than the block.
        !self.is_grown(array)
            && self.feeds.iter().filter(|f| self.phase.inputs[f.input] == array).all(|feed| {
                let meta = feed.feed.source.meta();
                feed.feed.axes.iter().enumerate().all(|(s, axis)| match axis.view {
                    None => false,
                    Some(view) => {
                        let blocks = &grid.0[self.phase.arrays[array].axes[view].phase_axis()];
                        axis.step == 1 && axis.start == 0 && *blocks == meta.grid.0[s]
                    }
                })
            })
    }

    /// True when some step may need more of an array than the block's core: then the core comes as a view of that.
    pub(super) fn is_grown(&self, array: usize) -> bool {
        self.phase.steps.iter().filter(|s| s.inputs.contains(&array)).any(|step| {
            let uses = step.inputs.iter().zip(&step.binding.inputs).filter(|(a, _)| **a == array);
            let grows = uses.flat_map(|(_, b)| b.depth.iter().zip(&b.axes)).any(|(d, a)| *d != (0, 0) || a.is_none());
            let is_fold = matches!(step.binding.kind, Kind::Fold { .. });
            grows || is_fold || step.outputs.iter().flatten().any(|&output| self.is_grown(output))
        })
    }

    /// Per axis of a target: the phase axis and the blocks' parts along it; and the phase axes that it lacks, with the
    /// block position that delivers.
    pub fn parts(&self, grid: &Grid, target: usize) -> Parts {
        let wanted = self.graph.targets[target].array;
        if let Some(fold) = self.phase.folds.iter().find(|f| f.outputs.iter().any(|o| o.targets.contains(&target))) {
            let output = fold.outputs.iter().find(|o| o.targets.contains(&target));
            let axes: &[FoldAxis] = output.map_or(&[], |o| &o.axes);
            let any = fold.reduced.first().copied().unwrap_or(0);
            let parts = axes
                .iter()
                .map(|a| match a {
                    FoldAxis::Kept(k) => (fold.kept[*k], grid.0[fold.kept[*k]].clone()),
                    // A new axis is whole: it goes with the last block of a reduced axis, which `absent` picks.
                    FoldAxis::New(len) => {
                        let last = grid.0[any].cells();
                        (any, AxisGrid::edges((0..=last).map(|b| if b == last { *len } else { 0 }).collect()))
                    }
                })
                .collect::<Vec<_>>();
            let absent =
                (0..grid.0.len()).filter(|a| !fold.kept.contains(a)).map(|a| (a, grid.0[a].cells().saturating_sub(1))).collect();
            return (parts, absent);
        }
        let Some(array) = self.phase.arrays.iter().find(|a| a.id == wanted) else { return (Vec::new(), Vec::new()) };
        let parts: Vec<_> = array
            .axes
            .iter()
            .map(|a| match a {
                ArrayAxis::Phase(axis) => (*axis, grid.0[*axis].clone()),
                ArrayAxis::Laid { axis, length } => (*axis, laid_edges(&grid.0[*axis], length)),
            })
            .collect();
        let absent = (0..grid.0.len()).filter(|a| !parts.iter().any(|p| p.0 == *a)).map(|a| (a, 0)).collect();
        (parts, absent)
    }

    pub(super) fn fold_bytes(&self, fold: &PhaseFold, grid: &Grid, traversal: &Traversal, c: Concurrency) -> u64 {
        let Kind::Fold { fold: op, .. } = &self.phase.steps[fold.step].binding.kind else { return 0 };
        let kept_blocks = fold.kept.iter().fold(1u64, |n, &a| n.saturating_mul(grid.0[a].cells()));
        // Kept blocks that wait for more of their reduced axes: those of one brick when bricks cut these axes, else those
        // that are met before the outermost reduced axis goes on.
        let is_cut = |a: usize| traversal.brick[a] < traversal.blocks[a];
        let at = |a: usize| traversal.order.iter().position(|&o| o == a);
        let outermost = fold.reduced.iter().filter(|a| traversal.brick[**a] > 1).map(|&a| at(a)).min();
        let cuts = fold.reduced.iter().any(|&a| is_cut(a));
        let waits = |a: usize| cuts || outermost.is_some_and(|outer| at(a) > outer);
        let waiting = fold.kept.iter().filter(|a| waits(**a)).fold(1u64, |n, &a| n.saturating_mul(traversal.brick[a]));
        // Blocks may finish out of order: what all before the oldest unfinished one left, and what up to a window of later
        // ones left beside it.
        let late = c.window as u64;
        let states = match &fold.leaf {
            // Workers that meet at a kept block have a state each.
            None => waiting.saturating_add(late).min(kept_blocks).saturating_add(c.workers as u64),
            Some(leaf) => {
                let place = |a: usize| traversal.order.iter().position(|&o| o == a);
                let mut in_order = 0u64;
                let leaf_on = |a: usize| fold.reduced.iter().position(|r| *r == a).map_or(1, |at| leaf[at]);
                let all = |a: usize| grid.0[a].len().div_ceil(leaf_on(a)).max(1);
                let here = |a: usize| grid.0[a].longest().div_ceil(leaf_on(a)).max(1);
                // An axis of one leaf holds nothing up.
                for (i, &axis) in fold.reduced.iter().enumerate().filter(|(i, a)| *i == 0 || all(**a) > 1) {
                    let levels = 64 - (all(axis) - 1).leading_zeros() as u64;
                    // A row of an outer axis stays open until its inner axes are complete: one block's rows, or all
                    // rows when the inner axis advances more slowly.
                    let open = |outer: usize| if is_cut(axis) || place(axis) < place(outer) { all(outer) } else { here(outer) };
                    let rows = fold.reduced[..i].iter().fold(1u64, |n, &outer| n.saturating_mul(open(outer)));
                    in_order = in_order.saturating_add(rows.saturating_mul(levels + 2));
                }
                let of_block = fold.nodes_of_block(&self.phase.axes, |a| grid.0[a].longest());
                waiting.min(kept_blocks).saturating_mul(in_order).saturating_add(late.saturating_mul(of_block))
            }
        };
        let [state, results] = self.kept_block_bytes(fold, op.as_ref(), grid);
        states.saturating_mul(state).saturating_add(results.saturating_mul(2 + late))
    }

    /// The state of a kept block, and its results.
    fn kept_block_bytes(&self, fold: &PhaseFold, op: &dyn FoldOperator, grid: &Grid) -> [u64; 2] {
        let cells = fold.kept.iter().fold(1u64, |n, &a| n.saturating_mul(grid.0[a].longest()));
        let result = |o: &FoldOutput| cells.saturating_mul(o.cells_per_kept()).saturating_mul(o.dtype.size() as u64);
        let results = fold.outputs.iter().map(result).fold(0, u64::saturating_add);
        [cells.saturating_mul(op.state_bytes() as u64), results].map(|bytes| bytes.saturating_add(ROUNDING))
    }

    /// What a kept block takes while it is folded and stored by one thread.
    pub(super) fn state_and_results(&self, fold: &PhaseFold, grid: &Grid) -> u64 {
        let Kind::Fold { fold: op, .. } = &self.phase.steps[fold.step].binding.kind else { return 0 };
        self.kept_block_bytes(fold, op.as_ref(), grid).iter().fold(0, |n, bytes| n.saturating_add(*bytes))
    }

    /// Layouts of everything this phase writes.
    pub(super) fn layouts(&self, grid: &Grid) -> Result<Vec<(usize, OutputLayout)>, String> {
        let direct = self.phase.targets.iter().filter_map(|t| t.output());
        let folded = self.phase.folds.iter().flat_map(|f| f.outputs.iter().flat_map(|o| o.targets.iter().copied()));
        direct
            .chain(folded)
            .map(|target| {
                let graph_target = &self.graph.targets[target];
                let meta = &self.graph.arrays[graph_target.array].meta;
                let (mut shape, mut chunk) = (meta.shape.clone(), meta.chunk.clone());
                if self.graph.arrays[graph_target.array].has_open_length {
                    let (parts, _) = self.parts(grid, target);
                    shape = parts.iter().map(|(_, g)| g.len()).collect();
                    chunk = parts.iter().map(|(_, g)| g.longest()).collect();
                }
                let spec = &self.job.outputs[graph_target.output];
                let layout = super::super::output::layout(self.graph, graph_target, spec, &shape, &chunk, self.default_format);
                layout.map(|l| (target, l)).map_err(|e| format!("line {}: output `{}`: {e}", spec.line, spec.name))
            })
            .collect()
    }
}
