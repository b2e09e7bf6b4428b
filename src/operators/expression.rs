//! `expression`: a formula over named inputs, such as `x / absmax` with the result of a fold.
//!
//! Operators and their precedence are Python's, functions carry numpy's names, dtypes follow numpy (NEP 50): arrays promote
//! among each other, numbers take the dtype of what they meet. Unlike numpy:
//! - integer results that their dtype cannot hold, and integer division by zero, are errors instead of other numbers;
//!   integers are computed in int64, so values of uint64 from 2^63 up are refused;
//! - functions of integers (`sqrt`, `log`) give float64, for short ones too;
//! - + - * of two bools is refused (`&`, `|`, `^` say what is meant);
//! - float16, float32 and complex64 are computed in float64 and rounded to their dtype after every operation, for + - * /
//!   and sqrt of reals the same bits as numpy's.
//!
//! Inputs broadcast by trailing axes; the result has the shape of the largest.

use super::formula;
use super::formula::syntax::{Node, parse};
use super::{Info, Operator, Param, StepInput};
use crate::config::table::{Table, nearest};

/// Shared with `where`.
pub const MISSING: Param = Param {
    name: "missing",
    kind: "\"error\" | \"value\"",
    default: "\"error\"",
    doc: "what the source's declared missing value is: an error to meet, or a value that the step deals with itself",
};

pub static INFO: Info = Info {
    name: "expression",
    summary: "a formula over named inputs",
    kind: "map",
    inputs: "one or more arrays that broadcast by trailing axes",
    outputs: "the shape of the largest input, dtype as numpy promotes",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one pass over slices of 512 elements for each operation of the formula",
    source: "numpy's operators, functions and dtypes (NEP 50)",
    params: &[
        Param {
            name: "formula",
            kind: "string",
            default: "",
            doc: "such as \"(x - mean) / std\" or \"where(isnan(x), 0, x)\": + - * / // % **, comparisons, & | ^ ~, numpy's function names, pi, e, nan, inf, 1j",
        },
        Param {
            name: "names",
            kind: "[string, ...]",
            default: "the inputs' own",
            doc: "what the formula calls the inputs, in their order",
        },
        MISSING,
    ],
    build,
};

/// `missing = "value"`
pub fn takes_missing(table: &mut Table<'_>) -> bool {
    table.has("missing") && table.one_of("missing", &["error", "value"]) == Some("value")
}

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let names = table.strings("names");
    let takes_missing = takes_missing(table);
    let Some(text) = table.string("formula") else {
        if !table.has("formula") {
            table.problem("formula", "missing; write formula = \"x / 2\" or another over the names of the inputs");
        }
        return None;
    };
    let node = parse(&text).map_err(|message| table.problem("formula", message)).ok()?;
    Some(Box::new(move |inputs: &[StepInput]| {
        let names: Vec<&str> = match &names {
            Some(names) if names.len() != inputs.len() => {
                return Err(format!("names has {} entries, the step has {} inputs", names.len(), inputs.len()));
            }
            Some(names) => names.iter().map(String::as_str).collect(),
            None => inputs.iter().map(|i| i.meta.name.as_str()).collect(),
        };
        if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
            return Err(format!("two inputs are called `{}`; tell them apart with `names`", names[twice]));
        }
        let mut used = vec![false; names.len()];
        let node = resolve(&node, &names, &mut used)?;
        if let Some(idle) = used.iter().position(|used| !used) {
            return Err(format!("the formula does not use `{}`; leave the input out", names[idle]));
        }
        formula::bind("expression", &node, inputs, takes_missing).map_err(|e| format!("formula: {e}"))
    }))
}

/// The formula with names replaced by inputs.
fn resolve(node: &Node, names: &[&str], used: &mut [bool]) -> Result<Node, String> {
    Ok(match node {
        Node::Name(name) => {
            let Some(at) = names.iter().position(|n| n == name) else {
                let hint = match nearest(name, names.iter().copied()) {
                    Some(near) => format!("; did you mean `{near}`?"),
                    None => String::new(),
                };
                return Err(format!("the formula names `{name}`, the inputs are {}{hint}", names.join(", ")));
            };
            used[at] = true;
            Node::Input(at)
        }
        Node::Call(function, arguments) => {
            Node::Call(*function, arguments.iter().map(|a| resolve(a, names, used)).collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests;
