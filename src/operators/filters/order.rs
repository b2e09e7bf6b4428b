//! Smallest and largest values of windows, and what is made of them: erosion, dilation, opening, closing, top hats.
//!
//! Values are compared by their keys (see `sample`), so results are exact and do not depend on any order. A window that is
//! a box is taken axis by axis, by doubling: the extremum of 2, 4, 8, ... cells from that of half as many, and the last
//! step overlaps. Other windows compare all their cells. The second stage of an opening or closing works on the first
//! one's *array*: computed inside only, and extended by the boundary rule.

use super::super::{Binding, Computed, MapOperator, MapTask, Operator, OperatorError, Padded, StepInput, Workspace};
use super::chain::{Chain, Reach};
use super::frame::Frame;
use super::lines::{Combine, Keyed, tile_len};
use super::params::{Footprint, FootprintSpec};
use super::sample::{Sample, with_sample};
use super::window;
use crate::array::{Block, Buffer, DType, Region};
use crate::simd::{Vectored, vectored};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extreme {
    Smallest,
    Largest,
}

/// What a filter makes of extrema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipe {
    /// The extremum over the window as given.
    Plain(Extreme),
    Erosion,
    Dilation,
    Opening,
    Closing,
    /// The input less its opening.
    WhiteTophat,
    /// The closing less the input.
    BlackTophat,
    /// The dilation less the erosion.
    Gradient,
}

pub struct Order {
    pub op: &'static str,
    pub recipe: Recipe,
    pub footprint: FootprintSpec,
}

impl Operator for Order {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let frame = Frame::new(self.op, inputs, true)?;
        let footprint = self.footprint.expand(frame.rank())?;
        bind(frame, &inputs[0], footprint, self.recipe)
    }
}

/// The binding of a recipe over a footprint that is known.
pub fn bind(frame: Frame, input: &StepInput, footprint: Footprint, recipe: Recipe) -> Result<Binding, String> {
    let erosion = || Stage::new(&footprint, Extreme::Smallest);
    let dilation = || Stage::new(&footprint.mirrored(), Extreme::Largest);
    let stages = match recipe {
        Recipe::Plain(extreme) => vec![Stage::new(&footprint, extreme)],
        Recipe::Erosion => vec![erosion()],
        Recipe::Dilation => vec![dilation()],
        Recipe::Opening | Recipe::WhiteTophat => vec![erosion(), dilation()],
        Recipe::Closing | Recipe::BlackTophat => vec![dilation(), erosion()],
        Recipe::Gradient => vec![dilation(), erosion()],
    };
    let depth: Vec<u64> = (0..frame.rank())
        .map(|axis| {
            let depths = stages.iter().map(|s| s.depth[axis]);
            if recipe == Recipe::Gradient { depths.max().unwrap_or(0) } else { depths.sum() }
        })
        .collect();
    let map = OrderMap { frame: frame.clone(), stages, recipe, depth: depth.clone() };
    // Windows that are no boxes look into the block; passes along axes take what lies outside through the frame's maps.
    let wants_outside = map.stages.iter().any(|stage| stage.offsets.is_some());
    frame.bind(input, &depth, map, true, wants_outside)
}

/// One extremum over a window.
struct Stage {
    extreme: Extreme,
    depth: Vec<u64>,
    /// A box: one pass per axis on which it is longer than a cell.
    passes: Vec<Reach>,
    /// Anything else: its cells.
    offsets: Option<Vec<Vec<i64>>>,
}

impl Stage {
    fn new(footprint: &Footprint, extreme: Extreme) -> Self {
        let window = &footprint.window;
        let passes = (0..window.shape.len())
            .filter(|&axis| window.shape[axis] > 1)
            .map(|axis| Reach { axis, before: window.before(axis), after: window.after(axis) })
            .collect();
        let offsets = (!footprint.is_box()).then(|| footprint.offsets());
        Self { extreme, depth: window.reach(), passes, offsets }
    }
}

struct OrderMap {
    frame: Frame,
    /// One after the other; of a gradient, beside each other.
    stages: Vec<Stage>,
    recipe: Recipe,
    depth: Vec<u64>,
}

impl OrderMap {
    fn is_composed(&self) -> bool {
        self.stages.len() > 1 && self.recipe != Recipe::Gradient
    }

    /// Bytes of: the first stage's result, the same with its outside, the buffer between passes, a tile.
    fn sizes(&self, core: &[u64]) -> [u64; 4] {
        let elements = |shape: &[u64]| shape.iter().fold(1u64, |n, len| n.saturating_mul(*len));
        let size = self.frame.dtype.size() as u64;
        let (mut first, mut outside, mut between, mut tile) = (0, 0, 0u64, 0u64);
        let mut of_stage = |stage: &Stage, core: &[u64]| {
            let chain = Chain { frame: &self.frame, reaches: &stage.passes };
            between = between.max(chain.between_len(core));
            tile = tile.max(tile_len(chain.line_len(core), size as usize));
        };
        for (n, stage) in self.stages.iter().enumerate() {
            if n == 0 && self.is_composed() {
                let last = &self.stages[1];
                let grown = self.frame.grown_shape(core, &last.depth);
                first = elements(&grown);
                if last.offsets.is_some() {
                    let padded: Vec<u64> = core.iter().zip(&last.depth).map(|(n, d)| n.saturating_add(2 * d)).collect();
                    outside = elements(&padded);
                }
                of_stage(stage, &grown);
            } else {
                of_stage(stage, core);
            }
        }
        [first, outside, between, tile].map(|n| n.saturating_mul(size))
    }

    fn run<S: Sample>(
        &self,
        input: &Padded,
        core: &Region,
        out: &mut [S],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let (block, have) = self.frame.take(input, core, &self.depth)?;
        let [mut first, mut outside, mut between, mut tile] = super::buffers(work, self.sizes(&super::shape_of(core)))?;
        let inside = Source { block: &block, region: &have, padded: (&input.block, &input.region) };
        let scratch = &mut Scratch { between: &mut between, tile: &mut tile };
        let last = self.stages.len() - 1;
        if self.is_composed() {
            let middle = self.frame.grow(core, &self.stages[last].depth);
            let cells = middle.count();
            self.stage(&self.stages[0], &inside, &middle, (&mut first.as_mut_slice_of::<S>()[..cells], Combine::Set), scratch);
            // The buffer, which is a little longer, as the array that it holds.
            let padded = Region::new(
                (0..core.rank()).map(|a| core.start[a] - self.stages[last].depth[a] as i64),
                (0..core.rank()).map(|a| core.stop[a] + self.stages[last].depth[a] as i64),
            );
            if self.stages[last].offsets.is_some() {
                self.frame.extend(&first, &middle, &padded, &mut outside);
            }
            let dtype = self.frame.dtype;
            let first = Block::new(first, dtype, middle.shape());
            let outside = if outside.is_empty() { first.clone() } else { Block::new(outside, dtype, padded.shape()) };
            let source = Source { block: &first, region: &middle, padded: (&outside, &padded) };
            self.stage(&self.stages[last], &source, core, (&mut *out, Combine::Set), scratch);
        } else {
            self.stage(&self.stages[0], &inside, core, (&mut *out, Combine::Set), scratch);
            if last > 0 {
                self.stage(&self.stages[last], &inside, core, (&mut *out, Combine::Subtract), scratch);
            }
        }
        let combine = match self.recipe {
            Recipe::WhiteTophat => Some(Combine::SubtractFrom),
            Recipe::BlackTophat => Some(Combine::Subtract),
            _ => None,
        };
        if let Some(combine) = combine {
            let itself = Stage { extreme: Extreme::Smallest, depth: Vec::new(), passes: Vec::new(), offsets: None };
            self.stage(&itself, &inside, core, (&mut *out, combine), scratch);
        }
        if self.frame.dtype == DType::Bool && (combine.is_some() || self.recipe == Recipe::Gradient) {
            // The difference of truths is whether they differ.
            bytemuck::cast_slice_mut::<S, u8>(out).iter_mut().for_each(|cell| *cell &= 1);
        }
        Ok(())
    }

    fn stage<S: Sample>(
        &self,
        stage: &Stage,
        source: &Source<'_>,
        core: &Region,
        (out, combine): (&mut [S], Combine),
        scratch: &mut Scratch<'_>,
    ) {
        if let Some(offsets) = &stage.offsets {
            let (block, region) = source.padded;
            return window::extremum(block, region, core, offsets, stage.extreme, out, combine);
        }
        let chain = Chain { frame: &self.frame, reaches: &stage.passes };
        let (between, tile) =
            (scratch.between.as_mut_slice_of::<S>(), bytemuck::cast_slice_mut::<u8, Keyed<S::Key>>(scratch.tile));
        chain.run(
            (source.block, source.region),
            core,
            (out, combine),
            between,
            tile,
            &mut |n: usize, tile: &mut [Keyed<S::Key>], step, count| {
                let size = stage.passes[n].before + stage.passes[n].after + 1;
                match stage.extreme {
                    Extreme::Smallest => vectored(Doubling::<_, false> { tile, step, count, size }),
                    Extreme::Largest => vectored(Doubling::<_, true> { tile, step, count, size }),
                }
            },
        );
    }
}

/// What a stage reads: the cells inside the array, and the same with those outside for windows that are no box.
struct Source<'a> {
    block: &'a Block,
    region: &'a Region,
    padded: (&'a Block, &'a Region),
}

struct Scratch<'a> {
    between: &'a mut Buffer,
    tile: &'a mut Buffer,
}

struct Doubling<'a, K, const LARGEST: bool> {
    tile: &'a mut [K],
    step: usize,
    count: usize,
    size: usize,
}

impl<K: Ord + Copy, const LARGEST: bool> Vectored for Doubling<'_, K, LARGEST> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { tile, step, count, size } = self;
        let mut length = 1;
        while 2 * length <= size {
            let reach = tile.len() - (2 * length - 1) * step;
            merge::<K, LARGEST>(tile, length * step, reach);
            length *= 2;
        }
        if length < size {
            merge::<K, LARGEST>(tile, (size - length) * step, count);
        }
    }
}

/// `tile[i]` becomes the extremum of itself and `tile[i + distance]`, for the first `count` cells.
#[inline(always)]
fn merge<K: Ord + Copy, const LARGEST: bool>(tile: &mut [K], distance: usize, count: usize) {
    const STRIPE: usize = 32;
    let pick = |a: K, b: K| if (a < b) != LARGEST { a } else { b };
    let mut at = 0;
    while at + STRIPE <= count {
        let (mut own, mut other) = ([tile[at]; STRIPE], [tile[at]; STRIPE]);
        own.copy_from_slice(&tile[at..][..STRIPE]);
        other.copy_from_slice(&tile[at + distance..][..STRIPE]);
        for l in 0..STRIPE {
            own[l] = pick(own[l], other[l]);
        }
        tile[at..][..STRIPE].copy_from_slice(&own);
        at += STRIPE;
    }
    for i in at..count {
        tile[i] = pick(tile[i], tile[i + distance]);
    }
}

impl MapOperator for OrderMap {
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
            |input, region, out, work| with_sample!(self.frame.dtype, S => self.run::<S>(input, region, out.as_mut_slice_of(), work)),
        )
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        super::buffer_bytes(&self.sizes(core))
    }
}
