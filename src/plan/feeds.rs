//! Which chunks of a source a run of blocks needs, when each is needed first and last, and how much of it is kept.
//!
//! Everything is per axis: a chunk is first needed at the block whose position on every axis is the first that needs
//! the chunk's index there, and last at the last. So lists of millions of chunks are never made. Cost: some 90 bytes per
//! chunk and block along an axis.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lists::Lists;
use super::needs::InputNeeds;
use super::phase::Phase;
use super::thinning::{Kept, Rest, Thinning};
use crate::array::AxisGrid;
use crate::codec::{guaranteed_bits, guaranteed_row_bytes};
use crate::reader::input::Feed;

/// A source array as a phase reads it.
#[derive(Clone)]
pub struct FeedUse {
    /// Index into `Phase::inputs`.
    pub input: usize,
    /// Index of the feed in its input.
    pub number: usize,
    pub feed: Feed,
    /// One per axis of the source and per phase axis that the source does not have: the product of all of them is
    /// what is needed.
    pub links: Vec<Link>,
    pub itemsize: u64,
    /// Bits that hold any value of the source, where that is guaranteed.
    pub bits: Option<u8>,
    /// Every pass of the phase reads the same: worth holding between them.
    pub is_reread: bool,
}

/// One axis of that product.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The phase axis that decides; `None`: an axis dropped by `select`, always the same chunk.
    pub axis: Option<usize>,
    /// Axis of the source; `None`: the source does not have this axis (broadcast, stacked), one pseudo chunk.
    pub source: Option<usize>,
    /// Axis of the input.
    pub view: Option<usize>,
}

/// Chunks along one link for the blocks of one brick.
#[derive(Debug, Default)]
pub struct AxisUse {
    /// Per block: the chunks it needs, as ranges.
    pub needed: Lists<(u64, u64)>,
    /// Per block: the chunks that no earlier block needs.
    pub first: Lists<u64>,
    /// Per block: the chunks that no later block needs.
    pub last: Lists<u64>,
    /// What is kept of each chunk, by chunk.
    kept: Vec<Kept>,
    /// What becomes of chunks when this is the outermost axis.
    pub thinning: Option<Thinning>,
    /// Kept cells (bytes of rows, where they are packed) that arrive with each block, and that go after it.
    pub arriving: Vec<u64>,
    pub leaving: Vec<u64>,
}

impl AxisUse {
    pub fn chunks(&self) -> u64 {
        self.kept.len() as u64
    }

    /// True when no two blocks need the same chunk.
    pub fn is_apart(&self) -> bool {
        self.needed.iter().flatten().map(|(a, b)| b - a).sum::<u64>() == self.chunks()
    }

    /// Longest kept part of a chunk.
    pub fn longest_kept(&self) -> u64 {
        self.kept.iter().map(|k| (k.part.1 - k.part.0) as u64).max().unwrap_or(0)
    }

    /// The part of a chunk (input coordinates) that the brick needs.
    pub fn kept(&self, chunk: u64) -> Option<(i64, i64)> {
        self.kept.binary_search_by_key(&chunk, |k| k.chunk).ok().map(|at| self.kept[at].part)
    }

    /// What block `block` of the brick and those behind it need of a chunk.
    pub fn kept_from(&self, chunk: u64, block: u64) -> Option<(i64, i64)> {
        let rest = self.thinning.as_ref().and_then(|t| t.rest(chunk, block));
        let is_first = |k: &Kept| u64::from(k.first) >= block;
        let at = self.kept.binary_search_by_key(&chunk, |k| k.chunk).ok();
        at.map(|at| &self.kept[at]).and_then(|k| if is_first(k) { Some(k.part) } else { rest.or(Some(k.part)) })
    }
}

impl FeedUse {
    pub fn new(phase: &Phase, input: usize, number: usize, feed: &Feed) -> Self {
        let array = &phase.arrays[phase.inputs[input]];
        let mut links = Vec::new();
        for (source, axis) in feed.axes.iter().enumerate() {
            let phase_axis = axis.view.map(|v| array.axes[v].phase_axis());
            links.push(Link { axis: phase_axis, source: Some(source), view: axis.view });
        }
        for view in 0..array.axes.len() {
            if !feed.axes.iter().any(|a| a.view == Some(view)) {
                links.push(Link { axis: Some(array.axes[view].phase_axis()), source: None, view: Some(view) });
            }
        }
        for axis in 0..phase.axes.len() {
            if !links.iter().any(|l| l.axis == Some(axis)) {
                links.push(Link { axis: Some(axis), source: None, view: None });
            }
        }
        let source = &feed.source.meta().array;
        let bits = guaranteed_bits(source.dtype, source.max_value).filter(|_| !array.axes.is_empty());
        let itemsize = array.dtype.size() as u64;
        Self { input, number, feed: feed.clone(), links, itemsize, bits, is_reread: false }
    }

    /// The width its parked chunks are packed to in a plan that counts on packing.
    pub fn packed_bits(&self, counts_packed: bool) -> Option<u8> {
        self.bits.filter(|_| counts_packed)
    }

    /// Whether anything but whole chunks is kept.
    pub fn cuts(&self, uses: &FeedBrick) -> bool {
        self.links.iter().zip(&uses.links).any(|(link, uses)| {
            let Some(source) = link.source else { return false };
            let (full, axis) = (self.feed.source.meta().chunk_shape[source], &self.feed.axes[source]);
            let is_part = |kept: &Kept| (kept.part.1 - kept.part.0) as u64 != full;
            axis.step != 1 || uses.kept.iter().any(is_part)
        })
    }

    /// Bytes held of a kept part of this shape.
    pub fn held_bytes(&self, shape: &[usize], counts_packed: bool) -> u64 {
        match (self.packed_bits(counts_packed), shape.split_last()) {
            (Some(bits), Some((row, outer))) => {
                outer.iter().fold(guaranteed_row_bytes(*row as u64, bits), |n, &len| n.saturating_mul(len as u64))
            }
            _ => shape.iter().fold(self.itemsize, |n, &len| n.saturating_mul(len as u64)),
        }
    }

    /// What one kept cell counts, beside the lengths along the links.
    pub fn unit_bytes(&self, counts_packed: bool) -> u64 {
        if self.packed_bits(counts_packed).is_some() { 1 } else { self.itemsize }
    }

    /// Per link: the chunks that no block before this one needs.
    pub fn first_at<'u>(&self, uses: &'u FeedBrick, position: &[u64]) -> Vec<&'u [u64]> {
        let at = |link: &Link| link.axis.map_or(0, |a| position[a] as usize);
        self.links.iter().zip(&uses.links).map(|(l, u)| &u.first[at(l)]).collect()
    }

    /// Per link: the chunks that no block after this one needs.
    pub fn last_at<'u>(&self, uses: &'u FeedBrick, position: &[u64]) -> Vec<&'u [u64]> {
        let at = |link: &Link| link.axis.map_or(0, |a| position[a] as usize);
        self.links.iter().zip(&uses.links).map(|(l, u)| &u.last[at(l)]).collect()
    }

    /// How chunks become thin along the outermost axis, and the link that follows it; what two axes of the source follow
    /// would not leave a box.
    pub fn thinning<'u>(&self, uses: &'u FeedBrick, outermost: Option<usize>) -> Option<(usize, &'u Thinning)> {
        let mut along = (0..self.links.len()).filter(|&l| outermost.is_some() && self.links[l].axis == outermost);
        match (along.next(), along.next()) {
            (Some(l), None) => uses.links[l].thinning.as_ref().map(|t| (l, t)),
            _ => None,
        }
    }

    fn grid(&self, source: usize) -> &AxisGrid {
        &self.feed.source.meta().grid.0[source]
    }

    /// The part of chunk `chunk` of a source axis that the input shows, in input coordinates (may be empty).
    pub fn chunk_in_view(&self, source: usize, chunk: u64) -> (i64, i64) {
        let axis = &self.feed.axes[source];
        let cells = self.grid(source).range(chunk);
        let (low, high) = (cells.start as i64, cells.end as i64);
        let Some(view) = axis.view else { return if (low..high).contains(&axis.start) { (0, 1) } else { (0, 0) } };
        let (from, to) = self.feed.extent.axis(view);
        let (a, b) = if axis.step > 0 {
            (div_ceil(low - axis.start, axis.step), div_ceil(high - axis.start, axis.step))
        } else {
            let t = -axis.step;
            ((axis.start - high).div_euclid(t) + 1, (axis.start - low).div_euclid(t) + 1)
        };
        ((from + a).max(from), (from + b).min(to))
    }

    /// The chunks along link `at` that its axis' blocks (in traversal order) ask for; `None`: the link has no axis.
    pub fn axis_use(&self, at: usize, needs: Option<&InputNeeds>, counts_packed: bool) -> AxisUse {
        let link = self.links[at];
        let blocks = needs.map_or(1, |needs| needs.blocks().max(1));
        let mut found = Finding::default();
        match (link.source, link.view, needs) {
            (source, None, _) | (source, _, None) => {
                // Dropped by an integer: one chunk, one cell of it, for every block. Or an axis that the source lacks.
                let chunk = source.map_or(0, |s| self.grid(s).cell_of(self.feed.axes[s].start as u64));
                for _ in 0..blocks {
                    found.add(chunk, (0, 1));
                    found.end_block();
                }
            }
            (source, Some(view), Some(needs)) => {
                let extent = self.feed.extent.axis(view);
                for need in needs.inputs[self.input].iter() {
                    for (a, b) in need.iter().map(|(a, b)| (*a.max(&extent.0), *b.min(&extent.1))).filter(|(a, b)| a < b) {
                        match source {
                            None => {
                                found.add(0, (a, b));
                            }
                            Some(source) => {
                                let axis = &self.feed.axes[source];
                                let ends = [a, b - 1].map(|x| (axis.start + (x - extent.0) * axis.step) as u64);
                                for chunk in self.grid(source).cells_of(ends[0].min(ends[1]), ends[0].max(ends[1]) + 1) {
                                    let (c, d) = self.chunk_in_view(source, chunk);
                                    let part = (c.max(a), d.min(b));
                                    if part.0 < part.1 && found.add(chunk, part) {
                                        found.again(chunk, part);
                                    }
                                }
                            }
                        }
                    }
                    found.end_block();
                }
            }
        }
        // Rows are padded to whole bytes when they are packed.
        let is_row = link.view.is_some_and(|view| view + 1 == self.feed.extent.rank());
        let bits = self.packed_bits(counts_packed).filter(|_| is_row);
        found.close(|len| bits.map_or(len, |bits| guaranteed_row_bytes(len, bits)))
    }
}

/// Uses along a link, block by block.
#[derive(Default)]
struct Finding {
    needed: Lists<(u64, u64)>,
    /// By chunk. Blocks come in the order of the axis, so that nearly all chunks come at one of its ends.
    kept: VecDeque<Kept>,
    /// What blocks need of chunks that were there before.
    again: Vec<Rest>,
}

impl Finding {
    /// The current block needs a part of a chunk. True when an earlier block did, too.
    fn add(&mut self, chunk: u64, part: (i64, i64)) -> bool {
        let block = self.needed.len() as u32;
        let is_next = |r: &(u64, u64)| r.1 == chunk;
        if !self.needed.open().iter().any(|r| r.0 <= chunk && chunk < r.1) {
            match self.needed.open().last_mut().filter(|r| is_next(r)) {
                Some(last) => last.1 += 1,
                None => self.needed.push((chunk, chunk + 1)),
            }
        }
        match self.kept.binary_search_by_key(&chunk, |k| k.chunk) {
            Ok(at) => {
                let kept = &mut self.kept[at];
                kept.part = (kept.part.0.min(part.0), kept.part.1.max(part.1));
                kept.last = block;
                kept.first < block
            }
            Err(at) => {
                self.kept.insert(at, Kept { chunk, part, first: block, last: block });
                false
            }
        }
    }

    fn again(&mut self, chunk: u64, part: (i64, i64)) {
        self.again.push(Rest { chunk, block: self.needed.len() as u32, part });
    }

    fn end_block(&mut self) {
        self.needed.close();
    }

    /// `measure` says what a kept length counts.
    fn close(mut self, measure: impl Fn(u64) -> u64) -> AxisUse {
        let blocks = self.needed.len();
        self.needed.shrink();
        let mut kept = Vec::from(self.kept);
        kept.shrink_to_fit();
        let (mut arriving, mut leaving) = (vec![0u64; blocks], vec![0u64; blocks]);
        for k in &kept {
            let cells = measure((k.part.1 - k.part.0) as u64);
            arriving[k.first as usize] += cells;
            leaving[k.last as usize] += cells;
        }
        AxisUse {
            first: Lists::sorted(blocks, kept.iter().map(|k| (k.first, k.chunk))),
            last: Lists::sorted(blocks, kept.iter().map(|k| (k.last, k.chunk))),
            needed: self.needed,
            thinning: Thinning::new(blocks, &kept, self.again),
            kept,
            arriving,
            leaving,
        }
    }
}

fn div_ceil(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

/// The uses of all links of a feed in one brick.
#[derive(Clone)]
pub struct FeedBrick {
    pub links: Vec<Arc<AxisUse>>,
}

#[cfg(test)]
mod tests {
    use super::div_ceil;

    #[test]
    fn ceiling_division_of_negatives() {
        assert_eq!([div_ceil(-7, 3), div_ceil(7, 3), div_ceil(6, 3), div_ceil(0, 5)], [-2, 3, 2, 0]);
    }
}
