//! What operators cost in memory, without files: the KS test per ordered pair, the rest of the InSAR chain per point.
//!
//! `cargo bench --bench operator [-- ks_test | chain]`. One thread, one block.
//!
//! KS test: noise, CPU nanoseconds per ordered pair (pixel, neighbour inside the image), sort included. `k`: counts alone;
//! `dist + p`: expanded to two float32 arrays; `mask`: the selection that `select_shp` asks for, without counts.
//!
//! The rest: the stack of `halostream sample slc --seed 7`, the points of at least 50 like pixels, each step's CPU time over
//! their number. `.ci/compare_insar.py` times moraine on the same points of the same stack.

mod common;

use std::sync::atomic::AtomicBool;

use halostream::array::{Account, Block, Region};
use halostream::config::{self, JobSpec, SampleSpec};
use halostream::operators::{ArrayMeta, Ask, Binding, Kind, MapTask, OutAxis, Padded, StepInput, Workspace};
use halostream::reader::{Source, sample};
use halostream::simd::force_scalar;
use num_complex::Complex32;

/// Rayleigh-like amplitudes, seeded.
fn stack(rows: usize, cols: usize, images: usize) -> Block {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut unit = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((x >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let values: Vec<f32> = (0..rows * cols * images).map(|_| (-2.0 * unit().ln()).sqrt() as f32).collect();
    Block::from_values(&[rows, cols, images], &values)
}

/// Pairs (pixel, another pixel or itself in its window) inside the image.
fn ordered_pairs(rows: u64, cols: u64, half: u64) -> u64 {
    let axis = |n: u64| (0..n).map(|i| (i + half).min(n - 1) - i.saturating_sub(half) + 1).sum::<u64>();
    axis(rows) * axis(cols)
}

/// An array on its way from one operator to the next.
#[derive(Clone)]
struct Array {
    meta: ArrayMeta,
    block: Block,
}

impl Array {
    fn new(name: &str, block: Block) -> Self {
        let shape: Vec<u64> = block.shape().iter().map(|n| *n as u64).collect();
        Self { meta: ArrayMeta::plain(name, &shape, block.dtype()), block }
    }

    fn whole(&self) -> Region {
        Region::whole(&self.meta.shape)
    }
}

/// The steps of a job, and the binding of one to whole arrays.
struct Steps(JobSpec);

impl Steps {
    fn new(steps: &str) -> Self {
        let text = format!("[input]\npath = \"x.zarr\"\n{steps}[output]\npath = \"o.zarr\"\n");
        Self(config::job::parse(&text, std::path::Path::new("."), &[], &|_| None).expect("a job"))
    }

    fn bind(&self, step: usize, inputs: &[Array], asks: &[Ask]) -> Binding {
        let input = |array: &Array| StepInput { meta: array.meta.clone(), boundary: None, depth: None };
        let inputs: Vec<StepInput> = inputs.iter().map(input).collect();
        self.0.steps[step].operator.bind_asked(&inputs, asks).expect("bound")
    }
}

/// The whole of an output of a map over whole arrays; CPU time over runs.
fn apply(bound: &Binding, inputs: &[Array], wanted: &[bool]) -> (Vec<Array>, common::Spread) {
    let Kind::Map(map) = &bound.kind else { panic!("a map") };
    let reference = &inputs[bound.reference];
    let core = reference.whole();
    let region = |axes: &[OutAxis]| {
        let range = |axis: &OutAxis| match axis {
            OutAxis::Carried(a) => core.axis(*a),
            OutAxis::New { len, .. } => (0, *len as i64),
            OutAxis::Laid { .. } => panic!("none of these"),
        };
        Region::from_ranges(&axes.iter().map(range).collect::<Vec<_>>())
    };
    let regions: Vec<Region> = bound.outputs.iter().map(|o| region(&o.axes)).collect();
    let stop = AtomicBool::new(false);
    let account = Account::new("bench", 8 << 30);
    let mut made = Vec::new();
    let (_, cpu) = common::time(|| {
        made.clear();
        let lease = account.try_lease(4 << 30).expect("free");
        let mut work = Workspace::new(lease, &stop);
        let task = MapTask { number: 0, core: &core, outputs: &regions, wanted, worker: 0 };
        let padded = inputs.iter().map(|a| Padded { region: a.whole(), block: a.block.clone() }).collect();
        for (output, computed) in bound.outputs.iter().zip(map.apply(padded, &task, &mut work).expect("computed")) {
            made.extend(computed.map(|c| {
                let mut array = Array::new(&output.name, c.block);
                array.meta.attributes = output.attributes.clone();
                array
            }));
        }
    });
    (made, cpu)
}

fn say(what: &str, cpu: &common::Spread, scale: f64, unit: &str) {
    let per = |seconds: f64| seconds * scale;
    println!("{what} {:8.3} CPU {unit} ({:.3}-{:.3})", per(cpu.median), per(cpu.least), per(cpu.most));
}

fn ks_test(images: usize, rows: usize, cols: usize) {
    let steps = Steps::new("[[step]]\nop = \"ks_test\"\nhalf_window = 5\n[[step]]\nop = \"select_shp\"\n");
    let ask = steps.0.steps[1].operator.asks(0, "ks_test", None).expect("a mask");
    let slc = [Array::new("input", stack(rows, cols, images))];
    let bound = steps.bind(0, &slc, &[ask]);
    let pairs = ordered_pairs(rows as u64, cols as u64, 5) as f64;
    let forms =
        [("k", [false, false, true, false]), ("dist + p", [true, true, false, false]), ("mask", [false, false, false, true])];
    for (name, wanted) in forms {
        for scalar in [false, true] {
            force_scalar(scalar);
            let (_, cpu) = apply(&bound, &slc, &wanted);
            let path = if scalar { "scalar" } else { "simd" };
            say(&format!("ks_test N = {images:>3}, {rows}x{cols}, {name:<8} {path:<6}"), &cpu, 1e9 / pairs, "ns per pair");
        }
    }
    force_scalar(false);
}

/// The stack that the sample command makes of seed 7.
fn sample_slc(size: usize, images: usize) -> Array {
    let shape = [size, size, images];
    let lengths = shape.map(|n| n as u64).to_vec();
    let spec = SampleSpec { kind: "slc".to_owned(), shape: Some(lengths.clone()), chunks: Some(lengths), dtype: None, seed: 7 };
    let mut values = vec![Complex32::ZERO; shape.iter().product()];
    let source = sample::open(&spec).expect("a sample");
    source.read_chunk(&[0; 3], bytemuck::cast_slice_mut(&mut values), &mut Vec::new()).expect("made");
    Array::new("input", Block::from_values(&shape, &values))
}

/// Coherence, phases and their temporal coherence of the pixels that are like enough others around them.
fn chain(images: usize, size: usize) {
    const LEAST: u32 = 50;
    let step = |op: &str, lines: &str| format!("[[step]]\nop = \"{op}\"\n{lines}\n");
    let steps = Steps::new(
        &[
            step("ks_test", "half_window = 5"),
            step("select_shp", ""),
            step("coherence", &format!("inputs = [\"input\", \"select_shp\"]\nmin_count = {LEAST}")),
            step("emi", ""),
            step("temporal_coherence", "inputs = [\"coherence\", \"emi\"]"),
        ]
        .concat(),
    );
    let slc = sample_slc(size, images);
    let first = [slc.clone()];
    let ask = steps.0.steps[1].operator.asks(0, "ks_test", None).expect("a mask");
    let (mut mask, _) = apply(&steps.bind(0, &first, &[ask]), &first, &[false, false, false, true]);
    let bits = mask[0].block.bytes().expect("whole").chunks(mask[0].block.shape()[2]);
    let counts = bits.map(|bits| bits.iter().map(|byte| byte.count_ones()).sum::<u32>());
    let counts: Vec<f64> = counts.filter(|count| *count >= LEAST).map(f64::from).collect();
    let points = counts.len() as f64;
    let of = format!("{size}x{size}, {points} points of {:.1} like pixels", counts.iter().sum::<f64>() / points);
    let say = |op: &str, cpu| say(&format!("{op:<19} N = {images:>3}, {of}"), &cpu, 1e6 / points, "us per point");
    let inputs = [slc, mask.remove(0)];
    let (mut coherence, cpu) = apply(&steps.bind(2, &inputs, &[]), &inputs, &[true]);
    say("coherence", cpu);
    let inputs = [coherence.remove(0)];
    let (mut linked, cpu) = apply(&steps.bind(3, &inputs, &[]), &inputs, &[true, true]);
    say("emi", cpu);
    let inputs = [inputs[0].clone(), linked.remove(0)];
    let (_, cpu) = apply(&steps.bind(4, &inputs, &[]), &inputs, &[true]);
    say("temporal_coherence", cpu);
}

fn main() {
    if !common::is_bench() {
        return;
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| named.is_empty() || named.iter().any(|n| n == name);
    println!("load {}", common::load());
    if is_wanted("ks_test") {
        for (images, rows, cols) in [(17, 300, 300), (60, 150, 150), (100, 120, 120), (254, 64, 64)] {
            ks_test(images, rows, cols);
        }
    }
    if is_wanted("chain") {
        for (images, size) in [(17, 200), (60, 100)] {
            chain(images, size);
        }
    }
}
