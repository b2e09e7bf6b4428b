//! The order in which blocks are computed: bricks of blocks, and inside a brick axis by axis.
//!
//! One brick is the normal case. More bricks mean that chunks on brick faces are read again, and that less is parked.

use crate::array::Grid;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Traversal {
    /// Phase axes, outermost first.
    pub order: Vec<usize>,
    /// Blocks per axis.
    pub blocks: Vec<u64>,
    /// Blocks of a brick per axis; edge bricks are smaller.
    pub brick: Vec<u64>,
}

impl Traversal {
    pub fn new(grid: &Grid, order: Vec<usize>) -> Self {
        let blocks: Vec<u64> = grid.0.iter().map(|a| a.cells()).collect();
        Self { order, brick: blocks.iter().map(|&n| n.max(1)).collect(), blocks }
    }

    pub fn block_count(&self) -> u64 {
        self.blocks.iter().product()
    }

    /// The outermost axis along which bricks have several blocks.
    pub fn outermost(&self) -> Option<usize> {
        self.order.iter().copied().find(|&a| self.brick[a] > 1)
    }

    /// The next axis within that one.
    pub fn second(&self) -> Option<usize> {
        self.order.iter().copied().filter(|&a| self.brick[a] > 1).nth(1)
    }

    /// The same order of blocks with fewer bricks where single blocks are bricks.
    pub fn joined(&self) -> Self {
        let is_single = self.brick.iter().all(|&n| n == 1);
        let brick = if is_single { self.blocks.iter().map(|&n| n.max(1)).collect() } else { self.brick.clone() };
        Self { brick, ..self.clone() }
    }

    fn bricks(&self) -> Vec<u64> {
        self.blocks.iter().zip(&self.brick).map(|(n, b)| n.div_ceil(*b)).collect()
    }

    pub fn brick_count(&self) -> u64 {
        self.bricks().iter().product()
    }

    /// The bricks in order: per axis the blocks `start..stop`.
    pub fn each_brick(&self) -> impl Iterator<Item = Vec<(u64, u64)>> + '_ {
        odometer(self.bricks(), &self.order).map(|at| {
            at.iter().enumerate().map(|(a, i)| (i * self.brick[a], ((i + 1) * self.brick[a]).min(self.blocks[a]))).collect()
        })
    }

    /// The blocks of a brick in order: per axis the position within the brick.
    pub fn blocks_of<'t>(&'t self, brick: &[(u64, u64)]) -> impl Iterator<Item = Vec<u64>> + use<'t> {
        odometer(brick.iter().map(|(a, b)| b - a).collect(), &self.order)
    }

    /// [`Traversal::blocks_of`] for what planning does over and over: `at` is where the position is kept.
    pub fn walk(&self, brick: &[(u64, u64)], at: &mut Vec<u64>, mut visit: impl FnMut(&[u64])) {
        at.clear();
        at.resize(brick.len(), 0);
        if brick.iter().any(|(a, b)| a >= b) {
            return;
        }
        loop {
            visit(at);
            if !advance(at, &self.order, |axis| brick[axis].1 - brick[axis].0) {
                return;
            }
        }
    }

    /// Position in the whole grid of a block of a brick.
    pub fn block(&self, brick: &[(u64, u64)], position: &[u64]) -> Vec<u64> {
        position.iter().zip(brick).map(|(p, r)| p + r.0).collect()
    }

    /// Number of a block in the block grid, C order.
    pub fn number(&self, position: &[u64]) -> u64 {
        position.iter().zip(&self.blocks).fold(0, |n, (p, len)| n * len + p)
    }
}

/// All positions below `lengths`, the last axis of `order` fastest.
fn odometer(lengths: Vec<u64>, order: &[usize]) -> impl Iterator<Item = Vec<u64>> + use<'_> {
    let mut at = vec![0u64; lengths.len()];
    let mut is_done = lengths.contains(&0);
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let now = at.clone();
        is_done = !advance(&mut at, order, |axis| lengths[axis]);
        Some(now)
    })
}

/// The next position, the last axis of `order` fastest; false, and the first one again, behind the last.
fn advance(at: &mut [u64], order: &[usize], length: impl Fn(usize) -> u64) -> bool {
    for &axis in order.iter().rev() {
        at[axis] += 1;
        if at[axis] < length(axis) {
            return true;
        }
        at[axis] = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bricks_cover_every_block_once_in_order() {
        let grid = Grid::regular(&[10, 6], &[2, 2]);
        let mut t = Traversal::new(&grid, vec![1, 0]);
        let whole: Vec<_> = t.each_brick().collect();
        assert_eq!(whole, [[(0, 5), (0, 3)]]);
        assert_eq!(t.blocks_of(&whole[0]).take(6).collect::<Vec<_>>(), [[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [0, 1]]);
        t.brick = vec![2, 3];
        let mut seen: Vec<u64> = Vec::new();
        for brick in t.each_brick() {
            for p in t.blocks_of(&brick) {
                seen.push(t.number(&[p[0] + brick[0].0, p[1] + brick[1].0]));
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..15).collect::<Vec<_>>());
        assert_eq!(t.brick_count(), 3);
        for brick in t.each_brick() {
            let mut walked = Vec::new();
            t.walk(&brick, &mut Vec::new(), |at| walked.push(at.to_vec()));
            assert_eq!(walked, t.blocks_of(&brick).collect::<Vec<_>>());
        }
        assert_eq!(Traversal::new(&Grid(vec![]), vec![]).each_brick().count(), 1);
    }
}
