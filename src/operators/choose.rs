//! `where`, `clip`, `threshold`: values chosen by a condition. Each is a formula (see `expression`), so dtypes, broadcasting
//! and what happens to NaN are those of numpy's `where`, `minimum` and comparisons.

use super::expression::{MISSING, takes_missing};
use super::formula;
use super::formula::function::Function;
use super::formula::syntax::Node;
use super::pointwise::only_input;
use super::reduce::{Number, number};
use super::{Info, Operator, Param, StepInput};
use crate::array::DType;
use crate::config::table::Table;

pub static WHERE: Info = Info {
    name: "where",
    summary: "x where a condition is true, y elsewhere",
    kind: "map",
    inputs: "the condition (true where not zero), then those of x and y that are no numbers; they broadcast",
    outputs: "the shape of the largest input, dtype as numpy promotes x and y",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one look at each element",
    source: "numpy.where",
    params: &[
        Param { name: "x", kind: "number", default: "the second input", doc: "the value where the condition is true" },
        Param { name: "y", kind: "number", default: "the last input", doc: "the value elsewhere (nan too)" },
        MISSING,
    ],
    build: build_where,
};

pub static CLIP: Info = Info {
    name: "clip",
    summary: "values limited to a range; NaN stays NaN",
    kind: "map",
    inputs: "one real array",
    outputs: "the same shape and dtype",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one look at each element",
    source: "numpy.clip",
    params: &[
        Param { name: "min", kind: "number", default: "no lower end", doc: "smaller values become this" },
        Param { name: "max", kind: "number", default: "no upper end", doc: "larger values become this" },
    ],
    build: build_clip,
};

pub static THRESHOLD: Info = Info {
    name: "threshold",
    summary: "whether each value compares with a number; false for NaN, but for !=",
    kind: "map",
    inputs: "one array; a complex one only with == and !=",
    outputs: "the same shape, bool",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one look at each element",
    source: "the definition: a comparison",
    params: &[
        Param { name: "value", kind: "number", default: "", doc: "what to compare with" },
        Param {
            name: "compare",
            kind: "\">\" | \">=\" | \"<\" | \"<=\" | \"==\" | \"!=\"",
            default: "\">\"",
            doc: "the comparison, value on its right",
        },
    ],
    build: build_threshold,
};

fn build_where(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let (x, y) = (number(table, "x"), number(table, "y"));
    let takes_missing = takes_missing(table);
    Some(Box::new(move |inputs: &[StepInput]| {
        let mut next = 1;
        let mut side = |given: Option<Number>| match given {
            Some(number) => Node::Number(number),
            None => {
                next += 1;
                Node::Input(next - 1)
            }
        };
        let (x, y) = (side(x), side(y));
        if inputs.len() != next {
            let given = inputs.len();
            return Err(format!(
                "where needs {next} inputs here (the condition, and x and y unless they are numbers), the step gives {given}"
            ));
        }
        formula::bind("where", &Node::call(Function::Where, [Node::Input(0), x, y]), inputs, takes_missing)
    }))
}

fn build_clip(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let (min, max) = (number(table, "min"), number(table, "max"));
    if !table.has("min") && !table.has("max") {
        table.problem("min", "clip needs min, max or both");
    }
    if [min, max].iter().flatten().any(|n| n.to_f64().is_nan()) {
        table.problem("min", "nan is no end of a range");
    }
    if let (Some(low), Some(high)) = (min, max)
        && low.to_f64() > high.to_f64()
    {
        table.problem("max", "lies below min");
    }
    Some(Box::new(move |inputs: &[StepInput]| {
        let meta = &only_input("clip", inputs)?.meta;
        let mut node = Node::Input(0);
        for (key, function, end) in [("min", Function::Maximum, min), ("max", Function::Minimum, max)] {
            if let Some(end) = end {
                node = Node::call(function, [node, Node::Number(end_in(meta.dtype, key, end)?)]);
            }
        }
        if meta.dtype == DType::Bool || meta.dtype.is_complex() {
            return Err(format!("clip takes numbers that have an order, {} is {}", meta.name, meta.dtype));
        }
        let mut bound = formula::bind("clip", &node, inputs, false)?;
        let is_kept = |n: Number| matches!(n, Number::Integer(v) if v >= 0);
        bound.outputs[0].max_value = match max {
            Some(Number::Integer(v)) if is_kept(Number::Integer(v)) => Some(meta.max_value.map_or(v as u64, |m| m.min(v as u64))),
            _ => None,
        }
        .filter(|_| matches!(meta.dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64));
        Ok(bound)
    }))
}

/// An end of the range in the input's dtype: beyond what an integer dtype holds, its own end.
fn end_in(dtype: DType, key: &str, end: Number) -> Result<Number, String> {
    let Some((low, high)) = dtype.integer_range() else { return Ok(Number::Float(end.to_f64())) };
    // Integers are computed in int64.
    let (low, high) = (low as i64, high.min(i64::MAX.into()) as i64);
    match end {
        Number::Integer(v) => Ok(Number::Integer(v.clamp(low, high))),
        Number::Float(v) if v.fract() == 0.0 || v.is_infinite() => Ok(Number::Integer((v as i64).clamp(low, high))),
        Number::Float(v) => Err(format!("{key}: {v} is no {dtype}; give an integer, or cast the input to a float first")),
    }
}

fn build_threshold(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let value = number(table, "value");
    if !table.has("value") {
        table.problem("value", "missing; give the number to compare with");
    }
    let compare = match table.has("compare") {
        true => table.one_of("compare", &[">", ">=", "<", "<=", "==", "!="])?,
        false => ">",
    };
    let function = match compare {
        ">" => Function::Greater,
        ">=" => Function::GreaterEqual,
        "<" => Function::Less,
        "<=" => Function::LessEqual,
        "==" => Function::Equal,
        _ => Function::NotEqual,
    };
    let value = value?;
    Some(Box::new(move |inputs: &[StepInput]| {
        only_input("threshold", inputs)?;
        formula::bind("threshold", &Node::call(function, [Node::Input(0), Node::Number(value)]), inputs, false)
    }))
}
