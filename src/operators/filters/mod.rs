//! Neighbourhood filters named as in scipy.ndimage, with its parameters and results.
//!
//! The output has the input's dtype. Every filter equals scipy's on the whole array, also at its edges and for every
//! boundary rule (see `frame`); smoothing of float32 to its last bits (see `singles`). Layout: what lies outside (`frame`),
//! parameters (`params`, `npy`), the walk along lines (`lines`, `direct`, `chain`, `sweep`) with its arithmetic (`kernel`, `singles`, `separable`,
//! `order`), and windows that are not made of lines (`window`, `select`).

pub(super) mod chain;
mod correlate;
mod derivative;
mod direct;
mod extremum;
pub(super) mod frame;
pub(super) mod gaussian;
pub(super) mod kernel;
pub(super) mod lines;
mod morphology;
mod npy;
mod order;
mod params;
mod rank;
pub(super) mod sample;
mod select;
mod separable;
mod shifted;
mod singles;
mod sweep;
#[cfg(test)]
mod tests;
mod uniform;
mod window;

pub use correlate::{CONVOLVE, CORRELATE};
pub use derivative::{LAPLACE, PREWITT, SOBEL};
pub use extremum::{GREY_DILATION, GREY_EROSION, MAXIMUM_FILTER, MINIMUM_FILTER};
pub use gaussian::{GAUSSIAN_FILTER, GAUSSIAN_GRADIENT_MAGNITUDE, GAUSSIAN_LAPLACE};
pub use morphology::{BLACK_TOPHAT, GREY_CLOSING, GREY_OPENING, MORPHOLOGICAL_GRADIENT, WHITE_TOPHAT};
pub use rank::{MEDIAN_FILTER, PERCENTILE_FILTER, RANK_FILTER};
pub use uniform::INFO as UNIFORM_FILTER;

use super::{Computed, Info, MapTask, OperatorError, Padded, Workspace};
use crate::array::{Block, Buffer, DType, Region};

/// What the filters with weights have in common.
const LINEAR: Info = Info {
    name: "",
    summary: "",
    kind: "map",
    inputs: "one array of integers, float32 or float64, of any rank",
    outputs: "the input's dtype; computed in float64, integers cut toward zero and wrapped as in scipy",
    halo: "half the window on both sides of each axis, more by an origin",
    boundary: "\"reflect\" (default), \"mirror\", \"nearest\", \"periodic\", a number; per axis and side; not \"none\"",
    devices: "cpu",
    cost: "",
    source: "",
    params: &[],
    build: |_| None,
};

/// What those have in common that choose among a window's values.
const ORDERED: Info = Info {
    inputs: "one array of integers, bool, float32 or float64, of any rank; NaN orders above all numbers",
    outputs: "the input's dtype",
    params: &[params::SIZE, params::FOOTPRINT, params::ORIGIN],
    ..LINEAR
};

/// What every filter does around its arithmetic: one block in, one out, `fill` in between.
fn one_output(
    inputs: Vec<Padded>,
    task: &MapTask<'_>,
    work: &mut Workspace<'_>,
    dtype: DType,
    fill: impl FnOnce(&Padded, &Region, &mut Buffer, &mut Workspace<'_>) -> Result<(), OperatorError>,
) -> Result<Vec<Option<Computed>>, OperatorError> {
    if !task.wanted[0] {
        return Ok(vec![None]);
    }
    let [input] = <[Padded; 1]>::try_from(inputs)
        .map_err(|inputs| OperatorError::data(format!("expected one input, got {}", inputs.len())))?;
    let region = task.outputs[0].clone();
    let mut out = work.buffer(region.count() * dtype.size())?;
    if !out.is_empty() {
        fill(&input, &region, &mut out, work)?;
    }
    let shape = region.shape();
    Ok(vec![Some(Computed { region, block: Block::new(out, dtype, shape) })])
}

/// Working memory, cut off the lease that the worker took for it.
pub(super) fn buffers<const N: usize>(work: &mut Workspace<'_>, bytes: [u64; N]) -> Result<[Buffer; N], OperatorError> {
    let mut list = Vec::with_capacity(N);
    for bytes in bytes {
        list.push(work.buffer(usize::try_from(bytes).unwrap_or(usize::MAX))?);
    }
    <[Buffer; N]>::try_from(list).map_err(|_| OperatorError::data("working memory came in the wrong number of parts"))
}

/// What [`buffers`] takes for these sizes.
pub(super) fn buffer_bytes(bytes: &[u64]) -> u64 {
    let whole = |b: u64| usize::try_from(b).map_or(b, |b| b.checked_next_multiple_of(64).unwrap_or(b) as u64);
    bytes.iter().fold(0, |sum, b| sum.saturating_add(whole(*b)))
}

pub(super) fn shape_of(region: &Region) -> Vec<u64> {
    region.shape().iter().map(|&n| n as u64).collect()
}
