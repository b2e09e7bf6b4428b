//! The sum over axes, as numpy's, but exact for integers and independent of how the array is cut.
//!
//! - Integers and bool: summed in 128 bits, which no array overflows, in any order. A total that the output dtype cannot
//!   hold is an error.
//! - Floats: summed in float64 within the leaves of a constant grid in array coordinates, leaves combined in a fixed tree,
//!   rounded once at the end. Within a leaf: rows in C order; where the last axis is reduced, each row in eight partial
//!   sums (element `i` of the row goes to sum `i mod 8`) that are combined in a fixed order.
//! - Complex: both parts as floats.
//!
//! State: 16 bytes per kept cell for integers and complex, 8 for floats.

mod leaf;

use std::sync::Arc;

use toml::de::DeValue;

use super::pointwise::{find, no_halo, only_input, place, show};
use super::{
    ArrayMeta, Binding, FoldOperator, Info, InputBinding, Kind, Operator, OperatorError, OutAxis, OutputBinding, Padded, Param,
    StepInput,
};
use crate::array::dtype::f16_from_f64;
use crate::array::{DType, Scalar};
use crate::config::OneOrMany;
use crate::config::table::{self, Table};

pub static INFO: Info = Info {
    name: "sum",
    summary: "sum over axes",
    kind: "fold",
    inputs: "one array, any dtype",
    outputs: "the axes that are kept; int64, uint64 or the input's float dtype unless `dtype` says otherwise",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    params: &[
        Param {
            name: "axis",
            kind: "int or [int, ...]",
            default: "all axes",
            doc: "axes to sum over; negative ones count from the end",
        },
        Param {
            name: "dtype",
            kind: "dtype",
            default: "as numpy",
            doc: "the output's dtype: int64 for bool and signed, uint64 for unsigned, floats keep theirs; a total that does not fit is an error",
        },
        Param {
            name: "ignore",
            kind: "number",
            default: "none",
            doc: "a value to leave out, such as the code for missing (nan: NaN)",
        },
        Param { name: "keepdims", kind: "bool", default: "false", doc: "keep summed axes with length 1" },
    ],
    build,
};

/// A number as written: integers beyond 2^53 stay themselves.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i64),
    Float(f64),
}

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let axis = table.integers("axis");
    if matches!(&axis, Some(OneOrMany::Many(list)) if list.is_empty()) {
        table.problem("axis", "names no axis; leave it out to sum over all");
    }
    let dtype = table.dtype("dtype");
    let ignore = table.get("ignore").and_then(|node| match node.get_ref() {
        DeValue::Integer(_) => table::integer(node.get_ref()).map(Number::Integer),
        value => table::number(value).map(Number::Float),
    });
    if ignore.is_none() && table.has("ignore") {
        table.problem("ignore", "expected a number");
    }
    let keepdims = table.bool("keepdims").unwrap_or(false);
    Some(Box::new(Sum { axis, dtype, ignore, keepdims }))
}

struct Sum {
    axis: Option<OneOrMany<i64>>,
    dtype: Option<DType>,
    ignore: Option<Number>,
    keepdims: bool,
}

impl Operator for Sum {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("sum", inputs)?;
        no_halo("sum", input)?;
        let meta = &input.meta;
        let axes = axes(&self.axis, meta.rank())?;
        let ignore = match self.ignore {
            None => None,
            Some(Number::Integer(v)) => Some(Scalar::from_integer(meta.dtype, i128::from(v))),
            Some(Number::Float(v)) => Some(Scalar::from_number(meta.dtype, v)),
        };
        let ignore = ignore.transpose().map_err(|e| format!("ignore: {e}"))?;
        let to = output_dtype(meta.dtype, self.dtype)?;
        let mut output = OutputBinding::like("sum", to, meta);
        output.axes = (0..meta.rank())
            .filter_map(|axis| match axes.contains(&axis) {
                false => Some(OutAxis::Carried(axis)),
                true if self.keepdims => Some(OutAxis::New { len: 1, name: meta.dimension_names[axis].clone() }),
                true => None,
            })
            .collect();
        let guard = meta.missing.filter(|m| !ignore.is_some_and(|i| is_same(&i, m)));
        let fold = SumFold { name: meta.name.clone(), from: meta.dtype, to, ignore, guard };
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![output],
            whole: Vec::new(),
            is_exact: fold.is_order_free(),
            kind: Kind::Fold { fold: Arc::new(fold), axes },
            child_bytes: 0,
        })
    }
}

/// The sums of everything along the first axis of an array: what the measures of a pass come to.
pub fn over_all_but_first(meta: &ArrayMeta) -> Result<Binding, String> {
    let axis = Some(OneOrMany::Many((1..meta.rank() as i64).collect()));
    let input = StepInput { meta: meta.clone(), boundary: None, depth: None };
    Sum { axis, dtype: None, ignore: None, keepdims: false }.bind(&[input])
}

/// The axes to reduce, sorted, none twice.
fn axes(axis: &Option<OneOrMany<i64>>, rank: usize) -> Result<Vec<usize>, String> {
    let list = match axis {
        None => return Ok((0..rank).collect()),
        Some(OneOrMany::One(axis)) => std::slice::from_ref(axis),
        Some(OneOrMany::Many(list)) => list,
    };
    let mut axes = Vec::with_capacity(list.len());
    for &axis in list {
        let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
        match at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < rank) {
            Some(at) if axes.contains(&at) => return Err(format!("axis {axis} is given twice")),
            Some(at) => axes.push(at),
            None => return Err(format!("axis {axis} does not exist, the array has {rank} axes")),
        }
    }
    axes.sort_unstable();
    Ok(axes)
}

/// numpy's default, or the one asked for where it can hold such a sum.
fn output_dtype(from: DType, asked: Option<DType>) -> Result<DType, String> {
    let default = match from {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => DType::U64,
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
        float => float,
    };
    match asked {
        None => Ok(default),
        Some(DType::Bool) => Err("dtype: a sum is no bool; take the maximum to know whether any is true".to_owned()),
        Some(to) if from.is_complex() && !to.is_complex() => {
            Err(format!("dtype: the sum of {from} is complex; take the amplitude first or give complex64 or complex128"))
        }
        Some(to) if from.is_float() && to.is_integer() => {
            Err(format!("dtype: the sum of {from} is no {to}; cast the input first, or the sum afterwards"))
        }
        Some(to) => Ok(to),
    }
}

/// Equal, or both NaN.
fn is_same(a: &Scalar, b: &Scalar) -> bool {
    a == b || (a.dtype() == b.dtype() && (a.to_f64().is_nan() && b.to_f64().is_nan() || a.to_f64() == 0.0 && b.to_f64() == 0.0))
}

struct SumFold {
    /// The input, for messages.
    name: String,
    from: DType,
    to: DType,
    ignore: Option<Scalar>,
    /// The declared missing value, when it is not ignored.
    guard: Option<Scalar>,
}

impl FoldOperator for SumFold {
    fn state_bytes(&self) -> usize {
        if self.from.is_float() { 8 } else { 16 }
    }

    fn is_order_free(&self) -> bool {
        !self.from.is_float() && !self.from.is_complex()
    }

    fn leaf(&self, input: &Padded, axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError> {
        if let Some(at) = self.guard.as_ref().and_then(|guard| find(&input.block, guard)) {
            let (value, at) = (show(&input.block, at), place(&input.region, at));
            return Err(OperatorError::data(format!(
                "{} holds its missing value {value} at {at:?}; give ignore = {} to leave such values out",
                self.name,
                value.to_lowercase()
            )));
        }
        leaf::add(&input.block, axes, self.ignore.as_ref(), state);
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        if self.is_order_free() {
            for (a, b) in into.as_chunks_mut::<16>().0.iter_mut().zip(other.as_chunks::<16>().0) {
                *a = (i128::from_ne_bytes(*a) + i128::from_ne_bytes(*b)).to_ne_bytes();
            }
        } else {
            for (a, b) in into.as_chunks_mut::<8>().0.iter_mut().zip(other.as_chunks::<8>().0) {
                *a = (f64::from_ne_bytes(*a) + f64::from_ne_bytes(*b)).to_ne_bytes();
            }
        }
        Ok(())
    }

    fn finish(&self, state: &[u8], _count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        let cells = outputs[0].chunks_exact_mut(self.to.size());
        if self.is_order_free() {
            for (out, sum) in cells.zip(state.as_chunks::<16>().0) {
                let sum = i128::from_ne_bytes(*sum);
                out.copy_from_slice(self.round_integer(sum)?.bytes());
            }
        } else {
            // (re, im) or just a number; a real sum has no imaginary part.
            let parts = if self.from.is_complex() { 2 } else { 1 };
            for (out, sum) in cells.zip(state.as_chunks::<8>().0.chunks_exact(parts)) {
                let part = |i: usize| sum.get(i).map_or(0.0, |bytes| f64::from_ne_bytes(*bytes));
                write_float(self.to, part(0), part(1), out);
            }
        }
        Ok(())
    }
}

impl SumFold {
    fn round_integer(&self, sum: i128) -> Result<Scalar, OperatorError> {
        if self.to.is_integer() {
            return Scalar::from_integer(self.to, sum)
                .map_err(|e| OperatorError::data(format!("the sum {e}; give a wider dtype, such as dtype = \"float64\"")));
        }
        let mut bytes = [0; 16];
        match self.to {
            // Rounded once: by way of a double a single would round twice.
            DType::F32 | DType::C64 => bytes[..4].copy_from_slice(&(sum as f32).to_ne_bytes()),
            // Exact in a double as far as half precision reaches.
            DType::F16 => bytes[..2].copy_from_slice(&f16_from_f64(sum as f64).to_bits().to_ne_bytes()),
            _ => bytes[..8].copy_from_slice(&(sum as f64).to_ne_bytes()),
        }
        Scalar::from_bytes(self.to, &bytes[..self.to.size()]).ok_or_else(|| OperatorError::data("a dtype changed its size"))
    }
}

fn write_float(to: DType, re: f64, im: f64, out: &mut [u8]) {
    match to {
        DType::F16 => out.copy_from_slice(&f16_from_f64(re).to_bits().to_ne_bytes()),
        DType::F32 => out.copy_from_slice(&(re as f32).to_ne_bytes()),
        DType::C64 => out.copy_from_slice(bytemuck::bytes_of(&[re as f32, im as f32])),
        DType::C128 => out.copy_from_slice(bytemuck::bytes_of(&[re, im])),
        _ => out.copy_from_slice(&re.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests;
