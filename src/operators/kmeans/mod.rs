//! `kmeans`: the rows of a table in clusters around centers, by Lloyd's iteration, as scikit-learn's `KMeans`.
//!
//! Each round is a pass over the table that sums and counts the rows nearest to each center; between passes the centers
//! move to the means ([`control`]). Sums are made within the leaves of the constant grid and in the fixed tree, random numbers
//! are a function of (seed, row), so centers and labels do not depend on chunks. All arithmetic is float64, whatever the table
//! is (scikit-learn computes float32 tables in float32); centers are rounded once, after the labels are made.
//!
//! - `init = "k-means||"` (B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii, "Scalable k-means++", PVLDB 5
//!   (2012)): from one row at random, each round picks `oversampling_factor * n_clusters` further rows with a probability that
//!   grows with the squared distance from those picked so far; exactly so many (the paper's variant of a fixed number,
//!   drawn without replacement by exponential times), so that memory is known beforehand. The candidates, weighed by the rows
//!   nearest to each, are clustered in memory by greedy k-means++ and Lloyd's.
//! - `init = "random"`: different rows at random. `init_rows`: these rows.
//! - Rounds end when the centers move by no more than `tol` times the mean variance of the features (squared, summed), or
//!   `max_iter` is reached; with `tol = 0` when no label changes. Labels and inertia are those of the centers that are given.
//! - A cluster that nobody is nearest to takes the row that is farthest from its center, as in scikit-learn (which takes
//!   another pass); where no row has a distance it stays where it is.
//!
//! State: `n_clusters` (or the candidates) times features, a few times over; rows are never held.

mod control;
mod layout;
mod nearest;
mod pass;
mod recluster;
mod results;

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use toml::de::DeValue;

use super::pointwise::{no_halo, only_input, refuse_declared_missing};
use super::reduce::element::with_type;
use super::{
    ArrayMeta, Binding, Composite, FoldOperator, Info, InputBinding, Kind, NextState, Operator, OutAxis, OutputBinding, Param,
    Part, PartInput, Passes, StepInput, sum,
};
use crate::array::DType;
use crate::config::table::{self, Table};
use crate::random::Key;
use control::Control;
use layout::Sizes;
use pass::Pass;

pub static INFO: Info = Info {
    name: "kmeans",
    summary: "clusters of the rows of a table (Lloyd), as scikit-learn",
    kind: "passes of folds, then map",
    inputs: "one real table (rows, features) without NaN or infinity",
    outputs: "`labels` (rows) int32, `centers` (clusters, features) float32 of float32, else float64, `inertia` float64; by name `n_iter` int32",
    halo: "none; features are whole in every block",
    boundary: "-",
    devices: "cpu",
    cost: "3 operations for each row, center and feature, a pass; state of a few times clusters (or candidates) * features * 8 bytes",
    source: "S. Lloyd, Least squares quantization in PCM (1982), as sklearn.cluster.KMeans; B. Bahmani et al., Scalable k-means++, PVLDB 5 (2012)",
    params: &[
        Param { name: "n_clusters", kind: "int >= 1", default: "8", doc: "clusters, and centers" },
        Param {
            name: "init",
            kind: "string",
            default: "\"k-means||\"",
            doc: "where centers start: \"k-means||\" (far from each other, with a probability), or \"random\" (rows at random)",
        },
        Param {
            name: "init_rows",
            kind: "[int, ...]",
            default: "none",
            doc: "the rows that centers start from, one for each cluster",
        },
        Param {
            name: "oversampling_factor",
            kind: "number > 0",
            default: "2",
            doc: "a round of k-means|| picks this times n_clusters candidates",
        },
        Param { name: "init_max_iter", kind: "int >= 1", default: "5", doc: "rounds of k-means||, each a pass" },
        Param { name: "max_iter", kind: "int >= 1", default: "300", doc: "most rounds of Lloyd's, each a pass" },
        Param {
            name: "tol",
            kind: "number >= 0",
            default: "0.0001",
            doc: "stop when centers move by no more than this times the mean variance of the features (squared); 0: when no label changes",
        },
        Param { name: "seed", kind: "int >= 0", default: "0", doc: "of the random numbers" },
    ],
    build,
};

/// More would be a slip of the keyboard.
const MOST_CLUSTERS: u64 = 1 << 20;
const MOST_ROUNDS: u64 = 1 << 20;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let rows = init_rows(table);
    let init = table.one_of("init", &["k-means||", "random"]);
    if table.has("init") && table.has("init_rows") {
        table.problem("init_rows", "given beside `init`; leave one of them out");
    }
    let mut count = |key: &'static str, default: u64, most: u64| {
        let value = table.count(key).unwrap_or(default);
        if !(1..=most).contains(&value) {
            table.problem(key, format!("expected an integer from 1 to {most}, found {value}"));
        }
        value.clamp(1, most)
    };
    let clusters = count("n_clusters", 8, MOST_CLUSTERS);
    let rounds = count("init_max_iter", 5, MOST_ROUNDS);
    let max_iter = count("max_iter", 300, MOST_ROUNDS);
    let factor = table.number("oversampling_factor").unwrap_or(2.0);
    let tol = table.number("tol").unwrap_or(1e-4);
    let seed = table.count("seed").unwrap_or(0);
    if !(factor > 0.0 && factor <= MOST_CLUSTERS as f64) {
        table.problem("oversampling_factor", format!("expected a number above 0, found {factor}"));
    }
    if !(tol >= 0.0 && tol.is_finite()) {
        table.problem("tol", format!("expected a number of at least 0, found {tol}"));
    }
    if let Some(rows) = rows.as_ref().filter(|rows| rows.len() as u64 != clusters) {
        table.problem("init_rows", format!("{} rows for {clusters} clusters: give one for each", rows.len()));
    }
    let start = match (rows, init) {
        (Some(rows), _) => Start::Rows(rows),
        (None, Some("random")) => Start::Random,
        (None, _) => Start::Parallel { rounds, picks: (factor * clusters as f64).ceil() as u64 },
    };
    Some(Box::new(KMeans { clusters, start, max_iter, tol, seed }))
}

fn init_rows(table: &mut Table<'_>) -> Option<Vec<u64>> {
    let node = table.get("init_rows")?;
    let row = |value: &DeValue<'_>| table::integer(value).and_then(|row| u64::try_from(row).ok());
    let rows = match node.get_ref() {
        DeValue::Array(list) => list.iter().map(|v| row(v.get_ref())).collect::<Option<Vec<u64>>>(),
        _ => None,
    };
    match &rows {
        None => table.problem("init_rows", "expected a list of row numbers, from 0"),
        Some(rows) if rows.iter().collect::<BTreeSet<_>>().len() < rows.len() => {
            table.problem("init_rows", "a row is listed twice");
        }
        Some(_) => {}
    }
    rows
}

/// Where centers start.
enum Start {
    Parallel { rounds: u64, picks: u64 },
    Random,
    Rows(Vec<u64>),
}

struct KMeans {
    clusters: u64,
    start: Start,
    max_iter: u64,
    tol: f64,
    seed: u64,
}

impl KMeans {
    fn table<'a>(&self, inputs: &'a [StepInput]) -> Result<&'a ArrayMeta, String> {
        let input = only_input("kmeans", inputs)?;
        no_halo("kmeans", input)?;
        let meta = &input.meta;
        if meta.rank() != 2 {
            return Err(format!("{} has {} axes; kmeans takes a table of rows and features", meta.name, meta.rank()));
        }
        if meta.dtype.is_complex() {
            return Err(format!("{} is {}: take its amplitude or its parts first", meta.name, meta.dtype));
        }
        refuse_declared_missing(meta)?;
        let (rows, features) = (meta.shape[0], meta.shape[1]);
        if rows < self.clusters {
            return Err(format!("{} has {rows} rows, which are too few for {} clusters", meta.name, self.clusters));
        }
        // Row numbers are exact as doubles, and sizes of states as addresses.
        if features == 0 || features > 1 << 31 || rows > 1 << 52 {
            return Err(format!(
                "{} has {features} features of {rows} rows: there is nothing to compare, or too much",
                meta.name
            ));
        }
        if let Start::Rows(list) = &self.start
            && let Some(row) = list.iter().find(|row| **row >= rows)
        {
            return Err(format!("init_rows: row {row} does not exist, {} has {rows} rows", meta.name));
        }
        Ok(meta)
    }

    /// The rows that are gathered first, sorted, each with its place.
    fn gathered(&self, rows: u64, key: Key) -> Vec<(u64, usize)> {
        let mut found: Vec<(u64, usize)> = match &self.start {
            Start::Rows(list) => list.iter().copied().zip(0..).collect(),
            Start::Parallel { .. } => vec![(key.bits(0) % rows, 0)],
            Start::Random => {
                // Floyd's sample: each step adds a row, the last of its range where what it draws is there already.
                let mut drawn = BTreeSet::new();
                let steps = rows - self.clusters..rows;
                let draw = |last: u64| {
                    let row = key.bits(last) % (last + 1);
                    let row = if drawn.insert(row) { row } else { last };
                    drawn.insert(row);
                    row
                };
                steps.map(draw).zip(0..).collect()
            }
        };
        found.sort_unstable();
        found
    }

    fn sizes(&self, meta: &ArrayMeta) -> Result<Sizes, String> {
        let (mut centers, mut picks) = (self.clusters, self.clusters);
        if let Start::Parallel { rounds, picks: each } = &self.start {
            let candidates = rounds.saturating_mul(*each).saturating_add(1);
            if candidates < self.clusters {
                return Err(format!(
                    "k-means|| picks {candidates} candidates for {} clusters; raise oversampling_factor or init_max_iter",
                    self.clusters
                ));
            }
            // There are no more candidates than rows.
            (centers, picks) = (candidates.min(meta.shape[0]).max(centers), (*each).min(meta.shape[0]).max(picks));
        }
        let words = u128::from(centers.max(picks)) * u128::from(meta.shape[1] + 2) * 8;
        if words > i64::MAX as u128 / 16 {
            return Err(format!("{centers} centers of {} features do not fit any memory", meta.shape[1]));
        }
        let all = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Sizes { features: all(meta.shape[1]), clusters: all(self.clusters), centers: all(centers), picks: all(picks) })
    }

    fn parts(&self, inputs: &[StepInput]) -> Result<Composite, String> {
        let meta = self.table(inputs)?;
        let sizes = self.sizes(meta)?;
        let key = Key::new(self.seed, b"kmeans  ");
        let gathered: Arc<[(u64, usize)]> = self.gathered(meta.shape[0], key.at(0)).into();
        let fold: Arc<dyn FoldOperator> = with_type!(real meta.dtype, T => {
            let (name, key) = (meta.name.clone(), key.at(1));
            Arc::new(Pass::<T> { name, sizes, gathered, key, element: PhantomData })
        }, else return Err("no real dtype".to_owned()));
        let found = OutAxis::New { len: sizes.found_len() as u64, name: None };
        let found =
            OutputBinding { axes: vec![found], attributes: Default::default(), ..OutputBinding::like("found", DType::F64, meta) };
        let pass = Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(2), InputBinding { axes: vec![None], ..InputBinding::plain(1) }],
            outputs: vec![found],
            whole: vec![1],
            kind: Kind::Fold { fold, axes: vec![0, 1] },
            is_exact: false,
            child_bytes: 0,
        };
        let rounds = match &self.start {
            Start::Parallel { rounds, picks } => {
                Some((*rounds, usize::try_from(*picks).map_or(sizes.picks, |n| n.min(sizes.picks))))
            }
            _ => None,
        };
        let control = Arc::new(Control::new(sizes, rounds, self.max_iter, self.tol, key.at(2)));
        let next = NextState::Controlled(vec![sizes.state_len() as u64]);
        let to = if meta.dtype == DType::F32 { DType::F32 } else { DType::F64 };
        let state = PartInput::Of { part: 0, output: 0 };
        let distances = ArrayMeta::plain("distance", &meta.shape[..1], DType::F64);
        Ok(Composite {
            parts: vec![
                Part::repeated("pass", vec![PartInput::Own(0)], Passes { pass, next, control }),
                Part::once("labels", vec![PartInput::Own(0), state], results::labels(meta, sizes)),
                Part::once("centers", vec![state], results::centers(meta, to, sizes)),
                Part::once("inertia", vec![PartInput::Of { part: 1, output: 1 }], sum::of_all("inertia", &distances)?),
            ],
            outputs: vec![(1, 0), (2, 0), (3, 0), (2, 1)],
        })
    }
}

impl Operator for KMeans {
    fn bind_parts(&self, inputs: &[StepInput], _is_short: bool) -> Option<Result<Composite, String>> {
        Some(self.parts(inputs))
    }
}
