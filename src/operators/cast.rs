//! Another dtype, without silent losses.
//!
//! | to | `error` (default) | `wrap` | `saturate` |
//! |---|---|---|---|
//! | integer | out of range, a fraction, NaN, infinity: error | truncated toward zero, modulo 2^bits; NaN, infinity: error | truncated toward zero, clamped; NaN: error |
//! | bool | only 0 and 1 | not zero is true (numpy) | not zero is true |
//! | float | rounds; a finite value that becomes infinite: error | rounds, to infinity too (IEEE) | rounds, clamped to the largest finite |
//! | complex | both parts as float | | |
//! | real from complex | imaginary part not 0: error | real part | real part |
//!
//! Rounding is to nearest, ties to even, done once.

mod part;

use super::pointwise::{Elementwise, Fault, convert, unary};
use super::{Info, Operator, Param};
use crate::array::{Block, Buffer, DType, Scalar};
use crate::config::table::Table;
use part::{Flag, Overflow, Part, To};

pub static INFO: Info = Info {
    name: "cast",
    summary: "another dtype; what it cannot hold is an error unless allowed",
    kind: "map",
    inputs: "one array, any dtype",
    outputs: "the same shape in `dtype`",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one look at each element",
    source: "numpy's astype, with losses refused",
    params: &[
        Param { name: "dtype", kind: "dtype", default: "", doc: "the output's dtype, as numpy names it" },
        Param {
            name: "overflow",
            kind: "\"error\" | \"wrap\" | \"saturate\"",
            default: "\"error\"",
            doc: "what happens to values that the dtype cannot hold; the last two drop fractions and imaginary parts",
        },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    if !table.has("dtype") {
        table.problem("dtype", "cast needs the dtype to cast to, such as dtype = \"float32\"");
    }
    let dtype = table.dtype("dtype");
    let overflow = if table.has("overflow") {
        match table.one_of("overflow", &["error", "wrap", "saturate"])? {
            "wrap" => Overflow::Wrap,
            "saturate" => Overflow::Saturate,
            _ => Overflow::Error,
        }
    } else {
        Overflow::Error
    };
    let to = dtype?;
    unary("cast", move |input| Ok(Convert { from: input.dtype, to, overflow }))
}

struct Convert {
    from: DType,
    to: DType,
    overflow: Overflow,
}

/// Calls `$body` with `$t` bound to the type of a dtype's real (and imaginary) part.
macro_rules! with_part {
    ($dtype:expr, $t:ident => $body:expr) => {
        with_part!($dtype, $t => $body, Bool: Flag, U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64,
            I64: i64, F16: half::f16, F32: f32, F64: f64, C64: f32, C128: f64)
    };
    ($dtype:expr, $t:ident => $body:expr, $($d:ident: $part:ty),*) => {
        match $dtype {
            $(DType::$d => {
                type $t = $part;
                $body
            })*
        }
    };
}

impl Convert {
    /// One value; `None` when `overflow` refuses it.
    fn scalar(&self, value: &Scalar) -> Option<Scalar> {
        let block = Block::new(Buffer::from_slice(value.bytes()), self.from, Vec::new());
        let mut out = Buffer::loose(self.to.size());
        self.fill(&block, &mut out).ok()?;
        Scalar::from_bytes(self.to, &out)
    }

    fn fill_parts<S: Part + To<D>, D: Part>(&self, input: &Block, out: &mut [u8]) -> Option<usize> {
        let how = self.overflow;
        let strict = how == Overflow::Error;
        match (self.from.is_complex(), self.to.is_complex()) {
            (false, false) => convert::<S, D>(input, out, |src, dst| part::cast(how, src, dst)),
            (true, true) => convert::<[S; 2], [D; 2]>(input, out, |src, dst| {
                part::cast(how, src.as_flattened(), dst.as_flattened_mut()).map(|i| i / 2)
            }),
            (false, true) => convert::<S, [D; 2]>(input, out, |src, dst| {
                src.iter().zip(dst).position(|(s, d)| part::one(how, *s).map(|v| *d = [v, D::zeroed()]).is_none())
            }),
            (true, false) => convert::<[S; 2], D>(input, out, |src, dst| {
                src.iter().zip(dst).position(|([re, im], d)| {
                    let has_imaginary = *im != S::zeroed();
                    if strict && has_imaginary {
                        return true;
                    }
                    // numpy: a complex number is true unless both parts are zero.
                    let value = if self.to == DType::Bool && has_imaginary { *im } else { *re };
                    part::one(how, value).map(|v| *d = v).is_none()
                })
            }),
        }
    }

    fn why(&self) -> String {
        let to = self.to;
        let range = match to.integer_range() {
            Some((low, high)) => format!(" ({low} to {high})"),
            None if to == DType::Bool => " (0 or 1)".to_owned(),
            None => String::new(),
        };
        let advice = match self.overflow {
            Overflow::Error => "give overflow = \"wrap\" or \"saturate\" to allow it, or a wider dtype",
            Overflow::Wrap => "not even wrapped; replace such values first, or cast to a float",
            Overflow::Saturate => "not even clamped; replace such values first, or cast to a float",
        };
        format!("is no {to} value{range}: {advice}")
    }
}

impl Elementwise for Convert {
    fn dtype(&self) -> DType {
        self.to
    }

    fn is_light(&self) -> bool {
        true
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        let bad = with_part!(self.from, S => with_part!(self.to, D => self.fill_parts::<S, D>(input, out)));
        bad.map_or(Ok(()), |at| Err(Fault { at, why: self.why() }))
    }

    fn is_identity(&self) -> bool {
        self.from == self.to
    }

    /// A NaN's payload may change with the machine, nothing else does.
    fn is_exact(&self) -> bool {
        !self.to.is_float() && !self.to.is_complex()
    }

    fn missing(&self, value: &Scalar) -> Option<Scalar> {
        self.scalar(value)
    }

    fn must_not_meet(&self, _value: &Scalar) -> bool {
        false
    }

    fn max_value(&self, of_input: Option<u64>) -> Option<u64> {
        match (self.from, self.to) {
            (_, DType::Bool) => Some(1),
            (_, to) if !to.is_integer() => None,
            (DType::Bool, _) => Some(1),
            (_, to) => of_input.filter(|max| to.integer_range().is_some_and(|r| i128::from(*max) <= r.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, map_one, values};
    use super::*;
    use crate::array::{Element, Region};
    use half::f16;
    use num_complex::Complex32;

    /// Casts a row of values; the error is the message.
    fn cast<S: Element, D: bytemuck::Pod>(input: &[S], to: &str, overflow: &str) -> Result<Vec<D>, String> {
        let whole = Whole::new(Block::from_values(&[input.len()], input));
        let bound = bind("cast", &format!("dtype = \"{to}\"\noverflow = \"{overflow}\""), &[&whole])?;
        let core = Region::whole(&whole.meta.shape);
        map_one(&bound, &[&whole], &core).map(|b| values(&b)).map_err(|e| e.to_string())
    }

    /// Corner values that every real type is asked for, exact in i128.
    fn corners() -> Vec<i128> {
        let mut list = vec![0, 1, -1, 2, 3];
        for bits in [7u32, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64] {
            let p = 1i128 << bits;
            list.extend([p - 1, p, p + 1, -p - 1, -p, -p + 1]);
        }
        list
    }

    #[test]
    fn integers_to_integers_at_every_corner() {
        macro_rules! pair {
            ($s:ty, $d:ty) => {
                for c in corners().into_iter().filter(|c| <$s>::try_from(*c).is_ok()) {
                    let name = <$d as Element>::DTYPE.name();
                    let from = [c as $s];
                    let exact = cast::<$s, $d>(&from, name, "error");
                    match <$d>::try_from(c) {
                        Ok(want) => assert_eq!(exact.unwrap(), [want]),
                        Err(_) => assert!(exact.unwrap_err().starts_with(&format!("{c} at [0] is no {name} value")), "{c}"),
                    }
                    assert_eq!(cast::<$s, $d>(&from, name, "wrap").unwrap(), [c as $d]);
                    let clamped = c.clamp(<$d>::MIN as i128, <$d>::MAX as i128) as $d;
                    assert_eq!(cast::<$s, $d>(&from, name, "saturate").unwrap(), [clamped]);
                }
            };
        }
        macro_rules! from {
            ($($s:ty),*) => { $(
                pair!($s, u8); pair!($s, i8); pair!($s, u16); pair!($s, i16);
                pair!($s, u32); pair!($s, i32); pair!($s, u64); pair!($s, i64);
            )* };
        }
        from!(u8, i8, u16, i16, u32, i32, u64, i64);
    }

    #[test]
    fn floats_to_integers_at_every_corner() {
        macro_rules! pair {
            ($s:ty, $d:ty) => {
                for c in corners() {
                    let x = c as $s;
                    for x in [x, x + 0.5, x.next_up(), x.next_down()] {
                        let name = <$d as Element>::DTYPE.name();
                        let whole = x.trunc() as i128;
                        let exact = cast::<$s, $d>(&[x], name, "error");
                        match <$d>::try_from(whole) {
                            Ok(want) if x.trunc() == x => assert_eq!(exact.unwrap(), [want], "{x}"),
                            _ => assert!(exact.is_err(), "{x} to {name} gave {exact:?}"),
                        }
                        assert_eq!(cast::<$s, $d>(&[x], name, "wrap").unwrap(), [whole as $d], "{x}");
                        let clamped = whole.clamp(<$d>::MIN as i128, <$d>::MAX as i128) as $d;
                        assert_eq!(cast::<$s, $d>(&[x], name, "saturate").unwrap(), [clamped], "{x}");
                    }
                }
                for x in [<$s>::NAN, <$s>::INFINITY, <$s>::NEG_INFINITY] {
                    let name = <$d as Element>::DTYPE.name();
                    assert!(cast::<$s, $d>(&[x], name, "error").is_err());
                    assert!(cast::<$s, $d>(&[x], name, "wrap").is_err());
                    let saturated = cast::<$s, $d>(&[x], name, "saturate");
                    assert_eq!(saturated.ok(), (!x.is_nan()).then(|| vec![if x > 0.0 { <$d>::MAX } else { <$d>::MIN }]));
                }
            };
        }
        pair!(f32, u8);
        pair!(f32, i16);
        pair!(f32, u32);
        pair!(f32, i64);
        pair!(f64, i8);
        pair!(f64, i32);
        pair!(f64, u64);
        pair!(f64, i64);
        assert_eq!(cast::<f64, i8>(&[1e300], "int8", "wrap").unwrap(), [0]);
        assert_eq!(cast::<f64, i32>(&[-0.0], "int32", "error").unwrap(), [0]);
        let half = [f16::from_f32_const(300.0), f16::from_f32_const(-2.5)];
        assert_eq!(cast::<f16, u8>(&half, "uint8", "saturate").unwrap(), [255, 0]);
        assert_eq!(cast::<f16, i16>(&half, "int16", "wrap").unwrap(), [300, -2]);
    }

    #[test]
    fn to_floats_rounds_once_and_overflow_is_named() {
        assert_eq!(cast::<i64, f64>(&[(1 << 53) + 1, i64::MIN], "float64", "error").unwrap(), [2f64.powi(53), -(2f64.powi(63))]);
        // Through a double this would round twice.
        let x = (1u64 << 63) + (1 << 39) + 1;
        assert_eq!(cast::<u64, f32>(&[x], "float32", "error").unwrap(), [x as f32]);
        assert!(cast::<f64, f32>(&[1e300], "float32", "error").unwrap_err().contains("is no float32 value"));
        assert_eq!(cast::<f64, f32>(&[-1e300], "float32", "wrap").unwrap(), [f32::NEG_INFINITY]);
        assert_eq!(cast::<f64, f32>(&[-1e300], "float32", "saturate").unwrap(), [f32::MIN]);
        let odd = cast::<f64, f32>(&[f64::NAN, f64::INFINITY, 1e-320, 0.1], "float32", "error").unwrap();
        assert!(odd[0].is_nan() && odd[1] == f32::INFINITY && odd[2] == 0.0 && odd[3] == 0.1);
        assert!(cast::<u16, f16>(&[65535], "float16", "error").is_err());
        assert_eq!(cast::<u16, f16>(&[65504, 2049], "float16", "error").unwrap(), [f16::MAX, f16::from_f32_const(2048.0)]);
    }

    #[test]
    fn bool_takes_zero_and_one() {
        assert_eq!(cast::<i16, u8>(&[0, 1], "bool", "error").unwrap(), [0, 1]);
        assert!(cast::<i16, u8>(&[0, 2], "bool", "error").unwrap_err().starts_with("2 at [1] is no bool value (0 or 1)"));
        assert!(cast::<f32, u8>(&[0.5], "bool", "error").is_err());
        assert_eq!(cast::<f32, u8>(&[0.5, -0.0, f32::NAN], "bool", "wrap").unwrap(), [1, 0, 1]);
        assert_eq!(cast::<u64, u8>(&[256, 0], "bool", "saturate").unwrap(), [1, 0]);
        let flags = Block::new(Buffer::from_slice(&[0, 1, 2]), DType::Bool, vec![3]);
        let whole = Whole::new(flags);
        let bound = bind("cast", "dtype = \"float32\"", &[&whole]).unwrap();
        let got = map_one(&bound, &[&whole], &Region::whole(&[3])).unwrap();
        assert_eq!(values::<f32>(&got), [0.0, 1.0, 1.0], "any byte but 0 is true");
    }

    #[test]
    fn complex_parts() {
        let z = [Complex32::new(1.5, 0.0), Complex32::new(0.0, -2.0)];
        assert_eq!(cast::<Complex32, [f64; 2]>(&z, "complex128", "error").unwrap(), [[1.5, 0.0], [0.0, -2.0]]);
        assert_eq!(cast::<i8, [f32; 2]>(&[-3], "complex64", "error").unwrap(), [[-3.0, 0.0]]);
        assert_eq!(cast::<Complex32, f32>(&z[..1], "float32", "error").unwrap(), [1.5]);
        assert!(cast::<Complex32, f32>(&z, "float32", "error").unwrap_err().starts_with("0-2i at [1]"));
        assert_eq!(cast::<Complex32, f32>(&z, "float32", "wrap").unwrap(), [1.5, 0.0]);
        assert_eq!(cast::<Complex32, u8>(&z, "bool", "wrap").unwrap(), [1, 1]);
        assert!(cast::<Complex32, f64>(&[Complex32::new(1.0, f32::NAN)], "float64", "error").is_err());
    }

    #[test]
    fn views_and_array_coordinates() {
        let input: Vec<i32> = (0..7 * 9 * 11).collect();
        let mut whole = Whole::new(Block::from_values(&[7, 9, 11], &input));
        whole.block = whole.block.transposed(&[2, 0, 1]);
        whole.meta.shape = vec![11, 7, 9];
        let bound = bind("cast", "dtype = \"int16\"", &[&whole]).unwrap();
        let core = Region::from_ranges(&[(3, 9), (2, 6), (1, 8)]);
        let got = map_one(&bound, &[&whole], &core).unwrap();
        let want: Vec<i32> = values(&whole.block.cut(&Region::whole(&whole.meta.shape), &core));
        assert_eq!(values::<i16>(&got), want.iter().map(|v| *v as i16).collect::<Vec<_>>());
        let bound = bind("cast", "dtype = \"uint8\"", &[&whole]).unwrap();
        let message = map_one(&bound, &[&whole], &core).unwrap_err().to_string();
        // The first of the core in C order: [3, 2, 5] holds (2 * 9 + 5) * 11 + 3.
        assert!(message.starts_with("256 at [3, 2, 5]"), "{message}");
    }

    #[test]
    fn what_is_known_of_the_values_is_cast_too() {
        let mut whole = Whole::new(Block::from_values(&[1], &[0i16]));
        whole.meta.missing = Some(Scalar::of(-9i16));
        whole.meta.max_value = Some(300);
        let known = |lines: &str| bind("cast", lines, &[&whole]).map(|b| (b.outputs[0].missing, b.outputs[0].max_value)).unwrap();
        assert_eq!(known("dtype = \"int32\""), (Some(Scalar::of(-9i32)), Some(300)));
        assert_eq!(known("dtype = \"uint8\""), (None, None));
        assert_eq!(known("dtype = \"uint8\"\noverflow = \"wrap\""), (Some(Scalar::of(247u8)), None));
        assert_eq!(known("dtype = \"float32\""), (Some(Scalar::of(-9f32)), None));
        assert!(bind("cast", "dtype = \"int16\"", &[&whole]).is_ok_and(|b| match &b.kind {
            super::super::Kind::Map(m) => m.passes_through(),
            _ => false,
        }));
        assert!(bind("cast", "", &[&whole]).unwrap_err().contains("needs the dtype"));
        assert!(bind("cast", "dtype = \"int17\"", &[&whole]).unwrap_err().contains("int17"));
    }
}
