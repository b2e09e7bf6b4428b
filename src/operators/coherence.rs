//! The empirical coherence of all pairs of images at each pixel, over the pixels that a mask selects around it.
//!
//! For pixel (azimuth, range) and images m, j: `S_mj = sum of z_m * conj(z_j)` over the selected pixels of the window (those
//! outside the image are left out; the pixel itself takes part only if its cell is selected), and the coherence is
//! `S_mj / sqrt(S_mm * S_jj)`. Sums run over the window in C order, in double precision with fused multiply-adds, and the
//! result is rounded once.
//!
//! `layout = "pairs"`: (azimuth, range, pair), pairs (i < j) in row-major order. `"full"`: (azimuth, range, image, image),
//! Hermitian, ones on the diagonal. An image without power in the window gives NaN in its pairs (and on its diagonal), and
//! so does one with a NaN or missing value there; other pairs are not touched. Pixels with fewer than `min_count` selected
//! cells are NaN and cost nothing.
//!
//! Cost for N images: N^2 / 2 complex multiply-adds for each selected pixel.

mod kernel;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::json;

use super::coherence_matrix::Layout;
use super::shp_mask::{self, Form, Window};
use super::stack::{self, Cell, complex_input, computed, plain_input, take};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded,
    Param, StepInput, Workspace, matrices,
};
use crate::array::{DType, Scalar};
use crate::config::table::Table;
use crate::with_complex;

pub static INFO: Info = Info {
    name: "coherence",
    summary: "empirical complex coherence of all pairs of images over the pixels that a mask selects",
    kind: "map",
    inputs: "a complex stack with three axes, and a mask as select_shp makes it (or bool (azimuth, range, window, window))",
    outputs: "the stack's dtype: (azimuth, range, pair), pairs i < j in row-major order, or (azimuth, range, image, image)",
    halo: "the mask's half window on the two spatial axes of the stack; the image axis is whole in every block",
    boundary: "\"none\" (default), and no other: pixels outside the image do not take part",
    devices: "cpu",
    cost: "N^2 / 2 complex multiply-adds a selected pixel of the window, for N images",
    source: "the sample coherence (maximum likelihood under circular Gaussian scattering): sum z_m conj(z_j) / sqrt(sum |z_m|^2 sum |z_j|^2)",
    params: &[
        Param { name: "min_count", kind: "int", default: "1", doc: "pixels with fewer selected cells are NaN, at no cost" },
        Param {
            name: "layout",
            kind: "\"pairs\" | \"full\"",
            default: "\"pairs\"",
            doc: "pairs: each pair once; full: the Hermitian matrix, twice the size",
        },
        Param {
            name: "image_axis",
            kind: "int",
            default: "-1",
            doc: "the stack's axis of images; the other two are azimuth and range",
        },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let min_count = if table.has("min_count") { table.count("min_count")? } else { 1 };
    let layout = Layout::read(table)?.unwrap_or(Layout::Pairs);
    let image_axis = stack::read_image_axis(table)?;
    if table.get("points").is_some() {
        table.problem(
            "points",
            "belongs to the output: [output] points = \"index\" stores a list of the pixels that have a value",
        );
        return None;
    }
    Some(Box::new(Coherence { min_count, layout, image_axis }))
}

struct Coherence {
    min_count: u64,
    layout: Layout,
    image_axis: i64,
}

impl Operator for Coherence {
    fn reads(&self, input: usize, op: &str, output: Option<&str>) -> Option<&'static str> {
        (input == 1 && op == "select_shp" && output.is_none()).then_some("mask")
    }

    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let [slc, mask] = inputs else {
            return Err(format!(
                "coherence takes two inputs, a stack and a mask, such as inputs = [\"input\", \"select_shp.mask\"]; the step gives it {}",
                inputs.len()
            ));
        };
        plain_input("coherence", slc)?;
        plain_input("coherence", mask)?;
        let meta = &slc.meta;
        complex_input("coherence", meta)?;
        if meta.rank() != 3 {
            return Err(format!("coherence needs a stack with three axes, {} has {}", meta.name, meta.rank()));
        }
        let image = stack::image_axis(self.image_axis, 3)?;
        let spatial: Vec<usize> = (0..3).filter(|a| *a != image).collect();
        let images = meta.shape[image];
        if !(2..=Layout::MOST_IMAGES).contains(&images) {
            return Err(format!(
                "coherence takes 2 to {} images, axis {image} of {} has {images}; select fewer, or give image_axis",
                Layout::MOST_IMAGES,
                meta.name
            ));
        }
        let (form, window) = shp_mask::recognise(&mask.meta)?;
        for (i, &axis) in spatial.iter().enumerate() {
            if mask.meta.shape[i] != meta.shape[axis] {
                return Err(format!(
                    "axis {i} of {} has length {}, axis {axis} of {} has {}: mask and stack are not of one image",
                    mask.meta.name, mask.meta.shape[i], meta.name, meta.shape[axis]
                ));
            }
        }
        let mut stack_binding = InputBinding::plain(3);
        for (&axis, half) in spatial.iter().zip([window.half.0, window.half.1]) {
            stack_binding.depth[axis] = (half as u64, half as u64);
        }
        let mut mask_binding = InputBinding::plain(mask.meta.rank());
        mask_binding.axes = (0..mask.meta.rank()).map(|i| spatial.get(i).copied()).collect();
        let mut output = OutputBinding::like("coherence", meta.dtype, meta);
        output.axes = spatial.iter().map(|a| OutAxis::Carried(*a)).collect();
        output.axes.extend(self.layout.axes(images));
        output.attributes.insert("layout".to_owned(), json!(self.layout.name()));
        output.attributes.insert("images".to_owned(), json!(images));
        output.attributes.insert("min_count".to_owned(), json!(self.min_count));
        let map = CoherenceMap {
            form,
            window,
            layout: self.layout,
            min_count: self.min_count,
            images: images as usize,
            axes: [spatial[0], spatial[1], image],
            size: [meta.shape[spatial[0]] as i64, meta.shape[spatial[1]] as i64],
            dtype: meta.dtype,
            missing: meta.missing,
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![stack_binding, mask_binding],
            outputs: vec![output],
            whole: vec![image],
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct CoherenceMap {
    form: Form,
    window: Window,
    layout: Layout,
    min_count: u64,
    images: usize,
    /// Azimuth, range and image axis of the stack.
    axes: [usize; 3],
    /// Size of the image.
    size: [i64; 2],
    dtype: DType,
    missing: Option<Scalar>,
}

impl CoherenceMap {
    fn fill<T: Cell + PartialEq>(
        &self,
        inputs: &[Padded; 2],
        task: &MapTask<'_>,
        out: &mut [u8],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let mut samples = work.buffer(kernel::sample_bytes(&self.window, self.images))?;
        let mut cells = work.buffer(kernel::cell_bytes(&self.window))?;
        let mut sums = work.buffer(kernel::sum_bytes(self.images))?;
        let slc = stack::Strided::new(&inputs[0]);
        let strides = self.axes.map(|axis| slc.strides[axis]);
        let core = [task.core.axis(self.axes[0]), task.core.axis(self.axes[1])];
        matrices::run(kernel::Coherences {
            operator: self,
            slc,
            strides,
            masks: shp_mask::Masks::new(&inputs[1], self.form, self.window),
            missing: stack::Missing::<T>::new(self.missing),
            core,
            samples: samples.as_mut_slice_of::<f64>(),
            cells: cells.as_mut_slice_of::<usize>(),
            sums: sums.as_mut_slice_of::<f64>(),
            out: bytemuck::cast_slice_mut(out),
            stop: work.stop,
        })
    }
}

impl MapOperator for CoherenceMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let inputs = take::<2>(inputs)?;
        let region = &task.outputs[0];
        let mut out = work.buffer(region.count() * self.dtype.size())?;
        if !region.is_empty() {
            with_complex!(self.dtype, T => self.fill::<T>(&inputs, task, &mut out, work)?);
        }
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        let [samples, cells] = [kernel::sample_bytes(&self.window, self.images), kernel::cell_bytes(&self.window)];
        (samples + cells + kernel::sum_bytes(self.images)) as u64
    }
}
