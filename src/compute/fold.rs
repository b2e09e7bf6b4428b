//! Fixed reduction trees: leaves on a constant grid in array coordinates, combined the same way on any grid (I1).
//!
//! Example: 5 leaves on one reduced axis. Level 0 pairs (0,1) and (2,3), leaf 4 has no sibling and moves up as it is;
//! level 1 pairs (01, 23), 4 moves up again; level 2 pairs (0123, 4): the root. Whichever order the leaves arrive in,
//! the same additions are made. With several reduced axes the last is reduced first; its root is a leaf of the axis before.

use std::collections::HashMap;

use super::running::Running;
use crate::array::budget::BudgetError;
use crate::array::{Account, Buffer, Region};
use crate::operators::{FoldOperator, OperatorError};

/// A node of the tree over the leaves of one kept block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeKey {
    /// Indices along the reduced axes that are not yet reduced; the last one counts nodes of `level`. Empty: the root.
    pub coords: Vec<u64>,
    /// Level of the tree along the last of them; 0 is a leaf.
    pub level: u32,
}

impl NodeKey {
    pub fn root() -> Self {
        Self { coords: Vec::new(), level: 0 }
    }

    pub fn leaf(coords: Vec<u64>) -> Self {
        Self { coords, level: 0 }
    }
}

/// A tree being filled.
pub struct Tree {
    /// Leaves per reduced axis.
    leaves: Vec<u64>,
    pending: HashMap<NodeKey, Buffer>,
    /// States that became part of others, where they are used again.
    spare: Option<Vec<Buffer>>,
}

impl Tree {
    pub fn new(leaves: Vec<u64>) -> Self {
        Self { leaves, pending: HashMap::new(), spare: None }
    }

    /// One whose leaves are states that [`Tree::spare`] gives, as long as there are any.
    pub fn reusing(leaves: Vec<u64>) -> Self {
        Self { spare: Some(Vec::new()), ..Self::new(leaves) }
    }

    /// A state for the next leaf, with what it held before.
    pub fn spare(&mut self) -> Option<Buffer> {
        self.spare.as_mut()?.pop()
    }

    /// Adds a node; merges as far up as siblings are here. Returns the root when it is complete. `keep` gives a state
    /// that has to wait a place of its own.
    pub fn insert<E: From<OperatorError>>(
        &mut self,
        mut key: NodeKey,
        mut state: Buffer,
        fold: &dyn FoldOperator,
        keep: impl FnOnce(Buffer) -> Result<Buffer, E>,
    ) -> Result<Option<Buffer>, E> {
        loop {
            let Some(&at) = key.coords.last() else { return Ok(Some(state)) };
            let axis = key.coords.len() - 1;
            let nodes = nodes_at(self.leaves[axis], key.level);
            if nodes <= 1 {
                key.coords.pop();
                key.level = 0;
                continue;
            }
            let sibling = at ^ 1;
            if sibling < nodes {
                let mut other = key.clone();
                other.coords[axis] = sibling;
                let Some(mut waiting) = self.pending.remove(&other) else {
                    self.pending.insert(key, keep(state)?);
                    return Ok(None);
                };
                if at > sibling {
                    std::mem::swap(&mut state, &mut waiting);
                }
                fold.merge(&mut state, &waiting)?;
                if let Some(spare) = &mut self.spare {
                    spare.push(waiting);
                }
            }
            key.coords[axis] = at >> 1;
            key.level += 1;
        }
    }

    /// The nodes that wait for siblings.
    pub fn into_nodes(self) -> Vec<(NodeKey, Buffer)> {
        let mut nodes: Vec<_> = self.pending.into_iter().collect();
        nodes.sort_by(|a, b| a.0.cmp(&b.0));
        nodes
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

fn nodes_at(leaves: u64, level: u32) -> u64 {
    if level >= 63 { 1 } else { leaves.div_ceil(1 << level) }
}

/// Collects what the blocks of one fold made, kept block by kept block.
pub struct Collector<'a> {
    fold: &'a dyn FoldOperator,
    account: Account,
    way: Way<'a>,
}

/// How blocks come together.
enum Way<'a> {
    /// Nodes of trees; with the leaves per reduced axis.
    Trees { leaves: Vec<u64>, open: HashMap<Region, Tree> },
    /// Each adds to the running state itself: complete when as many as contribute have.
    Running { states: &'a Running, number: usize, contributions: u64, open: HashMap<Region, u64> },
}

#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

impl<'a> Collector<'a> {
    /// One whose blocks bring nodes of trees; `leaves`: per reduced axis.
    pub fn of_trees(fold: &'a dyn FoldOperator, account: Account, leaves: Vec<u64>) -> Self {
        Self { fold, account, way: Way::Trees { leaves, open: HashMap::new() } }
    }

    /// One whose blocks add to running states: fold `number` of the phase, so many blocks to each kept block.
    pub fn of_running(
        fold: &'a dyn FoldOperator,
        account: Account,
        states: &'a Running,
        number: usize,
        contributions: u64,
    ) -> Self {
        Self { fold, account, way: Way::Running { states, number, contributions, open: HashMap::new() } }
    }

    /// Adds a block; returns the state of the kept block when it is complete.
    pub fn add(&mut self, kept: &Region, nodes: Vec<(NodeKey, Buffer)>) -> Result<Option<Buffer>, CollectError> {
        let account = &self.account;
        // States come on the workers' account, which must not fill up with what waits here.
        let keep = |state: Buffer| -> Result<Buffer, CollectError> {
            let asked = state.len() as u64;
            let lease = account.try_lease(asked).ok_or(BudgetError::Overrun {
                account: account.name(),
                asked,
                limit: account.limit(),
            })?;
            let mut own = Buffer::new(lease, state.len())?;
            own.copy_from_slice(&state);
            Ok(own)
        };
        match &mut self.way {
            Way::Trees { leaves, open } => {
                let tree = open.entry(kept.clone()).or_insert_with(|| Tree::new(leaves.clone()));
                let mut root = None;
                for (key, state) in nodes {
                    if let Some(done) = tree.insert(key, state, self.fold, keep)? {
                        root = Some(done);
                    }
                }
                if root.is_some() {
                    open.remove(kept);
                }
                Ok(root)
            }
            Way::Running { states, number, contributions, open } => {
                let parts = open.entry(kept.clone()).or_insert(0);
                *parts += 1;
                if parts != contributions {
                    return Ok(None);
                }
                open.remove(kept);
                match states.finish(*number, kept) {
                    Some(state) => Ok(Some(state)),
                    None => Err(OperatorError::data("every block was added and there is no state").into()),
                }
            }
        }
    }

    /// Lets go of what blocks added to a kept block whose result an earlier run stored.
    pub fn pass_over(&mut self, kept: &Region) {
        if let Way::Running { states, number, .. } = &self.way {
            states.finish(*number, kept);
        }
    }

    /// True when nothing waits: every kept block was completed.
    pub fn is_empty(&self) -> bool {
        match &self.way {
            Way::Trees { open, .. } => open.is_empty(),
            Way::Running { open, .. } => open.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Padded;

    /// Joins the texts of its leaves with brackets: shows which additions are made.
    struct Brackets;

    impl FoldOperator for Brackets {
        fn state_bytes(&self) -> usize {
            8
        }
        fn is_order_free(&self) -> bool {
            false
        }
        fn leaf(&self, _: &[Padded], _: &[usize], _: &mut [u8]) -> Result<(), OperatorError> {
            Ok(())
        }
        // Not commutative, not associative: any other tree gives another number.
        fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
            let value = |b: &[u8]| bytemuck::pod_read_unaligned::<u64>(b);
            let merged = value(into).wrapping_mul(31).rotate_left(7) ^ value(other).wrapping_mul(17).wrapping_add(3);
            into.copy_from_slice(&merged.to_ne_bytes());
            Ok(())
        }
        fn finish(&self, _: &[u8], _: u64, _: &mut [&mut [u8]]) -> Result<(), OperatorError> {
            Ok(())
        }
    }

    fn reduce(leaves: &[u64], order: &[Vec<u64>]) -> u64 {
        let mut tree = Tree::new(leaves.to_vec());
        let mut root = None;
        for coords in order {
            let value = coords.iter().fold(7u64, |n, c| n * 1000 + c);
            let state = Buffer::from_slice(&value.to_ne_bytes());
            let done = tree.insert::<OperatorError>(NodeKey::leaf(coords.clone()), state, &Brackets, Ok).unwrap();
            assert!(root.is_none(), "complete before the last leaf");
            root = done;
        }
        assert!(tree.is_empty());
        bytemuck::pod_read_unaligned(&root.expect("all leaves are in"))
    }

    #[test]
    fn any_order_of_leaves_gives_one_tree() {
        for leaves in [vec![1], vec![5], vec![8], vec![3, 4], vec![7, 1, 3]] {
            let mut all: Vec<Vec<u64>> = vec![vec![]];
            for &n in &leaves {
                all = all.iter().flat_map(|c| (0..n).map(move |i| [c.clone(), vec![i]].concat())).collect();
            }
            let want = reduce(&leaves, &all);
            let mut seed = 12345u64;
            for _ in 0..20 {
                for i in (1..all.len()).rev() {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    all.swap(i, (seed >> 33) as usize % (i + 1));
                }
                assert_eq!(reduce(&leaves, &all), want, "{leaves:?}");
            }
        }
    }
}
