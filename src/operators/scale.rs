//! `scale`, `log10`, `db`: real functions of one number, computed in float64 and rounded once.
//!
//! Floats keep their dtype, integers and bool give float64 (numpy gives less for short ones). As numpy, `log10` gives NaN
//! below zero and -inf at zero. `db` is 10 log10(x) of a power and 20 log10(|x|) of an amplitude.

use super::pointwise::{Elementwise, Fault, float_of, in_doubles, unary};
use super::reduce::number;
use super::{Info, Operator, Param};
use crate::array::{Block, DType};
use crate::config::table::Table;

const OUTPUTS: &str = "the input's dtype, float64 of integers and bool";

pub static SCALE: Info = Info {
    name: "scale",
    summary: "x * factor + offset, computed in float64 and rounded once",
    kind: "map",
    inputs: "one real array",
    outputs: OUTPUTS,
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one multiplication and addition an element",
    source: "the definition: x * factor + offset",
    params: &[
        Param { name: "factor", kind: "number", default: "1", doc: "what to multiply by" },
        Param { name: "offset", kind: "number", default: "0", doc: "what to add after that" },
    ],
    build: |table| {
        if !table.has("factor") && !table.has("offset") {
            table.problem("factor", "scale needs a factor, an offset or both");
        }
        let factor = number(table, "factor").map_or(1.0, |n| n.to_f64());
        let offset = number(table, "offset").map_or(0.0, |n| n.to_f64());
        unary("scale", move |input| {
            Ok(Function { to: float_of("scale", input.dtype)?, f: move |v: &mut f64| *v = *v * factor + offset })
        })
    },
};

pub static LOG10: Info = Info {
    name: "log10",
    summary: "decimal logarithm",
    kind: "map",
    inputs: "one real array",
    outputs: OUTPUTS,
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one logarithm an element",
    source: "IEEE 754 log10, by libm: the same bits on any machine",
    params: &[],
    build: |_| {
        unary("log10", |input| Ok(Function { to: float_of("log10", input.dtype)?, f: |v: &mut f64| *v = libm::log10(*v) }))
    },
};

pub static DB: Info = Info {
    name: "db",
    summary: "decibels of a power or an amplitude",
    kind: "map",
    inputs: "one real array",
    outputs: OUTPUTS,
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one logarithm an element",
    source: "the definition: 10 log10 of a power, 20 log10 of an amplitude",
    params: &[Param {
        name: "of",
        kind: "\"power\" | \"amplitude\"",
        default: "\"power\"",
        doc: "what the values are: 10 log10(x) of a power (an intensity), 20 log10(|x|) of an amplitude",
    }],
    build: db,
};

fn db(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let of = if table.has("of") { table.one_of("of", &["power", "amplitude"])? } else { "power" };
    let is_amplitude = of == "amplitude";
    unary("db", move |input| {
        let f = move |v: &mut f64| *v = if is_amplitude { 20.0 * libm::log10(v.abs()) } else { 10.0 * libm::log10(*v) };
        Ok(Function { to: float_of("db", input.dtype)?, f })
    })
}

struct Function<F> {
    to: DType,
    f: F,
}

impl<F: Fn(&mut f64) + Send + Sync> Elementwise for Function<F> {
    fn dtype(&self) -> DType {
        self.to
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        in_doubles(input, self.to, out, &|values: &mut [f64]| values.iter_mut().for_each(&self.f));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, map_one, values};
    use super::*;
    use crate::array::{Element, Region};

    fn run<S: Element, D: bytemuck::Pod>(op: &str, lines: &str, input: &[S]) -> Result<Vec<D>, String> {
        let whole = Whole::new(Block::from_values(&[input.len()], input));
        let bound = bind(op, lines, &[&whole])?;
        map_one(&bound, &[&whole], &Region::whole(&whole.meta.shape)).map(|b| values(&b)).map_err(|e| e.to_string())
    }

    #[test]
    fn functions_are_rounded_once_and_follow_ieee() {
        assert_eq!(run::<_, f64>("log10", "", &[100i16, 1]).unwrap(), [2.0, 0.0]);
        let got = run::<_, f32>("log10", "", &[2.0f32, 0.0, -1.0]).unwrap();
        assert_eq!((got[0], got[1]), (std::f32::consts::LOG10_2, f32::NEG_INFINITY));
        assert!(got[2].is_nan());
        assert_eq!(run::<_, f32>("db", "", &[100.0f32]).unwrap(), [20.0]);
        assert_eq!(run::<_, f64>("db", "of = \"amplitude\"", &[-10.0f64]).unwrap(), [20.0]);
        assert!(run::<_, f64>("db", "of = \"voltage\"", &[1.0f64]).unwrap_err().contains("none of \"power\", \"amplitude\""));
        // In float32 the product would be rounded before the sum.
        let want = (f64::from(0.1f32) * 0.3 - 0.03) as f32;
        assert_eq!(run::<_, f32>("scale", "factor = 0.3\noffset = -0.03", &[0.1f32]).unwrap(), [want]);
        assert_eq!(run::<_, f64>("scale", "offset = 1", &[200u8]).unwrap(), [201.0]);
        assert_eq!(run::<_, half::f16>("scale", "factor = 2", &[half::f16::ONE]).unwrap(), [half::f16::from_f32_const(2.0)]);
        assert!(run::<f32, f32>("scale", "", &[1.0f32]).unwrap_err().contains("needs a factor"));
        assert!(run::<_, f32>("log10", "", &[num_complex::Complex32::default()]).unwrap_err().contains("take the amplitude"));
        // Longer than a gather, from a view without contiguous rows.
        let input: Vec<f64> = (0..3 * 700).map(f64::from).collect();
        let mut whole = Whole::new(Block::from_values(&[700, 3], &input));
        whole.block = whole.block.transposed(&[1, 0]);
        whole.meta.shape = vec![3, 700];
        let bound = bind("scale", "factor = 2", &[&whole]).unwrap();
        let got: Vec<f64> = values(&map_one(&bound, &[&whole], &Region::whole(&[3, 700])).unwrap());
        assert_eq!(got[701], 2.0 * 4.0);
    }
}
