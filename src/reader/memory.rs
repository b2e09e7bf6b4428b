//! A fold's result as a source: an array in memory that later phases read like any other.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::Map;

use super::{ChunkRead, Source, SourceError, SourceMeta};
use crate::array::block::{c_strides, copy_strided};
use crate::array::{Block, Buffer, Grid, Region, Scalar};
use crate::operators::ArrayMeta;

/// Rows of about this many bytes are a chunk, so that a large result streams too.
const CHUNK_BYTES: u64 = 1 << 20;

/// Filled by the phase that folds, read by later phases. The bytes are charged to the account of its buffer.
pub struct MemorySource {
    meta: SourceMeta,
    values: Mutex<Option<Buffer>>,
}

impl MemorySource {
    pub fn new(array: &ArrayMeta) -> Self {
        let mut chunk = array.shape.clone();
        let rest: u64 = chunk.iter().skip(1).product::<u64>() * array.dtype.size() as u64;
        if let Some(first) = chunk.first_mut() {
            *first = (CHUNK_BYTES / rest.max(1)).clamp(1, (*first).max(1));
        }
        let mut array = array.clone();
        array.chunk = chunk.iter().map(|&c| c.max(1)).collect();
        array.attributes = Map::new();
        let meta = SourceMeta {
            grid: Grid::regular(&array.shape, &array.chunk),
            chunk_shape: array.chunk.clone(),
            fill_value: Scalar::zero(array.dtype),
            transient_bytes: 0,
            resident_bytes: 0,
            zarr_format: None,
            array_path: None,
            identity: format!("result {}", array.name),
            place: PathBuf::from(&array.name),
            notes: Vec::new(),
            array,
        };
        Self { meta, values: Mutex::new(None) }
    }

    pub fn byte_len(&self) -> u64 {
        self.meta.array.shape.iter().product::<u64>() * self.meta.array.dtype.size() as u64
    }

    /// Gives the array its memory, before the fold starts.
    pub fn fill_with(&self, buffer: Buffer) {
        *self.values.lock().unwrap_or_else(PoisonError::into_inner) = Some(buffer);
    }

    /// Gives the memory back: no later phase reads it.
    pub fn clear(&self) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Stores a finished part of the result.
    pub fn write(&self, region: &Region, block: &Block) {
        let shape: Vec<usize> = self.meta.array.shape.iter().map(|&n| n as usize).collect();
        let strides = c_strides(&shape, block.dtype().size());
        let offset: isize = region.start.iter().zip(&strides).map(|(&s, st)| s as isize * st).sum();
        if let Some(buffer) = self.values.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let (src, src_offset) = block.raw();
            copy_strided(buffer, offset, &strides, src, src_offset, block.strides(), block.shape(), block.dtype().size());
        }
    }
}

impl Source for MemorySource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], _transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(values) = values.as_ref() else {
            let reason = "the fold that makes it has not run".to_owned();
            return Err(SourceError::Corrupt { place: self.meta.array.name.clone(), reason });
        };
        // Chunks are whole rows: one run of bytes.
        let size = self.meta.array.dtype.size();
        let row: usize = self.meta.array.shape.iter().skip(1).product::<u64>() as usize * size;
        let rows = self.meta.chunk_shape.first().map_or(1, |&n| n as usize);
        let start = chunk.first().map_or(0, |&c| c as usize) * rows * row;
        let len = (rows * row).min(values.len().saturating_sub(start)).min(out.len());
        out[..len].copy_from_slice(&values[start..start + len]);
        Ok(ChunkRead::Data { encoded_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::DType;

    #[test]
    fn parts_written_come_back_by_chunk() {
        let source = MemorySource::new(&ArrayMeta::plain("s", &[3, 2], DType::I32));
        assert!(source.read_chunk(&[0, 0], &mut [0; 24], &mut Vec::new()).is_err());
        source.fill_with(Buffer::loose(24));
        source.write(&Region::from_ranges(&[(0, 3), (1, 2)]), &Block::from_values(&[3, 1], &[1i32, 2, 3]));
        source.write(&Region::from_ranges(&[(0, 3), (0, 1)]), &Block::from_values(&[3, 1], &[7i32, 8, 9]));
        let mut out = vec![0u8; 24];
        source.read_chunk(&[0, 0], &mut out, &mut Vec::new()).unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i32>(&out), [7, 1, 8, 2, 9, 3]);
    }
}
