//! How many values fall into each bin, as numpy's `histogram`: bins are closed on the left, the last on both sides; what
//! lies outside, NaN too, is not counted.
//!
//! The edges of `bins` equal bins are those of numpy's `linspace` over `range`, rounded to the input's dtype where that is a
//! float; a value belongs to the bin whose edges say so, whatever the division that guesses it gives. The edges are kept as
//! the attribute `bin_edges`. Unlike numpy's the range is to be given: finding it would be a pass of its own (`min` and `max`
//! do that). Exact, in any order. State: 8 bytes per bin and kept cell.

use toml::de::DeValue;

use super::reduce::element::{Real, with_type};
use super::reduce::walk::Take;
use super::reduce::{AXIS, Common, IGNORE, KEEPDIMS, Reducing, Reduction};
use super::{Binding, Info, Operator, OperatorError, OutAxis, Param, StepInput};
use crate::array::DType;
use crate::array::dtype::f16_from_f64;
use crate::config::table::{self, Table};

/// Bins that a job may ask for: beyond it, a table of the values is what one wants.
const MOST_BINS: usize = 1 << 20;

pub static INFO: Info = Info {
    name: "histogram",
    summary: "counts of values per bin, over axes",
    kind: "fold",
    inputs: "one real array",
    outputs: "the axes that are kept, then `bin`; int64",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one multiplication and a look at two edges an element; 8 bytes per bin and kept cell",
    source: "numpy.histogram, its edges included",
    params: &[
        AXIS,
        Param {
            name: "bins",
            kind: "int or [number, ...]",
            default: "10",
            doc: "number of equal bins over `range`, or the edges, ascending",
        },
        Param {
            name: "range",
            kind: "[low, high]",
            default: "required with a number of bins",
            doc: "first and last edge; values outside are not counted",
        },
        IGNORE,
        KEEPDIMS,
    ],
    build,
};

enum Bins {
    Equal(usize, [f64; 2]),
    Edges(Vec<f64>),
}

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let common = Common::read(table);
    let range = match table.numbers("range") {
        Some(crate::config::OneOrMany::Many(list))
            if list.len() == 2 && list[0] < list[1] && list.iter().all(|v| v.is_finite()) =>
        {
            Some([list[0], list[1]])
        }
        Some(_) => {
            table.problem("range", "expected [low, high], two finite numbers, the first below the second");
            return None;
        }
        None => None,
    };
    let bins = match table.get("bins").map(|node| node.get_ref()) {
        Some(DeValue::Array(list)) => {
            let edges: Option<Vec<f64>> = list.iter().map(|v| table::number(v.get_ref())).collect();
            let ascends = |e: &Vec<f64>| e.len() > 1 && e.len() <= MOST_BINS && e.windows(2).all(|p| p[0] < p[1]);
            let Some(edges) = edges.filter(ascends) else {
                table.problem("bins", format!("expected 2 to {MOST_BINS} numbers that ascend"));
                return None;
            };
            if range.is_some() {
                table.problem("range", "the edges in `bins` say it already; leave one of them out");
                return None;
            }
            Bins::Edges(edges)
        }
        given => {
            let count = match given {
                None => Some(10),
                Some(value) => table::integer(value).and_then(|n| usize::try_from(n).ok()),
            };
            let Some(count) = count.filter(|n| (1..=MOST_BINS).contains(n)) else {
                table.problem("bins", format!("expected a number of bins from 1 to {MOST_BINS}, or a list of edges"));
                return None;
            };
            let Some(range) = range else {
                if !table.has("range") {
                    let text = "missing; give range = [low, high], or the edges in `bins` (`min` and `max` find the ends)";
                    table.problem("range", text);
                }
                return None;
            };
            Bins::Equal(count, range)
        }
    };
    Some(Box::new(move |inputs: &[StepInput]| bind(common.bind("histogram", inputs)?, &bins)))
}

fn bind(of: Reducing<'_>, bins: &Bins) -> Result<Binding, String> {
    let from = of.dtype();
    let edges = match bins {
        Bins::Edges(edges) => edges.clone(),
        Bins::Equal(count, range) => equal_edges(*count, *range, from)?,
    };
    let count = edges.len() - 1;
    let tail = vec![OutAxis::New { len: count as u64, name: Some("bin".to_owned()) }];
    let listed = edges.iter().map(|e| serde_json::Value::from(*e)).collect();
    let mut bound = with_type!(real from, T => {
        let ignore = of.ignored::<T>();
        of.binding(DType::I64, tail, Bin::<T> { edges, ignore })
    }, else return Err(format!("histogram: {from} has no order; take the amplitude, or a part of it, first")));
    bound.outputs[0].attributes.insert("bin_edges".to_owned(), listed);
    Ok(bound)
}

/// numpy's linspace, in the dtype that the values are compared in.
fn equal_edges(bins: usize, [low, high]: [f64; 2], from: DType) -> Result<Vec<f64>, String> {
    let rounded = |v: f64| match from {
        DType::F16 => f16_from_f64(v).to_f64_const(),
        DType::F32 => f64::from(v as f32),
        _ => v,
    };
    let step = (high - low) / bins as f64;
    let mut edges: Vec<f64> = (0..=bins).map(|i| rounded(i as f64 * step + low)).collect();
    edges[bins] = rounded(high);
    match edges.windows(2).position(|pair| pair[0] >= pair[1] || !pair[1].is_finite()) {
        Some(at) => Err(format!("bins: {bins} bins from {low} to {high} are too narrow for {from} (bin {at} would be empty)")),
        None => Ok(edges),
    }
}

struct Bin<T> {
    edges: Vec<f64>,
    ignore: Option<T>,
}

impl<T: Real> Bin<T> {
    fn of(&self, value: f64) -> Option<usize> {
        let (low, high) = (self.edges[0], self.edges[self.edges.len() - 1]);
        if !(value >= low && value <= high) {
            return None;
        }
        // Guessed as if all were equal, then moved to where the edges say; far from equal ones are searched.
        let last = self.edges.len() - 2;
        let guess = (((value - low) / (high - low) * (last + 1) as f64) as usize).min(last);
        for at in [guess, guess.saturating_sub(1), (guess + 1).min(last)] {
            if value >= self.edges[at] && (value < self.edges[at + 1] || at == last) {
                return Some(at);
            }
        }
        Some(self.edges.partition_point(|edge| *edge <= value).saturating_sub(1).min(last))
    }
}

impl<T: Real> Take for Bin<T> {
    type Element = T;
    type State = u64;

    fn width(&self) -> usize {
        self.edges.len() - 1
    }

    fn run(&self, values: &[T], _at: u64, cell: &mut [u64]) {
        for value in values {
            if self.ignore.is_none_or(|ignored| !value.is(ignored))
                && let Some(bin) = self.of(value.wide())
            {
                cell[bin] += 1;
            }
        }
    }
}

impl<T: Real + 'static> Reduction for Bin<T> {
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
    use super::super::testing::{Random, Whole, bind, fold};
    use super::*;
    use crate::array::Block;

    #[test]
    fn bins_are_those_of_the_edges() {
        let mut random = Random::new(4);
        let mut values: Vec<f32> = (0..300).map(|_| (random.unit() * 1.4 - 0.2) as f32).collect();
        // The edges themselves, both ends, outside, nothing at all.
        values.extend((0..=10).map(|i| (f64::from(i) * 0.1) as f32));
        values.extend([1.0, 0.0, -0.0, f32::NAN, f32::INFINITY, -7.0]);
        let whole = Whole::new(Block::from_values(&[values.len()], &values));
        let edges = equal_edges(10, [0.0, 1.0], DType::F32).unwrap();
        let mut want = [0i64; 10];
        for v in &values {
            let v = f64::from(*v);
            for bin in 0..10 {
                want[bin] += i64::from(v >= edges[bin] && (v < edges[bin + 1] || (bin == 9 && v == edges[10])));
            }
        }
        for leaf in [3, 1000] {
            assert_eq!(fold::<i64>("histogram", "range = [0.0, 1]", &[&whole], leaf).unwrap(), want);
        }
    }

    #[test]
    fn kept_axes_come_first_and_edges_may_be_uneven() {
        let whole = Whole::new(Block::from_values(&[2, 4], &[1i16, 2, 50, 99, -5, 100, 100, 3]));
        let lines = "axis = 1\nbins = [0, 2, 3, 100]";
        assert_eq!(fold::<i64>("histogram", lines, &[&whole], 3).unwrap(), [1, 1, 2, 0, 0, 3]);
        assert_eq!(fold::<i64>("histogram", &format!("{lines}\nignore = 100"), &[&whole], 3).unwrap(), [1, 1, 2, 0, 0, 1]);
        let bound = bind("histogram", lines, &[&whole]).unwrap();
        assert_eq!(bound.outputs[0].attributes["bin_edges"], serde_json::json!([0.0, 2.0, 3.0, 100.0]));
        let error = |lines: &str| bind("histogram", lines, &[&whole]).unwrap_err();
        assert!(error("").contains("give range = [low, high]"));
        assert!(error("range = [3, 1]").contains("the first below the second"));
        assert!(error("bins = 0\nrange = [0, 1]").contains("from 1 to"));
        assert!(error("bins = [1, 1]").contains("ascend"));
        assert!(error("bins = [1, 2]\nrange = [0, 1]").contains("leave one of them out"));
        let whole = Whole::new(Block::from_values(&[1], &[half::f16::ONE]));
        assert!(bind("histogram", "bins = 4000\nrange = [0, 1]", &[&whole]).unwrap_err().contains("too narrow for float16"));
    }
}
