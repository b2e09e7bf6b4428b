//! Stage 5: assembles output objects, encodes and stores them. `trait Sink` is where arrays go.

pub mod stage;
pub mod zarr;

use crate::array::{DType, Grid};
use crate::config::{CodecName, CodecSpec};
use crate::engine::stage::Cause;
use crate::files::advice;
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

    /// Most bytes that encoding an object holds beside its values: its encoded form, and in a shard a subchunk on its way.
    pub fn encode_bytes(&self) -> u64 {
        let object = self.object_bytes();
        match (&self.shards, self.codec.name) {
            (None, CodecName::None) => 0,
            // Compressors may grow incompressible data by less than 1/64 and a header.
            (None, _) => object + object / 64 + 4096,
            (Some(shards), _) => {
                let chunk: u64 = self.chunks.iter().product::<u64>() * self.dtype.size() as u64;
                let count: u64 = shards.iter().zip(&self.chunks).map(|(s, c)| s / c).product();
                object + object / 64 + count * (4096 + 16) + 2 * (chunk + chunk / 64)
            }
        }
    }

    pub fn object_grid(&self) -> Grid {
        Grid::regular(&self.shape, self.object_shape())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("{place}: {error}{}", advice(error))]
    Io { place: String, error: std::io::Error },
    #[error("{place}: {reason}")]
    Encode { place: String, reason: String },
}

impl SinkError {
    pub fn cause(&self) -> Cause {
        match self {
            // In words of ours it is about the place, not about data.
            SinkError::Io { error, .. } => error.raw_os_error().map_or(Cause::Passing, Cause::System),
            SinkError::Encode { .. } => Cause::Final,
        }
    }
}

/// An array that objects (chunks or shards) are put into, each once. Shared by the writer's workers.
pub trait Sink: Send + Sync {
    fn layout(&self) -> &OutputLayout;

    /// Most bytes that encoding and storing one object holds beside its values.
    fn transient_bytes(&self) -> u64;

    /// Encodes and stores one object. `values` holds the whole object in C order (edge objects are filled up with 0).
    /// Returns the bytes stored.
    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError>;

    /// True when the object stands under its name, whole: stores give names last.
    fn is_stored(&self, object: &[u64]) -> bool;

    /// Removes an object that cannot be trusted: it was stored before a power failure and never synced.
    fn discard(&self, object: &[u64]) -> Result<(), SinkError>;

    /// All objects are put: writes what comes last and makes it durable.
    fn finish(&self) -> Result<(), SinkError>;
}
