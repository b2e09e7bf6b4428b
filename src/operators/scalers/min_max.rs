//! `min_max_scaler`: every feature stretched to a range.
//!
//! Source: scikit-learn's `MinMaxScaler`: `scale = (high - low) / (data_max - data_min)`, `min = low - data_min scale`, the
//! result is `x scale + min`. A feature of one value is not stretched.

use std::marker::PhantomData;

use super::fit::Fit;
use super::{AXIS, BOUNDARY, Change, INPUTS, Scaler, operator, or_one};
use crate::array::DType;
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::operators::reduce::element::{Real, with_type};
use crate::operators::reduce::walk::Take;
use crate::operators::reduce::{Common, Reduction};
use crate::operators::{Info, OperatorError, OutAxis, Param, Part, PartInput, StepInput};

pub static INFO: Info = Info {
    name: "min_max_scaler",
    summary: "each feature stretched to a range",
    kind: "fold, then map",
    inputs: INPUTS,
    outputs: "`scaled` (the input's float dtype, float64 of integers and bool); by name, float64, one per feature: `data_min`, `data_max`, `scale`, `min`",
    halo: "none",
    boundary: BOUNDARY,
    devices: "cpu",
    cost: "two passes: two comparisons for each element, then two operations; 24 bytes of state per feature",
    source: "scikit-learn, sklearn.preprocessing.MinMaxScaler",
    params: &[
        Param {
            name: "feature_range",
            kind: "[number, number]",
            default: "[0, 1]",
            doc: "the range that the smallest and the largest value go to",
        },
        Param {
            name: "clip",
            kind: "bool",
            default: "false",
            doc: "hold results inside the range that rounding takes beyond it",
        },
        AXIS,
    ],
    build: |table| {
        let clip = table.bool("clip").unwrap_or(false);
        let range = read_range(table);
        operator(table, range.map(|range| MinMax { range, clip }))
    },
};

fn read_range(table: &mut Table<'_>) -> Option<[f64; 2]> {
    match table.numbers("feature_range") {
        None => Some([0.0, 1.0]),
        Some(OneOrMany::Many(list)) if matches!(list[..], [low, high] if low < high && low.is_finite() && high.is_finite()) => {
            Some([list[0], list[1]])
        }
        Some(_) => {
            table.problem("feature_range", "expected two numbers, the smaller first, such as [0, 1]");
            None
        }
    }
}

struct MinMax {
    range: [f64; 2],
    clip: bool,
}

impl Scaler for MinMax {
    const NAME: &'static str = "min_max_scaler";
    type Fit = Stretch;

    fn statistics(&self, input: &StepInput, samples: Common, _is_short: bool) -> Result<Vec<Part>, String> {
        let of = samples.bind(Self::NAME, std::slice::from_ref(input))?;
        let mut fold = with_type!(real input.meta.dtype, T => {
            of.binding(DType::F64, Vec::new(), Extent::<T>(PhantomData))
        }, else return Err(format!("{} has no order", input.meta.dtype)));
        fold.outputs[0].axes.insert(0, OutAxis::New { len: 2, name: None });
        Ok(vec![Part::once("smallest and largest", vec![PartInput::Own(0)], fold)])
    }

    fn fit(&self, dtype: DType) -> Stretch {
        Stretch { range: self.range, dtype }
    }

    fn changes(&self) -> Vec<(Change, usize)> {
        vec![(Change::Multiply, 2), (Change::Add, 3)]
    }

    fn limits(&self) -> Option<[f64; 2]> {
        self.clip.then_some(self.range)
    }
}

/// From the smallest and the largest value.
struct Stretch {
    range: [f64; 2],
    /// Of the results: what counts as no range at all is a matter of rounding.
    dtype: DType,
}

impl Fit for Stretch {
    const STATISTICS: usize = 2;
    const NAMES: &'static [&'static str] = &["data_min", "data_max", "scale", "min"];

    fn fit(&self, statistics: &[f64], fitted: &mut [f64]) {
        let (smallest, largest) = (statistics[0], statistics[1]);
        let scale = (self.range[1] - self.range[0]) / or_one(largest - smallest, self.dtype);
        fitted.copy_from_slice(&[smallest, largest, scale, self.range[0] - smallest * scale]);
    }
}

/// The smallest and the largest value that is not NaN. A state is [1 when there is one, smallest, largest].
struct Extent<T>(PhantomData<fn() -> T>);

fn widen(cell: &mut [f64; 3], low: f64, high: f64) {
    if cell[0] == 0.0 {
        *cell = [1.0, low, high];
    }
    cell[1] = if low < cell[1] { low } else { cell[1] };
    cell[2] = if high > cell[2] { high } else { cell[2] };
}

impl<T: Real> Take for Extent<T> {
    type Element = T;
    type State = [f64; 3];

    fn run(&self, values: &[T], _at: u64, cell: &mut [[f64; 3]]) {
        for value in values.iter().filter(|v| !v.is_nan()) {
            // Zeros have one sign, whichever comes first.
            let value = value.wide() + 0.0;
            widen(&mut cell[0], value, value);
        }
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [[f64; 3]]) {
        for (value, cell) in values.iter().zip(cells).filter(|(v, _)| !v.is_nan()) {
            let value = value.wide() + 0.0;
            widen(cell, value, value);
        }
    }
}

impl<T: Real + 'static> Reduction for Extent<T> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [[f64; 3]], other: &[[f64; 3]]) {
        let seen = into.iter_mut().zip(other).filter(|(_, other)| other[0] != 0.0);
        seen.for_each(|(into, other)| widen(into, other[1], other[2]));
    }

    fn finish(&self, states: &[[f64; 3]], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        let (low, high) = out.split_at_mut(8 * states.len());
        for ((low, high), state) in low.as_chunks_mut().0.iter_mut().zip(high.as_chunks_mut().0).zip(states) {
            let found = if state[0] == 0.0 { [f64::NAN; 2] } else { [state[1], state[2]] };
            (*low, *high) = (found[0].to_ne_bytes(), found[1].to_ne_bytes());
        }
        Ok(())
    }
}
