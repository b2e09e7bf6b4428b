//! Doubles side by side: one lane per matrix of a batch, or per column of a product.
//!
//! Every operation is IEEE's on each lane by itself (the multiply-adds are fused in all forms), so a result does not depend
//! on the form, on its number of lanes, or on what the neighbouring lanes hold (I1).

use bytemuck::Pod;

use super::singles::{self, Singles};

/// A vector of doubles. Comparisons give masks: all bits set in lanes where they hold.
pub trait Lanes: Pod + Send + Sync {
    /// The form's vector of floats.
    type Singles: Singles<Doubles = Self>;
    const COUNT: usize;

    fn splat(value: f64) -> Self;
    /// The first `COUNT` values of a slice.
    fn load(from: &[f64]) -> Self;
    fn store(self, to: &mut [f64]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `minuend - self * factor`, rounded once.
    fn mul_sub_from(self, factor: Self, minuend: Self) -> Self;
    /// The lesser; `other` where a lane has a NaN.
    fn min(self, other: Self) -> Self;
    /// The greater; `other` where a lane has a NaN.
    fn max(self, other: Self) -> Self;
    /// Mask of lanes where `self > other`; false for NaN.
    fn greater(self, other: Self) -> Self;
    fn and(self, mask: Self) -> Self;
    /// `self` where the mask is set, else `other`.
    fn select(self, mask: Self, other: Self) -> Self;

    /// `1 / sqrt(self)` rounded to single precision on the way, for [`Lanes::rsqrt`].
    fn rsqrt_single(self) -> Self;

    /// `1 / sqrt(self)` to within a few units in the last place: a single-precision start and two of Newton's steps, which
    /// together take a third of the time of a square root and a division. Outside the range of singles these two.
    #[inline(always)]
    fn rsqrt(self) -> Self {
        let (half, three) = (self.mul(Self::splat(0.5)), Self::splat(1.5));
        let step = |y: Self| y.mul(half.mul(y).mul_sub_from(y, three));
        let fast = step(step(self.rsqrt_single()));
        let fits = self.greater(Self::splat(1e-30)).and(Self::splat(1e30).greater(self));
        match fits.is_all() {
            true => fast,
            false => fast.select(fits, Self::splat(1.0).div(self.sqrt())),
        }
    }

    /// Whether a mask is set in every lane.
    fn is_all(self) -> bool;

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.max(Self::zero().sub(self))
    }
}

/// The plain form, for machines without the instructions.
#[derive(Clone, Copy, Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Plain([f64; 4]);

impl Plain {
    #[inline(always)]
    fn each(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

fn mask_of(holds: bool) -> f64 {
    f64::from_bits(if holds { u64::MAX } else { 0 })
}

impl Lanes for Plain {
    type Singles = singles::Plain;
    const COUNT: usize = 4;

    fn splat(value: f64) -> Self {
        Self([value; 4])
    }
    fn load(from: &[f64]) -> Self {
        Self(std::array::from_fn(|i| from[i]))
    }
    fn store(self, to: &mut [f64]) {
        to[..4].copy_from_slice(&self.0);
    }
    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }
    fn sub(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }
    fn mul(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }
    fn div(self, other: Self) -> Self {
        self.each(other, |a, b| a / b)
    }
    fn sqrt(self) -> Self {
        Self(self.0.map(f64::sqrt))
    }
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }
    fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
        Self(std::array::from_fn(|i| (-self.0[i]).mul_add(factor.0[i], minuend.0[i])))
    }
    fn min(self, other: Self) -> Self {
        self.each(other, |a, b| if a < b { a } else { b })
    }
    fn max(self, other: Self) -> Self {
        self.each(other, |a, b| if a > b { a } else { b })
    }
    fn greater(self, other: Self) -> Self {
        self.each(other, |a, b| mask_of(a > b))
    }
    fn and(self, mask: Self) -> Self {
        self.each(mask, |a, m| f64::from_bits(a.to_bits() & m.to_bits()))
    }
    fn select(self, mask: Self, other: Self) -> Self {
        Self(std::array::from_fn(|i| if mask.0[i].to_bits() != 0 { self.0[i] } else { other.0[i] }))
    }
    fn rsqrt_single(self) -> Self {
        Self(self.0.map(|v| f64::from(1.0 / (v as f32).sqrt())))
    }
    fn is_all(self) -> bool {
        self.0.iter().all(|m| m.to_bits() != 0)
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx::{Avx, Wide};

#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::*;

    use super::{Lanes, singles};

    /// Four lanes of AVX2 with fused multiply-add. Only [`super::super::run`] makes code of it, where both are present (and
    /// so for AVX-512 below).
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx(__m256d);

    impl Avx {
        #[inline(always)]
        pub fn of(value: __m256d) -> Self {
            Self(value)
        }
    }

    // SAFETY: four doubles without padding; every bit pattern is a value.
    unsafe impl bytemuck::Zeroable for Avx {}
    unsafe impl bytemuck::Pod for Avx {}

    // SAFETY of the blocks below: the instructions are there, see `Avx`; loads and stores are inside their slices.
    impl Lanes for Avx {
        type Singles = singles::Avx;
        const COUNT: usize = 4;

        #[inline(always)]
        fn splat(value: f64) -> Self {
            Self(unsafe { _mm256_set1_pd(value) })
        }
        #[inline(always)]
        fn load(from: &[f64]) -> Self {
            let from = &from[..4];
            Self(unsafe { _mm256_loadu_pd(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f64]) {
            let to = &mut to[..4];
            unsafe { _mm256_storeu_pd(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm256_sub_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm256_mul_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(unsafe { _mm256_div_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            Self(unsafe { _mm256_sqrt_pd(self.0) })
        }
        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            Self(unsafe { _mm256_fmadd_pd(self.0, factor.0, addend.0) })
        }
        #[inline(always)]
        fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
            Self(unsafe { _mm256_fnmadd_pd(self.0, factor.0, minuend.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(unsafe { _mm256_min_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(unsafe { _mm256_max_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn greater(self, other: Self) -> Self {
            Self(unsafe { _mm256_cmp_pd::<_CMP_GT_OQ>(self.0, other.0) })
        }
        #[inline(always)]
        fn and(self, mask: Self) -> Self {
            Self(unsafe { _mm256_and_pd(self.0, mask.0) })
        }
        #[inline(always)]
        fn select(self, mask: Self, other: Self) -> Self {
            Self(unsafe { _mm256_blendv_pd(other.0, self.0, mask.0) })
        }
        #[inline(always)]
        fn rsqrt_single(self) -> Self {
            Self(unsafe { _mm256_cvtps_pd(_mm_div_ps(_mm_set1_ps(1.0), _mm_sqrt_ps(_mm256_cvtpd_ps(self.0)))) })
        }
        #[inline(always)]
        fn is_all(self) -> bool {
            unsafe { _mm256_movemask_pd(self.0) == 0xf }
        }
    }

    /// Eight lanes of AVX-512.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Wide(__m512d);

    impl Wide {
        #[inline(always)]
        pub fn of(value: __m512d) -> Self {
            Self(value)
        }
    }

    // SAFETY: eight doubles without padding; every bit pattern is a value.
    unsafe impl bytemuck::Zeroable for Wide {}
    unsafe impl bytemuck::Pod for Wide {}

    // SAFETY of the blocks below: as above.
    impl Lanes for Wide {
        type Singles = singles::Wide;
        const COUNT: usize = 8;

        #[inline(always)]
        fn splat(value: f64) -> Self {
            Self(unsafe { _mm512_set1_pd(value) })
        }
        #[inline(always)]
        fn load(from: &[f64]) -> Self {
            let from = &from[..8];
            Self(unsafe { _mm512_loadu_pd(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f64]) {
            let to = &mut to[..8];
            unsafe { _mm512_storeu_pd(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm512_sub_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm512_mul_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(unsafe { _mm512_div_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            Self(unsafe { _mm512_sqrt_pd(self.0) })
        }
        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            Self(unsafe { _mm512_fmadd_pd(self.0, factor.0, addend.0) })
        }
        #[inline(always)]
        fn mul_sub_from(self, factor: Self, minuend: Self) -> Self {
            Self(unsafe { _mm512_fnmadd_pd(self.0, factor.0, minuend.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(unsafe { _mm512_min_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(unsafe { _mm512_max_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn greater(self, other: Self) -> Self {
            Self(unsafe {
                let holds = _mm512_cmp_pd_mask::<_CMP_GT_OQ>(self.0, other.0);
                _mm512_castsi512_pd(_mm512_maskz_set1_epi64(holds, -1))
            })
        }
        #[inline(always)]
        fn and(self, mask: Self) -> Self {
            Self(unsafe { _mm512_castsi512_pd(_mm512_and_si512(_mm512_castpd_si512(self.0), _mm512_castpd_si512(mask.0))) })
        }
        #[inline(always)]
        fn select(self, mask: Self, other: Self) -> Self {
            Self(unsafe {
                let mask = _mm512_castpd_si512(mask.0);
                _mm512_mask_blend_pd(_mm512_test_epi64_mask(mask, mask), other.0, self.0)
            })
        }
        #[inline(always)]
        fn rsqrt_single(self) -> Self {
            Self(unsafe { _mm512_cvtps_pd(_mm256_div_ps(_mm256_set1_ps(1.0), _mm256_sqrt_ps(_mm512_cvtpd_ps(self.0)))) })
        }
        #[inline(always)]
        fn is_all(self) -> bool {
            unsafe {
                let mask = _mm512_castpd_si512(self.0);
                _mm512_test_epi64_mask(mask, mask) == 0xff
            }
        }
    }
}
