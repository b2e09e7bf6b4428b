//! `svd`: the largest singular values and vectors of a matrix that is streamed, by a randomised method.
//!
//! The range of the matrix is found by a few passes of power iteration from random vectors, orthonormalised after each, and
//! the matrix is decomposed on it ([`control`]); `n_power_iter` iterations take one pass more than that. A pass multiplies
//! lines of the matrix by a basis of `k + n_oversamples` vectors, and the lines by the result ([`product`]). Lines are whole
//! in a block: rows, or columns where the matrix is wide and nothing is taken from its rows' means. So nothing that is as long
//! as the longer axis is held, except the vectors along it while they are written.
//!
//! Between passes the source is kept packed as far as memory allows ([`crate::reader::again`]): genotypes take two bits each.
//!
//! - Products of integers up to 16 bits and of floats up to 32 are in single precision, sums over panels in double; other dtypes
//!   are in double precision throughout. Sums are made within the leaves of the constant grid and in the fixed tree, the first
//!   basis is a function of (seed, place, column), so values and vectors do not depend on chunks.
//! - `center` subtracts the mean of each row. `scale` subtracts it, too, and divides by what the counts of an allele vary by if p,
//!   half the mean, is its frequency: sqrt(p (1 - p)) (`patterson`: N. Patterson, A. Price and D. Reich, "Population
//!   structure and eigenanalysis", PLoS Genetics 2 (2006)), or sqrt(2 p (1 - p)) (`hwe`: J. Yang et al., "GCTA", American Journal
//!   of Human Genetics 88 (2011)). Rows in which p is 0 or 1 become zeros.
//! - Missing values count as the mean of their row (so zero where rows are centred), or as zero before anything is done.
//! - Of each vector along the shorter axis (along the columns where rows are centred), the largest component is positive. Vectors
//!   beyond the rank of the matrix: values are 0, and so are the vectors along the longer axis; the others are any that are
//!   orthonormal. What is smaller than the rounding of the products is no rank.
//! - `residual`: the Frobenius norm of the matrix without what the k components hold of it, relative to the matrix.
//!
//! State: `2 (k + n_oversamples)` doubles for each place of a line; and per leaf of the fold one such number.

mod control;
mod dense;
mod layout;
mod lines;
mod pass;
mod product;
mod results;

use std::marker::PhantomData;
use std::sync::Arc;

use super::pointwise::{guarded, no_halo, only_input};
use super::reduce::element::{Real, with_type};
use super::reduce::{self, Number};
use super::{
    ArrayMeta, Binding, Composite, FoldOperator, Info, InputBinding, Kind, NextState, Operator, OutAxis, OutputBinding, Param,
    Part, PartInput, Passes, StepInput,
};
use crate::array::{DType, Scalar};
use crate::config::table::Table;
use crate::random::Key;
use control::Control;
use layout::Sizes;
use lines::{Filling, Scale, Standard};
use pass::Pass;
use product::Float;

pub static INFO: Info = Info {
    name: "svd",
    summary: "the largest singular values and vectors of a matrix (randomised), of genotypes standardised if asked",
    kind: "passes of folds, then map",
    inputs: "one real matrix (rows, columns) without NaN or infinity, unless they are `missing`",
    outputs: "`u` (rows, k), `s` (k) float64, `v` (columns, k), `residual` float64; vectors float32 of integers up to 16 bits and floats up to 32, else float64",
    halo: "none; the rows (of a wide matrix the columns) are whole in every block",
    boundary: "-",
    devices: "cpu",
    cost: "4 * (k + n_oversamples) operations per element and pass, n_power_iter + 1 passes, one more for vectors along the longer axis; state of 2 * (k + n_oversamples) * 8 bytes for each column (of a wide matrix: row), some ten times over",
    source: "N. Halko, P.-G. Martinsson and J. Tropp, Finding structure with randomness, SIAM Review 53 (2011), as sklearn.utils.extmath.randomized_svd; scales: N. Patterson et al., PLoS Genetics 2 (2006), J. Yang et al., AJHG 88 (2011)",
    params: &[
        Param { name: "k", kind: "int >= 1", default: "10", doc: "singular values and vectors, largest first" },
        Param { name: "method", kind: "string", default: "\"randomized\"", doc: "\"randomized\" is the only one" },
        Param {
            name: "n_power_iter",
            kind: "int >= 0",
            default: "4",
            doc: "power iterations, each a pass (and one for the first): more where singular values fall off slowly",
        },
        Param { name: "n_oversamples", kind: "int >= 0", default: "10", doc: "vectors beyond k that passes carry along" },
        Param {
            name: "tol",
            kind: "number >= 0",
            default: "0",
            doc: "stop before n_power_iter when no value changed by more than this times itself; 0: never",
        },
        Param { name: "center", kind: "bool", default: "false; true with a scale", doc: "subtract the mean of each row" },
        Param {
            name: "scale",
            kind: "string",
            default: "\"none\"",
            doc: "centre rows of allele counts (0 to 2) and divide them by sqrt(p (1 - p)): \"patterson\", or sqrt(2 p (1 - p)): \"hwe\"; p is half the mean",
        },
        Param {
            name: "missing",
            kind: "number",
            default: "what the source declares",
            doc: "the value that stands for missing (nan: NaN)",
        },
        Param {
            name: "missing_as",
            kind: "string",
            default: "\"mean\" with `missing`",
            doc: "what missing values count as: \"mean\" of the row's others, or \"zero\"",
        },
        Param { name: "seed", kind: "int >= 0", default: "0", doc: "of the random numbers" },
    ],
    build,
};

/// Vectors that passes carry; more would take the time of a full decomposition.
const MOST_VECTORS: u64 = 1024;
const MOST_ITERATIONS: u64 = 1 << 20;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    table.one_of("method", &["randomized"]);
    let mut count = |key: &'static str, default: u64, least: u64, most: u64| {
        let value = table.count(key).unwrap_or(default);
        if !(least..=most).contains(&value) {
            table.problem(key, format!("expected an integer from {least} to {most}, found {value}"));
        }
        value.clamp(least, most)
    };
    let wanted = count("k", 10, 1, MOST_VECTORS);
    let oversamples = count("n_oversamples", 10, 0, MOST_VECTORS - wanted);
    let iterations = count("n_power_iter", 4, 0, MOST_ITERATIONS);
    let seed = table.count("seed").unwrap_or(0);
    let tol = table.number("tol").unwrap_or(0.0);
    if !(tol >= 0.0 && tol.is_finite()) {
        table.problem("tol", format!("expected a number of at least 0, found {tol}"));
    }
    let scale = match table.one_of("scale", &["none", "patterson", "hwe"]) {
        Some("patterson") => Some(Scale::Patterson),
        Some("hwe") => Some(Scale::Hwe),
        _ => None,
    };
    let center = table.bool("center");
    if scale.is_some() && center == Some(false) {
        table.problem("center", "the scales are of centred rows; leave one of them out");
    }
    let missing = reduce::number(table, "missing");
    let filling = match table.one_of("missing_as", &["mean", "zero"]) {
        Some("mean") => Some(Filling::Mean),
        Some("zero") => Some(Filling::Zero),
        _ => None,
    };
    let centers = center.unwrap_or(scale.is_some());
    Some(Box::new(Decomposition { wanted, oversamples, iterations, tol, centers, scale, missing, filling, seed }))
}

struct Decomposition {
    wanted: u64,
    oversamples: u64,
    iterations: u64,
    tol: f64,
    centers: bool,
    scale: Option<Scale>,
    missing: Option<Number>,
    filling: Option<Filling>,
    seed: u64,
}

impl Decomposition {
    fn matrix<'a>(&self, inputs: &'a [StepInput]) -> Result<&'a ArrayMeta, String> {
        let input = only_input("svd", inputs)?;
        no_halo("svd", input)?;
        let meta = &input.meta;
        if meta.rank() != 2 {
            return Err(format!("{} has {} axes; svd takes a matrix of rows and columns", meta.name, meta.rank()));
        }
        if meta.dtype.is_complex() {
            return Err(format!("{} is {}: take its amplitude or its parts first", meta.name, meta.dtype));
        }
        let most = meta.shape[0].min(meta.shape[1]);
        if self.wanted > most {
            return Err(format!("k = {}: {} of shape {:?} has {most} singular values", self.wanted, meta.name, meta.shape));
        }
        Ok(meta)
    }

    /// The value that counts as missing, and what it counts as.
    fn missing(&self, meta: &ArrayMeta) -> Result<Option<(Scalar, Filling)>, String> {
        let given = self.missing.map(|value| value.scalar(meta.dtype)).transpose().map_err(|e| format!("missing: {e}"))?;
        let Some(filling) = self.filling else { return Ok(given.map(|value| (value, Filling::Mean))) };
        match given.or(meta.missing) {
            Some(value) => Ok(Some((value, filling))),
            None => Err(format!("missing_as: {} declares no missing value; give it as `missing`", meta.name)),
        }
    }

    fn parts(&self, inputs: &[StepInput]) -> Result<Composite, String> {
        let meta = self.matrix(inputs)?;
        let is_single = meta.dtype.size() <= 2 || meta.dtype == DType::F32;
        let (to, missing) = (if is_single { DType::F32 } else { DType::F64 }, self.missing(meta)?);
        with_type!(real meta.dtype, T => {
            let missing = missing.map(|(value, filling)| (bytemuck::pod_read_unaligned::<T>(value.bytes()), filling));
            let standard = Standard { centers: self.centers, scale: self.scale, missing };
            match is_single {
                true => self.typed::<T, f32>(meta, to, standard),
                false => self.typed::<T, f64>(meta, to, standard),
            }
        }, else Err("no real dtype".to_owned()))
    }

    fn typed<T: Real + 'static, F: Float + 'static>(
        &self,
        meta: &ArrayMeta,
        to: DType,
        standard: Standard<T>,
    ) -> Result<Composite, String> {
        // Lines are the shorter ones, but means are of rows.
        let is_wide = meta.shape[0] < meta.shape[1] && !standard.is_by_line();
        let along = usize::from(is_wide);
        let width = (self.wanted + self.oversamples).min(meta.shape[0]).min(meta.shape[1]);
        let places = meta.shape[1 - along];
        let sizes = Sizes::new(places, self.wanted, width)
            .ok_or_else(|| format!("{width} vectors of {places} components do not fit any memory"))?;
        // A value that the source declares missing is no data, unless the step says what it counts as.
        let is_told = |value: &Scalar| standard.missing.is_some_and(|(m, _)| m.is(bytemuck::pod_read_unaligned(value.bytes())));
        let guard = guarded(meta).filter(|value| !is_told(value));
        let fold: Arc<dyn FoldOperator> =
            Arc::new(Pass::<T, F> { name: meta.name.clone(), sizes, standard, along, guard, precision: PhantomData });
        let found = OutAxis::New { len: sizes.found_len() as u64, name: None };
        let found =
            OutputBinding { axes: vec![found], attributes: Default::default(), ..OutputBinding::like("found", DType::F64, meta) };
        let pass = Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(2), InputBinding { axes: vec![None], ..InputBinding::plain(1) }],
            outputs: vec![found],
            whole: vec![1 - along],
            kind: Kind::Fold { fold, axes: vec![0, 1] },
            is_exact: false,
            child_bytes: 0,
        };
        let key = Key::new(self.seed, b"svdbasis");
        let control = Control { sizes, passes: self.iterations + 1, tol: self.tol, rounding: F::ROUNDING, key };
        let next = NextState::Controlled(vec![sizes.state_len() as u64]);
        let state = PartInput::Of { part: 0, output: 0 };
        let across = results::across_lines::<T, F>(meta, to, sizes, standard, along);
        let parts = vec![
            Part::repeated("pass", vec![PartInput::Own(0)], Passes { pass, next, control: Arc::new(control) }),
            Part::once("across", vec![PartInput::Own(0), state], across),
            Part::once("along", vec![state], results::along_lines(meta, to, sizes, along)),
        ];
        // u, s, v, residual: which vectors the state holds depends on how lines run.
        let (u, v) = if is_wide { ((2, 1), (1, 0)) } else { ((1, 0), (2, 1)) };
        Ok(Composite { parts, outputs: vec![u, (2, 0), v, (2, 2)] })
    }
}

impl Operator for Decomposition {
    fn bind_parts(&self, inputs: &[StepInput], _is_short: bool) -> Option<Result<Composite, String>> {
        Some(self.parts(inputs))
    }
}
