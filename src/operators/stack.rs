//! What operators on stacks of complex images share: which axis is which, pairs of images, and complex numbers of either
//! precision at any strides.

use bytemuck::Pod;
use num_complex::{Complex32, Complex64};
use toml::de::DeValue;

use super::{ArrayMeta, Padded, StepInput, axis_at};
use crate::array::{Block, Buffer, DType, Rule, Scalar};
use crate::config::table::{self, Table};

/// The `image_axis` parameter, -1 when absent. `None`: it was wrong, and the table has the problem.
pub fn read_image_axis(table: &mut Table<'_>) -> Option<i64> {
    if table.has("image_axis") { table.integer("image_axis") } else { Some(-1) }
}

/// The axis that a number names, negative ones from the end.
pub fn image_axis(axis: i64, rank: usize) -> Result<usize, String> {
    axis_at("image_axis", axis, rank)
}

/// Refuses `depth`, and boundaries other than `"none"`, where neither has a meaning.
pub fn plain_input(op: &str, input: &StepInput) -> Result<(), String> {
    let name = &input.meta.name;
    if input.depth.is_some() {
        return Err(format!("{op} knows what it needs around a pixel; leave the depth of {name} out"));
    }
    if input.boundary.iter().flatten().flatten().any(|rule| *rule != Rule::None) {
        return Err(format!("{op} takes boundary \"none\" only (input {name}): there are no pixels outside the image"));
    }
    Ok(())
}

/// Refuses what is not complex.
pub fn complex_input(op: &str, meta: &ArrayMeta) -> Result<(), String> {
    if meta.dtype.is_complex() {
        return Ok(());
    }
    Err(format!("{op} needs complex values, {} is {}", meta.name, meta.dtype))
}

/// Refuses what is no stack of images whose amplitudes a double holds.
pub fn amplitudes_input(op: &str, meta: &ArrayMeta) -> Result<(), String> {
    if meta.rank() != 3 {
        return Err(format!("{op} needs a stack with three axes, {} has {}", meta.name, meta.rank()));
    }
    if meta.dtype.size() > 4 && meta.dtype.is_integer() || meta.dtype == DType::Bool {
        return Err(format!("{op} takes no {}; cast to float64 first", meta.dtype));
    }
    Ok(())
}

/// Pairs of images (i < j) in row-major order: (0, 1), (0, 2) .. (n - 2, n - 1).
pub fn all_pairs(images: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..images).flat_map(move |i| (i + 1..images).map(move |j| (i, j)))
}

/// The `pairs` parameter: which images go with which.
#[derive(Clone, Debug)]
pub enum Pairs {
    All,
    List(Vec<(u64, u64)>),
}

/// More pairs than this are a slip.
const MOST_PAIRS: usize = 1 << 20;

impl Pairs {
    pub const KIND: &str = "[[int, int], ...] or \"all\"";

    pub fn read(table: &mut Table<'_>) -> Option<Self> {
        let Some(node) = table.get("pairs") else { return Some(Self::All) };
        if node.get_ref().as_str() == Some("all") {
            return Some(Self::All);
        }
        let image = |v: &DeValue<'_>| u64::try_from(table::integer(v)?).ok();
        let pair = |v: &DeValue<'_>| match v.as_array()?.iter().map(|v| image(v.get_ref())).collect::<Option<Vec<_>>>()?[..] {
            [i, j] => Some((i, j)),
            _ => None,
        };
        let list: Option<Vec<_>> = node.get_ref().as_array().and_then(|list| list.iter().map(|v| pair(v.get_ref())).collect());
        match list {
            Some(list) if !list.is_empty() && list.len() <= MOST_PAIRS => Some(Self::List(list)),
            Some(list) if list.is_empty() => {
                table.problem("pairs", "the list is empty; leave it out to take all pairs");
                None
            }
            _ => {
                table.problem("pairs", "expected a list of pairs of image numbers, such as [[0, 1], [0, 2]], or \"all\"");
                None
            }
        }
    }

    /// The pairs for a stack of so many images.
    pub fn of(&self, images: u64) -> Result<Vec<(usize, usize)>, String> {
        match self {
            Self::All if images < 2 => Err(format!("a pair takes two images, the stack has {images}")),
            Self::All if images * (images - 1) / 2 > MOST_PAIRS as u64 => {
                Err(format!("all pairs of {images} images are more than {MOST_PAIRS}; list those wanted in `pairs`"))
            }
            Self::All => Ok(all_pairs(images as usize).collect()),
            Self::List(list) => match list.iter().find(|(i, j)| *i.max(j) >= images) {
                Some((i, j)) => Err(format!("pair [{i}, {j}] does not exist, the stack has images 0 to {}", images as i64 - 1)),
                None => Ok(list.iter().map(|&(i, j)| (i as usize, j as usize)).collect()),
            },
        }
    }
}

/// Complex numbers of one precision, computed with in double precision.
pub trait Cell: Pod + Send + Sync {
    /// The same precision without an imaginary part.
    type Real: Pod + Send + Sync;
    /// Half the distance from one to the next number.
    const ROUNDING: f64;
    const DTYPE: DType;
    const REAL: DType;

    fn new(re: f64, im: f64) -> Self;
    fn real(value: f64) -> Self::Real;
    fn wide(self) -> Complex64;
    fn conjugate(self) -> Self;

    fn nan() -> Self {
        Self::new(f64::NAN, f64::NAN)
    }
}

impl Cell for Complex32 {
    type Real = f32;
    const ROUNDING: f64 = f32::EPSILON as f64 / 2.0;
    const DTYPE: DType = DType::C64;
    const REAL: DType = DType::F32;

    #[inline(always)]
    fn new(re: f64, im: f64) -> Self {
        Complex32::new(re as f32, im as f32)
    }
    fn real(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn conjugate(self) -> Self {
        self.conj()
    }
    #[inline(always)]
    fn wide(self) -> Complex64 {
        Complex64::new(f64::from(self.re), f64::from(self.im))
    }
}

impl Cell for Complex64 {
    type Real = f64;
    const ROUNDING: f64 = f64::EPSILON / 2.0;
    const DTYPE: DType = DType::C128;
    const REAL: DType = DType::F64;

    #[inline(always)]
    fn new(re: f64, im: f64) -> Self {
        Complex64::new(re, im)
    }
    fn real(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn conjugate(self) -> Self {
        self.conj()
    }
    #[inline(always)]
    fn wide(self) -> Complex64 {
        self
    }
}

/// The real dtype of a complex one.
pub fn real_of(dtype: DType) -> DType {
    if dtype == DType::C128 { DType::F64 } else { DType::F32 }
}

/// Calls `$body` with `$T` as the complex type of a dtype.
#[macro_export]
macro_rules! with_complex {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::array::DType::C128 => {
                type $T = num_complex::Complex64;
                $body
            }
            _ => {
                type $T = num_complex::Complex32;
                $body
            }
        }
    };
}

/// Elements of a padded block by array coordinates, whatever its strides.
pub struct Strided<'a> {
    data: &'a [u8],
    /// Bytes to the array's first element, which may lie before the block.
    origin: isize,
    pub strides: &'a [isize],
    dtype: DType,
}

impl<'a> Strided<'a> {
    pub fn new(input: &'a Padded) -> Self {
        let (data, offset) = input.block.raw();
        let strides = input.block.strides();
        let origin = input.region.start.iter().zip(strides).fold(offset, |at, (start, stride)| at - *start as isize * stride);
        Self { data, origin, strides, dtype: input.block.dtype() }
    }

    /// Bytes to the element at `index`.
    #[inline(always)]
    pub fn offset(&self, index: &[i64]) -> isize {
        index.iter().zip(self.strides).fold(self.origin, |at, (i, stride)| at + *i as isize * stride)
    }

    #[inline(always)]
    pub fn get<T: Pod>(&self, offset: isize) -> T {
        let at = offset as usize;
        bytemuck::pod_read_unaligned(&self.data[at..at + size_of::<T>()])
    }
}

impl Strided<'_> {
    /// Elements that lie one behind the other.
    #[inline(always)]
    pub fn run<T: Pod>(&self, offset: isize, count: usize) -> impl Iterator<Item = T> {
        let bytes = &self.data[offset as usize..][..count * size_of::<T>()];
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
    }

    /// So many bytes from an element on.
    #[inline(always)]
    pub fn bytes(&self, offset: isize, count: usize) -> &[u8] {
        &self.data[offset as usize..][..count]
    }

    /// The element as a double, whatever its dtype (the real part of a complex one).
    pub fn number(&self, offset: isize) -> f64 {
        let at = offset as usize;
        Scalar::from_bytes(self.dtype, &self.data[at..at + self.dtype.size()]).map_or(f64::NAN, |value| value.to_f64())
    }
}

/// A complex value that stands for "missing", as NaN stands for itself: found by comparing.
#[derive(Clone, Copy)]
pub struct Missing<T>(Option<T>);

impl<T: Cell + PartialEq> Missing<T> {
    pub fn new(declared: Option<Scalar>) -> Self {
        Self(declared.filter(|m| m.dtype() == T::DTYPE).map(|m| bytemuck::pod_read_unaligned(m.bytes())))
    }

    /// The value in double precision, NaN where it is missing.
    #[inline(always)]
    pub fn wide(&self, value: T) -> Complex64 {
        if self.0.is_some_and(|missing| missing == value) { Complex64::new(f64::NAN, f64::NAN) } else { value.wide() }
    }
}

/// The one input of an operator, when the engine hands a block over.
pub fn take<const N: usize>(inputs: Vec<Padded>) -> Result<[Padded; N], super::OperatorError> {
    <[Padded; N]>::try_from(inputs)
        .map_err(|inputs| super::OperatorError::data(format!("expected {N} inputs, got {}", inputs.len())))
}

/// A filled buffer as the result for a region.
pub fn computed(buffer: Option<Buffer>, dtype: DType, region: &crate::array::Region) -> Option<super::Computed> {
    buffer.map(|b| super::Computed { region: region.clone(), block: Block::new(b, dtype, region.shape()) })
}
