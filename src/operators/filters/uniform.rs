//! `uniform_filter`: the mean of a box, as scipy.ndimage has it.
//!
//! Axis after axis, each mean in float64 and stored in the array's dtype (integers cut toward zero). scipy keeps a running sum
//! along the line; here every sum is its window's alone, so that it does not depend on where a block begins.
//! Cost: fewer than 8 additions an element and axis, or about twice the binary logarithm of the size.

use super::super::{Info, Operator};
use super::kernel::Kernel;
use super::params::{self, ORIGIN, Window};
use super::separable::{AxisFilter, Join, Separable, Terms};
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::operators::Param;

pub static INFO: Info = Info {
    name: "uniform_filter",
    summary: "mean over a box",
    cost: "size additions an element and axis (no running sums: they would depend on where a block begins)",
    source: "scipy.ndimage.uniform_filter, to the rounding of its running sums",
    halo: "size // 2 on both sides of each axis, more by an origin",
    params: &[
        Param {
            name: "size",
            kind: "int or [int, ...]",
            default: "3",
            doc: "length of the box, for all axes or for each; an even one reaches further back",
        },
        ORIGIN,
    ],
    build,
    ..super::LINEAR
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let size = if table.has("size") { params::size(table)? } else { OneOrMany::One(3) };
    let origin = params::origin(table)?;
    let terms = move |rank: usize| -> Result<Terms, String> {
        let window = Window::boxed(&size, &origin, rank)?;
        let filters = (0..rank).filter(|&a| window.shape[a] > 1).map(|axis| AxisFilter {
            axis,
            kernel: Kernel::Mean(window.shape[axis]),
            before: window.before(axis),
            singles: None,
        });
        Ok(vec![filters.collect()])
    };
    Some(Box::new(Separable { op: "uniform_filter", join: Join::Sum, terms: Box::new(terms) }))
}
