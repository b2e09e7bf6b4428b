//! Floats of single precision side by side, one lane a pixel: for sums of many terms that need no more, and for reading them
//! from where a pixel's numbers lie one behind the other.
//!
//! As with doubles every operation is IEEE's on each lane by itself, so results depend neither on the form nor on neighbours.

use bytemuck::Pod;

use super::Lanes;

/// Complex numbers of a pixel that [`Singles::columns`] reads at once, and the floats and bytes that they are.
pub const GROUP: usize = 8;
pub const GROUP_FLOATS: usize = 2 * GROUP;
pub const GROUP_BYTES: usize = 4 * GROUP_FLOATS;

/// Most lanes of any form.
pub const MOST_SINGLES: usize = 16;

/// Where each lane's numbers lie.
pub struct Rows<'a> {
    rows: [&'a [u8]; MOST_SINGLES],
    /// Bytes that all of them have.
    len: usize,
}

impl<'a> Rows<'a> {
    pub fn new(rows: [&'a [u8]; MOST_SINGLES]) -> Self {
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        Self { rows, len }
    }

    /// One check for all lanes of a group: its bytes from `at` on are there.
    #[inline(always)]
    fn check(&self, at: usize) {
        assert!(at.checked_add(GROUP_BYTES).is_some_and(|end| end <= self.len), "group at {at} of {}", self.len);
    }
}

/// A vector of floats, twice as many as its [`Lanes`] has doubles.
pub trait Singles: Pod + Send + Sync {
    type Doubles: Lanes;
    const COUNT: usize;

    fn splat(value: f32) -> Self;
    /// The first `COUNT` values of a slice.
    fn load(from: &[f32]) -> Self;
    fn store(self, to: &mut [f32]);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `minuend - self * factor`, rounded once.
    fn mul_sub_from(self, factor: Self, minuend: Self) -> Self;
    /// Whether `low < self < high` in every lane; a NaN is not.
    fn is_between(self, low: f32, high: f32) -> bool;
    /// The value whose bits are `bits - bits of self / 2`.
    fn bits_halved_from(self, bits: u32) -> Self;
    /// The lanes as doubles, the first half and the second.
    fn widen(self) -> [Self::Doubles; 2];
    /// Lane l of `to[k]` is float k of the [`GROUP_FLOATS`] at byte `at` of row l. What lies at byte `then` of the rows of
    /// `soon`, if anything, is fetched meanwhile: processors don't see so many streams coming.
    fn columns(rows: &Rows<'_>, at: usize, soon: &Rows<'_>, then: usize, to: &mut [Self; GROUP_FLOATS]);

    /// `1 / sqrt(self)` within 2^-23 of it, for normal values whose square is one: a start from the exponent's bits, at most
    /// 3.5 % off, times the polynomial of fourth order that comes nearest to `1 / sqrt(1 - rest)` between -0.0682 and 0.0682
    /// (Remez: 2.3e-8). A third of the time of a square root and a division.
    #[inline(always)]
    fn rsqrt(self) -> Self {
        let start = self.bits_halved_from(0x5f37_4700);
        let rest = self.mul(start).mul_sub_from(start, Self::splat(1.0));
        let high = rest.mul_add(Self::splat(0.275_008_74), Self::splat(0.313_933_9));
        let series = high.mul_add(rest, Self::splat(0.374_997_3)).mul_add(rest, Self::splat(0.499_998_33));
        series.mul_add(rest.mul(start), start)
    }
}

/// The plain form.
#[derive(Clone, Copy, Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Plain([f32; 8]);

impl Singles for Plain {
    type Doubles = super::lanes::Plain;
    const COUNT: usize = 8;

    fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    fn load(from: &[f32]) -> Self {
        Self(std::array::from_fn(|i| from[i]))
    }
    fn store(self, to: &mut [f32]) {
        to[..8].copy_from_slice(&self.0);
    }
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }
    fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }
    fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
        Self(std::array::from_fn(|i| (-self.0[i]).mul_add(factor.0[i], minuend.0[i])))
    }
    fn is_between(self, low: f32, high: f32) -> bool {
        self.0.iter().all(|v| low < *v && *v < high)
    }
    fn bits_halved_from(self, bits: u32) -> Self {
        Self(self.0.map(|v| f32::from_bits(bits.wrapping_sub(v.to_bits() >> 1))))
    }
    fn widen(self) -> [Self::Doubles; 2] {
        let wide = self.0.map(f64::from);
        [Lanes::load(&wide[..4]), Lanes::load(&wide[4..])]
    }
    fn columns(rows: &Rows<'_>, at: usize, _soon: &Rows<'_>, _then: usize, to: &mut [Self; GROUP_FLOATS]) {
        rows.check(at);
        for (lane, row) in rows.rows[..8].iter().enumerate() {
            for (column, float) in to.iter_mut().zip(row[at..][..GROUP_BYTES].chunks_exact(4)) {
                column.0[lane] = bytemuck::pod_read_unaligned(float);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx::{Avx, Wide};

#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::*;

    use super::super::lanes;
    use super::{GROUP_FLOATS, Rows, Singles};
    use crate::simd::fetch;

    /// Eight lanes of AVX2 with fused multiply-add. Only [`super::super::run`] makes code of it, where both are present (and
    /// so for AVX-512 below).
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx(__m256);

    // SAFETY: eight floats without padding; every bit pattern is a value.
    unsafe impl bytemuck::Zeroable for Avx {}
    unsafe impl bytemuck::Pod for Avx {}

    // SAFETY of the blocks below: the instructions are there, see `Avx`; loads and stores are inside their slices.
    impl Singles for Avx {
        type Doubles = lanes::Avx;
        const COUNT: usize = 8;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        fn load(from: &[f32]) -> Self {
            let from = &from[..8];
            Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            let to = &mut to[..8];
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
        }
        #[inline(always)]
        fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
            Self(unsafe { _mm256_fnmadd_ps(self.0, factor.0, minuend.0) })
        }
        #[inline(always)]
        fn is_between(self, low: f32, high: f32) -> bool {
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, _mm256_set1_ps(low));
                let below = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, _mm256_set1_ps(high));
                _mm256_movemask_ps(_mm256_and_ps(above, below)) == 0xff
            }
        }
        #[inline(always)]
        fn bits_halved_from(self, bits: u32) -> Self {
            Self(unsafe {
                let half = _mm256_srli_epi32::<1>(_mm256_castps_si256(self.0));
                _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(bits as i32), half))
            })
        }
        #[inline(always)]
        fn widen(self) -> [Self::Doubles; 2] {
            unsafe {
                let low = _mm256_cvtps_pd(_mm256_castps256_ps128(self.0));
                let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self.0));
                [lanes::Avx::of(low), lanes::Avx::of(high)]
            }
        }
        #[inline(always)]
        fn columns(rows: &Rows<'_>, at: usize, soon: &Rows<'_>, then: usize, to: &mut [Self; GROUP_FLOATS]) {
            rows.check(at);
            for half in 0..2 {
                let mut r = [Self::splat(0.0).0; 8];
                for (lane, r) in r.iter_mut().enumerate() {
                    let row = rows.rows[lane].as_ptr().wrapping_add(at);
                    // SAFETY: `check` found the bytes.
                    *r = unsafe { _mm256_loadu_ps(row.add(32 * half).cast()) };
                    if half == 0 {
                        fetch(soon.rows[lane].as_ptr().wrapping_add(then));
                    }
                }
                // Half b of fours[q][c]: column 4 b + c of rows 4 q to 4 q + 3.
                let mut fours = [[r[0]; 4]; 2];
                for (q, four) in fours.iter_mut().enumerate() {
                    unsafe {
                        let (a, b, c, d) = (r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]);
                        let ab = (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(a, b)));
                        let cd = (_mm256_castps_pd(_mm256_unpacklo_ps(c, d)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
                        four[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab.0, cd.0));
                        four[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab.0, cd.0));
                        four[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab.1, cd.1));
                        four[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab.1, cd.1));
                    }
                }
                for c in 0..4 {
                    let (a, b) = (fours[0][c], fours[1][c]);
                    to[8 * half + c] = Self(unsafe { _mm256_permute2f128_ps::<0x20>(a, b) });
                    to[8 * half + 4 + c] = Self(unsafe { _mm256_permute2f128_ps::<0x31>(a, b) });
                }
            }
        }
    }

    /// Sixteen lanes of AVX-512.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Wide(__m512);

    // SAFETY: sixteen floats without padding; every bit pattern is a value.
    unsafe impl bytemuck::Zeroable for Wide {}
    unsafe impl bytemuck::Pod for Wide {}

    // SAFETY of the blocks below: as above.
    impl Singles for Wide {
        type Doubles = lanes::Wide;
        const COUNT: usize = 16;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        fn load(from: &[f32]) -> Self {
            let from = &from[..16];
            Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            let to = &mut to[..16];
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
        }
        #[inline(always)]
        fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
            Self(unsafe { _mm512_fnmadd_ps(self.0, factor.0, minuend.0) })
        }
        #[inline(always)]
        fn is_between(self, low: f32, high: f32) -> bool {
            unsafe {
                let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_set1_ps(low));
                _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(above, self.0, _mm512_set1_ps(high)) == 0xffff
            }
        }
        #[inline(always)]
        fn bits_halved_from(self, bits: u32) -> Self {
            Self(unsafe {
                let half = _mm512_srli_epi32::<1>(_mm512_castps_si512(self.0));
                _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(bits as i32), half))
            })
        }
        #[inline(always)]
        fn widen(self) -> [Self::Doubles; 2] {
            unsafe {
                let low = _mm512_cvtps_pd(_mm512_castps512_ps256(self.0));
                let high = _mm512_castpd512_pd256(_mm512_castps_pd(_mm512_shuffle_f32x4::<0xee>(self.0, self.0)));
                [lanes::Wide::of(low), lanes::Wide::of(_mm512_cvtps_pd(_mm256_castpd_ps(high)))]
            }
        }
        #[inline(always)]
        fn columns(rows: &Rows<'_>, at: usize, soon: &Rows<'_>, then: usize, to: &mut [Self; GROUP_FLOATS]) {
            rows.check(at);
            let mut r = [Self::splat(0.0).0; 16];
            for (lane, r) in r.iter_mut().enumerate() {
                let row = rows.rows[lane].as_ptr().wrapping_add(at);
                // SAFETY: `check` found the bytes.
                *r = unsafe { _mm512_loadu_ps(row.cast()) };
                fetch(soon.rows[lane].as_ptr().wrapping_add(then));
            }
            // Quarter b of fours[q][c]: column 4 b + c of rows 4 q to 4 q + 3.
            let mut fours = [[r[0]; 4]; 4];
            for (q, four) in fours.iter_mut().enumerate() {
                unsafe {
                    let (a, b, c, d) = (r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]);
                    let ab = (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(a, b)));
                    let cd = (_mm512_castps_pd(_mm512_unpacklo_ps(c, d)), _mm512_castps_pd(_mm512_unpackhi_ps(c, d)));
                    four[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab.0, cd.0));
                    four[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab.0, cd.0));
                    four[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab.1, cd.1));
                    four[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab.1, cd.1));
                }
            }
            for c in 0..4 {
                unsafe {
                    let even = (
                        _mm512_shuffle_f32x4::<0x88>(fours[0][c], fours[1][c]),
                        _mm512_shuffle_f32x4::<0x88>(fours[2][c], fours[3][c]),
                    );
                    let odd = (
                        _mm512_shuffle_f32x4::<0xdd>(fours[0][c], fours[1][c]),
                        _mm512_shuffle_f32x4::<0xdd>(fours[2][c], fours[3][c]),
                    );
                    to[c] = Self(_mm512_shuffle_f32x4::<0x88>(even.0, even.1));
                    to[4 + c] = Self(_mm512_shuffle_f32x4::<0x88>(odd.0, odd.1));
                    to[8 + c] = Self(_mm512_shuffle_f32x4::<0xdd>(even.0, even.1));
                    to[12 + c] = Self(_mm512_shuffle_f32x4::<0xdd>(odd.0, odd.1));
                }
            }
        }
    }
}
