//! What must be held at once: the traversal simulated, for source chunks (parked until their last block) and for output
//! objects (open until their last part).

use std::collections::HashMap;
use std::sync::Arc;

use super::feeds::{AxisUse, FeedBrick, FeedUse};
use super::needs::InputNeeds;
use super::phase::Phase;
use super::sizes::looked_at;
use super::traversal::Traversal;
use crate::array::grid::for_each_index;
use crate::array::{AxisGrid, Grid};

/// Everything about one brick that its blocks look up by their position on each axis.
#[derive(Clone)]
pub struct Brick {
    /// Blocks `start..stop` per axis.
    pub range: Vec<(u64, u64)>,
    pub feeds: Vec<FeedBrick>,
}

type Span = (u64, u64);

/// Parts of bricks that are remembered; beyond it they are made anew, since bricks may be as many as blocks.
const MOST_REMEMBERED: usize = 1 << 14;

/// Makes bricks; what repeats from brick to brick (the same blocks of one axis) is made once.
pub struct Bricks<'p> {
    phase: &'p Phase,
    grid: &'p Grid,
    feeds: &'p [FeedUse],
    /// Chunks with guaranteed widths are held packed, and counted so.
    counts_packed: bool,
    needs: HashMap<(usize, Span), Arc<InputNeeds>>,
    uses: HashMap<(usize, usize, Span), Arc<AxisUse>>,
}

impl<'p> Bricks<'p> {
    pub fn new(phase: &'p Phase, grid: &'p Grid, feeds: &'p [FeedUse], counts_packed: bool) -> Self {
        Self { phase, grid, feeds, counts_packed, needs: HashMap::new(), uses: HashMap::new() }
    }

    fn needs(&mut self, axis: usize, span: Span) -> Arc<InputNeeds> {
        let make = || Arc::new(InputNeeds::new(self.phase, axis, &self.grid.0[axis], span));
        self.needs.entry((axis, span)).or_insert_with(make).clone()
    }

    /// Cells that arrive along a link for each block of its axis in `lists`, were it a brick of its own.
    fn arriving_alone(&mut self, f: usize, l: usize, lists: &[Vec<u64>]) -> Vec<u64> {
        let feed = &self.feeds[f];
        match feed.links[l].axis {
            None => vec![feed.axis_use(l, None, self.counts_packed).arriving[0]],
            Some(axis) => lists[axis]
                .iter()
                .map(|&b| {
                    let needs = self.needs(axis, (b, b + 1));
                    feed.axis_use(l, Some(&needs), self.counts_packed).arriving[0]
                })
                .collect(),
        }
    }

    pub fn brick(&mut self, range: &[Span]) -> Brick {
        if self.uses.len() >= MOST_REMEMBERED {
            self.uses.clear();
            self.needs.clear();
        }
        let needs: Vec<_> = (0..range.len()).map(|a| self.needs(a, range[a])).collect();
        let mut feeds = Vec::with_capacity(self.feeds.len());
        for (f, feed) in self.feeds.iter().enumerate() {
            let mut links = Vec::with_capacity(feed.links.len());
            for (l, link) in feed.links.iter().enumerate() {
                let span = link.axis.map_or((0, 1), |a| range[a]);
                let found = self
                    .uses
                    .entry((f, l, span))
                    .or_insert_with(|| Arc::new(feed.axis_use(l, link.axis.map(|a| needs[a].as_ref()), self.counts_packed)));
                links.push(found.clone());
            }
            feeds.push(FeedBrick { links });
        }
        Brick { range: range.to_vec(), feeds }
    }
}

/// Position of a block on a link's axis.
pub fn at(link_axis: Option<usize>, position: &[u64]) -> usize {
    link_axis.map_or(0, |a| position[a] as usize)
}

/// What a traversal holds and reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Most bytes of source chunks held at once, as they came.
    pub peak_bytes: u64,
    /// Most bytes of margins held at once: what is kept of chunks that became thin.
    pub margin_bytes: u64,
    /// Chunks fetched, counted again for each brick that needs them.
    pub reads: u64,
    /// Bytes kept of all chunks fetched.
    pub kept_bytes: u64,
    /// Largest kept part of one chunk.
    pub largest_kept: u64,
    /// Largest number of bytes that arrive for one block.
    pub largest_arrival: u64,
    /// Of some chunk only a part is kept, or not in the order in which it is stored.
    pub cuts: bool,
    /// Chunks become thin, and no block is left out: all come whole.
    pub is_whole: bool,
    /// Chunks become thin along the axis within the outermost one, too.
    pub has_sides: bool,
}

/// How far chunks that wait may be cut down to what is still needed of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thin {
    /// Not at all.
    No,
    /// Along the outermost axis; blocks may be left out, and chunks come late then.
    Rows,
    /// No block is left out: along the axis within it, too, where that takes less.
    Whole,
}

impl Frontier {
    /// What has to be reserved for chunks that are read. In a job that goes on, those that are thin by now come so, beside the
    /// ones that still become thin.
    pub fn source_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(if self.is_whole { 0 } else { self.margin_bytes })
    }

    /// Everything that is reserved for what waits for blocks.
    pub fn held_bytes(&self) -> u64 {
        self.source_bytes().saturating_add(self.margin_bytes)
    }
}

/// Most bytes of source chunks held at once when every block is a brick of its own: nothing waits for another block. Along
/// axes of very many blocks only some are looked at, as for their sizes.
pub fn least(bricks: &mut Bricks<'_>) -> u64 {
    let lists: Vec<Vec<u64>> = bricks.grid.0.iter().map(|axis| looked_at(axis.cells()).collect()).collect();
    // Per feed and link: what arrives for each of those blocks.
    let arriving: Vec<Vec<Vec<u64>>> = (0..bricks.feeds.len())
        .map(|f| (0..bricks.feeds[f].links.len()).map(|l| bricks.arriving_alone(f, l, &lists)).collect())
        .collect();
    let places: Vec<Vec<u64>> = lists.iter().map(|list| (0..list.len() as u64).collect()).collect();
    let places: Vec<&[u64]> = places.iter().map(Vec::as_slice).collect();
    let mut most = 0;
    let looked = for_each_index(&places, |place| {
        let held = bricks.feeds.iter().zip(&arriving).fold(0u64, |sum, (feed, links)| {
            let cells = product(feed.links.iter().zip(links).map(|(link, cells)| cells[at(link.axis, place)]));
            sum.saturating_add(cells.saturating_mul(feed.unit_bytes(bricks.counts_packed)))
        });
        most = most.max(held);
        Ok::<(), std::convert::Infallible>(())
    });
    looked.map_or(0, |()| most)
}

/// Simulates the traversal for the source chunks. Who wants them thin holds them as plain values, of which a part can be copied.
pub fn simulate(bricks: &mut Bricks<'_>, traversal: &Traversal, thin: Thin) -> Frontier {
    let rows = simulate_thin(bricks, traversal, traversal.outermost().filter(|_| thin != Thin::No), None);
    if thin != Thin::Whole {
        return rows;
    }
    let is_whole = |found: Frontier| Frontier { is_whole: found.margin_bytes > 0, ..found };
    let sides = traversal.second().map(|second| simulate_thin(bricks, traversal, traversal.outermost(), Some(second)));
    match (is_whole(rows), sides.map(is_whole)) {
        (rows, Some(sides)) if sides.held_bytes() < rows.held_bytes() => Frontier { has_sides: true, ..sides },
        (rows, _) => rows,
    }
}

/// With chunks that become thin along these axes. Along the second one that happens to chunks that are whole, in the last row of
/// blocks that needs them so: what they are cut down to then are two parts, for this row of blocks, and for those to come.
fn simulate_thin(bricks: &mut Bricks<'_>, traversal: &Traversal, outermost: Option<usize>, second: Option<usize>) -> Frontier {
    let mut found = Frontier::default();
    let (feeds, counts_packed) = (bricks.feeds, bricks.counts_packed);
    let mut place = Vec::new();
    for range in traversal.each_brick() {
        let brick = bricks.brick(&range);
        for (feed, uses) in feeds.iter().zip(&brick.feeds) {
            found.reads = found.reads.saturating_add(product(uses.links.iter().map(|l| l.chunks())));
            found.cuts |= feed.cuts(uses);
            let largest = product(uses.links.iter().map(|l| l.longest_kept()));
            found.largest_kept = found.largest_kept.max(largest.saturating_mul(feed.itemsize));
        }
        let (mut live, mut margins) = (0u64, 0u64);
        traversal.walk(&range, &mut place, |position| {
            let (mut arriving, mut leaving, mut thinned, mut margins_leaving) = (0u64, 0u64, 0u64, 0u64);
            for (feed, uses) in feeds.iter().zip(&brick.feeds) {
                // `of` is what counts along each axis, `others` along those where it is another.
                let bytes = |of: fn(&AxisUse) -> &[u64], others: &[Option<(usize, &[u64])>]| {
                    let cells = feed.links.iter().zip(&uses.links).enumerate().map(|(l, (link, u))| {
                        let along = others.iter().flatten().find(|other| other.0 == l).map_or(of(u), |other| other.1);
                        along[at(link.axis, position)]
                    });
                    product(cells).saturating_mul(feed.unit_bytes(counts_packed))
                };
                let [rows, sides] = [outermost, second].map(|axis| feed.thinning(uses, axis));
                let [whole_rows, whole_sides] = [rows, sides].map(|thin| thin.map(|(l, t)| (l, &t.whole_leaving[..])));
                arriving = arriving.saturating_add(bytes(|u| &u.arriving, &[]));
                leaving = leaving.saturating_add(bytes(|u| &u.leaving, &[whole_rows, whole_sides]));
                if let Some((l, t)) = rows {
                    thinned = thinned.saturating_add(bytes(|u| &u.leaving, &[Some((l, &t.arriving)), whole_sides]));
                    margins_leaving = margins_leaving.saturating_add(bytes(|u| &u.leaving, &[Some((l, &t.leaving))]));
                }
                if let Some((l, t)) = sides {
                    thinned = thinned.saturating_add(bytes(|u| &u.leaving, &[whole_rows, Some((l, &t.arriving))]));
                    margins_leaving = margins_leaving.saturating_add(bytes(|u| &u.leaving, &[whole_rows, Some((l, &t.leaving))]));
                }
            }
            live = live.saturating_add(arriving);
            found.kept_bytes = found.kept_bytes.saturating_add(arriving);
            found.largest_arrival = found.largest_arrival.max(arriving);
            found.peak_bytes = found.peak_bytes.max(live);
            live -= leaving.min(live);
            margins = margins.saturating_add(thinned);
            found.margin_bytes = found.margin_bytes.max(margins);
            margins -= margins_leaving.min(margins);
        });
    }
    found
}

fn product(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(1u64, u64::saturating_mul)
}

/// An output array as the traversal fills it: per axis of the array, which objects each block position touches.
pub struct Filling {
    /// (phase axis, per block position: objects that begin, end, begin and end there)
    axes: Vec<(usize, Vec<[u64; 3]>)>,
    /// Phase axes that the array does not have, with the position whose blocks deliver it.
    absent: Vec<(usize, u64)>,
}

impl Filling {
    /// `parts[axis of the array] = (phase axis, the block parts on that axis)`.
    pub fn new(parts: &[(usize, AxisGrid)], objects: &Grid, absent: Vec<(usize, u64)>) -> Self {
        let axes = parts
            .iter()
            .zip(&objects.0)
            .map(|((axis, blocks), objects)| {
                let touched = |b: u64| {
                    let part = blocks.range(b);
                    if part.is_empty() { 0..0 } else { objects.cells_of(part.start, part.end) }
                };
                let counts = (0..blocks.cells())
                    .map(|b| {
                        let here = touched(b);
                        let mut n = [0u64; 3];
                        for object in here {
                            let cells = objects.range(object);
                            let part = blocks.range(b);
                            let (begins, ends) = (part.start <= cells.start, part.end >= cells.end);
                            n[0] += u64::from(begins);
                            n[1] += u64::from(ends);
                            n[2] += u64::from(begins && ends);
                        }
                        n
                    })
                    .collect();
                (*axis, counts)
            })
            .collect();
        Self { axes, absent }
    }

    /// True when some block holds a whole object.
    pub fn has_whole(&self) -> bool {
        self.axes.iter().all(|(_, counts)| counts.iter().any(|n| n[2] > 0))
    }

    /// True when no object lies in two blocks.
    fn all_whole(&self) -> bool {
        self.axes.iter().all(|(_, counts)| counts.iter().all(|n| n[0] == n[2] && n[1] == n[2]))
    }

    /// Objects that begin in a block, that end in it, and that do both, as far as these of its axes say; the numbers of all
    /// axes multiplied are the block's.
    fn counts(&self, block: &[u64], says: impl Fn(usize) -> bool) -> [u64; 3] {
        if self.absent.iter().any(|(axis, owner)| says(*axis) && block[*axis] != *owner) {
            return [0; 3];
        }
        let counts = self.axes.iter().filter(|(axis, _)| says(*axis)).map(|(axis, n)| n[block[*axis] as usize]);
        counts.fold([1; 3], times)
    }
}

fn times(a: [u64; 3], b: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|i| a[i].saturating_mul(b[i]))
}

/// Most objects open at once (begun and not complete) when a finished block may be `window` blocks late.
pub fn open_objects(filling: &Filling, traversal: &Traversal, window: usize) -> u64 {
    if filling.all_whole() {
        return 0;
    }
    let (mut open, mut most) = (0u64, 0u64);
    // What ended in the last blocks, in a ring.
    let (mut late, mut oldest) = (vec![0u64; window], 0);
    // Row by row: planning asks this of many grids, each of many blocks.
    let Some(&inner) = traversal.order.last() else { return 0 };
    let (mut place, mut block) = (Vec::new(), vec![0; traversal.blocks.len()]);
    let along: Vec<[u64; 3]> = (0..traversal.blocks[inner])
        .map(|at| {
            block[inner] = at;
            filling.counts(&block, |axis| axis == inner)
        })
        .collect();
    for mut range in traversal.each_brick() {
        let row = range[inner];
        range[inner].1 = row.1.min(row.0 + 1);
        traversal.walk(&range, &mut place, |position| {
            block.clear();
            block.extend(position.iter().zip(&range).map(|(p, r)| p + r.0));
            let beside = filling.counts(&block, |axis| axis != inner);
            for own in &along[row.0 as usize..row.1 as usize] {
                let [begins, ends, whole] = times(beside, *own);
                let mut ended = ends - whole;
                open += begins - whole;
                most = most.max(open);
                if let Some(slot) = late.get_mut(oldest) {
                    ended = std::mem::replace(slot, ended);
                    oldest = (oldest + 1) % window;
                }
                open -= ended.min(open);
            }
        });
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::testing::Random;

    #[test]
    fn objects_shared_by_blocks_stay_open_until_the_last() {
        // Blocks of 4, objects of 6 on an axis of 12: object 0 is touched by blocks 0 and 1, object 1 by 1 and 2.
        let grid = Grid::regular(&[12], &[4]);
        let t = Traversal::new(&grid, vec![0]);
        let filling = Filling::new(&[(0, grid.0[0].clone())], &Grid::regular(&[12], &[6]), vec![]);
        assert_eq!(open_objects(&filling, &t, 0), 2);
        let aligned = Filling::new(&[(0, grid.0[0].clone())], &Grid::regular(&[12], &[2]), vec![]);
        assert_eq!(open_objects(&aligned, &t, 3), 0);
        // Objects of 2 lie in blocks of 4; both objects of 6 lie across two.
        assert!(aligned.has_whole() && !filling.has_whole());
    }

    /// Against counting object by object: any grids, orders, bricks and windows, and axes that only one block delivers.
    #[test]
    fn open_objects_are_those_that_are_touched_and_not_complete() {
        let mut random = Random::new(11);
        for round in 0..200 {
            let rank = 1 + random.below(3) as usize;
            let shape: Vec<u64> = (0..rank).map(|_| 1 + random.below(12)).collect();
            let lengths = |random: &mut Random| shape.iter().map(|&n| 1 + random.below(n)).collect::<Vec<_>>();
            let (blocks, objects) = (Grid::regular(&shape, &lengths(&mut random)), Grid::regular(&shape, &lengths(&mut random)));
            // One more axis, of blocks of which one delivers all.
            let (extra, owner) = (1 + random.below(3), 0);
            let mut grid = blocks.clone();
            grid.0.push(AxisGrid::regular(extra, 1));
            let mut order: Vec<usize> = (0..=rank).collect();
            order.sort_by_key(|_| random.below(100));
            let mut traversal = Traversal::new(&grid, order);
            for brick in &mut traversal.brick {
                *brick = 1 + random.below(*brick);
            }
            let window = random.below(5) as usize;
            let parts: Vec<(usize, AxisGrid)> = blocks.0.iter().cloned().enumerate().collect();
            let filling = Filling::new(&parts, &objects, vec![(rank, owner)]);

            // Cells that each object still lacks; blocks that are done and not told yet.
            let mut lacks: HashMap<Vec<u64>, u64> = HashMap::new();
            let (mut late, mut open, mut most) = (Vec::new(), 0i64, 0i64);
            for range in traversal.each_brick() {
                for position in traversal.blocks_of(&range) {
                    let block = traversal.block(&range, &position);
                    let mut complete = 0;
                    if block[rank] == owner {
                        let region: Vec<_> = (0..rank).map(|a| blocks.0[a].range(block[a])).collect();
                        let touched: Vec<Vec<u64>> =
                            (0..rank).map(|a| objects.0[a].cells_of(region[a].start, region[a].end).collect()).collect();
                        let lists: Vec<&[u64]> = touched.iter().map(Vec::as_slice).collect();
                        let _ = crate::array::grid::for_each_index(&lists, |object| {
                            let cells: Vec<_> = (0..rank).map(|a| objects.0[a].range(object[a])).collect();
                            let all: u64 = cells.iter().map(|c| c.end - c.start).product();
                            let here: u64 = (0..rank)
                                .map(|a| cells[a].end.min(region[a].end) - cells[a].start.max(region[a].start))
                                .product();
                            if here == all {
                                return Ok::<(), ()>(());
                            }
                            let left = lacks.entry(object.to_vec()).or_insert(all);
                            open += i64::from(*left == all);
                            *left -= here;
                            complete += i64::from(*left == 0);
                            Ok(())
                        });
                    }
                    most = most.max(open);
                    late.push(complete);
                    if late.len() > window {
                        open -= late.remove(0);
                    }
                }
            }
            assert_eq!(open_objects(&filling, &traversal, window) as i64, most, "round {round}");
        }
    }
}
