//! lz4 (lz4_flex, safe decoder) for chunks that wait: 0.2-0.8 GB/s in where it has work to do, 0.5-2 GB/s
//! out on one core.
//!
//! A chunk is packed in segments of 1 MiB, each `length: u32 le` and one lz4 block. lz4 looks back 64 KiB only, so
//! segments cost nothing in size; they bound the scratch to what is worth keeping and have no limit on the chunk's length.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::{grow, kept_limit};

const SEGMENT: usize = 1 << 20;
/// lz4_flex's hash table, on the heap while it packs: at most 8192 `u32`, allowed twice over.
const TABLE_BYTES: usize = 64 << 10;

/// Length of the scratch for a chunk of `len` bytes: what is worth keeping, and one segment at its worst.
pub(super) fn scratch_len(len: usize) -> usize {
    kept_limit(len) + 4 + get_maximum_output_size(len.min(SEGMENT))
}

/// Bytes that packing a chunk of `len` bytes needs beside the chunk and its packed form.
pub fn scratch_bytes(len: u64) -> u64 {
    (scratch_len(len as usize) + TABLE_BYTES) as u64
}

/// Packs `bytes` into the front of `scratch`, which grows as needed. The packed length, or `None` when less than 1/8
/// would be saved.
pub fn compress(bytes: &[u8], scratch: &mut Vec<u8>) -> Option<usize> {
    let limit = kept_limit(bytes.len());
    grow(scratch, scratch_len(bytes.len()));
    let mut at = 0;
    for segment in bytes.chunks(SEGMENT) {
        let len = compress_into(segment, scratch.get_mut(at + 4..)?).ok()?;
        scratch[at..at + 4].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
        at += 4 + len;
        if at > limit {
            return None;
        }
    }
    Some(at)
}

/// Restores what [`compress`] packed; `out` has the chunk's length. Bytes that it did not write are an error, as far as
/// the format can tell (it holds no checksum), and never a panic.
pub fn decompress(mut packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    for (number, segment) in out.chunks_mut(SEGMENT).enumerate() {
        let (head, rest) = packed.split_first_chunk().ok_or_else(|| format!("segment {number} is missing"))?;
        let len = u32::from_le_bytes(*head) as usize;
        let (block, rest) = rest.split_at_checked(len).ok_or_else(|| format!("segment {number} is cut off"))?;
        let got = decompress_into(block, segment).map_err(|e| format!("segment {number}: {e}"))?;
        if got != segment.len() {
            return Err(format!("segment {number} has {got} bytes, not {}", segment.len()));
        }
        packed = rest;
    }
    if packed.is_empty() { Ok(()) } else { Err(format!("{} bytes follow the last segment", packed.len())) }
}
