//! What passes hand to each other: the state that all blocks read, and what a pass finds. Both are plain arrays of f64.

use super::nearest::{self, panels_len};

/// What a pass looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The rows that clusters start from, and the variance of each feature.
    Gather,
    /// Rows at random, the likelier the farther they are from the centers so far (a round of k-means||).
    Sample,
    /// How many rows are nearest to each candidate.
    Weigh,
    /// The means of the rows that are nearest to each center (a round of Lloyd's).
    Mean,
    /// The rows that are farthest from their centers.
    Farthest,
}

const STAGES: [Stage; 5] = [Stage::Gather, Stage::Sample, Stage::Weigh, Stage::Mean, Stage::Farthest];

impl Stage {
    fn code(self) -> f64 {
        STAGES.iter().position(|s| *s == self).unwrap_or(0) as f64
    }

    fn of(code: f64) -> Self {
        STAGES.get(code as usize).copied().unwrap_or(Stage::Gather)
    }
}

/// The sizes that all is made of.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub features: usize,
    pub clusters: usize,
    /// Centers that a state may hold: clusters, or the candidates of k-means||.
    pub centers: usize,
    /// Rows that a pass may pick.
    pub picks: usize,
}

/// Words before the centers of a state.
const HEAD: usize = 8;

impl Sizes {
    pub fn state_len(&self) -> usize {
        HEAD.saturating_add(panels_len(self.centers, self.features))
    }

    /// Words of one picked row: its key and number, then its values.
    fn pick_len(&self) -> usize {
        2 + self.features
    }

    pub fn found_len(&self) -> usize {
        let gathered = self.picks.saturating_mul(self.pick_len()).saturating_add(1 + 2 * self.features);
        let means = self.clusters.saturating_mul(self.features + 1).saturating_add(1);
        FOUND_HEAD.saturating_add(gathered.max(means).max(self.centers))
    }
}

/// A state as blocks read it.
pub struct State<'a>(pub &'a [f64]);

impl<'a> State<'a> {
    pub fn stage(&self) -> Stage {
        Stage::of(self.0[0])
    }

    pub fn centers(&self) -> usize {
        self.0[1] as usize
    }

    /// Of k-means||.
    pub fn round(&self) -> u64 {
        self.0[2] as u64
    }

    /// Rows to pick.
    pub fn wanted(&self) -> usize {
        self.0[3] as usize
    }

    /// Rounds of Lloyd's so far.
    pub fn iterations(&self) -> u64 {
        self.0[4] as u64
    }

    /// The panels of the centers that count.
    pub fn panels(&self, features: usize) -> &'a [f64] {
        &self.0[HEAD..HEAD + panels_len(self.centers(), features)]
    }
}

/// A state as the control makes it.
pub struct NextState<'a>(pub &'a mut [f64]);

impl NextState<'_> {
    pub fn read(&self) -> State<'_> {
        State(self.0)
    }

    pub fn look_for(&mut self, stage: Stage, wanted: usize) {
        self.0[0] = stage.code();
        self.0[3] = wanted as f64;
    }

    pub fn set_round(&mut self, round: u64) {
        self.0[2] = round as f64;
    }

    pub fn set_iterations(&mut self, iterations: u64) {
        self.0[4] = iterations as f64;
    }

    /// Adds centers behind those that are there; `from` 0 replaces them all.
    pub fn put_centers<'c>(&mut self, from: usize, features: usize, centers: impl Iterator<Item = &'c [f64]>) {
        let mut count = from;
        for center in centers {
            nearest::put(&mut self.0[HEAD..], count, center.iter().copied());
            count += 1;
        }
        nearest::close(&mut self.0[HEAD..], count, features);
        self.0[1] = count as f64;
    }
}

/// Words before what a pass finds: its stage, rows to pick, rows picked.
const FOUND_HEAD: usize = 3;

/// Views of what a pass finds, while it is found and after.
pub struct Found<'a> {
    pub sizes: &'a Sizes,
    pub words: &'a [f64],
}

/// A picked row. Those with the smallest keys are kept, of equal keys the first rows.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    pub key: f64,
    pub row: u64,
    pub values: &'a [f64],
}

impl Pick<'_> {
    fn is_before(&self, key: f64, row: u64) -> bool {
        (self.key, self.row) < (key, row)
    }
}

impl<'a> Found<'a> {
    pub fn stage(&self) -> Stage {
        Stage::of(self.words[0])
    }

    fn body(&self) -> &'a [f64] {
        &self.words[FOUND_HEAD..]
    }

    pub fn picks(&self) -> impl ExactSizeIterator<Item = Pick<'a>> + use<'a> {
        let picks = self.body().chunks_exact(self.sizes.pick_len()).take(self.words[2] as usize);
        picks.map(|pick| Pick { key: pick[0], row: pick[1] as u64, values: &pick[2..] })
    }

    /// Rows, means and sums of squared distances from them, per feature.
    pub fn moments(&self) -> (f64, &'a [f64], &'a [f64]) {
        let at = self.sizes.picks * self.sizes.pick_len();
        let (count, rest) = self.body()[at..].split_at(1);
        let (means, rest) = rest.split_at(self.sizes.features);
        (count[0], means, &rest[..self.sizes.features])
    }

    /// Rows nearest to each candidate.
    pub fn weights(&self, centers: usize) -> &'a [f64] {
        &self.body()[..centers]
    }

    /// Sums of the rows nearest to each center, and how many they are.
    pub fn sums(&self) -> (&'a [f64], &'a [f64]) {
        let Sizes { clusters, features, .. } = *self.sizes;
        let (sums, rest) = self.body().split_at(clusters * features);
        (sums, &rest[..clusters])
    }
}

/// What a pass finds, to be written.
pub struct Finding<'a> {
    pub sizes: &'a Sizes,
    pub words: &'a mut [f64],
}

impl Finding<'_> {
    pub fn begin(&mut self, stage: Stage, wanted: usize) {
        self.words[0] = stage.code();
        self.words[1] = wanted.min(self.sizes.picks) as f64;
    }

    pub fn read(&self) -> Found<'_> {
        Found { sizes: self.sizes, words: self.words }
    }

    fn body(&mut self) -> &mut [f64] {
        &mut self.words[FOUND_HEAD..]
    }

    /// Takes a row among the picked ones, if it belongs to those with the smallest keys.
    pub fn pick(&mut self, key: f64, row: u64, values: &[f64]) {
        let (wanted, count) = (self.words[1] as usize, self.words[2] as usize);
        let at = if count < wanted {
            self.words[2] += 1.0;
            count
        } else {
            let last = |a: &(usize, Pick<'_>), b: &(usize, Pick<'_>)| match a.1.is_before(b.1.key, b.1.row) {
                true => std::cmp::Ordering::Less,
                false => std::cmp::Ordering::Greater,
            };
            match self.read().picks().enumerate().max_by(last) {
                Some((at, worst)) if !worst.is_before(key, row) => at,
                _ => return,
            }
        };
        let len = self.sizes.pick_len();
        let place = &mut self.body()[at * len..(at + 1) * len];
        (place[0], place[1]) = (key, row as f64);
        place[2..].copy_from_slice(values);
    }

    pub fn moments(&mut self) -> (&mut f64, &mut [f64], &mut [f64]) {
        let (at, features) = (self.sizes.picks * self.sizes.pick_len(), self.sizes.features);
        let (count, rest) = self.body()[at..].split_at_mut(1);
        let (means, rest) = rest.split_at_mut(features);
        (&mut count[0], means, &mut rest[..features])
    }

    pub fn weights(&mut self) -> &mut [f64] {
        let centers = self.sizes.centers;
        &mut self.body()[..centers]
    }

    pub fn sums(&mut self) -> (&mut [f64], &mut [f64]) {
        let Sizes { clusters, features, .. } = *self.sizes;
        let (sums, rest) = self.body().split_at_mut(clusters * features);
        (sums, &mut rest[..clusters])
    }
}
