//! `correlate` and `convolve` with weights of the array's rank, as scipy.ndimage has them.
//!
//! Weights of zero (below 2.2e-16) are skipped; the others are added in C order, in float64. A convolution is the
//! correlation with the mirrored weights. Weights that are a product along axes are not looked for: `gaussian_filter` and
//! `uniform_filter` are far cheaper than their kernels written out.

use toml::de::DeValue;

use super::super::{Binding, Computed, Info, MapOperator, MapTask, Operator, OperatorError, Padded, Param, StepInput, Workspace};
use super::frame::Frame;
use super::params::{self, Cells, ORIGIN};
use super::sample::{Sample, with_sample};
use super::{npy, window};
use crate::array::Region;
use crate::config::OneOrMany;
use crate::config::table::Table;

const WEIGHTS: Param = Param {
    name: "weights",
    kind: "nested lists of numbers, or a path",
    default: "",
    doc: "one level of lists per axis: [[0, 1], [2, 3]]; or the .npy file that holds them, relative to the job file",
};

pub static CORRELATE: Info = Info {
    name: "correlate",
    summary: "weighted sum over a window",
    cost: "one multiply-add per weight that is not 0 an element",
    source: "scipy.ndimage.correlate",
    params: &[WEIGHTS, ORIGIN],
    build: |table| build(table, "correlate", false),
    ..super::LINEAR
};

pub static CONVOLVE: Info = Info {
    name: "convolve",
    summary: "weighted sum over a window, the weights mirrored",
    cost: "one multiply-add per weight that is not 0 an element",
    source: "scipy.ndimage.convolve",
    params: &[WEIGHTS, ORIGIN],
    build: |table| build(table, "convolve", true),
    ..super::LINEAR
};

fn build(table: &mut Table<'_>, op: &'static str, mirrored: bool) -> Option<Box<dyn Operator>> {
    if !table.has("weights") {
        table.problem("weights", format!("missing; {op} needs its weights, as nested lists or as the path of a .npy file"));
    }
    let origin = params::origin(table);
    let path = table.get("weights").and_then(|node| match node.get_ref() {
        DeValue::String(path) => Some(path.to_string()),
        _ => None,
    });
    let weights = match path {
        Some(path) => {
            let full = table.problems.folder().join(&path);
            npy::read(&full).map_err(|e| table.problem("weights", format!("{}: {e}", full.display()))).ok()
        }
        None => Cells::read(table, "weights"),
    };
    Some(Box::new(Correlation { op, weights: weights?, origin: origin?, mirrored }))
}

struct Correlation {
    op: &'static str,
    weights: Cells,
    origin: OneOrMany<i64>,
    mirrored: bool,
}

impl Operator for Correlation {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let frame = Frame::new(self.op, inputs, false)?;
        let mut window = self.weights.window(&self.origin, frame.rank(), "weights")?;
        let mut weights = self.weights.values.clone();
        if self.mirrored {
            window = window.mirrored();
            weights.reverse();
        }
        let is_used = |w: f64| w.abs() > f64::EPSILON;
        let offsets = window.offsets(|n| is_used(weights[n]));
        weights.retain(|w| is_used(*w));
        let depth = window.reach();
        let map = CorrelationMap { frame: frame.clone(), depth: depth.clone(), offsets, weights };
        frame.bind(&inputs[0], &depth, map, false, true)
    }

    fn identity(&self) -> serde_json::Value {
        // A path says nothing about the weights in the file.
        serde_json::json!([self.weights.shape, self.weights.values])
    }
}

struct CorrelationMap {
    frame: Frame,
    depth: Vec<u64>,
    offsets: Vec<Vec<i64>>,
    weights: Vec<f64>,
}

impl CorrelationMap {
    fn run<S: Sample>(&self, input: &Padded, core: &Region, out: &mut [S]) -> Result<(), OperatorError> {
        self.frame.take(input, core, &self.depth)?;
        window::weighted((&input.block, &input.region), core, &self.offsets, &self.weights, out);
        Ok(())
    }
}

impl MapOperator for CorrelationMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        super::one_output(
            inputs,
            task,
            work,
            self.frame.dtype,
            |input, region, out, _| with_sample!(self.frame.dtype, S => self.run::<S>(input, region, out.as_mut_slice_of())),
        )
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}
