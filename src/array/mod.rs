//! Geometry and values, no I/O: regions, chunk grids, boundary rules, dtypes, buffers and the messages that carry them.

pub mod block;
pub mod boundary;
pub mod budget;
pub mod buffer;
pub mod chunk;
pub mod dtype;
pub mod grid;
pub mod npy;
pub mod region;

pub use block::Block;
pub use boundary::{Boundary, Rule};
pub use buffer::{Account, Buffer, Lease};
pub use dtype::{DType, Element, Scalar};
pub use grid::{AxisGrid, Grid};
pub use region::{Dims, Intervals, Region};

/// A chunk with more elements than this is refused: no machine holds it, and metadata can claim anything.
pub const MAX_CHUNK_BYTES: u64 = 1 << 40;

/// Product of the lengths, or `None` when it leaves 64 bits.
pub fn element_count(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &len| n.checked_mul(len))
}
