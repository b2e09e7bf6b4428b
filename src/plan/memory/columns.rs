//! Phases that only fold what lies in files as it is: threads read, fold and write *columns*, all blocks over the same kept cells.
//!
//! Adding is less work than reading, and handing a block on costs more than adding it: its bytes would go from one core's cache
//! to the other's. So a thread takes the column of an output object (or of the few that lie in one block), and in it kept
//! block after kept block: small ones, whose states and bytes stay in the core's cache while the reduced axes go by. What a
//! block needs of a chunk is read alone, so nothing waits for another block, and each byte is read once.

use super::super::feeds::FeedBrick;
use super::super::frontier::{Bricks, Frontier};
use super::super::moving::Moving;
use super::super::phase::{PhaseFold, PhaseStep};
use super::super::sizes::block_bytes;
use super::super::traversal::Traversal;
use super::held::ROUNDING;
use super::{Choice, Concurrency, MAX_BLOCKS, Reservation, Setting, Way};
use crate::array::{AxisGrid, Grid};
use crate::codec::Park;
use crate::config::BlockSpec;
use crate::operators::Kind;
use crate::writer::OutputLayout;

/// What a block brings, at most, unless the job says how large blocks are: half a core's cache, its states being the other half.
const COLUMN_BLOCK: u64 = 1 << 20;
/// A part of a chunk that is shorter costs more to find than to read.
const SHORT_PART: u64 = 32 << 10;
/// Columns a thread, at least: with fewer some would have nothing to do at the end.
const MANY_COLUMNS: u64 = 4;

impl Setting<'_> {
    /// The choice by columns; `None` where the phase does more than fold, or that does not fit.
    pub(super) fn by_columns(&self, preferred: &Grid, c: Concurrency) -> Result<Option<Choice>, String> {
        if !self.only_folds_what_is_stored() {
            return Ok(None);
        }
        let reads_parts = self.feeds.iter().all(|feed| feed.feed.source.reads_parts());
        let is_given = self.job.engine.block != BlockSpec::Auto;
        let grid = match reads_parts {
            _ if is_given => preferred.clone(),
            true => self.thinner(&self.dividing_objects(preferred)?),
            false => self.of_chunks(preferred),
        };
        let short = if is_given { 0 } else { SHORT_PART };
        if reads_parts && !self.parts_lie_together(&grid, short) || grid.cells().is_none_or(|n| n > MAX_BLOCKS) {
            return Ok(None);
        }
        let layouts = self.layouts(&grid)?;
        let is_plain = |(_, l): &(usize, OutputLayout)| l.shards.is_none() && l.points.is_none() && !l.is_remote;
        if !self.leaves_lie_in_blocks(&grid) || !layouts.iter().all(is_plain) {
            return Ok(None);
        }
        let Some(traversal) = self.columns(&grid, &layouts) else { return Ok(None) };
        let threads = c.workers as u64;
        if traversal.brick_count() < MANY_COLUMNS * threads {
            return Ok(None);
        }
        let bytes = block_bytes(self.phase, &grid, false);
        let all: Vec<(u64, u64)> = traversal.blocks.iter().map(|&n| (0, n)).collect();
        let whole = Bricks::new(self.phase, &grid, self.feeds, false).brick(&all);
        let is_apart = |uses: &FeedBrick| uses.links.iter().all(|link| link.is_apart());
        if !reads_parts && !whole.feeds.iter().all(is_apart) {
            return Ok(None);
        }
        let chunks_of = |uses: &FeedBrick| uses.links.iter().map(|l| l.chunks()).product::<u64>();
        let reads = whole.feeds.iter().map(chunks_of).sum();
        // As if each thread were alone, with one block under way.
        let alone = Concurrency { workers: 1, window: 1, ..c };
        let states = |fold: &PhaseFold| match fold.leaf {
            None => self.state_and_results(fold, &grid),
            Some(_) => self.fold_bytes(fold, &grid, &traversal, alone),
        };
        // Objects of which a block makes a part lie open until their column is done.
        let open = |(target, layout): &(usize, OutputLayout)| {
            let (parts, _) = self.parts(&grid, *target);
            let lengths = parts.iter().map(|(axis, blocks)| blocks.longest().saturating_mul(traversal.brick[*axis]));
            let shape = layout.object_shape();
            let objects = lengths.zip(shape).map(|(length, &object)| length.div_ceil(object.max(1))).product::<u64>();
            let is_one = parts.iter().all(|(axis, _)| traversal.brick[*axis] == 1);
            if is_one { 0 } else { objects.saturating_mul(layout.object_bytes()) }
        };
        // Fixed is what sources hold open, and the room for chunks whose parts cannot be read alone.
        let fixed = self.fixed(&grid, &traversal, &[], &bytes, c, false);
        let cuts = self.feeds.iter().zip(&whole.feeds).any(|(feed, uses)| feed.cuts(uses) || !is_apart(uses));
        let idle = self.idle_room(&Frontier { cuts, ..Frontier::default() }, c, false);
        let input = bytes.inputs.saturating_add(ROUNDING);
        let reservation = Reservation {
            source: threads.saturating_mul(input),
            blocks: threads.saturating_mul(input),
            compute: threads.saturating_mul(bytes.evaluation.saturating_add(bytes.outputs).saturating_add(ROUNDING)),
            fold: threads.saturating_mul(self.phase.folds.iter().map(states).fold(0, u64::saturating_add)),
            assemble: threads.saturating_mul(layouts.iter().map(open).fold(0, u64::saturating_add)),
            encode: threads.saturating_mul(layouts.iter().map(|(_, l)| l.encode_bytes() + l.object_bytes()).max().unwrap_or(0)),
            ..fixed
        };
        if reservation.total() > self.limit {
            return Ok(None);
        }
        let reservation = Reservation { decode: reservation.decode.saturating_sub(idle), ..reservation };
        let frontier = Frontier { peak_bytes: reservation.source, reads, kept_bytes: reservation.source, ..Frontier::default() };
        Ok(Some(Choice {
            grid,
            traversal,
            concurrency: c,
            reservation,
            frontier,
            chunks: reads,
            layouts,
            bytes,
            park: Park::None,
            counts_packed: false,
            moving: Some(Moving::Columns),
            rest: None,
        }))
    }

    /// True where folds, and steps that are as little work, are all there is between files.
    fn only_folds_what_is_stored(&self) -> bool {
        let phase = self.phase;
        let is_light = |step: &PhaseStep| match &step.binding.kind {
            Kind::Map(map) => map.is_light() && !step.on_device,
            Kind::Fold { fold, .. } => fold.is_light(),
        };
        // What a block needs is no other block's.
        let has_own = |step: &PhaseStep| {
            let inputs = &step.binding.inputs;
            inputs.iter().all(|input| input.axes.iter().all(Option::is_some) && input.depth.iter().all(|d| *d == (0, 0)))
        };
        let has_all_axes = |array: &usize| {
            let axes = &phase.arrays[*array].axes;
            (0..phase.axes.len()).all(|a| phase.axes[a].len == 1 || axes.iter().any(|x| x.phase_axis() == a))
        };
        let reduced = |fold: &PhaseFold| {
            let mut list = fold.reduced.clone();
            list.sort_unstable();
            list
        };
        self.way == Way::Usual
            && !phase.folds.is_empty()
            && phase.targets.is_empty()
            && phase.repeats.is_none()
            && phase.steps.iter().all(|step| is_light(step) && has_own(step))
            && phase.inputs.iter().all(has_all_axes)
            && phase.folds.iter().all(|fold| reduced(fold) == reduced(&phase.folds[0]))
            && phase.folds.iter().flat_map(|fold| &fold.outputs).all(|output| !output.is_kept)
            && self.feeds.iter().all(|feed| feed.feed.source.in_flight() == 1 && feed.bits.is_none())
    }

    /// True where no leaf of a fold reaches into another block.
    fn leaves_lie_in_blocks(&self, grid: &Grid) -> bool {
        let fits = |axis: usize, leaf: u64| match &grid.0[axis] {
            AxisGrid::Regular { len, cell } => cell >= len || cell.is_multiple_of(leaf),
            AxisGrid::Edges(_) => false,
        };
        self.phase.folds.iter().all(|fold| fold.reduced.iter().all(|&a| fold.leaf_on(a).is_none_or(|leaf| fits(a, leaf))))
    }

    /// Blocks cut along their slowest axis until they are small: what is left of a chunk lies together in it.
    fn thinner(&self, preferred: &Grid) -> Grid {
        let mut grid = preferred.clone();
        while block_bytes(self.phase, &grid, false).inputs > COLUMN_BLOCK {
            let leaf = |a: usize| self.phase.folds.iter().filter_map(|f| f.leaf_on(a)).max().unwrap_or(1);
            let slowest = (0..grid.0.len()).find(|&a| grid.0[a].longest() > leaf(a));
            match slowest.map(|a| (a, &grid.0[a])) {
                Some((a, AxisGrid::Regular { len, cell }))
                    if cell.is_multiple_of(2 * leaf(a)) && !self.phase.axes[a].is_whole =>
                {
                    grid.0[a] = AxisGrid::regular(*len, cell / 2);
                }
                _ => break,
            }
        }
        grid
    }

    /// Somewhat shorter blocks, where those that are preferred would not divide the objects of outputs.
    fn dividing_objects(&self, preferred: &Grid) -> Result<Grid, String> {
        let mut grid = preferred.clone();
        for (target, layout) in self.layouts(preferred)? {
            let (parts, _) = self.parts(preferred, target);
            for ((axis, _), &object) in
                parts.iter().zip(layout.object_shape()).filter(|((a, _), _)| !self.phase.axes[*a].is_reduced)
            {
                if let AxisGrid::Regular { len, cell } = grid.0[*axis]
                    && cell < object.min(len)
                {
                    let divisor = (1..=cell).rev().find(|n| object.is_multiple_of(*n)).unwrap_or(1);
                    grid.0[*axis] = AxisGrid::regular(len, divisor);
                }
            }
        }
        Ok(grid)
    }

    /// True where the part of a chunk that a block needs is one row of bytes, whole on all axes but its slowest, and of
    /// `short` bytes at least, unless chunks are shorter.
    fn parts_lie_together(&self, grid: &Grid, short: u64) -> bool {
        self.feeds.iter().all(|feed| {
            let array = &self.phase.arrays[self.phase.inputs[feed.input]];
            let (mut is_cut, mut part, mut whole) = (false, feed.itemsize, feed.itemsize);
            let is_row = feed.feed.axes.iter().zip(&feed.feed.source.meta().grid.0).all(|(axis, own)| {
                let chunk = own.longest();
                let Some(view) = axis.view else { return chunk == 1 || !is_cut };
                let block = &grid.0[array.axes[view].phase_axis()];
                let is_whole = block.longest() >= own.len() || block.longest().is_multiple_of(chunk);
                let (fits, kept) = (!is_cut || is_whole && axis.step == 1, block.longest().min(chunk));
                is_cut |= kept > 1;
                (part, whole) = (part.saturating_mul(kept), whole.saturating_mul(chunk));
                fits
            });
            is_row && part >= short.min(whole)
        })
    }

    /// Blocks of whole chunks.
    fn of_chunks(&self, preferred: &Grid) -> Grid {
        let mut grid = preferred.clone();
        for feed in self.feeds {
            for (axis, own) in feed.feed.axes.iter().zip(&feed.feed.source.meta().grid.0) {
                let Some(view) = axis.view else { continue };
                let a = self.phase.arrays[self.phase.inputs[feed.input]].axes[view].phase_axis();
                let (chunk, len) = (own.longest(), self.phase.axes[a].len);
                if grid.0[a].longest() < chunk {
                    grid.0[a] = AxisGrid::regular(len, chunk);
                }
            }
        }
        grid
    }

    /// Kept blocks one after the other, each with all that is reduced, in bricks that hold whole objects; `None` where blocks and
    /// objects have other edges.
    fn columns(&self, grid: &Grid, layouts: &[(usize, OutputLayout)]) -> Option<Traversal> {
        let is_reduced = |a: usize| self.phase.axes[a].is_reduced;
        let mut order: Vec<usize> = (0..grid.0.len()).collect();
        order.sort_by_key(|&a| is_reduced(a));
        let mut traversal = Traversal::new(grid, order);
        for a in (0..grid.0.len()).filter(|&a| !is_reduced(a)) {
            traversal.brick[a] = 1;
        }
        for (target, layout) in layouts {
            let (parts, _) = self.parts(grid, *target);
            for ((axis, blocks), &object) in parts.iter().zip(layout.object_shape()).filter(|((a, _), _)| !is_reduced(*a)) {
                let AxisGrid::Regular { len, cell } = blocks else { return None };
                let in_object = match object >= *len {
                    true => traversal.blocks[*axis],
                    false if object.is_multiple_of(*cell) => object / cell,
                    false if cell.is_multiple_of(object) => 1,
                    false => return None,
                };
                let brick = &mut traversal.brick[*axis];
                let (less, more) = (in_object.min(*brick), in_object.max(*brick));
                if !more.is_multiple_of(less.max(1)) {
                    return None;
                }
                *brick = more.max(1);
            }
        }
        Some(traversal)
    }
}
