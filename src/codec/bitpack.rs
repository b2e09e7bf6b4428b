//! Integers in `0..=15` and bools in 1, 2 or 4 bits each, at memory speed.
//!
//! Layout: the first value of a byte in its lowest bits, each row (innermost axis) padded with zero bits to a whole byte.
//! So `0, 1, 2, 3` in 2 bits is the byte `0b11_10_01_00`. This is also what travels to a GPU and is unpacked there.
//!
//! The width is proved by a scan of the chunk; packing checks it once more at no cost, so no value can ever wrap. Rows are
//! packed with AVX2 where the machine has it, else eight values at a time in a `u64`; both give equal bytes. (BMI2's pext
//! would do too, but is slow before Zen 3.)

#[cfg(target_arch = "x86_64")]
mod avx2;
mod wide;

use super::{Plain, kept_limit, lease_buffer};
use crate::array::{Account, Buffer, DType};
use crate::compute::gpu::kernels::{Kernel, Variant};

/// Unpacking on a device.
pub static KERNEL: Kernel = Kernel {
    name: "bitpack",
    source: include_str!("bitpack.cu"),
    entries: &["unpack"],
    variants: || ["1", "2", "4"].map(|w| Variant { defines: vec![("WIDTH", w.to_owned())], is_hot: true }).into(),
};

/// The narrowest width that holds `0..=max`: 1, 2 or 4 bits; `None` above 15.
pub fn width_for(max: u64) -> Option<u8> {
    match max {
        0..=1 => Some(1),
        2..=3 => Some(2),
        4..=15 => Some(4),
        _ => None,
    }
}

/// Bytes of a packed row of `row_len` values.
pub fn packed_row_bytes(row_len: usize, width: u8) -> usize {
    let per_byte = 8 / width as usize;
    row_len.div_ceil(per_byte)
}

/// Bytes of a packed chunk; `None` when the count leaves the address space.
pub fn packed_bytes(shape: &[usize], width: u8) -> Option<usize> {
    let (outer, row_len) = split_rows(shape);
    outer.iter().try_fold(packed_row_bytes(row_len, width), |n, &len| n.checked_mul(len))
}

/// Axes outside the rows, and the rows' length; an array without axes is one row of one value.
fn split_rows(shape: &[usize]) -> (&[usize], usize) {
    shape.split_last().map_or((&[], 1), |(last, outer)| (outer, *last))
}

/// The row length to work with: rows that end on a whole byte follow each other like one long row of `total` values.
fn joined(row_len: usize, width: u8, total: usize) -> usize {
    if (row_len * width as usize).is_multiple_of(8) { total } else { row_len }
}

/// Largest of the values; 0 when there are none.
pub fn max_u8(values: &[u8]) -> u8 {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx2() {
        // SAFETY: AVX2 is there.
        return unsafe { avx2::max(values) };
    }
    values.iter().copied().max().unwrap_or(0)
}

/// The width that holds every value, by a scan that ends early where a value is above 15.
fn width_of(values: &[u8]) -> Option<u8> {
    // A part is long enough to hide the call, short enough to leave quickly on data that never packs.
    let mut width = 1;
    for part in values.chunks(64 << 10) {
        width = width_for(max_u8(part) as u64)?.max(width);
    }
    Some(width)
}

/// Packs rows of `row_len` values each to `width` bits (1, 2 or 4). `out` has [`packed_row_bytes`] for each row.
///
/// False when a value does not fit: then `out` holds nothing of use.
///
/// # Panics
/// When the lengths of `values` and `out` are not those of the same whole number of rows.
#[must_use]
pub fn pack_rows(values: &[u8], row_len: usize, width: u8, out: &mut [u8]) -> bool {
    if values.is_empty() {
        return true;
    }
    let row_bytes = packed_row_bytes(row_len, width);
    assert!(values.len().is_multiple_of(row_len) && out.len() == values.len() / row_len * row_bytes, "rows do not match");
    let row_len = joined(row_len, width, values.len());
    match width {
        1 => pack_width::<1>(values, row_len, out),
        2 => pack_width::<2>(values, row_len, out),
        _ => pack_width::<4>(values, row_len, out),
    }
}

/// Restores what [`pack_rows`] packed: `packed` has [`packed_row_bytes`] for each row, `out` `row_len` bytes.
///
/// # Panics
/// When the lengths of `packed` and `out` are not those of the same whole number of rows.
pub fn unpack_rows(packed: &[u8], row_len: usize, width: u8, out: &mut [u8]) {
    if out.is_empty() {
        return;
    }
    let row_bytes = packed_row_bytes(row_len, width);
    assert!(out.len().is_multiple_of(row_len) && packed.len() == out.len() / row_len * row_bytes, "rows do not match");
    let row_len = joined(row_len, width, out.len());
    match width {
        1 => unpack_width::<1>(packed, row_len, out),
        2 => unpack_width::<2>(packed, row_len, out),
        _ => unpack_width::<4>(packed, row_len, out),
    }
}

fn pack_width<const W: usize>(values: &[u8], row_len: usize, out: &mut [u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx2() {
        // SAFETY: AVX2 is there.
        return unsafe { avx2::pack::<W>(values, row_len, out) };
    }
    let mut seen = 0;
    for (row, out) in values.chunks_exact(row_len).zip(out.chunks_exact_mut((row_len * W).div_ceil(8))) {
        seen |= pack_words::<W>(row, out);
    }
    fits::<W>(seen)
}

fn unpack_width<const W: usize>(packed: &[u8], row_len: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx2() {
        // SAFETY: AVX2 is there.
        return unsafe { avx2::unpack::<W>(packed, row_len, out) };
    }
    for (packed, row) in packed.chunks_exact((row_len * W).div_ceil(8)).zip(out.chunks_exact_mut(row_len)) {
        unpack_words::<W>(packed, row);
    }
}

/// True when none of the bytes that were or-ed into `seen` is wider than `W` bits.
fn fits<const W: usize>(seen: u64) -> bool {
    seen & !(u64::from_ne_bytes([((1u16 << W) - 1) as u8; 8])) == 0
}

/// Packs a row, or its tail, eight values at a time; returns all values or-ed together.
#[inline(always)]
fn pack_words<const W: usize>(row: &[u8], out: &mut [u8]) -> u64 {
    let (words, tail) = row.as_chunks::<8>();
    let mut seen = 0;
    let (whole, rest) = out.split_at_mut(words.len() * W);
    for (word, out) in words.iter().zip(whole.chunks_exact_mut(W)) {
        let word = u64::from_le_bytes(*word);
        seen |= word;
        out.copy_from_slice(&gather::<W>(word).to_le_bytes()[..W]);
    }
    if !tail.is_empty() {
        let mut word = [0; 8];
        word[..tail.len()].copy_from_slice(tail);
        let word = u64::from_le_bytes(word);
        seen |= word;
        let n = rest.len().min(W);
        rest[..n].copy_from_slice(&gather::<W>(word).to_le_bytes()[..n]);
    }
    seen
}

/// Unpacks a row, or its tail, eight values at a time.
#[inline(always)]
fn unpack_words<const W: usize>(packed: &[u8], row: &mut [u8]) {
    let (words, tail) = row.as_chunks_mut::<8>();
    let (whole, rest) = packed.split_at(words.len() * W);
    for (word, packed) in words.iter_mut().zip(whole.chunks_exact(W)) {
        let mut bytes = [0; 8];
        bytes[..W].copy_from_slice(packed);
        *word = scatter::<W>(u64::from_le_bytes(bytes)).to_le_bytes();
    }
    if !tail.is_empty() {
        let mut bytes = [0; 8];
        let n = rest.len().min(W);
        bytes[..n].copy_from_slice(&rest[..n]);
        tail.copy_from_slice(&scatter::<W>(u64::from_le_bytes(bytes)).to_le_bytes()[..tail.len()]);
    }
}

/// The low `W` bits of each of eight bytes side by side in the low `8 * W` bits; the other bits of the bytes must be 0.
#[inline(always)]
fn gather<const W: usize>(x: u64) -> u64 {
    match W {
        // Byte i moves to bit 56 + i. The partial products meet in no bit, so nothing carries.
        1 => x.wrapping_mul(0x0102_0408_1020_4080) >> 56,
        2 => {
            let x = (x | x >> 6) & 0x000f_000f_000f_000f;
            let x = (x | x >> 12) & 0x0000_00ff_0000_00ff;
            (x | x >> 24) & 0xffff
        }
        _ => {
            let x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
            let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
            (x | x >> 16) & 0xffff_ffff
        }
    }
}

/// The inverse of [`gather`].
#[inline(always)]
fn scatter<const W: usize>(x: u64) -> u64 {
    match W {
        1 => {
            // Byte i keeps bit i of the byte; adding 0x7f turns what is left into the byte's top bit.
            let bits = (x & 0xff).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
            (bits.wrapping_add(0x7f7f_7f7f_7f7f_7f7f) >> 7) & 0x0101_0101_0101_0101
        }
        2 => {
            let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
            let x = (x | x << 12) & 0x000f_000f_000f_000f;
            (x | x << 6) & 0x0303_0303_0303_0303
        }
        _ => {
            let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
            let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
            (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
        }
    }
}

/// Packs a chunk of an integer or bool dtype at the width its values need, charged to `account`. Stays plain when a
/// value is negative or above 15, when it saves less than 1/8, or when the account has no room.
pub(super) fn pack(bytes: &[u8], dtype: DType, shape: &[usize], account: &Account) -> Result<(u8, Buffer), Plain> {
    if dtype != DType::Bool && !dtype.is_integer() {
        return Err(Plain::NoGain);
    }
    // A negative byte is above 15 when seen as a u8.
    let width = if dtype.size() == 1 { width_of(bytes) } else { wide::width_of(bytes, dtype.size()) }.ok_or(Plain::NoGain)?;
    let len = packed_bytes(shape, width).filter(|&len| len <= kept_limit(bytes.len())).ok_or(Plain::NoGain)?;
    let mut buffer = lease_buffer(len, account)?;
    if pack_into(bytes, dtype, shape, width, &mut buffer) { Ok((width, buffer)) } else { Err(Plain::NoGain) }
}

/// Packs a chunk of an integer or bool dtype to `width` bits into `out`, which has [`packed_bytes`]. False when a value
/// does not fit: then `out` holds nothing of use.
#[must_use]
pub(super) fn pack_into(bytes: &[u8], dtype: DType, shape: &[usize], width: u8, out: &mut [u8]) -> bool {
    let (_, row_len) = split_rows(shape);
    match dtype.size() {
        1 => pack_rows(bytes, row_len, width, out),
        size => wide::pack_rows(bytes, size, row_len, width, out),
    }
}

/// Restores what [`pack`] packed into `out`, which has the chunk's length.
pub(super) fn unpack(packed: &[u8], width: u8, dtype: DType, shape: &[usize], out: &mut [u8]) -> Result<(), String> {
    if !matches!(width, 1 | 2 | 4) || (dtype != DType::Bool && !dtype.is_integer()) {
        return Err(format!("{dtype} is not packed to {width} bits"));
    }
    if packed_bytes(shape, width) != Some(packed.len()) {
        return Err(format!("{} bytes do not hold {shape:?} at {width} bits", packed.len()));
    }
    if out.is_empty() {
        return Ok(());
    }
    let (_, row_len) = split_rows(shape);
    match dtype.size() {
        1 => unpack_rows(packed, row_len, width, out),
        size => wide::unpack_rows(packed, size, row_len, width, out),
    }
    Ok(())
}
