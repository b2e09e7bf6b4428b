//! The element types halostream streams, and single values of them.

use half::f16;
use num_complex::{Complex32, Complex64};
use std::fmt;

/// Element type of an array. Values live in memory in native (little) endian, C order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
    C64,
    C128,
}

use DType::*;

impl DType {
    pub const ALL: [DType; 14] = [Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, F32, F64, C64, C128];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Bool | U8 | I8 => 1,
            U16 | I16 | F16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 | C64 => 8,
            C128 => 16,
        }
    }

    /// numpy's and Zarr v3's name: `float32`.
    pub const fn name(self) -> &'static str {
        match self {
            Bool => "bool",
            U8 => "uint8",
            I8 => "int8",
            U16 => "uint16",
            I16 => "int16",
            U32 => "uint32",
            I32 => "int32",
            U64 => "uint64",
            I64 => "int64",
            F16 => "float16",
            F32 => "float32",
            F64 => "float64",
            C64 => "complex64",
            C128 => "complex128",
        }
    }

    /// numpy's typestr, little endian: `<f4`.
    pub const fn typestr(self) -> &'static str {
        match self {
            Bool => "|b1",
            U8 => "|u1",
            I8 => "|i1",
            U16 => "<u2",
            I16 => "<i2",
            U32 => "<u4",
            I32 => "<i4",
            U64 => "<u8",
            I64 => "<i8",
            F16 => "<f2",
            F32 => "<f4",
            F64 => "<f8",
            C64 => "<c8",
            C128 => "<c16",
        }
    }

    /// Reads a name (`float32`) or a typestr (`<f4`, `f4`, `|u1`). Big-endian typestrs are not ours: `None`.
    pub fn parse(text: &str) -> Option<DType> {
        let short = text.strip_prefix(['<', '|', '=']).unwrap_or(text);
        Self::ALL.into_iter().find(|d| d.name() == text || &d.typestr()[1..] == short)
    }

    /// [`DType::parse`] of either byte order: true when the bytes of a number stand in big-endian order.
    pub fn parse_stored(text: &str) -> Option<(DType, bool)> {
        match text.strip_prefix('>') {
            Some(short) => Self::parse(&format!("<{short}")).map(|dtype| (dtype, dtype.size() > 1)),
            None => Self::parse(text).map(|dtype| (dtype, false)),
        }
    }

    pub const fn is_complex(self) -> bool {
        matches!(self, C64 | C128)
    }

    pub const fn is_float(self) -> bool {
        matches!(self, F16 | F32 | F64)
    }

    pub const fn is_integer(self) -> bool {
        matches!(self, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
    }

    /// Smallest and largest value of an integer type.
    pub const fn integer_range(self) -> Option<(i128, i128)> {
        Some(match self {
            U8 => (0, u8::MAX as i128),
            I8 => (i8::MIN as i128, i8::MAX as i128),
            U16 => (0, u16::MAX as i128),
            I16 => (i16::MIN as i128, i16::MAX as i128),
            U32 => (0, u32::MAX as i128),
            I32 => (i32::MIN as i128, i32::MAX as i128),
            U64 => (0, u64::MAX as i128),
            I64 => (i64::MIN as i128, i64::MAX as i128),
            _ => return None,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that is the element of some [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + fmt::Debug {
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = $d; })* };
}
element!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
         f16 => F16, f32 => F32, f64 => F64, Complex32 => C64, Complex64 => C128);

/// Calls `$body` with `$t` bound to the Rust type of a dtype; `bool` is handled as `u8` (0 or 1).
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {{
        use $crate::array::DType as D;
        match $dtype {
            D::Bool | D::U8 => {
                type $t = u8;
                $body
            }
            D::I8 => {
                type $t = i8;
                $body
            }
            D::U16 => {
                type $t = u16;
                $body
            }
            D::I16 => {
                type $t = i16;
                $body
            }
            D::U32 => {
                type $t = u32;
                $body
            }
            D::I32 => {
                type $t = i32;
                $body
            }
            D::U64 => {
                type $t = u64;
                $body
            }
            D::I64 => {
                type $t = i64;
                $body
            }
            D::F16 => {
                type $t = half::f16;
                $body
            }
            D::F32 => {
                type $t = f32;
                $body
            }
            D::F64 => {
                type $t = f64;
                $body
            }
            D::C64 => {
                type $t = num_complex::Complex32;
                $body
            }
            D::C128 => {
                type $t = num_complex::Complex64;
                $body
            }
        }
    }};
}

/// The nearest half-precision value, ties to even. `half`'s own conversion rounds twice on CPUs with F16C and cuts bits off
/// on others, so that the last bit would depend on the machine.
pub fn f16_from_f64(value: f64) -> f16 {
    let single = value as f32;
    let back = f64::from(single);
    if back == value || value.is_nan() {
        return f16::from_f32_const(single);
    }
    // Rounded to odd, the single has bits enough for the second rounding to be the only one that counts.
    let toward_zero = if back.abs() > value.abs() { single.to_bits() - 1 } else { single.to_bits() };
    f16::from_f32_const(f32::from_bits(toward_zero | 1))
}

/// One value of a dtype, as its bytes: fill values, boundary constants, constant chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    bytes: [u8; 16],
}

impl Scalar {
    pub fn zero(dtype: DType) -> Self {
        Self { dtype, bytes: [0; 16] }
    }

    pub fn of<T: Element>(value: T) -> Self {
        Self::from_bytes(T::DTYPE, bytemuck::bytes_of(&value)).expect("an element has its dtype's size")
    }

    /// The value whose native-endian bytes these are; `None` for a wrong length.
    pub fn from_bytes(dtype: DType, value: &[u8]) -> Option<Self> {
        let mut bytes = [0; 16];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        (value.len() == dtype.size()).then_some(Self { dtype, bytes })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.dtype.size()]
    }

    /// A number from a job file as a value of `dtype`. What an integer cannot hold exactly is refused (I5);
    /// floats round.
    pub fn from_number(dtype: DType, value: f64) -> Result<Self, String> {
        if dtype == Bool {
            return match value {
                0.0 => Ok(Self::zero(Bool)),
                1.0 => Ok(Self { dtype, bytes: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }),
                v => Err(format!("{v} is not a bool (0 or 1)")),
            };
        }
        if let Some((low, high)) = dtype.integer_range() {
            if value.fract() != 0.0 || !value.is_finite() || (value as i128) < low || (value as i128) > high {
                return Err(format!("{value} does not fit {dtype} ({low} to {high})"));
            }
            return Ok(Self::from_integer(dtype, value as i128).expect("checked above"));
        }
        Ok(match dtype {
            F16 => Self::of(f16_from_f64(value)),
            F32 => Self::of(value as f32),
            C64 => Self::of(Complex32::new(value as f32, 0.0)),
            C128 => Self::of(Complex64::new(value, 0.0)),
            _ => Self::of(value),
        })
    }

    /// An integer as a value of `dtype`; refused when it does not fit.
    pub fn from_integer(dtype: DType, value: i128) -> Result<Self, String> {
        match dtype.integer_range() {
            Some((low, high)) if value < low || value > high => Err(format!("{value} does not fit {dtype} ({low} to {high})")),
            Some(_) => {
                let bytes = value.to_le_bytes();
                Ok(Self::from_bytes(dtype, &bytes[..dtype.size()]).expect("sliced to the size"))
            }
            None => Self::from_number(dtype, value as f64),
        }
    }

    /// The real part as a double, for messages and comparisons.
    pub fn to_f64(&self) -> f64 {
        macro_rules! get {
            ($t:ty) => {
                bytemuck::pod_read_unaligned::<$t>(self.bytes())
            };
        }
        match self.dtype {
            Bool | U8 => get!(u8) as f64,
            I8 => get!(i8) as f64,
            U16 => get!(u16) as f64,
            I16 => get!(i16) as f64,
            U32 => get!(u32) as f64,
            I32 => get!(i32) as f64,
            U64 => get!(u64) as f64,
            I64 => get!(i64) as f64,
            F16 => get!(f16).to_f64(),
            F32 => get!(f32) as f64,
            F64 => get!(f64),
            C64 => get!(Complex32).re as f64,
            C128 => get!(Complex64).re,
        }
    }

    /// Real and imaginary part as doubles.
    pub fn parts(&self) -> (f64, f64) {
        let imaginary = match self.dtype {
            C64 => bytemuck::pod_read_unaligned::<Complex32>(self.bytes()).im as f64,
            C128 => bytemuck::pod_read_unaligned::<Complex64>(self.bytes()).im,
            _ => 0.0,
        };
        (self.to_f64(), imaginary)
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.dtype, self.to_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_typestrs_parse_back() {
        for d in DType::ALL {
            assert_eq!(DType::parse(d.name()), Some(d));
            assert_eq!(DType::parse(d.typestr()), Some(d));
        }
        assert_eq!(DType::parse("f4"), Some(F32));
        assert_eq!(DType::parse(">f4"), None);
        assert_eq!(DType::parse("float"), None);
    }

    #[test]
    fn half_precision_is_rounded_once() {
        // 1 + 2^-11 is the tie between 1 and the next half; anything beyond it, however little, goes up.
        let tie = 1.0 + 2f64.powi(-11);
        assert_eq!(f16_from_f64(tie).to_bits(), 0x3c00);
        assert_eq!(f16_from_f64(tie + 2f64.powi(-40)).to_bits(), 0x3c01);
        assert_eq!(f16_from_f64(-tie - 2f64.powi(-40)).to_bits(), 0xbc01);
        assert_eq!(f16_from_f64(tie + 2f64.powi(-10) - 2f64.powi(-40)).to_bits(), 0x3c01);
        assert_eq!(f16_from_f64(65519.999).to_bits(), 0x7bff);
        assert_eq!(f16_from_f64(65520.0), f16::INFINITY);
        assert_eq!(f16_from_f64(1e300), f16::INFINITY);
        assert_eq!(f16_from_f64(2f64.powi(-25)).to_bits(), 0);
        assert_eq!(f16_from_f64(2f64.powi(-25) * (1.0 + 1e-12)).to_bits(), 1);
        assert_eq!(f16_from_f64(-1e-300).to_bits(), 0x8000);
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            assert!(half.is_nan() || f16_from_f64(half.to_f64_const()).to_bits() == bits);
        }
    }

    #[test]
    fn constants_that_do_not_fit_are_refused() {
        assert!(Scalar::from_number(U8, 300.0).is_err());
        assert!(Scalar::from_number(U8, -1.0).is_err());
        assert!(Scalar::from_number(I32, 1.7).is_err());
        assert!(Scalar::from_number(I64, f64::NAN).is_err());
        assert!(Scalar::from_number(I64, 9.3e18).is_err());
        assert!(Scalar::from_number(F32, f64::NAN).is_ok_and(|s| s.to_f64().is_nan()));
        assert_eq!(Scalar::from_number(I16, -7.0).unwrap().to_f64(), -7.0);
        assert_eq!(Scalar::from_integer(U64, u64::MAX as i128).unwrap().bytes(), u64::MAX.to_le_bytes());
    }
}
