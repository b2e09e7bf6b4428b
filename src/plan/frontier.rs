//! What must be held at once: the traversal simulated, for source chunks (parked until their last block) and for output
//! objects (open until their last part).

use std::collections::{HashMap, VecDeque};
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
}

impl Frontier {
    /// What has to be reserved for chunks that are read. In a job that goes on, those that are thin by now come so, beside the
    /// ones that still become thin.
    pub fn source_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.margin_bytes)
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

/// Simulates the traversal for the source chunks; `may_thin`: they wait as plain values, of which a part can be copied.
pub fn simulate(bricks: &mut Bricks<'_>, traversal: &Traversal, may_thin: bool) -> Frontier {
    let mut found = Frontier::default();
    let outermost = traversal.outermost().filter(|_| may_thin);
    let (feeds, counts_packed) = (bricks.feeds, bricks.counts_packed);
    let mut place = Vec::new();
    for range in traversal.each_brick() {
        let brick = bricks.brick(&range);
        for (feed, uses) in feeds.iter().zip(&brick.feeds) {
            found.reads = found.reads.saturating_add(product(uses.links.iter().map(|l| l.chunks())));
            let largest = product(uses.links.iter().map(|l| l.longest_kept()));
            found.largest_kept = found.largest_kept.max(largest.saturating_mul(feed.itemsize));
        }
        let (mut live, mut margins) = (0u64, 0u64);
        traversal.walk(&range, &mut place, |position| {
            let (mut arriving, mut leaving, mut thinned, mut margins_leaving) = (0u64, 0u64, 0u64, 0u64);
            for (feed, uses) in feeds.iter().zip(&brick.feeds) {
                // `of` is what counts along each axis, `outer` along the outermost one, where it is another.
                let bytes = |of: fn(&AxisUse) -> &[u64], outer: Option<(usize, &[u64])>| {
                    let cells = feed.links.iter().zip(&uses.links).enumerate().map(|(l, (link, u))| {
                        let along = outer.filter(|o| o.0 == l).map_or(of(u), |o| o.1);
                        along[at(link.axis, position)]
                    });
                    product(cells).saturating_mul(feed.unit_bytes(counts_packed))
                };
                let thin = feed.thinning(uses, outermost);
                arriving = arriving.saturating_add(bytes(|u| &u.arriving, None));
                leaving = leaving.saturating_add(bytes(|u| &u.leaving, thin.map(|(l, t)| (l, &t.whole_leaving[..]))));
                if let Some((l, t)) = thin {
                    thinned = thinned.saturating_add(bytes(|u| &u.leaving, Some((l, &t.arriving))));
                    margins_leaving = margins_leaving.saturating_add(bytes(|u| &u.leaving, Some((l, &t.leaving))));
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

    fn delivers(&self, block: &[u64]) -> bool {
        self.absent.iter().all(|(axis, owner)| block[*axis] == *owner)
    }

    /// True when some block holds a whole object.
    pub fn has_whole(&self) -> bool {
        self.axes.iter().all(|(_, counts)| counts.iter().any(|n| n[2] > 0))
    }

    /// True when no object lies in two blocks.
    fn all_whole(&self) -> bool {
        self.axes.iter().all(|(_, counts)| counts.iter().all(|n| n[0] == n[2] && n[1] == n[2]))
    }

    /// Objects that begin in this block and end in a later one; and those that end here and began earlier.
    fn partial(&self, block: &[u64]) -> (u64, u64) {
        let counts = self.axes.iter().map(|(axis, n)| n[block[*axis] as usize]);
        let [begun, ended, whole] = counts.fold([1u64; 3], |all, n| std::array::from_fn(|i| all[i].saturating_mul(n[i])));
        (begun - whole, ended - whole)
    }
}

/// Most objects open at once (begun and not complete) when a finished block may be `window` blocks late.
pub fn open_objects(filling: &Filling, traversal: &Traversal, window: usize) -> u64 {
    if filling.all_whole() {
        return 0;
    }
    let (mut open, mut most) = (0u64, 0u64);
    let mut late: VecDeque<u64> = VecDeque::from(vec![0; window]);
    let (mut place, mut block) = (Vec::new(), Vec::new());
    for range in traversal.each_brick() {
        traversal.walk(&range, &mut place, |position| {
            block.clear();
            block.extend(position.iter().zip(&range).map(|(p, r)| p + r.0));
            let (begun, ended) = if filling.delivers(&block) { filling.partial(&block) } else { (0, 0) };
            open += begun;
            most = most.max(open);
            late.push_back(ended);
            open -= late.pop_front().unwrap_or(0).min(open);
        });
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
