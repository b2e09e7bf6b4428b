//! What reductions share: parameters, axes, the values to leave out, and the fold around their arithmetic.
//!
//! A reduction says how elements go into the state of a kept cell ([`walk::Take`]), how two states become one, and what
//! comes out ([`Reduction`]). Everything else is here.

pub mod element;
pub mod walk;

use std::sync::Arc;

use toml::de::DeValue;

use super::pointwise::{find, no_halo, only_input, place, show};
use super::{
    ArrayMeta, Binding, FoldOperator, InputBinding, Kind, OperatorError, OutAxis, OutputBinding, Padded, Param, StepInput,
};
use crate::array::dtype::f16_from_f64;
use crate::array::{DType, Scalar};
use crate::config::OneOrMany;
use crate::config::table::{self, Table};
use walk::Take;

pub const AXIS: Param = Param {
    name: "axis",
    kind: "int or [int, ...]",
    default: "all axes",
    doc: "axes to reduce; negative ones count from the end",
};
pub const IGNORE: Param = Param {
    name: "ignore",
    kind: "number",
    default: "none",
    doc: "a value to leave out, such as the code for missing (nan: NaN)",
};
pub const KEEPDIMS: Param = Param { name: "keepdims", kind: "bool", default: "false", doc: "keep reduced axes with length 1" };

/// What is wrong where an integer has no value to be.
pub const NOTHING: &str = "`ignore` left nothing to choose from";

/// A number as written: integers beyond 2^53 stay themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Integer(i64),
    Float(f64),
}

impl Number {
    /// A number of a job file; `"nan"` is one too.
    pub fn read(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Integer(_) => table::integer(value).map(Number::Integer),
            DeValue::String(text) if text.eq_ignore_ascii_case("nan") => Some(Number::Float(f64::NAN)),
            value => table::number(value).map(Number::Float),
        }
    }

    /// As a value of `dtype`; what an integer dtype cannot hold is refused.
    pub fn scalar(self, dtype: DType) -> Result<Scalar, String> {
        match self {
            Number::Integer(v) => Scalar::from_integer(dtype, i128::from(v)),
            Number::Float(v) => Scalar::from_number(dtype, v),
        }
    }

    pub fn to_f64(self) -> f64 {
        match self {
            Number::Integer(v) => v as f64,
            Number::Float(v) => v,
        }
    }
}

/// Reads a number, or says that it is none.
pub fn number(table: &mut Table<'_>, key: &'static str) -> Option<Number> {
    let read = table.get(key).and_then(|node| Number::read(node.get_ref()));
    if read.is_none() && table.has(key) {
        table.problem(key, "expected a number");
    }
    read
}

/// The parameters that reductions share.
pub struct Common {
    axis: Option<OneOrMany<i64>>,
    ignore: Option<Number>,
    keepdims: bool,
}

impl Common {
    pub fn read(table: &mut Table<'_>) -> Self {
        let axis = table.integers("axis");
        if matches!(&axis, Some(OneOrMany::Many(list)) if list.is_empty()) {
            table.problem("axis", "names no axis; leave it out to reduce all");
        }
        let ignore = number(table, "ignore");
        Self { axis, ignore, keepdims: table.bool("keepdims").unwrap_or(false) }
    }

    /// These axes, nothing left out.
    pub fn over(axes: Vec<i64>) -> Self {
        Self { axis: Some(OneOrMany::Many(axes)), ignore: None, keepdims: false }
    }

    /// The same without a value.
    pub fn leaving_out(self, value: Number) -> Self {
        Self { ignore: Some(value), ..self }
    }

    /// Applies them to the only input of a step.
    pub fn bind<'a>(&self, op: &'static str, inputs: &'a [StepInput]) -> Result<Reducing<'a>, String> {
        let input = only_input(op, inputs)?;
        no_halo(op, input)?;
        let meta = &input.meta;
        let axes = axes(&self.axis, meta.rank())?;
        let ignore = self.ignore.map(|n| n.scalar(meta.dtype)).transpose().map_err(|e| format!("ignore: {e}"))?;
        let guard = meta.missing.filter(|m| !ignore.is_some_and(|i| is_same(&i, m)));
        Ok(Reducing { op, meta, axes, ignore, guard, keepdims: self.keepdims })
    }
}

/// A reduction of one array, before its arithmetic is known.
pub struct Reducing<'a> {
    op: &'static str,
    pub meta: &'a ArrayMeta,
    /// Sorted.
    pub axes: Vec<usize>,
    pub ignore: Option<Scalar>,
    /// The declared missing value, when it is not left out.
    pub guard: Option<Scalar>,
    keepdims: bool,
}

impl Reducing<'_> {
    pub fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// The value to leave out as an element.
    pub fn ignored<T: element::Element>(&self) -> Option<T> {
        self.ignore.map(|s| bytemuck::pod_read_unaligned(s.bytes()))
    }

    /// Elements that each kept cell reduces.
    pub fn count(&self) -> u64 {
        self.axes.iter().fold(1, |n, &a| n.saturating_mul(self.meta.shape[a]))
    }

    /// Refuses to reduce nothing, where the result would have no value.
    pub fn refuse_empty(&self) -> Result<(), String> {
        match self.axes.iter().find(|&&a| self.meta.shape[a] == 0) {
            Some(axis) => Err(format!("axis {axis} of {} is empty, and {} of nothing has no value", self.meta.name, self.op)),
            None => Ok(()),
        }
    }

    /// The axes of the result.
    pub fn output_axes(&self) -> Vec<OutAxis> {
        (0..self.meta.rank())
            .filter_map(|axis| match self.axes.contains(&axis) {
                false => Some(OutAxis::Carried(axis)),
                true if self.keepdims => Some(OutAxis::New { len: 1, name: self.meta.dimension_names[axis].clone() }),
                true => None,
            })
            .collect()
    }

    /// The binding with one output of dtype `to`, whose last axes are `tail`.
    pub fn binding<R: Reduction>(self, to: DType, tail: Vec<OutAxis>, reduction: R) -> Binding {
        let meta = self.meta;
        let mut output = OutputBinding::like(self.op, to, meta);
        output.axes = self.output_axes().into_iter().chain(tail).collect();
        let fold = Fold { guard: self.guard, name: meta.name.clone(), places: places(&meta.shape, &self.axes), reduction };
        Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![output],
            whole: Vec::new(),
            is_exact: R::IS_ORDER_FREE,
            kind: Kind::Fold { fold: Arc::new(fold), axes: self.axes },
            child_bytes: 0,
        }
    }
}

/// How a reduction's states become one, and a result.
pub trait Reduction: Take + Send + Sync + 'static {
    /// Merging in any order and grouping gives the same state.
    const IS_ORDER_FREE: bool;
    /// Taking an element is less work than reading it.
    const IS_LIGHT: bool = true;

    /// `other` (the later elements) into `into`: the states of the same cells.
    fn merge(&self, into: &mut [Self::State], other: &[Self::State]);

    /// The results of all cells, C order, from their states; each cell reduced `count` elements.
    fn finish(&self, states: &[Self::State], count: u64, out: &mut [u8]) -> Result<(), OperatorError>;
}

struct Fold<R> {
    /// The input, for messages.
    name: String,
    guard: Option<Scalar>,
    places: Vec<u64>,
    reduction: R,
}

impl<R: Reduction> FoldOperator for Fold<R> {
    fn state_bytes(&self) -> usize {
        self.reduction.width() * size_of::<R::State>()
    }

    fn is_order_free(&self) -> bool {
        R::IS_ORDER_FREE
    }

    fn is_light(&self) -> bool {
        R::IS_LIGHT
    }

    fn leaf(&self, inputs: &[Padded], axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError> {
        let input = &inputs[0];
        refuse_missing(&self.name, &self.guard, input)?;
        let states = bytemuck::cast_slice_mut(state);
        walk::walk(&self.reduction, &input.block, &input.region.start, axes, &self.places, states);
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        self.reduction.merge(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
        Ok(())
    }

    fn finish(&self, state: &[u8], count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        self.reduction.finish(bytemuck::cast_slice(state), count, outputs[0])
    }
}

/// Stops at a declared missing value that nobody said to leave out.
pub fn refuse_missing(name: &str, guard: &Option<Scalar>, input: &Padded) -> Result<(), OperatorError> {
    let Some(at) = guard.as_ref().and_then(|guard| find(&input.block, guard)) else { return Ok(()) };
    let (value, at) = (show(&input.block, at), place(&input.region, at));
    Err(OperatorError::data(format!(
        "{name} holds its missing value {value} at {at:?}; give ignore = {} to leave such values out",
        value.to_lowercase()
    )))
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
        match one_axis(axis, rank)? {
            at if axes.contains(&at) => return Err(format!("axis {axis} is given twice")),
            at => axes.push(at),
        }
    }
    axes.sort_unstable();
    Ok(axes)
}

/// An axis that may count from the end.
pub fn one_axis(axis: i64, rank: usize) -> Result<usize, String> {
    let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < rank);
    at.ok_or_else(|| format!("axis {axis} does not exist, the array has {rank} axes"))
}

/// Per axis, how far apart neighbours are in C order over the reduced axes; 0 on kept ones.
pub fn places(shape: &[u64], axes: &[usize]) -> Vec<u64> {
    let mut places = vec![0; shape.len()];
    let mut step = 1u64;
    for &axis in axes.iter().rev() {
        places[axis] = step;
        step = step.saturating_mul(shape[axis]);
    }
    places
}

/// Equal, or both NaN.
fn is_same(a: &Scalar, b: &Scalar) -> bool {
    a == b || (a.dtype() == b.dtype() && (a.to_f64().is_nan() && b.to_f64().is_nan() || a.to_f64() == 0.0 && b.to_f64() == 0.0))
}

/// Rounds a result to its dtype. One NaN for all: which one arithmetic makes depends on the order of its operands, which
/// compilers choose.
pub fn write_float(to: DType, re: f64, im: f64, out: &mut [u8]) {
    let one = |v: f64| if v.is_nan() { f64::NAN } else { v };
    let (re, im) = (one(re), one(im));
    match to {
        DType::F16 => out.copy_from_slice(&f16_from_f64(re).to_bits().to_ne_bytes()),
        DType::F32 => out.copy_from_slice(&(re as f32).to_ne_bytes()),
        DType::C64 => out.copy_from_slice(bytemuck::bytes_of(&[re as f32, im as f32])),
        DType::C128 => out.copy_from_slice(bytemuck::bytes_of(&[re, im])),
        _ => out.copy_from_slice(&re.to_ne_bytes()),
    }
}

/// Adds rows in eight partial sums: independent additions that vector units can do side by side, in an order that is the
/// same without them. Element `i` goes to sum `i mod 8`; the sums are combined pairwise, far ones first.
pub fn sum_lanes<const N: usize>(mut terms: impl ExactSizeIterator<Item = [f64; N]>) -> [f64; N] {
    const LANES: usize = 8;
    let mut lanes = [[0.0; N]; LANES];
    while terms.len() >= LANES {
        for (lane, term) in lanes.iter_mut().zip(terms.by_ref().take(LANES)) {
            for part in 0..N {
                lane[part] += term[part];
            }
        }
    }
    for (lane, term) in lanes.iter_mut().zip(terms) {
        for part in 0..N {
            lane[part] += term[part];
        }
    }
    let half = |i: usize, part: usize| (lanes[i][part] + lanes[i + 4][part]) + (lanes[i + 2][part] + lanes[i + 6][part]);
    std::array::from_fn(|part| half(0, part) + half(1, part))
}
