//! A bright-field film of colloid beads in water (frame, y, x): what a microscope's camera leaves as a folder of TIFF frames.
//!
//! The field is a lattice of cells of 32 pixels, most of which own one bead. A bead moves around its place on a sum of two slow
//! circles and never further than 10 pixels from its cell, its image ends 13 pixels from its centre, so a pixel meets the beads of the
//! nine cells around it only. A bead has a bright core and a dark ring. Values are counts of a lamp that flickers by one per cent,
//! with photon noise; `uint8` holds counts / 16. About 6 ns per pixel.

use serde_json::json;

use super::rng::{Key, normal};
use super::{Generator, Kind, Part, Store, attributes, cells, put};
use crate::array::DType;
use crate::operators::ArrayMeta;

pub(super) const KIND: Kind = Kind {
    name: "tiff",
    version: 1,
    axes: &["frame", "y", "x"],
    shape: &[100, 512, 512],
    chunks: &[1, 512, 512],
    whole: None,
    dtypes: &[DType::U16, DType::U8, DType::F32],
    build,
};

/// Edge of a cell, pixels.
const CELL: u64 = 32;
/// Where a bead's image ends, pixels from its centre.
const REACH: f64 = 13.0;
/// Counts of the lamp.
const LAMP: f64 = 1200.0;
/// Counts per grey level of `uint8`.
const COUNTS_PER_LEVEL: f64 = 16.0;

struct Film {
    beads: Key,
    lamp: Key,
    noise: Key,
    dtype: DType,
}

fn build(seed: u64, _shape: &[u64], dtype: DType) -> Result<Box<dyn Generator>, String> {
    let key = |tag| Key::new(seed, tag);
    Ok(Box::new(Film { beads: key(b"tifbeads"), lamp: key(b"tiflamp."), noise: key(b"tifnoise"), dtype }))
}

/// A bead in one frame.
#[derive(Clone, Copy)]
struct Bead {
    centre: [f64; 2],
    contrast: f64,
}

impl Bead {
    /// Adds the part of the lamp that it takes or gives, on the pixels `x..` of row `y`.
    fn add(&self, y: u64, x: u64, row: &mut [f64]) {
        let dy = y as f64 - self.centre[0];
        let rest = 1.0 - dy * dy * (1.0 / (REACH * REACH));
        if rest <= 0.0 {
            return;
        }
        for (value, x) in row.iter_mut().zip(x..) {
            let dx = x as f64 - self.centre[1];
            // One at the centre, nought at the end, both smoothly.
            let near = (rest - dx * dx * (1.0 / (REACH * REACH))).max(0.0);
            *value += self.contrast * near * near * (3.0 * near - 2.0);
        }
    }
}

impl Film {
    /// The beads that reach into a cell in a frame, in the order in which they are added up.
    fn beads(&self, frame: u64, at: [u64; 2]) -> impl Iterator<Item = Bead> {
        (0..9u64).filter_map(move |n| {
            let cell = [at[0] + n / 3, at[1] + n % 3].map(|c| c.wrapping_sub(1));
            let key = self.beads.at(cell[0]).at(cell[1]);
            let corner = cell.map(|c| (c as i64 * CELL as i64) as f64);
            let drift = |axis: u64| {
                let circle = |i: u64, radius: f64, slowest: f64| {
                    let turn = frame as f64 / key.range(i, slowest / 3.0, slowest) + key.unit(i + 1);
                    radius * libm::sin(std::f64::consts::TAU * turn)
                };
                circle(3 + 4 * axis, 7.0, 300.0) + circle(5 + 4 * axis, 3.0, 40.0)
            };
            let centre = [0, 1].map(|axis| corner[axis as usize] + CELL as f64 * key.unit(axis) + drift(axis));
            (key.unit(2) < 0.6).then(|| Bead { centre, contrast: key.range(11, 0.25, 0.55) })
        })
    }

    fn fill_as<T: Store>(&self, part: &Part, out: &mut [u8], scale: f64) {
        let mut beads: Vec<Bead> = Vec::with_capacity(9);
        for frame in part.start[0]..part.stop[0] {
            let lamp = LAMP * self.lamp.at(frame).range(0, 0.99, 1.01);
            for (cy, y0, y1) in cells(part.start[1], part.stop[1], CELL) {
                for (cx, x0, x1) in cells(part.start[2], part.stop[2], CELL) {
                    beads.clear();
                    beads.extend(self.beads(frame, [cy, cx]));
                    for y in y0..y1 {
                        let (mut row, mut noise) = ([1.0; CELL as usize], [0.0; CELL as usize]);
                        let (row, noise) = (&mut row[..(x1 - x0) as usize], &mut noise[..(x1 - x0) as usize]);
                        beads.iter().for_each(|bead| bead.add(y, x0, row));
                        normal().row(self.noise.at(frame).at(y), x0, noise);
                        for (value, noise) in row.iter_mut().zip(noise) {
                            let counts = *value * lamp;
                            *value = (counts + counts.sqrt() * *noise).max(0.0) * scale;
                        }
                        put::<T>(row, part.offset(&[frame, y, x0]), out);
                    }
                }
            }
        }
    }
}

impl Generator for Film {
    fn describe(&self, meta: &mut ArrayMeta) {
        let units = if self.dtype == DType::U8 { "16 counts" } else { "counts" };
        attributes(
            meta,
            [("description", json!("synthetic bright-field film: colloid beads in water")), ("units", json!(units))],
        );
    }

    fn fill(&self, part: &Part, out: &mut [u8]) {
        match self.dtype {
            DType::U8 => self.fill_as::<u8>(part, out, 1.0 / COUNTS_PER_LEVEL),
            DType::F32 => self.fill_as::<f32>(part, out, 1.0),
            _ => self.fill_as::<u16>(part, out, 1.0),
        }
    }
}
