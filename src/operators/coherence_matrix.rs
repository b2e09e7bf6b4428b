//! Coherence matrices as arrays hold them: each pair of images once, or in full; and reading them a batch at a time.

use serde_json::Value;

use super::matrices::Lanes;
use super::matrices::eigen::Complex;
use super::stack::{Cell, Strided, all_pairs};
use super::{ArrayMeta, OutAxis, Padded};
use crate::array::Region;
use crate::config::table::Table;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// Last axis: pairs (i < j) in row-major order.
    Pairs,
    /// Last two axes: the Hermitian matrix.
    Full,
}

impl Layout {
    /// Keeps the number of pairs, and the memory of one matrix, far from any limit.
    pub const MOST_IMAGES: u64 = 1024;

    /// The `layout` parameter; `Some(None)` when it is absent.
    pub fn read(table: &mut Table<'_>) -> Option<Option<Self>> {
        if !table.has("layout") {
            return Some(None);
        }
        Some(Some(if table.one_of("layout", &["pairs", "full"])? == "full" { Self::Full } else { Self::Pairs }))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Full => "full",
        }
    }

    /// The axes that hold a pixel's matrix.
    pub fn axes(self, images: u64) -> Vec<OutAxis> {
        let axis = |len: u64, name: &str| OutAxis::New { len, name: Some(name.to_owned()) };
        match self {
            Self::Pairs => vec![axis(images * (images - 1) / 2, "pair")],
            Self::Full => vec![axis(images, "image"), axis(images, "image_conjugate")],
        }
    }

    /// Elements of a pixel's matrix.
    pub fn length(self, images: usize) -> usize {
        match self {
            Self::Pairs => images * (images - 1) / 2,
            Self::Full => images * images,
        }
    }
}

/// An array of coherence matrices: which layout, how many images, and its axes before those of the matrix.
#[derive(Clone, Debug)]
pub struct MatrixShape {
    pub layout: Layout,
    pub images: usize,
    pub leading: usize,
}

impl MatrixShape {
    /// From the array, its attribute `layout`, and the parameter of that name, which is needed where the attribute is absent
    /// and the matrix is in full.
    pub fn of(op: &str, meta: &ArrayMeta, given: Option<Layout>) -> Result<Self, String> {
        super::stack::complex_input(op, meta)?;
        let attribute = match meta.attributes.get("layout").and_then(Value::as_str) {
            Some("full") => Some(Layout::Full),
            Some("pairs") => Some(Layout::Pairs),
            _ => None,
        };
        let layout = given.or(attribute).unwrap_or(Layout::Pairs);
        let rank = meta.rank();
        let (images, leading) = match layout {
            Layout::Pairs => {
                let pairs = *meta.shape.last().ok_or_else(|| format!("{op} needs an axis of pairs, {} has none", meta.name))?;
                let images = (2..=Layout::MOST_IMAGES).find(|n| n * (n - 1) / 2 == pairs).ok_or_else(|| {
                    format!(
                        "the last axis of {} has length {pairs}, which is no number of pairs of 2 to {} images; \
                         give layout = \"full\" when it holds whole matrices",
                        meta.name,
                        Layout::MOST_IMAGES
                    )
                })?;
                (images, rank - 1)
            }
            Layout::Full => match meta.shape[..] {
                [.., a, b] if a == b && (2..=Layout::MOST_IMAGES).contains(&a) => (a, rank - 2),
                _ => {
                    return Err(format!(
                        "the last two axes of {} do not hold matrices of 2 to {} images: {:?}",
                        meta.name,
                        Layout::MOST_IMAGES,
                        meta.shape
                    ));
                }
            },
        };
        Ok(Self { layout, images: images as usize, leading })
    }

    pub fn pairs(&self) -> usize {
        self.images * (self.images - 1) / 2
    }

    /// The axes that hold the matrix: whole in every block.
    pub fn matrix_axes(&self, rank: usize) -> Vec<usize> {
        (self.leading..rank).collect()
    }
}

/// The pixels of a block, numbered in C order of the axes before those of the matrix, in an array that has these axes among
/// its own.
pub struct Pixels<'a> {
    pub source: Strided<'a>,
    /// Per leading axis: bytes from one to the next pixel, the core's start and length.
    axes: Vec<(isize, i64, usize)>,
}

impl<'a> Pixels<'a> {
    /// `axes`: the array's axes that are the leading ones, in order. `core`: their part that is computed.
    pub fn new(input: &'a Padded, axes: impl Iterator<Item = usize>, core: &Region) -> Self {
        let source = Strided::new(input);
        let axes = axes.enumerate().map(|(i, axis)| (source.strides[axis], core.start[i], core.len(i))).collect();
        Self { source, axes }
    }

    pub fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.2).product()
    }

    /// Bytes to the first element of a pixel.
    #[inline(always)]
    pub fn offset(&self, pixel: usize) -> isize {
        let (mut rest, mut at) = (pixel, self.source.offset(&[]));
        for &(stride, start, len) in self.axes.iter().rev() {
            let len = len.max(1);
            at += (start + (rest % len) as i64) as isize * stride;
            rest /= len;
        }
        at
    }

    /// [`Pixels::offset`] of one after the other, without a division for each.
    #[inline(always)]
    pub fn offsets(&self) -> impl Iterator<Item = isize> {
        let (stride, _, len) = self.axes.last().copied().unwrap_or((0, 0, 1));
        let rows = (0..self.count()).step_by(len.max(1));
        rows.flat_map(move |pixel| {
            let start = self.offset(pixel);
            (0..len as isize).map(move |k| start + k * stride)
        })
    }
}

/// Coherence matrices by pixel.
pub struct Matrices<'a> {
    pixels: Pixels<'a>,
    shape: &'a MatrixShape,
}

impl<'a> Matrices<'a> {
    pub fn new(input: &'a Padded, shape: &'a MatrixShape, core: &Region) -> Self {
        Self { pixels: Pixels::new(input, 0..shape.leading, core), shape }
    }

    pub fn count(&self) -> usize {
        self.pixels.count()
    }

    /// Puts the upper triangle of pixel `pixel` into one lane of `staging` (an element a pair). False when it holds a NaN;
    /// the lane then holds anything.
    #[inline(always)]
    pub fn load<T: Cell, V: Lanes>(&self, pixel: usize, lane: usize, staging: &mut [Complex<V>]) -> bool {
        let source = &self.pixels.source;
        let start = self.pixels.offset(pixel);
        let first = self.shape.leading;
        match self.shape.layout {
            Layout::Pairs => {
                let step = source.strides[first];
                if step == size_of::<T>() as isize {
                    // Without a way out in the middle it is one short loop.
                    let parts: &mut [f64] = bytemuck::cast_slice_mut(staging);
                    let mut is_valid = true;
                    let values = source.run::<T>(start, self.shape.pairs());
                    for (z, pair) in values.zip(parts.chunks_exact_mut(2 * V::COUNT)) {
                        let z = z.wide();
                        (pair[lane], pair[V::COUNT + lane]) = (z.re, z.im);
                        is_valid &= !(z.re.is_nan() || z.im.is_nan());
                    }
                    return is_valid;
                }
                (0..self.shape.pairs()).all(|pair| put::<T, V>(source, start + pair as isize * step, staging, pair, lane))
            }
            Layout::Full => {
                let (row, column) = (source.strides[first], source.strides[first + 1]);
                let mut pairs = all_pairs(self.shape.images).enumerate();
                pairs.all(|(pair, (i, j))| {
                    put::<T, V>(source, start + i as isize * row + j as isize * column, staging, pair, lane)
                })
            }
        }
    }
}

/// Puts one complex number into a lane of `staging[index]`; false when it is NaN.
#[inline(always)]
pub fn put<T: Cell, V: Lanes>(source: &Strided<'_>, at: isize, staging: &mut [Complex<V>], index: usize, lane: usize) -> bool {
    let parts: &mut [f64] = bytemuck::cast_slice_mut(staging);
    let z = source.get::<T>(at).wide();
    parts[2 * index * V::COUNT + lane] = z.re;
    parts[(2 * index + 1) * V::COUNT + lane] = z.im;
    !(z.re.is_nan() || z.im.is_nan())
}
