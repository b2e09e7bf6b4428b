//! Every codec: what it decodes, and what it refuses.

use super::*;
use crate::zarr::codecs::Layout;
use std::io::Write;
use std::time::Instant;

fn pipeline(bytes: Vec<BytesCodec>, n: u64) -> Pipeline {
    Pipeline::new(Chain { layout: Layout { is_big_endian: false, order: None }, bytes }, DType::U8, &[n]).unwrap()
}

fn decode(p: &Pipeline, encoded: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = vec![0xee; p.raw_bytes()];
    let mut scratch = vec![0; p.scratch_bytes()];
    p.decode(encoded, &mut scratch, &mut out, &mut Context::default()).map(|()| out)
}

fn gzip(values: &[u8]) -> Vec<u8> {
    let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(5));
    e.write_all(values).unwrap();
    e.finish().unwrap()
}

fn zlib(values: &[u8]) -> Vec<u8> {
    let mut e = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(5));
    e.write_all(values).unwrap();
    e.finish().unwrap()
}

fn lz4(values: &[u8]) -> Vec<u8> {
    [&(values.len() as u32).to_le_bytes()[..], &lz4_flex::block::compress(values)].concat()
}

fn checksummed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn encode(codec: &BytesCodec, values: &[u8]) -> Vec<u8> {
    match codec {
        BytesCodec::Zstd => zstd::bulk::compress(values, 3).unwrap(),
        BytesCodec::Gzip => gzip(values),
        BytesCodec::Zlib => zlib(values),
        BytesCodec::Lz4 => lz4(values),
        BytesCodec::Crc32c => checksummed(values.to_vec()),
        BytesCodec::Shuffle { element } => {
            (0..*element).flat_map(|b| values.iter().skip(b).step_by(*element).copied().collect::<Vec<_>>()).collect()
        }
        BytesCodec::Blosc { .. } => {
            let mut out = vec![0; values.len() + 16];
            // SAFETY: the lengths are the slices'.
            let n = unsafe {
                blosc_src::blosc_compress_ctx(
                    5,
                    1,
                    4,
                    values.len(),
                    values.as_ptr().cast(),
                    out.as_mut_ptr().cast(),
                    out.len(),
                    c"lz4".as_ptr(),
                    0,
                    1,
                )
            };
            out.truncate(n as usize);
            out
        }
    }
}

const ALL: [BytesCodec; 7] = [
    BytesCodec::Zstd,
    BytesCodec::Gzip,
    BytesCodec::Zlib,
    BytesCodec::Lz4,
    BytesCodec::Crc32c,
    BytesCodec::Shuffle { element: 4 },
    BytesCodec::Blosc { blocksize: 0 },
];

fn values_of(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * i / 7 % 251) as u8).collect()
}

#[test]
fn every_pair_of_codecs_decodes() {
    let values = values_of(4096);
    for first in &ALL {
        for second in &ALL {
            let encoded = encode(second, &encode(first, &values));
            // What a compressor left need not be whole elements; then no writer could have made this chain.
            if matches!(second, BytesCodec::Shuffle { .. }) && !encode(first, &values).len().is_multiple_of(4) {
                continue;
            }
            let p = pipeline(vec![first.clone(), second.clone()], 4096);
            assert_eq!(decode(&p, &encoded).unwrap(), values, "{first:?} {second:?}");
        }
    }
}

#[test]
fn torn_longer_and_damaged_chunks_are_refused() {
    let values = values_of(1000);
    for codec in ALL {
        let p = pipeline(vec![codec.clone()], 1000);
        let good = encode(&codec, &values);
        assert_eq!(decode(&p, &good).unwrap(), values);
        for cut in [0, 1, 5, good.len() / 2, good.len() - 1] {
            assert!(decode(&p, &good[..cut]).is_err(), "{codec:?} cut to {cut}");
        }
        let longer = [&good[..], b"garbage"].concat();
        assert!(decode(&p, &longer).is_err(), "{codec:?} with garbage");
        for other in [992, 1008] {
            let wrong = encode(&codec, &values_of(other));
            assert!(decode(&p, &wrong).is_err(), "{codec:?} of {other} values");
        }
    }
    let mut flipped = checksummed(values.clone());
    flipped[77] ^= 1;
    assert!(decode(&pipeline(vec![BytesCodec::Crc32c], 1000), &flipped).unwrap_err().contains("checksum"));
}

#[test]
fn beginnings_come_without_the_rest() {
    let n = 1 << 20;
    let values: Vec<u8> = (0..n).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 63).collect();
    let p = pipeline(vec![BytesCodec::Zstd], n as u64);
    let sealed = pipeline(vec![BytesCodec::Zstd, BytesCodec::Crc32c], n as u64);
    let one = zstd::bulk::compress(&values, 3).unwrap();
    let two = [zstd::bulk::compress(&values[..n / 3], 1).unwrap(), zstd::bulk::compress(&values[n / 3..], 1).unwrap()].concat();
    // A streaming encoder does not know the length that a frame could tell.
    let untold = zstd::stream::encode_all(&values[..], 3).unwrap();
    let mut context = Context::default();
    let mut decode_to = |p: &Pipeline, encoded: &[u8], end: usize| {
        let mut out = vec![0xee; n];
        p.decode_to(end, encoded, &mut vec![0; p.scratch_bytes()], &mut out, &mut context).map(|()| out)
    };
    for end in [1, 1000, 128 << 10, (128 << 10) + 1, n / 3 + 5, n - 1, n] {
        for (p, encoded) in [(&p, &one), (&p, &two), (&p, &untold), (&sealed, &checksummed(one.clone()))] {
            let out = decode_to(p, encoded, end).unwrap();
            assert!(out[..end] == values[..end], "{end}");
        }
    }
    let out = decode_to(&p, &one, 1000).unwrap();
    assert!(out[n / 2..].iter().all(|b| *b == 0xee), "the rest was decoded, too");
    // What is stored has to be all there, and as much as the metadata says.
    for cut in [0, 4, one.len() / 2, one.len() - 1] {
        assert!(decode_to(&p, &one[..cut], 1000).is_err(), "cut to {cut}");
    }
    let mut flipped = checksummed(one.clone());
    flipped[one.len() - 9] ^= 1;
    assert!(decode_to(&sealed, &flipped, 1000).unwrap_err().contains("checksum"));
    assert!(decode_to(&p, &[&one[..], &one[..]].concat(), 1000).unwrap_err().contains("zstd"));
    assert!(decode_to(&p, &[&one[..], b"garbage"].concat(), 1000).is_err());
    assert!(decode_to(&p, &zstd::bulk::compress(&values[..n / 2], 3).unwrap(), 1000).unwrap_err().contains("torn"));
}

#[test]
fn bombs_fail_at_once() {
    let started = Instant::now();
    // A frame of one repeated byte in blocks of 128 KiB, 10 GB in all, without a content size.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    let block = |last: u32| ((128u32 << 10) << 3 | 1 << 1 | last).to_le_bytes()[..3].to_vec();
    for i in 0..80_000 {
        bomb.extend(block((i == 79_999) as u32));
        bomb.push(0);
    }
    let error = decode(&pipeline(vec![BytesCodec::Zstd], 1 << 16), &bomb).unwrap_err();
    assert!(error.contains("zstd"), "{error}");
    let mut claims = zstd::bulk::compress(&[0; 1 << 20], 1).unwrap();
    assert!(decode(&pipeline(vec![BytesCodec::Zstd], 1 << 16), &claims).unwrap_err().contains("1048576"));
    claims.truncate(9);
    assert!(decode(&pipeline(vec![BytesCodec::Zstd], 1 << 16), &claims).is_err());
    let zeros = vec![0; 64 << 20];
    for (codec, bomb) in [(BytesCodec::Gzip, gzip(&zeros)), (BytesCodec::Zlib, zlib(&zeros)), (BytesCodec::Lz4, lz4(&zeros))] {
        let error = decode(&pipeline(vec![codec], 1 << 16), &bomb).unwrap_err();
        assert!(error.contains("too long"), "{error}");
    }
    assert!(started.elapsed().as_secs() < 60);
    let mut header = encode(&BytesCodec::Blosc { blocksize: 0 }, &values_of(1000));
    header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(decode(&pipeline(vec![BytesCodec::Blosc { blocksize: 0 }], 1000), &header).unwrap_err().contains("claims"));
}

#[test]
fn axes_and_byte_order_are_restored() {
    let layout = Layout { is_big_endian: true, order: Some(vec![2, 0, 1]) };
    for bytes in [vec![], vec![BytesCodec::Crc32c], vec![BytesCodec::Zstd]] {
        let p = Pipeline::new(Chain { layout: layout.clone(), bytes: bytes.clone() }, DType::I16, &[2, 3, 4]).unwrap();
        // Stored [k][i][j] holds the value i * 100 + j * 10 + k.
        let mut stored = Vec::new();
        for (k, i, j) in (0..24).map(|n| (n / 6, n / 3 % 2, n % 3)) {
            stored.extend(((i * 100 + j * 10 + k) as i16).to_be_bytes());
        }
        for codec in &bytes {
            stored = encode(codec, &stored);
        }
        let got: Vec<i16> = decode(&p, &stored).unwrap().chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
        let expected: Vec<i16> = (0..24).map(|n| (n / 12 * 100 + n / 4 % 3 * 10 + n % 4) as i16).collect();
        assert_eq!(got, expected, "{bytes:?}");
    }
}

#[test]
fn no_damage_brings_a_decoder_down() {
    let values = values_of(3000);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for codec in ALL {
        let p = pipeline(vec![codec.clone()], 3000);
        let good = encode(&codec, &values);
        for round in 0..3000 {
            let mut bad = good.clone();
            for _ in 0..1 + round % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Every other round aims at the header.
                let reach = if round % 2 == 0 { bad.len().min(24) } else { bad.len() };
                bad[(state >> 33) as usize % reach] = (state >> 20) as u8;
            }
            // Values may come out wrong where a format has no checksum; memory and size never.
            if let Ok(out) = decode(&p, &bad) {
                assert_eq!(out.len(), 3000);
            }
        }
    }
}
