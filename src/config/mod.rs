//! What the user wrote: a job file (TOML) as a [`JobSpec`], all its problems found together.

mod edit;
mod engine;
pub mod fill;
mod input;
pub mod job;
mod keep;
mod output;
pub mod overlap;
mod resolved;
pub mod select;
pub mod service;
mod step;
pub mod table;
pub mod units;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::array::{Boundary, DType, Rule};
use crate::child::Program;
use crate::codec::Park;
use crate::operators::Operator;
pub use keep::{KeepBy, KeepSpec};
pub use resolved::to_toml;
pub use table::{OneOrMany, Problem};

/// A job file that is well formed: every key known, every value of its type. Whether arrays exist and fit together is
/// for the plan.
pub struct JobSpec {
    pub inputs: Vec<InputSpec>,
    pub steps: Vec<StepSpec>,
    pub outputs: Vec<OutputSpec>,
    pub engine: EngineSpec,
    /// The job as resolved JSON, before `${VAR}` was expanded: kept in the output's attribute.
    pub resolved: serde_json::Value,
    /// Folder of the job file: relative paths start there.
    pub folder: PathBuf,
}

/// `[input]` / `[inputs.NAME]`
#[derive(Clone, Debug)]
pub struct InputSpec {
    pub name: String,
    pub line: usize,
    pub from: InputPlace,
    /// `format = "raw"`: the files at that place have no header.
    pub raw: Option<RawSpec>,
    /// Array inside a group, `a/b` for nested.
    pub array: Option<String>,
    /// One entry per axis of the array (of the joined one, where there are several), in order; axes left out are whole.
    pub select: Option<Vec<Select>>,
    pub join: Option<Join>,
    /// Lists of entries of some axes (of the joined array), taken before `select`.
    pub keep: Vec<KeepSpec>,
    pub missing: Missing,
    /// Numbers that CF attributes say are packed are decoded.
    pub decode_cf: bool,
}

#[derive(Clone, Debug)]
pub enum InputPlace {
    /// One path, or a list of paths, already resolved against the job's folder.
    Paths(Vec<String>),
    /// A path with `*`, `?` or `[`, resolved against the job's folder; see [`InputSpec::paths`].
    Glob(String),
    /// `sample:NAME`
    Sample(SampleSpec),
    /// `command = [..]`: a program answers for the array.
    Command(CommandSpec),
}

impl InputSpec {
    /// The paths of this input, a glob looked up now, in natural order; empty for a sample or a command. Several need `stack` or `concat`.
    pub fn paths(&self) -> Result<Vec<String>, String> {
        let paths = match &self.from {
            InputPlace::Sample(_) | InputPlace::Command(_) => return Ok(Vec::new()),
            InputPlace::Paths(paths) => paths.clone(),
            // A name that really has such characters is meant as it stands.
            InputPlace::Glob(pattern) if Path::new(pattern).exists() => vec![pattern.clone()],
            InputPlace::Glob(pattern) => input::look_up(pattern)?,
        };
        if paths.len() > 1 && self.join.is_none() {
            let key = table_path("input", &self.name);
            return Err(format!("{key}.path stands for {} arrays; add stack = 0 or concat = 0", paths.len()));
        }
        Ok(paths)
    }
}

/// `input` for the input of that name (the short form), else `inputs.NAME`.
fn table_path(kind: &str, name: &str) -> String {
    if name == kind { kind.to_owned() } else { format!("{kind}s.{name}") }
}

/// A path of the job file: relative ones start at its folder.
fn resolve_path(folder: &Path, path: &str) -> PathBuf {
    if folder == Path::new(".") { PathBuf::from(path) } else { folder.join(path) }
}

/// What the grammar knows and this version cannot do.
fn not_available(what: &str) -> String {
    format!("{what} not available in this version")
}

/// `format = "raw"` with `dtype`, `shape`, `offset`: numbers in C order from an offset on.
#[derive(Clone, Debug, PartialEq)]
pub struct RawSpec {
    pub dtype: DType,
    pub is_big_endian: bool,
    pub shape: Vec<u64>,
    pub offset: u64,
}

/// `path = "sample:slc"` with `shape`, `chunks`, `dtype`, `seed`.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    /// `slc`, `volume`, `genotypes`, `seismic`, `tiff`
    pub kind: String,
    pub shape: Option<Vec<u64>>,
    pub chunks: Option<Vec<u64>>,
    pub dtype: Option<DType>,
    pub seed: u64,
}

/// `command = ["python3", "read.py"]` with `shape`, `dtype`, `chunks`: a child process makes the chunks.
#[derive(Clone, Debug)]
pub struct CommandSpec {
    pub program: Program,
    pub shape: Vec<u64>,
    pub chunks: Vec<u64>,
    pub dtype: DType,
}

/// A basic slice of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Drops the axis. Negative counts from the end.
    Index(i64),
    /// numpy's `start:stop:step`.
    Slice { start: Option<i64>, stop: Option<i64>, step: i64 },
    /// `...`: as many whole axes as the other entries leave. At most one in a list.
    Ellipsis,
}

/// How several arrays become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Along a new axis (-1: last).
    Stack(i64),
    /// Along an axis they have.
    Concat(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Fill,
    Error,
}

/// `[[step]]`
pub struct StepSpec {
    pub name: String,
    pub op: &'static str,
    pub line: usize,
    /// Empty: the previous step (or the first input).
    pub inputs: Vec<StepInputSpec>,
    pub boundary: Option<BoundarySpec>,
    pub operator: Box<dyn Operator>,
}

#[derive(Clone, Debug)]
pub struct StepInputSpec {
    /// `input`, `ks_test`, `ks_test.p`
    pub from: String,
    pub depth: Option<DepthSpec>,
    pub boundary: Option<BoundarySpec>,
    pub line: usize,
}

/// One rule for all axes, or `[before, after]` per axis.
#[derive(Clone, Debug, PartialEq)]
pub enum BoundarySpec {
    All(Rule),
    PerAxis(Vec<[Rule; 2]>),
}

impl BoundarySpec {
    /// One entry per axis. A list longer than the rank of an input that broadcasts gives its trailing entries when
    /// `trailing` is set; any other length is an error.
    pub fn expand(&self, rank: usize, trailing: bool) -> Result<Boundary, String> {
        match self {
            BoundarySpec::All(rule) => Ok(vec![[*rule; 2]; rank]),
            BoundarySpec::PerAxis(list) if list.len() == rank => Ok(list.clone()),
            BoundarySpec::PerAxis(list) if trailing && list.len() > rank => Ok(list[list.len() - rank..].to_vec()),
            BoundarySpec::PerAxis(list) => Err(format!("boundary has {} entries, the array has {rank} axes", list.len())),
        }
    }
}

/// `depth = 2`, `[1, 2]` (per axis) or `[[1, 2], [0, 3]]` (before, after).
#[derive(Clone, Debug, PartialEq)]
pub enum DepthSpec {
    All(u64),
    PerAxis(Vec<(u64, u64)>),
}

impl DepthSpec {
    pub fn expand(&self, rank: usize) -> Result<Vec<(u64, u64)>, String> {
        match self {
            DepthSpec::All(depth) => Ok(vec![(*depth, *depth); rank]),
            DepthSpec::PerAxis(list) if list.len() == rank => Ok(list.clone()),
            DepthSpec::PerAxis(list) => Err(format!("depth has {} entries, the array has {rank} axes", list.len())),
        }
    }
}

/// `[output]` / `[outputs.NAME]`
#[derive(Clone, Debug)]
pub struct OutputSpec {
    pub name: String,
    pub line: usize,
    pub path: PathBuf,
    /// `smooth`, `ks_test.p`; empty: the last step, or the input when there are no steps.
    pub from: Option<String>,
    /// A list of the pixels that have a value, not the whole array.
    pub is_points: bool,
    pub chunks: Option<Vec<u64>>,
    pub shards: Option<Vec<u64>>,
    pub codec: CodecSpec,
    pub zarr_format: Option<u8>,
    pub if_exists: IfExists,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CodecSpec {
    pub name: CodecName,
    pub level: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecName {
    None,
    Zstd,
    BloscLz4,
    BloscZstd,
    Gzip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    Resume,
    Overwrite,
    Error,
}

/// `[engine]`: how, never what. Not part of the job's hash.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// `None`: half of the memory available.
    pub memory: Option<u64>,
    /// `None`: one per core.
    pub workers: Option<usize>,
    pub block: BlockSpec,
    pub park: Park,
    pub scratch: Option<PathBuf>,
    pub scratch_limit: Option<u64>,
    pub devices: Option<Vec<String>>,
    pub device_memory: Option<u64>,
    /// A device that is silent for longer with work under way is lost.
    pub device_timeout: Duration,
    pub fallback: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BlockSpec {
    Auto,
    Source,
    Shape(Vec<u64>),
}
