//! |z| of a complex array, in the precision of its parts; the absolute value of a real one.
//!
//! |z| = sqrt(re^2 + im^2), squares, sum and root in float64, rounded once: the rule InSAR tools follow, and the one that
//! the ranks of `ks_test` depend on. Not scaled: in complex128, parts above 1e154 overflow to infinity. NaN in either part
//! gives NaN.

use half::f16;
use num_complex::{Complex32, Complex64};

use super::Info;
use super::pointwise::{Elementwise, Fault, convert, unary};
use crate::array::{Block, DType};
use crate::compute::gpu::kernels::{Kernel, Variant};

macro_rules! info {
    ($id:ident, $name:literal, $summary:literal) => {
        pub static $id: Info = Info {
            name: $name,
            summary: $summary,
            kind: "map",
            inputs: "one array, any dtype",
            outputs: "float32 of complex64, float64 of complex128, else the input's dtype",
            halo: "none",
            boundary: "-",
            devices: "cpu",
            cost: "one square root an element of complex arrays",
            source: "numpy.abs; of complex64 rounded once, from float64",
            params: &[],
            build: |_| unary($name, |input| Ok(Absolute { from: input.dtype })),
        };
    };
}

info!(INFO, "amplitude", "absolute value; of a complex array sqrt(re^2 + im^2), computed in float64 and rounded once");
info!(ABS, "abs", "absolute value; another name of `amplitude`");

/// |z| of complex elements on a device: part of larger kernels; alone it would only move data.
pub static KERNEL: Kernel = Kernel {
    name: "amplitude",
    source: include_str!("amplitude.cu"),
    entries: &["amplitude"],
    variants: || ["DTYPE_C64", "DTYPE_C128"].map(|d| Variant { defines: vec![("DTYPE", d.to_owned())], is_hot: true }).into(),
};

/// float32(sqrt(re^2 + im^2 in float64))
#[inline]
pub fn of_complex64(z: Complex32) -> f32 {
    let (re, im) = (f64::from(z.re), f64::from(z.im));
    (re * re + im * im).sqrt() as f32
}

#[inline]
pub fn of_complex128(z: Complex64) -> f64 {
    (z.re * z.re + z.im * z.im).sqrt()
}

struct Absolute {
    from: DType,
}

impl Elementwise for Absolute {
    fn dtype(&self) -> DType {
        match self.from {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            real => real,
        }
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        macro_rules! each {
            ($s:ty => $d:ty, $f:expr) => {
                convert::<$s, $d>(input, out, |src, dst| {
                    src.iter().zip(dst).for_each(|(s, d)| *d = $f(*s));
                    None
                })
            };
        }
        macro_rules! signed {
            ($t:ty) => {
                convert::<$t, $t>(input, out, |src, dst| {
                    src.iter().zip(dst.iter_mut()).for_each(|(s, d)| *d = s.wrapping_abs());
                    // The one value without a positive twin is the one that stays negative.
                    dst.iter().position(|d| *d < 0)
                })
            };
        }
        let bad = match self.from {
            DType::C64 => each!(Complex32 => f32, of_complex64),
            DType::C128 => each!(Complex64 => f64, of_complex128),
            DType::F16 => each!(f16 => f16, |v: f16| f16::from_bits(v.to_bits() & 0x7fff)),
            DType::F32 => each!(f32 => f32, f32::abs),
            DType::F64 => each!(f64 => f64, f64::abs),
            DType::I8 => signed!(i8),
            DType::I16 => signed!(i16),
            DType::I32 => signed!(i32),
            DType::I64 => signed!(i64),
            _ => {
                input.copy_to(out);
                None
            }
        };
        let why = || format!("has an absolute value that {} cannot hold; cast to a wider dtype first", self.from);
        bad.map_or(Ok(()), |at| Err(Fault { at, why: why() }))
    }

    fn is_identity(&self) -> bool {
        matches!(self.from, DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    fn is_exact(&self) -> bool {
        !self.from.is_complex()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, map_one, values};
    use super::*;
    use crate::array::{Element, Region, Scalar};

    #[test]
    fn abs_is_the_same_operator() {
        assert_eq!(run::<_, i16>("abs", &[-3i16, 4]).unwrap(), [3, 4]);
        let whole = Whole::new(Block::from_values(&[1], &[1u8]));
        assert_eq!(bind("abs", "", &[&whole]).unwrap().outputs[0].name, "abs");
    }

    fn run<S: Element, D: bytemuck::Pod>(op: &str, input: &[S]) -> Result<Vec<D>, String> {
        let whole = Whole::new(Block::from_values(&[input.len()], input));
        let bound = bind(op, "", &[&whole])?;
        map_one(&bound, &[&whole], &Region::whole(&whole.meta.shape)).map(|b| values(&b)).map_err(|e| e.to_string())
    }

    #[test]
    fn magnitudes_are_rounded_once() {
        // In float32 the sum of the squares is already rounded: 1 + 2^-24 becomes 1.
        let z = Complex32::new(1.0, 0.000_345_266_98);
        let want = ((f64::from(z.im) * f64::from(z.im)) + 1.0).sqrt() as f32;
        assert_eq!(run::<_, f32>("amplitude", &[z]).unwrap(), [want]);
        assert_eq!(run::<_, f32>("amplitude", &[Complex32::new(3.0, -4.0), Complex32::new(1e30, 0.0)]).unwrap(), [5.0, 1e30]);
        assert_eq!(run::<_, f64>("amplitude", &[Complex64::new(-5.0, 12.0)]).unwrap(), [13.0]);
        assert!(run::<_, f32>("amplitude", &[Complex32::new(f32::INFINITY, f32::NAN)]).unwrap()[0].is_nan());
        assert_eq!(run::<_, f32>("amplitude", &[-2.5f32]).unwrap(), [2.5]);
        assert_eq!(run::<_, f16>("amplitude", &[f16::NEG_ONE]).unwrap(), [f16::ONE]);
        assert_eq!(run::<_, i8>("amplitude", &[-127i8, 5]).unwrap(), [127, 5]);
        assert!(run::<_, i8>("amplitude", &[1, -128i8]).unwrap_err().starts_with("-128 at [1] has an absolute value"));
        assert_eq!(run::<_, u64>("amplitude", &[u64::MAX]).unwrap(), [u64::MAX]);
    }

    #[test]
    fn squares() {
        assert_eq!(run::<_, f32>("intensity", &[Complex32::new(3.0, -4.0)]).unwrap(), [25.0]);
        let z = Complex32::new(1.000_000_1, 0.3);
        let want = (f64::from(z.re) * f64::from(z.re) + f64::from(z.im) * f64::from(z.im)) as f32;
        assert_eq!(run::<_, f32>("intensity", &[z]).unwrap(), [want]);
        assert_eq!(run::<_, f64>("intensity", &[Complex64::new(0.0, 2.0)]).unwrap(), [4.0]);
        assert_eq!(run::<_, f16>("intensity", &[f16::from_f32_const(1.5)]).unwrap(), [f16::from_f32_const(2.25)]);
        assert_eq!(run::<_, i64>("intensity", &[i32::MIN]).unwrap(), [1i64 << 62]);
        assert_eq!(run::<_, u64>("intensity", &[200u8]).unwrap(), [40_000]);
        assert_eq!(run::<_, u64>("intensity", &[u32::MAX as u64]).unwrap(), [(u32::MAX as u64).pow(2)]);
        assert!(run::<_, u64>("intensity", &[1u64 << 32]).unwrap_err().starts_with("4294967296 at [0]"));
        assert!(run::<_, i64>("intensity", &[-3_037_000_500i64]).is_err());
    }

    #[test]
    fn missing_values_are_not_taken_for_data() {
        let mut whole = Whole::new(Block::from_values(&[2, 2], &[1i16, 2, -1, 4]));
        whole.meta.missing = Some(Scalar::of(-1i16));
        for op in ["amplitude", "intensity"] {
            let bound = bind(op, "", &[&whole]).unwrap();
            let message = map_one(&bound, &[&whole], &Region::whole(&[2, 2])).unwrap_err().to_string();
            assert!(message.starts_with("-1 at [1, 0] is the source's missing value"), "{message}");
        }
        let mut whole = Whole::new(Block::from_values(&[1], &[Complex32::new(1.0, 1.0)]));
        whole.meta.missing = Some(Scalar::of(Complex32::new(f32::NAN, f32::NAN)));
        assert!(bind("amplitude", "", &[&whole]).unwrap().outputs[0].missing.is_some_and(|m| m.to_f64().is_nan()));
    }
}
