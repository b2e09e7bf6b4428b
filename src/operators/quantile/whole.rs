//! Quantiles in one pass: the reduced axes are whole in every block, so each result selects among its own elements.
//!
//! Elements are gathered tile by tile into scratch of about [`TILE`] bytes, one row of ranks per result; a row is
//! partitioned at each sought place in turn (sorted, when it is short). Costs one gather and about two to three looks at
//! each element.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Asked;
use super::rule::Finish;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{Block, Scalar};
use crate::operators::reduce::element::Real;
use crate::operators::reduce::walk::{Take, walk};
use crate::operators::reduce::{places, refuse_missing};
use crate::operators::{Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, Padded, Workspace};

/// Ranks gathered at once: what stays in the second cache.
const TILE: u64 = 256 << 10;
/// Below it a row is sorted.
const SHORT: usize = 32;

pub fn bind<T: Real + 'static>(asked: Asked<'_>) -> Binding {
    let rank = asked.of.meta.rank();
    let map = Whole::<T> {
        name: asked.of.meta.name.clone(),
        guard: asked.of.guard,
        ignore: asked.of.ignored(),
        places: places(&asked.of.meta.shape, &asked.of.axes),
        axes: asked.of.axes.clone(),
        count: asked.of.count() as usize,
        finish: asked.finish,
    };
    Binding {
        reference: 0,
        inputs: vec![InputBinding::plain(rank)],
        outputs: vec![asked.output],
        whole: asked.of.axes,
        kind: Kind::Map(Arc::new(map)),
        is_exact: true,
        child_bytes: 0,
    }
}

struct Whole<T> {
    /// The input, for messages.
    name: String,
    guard: Option<Scalar>,
    ignore: Option<T>,
    /// Where an element stands among those of its result, per axis.
    places: Vec<u64>,
    /// Reduced.
    axes: Vec<usize>,
    /// Elements of one result.
    count: usize,
    finish: Finish,
}

/// Rows of ranks, one per result.
struct Gather<T> {
    count: usize,
    element: std::marker::PhantomData<fn() -> T>,
}

/// NaNs stand together at the end.
fn rank<T: Real>(value: T) -> T::Rank {
    if T::HAS_NAN && value.is_nan() { T::TOP } else { value.rank() }
}

impl<T: Real> Take for Gather<T> {
    type Element = T;
    type State = T::Rank;

    fn width(&self) -> usize {
        self.count
    }

    fn run(&self, values: &[T], at: u64, cell: &mut [T::Rank]) {
        cell[at as usize..].iter_mut().zip(values).for_each(|(rank_of, value)| *rank_of = rank(*value));
    }

    fn each(&self, values: &[T], at: u64, cells: &mut [T::Rank]) {
        cells.chunks_exact_mut(self.count).zip(values).for_each(|(cell, value)| cell[at as usize] = rank(*value));
    }
}

impl<T: Real> Whole<T> {
    /// Results gathered at once.
    fn tile(&self) -> usize {
        (TILE / (self.count as u64 * size_of::<T>() as u64).max(1)).max(1) as usize
    }

    /// The quantiles of one row of ranks, the `i`-th to `put(i)`.
    fn select(&self, row: &mut [T::Rank], mut put: impl FnMut(usize, &[u8])) -> Result<(), OperatorError> {
        let mut len = row.len();
        if let Some(ignored) = self.ignore {
            len = 0;
            for at in 0..row.len() {
                if !T::unrank(row[at]).is(ignored) {
                    row[len] = row[at];
                    len += 1;
                }
            }
        }
        let has_nan = T::HAS_NAN && row[..len].contains(&T::TOP);
        let row = &mut row[..if has_nan { 0 } else { len }];
        if row.len() <= SHORT {
            row.sort_unstable();
        } else {
            // Behind a place everything is at least as large: each place is sought among what is left.
            let mut done = 0;
            for place in self.finish.quantiles.ranks(row.len() as u64) {
                let place = place as usize;
                if place >= done {
                    row[done..].select_nth_unstable(place - done);
                    done = place + 1;
                }
            }
        }
        let mut value = [0u8; 8];
        let value = &mut value[..self.finish.to.size()];
        for i in 0..self.finish.quantiles.q.len() {
            self.finish.write(i, row.len() as u64, has_nan, |place| T::unrank(row[place as usize]), value)?;
            put(i, value);
        }
        Ok(())
    }
}

impl<T: Real + 'static> MapOperator for Whole<T> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let input = inputs.first().ok_or_else(|| OperatorError::data("no input was given"))?;
        refuse_missing(&self.name, &self.guard, input)?;
        let (region, size) = (&task.outputs[0], self.finish.to.size());
        let mut out = work.buffer(region.count() * size)?;
        let most = self.tile();
        let mut ranks = work.buffer(most * self.count * size_of::<T>())?;
        let ranks = ranks.as_mut_slice_of::<T::Rank>();
        let gather = Gather::<T> { count: self.count, element: std::marker::PhantomData };
        let block = &input.block;
        let cells = region.count() / self.finish.quantiles.q.len();
        let mut first = 0;
        for tile in tiles(block, &self.axes, most) {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            let count = tile.count() / self.count;
            let rows = &mut ranks[..count * self.count];
            walk(&gather, &tile, &vec![0; tile.shape().len()], &self.axes, &self.places, rows);
            for (cell, row) in rows.chunks_exact_mut(self.count).enumerate() {
                self.select(row, |i, value| {
                    let at = (i * cells + first + cell) * size;
                    out[at..at + size].copy_from_slice(value);
                })?;
            }
            first += count;
        }
        Ok(vec![Some(Computed { block: Block::new(out, self.finish.to, region.shape()), region: region.clone() })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        capacity_for(self.tile() * self.count * size_of::<T>()) as u64
    }
}

/// The block in tiles of at most `most` kept cells, in C order of these: trailing kept axes whole, then a part of one.
fn tiles(block: &Block, axes: &[usize], most: usize) -> impl Iterator<Item = Block> {
    let shape = block.shape().to_vec();
    let mut steps = shape.clone();
    let mut left = most;
    for axis in (0..shape.len()).rev().filter(|a| !axes.contains(a)) {
        steps[axis] = shape[axis].min(left).max(1);
        left = if steps[axis] < shape[axis] { 1 } else { left / steps[axis] };
    }
    let mut next = (block.count() > 0).then(|| vec![0; shape.len()]);
    std::iter::from_fn(move || {
        let start = next.take()?;
        let stop: Vec<usize> = (0..shape.len()).map(|a| (start[a] + steps[a]).min(shape[a])).collect();
        let mut following = start.clone();
        for axis in (0..shape.len()).rev() {
            if stop[axis] < shape[axis] {
                following[axis] = stop[axis];
                next = Some(following);
                break;
            }
            following[axis] = 0;
        }
        Some(block.view(&start, &stop))
    })
}
