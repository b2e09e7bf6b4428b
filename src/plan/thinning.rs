//! Chunks that wait for a margin of theirs only: when the blocks that are still to come need half of a chunk or less, that
//! half is copied and the rest is let go.
//!
//! Along the outermost axis of the traversal a row of chunks would else wait whole for the last block that looks over its
//! edge. Along the axis within it chunks go soon; but what the next block looks at of the one before is little, too. What is left of
//! a chunk in its last row of blocks is then two parts, each a box: one for this row, and one for those to come.

use super::lists::Lists;

/// The part of a chunk that a block and those behind it need; of blocks that are not the chunk's first.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    pub chunk: u64,
    pub block: u32,
    pub part: (i64, i64),
}

/// A chunk along one axis: what is kept of it, from its first block to its last.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub chunk: u64,
    pub part: (i64, i64),
    pub first: u32,
    pub last: u32,
}

/// What becomes of the chunks along one axis, were it the outermost.
#[derive(Debug)]
pub struct Thinning {
    /// By chunk, then by block.
    rests: Vec<Rest>,
    /// Per block: the chunks of which less is kept after it.
    pub after: Lists<u64>,
    /// Per block, in cells: what goes of chunks as they came, what of them is kept instead, and what of that goes.
    pub whole_leaving: Vec<u64>,
    pub arriving: Vec<u64>,
    pub leaving: Vec<u64>,
}

fn len(part: (i64, i64)) -> u64 {
    (part.1 - part.0) as u64
}

impl Thinning {
    /// `uses`: the part that each block needs, of blocks that are not their chunk's first, in the order of the blocks. `None`
    /// where no chunk becomes thinner.
    pub fn new(blocks: usize, kept: &[Kept], mut uses: Vec<Rest>) -> Option<Self> {
        if uses.is_empty() {
            return None;
        }
        uses.sort_unstable_by_key(|u| (u.chunk, u.block));
        for at in (1..uses.len()).rev() {
            if uses[at].chunk == uses[at - 1].chunk {
                let (behind, part) = (uses[at].part, &mut uses[at - 1].part);
                *part = (part.0.min(behind.0), part.1.max(behind.1));
            }
        }
        let mut after: Vec<(u32, u64)> = Vec::new();
        let (mut whole_leaving, mut arriving, mut leaving) = (vec![0u64; blocks], vec![0u64; blocks], vec![0u64; blocks]);
        let mut rests = uses.iter().peekable();
        for k in kept {
            let (mut now, mut is_whole, mut block) = (len(k.part), true, k.first);
            while let Some(rest) = rests.next_if(|r| r.chunk == k.chunk) {
                // A block that needs two parts is there twice.
                if rest.block > block && 2 * len(rest.part) <= now {
                    let gone = if is_whole { &mut whole_leaving } else { &mut leaving };
                    gone[block as usize] += now;
                    (now, is_whole) = (len(rest.part), false);
                    arriving[block as usize] += now;
                    after.push((block, k.chunk));
                }
                block = rest.block;
            }
            let gone = if is_whole { &mut whole_leaving } else { &mut leaving };
            gone[k.last as usize] += now;
        }
        let thins = !after.is_empty();
        let after = Lists::sorted(blocks, after.iter().copied());
        thins.then_some(Self { rests: uses, after, whole_leaving, arriving, leaving })
    }

    /// What block `block` and those behind it need of a chunk; `None`: it is the chunk's first, or none of them does.
    pub fn rest(&self, chunk: u64, block: u64) -> Option<(i64, i64)> {
        let at = self.rests.partition_point(|r| (r.chunk, u64::from(r.block)) < (chunk, block));
        self.rests.get(at).filter(|r| r.chunk == chunk).map(|r| r.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_becomes_thin_when_half_of_it_is_no_longer_needed() {
        // Chunks of 10 and blocks of 10 that look 2 cells over their edges: a chunk waits for the block behind its own with
        // its last 2 cells.
        let kept = [
            Kept { chunk: 0, part: (0, 10), first: 0, last: 1 },
            Kept { chunk: 1, part: (10, 20), first: 0, last: 2 },
            Kept { chunk: 2, part: (20, 30), first: 1, last: 2 },
        ];
        let rest = |chunk, block, part| Rest { chunk, block, part };
        let uses = vec![rest(1, 1, (10, 20)), rest(0, 1, (8, 10)), rest(2, 2, (20, 30)), rest(1, 2, (18, 20))];
        let t = Thinning::new(3, &kept, uses).expect("chunks 0 and 1");
        assert_eq!((0..3).map(|b| t.after[b].to_vec()).collect::<Vec<_>>(), [vec![0], vec![1], vec![]]);
        assert_eq!((t.whole_leaving, t.arriving, t.leaving), (vec![10, 10, 10], vec![2, 2, 0], vec![0, 2, 2]));
        let t = |chunk, block| {
            let uses = vec![rest(1, 1, (10, 20)), rest(1, 2, (18, 20))];
            Thinning::new(3, &kept, uses).and_then(|t| t.rest(chunk, block))
        };
        assert_eq!([t(1, 0), t(1, 1), t(1, 2), t(1, 3), t(2, 1)], [Some((10, 20)), Some((10, 20)), Some((18, 20)), None, None]);
        assert!(Thinning::new(3, &kept, vec![rest(1, 1, (10, 16))]).is_none());
    }
}
