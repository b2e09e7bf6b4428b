//! Arrays that lie uncompressed in one file: `.npy` files and raw ones.
//!
//! The file has no chunks, so it is seen through a grid of our own, of about 4 MiB a chunk, whole along the axis that runs
//! fastest. A chunk is read by runs of rows that follow each other in the file, straight into its place; where the first
//! axis runs fastest (Fortran order), into the worker's buffer, and turned from there.

use std::ops::Range;
use std::path::Path;

use super::file::InputFile;
use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::block::{c_strides, copy_strided};
use crate::array::npy::{Header, MAX_HEADER};
use crate::array::{DType, Grid, MAX_CHUNK_BYTES, Scalar, element_count};
use crate::config::RawSpec;
use crate::operators::ArrayMeta;
use crate::zarr::decode::{first_non_bool, swap_bytes};

/// Chunks are about this large at most.
const CHUNK_BYTES: u64 = 4 << 20;

/// An array in a file.
pub struct FlatSource {
    file: InputFile,
    meta: SourceMeta,
    /// Where the first element lies.
    data: u64,
    is_big_endian: bool,
    is_fortran: bool,
}

/// Opens a `.npy` file.
pub fn open_npy(path: &Path) -> Result<FlatSource, OpenError> {
    let file = InputFile::open(path)?;
    let header = Header::parse(&file.head(MAX_HEADER)?).map_err(|e| OpenError::refused(path.display().to_string(), e))?;
    FlatSource::new(file, path, "npy", header)
}

/// Opens a file without a header.
pub fn open_raw(path: &Path, raw: &RawSpec) -> Result<FlatSource, OpenError> {
    let RawSpec { dtype, is_big_endian, shape, offset } = raw.clone();
    let data = usize::try_from(offset).map_err(|_| OpenError::refused(path.display().to_string(), "ends before its offset"))?;
    FlatSource::new(InputFile::open(path)?, path, "raw", Header { dtype, is_big_endian, is_fortran: false, shape, data })
}

impl FlatSource {
    fn new(file: InputFile, path: &Path, format: &str, header: Header) -> Result<Self, OpenError> {
        Self::with_chunks(file, path, format, header, CHUNK_BYTES)
    }

    fn with_chunks(file: InputFile, path: &Path, format: &str, header: Header, most: u64) -> Result<Self, OpenError> {
        let Header { dtype, is_big_endian, is_fortran, shape, data } = header;
        let refused = |reason| OpenError::refused(path.display().to_string(), reason);
        let bytes = element_count(&shape).and_then(|n| n.checked_mul(dtype.size() as u64));
        let Some(end) = bytes.and_then(|n| n.checked_add(data as u64)).filter(|end| *end <= i64::MAX as u64) else {
            return Err(refused(format!("claims the shape {shape:?} of {dtype}, which is more than 2^63 bytes")));
        };
        if file.size() < end {
            let held = file.size().saturating_sub(data as u64);
            return Err(refused(format!(
                "is cut off: the shape {shape:?} of {dtype} takes {} bytes from offset {data} on, {held} are there",
                end - data as u64
            )));
        }
        let chunk = chunk_of(&shape, dtype.size() as u64, is_fortran, most);
        let chunk_bytes = element_count(&chunk).and_then(|n| n.checked_mul(dtype.size() as u64));
        let Some(chunk_bytes) = chunk_bytes.filter(|n| *n <= MAX_CHUNK_BYTES) else {
            return Err(refused(format!(
                "has rows of {} elements, more than can be read at once",
                chunk.iter().max().unwrap_or(&0)
            )));
        };
        let name = path.file_stem().map_or_else(|| "input".to_owned(), |s| s.to_string_lossy().into_owned());
        let mut array = ArrayMeta::plain(&name, &shape, dtype);
        array.chunk.clone_from(&chunk);
        array.max_value = (dtype == DType::Bool).then_some(1);
        let order = if is_fortran { " fortran" } else { "" };
        let endian = if is_big_endian { " big-endian" } else { "" };
        let meta = SourceMeta {
            array,
            grid: Grid::regular(&shape, &chunk),
            chunk_shape: chunk,
            fill_value: Scalar::zero(dtype),
            transient_bytes: if is_fortran { chunk_bytes } else { 0 },
            resident_bytes: 0,
            child_bytes: 0,
            zarr_format: None,
            group: None,
            identity: format!("{}#{format} {shape:?} {dtype}{endian}{order} at {data}", file.place().display()),
            place: file.place().to_owned(),
            notes: Vec::new(),
        };
        Ok(Self { file, meta, data: data as u64, is_big_endian, is_fortran })
    }

    /// Reads a box of the array as the file has it (`shape`, `start`, `len`: the axis that runs fastest last) into rows that lie
    /// in `out` as in an array of the lengths `held`; rows that do not meet `part` of it are left out. Says how many bytes it read.
    fn read_box(
        &self,
        shape: &[u64],
        (start, len): (&[u64], &[u64]),
        held: &[u64],
        part: Range<usize>,
        out: &mut [u8],
    ) -> Result<u64, SourceError> {
        let size = self.meta.array.dtype.size() as u64;
        // Axes at the end that are whole, in the file and in `out`, make one run with the one before them.
        let (mut outer, mut run) = (shape.len(), size);
        while let Some(axis) = outer.checked_sub(1) {
            run *= len[axis];
            outer = axis;
            if len[axis] != shape[axis] || len[axis] != held[axis] {
                break;
            }
        }
        let place = |index: &[u64], first: &[u64], lengths: &[u64]| {
            let at = |axis: usize| index.get(axis).copied().unwrap_or(0) + first.get(axis).copied().unwrap_or(0);
            (0..lengths.len()).fold(0, |sum, axis| sum * lengths[axis] + at(axis)) * size
        };
        let (mut index, mut read) = (vec![0; outer], 0);
        if len.contains(&0) {
            return Ok(0);
        }
        loop {
            let first = place(&index, &[], held) as usize;
            let rows = first..first + run as usize;
            if rows.start < part.end && part.start < rows.end {
                self.file.read_at(&mut out[rows], self.data + place(&index, start, shape))?;
                read += run;
            }
            let mut axis = outer;
            loop {
                let Some(next) = axis.checked_sub(1) else { return Ok(read) };
                axis = next;
                index[axis] += 1;
                if index[axis] < len[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
    }

    /// Native byte order, and bools that are bools; `first` is where `out` begins in its chunk.
    fn finish(&self, out: &mut [u8], first: usize) -> Result<(), SourceError> {
        let dtype = self.meta.array.dtype;
        if self.is_big_endian {
            swap_bytes(out, dtype);
        }
        match first_non_bool(out).filter(|_| dtype == DType::Bool) {
            Some(at) => {
                let place = self.file.place().display().to_string();
                let reason = format!("byte {} of a chunk is {}, which is not a bool (0 or 1)", first + at, out[at]);
                Err(SourceError::Corrupt { place, reason })
            }
            None => Ok(()),
        }
    }
}

impl Source for FlatSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn is_stored_as_is(&self) -> bool {
        !self.is_fortran
    }

    fn stamp(&self) -> Result<String, SourceError> {
        self.file.stamp()
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let all = 0..out.len();
        self.read_part(chunk, all, out, transient)
    }

    fn read_part(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let SourceMeta { array, chunk_shape, .. } = &self.meta;
        let (size, ranges) = (array.dtype.size(), self.meta.chunk(chunk, out.len())?);
        let (mut start, mut len): (Vec<u64>, Vec<u64>) = ranges.into_iter().map(|r| (r.start, r.end - r.start)).unzip();
        let encoded_bytes = if self.is_fortran {
            let shape: Vec<usize> = len.iter().map(|&n| n as usize).collect();
            let mut whole = array.shape.clone();
            for list in [&mut start, &mut len, &mut whole] {
                list.reverse();
            }
            let turned: Vec<usize> = len.iter().map(|&n| n as usize).collect();
            let count = turned.iter().product::<usize>() * size;
            if transient.len() < count {
                transient.resize(count, 0);
            }
            let read = self.read_box(&whole, (&start, &len), &len, 0..count, &mut transient[..count])?;
            let mut strides = c_strides(&turned, size);
            strides.reverse();
            let held: Vec<usize> = chunk_shape.iter().map(|&n| n as usize).collect();
            copy_strided(out, 0, &c_strides(&held, size), transient, 0, &strides, &shape, size);
            read
        } else {
            self.read_box(&array.shape, (&start, &len), chunk_shape, part.clone(), out)?
        };
        // Whole elements; what lies before and behind the part may hold anything.
        self.finish(&mut out[part.clone()], part.start)?;
        Ok(ChunkRead::Data { encoded_bytes })
    }
}

/// The array's shape, the longest axis halved until a chunk is small enough; the one that runs fastest only at the end.
fn chunk_of(shape: &[u64], size: u64, is_fortran: bool, most: u64) -> Vec<u64> {
    let mut chunk: Vec<u64> = shape.iter().map(|&n| n.max(1)).collect();
    let fastest = if is_fortran { 0 } else { shape.len().saturating_sub(1) };
    while chunk.iter().fold(size, |n, &c| n.saturating_mul(c)) > most {
        let longest = (0..chunk.len()).filter(|&a| chunk[a] > 1).max_by_key(|&a| (a != fastest, chunk[a]));
        let Some(axis) = longest else { break };
        chunk[axis] = chunk[axis].div_ceil(2);
    }
    chunk
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
