//! Chooses block grid, traversal and concurrency so that everything fits the limit, and says what fits if nothing does.
//!
//! In order of preference: the preferred block at full concurrency, less concurrency, smaller blocks, then re-reading in
//! ever smaller bricks; tiny blocks only where re-reading is no less than half their work. A limit below the last of these is refused, with the smallest one that works.

mod blocks;
mod columns;
mod held;
mod sweeps;

use std::cell::RefCell;
use std::collections::HashMap;

use super::feeds::FeedUse;
use super::frontier::{Bricks, Frontier, Thin, least, simulate};
use super::graph::Graph;
use super::moving::Moving;
use super::phase::Phase;
use super::sizes::{BlockBytes, block_bytes};
use super::traversal::Traversal;
use super::{PlanError, Way};
use crate::array::Grid;
use crate::codec::Park;
use crate::config::{BlockSpec, JobSpec};
use crate::remote;
use crate::writer::OutputLayout;
use blocks::MANY_BLOCKS;
pub use held::Parts;

/// How many of what runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Concurrency {
    pub workers: usize,
    pub readers: usize,
    /// 0: workers encode what they made.
    pub encoders: usize,
    /// Blocks waiting for a worker, beside the one that is being made.
    pub queue: usize,
    /// Blocks between the halo stage and the writer's last copy.
    pub window: usize,
}

impl Concurrency {
    pub fn of(workers: usize) -> Self {
        let encoders = workers;
        Self { workers, readers: workers, encoders, queue: workers, window: 2 * workers + encoders + 2 }
    }

    /// The same for blocks that keep everybody busy for long: the one being made is all that waits, since what waits is
    /// memory that is touched for the first time.
    fn of_large(workers: usize) -> Self {
        let usual = Self::of(workers);
        Self { queue: 0, window: workers + usual.encoders, ..usual }
    }

    /// The same for large blocks that are objects: who has made one encodes and stores it, so that no result waits.
    fn encoding(self) -> Self {
        Self { encoders: 0, window: self.workers, ..self }
    }

    /// Threads that encode.
    pub fn encode_threads(&self) -> usize {
        if self.encoders == 0 { self.workers } else { self.encoders }
    }

    fn least() -> Self {
        Self { workers: 1, readers: 1, encoders: 1, queue: 0, window: 3 }
    }
}

/// Bytes reserved per stage: the accounts of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reservation {
    /// Source chunks, parked or on their way to be.
    pub source: u64,
    /// What is kept of chunks that became thin.
    pub margins: u64,
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
    /// Source chunks that passes read again, as far as there is room.
    pub again: u64,
}

impl Reservation {
    pub fn total(&self) -> u64 {
        let held = [self.source, self.margins, self.decode, self.blocks, self.compute, self.assemble, self.encode];
        held.iter().chain(&[self.fold, self.kept, self.again]).fold(0u64, |n, b| n.saturating_add(*b))
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
    /// Threads move or fold blocks whole.
    pub moving: Option<Moving>,
    /// What is chosen where blocks are left out, if that makes a difference.
    pub rest: Option<Box<Choice>>,
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
    /// Open objects by blocks, target, order and window, as far as they were asked for.
    pub open: RefCell<HashMap<(Vec<u64>, usize, Traversal, usize), u64>>,
}

/// Fewer reads under way than this are no gain over as many as there are workers.
const FEW_IN_FLIGHT: usize = 4;
/// Read ahead of the frontier by at most this many chunks per reader, when memory is free.
const AHEAD_CHUNKS: u64 = 2;
/// So many large chunks in the frontier need none beside them to be read ahead.
const MANY_CHUNKS: u64 = 4;
/// Of blocks and chunks of this size fewer wait for their turn.
const LARGE: u64 = 8 << 20;
/// Smaller blocks are not tried when there would be more of them than this.
const MOST_BLOCKS: u64 = 2_000_000;
/// The preferred block and this many halvings less one are tried with all workers before fewer workers are.
const NEAR_BLOCKS: usize = 5;
/// With chunks read again, so many halvings of blocks are looked at beyond the best one so far.
const NEARBY: u32 = 3;
/// Each block is walked through while planning: a job of more is refused, since planning alone would take minutes.
const MAX_BLOCKS: u64 = 1 << 24;

impl Setting<'_> {
    /// Reads and writes worth having under way at once.
    fn in_flight(&self) -> usize {
        self.reads_in_flight().max(if self.writes_far() { remote::IN_FLIGHT } else { 1 })
    }

    fn reads_in_flight(&self) -> usize {
        self.feeds.iter().map(|used| used.feed.source.in_flight()).max().unwrap_or(1)
    }

    fn writes_far(&self) -> bool {
        self.job.outputs.iter().any(|output| remote::is_url(&output.path))
    }

    /// So many readers where sources are far, so many encoders where outputs are.
    fn waiting_together(&self, usual: Concurrency, n: usize) -> Concurrency {
        let readers = if self.reads_in_flight() > 1 { n } else { usual.readers };
        let encoders = if self.writes_far() { n } else { usual.encoders };
        Concurrency { readers, encoders, window: usual.window - usual.encoders + encoders, ..usual }
    }

    /// The first choice that fits the limit, or the smallest limit that works; with what is chosen where blocks are left out.
    pub fn choose(&self) -> Result<Choice, Refusal> {
        let mut choice = self.choose_once(true)?;
        if choice.frontier.is_whole {
            choice.rest = Some(Box::new(self.choose_once(false)?));
        }
        Ok(choice)
    }

    /// `is_whole`: no block is left out, done by an earlier run or by another process.
    fn choose_once(&self, is_whole: bool) -> Result<Choice, Refusal> {
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
        let bytes = block_bytes(self.phase, &grids[0], false);
        let is_large = bytes.inputs.max(bytes.outputs) >= LARGE;
        let full = if is_large { Concurrency::of_large(self.workers) } else { Concurrency::of(self.workers) };
        // Reads that wait long for their first byte wait together, as far as there is room.
        let more = std::iter::successors(Some(self.in_flight()), |n| Some(n / 2));
        let more = more.take_while(|n| *n >= FEW_IN_FLIGHT && *n > self.workers);
        let mut levels: Vec<Concurrency> = more.map(|n| self.waiting_together(full, n)).collect();
        // Workers matter most: readers and encoders of large chunks give way first.
        if is_large {
            levels.extend([full.encoding(), Concurrency { readers: 1, ..full }.encoding()]);
        }
        levels.extend([
            full,
            Concurrency { readers: 1, ..full },
            Concurrency { readers: 1, encoders: 1, queue: full.queue.min(1), window: self.workers + 3, ..full },
        ]);
        if let Some(choice) = self.by_columns(&grids[0], full).map_err(Refusal::Wrong)? {
            return Ok(choice);
        }
        if let Some(choice) = self.by_sweeps(full).map_err(Refusal::Wrong)? {
            return Ok(choice);
        }
        let busy = levels.len();
        if self.workers > 2 {
            levels.push(Concurrency { readers: 1, ..Concurrency::of(self.workers / 2) });
        }
        levels.push(Concurrency::least());
        // Somewhat smaller blocks cost less than idle workers; tiny ones, of which the halo is the larger part, cost more.
        let near = grids.len().min(NEAR_BLOCKS);
        let searches = [(&grids[..near], &levels[..busy]), (&grids[..], &levels[..])];
        // Without re-reading first, whatever the block; then with packed parking.
        let mut once: Option<(u64, Choice)> = None;
        'search: for (counts_packed, (grids, levels)) in self.parkings().into_iter().flat_map(|p| searches.map(|s| (p, s))) {
            for (smaller, grid) in grids.iter().enumerate() {
                let layouts = self.layouts(grid).map_err(Refusal::Wrong)?;
                let bytes = block_bytes(self.phase, grid, self.takes_strips(counts_packed));
                let traversals = self.traversals(grid);
                let thin = match self.rows(counts_packed) {
                    Thin::Rows if is_whole && !has_laid => Thin::Whole,
                    thin => thin,
                };
                // The same at any level, and looked for once one might fit.
                let mut best: Option<(Frontier, &Traversal)> = None;
                for level in levels.iter().filter(|level| self.may_run(grid, &layouts, level)) {
                    let fixed = |t: &Traversal| self.fixed(grid, t, &layouts, &bytes, *level, counts_packed);
                    let most_idle = if thin == Thin::Whole { self.cutting_room(*level) } else { 0 };
                    if fixed(&traversals[0]).total().saturating_sub(most_idle) > self.limit {
                        continue;
                    }
                    if best.is_none() {
                        let mut bricks = Bricks::new(self.phase, grid, self.feeds, counts_packed);
                        let found = traversals.iter().map(|t| (simulate(&mut bricks, t, thin), t));
                        best = found.min_by_key(|(frontier, _)| frontier.held_bytes());
                    }
                    let Some((frontier, traversal)) = best else { continue };
                    let fixed = fixed(traversal);
                    // Where all chunks come whole no room is needed to cut those that come late. But a run that is killed goes on
                    // under the same limit.
                    let idle = if frontier.is_whole { self.idle_room(&frontier, *level, counts_packed) } else { 0 };
                    let goes_on = || {
                        let mut single = traversal.clone();
                        single.brick = single.brick.iter().map(|_| 1).collect();
                        let fixed = self.fixed(grid, &single, &layouts, &bytes, Concurrency::least(), counts_packed);
                        let mut bricks = Bricks::new(self.phase, grid, self.feeds, counts_packed);
                        fixed.total().saturating_add(least(&mut bricks)) <= self.limit
                    };
                    let total = fixed.total().saturating_sub(idle).saturating_add(frontier.held_bytes());
                    if total <= self.limit && (!frontier.is_whole || goes_on()) {
                        let held = Held { fixed, frontier, chunks: frontier.reads, counts_packed };
                        let work = self.work(frontier.reads, &bytes, traversal);
                        let choice = self.lighter(self.settle(grid, traversal, *level, held, layouts, bytes))?;
                        if smaller < near {
                            return Ok(choice);
                        }
                        once = Some((work, choice));
                        break 'search;
                    }
                }
            }
        }
        if once.is_none()
            && let Some(choice) = self.by_states(&grids[..near], &levels, self.limit)?
        {
            return Ok(choice);
        }
        let mut smallest: Option<u64> = None;
        // Smaller blocks leave room for larger bricks, and are more halo: the least work counts.
        let mut best: Option<(u64, Choice)> = None;
        let mut since = 0;
        for grid in &grids {
            let layouts = self.layouts(grid).map_err(Refusal::Wrong)?;
            let traversals = self.traversals(grid);
            let Some(whole) = traversals.first() else { continue };
            // Packed chunks need fewer bricks; plain ones need less room to begin with.
            for counts_packed in self.parkings().into_iter().rev() {
                let bytes = block_bytes(self.phase, grid, self.takes_strips(counts_packed));
                let fixed = |t: &Traversal, c| self.fixed(grid, t, &layouts, &bytes, c, counts_packed);
                let level = Concurrency::least();
                let mut bricks = Bricks::new(self.phase, grid, self.feeds, counts_packed);
                let mut single = whole.clone();
                single.brick = single.brick.iter().map(|_| 1).collect();
                let need = fixed(&single, level).total().saturating_add(least(&mut bricks));
                smallest = Some(smallest.map_or(need, |s| s.min(need)));
                if need > self.limit {
                    continue;
                }
                let chunks = simulate(&mut bricks, whole, Thin::No).reads;
                let (traversal, frontier) =
                    self.bricks(&mut bricks, whole, self.rows(counts_packed), |t| fixed(t, level).total());
                let work = self.work(frontier.reads, &bytes, whole);
                if best.as_ref().is_none_or(|(least, _)| work < *least) {
                    let fits = |c: &&Concurrency| {
                        let total = fixed(&traversal, **c).total().saturating_add(frontier.held_bytes());
                        total <= self.limit && self.may_run(grid, &layouts, c)
                    };
                    let level = levels.iter().find(fits).copied().unwrap_or(level);
                    let held = Held { fixed: fixed(&traversal, level), frontier, chunks, counts_packed };
                    best = Some((work, self.settle(grid, &traversal, level, held, layouts.clone(), bytes.clone())));
                    since = 0;
                }
            }
            since += u32::from(best.is_some());
            if since > NEARBY {
                break;
            }
        }
        match (once, best) {
            // Tiny blocks are mostly halo: then reading again is less work.
            (Some((once, _)), Some((again, choice))) if again < once / 2 => return Ok(choice),
            (Some((_, choice)), _) | (None, Some((_, choice))) => return Ok(choice),
            (None, None) => {}
        }
        match self.by_least_sweep().map_err(Refusal::Wrong)? {
            Some(choice) if choice.reservation.total() <= self.limit => return Ok(choice),
            Some(choice) => smallest = smallest.into_iter().chain([choice.reservation.total()]).min(),
            None => {}
        }
        Err(Refusal::TooSmall { smallest: smallest.unwrap_or(u64::MAX) })
    }

    /// The same blocks in an order that holds their states rather than the chunks that they share, where a phase only folds
    /// and that takes less.
    fn lighter(&self, choice: Choice) -> Result<Choice, Refusal> {
        if !self.phase.targets.is_empty() {
            return Ok(choice);
        }
        let (grid, level) = (std::slice::from_ref(&choice.grid), std::slice::from_ref(&choice.concurrency));
        let total = choice.reservation.total();
        Ok(self.by_states(grid, level, total.saturating_sub(1))?.filter(|c| c.reservation.total() < total).unwrap_or(choice))
    }

    /// Folds without re-reading where the chunks that kept blocks share do not fit: their states may. The reduced axes go
    /// outermost, so that a chunk is used up before the next arrives, in bricks along the kept axes whose states fit.
    /// What fits `limit` and is the lightest is taken.
    fn by_states(&self, grids: &[Grid], levels: &[Concurrency], limit: u64) -> Result<Option<Choice>, Refusal> {
        let is_reduced = |a: usize| self.phase.axes[a].is_reduced;
        for level in levels.iter().filter(|_| !self.lists_points()) {
            for grid in grids {
                let is_split = (0..grid.0.len()).any(|a| is_reduced(a) && grid.0[a].cells() > 1);
                if !is_split || grid.cells().is_none_or(|n| n > MANY_BLOCKS) {
                    continue;
                }
                let mut order: Vec<usize> = (0..grid.0.len()).collect();
                order.sort_by_key(|&a| !is_reduced(a));
                let layouts = self.layouts(grid).map_err(Refusal::Wrong)?;
                if !self.may_run(grid, &layouts, level) {
                    continue;
                }
                let bytes = block_bytes(self.phase, grid, false);
                let mut bricks = Bricks::new(self.phase, grid, self.feeds, false);
                let mut now = Traversal::new(grid, order);
                let chunks = simulate(&mut bricks, &now, Thin::No).reads;
                loop {
                    let (fixed, frontier) =
                        (self.fixed(grid, &now, &layouts, &bytes, *level, false), simulate(&mut bricks, &now, self.rows(false)));
                    let total = fixed.total().saturating_add(frontier.held_bytes());
                    // Smaller bricks, as far as their faces are faces of chunks.
                    let shorter = |a: usize| {
                        (1..=now.brick[a].div_ceil(2)).rev().take(64).find_map(|length| {
                            let mut t = now.clone();
                            t.brick[a] = length;
                            let found = simulate(&mut bricks, &t, self.rows(false));
                            let fixed = self.fixed(grid, &t, &layouts, &bytes, *level, false).total();
                            (found.reads == chunks).then_some((fixed.saturating_add(found.held_bytes()), t))
                        })
                    };
                    let kept = (0..grid.0.len()).filter(|&a| !is_reduced(a) && now.brick[a] > 1);
                    let next = kept.filter_map(shorter).min_by_key(|(total, _)| *total);
                    // A state is with one worker at a time: there have to be some for each.
                    let states =
                        |t: &Traversal| (0..grid.0.len()).filter(|&a| !is_reduced(a)).map(|a| t.brick[a]).product::<u64>();
                    let is_better = |(less, t): &(u64, Traversal)| *less < total && states(t) >= 2 * level.workers as u64;
                    match next {
                        Some((_, t)) if total > limit => now = t,
                        Some(next) if is_better(&next) => now = next.1,
                        _ if total > limit => break,
                        _ => {
                            let held = Held { fixed, frontier, chunks, counts_packed: false };
                            return Ok(Some(self.settle(grid, &now, *level, held, layouts, bytes)));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether to count on packed parking: not, and then so where a source guarantees a width.
    fn parkings(&self) -> Vec<bool> {
        let may_pack = matches!(self.park, Park::Auto | Park::Bitpack) && self.feeds.iter().any(|f| f.bits.is_some());
        if may_pack { vec![false, true] } else { vec![false] }
    }

    /// Whether chunks may be cut down to what is still needed of them: packed ones have no parts.
    fn may_thin(&self, counts_packed: bool) -> bool {
        !counts_packed && matches!(self.park, Park::Auto | Park::None)
    }

    /// How chunks may become thin where some may be left out.
    fn rows(&self, counts_packed: bool) -> Thin {
        if self.may_thin(counts_packed) { Thin::Rows } else { Thin::No }
    }

    /// Whether workers may take parts of chunks: those that lie here as they are, and not while halos are checked for depth.
    fn takes_strips(&self, counts_packed: bool) -> bool {
        self.may_thin(counts_packed) && self.way == Way::Usual
    }

    /// Bytes that are decoded and that blocks look at.
    fn work(&self, reads: u64, bytes: &BlockBytes, traversal: &Traversal) -> u64 {
        self.decoded(reads).saturating_add(bytes.inputs.saturating_mul(traversal.block_count()))
    }

    /// Bytes that so many chunks take, at most.
    fn decoded(&self, chunks: u64) -> u64 {
        let bytes = |f: &FeedUse| f.feed.source.meta().chunk_shape.iter().product::<u64>().saturating_mul(f.itemsize);
        chunks.saturating_mul(self.feeds.iter().map(bytes).max().unwrap_or(0))
    }

    /// Halves bricks until the frontier fits: each time along the axis that helps most.
    fn bricks(
        &self,
        bricks: &mut Bricks<'_>,
        whole: &Traversal,
        thin: Thin,
        fixed: impl Fn(&Traversal) -> u64,
    ) -> (Traversal, Frontier) {
        let mut now = whole.clone();
        loop {
            let frontier = simulate(bricks, &now, thin);
            if fixed(&now).saturating_add(frontier.held_bytes()) <= self.limit {
                return (now, frontier);
            }
            let next = (0..now.brick.len())
                .filter(|&a| now.brick[a] > 1)
                .map(|a| {
                    let mut t = now.clone();
                    t.brick[a] = t.brick[a].div_ceil(2);
                    let f = simulate(bricks, &t, thin);
                    let total = fixed(&t).saturating_add(f.held_bytes());
                    // Of those that fit, the one that reads least.
                    let fits = total <= self.limit;
                    ((!fits, if fits { f.reads } else { total }, f.reads), t)
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
        // What fits is asked with this room, so that the least memory is one number; what it leaves reads ahead.
        let idle = self.idle_room(&frontier, concurrency, counts_packed);
        fixed.decode = fixed.decode.saturating_sub(idle);
        // What is left reads ahead, but never more than there is to read.
        let mut left = self.limit.saturating_sub(fixed.total()).saturating_sub(frontier.held_bytes());
        fixed.margins = frontier.margin_bytes;
        let is_large = frontier.largest_kept >= LARGE;
        // Workers that encode leave time to read in, and of many chunks that wait some go before that.
        let is_in_time = concurrency.encoders == 0 && frontier.peak_bytes >= MANY_CHUNKS * frontier.largest_kept;
        let ahead = match is_large {
            true if is_in_time => frontier.largest_kept.saturating_mul(self.reads_in_flight().saturating_sub(1) as u64),
            true => frontier.largest_kept.saturating_mul(self.reads_in_flight() as u64),
            false => {
                frontier.largest_kept.max(frontier.largest_arrival).saturating_mul(AHEAD_CHUNKS * concurrency.readers as u64)
            }
        };
        let mut park = self.park;
        if frontier.margin_bytes > 0 || bytes.in_strips > 0 {
            // A packed chunk has no parts.
            park = Park::None;
        } else if park == Park::Auto {
            // Packing costs time and pays only where memory holds reading back, and needs scratch of its own.
            let scratch = self.pack_bytes(Park::Auto, frontier.largest_kept, concurrency).saturating_add(idle);
            if left < ahead && frontier.peak_bytes < frontier.kept_bytes && scratch <= left {
                fixed.decode = fixed.decode.saturating_add(scratch);
                left -= scratch;
            } else {
                park = Park::None;
            }
        }
        let needed = frontier.source_bytes();
        let source = needed.saturating_add(ahead.min(left)).min(frontier.kept_bytes.max(needed));
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
            moving: None,
            rest: None,
        }
    }
}

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
