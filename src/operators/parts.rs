//! `real`, `imag`, `angle`: the parts of complex numbers, as numpy's.
//!
//! Of real arrays `real` is the array itself, `imag` zero in the same dtype, and `angle` 0 or pi. `angle` is computed in
//! float64 by `libm` (the system's functions differ in their last bits) and rounded once; in radians, -pi to pi.

use num_complex::{Complex32, Complex64};

use super::Info;
use super::pointwise::{Elementwise, Fault, convert, float_of, in_doubles, unary};
use crate::array::{Block, DType};

macro_rules! info {
    ($id:ident, $name:literal, $summary:literal, $outputs:literal, $make:expr) => {
        pub static $id: Info = Info {
            name: $name,
            summary: $summary,
            kind: "map",
            inputs: "one array, any dtype",
            outputs: $outputs,
            halo: "none",
            boundary: "-",
            devices: "cpu",
            cost: "one look at each element; an arc tangent for angles",
            source: concat!("numpy.", $name),
            params: &[],
            build: |_| unary($name, |input| $make(input.dtype)),
        };
    };
}

info!(REAL, "real", "real part", "float32 of complex64, float64 of complex128, else the input", |from| Ok(Part { from, at: 0 }));
info!(
    IMAG,
    "imag",
    "imaginary part; zero of real arrays",
    "float32 of complex64, float64 of complex128, else the input's dtype",
    |from| { Ok(Part { from, at: 1 }) }
);
info!(
    ANGLE,
    "angle",
    "argument of complex numbers, in radians; 0 or pi of real ones",
    "float32 of complex64, float64 of complex128, integers and bool, else the input's dtype",
    |from: DType| match from {
        DType::C64 => Ok(Angle { to: DType::F32 }),
        DType::C128 => Ok(Angle { to: DType::F64 }),
        real => float_of("angle", real).map(|to| Angle { to }),
    }
);

struct Part {
    from: DType,
    /// 0: real, 1: imaginary.
    at: usize,
}

impl Elementwise for Part {
    fn dtype(&self) -> DType {
        match self.from {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            real => real,
        }
    }

    fn is_light(&self) -> bool {
        true
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        macro_rules! part {
            ($t:ty) => {
                convert::<[$t; 2], $t>(input, out, |src, dst| {
                    src.iter().zip(dst).for_each(|(z, d)| *d = z[self.at]);
                    None
                })
            };
        }
        match self.from {
            DType::C64 => part!(f32),
            DType::C128 => part!(f64),
            _ => {
                out.fill(0);
                None
            }
        };
        Ok(())
    }

    fn is_identity(&self) -> bool {
        self.at == 0 && !self.from.is_complex()
    }

    fn is_exact(&self) -> bool {
        true
    }
}

struct Angle {
    to: DType,
}

impl Elementwise for Angle {
    fn dtype(&self) -> DType {
        self.to
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        match input.dtype() {
            DType::C64 => {
                convert::<Complex32, f32>(input, out, |src, dst| {
                    src.iter().zip(dst).for_each(|(z, d)| *d = libm::atan2(z.im.into(), z.re.into()) as f32);
                    None
                });
            }
            DType::C128 => {
                convert::<Complex64, f64>(input, out, |src, dst| {
                    src.iter().zip(dst).for_each(|(z, d)| *d = libm::atan2(z.im, z.re));
                    None
                });
            }
            _ => in_doubles(input, self.to, out, &|values: &mut [f64]| values.iter_mut().for_each(|v| *v = libm::atan2(0.0, *v))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, map_one, values};
    use super::*;
    use crate::array::{Element, Region};

    fn run<S: Element, D: bytemuck::Pod>(op: &str, input: &[S]) -> Vec<D> {
        let whole = Whole::new(Block::from_values(&[input.len()], input));
        let bound = bind(op, "", &[&whole]).unwrap();
        values(&map_one(&bound, &[&whole], &Region::whole(&whole.meta.shape)).unwrap())
    }

    #[test]
    fn parts_are_numpys() {
        let z = [Complex32::new(3.0, -4.0), Complex32::new(-1.0, 0.0), Complex32::new(-1.0, -0.0)];
        assert_eq!(run::<_, f32>("real", &z), [3.0, -1.0, -1.0]);
        assert_eq!(run::<_, f32>("imag", &z)[..2], [-4.0, 0.0]);
        let pi = std::f32::consts::PI;
        assert_eq!(run::<_, f32>("angle", &z), [-0.927_295_2, pi, -pi]);
        assert_eq!(run::<_, f64>("angle", &[Complex64::new(0.0, 2.0)]), [std::f64::consts::FRAC_PI_2]);
        assert_eq!(run::<_, f64>("angle", &[5i16, -5]), [0.0, std::f64::consts::PI]);
        assert_eq!(run::<_, f32>("angle", &[-2.0f32, 1.0]), [pi, 0.0]);
        assert_eq!(run::<_, u8>("imag", &[7u8]), [0]);
        assert_eq!(run::<_, i8>("real", &[-7i8]), [-7]);
    }
}
