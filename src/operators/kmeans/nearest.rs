//! The distance loop: which of many centers is nearest to a row.
//!
//! Centers lie in panels of [`LANES`], feature after feature, so that a feature of all centers of a panel is one vector;
//! [`ROWS`] rows go through a panel together, which loads it once for all of them. Squared differences are summed feature
//! after feature in float64, whatever the vectors are. The textbook's `|c|^2 - 2 x.c` takes half the operations, and loses
//! the digits that tell near centers apart where the table lies far from zero.

use crate::simd::{Vectored, widest};

pub const LANES: usize = 8;
pub const ROWS: usize = 4;

/// Doubles that the panels of so many centers take.
pub fn panels_len(centers: usize, features: usize) -> usize {
    centers.div_ceil(LANES) * LANES * features
}

/// Where a center's feature lies in panels.
fn place(center: usize, feature: usize, features: usize) -> usize {
    (center / LANES * features + feature) * LANES + center % LANES
}

/// Writes a center into panels.
pub fn put(panels: &mut [f64], center: usize, values: impl ExactSizeIterator<Item = f64>) {
    let features = values.len();
    for (feature, value) in values.enumerate() {
        panels[place(center, feature, features)] = value;
    }
}

/// Reads a center out of panels.
pub fn take(panels: &[f64], center: usize, features: usize) -> impl ExactSizeIterator<Item = f64> + '_ {
    (0..features).map(move |feature| panels[place(center, feature, features)])
}

/// Fills the lanes behind the last of `centers` so that nothing is near them.
pub fn close(panels: &mut [f64], centers: usize, features: usize) {
    for center in centers..centers.next_multiple_of(LANES) {
        put(panels, center, (0..features).map(|_| f64::INFINITY));
    }
}

/// The nearest center of a row and its squared distance; of equal ones the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    pub center: usize,
    pub distance: f64,
}

/// The nearest center of each of [`ROWS`] rows, which follow each other in `rows`. `panels` holds no other centers than
/// those that count.
pub fn nearest(rows: &[f64], features: usize, panels: &[f64]) -> [Near; ROWS] {
    widest(Search { rows, features, panels })
}

struct Search<'a> {
    rows: &'a [f64],
    features: usize,
    panels: &'a [f64],
}

impl Vectored for Search<'_> {
    type Output = [Near; ROWS];

    #[inline(always)]
    fn run(self) -> [Near; ROWS] {
        let mut found = [Near { center: 0, distance: f64::INFINITY }; ROWS];
        let d = self.features;
        let row = |r: usize| &self.rows[r * d..(r + 1) * d];
        let rows = [row(0), row(1), row(2), row(3)];
        for (number, panel) in self.panels.chunks_exact(d * LANES).enumerate() {
            let mut sums = [[0f64; LANES]; ROWS];
            let features = panel.as_chunks::<LANES>().0.iter().zip(rows[0]).zip(rows[1]).zip(rows[2]).zip(rows[3]);
            for ((((centers, a), b), c), d) in features {
                for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
                    for (sum, center) in sums.iter_mut().zip(centers) {
                        let difference = x - center;
                        *sum += difference * difference;
                    }
                }
            }
            for (found, sums) in found.iter_mut().zip(&sums) {
                for (lane, &distance) in sums.iter().enumerate() {
                    if distance < found.distance {
                        *found = Near { center: number * LANES + lane, distance };
                    }
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::testing::Random;

    #[test]
    fn the_nearest_is_the_first_of_the_nearest_on_every_path() {
        let mut random = Random::new(4);
        for (centers, features) in [(1, 1), (3, 2), (8, 13), (9, 1), (30, 7), (17, 100)] {
            let mut value = || random.below(7) as f64 * 0.3;
            let rows: Vec<f64> = (0..ROWS * features).map(|_| value()).collect();
            let all: Vec<Vec<f64>> = (0..centers).map(|_| (0..features).map(|_| value()).collect()).collect();
            let mut panels = vec![0.0; panels_len(centers, features)];
            all.iter().enumerate().for_each(|(c, center)| put(&mut panels, c, center.iter().copied()));
            close(&mut panels, centers, features);
            assert!(take(&panels, centers - 1, features).eq(all[centers - 1].iter().copied()));
            crate::simd::both_paths(|_| {
                for (row, found) in rows.chunks(features).zip(nearest(&rows, features, &panels)) {
                    let distance = |center: &Vec<f64>| row.iter().zip(center).fold(0.0, |n, (x, c)| n + (x - c) * (x - c));
                    let least = all.iter().map(distance).fold(f64::INFINITY, f64::min);
                    let first = all.iter().position(|c| distance(c) == least).expect("one of them");
                    assert_eq!(found, Near { center: first, distance: least });
                }
            });
        }
    }
}
