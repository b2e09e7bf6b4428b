//! A stack of coregistered SLC images (azimuth, range, image), complex: what a SAR satellite sees every 12 days.
//!
//! The scene is a patchwork: Voronoi cells of jittered sites, about 24 pixels wide, each of one land-cover class. A pixel of
//! a class is a circular complex normal series over the images (so its amplitude is Rayleigh) with coherence
//! `g + (1 - g) exp(-|dt| / tau)`, an AR(1) chain plus a part that stays, times the amplitude the class has in that image.
//! Amplitudes of classes differ by a factor of 1.7 at least: a KS test over the images accepts neighbours of the
//! class and rejects most others. A few pixels are point scatterers: bright, with a stable phase. All carry a linear orbit ramp per
//! image and the deformation of a Mogi source, `v / (1 + r^2 / s^2)^(3/2)` per image.
//!
//! Cost: about 5 ns per value. A chunk that begins at image t also walks the chains of images 0..t.

use num_complex::{Complex32, Complex64};
use serde_json::json;

use super::rng::{Key, Normal, angle, normal};
use super::{Generator, Kind, Part, attributes, cells};
use crate::array::DType;
use crate::operators::ArrayMeta;

#[cfg(test)]
mod tests;

pub(super) const KIND: Kind = Kind {
    name: "slc",
    version: 1,
    axes: &["azimuth", "range", "image"],
    shape: &[2500, 1834, 17],
    chunks: &[1000, 1000, 17],
    whole: Some(2),
    dtypes: &[DType::C64, DType::C128],
    build,
};

/// The chains start at image 0, so a chunk of late images costs as much as all images before it.
const MOST_IMAGES: u64 = 4096;
/// Mean width of a patch, pixels.
const PATCH: u64 = 24;
/// Sites keep this far from their cell's border, so that the nearest site is always one of the 3 x 3 cells around.
const INSET: u64 = 4;
const DAYS: f64 = 12.0;

struct Class {
    /// Root mean square amplitude.
    amplitude: f64,
    /// Relative change over the year.
    season: f64,
    /// Coherence that never decays.
    lasting: f64,
    /// Days after which the rest has decayed to 1/e.
    tau: f64,
    /// Share of point scatterers.
    points: f64,
}

/// Water, crops, grass, forest, rock, town.
const CLASSES: [Class; 6] = [
    Class { amplitude: 0.12, season: 0.10, lasting: 0.0, tau: 3.0, points: 0.0 },
    Class { amplitude: 0.30, season: 0.20, lasting: 0.02, tau: 9.0, points: 0.0005 },
    Class { amplitude: 0.55, season: 0.15, lasting: 0.04, tau: 12.0, points: 0.0005 },
    Class { amplitude: 1.00, season: 0.05, lasting: 0.02, tau: 6.0, points: 0.0002 },
    Class { amplitude: 1.80, season: 0.02, lasting: 0.15, tau: 24.0, points: 0.004 },
    Class { amplitude: 3.20, season: 0.02, lasting: 0.20, tau: 30.0, points: 0.03 },
];

/// One class, ready for the inner loop.
struct Chain {
    /// Correlation of one image with the next, and the weight of what is new.
    rho: f64,
    fresh: f64,
    /// Weights of the lasting and of the decaying part.
    stays: f64,
    moves: f64,
    /// Of 2^32: pixels with a draw below it are point scatterers.
    points: u64,
    /// Amplitude per image.
    amplitude: Vec<f64>,
}

/// Phase of an image: `offset + azimuth * y + range * x`, in 2^-64 turns, wrapping.
struct Ramp {
    offset: u64,
    azimuth: u64,
    range: u64,
}

/// The class of the site nearest to a pixel (the first of equals).
fn nearest(sites: &[Site; 9], y: i64, x: i64) -> usize {
    let distance = |s: &Site| (s.y - y) * (s.y - y) + (s.x - x) * (s.x - x);
    sites.iter().min_by_key(|s| distance(s)).map_or(0, |s| s.class)
}

struct Slc {
    sites: Key,
    pixels: Key,
    chains: Vec<Chain>,
    ramps: Vec<Ramp>,
    /// Centre (azimuth, range) and square of the depth of the Mogi source in pixels; turns per image above it.
    centre: [f64; 2],
    depth2: f64,
    rate: f64,
    is_double: bool,
    normal: &'static Normal,
}

fn build(seed: u64, shape: &[u64], dtype: DType) -> Result<Box<dyn Generator>, String> {
    Ok(Box::new(Slc::new(seed, shape, dtype)?))
}

impl Slc {
    fn new(seed: u64, shape: &[u64], dtype: DType) -> Result<Self, String> {
        if shape[2] > MOST_IMAGES {
            return Err(format!("shape {shape:?}: at most {MOST_IMAGES} images are made"));
        }
        let images = shape[2];
        let key = Key::new(seed, b"slcscene");
        let (height, width) = (shape[0] as f64, shape[1] as f64);
        let chains = CLASSES.iter().enumerate().map(|(c, class)| {
            let rho = libm::exp(-DAYS / class.tau);
            let phase = key.at(1).unit(c as u64);
            let year = |t: u64| libm::sin(2.0 * std::f64::consts::PI * (t as f64 * DAYS / 365.25 + phase));
            Chain {
                rho,
                fresh: libm::sqrt(1.0 - rho * rho),
                stays: libm::sqrt(class.lasting),
                moves: libm::sqrt(1.0 - class.lasting),
                points: (class.points * (1u64 << 32) as f64) as u64,
                amplitude: (0..images).map(|t| class.amplitude * (1.0 + class.season * year(t))).collect(),
            }
        });
        // Up to 1.5 fringes of orbit error over the scene; the first image is the reference. A quarter turn per pixel is the most.
        let slope = |draw: f64, length: f64| angle(((2.0 * draw - 1.0) * 1.5 / length).clamp(-0.25, 0.25));
        let ramps = (0..images).map(|t| match (t, key.at(2).at(t)) {
            (0, _) => Ramp { offset: 0, azimuth: 0, range: 0 },
            (_, k) => Ramp { offset: k.bits(0), azimuth: slope(k.unit(1), height), range: slope(k.unit(2), width) },
        });
        let place = key.at(3);
        let depth = place.range(2, 0.10, 0.18) * height.min(width);
        Ok(Slc {
            sites: Key::new(seed, b"slcsites"),
            pixels: Key::new(seed, b"slcpixel"),
            chains: chains.collect(),
            ramps: ramps.collect(),
            centre: [place.range(0, 0.3, 0.7) * height, place.range(1, 0.3, 0.7) * width],
            depth2: depth * depth,
            rate: -place.range(3, 0.08, 0.14),
            is_double: dtype == DType::C128,
            normal: normal(),
        })
    }
}

/// Where patches come from: a site in array coordinates and its class.
#[derive(Clone, Copy, Default)]
struct Site {
    y: i64,
    x: i64,
    class: usize,
}

impl Slc {
    /// The sites of the 3 x 3 cells around cell (cy, cx).
    fn sites(&self, cy: u64, cx: u64) -> [Site; 9] {
        std::array::from_fn(|n| {
            // cells before the first have numbers too: they wrap
            let (cy, cx) = (cy.wrapping_add(n as u64 / 3).wrapping_sub(1), cx.wrapping_add(n as u64 % 3).wrapping_sub(1));
            let bits = self.sites.at(cy).bits(cx);
            let inside = |part: u64| (INSET + (part & 0xffff) * (PATCH - 2 * INSET) / 0x1_0000) as i64;
            Site {
                y: cy as i64 * PATCH as i64 + inside(bits),
                x: cx as i64 * PATCH as i64 + inside(bits >> 16),
                class: ((bits >> 32) % CLASSES.len() as u64) as usize,
            }
        })
    }

    /// Deformation per image, 2^-64 turns.
    fn deformation(&self, y: u64, x: u64) -> u64 {
        let (dy, dx) = (y as f64 - self.centre[0], x as f64 - self.centre[1]);
        let q = 1.0 + (dy * dy + dx * dx) / self.depth2;
        angle(self.rate / (q * q.sqrt()))
    }

    /// The images `0..until` of a pixel, in order.
    #[inline]
    fn pixel(&self, class: usize, y: u64, x: u64, row: Key, until: u64, mut emit: impl FnMut(u64, f64, f64)) {
        let (chain, key, drift) = (&self.chains[class], row.at(x), self.deformation(y, x));
        let first = key.bits(0);
        let stays = self.normal.complex(first as u32);
        // a point scatterer stands six times above its surroundings, whose speckle it hides
        let (bright, speckle) = match (first >> 32) < chain.points {
            true => (self.normal.phasor(key.bits(1 << 32)).map(|v| 6.0 * v), 0.2),
            false => ([0.0; 2], 1.0),
        };
        let still = [0, 1].map(|i| bright[i] + speckle * chain.stays * stays[i]);
        let moves = speckle * chain.moves;
        let mut state = [0.0; 2];
        let mut pair = 0;
        for t in 0..until {
            pair = if t % 2 == 0 { key.bits(1 + t / 2) } else { pair >> 32 };
            let new = self.normal.complex(pair as u32);
            let fresh = if t == 0 { 1.0 } else { chain.fresh };
            state = [0, 1].map(|i| chain.rho * state[i] + fresh * new[i]);
            let ramp = &self.ramps[t as usize];
            let turn = ramp
                .offset
                .wrapping_add(ramp.azimuth.wrapping_mul(y))
                .wrapping_add(ramp.range.wrapping_mul(x))
                .wrapping_add(drift.wrapping_mul(t));
            let [cos, sin] = self.normal.phasor(turn);
            let amplitude = chain.amplitude[t as usize];
            let [re, im] = [0, 1].map(|i| amplitude * (still[i] + moves * state[i]));
            emit(t, re * cos - im * sin, re * sin + im * cos);
        }
    }

    fn fill_as<T: bytemuck::Pod>(&self, part: &Part, out: &mut [u8], store: impl Fn(f64, f64) -> T) {
        let (first, until, size) = (part.start[2], part.stop[2], size_of::<T>());
        for (cy, y0, y1) in cells(part.start[0], part.stop[0], PATCH) {
            for (cx, x0, x1) in cells(part.start[1], part.stop[1], PATCH) {
                let sites = self.sites(cy, cx);
                for y in y0..y1 {
                    let row = self.pixels.at(y);
                    let mut at = part.offset(&[y, x0, first]);
                    for x in x0..x1 {
                        let class = nearest(&sites, y as i64, x as i64);
                        let pixel = &mut out[at * size..(at + (until - first) as usize) * size];
                        self.pixel(class, y, x, row, until, |t, re, im| {
                            if t >= first {
                                let i = (t - first) as usize * size;
                                pixel[i..i + size].copy_from_slice(bytemuck::bytes_of(&store(re, im)));
                            }
                        });
                        at += part.chunk[2] as usize;
                    }
                }
            }
        }
    }
}

impl Generator for Slc {
    fn describe(&self, meta: &mut ArrayMeta) {
        let pairs = [
            ("description", json!("synthetic stack of coregistered SLC images")),
            ("units", json!("1")),
            ("wavelength", json!(0.0555)),
            ("wavelength_units", json!("m")),
            ("repeat_interval", json!(DAYS)),
            ("repeat_interval_units", json!("days")),
        ];
        attributes(meta, pairs);
    }

    fn fill(&self, part: &Part, out: &mut [u8]) {
        if self.is_double {
            self.fill_as(part, out, Complex64::new);
        } else {
            self.fill_as(part, out, |re, im| Complex32::new(re as f32, im as f32));
        }
    }

    fn resident_bytes(&self) -> u64 {
        (self.ramps.len() * (size_of::<Ramp>() + CLASSES.len() * size_of::<f64>())) as u64
    }
}
