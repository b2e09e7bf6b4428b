//! How the elements of an array become what filters compute with, and back.
//!
//! Linear filters compute in float64, as scipy does, and store every pass in the array's dtype: floats are rounded,
//! integers cut toward zero and wrapped to their width. Order filters compare *keys*: integers in the order of the values,
//! with -0 below +0 and every NaN above all numbers, so that a minimum does not depend on the order of the comparisons.

use bytemuck::Pod;

use crate::array::{DType, Element};

/// An element that filters work on.
pub trait Sample: Element {
    /// An integer that orders as the value does.
    type Key: Pod + Ord + Send + Sync;

    fn to_f64(self) -> f64;
    /// Rounded, or cut toward zero and wrapped.
    fn from_f64(value: f64) -> Self;
    fn key(self) -> Self::Key;
    fn from_key(key: Self::Key) -> Self;
    /// The key counted from the lowest one: a place in a histogram, for values of 8 and 16 bits.
    fn bin(self) -> usize;
    fn from_bin(bin: usize) -> Self;
    /// Sum in the array's own arithmetic; integers wrap.
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Square root, cut toward zero for integers; 0 for what wrapped below zero.
    fn root(self) -> Self;
}

macro_rules! integer {
    ($($t:ty, $by:ty);*) => { $(
        impl Sample for $t {
            type Key = $t;

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            // By way of a wider signed integer: a conversion of its own would stop at the ends of the range.
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $by as $t
            }
            #[inline(always)]
            fn key(self) -> $t {
                self
            }
            #[inline(always)]
            fn from_key(key: $t) -> Self {
                key
            }
            #[inline(always)]
            fn bin(self) -> usize {
                (self as i128 - <$t>::MIN as i128) as usize
            }
            #[inline(always)]
            fn from_bin(bin: usize) -> Self {
                (bin as i128 + <$t>::MIN as i128) as $t
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn root(self) -> Self {
                if self < 0 { 0 } else { self.isqrt() }
            }
        }
    )* };
}
integer!(u8, i32; i8, i32; u16, i32; i16, i32; u32, i64; i32, i64; i64, i64; u64, i128);

macro_rules! float {
    ($t:ty, $key:ty, $unsigned:ty) => {
        impl Sample for $t {
            type Key = $key;

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn key(self) -> $key {
                let bits = self.to_bits() as $key;
                // Negative numbers order backwards by their bits.
                let ordered = bits ^ (((bits >> (<$key>::BITS - 1)) as $unsigned) >> 1) as $key;
                if self.is_nan() { <$key>::MAX } else { ordered }
            }
            #[inline(always)]
            fn from_key(key: $key) -> Self {
                // The key of NaN has the bits of a NaN.
                <$t>::from_bits((key ^ (((key >> (<$key>::BITS - 1)) as $unsigned) >> 1) as $key) as $unsigned)
            }
            #[inline(always)]
            fn bin(self) -> usize {
                (i128::from(self.key()) - <$key>::MIN as i128) as usize
            }
            #[inline(always)]
            fn from_bin(bin: usize) -> Self {
                Self::from_key((bin as i128 + <$key>::MIN as i128) as $key)
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}
float!(f32, i32, u32);
float!(f64, i64, u64);

/// The dtypes with a [`Sample`]; `bool` counts as `u8` where values are only compared.
pub fn is_real(dtype: DType) -> bool {
    dtype.is_integer() || matches!(dtype, DType::F32 | DType::F64)
}

/// Calls `$body` with `$t` bound to the [`Sample`] of a dtype that has one; other dtypes never get past `bind`.
macro_rules! with_sample {
    ($dtype:expr, $t:ident => $body:expr) => {{
        use $crate::array::DType as D;
        macro_rules! with {
            ($sample:ty) => {{
                type $t = $sample;
                $body
            }};
        }
        match $dtype {
            D::Bool | D::U8 => with!(u8),
            D::I8 => with!(i8),
            D::U16 => with!(u16),
            D::I16 => with!(i16),
            D::U32 => with!(u32),
            D::I32 => with!(i32),
            D::U64 => with!(u64),
            D::I64 => with!(i64),
            D::F32 => with!(f32),
            D::F64 => with!(f64),
            other => return Err($crate::operators::OperatorError::data(format!("no filter works on {other}"))),
        }
    }};
}
pub(in crate::operators) use with_sample;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_values_and_come_back() {
        let sorted = [f32::NEG_INFINITY, -1e30, -1.5, -1e-45, -0.0, 0.0, 1e-45, 2.5, 1e30, f32::INFINITY, f32::NAN];
        for pair in sorted.windows(2) {
            assert!(pair[0].key() < pair[1].key(), "{pair:?}");
        }
        for v in sorted {
            assert_eq!(f32::from_key(v.key()).to_bits() & 0x7f80_0000, v.to_bits() & 0x7f80_0000);
            assert!(v.is_nan() || f32::from_key(v.key()).to_bits() == v.to_bits());
        }
        assert!(f32::from_key((-f32::NAN).key()).is_nan());
        assert_eq!((-f64::NAN).key(), i64::MAX);
        assert_eq!(f64::from_key((-3.25f64).key()), -3.25);
    }

    #[test]
    fn integers_are_cut_and_wrapped_as_numpy_casts() {
        // python3 -c "import numpy as np; a = np.array([3.99, -1.5, 300.7, -0.9]); print(a.astype(np.int64).astype('u1'))"
        assert_eq!([3.99, -1.5, 300.7, -0.9].map(u8::from_f64), [3, 255, 44, 0]);
        assert_eq!([3.99, -1.5, 300.7, -0.9].map(i8::from_f64), [3, -1, 44, 0]);
        assert_eq!([4294967297.5, -1.0].map(u32::from_f64), [1, u32::MAX]);
        assert_eq!([1.8e19, -2.0].map(u64::from_f64), [18_000_000_000_000_000_000, u64::MAX - 1]);
        assert_eq!((-5i32).root(), 0);
        assert_eq!(255u8.root(), 15);
    }
}
