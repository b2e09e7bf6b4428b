//! The amplitude dispersion of each pixel of an image stack: standard deviation by mean of the amplitude, the usual first
//! measure of how stable a scatterer is (permanent scatterers: below 0.25 to 0.4).
//!
//! Complex pixels stand for |z|, computed in float64 and rounded once (see `amplitude`). Mean and population variance in two
//! passes over the images, in their order, in double precision. NaN where any image has a NaN or missing value, and where the
//! mean is zero.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ks_test::load::Source;
use super::pointwise::only_input;
use super::stack::{self, computed, plain_input, take};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded,
    Param, StepInput, Workspace,
};
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{DType, Scalar};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "amplitude_dispersion",
    summary: "standard deviation by mean of each pixel's amplitude through an image stack",
    kind: "map",
    inputs: "one stack with three axes; complex (taken as amplitude), float, or integer of up to 32 bits",
    outputs: "float32 (float64 of float64 and complex128): the two spatial axes",
    halo: "none; the image axis is whole in every block",
    boundary: "-",
    devices: "cpu",
    cost: "two looks at each image of a pixel",
    source: "A. Ferretti, C. Prati and F. Rocca, Permanent scatterers in SAR interferometry, IEEE Trans. Geosci. Remote Sens. 39 (2001): D_A",
    params: &[Param { name: "image_axis", kind: "int", default: "-1", doc: "the axis of the images" }],
    build,
};

/// Columns computed side by side: their samples stay in the cache.
const WIDTH: usize = 128;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    Some(Box::new(AmplitudeDispersion { image_axis: stack::read_image_axis(table)? }))
}

struct AmplitudeDispersion {
    image_axis: i64,
}

impl Operator for AmplitudeDispersion {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("amplitude_dispersion", inputs)?;
        plain_input("amplitude_dispersion", input)?;
        let meta = &input.meta;
        stack::amplitudes_input("amplitude_dispersion", meta)?;
        let image = stack::image_axis(self.image_axis, 3)?;
        if meta.shape[image] == 0 {
            return Err(format!("axis {image} of {} holds no image; give image_axis", meta.name));
        }
        let spatial: Vec<usize> = (0..3).filter(|a| *a != image).collect();
        let wide = matches!(meta.dtype, DType::F64 | DType::C128);
        let dtype = if wide { DType::F64 } else { DType::F32 };
        let mut output = OutputBinding::like("amplitude_dispersion", dtype, meta);
        output.axes = spatial.iter().map(|a| OutAxis::Carried(*a)).collect();
        let map = DispersionMap {
            axes: [spatial[0], spatial[1], image],
            images: meta.shape[image] as usize,
            missing: meta.missing,
            dtype,
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(3)],
            outputs: vec![output],
            whole: vec![image],
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct DispersionMap {
    /// Azimuth, range and image axis.
    axes: [usize; 3],
    images: usize,
    missing: Option<Scalar>,
    dtype: DType,
}

impl DispersionMap {
    fn sample_bytes(&self) -> usize {
        self.images * WIDTH * 8
    }
}

impl MapOperator for DispersionMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let source = Source::new(&input, self.axes, self.missing);
        let region = &task.outputs[0];
        let size = self.dtype.size();
        let mut out = work.buffer(region.count() * size)?;
        let mut samples = work.buffer(self.sample_bytes())?;
        let samples = samples.as_mut_slice_of::<f64>();
        let mut invalid = [0u8; WIDTH];
        let (rows, cols) = (region.axis(0), region.axis(1));
        let mut values = out.chunks_exact_mut(size);
        for row in rows.0..rows.1 {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            for left in (cols.0..cols.1).step_by(WIDTH) {
                let right = (left + WIDTH as i64).min(cols.1);
                source.load(row, left..right, self.images, samples, (WIDTH, 0), &mut invalid);
                let found = dispersions(samples, self.images);
                let found = found.iter().zip(&invalid).map(|(v, invalid)| if *invalid == 0 { *v } else { f64::NAN });
                for (value, out) in found.take((right - left) as usize).zip(&mut values) {
                    match self.dtype {
                        DType::F64 => out.copy_from_slice(&value.to_ne_bytes()),
                        _ => out.copy_from_slice(&(value as f32).to_ne_bytes()),
                    }
                }
            }
        }
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        capacity_for(self.sample_bytes()) as u64
    }
}

/// Of every column of `samples` ([image][column]).
fn dispersions(samples: &[f64], images: usize) -> [f64; WIDTH] {
    let count = images as f64;
    let rows = || samples.chunks_exact(WIDTH).take(images);
    let mut mean = [0.0; WIDTH];
    for row in rows() {
        mean.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
    }
    mean.iter_mut().for_each(|sum| *sum /= count);
    let mut squares = [0.0; WIDTH];
    for row in rows() {
        for ((sum, v), mean) in squares.iter_mut().zip(row).zip(&mean) {
            let difference = v - mean;
            *sum += difference * difference;
        }
    }
    std::array::from_fn(|i| (squares[i] / count).sqrt() / mean[i])
}

#[cfg(test)]
mod tests {
    use num_complex::Complex32;

    use super::super::testing::{Whole, bind, map_one, values};
    use crate::array::{Block, Region};

    #[test]
    fn deviation_by_mean() {
        // numpy: a = numpy.array([...]); a.std(axis=-1) / a.mean(axis=-1)
        let stack = [1.0f64, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, 1.0, f64::NAN, 1.0, 1.0];
        let whole = Whole::new(Block::from_values(&[2, 2, 4], &stack));
        let bound = bind("amplitude_dispersion", "", &[&whole]).unwrap();
        let got: Vec<f64> = values(&map_one(&bound, &[&whole], &Region::whole(&[2, 2, 4])).unwrap());
        assert!((got[0] - 0.447_213_595_499_957_9).abs() < 1e-15 && got[1] == 0.0);
        assert!(got[2].is_nan() && got[3].is_nan());
    }

    #[test]
    fn dates_may_come_first_and_columns_may_be_many() {
        let (rows, cols, n) = (3u64, 300u64, 5u64);
        let z: Vec<Complex32> = (0..rows * cols * n).map(|i| Complex32::new((i % 97) as f32 + 1.0, (i % 13) as f32)).collect();
        let last = Whole::new(Block::from_values(&[3, 300, 5], &z));
        let mut first = Whole::new(last.block.transposed(&[2, 0, 1]));
        first.meta.shape = vec![n, rows, cols];
        let run = |whole: &Whole, lines: &str, core: &Region| -> Vec<f32> {
            values(&map_one(&bind("amplitude_dispersion", lines, &[whole]).unwrap(), &[whole], core).unwrap())
        };
        let want = run(&last, "", &Region::whole(&[rows, cols, n]));
        assert_eq!(run(&first, "image_axis = 0", &Region::whole(&[n, rows, cols])), want);
        let part = Region::from_ranges(&[(1, 3), (130, 299), (0, 5)]);
        assert_eq!(run(&last, "", &part)[..169], want[300 + 130..300 + 299]);
        for (pixel, got) in z.chunks(5).zip(&want) {
            let a: Vec<f64> = pixel.iter().map(|z| f64::from(super::super::amplitude::of_complex64(*z))).collect();
            let mean = a.iter().sum::<f64>() / 5.0;
            let variance = a.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5.0;
            assert!((f64::from(*got) - variance.sqrt() / mean).abs() < 1e-6);
        }
    }
}
