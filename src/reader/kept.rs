//! Arrays that the engine keeps between phases: results of folds, and the state of multi-pass operators. Written by the
//! phase that makes them, read by later ones like any other source; in memory when they fit, else in a scratch file.
//!
//! Chunks lie one after the other, each at full length, so reading one is one run of bytes. A scratch file has no name:
//! it is removed when it is made, so nothing is left behind whatever ends the process.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use serde_json::Map;

use super::{ChunkRead, Source, SourceError, SourceMeta};
use crate::array::block::{c_strides, copy_strided};
use crate::array::budget::BudgetError;
use crate::array::grid::for_each_index;
use crate::array::{Account, Block, Buffer, Grid, Region, Scalar};
use crate::files::{File, advice};
use crate::operators::ArrayMeta;

/// Chunks have about this many bytes at most, so that large arrays stream too.
const CHUNK_BYTES: u64 = 1 << 20;

/// Where the values are kept.
enum Place {
    Nowhere,
    Memory(Buffer),
    File(File),
}

/// How many copies of an array there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Written, then read.
    One,
    /// One is read while the other is written; [`KeptArray::turn`] exchanges them. Before the first turn all values are 0.
    Two,
}

/// Why there is no place for an array.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("a result that later steps read does not fit: {0}")]
    Budget(#[from] BudgetError),
    #[error("engine.scratch = {place}: {error}{}", advice(error))]
    Scratch { place: String, error: Error },
}

/// An array kept between phases. The plan makes it, the engine gives it room before it is written and clears it after its
/// last reader.
pub struct KeptArray {
    meta: SourceMeta,
    chunks: u64,
    copies: Vec<RwLock<Place>>,
    /// Exchanges made.
    turns: AtomicUsize,
}

impl KeptArray {
    pub fn new(array: &ArrayMeta, copies: Copies) -> Self {
        Self::in_chunks(array, copies, CHUNK_BYTES)
    }

    /// One of f64 that is read whole, by blocks as by the control of passes: a single chunk.
    pub fn whole(array: &ArrayMeta) -> Self {
        let array = ArrayMeta { chunk: array.shape.clone(), ..array.clone() };
        Self::in_chunks(&array, Copies::One, u64::MAX)
    }

    fn in_chunks(array: &ArrayMeta, copies: Copies, most_bytes: u64) -> Self {
        let size = array.dtype.size() as u64;
        let mut chunk: Vec<u64> = array.chunk.iter().zip(&array.shape).map(|(&c, &n)| c.min(n).max(1)).collect();
        while chunk.iter().fold(size, |n, &c| n.saturating_mul(c)) > most_bytes {
            let Some(longest) = (0..chunk.len()).max_by_key(|&a| chunk[a]).filter(|&a| chunk[a] > 1) else { break };
            chunk[longest] = chunk[longest].div_ceil(2);
        }
        let mut array = array.clone();
        array.chunk = chunk.clone();
        array.attributes = Map::new();
        let grid = Grid::regular(&array.shape, &chunk);
        let meta = SourceMeta {
            chunk_shape: chunk,
            fill_value: Scalar::zero(array.dtype),
            transient_bytes: 0,
            resident_bytes: 0,
            child_bytes: 0,
            zarr_format: None,
            group: None,
            identity: format!("result {}", array.name),
            place: PathBuf::from(&array.name),
            notes: Vec::new(),
            array,
            grid,
        };
        let chunks = meta.grid.cells().unwrap_or(u64::MAX);
        let count = if copies == Copies::Two { 2 } else { 1 };
        let copies = (0..count).map(|_| RwLock::new(Place::Nowhere)).collect();
        Self { meta, chunks, copies, turns: AtomicUsize::new(0) }
    }

    fn chunk_bytes(&self) -> u64 {
        self.meta.chunk_shape.iter().fold(self.meta.array.dtype.size() as u64, |n, &c| n.saturating_mul(c))
    }

    /// Bytes of one copy.
    pub fn copy_bytes(&self) -> u64 {
        self.chunks.saturating_mul(self.chunk_bytes())
    }

    /// Bytes of all copies.
    pub fn byte_len(&self) -> u64 {
        self.copy_bytes().saturating_mul(self.copies.len() as u64)
    }

    /// Gives the array memory, before it is written.
    pub fn in_memory(&self, account: &Account, stop: &std::sync::atomic::AtomicBool) -> Result<(), KeepError> {
        self.turns.store(0, Ordering::Relaxed);
        for copy in &self.copies {
            let bytes = self.copy_bytes();
            let buffer = Buffer::new(account.lease(bytes, stop)?, bytes as usize)?;
            *copy.write().unwrap_or_else(PoisonError::into_inner) = Place::Memory(buffer);
        }
        Ok(())
    }

    /// Gives the array room in a folder, before it is written.
    pub fn in_folder(&self, folder: &Path) -> Result<(), KeepError> {
        self.turns.store(0, Ordering::Relaxed);
        for copy in &self.copies {
            let file = File::unnamed(folder, self.copy_bytes())
                .map_err(|error| KeepError::Scratch { place: folder.display().to_string(), error })?;
            *copy.write().unwrap_or_else(PoisonError::into_inner) = Place::File(file);
        }
        Ok(())
    }

    /// Gives the room back: nobody reads the array any more.
    pub fn clear(&self) {
        for copy in &self.copies {
            *copy.write().unwrap_or_else(PoisonError::into_inner) = Place::Nowhere;
        }
    }

    /// What was written is what is read from now on.
    pub fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// All values of a [`whole`](Self::whole) array, C order.
    pub fn numbers(&self) -> Result<Vec<f64>, SourceError> {
        let mut values = vec![0f64; (self.copy_bytes() / 8) as usize];
        let only = vec![0; self.meta.array.rank()];
        self.read_chunk(&only, bytemuck::cast_slice_mut(&mut values), &mut Vec::new())?;
        Ok(values)
    }

    /// Stores all values of a [`whole`](Self::whole) array.
    pub fn store(&self, values: &[f64]) -> Result<(), SourceError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        match &mut *self.copy_written().write().unwrap_or_else(PoisonError::into_inner) {
            Place::Nowhere => return Err(self.without_values()),
            Place::Memory(buffer) => buffer[..bytes.len()].copy_from_slice(bytes),
            Place::File(file) => file.write_all_at(bytes, 0).map_err(|error| self.io(error))?,
        }
        Ok(())
    }

    fn copy_read(&self) -> &RwLock<Place> {
        &self.copies[self.turns.load(Ordering::Relaxed) % self.copies.len()]
    }

    fn copy_written(&self) -> &RwLock<Place> {
        let next = self.copies.len() - 1;
        &self.copies[(self.turns.load(Ordering::Relaxed) + next) % self.copies.len()]
    }

    fn number(&self, chunk: &[u64]) -> u64 {
        chunk.iter().zip(&self.meta.grid.0).fold(0, |n, (i, axis)| n * axis.cells() + i)
    }

    /// Stores a finished part of the array.
    pub fn write(&self, region: &Region, block: &Block) -> Result<(), SourceError> {
        if region.is_empty() {
            return Ok(());
        }
        let size = block.dtype().size();
        let full: Vec<usize> = self.meta.chunk_shape.iter().map(|&n| n as usize).collect();
        let strides = c_strides(&full, size);
        let bytes = self.chunk_bytes() as usize;
        let lists: Vec<Vec<u64>> = (self.meta.grid.0.iter().enumerate())
            .map(|(a, g)| g.cells_of(region.start[a] as u64, region.stop[a] as u64).collect())
            .collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let mut place = self.copy_written().write().unwrap_or_else(PoisonError::into_inner);
        let mut row = Vec::new();
        for_each_index(&lists, |chunk| {
            let cells: Vec<(i64, i64)> = (chunk.iter().zip(&self.meta.grid.0))
                .map(|(&i, g)| {
                    let r = g.range(i);
                    (r.start as i64, r.end as i64)
                })
                .collect();
            let cells = Region::from_ranges(&cells);
            let part = cells.intersect(region);
            let source = block.cut(region, &part);
            let (src, src_offset) = source.raw();
            let within: isize = part.start.iter().zip(&cells.start).zip(&strides).map(|((p, c), s)| (p - c) as isize * s).sum();
            let first = self.number(chunk) * bytes as u64;
            match &mut *place {
                Place::Nowhere => Err(self.without_values()),
                Place::Memory(buffer) => {
                    let to = &mut buffer[first as usize..first as usize + bytes];
                    copy_strided(to, within, &strides, src, src_offset, source.strides(), source.shape(), size);
                    Ok(())
                }
                Place::File(file) => {
                    // Runs of the longest suffix of axes that the part holds whole, one axis beyond it.
                    let shape = source.shape().to_vec();
                    let split = (1..shape.len()).rev().find(|&a| shape[a] != full[a]).unwrap_or(0);
                    let run: usize = shape[split..].iter().product::<usize>() * size;
                    let outer: Vec<Vec<u64>> = shape[..split].iter().map(|&n| (0..n as u64).collect()).collect();
                    let outer: Vec<&[u64]> = outer.iter().map(Vec::as_slice).collect();
                    row.resize(run, 0);
                    for_each_index(&outer, |at| {
                        let from: isize = at.iter().zip(source.strides()).map(|(&i, s)| i as isize * s).sum();
                        let to: isize = at.iter().zip(&strides).map(|(&i, s)| i as isize * s).sum();
                        let inner = c_strides(&shape[split..], size);
                        copy_strided(
                            &mut row,
                            0,
                            &inner,
                            src,
                            src_offset + from,
                            &source.strides()[split..],
                            &shape[split..],
                            size,
                        );
                        file.write_all_at(&row, first + (within + to) as u64).map_err(|error| self.io(error))
                    })
                }
            }
        })
    }

    fn io(&self, error: Error) -> SourceError {
        SourceError::Io { place: format!("engine.scratch, array {}", self.meta.array.name), error }
    }

    fn without_values(&self) -> SourceError {
        let reason = "the phase that makes it has not run".to_owned();
        SourceError::Corrupt { place: self.meta.array.name.clone(), reason }
    }
}

impl Source for KeptArray {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], _transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        if self.copies.len() == 2 && self.turns.load(Ordering::Relaxed) == 0 {
            out.fill(0);
            return Ok(ChunkRead::Data { encoded_bytes: 0 });
        }
        let bytes = self.chunk_bytes().min(out.len() as u64) as usize;
        let first = self.number(chunk) * self.chunk_bytes();
        let place = self.copy_read().read().unwrap_or_else(PoisonError::into_inner);
        match &*place {
            Place::Nowhere => return Err(self.without_values()),
            Place::Memory(buffer) => out[..bytes].copy_from_slice(&buffer[first as usize..first as usize + bytes]),
            Place::File(file) => file.read_exact_at(&mut out[..bytes], first).map_err(|error| self.io(error))?,
        }
        Ok(ChunkRead::Data { encoded_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::DType;
    use crate::files::faults::{Fate, Faults, Kind, inject};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn read_all(array: &KeptArray) -> Vec<i32> {
        let shape: Vec<usize> = array.meta.array.shape.iter().map(|&n| n as usize).collect();
        let full: Vec<usize> = array.meta.chunk_shape.iter().map(|&n| n as usize).collect();
        let mut all = vec![0u8; shape.iter().product::<usize>() * 4];
        let lists: Vec<Vec<u64>> = array.meta.grid.0.iter().map(|g| (0..g.cells()).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        for_each_index(&lists, |chunk| {
            let mut out = vec![0u8; full.iter().product::<usize>() * 4];
            array.read_chunk(chunk, &mut out, &mut Vec::new()).unwrap();
            let strides = c_strides(&shape, 4);
            let (mut offset, mut part) = (0, Vec::new());
            for (a, g) in array.meta.grid.0.iter().enumerate() {
                let r = g.range(chunk[a]);
                offset += r.start as isize * strides[a];
                part.push((r.end - r.start) as usize);
            }
            copy_strided(&mut all, offset, &strides, &out, 0, &c_strides(&full, 4), &part, 4);
            Ok::<(), ()>(())
        })
        .unwrap();
        bytemuck::pod_collect_to_vec(&all)
    }

    fn kept(shape: &[u64], chunk: &[u64], copies: Copies) -> KeptArray {
        let mut meta = ArrayMeta::plain("s", shape, DType::I32);
        meta.chunk = chunk.to_vec();
        KeptArray::new(&meta, copies)
    }

    #[test]
    fn parts_written_come_back_from_memory_and_from_a_file() {
        let (account, stop) = (Account::unbounded("test"), AtomicBool::new(false));
        for in_folder in [false, true] {
            let array = kept(&[5, 3, 4], &[2, 2, 4], Copies::One);
            assert!(array.read_chunk(&[0, 0, 0], &mut [0; 64], &mut Vec::new()).is_err());
            match in_folder {
                true => array.in_folder(&std::env::temp_dir()).unwrap(),
                false => array.in_memory(&account, &stop).unwrap(),
            }
            let values: Vec<i32> = (0..60).collect();
            let all = Block::from_values(&[5, 3, 4], &values);
            let whole = Region::from_ranges(&[(0, 5), (0, 3), (0, 4)]);
            for part in [[(0, 5), (1, 3), (0, 4)], [(0, 3), (0, 1), (0, 3)], [(3, 5), (0, 1), (0, 4)], [(0, 3), (0, 1), (3, 4)]] {
                let part = Region::from_ranges(&part);
                array.write(&part, &all.cut(&whole, &part)).unwrap();
            }
            assert_eq!(read_all(&array), values, "in a folder: {in_folder}");
            array.clear();
            assert!(array.read_chunk(&[0, 0, 0], &mut [0; 64], &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_before_the_turn() {
        let array = kept(&[4], &[2], Copies::Two);
        array.in_folder(&std::env::temp_dir()).unwrap();
        let whole = Region::from_ranges(&[(0, 4)]);
        array.write(&whole, &Block::from_values(&[4], &[1i32, 2, 3, 4])).unwrap();
        assert_eq!(read_all(&array), [0; 4], "nothing was finished yet");
        array.turn();
        array.write(&whole, &Block::from_values(&[4], &[5i32, 6, 7, 8])).unwrap();
        assert_eq!(read_all(&array), [1, 2, 3, 4]);
        array.turn();
        assert_eq!(read_all(&array), [5, 6, 7, 8]);
    }

    #[test]
    fn large_arrays_are_kept_in_small_chunks() {
        let array = kept(&[50, 1104, 1104], &[50, 1104, 1104], Copies::One);
        assert!(array.chunk_bytes() <= CHUNK_BYTES && array.chunk_bytes() > CHUNK_BYTES / 4, "{:?}", array.meta.chunk_shape);
        assert!(array.byte_len() >= 50 * 1104 * 1104 * 4);
        assert!(KeptArray::new(&ArrayMeta::plain("s", &[u64::MAX, 3], DType::F64), Copies::Two).byte_len() > u64::MAX / 2);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = kept(&[4], &[2], Copies::One).in_folder(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("engine.scratch = /nowhere/at/all: "), "{error}");
    }

    struct Full;

    impl Faults for Full {
        fn fate(&self, kind: Kind, _: &Path) -> Fate {
            match kind {
                Kind::Write => Fate::Refused(Error::from_raw_os_error(libc::ENOSPC)),
                _ => Fate::Done,
            }
        }
    }

    #[test]
    fn a_scratch_folder_without_room_is_told() {
        let folder = std::env::temp_dir().join(format!("halostream-kept-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let faults = inject(&folder, Arc::new(Full));
        let array = kept(&[4], &[2], Copies::One);
        array.in_folder(&folder).unwrap();
        let whole = Region::from_ranges(&[(0, 4)]);
        let error = array.write(&whole, &Block::from_values(&[4], &[1i32, 2, 3, 4])).unwrap_err().to_string();
        assert!(error.starts_with("engine.scratch, array s: ") && error.contains("make room"), "{error}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "it has no name");
        drop(faults);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
