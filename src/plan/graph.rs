//! The steps of a job bound to its inputs: arrays, who makes them, and at which level (folds between) they exist.

use super::PlanError;
use crate::array::DType;
use crate::config::{JobSpec, StepSpec, table::nearest};
use crate::operators::deeper::deeper;
use crate::operators::{
    ArrayMeta, Ask, Binding, Composite, Kind, LaidLength, NextState, OutAxis, PartInput, PartWork, PassControl, Passes, StepInput,
};
use crate::reader::input::InputArray;
use crate::writer::npy::is_npy;
use crate::zarr::cf::drop_packing;
use std::sync::Arc;

pub type ArrayId = usize;

pub struct Graph {
    pub arrays: Vec<GraphArray>,
    pub steps: Vec<GraphStep>,
    /// Parts of steps that take several passes.
    pub loops: Vec<GraphLoop>,
    /// The steps of the job file, each of which may be several of `steps`.
    named: Vec<NamedStep>,
    /// What is to be written: one entry per output array, in the order of the job file.
    pub targets: Vec<Target>,
}

pub struct GraphArray {
    pub meta: ArrayMeta,
    pub producer: Producer,
    /// Folds that must be finished before this array can be computed.
    pub level: usize,
    /// Blocks laid side by side: cells do not run along those of the input, so no step can follow.
    pub is_laid: bool,
    /// Axes whose length follows from the block grid: their `meta.shape` is not known yet.
    pub has_open_length: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Producer {
    Input(usize),
    Step {
        step: usize,
        output: usize,
    },
    /// The state of a loop, as its last pass left it.
    State {
        of: usize,
    },
}

/// Passes that are repeated.
pub struct GraphLoop {
    pub name: String,
    /// What a pass reads: the state before it.
    pub state: ArrayId,
    /// What a pass writes: the state after it. `None`: the control makes that of what the fold found.
    pub next: Option<ArrayId>,
    /// The fold that sums the measures or is the pass, and its result.
    pub fold_step: usize,
    pub found: ArrayId,
    pub control: Arc<dyn PassControl>,
    pub level: usize,
}

/// A step as the job file names it.
struct NamedStep {
    name: String,
    op: &'static str,
    outputs: Vec<NamedOutput>,
}

struct NamedOutput {
    name: String,
    is_default: bool,
    array: ArrayId,
}

pub struct GraphStep {
    pub name: String,
    pub op: &'static str,
    pub binding: Binding,
    pub inputs: Vec<ArrayId>,
    pub outputs: Vec<ArrayId>,
    pub level: usize,
}

impl GraphStep {
    pub fn is_fold(&self) -> bool {
        matches!(self.binding.kind, Kind::Fold { .. })
    }
}

#[derive(Clone, Debug)]
pub struct Target {
    /// Index into `JobSpec::outputs`.
    pub output: usize,
    pub array: ArrayId,
    /// Name of the array inside the output's group; `None`: the output is this array.
    pub member: Option<String>,
}

impl Graph {
    /// `is_short`: operators that can do with less halo in several passes do so.
    pub fn new(job: &JobSpec, inputs: &[InputArray], is_short: bool) -> Result<Self, Vec<PlanError>> {
        let mut graph =
            Graph { arrays: Vec::new(), steps: Vec::new(), loops: Vec::new(), named: Vec::new(), targets: Vec::new() };
        let mut errors = Vec::new();
        for (i, input) in inputs.iter().enumerate() {
            graph.arrays.push(GraphArray {
                meta: input.meta.clone(),
                producer: Producer::Input(i),
                level: 0,
                is_laid: false,
                has_open_length: false,
            });
        }
        for (index, spec) in job.steps.iter().enumerate() {
            if let Err(message) = graph.bind_step(job, index, is_short) {
                errors.push(PlanError::Step { line: spec.line, step: spec.name.clone(), message });
                return Err(errors); // later steps depend on this one
            }
        }
        for (index, output) in job.outputs.iter().enumerate() {
            if let Err(message) = graph.add_targets(job, inputs, index) {
                errors.push(PlanError::Output { line: output.line, output: output.name.clone(), message });
            }
        }
        if errors.is_empty() { Ok(graph) } else { Err(errors) }
    }

    /// Has every step compute beyond what is asked of it, as far as its halo goes, and returns the names of those that do.
    /// The passes of loops stay as they are.
    pub fn deepen(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for step in &mut self.steps {
            let is_pass = step.inputs.iter().any(|&id| matches!(self.arrays[id].producer, Producer::State { .. }));
            let shapes: Vec<&[u64]> = step.inputs.iter().map(|&id| self.arrays[id].meta.shape.as_slice()).collect();
            if !is_pass && let Some(binding) = deeper(&step.binding, &shapes) {
                step.binding = binding;
                names.push(step.name.clone());
            }
        }
        names
    }

    /// The arrays that a reference names: one for `ks_test.p` and for inputs, the default outputs for `ks_test`.
    fn resolve(&self, job: &JobSpec, from: &str) -> Result<Vec<ArrayId>, String> {
        if let Some(i) = job.inputs.iter().position(|i| i.name == from) {
            return Ok(vec![i]);
        }
        let (step, output) = match from.split_once('.') {
            Some((step, output)) => (step, Some(output)),
            None => (from, None),
        };
        let step =
            self.named.iter().find(|s| s.name == step).ok_or_else(|| format!("there is no input or step `{from}` before it"))?;
        let names = || step.outputs.iter().map(|o| o.name.as_str());
        match output {
            Some(name) => match step.outputs.iter().find(|o| o.name == name) {
                Some(output) => Ok(vec![output.array]),
                None => {
                    let hint = nearest(name, names()).map(|n| format!("; did you mean `{}.{n}`?", step.name)).unwrap_or_default();
                    Err(format!(
                        "step `{}` has no output `{name}` (it has {}){hint}",
                        step.name,
                        names().collect::<Vec<_>>().join(", ")
                    ))
                }
            },
            None => Ok(step.outputs.iter().filter(|o| o.is_default).map(|o| o.array).collect()),
        }
    }

    fn bind_step(&mut self, job: &JobSpec, index: usize, is_short: bool) -> Result<(), String> {
        let spec = &job.steps[index];
        let mut ids = Vec::new();
        let mut overrides = Vec::new();
        if spec.inputs.is_empty() {
            let from = match index {
                0 => job.inputs[0].name.clone(),
                i => job.steps[i - 1].name.clone(),
            };
            ids.push(self.one(job, &self.as_read(job, spec, 0, &from))?);
            overrides.push((None, None));
        }
        for (i, input) in spec.inputs.iter().enumerate() {
            ids.push(self.one(job, &self.as_read(job, spec, i, &input.from))?);
            overrides.push((input.depth.clone(), input.boundary.clone()));
        }
        let most = ids.iter().map(|&id| self.arrays[id].meta.rank()).max().unwrap_or(0);
        let mut inputs = Vec::new();
        for (&id, (depth, boundary)) in ids.iter().zip(&overrides) {
            let array = &self.arrays[id];
            if array.is_laid {
                return Err(format!(
                    "`{}` has cells of its own (trim = false, block_shape or multilook), later steps can't follow it: write it out and read it in a second job",
                    array.meta.name
                ));
            }
            let rank = array.meta.rank();
            let here = |e: String| format!("input `{}`: {e}", array.meta.name);
            let boundary = match (boundary, &spec.boundary) {
                (Some(own), _) => Some(own.expand(rank, false).map_err(here)?),
                (None, Some(step)) => Some(step.expand(rank, rank < most).map_err(here)?),
                (None, None) => None,
            };
            let depth = depth.as_ref().map(|d| d.expand(rank)).transpose().map_err(here)?;
            inputs.push(StepInput { meta: array.meta.clone(), boundary, depth });
        }
        let made = match spec.operator.bind_parts(&inputs, is_short) {
            Some(composite) => self.add_parts(&spec.name, spec.op, composite?, &ids)?,
            None => {
                let binding = spec.operator.bind_asked(&inputs, &asks(job, index))?;
                self.add_step(&spec.name, spec.op, binding, ids, 0)?
            }
        };
        let named = |array: ArrayId| match self.arrays[array].producer {
            Producer::Step { step, output } => {
                let output = &self.steps[step].binding.outputs[output];
                Ok(NamedOutput { name: output.name.clone(), is_default: output.is_default, array })
            }
            Producer::Input(_) | Producer::State { .. } => {
                Err(format!("{} is no output of a step", self.arrays[array].meta.name))
            }
        };
        let outputs = made.into_iter().map(named).collect::<Result<_, _>>()?;
        self.named.push(NamedStep { name: spec.name.clone(), op: spec.op, outputs });
        Ok(())
    }

    /// Adds the parts of a step; returns its outputs.
    fn add_parts(&mut self, name: &str, op: &'static str, composite: Composite, own: &[ArrayId]) -> Result<Vec<ArrayId>, String> {
        let mut made: Vec<Vec<ArrayId>> = Vec::new();
        let output = |made: &[Vec<ArrayId>], part: usize, output: usize| {
            let found = made.get(part).and_then(|outputs| outputs.get(output)).copied();
            found.ok_or_else(|| format!("part {part} of {name} has no output {output}"))
        };
        for part in composite.parts {
            let mut inputs = Vec::with_capacity(part.inputs.len());
            for input in part.inputs {
                inputs.push(match input {
                    PartInput::Own(at) => *own.get(at).ok_or_else(|| format!("{name} has no input {at}"))?,
                    PartInput::Of { part, output: at } => output(&made, part, at)?,
                });
            }
            let called = if part.title.is_empty() { name.to_owned() } else { format!("{name} ({})", part.title) };
            made.push(match part.work {
                PartWork::Once(binding) => {
                    // A state is what it is after the last pass.
                    let after = inputs.iter().filter_map(|&id| match self.arrays[id].producer {
                        Producer::State { of } => Some(self.loops[of].level + 1),
                        _ => None,
                    });
                    let level = after.max().unwrap_or(0);
                    self.add_step(&called, op, binding, inputs, level)?
                }
                PartWork::Repeated(passes) => vec![self.add_loop(name, &called, op, passes, inputs)?],
            });
        }
        composite.outputs.into_iter().map(|(part, at)| output(&made, part, at)).collect()
    }

    /// Adds a step at `level` or above, with its outputs; returns these.
    fn add_step(
        &mut self,
        name: &str,
        op: &'static str,
        binding: Binding,
        inputs: Vec<ArrayId>,
        level: usize,
    ) -> Result<Vec<ArrayId>, String> {
        check_binding(&binding, &inputs.iter().map(|&id| &self.arrays[id].meta).collect::<Vec<_>>())?;
        let level = inputs.iter().map(|&id| self.arrays[id].level).max().unwrap_or(0).max(level);
        let is_fold = matches!(binding.kind, Kind::Fold { .. });
        let mut outputs = Vec::new();
        for (at, output) in binding.outputs.iter().enumerate() {
            let reference = &self.arrays[inputs[binding.reference]].meta;
            let mut meta = ArrayMeta::plain(&format!("{name}.{}", output.name), &[], output.dtype);
            if binding.outputs.len() == 1 {
                meta.name = name.to_owned();
            }
            let (mut is_laid, mut has_open_length) = (false, false);
            for axis in &output.axes {
                let (len, chunk, name) = match axis {
                    OutAxis::Carried(a) => (reference.shape[*a], reference.chunk[*a], reference.dimension_names[*a].clone()),
                    OutAxis::New { len, name } => (*len, *len, name.clone()),
                    OutAxis::Laid { axis, length } => {
                        is_laid = true;
                        has_open_length |= length.depends_on_grid();
                        let (len, chunk) = match length {
                            LaidLength::Every(step) => (reference.shape[*axis] / step, reference.chunk[*axis] / step),
                            _ => (0, 0),
                        };
                        (len, chunk, reference.dimension_names[*axis].clone())
                    }
                };
                meta.shape.push(len);
                meta.chunk.push(chunk.max(1));
                meta.dimension_names.push(name);
            }
            meta.attributes = output.attributes.clone();
            if output.dtype != reference.dtype {
                drop_packing(&mut meta.attributes);
            }
            meta.missing = output.missing;
            meta.max_value = output.max_value;
            outputs.push(self.arrays.len());
            let producer = Producer::Step { step: self.steps.len(), output: at };
            self.arrays.push(GraphArray { meta, producer, level: level + usize::from(is_fold), is_laid, has_open_length });
        }
        self.steps.push(GraphStep { name: name.to_owned(), op, binding, inputs, outputs: outputs.clone(), level });
        Ok(outputs)
    }

    /// Adds passes that are repeated: the state, the fold whose result the control looks at, and the map before it where
    /// passes map their state. Returns the state.
    fn add_loop(
        &mut self,
        name: &str,
        called: &str,
        op: &'static str,
        passes: Passes,
        inputs: Vec<ArrayId>,
    ) -> Result<ArrayId, String> {
        let Passes { pass, next, control } = passes;
        let level = inputs.iter().map(|&id| self.arrays[id].level).max().unwrap_or(0);
        // Its place comes first: the step that makes it reads it, too.
        let state = self.arrays.len();
        let reference = inputs.get(pass.reference).ok_or_else(|| "a pass reads nothing but its state".to_owned())?;
        let meta = self.state_meta(&format!("{name} (state)"), &pass, &next, *reference)?;
        let producer = Producer::State { of: self.loops.len() };
        self.arrays.push(GraphArray { meta, producer, level, is_laid: false, has_open_length: false });
        let with_state: Vec<ArrayId> = inputs.into_iter().chain([state]).collect();
        let made = self.add_step(called, op, pass, with_state, level)?;
        let (next, fold_step, found) = match (next, &made[..]) {
            (NextState::Mapped, &[next, measures]) => {
                let fold_step = self.steps.len();
                let binding = crate::operators::sum::over_all_but_first(&self.arrays[measures].meta)?;
                let sums = self.add_step(&format!("{name} (sums)"), "sum", binding, vec![measures], level)?;
                (Some(next), fold_step, sums[0])
            }
            (NextState::Controlled(_), &[found]) => (None, self.steps.len() - 1, found),
            _ => return Err("a pass makes a state and measures, or one array that its state comes from".to_owned()),
        };
        self.loops.push(GraphLoop { name: name.to_owned(), state, next, fold_step, found, control, level });
        Ok(state)
    }

    /// The array that a state is kept in.
    fn state_meta(&self, name: &str, pass: &Binding, next: &NextState, reference: ArrayId) -> Result<ArrayMeta, String> {
        let mut meta = ArrayMeta::plain(name, &[], DType::F64);
        match next {
            NextState::Controlled(shape) => return Ok(ArrayMeta::plain(name, shape, DType::F64)),
            NextState::Mapped => {
                let reference = &self.arrays[reference].meta;
                let spec = pass.outputs.first().ok_or_else(|| "a pass makes no state".to_owned())?;
                meta.dtype = spec.dtype;
                for axis in &spec.axes {
                    let (len, chunk) = match axis {
                        OutAxis::Carried(a) => (reference.shape[*a], reference.chunk[*a]),
                        OutAxis::New { len, .. } => (*len, *len),
                        OutAxis::Laid { .. } => return Err("a state can't be laid side by side".to_owned()),
                    };
                    meta.shape.push(len);
                    meta.chunk.push(chunk.max(1));
                    meta.dimension_names.push(None);
                }
            }
        }
        Ok(meta)
    }

    /// The reference `from` of input `input`, as the operator wants it read.
    fn as_read(&self, job: &JobSpec, spec: &StepSpec, input: usize, from: &str) -> String {
        let (name, output) = match from.split_once('.') {
            Some((name, output)) => (name, Some(output)),
            None => (from, None),
        };
        let is_input = job.inputs.iter().any(|i| i.name == from);
        let step = self.named.iter().find(|s| s.name == name && !is_input);
        // A name that the step does not have stays, for the message that says so.
        let step = step.filter(|s| output.is_none_or(|o| s.outputs.iter().any(|out| out.name == o)));
        let Some(step) = step else { return from.to_owned() };
        let asked = spec.operator.asks(input, step.op, output).map(|ask| ask.output);
        let asked = asked.filter(|asked| step.outputs.iter().any(|o| o.name == *asked));
        match asked.or_else(|| spec.operator.reads(input, step.op, output).map(str::to_owned)) {
            Some(output) => format!("{name}.{output}"),
            None => from.to_owned(),
        }
    }

    fn one(&self, job: &JobSpec, from: &str) -> Result<ArrayId, String> {
        match self.resolve(job, from)?[..] {
            [id] => Ok(id),
            ref several => {
                let names: Vec<_> = several.iter().map(|&id| self.arrays[id].meta.name.clone()).collect();
                Err(format!("`{from}` has several outputs: name one of {}", names.join(", ")))
            }
        }
    }

    fn add_targets(&mut self, job: &JobSpec, inputs: &[InputArray], output: usize) -> Result<(), String> {
        let from = match (&job.outputs[output].from, job.steps.last()) {
            (Some(from), _) => from.clone(),
            (None, Some(step)) => step.name.clone(),
            (None, None) => job.inputs[0].name.clone(),
        };
        let ids = self.resolve(job, &from)?;
        if ids.is_empty() {
            return Err(format!("`{from}` has no default output: name one"));
        }
        let alone = ids.len() == 1;
        let is_file = is_npy(&job.outputs[output].path);
        if is_file && !alone {
            let names: Vec<&str> = ids.iter().map(|&id| self.arrays[id].meta.name.as_str()).collect();
            return Err(format!("a .npy file holds one array, `{from}` has several: say from = one of {}", names.join(", ")));
        }
        for id in ids {
            let array = &self.arrays[id];
            // An array that sat in a group with coordinates becomes a group with the same array name.
            let only = (job.inputs.len() == 1).then_some(0);
            let own = self.origin(id).map(|origin| origin.input).or(only).filter(|_| alone && !is_file);
            let member = match array.producer {
                Producer::Step { step, output } if !alone => Some(self.steps[step].binding.outputs[output].name.clone()),
                _ => own.and_then(|input| inputs[input].array_path()).map(str::to_owned),
            };
            self.targets.push(Target { output, array: id, member });
        }
        Ok(())
    }
}

/// What the steps after a step ask it for.
fn asks(job: &JobSpec, index: usize) -> Vec<Ask> {
    let step = &job.steps[index];
    let mut asks = Vec::new();
    for (at, later) in job.steps.iter().enumerate().skip(index + 1) {
        let own = later.inputs.iter().map(|input| input.from.as_str());
        let previous = (later.inputs.is_empty() && at == index + 1).then_some(step.name.as_str());
        for (input, from) in own.chain(previous).enumerate() {
            let (name, output) = from.split_once('.').map_or((from, None), |(name, output)| (name, Some(output)));
            if name == step.name && !job.inputs.iter().any(|i| i.name == from) {
                let ask = later.operator.asks(input, step.op, output);
                asks.extend(ask.filter(|ask| !asks.contains(ask)));
            }
        }
    }
    asks
}

/// What an operator promises must be consistent, whoever wrote it.
fn check_binding(binding: &Binding, inputs: &[&ArrayMeta]) -> Result<(), String> {
    for (input, bound) in inputs.iter().zip(&binding.inputs) {
        crate::array::boundary::constants(bound.rules(), input.dtype).map_err(|e| format!("input `{}`: {e}", input.name))?;
        for (axis, &(before, after)) in bound.depth.iter().enumerate() {
            let len = input.shape[axis];
            if before.max(after) > i32::MAX as u64 {
                return Err(format!("depth {} on axis {axis} is beyond any use", before.max(after)));
            }
            let asks = |side: usize, depth: u64| depth > 0 && bound.rules()[axis][side] != crate::array::Rule::None;
            if len == 0 && (asks(0, before) || asks(1, after)) {
                return Err(format!(
                    "axis {axis} of `{}` is empty: there is nothing to take its boundary cells from",
                    input.name
                ));
            }
        }
    }
    Ok(())
}
