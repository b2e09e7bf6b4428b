//! Elements as reductions see them: compared with the value to leave out, ranked, widened.

use bytemuck::{Pod, Zeroable};
use half::f16;

/// A bool in memory: any byte but 0 is true.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Flag(pub u8);

/// An element of any dtype; complex ones are pairs of parts.
pub trait Element: Pod + Send + Sync {
    /// Equal to the value to leave out (a NaN equals any NaN).
    fn is(self, other: Self) -> bool;
    /// numpy's truth: a NaN is no zero.
    fn is_zero(self) -> bool;
}

/// A real element: has an order.
pub trait Real: Element {
    /// An unsigned integer of the element's size.
    type Rank: Pod + Ord + Copy + Send + Sync + Into<u64> + TryFrom<u64> + std::ops::BitXor<Output = Self::Rank>;
    /// Above the rank of every number of a float type: stands for NaN there.
    const TOP: Self::Rank;
    const HAS_NAN: bool;
    /// Grows with the value; -0 lies below 0. For a NaN anything.
    fn rank(self) -> Self::Rank;
    fn unrank(rank: Self::Rank) -> Self;
    fn is_nan(self) -> bool;
    /// 0 for -0, else the value itself.
    fn plain_zero(self) -> Self;
    fn wide(self) -> f64;
}

/// An integer or a bool.
pub trait Whole: Real {
    /// The sum of a run of at most 2^31 elements.
    fn total(values: impl Iterator<Item = Self>) -> i128;
    fn exact(self) -> i128;
    /// Whether values may lie above those of an `i64`.
    const IS_WIDE_UNSIGNED: bool;
    /// The value as an `i64`: itself, but for a large `u64`, which is 2^64 less.
    fn low(self) -> i64;
}

impl Element for Flag {
    fn is(self, other: Self) -> bool {
        (self.0 != 0) == (other.0 != 0)
    }
    fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Real for Flag {
    type Rank = u8;
    const TOP: u8 = u8::MAX;
    const HAS_NAN: bool = false;
    fn rank(self) -> u8 {
        u8::from(self.0 != 0)
    }
    fn unrank(rank: u8) -> Self {
        Flag(rank)
    }
    fn is_nan(self) -> bool {
        false
    }
    fn plain_zero(self) -> Self {
        self
    }
    fn wide(self) -> f64 {
        f64::from(self.rank())
    }
}

impl Whole for Flag {
    fn total(values: impl Iterator<Item = Self>) -> i128 {
        values.map(|v| i64::from(v.0 != 0)).sum::<i64>().into()
    }
    fn exact(self) -> i128 {
        self.rank().into()
    }
    const IS_WIDE_UNSIGNED: bool = false;
    fn low(self) -> i64 {
        self.rank().into()
    }
}

macro_rules! integers {
    ($($t:ty: $rank:ty, $values:ident => $total:expr);*) => { $(
        impl Element for $t {
            fn is(self, other: Self) -> bool { self == other }
            fn is_zero(self) -> bool { self == 0 }
        }
        impl Real for $t {
            type Rank = $rank;
            const TOP: $rank = <$rank>::MAX;
            const HAS_NAN: bool = false;
            // Distance from the smallest value.
            fn rank(self) -> $rank { self.wrapping_sub(<$t>::MIN) as $rank }
            fn unrank(rank: $rank) -> Self { (rank as $t).wrapping_add(<$t>::MIN) }
            fn is_nan(self) -> bool { false }
            fn plain_zero(self) -> Self { self }
            fn wide(self) -> f64 { self as f64 }
        }
        impl Whole for $t {
            fn total($values: impl Iterator<Item = Self>) -> i128 { $total }
            fn exact(self) -> i128 { self.into() }
            const IS_WIDE_UNSIGNED: bool = <$t>::MAX as u64 > i64::MAX as u64;
            #[inline(always)]
            fn low(self) -> i64 { self as i64 }
        }
    )* };
}
integers!(
    u8: u8, values => values.map(i64::from).sum::<i64>().into();
    i8: u8, values => values.map(i64::from).sum::<i64>().into();
    u16: u16, values => values.map(i64::from).sum::<i64>().into();
    i16: u16, values => values.map(i64::from).sum::<i64>().into();
    u32: u32, values => values.map(i64::from).sum::<i64>().into();
    i32: u32, values => values.map(i64::from).sum::<i64>().into();
    // Halves in 64 bits each: vector units have no 128-bit additions.
    u64: u64, values => {
        let (low, high) = values.fold((0u64, 0u64), |(low, high), v| (low + (v & 0xffff_ffff), high + (v >> 32)));
        i128::from(low) + (i128::from(high) << 32)
    };
    i64: u64, values => {
        let (low, high) = values.fold((0u64, 0i64), |(low, high), v| (low + (v as u64 & 0xffff_ffff), high + (v >> 32)));
        i128::from(low) + (i128::from(high) << 32)
    }
);

macro_rules! floats {
    ($($t:ty: $rank:ty, $wide:expr);*) => { $(
        impl Element for $t {
            fn is(self, other: Self) -> bool { self == other || (self.is_nan() && other.is_nan()) }
            fn is_zero(self) -> bool { self.to_bits() << 1 == 0 }
        }
        impl Real for $t {
            type Rank = $rank;
            const TOP: $rank = <$rank>::MAX;
            const HAS_NAN: bool = true;
            fn rank(self) -> $rank {
                let (bits, sign) = (self.to_bits(), !(<$rank>::MAX >> 1));
                if bits & sign == 0 { bits | sign } else { !bits }
            }
            fn unrank(rank: $rank) -> Self {
                let sign = !(<$rank>::MAX >> 1);
                if rank == <$rank>::MAX { <$t>::NAN }
                else { <$t>::from_bits(if rank & sign == 0 { !rank } else { rank & !sign }) }
            }
            fn is_nan(self) -> bool { <$t>::is_nan(self) }
            fn plain_zero(self) -> Self { if self.is_zero() { <$t>::from_bits(0) } else { self } }
            fn wide(self) -> f64 { $wide(self) }
        }
    )* };
}
floats!(f16: u16, f16::to_f64_const; f32: u32, f64::from; f64: u64, |v: f64| v);

macro_rules! complex {
    ($($t:ty),*) => { $(
        impl Element for [$t; 2] {
            fn is(self, other: Self) -> bool { self == other || (self[0].is_nan() && other[0].is_nan()) }
            fn is_zero(self) -> bool { self == [0.0; 2] }
        }
    )* };
}
complex!(f32, f64);

/// Calls `$body` with `$t` bound to the element type of an integer dtype or bool, of a real one, or of any.
macro_rules! with_type {
    (whole $dtype:expr, $t:ident => $body:expr, else $other:expr) => {
        $crate::operators::reduce::element::with_type!(@ $dtype, $t => $body, $other,
            Bool: $crate::operators::reduce::element::Flag, U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64,
            I64: i64)
    };
    (real $dtype:expr, $t:ident => $body:expr, else $other:expr) => {
        $crate::operators::reduce::element::with_type!(@ $dtype, $t => $body, $other,
            Bool: $crate::operators::reduce::element::Flag, U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64,
            I64: i64, F16: half::f16, F32: f32, F64: f64)
    };
    (any $dtype:expr, $t:ident => $body:expr) => {
        $crate::operators::reduce::element::with_type!(real $dtype, $t => $body, else {
            if $dtype == $crate::array::DType::C64 {
                type $t = [f32; 2];
                $body
            } else {
                type $t = [f64; 2];
                $body
            }
        })
    };
    (@ $dtype:expr, $t:ident => $body:expr, $other:expr, $($d:ident: $type:ty),*) => {
        match $dtype {
            $($crate::array::DType::$d => {
                type $t = $type;
                $body
            })*
            #[allow(unreachable_patterns)]
            _ => $other,
        }
    };
}
pub(crate) use with_type;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_order_and_come_back() {
        fn check<T: Real + std::fmt::Debug + PartialEq>(ascending: &[T]) {
            for pair in ascending.windows(2) {
                assert!(pair[0].rank() < pair[1].rank(), "{pair:?}");
            }
            for v in ascending {
                assert_eq!(T::unrank(v.rank()), *v);
                assert!(!T::HAS_NAN || v.rank() < T::TOP);
            }
        }
        check(&[i8::MIN, -1, 0, 1, i8::MAX]);
        check(&[0u64, 1, u64::MAX]);
        check(&[i64::MIN, -5, 0, 7, i64::MAX]);
        check(&[f32::NEG_INFINITY, f32::MIN, -1.0, -0.0, 0.0, f32::MIN_POSITIVE, 1.0, f32::INFINITY]);
        check(&[f64::NEG_INFINITY, -2.5, -1e-320, 1e-320, f64::MAX, f64::INFINITY]);
        check(&[f16::NEG_INFINITY, f16::NEG_ONE, f16::ONE, f16::INFINITY]);
        assert!(f32::unrank(u32::MAX).is_nan());
        assert!((-0.0f64).plain_zero().is_sign_positive());
    }

    #[test]
    fn totals_are_exact() {
        let values = [i64::MIN, i64::MAX, i64::MIN, -1, 5];
        assert_eq!(i64::total(values.into_iter()), values.iter().map(|v| i128::from(*v)).sum::<i128>());
        let values = [u64::MAX; 7];
        assert_eq!(u64::total(values.into_iter()), 7 * i128::from(u64::MAX));
    }
}
