//! Realistic data made on the fly: `sample:slc`, `sample:volume`, `sample:genotypes`, `sample:seismic`,
//! `sample:tiff`.
//!
//! A value is a pure function of kind, seed, shape and coordinate (I1): chunks may be of any size and made in any order by any
//! thread. Random numbers are counter-based (`rng`), arithmetic is IEEE double plus `libm`, so the bytes are the same on
//! every CPU. Nothing is kept but small tables, and making a chunk allocates nothing of the chunk's size.

mod genotypes;
mod rng;
mod seismic;
mod slc;
#[cfg(test)]
mod tests;
mod tiff;
mod volume;

use serde_json::{Map, Value, json};

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::{DType, Grid, MAX_CHUNK_BYTES, Scalar, element_count};
use crate::config::{SampleSpec, table::nearest};
use crate::operators::ArrayMeta;

/// Chunks that nobody chose are at most this large.
const CHUNK_TARGET: u64 = 16 << 20;
/// Coordinates stay exact as doubles.
const LONGEST_AXIS: u64 = 1 << 48;

/// What a kind of sample is by default, and how it is made.
struct Kind {
    name: &'static str,
    /// Counts changes of the generator; part of the identity, so that an unfinished job does not mix two of them.
    version: u32,
    axes: &'static [&'static str],
    shape: &'static [u64],
    chunks: &'static [u64],
    /// This axis is not cut unless the user cuts it.
    whole: Option<usize>,
    /// The first is the default.
    dtypes: &'static [DType],
    build: Build,
}

/// Refuses what only this kind cannot make.
type Build = fn(seed: u64, shape: &[u64], dtype: DType) -> Result<Box<dyn Generator>, String>;

static KINDS: [&Kind; 5] = [&slc::KIND, &volume::KIND, &genotypes::KIND, &seismic::KIND, &tiff::KIND];

/// Makes the values.
trait Generator: Send + Sync {
    /// Adds attributes and what is known of the values.
    fn describe(&self, meta: &mut ArrayMeta);

    /// Writes every element of `part` into the chunk's bytes.
    fn fill(&self, part: &Part, out: &mut [u8]);

    /// Bytes of tables kept while open.
    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// The part of a chunk that lies inside the array: `start..stop` per axis, and the chunk's full lengths.
struct Part {
    start: Vec<u64>,
    stop: Vec<u64>,
    chunk: Vec<u64>,
}

impl Part {
    /// Elements before `index` (array coordinates) in the chunk, C order.
    fn offset(&self, index: &[u64]) -> usize {
        index.iter().zip(&self.start).zip(&self.chunk).fold(0, |at, ((i, start), len)| at * len + (i - start)) as usize
    }
}

/// A real element type made from a double: floats round, integers round to nearest and saturate.
trait Store: bytemuck::Pod {
    fn store(value: f64) -> Self;
}

macro_rules! store {
    ($($t:ty: $v:ident => $e:expr),*) => { $(impl Store for $t {
        #[inline]
        fn store($v: f64) -> Self { $e }
    })* };
}
store!(f64: v => v, f32: v => v as f32, u8: v => (v + 0.5) as u8, u16: v => (v + 0.5) as u16, i16: v => (v + 0.5) as i16, i64: v => (v + 0.5) as i64);

/// Writes values from element `at` on.
fn put<T: Store>(values: &[f64], at: usize, out: &mut [u8]) {
    let size = size_of::<T>();
    let cells = out[at * size..(at + values.len()) * size].chunks_exact_mut(size);
    for (cell, &value) in cells.zip(values) {
        cell.copy_from_slice(bytemuck::bytes_of(&T::store(value)));
    }
}

/// The places where `start..stop` meets cells of `size`: (cell, first, end).
fn cells(start: u64, stop: u64, size: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (start / size..stop.div_ceil(size)).map(move |c| (c, start.max(c * size), stop.min((c + 1) * size)))
}

/// An open sample.
pub struct SampleSource {
    meta: SourceMeta,
    generator: Box<dyn Generator>,
}

/// Opens `sample:KIND`. Refused: an unknown kind, a shape or chunks of the wrong rank or with a 0, a dtype the kind does not
/// have, arrays beyond 2^63 bytes and chunks beyond 2^40.
pub fn open(spec: &SampleSpec) -> Result<SampleSource, OpenError> {
    let place = format!("sample:{}", spec.kind);
    build(spec, &place).map_err(|reason| OpenError::refused(place, reason))
}

fn build(spec: &SampleSpec, place: &str) -> Result<SampleSource, String> {
    let kind = find(&spec.kind)?;
    let dtype = spec.dtype.unwrap_or(kind.dtypes[0]);
    if !kind.dtypes.contains(&dtype) {
        let list = kind.dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        return Err(format!("dtype {dtype} is not made; choose one of {list}"));
    }
    let item = dtype.size() as u64;
    let shape = spec.shape.clone().unwrap_or_else(|| kind.shape.to_vec());
    check_lengths("shape", &shape, kind)?;
    if element_count(&shape).and_then(|n| n.checked_mul(item)).is_none_or(|n| n > i64::MAX as u64) {
        return Err(format!("shape {shape:?} of {dtype} is more than 2^63 bytes; make it smaller"));
    }
    let chunks = match &spec.chunks {
        Some(chunks) => chunks.clone(),
        None => default_chunks(kind, &shape, item, spec.shape.is_some()),
    };
    check_lengths("chunks", &chunks, kind)?;
    if element_count(&chunks).and_then(|n| n.checked_mul(item)).is_none_or(|n| n > MAX_CHUNK_BYTES) {
        return Err(format!("chunks {chunks:?} of {dtype} are more than {MAX_CHUNK_BYTES} bytes each; make them smaller"));
    }
    let generator = (kind.build)(spec.seed, &shape, dtype)?;
    let by_x = shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
    let mut array = ArrayMeta::plain(kind.name, &shape, dtype);
    array.chunk = chunks.iter().zip(&shape).map(|(c, n)| *c.min(n)).collect();
    array.dimension_names = kind.axes.iter().map(|name| Some((*name).to_owned())).collect();
    array.attributes = Map::from_iter([("seed".to_owned(), json!(spec.seed))]);
    generator.describe(&mut array);
    let meta = SourceMeta {
        array,
        grid: Grid::regular(&shape, &chunks),
        chunk_shape: chunks,
        fill_value: Scalar::zero(dtype),
        transient_bytes: 0,
        resident_bytes: generator.resident_bytes(),
        child_bytes: 0,
        zarr_format: None,
        group: None,
        identity: format!("{place} version={} shape={by_x} dtype={dtype} seed={}", kind.version, spec.seed),
        place: place.into(),
        notes: Vec::new(),
    };
    Ok(SampleSource { meta, generator })
}

fn find(name: &str) -> Result<&'static Kind, String> {
    if let Some(kind) = KINDS.iter().find(|k| k.name == name) {
        return Ok(kind);
    }
    let hint = nearest(name, KINDS.iter().map(|k| k.name)).map(|k| format!("; did you mean \"{k}\"?")).unwrap_or_default();
    let list = KINDS.map(|k| k.name).join(", ");
    Err(format!("there is no sample \"{name}\" (samples are {list}){hint}"))
}

fn check_lengths(key: &str, lengths: &[u64], kind: &Kind) -> Result<(), String> {
    let axes = kind.axes.join(", ");
    if lengths.len() != kind.axes.len() {
        return Err(format!("{key} has {} entries, {} has {} axes ({axes})", lengths.len(), kind.name, kind.axes.len()));
    }
    match lengths.iter().position(|&n| n == 0 || n > LONGEST_AXIS) {
        Some(axis) => Err(format!("{key} {lengths:?}: {} must be from 1 to {LONGEST_AXIS}", kind.axes[axis])),
        None => Ok(()),
    }
}

/// The kind's chunks, clipped to the shape. For a shape of the user's own the longest axis is halved until a chunk has at
/// most 16 MiB, then as many chunks share each axis evenly: what the last one lacks would be stored as fill.
fn default_chunks(kind: &Kind, shape: &[u64], item: u64, own_shape: bool) -> Vec<u64> {
    let mut chunks: Vec<u64> = kind.chunks.iter().zip(shape).map(|(c, n)| *c.min(n)).collect();
    if let Some(axis) = kind.whole {
        chunks[axis] = shape[axis];
    }
    while own_shape && chunks.iter().product::<u64>() * item > CHUNK_TARGET {
        let longest = (0..chunks.len()).filter(|a| Some(*a) != kind.whole && chunks[*a] > 1).max_by_key(|a| chunks[*a]);
        let Some(axis) = longest else { break };
        chunks[axis] = chunks[axis].div_ceil(2);
    }
    if own_shape {
        chunks.iter_mut().zip(shape).for_each(|(c, n)| *c = n.div_ceil(n.div_ceil(*c)));
    }
    chunks
}

/// Sets attributes from pairs.
fn attributes<const N: usize>(meta: &mut ArrayMeta, pairs: [(&str, Value); N]) {
    meta.attributes.extend(pairs.map(|(key, value)| (key.to_owned(), value)));
}

impl Source for SampleSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], _transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let (start, stop) = self.meta.chunk(chunk, out.len())?.into_iter().map(|range| (range.start, range.end)).unzip();
        self.generator.fill(&Part { start, stop, chunk: self.meta.chunk_shape.clone() }, out);
        Ok(ChunkRead::Data { encoded_bytes: 0 })
    }
}
