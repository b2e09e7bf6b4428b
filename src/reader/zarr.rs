//! Zarr arrays as a source: one chunk (or subchunk of a shard) per call, decoded into the caller's buffer.
//!
//! Cost of a chunk: one open, one read, the codec; from an object store one request (and one for the index of a shard). Uncompressed
//! little-endian chunks are read in place, zstd is read and decoded piece by piece. Of a part only its own bytes are read
//! (uncompressed) or what lies before its end decoded (zstd). Nothing is allocated per chunk but the key; encoded bytes and
//! intermediate codecs use the worker's own buffer.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta, names};
use crate::array::grid::AxisGrid;
use crate::array::{DType, Dims, Grid, Scalar};
use crate::config::Missing;
use crate::operators::ArrayMeta;
use crate::remote;
use crate::zarr::coordinates::{self, Coordinate, Group};
use crate::zarr::decode::Context;
use crate::zarr::frames::PIECE;
use crate::zarr::hierarchy::{Found, Hierarchy};
use crate::zarr::metadata::{Header, Shards};
use crate::zarr::read::Part;
use crate::zarr::shard::{Shard, ShardCache, ShardError, index_bytes};
use crate::zarr::{ReadStore, fill, vcf};

/// One open array.
pub struct ZarrSource {
    meta: SourceMeta,
    header: Header,
    store: ReadStore,
    /// Path of the array in the store, with a `/` at its end; empty for the root.
    prefix: String,
    shards: Option<ShardCache>,
    missing: Missing,
    /// Decoder state of workers between two chunks: as many as workers read at once.
    contexts: Mutex<Vec<Context>>,
}

/// Opens an array: `path` (a folder or a URL) is an array, or a group with `array` in it (`a/b` for nested). Without `array` the group must
/// hold exactly one numeric array that is no coordinate of an axis.
pub fn open(path: &Path, array: Option<&str>, missing: Missing) -> Result<ZarrSource, OpenError> {
    let hierarchy = Hierarchy::open(path)?;
    let found = hierarchy.find(array)?;
    let is_vcf = vcf::is_vcf(&hierarchy.root()?.attributes);
    let group = match found.path.is_empty() {
        true => None,
        false => Some(coordinates::of(&hierarchy, &found.path, &found.header)?),
    };
    let group = group.filter(|group| found.has_siblings || !group.coordinates.is_empty());
    ZarrSource::new(hierarchy.store, found, path, missing, group.map(Arc::new), is_vcf)
}

/// Opens a coordinate of an array in the store at `root`, which holds numbers, as its header says.
pub fn open_coordinate(root: &Path, coordinate: &Coordinate, header: &Header) -> Result<ZarrSource, OpenError> {
    let store = ReadStore::open(root).map_err(|error| OpenError::Io { path: root.display().to_string(), error })?;
    let (path, node, header) = (coordinate.path.clone(), coordinate.node.clone(), header.clone());
    let found = Found { path, node, header, has_siblings: false, notes: Vec::new() };
    ZarrSource::new(store, found, root, Missing::Fill, None, false)
}

impl ZarrSource {
    fn new(
        store: ReadStore,
        found: Found,
        path: &Path,
        missing: Missing,
        group: Option<Arc<Group>>,
        is_vcf: bool,
    ) -> Result<Self, OpenError> {
        let Found { path: array, node, header, notes, .. } = found;
        let place = if array.is_empty() { store.root() } else { store.root().join(&array) };
        let last = if array.is_empty() { path } else { Path::new(&array) };
        let name = last.file_stem().map_or_else(|| "input".to_owned(), |s| s.to_string_lossy().into_owned());
        let hash: String = node.hash.iter().map(|b| format!("{b:02x}")).collect();
        let is_call = is_vcf && name.starts_with("call_genotype") && matches!(header.dtype, DType::I8 | DType::I16 | DType::I32);
        let missing_value = match is_call {
            true => Scalar::from_integer(header.dtype, -1).ok(),
            false => fill::declared_missing(&header.attributes, header.dtype),
        };
        let shards = header.shards.as_ref().map(|s| ShardCache::new(s.count));
        let count = header.shards.as_ref().map_or(0, |s| s.count);
        let pipeline = &header.pipeline;
        let encoded = pipeline.held_bytes() as u64;
        // An index is held twice while it is turned into numbers.
        let index = if count > 0 { 2 * index_bytes(count, true) } else { 0 };
        let connection = if store.is_remote() { remote::CONNECTION_BYTES } else { 0 };
        let mut attributes = header.attributes.clone();
        if header.fill_is_missing && ["scale_factor", "add_offset"].iter().any(|name| attributes.contains_key(*name)) {
            // Of packed numbers the fill value is a part of how they are packed, in whatever format they are written.
            attributes.entry("_FillValue").or_insert_with(|| fill::json(&header.fill));
        }
        let meta = SourceMeta {
            array: ArrayMeta {
                name,
                shape: header.shape.clone(),
                dtype: header.dtype,
                chunk: header.chunk_shape.iter().zip(&header.shape).map(|(c, n)| *c.min(n).max(&1)).collect(),
                dimension_names: header.dimension_names.clone(),
                attributes,
                missing: missing_value,
                max_value: (header.dtype == DType::Bool).then_some(1),
            },
            grid: Grid::regular(&header.shape, &header.chunk_shape),
            chunk_shape: header.chunk_shape.clone(),
            fill_value: header.fill,
            transient_bytes: encoded + pipeline.scratch_bytes() as u64 + pipeline.context_bytes() + index + connection,
            resident_bytes: shards.as_ref().map_or(0, |s| s.resident_bytes(count)),
            child_bytes: 0,
            zarr_format: Some(header.format),
            group,
            identity: format!("{}#sha256:{hash}", place.display()),
            place,
            notes,
        };
        let prefix = if array.is_empty() { array } else { array + "/" };
        Ok(Self { meta, header, store, prefix, shards, missing, contexts: Mutex::default() })
    }

    /// The metadata as Zarr has it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The key of a stored object (chunk or shard), relative to the store.
    fn key(&self, object: &[u64]) -> String {
        self.header.keys.key(&self.prefix, object)
    }

    fn corrupt(&self, key: &str, reason: impl Into<String>) -> SourceError {
        SourceError::Corrupt { place: self.store.place(key), reason: reason.into() }
    }

    fn io(&self, key: &str, error: std::io::Error) -> SourceError {
        match error.kind() {
            // The file became shorter after it was opened.
            std::io::ErrorKind::UnexpectedEof => self.corrupt(key, "the chunk is torn: it became shorter while it was read"),
            _ => SourceError::Io { place: self.store.place(key), error },
        }
    }

    fn shard_error(&self, key: &str, error: ShardError) -> SourceError {
        match error {
            ShardError::Io(error) => self.io(key, error),
            ShardError::Corrupt(reason) => self.corrupt(key, reason),
        }
    }

    fn absent(&self, key: &str, out: &mut [u8]) -> Result<ChunkRead, SourceError> {
        match self.missing {
            Missing::Error => Err(SourceError::Missing { place: self.store.place(key) }),
            Missing::Fill => {
                fill_with(out, &self.header.fill);
                Ok(ChunkRead::Missing)
            }
        }
    }

    /// Refuses what cannot be a stored chunk by its length.
    fn check_length(&self, key: &str, len: u64) -> Result<(), SourceError> {
        let stored = self.header.pipeline.stored();
        if len > stored.bytes as u64 {
            let most = if stored.is_exact { "" } else { "at most " };
            return Err(self.corrupt(key, format!("the chunk is too long: {len} bytes stored, expected {most}{}", stored.bytes)));
        }
        if stored.is_exact && len < stored.bytes as u64 {
            return Err(self.corrupt(key, format!("the chunk is torn: {len} bytes stored, expected {}", stored.bytes)));
        }
        Ok(())
    }

    /// The bytes of a plain chunk from `first` on that `out` has room for.
    fn finish_plain(
        &self,
        key: &str,
        read: impl FnOnce(&mut [u8], u64) -> Result<(), SourceError>,
        first: usize,
        out: &mut [u8],
    ) -> Result<u64, SourceError> {
        read(out, first as u64)?;
        self.header.pipeline.finish(out, first).map_err(|reason| self.corrupt(key, reason))?;
        Ok(out.len() as u64)
    }

    /// Decodes `len` bytes of which `read` fetches those from a place on, as far as `part` of the decoded chunk. Says how
    /// many bytes it read.
    fn decode(
        &self,
        key: &str,
        len: u64,
        read: impl Fn(&mut [u8], u64) -> Result<(), SourceError>,
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<u64, SourceError> {
        let pipeline = &self.header.pipeline;
        self.check_length(key, len)?;
        if pipeline.is_plain() {
            return self.finish_plain(key, read, part.start, &mut out[part]);
        }
        let in_pieces = pipeline.takes_pieces() && len > PIECE as u64;
        let (held, scratch) = (if in_pieces { PIECE } else { len as usize }, pipeline.scratch_bytes());
        if transient.len() < held + scratch {
            transient.resize(held + scratch, 0);
        }
        let (encoded, rest) = transient.split_at_mut(held);
        let mut context = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let wrong = |reason| self.corrupt(key, reason);
        let decoded = match in_pieces {
            true => pipeline.decode_pieces(part.end, len, read, encoded, out, (&mut context, wrong)),
            false => read(encoded, 0)
                .and_then(|()| pipeline.decode_to(part.end, encoded, &mut rest[..scratch], out, &mut context).map_err(wrong)),
        };
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        decoded.map(|()| len)
    }

    fn read_plain(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let key = self.key(chunk);
        let is_part = self.header.pipeline.is_plain() && part.len() < self.header.pipeline.raw_bytes();
        let first = if is_part { Part::Bytes(part.start as u64..part.end as u64) } else { Part::Whole };
        let Some(object) = self.store.object(&key, first).map_err(|e| self.io(&key, e))? else {
            return self.absent(&key, out);
        };
        let read = |bytes: &mut [u8], from| object.read_exact_at(bytes, from).map_err(|e| self.io(&key, e));
        Ok(ChunkRead::Data { encoded_bytes: self.decode(&key, object.size(), read, part, out, transient)? })
    }

    fn read_sharded(
        &self,
        shards: &Shards,
        cache: &ShardCache,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let object: Vec<u64> = chunk.iter().zip(&shards.chunks).map(|(c, n)| c / n).collect();
        let at = chunk.iter().zip(&shards.chunks).fold(0, |at, (c, n)| at * n + c % n) as usize;
        let key = self.key(&object);
        let index = Shard::index_part(shards.count, shards.index);
        let load = || match self.store.object(&key, index).map_err(|e| self.io(&key, e))? {
            Some(object) => Shard::read(object, shards.count, shards.index).map(Some).map_err(|e| self.shard_error(&key, e)),
            None => Ok(None),
        };
        let (shard, was_loaded) = cache.get(&object, load)?;
        let Some(shard) = shard else { return self.absent(&key, out) };
        let index = if was_loaded { index_bytes(shards.count, shards.index.has_checksum) } else { 0 };
        let most = self.header.pipeline.stored().bytes as u64;
        let Some((offset, len)) = shard.chunk(at, most).map_err(|e| self.shard_error(&key, e))? else {
            fill_with(out, &self.header.fill);
            return Ok(ChunkRead::Data { encoded_bytes: index });
        };
        let read = |bytes: &mut [u8], from| shard.read_at(bytes, offset + from).map_err(|e| self.shard_error(&key, e));
        let read = self.decode(&key, len, read, part, out, transient).map_err(|e| match e {
            SourceError::Corrupt { place, reason } => {
                SourceError::Corrupt { place, reason: format!("chunk {at} of the shard: {reason}") }
            }
            other => other,
        })?;
        Ok(ChunkRead::Data { encoded_bytes: read + index })
    }
}

impl Source for ZarrSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn in_flight(&self) -> usize {
        if self.store.is_remote() { remote::IN_FLIGHT } else { 1 }
    }

    fn is_stored_as_is(&self) -> bool {
        self.header.pipeline.is_plain() && self.shards.is_none() && !self.store.is_remote()
    }

    fn reads_parts(&self) -> bool {
        self.is_stored_as_is()
    }

    fn read_stored(&self, chunk: &[u64], starts: &[usize], out: &mut [u8]) -> Result<ChunkRead, SourceError> {
        let key = self.key(chunk);
        let whole = self.header.pipeline.raw_bytes();
        let run = out.len().checked_div(starts.len()).unwrap_or(0);
        let fits = |start: &usize| start.checked_add(run).is_some_and(|stop| stop <= whole);
        if !self.reads_parts() || run * starts.len() != out.len() || !starts.iter().all(fits) {
            let reason = format!("{} bytes cannot hold runs from {starts:?} on of a chunk of {whole} alone", out.len());
            return Err(self.corrupt(&key, reason));
        }
        let [first, ..] = starts else { return Ok(ChunkRead::Data { encoded_bytes: 0 }) };
        let wanted = Part::Bytes(*first as u64..(*first + run) as u64);
        let Some(object) = self.store.object(&key, wanted).map_err(|e| self.io(&key, e))? else {
            return self.absent(&key, out);
        };
        self.check_length(&key, object.size())?;
        // Who reads rows from a chunk's beginning on comes for the others next. Left to itself, a disk would seek for each.
        if *first == 0 && starts.len() > 1 && run * starts.len() < whole {
            object.will_be_read();
        }
        let mut rest = out;
        for follow in starts.chunk_by(|a, b| a + run == *b) {
            let (out, behind) = rest.split_at_mut(run * follow.len());
            let read = |bytes: &mut [u8], from| object.read_exact_at(bytes, from).map_err(|e| self.io(&key, e));
            self.finish_plain(&key, read, follow[0], out)?;
            rest = behind;
        }
        Ok(ChunkRead::Data { encoded_bytes: (run * starts.len()) as u64 })
    }

    fn requests(&self) -> remote::Requests {
        self.store.requests()
    }

    fn names(&self, axis: usize, each: &mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> {
        match &self.header.dimension_names[..].get(axis) {
            Some(Some(dimension)) => names::of_dimension(
                &self.store.root(),
                self.prefix.trim_end_matches('/'),
                dimension,
                self.header.shape[axis],
                each,
            ),
            _ => Ok(None),
        }
    }

    fn stamp(&self) -> Result<String, SourceError> {
        let array = self.prefix.trim_end_matches('/');
        let objects: Vec<u64> = match &self.header.shards {
            Some(shards) => self.meta.grid.0.iter().zip(&shards.chunks).map(|(g, n)| g.cells().div_ceil(*n)).collect(),
            None => self.meta.grid.0.iter().map(AxisGrid::cells).collect(),
        };
        let count = objects.iter().try_fold(1u64, |n, cells| n.checked_mul(*cells));
        let documents: &[&str] = if self.header.format == 2 { &[".zarray", ".zattrs"] } else { &["zarr.json"] };
        let stamp = self.store.stamp(array, documents, count, |n| self.key(&index_of(n, &objects)));
        let stamp = stamp.map_err(|(key, error)| SourceError::Io { place: self.store.place(&key), error })?;
        Ok(format!("{stamp:016x}"))
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        self.read_part(chunk, 0..self.header.pipeline.raw_bytes(), out, transient)
    }

    fn read_part(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let expected = self.header.pipeline.raw_bytes();
        let held = out.len();
        let Some(out) = out.get_mut(..expected).filter(|_| part.start <= part.end && part.end <= expected) else {
            let reason = format!("the buffer holds {held} bytes, the chunk {expected}, {part:?} are asked for");
            return Err(self.corrupt(&self.key(chunk), reason));
        };
        match (&self.header.shards, &self.shards) {
            (Some(shards), Some(cache)) => self.read_sharded(shards, cache, chunk, part, out, transient),
            _ => self.read_plain(chunk, part, out, transient),
        }
    }
}

/// The index of cell `number` of a grid, C order.
fn index_of(mut number: u64, cells: &[u64]) -> Dims<u64> {
    let mut index = Dims::from_elem(0, cells.len());
    for (i, n) in index.iter_mut().zip(cells).rev() {
        (*i, number) = (number % n, number / n);
    }
    index
}

/// Sets every element to `value`.
fn fill_with(out: &mut [u8], value: &Scalar) {
    let bytes = value.bytes();
    match bytes {
        [first, rest @ ..] if rest.iter().all(|b| b == first) => out.fill(*first),
        _ => out.chunks_exact_mut(bytes.len()).for_each(|element| element.copy_from_slice(bytes)),
    }
}

#[cfg(test)]
#[path = "zarr_tests.rs"]
mod tests;
