//! Rows of the input as amplitudes, from any dtype and any strides.

use half::f16;
use num_complex::{Complex32, Complex64};

use super::kernel::Key;
use crate::array::{DType, Scalar};
use crate::operators::Padded;
use crate::operators::amplitude::{of_complex64, of_complex128};

/// The input with its axes in the order (azimuth, range, image).
pub struct Source<'a> {
    data: &'a [u8],
    /// Bytes to element [0, 0, 0] of the array, which may lie before the block.
    origin: isize,
    strides: [isize; 3],
    dtype: DType,
    /// The declared missing value, when comparing finds it (a NaN is found anyway).
    missing: Option<Scalar>,
}

impl<'a> Source<'a> {
    /// `axes`: the input's azimuth, range and image axis.
    pub fn new(input: &'a Padded, axes: [usize; 3], missing: Option<Scalar>) -> Self {
        let (data, offset) = input.block.raw();
        let strides = axes.map(|axis| input.block.strides()[axis]);
        let origin = (0..3).fold(offset, |at, i| at - input.region.start[axes[i]] as isize * strides[i]);
        let dtype = input.block.dtype();
        Self { data, origin, strides, dtype, missing: missing.filter(|m| m.dtype() == dtype) }
    }

    /// Amplitudes of columns `cols` of a row into `keys` ([image][column], rows `stride` apart, first column at `column`).
    /// A pixel with a NaN or missing value gets zeros, and 255 in `invalid`, else 0.
    pub fn load<K: Key>(
        &self,
        row: i64,
        cols: std::ops::Range<i64>,
        images: usize,
        keys: &mut [K],
        (stride, column): (usize, usize),
        invalid: &mut [u8],
    ) {
        macro_rules! each {
            ($t:ty, $amplitude:expr) => {{
                let missing = self.missing.map(|m| bytemuck::pod_read_unaligned::<$t>(m.bytes()));
                for (i, col) in cols.enumerate() {
                    let pixel = self.origin + row as isize * self.strides[0] + col as isize * self.strides[1];
                    let mut is_valid = true;
                    for image in 0..images {
                        let at = (pixel + image as isize * self.strides[2]) as usize;
                        let value: $t = bytemuck::pod_read_unaligned(&self.data[at..at + size_of::<$t>()]);
                        let amplitude: f64 = $amplitude(value);
                        is_valid &= !amplitude.is_nan() && missing != Some(value);
                        keys[image * stride + column + i] = K::of(amplitude);
                    }
                    invalid[column + i] = if is_valid { 0 } else { 255 };
                    if !is_valid {
                        (0..images).for_each(|image| keys[image * stride + column + i] = K::zeroed());
                    }
                }
            }};
        }
        match self.dtype {
            DType::C64 => each!(Complex32, |z| f64::from(of_complex64(z))),
            DType::C128 => each!(Complex64, of_complex128),
            DType::F16 => each!(f16, f16::to_f64_const),
            DType::F32 => each!(f32, f64::from),
            DType::F64 => each!(f64, |v: f64| v),
            DType::I8 => each!(i8, f64::from),
            DType::U16 => each!(u16, f64::from),
            DType::I16 => each!(i16, f64::from),
            DType::U32 => each!(u32, f64::from),
            DType::I32 => each!(i32, f64::from),
            // The others are refused when the step is bound.
            _ => each!(u8, f64::from),
        }
    }
}
