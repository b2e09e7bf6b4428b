//! `min`, `max`, `argmin`, `argmax` over axes, as numpy's: NaN wins, and of equal values the first has the place.
//!
//! Values are compared as unsigned integers in the same order, which vector units do at memory speed and which makes any
//! grouping give the same result. Of -0 and 0, `min` gives -0 and `max` 0 (numpy: whichever comes first); their places are
//! found as if they were equal. Complex numbers have no order and are refused.
//!
//! Nothing to choose from: an empty axis is refused; where `ignore` left nothing, floats give NaN, and integers and places
//! are an error. State: one element per kept cell, a second one with `ignore`; 16 bytes for places.

use super::reduce::element::{Real, with_type};
use super::reduce::walk::Take;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, NOTHING, Reducing, Reduction};
use super::{Binding, Info, Operator, OperatorError, Param, StepInput};
use crate::array::DType;
use crate::config::table::Table;

macro_rules! info {
    ($id:ident, $name:literal, $summary:literal, $outputs:literal, $axis:expr, $bind:expr) => {
        pub static $id: Info = Info {
            name: $name,
            summary: $summary,
            kind: "fold",
            inputs: "one real array",
            outputs: $outputs,
            halo: "none",
            boundary: "-",
            devices: "cpu",
            cost: "one comparison an element; one or two values per kept cell",
            source: concat!("numpy.", $name, ": a NaN wins, of equal values the first"),
            params: &[$axis, IGNORE, KEEPDIMS],
            build: |table| build(table, $name, $bind),
        };
    };
}

const PLACE_AXIS: Param = Param {
    name: "axis",
    kind: "int",
    default: "the whole array",
    doc: "the axis to search along; without it the place is counted in C order over the whole array",
};

info!(MIN, "min", "smallest value over axes", "the axes that are kept, same dtype", AXIS, |of| values(of, false));
info!(MAX, "max", "largest value over axes", "the axes that are kept, same dtype", AXIS, |of| values(of, true));
info!(ARGMIN, "argmin", "place of the smallest value along an axis", "the axes that are kept, int64", PLACE_AXIS, |of| places(
    of, false
));
info!(ARGMAX, "argmax", "place of the largest value along an axis", "the axes that are kept, int64", PLACE_AXIS, |of| places(
    of, true
));

fn build(
    table: &mut Table<'_>,
    op: &'static str,
    bind: fn(Reducing<'_>) -> Result<Binding, String>,
) -> Option<Box<dyn Operator>> {
    let common = Common::read(table);
    Some(Box::new(move |inputs: &[StepInput]| {
        let of = common.bind(op, inputs)?;
        of.refuse_empty()?;
        bind(of).map_err(|e| format!("{op}: {e}"))
    }))
}

fn no_order<T>(from: DType) -> Result<T, String> {
    Err(format!("{from} has no order; take the amplitude, or a part of it, first"))
}

fn values(of: Reducing<'_>, is_max: bool) -> Result<Binding, String> {
    let from = of.dtype();
    let known = of.meta.max_value;
    let mut bound = with_type!(real from, T => match of.ignored::<T>() {
        None => of.binding(from, Vec::new(), Value::<T, 1> { turn: turn::<T>(is_max), ignore: None }),
        ignore => of.binding(from, Vec::new(), Value::<T, 2> { turn: turn::<T>(is_max), ignore }),
    }, else return no_order(from));
    bound.outputs[0].max_value = known;
    Ok(bound)
}

fn places(of: Reducing<'_>, is_max: bool) -> Result<Binding, String> {
    let from = of.dtype();
    if of.axes.len() != 1 && of.axes.len() != of.meta.rank() {
        return Err(format!("looks along one axis or over the whole array, not along axes {:?}", of.axes));
    }
    Ok(with_type!(real from, T => {
        let ignore = of.ignored::<T>();
        of.binding(DType::I64, Vec::new(), Place::<T> { turn: turn::<T>(is_max), ignore })
    }, else return no_order(from)))
}

/// What turns ranks round where the smallest value is sought.
fn turn<T: Real>(is_max: bool) -> T::Rank {
    if is_max { bytemuck::Zeroable::zeroed() } else { T::TOP }
}

/// What is to be largest.
fn merit<T: Real>(value: T, turn: T::Rank) -> T::Rank {
    if T::HAS_NAN && value.is_nan() { T::TOP } else { value.rank() ^ turn }
}

/// The extreme value. `N`: 1, or 2 with a mark that anything was taken.
struct Value<T: Real, const N: usize> {
    turn: T::Rank,
    ignore: Option<T>,
}

impl<T: Real, const N: usize> Value<T, N> {
    fn one(&self, value: T, cell: &mut [T::Rank; N]) {
        let merit = merit(value, self.turn);
        if self.ignore.is_some_and(|ignored| value.is(ignored)) {
            return;
        }
        cell[0] = cell[0].max(merit);
        if N > 1 {
            cell[1] = T::TOP;
        }
    }
}

impl<T: Real, const N: usize> Take for Value<T, N> {
    type Element = T;
    type State = [T::Rank; N];

    fn run(&self, values: &[T], _at: u64, cell: &mut [[T::Rank; N]]) {
        match self.ignore {
            None => cell[0][0] = values.iter().fold(cell[0][0], |best, v| best.max(merit(*v, self.turn))),
            Some(_) => values.iter().for_each(|v| self.one(*v, &mut cell[0])),
        }
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [[T::Rank; N]]) {
        values.iter().zip(cells).for_each(|(v, cell)| self.one(*v, cell));
    }
}

impl<T: Real + 'static, const N: usize> Reduction for Value<T, N> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [Self::State], other: &[Self::State]) {
        into.as_flattened_mut().iter_mut().zip(other.as_flattened()).for_each(|(a, b)| *a = (*a).max(*b));
    }

    fn finish(&self, states: &[Self::State], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        for (out, state) in out.chunks_exact_mut(size_of::<T>()).zip(states) {
            // Every rank but NaN's lies between those of the infinities, whichever way round.
            let is_nan = T::HAS_NAN && state[0] == T::TOP;
            let value = if N > 1 && state[1] != T::TOP {
                if !T::HAS_NAN {
                    return Err(OperatorError::data(NOTHING));
                }
                T::unrank(T::TOP)
            } else if is_nan {
                T::unrank(T::TOP)
            } else {
                T::unrank(state[0] ^ self.turn)
            };
            out.copy_from_slice(bytemuck::bytes_of(&value));
        }
        Ok(())
    }
}

/// The place of the extreme value: (merit, place + 1), all zero when nothing was taken.
struct Place<T: Real> {
    turn: T::Rank,
    ignore: Option<T>,
}

fn better(into: &mut [u64; 2], [merit, place]: [u64; 2]) {
    if into[1] == 0 || merit > into[0] || (merit == into[0] && place < into[1]) {
        *into = [merit, place];
    }
}

impl<T: Real> Place<T> {
    fn one(&self, value: T, at: u64, cell: &mut [u64; 2]) {
        if self.ignore.is_none_or(|ignored| !value.is(ignored)) {
            better(cell, [merit(value.plain_zero(), self.turn).into(), at + 1]);
        }
    }
}

impl<T: Real> Take for Place<T> {
    type Element = T;
    type State = [u64; 2];

    fn run(&self, values: &[T], at: u64, cell: &mut [[u64; 2]]) {
        values.iter().zip(at..).for_each(|(v, at)| self.one(*v, at, &mut cell[0]));
    }

    fn each(&self, values: &[T], at: u64, cells: &mut [[u64; 2]]) {
        values.iter().zip(cells).for_each(|(v, cell)| self.one(*v, at, cell));
    }
}

impl<T: Real + 'static> Reduction for Place<T> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [[u64; 2]], other: &[[u64; 2]]) {
        into.iter_mut().zip(other).filter(|(_, other)| other[1] > 0).for_each(|(into, other)| better(into, *other));
    }

    fn finish(&self, states: &[[u64; 2]], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        for (out, state) in out.as_chunks_mut::<8>().0.iter_mut().zip(states) {
            let place = state[1].checked_sub(1).ok_or_else(|| OperatorError::data(NOTHING))?;
            *out = (place as i64).to_ne_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, fold};
    use crate::array::Block;

    #[test]
    fn extremes_of_floats_are_numpys() {
        let nan = f32::NAN;
        let whole = Whole::new(Block::from_values(&[2, 4], &[3.0f32, -1.0, 0.0, 2.5, 7.0, -nan, nan, 1.0]));
        assert_eq!(fold::<f32>("min", "axis = 0", &[&whole], 1).unwrap()[0], 3.0);
        for leaf in [1, 2, 100] {
            let min = fold::<f32>("min", "axis = 1", &[&whole], leaf).unwrap();
            assert!(min[0] == -1.0 && min[1].to_bits() == nan.to_bits(), "one NaN for all");
            assert_eq!(fold::<f32>("min", "axis = 1\nignore = \"nan\"", &[&whole], leaf).unwrap(), [-1.0, 1.0]);
            assert_eq!(fold::<f32>("max", "axis = 1\nignore = nan", &[&whole], leaf).unwrap(), [3.0, 7.0]);
            assert_eq!(fold::<i64>("argmin", "axis = 1", &[&whole], leaf).unwrap(), [1, 1], "the first NaN");
            assert_eq!(fold::<i64>("argmax", "axis = 1\nignore = nan", &[&whole], leaf).unwrap(), [0, 0]);
            assert_eq!(fold::<i64>("argmin", "", &[&whole], leaf).unwrap(), [5]);
            assert_eq!(fold::<i64>("argmax", "ignore = nan", &[&whole], leaf).unwrap(), [4]);
        }
        let zeros = Whole::new(Block::from_values(&[3], &[0.0f64, -0.0, 0.0]));
        assert!(fold::<f64>("min", "", &[&zeros], 2).unwrap()[0].is_sign_negative());
        assert!(fold::<f64>("max", "", &[&zeros], 2).unwrap()[0].is_sign_positive());
        assert_eq!(fold::<i64>("argmin", "", &[&zeros], 1).unwrap(), [0], "they are equal");
    }

    #[test]
    fn integers_reach_their_ends_and_nothing_left_is_an_error() {
        let whole = Whole::new(Block::from_values(&[4], &[i8::MIN, i8::MAX, -1, i8::MAX]));
        assert_eq!(fold::<i8>("min", "", &[&whole], 1).unwrap(), [i8::MIN]);
        assert_eq!(fold::<i8>("max", "", &[&whole], 1).unwrap(), [i8::MAX]);
        assert_eq!(fold::<i8>("max", "ignore = 127", &[&whole], 1).unwrap(), [-1]);
        assert_eq!(fold::<i64>("argmax", "", &[&whole], 1).unwrap(), [1]);
        let whole = Whole::new(Block::from_values(&[2], &[5u64, 5]));
        assert!(fold::<u64>("min", "ignore = 5", &[&whole], 1).unwrap_err().contains("left nothing"));
        assert!(fold::<i64>("argmin", "ignore = 5", &[&whole], 1).unwrap_err().contains("left nothing"));
        let whole = Whole::new(Block::from_values(&[2], &[f32::NAN; 2]));
        assert!(fold::<f32>("max", "ignore = nan", &[&whole], 1).unwrap()[0].is_nan());
        let empty = Whole::new(Block::from_values::<f32>(&[2, 0], &[]));
        assert!(bind("min", "axis = 1", &[&empty]).unwrap_err().contains("axis 1 of input is empty"));
        let whole = Whole::new(Block::from_values(&[1], &[num_complex::Complex32::default()]));
        assert!(bind("min", "", &[&whole]).unwrap_err().contains("complex64 has no order"));
        let cube = Whole::new(Block::from_values(&[1, 1, 1], &[1u8]));
        assert!(bind("argmax", "axis = [0, 2]", &[&cube]).unwrap_err().contains("along one axis or over the whole array"));
    }
}
