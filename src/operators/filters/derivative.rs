//! `sobel`, `prewitt` and `laplace`: differences of neighbours, as scipy.ndimage has them.
//!
//! `sobel` and `prewitt` correlate with [-1, 0, 1] along one axis and with [1, 2, 1] or [1, 1, 1] along all others;
//! `laplace` adds [1, -2, 1] along each axis. Integers wrap as numpy's do: cast to a signed or floating dtype first.

use super::super::{Info, Operator, Param, axis_at};
use super::separable::{AxisFilter, Join, Separable, Terms};
use crate::config::table::Table;

const AXIS: Param = Param {
    name: "axis",
    kind: "int",
    default: "-1",
    doc: "the axis along which differences are taken; negative ones count from the end",
};
const HALO: &str = "1 on both sides of each axis";

pub static SOBEL: Info = Info {
    name: "sobel",
    summary: "difference along one axis, smoothed with 1 2 1 along the others",
    cost: "2 multiply-adds an element along one axis, 3 along each other",
    source: "scipy.ndimage.sobel",
    halo: HALO,
    params: &[AXIS],
    build: |table| build_gradient(table, "sobel", [1.0, 2.0, 1.0]),
    ..super::LINEAR
};

pub static PREWITT: Info = Info {
    name: "prewitt",
    summary: "difference along one axis, summed over 3 neighbours along the others",
    cost: "2 multiply-adds an element along one axis, 3 along each other",
    source: "scipy.ndimage.prewitt",
    halo: HALO,
    params: &[AXIS],
    build: |table| build_gradient(table, "prewitt", [1.0, 1.0, 1.0]),
    ..super::LINEAR
};

pub static LAPLACE: Info = Info {
    name: "laplace",
    summary: "sum of second differences along each axis",
    cost: "3 multiply-adds an element and axis",
    source: "scipy.ndimage.laplace",
    halo: HALO,
    params: &[],
    build: build_laplace,
    ..super::LINEAR
};

fn build_gradient(table: &mut Table<'_>, op: &'static str, smooth: [f64; 3]) -> Option<Box<dyn Operator>> {
    let axis = if table.has("axis") { table.integer("axis")? } else { -1 };
    let terms = move |rank: usize| -> Result<Terms, String> {
        let at = axis_at("axis", axis, rank)?;
        let mut filters = vec![AxisFilter::centred(at, &[-1.0, 0.0, 1.0])];
        filters.extend((0..rank).filter(|a| *a != at).map(|a| AxisFilter::centred(a, &smooth)));
        Ok(vec![filters])
    };
    Some(Box::new(Separable { op, join: Join::Sum, terms: Box::new(terms) }))
}

fn build_laplace(_table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let terms = |rank: usize| -> Result<Terms, String> {
        Ok((0..rank).map(|axis| vec![AxisFilter::centred(axis, &[1.0, -2.0, 1.0])]).collect())
    };
    Some(Box::new(Separable { op: "laplace", join: Join::Sum, terms: Box::new(terms) }))
}
