//! One pass over the table: a fold whose leaves look for what the state asks for.

use std::marker::PhantomData;
use std::sync::Arc;

use super::layout::{Finding, Found, Sizes, Stage, State};
use super::nearest::{ROWS, nearest};
use crate::array::Block;
use crate::operators::pointwise::{place, show};
use crate::operators::reduce::element::Real;
use crate::operators::{FoldOperator, OperatorError, Padded};
use crate::random::Key;

pub struct Pass<T> {
    /// The table, for messages.
    pub name: String,
    pub sizes: Sizes,
    /// Rows to gather first, sorted, each with its place among the clusters.
    pub gathered: Arc<[(u64, usize)]>,
    pub key: Key,
    pub element: PhantomData<fn() -> T>,
}

/// The rows of a block as doubles, [`ROWS`] at a time.
pub struct Tiles<'a> {
    block: &'a Block,
    features: usize,
    next: usize,
}

impl<'a> Tiles<'a> {
    pub fn of(block: &'a Block) -> Self {
        Self { block, features: block.shape()[1], next: 0 }
    }

    /// Loads the next rows into `tile`; the first of them and how many they are.
    pub fn load<T: Real>(&mut self, tile: &mut [f64]) -> Option<(usize, usize)> {
        let first = self.next;
        let count = ROWS.min(self.block.shape()[0].saturating_sub(first));
        if count == 0 {
            return None;
        }
        let ((data, offset), strides, size) = (self.block.raw(), self.block.strides(), size_of::<T>());
        for (row, out) in (first..).zip(tile.chunks_exact_mut(self.features)).take(count) {
            let begin = offset + row as isize * strides[0];
            if strides[1] == size as isize {
                let values: &[T] = bytemuck::cast_slice(&data[begin as usize..begin as usize + self.features * size]);
                out.iter_mut().zip(values).for_each(|(to, value)| *to = value.wide());
                continue;
            }
            for (feature, to) in out.iter_mut().enumerate() {
                let at = (begin + feature as isize * strides[1]) as usize;
                *to = bytemuck::pod_read_unaligned::<T>(&data[at..at + size]).wide();
            }
        }
        self.next += count;
        Some((first, count))
    }
}

/// The state as every block gets it: whole, in one piece.
pub fn state(given: &Padded) -> Result<State<'_>, OperatorError> {
    let words = given.block.values::<f64>().ok_or_else(|| OperatorError::data("the state came in several pieces"))?;
    Ok(State(words))
}

impl<T: Real> Pass<T> {
    /// Picks the rows to begin with, takes the moments of the features, and refuses what has no distance.
    fn gather(&self, table: &Padded, found: &mut Finding<'_>, tile: &mut [f64]) -> Result<(), OperatorError> {
        let (begin, d) = (table.region.start[0] as u64, self.sizes.features);
        let rows = table.block.shape()[0];
        let mut tiles = Tiles::of(&table.block);
        let mut next = self.gathered.partition_point(|(row, _)| *row < begin);
        while let Some((first, count)) = tiles.load::<T>(tile) {
            if let Some(at) = tile[..count * d].iter().position(|v| !v.is_finite()) {
                let at = first * d + at;
                return Err(OperatorError::data(format!(
                    "{} holds {} at {:?}: such a row is near to nothing; leave it out or fill it first",
                    self.name,
                    show(&table.block, at),
                    place(&table.region, at)
                )));
            }
            let (_, means, _) = found.moments();
            tile[..count * d].chunks_exact(d).for_each(|row| row.iter().zip(&mut *means).for_each(|(v, sum)| *sum += v));
            while let Some((row, cluster)) = self.gathered.get(next).filter(|(row, _)| row - begin < (first + count) as u64) {
                let at = (row - begin) as usize - first;
                found.pick(*cluster as f64, *row, &tile[at * d..(at + 1) * d]);
                next += 1;
            }
        }
        let (n, means, squares) = found.moments();
        *n = rows as f64;
        means.iter_mut().for_each(|sum| *sum /= rows as f64);
        let mut tiles = Tiles::of(&table.block);
        while let Some((_, count)) = tiles.load::<T>(tile) {
            for row in tile[..count * d].chunks_exact(d) {
                for ((value, mean), square) in row.iter().zip(&*means).zip(&mut *squares) {
                    *square += (value - mean) * (value - mean);
                }
            }
        }
        Ok(())
    }
}

/// Chan, Golub and LeVeque's update of each feature: `other` joins `into`.
fn merge_moments(into: &mut Finding<'_>, other: &Found<'_>) {
    let (m, other_means, other_squares) = other.moments();
    let (n, means, squares) = into.moments();
    let count = *n + m;
    let share = m / count;
    for (((mean, square), other_mean), other_square) in means.iter_mut().zip(squares).zip(other_means).zip(other_squares) {
        let delta = other_mean - *mean;
        *mean += delta * share;
        *square += other_square + delta * delta * (*n * share);
    }
    *n = count;
}

fn add(into: &mut [f64], other: &[f64]) {
    into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
}

impl<T: Real + 'static> FoldOperator for Pass<T> {
    fn state_bytes(&self) -> usize {
        8 * self.sizes.found_len()
    }

    fn is_order_free(&self) -> bool {
        false
    }

    fn leaf(&self, inputs: &[Padded], _axes: &[usize], words: &mut [u8]) -> Result<(), OperatorError> {
        let [table, given] = inputs else { return Err(OperatorError::data("a pass reads a table and its state")) };
        let (state, d) = (state(given)?, self.sizes.features);
        let mut found = Finding { sizes: &self.sizes, words: bytemuck::cast_slice_mut(words) };
        found.begin(state.stage(), state.wanted());
        let mut tile = vec![0.0; ROWS * d];
        if state.stage() == Stage::Gather {
            return self.gather(table, &mut found, &mut tile);
        }
        let (panels, key) = (state.panels(d), self.key.at(state.round()));
        let mut tiles = Tiles::of(&table.block);
        while let Some((first, count)) = tiles.load::<T>(&mut tile) {
            let rows = tile.chunks_exact(d).zip(nearest(&tile, d, panels)).take(count);
            for (number, (values, near)) in (table.region.start[0] as u64 + first as u64..).zip(rows) {
                match state.stage() {
                    // Of exponential times with these rates, the first are a sample without replacement by distance.
                    Stage::Sample if near.distance > 0.0 => {
                        let time = -libm::log(1.0 - key.unit(number)) / near.distance;
                        found.pick(time, number, values);
                    }
                    Stage::Farthest if near.distance > 0.0 => found.pick(-near.distance, number, values),
                    Stage::Weigh => found.weights()[near.center] += 1.0,
                    Stage::Mean => {
                        let (sums, counts) = found.sums();
                        add(&mut sums[near.center * d..(near.center + 1) * d], values);
                        counts[near.center] += 1.0;
                    }
                    Stage::Sample | Stage::Farthest | Stage::Gather => {}
                }
            }
        }
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        let mut into = Finding { sizes: &self.sizes, words: bytemuck::cast_slice_mut(into) };
        let other = Found { sizes: &self.sizes, words: bytemuck::cast_slice(other) };
        let stage = other.stage();
        match stage {
            Stage::Weigh => add(into.weights(), other.weights(self.sizes.centers)),
            Stage::Mean => {
                let ((sums, counts), (other_sums, other_counts)) = (into.sums(), other.sums());
                add(sums, other_sums);
                add(counts, other_counts);
            }
            Stage::Gather | Stage::Sample | Stage::Farthest => {
                other.picks().for_each(|pick| into.pick(pick.key, pick.row, pick.values));
                if stage == Stage::Gather {
                    merge_moments(&mut into, &other);
                }
            }
        }
        Ok(())
    }

    fn finish(&self, words: &[u8], _count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        outputs[0].copy_from_slice(words);
        Ok(())
    }
}
