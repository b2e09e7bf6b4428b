//! Phases of one step that goes through blocks strip by strip, from files and to files that hold values as they are: threads read,
//! compute and write strips, and never hold a block.
//!
//! A block is the objects side by side across the strips, as far as its window fits a core's part of the last cache. Rows that two
//! blocks need are read by the first of them that comes there, and kept as margins for the other.

use super::super::feeds::FeedUse;
use super::super::frontier::{Bricks, Frontier};
use super::super::moving::Moving;
use super::super::sizes::BlockBytes;
use super::super::traversal::Traversal;
use super::held::ROUNDING;
use super::{Choice, Concurrency, Reservation, Setting, Way};
use crate::array::buffer::capacity_for;
use crate::array::{AxisGrid, Grid, Region};
use crate::codec::Park;
use crate::config::{BlockSpec, CodecName};
use crate::operators::{Kind, Sweep};
use crate::writer::OutputLayout;
use crate::writer::npy::is_npy;
use crate::writer::parts::{run_bytes, tail_bytes};

/// A window that leaves the last cache is worth less than a block that is held.
const MOST_WINDOW: u64 = 32 << 20;
/// Shorter runs of bytes cost more to ask for than to read.
const SHORT_RUN: u64 = 4 << 10;
/// What two blocks need is filtered by both as far as the window: by so much more at most.
const MOST_REPEATED: f64 = 1.5;
/// Files that all threads may have open together.
const MOST_OPEN: u64 = 256;

/// What sweeps over blocks of a shape take.
struct Swept {
    grid: Grid,
    traversal: Traversal,
    bytes: BlockBytes,
    reservation: Reservation,
    chunks: u64,
}

impl Setting<'_> {
    /// The choice by sweeps, with as many threads as there is room for; `None` where the phase is another, or that does not pay.
    pub(super) fn by_sweeps(&self, c: Concurrency) -> Result<Option<Choice>, String> {
        for threads in std::iter::successors(Some(c.workers), |n| (*n > 1).then_some(n / 2)) {
            let c = if threads == c.workers { c } else { Concurrency::of(threads) };
            match self.sweeping(c)? {
                Some(choice) if choice.reservation.total() <= self.limit => return Ok(Some(choice)),
                Some(_) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// By the sweep of a single thread that takes the least.
    pub(super) fn by_least_sweep(&self) -> Result<Option<Choice>, String> {
        self.sweeping(Concurrency::least())
    }

    /// Sweeps by so many threads, whatever they take.
    fn sweeping(&self, c: Concurrency) -> Result<Option<Choice>, String> {
        let Some((sweep, feed)) = self.swept() else { return Ok(None) };
        let axes: Vec<u64> = self.phase.axes.iter().map(|axis| axis.len).collect();
        let layouts = self.layouts(&Grid::regular(&axes, &axes))?;
        let [(_, layout)] = &layouts[..] else { return Ok(None) };
        let is_plain = layout.codec.name == CodecName::None
            && layout.shards.is_none()
            && layout.points.is_none()
            && !layout.is_remote
            && layout.shape == axes
            && !self.job.outputs.iter().any(|output| is_npy(&output.path));
        if !is_plain || axes.contains(&0) {
            return Ok(None);
        }
        // Whole across the strips; along axes before theirs as short as objects where no block needs more of the input than its own.
        let (axis, object) = (sweep.axis(), layout.object_shape());
        let mut block = axes.clone();
        block[axis] = object[axis].min(axes[axis]);
        for a in 0..axis {
            let mut second = Region::whole(&axes);
            (second.start[a], second.stop[a]) = (object[a] as i64, (2 * object[a]).min(axes[a]) as i64);
            if object[a] < axes[a] && sweep.needs(&second).axis(a) == second.axis(a) {
                block[a] = object[a];
            }
        }
        let found = self.swept_in((sweep, feed, layout), &block, c)?;
        let Some(Swept { grid, traversal, bytes, reservation, chunks }) = found else { return Ok(None) };
        let held = reservation.source;
        let frontier = Frontier { peak_bytes: held, reads: chunks, kept_bytes: held, ..Frontier::default() };
        Ok(Some(Choice {
            grid,
            traversal,
            concurrency: c,
            reservation,
            frontier,
            chunks,
            layouts,
            bytes,
            park: Park::None,
            counts_packed: false,
            moving: Some(Moving::Sweeps),
            rest: None,
        }))
    }

    /// Sweeps over blocks of this shape; `None` where they don't pay.
    fn swept_in(
        &self,
        (sweep, feed, layout): (&dyn Sweep, &FeedUse, &OutputLayout),
        block: &[u64],
        c: Concurrency,
    ) -> Result<Option<Swept>, String> {
        let axes: Vec<u64> = self.phase.axes.iter().map(|axis| axis.len).collect();
        let (axis, object, threads) = (sweep.axis(), layout.object_shape(), c.workers as u64);
        let grid = Grid::regular(&axes, block);
        if sweep.bytes(block, true) > MOST_WINDOW || !self.keeps_busy(&grid, threads) || !self.repeats_little(sweep, &grid) {
            return Ok(None);
        }
        let meta = feed.feed.source.meta();
        let longest = self.longest(sweep, &grid);
        let rows = sweep.rows(block[axis]).min(sweep.taken()).min(meta.chunk_shape[axis]);
        let run = meta.chunk_shape[axis + 1..].iter().product::<u64>().saturating_mul(rows * feed.itemsize);
        let opened = block.iter().zip(object).map(|(b, o)| b.div_ceil(*o)).product::<u64>().saturating_mul(threads);
        if run < SHORT_RUN || opened > MOST_OPEN {
            return Ok(None);
        }
        let mut strip = block.to_vec();
        strip[axis] = sweep.rows(block[axis]);
        // What comes together: all along the joined axis, of the others a chunk's part, and of those behind the strips' its all.
        let part = |a: usize| match a {
            _ if Some(a) == sweep.joined() => longest[a],
            _ if a > axis => meta.chunk_shape[a],
            _ if a == axis => meta.chunk_shape[a].min(sweep.taken()),
            _ => longest[a].min(meta.chunk_shape[a]),
        };
        let bytes = BlockBytes {
            inputs: capacity_for((0..axes.len()).map(part).fold(feed.itemsize, u64::saturating_mul) as usize) as u64,
            evaluation: sweep.bytes(block, true).saturating_add(ROUNDING),
            ..BlockBytes::default()
        };
        let order = (0..axes.len()).collect();
        let traversal = Traversal::new(&grid, order);
        let all: Vec<(u64, u64)> = traversal.blocks.iter().map(|&n| (0, n)).collect();
        let brick = Bricks::new(self.phase, &grid, self.feeds, false).brick(&all);
        let chunks = brick.feeds.iter().map(|uses| uses.links.iter().map(|l| l.chunks()).product::<u64>()).sum();
        let kept = self.fixed(&grid, &traversal, &[], &BlockBytes::default(), c, false).kept;
        // Each block at work has two, and the last one may have left one for the next.
        let margin = (0..axes.len()).map(|a| match a {
            _ if a > axis => meta.grid.0[a].cells().saturating_mul(meta.chunk_shape[a]),
            _ if a == axis => self.shared_rows(sweep, &grid),
            _ => longest[a],
        });
        let margin = margin.fold(feed.itemsize, u64::saturating_mul).saturating_add(ROUNDING);
        let reservation = Reservation {
            margins: if grid.0[axis].cells() > 1 { margin.saturating_mul(2 * threads + 1) } else { 0 },
            source: threads.saturating_mul(bytes.inputs.saturating_add(ROUNDING)),
            compute: threads.saturating_mul(bytes.evaluation),
            encode: threads.saturating_mul(run_bytes(layout, &strip).saturating_add(tail_bytes(layout, block, axis))),
            kept,
            ..Reservation::default()
        };
        Ok(Some(Swept { grid, traversal, bytes, reservation, chunks }))
    }

    /// The only step and the only feed, where that is all there is between files and axes are the same throughout.
    fn swept(&self) -> Option<(&dyn Sweep, &FeedUse)> {
        let phase = self.phase;
        let ([step], [feed], [input], [target]) = (&phase.steps[..], self.feeds, &phase.inputs[..], &phase.targets[..]) else {
            return None;
        };
        let Kind::Map(map) = &step.binding.kind else { return None };
        let sweep = map.sweep().filter(|_| !step.on_device)?;
        let same = |array: usize| {
            let axes = &phase.arrays[array].axes;
            axes.len() == phase.axes.len()
                && axes.iter().enumerate().all(|(k, axis)| !axis.depends_on_grid() && axis.phase_axis() == k)
        };
        let source = &feed.feed.source;
        let is_all = feed.feed.extent == Region::whole(&phase.arrays[*input].shape)
            && feed.feed.axes.iter().enumerate().all(|(s, axis)| axis.view == Some(s) && axis.step == 1)
            && feed.feed.axes.len() == phase.axes.len();
        let is_regular = source.meta().grid.0.iter().all(|axis| matches!(axis, AxisGrid::Regular { .. }));
        let is_alone = self.way == Way::Usual
            && self.job.engine.block == BlockSpec::Auto
            && phase.folds.is_empty()
            && phase.repeats.is_none()
            && step.inputs[..] == [*input]
            && step.outputs[..] == [Some(target.array)]
            && target.output().is_some()
            && target.array != *input
            && !phase.axes[sweep.axis()].is_whole;
        let is_stored = is_all && is_regular && source.reads_parts() && source.in_flight() == 1 && feed.bits.is_none();
        (is_alone && is_stored && same(*input) && same(target.array)).then_some((sweep, feed))
    }

    /// True where no thread has nothing to do for long at the end.
    fn keeps_busy(&self, grid: &Grid, threads: u64) -> bool {
        let blocks = grid.cells().unwrap_or(u64::MAX);
        let rounds = blocks.div_ceil(threads.max(1));
        blocks < u64::MAX && rounds.saturating_mul(threads) * 4 <= blocks.saturating_mul(5)
    }

    /// What a block needs of the input along an axis.
    fn needed(&self, sweep: &dyn Sweep, grid: &Grid, (axis, block): (usize, u64)) -> (i64, i64) {
        let mut core = Region::whole(&self.phase.axes.iter().map(|axis| axis.len).collect::<Vec<_>>());
        let range = grid.0[axis].range(block);
        (core.start[axis], core.stop[axis]) = (range.start as i64, range.end as i64);
        sweep.needs(&core).axis(axis)
    }

    /// What the largest block needs of the input, per axis.
    fn longest(&self, sweep: &dyn Sweep, grid: &Grid) -> Vec<u64> {
        let most = |a: usize| {
            let cells = grid.0[a].cells();
            let lens =
                [0, 1.min(cells - 1), cells - 1].map(|b| self.needed(sweep, grid, (a, b))).map(|(start, stop)| stop - start);
            lens.into_iter().max().unwrap_or(0) as u64
        };
        (0..grid.0.len()).map(most).collect()
    }

    /// Rows that two blocks behind each other need, at most.
    fn shared_rows(&self, sweep: &dyn Sweep, grid: &Grid) -> u64 {
        let (axis, cells) = (sweep.axis(), grid.0[sweep.axis()].cells());
        let needed = |b: u64| self.needed(sweep, grid, (axis, b));
        let pairs = [1, 2, cells.saturating_sub(1)].into_iter().filter(|b| (1..cells).contains(b));
        pairs.map(|b| (needed(b - 1).1 - needed(b).0).max(0) as u64).max().unwrap_or(0)
    }

    fn repeats_little(&self, sweep: &dyn Sweep, grid: &Grid) -> bool {
        let longest = self.longest(sweep, grid);
        let more = grid.0.iter().zip(longest).map(|(axis, needed)| needed as f64 / axis.longest().max(1) as f64);
        more.product::<f64>() <= MOST_REPEATED
    }
}
