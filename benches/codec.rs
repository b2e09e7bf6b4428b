//! How fast chunks pack and unpack while they wait, beside a memcpy of the same bytes.
//!
//! `cargo bench --bench codec`. One thread, 16 MiB of plain bytes, medians of 5; GB/s count plain bytes.

use std::hint::black_box;
use std::time::Instant;

use halostream::array::{Account, Block, DType};
use halostream::codec::bitpack::{max_u8, pack_rows, packed_row_bytes, unpack_rows};
use halostream::codec::{Park, pack};
use halostream::simd::{force_scalar, has_avx2};

const BYTES: usize = 16 << 20;
/// A whole number of bytes at every width; the other length ends inside a byte.
const ROWS: [usize; 2] = [1 << 20, 1001];

/// GB/s of `bytes` plain bytes, median of 5 runs after one to warm up.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut seconds: Vec<f64> = (0..5)
        .map(|_| {
            let since = Instant::now();
            work();
            since.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    bytes as f64 / seconds[2] / 1e9
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn bits() {
    let random = noise(BYTES);
    let mut out = vec![0u8; BYTES];
    println!("memcpy                          {:6.2} GB/s", rate(BYTES, || black_box(&mut out).copy_from_slice(&random)));
    for scalar in [false, true] {
        force_scalar(scalar);
        let path = if has_avx2() { "avx2" } else { "scalar" };
        println!("max scan               {path:>6}   {:6.2} GB/s", rate(BYTES, || assert!(max_u8(black_box(&random)) > 15)));
        for row_len in ROWS {
            for width in [1u8, 2, 4] {
                let mask = ((1u16 << width) - 1) as u8;
                let values: Vec<u8> = random[..BYTES / row_len * row_len].iter().map(|b| b & mask).collect();
                let mut packed = vec![0u8; values.len() / row_len * packed_row_bytes(row_len, width)];
                let packing = rate(values.len(), || assert!(pack_rows(black_box(&values), row_len, width, &mut packed)));
                let plain = &mut out[..values.len()];
                let unpacking = rate(values.len(), || unpack_rows(black_box(&packed), row_len, width, plain));
                assert!(plain == &values[..], "unpacked to other values");
                println!(
                    "{width} bit, rows of {row_len:>7} {path:>6}   {packing:6.2} GB/s packed  {unpacking:6.2} GB/s unpacked"
                );
            }
        }
    }
    force_scalar(false);
}

fn codecs() {
    let random = noise(BYTES);
    let smooth: Vec<u8> =
        (0..BYTES / 4).flat_map(|i| ((i as f32 * 1e-3).sin() * 100.0 + (i >> 12) as f32).to_le_bytes()).collect();
    let quantised: Vec<u8> = (0..BYTES / 4).flat_map(|i| ((i as f32 * 1e-3).sin() * 100.0).round().to_le_bytes()).collect();
    let genotypes: Vec<u8> = random.iter().map(|&b| (b > 140) as u8 + (b > 230) as u8).collect();
    // Bounded, because only bounded accounts keep buffers for reuse, as a job's do: fresh pages cost more than packing.
    let account = Account::new("bench", 1 << 30);
    for (name, dtype, bytes) in [
        ("genotypes 0..2", DType::U8, &genotypes),
        ("smooth f32", DType::F32, &smooth),
        ("quantised f32", DType::F32, &quantised),
        ("noise", DType::F32, &random),
    ] {
        let mut buffer = halostream::array::Buffer::loose(BYTES);
        buffer.copy_from_slice(bytes);
        let block = Block::new(buffer, dtype, vec![64, BYTES / 64 / dtype.size()]);
        for park in [Park::Bitpack, Park::Lz4, Park::Blosc] {
            let mut scratch = Vec::new();
            let encode = rate(BYTES, || drop(black_box(pack(&block, park, &account, &mut scratch))));
            let label = format!("{park:?}").to_lowercase();
            match pack(&block, park, &account, &mut scratch) {
                Some(packed) => {
                    let mut out = vec![0u8; BYTES];
                    let decode = rate(BYTES, || packed.unpack_into(black_box(&mut out)).expect("packed just now"));
                    assert!(&out == bytes, "unpacked to other values");
                    let ratio = BYTES as f64 / packed.packed_len() as f64;
                    println!("{name:14} {label:8} {encode:6.2} GB/s packed  {decode:6.2} GB/s unpacked  ratio {ratio:.2}");
                }
                None => println!("{name:14} {label:8} {encode:6.2} GB/s until it was seen to stay plain"),
            }
        }
    }
}

fn main() {
    // `cargo test --all-targets` runs this too, without the flag that `cargo bench` gives.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    bits();
    codecs();
}
