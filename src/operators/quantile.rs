//! Exact quantiles over axes, as numpy's `quantile`: the order statistics themselves, not an estimate from a sketch.
//!
//! Source of the formulas: R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician
//! 50 (1996) 361-365, in numpy's form (`rule`). Places among the sorted values are computed in float64 whatever the input's
//! dtype, where numpy takes a lone `q` in the input's: float32 has no places beyond 2^24. NaN where a NaN is not left out.
//!
//! Two ways to the same values, chosen by the plan:
//! - `whole`: every block holds the reduced axes whole and selects among their elements, in one pass;
//! - `narrow`: where they do not fit ([`WHOLE_BYTES`], or the memory limit), values are taken as integers of the same
//!   order, and each pass counts the next 16 bits (8 where many cells are kept) of those that begin like the sought ones:
//!   2 passes for float32, 4 for float64. Only counts and one number per sought value are kept between passes.

mod narrow;
mod rule;
#[cfg(test)]
mod tests;
mod whole;

use super::reduce::element::with_type;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, Reducing};
use super::{Binding, Composite, Info, Operator, OutAxis, OutputBinding, Param, Part, PartInput, StepInput};
use crate::array::DType;
use crate::config::OneOrMany;
use crate::config::table::Table;
use rule::{Finish, METHODS, Method, Quantiles};

pub static INFO: Info = Info {
    name: "quantile",
    summary: "exact quantiles over axes",
    kind: "map, or several folds where the reduced axes do not fit a block",
    inputs: "one real array",
    outputs: "`q` first where it is a list, then the axes that are kept; the input's dtype, float64 of integers unless the method picks elements",
    halo: "none; the reduced axes are whole in every block, unless they take several passes",
    boundary: "-",
    devices: "cpu",
    cost: "one gather and about two to three looks at each element; by passes one look each, and 1 MiB (kept cells are many: 4 KiB) per quantile and kept cell in the open",
    source: "R. J. Hyndman and Y. Fan, Sample quantiles in statistical packages, The American Statistician 50 (1996), as numpy.quantile",
    params: &[
        Param {
            name: "q",
            kind: "number or [number, ...]",
            default: "",
            doc: "which quantiles, from 0 (the smallest value) to 1 (the largest)",
        },
        AXIS,
        Param { name: "method", kind: "string", default: "\"linear\"", doc: "how to choose between elements, by numpy's names" },
        Param {
            name: "dtype",
            kind: "float dtype",
            default: "as numpy",
            doc: "the output's dtype: float64 for integers and bool (their own where `method` picks elements), floats keep theirs",
        },
        IGNORE,
        KEEPDIMS,
    ],
    build,
};

/// Bytes of the elements of one result beyond which a block does not hold them all.
const WHOLE_BYTES: u64 = 16 << 20;
/// Quantiles that a job may ask for at once: each is sought by itself.
const MOST_QUANTILES: usize = 1024;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let common = Common::read(table);
    let dtype = table.dtype("dtype");
    let method = match table.string("method") {
        None => Some(Method::Linear),
        Some(name) => {
            let found = METHODS.iter().find(|(known, _)| *known == name).map(|(_, method)| *method);
            if found.is_none() {
                let known: Vec<&str> = METHODS.iter().map(|(known, _)| *known).collect();
                table.problem("method", format!("expected one of {}, found `{name}`", known.join(", ")));
            }
            found
        }
    };
    if !table.has("q") {
        table.problem("q", "missing; give the quantile to compute, such as q = 0.5 for the median");
        return None;
    }
    let (q, is_list) = match table.numbers("q")? {
        OneOrMany::One(q) => (vec![q], false),
        OneOrMany::Many(list) => (list, true),
    };
    if !(1..=MOST_QUANTILES).contains(&q.len()) || !q.iter().all(|q| (0.0..=1.0).contains(q)) {
        table.problem("q", format!("expected a number from 0 to 1, or a list of 1 to {MOST_QUANTILES} of them, found {q:?}"));
        return None;
    }
    Some(Box::new(Quantile { common, quantiles: Quantiles { q, method: method? }, is_list, dtype }))
}

/// Parts of another step that make quantiles of its first input: the last one's output has them on its first axis, float64.
pub fn parts(common: Common, q: Vec<f64>, input: &StepInput, is_short: bool) -> Result<Vec<Part>, String> {
    let quantiles = Quantiles { q, method: Method::Linear };
    let operator = Quantile { common, quantiles, is_list: true, dtype: Some(DType::F64) };
    let inputs = std::slice::from_ref(input);
    let mut parts = match operator.bind_parts(inputs, is_short) {
        Some(composite) => composite?.parts,
        None => vec![Part::once("", vec![PartInput::Own(0)], operator.bind(inputs)?)],
    };
    if let Some(last) = parts.last_mut() {
        last.title = "quantiles".to_owned();
    }
    Ok(parts)
}

struct Quantile {
    common: Common,
    quantiles: Quantiles,
    is_list: bool,
    dtype: Option<DType>,
}

/// A checked step: what is reduced, and how a result is made.
struct Asked<'a> {
    of: Reducing<'a>,
    finish: Finish,
    output: OutputBinding,
}

impl Quantile {
    fn asked<'a>(&self, inputs: &'a [StepInput]) -> Result<Asked<'a>, String> {
        let of = self.common.bind("quantile", inputs)?;
        of.refuse_empty()?;
        let from = of.dtype();
        if from.is_complex() {
            return Err(format!("{from} has no order; take the amplitude, or a part of it, first"));
        }
        let picks = self.quantiles.method.picks_elements();
        let to = match self.dtype {
            Some(to) if !to.is_float() => {
                return Err(format!("dtype: a quantile is no {to}; give a float dtype, and cast the result afterwards"));
            }
            Some(to) => to,
            None if picks || from.is_float() => from,
            None => DType::F64,
        };
        let mut output = OutputBinding::like("quantile", to, of.meta);
        output.axes = of.output_axes();
        if self.is_list {
            let len = self.quantiles.q.len() as u64;
            output.axes.insert(0, OutAxis::New { len, name: Some("quantile".to_owned()) });
        }
        output.attributes.insert("quantile".to_owned(), serde_json::json!(self.quantiles.q));
        let finish = Finish { quantiles: self.quantiles.clone(), to, copies: picks && to == from };
        Ok(Asked { of, finish, output })
    }
}

impl Operator for Quantile {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let asked = self.asked(inputs)?;
        with_type!(real asked.of.dtype(), T => Ok(whole::bind::<T>(asked)), else Err("no real dtype".to_owned()))
    }

    fn bind_parts(&self, inputs: &[StepInput], is_short: bool) -> Option<Result<Composite, String>> {
        // What is wrong with the inputs, `bind` says.
        let asked = self.asked(inputs).ok()?;
        let bytes = asked.of.count().saturating_mul(asked.of.dtype().size() as u64);
        if !is_short && bytes <= WHOLE_BYTES {
            return None;
        }
        let folds = with_type!(real asked.of.dtype(), T => narrow::bind::<T>(asked), else return None);
        Some(Ok(Composite::chain(folds, inputs.len())))
    }
}
