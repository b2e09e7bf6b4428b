//! blosc (lz4 behind a bit shuffle, one thread) for chunks that wait: 1-3 GB/s in, 1-4 GB/s out on one core.
//!
//! The context calls are used: they take no lock, read no environment variable and start no thread.

use blosc_src::{
    BLOSC_BITSHUFFLE, BLOSC_LZ4_COMPNAME, BLOSC_MAX_BUFFERSIZE, blosc_cbuffer_validate, blosc_compress_ctx, blosc_decompress_ctx,
};

use super::{grow, kept_limit};
use crate::array::DType;

/// blosc's own default: blocks of 128 KiB to 1 MiB.
const LEVEL: i32 = 5;
/// blosc never makes its blocks longer with lz4.
const BLOCK_BYTES: u64 = 1 << 20;
/// lz4's hash table and blosc's context.
const STATE_BYTES: u64 = 32 << 10;

/// Bytes blosc allocates while it packs or unpacks a chunk: two blocks, one with room for four elements more.
pub fn inner_bytes(dtype: DType, len: u64) -> u64 {
    2 * len.min(BLOCK_BYTES) + 4 * dtype.size() as u64 + STATE_BYTES
}

/// Bytes that packing a chunk of `len` bytes needs beside the chunk and its packed form.
pub fn pack_scratch_bytes(dtype: DType, len: u64) -> u64 {
    len - len.div_ceil(8) + inner_bytes(dtype, len)
}

/// Packs `bytes` into the front of `scratch`, which grows as needed. The packed length, or `None` when less than 1/8
/// would be saved or when the chunk is longer than blosc's 2 GiB.
pub fn compress(bytes: &[u8], dtype: DType, scratch: &mut Vec<u8>) -> Option<usize> {
    if bytes.len() > BLOSC_MAX_BUFFERSIZE as usize {
        return None;
    }
    let limit = kept_limit(bytes.len());
    grow(scratch, limit);
    // SAFETY: `src` has `bytes.len()` readable bytes, `dest` at least `limit` writable ones, they don't overlap, and the
    // name ends in a zero.
    let len = unsafe {
        blosc_compress_ctx(
            LEVEL,
            BLOSC_BITSHUFFLE as i32,
            dtype.size(),
            bytes.len(),
            bytes.as_ptr().cast(),
            scratch.as_mut_ptr().cast(),
            limit,
            BLOSC_LZ4_COMPNAME.as_ptr().cast(),
            0,
            1,
        )
    };
    // 0: it does not fit in `limit`.
    usize::try_from(len).ok().filter(|&len| len > 0 && len <= limit)
}

/// Restores what [`compress`] packed; `out` has the chunk's length. Bytes that it did not write are an error, as far as
/// the format can tell (it holds no checksum).
pub fn decompress(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut len = 0;
    // SAFETY: reads the 16 bytes of the header, after it checked that there are as many.
    let header = unsafe { blosc_cbuffer_validate(packed.as_ptr().cast(), packed.len(), &mut len) };
    if header != 0 {
        return Err(format!("its header does not belong to {} bytes", packed.len()));
    }
    if len != out.len() {
        return Err(format!("it holds {len} bytes, not {}", out.len()));
    }
    // SAFETY: the header's packed length is `packed.len()` (checked above) and bounds what is read; blosc writes at most
    // `out.len()` bytes.
    let got = unsafe { blosc_decompress_ctx(packed.as_ptr().cast(), out.as_mut_ptr().cast(), out.len(), 1) };
    if usize::try_from(got) != Ok(out.len()) {
        return Err(format!("blosc returned {got} for {} bytes", out.len()));
    }
    Ok(())
}
