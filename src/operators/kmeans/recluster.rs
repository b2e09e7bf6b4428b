//! The last step of k-means||: candidates, each as heavy as there are rows nearest to it, become clusters in memory.
//!
//! Greedy k-means++ (D. Arthur and S. Vassilvitskii, 2007; of `2 + ln k` rows drawn for each center the one that helps most,
//! as scikit-learn), then Lloyd's rounds over the weighted candidates until no center moves; the best of a few tries, since
//! tries cost no pass.

use super::nearest::{ROWS, close, nearest, panels_len, put, take};
use crate::random::Key;

/// Rounds of Lloyd's, should they not end before.
const ROUNDS: usize = 100;
const TRIES: u64 = 4;

/// The centers of `clusters` clusters of the weighted candidates that `panels` holds, one after the other.
pub fn recluster(panels: &[f64], weights: &[f64], features: usize, clusters: usize, key: Key) -> Vec<f64> {
    let rows: Vec<f64> = (0..weights.len()).flat_map(|c| take(panels, c, features)).collect();
    let mut best: Option<(f64, Vec<f64>)> = None;
    for number in 0..TRIES {
        let mut centers = plus_plus(&rows, weights, features, clusters, key.at(number));
        let inertia = lloyd(&rows, weights, features, &mut centers);
        if best.as_ref().is_none_or(|(least, _)| inertia < *least) {
            best = Some((inertia, centers));
        }
    }
    best.map_or_else(Vec::new, |(_, centers)| centers)
}

/// Bytes that [`recluster`] takes for so many candidates.
pub fn scratch_bytes(candidates: usize, features: usize, clusters: usize) -> u64 {
    let candidate = 8 * (features as u64 + 2 + trials(clusters) as u64);
    let cluster = 8 * (5 * features as u64 + 8);
    (candidates as u64).saturating_mul(candidate).saturating_add((clusters as u64).saturating_mul(cluster))
}

fn trials(clusters: usize) -> usize {
    2 + libm::log(clusters as f64) as usize
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |n, (a, b)| n + (a - b) * (a - b))
}

/// The place at which the running sum of `parts` goes beyond `target`.
fn at_sum(parts: impl Iterator<Item = f64>, target: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for (at, part) in parts.enumerate() {
        if part > 0.0 {
            last = at;
            sum += part;
            if sum > target {
                break;
            }
        }
    }
    last
}

fn plus_plus(rows: &[f64], weights: &[f64], features: usize, clusters: usize, key: Key) -> Vec<f64> {
    let row = |at: usize| &rows[at * features..(at + 1) * features];
    let first = at_sum(weights.iter().copied(), key.unit(0) * weights.iter().sum::<f64>());
    let mut centers = row(first).to_vec();
    let mut near: Vec<f64> = (0..weights.len()).map(|at| distance(row(at), row(first))).collect();
    for cluster in 1..clusters {
        let costs = || near.iter().zip(weights).map(|(d, w)| d * w);
        let cost: f64 = costs().sum();
        let key = key.at(cluster as u64);
        let mut best: Option<(f64, usize, Vec<f64>)> = None;
        for trial in 0..trials(clusters) as u64 {
            // Where all candidates are centers, one of them comes again, and its cluster stays empty.
            let at = at_sum(costs(), key.unit(trial) * cost);
            let nearer: Vec<f64> = (0..near.len()).map(|other| near[other].min(distance(row(other), row(at)))).collect();
            let left: f64 = nearer.iter().zip(weights).map(|(d, w)| d * w).sum();
            if best.as_ref().is_none_or(|(least, ..)| left < *least) {
                best = Some((left, at, nearer));
            }
        }
        if let Some((_, at, nearer)) = best {
            centers.extend_from_slice(row(at));
            near = nearer;
        }
    }
    centers
}

/// Moves the centers to the means of what is nearest to them; the weighted sum of squared distances before the last round.
fn lloyd(rows: &[f64], weights: &[f64], features: usize, centers: &mut [f64]) -> f64 {
    let clusters = centers.len() / features;
    let mut panels = vec![0.0; panels_len(clusters, features)];
    let mut tile = vec![0.0; ROWS * features];
    let mut inertia = 0.0;
    for _ in 0..ROUNDS {
        centers.chunks_exact(features).enumerate().for_each(|(c, center)| put(&mut panels, c, center.iter().copied()));
        close(&mut panels, clusters, features);
        let (mut sums, mut heavy) = (vec![0.0; centers.len()], vec![0.0; clusters]);
        inertia = 0.0;
        for (rows, weights) in rows.chunks(ROWS * features).zip(weights.chunks(ROWS)) {
            tile[..rows.len()].copy_from_slice(rows);
            for ((row, weight), near) in rows.chunks_exact(features).zip(weights).zip(nearest(&tile, features, &panels)) {
                let sums = &mut sums[near.center * features..(near.center + 1) * features];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * weight);
                heavy[near.center] += weight;
                inertia += near.distance * weight;
            }
        }
        let mut has_moved = false;
        for ((center, sums), weight) in centers.chunks_exact_mut(features).zip(sums.chunks_exact(features)).zip(&heavy) {
            for (value, sum) in center.iter_mut().zip(sums).filter(|_| *weight > 0.0) {
                let mean = sum / weight;
                has_moved |= mean != *value;
                *value = mean;
            }
        }
        if !has_moved {
            break;
        }
    }
    inertia
}
