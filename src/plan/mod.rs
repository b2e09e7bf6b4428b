//! What will happen: pure data, made from a job file and the metadata of its inputs, before any chunk is read.
//!
//! `graph` binds steps to inputs, `phase` cuts at folds, `needs` infers regions backwards, `feeds` and `frontier`
//! simulate what must be held, `memory` chooses grid, traversal and concurrency; `origin` and `coordinates` decide what is carried
//! to outputs beside their arrays, `explain` prints it all.

pub mod carried;
pub mod coordinates;
pub mod devices;
pub mod explain;
pub mod feeds;
pub mod frontier;
pub mod graph;
pub mod keeping;
pub mod lists;
pub mod machine;
pub mod memory;
pub mod moving;
pub mod needs;
pub mod origin;
pub mod output;
pub mod phase;
pub mod sizes;
pub mod thinning;
pub mod traversal;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::array::{Grid, Region};
use crate::codec::Park;
use crate::compute::gpu::Hardware;
use crate::compute::gpu::cuda::Cuda;
use crate::config::units::format_bytes;
use crate::config::{EngineSpec, IfExists, JobSpec};
use crate::engine::partition::Partition;
use crate::operators::PassControl;
use crate::reader::beside::Beside;
use crate::reader::input::InputArray;
use crate::reader::kept::KeptArray;
use crate::reader::{OpenError, SourceError};
use crate::writer::OutputLayout;
use crate::writer::npy::is_npy;
use carried::Surroundings;
use devices::DevicePlan;
use feeds::FeedUse;
use frontier::Frontier;
use graph::{ArrayId, Graph, Target};
use keeping::{Deciding, Keeping};
use machine::Machine;
use memory::{Choice, Concurrency, Reservation};
use moving::Moving;
use phase::{ArrayAxis, Phase};
use sizes::{BlockBytes, Delivery};
use traversal::Traversal;

/// Why there is no plan. All of these exit 2.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("input `{name}`: {error}")]
    Input { name: String, error: OpenError },
    #[error("line {line}: step `{step}`: {message}")]
    Step { line: usize, step: String, message: String },
    #[error("line {line}: output `{output}`: {message}")]
    Output { line: usize, output: String, message: String },
    #[error("{0}")]
    Wrong(String),
    /// `smallest` works.
    #[error(
        "engine.memory = {} is below the {} this job needs ({smallest} bytes): raise it, or use smaller chunks",
        format_bytes(*limit),
        format_bytes(*smallest)
    )]
    Memory { limit: u64, smallest: u64 },
    #[error(
        "engine.scratch_limit = {} is below the {} this job keeps there ({bytes} bytes): raise it, or raise engine.memory",
        format_bytes(*limit),
        format_bytes(*bytes)
    )]
    Scratch { limit: u64, bytes: u64 },
}

/// How results are come by. They do not depend on it; `run --verify` tries that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Usual,
    /// In blocks with other edges; `is_deep`: with twice the halo, too.
    Other {
        is_deep: bool,
    },
}

/// A job, decided.
pub struct Plan {
    pub graph: Graph,
    pub inputs: Vec<InputArray>,
    pub phases: Vec<PhasePlan>,
    /// One per graph target, in its order.
    pub outputs: Vec<OutputPlan>,
    /// What outputs hold beside their arrays, by path.
    pub surroundings: BTreeMap<PathBuf, Surroundings>,
    pub memory_limit: u64,
    pub workers: usize,
    /// `cpu`, or a device's: results of inexact operators belong to one class.
    pub arithmetic: &'static str,
    /// Where steps with kernels are computed.
    pub devices: DevicePlan,
    pub resolved: Value,
    pub hash: String,
    /// What counts as the job in the hash, kept in the output's attributes.
    pub identities: BTreeMap<String, Vec<String>>,
    pub folder: PathBuf,
    /// Where kept arrays that do not fit the limit go.
    pub scratch: Option<PathBuf>,
    pub notes: Vec<String>,
    /// Steps that are computed with twice their halo ([`Way::Other`]).
    pub deepened: Vec<String>,
    /// This process makes the outputs together with others.
    pub partition: Option<Partition>,
}

#[derive(Clone)]
pub struct PhasePlan {
    pub phase: Arc<Phase>,
    pub feeds: Arc<[FeedUse]>,
    pub deliveries: Vec<Delivery>,
    pub grid: Grid,
    pub traversal: Traversal,
    pub concurrency: Concurrency,
    pub reservation: Reservation,
    pub frontier: Frontier,
    /// Chunks that are needed, each counted once.
    pub chunks: u64,
    pub bytes: BlockBytes,
    /// How waiting chunks are held: what the job says, `none` where `auto` finds memory enough.
    pub park: Park,
    /// How chunks are held that passes read again.
    pub park_again: Park,
    /// Chunks whose source guarantees a bit width are held packed, and counted so.
    pub counts_packed: bool,
    /// Arrays made here that later phases read.
    pub kept: Vec<Kept>,
    /// Those that no later phase reads.
    pub released: Vec<Arc<KeptArray>>,
    /// The phase is one pass of several.
    pub rounds: Option<Rounds>,
    /// Nothing is decoded or encoded, hardly anything computed, and each block, or column of blocks, has bytes and objects of its
    /// own: they move from file to file.
    pub moving: Option<Moving>,
    /// The same where blocks are left out, done by an earlier run or by another process, if that makes a difference.
    pub rest: Option<Box<PhasePlan>>,
}

/// What the engine needs to run the passes of a loop.
#[derive(Clone)]
pub struct Rounds {
    /// The step, for messages.
    pub name: String,
    pub state: Arc<KeptArray>,
    /// The control makes the state; else a pass does.
    pub is_controlled: bool,
    /// What a pass came to.
    pub found: Arc<KeptArray>,
    pub control: Arc<dyn PassControl>,
}

impl Rounds {
    /// What the control takes between passes, when the phase's stages hold nothing.
    fn control_bytes(&self) -> u64 {
        let state = if self.is_controlled { self.state.copy_bytes() } else { 0 };
        self.found.copy_bytes().saturating_add(state).saturating_add(self.control.scratch_bytes())
    }
}

/// An array that a phase makes for later ones.
#[derive(Clone)]
pub struct Kept {
    pub id: ArrayId,
    pub array: Arc<KeptArray>,
    /// It did not fit the limit: it goes to `engine.scratch`.
    pub in_scratch: bool,
}

impl PhasePlan {
    /// Threads that move blocks, where they are moved: as many as the plan has room for at every stage.
    pub fn movers(&self) -> usize {
        self.concurrency.readers.min(self.concurrency.workers).min(self.concurrency.encode_threads())
    }

    /// The core of a block on the phase's axes; `block` is its position in the whole grid.
    pub fn core(&self, block: &[u64]) -> Region {
        let ranges: Vec<(i64, i64)> = block
            .iter()
            .zip(&self.grid.0)
            .map(|(&b, grid)| {
                let r = grid.range(b);
                (r.start as i64, r.end as i64)
            })
            .collect();
        Region::from_ranges(&ranges)
    }

    /// What a block with this core writes of an array; `None` when another block delivers it (the array lacks an axis,
    /// and the block is not the first along it).
    pub fn target_region(&self, array: usize, core: &Region) -> Option<Region> {
        let axes = &self.phase.arrays[array].axes;
        let delivers = (0..core.rank()).all(|a| core.start[a] == 0 || axes.iter().any(|x| x.phase_axis() == a));
        delivers.then(|| Region::from_ranges(&axes.iter().map(|axis| self.axis_part(axis, core)).collect::<Vec<_>>()))
    }

    /// Where a block lies on an axis of an array.
    pub fn axis_part(&self, axis: &ArrayAxis, core: &Region) -> (i64, i64) {
        match axis {
            ArrayAxis::Phase(a) => core.axis(*a),
            ArrayAxis::Laid { axis, length } => {
                let grid = &self.grid.0[*axis];
                let r = sizes::laid_edges(grid, length).range(grid.cell_of(core.start[*axis] as u64));
                (r.start as i64, r.end as i64)
            }
        }
    }

    /// As it is done where no block is left out, or some are.
    pub fn of_run(&self, is_whole: bool) -> &Self {
        self.rest.as_deref().filter(|_| !is_whole).unwrap_or(self)
    }

    /// The axis along which chunks are cut down to what is still needed of them, where any are.
    pub fn thin_axis(&self) -> Option<usize> {
        self.traversal.outermost().filter(|_| self.frontier.margin_bytes > 0)
    }

    /// The axis within it along which they are, too.
    pub fn side_axis(&self) -> Option<usize> {
        self.traversal.second().filter(|_| self.frontier.has_sides)
    }

    pub fn predicted_bytes(&self) -> u64 {
        let Reservation { kept, again, .. } = self.reservation;
        let between = self.rounds.as_ref().map_or(0, |r| kept.saturating_add(again).saturating_add(r.control_bytes()));
        self.reservation.total().max(between)
    }
}

pub struct OutputPlan {
    pub target: Target,
    pub layout: OutputLayout,
    /// Index into `Plan::outputs`' specs: several targets may share a store.
    pub path: PathBuf,
    pub if_exists: IfExists,
    pub name: String,
}

impl Plan {
    /// Opens the inputs and decides everything.
    pub fn new(job: &JobSpec, machine: &Machine) -> Result<Self, Vec<PlanError>> {
        Self::on(job, machine, Arc::new(Cuda))
    }

    /// The same on other devices than the machine's.
    pub fn on(job: &JobSpec, machine: &Machine, hardware: Arc<dyn Hardware>) -> Result<Self, Vec<PlanError>> {
        Self::with_engine(job, &job.engine, machine, hardware, Way::Usual)
    }

    /// A plan for the same results by another way, to be compared with them.
    pub fn other_way(job: &JobSpec, machine: &Machine, is_deep: bool) -> Result<Self, Vec<PlanError>> {
        Self::with_engine(job, &job.engine, machine, Arc::new(Cuda), Way::Other { is_deep })
    }

    fn with_engine(
        job: &JobSpec,
        engine: &EngineSpec,
        machine: &Machine,
        hardware: Arc<dyn Hardware>,
        way: Way,
    ) -> Result<Self, Vec<PlanError>> {
        let mut errors = Vec::new();
        let mut inputs = Vec::new();
        for spec in &job.inputs {
            match InputArray::open(spec) {
                Ok(input) => inputs.push(input),
                Err(error) => errors.push(PlanError::Input { name: spec.name.clone(), error }),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let limit = engine.memory.unwrap_or(machine.memory_available / 2);
        let workers = engine.workers.unwrap_or(machine.cores).max(1);
        let default_format = inputs[0].zarr_format.unwrap_or(3);
        let form = Cell::new(None);
        let decide = |is_short: bool| {
            let mut graph = Graph::new(job, &inputs, is_short)?;
            let deepened = if way == (Way::Other { is_deep: true }) { graph.deepen() } else { Vec::new() };
            let parts = Some((graph.loops.len(), graph.steps.len()));
            if form.replace(parts) == parts {
                return Err(Vec::new()); // no step knows another way
            }
            let devices = DevicePlan::new(engine, &graph, hardware.clone()).map_err(|e| vec![e])?;
            let mut phases = phase::phases(&graph);
            devices.mark(&mut phases);
            devices.check_room(&phases).map_err(|e| vec![e])?;
            let keeping = Keeping::new(&graph, &phases);
            let setting = Deciding { job, engine, graph: &graph, inputs: &inputs, limit, workers, default_format, way };
            let decided = setting.decide(&phases, &keeping)?;
            Ok((graph, phases, keeping, decided, devices, deepened))
        };
        // Several passes with less halo only where one pass does not fit.
        let found = decide(false).or_else(|errors: Vec<PlanError>| match keeping::is_memory_only(&errors) {
            true => decide(true).map_err(|second| keeping::smaller_refusal(errors, second)),
            false => Err(errors),
        });
        // Coordinates are looked into before anything else is held.
        let aside = inputs.iter().filter_map(|input| input.beside.as_ref()).map(Beside::peak_bytes).max().unwrap_or(0);
        let found = found.map_err(|errors| keeping::raise_refusal(errors, aside))?;
        let (mut graph, phases, keeping, decided, devices, deepened) = found;
        if limit < aside {
            return Err(vec![PlanError::Memory { limit, smallest: aside }]);
        }
        let mut layouts: BTreeMap<usize, OutputLayout> = BTreeMap::new();
        let mut plans = Vec::new();
        for (p, (phase, (feeds, mut choice))) in phases.into_iter().zip(decided.choices).enumerate() {
            let (phase, feeds): (_, Arc<[FeedUse]>) = (Arc::new(phase), feeds.into());
            let of = |choice: Choice| {
                let deliveries = sizes::deliveries(&phase, &choice.grid, &feeds, &choice.layouts, choice.bytes.in_strips > 0);
                let moves_blocks = choice.moving.is_none() && moving::moves_blocks(&phase, &feeds, &choice);
                let moving = if moves_blocks { Some(Moving::Blocks) } else { choice.moving };
                PhasePlan {
                    phase: phase.clone(),
                    feeds: feeds.clone(),
                    deliveries,
                    grid: choice.grid,
                    traversal: choice.traversal,
                    concurrency: choice.concurrency,
                    reservation: choice.reservation,
                    frontier: choice.frontier,
                    chunks: choice.chunks,
                    bytes: choice.bytes,
                    park: choice.park,
                    park_again: engine.park,
                    counts_packed: choice.counts_packed,
                    kept: keeping.made_in(p, decided.in_scratch),
                    rounds: phase.repeats.and_then(|of| keeping.rounds(&graph.loops[of])),
                    released: keeping.released_after(p),
                    moving,
                    rest: None,
                }
            };
            layouts.extend(choice.layouts.iter().cloned());
            let rest = choice.rest.take().map(|rest| Box::new(of(*rest)));
            plans.push(PhasePlan { rest, ..of(choice) });
        }
        let mut outputs = Vec::new();
        for (at, target) in graph.targets.iter().enumerate() {
            let spec = &job.outputs[target.output];
            let Some(layout) = layouts.remove(&at) else {
                return Err(vec![PlanError::Wrong(format!("output `{}` is written by no phase", spec.name))]);
            };
            outputs.push(OutputPlan {
                target: target.clone(),
                layout,
                path: spec.path.clone(),
                if_exists: spec.if_exists,
                name: spec.name.clone(),
            });
        }
        // Lengths of arrays laid side by side are known only now.
        for output in &outputs {
            graph.arrays[output.target.array].meta.shape = output.layout.shape.clone();
        }
        let mut identities = BTreeMap::new();
        for (spec, input) in job.inputs.iter().zip(&mut inputs) {
            let failed = |error: SourceError| vec![PlanError::Input { name: spec.name.clone(), error: error.into() }];
            input.stamps = input.stamps().map_err(failed)?;
            let stamps = input.stamps.iter().filter(|s| !s.is_empty()).map(|s| format!("files {s}"));
            identities.insert(spec.name.clone(), input.identity.iter().cloned().chain(stamps).collect());
        }
        let mut notes = inputs.iter().flat_map(|i| i.notes.iter().cloned()).chain(devices.note.clone()).collect();
        let surroundings = coordinates::carry(&graph, &inputs, &mut outputs, &mut notes);
        let surroundings = surroundings.map_err(|error| vec![PlanError::Wrong(error.to_string())])?;
        let mut plan = Plan {
            graph,
            inputs,
            phases: plans,
            outputs,
            surroundings,
            memory_limit: limit,
            workers,
            arithmetic: devices.arithmetic,
            devices,
            resolved: job.resolved.clone(),
            hash: String::new(),
            identities,
            folder: job.folder.clone(),
            scratch: engine.scratch.clone(),
            notes,
            deepened,
            partition: None,
        };
        let named: Vec<Value> = job.steps.iter().map(|s| s.operator.identity()).filter(|i| !i.is_null()).collect();
        plan.hash = plan.job_hash(&named);
        Ok(plan)
    }

    /// The share that one of several processes makes.
    pub fn share(mut self, partition: Partition) -> Result<Self, PlanError> {
        for output in &self.outputs {
            let why = match (output.layout.points.is_some(), is_npy(&output.path)) {
                _ if output.layout.is_remote => {
                    "partitions of outputs in object stores are not available in this version; write to a folder"
                }
                (true, _) => "a list of points has one order and can't be made in parts",
                (_, true) => "machines that share a file system can't write one file together; write .zarr",
                _ => continue,
            };
            return Err(PlanError::Wrong(format!("output `{}`: {why}, or run the job without --partition", output.name)));
        }
        if self.phases.len() > 1 && self.phases.iter().any(|phase| !phase.kept.is_empty()) {
            let note = "what later steps read whole (results of folds, states of passes) is computed by every partition";
            self.notes.push(note.to_owned());
        }
        self.partition = Some(partition);
        Ok(self)
    }

    /// Input identities, steps (with what they read from files) and output layout, never `[engine]`.
    fn job_hash(&self, named: &[Value]) -> String {
        let steps = self.resolved.get("step").cloned().unwrap_or(Value::Null);
        let steps = if named.is_empty() { steps } else { json!([steps, named]) };
        let layouts: Vec<Value> = self
            .outputs
            .iter()
            .map(|o| {
                let l = &o.layout;
                let codec = format!("{:?}", l.codec);
                let points = l.points.map(|p| json!([p.axes, p.chunk]));
                json!([
                    o.name,
                    o.target.member,
                    self.graph.arrays[o.target.array].meta.name,
                    l.shape,
                    l.dtype.name(),
                    l.chunks,
                    l.shards,
                    codec,
                    l.zarr_format,
                    points
                ])
            })
            .collect();
        // A block grid that shows in the values (trim = false) is part of what is computed.
        let laid: Vec<Value> = self
            .phases
            .iter()
            .filter(|p| p.phase.arrays.iter().any(|a| a.axes.iter().any(|x| x.depends_on_grid())))
            .map(|p| json!(p.grid.0.iter().map(|a| a.longest()).collect::<Vec<_>>()))
            .collect();
        let text = json!([self.identities, steps, layouts, laid, self.arithmetic]).to_string();
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(16).map(|b| format!("{b:02x}")).collect()
    }

    /// Highest sum of reservations over the phases, where no block is left out.
    pub fn predicted_peak_bytes(&self) -> u64 {
        self.peak_bytes_of_run(true)
    }

    /// The same where some may be.
    pub fn peak_bytes_of_run(&self, is_whole: bool) -> u64 {
        self.phases.iter().map(|phase| phase.of_run(is_whole).predicted_bytes()).max().unwrap_or(0)
    }

    pub fn frontier_bytes(&self) -> u64 {
        self.phases.iter().map(|p| p.frontier.source_bytes()).max().unwrap_or(0)
    }

    pub fn blocks_total(&self) -> u64 {
        self.phases.iter().map(|p| p.traversal.block_count()).sum()
    }
}

/// The smallest limit under which a job runs: what a refusal names, and what `plan --json` always states.
pub fn smallest_memory(job: &JobSpec, machine: &Machine) -> Result<u64, Vec<PlanError>> {
    let mut engine = job.engine.clone();
    engine.memory = Some(0);
    match Plan::with_engine(job, &engine, machine, Arc::new(Cuda), Way::Usual) {
        Ok(_) => Ok(0),
        Err(errors) => match errors[..] {
            [PlanError::Memory { smallest, .. }] => Ok(smallest),
            _ => Err(errors),
        },
    }
}
