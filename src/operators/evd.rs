//! Phase linking by the largest eigenvalue of the coherence matrix (EVD; the first component of CAESAR).
//!
//! With C the coherence matrix (ones on its diagonal) and v the eigenvector of its largest eigenvalue, `phase = v *
//! conj(v[ref])`, each of length one; `quality` is that eigenvalue divided by the number of images: the share of the first
//! component, from 1 / N for noise to 1. Needs no inverse, so it has an answer wherever no coherence is NaN.
//!
//! Cost for N images: about 3 N^3 multiply-adds.

use super::matrices::eigen::{Complex, Space};
use super::matrices::{Lanes, row_mut};
use super::phase_linking::{Batch, IMAGE_AXIS, LAYOUT, Method, PhaseLinking, REF};
use super::stack::all_pairs;
use super::{Info, Operator};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "evd",
    summary: "phase linking: the phases of the coherence matrix's first eigenvector (EVD)",
    kind: "map",
    inputs: "coherence as the operator of that name makes it: (.., pair), or (.., image, image)",
    outputs: "phase: the input's dtype (.., image), of length one; quality: float32 (float64 of complex128), 1 is perfect",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "about 3 N^3 multiply-adds a pixel for N images",
    source: "G. Fornaro, S. Verde, D. Reale and A. Pauciullo, CAESAR, IEEE Trans. Geosci. Remote Sens. 53 (2015): its first component",
    params: &[REF, LAYOUT, IMAGE_AXIS],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    Some(Box::new(PhaseLinking::read("evd", table, Some(Evd))?))
}

#[derive(Clone)]
struct Evd;

impl Method for Evd {
    /// -C, whose smallest eigenvalue is the largest of C with the other sign.
    #[inline(always)]
    fn prepare<V: Lanes>(&self, batch: &mut Batch<'_, V>, _space: &mut Space<'_, V>, n: usize, _rounding: f64) -> V {
        let zero = V::zero();
        for (pair, (i, j)) in batch.pairs.iter().zip(all_pairs(n)) {
            row_mut(batch.matrix, j)[i] = Complex { re: zero.sub(pair.re), im: pair.im };
        }
        for i in 0..n {
            row_mut(batch.matrix, i)[i] = Complex { re: V::splat(-1.0), im: zero };
        }
        zero
    }

    #[inline(always)]
    fn quality<V: Lanes>(&self, smallest: V, n: usize) -> V {
        V::zero().sub(smallest).div(V::splat(n as f64))
    }
}
