//! Elements of a block as the cells that the iteration computes in.

use bytemuck::Pod;
use half::f16;

use crate::array::block::copy_strided;
use crate::array::grid::for_each_index;
use crate::array::{Block, DType};

/// `f32` and `f64`.
pub trait Float:
    Pod
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    const SIZE: usize = size_of::<Self>();
    const ZERO: Self;
    const ONE: Self;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;

    fn cells_mut(bytes: &mut [u8]) -> &mut [Self] {
        bytemuck::cast_slice_mut(bytes)
    }
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn of(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}
float!(f32);
float!(f64);

/// Copies a block of `from` values into cells of T, the first to `at`, from one to the next along axis `a` by `strides[a]`.
/// Integers become floats as `skimage.util.img_as_float` makes them: divided by their dtype's largest value, not below -1.
pub fn load<T: Float>(block: &Block, from: DType, cells: &mut [T], at: usize, strides: &[usize]) {
    let is_plain = matches!((from, T::SIZE), (DType::F32, 4) | (DType::F64, 8));
    let (raw, raw_offset) = block.raw();
    if is_plain {
        let to: Vec<isize> = strides.iter().map(|s| (s * T::SIZE) as isize).collect();
        let out: &mut [u8] = bytemuck::cast_slice_mut(cells);
        copy_strided(out, (at * T::SIZE) as isize, &to, raw, raw_offset, block.strides(), block.shape(), T::SIZE);
        return;
    }
    let size = from.size();
    let places: Vec<Vec<u64>> = block.shape().iter().map(|&n| (0..n as u64).collect()).collect();
    let places: Vec<&[u64]> = places.iter().map(Vec::as_slice).collect();
    let _ = for_each_index::<()>(&places, |index| {
        let start = raw_offset + index.iter().zip(block.strides()).map(|(&i, s)| i as isize * s).sum::<isize>();
        let cell = at + index.iter().zip(strides).map(|(&i, s)| i as usize * s).sum::<usize>();
        cells[cell] = T::of(as_float(from, &raw[start as usize..start as usize + size]));
        Ok(())
    });
}

fn as_float(dtype: DType, bytes: &[u8]) -> f64 {
    macro_rules! scaled {
        ($t:ty) => {{
            let value = bytemuck::pod_read_unaligned::<$t>(bytes);
            (value as f64 * (1.0 / <$t>::MAX as f64)).max(-1.0)
        }};
    }
    match dtype {
        DType::Bool => f64::from(bytes[0] != 0),
        DType::U8 => scaled!(u8),
        DType::I8 => scaled!(i8),
        DType::U16 => scaled!(u16),
        DType::I16 => scaled!(i16),
        DType::U32 => scaled!(u32),
        DType::I32 => scaled!(i32),
        DType::U64 => scaled!(u64),
        DType::I64 => scaled!(i64),
        DType::F16 => f16::to_f64(bytemuck::pod_read_unaligned::<f16>(bytes)),
        DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        // Complex inputs are refused when the step is bound.
        DType::F64 | DType::C64 | DType::C128 => bytemuck::pod_read_unaligned::<f64>(&bytes[..8]),
    }
}
