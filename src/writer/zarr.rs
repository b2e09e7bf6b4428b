//! Zarr arrays as a sink: metadata first, then every object (chunk or shard) once, each whole under its name.
//!
//! Cost of an object: the codec, one write and one rename. A chunk is encoded in one piece; a shard is written subchunk
//! by subchunk with its index last, so that it is never held encoded. Every chunk is written, also those of zeros: a
//! missing object is one that was not done.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use zarrs::metadata::v3::{ArrayMetadataV3, MetadataV3};

use super::parts::OpenObject;
use super::store::WriteStore;
use super::{OutputLayout, Sink, SinkError, resume_each};
use crate::array::block::{c_strides, copy_strided};
use crate::array::grid::for_each_cell;
use crate::array::{DType, Dims, MAX_CHUNK_BYTES, Scalar, element_count};
use crate::reader::OpenError;
use crate::remote::is_url;
use crate::zarr::encode::{Context, EncodeError, Encoder, Shuffle};
use crate::zarr::hierarchy::{Hierarchy, Node};
pub use crate::zarr::is_zarr;
use crate::zarr::metadata::Keys;
use crate::zarr::shard::{MAX_INDEX_BYTES, index_bytes};
use crate::zarr::{fill, find_zarr, strings};

/// One array being written.
pub struct ZarrSink {
    layout: OutputLayout,
    store: WriteStore,
    /// Path of the array in the store, with a `/` at its end; empty for the root.
    prefix: String,
    keys: Keys,
    encoder: Encoder,
    /// Bytes of a chunk (inside a shard: a subchunk), and of an object.
    chunk_bytes: usize,
    object_bytes: usize,
    /// Subchunks of a shard per axis.
    shard_chunks: Option<Vec<u64>>,
    /// True when what was put must be on disk after `finish`.
    is_synced: bool,
    /// Encoder state and buffers between two objects: as many as workers write at once.
    contexts: Mutex<Vec<Context>>,
}

/// Lays out an array at `array_path` (`""`: the root) below `root`: folders, metadata of missing parent groups, its own
/// metadata. With `sync`, [`Sink::finish`] makes everything durable.
pub fn create(root: &Path, array_path: &str, layout: OutputLayout, sync: bool) -> Result<ZarrSink, SinkError> {
    create_in(open_store(root)?, array_path, layout, sync)
}

/// The same in a store; in an object store metadata is put when the output is published.
pub fn create_in(store: WriteStore, array_path: &str, layout: OutputLayout, sync: bool) -> Result<ZarrSink, SinkError> {
    let sized = check(&layout).map_err(|reason| SinkError::Encode { place: store.place(array_path), reason })?;
    create_parents(&store, array_path, layout.zarr_format)?;
    let prefix = if array_path.is_empty() { String::new() } else { format!("{array_path}/") };
    put_document(&store, &prefix, &layout, sized.encoder, sync, false)?;
    Ok(sink(prefix, layout, sized, store, sync))
}

/// The same for strings, whose layout is that of bytes of their number; they are put as [`ZarrSink::put_strings`].
pub fn create_strings_in(store: WriteStore, array_path: &str, layout: OutputLayout, sync: bool) -> Result<ZarrSink, SinkError> {
    let sized = check(&layout).map_err(|reason| SinkError::Encode { place: store.place(array_path), reason })?;
    create_parents(&store, array_path, layout.zarr_format)?;
    let prefix = format!("{array_path}/");
    put_document(&store, &prefix, &layout, sized.encoder, sync, true)?;
    Ok(sink(prefix, layout, sized, store, sync))
}

/// An array's metadata. Attributes first in v2: an array is there once its own document is.
fn put_document(
    store: &WriteStore,
    prefix: &str,
    layout: &OutputLayout,
    encoder: Encoder,
    sync: bool,
    is_strings: bool,
) -> Result<(), SinkError> {
    let described = |mut document: Value| {
        if is_strings {
            strings::describe(&mut document, layout.zarr_format);
        }
        document
    };
    if layout.zarr_format == 2 {
        let attributes = attributes_v2(layout, !prefix.is_empty());
        if !attributes.is_empty() {
            put_json(store, &format!("{prefix}.zattrs"), &Value::Object(attributes), sync)?;
        }
        return put_json(store, &format!("{prefix}.zarray"), &described(document_v2(layout, encoder)), sync);
    }
    let key = format!("{prefix}zarr.json");
    let document = document_v3(layout, encoder);
    let document = document.map_err(|e| SinkError::Encode { place: store.place(&key), reason: e.to_string() })?;
    put_json(store, &key, &described(document), sync)
}

/// The metadata of an array that is copied, as it was.
pub fn put_node(store: &WriteStore, path: &str, node: &Node, sync: bool) -> Result<(), SinkError> {
    create_parents(store, path, node.format)?;
    let attributes = Value::Object(node.attributes.clone());
    if node.format == 2 {
        put_json(store, &join(path, ".zattrs"), &attributes, sync)?;
        return put_json(store, &join(path, ".zarray"), &node.document, sync);
    }
    let mut document = node.document.clone();
    document["attributes"] = attributes;
    put_json(store, &join(path, "zarr.json"), &document, sync)
}

/// A sink over an array that stands: to look at its objects, and to put into those that lack.
pub fn reopen(root: &Path, array_path: &str, layout: OutputLayout, sync: bool) -> Result<ZarrSink, SinkError> {
    reopen_in(open_store(root)?, array_path, layout, sync)
}

/// The same in a store.
pub fn reopen_in(store: WriteStore, array_path: &str, layout: OutputLayout, sync: bool) -> Result<ZarrSink, SinkError> {
    let sized = check(&layout).map_err(|reason| SinkError::Encode { place: store.place(array_path), reason })?;
    let prefix = if array_path.is_empty() { String::new() } else { format!("{array_path}/") };
    Ok(sink(prefix, layout, sized, store, sync))
}

fn sink(prefix: String, layout: OutputLayout, sized: Sized, store: WriteStore, sync: bool) -> ZarrSink {
    ZarrSink {
        keys: match layout.zarr_format {
            2 => Keys { has_prefix: false, separator: '.' },
            _ => Keys { has_prefix: true, separator: '/' },
        },
        encoder: sized.encoder,
        chunk_bytes: sized.chunk_bytes,
        object_bytes: sized.object_bytes,
        shard_chunks: sized.shard_chunks,
        is_synced: sync,
        contexts: Mutex::default(),
        layout,
        store,
        prefix,
    }
}

/// Writes the metadata of a group (`""`: the root) with its attributes, and of parents that have none yet.
pub fn create_group(root: &Path, path: &str, format: u8, attributes: &Map<String, Value>) -> Result<(), SinkError> {
    create_group_in(&open_store(root)?, path, format, attributes)
}

/// The same in a store.
pub fn create_group_in(store: &WriteStore, path: &str, format: u8, attributes: &Map<String, Value>) -> Result<(), SinkError> {
    create_parents(store, path, format)?;
    put_group(store, path, format, attributes)
}

/// Attributes of the array or group at `path`; `None` when there is neither.
pub fn read_attributes(path: &Path) -> Result<Option<Map<String, Value>>, OpenError> {
    if !is_url(path) && !find_zarr(path).map_err(|error| OpenError::Io { path: path.display().to_string(), error })? {
        return Ok(None);
    }
    let hierarchy = Hierarchy::open(path)?;
    // In an object store a consolidated document comes before what makes an output of it.
    let stands =
        !is_url(path) || hierarchy.has_root().map_err(|error| OpenError::Io { path: path.display().to_string(), error })?;
    Ok(hierarchy.node("")?.filter(|_| stands).map(|node| node.attributes))
}

/// Replaces the attributes of an array or group that exists. Its metadata is whole at every instant.
pub fn write_attributes(root: &Path, path: &str, attributes: &Map<String, Value>) -> Result<(), SinkError> {
    let place = root.join(path).display().to_string();
    let failed = |e: OpenError| SinkError::Encode { place: place.clone(), reason: e.to_string() };
    let node = Hierarchy::open(root).map_err(failed)?.node(path).map_err(failed)?;
    let node =
        node.ok_or_else(|| SinkError::Encode { place: place.clone(), reason: "there is no Zarr array or group".into() })?;
    let store = open_store(root)?;
    let attributes = Value::Object(attributes.clone());
    if node.format == 2 {
        return put_json(&store, &join(path, ".zattrs"), &attributes, true);
    }
    let mut document = node.document;
    document["attributes"] = attributes;
    put_json(&store, &join(path, "zarr.json"), &document, true)
}

fn open_store(root: &Path) -> Result<WriteStore, SinkError> {
    WriteStore::folder(root).map_err(|error| SinkError::Io { place: root.display().to_string(), error })
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

pub(super) fn put_json(store: &WriteStore, key: &str, document: &Value, sync: bool) -> Result<(), SinkError> {
    let text = format!("{document:#}");
    store.put_document(key, text.as_bytes(), sync).map_err(|error| SinkError::Io { place: store.place(key), error })
}

fn put_group(store: &WriteStore, path: &str, format: u8, attributes: &Map<String, Value>) -> Result<(), SinkError> {
    if format == 2 {
        if !attributes.is_empty() {
            put_json(store, &join(path, ".zattrs"), &Value::Object(attributes.clone()), false)?;
        }
        return put_json(store, &join(path, ".zgroup"), &json!({"zarr_format": 2}), false);
    }
    put_json(store, &join(path, "zarr.json"), &json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}), false)
}

/// Groups above `path` that are not there yet.
fn create_parents(store: &WriteStore, path: &str, format: u8) -> Result<(), SinkError> {
    let name = if format == 2 { ".zgroup" } else { "zarr.json" };
    let parts: Vec<&str> = path.split('/').collect();
    let count = if path.is_empty() { 0 } else { parts.len() };
    for depth in 0..count {
        let parent = parts[..depth].join("/");
        let key = join(&parent, name);
        if !store.has_document(&key).map_err(|error| SinkError::Io { place: store.place(&key), error })? {
            put_group(store, &parent, format, &Map::new())?;
        }
    }
    Ok(())
}

/// What follows from a layout once it is found to be possible.
struct Sized {
    encoder: Encoder,
    chunk_bytes: usize,
    object_bytes: usize,
    shard_chunks: Option<Vec<u64>>,
}

fn check(layout: &OutputLayout) -> Result<Sized, String> {
    let OutputLayout { shape, chunks, shards, dtype, .. } = layout;
    if !matches!(layout.zarr_format, 2 | 3) {
        return Err(format!("zarr_format {} is not 2 or 3", layout.zarr_format));
    }
    let bytes = |key: &str, lengths: &[u64]| {
        if lengths.len() != shape.len() {
            return Err(format!("{key} {lengths:?} has {} entries, the array has {} axes", lengths.len(), shape.len()));
        }
        if lengths.contains(&0) {
            return Err(format!("{key} {lengths:?} has a length of 0"));
        }
        let bytes = element_count(lengths).and_then(|n| n.checked_mul(dtype.size() as u64));
        bytes
            .filter(|n| *n <= MAX_CHUNK_BYTES)
            .ok_or_else(|| format!("{key} {lengths:?} of {dtype} is larger than {MAX_CHUNK_BYTES} bytes"))
    };
    if element_count(shape).and_then(|n| n.checked_mul(dtype.size() as u64)).is_none() {
        return Err(format!("shape {shape:?} of {dtype} has more bytes than 64 bits count"));
    }
    let chunk_bytes = bytes("chunks", chunks)?;
    let (object_bytes, shard_chunks) = match shards {
        None => (chunk_bytes, None),
        Some(_) if layout.zarr_format == 2 => return Err("shards need zarr_format = 3".into()),
        Some(shards) => {
            let object_bytes = bytes("shards", shards)?;
            if shards.iter().zip(chunks).any(|(s, c)| s % c != 0) {
                return Err(format!("shards {shards:?} are not whole multiples of chunks {chunks:?}"));
            }
            let per_axis: Vec<u64> = shards.iter().zip(chunks).map(|(s, c)| s / c).collect();
            if element_count(&per_axis).is_none_or(|n| n > MAX_INDEX_BYTES / 16) {
                return Err(format!("shards {shards:?} hold too many chunks of {chunks:?} for one index; use larger chunks"));
            }
            (object_bytes, Some(per_axis))
        }
    };
    let encoder = Encoder::new(&layout.codec, *dtype, chunk_bytes)?;
    Ok(Sized { encoder, chunk_bytes: chunk_bytes as usize, object_bytes: object_bytes as usize, shard_chunks })
}

fn zero(dtype: DType) -> Value {
    match dtype {
        DType::Bool => json!(false),
        d if d.is_complex() => json!([0.0, 0.0]),
        d if d.is_float() => json!(0.0),
        _ => json!(0),
    }
}

/// v2 has no dimension names of its own: xarray's attribute carries them, which wants a name for every axis of every array of
/// a group. And `_FillValue` is the fill value there.
fn attributes_v2(layout: &OutputLayout, is_in_group: bool) -> Map<String, Value> {
    let mut attributes = layout.attributes.clone();
    if missing_v2(layout).is_some() {
        attributes.shift_remove("_FillValue");
    }
    if is_in_group || layout.dimension_names.iter().any(Option::is_some) {
        let name = |(axis, name): (usize, &Option<String>)| name.clone().unwrap_or_else(|| format!("dim_{axis}"));
        let names: Vec<String> = layout.dimension_names.iter().enumerate().map(name).collect();
        attributes.insert("_ARRAY_DIMENSIONS".into(), json!(names));
    }
    attributes
}

/// What stands for "missing" by the attributes, of real numbers.
fn missing_v2(layout: &OutputLayout) -> Option<Scalar> {
    if layout.dtype.is_complex() { None } else { fill::declared_missing(&layout.attributes, layout.dtype) }
}

/// xarray takes the fill value for `_FillValue`, and a zero for missing where it is 0: chunks are all there, so it may be nothing.
fn document_v2(layout: &OutputLayout, encoder: Encoder) -> Value {
    let fill_value = missing_v2(layout).map_or(Value::Null, |missing| fill::json(&missing));
    let compressor = match encoder {
        Encoder::None => Value::Null,
        Encoder::Zstd { level } => json!({"id": "zstd", "level": level, "checksum": false}),
        Encoder::Gzip { level } => json!({"id": "gzip", "level": level}),
        Encoder::Blosc { cname, level, shuffle, .. } => {
            json!({"id": "blosc", "cname": cname.name(), "clevel": level, "shuffle": shuffle as i32, "blocksize": 0})
        }
    };
    json!({"zarr_format": 2, "shape": layout.shape, "chunks": layout.chunks, "dtype": layout.dtype.typestr(),
        "compressor": compressor, "fill_value": fill_value, "order": "C", "filters": null, "dimension_separator": "."})
}

fn document_v3(layout: &OutputLayout, encoder: Encoder) -> Result<Value, serde_json::Error> {
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let mut codecs = vec![little.clone()];
    match encoder {
        Encoder::None => {}
        Encoder::Zstd { level } => codecs.push(json!({"name": "zstd", "configuration": {"level": level, "checksum": false}})),
        Encoder::Gzip { level } => codecs.push(json!({"name": "gzip", "configuration": {"level": level}})),
        Encoder::Blosc { cname, level, typesize, shuffle } => codecs.push(json!({"name": "blosc", "configuration": {
            "typesize": typesize, "cname": cname.name(), "clevel": level,
            "shuffle": match shuffle { Shuffle::Bytes => "shuffle", Shuffle::Bits => "bitshuffle" }, "blocksize": 0}})),
    }
    if layout.shards.is_some() {
        // zarr-python refuses a crc32c without a configuration.
        codecs = vec![json!({"name": "sharding_indexed", "configuration": {"chunk_shape": layout.chunks, "codecs": codecs,
            "index_codecs": [little, {"name": "crc32c", "configuration": {}}], "index_location": "end"}})];
    }
    let grid = json!({"name": "regular", "configuration": {"chunk_shape": layout.object_shape()}});
    let codecs = codecs.into_iter().map(serde_json::from_value::<MetadataV3>).collect::<Result<_, _>>()?;
    let metadata = ArrayMetadataV3::new(
        layout.shape.clone(),
        serde_json::from_value(grid)?,
        MetadataV3::new(layout.dtype.name()),
        serde_json::from_value(zero(layout.dtype))?,
        codecs,
    );
    let names = layout.dimension_names.iter().any(Option::is_some).then(|| layout.dimension_names.clone());
    let mut attributes = layout.attributes.clone();
    if let (Some(missing), true) = (fill::declared_missing(&attributes, layout.dtype), layout.dtype.is_float()) {
        attributes.insert("_FillValue".to_owned(), fill::attribute_v3(&missing));
    }
    serde_json::to_value(metadata.with_attributes(attributes).with_dimension_names(names))
}

impl ZarrSink {
    pub fn is_stored(&self, object: &[u64]) -> bool {
        self.store.is_stored(&self.key(object))
    }

    pub fn discard(&self, object: &[u64]) -> Result<(), SinkError> {
        let key = self.key(object);
        self.store.remove(&key).map_err(|error| SinkError::Io { place: self.store.place(&key), error })
    }

    /// Says in the metadata that the first axis ends here, though it was laid out longer.
    pub fn shorten(&self, len: u64) -> Result<(), SinkError> {
        let mut layout = self.layout.clone();
        layout.shape[0] = len;
        put_document(&self.store, &self.prefix, &layout, self.encoder, self.is_synced, false)
    }

    /// Makes what was put so far durable, before it is noted as done. Does nothing without `sync`.
    pub fn sync(&self) -> Result<(), SinkError> {
        match self.is_synced {
            true => self.store.sync().map_err(|error| SinkError::Io { place: self.store.place(&self.prefix), error }),
            false => Ok(()),
        }
    }

    /// The key of an object, relative to the root.
    pub fn key(&self, object: &[u64]) -> String {
        self.keys.key(&self.prefix, object)
    }

    /// The key of an object that there is.
    fn checked_key(&self, object: &[u64]) -> Result<String, SinkError> {
        let key = self.key(object);
        let is_inside = object.iter().zip(self.layout.object_axes()).all(|(i, axis)| *i < axis.cells());
        if object.len() != self.layout.shape.len() || !is_inside {
            return Err(SinkError::Encode { place: self.store.place(&key), reason: format!("there is no object {object:?}") });
        }
        Ok(key)
    }

    /// Stores the strings of one object, in C order.
    pub fn put_strings(&self, object: &[u64], values: &[String]) -> Result<(), SinkError> {
        let key = self.key(object);
        let bytes = strings::encode(values).map_err(|reason| SinkError::Encode { place: self.store.place(&key), reason })?;
        self.put_chunk(&key, &bytes, &mut Context::default()).map(drop)
    }

    fn put_chunk(&self, key: &str, values: &[u8], context: &mut Context) -> Result<u64, SinkError> {
        let io = |error| SinkError::Io { place: self.store.place(key), error };
        // A request that is sent whole costs an object store less than parts.
        if matches!(self.store, WriteStore::Folder(_)) && self.encoder.gives_pieces(values.len()) {
            let mut pending = self.store.begin(key).map_err(io)?;
            let stored = self.encode(key, values, context, |bytes| pending.write_all(bytes))?;
            pending.commit().map_err(io)?;
            return Ok(stored);
        }
        self.encode(key, values, context, |bytes| self.store.put(key, bytes))
    }

    fn encode(
        &self,
        key: &str,
        values: &[u8],
        context: &mut Context,
        write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<u64, SinkError> {
        self.encoder.encode_to(values, context, write).map_err(|error| match error {
            EncodeError::Codec(reason) => SinkError::Encode { place: self.store.place(key), reason },
            EncodeError::Io(error) => SinkError::Io { place: self.store.place(key), error },
        })
    }

    fn put_shard(
        &self,
        key: &str,
        object: &[u64],
        per_axis: &[u64],
        values: &[u8],
        context: &mut Context,
    ) -> Result<u64, SinkError> {
        let io = |error| SinkError::Io { place: self.store.place(key), error };
        let OutputLayout { shape, chunks, dtype, .. } = &self.layout;
        let size = dtype.size();
        let chunk: Vec<usize> = chunks.iter().map(|&n| n as usize).collect();
        let shard: Vec<usize> = self.layout.object_shape().iter().map(|&n| n as usize).collect();
        let strides = c_strides(&shard, size);
        let is_contiguous = is_contiguous(&chunk, &shard);
        let mut pending = self.store.begin(key).map_err(io)?;
        let mut index = Vec::with_capacity(per_axis.iter().product::<u64>() as usize * 16 + 4);
        let mut end = 0u64;
        let mut gathered = std::mem::take(&mut context.gathered);
        let subchunks: Dims<_> = per_axis.iter().map(|&n| 0..n).collect();
        for_each_cell(&subchunks, |at| {
            // A subchunk outside the array is nobody's.
            let is_outside = (0..at.len()).any(|a| (object[a] * per_axis[a] + at[a]) * chunks[a] >= shape[a]);
            if is_outside {
                index.extend([0xff; 16]);
                return Ok(());
            }
            let start: isize = at.iter().zip(&chunk).zip(&strides).map(|((i, n), s)| *i as isize * *n as isize * s).sum();
            let part = if is_contiguous {
                &values[start as usize..start as usize + self.chunk_bytes]
            } else {
                gathered.resize(self.chunk_bytes, 0);
                copy_strided(&mut gathered, 0, &c_strides(&chunk, size), values, start, &strides, &chunk, size);
                &gathered[..]
            };
            let stored = self.encode(key, part, context, |bytes| pending.write_all(bytes))?;
            index.extend(end.to_le_bytes());
            index.extend(stored.to_le_bytes());
            end += stored;
            Ok(())
        })?;
        context.gathered = gathered;
        index.extend(crc32c::crc32c(&index).to_le_bytes());
        pending.write_all(&index).map_err(io)?;
        pending.commit().map_err(io)?;
        Ok(end + index.len() as u64)
    }
}

/// True when a subchunk's values follow each other in the shard's.
fn is_contiguous(chunk: &[usize], shard: &[usize]) -> bool {
    match chunk.iter().position(|n| *n > 1) {
        Some(first) => chunk[first + 1..] == shard[first + 1..],
        None => true,
    }
}

impl Sink for ZarrSink {
    fn layout(&self) -> &OutputLayout {
        &self.layout
    }

    fn transient_bytes(&self) -> u64 {
        let encoded = self.encoder.held_bytes(self.chunk_bytes) + self.encoder.context_bytes(self.chunk_bytes);
        let Some(per_axis) = &self.shard_chunks else { return encoded };
        let lengths = |s: &[u64]| s.iter().map(|&n| n as usize).collect::<Vec<_>>();
        let is_contiguous = is_contiguous(&lengths(&self.layout.chunks), &lengths(self.layout.object_shape()));
        let gathered = if is_contiguous { 0 } else { self.chunk_bytes as u64 };
        encoded + gathered + index_bytes(per_axis.iter().product(), true)
    }

    fn resume(&self, among: &Range<u64>, trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        resume_each(&self.layout, among, trusts, |object| self.is_stored(object), |object| self.discard(object))
    }

    fn begin(&self, object: &[u64]) -> Result<OpenObject, SinkError> {
        let key = self.checked_key(object)?;
        let place = self.store.place(&key);
        match (&self.store, self.encoder, &self.shard_chunks) {
            (WriteStore::Folder(store), Encoder::None, None) => OpenObject::begin(store, &key, place, self.object_bytes as u64),
            _ => Err(SinkError::Encode { place, reason: "objects like this one cannot be stored part by part".into() }),
        }
    }

    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let key = self.checked_key(object)?;
        if values.len() != self.object_bytes {
            let reason = format!("object {object:?} has {} bytes, expected {}", values.len(), self.object_bytes);
            return Err(SinkError::Encode { place: self.store.place(&key), reason });
        }
        let mut context = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let put = match &self.shard_chunks {
            Some(per_axis) => self.put_shard(&key, object, per_axis, values, &mut context),
            None => self.put_chunk(&key, values, &mut context),
        };
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        put
    }

    fn finish(&self) -> Result<u64, SinkError> {
        self.sync().map(|()| 0)
    }
}
