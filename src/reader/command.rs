//! An array whose chunks a child process makes: any format that a program can read, or values that are computed on demand.
//!
//! The child is asked for regions of the shape of a chunk, by protocol 1 of `external` steps without inputs. Each reader has its own,
//! started when it reads its first chunk and ended with it. A child that dies or is too slow is replaced once; an answer that is an
//! error is final. Costs a copy through a pipe, and `child_memory` for each reader beside the job's limit.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use serde_json::json;

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::block::{c_strides, copy_strided};
use crate::array::{DType, Grid, MAX_CHUNK_BYTES, Scalar, element_count};
use crate::child::dialogue::Slot;
use crate::child::{Child, Failure};
use crate::config::CommandSpec;
use crate::operators::ArrayMeta;
use crate::zarr::decode::first_non_bool;

/// An array that a program answers for.
pub struct CommandSource {
    spec: CommandSpec,
    meta: SourceMeta,
    /// Idle children by the thread that started them: they end with it. One at work is out of the map.
    children: Mutex<HashMap<ThreadId, Child>>,
    /// Ends waiting for a child.
    stop: Mutex<Arc<AtomicBool>>,
}

/// The array as the job describes it. No child is started yet.
pub fn open(spec: &CommandSpec) -> Result<CommandSource, OpenError> {
    let place = spec.program.command.join(" ");
    let CommandSpec { shape, chunks, dtype, program } = spec;
    let refused = |reason: String| OpenError::refused(format!("`{place}`"), reason);
    if element_count(shape).and_then(|n| n.checked_mul(dtype.size() as u64)).is_none_or(|n| n > i64::MAX as u64) {
        return Err(refused(format!("shape {shape:?} of {dtype} is more than 2^63 bytes")));
    }
    let chunks: Vec<u64> = chunks.iter().zip(shape).map(|(c, n)| (*c).min((*n).max(1))).collect();
    let bytes = element_count(&chunks).and_then(|n| n.checked_mul(dtype.size() as u64)).filter(|n| *n <= MAX_CHUNK_BYTES);
    let bytes = bytes.ok_or_else(|| refused(format!("chunks {chunks:?} of {dtype} are larger than any chunk can be")))?;
    let is_even = shape.iter().zip(&chunks).all(|(n, c)| n.is_multiple_of(*c));
    let mut array = ArrayMeta::plain("command", shape, *dtype);
    array.chunk.clone_from(&chunks);
    array.max_value = (*dtype == DType::Bool).then_some(1);
    let meta = SourceMeta {
        array,
        grid: Grid::regular(shape, &chunks),
        chunk_shape: chunks,
        fill_value: Scalar::zero(*dtype),
        // A region at the array's end comes shorter than its chunk.
        transient_bytes: if is_even { 0 } else { bytes } + 2 * crate::child::pipe::STAGE_BYTES as u64,
        resident_bytes: 0,
        child_bytes: program.memory,
        zarr_format: None,
        group: None,
        identity: json!({"command": program.command, "params": program.params, "shape": shape, "dtype": dtype.name()})
            .to_string(),
        place: place.into(),
        notes: Vec::new(),
    };
    Ok(CommandSource { spec: spec.clone(), meta, children: Mutex::default(), stop: Mutex::default() })
}

impl CommandSource {
    fn children(&self) -> MutexGuard<'_, HashMap<ThreadId, Child>> {
        // Inserts and removals only: a panic elsewhere can't leave the map half done.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the calling thread's child fill `out` with a region.
    fn ask(&self, chunk: &[u64], region: &[[u64; 2]], shape: Vec<usize>, out: &mut [u8]) -> Result<(), SourceError> {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let number = chunk.iter().zip(&self.meta.grid.0).fold(0, |n, (i, axis)| n * axis.cells() + i);
        let request = json!({"block": number, "core": region, "inputs": []});
        let dtype = self.meta.array.dtype;
        let failed = |reason: String, is_passing| {
            let place = format!("chunk {chunk:?} (region {region:?})");
            Err(SourceError::Child { place, reason, is_passing })
        };
        let mut first_loss: Option<String> = None;
        loop {
            let idle = self.children().remove(&thread::current().id());
            let mut slots =
                [Slot { name: "array".to_owned(), dtype, shape: shape.clone(), bytes: out.len(), buffer: Some(&mut *out) }];
            let asked = match idle.map_or_else(|| Child::start(&self.spec.program, 0, &stop), Ok) {
                Ok(mut child) => child.ask(number, &request, Vec::new(), &mut slots, &stop).map(|()| child),
                Err(failure) => Err(failure),
            };
            match (asked, &first_loss) {
                (Ok(child), _) => {
                    if child.is_open() {
                        self.children().insert(thread::current().id(), child);
                    }
                    return Ok(());
                }
                (Err(Failure::Stopped), _) => return Err(SourceError::Stopped),
                (Err(Failure::Final(text)), _) => return failed(text, false),
                (Err(Failure::Lost(text)), None) => {
                    tracing::warn!(target: "external", ?chunk, "{text}; asking for the chunk once more in a fresh child");
                    first_loss = Some(text);
                }
                (Err(Failure::Lost(text)), Some(first)) => {
                    let before = if *first == text { "the same happened" } else { first.as_str() };
                    return failed(format!("{text}\n(in a second, fresh child; in the first: {before})"), true);
                }
            }
        }
    }
}

impl Source for CommandSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn enter(&self, stop: &Arc<AtomicBool>) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = stop.clone();
    }

    fn leave(&self) {
        let child = self.children().remove(&thread::current().id());
        if let Some(child) = child {
            child.close();
        }
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let ranges = self.meta.chunk(chunk, out.len())?;
        let region: Vec<[u64; 2]> = ranges.iter().map(|r| [r.start, r.end]).collect();
        let shape: Vec<usize> = ranges.iter().map(|r| (r.end - r.start) as usize).collect();
        let full: Vec<usize> = self.meta.chunk_shape.iter().map(|&n| n as usize).collect();
        let dtype = self.meta.array.dtype;
        let bytes = shape.iter().product::<usize>() * dtype.size();
        if shape == full {
            self.ask(chunk, &region, shape.clone(), out)?;
        } else {
            if transient.len() < bytes {
                transient.resize(bytes, 0);
            }
            self.ask(chunk, &region, shape.clone(), &mut transient[..bytes])?;
            let strides = c_strides(&shape, dtype.size());
            copy_strided(out, 0, &c_strides(&full, dtype.size()), transient, 0, &strides, &shape, dtype.size());
        }
        let answered = if shape == full { &*out } else { &transient[..bytes] };
        match first_non_bool(answered).filter(|_| dtype == DType::Bool) {
            Some(at) => {
                let reason = format!("byte {at} of the answer is {}, which is not a bool (0 or 1)", answered[at]);
                Err(SourceError::Child { place: format!("chunk {chunk:?}"), reason, is_passing: false })
            }
            None => Ok(ChunkRead::Data { encoded_bytes: bytes as u64 }),
        }
    }
}
