//! What is computed. An operator describes itself (halo, outputs, scratch); stages read, pad, trim and write around it.
//!
//! Adding one = one file in this folder and one line in [`OPERATORS`]. The command line, the config check, the docs and
//! the contract tests read that list.

pub mod amplitude;
pub mod amplitude_dispersion;
pub mod cast;
pub mod choose;
pub mod coherence;
pub mod coherence_matrix;
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
pub mod select_shp;
pub mod shp_mask;
pub mod stack;
pub mod sum;
pub mod tally;
pub mod temporal_coherence;
#[cfg(test)]
pub mod testing;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value};

use crate::array::budget::BudgetError;
use crate::array::{Block, Boundary, Buffer, DType, Lease, Region, Rule, Scalar};
use crate::compute::gpu::fleet::Fleet;
use crate::compute::gpu::job::Job;
use crate::config::table::Table;

/// What an operator knows about an array that flows into it.
#[derive(Clone, Debug)]
pub struct ArrayMeta {
    /// `slc`, or `ks_test.p`: for messages.
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Preferred chunk length per axis: the source's, carried along; the axis length where nothing is known.
    pub chunk: Vec<u64>,
    pub dimension_names: Vec<Option<String>>,
    /// User attributes of the input that still make sense.
    pub attributes: Map<String, Value>,
    /// The value that stands for "missing", when the source declares one (`.bed`: 3).
    pub missing: Option<Scalar>,
    /// Largest value the array can hold, where it is guaranteed (a mask: 1, genotypes: 3): decides packing widths.
    pub max_value: Option<u64>,
}

impl ArrayMeta {
    /// An array without names or attributes: tests, and arrays the engine makes itself.
    pub fn plain(name: &str, shape: &[u64], dtype: DType) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            chunk: shape.to_vec(),
            dimension_names: vec![None; shape.len()],
            attributes: Map::new(),
            missing: None,
            max_value: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// One input of a step: the array, and what the job file says about this use of it.
#[derive(Clone, Debug)]
pub struct StepInput {
    pub meta: ArrayMeta,
    /// Boundary given for this input or for the whole step, expanded to the input's rank.
    pub boundary: Option<Boundary>,
    /// `depth` of an input table, expanded to the rank; only operators that take a depth accept it.
    pub depth: Option<Vec<(u64, u64)>>,
}

/// The axes and halo of one input of a bound step.
#[derive(Clone, Debug)]
pub struct InputBinding {
    /// The reference axis that each axis follows; `None`: the axis is read whole for every block.
    pub axes: Vec<Option<usize>>,
    /// Elements needed (before, after) on each axis.
    pub depth: Vec<(u64, u64)>,
    pub boundary: Boundary,
}

impl InputBinding {
    /// The reference input itself, without halo.
    pub fn plain(rank: usize) -> Self {
        Self { axes: (0..rank).map(Some).collect(), depth: vec![(0, 0); rank], boundary: vec![[Rule::None; 2]; rank] }
    }

    /// An input that broadcasts by trailing axes against the reference: equal lengths follow it, axes of length 1 are
    /// read whole. An axis that fits neither is an error.
    pub fn broadcast(meta: &ArrayMeta, reference: &ArrayMeta) -> Result<Self, String> {
        let lead = reference.rank().checked_sub(meta.rank());
        let lead = lead.ok_or_else(|| format!("{} has more axes than {}", meta.name, reference.name))?;
        let axes = meta
            .shape
            .iter()
            .enumerate()
            .map(|(axis, &len)| match len {
                len if len == reference.shape[lead + axis] => Ok(Some(lead + axis)),
                1 => Ok(None),
                len => Err(format!(
                    "axis {axis} of {} has length {len}, axis {} of {} has {}: they do not broadcast",
                    meta.name,
                    lead + axis,
                    reference.name,
                    reference.shape[lead + axis]
                )),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { axes, ..Self::plain(meta.rank()) })
    }
}

/// Where an axis of an output comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum OutAxis {
    /// The reference axis, same length.
    Carried(usize),
    /// A new axis, whole in every block.
    New { len: u64, name: Option<String> },
    /// Blocks laid side by side along a reference axis, their lengths not the cores' (`external`: `trim = false`,
    /// `block_shape`; `multilook`). The length of the axis follows from the block grid, or is a fraction of the axis.
    Laid { axis: usize, length: LaidLength },
}

#[derive(Clone, Debug, PartialEq)]
pub enum LaidLength {
    /// The core and its halo, which is shorter at the array's ends where the rule is `none`.
    Padded { depth: (u64, u64), rules: [Rule; 2] },
    /// The same for every block.
    Fixed(u64),
    /// One for every so many cells of the axis, where all of them are in the array; of the block in which they begin. The
    /// axis has the same length and values on any block grid.
    Every(u64),
}

impl LaidLength {
    /// Whether the axis looks different on another block grid.
    pub fn depends_on_grid(&self) -> bool {
        !matches!(self, LaidLength::Every(_))
    }
}

#[derive(Clone, Debug)]
pub struct OutputBinding {
    pub name: String,
    pub dtype: DType,
    pub axes: Vec<OutAxis>,
    /// Written when a job asks for the whole step (`k` of `ks_test` is not).
    pub is_default: bool,
    pub attributes: Map<String, Value>,
    pub missing: Option<Scalar>,
    pub max_value: Option<u64>,
}

impl OutputBinding {
    /// An output of the reference's shape.
    pub fn like(name: &str, dtype: DType, reference: &ArrayMeta) -> Self {
        Self {
            name: name.to_owned(),
            dtype,
            axes: (0..reference.rank()).map(OutAxis::Carried).collect(),
            is_default: true,
            attributes: reference.attributes.clone(),
            missing: None,
            max_value: None,
        }
    }
}

/// A step that knows its inputs: everything the plan and the stages need.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The input whose axes are the step's own axes.
    pub reference: usize,
    pub inputs: Vec<InputBinding>,
    pub outputs: Vec<OutputBinding>,
    /// Reference axes that a block must hold whole.
    pub whole: Vec<usize>,
    pub kind: Kind,
    /// Results are integers, counts or selections: any arithmetic class gives the same bytes.
    pub is_exact: bool,
    /// Bytes that children hold beside this process, per worker (`external`); reported apart.
    pub child_bytes: u64,
}

#[derive(Clone)]
pub enum Kind {
    Map(Arc<dyn MapOperator>),
    /// Reduces these reference axes (sorted). The outputs' axes do not mention them.
    Fold {
        fold: Arc<dyn FoldOperator>,
        axes: Vec<usize>,
    },
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Map(_) => f.write_str("Map"),
            Kind::Fold { axes, .. } => write!(f, "Fold({axes:?})"),
        }
    }
}

/// A step that streams its inputs several times. The graph takes it apart: a map that is run once per pass and whose first
/// output is the state that the next pass reads, sums over that map's second output, and a map that makes the results from
/// the last state. The state starts as zeros and is kept in memory or in scratch, twice: read and written.
#[derive(Debug)]
pub struct MultiPass {
    /// Inputs: the step's own, then the state as the last pass left it. Outputs: the state, and what is to be summed, f64
    /// of shape (measures, axes of the reference).
    pub pass: Binding,
    /// Inputs as for `pass`; outputs: the step's.
    pub finish: Binding,
    pub control: Arc<dyn PassControl>,
}

/// Decides after each pass whether there is another one. Called by one thread, passes counted from 0.
pub trait PassControl: Send + Sync + std::fmt::Debug {
    /// A run of the passes begins: nothing that was learned before counts.
    fn begin(&self);

    /// `sums`: the measures of this pass summed over the whole array, in the fixed tree of folds.
    fn after(&self, pass: u64, sums: &[f64]) -> NextPass;

    fn most_passes(&self) -> u64;
}

/// What comes after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPass {
    /// Another pass, from the state that this one made.
    Again,
    /// This pass went too far: once more from the state that it read.
    Redo,
    /// The state that this pass made is the last.
    Done,
    /// The state that this pass read is the last.
    DoneBefore,
}

/// Why an operator could not do a block. The engine adds step, block and region.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The data or the user's function is at fault: final.
    #[error("{0}")]
    Data(String),
    /// Somebody it works with died or was too slow: another run may do better.
    #[error("{0}")]
    Passing(String),
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

impl OperatorError {
    pub fn data(text: impl Into<String>) -> Self {
        Self::Data(text.into())
    }
}

/// An input of a block, with its halo: `block` covers `region`, which may leave the array where the boundary rule has
/// filled cells.
#[derive(Clone, Debug)]
pub struct Padded {
    pub region: Region,
    pub block: Block,
}

/// What one call of a map operator is to produce.
pub struct MapTask<'a> {
    /// Number of the block in the block grid.
    pub number: u64,
    /// The part of the reference input's axes that is computed (no halo). The block's core, or for a step inside a chain
    /// the core grown by what later steps need.
    pub core: &'a Region,
    /// Per output: the region of it that is needed.
    pub outputs: &'a [Region],
    /// Per output: whether anybody asked for it.
    pub wanted: &'a [bool],
    /// Which worker calls: operators that keep state per worker (a child process) key it by this.
    pub worker: usize,
}

/// A computed output: `region` is `MapTask::outputs[i]`, or contains it when the operator returns its halo (trim cuts it).
#[derive(Debug)]
pub struct Computed {
    pub region: Region,
    pub block: Block,
}

/// Block in, block(s) out.
pub trait MapOperator: Send + Sync {
    /// One entry per output, `None` for those not wanted. Must give the same bytes however the array is cut.
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError>;

    /// Working memory beside inputs and outputs for a core of this shape (reference axes), in bytes.
    fn scratch_bytes(&self, core: &[u64]) -> u64;

    /// True when an output may be its input's own buffer, so that the plan need not count a second one.
    fn passes_through(&self) -> bool {
        false
    }

    /// True when outputs come back with the halo of their input, for trim to cut off.
    fn returns_halo(&self) -> bool {
        false
    }

    /// Called once per worker when a phase ends or fails: close what `apply` opened for it.
    fn close(&self, _worker: usize) {}

    /// The same on a device; `None`: there is no CUDA kernel for it.
    fn device(&self) -> Option<&dyn DeviceMap> {
        None
    }
}

/// What a map operator does on a device, for a part of a block at a time. Its kernels lie beside its code and are listed in
/// [`KERNELS`](crate::compute::gpu::kernels::KERNELS). All of it runs on the workers; actors see the job only.
pub trait DeviceMap: Send + Sync {
    /// True when the device gives the bytes that the CPU gives (I9): then parts of one job may be computed on either.
    fn is_exact(&self) -> bool;

    /// True when its arithmetic is worth the way to a device and back: `devices = "auto"` takes no other step there.
    fn pays(&self) -> bool {
        true
    }

    /// The regions of the inputs that a part needs, out of those given for the block.
    fn needs(&self, given: &[Region], part: &Region) -> Vec<Region>;

    /// The work for a part (reference axes). Input buffers of the job are these regions in C order. `None` where numbers
    /// leave what a kernel takes: a smaller part is asked for then.
    fn job(&self, needs: &[Region], part: &Region) -> Option<Job>;

    /// Two halves of a part, `None` below the smallest.
    fn split(&self, part: &Region) -> Option<[Region; 2]>;

    /// Writes a part of the outputs (whole buffers of the block, as in `task`) from what came back: `staging` as the job
    /// lays it out.
    fn finish(
        &self,
        part: &DevicePart<'_>,
        staging: &[u8],
        task: &MapTask<'_>,
        outputs: &mut [Option<Buffer>],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError>;

    /// Memory that `finish` takes, in bytes.
    fn scratch_bytes(&self) -> u64;
}

/// A part of a block that a device has computed.
pub struct DevicePart<'a> {
    pub core: &'a Region,
    /// What [`DeviceMap::needs`] gave.
    pub needs: &'a [Region],
    pub job: &'a Job,
}

/// Partial, merge, finish along axes. Leaves lie on a constant grid in array coordinates and are combined in a fixed
/// binary tree (I1), unless the operator is exact in any order.
pub trait FoldOperator: Send + Sync {
    /// Bytes of state per kept cell.
    fn state_bytes(&self) -> usize;

    /// True when merging in any order and grouping gives the same state: then leaves follow the blocks.
    fn is_order_free(&self) -> bool;

    /// The state of one leaf. Inputs are contiguous or strided and cut to the leaf on the axes that follow the
    /// reference; reduced axes are as in the binding. The state is laid out in C order over the kept axes; it arrives
    /// zeroed, aligned like every buffer, with `state_bytes` per kept cell.
    fn leaf(&self, inputs: &[Padded], axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError>;

    /// `into` (the earlier leaves) and `other` (the later ones) become one.
    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError>;

    /// The values of the outputs from the state of the whole array; `count` is the number of cells each kept cell
    /// reduced. One buffer per output, C order over the output's axes: the kept ones, and whole new ones.
    fn finish(&self, state: &[u8], count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError>;
}

/// Memory for one block: buffers cut off a lease that the worker took before it began.
pub struct Workspace<'a> {
    lease: Lease,
    pub stop: &'a AtomicBool,
    /// The devices of the run, for steps that have kernels.
    pub fleet: Option<&'a Fleet>,
}

impl<'a> Workspace<'a> {
    pub fn new(lease: Lease, stop: &'a AtomicBool) -> Self {
        Self { lease, stop, fleet: None }
    }

    /// A workspace without a bound, for tests.
    pub fn unbounded(stop: &'a AtomicBool) -> Self {
        let lease = crate::array::Account::unbounded("test").try_lease(1 << 60).expect("unbounded");
        Self { lease, stop, fleet: None }
    }

    /// A buffer to fill. Its bytes count against what the operator announced; what earlier buffers gave back may be
    /// taken again.
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer, BudgetError> {
        // Only what is missing is asked for: a worker that kept the rest of its lease aside would wait for itself.
        if let Some(missing) = (bytes as u64).checked_sub(self.lease.bytes()).filter(|m| *m > 0) {
            let more = self.lease.account().lease(missing, self.stop)?;
            self.lease.join(more);
        }
        Buffer::from_lease(&mut self.lease, bytes)
    }

    /// Bytes of the lease for memory that is not a [`Buffer`]; asks for more only where too little is left.
    pub fn reserve(&mut self, bytes: u64) -> Result<Lease, BudgetError> {
        if let Some(missing) = bytes.checked_sub(self.lease.bytes()).filter(|m| *m > 0) {
            let more = self.lease.account().lease(missing, self.stop)?;
            self.lease.join(more);
        }
        self.lease.split(bytes)
    }

    /// What is left of the lease.
    pub fn left(&self) -> u64 {
        self.lease.bytes()
    }
}

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

    /// Checks the inputs and says what the step does to them. Messages say what is wrong and what to do.
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String>;

    /// The same, with outputs that later steps ask for after the step's own: each once, never default.
    fn bind_asked(&self, inputs: &[StepInput], _asks: &[Ask]) -> Result<Binding, String> {
        self.bind(inputs)
    }

    /// What the step's keys don't say about its result: the content of a file that one of them names. Part of the job's
    /// hash; `Null` where there is no such thing.
    fn identity(&self) -> Value {
        Value::Null
    }

    /// For operators that narrow their answer down by folds, one after the other: each but the first has the result of the
    /// one before (its first output) as last input, and the last one's outputs are the step's. `bind` is called where this
    /// is `None`. `is_short` as for [`bind_passes`](Self::bind_passes).
    fn bind_folds(&self, _inputs: &[StepInput], _is_short: bool) -> Option<Vec<Binding>> {
        None
    }

    /// For operators that stream their inputs several times; `bind` is called where this is `None`. `is_short`: what
    /// `bind` asks for does not fit the memory limit, and the same result by several passes with less halo is welcome.
    fn bind_passes(&self, _inputs: &[StepInput], _is_short: bool) -> Option<Result<MultiPass, String>> {
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
    &histogram::INFO,
    &identity::INFO,
    &parts::IMAG,
    &intensity::INFO,
    &interferogram::INFO,
    &ks_test::INFO,
    &filters::LAPLACE,
    &scale::LOG10,
    &extremum::MAX,
    &filters::MAXIMUM_FILTER,
    &sum::MEAN,
    &filters::MEDIAN_FILTER,
    &extremum::MIN,
    &filters::MINIMUM_FILTER,
    &filters::MORPHOLOGICAL_GRADIENT,
    &multilook::INFO,
    &filters::PERCENTILE_FILTER,
    &filters::PREWITT,
    &quantile::INFO,
    &filters::RANK_FILTER,
    &parts::REAL,
    &scale::SCALE,
    &select_shp::INFO,
    &filters::SOBEL,
    &moments::STD,
    &sum::SUM,
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
