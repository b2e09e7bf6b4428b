//! Chooses block grid, traversal and concurrency so that everything fits the limit, and says what fits if nothing does.
//!
//! In order of preference: the preferred block at full concurrency, less concurrency, smaller blocks, then re-reading in
//! ever smaller bricks. A limit below the last of these is refused, with the smallest one that works.

use super::feeds::FeedUse;
use super::frontier::{Bricks, Filling, Frontier, least, open_objects, simulate};
use super::graph::{Graph, Producer};
use super::phase::{ArrayAxis, FoldAxis, Phase, PhaseAxis};
use super::sizes::{BlockBytes, block_bytes, laid_edges};
use super::traversal::Traversal;
use super::{PlanError, Way};
use crate::array::{AxisGrid, DType, Grid};
use crate::codec::{Park, pack_scratch_bytes, unpack_scratch_bytes};
use crate::config::{BlockSpec, JobSpec};
use crate::operators::Kind;
use crate::writer::OutputLayout;

/// How many of what runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Concurrency {
    pub workers: usize,
    pub readers: usize,
    pub encoders: usize,
    /// Blocks waiting for a worker.
    pub queue: usize,
    /// Blocks between the halo stage and the writer's last copy.
    pub window: usize,
}

impl Concurrency {
    pub fn of(workers: usize) -> Self {
        let encoders = workers;
        Self { workers, readers: workers, encoders, queue: workers, window: 2 * workers + encoders + 2 }
    }

    fn least() -> Self {
        Self { workers: 1, readers: 1, encoders: 1, queue: 1, window: 3 }
    }
}

/// Bytes reserved per stage: the accounts of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reservation {
    /// Source chunks, parked or on their way to be.
    pub source: u64,
    /// Chunks being fetched and decoded.
    pub decode: u64,
    /// Blocks handed to workers.
    pub blocks: u64,
    /// Workers' memory, and results until they are written.
    pub compute: u64,
    /// Output objects being assembled.
    pub assemble: u64,
    /// Output objects being encoded.
    pub encode: u64,
    /// States of folds.
    pub fold: u64,
    /// Results of folds that later phases read, and what sources keep while open.
    pub kept: u64,
}

impl Reservation {
    pub fn total(&self) -> u64 {
        [self.source, self.decode, self.blocks, self.compute, self.assemble, self.encode, self.fold, self.kept]
            .iter()
            .fold(0u64, |n, b| n.saturating_add(*b))
    }
}

/// A phase with everything decided.
pub struct Choice {
    pub grid: Grid,
    pub traversal: Traversal,
    pub concurrency: Concurrency,
    pub reservation: Reservation,
    pub frontier: Frontier,
    /// Chunks that one pass without bricks would fetch.
    pub chunks: u64,
    /// Per target of the phase, and per fold target after them.
    pub layouts: Vec<(usize, OutputLayout)>,
    pub bytes: BlockBytes,
    pub park: Park,
    pub counts_packed: bool,
}

/// What a traversal takes: all but the source's reservation, and what is parked.
struct Held {
    fixed: Reservation,
    frontier: Frontier,
    /// Chunks that one pass without bricks would fetch.
    chunks: u64,
    counts_packed: bool,
}

/// What the choice is made from.
pub struct Setting<'a> {
    pub job: &'a JobSpec,
    pub park: Park,
    pub graph: &'a Graph,
    pub phase: &'a Phase,
    pub feeds: &'a [FeedUse],
    pub limit: u64,
    pub workers: usize,
    /// Bytes held by other phases' results and by open sources throughout.
    pub held: u64,
    pub default_format: u8,
    pub way: Way,
}

/// A block whose results and inputs are at least this large costs little overhead per byte.
const SMALL_BLOCK: u64 = 1 << 20;
/// Blocks of fold-only phases are cut to about this.
const LARGE_BLOCK: u64 = 16 << 20;
/// Read ahead of the frontier by at most this many chunks per reader, when memory is free.
const AHEAD_CHUNKS: u64 = 2;
/// Smaller blocks are not tried when there would be more of them than this.
const MOST_BLOCKS: u64 = 2_000_000;
/// The preferred block and this many halvings less one are tried with all workers before fewer workers are.
const NEAR_BLOCKS: usize = 5;
/// Each block is walked through while planning: a job of more is refused, since planning alone would take minutes.
const MAX_BLOCKS: u64 = 1 << 24;
/// What a small buffer may take beyond its length.
const ROUNDING: u64 = 64;
/// Traversals of more blocks than this are not tried in every order.
const MANY_BLOCKS: u64 = 200_000;

impl Setting<'_> {
    /// The first choice that fits the limit, or the smallest limit that works.
    pub fn choose(&self) -> Result<Choice, Refusal> {
        let preferred = self.preferred_block().map_err(Refusal::Wrong)?;
        let preferred = if self.way == Way::Usual { preferred } else { self.other_block(&preferred) };
        let is_given = self.job.engine.block != BlockSpec::Auto && self.way == Way::Usual;
        let has_laid = self.phase.arrays.iter().any(|a| a.axes.iter().any(|x| x.depends_on_grid()));
        let mut grids = vec![preferred];
        while !is_given && !has_laid && grids.len() < 16 {
            match self.smaller(&grids[grids.len() - 1]) {
                Some(grid) if grid.cells().is_some_and(|n| n <= MOST_BLOCKS) => grids.push(grid),
                _ => break,
            }
        }
        if grids[0].cells().is_none_or(|n| n > MAX_BLOCKS) {
            let shape = grids[0].shape();
            return Err(Refusal::Wrong(format!(
                "{shape:?} would be computed in more than {MAX_BLOCKS} blocks; select a part of it, or use larger blocks"
            )));
        }
        let full = Concurrency::of(self.workers);
        // Workers matter most: readers and encoders of large chunks give way first.
        let mut levels = vec![
            full,
            Concurrency { readers: 1, ..full },
            Concurrency { readers: 1, encoders: 1, queue: 1, window: self.workers + 3, ..full },
        ];
        let busy = levels.len();
        if self.workers > 2 {
            levels.push(Concurrency { readers: 1, ..Concurrency::of(self.workers / 2) });
        }
        levels.push(Concurrency::least());
        // Somewhat smaller blocks cost less than idle workers; tiny ones, of which the halo is the larger part, cost more.
        let near = grids.len().min(NEAR_BLOCKS);
        let searches = [(&grids[..near], &levels[..busy]), (&grids[..], &levels[..])];
        // Without re-reading first, whatever the block; then with packed parking.
        for (counts_packed, (grids, levels)) in self.parkings().into_iter().flat_map(|p| searches.map(|s| (p, s))) {
            for grid in grids {
                let layouts = self.layouts(grid).map_err(Refusal::Wrong)?;
                let bytes = block_bytes(self.phase, grid);
                let traversals = self.traversals(grid);
                for level in levels {
                    let fixed = |t: &Traversal| self.fixed(grid, t, &layouts, &bytes, *level, counts_packed);
                    if fixed(&traversals[0]).total() > self.limit {
                        continue;
                    }
                    let mut bricks = Bricks::new(self.phase, grid, self.feeds, counts_packed);
                    let best = traversals.iter().map(|t| (simulate(&mut bricks, t), t)).min_by_key(|(f, _)| f.peak_bytes);
                    let Some((frontier, traversal)) = best else { continue };
                    let fixed = fixed(traversal);
                    if fixed.total().saturating_add(frontier.peak_bytes) <= self.limit {
                        let held = Held { fixed, frontier, chunks: frontier.reads, counts_packed };
                        return Ok(self.settle(grid, traversal, *level, held, layouts, bytes));
                    }
                }
            }
        }
        let mut smallest: Option<u64> = None;
        let level = Concurrency::least();
        for grid in &grids {
            let layouts = self.layouts(grid).map_err(Refusal::Wrong)?;
            let bytes = block_bytes(self.phase, grid);
            let traversals = self.traversals(grid);
            let Some(whole) = traversals.first() else { continue };
            // Packed chunks need fewer bricks; plain ones need less room to begin with.
            for counts_packed in self.parkings().into_iter().rev() {
                let fixed = |t: &Traversal| self.fixed(grid, t, &layouts, &bytes, level, counts_packed);
                let mut bricks = Bricks::new(self.phase, grid, self.feeds, counts_packed);
                let chunks = simulate(&mut bricks, whole).reads;
                let mut single = whole.clone();
                single.brick = single.brick.iter().map(|_| 1).collect();
                let need = fixed(&single).total().saturating_add(least(&mut bricks));
                smallest = Some(smallest.map_or(need, |s| s.min(need)));
                if need <= self.limit {
                    let (traversal, frontier) = self.bricks(&mut bricks, whole, |t| fixed(t).total());
                    let held = Held { fixed: fixed(&traversal), frontier, chunks, counts_packed };
                    return Ok(self.settle(grid, &traversal, level, held, layouts, bytes));
                }
            }
        }
        Err(Refusal::TooSmall { smallest: smallest.unwrap_or(u64::MAX) })
    }

    /// Whether to count on packed parking: not, and then so where a source guarantees a width.
    fn parkings(&self) -> Vec<bool> {
        let may_pack = matches!(self.park, Park::Auto | Park::Bitpack) && self.feeds.iter().any(|f| f.bits.is_some());
        if may_pack { vec![false, true] } else { vec![false] }
    }

    /// Halves bricks until the frontier fits: each time along the axis that helps most.
    fn bricks(&self, bricks: &mut Bricks<'_>, whole: &Traversal, fixed: impl Fn(&Traversal) -> u64) -> (Traversal, Frontier) {
        let mut now = whole.clone();
        loop {
            let frontier = simulate(bricks, &now);
            if fixed(&now).saturating_add(frontier.peak_bytes) <= self.limit {
                return (now, frontier);
            }
            let next = (0..now.brick.len())
                .filter(|&a| now.brick[a] > 1)
                .map(|a| {
                    let mut t = now.clone();
                    t.brick[a] = t.brick[a].div_ceil(2);
                    let f = simulate(bricks, &t);
                    ((fixed(&t).saturating_add(f.peak_bytes), f.reads), t)
                })
                .min_by_key(|(cost, _)| *cost);
            match next {
                Some((_, t)) => now = t,
                None => return (now, frontier), // single blocks: checked by the caller
            }
        }
    }

    fn settle(
        &self,
        grid: &Grid,
        traversal: &Traversal,
        concurrency: Concurrency,
        held: Held,
        layouts: Vec<(usize, OutputLayout)>,
        bytes: BlockBytes,
    ) -> Choice {
        let Held { mut fixed, frontier, chunks, counts_packed } = held;
        // What is left reads ahead, but never more than there is to read.
        let mut left = self.limit.saturating_sub(fixed.total()).saturating_sub(frontier.peak_bytes);
        let ahead = frontier.largest_kept.max(frontier.largest_arrival).saturating_mul(AHEAD_CHUNKS * concurrency.readers as u64);
        let mut park = self.park;
        if park == Park::Auto {
            // Packing costs time and pays only where memory holds reading back, and needs scratch of its own.
            let scratch = self.pack_bytes(Park::Auto, frontier.largest_kept, concurrency);
            if left < ahead && frontier.peak_bytes < frontier.kept_bytes && scratch <= left {
                fixed.decode = fixed.decode.saturating_add(scratch);
                left -= scratch;
            } else {
                park = Park::None;
            }
        }
        let source = frontier.peak_bytes.saturating_add(ahead.min(left)).min(frontier.kept_bytes.max(frontier.peak_bytes));
        let reservation = Reservation { source, ..fixed };
        Choice {
            park,
            counts_packed,
            grid: grid.clone(),
            traversal: traversal.clone(),
            concurrency,
            reservation,
            frontier,
            chunks,
            layouts,
            bytes,
        }
    }

    /// Everything but the source's reservation.
    fn fixed(
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
        r.blocks = bytes.inputs.saturating_mul(count(held_inputs));
        let after = c.window.saturating_sub(c.workers).max(1);
        r.compute = bytes.evaluation.saturating_mul(count(c.workers)).saturating_add(bytes.outputs.saturating_mul(count(after)));
        for (target, layout) in layouts {
            let object = layout.object_bytes();
            let objects: u64 = layout.object_grid().cells().unwrap_or(u64::MAX);
            if layout.points.is_some() {
                let waiting = self.in_order(grid, traversal, *target, layout, c.window as u64);
                let buffers = waiting.saturating_add(c.encoders as u64 + 1).min(objects);
                r.assemble = r.assemble.saturating_add((object + ROUNDING).saturating_mul(buffers));
                r.encode = r.encode.max(layout.encode_bytes().saturating_mul(count(c.encoders).min(objects)));
                continue;
            }
            let (filling, fits) = self.filling(grid, *target, layout);
            let open = open_objects(&filling, traversal, c.window);
            if open > 0 || !fits {
                let buffers = (open + c.encoders as u64 + 1).min(objects);
                r.assemble = r.assemble.saturating_add(object.saturating_mul(buffers));
            }
            r.encode = r.encode.max(layout.encode_bytes().saturating_mul(count(c.encoders).min(objects)));
        }
        for fold in &self.phase.folds {
            r.fold = r.fold.saturating_add(self.fold_bytes(fold, grid, traversal, c));
        }
        r
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
    fn lists_points(&self) -> bool {
        let direct = self.phase.targets.iter().filter_map(|t| t.output());
        let folded = self.phase.folds.iter().flat_map(|f| f.outputs.iter().flat_map(|o| o.targets.iter().copied()));
        direct.chain(folded).any(|target| self.job.outputs[self.graph.targets[target].output].is_points)
    }

    /// What packing by the readers and unpacking by the halo stage hold beside the chunks.
    fn pack_bytes(&self, park: Park, chunk: u64, c: Concurrency) -> u64 {
        let most = |scratch: &dyn Fn(DType) -> u64| {
            self.feeds.iter().map(|f| scratch(f.feed.source.meta().array.dtype)).max().unwrap_or(0)
        };
        let packing = most(&|dtype| pack_scratch_bytes(park, dtype, chunk)).saturating_mul(c.readers as u64);
        packing.saturating_add(chunk).saturating_add(most(&|dtype| unpack_scratch_bytes(park, dtype, chunk)))
    }

    /// True when a result may be its input's own buffer, which then lives until it is written.
    fn shares_inputs(&self) -> bool {
        let passes = |s: &super::phase::PhaseStep| matches!(&s.binding.kind, Kind::Map(m) if m.passes_through());
        self.phase.steps.iter().any(passes) || self.phase.targets.iter().any(|t| self.phase.inputs.contains(&t.array))
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
    fn comes_exact(&self, grid: &Grid, target: usize) -> bool {
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
    fn is_grown(&self, array: usize) -> bool {
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

    fn fold_bytes(&self, fold: &super::phase::PhaseFold, grid: &Grid, traversal: &Traversal, c: Concurrency) -> u64 {
        let Kind::Fold { fold: op, .. } = &self.phase.steps[fold.step].binding.kind else { return 0 };
        let kept_cells = fold.kept.iter().fold(1u64, |n, &a| n.saturating_mul(grid.0[a].longest()));
        let kept_blocks = fold.kept.iter().fold(1u64, |n, &a| n.saturating_mul(grid.0[a].cells()));
        // Kept blocks that wait for more of their reduced axes: those of one brick when bricks cut these axes.
        let is_cut = |a: usize| traversal.brick[a] < traversal.blocks[a];
        let in_brick = fold.kept.iter().fold(1u64, |n, &a| n.saturating_mul(traversal.brick[a]));
        let waiting = if fold.reduced.iter().any(|&a| is_cut(a)) { in_brick } else { 1 };
        // Blocks may finish out of order: what all before the oldest unfinished one left, and what up to a window of later
        // ones left beside it.
        let late = c.window as u64;
        let states = match fold.leaf {
            None => waiting.saturating_add(late).min(kept_blocks),
            Some(leaf) => {
                let place = |a: usize| traversal.order.iter().position(|&o| o == a);
                let (mut in_order, mut of_block) = (0u64, 1u64);
                for (i, &axis) in fold.reduced.iter().enumerate() {
                    let all = |a: usize| grid.0[a].len().div_ceil(leaf).max(1);
                    let here = |a: usize| grid.0[a].longest().div_ceil(leaf).max(1);
                    let levels = 64 - (all(axis) - 1).leading_zeros() as u64;
                    // A row of an outer axis stays open until its inner axes are complete: one block's rows, or all
                    // rows when the inner axis advances more slowly.
                    let open = |outer: usize| if is_cut(axis) || place(axis) < place(outer) { all(outer) } else { here(outer) };
                    let rows = fold.reduced[..i].iter().fold(1u64, |n, &outer| n.saturating_mul(open(outer)));
                    in_order = in_order.saturating_add(rows.saturating_mul(levels + 2));
                    let is_last = i + 1 == fold.reduced.len();
                    of_block = of_block.saturating_mul(if is_last { here(axis).min(2 * levels + 2) } else { here(axis) });
                }
                waiting.min(kept_blocks).saturating_mul(in_order).saturating_add(late.saturating_mul(of_block))
            }
        };
        let results: u64 = fold
            .outputs
            .iter()
            .map(|o| kept_cells.saturating_mul(o.cells_per_kept()).saturating_mul(o.dtype.size() as u64))
            .fold(0, u64::saturating_add);
        let state = kept_cells.saturating_mul(op.state_bytes() as u64).saturating_add(ROUNDING);
        states.saturating_mul(state).saturating_add(results.saturating_add(ROUNDING).saturating_mul(2 + late))
    }

    /// Layouts of everything this phase writes.
    fn layouts(&self, grid: &Grid) -> Result<Vec<(usize, OutputLayout)>, String> {
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
                let layout = super::output::layout(self.graph, graph_target, spec, &shape, &chunk, self.default_format);
                layout.map(|l| (target, l)).map_err(|e| format!("line {}: output `{}`: {e}", spec.line, spec.name))
            })
            .collect()
    }

    /// The block grid that the job asks for, or that suits its outputs.
    fn preferred_block(&self) -> Result<Grid, String> {
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
                        if let Some(leaf) = fold.leaf
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
    fn other_block(&self, usual: &Grid) -> Grid {
        let other = |(axis, grid): (&PhaseAxis, &AxisGrid)| match grid.longest() {
            len if axis.is_whole => len,
            1 => 2.min(axis.len),
            len => (len * 3 / 5).max(1),
        };
        let axes = &self.phase.axes;
        grid(axes, &axes.iter().zip(&usual.0).map(other).collect::<Vec<_>>())
    }

    /// Grows small blocks by whole units; cuts the blocks of a phase that only folds.
    fn resized(&self, unit: Vec<u64>) -> Grid {
        let axes = &self.phase.axes;
        let mut lengths = unit.clone();
        let weight = |lengths: &[u64]| {
            let bytes = block_bytes(self.phase, &grid(axes, lengths));
            bytes.inputs.max(bytes.outputs)
        };
        while weight(&lengths) < SMALL_BLOCK {
            // The axis with the most blocks left keeps blocks compact and leaves work for every worker.
            let blocks = |a: usize| axes[a].len.div_ceil(lengths[a].max(1));
            let all: u64 = (0..axes.len()).map(blocks).fold(1, u64::saturating_mul);
            let axis = (0..axes.len()).filter(|&a| !axes[a].is_whole && blocks(a) > 1).max_by_key(|&a| blocks(a));
            match axis {
                Some(axis) if all > 4 * self.workers as u64 => {
                    lengths[axis] = (lengths[axis] + unit[axis].max(lengths[axis])).min(axes[axis].len)
                }
                _ => break,
            }
        }
        if self.phase.targets.is_empty() {
            while weight(&lengths) > LARGE_BLOCK {
                let leaf = |a: usize| {
                    self.phase.folds.iter().filter(|f| f.reduced.contains(&a)).filter_map(|f| f.leaf).max().unwrap_or(1)
                };
                let axis =
                    (0..axes.len()).filter(|&a| !axes[a].is_whole && lengths[a] >= 2 * leaf(a)).max_by_key(|&a| lengths[a]);
                match axis {
                    Some(a) => lengths[a] = (lengths[a] / 2).next_multiple_of(leaf(a)).min(lengths[a] - 1),
                    None => break,
                }
            }
        }
        grid(axes, &lengths)
    }

    /// The grid with its longest axis halved; `None` when blocks are small enough already.
    fn smaller(&self, now: &Grid) -> Option<Grid> {
        let axes = &self.phase.axes;
        let bytes = block_bytes(self.phase, now);
        if bytes.inputs.max(bytes.evaluation) < 64 << 10 {
            return None;
        }
        let axis =
            (0..axes.len()).filter(|&a| !axes[a].is_whole && now.0[a].longest() > 1).max_by_key(|&a| now.0[a].longest())?;
        let mut next = now.clone();
        next.0[axis] = AxisGrid::regular(axes[axis].len, now.0[axis].longest().div_ceil(2));
        Some(next)
    }

    /// Orders worth trying. Reduced axes go innermost, so that a kept block is finished before the next begins.
    fn traversals(&self, grid: &Grid) -> Vec<Traversal> {
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

fn grid(axes: &[super::phase::PhaseAxis], lengths: &[u64]) -> Grid {
    Grid(axes.iter().zip(lengths).map(|(a, &n)| AxisGrid::regular(a.len, if a.is_whole { a.len } else { n })).collect())
}

/// Per axis of an array: the phase axis and the blocks' parts along it; and the phase axes that the array lacks, with the
/// block position that delivers.
pub type Parts = (Vec<(usize, AxisGrid)>, Vec<(usize, u64)>);

/// Why nothing was chosen.
#[derive(Debug)]
pub enum Refusal {
    TooSmall { smallest: u64 },
    Wrong(String),
}

impl Refusal {
    pub fn into_error(self, limit: u64) -> PlanError {
        match self {
            Refusal::TooSmall { smallest } => PlanError::Memory { limit, smallest },
            Refusal::Wrong(message) => PlanError::Wrong(message),
        }
    }
}
