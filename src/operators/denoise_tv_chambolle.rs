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
//! Costs about `ndim + 2` reads and `ndim + 1` writes of working memory per cell and iteration.

mod control;
mod kernel;

use std::sync::Arc;

use super::pointwise::{no_halo, only_input};
use super::{
    Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, MultiPass, Operator, OperatorError, OutAxis,
    OutputBinding, Padded, Param, StepInput, Workspace,
};
use crate::array::{Block, Buffer, DType, Region};
use crate::config::table::Table;
use control::Control;
use kernel::{Cells, Float, Tv};

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
    cost: "about 30 operations a cell and iteration, ndim + 2 reads and ndim + 1 writes of working memory; the halo is computed too",
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

    fn bind_passes(&self, inputs: &[StepInput], is_short: bool) -> Option<Result<MultiPass, String>> {
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
            MultiPass {
                pass: binding(input, image, Some((state, state)), outputs, pass),
                finish: binding(input, (0, 0), Some((1, 0)), vec![OutputBinding::like("image", dtype, &input.meta)], finish),
                control,
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
        let cells = core.iter().fold(1u64, |n, &len| n.saturating_mul(len + self.reach.0 + self.reach.1));
        let rank = self.shape.len() as u64;
        let longest = core.last().map_or(0, |&n| n + self.reach.0 + self.reach.1);
        let rows = (rank + 1).saturating_mul(longest + 16);
        (cells.saturating_mul(rank + 2))
            .saturating_add(rows)
            .saturating_mul(self.dtype.size() as u64)
            .saturating_add(64 * (rank + 4))
    }
}

impl Step {
    fn run<T: Float>(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let mut inputs = inputs.into_iter();
        let (image, state) = (inputs.next(), inputs.next());
        let Some(image) = image else { return Err(OperatorError::data("no image was given")) };
        let own = task.core;
        // Image and state have halos of their own: work in the box of both.
        let rank = self.shape.len();
        let around = |padded: &Padded, skip: usize| {
            Region::from_ranges(&(0..rank).map(|a| padded.region.axis(a + skip)).collect::<Vec<_>>())
        };
        let mut bounds = around(&image, 0);
        if let Some(state) = &state {
            let other = around(state, 1);
            for a in 0..rank {
                bounds.start[a] = bounds.start[a].min(other.start[a]);
                bounds.stop[a] = bounds.stop[a].max(other.stop[a]);
            }
        }
        let cells = bounds.count();
        let size = T::SIZE;
        let mut values = work.buffer(cells * size)?;
        let image_box = around(&image, 0);
        if let Some(at) = self.missing.as_ref().and_then(|missing| super::pointwise::find(&image.block, missing)) {
            let at = super::pointwise::place(&image.region, at);
            return Err(OperatorError::data(format!("{} holds its missing value at {at:?}; replace it first", self.name)));
        }
        kernel::load(&image.block, self.from, T::cells_mut(&mut values), &bounds, &image_box);
        drop(image);
        let mut out = work.buffer(cells * size)?;
        let mut p = work.buffer(rank * cells * size)?;
        match &state {
            None => p.fill(0),
            Some(state) => {
                let component = |a: usize| {
                    let mut one = state.region.clone();
                    (one.start[0], one.stop[0]) = (a as i64, a as i64 + 1);
                    let inner = around(state, 1);
                    let shape: Vec<usize> = inner.shape();
                    state.block.cut(&state.region, &one).with_shape(&shape).map(|block| (block, inner))
                };
                for a in 0..rank {
                    let found = component(a);
                    let Some((block, inner)) = found else {
                        return Err(OperatorError::data("the state has another shape than the image"));
                    };
                    let cells_of = &mut T::cells_mut(&mut p)[a * cells..(a + 1) * cells];
                    kernel::load(&block, self.dtype, cells_of, &bounds, &inner);
                }
            }
        }
        drop(state);
        let mut rows = work.buffer((rank + 1) * bounds.shape().last().copied().unwrap_or(1).next_multiple_of(16) * size)?;
        let mut tv = Tv {
            cells: Cells::new(&bounds, &self.shape),
            weight: self.weight,
            image: T::cells(&values),
            out: T::cells_mut(&mut out),
            p: T::cells_mut(&mut p),
            rows: T::cells_mut(&mut rows),
        };
        match &self.work {
            Work::All { updates } => {
                // At first `p` is 0 and the result so far is the image: no cell before the halo is looked at.
                tv.out.copy_from_slice(tv.image);
                for left in (0..*updates).rev() {
                    tv.update(&grown(own, (left + 1, left), &self.shape), None, left + 1 == *updates);
                }
                if *updates > 0 {
                    tv.divergence(own, None);
                }
                Ok(vec![Some(result::<T>(&out, &bounds, own, self.dtype, work)?)])
            }
            Work::Finish => {
                tv.divergence(own, None);
                Ok(vec![Some(result::<T>(&out, &bounds, own, self.dtype, work)?)])
            }
            Work::Pass(control) => {
                let updates = control.updates();
                let mut energies = if task.wanted[1] {
                    let mut buffer = work.buffer(PER_PASS as usize * own.count() * 8)?;
                    buffer.fill(0);
                    Some(buffer)
                } else {
                    None
                };
                for (n, left) in (0..updates).rev().enumerate() {
                    let part = energies.as_mut().map(|buffer| {
                        let count = own.count();
                        (own, &mut f64::cells_mut(buffer)[n * count..(n + 1) * count])
                    });
                    tv.update(&grown(own, (left, left), &self.shape), part, false);
                }
                let state = task.wanted[0].then(|| state_of::<T>(&p, &bounds, own, self.dtype, work)).transpose()?;
                let energies = energies.map(|buffer| {
                    let region = behind(own, PER_PASS as i64);
                    Computed { block: Block::new(buffer, DType::F64, region.shape()), region }
                });
                Ok(vec![state, energies])
            }
        }
    }
}

/// A box grown by (before, after) cells, inside the array.
fn grown(own: &Region, by: (u64, u64), shape: &[i64]) -> Region {
    let mut region = own.clone();
    for a in 0..own.rank() {
        region.start[a] = (own.start[a] - by.0 as i64).max(0);
        region.stop[a] = (own.stop[a] + by.1 as i64).min(shape[a]);
    }
    region
}

/// A box behind a first axis of length `len`.
fn behind(own: &Region, len: i64) -> Region {
    let ranges: Vec<(i64, i64)> = std::iter::once((0, len)).chain((0..own.rank()).map(|a| own.axis(a))).collect();
    Region::from_ranges(&ranges)
}

fn result<T: Float>(
    out: &Buffer,
    bounds: &Region,
    own: &Region,
    dtype: DType,
    work: &mut Workspace<'_>,
) -> Result<Computed, OperatorError> {
    let mut buffer = work.buffer(own.count() * T::SIZE)?;
    kernel::store(T::cells(out), bounds, T::cells_mut(&mut buffer), own);
    Ok(Computed { region: own.clone(), block: Block::new(buffer, dtype, own.shape()) })
}

fn state_of<T: Float>(
    p: &Buffer,
    bounds: &Region,
    own: &Region,
    dtype: DType,
    work: &mut Workspace<'_>,
) -> Result<Computed, OperatorError> {
    let (cells, count, rank) = (bounds.count(), own.count(), own.rank());
    let mut buffer = work.buffer(rank * count * T::SIZE)?;
    for a in 0..rank {
        let from = &T::cells(p)[a * cells..(a + 1) * cells];
        kernel::store(from, bounds, &mut T::cells_mut(&mut buffer)[a * count..(a + 1) * count], own);
    }
    let region = behind(own, rank as i64);
    Ok(Computed { block: Block::new(buffer, dtype, region.shape()), region })
}

#[cfg(test)]
mod tests;
