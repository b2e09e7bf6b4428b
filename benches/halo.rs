//! How fast padded blocks are put together from neighbouring chunks, beside a memcpy of the same bytes.
//!
//! `cargo bench --bench halo`. One thread; every block of a volume is assembled from the chunks it needs, each byte copied
//! once. GB/s count the bytes of the padded blocks.

mod common;

use std::hint::black_box;

use halostream::array::chunk::Piece;
use halostream::array::{Block, Boundary, DType, Region, Rule};
use halostream::halo::assemble::{Field, assemble};

/// Regions of the chunks of a grid that meet `region` (clipped to the array).
fn pieces(shape: &[u64], chunk: i64, region: &Region) -> Vec<Piece> {
    let mut found = vec![Region::from_ranges(&[])];
    for (a, &len) in shape.iter().enumerate() {
        let (start, stop) = (region.start[a].max(0), region.stop[a].min(len as i64));
        let mut next = Vec::new();
        for index in start / chunk..(stop - 1) / chunk + 1 {
            for r in &found {
                let mut ranges: Vec<(i64, i64)> = (0..r.rank()).map(|b| r.axis(b)).collect();
                ranges.push((index * chunk, ((index + 1) * chunk).min(len as i64)));
                next.push(Region::from_ranges(&ranges));
            }
        }
        found = next;
    }
    found
        .into_iter()
        .map(|region| {
            let shape = region.shape();
            let values = vec![1f32; region.count()];
            Piece { block: Block::from_values(&shape, &values), region }
        })
        .collect()
}

fn main() {
    if !common::is_bench() {
        return;
    }
    let memcpy = common::memcpy_rate();
    println!("memcpy {memcpy:.2} GB/s, load {}", common::load());
    let shape = [256u64, 256, 256];
    for (chunk, block, depth) in [(64, 64, 1), (64, 64, 4), (64, 64, 12), (32, 64, 4), (16, 64, 4), (64, 16, 4), (128, 128, 12)] {
        for (name, rule) in [("reflect", Rule::Reflect), ("constant", Rule::Constant(0.0))] {
            let boundary: Boundary = vec![[rule; 2]; 3];
            let values = halostream::array::boundary::constants(&boundary, DType::F32).expect("fits");
            let field = Field { shape: &shape, dtype: DType::F32, boundary: &boundary, constants: &values };
            // A block in the middle, and one at a corner.
            for (place, at) in [("inner", 128 / block * block), ("corner", 0)] {
                let region = Region::from_ranges(&[(at - depth, at + block + depth); 3]);
                let pieces = pieces(&shape, chunk, &region);
                let bytes = region.count() * 4;
                let mut out = vec![0u8; bytes];
                let repeats = (64 << 20) / bytes + 1;
                let (wall, _) = common::time(|| {
                    for _ in 0..repeats {
                        assemble(black_box(&mut out), &region, &field, &pieces);
                    }
                });
                let rate = (bytes * repeats) as f64 / wall.median / 1e9;
                println!(
                    "chunks {chunk:>3}^3, block {block:>3}^3, depth {depth:>2}, {name:<8} {place:<6} {:>3} chunks {rate:6.2} GB/s, {:5.2} of memcpy",
                    pieces.len(),
                    rate / memcpy
                );
            }
        }
    }
}
