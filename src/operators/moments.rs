//! `var` and `std` over axes, as numpy's: the mean squared distance from the mean, and its root.
//!
//! Each state holds (count, sum of squared distances from its mean, mean), in float64. Within a leaf a row along the last
//! axis is read twice (its mean, then the distances), other elements one by one; states are merged as Chan, Golub and LeVeque
//! do ("Algorithms for computing the sample variance", 1983), in the fixed tree of all float folds. Rounded once at the end.
//! The distance of complex numbers is that of the plane: the variances of both parts add up.
//!
//! As in numpy the sum is divided by `max(count - ddof, 0)`; nothing left gives NaN. State: 24 bytes per kept cell, 32 for
//! complex.

use super::reduce::element::{Element, Real, with_type};
use super::reduce::walk::Take;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, Reducing, Reduction, number, sum_lanes, write_float};
use super::{Binding, Info, Operator, OperatorError, OutAxis, Param, StepInput};
use crate::array::DType;
use crate::config::table::Table;

const DDOF: Param =
    Param { name: "ddof", kind: "number", default: "0", doc: "the sum of squares is divided by the count less this" };
const DTYPE: Param = Param {
    name: "dtype",
    kind: "float dtype",
    default: "as numpy",
    doc: "the output's dtype: float64 for integers and bool, floats keep theirs, complex gives that of its parts",
};
const OUTPUTS: &str =
    "the axes that are kept; float64 of integers and bool, else the input's float dtype, unless `dtype` says otherwise";

pub static VAR: Info = Info {
    name: "var",
    summary: "variance over axes",
    kind: "fold",
    inputs: "one array, any dtype",
    outputs: OUTPUTS,
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "two looks at each element along the last axis, one along others; 24 bytes per kept cell (complex 32)",
    source: "T. F. Chan, G. H. Golub and R. J. LeVeque, Algorithms for computing the sample variance, The American Statistician 37 (1983)",
    params: &[AXIS, DDOF, DTYPE, IGNORE, KEEPDIMS],
    build: |table| build(table, "var", false),
};

pub static STD: Info = Info {
    name: "std",
    summary: "standard deviation over axes",
    kind: "fold",
    inputs: "one array, any dtype",
    outputs: OUTPUTS,
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "two looks at each element along the last axis, one along others; 24 bytes per kept cell (complex 32)",
    source: "T. F. Chan, G. H. Golub and R. J. LeVeque, Algorithms for computing the sample variance, The American Statistician 37 (1983)",
    params: &[AXIS, DDOF, DTYPE, IGNORE, KEEPDIMS],
    build: |table| build(table, "std", true),
};

fn build(table: &mut Table<'_>, op: &'static str, is_root: bool) -> Option<Box<dyn Operator>> {
    let common = Common::read(table);
    let dtype = table.dtype("dtype");
    let ddof = number(table, "ddof").map_or(0.0, |n| n.to_f64());
    if !ddof.is_finite() {
        table.problem("ddof", "expected a finite number");
    }
    Some(Box::new(move |inputs: &[StepInput]| bind(common.bind(op, inputs)?, op, dtype, ddof, is_root)))
}

fn bind(of: Reducing<'_>, op: &str, asked: Option<DType>, ddof: f64, is_root: bool) -> Result<Binding, String> {
    let to = match (asked, of.dtype()) {
        (Some(to), _) if !to.is_float() => {
            return Err(format!("dtype: {op} is no {to}; give a float dtype, and cast the result afterwards"));
        }
        (Some(to), _) => to,
        (None, DType::C64) => DType::F32,
        (None, float) if float.is_float() => float,
        (None, _) => DType::F64,
    };
    fn moments<T: Point<P> + 'static, const P: usize, const N: usize>(
        of: Reducing<'_>,
        to: DType,
        ddof: f64,
        is_root: bool,
    ) -> Binding {
        let ignore = of.ignored();
        of.binding(to, Vec::new(), Moments::<T, P, N> { to, ddof, is_root, ignore })
    }
    Ok(with_type!(real of.dtype(), T => moments::<T, 1, 3>(of, to, ddof, is_root), else match of.dtype() {
        DType::C64 => moments::<[f32; 2], 2, 4>(of, to, ddof, is_root),
        _ => moments::<[f64; 2], 2, 4>(of, to, ddof, is_root),
    }))
}

/// The count, mean and variance (`ddof` 0) of each kept cell, on a new first axis: one fold with one output, float64.
pub fn summary(of: Reducing<'_>) -> Result<Binding, String> {
    let mut binding = with_type!(real of.dtype(), T => {
        let moments = Moments::<T, 1, 3> { to: DType::F64, ddof: 0.0, is_root: false, ignore: of.ignored() };
        of.binding(DType::F64, Vec::new(), Summary(moments))
    }, else return Err(format!("{} has no variance along one axis; take its parts first", of.dtype())));
    binding.outputs[0].axes.insert(0, OutAxis::New { len: 3, name: None });
    Ok(binding)
}

/// Moments that are told as they are.
struct Summary<T>(Moments<T, 1, 3>);

impl<T: Real> Take for Summary<T> {
    type Element = T;
    type State = [f64; 3];

    fn run(&self, values: &[T], at: u64, cell: &mut [[f64; 3]]) {
        self.0.run(values, at, cell);
    }

    fn each(&self, values: &[T], at: u64, cells: &mut [[f64; 3]]) {
        self.0.each(values, at, cells);
    }
}

impl<T: Real + 'static> Reduction for Summary<T> {
    const IS_ORDER_FREE: bool = false;
    const IS_LIGHT: bool = false;

    fn merge(&self, into: &mut [[f64; 3]], other: &[[f64; 3]]) {
        into.iter_mut().zip(other).for_each(|(a, b)| merge(a, b));
    }

    fn finish(&self, states: &[[f64; 3]], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        let out = out.as_chunks_mut::<8>().0;
        for (at, [count, squares, mean]) in states.iter().enumerate() {
            // A mean of nothing has no value.
            let mean = if *count == 0.0 { f64::NAN } else { *mean };
            for (row, value) in [*count, mean, squares / count].into_iter().enumerate() {
                let value = if value.is_nan() { f64::NAN } else { value };
                out[row * states.len() + at] = value.to_ne_bytes();
            }
        }
        Ok(())
    }
}

/// An element as a point in `P` dimensions.
trait Point<const P: usize>: Element {
    fn point(self) -> [f64; P];
}

impl<T: Real> Point<1> for T {
    fn point(self) -> [f64; 1] {
        [self.wide()]
    }
}

impl Point<2> for [f32; 2] {
    fn point(self) -> [f64; 2] {
        self.map(f64::from)
    }
}

impl Point<2> for [f64; 2] {
    fn point(self) -> [f64; 2] {
        self
    }
}

/// `N` is 2 + `P`: a state is [count, sum of squares, mean...].
struct Moments<T, const P: usize, const N: usize> {
    to: DType,
    ddof: f64,
    is_root: bool,
    ignore: Option<T>,
}

/// Chan, Golub and LeVeque's update: `other` joins `into`.
fn merge<const N: usize>(into: &mut [f64; N], other: &[f64; N]) {
    if other[0] == 0.0 {
        return;
    }
    if into[0] == 0.0 {
        *into = *other;
        return;
    }
    let count = into[0] + other[0];
    let share = other[0] / count;
    let mut distance = 0.0;
    for part in 2..N {
        let delta = other[part] - into[part];
        distance += delta * delta;
        into[part] += delta * share;
    }
    into[1] += other[1] + distance * (into[0] * share);
    into[0] = count;
}

impl<T: Point<P>, const P: usize, const N: usize> Moments<T, P, N> {
    fn is_ignored(&self, value: T) -> bool {
        self.ignore.is_some_and(|ignored| value.is(ignored))
    }
}

impl<T: Point<P>, const P: usize, const N: usize> Take for Moments<T, P, N> {
    type Element = T;
    type State = [f64; N];

    fn run(&self, values: &[T], _at: u64, cell: &mut [[f64; N]]) {
        let taken = values.len() - if self.ignore.is_some() { values.iter().filter(|v| self.is_ignored(**v)).count() } else { 0 };
        if taken == 0 {
            return;
        }
        // What is left out adds nothing: not skipped, so that lanes stay where they are.
        let kept = |v: &T, point: [f64; P]| if self.is_ignored(*v) { [0.0; P] } else { point };
        let mean = sum_lanes(values.iter().map(|v| kept(v, v.point()))).map(|sum| sum / taken as f64);
        let squares = sum_lanes(values.iter().map(|v| {
            let point = v.point();
            kept(v, std::array::from_fn(|part| (point[part] - mean[part]) * (point[part] - mean[part])))
        }));
        let mut row = [0.0; N];
        row[0] = taken as f64;
        row[1] = squares.iter().sum();
        row[2..].copy_from_slice(&mean);
        merge(&mut cell[0], &row);
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [[f64; N]]) {
        for (value, cell) in values.iter().zip(cells) {
            if self.is_ignored(*value) {
                continue;
            }
            let point = value.point();
            // The update for a state of one element, without its branches.
            let count = cell[0] + 1.0;
            let share = 1.0 / count;
            let mut distance = 0.0;
            for part in 0..P {
                let delta = point[part] - cell[2 + part];
                distance += delta * delta;
                cell[2 + part] += delta * share;
            }
            cell[1] += distance * (cell[0] * share);
            cell[0] = count;
        }
    }
}

impl<T: Point<P> + 'static, const P: usize, const N: usize> Reduction for Moments<T, P, N> {
    const IS_ORDER_FREE: bool = false;
    const IS_LIGHT: bool = false;

    fn merge(&self, into: &mut [[f64; N]], other: &[[f64; N]]) {
        into.iter_mut().zip(other).for_each(|(a, b)| merge(a, b));
    }

    fn finish(&self, states: &[[f64; N]], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        for (out, state) in out.chunks_exact_mut(self.to.size()).zip(states) {
            let var = state[1] / (state[0] - self.ddof).max(0.0);
            write_float(self.to, if self.is_root { var.sqrt() } else { var }, 0.0, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, Whole, bind, fold};
    use crate::array::Block;
    use num_complex::Complex64;

    /// The definition, in two passes.
    fn naive(values: &[f64], ddof: f64) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (values.len() as f64 - ddof)
    }

    #[test]
    fn variances_are_near_the_definition_far_from_zero_too() {
        let mut random = Random::new(3);
        // The sum of squares less the square of the sum would have no digit left.
        let values: Vec<f64> = (0..6 * 500).map(|_| 1e9 + random.unit()).collect();
        let whole = Whole::new(Block::from_values(&[6, 500], &values));
        for leaf in [1, 7, 256] {
            for ddof in [0.0, 1.0] {
                let rows = fold::<f64>("var", &format!("axis = 1\nddof = {ddof}"), &[&whole], leaf).unwrap();
                for (row, got) in values.chunks(500).zip(rows) {
                    assert!((got / naive(row, ddof) - 1.0).abs() < 1e-6, "{got}");
                }
                let columns = fold::<f64>("std", &format!("axis = 0\nddof = {ddof}"), &[&whole], leaf).unwrap();
                for (c, got) in columns.iter().enumerate() {
                    let column: Vec<f64> = values.iter().skip(c).step_by(500).copied().collect();
                    assert!((got / naive(&column, ddof).sqrt() - 1.0).abs() < 1e-6, "{got}");
                }
            }
        }
    }

    #[test]
    fn corners_are_numpys() {
        let whole = Whole::new(Block::from_values(&[5], &[2u8, 4, 4, 9, 9]));
        for leaf in [1, 2, 100] {
            let got = fold::<f64>("var", "ignore = 9", &[&whole], leaf).unwrap()[0];
            assert!((got - 8.0 / 9.0).abs() < 1e-15, "{got}");
        }
        assert!(fold::<f64>("var", "ddof = 5", &[&whole], 9).unwrap()[0].is_infinite());
        assert!(fold::<f64>("std", "ddof = 1", &[&Whole::new(Block::from_values(&[1], &[3u8]))], 9).unwrap()[0].is_nan());
        assert_eq!(fold::<f32>("var", "dtype = \"float32\"", &[&whole], 9).unwrap(), [8.24f32]);
        assert!(bind("std", "dtype = \"int8\"", &[&whole]).unwrap_err().contains("std is no int8"));
        let whole = Whole::new(Block::from_values(&[3], &[1.0f32, f32::NAN, 3.0]));
        assert!(fold::<f32>("var", "", &[&whole], 1).unwrap()[0].is_nan());
        assert_eq!(fold::<f32>("var", "ignore = nan", &[&whole], 1).unwrap(), [1.0]);
        let whole = Whole::new(Block::from_values(&[2], &[Complex64::new(1.0, 2.0), Complex64::new(3.0, -2.0)]));
        assert_eq!(fold::<f64>("var", "", &[&whole], 1).unwrap(), [5.0]);
        assert!(fold::<f64>("var", "", &[&Whole::new(Block::from_values::<f64>(&[0], &[]))], 1).unwrap()[0].is_nan());
    }
}
