//! For the tests of operators: steps from TOML text, padded blocks from whole arrays, and a small random source.

use std::sync::atomic::AtomicBool;

use serde_json::Value;
use toml::de::DeTable;

use super::{
    ArrayMeta, Binding, DevicePart, InputBinding, Kind, MapTask, Operator, OperatorError, OutAxis, Padded, Part, PartWork,
    StepInput, Workspace, find,
};
use crate::array::boundary::{Origin, clip_none, constants, origin};
use crate::array::{Block, Boundary, Buffer, DType, Region, Rule};
use crate::compute::gpu::{Device, shim};
use crate::config::table::{Problems, Table};

/// A whole array as a test holds it.
pub struct Whole {
    pub meta: ArrayMeta,
    pub block: Block,
}

impl Whole {
    pub fn new(block: Block) -> Self {
        let shape: Vec<u64> = block.shape().iter().map(|&n| n as u64).collect();
        Self { meta: ArrayMeta::plain("input", &shape, block.dtype()), block }
    }
}

/// Builds an operator from the lines of its step and binds it to the inputs; all problems in one text.
pub fn bind(op: &str, lines: &str, inputs: &[&Whole]) -> Result<Binding, String> {
    let inputs: Vec<StepInput> = inputs.iter().map(|w| StepInput { meta: w.meta.clone(), boundary: None, depth: None }).collect();
    bind_inputs(op, lines, &inputs)
}

pub fn bind_inputs(op: &str, lines: &str, inputs: &[StepInput]) -> Result<Binding, String> {
    build(op, lines)?.bind(inputs)
}

/// An operator from the lines of its step; all problems in one text.
pub fn build(op: &str, lines: &str) -> Result<Box<dyn Operator>, String> {
    let info = find(op).ok_or_else(|| format!("no operator {op}"))?;
    let problems = Problems::new(lines);
    let parsed = DeTable::parse(lines).map_err(|e| e.to_string())?;
    let mut table = Table::new(parsed.get_ref(), 0..lines.len(), "step", problems.clone());
    let operator = (info.build)(&mut table);
    table.finish();
    let list = problems.take();
    match operator {
        Some(operator) if list.is_empty() => Ok(operator),
        _ => Err(list.iter().map(|p| p.to_string()).collect::<Vec<_>>().join("\n")),
    }
}

/// What the halo stage hands to an operator: `core` (reference axes) grown by the binding's depth, the boundary filled.
/// Without cells beyond the array's ends it is a view of the whole array.
pub fn padded(whole: &Whole, binding: &InputBinding, core: &Region) -> Padded {
    let shape = &whole.meta.shape;
    let ranges: Vec<(i64, i64)> = (0..shape.len())
        .map(|axis| {
            let len = shape[axis] as i64;
            let (start, stop) = binding.axes[axis].map_or((0, len), |a| core.axis(a));
            let (before, after) = binding.depth[axis];
            clip_none(start - before as i64, stop + after as i64, len, &binding.boundary[axis])
        })
        .collect();
    let region = Region::from_ranges(&ranges);
    let array = Region::whole(shape);
    if array.contains(&region) {
        return Padded { block: whole.block.cut(&array, &region), region };
    }
    let size = whole.meta.dtype.size();
    let fill = constants(&binding.boundary, whole.meta.dtype).expect("constants fit");
    let mut bytes = Vec::with_capacity(region.count() * size);
    for flat in 0..region.count() {
        let at = super::pointwise::place(&region, flat);
        let mut cell = Vec::new();
        let mut constant = None;
        for axis in 0..at.len() {
            match origin(at[axis], shape[axis] as i64, &binding.boundary[axis]) {
                Origin::Cell(x) => cell.push(x as usize),
                Origin::Constant(side) => constant = fill[axis][side],
                Origin::Absent => unreachable!("clipped above"),
            }
        }
        match constant {
            Some(value) => bytes.extend_from_slice(value.bytes()),
            None => {
                let stop: Vec<usize> = cell.iter().map(|x| x + 1).collect();
                bytes.extend_from_slice(whole.block.view(&cell, &stop).bytes().expect("one element"));
            }
        }
    }
    let block = Block::new(Buffer::from_slice(&bytes), whole.meta.dtype, region.shape());
    Padded { region, block }
}

/// The region of an output that belongs to a core.
pub fn output_region(axes: &[OutAxis], core: &Region) -> Region {
    let ranges: Vec<(i64, i64)> = axes
        .iter()
        .map(|axis| match axis {
            OutAxis::Carried(a) => core.axis(*a),
            OutAxis::New { len, .. } => (0, *len as i64),
            OutAxis::Laid { .. } => unreachable!("no operator under test lays blocks"),
        })
        .collect();
    Region::from_ranges(&ranges)
}

/// Runs a map operator on one core; the answer holds each wanted output cut to its region.
pub fn map(bound: &Binding, inputs: &[&Whole], core: &Region, wanted: &[bool]) -> Result<Vec<Option<Block>>, OperatorError> {
    let Kind::Map(operator) = &bound.kind else { panic!("not a map operator") };
    let padded: Vec<Padded> = inputs.iter().zip(&bound.inputs).map(|(w, b)| padded(w, b, core)).collect();
    let regions: Vec<Region> = bound.outputs.iter().map(|o| output_region(&o.axes, core)).collect();
    let stop = AtomicBool::new(false);
    let shape: Vec<u64> = core.shape().iter().map(|&n| n as u64).collect();
    let outputs: u64 = regions
        .iter()
        .zip(&bound.outputs)
        .zip(wanted)
        .filter(|(_, wanted)| **wanted)
        .map(|((r, o), _)| crate::array::buffer::capacity_for(r.count() * o.dtype.size()) as u64)
        .sum();
    // No more than the operator announced, so that a scratch bound that lies fails here.
    let bytes = operator.scratch_bytes(&shape) + outputs;
    let lease = crate::array::Account::unbounded("test").try_lease(bytes).expect("unbounded");
    let mut work = Workspace::new(lease, &stop);
    let task = MapTask { number: 0, core, outputs: &regions, wanted, worker: 0 };
    let computed = operator.apply(padded, &task, &mut work)?;
    assert_eq!(computed.len(), bound.outputs.len());
    Ok(computed
        .into_iter()
        .zip(&regions)
        .zip(wanted)
        .map(|((c, region), wanted)| {
            assert_eq!(c.is_some(), *wanted);
            c.map(|c| c.block.cut(&c.region, region))
        })
        .collect())
}

/// [`map`] for an operator with one output.
pub fn map_one(bound: &Binding, inputs: &[&Whole], core: &Region) -> Result<Block, OperatorError> {
    Ok(map(bound, inputs, core, &[true])?.pop().flatten().expect("asserted in map"))
}

/// The outputs of a core, computed part by part on a device; a part is at most `most` long on the axes that are not whole.
pub fn on_device(device: &mut dyn Device, bound: &Binding, whole: &Whole, core: &Region, most: usize) -> Vec<Block> {
    let Kind::Map(operator) = &bound.kind else { panic!("not a map operator") };
    let entry = operator.device().expect("a kernel");
    let given = padded(whole, &bound.inputs[0], core);
    let regions: Vec<Region> = bound.outputs.iter().map(|o| output_region(&o.axes, core)).collect();
    let mut outputs: Vec<Option<Buffer>> =
        bound.outputs.iter().zip(&regions).map(|(o, r)| Some(Buffer::loose(r.count() * o.dtype.size()))).collect();
    let stop = AtomicBool::new(false);
    let wanted = vec![true; outputs.len()];
    let task = MapTask { number: 0, core, outputs: &regions, wanted: &wanted, worker: 0 };
    let mut parts = vec![core.clone()];
    while let Some(part) = parts.pop() {
        if (0..core.rank()).any(|a| !bound.whole.contains(&a) && part.len(a) > most) {
            parts.extend(entry.split(&part).expect("longer than one"));
            continue;
        }
        let needs = entry.needs(std::slice::from_ref(&given.region), &part);
        let job = entry.job(&needs, &part).expect("small numbers");
        let cut = given.block.cut(&given.region, &needs[0]);
        let mut input = vec![0; cut.byte_len()];
        cut.copy_to(&mut input);
        let mut staging = vec![0; job.staging_bytes()];
        for (i, bytes) in shim::run(device, &job, &[&input]).unwrap().into_iter().enumerate() {
            staging[job.staged(1 + i)].copy_from_slice(&bytes);
        }
        let done = DevicePart { core: &part, needs: &needs, job: &job };
        let lease = crate::array::Account::unbounded("test").try_lease(entry.scratch_bytes()).expect("unbounded");
        entry.finish(&done, &staging, &task, &mut outputs, &mut Workspace::new(lease, &stop)).unwrap();
    }
    let blocks = outputs.into_iter().zip(&bound.outputs).zip(&regions);
    blocks.map(|((b, o), r)| Block::new(b.expect("made above"), o.dtype, r.shape())).collect()
}

/// A core on every device that tests have, in one part and in several, against the CPU's bytes (I9).
pub fn check_on_devices(op: &str, lines: &str, whole: &Whole, core: &Region) {
    let bound = bind(op, lines, &[whole]).unwrap();
    let want = map(&bound, &[whole], core, &vec![true; bound.outputs.len()]).unwrap();
    for (name, mut device) in crate::compute::gpu::test_devices() {
        for most in [usize::MAX, 7] {
            let got = on_device(device.as_mut(), &bound, whole, core, most);
            for ((got, want), output) in got.iter().zip(&want).zip(&bound.outputs) {
                let want = values::<u8>(want.as_ref().expect("wanted"));
                assert!(values::<u8>(got) == want, "{} on {name}, {lines}, core {core}, parts of {most}", output.name);
            }
        }
    }
}

/// Runs a fold leaf by leaf along the reduced axes (leaves of `leaf` cells, kept axes whole), merges in order, and gives
/// the values of its first output.
pub fn fold<D: bytemuck::Pod>(op: &str, lines: &str, inputs: &[&Whole], leaf: u64) -> Result<Vec<D>, String> {
    let (dtype, bytes) = fold_values(op, lines, inputs, leaf)?;
    assert_eq!(dtype.size(), size_of::<D>());
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// [`fold`], with the dtype and the bytes of the values.
pub fn fold_values(op: &str, lines: &str, inputs: &[&Whole], leaf: u64) -> Result<(DType, Vec<u8>), String> {
    run_fold(&bind(op, lines, inputs)?, inputs, leaf)
}

/// [`fold_values`] of a bound fold.
pub fn run_fold(bound: &Binding, inputs: &[&Whole], leaf: u64) -> Result<(DType, Vec<u8>), String> {
    let Kind::Fold { fold, axes } = &bound.kind else { panic!("{} is made by no fold", bound.outputs[0].name) };
    let shape = &inputs[bound.reference].meta.shape;
    let kept: u64 = (0..shape.len()).filter(|a| !axes.contains(a)).map(|a| shape[a]).product();
    let new_state = || {
        let mut state = Buffer::loose(kept as usize * fold.state_bytes());
        state.fill(0);
        state
    };
    let mut total: Option<Buffer> = None;
    let leaves: Vec<Vec<u64>> = axes.iter().map(|&a| (0..shape[a].div_ceil(leaf)).collect()).collect();
    let lists: Vec<&[u64]> = leaves.iter().map(Vec::as_slice).collect();
    crate::array::grid::for_each_index(&lists, |index| {
        let mut core = Region::whole(shape);
        for (&axis, &i) in axes.iter().zip(index) {
            core.start[axis] = (i * leaf) as i64;
            core.stop[axis] = ((i + 1) * leaf).min(shape[axis]) as i64;
        }
        let mut state = new_state();
        let padded: Vec<Padded> = inputs.iter().zip(&bound.inputs).map(|(w, b)| padded(w, b, &core)).collect();
        fold.leaf(&padded, axes, &mut state)?;
        match &mut total {
            None => total = Some(state),
            Some(total) => fold.merge(total, &state)?,
        }
        Ok::<(), OperatorError>(())
    })
    .map_err(|e| e.to_string())?;
    let output = &bound.outputs[0];
    let new = output.axes.iter().map(|axis| if let OutAxis::New { len, .. } = axis { *len } else { 1 });
    let mut out = vec![0u8; (kept * new.product::<u64>()) as usize * output.dtype.size()];
    let count = axes.iter().map(|&a| shape[a]).product();
    fold.finish(&total.unwrap_or_else(new_state), count, &mut [&mut out]).map_err(|e| e.to_string())?;
    Ok((output.dtype, out))
}

/// The folds of a step that is a chain of them, under a short limit.
pub fn folds(operator: &dyn Operator, inputs: &[StepInput]) -> Vec<Binding> {
    let parts = operator.bind_parts(inputs, true).expect("parts").expect("inputs that fit").parts;
    let fold = |part: Part| match part.work {
        PartWork::Once(fold) => fold,
        PartWork::Repeated(_) => panic!("{} is repeated", part.title),
    };
    parts.into_iter().map(fold).collect()
}

/// The elements in C order.
pub fn values<T: bytemuck::Pod>(block: &Block) -> Vec<T> {
    let mut bytes = vec![0; block.byte_len()];
    block.copy_to(&mut bytes);
    bytemuck::pod_collect_to_vec(&bytes)
}

/// The JSON of `tests/golden`, made by the script beside it.
pub fn golden_file(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON")
}

pub fn from_hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("hex");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// An input of a golden file.
pub fn whole_of(input: &Value) -> Whole {
    let shape: Vec<usize> =
        input["shape"].as_array().expect("a shape").iter().map(|n| n.as_u64().expect("a length") as usize).collect();
    let dtype = DType::parse(input["dtype"].as_str().expect("a dtype")).expect("a dtype");
    Whole::new(Block::new(Buffer::from_slice(&from_hex(&input["values"])), dtype, shape))
}

/// The boundary of a golden case: a rule for all axes, or one for each.
pub fn boundary_of(value: &Value, rank: usize) -> Boundary {
    let rule = |value: &Value| match value.as_str() {
        Some("reflect") => Rule::Reflect,
        Some("mirror") => Rule::Mirror,
        Some("nearest") => Rule::Nearest,
        Some("periodic") => Rule::Periodic,
        _ => Rule::Constant(value.as_f64().expect("a number")),
    };
    match value.as_array() {
        Some(list) => list.iter().map(|v| [rule(v); 2]).collect(),
        None => vec![[rule(value); 2]; rank],
    }
}

/// splitmix64: enough for tests, the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
