//! `sum` and `mean` over axes, as numpy's, but exact for integers and independent of how the array is cut.
//!
//! - Integers and bool: summed in 128 bits, which no array overflows, in any order. A total that the output dtype cannot
//!   hold is an error; a mean is that total over the count, in float64.
//! - Floats: summed in float64 within the leaves of a constant grid in array coordinates, leaves combined in a fixed tree,
//!   rounded once at the end. Within a leaf: rows in C order; where the last axis is reduced, each row in eight partial
//!   sums (element `i` of the row goes to sum `i mod 8`) that are combined in a fixed order.
//! - Complex: both parts as floats.
//!
//! The mean of no values is NaN. State: 16 bytes per kept cell for integers and complex, 8 for floats; 8 more for the count of
//! a mean that leaves values out.

mod exact;

use std::marker::PhantomData;

use super::reduce::element::{Element, Real, with_type};
use super::reduce::walk::Take;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, Reducing, Reduction, sum_lanes, write_float};
use super::{ArrayMeta, Binding, Info, Operator, OperatorError, Param, StepInput};
use crate::array::DType;
use crate::config::table::Table;
use exact::Exact;

pub static SUM: Info = Info {
    name: "sum",
    summary: "sum over axes",
    kind: "fold",
    inputs: "one array, any dtype",
    outputs: "the axes that are kept; int64, uint64 or the input's float dtype unless `dtype` says otherwise",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one addition an element: the speed of reading and decoding; 8 to 16 bytes per kept cell",
    source: "numpy.sum; floats in a fixed tree of leaves, see `docs/ARCHITECTURE.md`",
    params: &[
        AXIS,
        Param {
            name: "dtype",
            kind: "dtype",
            default: "as numpy",
            doc: "the output's dtype: int64 for bool and signed, uint64 for unsigned, floats keep theirs; a total that does not fit is an error",
        },
        IGNORE,
        KEEPDIMS,
    ],
    build: |table| build(table, "sum", sum),
};

pub static MEAN: Info = Info {
    name: "mean",
    summary: "mean over axes",
    kind: "fold",
    inputs: "one array, any dtype",
    outputs: "the axes that are kept; float64 of integers and bool, else the input's dtype, unless `dtype` says otherwise",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one addition an element: the speed of reading and decoding; 8 to 24 bytes per kept cell",
    source: "numpy.mean; floats in a fixed tree of leaves, see `docs/ARCHITECTURE.md`",
    params: &[
        AXIS,
        Param {
            name: "dtype",
            kind: "float or complex dtype",
            default: "as numpy",
            doc: "the output's dtype: float64 for integers and bool, floats keep theirs",
        },
        IGNORE,
        KEEPDIMS,
    ],
    build: |table| build(table, "mean", mean),
};

type Bind = fn(Reducing<'_>, Option<DType>) -> Result<Binding, String>;

fn build(table: &mut Table<'_>, op: &'static str, bind: Bind) -> Option<Box<dyn Operator>> {
    let (common, dtype) = (Common::read(table), table.dtype("dtype"));
    Some(Box::new(move |inputs: &[StepInput]| bind(common.bind(op, inputs)?, dtype)))
}

fn sum(of: Reducing<'_>, asked: Option<DType>) -> Result<Binding, String> {
    let from = of.dtype();
    let to = match (from, asked) {
        (_, Some(DType::Bool)) => {
            return Err("dtype: a sum is no bool; use `any` to know whether any is true".to_owned());
        }
        (_, Some(to)) if from.is_complex() && !to.is_complex() => return Err(is_complex("sum", from)),
        (_, Some(to)) if from.is_float() && to.is_integer() => {
            return Err(format!("dtype: the sum of {from} is no {to}; cast the input first, or the sum afterwards"));
        }
        (_, Some(to)) => to,
        (DType::U8 | DType::U16 | DType::U32 | DType::U64, None) => DType::U64,
        (DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64, None) => DType::I64,
        (float, None) => float,
    };
    Ok(with_type!(whole from, T => Exact::<T, 2>::bind(of, to), else match from {
        DType::F16 => Rounded::<half::f16, 1>::bind(of, to),
        DType::F32 => Rounded::<f32, 1>::bind(of, to),
        DType::C64 => Rounded::<[f32; 2], 2>::bind(of, to),
        DType::C128 => Rounded::<[f64; 2], 2>::bind(of, to),
        _ => Rounded::<f64, 1>::bind(of, to),
    }))
}

/// The sum of a whole array, as an output of another step.
pub fn of_all(name: &str, meta: &ArrayMeta) -> Result<Binding, String> {
    let input = [StepInput { meta: meta.clone(), boundary: None, depth: None }];
    let mut binding = sum(Common::over((0..meta.rank() as i64).collect()).bind("sum", &input)?, None)?;
    binding.outputs[0].name = name.to_owned();
    Ok(binding)
}

/// The sums of everything along the first axis of an array: what the measures of a pass come to.
pub fn over_all_but_first(meta: &ArrayMeta) -> Result<Binding, String> {
    let input = [StepInput { meta: meta.clone(), boundary: None, depth: None }];
    sum(Common::over((1..meta.rank() as i64).collect()).bind("sum", &input)?, None)
}

fn mean(of: Reducing<'_>, asked: Option<DType>) -> Result<Binding, String> {
    let from = of.dtype();
    let to = match asked {
        Some(to) if from.is_complex() && !to.is_complex() => return Err(is_complex("mean", from)),
        Some(to) if !to.is_float() && !to.is_complex() => {
            return Err(format!("dtype: a mean is no {to}; give a float dtype, and cast the mean afterwards"));
        }
        Some(to) => to,
        None if from.is_float() || from.is_complex() => from,
        None => DType::F64,
    };
    // Whatever leaves values out has to count those it takes.
    let counts = of.ignore.is_some();
    macro_rules! rounded {
        ($t:ty, $plain:literal, $counted:literal) => {
            if counts { Rounded::<$t, $counted>::bind_mean(of, to) } else { Rounded::<$t, $plain>::bind_mean(of, to) }
        };
    }
    Ok(with_type!(whole from, T => {
        if counts { Exact::<T, 3>::bind_mean(of, to) } else { Exact::<T, 2>::bind_mean(of, to) }
    }, else match from {
        DType::F16 => rounded!(half::f16, 1, 2),
        DType::F32 => rounded!(f32, 1, 2),
        DType::C64 => rounded!([f32; 2], 2, 3),
        DType::C128 => rounded!([f64; 2], 2, 3),
        _ => rounded!(f64, 1, 2),
    }))
}

fn is_complex(what: &str, from: DType) -> String {
    format!("dtype: the {what} of {from} is complex; take the amplitude first or give complex64 or complex128")
}

/// Sums of floats in float64: `N` is the number of parts, and one more with the count of those taken.
struct Rounded<T, const N: usize> {
    to: DType,
    ignore: Option<T>,
    is_mean: bool,
    /// Parts of an element.
    parts: usize,
    of: PhantomData<T>,
}

/// An element as what it adds to a sum.
trait Term<const N: usize>: Element {
    const PARTS: usize;
    fn term(self) -> [f64; N];
}

macro_rules! terms {
    ($($t:ty, $parts:literal, $v:ident: $($n:literal => $term:expr),*;)*) => { $( $(
        impl Term<$n> for $t {
            const PARTS: usize = $parts;
            fn term(self) -> [f64; $n] {
                let $v = self;
                $term
            }
        }
    )* )* };
}
terms! {
    half::f16, 1, v: 1 => [v.wide()], 2 => [v.wide(), 1.0];
    f32, 1, v: 1 => [v.into()], 2 => [v.into(), 1.0];
    f64, 1, v: 1 => [v], 2 => [v, 1.0];
    [f32; 2], 2, v: 2 => [v[0].into(), v[1].into()], 3 => [v[0].into(), v[1].into(), 1.0];
    [f64; 2], 2, v: 2 => v, 3 => [v[0], v[1], 1.0];
}

impl<T: Term<N> + 'static, const N: usize> Rounded<T, N> {
    fn new(of: &Reducing<'_>, to: DType, is_mean: bool) -> Self {
        Self { to, ignore: of.ignored(), is_mean, parts: T::PARTS, of: PhantomData }
    }

    fn bind(of: Reducing<'_>, to: DType) -> Binding {
        let sum = Self::new(&of, to, false);
        of.binding(to, Vec::new(), sum)
    }

    fn bind_mean(of: Reducing<'_>, to: DType) -> Binding {
        let mean = Self::new(&of, to, true);
        of.binding(to, Vec::new(), mean)
    }

    /// What is left out adds nothing: not skipped, so that lanes stay where they are.
    fn term(&self, value: T) -> [f64; N] {
        match self.ignore {
            Some(ignored) if value.is(ignored) => [0.0; N],
            _ => value.term(),
        }
    }
}

impl<T: Term<N> + 'static, const N: usize> Take for Rounded<T, N> {
    type Element = T;
    type State = [f64; N];

    fn run(&self, values: &[T], _at: u64, cell: &mut [[f64; N]]) {
        let sum = sum_lanes(values.iter().map(|v| self.term(*v)));
        cell[0].iter_mut().zip(sum).for_each(|(a, b)| *a += b);
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [[f64; N]]) {
        for (value, cell) in values.iter().zip(cells) {
            let term = self.term(*value);
            cell.iter_mut().zip(term).for_each(|(a, b)| *a += b);
        }
    }
}

impl<T: Term<N> + 'static, const N: usize> Reduction for Rounded<T, N> {
    const IS_ORDER_FREE: bool = false;

    fn merge(&self, into: &mut [[f64; N]], other: &[[f64; N]]) {
        into.as_flattened_mut().iter_mut().zip(other.as_flattened()).for_each(|(a, b)| *a += b);
    }

    fn finish(&self, states: &[[f64; N]], count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        for (out, state) in out.chunks_exact_mut(self.to.size()).zip(states) {
            // A real sum has no imaginary part.
            let mut parts = [state[0], if self.parts > 1 { state[1] } else { 0.0 }];
            if self.is_mean {
                let taken = if N > self.parts { state[N - 1] } else { count as f64 };
                parts[0] /= taken;
                // 0 / 0 is no imaginary part of a real mean.
                parts[1] = if self.parts > 1 { parts[1] / taken } else { 0.0 };
            }
            write_float(self.to, parts[0], parts[1], out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
