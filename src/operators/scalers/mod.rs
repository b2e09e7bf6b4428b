//! `standard_scaler`, `min_max_scaler`, `robust_scaler`: every feature of a table on one scale, as scikit-learn's
//! preprocessing classes of these names (`fit_transform`).
//!
//! A scaler is three parts: *statistics* of each feature over its samples (folds), what they come to (`fit`, a map over the
//! features: the attributes of the fitted class), and the map that scales (`apply`). So the table is streamed once more
//! than its statistics need, and nothing of it is kept.
//!
//! Features run along the last axis, all other axes are samples; `axis` names the axes of samples where that is otherwise.
//! NaN is a missing value: left out of the statistics, and passed on. Statistics are float64; results are computed in
//! float64 from these and rounded once, where scikit-learn rounds after each operation.

mod apply;
mod fit;
mod min_max;
mod robust;
mod standard;

use super::pointwise::{no_halo, only_input, refuse_declared_missing};
use super::reduce::Common;
use super::{ArrayMeta, Composite, Operator, Param, Part, PartInput, StepInput};
use crate::array::DType;
use crate::config::OneOrMany;
use crate::config::table::Table;
use apply::{Change, apply};
use fit::{Fit, fit};

pub use min_max::INFO as MIN_MAX;
pub use robust::INFO as ROBUST;
pub use standard::INFO as STANDARD;

const AXIS: Param = Param {
    name: "axis",
    kind: "int or [int, ...]",
    default: "all but the last",
    doc: "the axes that samples run along: each place on the other axes is a feature",
};
const INPUTS: &str = "one real array of two or more axes (of one, where `axis` is given); NaN is a missing value";
const BOUNDARY: &str = "-";

/// What a scaler computes beside what all of them do.
trait Scaler: Send + Sync + 'static {
    const NAME: &'static str;
    type Fit: Fit;

    /// The parts that make the statistics; the first output of the last has them on a new first axis, float64.
    fn statistics(&self, input: &StepInput, samples: Common, is_short: bool) -> Result<Vec<Part>, String>;

    fn fit(&self, dtype: DType) -> Self::Fit;

    /// What is done to an element, in order: with the fitted value of which index.
    fn changes(&self) -> Vec<(Change, usize)>;

    /// The values that results are held between.
    fn limits(&self) -> Option<[f64; 2]> {
        None
    }
}

/// A scaler and its axes.
struct Scale<S> {
    axis: Option<OneOrMany<i64>>,
    scaler: S,
}

/// The operator of a scaler whose own keys were read.
fn operator<S: Scaler>(table: &mut Table<'_>, scaler: Option<S>) -> Option<Box<dyn Operator>> {
    let axis = table.integers("axis");
    if matches!(&axis, Some(OneOrMany::Many(list)) if list.is_empty()) {
        table.problem("axis", "names no axis; leave it out for all but the last");
    }
    Some(Box::new(Scale { axis, scaler: scaler? }))
}

impl<S: Scaler> Scale<S> {
    /// The axes of samples.
    fn samples(&self, meta: &ArrayMeta) -> Result<Common, String> {
        let axes = match &self.axis {
            Some(OneOrMany::One(axis)) => vec![*axis],
            Some(OneOrMany::Many(list)) => list.clone(),
            None if meta.rank() < 2 => {
                return Err(format!(
                    "{} has {} axes, and the last is that of features: give axis = 0 to scale all of it by one scale",
                    meta.name,
                    meta.rank()
                ));
            }
            None => (0..meta.rank() as i64 - 1).collect(),
        };
        Ok(Common::over(axes))
    }

    fn parts(&self, inputs: &[StepInput], is_short: bool) -> Result<Composite, String> {
        let input = only_input(S::NAME, inputs)?;
        no_halo(S::NAME, input)?;
        let meta = &input.meta;
        if meta.dtype.is_complex() {
            return Err(format!("{} is {}: take its amplitude or its parts first", meta.name, meta.dtype));
        }
        refuse_declared_missing(meta)?;
        let dtype = if meta.dtype.is_float() { meta.dtype } else { DType::F64 };
        let of = self.samples(meta)?.bind(S::NAME, inputs)?;
        of.refuse_empty()?;
        let samples = of.axes.clone();
        let mut parts = self.scaler.statistics(input, self.samples(meta)?, is_short)?;
        let features: Vec<usize> = (0..meta.rank()).filter(|a| !samples.contains(a)).collect();
        let found = PartInput::Of { part: parts.len() - 1, output: 0 };
        parts.push(Part::once("fit", vec![found], fit(self.scaler.fit(dtype), &features, meta)));
        let fitted = parts.len() - 1;
        let changes = self.scaler.changes();
        let vectors = changes.iter().map(|(_, output)| PartInput::Of { part: fitted, output: *output });
        let vectors = std::iter::once(PartInput::Own(0)).chain(vectors).collect();
        let changes = changes.into_iter().map(|(change, _)| change).collect();
        parts.push(Part::once("", vectors, apply(meta, dtype, &features, changes, self.scaler.limits())));
        let fits = (0..S::Fit::NAMES.len()).map(|output| (fitted, output));
        Ok(Composite { outputs: std::iter::once((fitted + 1, 0)).chain(fits).collect(), parts })
    }
}

impl<S: Scaler> Operator for Scale<S> {
    fn bind_parts(&self, inputs: &[StepInput], is_short: bool) -> Option<Result<Composite, String>> {
        Some(self.parts(inputs, is_short))
    }
}

/// As scikit-learn's `_handle_zeros_in_scale`: a scale that is nothing but rounding scales nothing.
fn or_one(scale: f64, dtype: DType) -> f64 {
    let eps = match dtype {
        DType::F16 => f64::from(half::f16::EPSILON),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    if scale < 10.0 * eps { 1.0 } else { scale }
}
