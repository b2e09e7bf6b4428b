//! `gst_dip`: the dip of reflectors by the gradient structure tensor, along one axis of traces or two.
//!
//! The derivatives along traces and samples (gaussian of order 1) make the tensor `J_ab = g_a g_b`, which is smoothed. Its first
//! eigenvector is the direction `n` across the reflector, and the dip along an axis `x` of traces is its angle with the
//! samples' axis `z`: `atan(n_x / n_z)`, in radians from -pi/2 to pi/2. Its tangent is samples per trace, positive where
//! the gradient turns towards higher trace numbers. Along one axis that is `atan2(2 J_xz, J_zz - J_xx) / 2`, and each plane of
//! traces and samples is computed for itself. 0 where there is no gradient at all; a NaN spreads as far as the filters reach.
//! (N. Bakker, Image structure analysis for seismic interpretation, PhD thesis, TU Delft, 2002.)
//!
//! Derivatives and products are arrays of their own with edges of their own: what lies outside is taken from them, as scipy's
//! filters do on whole arrays.

mod tensor;

use std::sync::atomic::Ordering;

use super::super::filters::chain::{Chain, Reach};
use super::super::filters::frame::{Frame, MAX_WINDOW};
use super::super::filters::gaussian::weights;
use super::super::filters::kernel::Kernel;
use super::super::filters::lines::{Combine, Layout, tile_len};
use super::super::filters::sample::{Sample, with_sample};
use super::super::filters::{buffer_bytes, buffers, shape_of};
use super::super::pointwise::{each_run, only_input};
use super::super::stack::{computed, take};
use super::super::{
    Binding, Computed, Info, MapOperator, MapTask, Operator, OperatorError, Padded, Param, StepInput, Workspace, axis_at,
};
use super::traces::Stored;
use super::{ATTRIBUTE, AXIS, attribute_dtype, output, read_axis, read_positive};
use crate::array::block::{c_strides, copy_strided};
use crate::array::budget::BudgetError;
use crate::array::grid::for_each_index;
use crate::array::{Block, Buffer, DType, Region, Rule};
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::simd::{Vectored, widest};
use tensor::Form;

pub static INFO: Info = Info {
    name: "gst_dip",
    summary: "dip of reflectors along one axis of traces or two, in radians, by the gradient structure tensor",
    inputs: "one array of integers, float32 or float64, with two axes or more",
    boundary: "\"nearest\" (default), \"reflect\", \"mirror\", \"periodic\"; per axis and side; no number, not \"none\"",
    outputs: "float64 of float64 and of integers of 32 and 64 bits, else float32; the input's shape. Of two axes of traces one output each, `dip_A` along axis A",
    halo: "int(truncate * gradient_sigma + 0.5) + int(truncate * sigma + 0.5) on both sides of the axes of the tensor",
    cost: "two derivatives, two smoothings of two axes and an arc tangent a sample; of two axes of traces three derivatives, six smoothings of three axes, a 3 x 3 eigenvector and two arc tangents",
    source: "0.5 * numpy.arctan2(2 Jxz, Jzz - Jxx), or the last vector of numpy.linalg.eigh, with scipy.ndimage.gaussian_filter1d for derivatives and smoothing",
    params: &[
        AXIS,
        Param {
            name: "spatial_axis",
            kind: "int or [int, int]",
            default: "the other one of two axes",
            doc: "the axis of the traces along which the dip is measured, or two of them, with a tensor of all three directions",
        },
        Param {
            name: "gradient_sigma",
            kind: "number",
            default: "1.0",
            doc: "standard deviation of the derivatives' gaussian, in elements",
        },
        Param {
            name: "sigma",
            kind: "number or [number, number]",
            default: "[2.0, 4.0]",
            doc: "standard deviation of the smoothing, in elements: along the traces and along the samples",
        },
        Param { name: "truncate", kind: "number", default: "4.0", doc: "gaussians are cut at this many standard deviations" },
    ],
    build,
    ..ATTRIBUTE
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let axis = read_axis(table);
    let spatial_axes = match table.integers("spatial_axis") {
        Some(OneOrMany::One(axis)) => vec![axis],
        Some(OneOrMany::Many(list)) => list,
        None if table.has("spatial_axis") => return None,
        None => Vec::new(),
    };
    if spatial_axes.len() > 2 {
        table.problem("spatial_axis", format!("expected one axis or two, found {}", spatial_axes.len()));
        return None;
    }
    let gradient_sigma = read_positive(table, "gradient_sigma", 1.0);
    let truncate = read_positive(table, "truncate", 4.0);
    let sigma = if table.has("sigma") { table.numbers("sigma")? } else { OneOrMany::Many(vec![2.0, 4.0]) };
    let sigma = match &sigma {
        OneOrMany::One(one) => [*one; 2],
        OneOrMany::Many(list) => *<&[f64; 2]>::try_from(&list[..]).unwrap_or(&[f64::NAN; 2]),
    };
    if !sigma.iter().all(|s| s.is_finite() && *s > 0.0) {
        table.problem("sigma", "expected a number above zero, or two: along the traces and along the samples");
        return None;
    }
    let (gradient_sigma, truncate) = (gradient_sigma?, truncate?);
    // Saturates far beyond what is allowed.
    let radius = |sigma: f64| (truncate * sigma + 0.5) as u64;
    for (key, sigma) in [("gradient_sigma", gradient_sigma), ("sigma", sigma[0]), ("sigma", sigma[1])] {
        if radius(sigma) > MAX_WINDOW / 4 {
            table.problem(key, format!("reaches {} cells, at most {} are possible", radius(sigma), MAX_WINDOW / 4));
            return None;
        }
    }
    let gaussian = |sigma: f64, order: usize| Gaussian::new(sigma, order, radius(sigma) as usize);
    let (gradient, smoothing) = (gaussian(gradient_sigma, 1), sigma.map(|sigma| gaussian(sigma, 0)));
    Some(Box::new(GstDip { axis: axis?, spatial_axes, gradient, smoothing }))
}

/// A gaussian along one axis, or its derivative.
#[derive(Clone)]
struct Gaussian {
    kernel: Kernel,
    radius: usize,
}

impl Gaussian {
    fn new(sigma: f64, order: usize, radius: usize) -> Self {
        Self { kernel: Kernel::correlation(&weights(sigma, order, radius)), radius }
    }

    fn along(&self, axis: usize) -> Reach {
        Reach { axis, before: self.radius, after: self.radius }
    }
}

struct GstDip {
    axis: i64,
    /// Of the traces; none: the other one of two.
    spatial_axes: Vec<i64>,
    gradient: Gaussian,
    /// Along the traces and along the samples.
    smoothing: [Gaussian; 2],
}

impl Operator for GstDip {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("gst_dip", inputs)?;
        let meta = &input.meta;
        let rank = meta.rank();
        let dtype = attribute_dtype("gst_dip", meta.dtype)?;
        let samples = axis_at("axis", self.axis, rank)?;
        let mut axes =
            self.spatial_axes.iter().map(|axis| axis_at("spatial_axis", *axis, rank)).collect::<Result<Vec<_>, _>>()?;
        if axes.is_empty() {
            if rank != 2 {
                return Err(format!("{} has {rank} axes: say along which the dip is measured with spatial_axis", meta.name));
            }
            axes.push(1 - samples);
        }
        axes.push(samples);
        if (1..axes.len()).any(|n| axes[..n].contains(&axes[n])) {
            return Err(format!(
                "axis and spatial_axis name an axis twice: {axes:?}; dips are between the samples' axis and others"
            ));
        }
        if let Some(number) = input.boundary.iter().flatten().flatten().find(|rule| matches!(rule, Rule::Constant(_))) {
            return Err(format!(
                "gst_dip has no use for the boundary {number}: derivatives and their products are not the array's values"
            ));
        }
        let nearest = || vec![[Rule::Nearest; 2]; rank];
        let input = StepInput { boundary: Some(input.boundary.clone().unwrap_or_else(nearest)), ..input.clone() };
        let frame = Frame::new("gst_dip", std::slice::from_ref(&input), false)?;
        let smoothing = axes.iter().map(|axis| self.smoothing[usize::from(*axis == samples)].clone()).collect::<Vec<_>>();
        let (mut depth, mut smoothed) = (vec![0; rank], vec![0; rank]);
        for (axis, smoothing) in axes.iter().zip(&smoothing) {
            smoothed[*axis] = smoothing.radius as u64;
            depth[*axis] = (smoothing.radius + self.gradient.radius) as u64;
        }
        let names: Vec<String> = match axes[..] {
            [_, _] => vec!["gst_dip".to_owned()],
            _ => axes[..axes.len() - 1].iter().map(|axis| format!("dip_{axis}")).collect(),
        };
        let map = GstMap {
            doubles: frame.in_doubles()?,
            frame: frame.clone(),
            axes,
            gradient: self.gradient.clone(),
            smoothing,
            smoothed,
            depth: depth.clone(),
            dtype,
        };
        let mut binding = frame.bind(&input, &depth, map, false, false)?;
        binding.outputs = names.iter().map(|name| output(name, dtype, meta)).collect();
        Ok(binding)
    }
}

/// The bound operator.
struct GstMap {
    frame: Frame,
    /// The same array, for the steps between.
    doubles: Frame,
    /// Those of the traces, then that of the samples.
    axes: Vec<usize>,
    gradient: Gaussian,
    /// One per axis of the tensor.
    smoothing: Vec<Gaussian>,
    /// What the smoothing needs around a cell, per axis of the array, and what both do.
    smoothed: Vec<u64>,
    depth: Vec<u64>,
    dtype: DType,
}

/// Bytes to work in for one part of a core.
struct Sizes {
    /// The input as doubles, then a product of derivatives.
    field: u64,
    /// Each derivative, then dips.
    derivative: u64,
    /// Each smoothed field.
    smooth: u64,
    between: u64,
    tile: u64,
}

impl GstMap {
    /// A core's shape with one cell along the axes that the tensor does not have.
    fn part(&self, core: &[u64]) -> Vec<u64> {
        let len = |axis: usize| core.get(axis).copied().unwrap_or(1);
        (0..self.frame.rank()).map(|a| if self.axes.contains(&a) { len(a) } else { 1 }).collect()
    }

    fn sizes(&self, core: &[u64]) -> Sizes {
        let part = self.part(core);
        let bytes = |shape: &[u64]| shape.iter().fold(size_of::<f64>() as u64, |n, len| n.saturating_mul(*len));
        let derivative = self.doubles.grown_shape(&part, &self.smoothed);
        let longest = self.axes.iter().map(|axis| self.chain(&[self.gradient.along(*axis)]).line_len(&derivative)).max();
        let smoothings = self.smoothings();
        let smoothing = self.chain(&smoothings);
        let tile = tile_len(smoothing.line_len(&part).max(longest.unwrap_or(0)), size_of::<f64>());
        Sizes {
            field: bytes(&self.doubles.grown_shape(&part, &self.depth)),
            derivative: bytes(&derivative),
            smooth: bytes(&part),
            between: bytes(&[smoothing.between_len(&part)]),
            tile: bytes(&[tile]),
        }
    }

    fn chain<'a>(&'a self, reaches: &'a [Reach]) -> Chain<'a> {
        Chain { frame: &self.doubles, reaches }
    }

    fn smoothings(&self) -> Vec<Reach> {
        self.axes.iter().zip(&self.smoothing).map(|(axis, gaussian)| gaussian.along(*axis)).collect()
    }

    fn forms(&self) -> &'static [Form] {
        tensor::forms(self.axes.len() - 1)
    }

    fn fill<T: Stored>(
        &self,
        input: &Padded,
        region: &Region,
        out: &mut [Option<Buffer>],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let (block, have) = self.frame.take(input, region, &self.depth)?;
        let sizes = self.sizes(&shape_of(region));
        let [mut field, mut between, mut tile] = buffers(work, [sizes.field, sizes.between, sizes.tile])?;
        let [field, between, tile] = [&mut field, &mut between, &mut tile].map(|buffer| buffer.as_mut_slice_of::<f64>());
        let mut several = |count: usize, bytes: u64| -> Result<Vec<Buffer>, OperatorError> {
            (0..count).map(|_| buffers(work, [bytes]).map(|[buffer]| buffer)).collect()
        };
        let mut derivatives = several(self.axes.len(), sizes.derivative)?;
        let mut smooth = several(self.forms().len(), sizes.smooth)?;
        let strides = c_strides(&region.shape(), size_of::<T>());
        let others: Vec<Vec<u64>> =
            (0..region.rank()).map(|a| (0..if self.axes.contains(&a) { 1 } else { region.len(a) as u64 }).collect()).collect();
        let others: Vec<&[u64]> = others.iter().map(Vec::as_slice).collect();
        for_each_index(&others, |index| {
            let mut core = region.clone();
            for axis in (0..region.rank()).filter(|a| !self.axes.contains(a)) {
                core.start[axis] += index[axis] as i64;
                core.stop[axis] = core.start[axis] + 1;
            }
            let around = self.doubles.grow(&core, &self.depth);
            with_sample!(block.dtype(), S => widen::<S>(&block.cut(&have, &around), field));
            let mut derivatives: Vec<&mut [f64]> = derivatives.iter_mut().map(|d| d.as_mut_slice_of()).collect();
            let inside = self.doubles.grow(&core, &self.smoothed);
            for (axis, derivative) in self.axes.iter().zip(&mut derivatives) {
                going(work)?;
                let source = (&*field, Layout::within(&around, &around), &around);
                let filter = &mut |_, tile: &mut [f64], step, count| self.gradient.kernel.apply(tile, &mut [], step, count);
                let (reaches, out) = ([self.gradient.along(*axis)], (&mut **derivative, Combine::Set));
                self.chain(&reaches).run_cells(source, &inside, out, &mut [], tile, filter);
            }
            for (form, smooth) in self.forms().iter().zip(&mut smooth) {
                going(work)?;
                let product = &mut field[..inside.count()];
                widest(Product { form: *form, derivatives: &derivatives, out: &mut *product });
                let source = (&*product, Layout::within(&inside, &inside), &inside);
                let filter = &mut |n: usize, tile: &mut [f64], step, count| {
                    self.smoothing[n].kernel.apply(tile, &mut [], step, count);
                };
                let out = (smooth.as_mut_slice_of(), Combine::Set);
                self.chain(&self.smoothings()).run_cells(source, &core, out, between, tile, filter);
            }
            let cells = core.count();
            let smooth: Vec<&[f64]> = smooth.iter().map(|s| &bytemuck::cast_slice(&s[..])[..cells]).collect();
            let Some((spare, dips)) = derivatives.split_last_mut() else { return Ok(()) };
            let mut dips: Vec<&mut [f64]> = dips.iter_mut().map(|d| &mut d[..cells]).collect();
            tensor::dips(&smooth, &mut dips);
            let (shape, size) = (core.shape(), size_of::<T>());
            let target = index.iter().zip(&strides).map(|(i, step)| *i as isize * step).sum();
            for (dips, out) in dips.iter().zip(&mut *out) {
                let Some(out) = out else { continue };
                let stored: &mut [T] = &mut bytemuck::cast_slice_mut(spare)[..cells];
                stored.iter_mut().zip(&**dips).for_each(|(cell, dip)| *cell = T::of(*dip));
                copy_strided(out, target, &strides, bytemuck::cast_slice(stored), 0, &c_strides(&shape, size), &shape, size);
            }
            Ok(())
        })
    }
}

/// An error where the job is being stopped.
fn going(work: &Workspace<'_>) -> Result<(), OperatorError> {
    if work.stop.load(Ordering::Relaxed) { Err(BudgetError::Stopped.into()) } else { Ok(()) }
}

/// The elements as doubles, in C order.
fn widen<S: Sample>(block: &Block, field: &mut [f64]) {
    each_run::<S>(block, |at, values| {
        widest(Widen(values, &mut field[at..][..values.len()]));
        None
    });
}

struct Widen<'a, S>(&'a [S], &'a mut [f64]);

impl<S: Sample> Vectored for Widen<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.0.iter().zip(self.1).for_each(|(value, cell)| *cell = value.to_f64());
    }
}

struct Product<'a> {
    form: Form,
    derivatives: &'a [&'a mut [f64]],
    out: &'a mut [f64],
}

impl Vectored for Product<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let each = self.out.iter_mut();
        match self.form {
            Form::Product(a, b) => {
                each.zip(&*self.derivatives[a]).zip(&*self.derivatives[b]).for_each(|((out, a), b)| *out = a * b);
            }
            Form::Squares(a, b) => {
                each.zip(&*self.derivatives[a]).zip(&*self.derivatives[b]).for_each(|((out, a), b)| *out = a * a - b * b);
            }
        }
    }
}

impl MapOperator for GstMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let region = &task.outputs[0];
        let mut out = Vec::with_capacity(task.wanted.len());
        for wanted in task.wanted {
            out.push(if *wanted { Some(work.buffer(region.count() * self.dtype.size())?) } else { None });
        }
        if !region.is_empty() {
            match self.dtype {
                DType::F64 => self.fill::<f64>(&input, region, &mut out, work)?,
                _ => self.fill::<f32>(&input, region, &mut out, work)?,
            }
        }
        Ok(out.into_iter().map(|out| computed(out, self.dtype, region)).collect())
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        let Sizes { field, derivative, smooth, between, tile } = self.sizes(core);
        let mut list = vec![field, between, tile];
        list.extend(vec![derivative; self.axes.len()]);
        list.extend(vec![smooth; self.forms().len()]);
        buffer_bytes(&list)
    }
}
