//! What is computed. An operator describes itself (halo, outputs, scratch); stages read, pad, trim and write around it.
//!
//! Adding one = one file in this folder and one line in [`OPERATORS`]. The command line, the config check, the docs and
//! the contract tests read that list.

pub mod amplitude;
pub mod amplitude_dispersion;
mod binding;
pub mod cast;
pub mod choose;
pub mod coherence;
pub mod coherence_matrix;
mod composite;
pub mod deeper;
pub mod denoise_tv_chambolle;
pub mod emi;
pub mod evd;
pub mod expression;
pub mod external;
pub mod extremum;
pub mod filters;
pub mod formula;
#[cfg(test)]
mod golden;
pub mod group_mean;
pub mod histogram;
pub mod identity;
pub mod intensity;
pub mod interferogram;
mod kinds;
pub mod kmeans;
pub mod ks_test;
pub mod matrices;
pub mod moments;
pub mod multilook;
pub mod parts;
pub mod phase_linking;
pub mod pointwise;
pub mod quantile;
pub mod reduce;
pub mod scale;
pub mod scalers;
pub mod seismic;
pub mod select_shp;
pub mod shp_mask;
pub mod stack;
pub mod sum;
pub mod svd;
pub mod tally;
pub mod temporal_coherence;
#[cfg(test)]
pub mod testing;

use serde_json::Value;

use crate::config::table::Table;
pub use binding::{ArrayMeta, Binding, InputBinding, Kind, LaidLength, OutAxis, OutputBinding, StepInput, axis_at};
pub use composite::{Composite, NextPass, NextState, Part, PartInput, PartWork, PassControl, Passes};
pub use kinds::{
    Computed, DeviceMap, DevicePart, FoldOperator, MapOperator, MapTask, OperatorError, Padded, Stretch, Strips, Sweep, Workspace,
};

/// A form of a test's result that a later step has use for: the cells that it selects, as a mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Name of the output that is to hold it.
    pub output: String,
    pub selection: shp_mask::Selection,
}

/// A step as its operator understood it from the job file, before its inputs are known.
pub trait Operator: Send + Sync {
    /// The output that input `input` reads of a step of operator `op`, of which the job file names the whole (`output` is
    /// `None`) or one output; `None`: what the file says. For operators that read a smaller form of the same result:
    /// `select_shp` takes the counts of `ks_test` whichever of its outputs is named.
    fn reads(&self, _input: usize, _op: &str, _output: Option<&str>) -> Option<&'static str> {
        None
    }

    /// What this operator would have input `input`, named as in [`Operator::reads`], be, if the step that makes it can: that
    /// step is asked in [`Operator::bind_asked`], and may pass it over; then `reads` counts.
    fn asks(&self, _input: usize, _op: &str, _output: Option<&str>) -> Option<Ask> {
        None
    }

    /// Checks the inputs and says what the step does to them. Messages say what is wrong and what to do. Operators that
    /// are always taken apart have no such form.
    fn bind(&self, _inputs: &[StepInput]) -> Result<Binding, String> {
        Err("the step is made of several parts".to_owned())
    }

    /// The same, with outputs that later steps ask for after the step's own: each once, never default.
    fn bind_asked(&self, inputs: &[StepInput], _asks: &[Ask]) -> Result<Binding, String> {
        self.bind(inputs)
    }

    /// What the step's keys don't say about its result: the content of a file that one of them names. Part of the job's
    /// hash; `Null` where there is no such thing.
    fn identity(&self) -> Value {
        Value::Null
    }

    /// For operators that stream their inputs several times; `bind` is called where this is `None`. `is_short`: what
    /// comes without it does not fit the memory limit, and the same result by more passes with less memory is welcome.
    fn bind_parts(&self, _inputs: &[StepInput], _is_short: bool) -> Option<Result<Composite, String>> {
        None
    }
}

/// An operator without state beside its parameters is a function that holds them.
impl<F: Fn(&[StepInput]) -> Result<Binding, String> + Send + Sync> Operator for F {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        self(inputs)
    }
}

/// A parameter, for `halostream ops` and the unknown-key check.
#[derive(Debug)]
pub struct Param {
    pub name: &'static str,
    /// `int or [int, ...]`
    pub kind: &'static str,
    /// As written in a job file; empty when the key is required.
    pub default: &'static str,
    pub doc: &'static str,
}

/// An entry of the operator list.
pub struct Info {
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    pub kind: &'static str,
    pub inputs: &'static str,
    pub outputs: &'static str,
    pub halo: &'static str,
    pub boundary: &'static str,
    pub devices: &'static str,
    /// Work per element, and what the state takes.
    pub cost: &'static str,
    /// Where its formula comes from, or whose results it gives.
    pub source: &'static str,
    pub params: &'static [Param],
    /// Reads the parameters from the step's table; problems (with line and key) are left in the table's list.
    pub build: fn(&mut Table<'_>) -> Option<Box<dyn Operator>>,
}

/// Every operator. Keep sorted by name.
pub static OPERATORS: &[&Info] = &[
    &amplitude::ABS,
    &tally::ALL,
    &amplitude::INFO,
    &amplitude_dispersion::INFO,
    &parts::ANGLE,
    &tally::ANY,
    &extremum::ARGMAX,
    &extremum::ARGMIN,
    &filters::BLACK_TOPHAT,
    &cast::INFO,
    &choose::CLIP,
    &coherence::INFO,
    &filters::CONVOLVE,
    &filters::CORRELATE,
    &tally::COUNT,
    &scale::DB,
    &denoise_tv_chambolle::INFO,
    &emi::INFO,
    &seismic::envelope::INFO,
    &evd::INFO,
    &expression::INFO,
    &external::EXTERNAL,
    &filters::GAUSSIAN_FILTER,
    &filters::GAUSSIAN_GRADIENT_MAGNITUDE,
    &filters::GAUSSIAN_LAPLACE,
    &filters::GREY_CLOSING,
    &filters::GREY_DILATION,
    &filters::GREY_EROSION,
    &filters::GREY_OPENING,
    &group_mean::INFO,
    &seismic::gst_dip::INFO,
    &histogram::INFO,
    &identity::INFO,
    &parts::IMAG,
    &seismic::instantaneous_frequency::INFO,
    &seismic::instantaneous_phase::INFO,
    &intensity::INFO,
    &interferogram::INFO,
    &kmeans::INFO,
    &ks_test::INFO,
    &filters::LAPLACE,
    &scale::LOG10,
    &extremum::MAX,
    &filters::MAXIMUM_FILTER,
    &sum::MEAN,
    &filters::MEDIAN_FILTER,
    &extremum::MIN,
    &scalers::MIN_MAX,
    &filters::MINIMUM_FILTER,
    &filters::MORPHOLOGICAL_GRADIENT,
    &multilook::INFO,
    &filters::PERCENTILE_FILTER,
    &filters::PREWITT,
    &quantile::INFO,
    &filters::RANK_FILTER,
    &parts::REAL,
    &seismic::rms_amplitude::INFO,
    &scalers::ROBUST,
    &scale::SCALE,
    &select_shp::INFO,
    &seismic::semblance_coherence::INFO,
    &filters::SOBEL,
    &scalers::STANDARD,
    &moments::STD,
    &sum::SUM,
    &svd::INFO,
    &seismic::sweetness::INFO,
    &temporal_coherence::INFO,
    &choose::THRESHOLD,
    &filters::UNIFORM_FILTER,
    &moments::VAR,
    &choose::WHERE,
    &filters::WHITE_TOPHAT,
];

pub fn find(name: &str) -> Option<&'static Info> {
    OPERATORS.iter().find(|o| o.name == name).copied()
}
