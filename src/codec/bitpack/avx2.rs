//! The AVX2 forms: 32 values at a time, the rest of a row as on any machine. Equal bytes to the scalar form.

use std::arch::x86_64::*;

use super::{fits, pack_words, unpack_words};

/// Largest byte; 0 for none.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn max(values: &[u8]) -> u8 {
    let (words, tail) = values.as_chunks::<128>();
    let mut best = [_mm256_setzero_si256(); 4];
    for word in words {
        for (i, best) in best.iter_mut().enumerate() {
            // SAFETY: 32 bytes from 32 * i, i < 4, are inside the 128.
            let v = unsafe { _mm256_loadu_si256(word.as_ptr().add(32 * i).cast()) };
            *best = _mm256_max_epu8(*best, v);
        }
    }
    let best = _mm256_max_epu8(_mm256_max_epu8(best[0], best[1]), _mm256_max_epu8(best[2], best[3]));
    let mut lanes = [0u8; 32];
    // SAFETY: 32 bytes of room.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), best) };
    lanes.iter().chain(tail).copied().max().unwrap_or(0)
}

/// # Safety
/// The CPU has AVX2. (Lengths are checked by the slices.)
#[target_feature(enable = "avx2")]
pub unsafe fn pack<const W: usize>(values: &[u8], row_len: usize, out: &mut [u8]) -> bool {
    let mut seen = _mm256_setzero_si256();
    let mut seen_tail = 0;
    for (row, out) in values.chunks_exact(row_len).zip(out.chunks_exact_mut((row_len * W).div_ceil(8))) {
        let (words, tail) = row.as_chunks::<32>();
        let (whole, rest) = out.split_at_mut(words.len() * 4 * W);
        for (word, out) in words.iter().zip(whole.chunks_exact_mut(4 * W)) {
            // SAFETY: 32 bytes to read, `4 * W` to write, as sliced.
            unsafe {
                let v = _mm256_loadu_si256(word.as_ptr().cast());
                seen = _mm256_or_si256(seen, v);
                pack_32::<W>(v, out.as_mut_ptr());
            }
        }
        seen_tail |= pack_words::<W>(tail, rest);
    }
    let mut lanes = [0u64; 4];
    // SAFETY: 32 bytes of room.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), seen) };
    fits::<W>(lanes.iter().fold(seen_tail, |all, lane| all | lane))
}

/// Writes `4 * W` bytes.
#[target_feature(enable = "avx2")]
unsafe fn pack_32<const W: usize>(v: __m256i, out: *mut u8) {
    // SAFETY: the caller has `4 * W` bytes of room at `out`.
    unsafe {
        match W {
            1 => {
                // The lowest bit of each byte becomes its sign; what crosses into the next byte stays below it.
                let bits = _mm256_movemask_epi8(_mm256_slli_epi16::<7>(v)) as u32;
                out.cast::<u32>().write_unaligned(bits.to_le());
            }
            2 => {
                // v0 + 4 v1 per pair, then pair0 + 16 pair1: a byte at the bottom of each 32 bits.
                let pairs = _mm256_maddubs_epi16(v, _mm256_set1_epi16(0x0401));
                let bytes = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0010_0001));
                let first = _mm256_set1_epi32(0x0c08_0400);
                let lanes = _mm256_shuffle_epi8(bytes, first);
                let low = _mm256_extract_epi32::<0>(lanes) as u32 as u64;
                let high = _mm256_extract_epi32::<4>(lanes) as u32 as u64;
                out.cast::<u64>().write_unaligned((low | high << 32).to_le());
            }
            _ => {
                // v0 + 16 v1 per pair, at the bottom of each 16 bits.
                let pairs = _mm256_maddubs_epi16(v, _mm256_set1_epi16(0x1001));
                let packed = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
                _mm_storeu_si128(out.cast(), packed);
            }
        }
    }
}

/// # Safety
/// The CPU has AVX2. (Lengths are checked by the slices.)
#[target_feature(enable = "avx2")]
pub unsafe fn unpack<const W: usize>(packed: &[u8], row_len: usize, out: &mut [u8]) {
    for (packed, row) in packed.chunks_exact((row_len * W).div_ceil(8)).zip(out.chunks_exact_mut(row_len)) {
        let (words, tail) = row.as_chunks_mut::<32>();
        let (whole, rest) = packed.split_at(words.len() * 4 * W);
        for (word, packed) in words.iter_mut().zip(whole.chunks_exact(4 * W)) {
            // SAFETY: `4 * W` bytes to read, 32 to write, as sliced.
            unsafe { _mm256_storeu_si256(word.as_mut_ptr().cast(), unpack_32::<W>(packed.as_ptr())) };
        }
        unpack_words::<W>(rest, tail);
    }
}

/// Reads `4 * W` bytes.
#[target_feature(enable = "avx2")]
unsafe fn unpack_32<const W: usize>(packed: *const u8) -> __m256i {
    // SAFETY: the caller has `4 * W` bytes at `packed`.
    unsafe {
        match W {
            1 => {
                let bytes = _mm256_set1_epi32(packed.cast::<i32>().read_unaligned());
                // Each byte eight times, then bit i of it in byte i.
                let source = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
                let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let bits = _mm256_and_si256(_mm256_shuffle_epi8(bytes, source), bit);
                _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(1))
            }
            2 => {
                let x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(packed.cast()));
                let x = _mm256_or_si256(x, _mm256_slli_epi32::<6>(x));
                let x = _mm256_or_si256(x, _mm256_slli_epi32::<12>(x));
                _mm256_and_si256(x, _mm256_set1_epi8(0x03))
            }
            _ => {
                let x = _mm256_cvtepu8_epi16(_mm_loadu_si128(packed.cast()));
                let x = _mm256_or_si256(x, _mm256_slli_epi16::<4>(x));
                _mm256_and_si256(x, _mm256_set1_epi8(0x0f))
            }
        }
    }
}
