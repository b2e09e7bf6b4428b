//! `count`, `any`, `all` over axes: how many values there are, whether any or all of them are true.
//!
//! As in numpy a value is true unless it is zero: a NaN is true. Of nothing (an empty axis, or `ignore` left none) `any` is
//! false and `all` true. Exact, in any order. State: 8 bytes per kept cell for `count`, one for the others.

use super::reduce::element::{Element, with_type};
use super::reduce::walk::Take;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, Reduction};
use super::{Info, Operator, OperatorError, StepInput};
use crate::array::DType;
use crate::config::table::Table;

macro_rules! info {
    ($id:ident, $name:literal, $summary:literal, $outputs:literal, $to:expr, $what:expr) => {
        pub static $id: Info = Info {
            name: $name,
            summary: $summary,
            kind: "fold",
            inputs: "one array, any dtype",
            outputs: $outputs,
            halo: "none",
            boundary: "-",
            devices: "cpu",
            cost: "one look at each element; 1 to 8 bytes per kept cell",
            source: "numpy.any, numpy.all; count: numpy.sum over what is not left out",
            params: &[AXIS, IGNORE, KEEPDIMS],
            build: |table: &mut Table<'_>| -> Option<Box<dyn Operator>> {
                let common = Common::read(table);
                Some(Box::new(move |inputs: &[StepInput]| {
                    let of = common.bind($name, inputs)?;
                    let mut bound = with_type!(any of.dtype(), T => {
                        let ignore = of.ignored::<T>();
                        of.binding($to, Vec::new(), $what(ignore))
                    });
                    bound.outputs[0].max_value = ($to == DType::Bool).then_some(1);
                    Ok(bound)
                }))
            },
        };
    };
}

info!(ANY, "any", "whether any value is not zero", "the axes that are kept, bool", DType::Bool, |ignore| Truth {
    ignore,
    decides: false
});
info!(ALL, "all", "whether no value is zero", "the axes that are kept, bool", DType::Bool, |ignore| Truth {
    ignore,
    decides: true
});
info!(COUNT, "count", "number of values, without those of `ignore`", "the axes that are kept, int64", DType::I64, |ignore| {
    Count { ignore }
});

/// A state is a mark: 1 when a value was met that decides.
struct Truth<T> {
    ignore: Option<T>,
    /// Zeros decide (`all`), or values that are none (`any`).
    decides: bool,
}

struct Count<T> {
    ignore: Option<T>,
}

impl<T: Element> Truth<T> {
    fn is_met(&self, value: T) -> bool {
        value.is_zero() == self.decides && self.ignore.is_none_or(|ignored| !value.is(ignored))
    }
}

impl<T: Element> Take for Truth<T> {
    type Element = T;
    type State = u8;

    fn run(&self, values: &[T], _at: u64, cell: &mut [u8]) {
        cell[0] |= u8::from(cell[0] == 0 && values.iter().any(|v| self.is_met(*v)));
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [u8]) {
        values.iter().zip(cells).for_each(|(v, cell)| *cell |= u8::from(self.is_met(*v)));
    }
}

impl<T: Element + 'static> Reduction for Truth<T> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [u8], other: &[u8]) {
        into.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
    }

    fn finish(&self, states: &[u8], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        out.iter_mut().zip(states).for_each(|(out, met)| *out = met ^ u8::from(self.decides));
        Ok(())
    }
}

impl<T: Element> Take for Count<T> {
    type Element = T;
    type State = u64;

    fn run(&self, values: &[T], _at: u64, cell: &mut [u64]) {
        cell[0] += match self.ignore {
            None => values.len() as u64,
            Some(ignored) => values.iter().filter(|v| !v.is(ignored)).count() as u64,
        };
    }

    fn each(&self, values: &[T], _at: u64, cells: &mut [u64]) {
        for (value, cell) in values.iter().zip(cells) {
            *cell += u64::from(self.ignore.is_none_or(|ignored| !value.is(ignored)));
        }
    }
}

impl<T: Element + 'static> Reduction for Count<T> {
    const IS_ORDER_FREE: bool = true;

    fn merge(&self, into: &mut [u64], other: &[u64]) {
        into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    }

    fn finish(&self, states: &[u64], _count: u64, out: &mut [u8]) -> Result<(), OperatorError> {
        out.copy_from_slice(bytemuck::cast_slice(states));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, fold};
    use crate::array::{Block, Buffer, DType};

    #[test]
    fn truth_is_numpys() {
        let whole = Whole::new(Block::from_values(&[3, 2], &[0.0f32, -0.0, 0.0, f32::NAN, 1.0, 2.0]));
        for leaf in [1, 2, 9] {
            assert_eq!(fold::<u8>("any", "axis = 1", &[&whole], leaf).unwrap(), [0, 1, 1]);
            assert_eq!(fold::<u8>("all", "axis = 1", &[&whole], leaf).unwrap(), [0, 0, 1]);
            assert_eq!(fold::<u8>("all", "axis = 0", &[&whole], leaf).unwrap(), [0, 0]);
            assert_eq!(fold::<u8>("all", "axis = 1\nignore = 0", &[&whole], leaf).unwrap(), [1, 1, 1]);
            assert_eq!(fold::<u8>("any", "axis = 1\nignore = nan", &[&whole], leaf).unwrap(), [0, 0, 1]);
            assert_eq!(fold::<i64>("count", "axis = 1\nignore = nan", &[&whole], leaf).unwrap(), [2, 1, 2]);
            assert_eq!(fold::<i64>("count", "axis = 0", &[&whole], leaf).unwrap(), [3, 3]);
        }
        let flags = Whole::new(Block::new(Buffer::from_slice(&[0, 2]), DType::Bool, vec![2]));
        assert_eq!(fold::<u8>("any", "", &[&flags], 1).unwrap(), [1]);
        let empty = Whole::new(Block::from_values::<i32>(&[0], &[]));
        assert_eq!(fold::<u8>("any", "", &[&empty], 1).unwrap(), [0]);
        assert_eq!(fold::<u8>("all", "", &[&empty], 1).unwrap(), [1]);
    }
}
