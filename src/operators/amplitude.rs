//! |z| of a complex array, in the precision of its parts; the absolute value of a real one.
//!
//! |z| = sqrt(re^2 + im^2), squares, sum and root in float64, rounded once: the rule InSAR tools follow, and the one that
//! the ranks of `ks_test` depend on. Not scaled: in complex128, parts above 1e154 overflow to infinity. NaN in either part
//! gives NaN, always the same one: which of two comes out of a sum is the compiler's choice. So every step of it is exact, on
//! devices too (I9).
//!
//! On a device it is slower than here: two arithmetic operations an element, and both ways over the bus.

use half::f16;
use num_complex::{Complex32, Complex64};

use super::pointwise::{Elementwise, Fault, convert, unary};
use super::{DeviceMap, DevicePart, Info, MapTask, OperatorError, Workspace};
use crate::array::block::{c_strides, copy_strided};
use crate::array::{Block, Buffer, DType, Region};
use crate::compute::gpu::job::{Arg, Job, Launch};
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
            devices: "cpu, cuda (of complex arrays, where the job names a device)",
            cost: "one square root an element of complex arrays",
            source: "numpy.abs; of complex64 rounded once, from float64",
            params: &[],
            build: |_| unary($name, |input| Ok(Absolute { from: input.dtype })),
        };
    };
}

info!(INFO, "amplitude", "absolute value; of a complex array sqrt(re^2 + im^2), computed in float64 and rounded once");
info!(ABS, "abs", "absolute value; another name of `amplitude`");

pub static KERNEL: Kernel = Kernel {
    name: "amplitude",
    source: include_str!("amplitude.cu"),
    entries: &["amplitude"],
    variants: || [DType::C64, DType::C128].map(|from| Variant { defines: defines(from), is_hot: true }).into(),
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
            DType::C64 => each!(Complex32 => f32, |z| Some(of_complex64(z)).filter(|v| !v.is_nan()).unwrap_or(f32::NAN)),
            DType::C128 => each!(Complex64 => f64, |z| Some(of_complex128(z)).filter(|v| !v.is_nan()).unwrap_or(f64::NAN)),
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
        true
    }

    fn device(&self) -> Option<&dyn DeviceMap> {
        self.from.is_complex().then_some(self)
    }
}

/// Threads of a block on a device, and blocks at most: threads stride over the elements.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 1 << 16;

impl DeviceMap for Absolute {
    fn is_exact(&self) -> bool {
        true
    }

    fn pays(&self) -> bool {
        false
    }

    fn needs(&self, _given: &[Region], part: &Region) -> Vec<Region> {
        vec![part.clone()]
    }

    fn job(&self, _needs: &[Region], part: &Region) -> Option<Job> {
        let count = part.shape().iter().try_fold(1usize, |n, len| n.checked_mul(*len)).filter(|n| *n < 1 << 40)?;
        let launch = Launch {
            entry: "amplitude",
            blocks: count.div_ceil(THREADS).clamp(1, MOST_BLOCKS) as u32,
            threads: THREADS as u32,
            args: vec![Arg::Buffer(0), Arg::Buffer(1), Arg::I64(count as i64)],
        };
        Some(Job {
            program: KERNEL.program(defines(self.from)),
            inputs: vec![count * self.from.size()],
            outputs: vec![count * self.dtype().size()],
            scratch: Vec::new(),
            launches: vec![launch],
        })
    }

    fn split(&self, part: &Region) -> Option<[Region; 2]> {
        part.halves(0..part.rank())
    }

    fn finish(
        &self,
        part: &DevicePart<'_>,
        staging: &[u8],
        task: &MapTask<'_>,
        outputs: &mut [Option<Buffer>],
        _work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let Some(output) = &mut outputs[0] else { return Ok(()) };
        let (region, size) = (&task.outputs[0], self.dtype().size());
        let strides = c_strides(&region.shape(), size);
        let at = strides.iter().zip(&part.core.start).zip(&region.start).map(|((s, p), r)| s * (p - r) as isize).sum();
        let shape = part.core.shape();
        copy_strided(output, at, &strides, &staging[part.job.staged(1)], 0, &c_strides(&shape, size), &shape, size);
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        0
    }
}

fn defines(from: DType) -> Vec<(&'static str, String)> {
    vec![("DTYPE", if from == DType::C64 { "DTYPE_C64" } else { "DTYPE_C128" }.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::super::testing::{Random, Whole, bind, check_on_devices, map_one, values};
    use super::*;
    use crate::array::{Element, Scalar};

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
    fn amplitudes_on_a_device_are_the_cpus_i9() {
        let mut random = Random::new(21);
        let mut part = || match random.below(40) {
            // NaN has many faces, all of which give the one.
            0 => f64::from_bits(0x7ff8_0000_0000_0000 | random.bits() >> 13 | random.below(2) << 63),
            1 => 0.0,
            2 => f64::INFINITY,
            n => (random.unit() - 0.5) * 10f64.powi(n as i32 - 20),
        };
        let wide: Vec<Complex64> = (0..9 * 14 * 17).map(|_| Complex64::new(part(), part())).collect();
        let narrow: Vec<Complex32> = wide.iter().map(|z| Complex32::new(z.re as f32, z.im as f32)).collect();
        let shape = [9, 14, 17];
        let core = Region::from_ranges(&[(1, 9), (0, 11), (3, 17)]);
        check_on_devices("amplitude", "", &Whole::new(Block::from_values(&shape, &wide)), &core);
        check_on_devices("abs", "", &Whole::new(Block::from_values(&shape, &narrow)), &core);
        check_on_devices("abs", "", &Whole::new(Block::from_values(&[], &narrow[..1])), &Region::whole(&[]));
        let bound = bind("abs", "", &[&Whole::new(Block::from_values(&shape, &narrow))]).unwrap();
        let all = map_one(&bound, &[&Whole::new(Block::from_values(&shape, &narrow))], &Region::whole(&[9, 14, 17])).unwrap();
        let nans = values::<u32>(&all).iter().filter(|bits| **bits & 0x7fff_ffff > 0x7f80_0000).count();
        assert_eq!(nans, values::<u32>(&all).iter().filter(|bits| **bits == f32::NAN.to_bits()).count());
        assert!(nans > 10);
        // Real arrays, and those whose missing value must be looked for, stay here.
        let mut whole = Whole::new(Block::from_values(&[1], &[Complex32::new(1.0, 1.0)]));
        let has_kernel = |whole: &Whole| match bind("abs", "", &[whole]).unwrap().kind {
            Kind::Map(map) => map.device().is_some(),
            Kind::Fold { .. } => false,
        };
        assert!(has_kernel(&whole) && !has_kernel(&Whole::new(Block::from_values(&[1], &[1f32]))));
        whole.meta.missing = Some(Scalar::of(Complex32::new(0.0, 0.0)));
        assert!(!has_kernel(&whole));
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
