//! `standard_scaler`: the mean taken away, and divided by the standard deviation (`ddof` 0).
//!
//! Source: scikit-learn's `StandardScaler`: a feature whose variance is within the rounding of its mean,
//! `var <= n eps var + (n eps mean)^2`, is constant and not divided. Means and variances come as `var` makes them.

use super::fit::Fit;
use super::{AXIS, BOUNDARY, Change, INPUTS, Scaler, operator};
use crate::array::DType;
use crate::operators::moments::summary;
use crate::operators::reduce::{Common, Number};
use crate::operators::{Info, Param, Part, PartInput, StepInput};

pub static INFO: Info = Info {
    name: "standard_scaler",
    summary: "each feature with mean 0 and variance 1",
    kind: "fold, then map",
    inputs: INPUTS,
    outputs: "`scaled` (the input's float dtype, float64 of integers and bool); by name, float64, one per feature: `mean`, `var`, `scale`",
    halo: "none",
    boundary: BOUNDARY,
    devices: "cpu",
    cost: "two passes: one or two looks at each element, then two operations; 24 bytes of state per feature",
    source: "scikit-learn, sklearn.preprocessing.StandardScaler",
    params: &[
        Param { name: "with_mean", kind: "bool", default: "true", doc: "take the mean away" },
        Param {
            name: "with_std",
            kind: "bool",
            default: "true",
            doc: "divide by the standard deviation (1 where a feature is constant)",
        },
        AXIS,
    ],
    build: |table| {
        let with_mean = table.bool("with_mean").unwrap_or(true);
        let with_std = table.bool("with_std").unwrap_or(true);
        operator(table, Some(Standard { with_mean, with_std }))
    },
};

struct Standard {
    with_mean: bool,
    with_std: bool,
}

impl Scaler for Standard {
    const NAME: &'static str = "standard_scaler";
    type Fit = Moments;

    fn statistics(&self, input: &StepInput, samples: Common, _is_short: bool) -> Result<Vec<Part>, String> {
        let samples = if input.meta.dtype.is_float() { samples.leaving_out(Number::Float(f64::NAN)) } else { samples };
        let fold = summary(samples.bind(Self::NAME, std::slice::from_ref(input))?)?;
        Ok(vec![Part::once("mean and variance", vec![PartInput::Own(0)], fold)])
    }

    fn fit(&self, _dtype: DType) -> Moments {
        Moments
    }

    fn changes(&self) -> Vec<(Change, usize)> {
        let changes = [(self.with_mean, (Change::Subtract, 0)), (self.with_std, (Change::Divide, 2))];
        changes.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, change)| change).collect()
    }
}

/// From count, mean and variance.
struct Moments;

impl Fit for Moments {
    const STATISTICS: usize = 3;
    const NAMES: &'static [&'static str] = &["mean", "var", "scale"];

    fn fit(&self, statistics: &[f64], fitted: &mut [f64]) {
        let (count, mean, var) = (statistics[0], statistics[1], statistics[2]);
        let rounding = count * mean * f64::EPSILON;
        let is_constant = var <= count * f64::EPSILON * var + rounding * rounding;
        fitted.copy_from_slice(&[mean, var, if is_constant { 1.0 } else { var.sqrt() }]);
    }
}
