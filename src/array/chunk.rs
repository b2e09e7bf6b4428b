//! The messages between stages, in flow order: `RawChunk -> HaloBlock -> ComputedBlock -> TrimmedBlock`.
//!
//! One type per hop, so that the compiler knows whether a block still has its halo. Payloads move; the leases of their
//! bytes ride inside the buffers.

use std::any::Any;
use std::fmt;

use std::sync::Arc;

use super::{Block, Dims, Region};
use crate::codec::Packed;
use crate::engine::window::Ticket;
use crate::plan::phase::Destination;

/// What a bounded channel carries: items, then an explicit end. A channel that closes without one is a fault (I7).
#[derive(Debug)]
pub enum Hop<T> {
    /// At least one; small ones travel together.
    Items(Vec<T>),
    /// The sender is done after `count` items.
    End { count: u64 },
}

/// Where the bytes of a chunk are. Only `codec` looks inside `Packed`, only the device actors inside `Device`.
#[derive(Debug)]
pub enum Payload {
    Host(Block),
    Packed(Packed),
    Device(DeviceBlock),
}

/// A chunk in a device's memory; freed by the actor that owns the device when dropped.
pub struct DeviceBlock {
    /// Which device, as in `engine.devices`: `cuda:0`.
    pub device: String,
    pub bytes: u64,
    pub memory: Box<dyn Any + Send>,
}

impl fmt::Debug for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBlock({} bytes on {})", self.bytes, self.device)
    }
}

/// A part of an array: `block` covers `region` (array coordinates).
#[derive(Clone, Debug)]
pub struct Piece {
    pub region: Region,
    pub block: Block,
}

/// reader -> halo-exchange: the part of a source chunk that is needed.
#[derive(Debug)]
pub struct RawChunk {
    /// Which brick of the traversal asked for it: another brick keeps another part of the same chunk.
    pub brick: u64,
    /// Which feed (a source array of the phase) and which chunk of its grid.
    pub feed: usize,
    pub chunk: Dims<u64>,
    /// The part of the chunk that is kept, in the feed's own coordinates.
    pub region: Region,
    pub payload: Payload,
}

/// halo-exchange -> compute: a block of the plan's grid with the parts of every input that it needs.
pub struct HaloBlock {
    /// Place in the traversal, from 0 in each phase.
    pub seq: u64,
    /// Number of the block in the block grid, C order: what messages to the user and to children name.
    pub number: u64,
    /// Core on the phase's axes.
    pub core: Region,
    /// Per input of the phase. A piece may leave its array where the halo stage already filled the boundary.
    pub inputs: Vec<Vec<Piece>>,
    pub ticket: Arc<Ticket>,
}

/// compute -> trim: results as the operators left them, halo included where they returned it.
pub struct ComputedBlock {
    pub seq: u64,
    pub number: u64,
    pub outputs: Vec<ComputedOutput>,
    pub folds: Vec<FoldPart>,
    pub ticket: Arc<Ticket>,
}

#[derive(Debug)]
pub struct ComputedOutput {
    pub to: Destination,
    /// What leaves the phase, in the output's coordinates.
    pub core: Region,
    /// What `block` covers: `core`, or `core` and a halo around it.
    pub region: Region,
    pub block: Block,
}

/// Partial results of a fold for one block: nodes of its reduction trees.
pub struct FoldPart {
    /// Which fold of the phase.
    pub fold: usize,
    /// Core on the fold output's kept axes: which tree the nodes belong to.
    pub kept: Region,
    pub nodes: Vec<(crate::compute::fold::NodeKey, super::Buffer)>,
}

impl fmt::Debug for FoldPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FoldPart({}, {}, {} nodes)", self.fold, self.kept, self.nodes.len())
    }
}

/// trim -> writer: exactly what is to be written.
pub struct TrimmedBlock {
    pub seq: u64,
    pub number: u64,
    /// (output array of the phase, region of it, values)
    pub outputs: Vec<(usize, Region, Block)>,
    /// Held until the values are copied or stored; `None` for results of folds, which outlive their blocks.
    pub ticket: Option<Arc<Ticket>>,
}
