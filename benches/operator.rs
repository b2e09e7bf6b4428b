//! What operators cost in memory, without files: the KS test per ordered pair.
//!
//! `cargo bench --bench operator`. One thread, one block of a made-up SLC stack, CPU nanoseconds per ordered pair (pixel,
//! neighbour inside the image), sort included. `k`: counts alone; `dist + p`: expanded to two float32 arrays.

mod common;

use std::sync::atomic::AtomicBool;

use halostream::array::{Account, Block, Region};
use halostream::config;
use halostream::operators::{ArrayMeta, Kind, MapTask, Padded, StepInput, Workspace};
use halostream::simd::force_scalar;

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

fn ks_test(images: usize, rows: usize, cols: usize) {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"ks_test\"\nhalf_window = 5\n[output]\npath = \"o.zarr\"\n";
    let job = config::job::parse(text, std::path::Path::new("."), &[], &|_| None).expect("a job");
    let meta = ArrayMeta::plain("input", &[rows as u64, cols as u64, images as u64], halostream::array::DType::F32);
    let bound = job.steps[0].operator.bind(&[StepInput { meta, boundary: None, depth: None }]).expect("bound");
    let Kind::Map(map) = &bound.kind else { panic!("ks_test is a map") };
    let block = stack(rows, cols, images);
    let pairs = ordered_pairs(rows as u64, cols as u64, 5) as f64;
    let whole = Region::from_ranges(&[(0, rows as i64), (0, cols as i64), (0, images as i64)]);
    let window = Region::from_ranges(&[(0, rows as i64), (0, cols as i64), (0, 11), (0, 11)]);
    let regions = [window.clone(), window.clone(), window];
    let stop = AtomicBool::new(false);
    let account = Account::new("bench", 8 << 30);
    for (name, wanted) in [("k", [false, false, true]), ("dist + p", [true, true, false])] {
        for scalar in [false, true] {
            force_scalar(scalar);
            let (_, cpu) = common::time(|| {
                let lease = account.try_lease(4 << 30).expect("free");
                let mut work = Workspace::new(lease, &stop);
                let task = MapTask { number: 0, core: &whole, outputs: &regions, wanted: &wanted, worker: 0 };
                let input = Padded { region: whole.clone(), block: block.clone() };
                std::hint::black_box(map.apply(vec![input], &task, &mut work).expect("computed"));
            });
            let ns = |seconds: f64| seconds * 1e9 / pairs;
            println!(
                "ks_test N = {images:>3}, {rows}x{cols}, {name:<8} {:<6} {:7.2} CPU ns per pair ({:.2}-{:.2})",
                if scalar { "scalar" } else { "simd" },
                ns(cpu.median),
                ns(cpu.least),
                ns(cpu.most)
            );
        }
    }
    force_scalar(false);
}

fn main() {
    if !common::is_bench() {
        return;
    }
    println!("load {}", common::load());
    for (images, rows, cols) in [(17, 300, 300), (60, 150, 150), (100, 120, 120), (254, 64, 64)] {
        ks_test(images, rows, cols);
    }
}
