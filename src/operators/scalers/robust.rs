//! `robust_scaler`: the median taken away, and divided by the distance of two quantiles, which outliers do not move.
//!
//! Source: scikit-learn's `RobustScaler`. Quantiles are exact (`quantile`, numpy's linear rule), where libraries for large
//! tables estimate them. A feature whose quantiles are equal is not divided. With `unit_variance` the distance is taken in
//! units of what it is for a normal distribution of variance 1.

use super::fit::Fit;
use super::{AXIS, BOUNDARY, Change, INPUTS, Scaler, operator, or_one};
use crate::array::DType;
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::operators::quantile;
use crate::operators::reduce::{Common, Number};
use crate::operators::{Info, Param, Part, StepInput};

pub static INFO: Info = Info {
    name: "robust_scaler",
    summary: "each feature with median 0 and a distance of 1 between quantiles",
    kind: "map, or several folds where samples do not fit a block; then map",
    inputs: INPUTS,
    outputs: "`scaled` (the input's float dtype, float64 of integers and bool); by name, float64, one per feature: `center`, `scale`",
    halo: "none; samples are whole in every block, unless they take several passes",
    boundary: BOUNDARY,
    devices: "cpu",
    cost: "the passes of `quantile` for three quantiles, then two operations for each element",
    source: "scikit-learn, sklearn.preprocessing.RobustScaler",
    params: &[
        Param { name: "with_centering", kind: "bool", default: "true", doc: "take the median away" },
        Param {
            name: "with_scaling",
            kind: "bool",
            default: "true",
            doc: "divide by the distance of the quantiles (1 where it is none)",
        },
        Param { name: "quantile_range", kind: "[number, number]", default: "[25, 75]", doc: "the quantiles, in percent" },
        Param {
            name: "unit_variance",
            kind: "bool",
            default: "false",
            doc: "scale so that normally distributed features have variance 1",
        },
        AXIS,
    ],
    build: |table| {
        let with_centering = table.bool("with_centering").unwrap_or(true);
        let with_scaling = table.bool("with_scaling").unwrap_or(true);
        let unit_variance = table.bool("unit_variance").unwrap_or(false);
        let range = read_range(table, unit_variance);
        operator(table, range.map(|range| Robust { with_centering, with_scaling, unit_variance, range }))
    },
};

fn read_range(table: &mut Table<'_>, unit_variance: bool) -> Option<[f64; 2]> {
    let range = match table.numbers("quantile_range") {
        None => [25.0, 75.0],
        Some(OneOrMany::Many(list)) if matches!(list[..], [low, high] if 0.0 <= low && low <= high && high <= 100.0) => {
            [list[0], list[1]]
        }
        Some(_) => {
            table.problem("quantile_range", "expected two numbers from 0 to 100, the smaller first, such as [25, 75]");
            return None;
        }
    };
    let [low, high] = range;
    if unit_variance && !(low > 0.0 && low < high && high < 100.0) {
        table.problem("quantile_range", "unit_variance needs two different quantiles above 0 and below 100");
        return None;
    }
    Some(range)
}

struct Robust {
    with_centering: bool,
    with_scaling: bool,
    unit_variance: bool,
    /// Percent.
    range: [f64; 2],
}

impl Scaler for Robust {
    const NAME: &'static str = "robust_scaler";
    type Fit = Spread;

    fn statistics(&self, input: &StepInput, samples: Common, is_short: bool) -> Result<Vec<Part>, String> {
        let samples = if input.meta.dtype.is_float() { samples.leaving_out(Number::Float(f64::NAN)) } else { samples };
        let [low, high] = self.range;
        quantile::parts(samples, vec![low / 100.0, 0.5, high / 100.0], input, is_short)
    }

    fn fit(&self, _dtype: DType) -> Spread {
        let [low, high] = self.range;
        Spread { unit: if self.unit_variance { normal_quantile(high / 100.0) - normal_quantile(low / 100.0) } else { 1.0 } }
    }

    fn changes(&self) -> Vec<(Change, usize)> {
        let changes = [(self.with_centering, (Change::Subtract, 0)), (self.with_scaling, (Change::Divide, 1))];
        changes.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, change)| change).collect()
    }
}

/// From the lower quantile, the median and the upper quantile.
struct Spread {
    unit: f64,
}

impl Fit for Spread {
    const STATISTICS: usize = 3;
    const NAMES: &'static [&'static str] = &["center", "scale"];

    fn fit(&self, statistics: &[f64], fitted: &mut [f64]) {
        // Quantiles are float64 whatever the table is.
        let scale = or_one(statistics[2] - statistics[0], DType::F64);
        fitted.copy_from_slice(&[statistics[1], scale / self.unit]);
    }
}

/// The quantile `p` in (0, 1) of the standard normal distribution: where `erfc(-x / sqrt 2) / 2` is `p`, by bisection until
/// doubles end. Of the two tails the one that loses no digits.
fn normal_quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    let (mut low, mut high) = (-40.0, 0.0);
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return high;
        }
        if 0.5 * libm::erfc(-middle * std::f64::consts::FRAC_1_SQRT_2) < p { low = middle } else { high = middle }
    }
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    /// `scipy.stats.norm.ppf`.
    #[test]
    fn normal_quantiles_are_scipys() {
        for (p, want) in [
            (0.25, -0.674_489_750_196_081_7),
            (0.75, 0.674_489_750_196_081_7),
            (0.5, 0.0),
            (0.01, -2.326_347_874_040_840_8),
            (1e-10, -6.361_340_902_404_056),
        ] {
            assert!((normal_quantile(p) - want).abs() <= 1e-14 * want.abs().max(1.0), "{p}");
        }
    }
}
