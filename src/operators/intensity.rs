//! |z|^2 of a complex array, in the precision of its parts; the square of a real one.
//!
//! Computed in float64 and rounded once to the output's dtype. Integers are squared into int64 or uint64, where a square
//! that does not fit is an error; a bool is its own square.

use half::f16;
use num_complex::{Complex32, Complex64};

use super::pointwise::{Elementwise, Fault, convert, unary};
use super::{Info, Operator};
use crate::array::dtype::f16_from_f64;
use crate::array::{Block, DType};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "intensity",
    summary: "square; of a complex array re^2 + im^2, computed in float64 and rounded once",
    kind: "map",
    inputs: "one array, any dtype",
    outputs: "float32 of complex64, float64 of complex128, int64 or uint64 of integers, else the input's dtype",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one square an element, two of complex ones",
    source: "the definition: re^2 + im^2",
    params: &[],
    build,
};

fn build(_table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    unary("intensity", |input| Ok(Square { from: input.dtype }))
}

struct Square {
    from: DType,
}

impl Elementwise for Square {
    fn dtype(&self) -> DType {
        match self.from {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => DType::U64,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
            other => other,
        }
    }

    fn is_light(&self) -> bool {
        true
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
        // Up to 32 bits the check never fails and is compiled away.
        macro_rules! checked {
            ($s:ty => $d:ty) => {
                convert::<$s, $d>(input, out, |src, dst| {
                    src.iter().zip(dst).position(|(s, d)| {
                        let (square, overflows) = <$d>::from(*s).overflowing_mul(<$d>::from(*s));
                        *d = square;
                        overflows
                    })
                })
            };
        }
        let bad = match self.from {
            DType::C64 => each!(Complex32 => f32, |z: Complex32| {
                let (re, im) = (f64::from(z.re), f64::from(z.im));
                (re * re + im * im) as f32
            }),
            DType::C128 => each!(Complex64 => f64, |z: Complex64| z.re * z.re + z.im * z.im),
            DType::F16 => each!(f16 => f16, |v: f16| f16_from_f64(v.to_f64_const() * v.to_f64_const())),
            // A product of two singles is exact in a double, so this is the same as rounding that.
            DType::F32 => each!(f32 => f32, |v: f32| v * v),
            DType::F64 => each!(f64 => f64, |v: f64| v * v),
            DType::U8 => checked!(u8 => u64),
            DType::U16 => checked!(u16 => u64),
            DType::U32 => checked!(u32 => u64),
            DType::U64 => checked!(u64 => u64),
            DType::I8 => checked!(i8 => i64),
            DType::I16 => checked!(i16 => i64),
            DType::I32 => checked!(i32 => i64),
            DType::I64 => checked!(i64 => i64),
            DType::Bool => {
                input.copy_to(out);
                None
            }
        };
        let why = || format!("has a square that {} cannot hold; cast to float64 first", self.dtype());
        bad.map_or(Ok(()), |at| Err(Fault { at, why: why() }))
    }

    fn is_identity(&self) -> bool {
        self.from == DType::Bool
    }

    fn is_exact(&self) -> bool {
        !self.from.is_complex()
    }

    fn max_value(&self, of_input: Option<u64>) -> Option<u64> {
        match self.dtype() {
            DType::U64 => of_input.and_then(|max| max.checked_mul(max)),
            DType::Bool => of_input,
            _ => None,
        }
    }
}
