//! How well linked phases explain the phases of all pairs of images.
//!
//! For coherence C and phases p (unit modulus), `t = |sum over i < j of C_ij / |C_ij| * conj(p_i) * p_j| / pairs`, between 0
//! and 1. With `weighted = true` each pair counts by `w = max(0, (|C|^2 - 1/L) / (1 - 1/L))`, the squared coherence less what
//! L looks of noise would show, and the sum is divided by that of the weights; L is the third input, such as
//! `select_shp.count`. NaN in a pixel's matrix or phases gives NaN, and so does a coherence of zero, which has no phase
//! (weighted: no weight at all). Sums in double precision, in the order of the pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::coherence_matrix::{self, Layout, Matrices, MatrixShape, Pixels};
use super::matrices::eigen::Complex;
use super::matrices::{self, Kernel, Lanes, MOST_LANES};
use super::phase_linking::LAYOUT;
use super::stack::{self, Cell, all_pairs, computed, plain_input, real_of};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded,
    Param, StepInput, Workspace,
};
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{DType, Region};
use crate::config::table::Table;
use crate::with_complex;

pub static INFO: Info = Info {
    name: "temporal_coherence",
    summary: "how well the linked phases explain the coherence of all pairs, from 0 to 1",
    kind: "map",
    inputs: "coherence (.., pair) or (.., image, image); phases of length one, with an axis of images; weighted: the looks (..)",
    outputs: "float32 (float64 of complex128), the axes before those of the matrix",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "N^2 / 2 complex products a pixel for N images",
    source: "A. Ferretti et al., A new algorithm for processing interferometric data-stacks: SqueeSAR, IEEE Trans. Geosci. Remote Sens. 49 (2011): its gamma",
    params: &[
        Param {
            name: "weighted",
            kind: "bool",
            default: "false",
            doc: "weight pairs by their coherence beyond what so many looks of noise show; takes the number of looks as third input",
        },
        LAYOUT,
        Param { name: "image_axis", kind: "int", default: "-1", doc: "the phases' axis of images" },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let is_weighted = table.bool("weighted").unwrap_or(false);
    let layout = Layout::read(table)?;
    let image_axis = stack::read_image_axis(table)?;
    Some(Box::new(TemporalCoherence { is_weighted, layout, image_axis }))
}

struct TemporalCoherence {
    is_weighted: bool,
    layout: Option<Layout>,
    image_axis: i64,
}

impl Operator for TemporalCoherence {
    fn reads(&self, input: usize, op: &str, output: Option<&str>) -> Option<&'static str> {
        match (input, op, output) {
            (1, "emi" | "evd", None) => Some("phase"),
            (2, "select_shp", None) => Some("count"),
            _ => None,
        }
    }

    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let (coherence, phase, looks) = match (self.is_weighted, inputs) {
            (false, [coherence, phase]) => (coherence, phase, None),
            (true, [coherence, phase, looks]) => (coherence, phase, Some(looks)),
            (false, _) => {
                return Err(format!(
                    "temporal_coherence takes two inputs, such as inputs = [\"coherence\", \"emi.phase\"]; the step gives it {}",
                    inputs.len()
                ));
            }
            (true, _) => {
                return Err(format!(
                    "weighted temporal_coherence takes three inputs, such as inputs = [\"coherence\", \"emi.phase\", \
                     \"select_shp.count\"]; the step gives it {}",
                    inputs.len()
                ));
            }
        };
        inputs.iter().try_for_each(|input| plain_input("temporal_coherence", input))?;
        let meta = &coherence.meta;
        let shape = MatrixShape::of("temporal_coherence", meta, self.layout)?;
        let image = stack::image_axis(self.image_axis, phase.meta.rank())?;
        let mut expected = meta.shape[..shape.leading].to_vec();
        if phase.meta.rank() == shape.leading + 1 {
            expected.insert(image, shape.images as u64);
        }
        if phase.meta.shape != expected || phase.meta.dtype != meta.dtype {
            return Err(format!(
                "the phases of {} ({} {:?}) do not fit the coherence of {}: {} {expected:?} expected; image_axis says where the \
                 images are",
                phase.meta.name, phase.meta.dtype, phase.meta.shape, meta.name, meta.dtype
            ));
        }
        let mut phase_binding = InputBinding::plain(phase.meta.rank());
        phase_binding.axes = (0..shape.leading).map(Some).collect();
        phase_binding.axes.insert(image, None);
        let mut bindings = vec![InputBinding::plain(meta.rank()), phase_binding];
        if let Some(looks) = looks {
            if looks.meta.shape != meta.shape[..shape.leading] || looks.meta.dtype.is_complex() {
                return Err(format!(
                    "the looks of {} ({} {:?}) are not one real number for each pixel of {}",
                    looks.meta.name, looks.meta.dtype, looks.meta.shape, meta.name
                ));
            }
            bindings.push(InputBinding::plain(shape.leading));
        }
        let mut output = OutputBinding::like("temporal_coherence", real_of(meta.dtype), meta);
        output.axes = (0..shape.leading).map(OutAxis::Carried).collect();
        output.attributes.shift_remove("layout");
        let whole = shape.matrix_axes(meta.rank());
        let map = TemporalMap { shape, image, is_weighted: self.is_weighted, dtype: meta.dtype };
        Ok(Binding {
            reference: 0,
            inputs: bindings,
            outputs: vec![output],
            whole,
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct TemporalMap {
    shape: MatrixShape,
    /// The phases' axis of images.
    image: usize,
    is_weighted: bool,
    dtype: DType,
}

impl TemporalMap {
    /// Doubles of one batch, for vectors of one lane: pairs, phases, looks.
    fn doubles(&self) -> usize {
        2 * self.shape.pairs() + 2 * self.shape.images + 1
    }

    fn fill<T: Cell>(
        &self,
        inputs: &[Padded],
        core: &Region,
        out: &mut [u8],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let [coherence, phase, looks @ ..] = inputs else { return Err(OperatorError::data("two or three inputs expected")) };
        let leading = self.shape.leading;
        let mut memory = work.buffer(self.doubles() * MOST_LANES * 8)?;
        matrices::run(Temporal::<T> {
            operator: self,
            pixels: Matrices::new(coherence, &self.shape, core),
            phases: Pixels::new(phase, (0..=leading).filter(|a| *a != self.image), core),
            looks: looks.first().map(|looks| Pixels::new(looks, 0..leading, core)),
            out: bytemuck::cast_slice_mut(out),
            memory: &mut memory,
            stop: work.stop,
        })
    }
}

impl MapOperator for TemporalMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let region = &task.outputs[0];
        let dtype = real_of(self.dtype);
        let mut out = work.buffer(region.count() * dtype.size())?;
        with_complex!(self.dtype, T => self.fill::<T>(&inputs, task.core, &mut out, work)?);
        Ok(vec![computed(Some(out), dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        capacity_for(self.doubles() * MOST_LANES * 8) as u64
    }
}

struct Temporal<'a, T: Cell> {
    operator: &'a TemporalMap,
    pixels: Matrices<'a>,
    phases: Pixels<'a>,
    looks: Option<Pixels<'a>>,
    out: &'a mut [T::Real],
    memory: &'a mut [u8],
    stop: &'a AtomicBool,
}

impl<T: Cell> Kernel for Temporal<'_, T> {
    type Output = Result<(), OperatorError>;

    #[inline(always)]
    fn run<V: Lanes>(mut self) -> Self::Output {
        let memory = std::mem::take(&mut self.memory);
        let vectors: &mut [V] = &mut bytemuck::cast_slice_mut::<u8, V>(memory)[..self.operator.doubles()];
        let (looks, numbers) = vectors.split_at_mut(1);
        let numbers: &mut [Complex<V>] = bytemuck::cast_slice_mut(numbers);
        let (pairs, phases) = numbers.split_at_mut(self.operator.shape.pairs());
        let mut here = [0usize; MOST_LANES];
        let mut count = 0;
        for pixel in 0..self.pixels.count() {
            if self.load::<V>(pixel, count, pairs, phases, looks) {
                here[count] = pixel;
                count += 1;
            } else {
                self.out[pixel] = T::real(f64::NAN);
            }
            if count == V::COUNT {
                self.solve(pairs, phases, looks[0], &here[..count]);
                count = 0;
                if self.stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
            }
        }
        if count > 0 {
            self.solve(pairs, phases, looks[0], &here[..count]);
        }
        Ok(())
    }
}

impl<T: Cell> Temporal<'_, T> {
    #[inline(always)]
    fn load<V: Lanes>(
        &self,
        pixel: usize,
        lane: usize,
        pairs: &mut [Complex<V>],
        phases: &mut [Complex<V>],
        looks: &mut [V],
    ) -> bool {
        if !self.pixels.load::<T, V>(pixel, lane, pairs) {
            return false;
        }
        if let Some(pixels) = &self.looks {
            bytemuck::cast_slice_mut::<V, f64>(looks)[lane] = pixels.source.number(pixels.offset(pixel));
        }
        let (start, source) = (self.phases.offset(pixel), &self.phases.source);
        let step = source.strides[self.operator.image];
        (0..self.operator.shape.images)
            .all(|image| coherence_matrix::put::<T, V>(source, start + image as isize * step, phases, image, lane))
    }

    #[inline(always)]
    fn solve<V: Lanes>(&mut self, pairs: &[Complex<V>], phases: &[Complex<V>], looks: V, pixels: &[usize]) {
        let (zero, one) = (V::zero(), V::splat(1.0));
        let noise = one.div(looks);
        let scale = one.div(one.sub(noise));
        let (mut sum, mut weights) = (Complex::<V>::zero(), zero);
        for (coherence, (i, j)) in pairs.iter().zip(all_pairs(self.operator.shape.images)) {
            let square = coherence.norm_squared();
            let model = Complex::zero().plus_conj_product(phases[i], phases[j]);
            let product = Complex::zero().plus_product(*coherence, model);
            let unit = product.scaled(square.rsqrt());
            if self.operator.is_weighted {
                let weight = square.sub(noise).mul(scale);
                let counts = weight.greater(zero);
                sum =
                    Complex { re: sum.re.add(unit.re.mul(weight).and(counts)), im: sum.im.add(unit.im.mul(weight).and(counts)) };
                weights = weights.add(weight.and(counts));
            } else {
                sum = Complex { re: sum.re.add(unit.re), im: sum.im.add(unit.im) };
                weights = weights.add(one);
            }
        }
        let mut found = [0.0; MOST_LANES];
        sum.norm_squared().sqrt().div(weights).store(&mut found);
        for (value, &pixel) in found.iter().zip(pixels) {
            self.out[pixel] = T::real(*value);
        }
    }
}
