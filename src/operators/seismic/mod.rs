//! Attributes of seismic traces: arrays of any rank, one axis of which holds the samples of a trace (time or depth).
//!
//! All are computed in float64 and rounded once; a NaN is stored as one NaN, whatever its bits. Layout: traces of a block side
//! by side (`traces`), the analytic signal (`fourier`, `hilbert`, `analytic`) and the attributes made from it (`envelope`,
//! `instantaneous_phase`, `instantaneous_frequency`, `sweetness`), those of windows (`rms_amplitude`, `semblance_coherence`)
//! and of the gradient (`gst_dip`).

mod analytic;
pub mod envelope;
mod fourier;
pub mod gst_dip;
mod hilbert;
pub mod instantaneous_frequency;
pub mod instantaneous_phase;
pub mod rms_amplitude;
pub mod semblance_coherence;
pub mod sweetness;
#[cfg(test)]
mod tests;
mod traces;

use super::filters::frame::MAX_WINDOW;
use super::filters::sample::is_real;
use super::{ArrayMeta, Info, InputBinding, OutputBinding, Param, StepInput};
use crate::array::{DType, Rule, Scalar};
use crate::config::table::Table;

/// What all of them have in common.
const ATTRIBUTE: Info = Info {
    name: "",
    summary: "",
    kind: "map",
    inputs: "one array of integers, float32 or float64, of any rank",
    outputs: "float64 of float64 and of integers of 32 and 64 bits, else float32; the input's shape",
    halo: "",
    boundary: WINDOW_BOUNDARY,
    devices: "cpu",
    cost: "",
    source: "",
    params: &[],
    build: |_| None,
};

const WINDOW_BOUNDARY: &str =
    "\"nearest\" (default), \"reflect\", \"mirror\", \"periodic\", a number; per axis and side; not \"none\"";

const AXIS: Param = Param {
    name: "axis",
    kind: "int",
    default: "-1",
    doc: "the axis of the samples of a trace; negative ones count from the end",
};

fn read_axis(table: &mut Table<'_>) -> Option<i64> {
    if table.has("axis") { table.integer("axis") } else { Some(-1) }
}

/// A window's length in samples; `default` where the key is absent, or the problem that it must be there.
fn read_window(table: &mut Table<'_>, default: Option<u64>) -> Option<u64> {
    if !table.has("window") {
        if default.is_none() {
            table.problem("window", "missing; give the window's length in samples, such as window = 9");
        }
        return default;
    }
    let window = table.count("window")?;
    if !(1..=MAX_WINDOW).contains(&window) {
        table.problem("window", format!("a window is 1 to {MAX_WINDOW} samples long, found {window}"));
        return None;
    }
    Some(window)
}

/// A number above zero at `key`, or the default.
fn read_positive(table: &mut Table<'_>, key: &'static str, default: f64) -> Option<f64> {
    if !table.has(key) {
        return Some(default);
    }
    let value = table.number(key)?;
    if !(value.is_finite() && value > 0.0) {
        table.problem(key, format!("expected a number above zero, found {value}"));
        return None;
    }
    Some(value)
}

/// The dtype of an attribute of an array of this dtype: the smallest float that holds the input's values, from float32 up.
fn attribute_dtype(op: &str, from: DType) -> Result<DType, String> {
    match from {
        DType::F32 | DType::U8 | DType::I8 | DType::U16 | DType::I16 => Ok(DType::F32),
        real if is_real(real) => Ok(DType::F64),
        DType::C64 | DType::C128 => Err(format!("{op} takes no {from}; take `real`, `imag` or `amplitude` first, or cast")),
        _ => Err(format!("{op} takes no {from}; cast to float32 first")),
    }
}

/// The only output of an attribute. NaN stays the missing value where it is the input's.
fn output(op: &str, dtype: DType, meta: &ArrayMeta) -> OutputBinding {
    let is_nan = meta.missing.is_some_and(|m| m.to_f64().is_nan());
    let missing = if is_nan { Scalar::from_number(dtype, f64::NAN).ok() } else { None };
    OutputBinding { missing, ..OutputBinding::like(op, dtype, meta) }
}

/// Refuses `depth`, which follows from the parameters.
fn no_depth(op: &str, input: &StepInput) -> Result<(), String> {
    match input.depth {
        None => Ok(()),
        Some(_) => Err(format!("{op} takes its depth from its parameters; leave depth out")),
    }
}

/// Cells of a window before and after the one it belongs to: an even one reaches further back, as in scipy.
fn reach(window: u64) -> (u64, u64) {
    (window / 2, window - 1 - window / 2)
}

/// The input of an attribute whose windows reach so far along each axis: cells outside the array follow the boundary, by
/// default that of the nearest cell.
fn windowed(op: &str, input: &StepInput, depth: &[(u64, u64)]) -> Result<InputBinding, String> {
    no_depth(op, input)?;
    let mut bound = InputBinding::plain(input.meta.rank());
    for (axis, depth) in depth.iter().enumerate().filter(|(_, depth)| **depth != (0, 0)) {
        bound.depth[axis] = *depth;
        bound.boundary[axis] = input.boundary.as_ref().map_or([Rule::Nearest; 2], |rules| rules[axis]);
    }
    if input.boundary.iter().flatten().flatten().any(|rule| *rule == Rule::None) {
        return Err(format!("{op} needs cells outside the array: boundary \"none\" has none, \"nearest\" is the default"));
    }
    Ok(bound)
}
