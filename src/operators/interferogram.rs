//! Interferograms: the products of pairs of images of a complex stack.
//!
//! For the pair (i, j): `z_i * conj(z_j)`, computed in double precision and rounded once; with `unit = true` divided by its
//! length, so that only the phase is left (NaN where either image is zero). The axis of images becomes one of pairs, in the
//! order given. NaN or a missing value gives NaN.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use num_complex::Complex64;
use serde_json::json;

use super::pointwise::only_input;
use super::stack::{self, Cell, Missing, Pairs, Strided, complex_input, computed, plain_input, take};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis, OutputBinding, Padded,
    Param, StepInput, Workspace,
};
use crate::array::budget::BudgetError;
use crate::array::grid::for_each_index;
use crate::array::{DType, Scalar};
use crate::config::table::Table;
use crate::with_complex;

pub static INFO: Info = Info {
    name: "interferogram",
    summary: "products of pairs of images of a complex stack, or their phases alone",
    kind: "map",
    inputs: "one complex array, with an axis of images",
    outputs: "the input's dtype; the axis of images becomes one of pairs",
    halo: "none; the image axis is whole in every block",
    boundary: "-",
    devices: "cpu",
    cost: "one complex product a pixel and pair",
    source: "the definition: z_i conj(z_j)",
    params: &[
        Param {
            name: "pairs",
            kind: Pairs::KIND,
            default: "\"all\"",
            doc: "numbers of the images; all: every i < j in row-major order",
        },
        Param { name: "unit", kind: "bool", default: "false", doc: "divide each product by its length: phases only" },
        Param { name: "image_axis", kind: "int", default: "-1", doc: "the axis of the images" },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let pairs = Pairs::read(table);
    let is_unit = table.bool("unit").unwrap_or(false);
    let image_axis = stack::read_image_axis(table);
    Some(Box::new(Interferogram { pairs: pairs?, is_unit, image_axis: image_axis? }))
}

struct Interferogram {
    pairs: Pairs,
    is_unit: bool,
    image_axis: i64,
}

impl Operator for Interferogram {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("interferogram", inputs)?;
        plain_input("interferogram", input)?;
        let meta = &input.meta;
        complex_input("interferogram", meta)?;
        let image = stack::image_axis(self.image_axis, meta.rank())?;
        let pairs = self.pairs.of(meta.shape[image])?;
        let mut output = OutputBinding::like("interferogram", meta.dtype, meta);
        output.axes[image] = OutAxis::New { len: pairs.len() as u64, name: Some("pair".to_owned()) };
        output.attributes.insert("pairs".to_owned(), json!(pairs));
        let map = ProductMap { pairs, image, is_unit: self.is_unit, dtype: meta.dtype, missing: meta.missing };
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![output],
            whole: vec![image],
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct ProductMap {
    pairs: Vec<(usize, usize)>,
    image: usize,
    is_unit: bool,
    dtype: DType,
    missing: Option<Scalar>,
}

impl ProductMap {
    fn fill<T: Cell + PartialEq>(
        &self,
        input: &Padded,
        task: &MapTask<'_>,
        out: &mut [T],
        work: &Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let source = Strided::new(input);
        let missing = Missing::<T>::new(self.missing);
        let step = source.strides[self.image];
        // All axes but the last of the core by index, the last one in a loop of its own.
        let region = &task.outputs[0];
        let last = region.rank() - 1;
        let lists: Vec<Vec<u64>> = (0..last).map(|a| (0..region.len(a) as u64).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let product = |first: isize, second: isize| {
            let (a, b) = (missing.wide(source.get::<T>(first)), missing.wide(source.get::<T>(second)));
            let z = Complex64::new(a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im);
            if self.is_unit {
                let length = (z.re * z.re + z.im * z.im).sqrt();
                T::new(z.re / length, z.im / length)
            } else {
                T::new(z.re, z.im)
            }
        };
        let mut lines = out.chunks_exact_mut(region.len(last).max(1));
        for_each_index(&lists, |index| {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            let Some(line) = lines.next() else { return Ok(()) };
            let mut at: Vec<i64> = index.iter().zip(&region.start).map(|(i, start)| *i as i64 + start).collect();
            at.push(region.start[last]);
            // Where the first image of the line's first pixel is.
            let pair = std::mem::replace(&mut at[self.image], 0) as usize;
            let start = source.offset(&at);
            for (i, value) in line.iter_mut().enumerate() {
                let (place, pair) = match self.image == last {
                    true => (start, self.pairs[i]),
                    false => (start + i as isize * source.strides[last], self.pairs[pair]),
                };
                *value = product(place + pair.0 as isize * step, place + pair.1 as isize * step);
            }
            Ok::<(), OperatorError>(())
        })
    }
}

impl MapOperator for ProductMap {
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
        0
    }
}

#[cfg(test)]
mod tests {
    use num_complex::Complex32;

    use super::super::testing::{Random, Whole, bind, map_one, values};
    use super::*;
    use crate::array::{Block, Region};

    fn run(whole: &Whole, lines: &str, core: &Region) -> Vec<Complex32> {
        values(&map_one(&bind("interferogram", lines, &[whole]).unwrap(), &[whole], core).unwrap())
    }

    #[test]
    fn products_of_the_pairs_that_are_listed() {
        let mut r = Random::new(1);
        let z: Vec<Complex32> = (0..2 * 3 * 4).map(|_| Complex32::new(r.unit() as f32 - 0.5, r.unit() as f32 - 0.5)).collect();
        let last = Whole::new(Block::from_values(&[2, 3, 4], &z));
        let mut first = Whole::new(last.block.transposed(&[2, 0, 1]));
        first.meta.shape = vec![4, 2, 3];
        let pairs = [(3, 0), (1, 1), (0, 2)];
        let lines = "pairs = [[3, 0], [1, 1], [0, 2]]";
        let got = run(&last, lines, &Region::whole(&[2, 3, 4]));
        let dates_first = run(
            &first,
            &format!(
                "{lines}
image_axis = 0"
            ),
            &Region::whole(&[4, 2, 3]),
        );
        let units = run(
            &last,
            &format!(
                "{lines}
unit = true"
            ),
            &Region::whole(&[2, 3, 4]),
        );
        for (pixel, z) in z.chunks(4).enumerate() {
            for (p, &(i, j)) in pairs.iter().enumerate() {
                let want = z[i].wide() * z[j].wide().conj();
                let found = got[pixel * 3 + p];
                assert!((found.wide() - want).norm() <= 1e-7 * want.norm());
                assert_eq!(found, dates_first[p * 6 + pixel]);
                assert!((units[pixel * 3 + p].wide() - want / want.norm()).norm() < 1e-7);
            }
        }
        assert_eq!(run(&last, "", &Region::whole(&[2, 3, 4])).len(), 2 * 3 * 6);
    }

    #[test]
    fn zeros_have_no_phase_and_nan_stays_nan() {
        let z = [Complex32::ZERO, Complex32::ONE, Complex32::new(f32::NAN, 0.0), Complex32::I];
        let whole = Whole::new(Block::from_values(&[2, 2], &z));
        let units = run(&whole, "unit = true", &Region::whole(&[2, 2]));
        assert!(units[0].is_nan() && units[1].is_nan());
        assert_eq!(run(&whole, "", &Region::whole(&[2, 2]))[0], Complex32::ZERO);
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        let whole = Whole::new(Block::from_values(&[1, 2], &[Complex32::ONE; 2]));
        for (lines, part) in [
            ("pairs = [[0, 2]]", "pair [0, 2] does not exist"),
            ("pairs = [[0]]", "list of pairs"),
            ("pairs = []", "list is empty"),
            ("pairs = \"some\"", "or \"all\""),
            ("pairs = [[0, -1]]", "list of pairs"),
            ("image_axis = 2", "image_axis 2 does not exist"),
            ("image_axis = 0", "a pair takes two images"),
        ] {
            let message = bind("interferogram", lines, &[&whole]).err().unwrap_or_default();
            assert!(message.contains(part), "{lines}: {message}");
        }
    }
}
