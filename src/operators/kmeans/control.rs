//! What follows a pass: from rows and sums to the next centers, and whether they are the last.
//!
//! ```text
//!   Gather -> [Sample, ... , Weigh -> recluster] -> Mean -> Mean -> ... -> done
//!             k-means|| only                         |  ^
//!                                  a cluster is empty v  |
//!                                                   Farthest
//! ```

use std::sync::{Mutex, PoisonError};

use super::layout::{Found, NextState, Pick, Sizes, Stage};
use super::nearest::{ROWS, nearest};
use super::recluster::{self, recluster};
use crate::operators::{NextPass, OperatorError, PassControl};
use crate::random::Key;

#[derive(Debug)]
pub struct Control {
    pub sizes: Sizes,
    /// Rounds of k-means||, and rows that each picks; `None`: clusters start from the gathered rows.
    pub rounds: Option<(u64, usize)>,
    pub max_iter: u64,
    pub tol: f64,
    pub key: Key,
    learned: Mutex<Learned>,
}

/// What is learned before it can be used.
#[derive(Debug, Default)]
struct Learned {
    /// Centers may move by this squared distance in all and still be the last.
    tolerance: f64,
    /// Sums and counts of a round in which clusters were left empty.
    waiting: Option<(Vec<f64>, Vec<f64>)>,
}

impl Control {
    pub fn new(sizes: Sizes, rounds: Option<(u64, usize)>, max_iter: u64, tol: f64, key: Key) -> Self {
        Self { sizes, rounds, max_iter, tol, key, learned: Mutex::default() }
    }

    /// The rows to start from, in the order of their keys; of k-means|| the first candidate.
    fn start(&self, found: &Found<'_>, learned: &mut Learned, state: &mut NextState<'_>) {
        let (count, _, squares) = found.moments();
        // As scikit-learn: in units of the mean variance of the features.
        learned.tolerance = self.tol * squares.iter().map(|s| s / count).sum::<f64>() / self.sizes.features as f64;
        let mut picks: Vec<Pick<'_>> = found.picks().collect();
        picks.sort_by(|a, b| a.key.total_cmp(&b.key));
        state.put_centers(0, self.sizes.features, picks.iter().map(|p| p.values));
        match self.rounds {
            Some((_, wanted)) => state.look_for(Stage::Sample, wanted),
            None => state.look_for(Stage::Mean, 0),
        }
    }

    /// Picked rows become candidates; after the last round they are weighed.
    fn add_candidates(&self, found: &Found<'_>, state: &mut NextState<'_>) {
        let (rounds, wanted) = self.rounds.unwrap_or_default();
        let mut picks: Vec<Pick<'_>> = found.picks().collect();
        picks.sort_by_key(|p| p.row);
        let (before, round) = (state.read().centers(), state.read().round() + 1);
        state.put_centers(before, self.sizes.features, picks.iter().map(|p| p.values));
        state.set_round(round);
        // Where every row is a candidate, nothing is left to pick.
        if round >= rounds || picks.is_empty() { state.look_for(Stage::Weigh, 0) } else { state.look_for(Stage::Sample, wanted) }
    }

    /// Candidates become clusters.
    fn choose_centers(&self, found: &Found<'_>, state: &mut NextState<'_>) {
        let Sizes { features, clusters, .. } = self.sizes;
        let current = state.read();
        let weights = found.weights(current.centers());
        let centers = recluster(current.panels(features), weights, features, clusters, self.key);
        state.put_centers(0, features, centers.chunks_exact(features));
        state.look_for(Stage::Mean, 0);
    }

    /// The next centers from the sums of the rows of each; a cluster without rows stays where it is.
    fn move_centers(&self, sums: &[f64], counts: &[f64], learned: &Learned, state: &mut NextState<'_>) -> NextPass {
        let features = self.sizes.features;
        let mut means = vec![0.0; sums.len()];
        let mut shift = 0.0;
        for (cluster, count) in counts.iter().enumerate() {
            let at = cluster * features..(cluster + 1) * features;
            let old = super::nearest::take(state.read().panels(features), cluster, features);
            let sums = sums[at.clone()].iter();
            for ((mean, sum), old) in means[at].iter_mut().zip(sums).zip(old) {
                *mean = if *count > 0.0 { sum / count } else { old };
                shift += (*mean - old) * (*mean - old);
            }
        }
        state.put_centers(0, features, means.chunks_exact(features));
        let iterations = state.read().iterations() + 1;
        state.set_iterations(iterations);
        state.look_for(Stage::Mean, 0);
        // Where no label changes, sums and so means are the same, bit for bit.
        if shift <= learned.tolerance || iterations >= self.max_iter { NextPass::Done } else { NextPass::Again }
    }

    /// As scikit-learn: each empty cluster takes one of the rows that are farthest from their centers.
    fn relocate(&self, found: &Found<'_>, sums: &mut [f64], counts: &mut [f64], state: &NextState<'_>) {
        let features = self.sizes.features;
        let mut picks: Vec<Pick<'_>> = found.picks().collect();
        picks.sort_by(|a, b| a.key.total_cmp(&b.key).then(a.row.cmp(&b.row)));
        let empty: Vec<usize> = (0..counts.len()).filter(|c| counts[*c] == 0.0).collect();
        let mut tile = vec![0.0; ROWS * features];
        for (to, pick) in empty.into_iter().zip(picks) {
            tile[..features].copy_from_slice(pick.values);
            let from = nearest(&tile, features, state.read().panels(features))[0].center;
            for (feature, value) in pick.values.iter().enumerate() {
                sums[from * features + feature] -= value;
                sums[to * features + feature] = *value;
            }
            counts[from] -= 1.0;
            counts[to] = 1.0;
        }
    }
}

impl PassControl for Control {
    fn begin(&self, state: &mut [f64]) {
        *self.learned.lock().unwrap_or_else(PoisonError::into_inner) = Learned::default();
        NextState(state).look_for(Stage::Gather, self.sizes.picks);
    }

    fn after(&self, _pass: u64, found: &[f64], state: &mut [f64]) -> Result<NextPass, OperatorError> {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Found { sizes: &self.sizes, words: found };
        let mut state = NextState(state);
        match found.stage() {
            Stage::Gather => self.start(&found, &mut learned, &mut state),
            Stage::Sample => self.add_candidates(&found, &mut state),
            Stage::Weigh => self.choose_centers(&found, &mut state),
            Stage::Mean => {
                let (sums, counts) = found.sums();
                let empty = counts.iter().filter(|n| **n == 0.0).count();
                if empty == 0 {
                    return Ok(self.move_centers(sums, counts, &learned, &mut state));
                }
                learned.waiting = Some((sums.to_vec(), counts.to_vec()));
                state.look_for(Stage::Farthest, empty);
            }
            Stage::Farthest => {
                let waiting = learned.waiting.take();
                let (mut sums, mut counts) = waiting.ok_or_else(|| OperatorError::data("no cluster waits for a row"))?;
                self.relocate(&found, &mut sums, &mut counts, &state);
                return Ok(self.move_centers(&sums, &counts, &learned, &mut state));
            }
        }
        Ok(NextPass::Again)
    }

    fn most_passes(&self) -> u64 {
        let init = 1 + self.rounds.map_or(0, |(rounds, _)| rounds + 1);
        // A round that leaves a cluster empty takes a second pass.
        self.max_iter.saturating_mul(2).saturating_add(init)
    }

    fn scratch_bytes(&self) -> u64 {
        let Sizes { features, clusters, centers, .. } = self.sizes;
        let means = 3 * (clusters as u64).saturating_mul(8 * (features as u64 + 1));
        let reclustering = if self.rounds.is_some() { recluster::scratch_bytes(centers, features, clusters) } else { 0 };
        means.saturating_add(reclustering)
    }
}
