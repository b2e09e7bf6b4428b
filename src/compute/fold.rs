//! Fixed reduction trees: leaves on a constant grid in array coordinates, combined the same way on any grid (I1).

/// A node of the tree over the leaves of one kept block. Leaves are reduced along the last axis first, each axis in a
/// binary tree over leaf indices; what is left of it is a leaf of the axis before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeKey {
    /// Reduced axes that still have coordinates: `coords.len()`. Empty coordinates: the root.
    pub coords: Vec<u64>,
    /// Level of the tree along the last of them; 0 is a leaf.
    pub level: u32,
}
