//! `external`: the user's own function, in child processes that speak protocol 1 on stdin and stdout.
//!
//! A step sends each block with its halo to the child of its worker and takes the answer into a leased buffer; inputs
//! stay held until the answer is there, because a child that dies is replaced once and asked again. Costs two copies
//! through pipes per block, and `child_memory` per worker beside the job's own limit.

mod bind;
mod params;

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Computed, Info, MapOperator, MapTask, OperatorError, Padded, Param, Workspace};
use crate::array::budget::BudgetError;
use crate::array::{Block, Buffer, DType, Region};
use crate::child::dialogue::{Dialogue, Slot, Trouble};
use crate::child::pipe::{self, Watch};
use crate::child::{Child, Failure, Program};

pub use params::program;

pub static EXTERNAL: Info = Info {
    name: "external",
    summary: "a function of your own, run block by block in child processes (numpy or any program)",
    kind: "map",
    inputs: "one or more; trailing axes broadcast against the first input of highest rank",
    outputs: "as declared: one of `dtype` (named output), or those of `outputs`",
    halo: "depth",
    boundary: "none",
    devices: "cpu",
    cost: "two copies of each block through pipes and what the function takes; `child_memory` per worker beside the job's limit",
    source: "the user's function",
    params: PARAMS,
    build: params::build,
};

static PARAMS: &[Param] = &[
    Param {
        name: "command",
        kind: "[string, ...]",
        default: "",
        doc: "program and arguments; started once per worker, in the folder halostream runs in (relative paths count from there), and kept",
    },
    Param {
        name: "depth",
        kind: "int, [int, ...] or [[before, after], ...]",
        default: "0",
        doc: "halo in elements, one entry per axis of the first input of highest rank; inputs of lower rank take the trailing entries, axes that broadcast take none; `depth` of an input's own table wins",
    },
    Param {
        name: "trim",
        kind: "bool",
        default: "true",
        doc: "true: the function returns the block it was given and the halo is cut off; false: blocks are laid side by side as returned, so the result shows the block grid",
    },
    Param {
        name: "dtype",
        kind: "dtype",
        default: "",
        doc: "dtype of the only output; several outputs are given by `outputs` instead",
    },
    Param {
        name: "outputs",
        kind: "[{ name, dtype }, ...]",
        default: "[]",
        doc: "name and dtype of each output, in the order the function returns them; all have the same shape",
    },
    Param {
        name: "drop_axes",
        kind: "[int, ...]",
        default: "[]",
        doc: "axes the function removes; each is one block long, so the function sees all of it. Negative counts from the end",
    },
    Param {
        name: "new_axes",
        kind: "[{ axis, length }, ...]",
        default: "[]",
        doc: "axes the function adds: position among the output's axes (negative counts from the end) and length, whole in every block",
    },
    Param {
        name: "block_shape",
        kind: "[int, ...]",
        default: "[]",
        doc: "shape of every returned block, one length per output axis (edge blocks too), when it is neither core nor padded block; blocks are then laid side by side as returned, nothing is trimmed",
    },
    Param {
        name: "timeout",
        kind: "duration",
        default: "\"10min\"",
        doc: "for the start of a child, and for each block; a child that is slower is killed and the block tried once more",
    },
    Param {
        name: "child_memory",
        kind: "size",
        default: "\"1GiB\"",
        doc: "resident memory one child may hold, counted by the plan once per worker beside engine.memory; a child above it is killed and the job fails (processes that a child starts itself are not seen)",
    },
    Param {
        name: "params",
        kind: "table",
        default: "{}",
        doc: "handed to the child as JSON in its first line; nan and inf have no JSON and are refused",
    },
];

/// How an axis of the returned block gets its length.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockAxis {
    /// That of the padded block on this reference axis.
    Padded(usize),
    /// Always this long: a new axis, or `block_shape`.
    Fixed(u64),
}

/// A bound step: knows its inputs' names and what the children return.
struct External {
    program: Program,
    reference: usize,
    input_names: Vec<String>,
    /// Name and dtype per output.
    outputs: Vec<(String, DType)>,
    /// The same for every output.
    axes: Vec<BlockAxis>,
    /// The halo comes back and trim cuts it off; otherwise blocks are laid as they come.
    is_trimmed: bool,
    /// Idle children by worker; one at work is out of the map.
    children: Mutex<HashMap<usize, Child>>,
}

impl External {
    fn children(&self) -> MutexGuard<'_, HashMap<usize, Child>> {
        // Inserts and removals only: a panic elsewhere can't leave the map half done.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region that a returned block covers, in output coordinates, when its halo comes back with it.
    fn returned(&self, padded: &Region) -> Region {
        let ranges: Vec<(i64, i64)> = self
            .axes
            .iter()
            .map(|axis| match *axis {
                BlockAxis::Padded(a) => padded.axis(a),
                BlockAxis::Fixed(len) => (0, len as i64),
            })
            .collect();
        Region::from_ranges(&ranges)
    }

    /// What must come back, with buffers for what somebody wants.
    fn slots(&self, padded: &Region, task: &MapTask<'_>, work: &mut Workspace<'_>) -> Result<Vec<(Region, Slot)>, OperatorError> {
        let mut slots = Vec::with_capacity(self.outputs.len());
        for (i, (name, dtype)) in self.outputs.iter().enumerate() {
            let mut region = self.returned(padded);
            let shape = region.shape();
            let is_wanted = task.wanted[i];
            if !self.is_trimmed && is_wanted {
                region = task.outputs[i].clone();
                if region.shape() != shape {
                    let (wanted, found) = (region.shape(), shape);
                    return Err(OperatorError::data(format!(
                        "output {name}: the plan lays blocks of shape {wanted:?} where the function returns {found:?}; please report this job"
                    )));
                }
            }
            let bytes = shape.iter().try_fold(dtype.size(), |n, &len| n.checked_mul(len));
            let bytes =
                bytes.ok_or_else(|| OperatorError::data(format!("output {name}: a block of {shape:?} fits no memory")))?;
            let buffer = if is_wanted { Some(work.buffer(bytes)?) } else { None };
            slots.push((region, Slot { name: name.clone(), dtype: *dtype, shape: shape.into_vec(), bytes, buffer }));
        }
        Ok(slots)
    }

    fn request(&self, inputs: &[Padded], task: &MapTask<'_>) -> Value {
        let ranges = |r: &Region| (0..r.rank()).map(|a| [r.start[a], r.stop[a]]).collect::<Vec<_>>();
        let inputs: Vec<Value> = inputs
            .iter()
            .zip(&self.input_names)
            .map(|(input, name)| {
                json!({"name": name, "shape": input.block.shape(), "dtype": input.block.dtype().typestr(), "region": ranges(&input.region)})
            })
            .collect();
        json!({"block": task.number, "core": ranges(task.core), "inputs": inputs})
    }
}

impl MapOperator for External {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let padded =
            inputs.get(self.reference).ok_or_else(|| OperatorError::data("an input is missing; please report this job"))?;
        let (regions, mut slots): (Vec<_>, Vec<_>) = self.slots(&padded.region, task, work)?.into_iter().unzip();
        let request = self.request(&inputs, task);
        let stop = work.stop;
        let mut first_loss: Option<String> = None;
        loop {
            let idle = self.children().remove(&task.worker);
            let asked = match idle.map_or_else(|| Child::start(&self.program, task.worker, stop), Ok) {
                Ok(mut child) => {
                    let blocks = inputs.iter().map(|input| &input.block).collect();
                    child.ask(task.number, &request, blocks, &mut slots, stop).map(|()| child)
                }
                Err(failure) => Err(failure),
            };
            match (asked, &first_loss) {
                (Ok(child), _) => {
                    if child.is_open() {
                        self.children().insert(task.worker, child);
                    }
                    break;
                }
                (Err(Failure::Stopped), _) => return Err(BudgetError::Stopped.into()),
                (Err(Failure::Final(text)), _) => return Err(OperatorError::Data(text)),
                (Err(Failure::Lost(text)), None) => {
                    tracing::warn!(target: "external", block = task.number, "{text}; trying the block once more in a fresh child");
                    first_loss = Some(text);
                }
                (Err(Failure::Lost(text)), Some(first)) => {
                    let before = if *first == text { "the same happened" } else { first.as_str() };
                    return Err(OperatorError::Passing(format!("{text}\n(in a second, fresh child; in the first: {before})")));
                }
            }
        }
        drop(inputs);
        regions.into_iter().zip(slots).map(|(region, slot)| finish(region, slot)).collect()
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        // Staging buffers both ways; that outputs come back with their halo is counted by `returns_halo`.
        2 * pipe::STAGE_BYTES as u64
    }

    fn returns_halo(&self) -> bool {
        self.is_trimmed
    }

    fn close(&self, worker: usize) {
        let child = self.children().remove(&worker);
        if let Some(child) = child {
            child.close();
        }
    }
}

fn finish(region: Region, slot: Slot) -> Result<Option<Computed>, OperatorError> {
    let Some(buffer) = slot.buffer else { return Ok(None) };
    // Everybody downstream relies on 0 and 1: masks are packed to single bits.
    if slot.dtype == DType::Bool
        && let Some(byte) = buffer.iter().find(|b| **b > 1)
    {
        return Err(OperatorError::data(format!("output {} holds the byte {byte}, a bool is 0 or 1", slot.name)));
    }
    Ok(Some(Computed { region, block: Block::new(buffer, slot.dtype, slot.shape) }))
}

/// Takes `said` for everything a child says on its stdout: the greeting, then its answer to block `number` with outputs of
/// these names, dtypes and shapes; `past` is what their buffers held before. For the fuzzers, which need no process.
#[doc(hidden)]
pub fn replay(said: &[u8], number: u64, expected: &[(&str, DType, Vec<usize>)], past: u8) -> Result<Vec<Vec<u8>>, String> {
    let io = |e: std::io::Error| format!("cannot stand for a child: {e}");
    // SAFETY: the name ends in a zero; the descriptor is checked before it is owned.
    let fd = unsafe { libc::memfd_create(c"replay".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io(std::io::Error::last_os_error()));
    }
    // SAFETY: open, and nobody else's.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(said).and_then(|()| file.rewind()).map_err(io)?;
    let void = std::fs::File::options().write(true).open("/dev/null").map_err(io)?;
    let mut dialogue = Dialogue::new(OwnedFd::from(void).into(), OwnedFd::from(file).into(), "replay".to_owned()).map_err(io)?;
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    let watch = Watch { stop: &stop, deadline, pid: std::process::id(), memory: u64::MAX };
    let mut slots: Vec<Slot> = expected
        .iter()
        .map(|(name, dtype, shape)| {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            let buffer = Some(Buffer::from_slice(&vec![past; bytes]));
            Slot { name: (*name).to_owned(), dtype: *dtype, shape: shape.clone(), bytes, buffer }
        })
        .collect();
    let talk = |e: Trouble| format!("{e:?}");
    dialogue.greet(&json!({}), &watch).map_err(talk)?;
    dialogue.ask(number, &json!({"block": number}), Vec::new(), &mut slots, &watch).map_err(talk)?;
    let read = |slot: Slot| {
        let shape: Vec<u64> = slot.shape.iter().map(|&n| n as u64).collect();
        let computed = finish(Region::whole(&shape), slot).map_err(|e| e.to_string())?;
        Ok(computed.and_then(|c| c.block.bytes().map(<[u8]>::to_vec)).unwrap_or_default())
    };
    slots.into_iter().map(read).collect()
}
