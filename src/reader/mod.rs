//! Stage 1: reads and decodes source chunks. `trait Source` is where arrays come from.

pub mod again;
pub mod bed;
pub mod beside;
pub mod command;
pub mod decoded;
pub mod file;
pub mod flat;
pub mod input;
pub mod keep;
pub mod kept;
pub mod margins;
mod names;
pub mod sample;
mod sources;
pub mod stage;
pub mod strips;
pub mod subset;
pub mod tiff;
pub mod zarr;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::array::{Dims, Grid, Scalar};
use crate::engine::stage::Cause;
use crate::files::advice;
use crate::operators::ArrayMeta;
use crate::remote::Requests;
use crate::zarr::coordinates::Group;

/// Why a chunk could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The store failed: the message names the file.
    #[error("{place}: {error}{}", advice(error))]
    Io { place: String, error: std::io::Error },
    /// The bytes are not what the metadata says: torn, trailing garbage, wrong checksum, too large.
    #[error("{place}: {reason}")]
    Corrupt { place: String, reason: String },
    /// The chunk is not there and the job says `missing = "error"`.
    #[error("{place}: the chunk is missing (missing = \"error\")")]
    Missing { place: String },
    /// The program that makes the array gave no answer, or a wrong one.
    #[error("{place}: {reason}")]
    Child { place: String, reason: String, is_passing: bool },
    /// The job was stopped while somebody waited for a program.
    #[error("stopped")]
    Stopped,
}

impl SourceError {
    pub fn cause(&self) -> Cause {
        match self {
            SourceError::Io { error, .. } => Cause::of(error),
            SourceError::Child { is_passing: true, .. } | SourceError::Stopped => Cause::Passing,
            SourceError::Corrupt { .. } | SourceError::Missing { .. } | SourceError::Child { .. } => Cause::Final,
        }
    }
}

/// Why an input could not be opened. All of these are wrong inputs (exit 2), not failures while reading.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: {reason}")]
    Refused { path: String, reason: String },
    #[error("{path}: {error}{}", advice(error))]
    Io { path: String, error: std::io::Error },
    /// The arrays do not make the one that the job asks for: no place of its own.
    #[error("{0}")]
    Wrong(String),
}

impl From<SourceError> for OpenError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Io { place, error } => Self::Io { path: place, error },
            other => Self::Wrong(other.to_string()),
        }
    }
}

/// Longer reasons are nothing that anybody reads.
const MOST_REASON_BYTES: usize = 4096;

impl OpenError {
    /// A reason that quotes much of a hostile document is cut.
    pub fn refused(path: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        if reason.len() > MOST_REASON_BYTES {
            reason.truncate(reason.floor_char_boundary(MOST_REASON_BYTES));
            reason.push_str("...");
        }
        Self::Refused { path: path.into(), reason }
    }
}

/// What is known of a source array once it is open.
#[derive(Clone, Debug)]
pub struct SourceMeta {
    pub array: ArrayMeta,
    /// The grid of the chunks that are read and decoded one by one (the subchunks of a sharded array).
    pub grid: Grid,
    /// Length of a decoded chunk per axis: Zarr decodes edge chunks at full length.
    pub chunk_shape: Vec<u64>,
    pub fill_value: Scalar,
    /// Most bytes that reading one chunk holds beside the decoded chunk (encoded bytes, intermediate codecs).
    pub transient_bytes: u64,
    /// Bytes the source itself keeps while open (shard indexes).
    pub resident_bytes: u64,
    /// Bytes that each reader's child process may hold, beside this process.
    pub child_bytes: u64,
    /// 2 or 3 for Zarr, `None` elsewhere: the output follows it.
    pub zarr_format: Option<u8>,
    /// The array's group when it holds other arrays (the output then is a group too).
    pub group: Option<Arc<Group>>,
    /// What the job hash takes as this input's identity.
    pub identity: String,
    pub place: PathBuf,
    /// Things passed over while opening, to be told to the user (a string array beside ours).
    pub notes: Vec<String>,
}

impl SourceMeta {
    /// The elements of a chunk, per axis. Refused: a chunk that is not in the grid, or a buffer that does not hold just one.
    pub fn chunk(&self, chunk: &[u64], held: usize) -> Result<Dims<Range<u64>>, SourceError> {
        let bytes = self.chunk_shape.iter().product::<u64>() * self.array.dtype.size() as u64;
        let is_inside = chunk.len() == self.grid.0.len() && chunk.iter().zip(&self.grid.0).all(|(&i, axis)| i < axis.cells());
        if !is_inside || held as u64 != bytes {
            let reason = format!("chunk {chunk:?} into {held} bytes: the grid or the chunk ({bytes} bytes) is another");
            return Err(SourceError::Corrupt { place: self.place.display().to_string(), reason });
        }
        Ok(chunk.iter().zip(&self.grid.0).map(|(&i, axis)| axis.range(i)).collect())
    }
}

/// What reading a chunk gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRead {
    /// Decoded into the buffer, from this many encoded bytes.
    Data { encoded_bytes: u64 },
    /// Not there: the buffer holds the fill value.
    Missing,
}

/// An array that chunks are read from. Shared by the reader's workers.
pub trait Source: Send + Sync {
    fn meta(&self) -> &SourceMeta;

    /// Decodes one chunk into `out`: C order, native endian, `chunk_shape` elements (edge chunks too, what lies outside
    /// the array holds anything). `transient` is the worker's own buffer for encoded bytes, reused from call to call.
    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError>;

    /// [`Source::read_chunk`] for a caller that looks at bytes `part` of the decoded chunk only (whole elements): the rest of
    /// `out` may hold anything. Sources that can stop early, or begin late, do.
    fn read_part(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let _ = part;
        self.read_chunk(chunk, out, transient)
    }

    /// True where [`Source::read_stored`] reads parts of chunks.
    fn reads_parts(&self) -> bool {
        false
    }

    /// Runs of bytes of a decoded chunk, from each of `starts` on, one after the other into `out`, which has room for just these:
    /// nothing else is read or held.
    fn read_stored(&self, chunk: &[u64], starts: &[usize], out: &mut [u8]) -> Result<ChunkRead, SourceError> {
        let _ = out;
        let reason = format!("bytes from {starts:?} on of chunk {chunk:?} cannot be read alone");
        Err(SourceError::Corrupt { place: self.meta().place.display().to_string(), reason })
    }

    /// Reads worth having under way at once because each waits long for its first byte; 1 where they don't.
    fn in_flight(&self) -> usize {
        1
    }

    /// True where reading a chunk is reading bytes of a local file, and at most turning their order.
    fn is_stored_as_is(&self) -> bool {
        false
    }

    /// Requests sent to an object store so far.
    fn requests(&self) -> Requests {
        Requests::default()
    }

    /// The calling thread will read chunks, until `stop` is set.
    fn enter(&self, stop: &Arc<AtomicBool>) {
        let _ = stop;
    }

    /// The calling thread reads no more: what it started ends with it.
    fn leave(&self) {}

    /// Calls `each` with the number of every entry along an axis and what it is called, which may be several names; says where
    /// names come from. `None`: entries have no names. Costs a look at all of them, one chunk of names at a time.
    fn names(&self, axis: usize, each: &mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> {
        let _ = (axis, each);
        Ok(None)
    }

    /// Sizes and times of everything that is stored, condensed: another stamp means that the input was changed. Empty for
    /// what can't change.
    fn stamp(&self) -> Result<String, SourceError> {
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut() {
        let text = OpenError::refused("a.zarr", "é".repeat(1 << 20)).to_string();
        assert!(text.len() < MOST_REASON_BYTES + 20 && text.ends_with("é..."), "{}", text.len());
        assert_eq!(OpenError::refused("a.zarr", "no").to_string(), "a.zarr: no");
    }
}
