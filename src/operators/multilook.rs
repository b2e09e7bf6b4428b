//! Multilooked interferograms: the complex coherence of pairs of images over cells of `looks` pixels, one value a cell.
//!
//! For the pair (i, j) and a cell of a x r pixels: `sum z_i * conj(z_j) / sqrt(sum |z_i|^2 * sum |z_j|^2)`; its phase is that of
//! the multilooked interferogram. The image is cut to whole cells. Sums run over the cell in C order, in double precision,
//! rounded once. A cell in which an image has no power, a NaN or a missing value gives NaN for its pairs.
//!
//! The axis of images becomes one of pairs. A cell is computed by the block in which it begins, which gets the rest of it as
//! halo: cells and blocks need not fit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use num_complex::Complex64;
use serde_json::json;

use super::pointwise::only_input;
use super::stack::{self, Cell, Missing, Pairs, Strided, complex_input, computed, plain_input, take};
use super::{
    Binding, Computed, Info, InputBinding, Kind, LaidLength, MapOperator, MapTask, Operator, OperatorError, OutAxis,
    OutputBinding, Padded, Param, StepInput, Workspace,
};
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{DType, Scalar};
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::with_complex;

pub static INFO: Info = Info {
    name: "multilook",
    summary: "complex coherence of pairs of images over cells of several pixels: smaller, less noisy interferograms",
    kind: "map",
    inputs: "one complex stack with three axes",
    outputs: "the input's dtype: spatial axes divided by the looks (rest cut off), the axis of images becomes one of pairs",
    halo: "looks - 1 after each block; the image axis is whole in every block",
    boundary: "\"none\" (default), and no other: cells are whole",
    devices: "cpu",
    cost: "one complex multiply-add a pixel and pair, and one a pixel and image",
    source: "the sample coherence over a cell: sum z_i conj(z_j) / sqrt(sum |z_i|^2 sum |z_j|^2)",
    params: &[
        Param { name: "looks", kind: "int or [int, int]", default: "", doc: "pixels of a cell along azimuth and range" },
        Param {
            name: "pairs",
            kind: Pairs::KIND,
            default: "\"all\"",
            doc: "numbers of the images; all: every i < j in row-major order",
        },
        Param {
            name: "image_axis",
            kind: "int",
            default: "-1",
            doc: "the axis of the images; the other two are azimuth and range",
        },
    ],
    build,
};

/// More pixels than this in a cell along one axis are a slip.
const MOST_LOOKS: u64 = 4096;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    if !table.has("looks") {
        table.problem("looks", "multilook needs the pixels of a cell, such as looks = [4, 20]");
    }
    let looks = table.counts("looks").and_then(|counts| match &counts {
        OneOrMany::Many(list) if list.len() != 2 => {
            table.problem("looks", format!("expected [azimuth, range], or one number for both; found {} numbers", list.len()));
            None
        }
        _ => counts.expand(2, "looks").ok().map(|list| [list[0], list[1]]),
    });
    if looks.is_some_and(|looks| !looks.iter().all(|n| (1..=MOST_LOOKS).contains(n))) {
        table.problem("looks", format!("a cell has 1 to {MOST_LOOKS} pixels along each axis"));
        return None;
    }
    let pairs = Pairs::read(table);
    let image_axis = stack::read_image_axis(table);
    Some(Box::new(Multilook { looks: looks?, pairs: pairs?, image_axis: image_axis? }))
}

struct Multilook {
    looks: [u64; 2],
    pairs: Pairs,
    image_axis: i64,
}

impl Operator for Multilook {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("multilook", inputs)?;
        plain_input("multilook", input)?;
        let meta = &input.meta;
        complex_input("multilook", meta)?;
        if meta.rank() != 3 {
            return Err(format!("multilook needs a stack with three axes, {} has {}", meta.name, meta.rank()));
        }
        let image = stack::image_axis(self.image_axis, 3)?;
        let pairs = self.pairs.of(meta.shape[image])?;
        let spatial: Vec<usize> = (0..3).filter(|a| *a != image).collect();
        let mut bound = InputBinding::plain(3);
        let mut output = OutputBinding::like("multilook", meta.dtype, meta);
        for (&axis, &looks) in spatial.iter().zip(&self.looks) {
            if meta.shape[axis] < looks {
                return Err(format!(
                    "axis {axis} of {} has {} pixels, fewer than a cell of {looks}",
                    meta.name, meta.shape[axis]
                ));
            }
            bound.depth[axis] = (0, looks - 1);
            output.axes[axis] = OutAxis::Laid { axis, length: LaidLength::Every(looks) };
        }
        output.axes[image] = OutAxis::New { len: pairs.len() as u64, name: Some("pair".to_owned()) };
        output.attributes.insert("pairs".to_owned(), json!(pairs));
        output.attributes.insert("looks".to_owned(), json!(self.looks));
        let map = MultilookMap {
            looks: self.looks.map(|n| n as usize),
            pairs,
            images: meta.shape[image] as usize,
            axes: [spatial[0], spatial[1], image],
            dtype: meta.dtype,
            missing: meta.missing,
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![bound],
            outputs: vec![output],
            whole: vec![image],
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct MultilookMap {
    looks: [usize; 2],
    pairs: Vec<(usize, usize)>,
    images: usize,
    /// Azimuth, range and image axis.
    axes: [usize; 3],
    dtype: DType,
    missing: Option<Scalar>,
}

impl MultilookMap {
    /// The samples of a cell, image by image, and the power of each image.
    fn sample_bytes(&self) -> usize {
        self.images * self.looks[0] * self.looks[1] * size_of::<Complex64>()
    }

    fn fill<T: Cell + PartialEq>(
        &self,
        input: &Padded,
        task: &MapTask<'_>,
        out: &mut [T],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let mut samples = work.buffer(self.sample_bytes())?;
        let mut powers = work.buffer(self.images * 8)?;
        let (samples, powers) = (samples.as_mut_slice_of::<Complex64>(), powers.as_mut_slice_of::<f64>());
        let source = Strided::new(input);
        let missing = Missing::<T>::new(self.missing);
        let [azimuth, range, image] = self.axes;
        let region = &task.outputs[0];
        let shape = region.shape();
        // Elements of the output from one cell, or pair, to the next.
        let step = |axis: usize| shape[axis + 1..].iter().product::<usize>();
        let per_cell = self.looks[0] * self.looks[1];
        for row in 0..shape[azimuth] {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            for col in 0..shape[range] {
                let first_row = (region.start[azimuth] + row as i64) * self.looks[0] as i64;
                let first_col = (region.start[range] + col as i64) * self.looks[1] as i64;
                powers.fill(0.0);
                for look in 0..per_cell {
                    let mut at = [0i64; 3];
                    at[azimuth] = first_row + (look / self.looks[1]) as i64;
                    at[range] = first_col + (look % self.looks[1]) as i64;
                    let start = source.offset(&at);
                    for (n, power) in powers.iter_mut().enumerate() {
                        let z = missing.wide(source.get::<T>(start + n as isize * source.strides[image]));
                        samples[n * per_cell + look] = z;
                        *power += z.re * z.re + z.im * z.im;
                    }
                }
                for (pair, &(i, j)) in self.pairs.iter().enumerate() {
                    let (mut re, mut im) = (0.0, 0.0);
                    let (first, second) = (&samples[i * per_cell..][..per_cell], &samples[j * per_cell..][..per_cell]);
                    for (a, b) in first.iter().zip(second) {
                        re += a.re * b.re + a.im * b.im;
                        im += a.im * b.re - a.re * b.im;
                    }
                    let length = powers[i].sqrt() * powers[j].sqrt();
                    out[row * step(azimuth) + col * step(range) + pair * step(image)] = T::new(re / length, im / length);
                }
            }
        }
        Ok(())
    }
}

impl MapOperator for MultilookMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let region = &task.outputs[0];
        let mut out = work.buffer(region.count() * self.dtype.size())?;
        if !region.is_empty() {
            with_complex!(self.dtype, T => self.fill::<T>(&input, task, out.as_mut_slice_of(), work)?);
        }
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        (capacity_for(self.sample_bytes()) + capacity_for(self.images * 8)) as u64
    }
}
