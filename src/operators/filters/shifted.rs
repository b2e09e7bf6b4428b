//! Sums over a line of singles, with AVX-512: the cells of one result after the other come out of registers.
//!
//! A window begins at any cell, so nearly every vector that is loaded for it lies across two lines of the cache, which costs two
//! loads: more than the arithmetic. Here the vectors of a stripe are loaded once for 16 weights, and moved along a cell at a time.

use crate::simd::has_avx512;

/// The results of a line, as [`super::singles`] adds them. False where this machine, or the line's length, is not for it.
pub fn line(cells: &[f32], out: &mut [f32], weights: &[f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if out.len() >= avx512::LANES && has_avx512() {
        assert!(!weights.is_empty() && cells.len() + 1 >= out.len() + weights.len());
        // SAFETY: the features were detected.
        unsafe { avx512::line(cells, out, weights) };
        return true;
    }
    let _ = (cells, out, weights, has_avx512);
    false
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    pub const LANES: usize = 16;

    /// Stripe after stripe, the last one as far back as it has to begin.
    #[target_feature(enable = "avx512f")]
    pub fn line(cells: &[f32], out: &mut [f32], weights: &[f32]) {
        let (n, mut at) = (out.len(), 0);
        while at + 8 * LANES <= n {
            stripe::<8, 9>(&cells[at..], &mut out[at..], weights);
            at += 8 * LANES;
        }
        while at + 4 * LANES <= n {
            stripe::<4, 5>(&cells[at..], &mut out[at..], weights);
            at += 4 * LANES;
        }
        while at < n {
            let first = at.min(n - LANES);
            stripe::<1, 2>(&cells[first..], &mut out[first..], weights);
            at = first + LANES;
        }
    }

    /// `N` vectors of results, from `MORE`, one more, vectors of cells at a time.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn stripe<const N: usize, const MORE: usize>(cells: &[f32], out: &mut [f32], weights: &[f32]) {
        let mut sums = [_mm512_setzero_ps(); N];
        for (k, weights) in weights.chunks(LANES).enumerate() {
            let cells = &cells[k * LANES..];
            let mut vectors = [_mm512_setzero_ps(); MORE];
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = load(cells, v * LANES);
            }
            for (sum, vector) in sums.iter_mut().zip(&vectors) {
                *sum = _mm512_fmadd_ps(*vector, _mm512_set1_ps(weights[0]), *sum);
            }
            macro_rules! moved {
                ($($by:literal)*) => {$(
                    let Some(weight) = weights.get($by) else { continue };
                    let weight = _mm512_set1_ps(*weight);
                    for v in 0..N {
                        let (first, second) = (_mm512_castps_si512(vectors[v]), _mm512_castps_si512(vectors[v + 1]));
                        let cells = _mm512_castsi512_ps(_mm512_alignr_epi32::<$by>(second, first));
                        sums[v] = _mm512_fmadd_ps(cells, weight, sums[v]);
                    }
                )*};
            }
            moved!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        // Which NaN arithmetic makes is up to the machine.
        let mut any = 0;
        for v in (0..N).step_by(2) {
            any |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sums[v], sums[(v + 1) % N]);
        }
        for (sum, out) in sums.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
            let is_nan = if any == 0 { 0 } else { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum, sum) };
            let sum = _mm512_mask_blend_ps(is_nan, sum, _mm512_set1_ps(f32::NAN));
            // SAFETY: as many lanes as a vector has.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }

    /// The cells from `at` on, 0 behind the last.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load(cells: &[f32], at: usize) -> __m512 {
        if let Some(cells) = cells.get(at..at + LANES) {
            // SAFETY: as many cells as a vector has lanes.
            return unsafe { _mm512_loadu_ps(cells.as_ptr()) };
        }
        let left = cells.len().saturating_sub(at);
        // SAFETY: only lanes of cells that are there are read.
        unsafe { _mm512_maskz_loadu_ps((1 << left) - 1, cells.as_ptr().wrapping_add(at)) }
    }
}
