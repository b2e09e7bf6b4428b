//! Conversion of one real number to another type, in three strictnesses.

use bytemuck::{Pod, Zeroable};
use half::f16;

use crate::array::dtype::f16_from_f64;

/// What to do with a value that the target cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    Error,
    Wrap,
    Saturate,
}

/// A bool as it lies in memory. Any byte but 0 reads as true; only 0 and 1 are written.
#[derive(Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Flag(u8);

/// A type that is an element, or the real or imaginary part of one.
pub trait Part: Pod + PartialEq {}

macro_rules! parts {
    ($($t:ty),*) => { $(impl Part for $t {})* };
}
parts!(Flag, u8, i8, u16, i16, u32, i32, u64, i64, f16, f32, f64);

/// Conversion to `D`.
pub trait To<D> {
    /// The value, and whether it is the same number (for floats: the same, rounded).
    fn exact(self) -> (D, bool);
    /// `None` where modular arithmetic has no answer.
    fn wrap(self) -> Option<D>;
    /// `None` where no end of the range is nearest.
    fn saturate(self) -> Option<D>;
}

/// Floats by way of a double, which holds all of them.
trait Float: Copy {
    fn wide(self) -> f64;
    fn round(value: f64) -> Self;
    const MAX: Self;
    const MIN: Self;
}

impl Float for f16 {
    // The constant forms: `half`'s others give NaN payloads that depend on the CPU.
    fn wide(self) -> f64 {
        self.to_f64_const()
    }
    fn round(value: f64) -> Self {
        f16_from_f64(value)
    }
    const MAX: Self = f16::MAX;
    const MIN: Self = f16::MIN;
}

impl Float for f32 {
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn round(value: f64) -> Self {
        value as f32
    }
    const MAX: Self = f32::MAX;
    const MIN: Self = f32::MIN;
}

impl Float for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn round(value: f64) -> Self {
        value
    }
    const MAX: Self = f64::MAX;
    const MIN: Self = f64::MIN;
}

/// The rules of a cast to a float type, given the rounded value.
macro_rules! to_float {
    ($s:ty => $d:ty, $value:ident, $rounded:expr, $is_finite:expr) => {
        impl To<$d> for $s {
            fn exact(self) -> ($d, bool) {
                let $value = self;
                let rounded: $d = $rounded;
                (rounded, rounded.is_finite() || !$is_finite)
            }
            fn wrap(self) -> Option<$d> {
                Some(<$s as To<$d>>::exact(self).0)
            }
            fn saturate(self) -> Option<$d> {
                let (rounded, fits) = <$s as To<$d>>::exact(self);
                let positive = Float::wide(rounded) > 0.0;
                Some(match fits {
                    true => rounded,
                    false if positive => <$d as Float>::MAX,
                    false => <$d as Float>::MIN,
                })
            }
        }
    };
}

macro_rules! integer_to_integer {
    ($s:ty => $($d:ty),*) => { $(
        impl To<$d> for $s {
            #[allow(unused_comparisons)]
            fn exact(self) -> ($d, bool) {
                let d = self as $d;
                (d, d as $s == self && (d < 0) == (self < 0))
            }
            fn wrap(self) -> Option<$d> {
                Some(self as $d)
            }
            fn saturate(self) -> Option<$d> {
                Some(i128::from(self).clamp(<$d>::MIN as i128, <$d>::MAX as i128) as $d)
            }
        }
    )* };
}

macro_rules! float_to_integer {
    ($s:ty => $($d:ty),*) => { $(
        impl To<$d> for $s {
            fn exact(self) -> ($d, bool) {
                // Powers of two, so that the comparison is exact even where MAX itself is no double.
                const LOW: f64 = <$d>::MIN as f64;
                const END: f64 = (<$d>::MAX / 2 + 1) as f64 * 2.0;
                let x = Float::wide(self);
                let d = x as $d;
                (d, (LOW..END).contains(&x) && d as f64 == x)
            }
            fn wrap(self) -> Option<$d> {
                let x = Float::wide(self);
                if !x.is_finite() {
                    return None;
                }
                // From 2^127 on a double is a multiple of 2^75: nothing is left modulo 2^64.
                Some(if x.abs() < 2f64.powi(127) { x as i128 as $d } else { 0 })
            }
            fn saturate(self) -> Option<$d> {
                let x = Float::wide(self);
                (!x.is_nan()).then_some(x as $d)
            }
        }
    )* };
}

macro_rules! to_flag {
    ($($s:ty),*) => { $(
        impl To<Flag> for $s {
            fn exact(self) -> (Flag, bool) {
                let zero = <$s>::zeroed();
                let one = <u8 as To<$s>>::exact(1).0;
                (Flag(u8::from(self != zero)), self == zero || self == one)
            }
            fn wrap(self) -> Option<Flag> {
                Some(To::<Flag>::exact(self).0)
            }
            fn saturate(self) -> Option<Flag> {
                Some(To::<Flag>::exact(self).0)
            }
        }
    )* };
}

macro_rules! from_flag {
    ($($d:ty),*) => { $(
        impl To<$d> for Flag {
            fn exact(self) -> ($d, bool) {
                <u8 as To<$d>>::exact(u8::from(self.0 != 0))
            }
            fn wrap(self) -> Option<$d> {
                Some(To::<$d>::exact(self).0)
            }
            fn saturate(self) -> Option<$d> {
                Some(To::<$d>::exact(self).0)
            }
        }
    )* };
}

macro_rules! integers {
    ($($s:ty),*) => { $(
        integer_to_integer!($s => u8, i8, u16, i16, u32, i32, u64, i64);
        to_float!($s => f16, v, f16_from_f64(v as f64), true);
        to_float!($s => f32, v, v as f32, true);
        to_float!($s => f64, v, v as f64, true);
    )* };
}
integers!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! floats {
    ($($s:ty),*) => { $(
        float_to_integer!($s => u8, i8, u16, i16, u32, i32, u64, i64);
        to_float!($s => f16, v, Float::round(Float::wide(v)), v.is_finite());
        to_float!($s => f32, v, Float::round(Float::wide(v)), v.is_finite());
        to_float!($s => f64, v, Float::round(Float::wide(v)), v.is_finite());
    )* };
}
floats!(f16, f32, f64);
to_flag!(u8, i8, u16, i16, u32, i32, u64, i64, f16, f32, f64);
from_flag!(u8, i8, u16, i16, u32, i32, u64, i64, f16, f32, f64);

impl To<Flag> for Flag {
    fn exact(self) -> (Flag, bool) {
        (Flag(u8::from(self.0 != 0)), true)
    }
    fn wrap(self) -> Option<Flag> {
        Some(To::<Flag>::exact(self).0)
    }
    fn saturate(self) -> Option<Flag> {
        Some(To::<Flag>::exact(self).0)
    }
}

/// One value; `None` when `how` refuses it.
pub fn one<S: To<D>, D>(how: Overflow, value: S) -> Option<D> {
    match how {
        Overflow::Error => {
            let (value, fits) = value.exact();
            fits.then_some(value)
        }
        Overflow::Wrap => value.wrap(),
        Overflow::Saturate => value.saturate(),
    }
}

/// Many values; the index of the first that `how` refuses.
pub fn cast<S: Copy + To<D>, D>(how: Overflow, src: &[S], dst: &mut [D]) -> Option<usize> {
    if how != Overflow::Error {
        return src.iter().zip(dst).position(|(s, d)| one(how, *s).map(|v| *d = v).is_none());
    }
    // Pieces without an early exit become vector code; the place is looked for only when one is bad.
    const PIECE: usize = 1024;
    for (number, (src, dst)) in src.chunks(PIECE).zip(dst.chunks_mut(PIECE)).enumerate() {
        let mut all_fit = true;
        for (s, d) in src.iter().zip(dst) {
            let (value, fits) = s.exact();
            *d = value;
            all_fit &= fits;
        }
        if !all_fit {
            return src.iter().position(|s| !s.exact().1).map(|i| number * PIECE + i);
        }
    }
    None
}
