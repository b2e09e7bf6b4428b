//! `gaussian_filter`, `gaussian_laplace` and `gaussian_gradient_magnitude`, as scipy.ndimage has them.
//!
//! Weights along an axis: exp(-x^2 / 2 sigma^2) for |x| <= radius = int(truncate * sigma + 0.5), divided by their sum; for a
//! derivative of order n times the polynomial q_n(x), where q_0 = 1 and q_{n+1} = q_n' - q_n * x / sigma^2.
//! Cost: radius + 1 multiplications and twice as many additions an element and axis; of float32 that is only smoothed, 2 radius + 1
//! fused multiply-adds of half the width.

use super::super::{Info, Operator, Param};
use super::kernel::Kernel;
use super::separable::{AxisFilter, Join, Separable, Terms};
use super::singles::Singles;
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::operators::filters::frame::MAX_WINDOW;

/// Below this a sigma means "not along this axis", as in scipy.
const SMALLEST_SIGMA: f64 = 1e-15;
const MAX_ORDER: u64 = 3;

const SIGMA: Param = Param {
    name: "sigma",
    kind: "number or [number, ...]",
    default: "",
    doc: "standard deviation of the kernel, in elements, for all axes or for each; 0 leaves an axis alone",
};
const TRUNCATE: Param =
    Param { name: "truncate", kind: "number", default: "4.0", doc: "the kernel is cut at this many standard deviations" };
const RADIUS: Param = Param {
    name: "radius",
    kind: "int or [int, ...]",
    default: "from sigma and truncate",
    doc: "the kernel's reach in elements, instead of truncate",
};
const HALO: &str = "radius = int(truncate * sigma + 0.5) on both sides of each axis";

pub static GAUSSIAN_FILTER: Info = Info {
    name: "gaussian_filter",
    summary: "gaussian smoothing, or a derivative of it, along any axes",
    outputs: "the input's dtype; computed in float64, integers cut toward zero and wrapped as in scipy. float32 smoothed (order 0) with a radius up to 64 is computed in float32 by fused multiply-adds: within a few units in the last place of values as large as the largest around; cast to float64 first for more",
    cost: "radius + 1 multiplications and twice as many additions an element and axis; half of that for float32",
    source: "scipy.ndimage.gaussian_filter, in float64 its order of additions included: exp(-x^2 / 2 sigma^2) over its sum, times a polynomial for derivatives",
    halo: HALO,
    params: &[
        SIGMA,
        Param {
            name: "order",
            kind: "int or [int, ...]",
            default: "0",
            doc: "derivative of the gaussian to correlate with, 0 to 3, for all axes or for each",
        },
        TRUNCATE,
        RADIUS,
    ],
    build: build_filter,
    ..super::LINEAR
};

pub static GAUSSIAN_LAPLACE: Info = Info {
    name: "gaussian_laplace",
    summary: "sum of second derivatives of the gaussian along each axis",
    cost: "one gaussian_filter per axis, of order 2 along it",
    source: "scipy.ndimage.gaussian_laplace",
    halo: HALO,
    params: &[SIGMA, TRUNCATE, RADIUS],
    build: |table| build_derivative(table, "gaussian_laplace", 2, Join::Sum),
    ..super::LINEAR
};

pub static GAUSSIAN_GRADIENT_MAGNITUDE: Info = Info {
    name: "gaussian_gradient_magnitude",
    summary: "length of the gradient, by first derivatives of the gaussian",
    cost: "one gaussian_filter per axis, of order 1 along it",
    source: "scipy.ndimage.gaussian_gradient_magnitude",
    halo: HALO,
    params: &[SIGMA, TRUNCATE, RADIUS],
    build: |table| build_derivative(table, "gaussian_gradient_magnitude", 1, Join::Magnitude),
    ..super::LINEAR
};

/// The widths, as written.
#[derive(Clone)]
struct Width {
    sigma: OneOrMany<f64>,
    truncate: f64,
    radius: Option<OneOrMany<u64>>,
}

impl Width {
    fn read(table: &mut Table<'_>) -> Option<Self> {
        if !table.has("sigma") {
            table.problem("sigma", "missing; give the standard deviation in elements, such as sigma = 3.0");
        }
        let sigma = table.numbers("sigma");
        let list = match &sigma {
            Some(OneOrMany::One(v)) => std::slice::from_ref(v),
            Some(OneOrMany::Many(list)) => list,
            None => &[],
        };
        if let Some(bad) = list.iter().find(|v| !v.is_finite() || **v < 0.0) {
            table.problem("sigma", format!("a standard deviation is a number from 0 up, found {bad}"));
        }
        let truncate = if table.has("truncate") { table.number("truncate") } else { Some(4.0) };
        if truncate.is_some_and(|t| !t.is_finite() || t < 0.0) {
            table.problem("truncate", "expected a number from 0 up");
        }
        let radius = table.counts("radius");
        if table.has("radius") && table.has("truncate") {
            table.problem("truncate", "has no effect beside `radius`; give one of them");
        }
        Some(Self { sigma: sigma?, truncate: truncate?, radius })
    }

    /// The filters along all axes that have a width, with these orders.
    fn filters(&self, rank: usize, orders: &[u64]) -> Result<Vec<AxisFilter>, String> {
        let sigma = self.sigma.expand(rank, "sigma")?;
        let radius = self.radius.as_ref().map(|r| r.expand(rank, "radius")).transpose()?;
        let mut filters = Vec::new();
        for axis in (0..rank).filter(|&a| sigma[a] > SMALLEST_SIGMA) {
            let reach = match &radius {
                Some(radius) => radius[axis],
                // Saturates far beyond what is allowed.
                None => (self.truncate * sigma[axis] + 0.5) as u64,
            };
            if reach > MAX_WINDOW / 2 {
                return Err(format!(
                    "sigma {} reaches {reach} cells along axis {axis}, at most {} are possible; give a smaller truncate or radius",
                    sigma[axis],
                    MAX_WINDOW / 2
                ));
            }
            let weights = weights(sigma[axis], orders[axis] as usize, reach as usize);
            let singles = Singles::new(&weights);
            filters.push(AxisFilter { axis, kernel: Kernel::correlation(&weights), before: reach as usize, singles });
        }
        Ok(filters)
    }
}

fn build_filter(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let width = Width::read(table);
    let order = if table.has("order") { table.counts("order") } else { Some(OneOrMany::One(0)) };
    let list = match &order {
        Some(OneOrMany::One(v)) => std::slice::from_ref(v),
        Some(OneOrMany::Many(list)) => list,
        None => &[],
    };
    if let Some(bad) = list.iter().find(|v| **v > MAX_ORDER) {
        table.problem("order", format!("derivatives of order 0 to {MAX_ORDER} are possible, found {bad}"));
    }
    let (width, order) = (width?, order?);
    let terms = move |rank: usize| -> Result<Terms, String> { Ok(vec![width.filters(rank, &order.expand(rank, "order")?)?]) };
    Some(Box::new(Separable { op: "gaussian_filter", join: Join::Sum, terms: Box::new(terms) }))
}

/// One term per axis, with the derivative along that axis.
fn build_derivative(table: &mut Table<'_>, op: &'static str, order: u64, join: Join) -> Option<Box<dyn Operator>> {
    let width = Width::read(table)?;
    let terms = move |rank: usize| -> Result<Terms, String> {
        (0..rank)
            .map(|axis| {
                let mut orders = vec![0; rank];
                orders[axis] = order;
                width.filters(rank, &orders)
            })
            .collect()
    };
    Some(Box::new(Separable { op, join, terms: Box::new(terms) }))
}

/// The kernel as a correlation takes it. Uses `libm`, so that every machine has the same weights.
pub fn weights(sigma: f64, order: usize, radius: usize) -> Vec<f64> {
    let variance = sigma * sigma;
    let places = || (0..=2 * radius).map(|i| i as f64 - radius as f64);
    let mut bell: Vec<f64> = places().map(|x| libm::exp(-0.5 / variance * (x * x))).collect();
    let total: f64 = bell.iter().sum();
    bell.iter_mut().for_each(|v| *v /= total);
    if order > 0 {
        // Coefficients of the polynomial, lowest first.
        let mut q = vec![1.0];
        for _ in 0..order {
            let mut next = vec![0.0; q.len() + 1];
            for (power, c) in q.iter().enumerate() {
                if power > 0 {
                    next[power - 1] += c * power as f64;
                }
                next[power + 1] -= c / variance;
            }
            q = next;
        }
        for (v, x) in bell.iter_mut().zip(places()) {
            *v *= q.iter().rev().fold(0.0, |sum, c| sum * x + c);
        }
    }
    // A correlation looks forward where the definition, a convolution, looks back.
    bell.reverse();
    bell
}
