//! Stage 5: assembles output objects, encodes and stores them. `trait Sink` is where arrays go.

pub mod consolidated;
pub mod coordinates;
pub mod npy;
pub mod parts;
pub mod points;
pub mod remote;
pub mod stage;
pub mod store;
pub mod zarr;

use std::collections::HashSet;
use std::ops::Range;

use crate::array::grid::for_each_cell;
use crate::array::{AxisGrid, DType, Grid};
use crate::config::CodecSpec;
use crate::engine::stage::Cause;
use crate::files::advice;
use crate::remote::upload::held_bytes;
use crate::zarr::encode::Encoder;
use parts::OpenObject;
use serde_json::{Map, Value};

/// The array to be written: everything a sink needs to lay it out.
#[derive(Clone, Debug)]
pub struct OutputLayout {
    pub shape: Vec<u64>,
    pub dtype: DType,
    pub chunks: Vec<u64>,
    /// Sharded: objects hold `shards / chunks` subchunks each.
    pub shards: Option<Vec<u64>>,
    pub codec: CodecSpec,
    /// 2 or 3.
    pub zarr_format: u8,
    pub dimension_names: Vec<Option<String>>,
    pub attributes: Map<String, Value>,
    /// Only the pixels that have a value are stored, as a list. `shape` is the raster's, and `chunks` how it is assembled:
    /// pieces of its rows.
    pub points: Option<PointLayout>,
    /// Objects go to an object store.
    pub is_remote: bool,
}

/// How a list of points lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointLayout {
    /// Leading axes of the raster that say which pixel it is; the others are its value.
    pub axes: usize,
    /// Points of a chunk.
    pub chunk: u64,
}

impl OutputLayout {
    /// Shape of an object: the shard, or the chunk.
    pub fn object_shape(&self) -> &[u64] {
        self.shards.as_deref().unwrap_or(&self.chunks)
    }

    /// Bytes of a whole object, decoded.
    pub fn object_bytes(&self) -> u64 {
        self.object_shape().iter().product::<u64>() * self.dtype.size() as u64
    }

    /// Most bytes that encoding and storing an object holds beside its values: its encoded form, in a shard a subchunk on its
    /// way, and what an upload holds.
    pub fn encode_bytes(&self) -> u64 {
        let object = self.object_bytes();
        let upload = if self.is_remote { held_bytes(object.saturating_add(object / 64 + 4096)) } else { 0 };
        self.encoded_bytes(object).saturating_add(upload)
    }

    fn encoded_bytes(&self, object: u64) -> u64 {
        if let Some(points) = &self.points {
            return points::encode_bytes(self, points);
        }
        let chunk: u64 = self.chunks.iter().product::<u64>().saturating_mul(self.dtype.size() as u64);
        // What no encoder takes is refused when the output is laid out.
        let Ok(encoder) = Encoder::new(&self.codec, self.dtype, chunk) else { return object };
        match &self.shards {
            // An object store is sent whole objects.
            None if self.is_remote && encoder != Encoder::None => encoder.bound(object as usize) as u64,
            None => encoder.held_bytes(object as usize),
            Some(shards) => {
                let count: u64 = shards.iter().zip(&self.chunks).map(|(s, c)| s / c).product();
                // A subchunk that is cut out, and the index.
                encoder.held_bytes(chunk as usize).saturating_add(chunk).saturating_add(count.saturating_mul(16))
            }
        }
    }

    /// How each axis is cut into objects.
    pub fn object_axes(&self) -> impl Iterator<Item = AxisGrid> {
        self.shape.iter().zip(self.object_shape()).map(|(&len, &cell)| AxisGrid::regular(len, cell))
    }

    pub fn object_grid(&self) -> Grid {
        Grid(self.object_axes().collect())
    }

    /// Number of an object in its grid, C order.
    pub fn object_number(&self, object: &[u64]) -> u64 {
        object.iter().zip(self.object_axes()).fold(0, |n, (i, axis)| n * axis.cells() + i)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("{place}: {error}{}", advice(error))]
    Io { place: String, error: std::io::Error },
    #[error("{place}: {reason}")]
    Encode { place: String, reason: String },
    /// Why is told by whoever gave up.
    #[error("what came before it was not stored")]
    GivenUp,
}

impl SinkError {
    pub fn cause(&self) -> Cause {
        match self {
            // In words of ours it is about the place, not about data.
            SinkError::Io { error, .. } => error.raw_os_error().map_or(Cause::Passing, Cause::System),
            SinkError::Encode { .. } => Cause::Final,
            SinkError::GivenUp => Cause::Passing,
        }
    }
}

/// An array that objects (chunks or shards) are put into, each once. Shared by the writer's workers.
pub trait Sink: Send + Sync {
    fn layout(&self) -> &OutputLayout;

    /// Most bytes that encoding and storing one object holds beside its values.
    fn transient_bytes(&self) -> u64;

    /// Encodes and stores one object, of [`OutputLayout::points`] in C order. `values` holds the whole object in C order (edge objects are filled up with 0).
    /// Returns the bytes stored.
    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError>;

    /// Begins an object that comes in parts, which lie in it as they are: local files that are neither encoded nor sharded.
    fn begin(&self, object: &[u64]) -> Result<OpenObject, SinkError> {
        let reason = format!("object {object:?} cannot be stored part by part");
        Err(SinkError::Encode { place: String::new(), reason })
    }

    /// What an earlier run of the same job left of `among`: numbers of the objects that need not be put again. What stands under its
    /// name is whole, stores give names last, but survived a power failure only where the ledger says so: `trusts` takes
    /// the numbers that [`Sink::noted`] gave. What is not trusted is removed.
    fn resume(&self, among: &Range<u64>, trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError>;

    /// What the ledger may note now that an object was put, usually the object.
    fn noted(&self, object: &[u64]) -> Vec<u64> {
        vec![self.layout().object_number(object)]
    }

    /// Objects that others wait for will not be put: the run ends before its end.
    fn give_up(&self) {}

    /// All objects are put: writes what comes last and makes everything durable. Returns the bytes that this stored.
    fn finish(&self) -> Result<u64, SinkError>;
}

/// [`Sink::resume`] where each object is stored by itself.
fn resume_each(
    layout: &OutputLayout,
    among: &Range<u64>,
    trusts: &dyn Fn(u64) -> bool,
    is_stored: impl Fn(&[u64]) -> bool,
    discard: impl Fn(&[u64]) -> Result<(), SinkError>,
) -> Result<HashSet<u64>, SinkError> {
    let mut done = HashSet::new();
    for_each_cell(&layout.object_grid().all(), |object| {
        let number = layout.object_number(object);
        if among.contains(&number) && is_stored(object) {
            if trusts(number) {
                done.insert(number);
            } else {
                discard(object)?;
            }
        }
        Ok(())
    })?;
    Ok(done)
}
