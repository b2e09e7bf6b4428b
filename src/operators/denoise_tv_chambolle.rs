//! Total-variation denoising by Chambolle's projection, as `skimage.restoration.denoise_tv_chambolle`.
//!
//! Source: A. Chambolle, "An algorithm for total variation minimization and applications", J. Math. Imaging Vision 20
//! (2004) 89-97, in scikit-image's form: `p` (one component per axis) starts at 0; each iteration makes
//! `out = image - div p`, `g = grad out`, `p = (p - tau g) / (1 + tau/weight |g|)` with `tau = 1 / (2 ndim)`. All of it in
//! the image's float dtype and in scikit-image's order of operations, so that results are equal bit for bit while both run
//! the same number of iterations.
//!
//! - `eps = 0`: always `max_num_iter` iterations, in one pass with a halo of that many cells; where memory does not hold
//!   such blocks, in several passes with the state `p` kept between them.
//! - `eps > 0`: scikit-image stops on the change of an energy summed over the whole array. Passes of [`PER_PASS`]
//!   iterations each, `p` kept between them (`ndim` times the image, twice, in memory or `engine.scratch`). A pass that
//!   went beyond the iteration at which to stop is made again up to it.
//!
//! Costs a root and `ndim` divisions per cell and iteration, which is what takes the time: all iterations follow each other
//! through the cache (`fields`), and a row stays in registers from its loads to its stores (`kernel`). Working memory is
//! `ndim + 2` fields of a few slabs more than there are iterations.

mod control;
mod fields;
mod kernel;
mod load;
mod walk;

use std::sync::Arc;

use super::pointwise::{no_halo, only_input};
use super::{
    Binding, Composite, Computed, Info, InputBinding, Kind, MapOperator, MapTask, NextState, Operator, OperatorError, OutAxis,
    OutputBinding, Padded, Param, Part, PartInput, Passes, StepInput, Workspace,
};
use crate::array::block::c_strides;
use crate::array::{Block, Buffer, DType, Region};
use crate::config::table::Table;
use control::Control;
use fields::{Fields, Order, each_row};
use load::{Float, load};
use walk::{Ends, Memory, Walk};

/// Iterations of one pass. More would read and write the state less often and compute more halo.
pub const PER_PASS: u64 = 4;

pub static INFO: Info = Info {
    name: "denoise_tv_chambolle",
    summary: "total-variation denoising (Chambolle), as scikit-image",
    kind: "map, or several passes when eps > 0",
    inputs: "one array, any real dtype; integers are scaled to [0, 1] or [-1, 1] as skimage.util.img_as_float does",
    outputs: "float32 for float16 and float32, else float64",
    halo: "max_num_iter - 1 on each side when eps = 0; 4 in each pass when eps > 0",
    boundary: "none (gradients end at the array's edge)",
    devices: "cpu",
    cost: "about 30 operations a cell and iteration, of which the root and ndim divisions count; working memory of ndim + 2 times as many slabs as iterations; the halo is computed too",
    source: "A. Chambolle, An algorithm for total variation minimization and applications, J. Math. Imaging Vision 20 (2004), in scikit-image's form",
    params: &[
        Param {
            name: "weight",
            kind: "number > 0",
            default: "0.1",
            doc: "denoising weight: the larger, the smoother and the less like the input",
        },
        Param {
            name: "eps",
            kind: "number >= 0",
            default: "0.0002",
            doc: "stop when the energy changes by less than eps times the first energy; 0: never, which needs one pass only",
        },
        Param { name: "max_num_iter", kind: "int >= 1", default: "200", doc: "most iterations" },
    ],
    build,
};

/// More would be years of computing; a slip of the keyboard, and each costs a cell of halo.
const MOST_ITERATIONS: u64 = 1_000_000;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let weight = table.number("weight").unwrap_or(0.1);
    let eps = table.number("eps").unwrap_or(2e-4);
    let iterations = table.count("max_num_iter").unwrap_or(200);
    if !(weight > 0.0 && weight.is_finite()) {
        table.problem("weight", format!("expected a number above 0, found {weight}"));
    }
    if !(eps >= 0.0 && eps.is_finite()) {
        table.problem("eps", format!("expected a number of at least 0, found {eps}"));
    }
    if !(1..=MOST_ITERATIONS).contains(&iterations) {
        table.problem("max_num_iter", format!("expected a count from 1 to {MOST_ITERATIONS}, found {iterations}"));
    }
    Some(Box::new(Denoise { weight, eps, updates: iterations.clamp(1, MOST_ITERATIONS) - 1 }))
}

struct Denoise {
    weight: f64,
    eps: f64,
    /// Updates of `p` that show in the result: the last iteration's does not.
    updates: u64,
}

impl Denoise {
    /// The one input, and the dtype that all is computed in.
    fn input<'a>(&self, inputs: &'a [StepInput]) -> Result<(&'a StepInput, DType), String> {
        let input = only_input("denoise_tv_chambolle", inputs)?;
        no_halo("denoise_tv_chambolle", input)?;
        let meta = &input.meta;
        if meta.rank() == 0 {
            return Err(format!("{} has no axes: there is nothing to smooth along", meta.name));
        }
        match meta.dtype {
            d if d.is_complex() => Err(format!("{} is {d}: take its amplitude or its parts first", meta.name)),
            DType::F16 | DType::F32 => Ok((input, DType::F32)),
            _ => Ok((input, DType::F64)),
        }
    }

    fn step(&self, input: &StepInput, dtype: DType, work: Work, image_depth: (u64, u64), state_depth: Option<u64>) -> Step {
        let meta = &input.meta;
        Step {
            from: meta.dtype,
            dtype,
            shape: meta.shape.iter().map(|&n| n as i64).collect(),
            weight: self.weight,
            missing: meta.missing,
            name: meta.name.clone(),
            reach: (image_depth.0.max(state_depth.unwrap_or(0)), image_depth.1.max(state_depth.unwrap_or(0))),
            work,
        }
    }
}

/// A step's binding: image, and the state when there is one.
fn binding(input: &StepInput, image: (u64, u64), state: Option<(u64, u64)>, outputs: Vec<OutputBinding>, step: Step) -> Binding {
    let rank = input.meta.rank();
    let mut inputs = vec![InputBinding { depth: vec![image; rank], ..InputBinding::plain(rank) }];
    if let Some(depth) = state {
        let mut bound = InputBinding::plain(rank + 1);
        bound.axes = std::iter::once(None).chain((0..rank).map(Some)).collect();
        bound.depth = std::iter::once((0, 0)).chain(vec![depth; rank]).collect();
        inputs.push(bound);
    }
    Binding { reference: 0, inputs, outputs, whole: Vec::new(), kind: Kind::Map(Arc::new(step)), is_exact: false, child_bytes: 0 }
}

/// An output of the image's shape behind a new axis.
fn stacked(name: &str, dtype: DType, len: u64, input: &StepInput) -> OutputBinding {
    let mut output = OutputBinding::like(name, dtype, &input.meta);
    output.axes.insert(0, OutAxis::New { len, name: None });
    output.attributes = Default::default();
    output
}

impl Operator for Denoise {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let (input, dtype) = self.input(inputs)?;
        let depth = (self.updates, self.updates);
        let step = self.step(input, dtype, Work::All { updates: self.updates }, depth, None);
        Ok(binding(input, depth, None, vec![OutputBinding::like("image", dtype, &input.meta)], step))
    }

    fn bind_parts(&self, inputs: &[StepInput], is_short: bool) -> Option<Result<Composite, String>> {
        if self.updates == 0 || (self.eps == 0.0 && !(is_short && self.updates > PER_PASS)) {
            return None;
        }
        Some(self.input(inputs).map(|(input, dtype)| {
            let rank = input.meta.rank() as u64;
            let cells = input.meta.shape.iter().map(|&n| n as f64).product();
            let control = Arc::new(Control::new(self.eps, self.updates, PER_PASS, cells));
            let (image, state) = ((PER_PASS - 1, PER_PASS), PER_PASS);
            let pass = self.step(input, dtype, Work::Pass(control.clone()), image, Some(state));
            let outputs = vec![stacked("state", dtype, rank, input), stacked("energy", DType::F64, PER_PASS, input)];
            let finish = self.step(input, dtype, Work::Finish, (0, 0), Some(1));
            let pass = binding(input, image, Some((state, state)), outputs, pass);
            let image = vec![OutputBinding::like("image", dtype, &input.meta)];
            let finish = binding(input, (0, 0), Some((1, 0)), image, finish);
            Composite {
                parts: vec![
                    Part::repeated("pass", vec![PartInput::Own(0)], Passes { pass, next: NextState::Mapped, control }),
                    Part::once("", vec![PartInput::Own(0), PartInput::Of { part: 0, output: 0 }], finish),
                ],
                outputs: vec![(1, 0)],
            }
        }))
    }
}

/// Which part of the algorithm a step is.
enum Work {
    /// Everything, from `p = 0`.
    All { updates: u64 },
    /// A few updates of the state, and their energies.
    Pass(Arc<Control>),
    /// The image from the last state.
    Finish,
}

struct Step {
    name: String,
    from: DType,
    dtype: DType,
    shape: Vec<i64>,
    weight: f64,
    missing: Option<crate::array::Scalar>,
    /// Most cells needed before and after a core on each axis.
    reach: (u64, u64),
    work: Work,
}

impl MapOperator for Step {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        match self.dtype {
            DType::F32 => self.run::<f32>(inputs, task, work),
            _ => self.run::<f64>(inputs, task, work),
        }
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        let shape = self.with_halo(core);
        self.sizes(&self.order(&shape), &shape).iter().fold(0, |n: u64, bytes| n.saturating_add(*bytes))
    }
}

impl Step {
    /// Iterations that one block makes, at most.
    fn updates(&self) -> u64 {
        match &self.work {
            Work::All { updates } => *updates,
            Work::Pass(_) => PER_PASS,
            Work::Finish => 0,
        }
    }

    /// The largest box that a core of this shape is computed in.
    fn with_halo(&self, core: &[u64]) -> Vec<u64> {
        core.iter().map(|len| len.saturating_add(self.reach.0).saturating_add(self.reach.1)).collect()
    }

    fn order(&self, shape: &[u64]) -> Order {
        Order::of(shape, self.updates(), (shape.len() as u64 + 2).saturating_mul(self.dtype.size() as u64))
    }

    /// Bytes of image, result, state, and a row.
    fn sizes(&self, order: &Order, shape: &[u64]) -> [u64; 4] {
        let (rank, size) = (shape.len() as u64, self.dtype.size() as u64);
        let field = order.cells(shape).saturating_mul(size);
        let row = shape.last().copied().unwrap_or(1).saturating_add(rank + 64).saturating_mul(size);
        let whole = |bytes: u64| bytes.checked_next_multiple_of(64).unwrap_or(u64::MAX);
        [whole(field), whole(field), whole(field.saturating_mul(rank)), whole(row)]
    }

    fn run<T: Float>(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let mut inputs = inputs.into_iter();
        let (Some(image), state) = (inputs.next(), inputs.next()) else {
            return Err(OperatorError::data("no image was given"));
        };
        let own = task.core;
        let rank = self.shape.len();
        let image = Given { bounds: inner(&image.region, 0), block: image.block };
        if let Some(at) = self.missing.as_ref().and_then(|missing| super::pointwise::find(&image.block, missing)) {
            let at = super::pointwise::place(&image.bounds, at);
            return Err(OperatorError::data(format!("{} holds its missing value at {at:?}; replace it first", self.name)));
        }
        let mut state = state.map(|state| Given { bounds: inner(&state.region, 1), block: state.block });
        // Image and state have halos of their own: work in the box of both.
        let mut bounds = image.bounds.clone();
        if let Some(state) = &mut state {
            if state.block.shape().first() != Some(&rank) {
                return Err(OperatorError::data("the state has another shape than the image"));
            }
            for a in 0..rank {
                bounds.start[a] = bounds.start[a].min(state.bounds.start[a]);
                bounds.stop[a] = bounds.stop[a].max(state.bounds.stop[a]);
            }
        }
        let (updates, is_result) = match &self.work {
            Work::All { updates: 0 } => {
                let mut buffer = work.buffer(own.count() * T::SIZE)?;
                let strides: Vec<usize> = c_strides(&own.shape(), 1).iter().map(|&s| s as usize).collect();
                load(&image.block.cut(&image.bounds, own), self.from, T::cells_mut(&mut buffer), 0, &strides);
                return Ok(vec![Some(Computed { region: own.clone(), block: Block::new(buffer, self.dtype, own.shape()) })]);
            }
            Work::All { updates } => (*updates, true),
            Work::Pass(control) => (control.updates(), false),
            Work::Finish => (0, true),
        };
        let shape: Vec<u64> = bounds.shape().iter().map(|&n| n as u64).collect();
        let order = self.order(&shape);
        let [mut values, mut out, mut p, mut spare] = {
            // As the plan counts it, though the array may end within the halo: one size for all blocks is used again by each.
            let most = self.with_halo(&own.shape().iter().map(|&n| n as u64).collect::<Vec<_>>());
            let mut taken = Vec::with_capacity(4);
            for bytes in self.sizes(&self.order(&most), &most) {
                taken.push(work.buffer(usize::try_from(bytes).unwrap_or(usize::MAX))?);
            }
            <[Buffer; 4]>::try_from(taken).map_err(|_| OperatorError::data("working memory came in the wrong number of parts"))?
        };
        let components = if is_result { 1 } else { rank };
        let wants_first = task.wanted[0];
        let mut found = work.buffer(if wants_first { components * own.count() * T::SIZE } else { 0 })?;
        let mut energies = match &self.work {
            Work::Pass(_) if task.wanted[1] => {
                let mut buffer = work.buffer(PER_PASS as usize * own.count() * 8)?;
                // Iterations that are not made have none.
                f64::cells_mut(&mut buffer)[updates as usize * own.count()..].fill(0.0);
                Some(buffer)
            }
            _ => None,
        };
        let fields = Fields::new(&bounds, &order);
        let walk = Walk {
            order: &order,
            fields: &fields,
            shape: &self.shape,
            weight: self.weight,
            memory: Memory {
                image: T::cells_mut(&mut values),
                out: T::cells_mut(&mut out),
                p: T::cells_mut(&mut p),
                spare: T::cells_mut(&mut spare),
            },
            own,
            is_result,
            updates,
            is_fresh: state.is_none(),
            energies: energies.as_mut().map(|buffer| (own, f64::cells_mut(buffer))),
        };
        walk.run(&mut Files {
            step: self,
            own,
            image: &image,
            state: state.as_ref(),
            found: T::cells_mut(&mut found),
            is_result,
        });
        let region = if is_result { own.clone() } else { behind(own, rank as i64) };
        let mut results = vec![wants_first.then(|| Computed { block: Block::new(found, self.dtype, region.shape()), region })];
        if !is_result {
            results.push(energies.map(|buffer| {
                let region = behind(own, PER_PASS as i64);
                Computed { block: Block::new(buffer, DType::F64, region.shape()), region }
            }));
        }
        Ok(results)
    }
}

/// A block and the box that it covers, without the axis of components.
struct Given {
    block: Block,
    bounds: Region,
}

/// The blocks that a walk reads, and the cells of its first output.
struct Files<'f, T> {
    step: &'f Step,
    own: &'f Region,
    image: &'f Given,
    state: Option<&'f Given>,
    found: &'f mut [T],
    is_result: bool,
}

impl<T: Float> Ends<T> for Files<'_, T> {
    fn load(&mut self, part: &Region, fields: &Fields, image: &mut [T], p: &mut [T]) {
        let here = self.image.bounds.intersect(part);
        if !here.is_empty() {
            let block = self.image.block.cut(&self.image.bounds, &here);
            load(&block, self.step.from, image, fields.at(&here.start), &fields.strides);
        }
        let Some(state) = self.state else { return };
        let here = state.bounds.intersect(part);
        if !here.is_empty() {
            let rank = here.rank() as i64;
            let block = state.block.cut(&behind(&state.bounds, rank), &behind(&here, rank));
            let strides: Vec<usize> = std::iter::once(fields.cells).chain(fields.strides.iter().copied()).collect();
            load(&block, self.step.dtype, p, fields.at(&here.start), &strides);
        }
    }

    fn store(&mut self, part: &Region, fields: &Fields, out: &[T], p: &[T]) {
        let here = self.own.intersect(part);
        if self.found.is_empty() {
            return;
        }
        let (cells, components) = if self.is_result { (out, 1) } else { (p, here.rank()) };
        let strides = c_strides(&self.own.shape(), 1);
        let len = here.len(here.rank() - 1);
        let count = self.own.count();
        each_row(&here, &mut Vec::new(), |place| {
            let from = fields.at(place);
            let to: isize = place.iter().zip(&self.own.start).zip(&strides).map(|((p, o), s)| (p - o) as isize * s).sum();
            for a in 0..components {
                let to = a * count + to as usize;
                self.found[to..to + len].copy_from_slice(&cells[a * fields.cells + from..][..len]);
            }
        });
    }
}

/// The box of a padded input, its first `skip` axes left out.
fn inner(region: &Region, skip: usize) -> Region {
    Region::from_ranges(&(skip..region.rank()).map(|a| region.axis(a)).collect::<Vec<_>>())
}

/// A box behind a first axis of length `len`.
fn behind(own: &Region, len: i64) -> Region {
    let ranges: Vec<(i64, i64)> = std::iter::once((0, len)).chain((0..own.rank()).map(|a| own.axis(a))).collect();
    Region::from_ranges(&ranges)
}

#[cfg(test)]
mod tests;
