//! A tomogram-like phantom (z, y, x): ellipsoids of a few materials, some hollow, in a smooth background, with photon noise.
//!
//! Space is a lattice of cubes of 48 voxels; most cubes own one ellipsoid whose centre lies inside and whose semi-axes are at
//! most one cube, so a voxel meets those of the 27 cubes around it only. Values are counts: the noise has the variance of the
//! signal plus 25 (detector). Integer dtypes round; `uint8` holds counts / 16.
//!
//! Chunks are filled cube by cube: the ellipsoids are found once per cube and cut into runs along x. About 5 ns per voxel.

use serde_json::json;

use super::rng::{Key, normal};
use super::{Generator, Kind, Part, Store, attributes, cells, put};
use crate::array::DType;
use crate::operators::ArrayMeta;

pub(super) const KIND: Kind = Kind {
    name: "volume",
    version: 1,
    axes: &["z", "y", "x"],
    shape: &[256, 512, 512],
    chunks: &[64, 64, 64],
    whole: None,
    dtypes: &[DType::F32, DType::F64, DType::U8, DType::U16, DType::I16, DType::I64],
    build,
};

/// Edge of a cube, voxels.
const CUBE: u64 = 48;
/// Edge of a cell of the background, in cubes.
const BACKGROUND: u64 = 4;
/// Counts that the materials add to the background.
const MATERIALS: [f64; 4] = [150.0, 300.0, 550.0, 1000.0];
/// Counts per grey level of `uint8`.
const COUNTS_PER_LEVEL: f64 = 16.0;

struct Volume {
    bodies: Key,
    background: Key,
    noise: Key,
    dtype: DType,
}

fn build(seed: u64, _shape: &[u64], dtype: DType) -> Result<Box<dyn Generator>, String> {
    let key = |tag| Key::new(seed, tag);
    Ok(Box::new(Volume { bodies: key(b"volbody."), background: key(b"volback."), noise: key(b"volnoise"), dtype }))
}

/// Adds `counts` inside; semi-axes in voxels.
#[derive(Clone, Copy)]
struct Ellipsoid {
    centre: [f64; 3],
    axes: [f64; 3],
    counts: f64,
}

impl Ellipsoid {
    /// The x inside the ellipsoid on row (z, y), as a half-open run within `start..stop`.
    fn run(&self, z: u64, y: u64, start: u64, stop: u64) -> Option<(usize, usize)> {
        let dz = (z as f64 - self.centre[0]) / self.axes[0];
        let dy = (y as f64 - self.centre[1]) / self.axes[1];
        let rest = 1.0 - dz * dz - dy * dy;
        if rest <= 0.0 {
            return None;
        }
        let half = self.axes[2] * rest.sqrt();
        let (low, high) = ((self.centre[2] - half).ceil() as i64, (self.centre[2] + half).floor() as i64 + 1);
        let (low, high) = (low.max(start as i64), high.min(stop as i64));
        (low < high).then(|| ((low - start as i64) as usize, (high - start as i64) as usize))
    }
}

impl Volume {
    /// The ellipsoids that reach into cube `at`, in the order in which they are added up.
    fn bodies(&self, at: [u64; 3]) -> impl Iterator<Item = Ellipsoid> {
        (0..27u64).flat_map(move |n| {
            let cube = [at[0] + n / 9, at[1] + n / 3 % 3, at[2] + n % 3].map(|c| c.wrapping_sub(1));
            let key = cube.iter().fold(self.bodies, |key, c| key.at(*c));
            let corner = cube.map(|c| (c as i64 * CUBE as i64) as f64);
            let outer = Ellipsoid {
                centre: std::array::from_fn(|a| corner[a] + CUBE as f64 * key.unit(a as u64)),
                axes: std::array::from_fn(|a| CUBE as f64 * key.range(3 + a as u64, 0.2, 0.8)),
                counts: MATERIALS[(key.bits(6) % MATERIALS.len() as u64) as usize] * key.range(7, 0.9, 1.1),
            };
            let hole = Ellipsoid { axes: outer.axes.map(|a| 0.7 * a), counts: -0.8 * outer.counts, ..outer };
            let (is_there, is_hollow) = (key.unit(8) < 0.7, key.unit(9) < 0.35);
            [is_there.then_some(outer), (is_there && is_hollow).then_some(hole)].into_iter().flatten()
        })
    }

    fn fill_as<T: Store>(&self, part: &Part, out: &mut [u8], scale: f64) {
        let mut cube = Cube { bodies: Vec::with_capacity(54), corners: [0.0; 8] };
        for (cz, z0, z1) in cells(part.start[0], part.stop[0], CUBE) {
            for (cy, y0, y1) in cells(part.start[1], part.stop[1], CUBE) {
                for (cx, x0, x1) in cells(part.start[2], part.stop[2], CUBE) {
                    cube.bodies.clear();
                    cube.bodies.extend(self.bodies([cz, cy, cx]));
                    cube.corners = std::array::from_fn(|n| {
                        let at = [(cz, n >> 2), (cy, (n >> 1) & 1), (cx, n & 1)];
                        let key = at.iter().fold(self.background, |key, (c, far)| key.at(c / BACKGROUND + *far as u64));
                        key.range(0, 120.0, 260.0)
                    });
                    for z in z0..z1 {
                        for y in y0..y1 {
                            let mut row = [0.0; CUBE as usize];
                            let row = &mut row[..(x1 - x0) as usize];
                            cube.row(z, y, x0, row);
                            let mut noise = [0.0; CUBE as usize];
                            let noise = &mut noise[..row.len()];
                            normal().row(self.noise.at(z).at(y), x0, noise);
                            for (v, n) in row.iter_mut().zip(noise) {
                                *v = (*v + (*v + 25.0).sqrt() * *n).max(0.0) * scale;
                            }
                            put::<T>(row, part.offset(&[z, y, x0]), out);
                        }
                    }
                }
            }
        }
    }
}

/// What is needed to make the voxels of one cube.
struct Cube {
    bodies: Vec<Ellipsoid>,
    /// Background at the corners of the background cell around it, x fastest.
    corners: [f64; 8],
}

impl Cube {
    /// Signal of the voxels `x..` on row (z, y).
    fn row(&self, z: u64, y: u64, x: u64, row: &mut [f64]) {
        let [wz, wy] = [z, y].map(|c| fade(c % (BACKGROUND * CUBE)));
        let c = &self.corners;
        let near = blend(blend(c[0], c[2], wy), blend(c[4], c[6], wy), wz);
        let far = blend(blend(c[1], c[3], wy), blend(c[5], c[7], wy), wz);
        for (v, x) in row.iter_mut().zip(x..) {
            *v = blend(near, far, fade(x % (BACKGROUND * CUBE)));
        }
        for body in &self.bodies {
            if let Some((from, to)) = body.run(z, y, x, x + row.len() as u64) {
                row[from..to].iter_mut().for_each(|v| *v += body.counts);
            }
        }
    }
}

fn blend(a: f64, b: f64, weight: f64) -> f64 {
    a + (b - a) * weight
}

/// Weight of the far end at `offset` voxels into a background cell; flat at both ends, so that cells join smoothly.
fn fade(offset: u64) -> f64 {
    let t = offset as f64 * (1.0 / (BACKGROUND * CUBE) as f64);
    t * t * (3.0 - 2.0 * t)
}

impl Generator for Volume {
    fn describe(&self, meta: &mut ArrayMeta) {
        let units = if self.dtype == DType::U8 { "16 counts" } else { "counts" };
        let pairs = [
            ("description", json!("synthetic tomogram: ellipsoids in a smooth background with photon noise")),
            ("units", json!(units)),
            ("voxel_size", json!([1.0, 1.0, 1.0])),
            ("voxel_size_units", json!("um")),
        ];
        attributes(meta, pairs);
    }

    fn fill(&self, part: &Part, out: &mut [u8]) {
        match self.dtype {
            DType::F64 => self.fill_as::<f64>(part, out, 1.0),
            DType::U8 => self.fill_as::<u8>(part, out, 1.0 / COUNTS_PER_LEVEL),
            DType::U16 => self.fill_as::<u16>(part, out, 1.0),
            DType::I16 => self.fill_as::<i16>(part, out, 1.0),
            DType::I64 => self.fill_as::<i64>(part, out, 1.0),
            _ => self.fill_as::<f32>(part, out, 1.0),
        }
    }
}
