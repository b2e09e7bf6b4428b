//! What `emi` and `evd` share: coherence matrices in, the phase of each image and a quality out.
//!
//! Both take the phases of one eigenvector of a Hermitian matrix made from the coherence; only the matrix differs. Pixels are
//! batched, one a lane, those with a NaN left out, so they cost nothing. The phase of image `ref` is zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::coherence_matrix::{Layout, Matrices, MatrixShape};
use super::matrices::eigen::{self, Complex, Space, space_len};
use super::matrices::{self, Kernel, Lanes, MOST_LANES, triangle};
use super::pointwise::only_input;
use super::stack::{self, Cell, computed, plain_input, real_of, take};
use super::{
    Binding, Computed, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded, Param,
    StepInput, Workspace,
};
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{DType, Region};
use crate::config::table::Table;
use crate::with_complex;

pub const REF: Param =
    Param { name: "ref", kind: "int", default: "0", doc: "the image whose phase is zero; negative ones count from the last" };
pub const LAYOUT: Param = Param {
    name: "layout",
    kind: "\"pairs\" | \"full\"",
    default: "the input's attribute, else \"pairs\"",
    doc: "how the input holds its matrices; of full ones the part above the diagonal is read, and ones are taken for the diagonal",
};
pub const IMAGE_AXIS: Param =
    Param { name: "image_axis", kind: "int", default: "-1", doc: "where the axis of images goes in `phase`" };

/// The memory of one batch beside its pairs.
pub struct Batch<'a, V> {
    /// Above the diagonal, pairs (i < j) in row-major order.
    pub pairs: &'a mut [Complex<V>],
    /// The Hermitian matrix whose smallest eigenvalue is sought: lower triangle.
    pub matrix: &'a mut [Complex<V>],
    /// A real symmetric one and a column of it, for those who need them.
    pub real: &'a mut [V],
    pub column: &'a mut [V],
}

/// The matrix of a method.
pub trait Method: Send + Sync {
    /// Fills `batch.matrix` from `batch.pairs`. `rounding`: of the precision that the pairs were stored in. The answer is a
    /// mask of lanes that have no solution. Must be `#[inline(always)]`.
    fn prepare<V: Lanes>(&self, batch: &mut Batch<'_, V>, space: &mut Space<'_, V>, n: usize, rounding: f64) -> V;

    /// The quality from the smallest eigenvalue.
    fn quality<V: Lanes>(&self, smallest: V, n: usize) -> V;
}

/// A method with the parameters that all have.
pub struct PhaseLinking<M> {
    pub op: &'static str,
    pub method: M,
    pub reference: i64,
    pub layout: Option<Layout>,
    pub image_axis: i64,
}

impl<M> PhaseLinking<M> {
    pub fn read(op: &'static str, table: &mut Table<'_>, method: Option<M>) -> Option<Self> {
        let reference = if table.has("ref") { table.integer("ref") } else { Some(0) };
        let layout = Layout::read(table);
        let image_axis = stack::read_image_axis(table);
        Some(Self { op, method: method?, reference: reference?, layout: layout?, image_axis: image_axis? })
    }
}

impl<M: Method + Clone + 'static> Operator for PhaseLinking<M> {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input(self.op, inputs)?;
        plain_input(self.op, input)?;
        let meta = &input.meta;
        let shape = MatrixShape::of(self.op, meta, self.layout)?;
        let images = shape.images as i64;
        let reference = if self.reference < 0 { self.reference + images } else { self.reference };
        let reference = usize::try_from(reference).ok().filter(|r| *r < shape.images);
        let reference = reference.ok_or_else(|| format!("ref {} does not exist, there are {images} images", self.reference))?;
        let image = stack::image_axis(self.image_axis, shape.leading + 1)?;
        let leading: Vec<OutAxis> = (0..shape.leading).map(OutAxis::Carried).collect();
        let output = |name: &str, dtype: DType| {
            let mut output = OutputBinding::like(name, dtype, meta);
            output.axes = leading.clone();
            output.attributes.shift_remove("layout");
            output
        };
        let mut phase = output("phase", meta.dtype);
        phase.axes.insert(image, OutAxis::New { len: images as u64, name: Some("image".to_owned()) });
        phase.attributes.insert("ref".to_owned(), reference.into());
        let quality = output("quality", real_of(meta.dtype));
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![phase, quality],
            whole: shape.matrix_axes(meta.rank()),
            kind: Kind::Map(Arc::new(LinkMap { method: self.method.clone(), shape, image, reference, dtype: meta.dtype })),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct LinkMap<M> {
    method: M,
    shape: MatrixShape,
    /// Where the axis of images lies in `phase`.
    image: usize,
    reference: usize,
    dtype: DType,
}

impl<M: Method> LinkMap<M> {
    /// Doubles of one batch, for vectors of one lane.
    fn doubles(&self) -> usize {
        let n = self.shape.images;
        2 * self.shape.pairs() + 3 * triangle(n) + n + space_len(n)
    }

    fn fill<T: Cell>(
        &self,
        input: &Padded,
        core: &Region,
        phase: Option<&mut [u8]>,
        quality: Option<&mut [u8]>,
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let mut memory = work.buffer(self.doubles() * MOST_LANES * 8)?;
        let inner = (self.image..self.shape.leading).map(|a| core.len(a)).product();
        matrices::run(Link::<T, M> {
            operator: self,
            pixels: Matrices::new(input, &self.shape, core),
            inner,
            phase: phase.map(bytemuck::cast_slice_mut).unwrap_or_default(),
            quality: quality.map(bytemuck::cast_slice_mut).unwrap_or_default(),
            memory: &mut memory,
            stop: work.stop,
        })
    }
}

impl<M: Method> MapOperator for LinkMap<M> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let dtypes = [self.dtype, real_of(self.dtype)];
        let mut buffers = Vec::with_capacity(2);
        for ((region, dtype), wanted) in task.outputs.iter().zip(dtypes).zip(task.wanted) {
            buffers.push(if *wanted { Some(work.buffer(region.count() * dtype.size())?) } else { None });
        }
        let [phase, quality] = &mut buffers[..] else { return Err(OperatorError::data("two outputs expected")) };
        let (phase, quality) = (phase.as_deref_mut(), quality.as_deref_mut());
        with_complex!(self.dtype, T => self.fill::<T>(&input, task.core, phase, quality, work)?);
        Ok(buffers.into_iter().zip(dtypes).zip(task.outputs).map(|((b, dtype), region)| computed(b, dtype, region)).collect())
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        capacity_for(self.doubles() * MOST_LANES * 8) as u64
    }
}

struct Link<'a, T: Cell, M> {
    operator: &'a LinkMap<M>,
    pixels: Matrices<'a>,
    /// Pixels from one image to the next in `phase`.
    inner: usize,
    /// Empty when not wanted.
    phase: &'a mut [T],
    quality: &'a mut [T::Real],
    memory: &'a mut [u8],
    stop: &'a AtomicBool,
}

impl<T: Cell, M: Method> Kernel for Link<'_, T, M> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let n = self.operator.shape.images;
        let doubles = self.operator.doubles();
        let memory = std::mem::take(&mut self.memory);
        let vectors: &mut [V] = &mut bytemuck::cast_slice_mut::<u8, V>(memory)[..doubles];
        let (pairs, rest) = vectors.split_at_mut(2 * self.operator.shape.pairs());
        let (matrix, rest) = rest.split_at_mut(2 * triangle(n));
        let (real, rest) = rest.split_at_mut(triangle(n));
        let (column, space) = rest.split_at_mut(n);
        let mut batch = Batch { pairs: bytemuck::cast_slice_mut(pairs), matrix: bytemuck::cast_slice_mut(matrix), real, column };
        let mut space = Space::new(space, n);
        let mut here = [0usize; MOST_LANES];
        let mut count = 0;
        for pixel in 0..self.pixels.count() {
            if self.pixels.load::<T, V>(pixel, count, batch.pairs) {
                here[count] = pixel;
                count += 1;
            } else {
                self.write_nan(pixel);
            }
            if count == V::COUNT {
                self.solve(&mut batch, &mut space, &here[..count]);
                count = 0;
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
            }
        }
        if count > 0 {
            self.solve(&mut batch, &mut space, &here[..count]);
        }
        Ok(())
    }
}

impl<T: Cell, M: Method> Link<'_, T, M> {
    #[inline(always)]
    fn solve<V: Lanes>(&mut self, batch: &mut Batch<'_, V>, space: &mut Space<'_, V>, pixels: &[usize]) {
        let LinkMap { method, shape, reference, .. } = self.operator;
        let n = shape.images;
        let unsolved = method.prepare(batch, space, n, T::ROUNDING);
        let value = method.quality(eigen::smallest(batch.matrix, n, space), n);
        let (mut lost, mut quality) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
        unsolved.store(&mut lost);
        value.store(&mut quality);
        for (lane, &pixel) in pixels.iter().enumerate() {
            if lost[lane].to_bits() != 0 || quality[lane].is_nan() {
                self.write_nan(pixel);
            } else if let Some(out) = self.quality.get_mut(pixel) {
                *out = T::real(quality[lane]);
            }
        }
        if self.phase.is_empty() {
            return;
        }
        let vector = space.eigenvector();
        let anchor = vector[*reference];
        for image in 0..n {
            // v * conj(v_ref), of length one; the reference's own phase is zero to the last bit.
            let v = vector[image];
            let re = v.re.mul(anchor.re).add(v.im.mul(anchor.im));
            let im = v.im.mul(anchor.re).sub(v.re.mul(anchor.im));
            let im = if image == *reference { V::zero() } else { im };
            let length = re.mul(re).add(im.mul(im)).sqrt();
            let (mut re_out, mut im_out) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
            re.div(length).store(&mut re_out);
            im.div(length).store(&mut im_out);
            for (lane, &pixel) in pixels.iter().enumerate() {
                if lost[lane].to_bits() == 0 && !quality[lane].is_nan() {
                    let at = self.phase_index(pixel, image);
                    self.phase[at] = T::new(re_out[lane], im_out[lane]);
                }
            }
        }
    }

    #[inline(always)]
    fn phase_index(&self, pixel: usize, image: usize) -> usize {
        (pixel / self.inner * self.operator.shape.images + image) * self.inner + pixel % self.inner
    }

    fn write_nan(&mut self, pixel: usize) {
        if let Some(out) = self.quality.get_mut(pixel) {
            *out = T::real(f64::NAN);
        }
        if !self.phase.is_empty() {
            for image in 0..self.operator.shape.images {
                let at = self.phase_index(pixel, image);
                self.phase[at] = T::nan();
            }
        }
    }
}
