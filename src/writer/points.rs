//! A list of the pixels that have a value, instead of the whole raster: a group of two arrays, `index` (point, axis) and
//! `values` (point, ..), points in C order of their pixels.
//!
//! A pixel has a value where not all of its numbers are NaN (of integers and bools: zero). The raster comes in pieces of
//! rows, which the assembler hands on in order; encoders pick their points out side by side and append them in turn. Full
//! chunks are stored at once, `values` before `index`. How many points there are is known at the end, so metadata is written
//! last, once more. One pass, each byte stored once; in memory are the rows of blocks that are not complete, and a chunk.
//!
//! A resumed job needs no notes beside the arrays: the last pixel in the last chunk of `index` says where to go on. Rows that
//! came after it are computed again. What the ledger notes are chunks, since a row's points lie in no file of their own.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use super::zarr::{self, ZarrSink};
use super::{OutputLayout, PointLayout, Sink, SinkError};
use crate::array::DType;
use crate::config::Missing;
use crate::reader::{Source, stage::read_whole};

/// Default chunks of `values` hold about this many bytes.
const CHUNK_BYTES: u64 = 4 << 20;
/// And at most this many points.
const CHUNK_POINTS: u64 = 1 << 16;

/// Points of a chunk where the job doesn't say.
pub fn default_chunk(value_bytes: u64) -> u64 {
    (CHUNK_BYTES / value_bytes.max(1)).clamp(1, CHUNK_POINTS)
}

/// Most bytes that one encoder holds beside an object: its points, and a chunk on its way with its encoded form.
pub fn encode_bytes(layout: &OutputLayout, points: &PointLayout) -> u64 {
    let raster = Raster::new(layout, points);
    let chunk = points.chunk.saturating_mul((raster.value_bytes + raster.index_bytes()) as u64);
    let row = (raster.piece as u64).saturating_mul((raster.value_bytes + raster.index_bytes()) as u64);
    row.saturating_add(chunk.saturating_mul(3)).saturating_add(chunk / 64 + 8192)
}

/// The raster that points are picked from.
#[derive(Debug)]
struct Raster {
    dtype: DType,
    /// Lengths of the pixel axes.
    shape: Vec<u64>,
    /// Pixels of an object, all in one row.
    piece: usize,
    value_bytes: usize,
    index_dtype: DType,
}

impl Raster {
    fn new(layout: &OutputLayout, points: &PointLayout) -> Self {
        let (shape, value) = layout.shape.split_at(points.axes);
        let fits = shape.iter().all(|len| *len <= i32::MAX as u64);
        Self {
            dtype: layout.dtype,
            shape: shape.to_vec(),
            piece: layout.object_shape()[points.axes - 1] as usize,
            value_bytes: value.iter().product::<u64>() as usize * layout.dtype.size(),
            index_dtype: if fits { DType::I32 } else { DType::I64 },
        }
    }

    fn index_bytes(&self) -> usize {
        self.shape.len() * self.index_dtype.size()
    }

    fn row_len(&self) -> u64 {
        self.shape[self.shape.len() - 1]
    }

    /// Objects of a row.
    fn pieces(&self) -> u64 {
        self.row_len().div_ceil(self.piece as u64)
    }

    /// First pixel of an object, by its number in C order, and how many there are.
    fn pixels(&self, object: u64) -> (u64, usize) {
        let (row, piece) = (object / self.pieces(), object % self.pieces());
        let column = piece * self.piece as u64;
        (row * self.row_len() + column, (self.row_len() - column).min(self.piece as u64) as usize)
    }

    /// The object that holds a pixel.
    fn object_of(&self, pixel: u64) -> u64 {
        pixel / self.row_len() * self.pieces() + pixel % self.row_len() / self.piece as u64
    }

    fn has_value(&self, value: &[u8]) -> bool {
        match self.dtype {
            DType::F16 => value.chunks_exact(2).any(|v| !bytemuck::pod_read_unaligned::<half::f16>(v).is_nan()),
            DType::F32 | DType::C64 => value.chunks_exact(4).any(|v| !bytemuck::pod_read_unaligned::<f32>(v).is_nan()),
            DType::F64 | DType::C128 => value.chunks_exact(8).any(|v| !bytemuck::pod_read_unaligned::<f64>(v).is_nan()),
            _ => value.iter().any(|byte| *byte != 0),
        }
    }

    /// Appends a pixel's coordinates.
    fn put_index(&self, pixel: u64, index: &mut Vec<u8>) {
        let mut scale: u64 = self.shape.iter().product();
        let mut rest = pixel;
        for len in &self.shape {
            scale /= len;
            match self.index_dtype {
                DType::I32 => index.extend((rest as i64 / scale as i64).to_le_bytes().iter().take(4)),
                _ => index.extend((rest / scale).to_le_bytes()),
            }
            rest %= scale;
        }
    }

    /// The pixel of an entry of `index`; `None` for what fills a chunk up.
    fn read_index(&self, entry: &[u8]) -> Option<u64> {
        entry.chunks_exact(self.index_dtype.size()).zip(&self.shape).try_fold(0u64, |pixel, (number, len)| {
            let at = match self.index_dtype {
                DType::I32 => i64::from(bytemuck::pod_read_unaligned::<i32>(number)),
                _ => bytemuck::pod_read_unaligned::<i64>(number),
            };
            let at = u64::try_from(at).ok().filter(|at| at < len)?;
            Some(pixel * len + at)
        })
    }
}

/// Points side by side, as they are stored.
#[derive(Default)]
struct Points {
    index: Vec<u8>,
    values: Vec<u8>,
}

/// A list of points being written.
pub struct PointSink {
    layout: OutputLayout,
    raster: Raster,
    /// Points of a chunk.
    chunk: u64,
    index: ZarrSink,
    values: ZarrSink,
    /// The arrays as readers see them: to find where an earlier run ended.
    place: (std::path::PathBuf, String),
    /// It stands, complete: nothing more is put.
    is_complete: bool,
    state: Mutex<State>,
    /// Another object's turn has come, or none will.
    turn: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the object that is appended next.
    next: u64,
    /// Points up to this pixel are stored already.
    last: Option<u64>,
    /// Of the chunk that is being filled.
    number: u64,
    open: Points,
    /// Chunks that the ledger has not heard of.
    stored: Vec<u64>,
    has_failed: bool,
}

impl PointSink {
    /// A list in the group `path` below `root`. `is_new`: groups and arrays are laid out; else the list stands there and is
    /// complete. `attributes`: of the group, those of `layout` go to `values`.
    pub fn new(
        root: &Path,
        path: &str,
        layout: OutputLayout,
        points: PointLayout,
        attributes: &Map<String, Value>,
        is_new: bool,
        sync: bool,
    ) -> Result<Self, SinkError> {
        let raster = Raster::new(&layout, &points);
        let pixels: u64 = raster.shape.iter().product();
        let (shape, value) = layout.shape.split_at(points.axes);
        let (names, value_names) = layout.dimension_names.split_at(points.axes);
        let point = Some("point".to_owned());
        // As long as it could get: it ends sooner in the metadata that stays.
        let array = |dtype, lengths: &[u64], names: Vec<Option<String>>, attributes| OutputLayout {
            shape: [&[pixels], lengths].concat(),
            dtype,
            chunks: [&[points.chunk], lengths].concat().iter().map(|len| (*len).max(1)).collect(),
            shards: None,
            dimension_names: names,
            attributes,
            points: None,
            is_remote: false,
            ..layout.clone()
        };
        let mut about = Map::new();
        if names.iter().all(Option::is_some) {
            about.insert("axes".to_owned(), json!(names));
        }
        let index = array(raster.index_dtype, &[shape.len() as u64], vec![point.clone(), Some("axis".to_owned())], about);
        let values_names = [&[point], value_names].concat();
        let values = array(layout.dtype, value, values_names, layout.attributes.clone());
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if is_new {
            let mut attributes = attributes.clone();
            attributes.insert("points".to_owned(), json!("index"));
            attributes.insert("raster_shape".to_owned(), json!(shape));
            zarr::create_group(root, path, layout.zarr_format, &attributes)?;
        }
        let lay_out = if is_new { zarr::create } else { zarr::reopen };
        Ok(Self {
            index: lay_out(root, &below("index"), index, sync)?,
            values: lay_out(root, &below("values"), values, sync)?,
            place: (root.to_path_buf(), below("index")),
            chunk: points.chunk,
            raster,
            layout,
            is_complete: !is_new,
            state: Mutex::default(),
            turn: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The points of an object that are not stored yet.
    fn pick(&self, number: u64, values: &[u8], last: Option<u64>) -> Points {
        let (first, count) = self.raster.pixels(number);
        let mut points = Points::default();
        let size = self.raster.value_bytes;
        for at in 0..count {
            let value = &values[at * size..][..size];
            let pixel = first + at as u64;
            if self.raster.has_value(value) && last.is_none_or(|last| pixel > last) {
                self.raster.put_index(pixel, &mut points.index);
                points.values.extend_from_slice(value);
            }
        }
        points
    }

    /// Appends an object's points when its turn comes; the chunks that are full now, with their numbers.
    fn append(&self, number: u64, values: &[u8]) -> Result<Vec<(u64, Points)>, SinkError> {
        let last = self.state().last;
        let points = self.pick(number, values, last);
        let (entry, size) = (self.raster.index_bytes(), self.raster.value_bytes);
        let mut state = self.state();
        while state.next != number {
            if state.has_failed {
                return Err(SinkError::GivenUp);
            }
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let count = points.index.len() / entry;
        let mut full = Vec::new();
        let mut from = 0;
        while from < count {
            let here = (count - from).min(self.chunk as usize - state.open.index.len() / entry);
            state.open.index.extend_from_slice(&points.index[from * entry..][..here * entry]);
            state.open.values.extend_from_slice(&points.values[from * size..][..here * size]);
            from += here;
            if state.open.index.len() / entry == self.chunk as usize {
                full.push((state.number, std::mem::take(&mut state.open)));
                state.number += 1;
            }
        }
        state.next += 1;
        drop(state);
        self.turn.notify_all();
        Ok(full)
    }

    /// Stores a chunk, filled up where it is the last: coordinates of -1 are no pixel's.
    fn store(&self, number: u64, mut points: Points) -> Result<u64, SinkError> {
        points.index.resize(self.chunk as usize * self.raster.index_bytes(), 0xff);
        points.values.resize(self.chunk as usize * self.raster.value_bytes, 0);
        let (values, index) = self.chunk_key(number);
        let bytes = self.values.put(&values, &points.values)?;
        Ok(bytes + self.index.put(&index, &points.index)?)
    }

    /// A chunk in the grids of `values` and `index`.
    fn chunk_key(&self, number: u64) -> (Vec<u64>, [u64; 2]) {
        let mut at = vec![0; self.values.layout().shape.len()];
        at[0] = number;
        (at, [number, 0])
    }

    /// The last pixel of a chunk of `index`; `None` when the chunk is not full, or can't be read.
    fn last_pixel(&self, number: u64) -> Option<u64> {
        let source: Arc<dyn Source> =
            Arc::new(crate::reader::zarr::open(&self.place.0, Some(&self.place.1), Missing::Error).ok()?);
        let block = read_whole(&source, &[number, 0]).ok()?;
        let bytes = block.bytes()?;
        self.raster.read_index(&bytes[bytes.len() - self.raster.index_bytes()..])
    }
}

impl Sink for PointSink {
    fn layout(&self) -> &OutputLayout {
        &self.layout
    }

    fn transient_bytes(&self) -> u64 {
        self.layout.encode_bytes()
    }

    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let number = self.layout.object_number(object);
        let mut bytes = 0;
        for (number, points) in self.append(number, values)? {
            bytes += self.store(number, points)?;
            self.state().stored.push(number);
        }
        Ok(bytes)
    }

    fn noted(&self, _object: &[u64]) -> Vec<u64> {
        std::mem::take(&mut self.state().stored)
    }

    fn give_up(&self) {
        self.state().has_failed = true;
        self.turn.notify_all();
    }

    fn resume(&self, _among: &Range<u64>, trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        let objects = self.layout.object_grid().cells().unwrap_or(0);
        if self.is_complete {
            return Ok((0..objects).collect());
        }
        let is_stored = |number: u64| {
            let (values, index) = self.chunk_key(number);
            trusts(number) && self.values.is_stored(&values) && self.index.is_stored(&index)
        };
        let chunks = self.index.layout().object_grid().0[0].cells();
        let mut number = (0..chunks).find(|n| !is_stored(*n)).unwrap_or(chunks);
        // The last chunk of an earlier run that came to its end is not full.
        let mut last = None;
        while let (None, Some(before)) = (last, number.checked_sub(1)) {
            last = self.last_pixel(before);
            number -= u64::from(last.is_none());
        }
        for beyond in number..chunks {
            let (values, index) = self.chunk_key(beyond);
            self.index.discard(&index)?;
            self.values.discard(&values)?;
        }
        let next = last.map_or(0, |pixel| self.raster.object_of(pixel));
        *self.state() = State { next, last, number, ..State::default() };
        Ok((0..next).collect())
    }

    fn finish(&self) -> Result<u64, SinkError> {
        if self.is_complete {
            return Ok(0);
        }
        let mut state = self.state();
        let points = std::mem::take(&mut state.open);
        let count = (points.index.len() / self.raster.index_bytes()) as u64;
        let bytes = if count > 0 { self.store(state.number, points)? } else { 0 };
        let len = state.number * self.chunk + count;
        self.values.shorten(len)?;
        self.index.shorten(len)?;
        self.index.finish()?;
        Ok(bytes)
    }
}
