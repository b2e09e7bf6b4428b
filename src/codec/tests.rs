//! Packing in every form, against the values themselves and a naive packer.

use super::*;
use crate::simd::both_paths;
use bitpack::{pack_rows, packed_row_bytes, unpack_rows};

/// Bytes of a small generator (splitmix64), equal on every machine.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    (0..len).map(|_| next() as u8).collect()
}

fn block(dtype: DType, shape: &[usize], bytes: &[u8]) -> Block {
    Block::new(Buffer::from_slice(bytes), dtype, shape.to_vec())
}

fn unpacked(packed: &Packed) -> Vec<u8> {
    let mut out = vec![0xa5; packed.byte_len()];
    packed.unpack_into(&mut out).unwrap();
    out
}

const SHAPES: [&[usize]; 9] = [&[], &[1], &[7, 3], &[5, 17], &[3, 2, 33], &[64, 64], &[2, 100, 101], &[9000], &[3, 70_001]];

/// Elements of a dtype: small integers, any bytes, or runs with the float values that compare oddly.
fn elements(dtype: DType, kind: usize, seed: u64, count: usize) -> Vec<u8> {
    let size = dtype.size();
    match kind {
        0..=2 => {
            // Little endian integers 0..=1, 0..=3, 0..=15.
            let limit = [1, 3, 15][kind];
            noise(seed, count).iter().flat_map(|b| std::iter::once(b & limit).chain(vec![0; size - 1])).collect()
        }
        3 if dtype != DType::Bool => noise(seed, count * size),
        _ => {
            // Runs of: zero, minus zero, a NaN with a payload (for four byte floats), noise.
            let odd = [[0, 0, 0, 0], [0, 0, 0, 0x80], [0x34, 0x12, 0xc0, 0x7f], [1, 2, 3, 4]];
            let one = |i: usize| odd[i / 11 % 4].iter().cycle().skip(4usize.saturating_sub(size)).take(size).copied();
            let runs = (0..count).flat_map(one);
            if dtype == DType::Bool { runs.map(|b| b & 1).collect() } else { runs.collect() }
        }
    }
}

#[test]
fn i1_every_form_gives_back_every_byte() {
    let account = Account::unbounded("test");
    let mut scratch = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for shape in SHAPES {
            let count = shape.iter().product();
            for kind in 0..if dtype == DType::Bool { 1 } else { 5 } {
                let bytes = elements(dtype, kind, seed as u64, count);
                let block = block(dtype, shape, &bytes);
                for park in [Park::None, Park::Bitpack, Park::Lz4, Park::Blosc, Park::Auto] {
                    let Some(packed) = pack(&block, park, &account, &mut scratch) else { continue };
                    assert_ne!(park, Park::None);
                    assert!(packed.packed_len() <= bytes.len() - bytes.len() / 8, "{park:?} keeps what saves too little");
                    *seen.entry(packed.form_name()).or_insert(0) += 1;
                    assert_eq!(unpacked(&packed), bytes, "{park:?} {dtype} {shape:?} kind {kind}");
                }
            }
        }
    }
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), ["bits", "blosc", "constant", "lz4"], "a form never came up");
    assert!(seen.values().all(|&n| n >= 10), "{seen:?}");
}

#[test]
fn the_scratch_stays_inside_what_the_plan_was_told() {
    let account = Account::unbounded("test");
    for len in [1usize, 100, 4096, 1 << 20, (1 << 20) + 1, 3_000_000] {
        for (bytes, name) in [(noise(3, len), "noise"), ((0..len).map(|i| (i / 7) as u8).collect(), "runs")] {
            for park in [Park::Lz4, Park::Blosc, Park::Auto] {
                let mut scratch = Vec::new();
                let _ = pack(&block(DType::U8, &[len], &bytes), park, &account, &mut scratch);
                let _ = AutoPark::default().pack(&block(DType::U8, &[len], &bytes), &account, &mut scratch);
                let most = pack_scratch_bytes(Park::Auto, DType::U8, len as u64);
                assert!(scratch.capacity() as u64 <= most, "{park:?} {name} {len}: {} > {most}", scratch.capacity());
            }
        }
    }
}

/// The layout, one bit at a time.
fn naive(values: &[u8], row_len: usize, width: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for row in values.chunks(row_len) {
        let mut packed = vec![0u8; packed_row_bytes(row_len, width)];
        for (i, value) in row.iter().enumerate() {
            for bit in 0..width as usize {
                let at = i * width as usize + bit;
                packed[at / 8] |= (value >> bit & 1) << (at % 8);
            }
        }
        out.extend(packed);
    }
    out
}

#[test]
fn i1_vector_and_scalar_code_give_the_bytes_of_the_layout() {
    for width in [1u8, 2, 4] {
        for row_len in (1..=70).chain([127, 128, 129, 1000, 4097]) {
            let values: Vec<u8> = noise(row_len as u64, row_len * 3).iter().map(|b| b & ((1u16 << width) - 1) as u8).collect();
            let want = naive(&values, row_len, width);
            both_paths(|scalar| {
                let mut packed = vec![0xa5; want.len()];
                assert!(pack_rows(&values, row_len, width, &mut packed));
                assert_eq!(packed, want, "{width} bits, rows of {row_len}, scalar {scalar}");
                let mut back = vec![0xa5; values.len()];
                unpack_rows(&packed, row_len, width, &mut back);
                assert_eq!(back, values, "{width} bits, rows of {row_len}, scalar {scalar}");
                assert_eq!(bitpack::max_u8(&values), *values.iter().max().unwrap());
            });
        }
    }
}

#[test]
fn i5_a_value_that_does_not_fit_is_refused_wherever_it_stands() {
    for width in [1u8, 2, 4] {
        for len in [1usize, 8, 31, 33, 100] {
            for at in 0..len {
                let mut values = vec![0u8; len];
                values[at] = 1 << width;
                both_paths(|scalar| {
                    let mut out = vec![0; packed_row_bytes(len, width)];
                    assert!(!pack_rows(&values, len, width, &mut out), "{width} bits, {at} of {len}, scalar {scalar}");
                });
            }
        }
    }
    let account = Account::unbounded("test");
    let packs = |dtype, bytes: &[u8], count| pack(&block(dtype, &[count], bytes), Park::Bitpack, &account, &mut Vec::new());
    let mut values = vec![0u8; 200_000];
    values[199_999] = 16;
    assert!(packs(DType::U8, &values, 200_000).is_none());
    values[199_999] = 15;
    assert!(matches!(packs(DType::U8, &values, 200_000).unwrap().form, Form::Bits { width: 4, .. }));
    values[199_999] = 255;
    assert!(packs(DType::I8, &values, 200_000).is_none(), "-1");
    // The same in the high bytes of wider integers, and as floats, whose small values are no small integers.
    for dtype in [DType::U16, DType::I16, DType::U32, DType::I32, DType::U64, DType::I64] {
        let count = 200_000 / dtype.size();
        assert!(packs(dtype, &values, count).is_none(), "{dtype}");
    }
    let mut small = vec![0u8; 200_000];
    small[0] = 1;
    assert!(packs(DType::F32, &small, 50_000).is_none());
    assert!(packs(DType::C64, &small, 25_000).is_none());
}

#[test]
fn the_layout_is_first_value_lowest_and_rows_end_on_bytes() {
    let account = Account::unbounded("test");
    let bits =
        |dtype, shape: &[usize], bytes: &[u8]| match pack(&block(dtype, shape, bytes), Park::Bitpack, &account, &mut Vec::new())
            .unwrap()
            .form
        {
            Form::Bits { width, bytes } => (width, bytes.to_vec()),
            other => panic!("{other:?}"),
        };
    assert_eq!(bits(DType::U8, &[4], &[0, 1, 2, 3]), (2, vec![0b11_10_01_00]));
    assert_eq!(bits(DType::U8, &[2, 5], &[0, 1, 2, 3, 1, 3, 3, 0, 0, 2]), (2, vec![0b11_10_01_00, 1, 0b00_00_11_11, 2]));
    assert_eq!(bits(DType::Bool, &[9], &[1, 0, 1, 1, 0, 0, 0, 1, 1]), (1, vec![0b1000_1101, 1]));
    assert_eq!(bits(DType::U8, &[3], &[1, 15, 4]), (4, vec![0xf1, 4]));
    assert_eq!(bits(DType::I16, &[4], &[3, 0, 0, 0, 1, 0, 2, 0]), (2, vec![0b10_01_00_11]));
}

#[test]
fn i2_the_plan_counts_only_what_is_guaranteed() {
    assert_eq!(guaranteed_bits(DType::Bool, None), Some(1));
    assert_eq!(guaranteed_bits(DType::U8, None), None);
    let widths: Vec<_> = [0, 1, 2, 3, 4, 15, 16].map(|max| guaranteed_bits(DType::U8, Some(max))).into();
    assert_eq!(widths, [Some(1), Some(1), Some(2), Some(2), Some(4), Some(4), None]);
    assert_eq!(guaranteed_bits(DType::F32, Some(3)), None);
    assert_eq!([1, 2, 4].map(|width| guaranteed_row_bytes(101, width)), [13, 26, 51]);
    let account = Account::new("test", 26_000);
    let values: Vec<u8> = noise(1, 101_000).iter().map(|b| b & 3).collect();
    let packed = pack(&block(DType::U8, &[1000, 101], &values), Park::Auto, &account, &mut Vec::new()).unwrap();
    assert_eq!(account.leased(), 26_000);
    // A row of a guaranteed width takes what the plan counted; a value that is wider is an error, never a wrap.
    let own = Account::new("test", 26_000);
    let guaranteed = pack_guaranteed(&block(DType::U8, &[1000, 101], &values), 2, own.try_lease(26_000).unwrap()).unwrap();
    assert_eq!((guaranteed.packed_len(), own.leased()), (26_000, 26_000));
    let mut out = vec![0; 101_000];
    guaranteed.unpack_into(&mut out).unwrap();
    assert_eq!(out, values);
    drop(guaranteed);
    let wide = pack_guaranteed(&block(DType::U8, &[1, 4], &[1, 2, 4, 0]), 2, own.try_lease(1).unwrap());
    assert!(wide.is_err_and(|e| e.to_string().contains("does not fit the 2 bits")));
    // No room for a second one: it stays plain.
    assert!(pack(&block(DType::U8, &[1000, 101], &values), Park::Auto, &account, &mut Vec::new()).is_none());
    drop(packed);
    assert_eq!(account.leased(), 0);
}

#[test]
fn only_equal_bytes_are_constant() {
    let account = Account::unbounded("test");
    let form = |values: &[f32]| pack(&Block::from_values(&[values.len()], values), Park::Bitpack, &account, &mut Vec::new());
    assert!(form(&[0.0, -0.0, 0.0]).is_none());
    let payload = f32::from_bits(0x7fc0_1234);
    assert_eq!(unpacked(&form(&[payload; 5]).unwrap()), [payload; 5].map(f32::to_le_bytes).concat());
    assert!(form(&[payload, f32::NAN]).is_none());
    assert!(pack(&Block::from_values(&[3], &[1u8; 3]), Park::None, &account, &mut Vec::new()).is_none());
    assert!(pack(&Block::from_values::<u8>(&[0, 3], &[]), Park::Auto, &account, &mut Vec::new()).is_none());
    // A view with gaps has no bytes of its own to pack.
    let gaps = Block::from_values(&[4, 4], &[1u8; 16]).view(&[0, 0], &[4, 2]);
    assert!(pack(&gaps, Park::Lz4, &account, &mut Vec::new()).is_none());
}

#[test]
fn damaged_bytes_are_an_error_or_other_values_but_never_a_panic() {
    let account = Account::unbounded("test");
    let len = 1_200_000;
    let runs: Vec<u8> = (0..len).map(|i| (i / 9) as u8 & 15).collect();
    let runs = block(DType::U8, &[3, len / 3], &runs);
    for park in [Park::Lz4, Park::Blosc, Park::Bitpack] {
        let packed = pack(&runs, park, &account, &mut Vec::new()).unwrap();
        let good = match &packed.form {
            Form::Lz4(b) | Form::Blosc(b) | Form::Bits { bytes: b, .. } => b.to_vec(),
            Form::Constant(_) => panic!("not constant"),
        };
        let with = |bytes: &[u8]| {
            let bytes = Buffer::from_slice(bytes);
            let form = match &packed.form {
                Form::Lz4(_) => Form::Lz4(bytes),
                Form::Blosc(_) => Form::Blosc(bytes),
                _ => Form::Bits { width: 4, bytes },
            };
            let mut out = vec![0; len];
            Packed { form, shape: packed.shape.clone(), ..packed }.unpack_into(&mut out).map(|()| out)
        };
        assert!(with(&good).is_ok());
        for cut in [0, 1, 3, 15, 16, 17, good.len() / 2, good.len() - 1] {
            assert!(matches!(with(&good[..cut]), Err(PackError::Damaged { .. })), "{park:?} cut to {cut}");
        }
        let longer = [&good[..], &[0]].concat();
        assert!(with(&longer).is_err(), "{park:?}");
        let mut places = noise(9, 400).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
        places.extend(0..24);
        for place in places {
            let mut bad = good.clone();
            let at = place as usize % bad.len();
            bad[at] ^= 1 << (place >> 24 & 7);
            let _ = with(&bad);
            bad[at] = 0xff;
            let _ = with(&bad);
        }
        let mut short = vec![0; len - 1];
        assert!(packed.unpack_into(&mut short).is_err());
    }
    let wrong = Packed { dtype: DType::F32, shape: vec![4], form: Form::Constant(Scalar::of(1u8)) };
    assert!(wrong.unpack_into(&mut [0; 16]).is_err());
    let wrong = Packed { dtype: DType::F32, shape: vec![4], form: Form::Bits { width: 2, bytes: Buffer::loose(1) } };
    assert!(wrong.unpack_into(&mut [0; 16]).unwrap_err().to_string().contains("float32 is not packed to 2 bits"));
}
