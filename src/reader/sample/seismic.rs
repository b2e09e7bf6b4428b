//! A seismic cube (inline, crossline, time): layers, folded and dipping, cut by a fault, seen through a Ricker wavelet.
//!
//! Reflectors lie in the layers' own time `s`, one per 8 samples at a random place with a random coefficient; they have no
//! end. A trace sees reflector `s` at the time `s + shift(inline, crossline)`: a plane dip plus three folds. A fault plane cuts the
//! cube; behind it everything is thrown down. Amplitudes fall off with time (spreading); white noise is added.
//!
//! The wavelet `(1 - 2 a) e^-a`, `a = (pi f t)^2`, 25 Hz at 4 ms per sample, is tabulated at 128 places between two samples,
//! so a reflector of a trace is one scaled row of the table added to the samples. About 5 ns per sample.

use serde_json::json;

use super::rng::{Key, normal};
use super::{Generator, Kind, Part, Store, attributes, cells, put};
use crate::array::DType;
use crate::operators::ArrayMeta;

pub(super) const KIND: Kind = Kind {
    name: "seismic",
    version: 1,
    axes: &["inline", "crossline", "time"],
    shape: &[256, 256, 512],
    chunks: &[64, 64, 512],
    whole: None,
    dtypes: &[DType::F32, DType::F64],
    build,
};

/// Seconds per sample.
const DT: f64 = 0.004;
/// Peak frequency, Hz.
const PEAK: f64 = 25.0;
/// Samples per reflector.
const LAYER: f64 = 8.0;
/// Places of the wavelet between two samples.
const PHASES: usize = 128;
/// Samples from the middle of the wavelet to where it has vanished (1e-7).
const REACH: i64 = 15;
const TAPS: usize = 2 * REACH as usize + 1;
/// Samples of a trace done together.
const SEGMENT: u64 = 1024;
const NOISE: f64 = 0.06;

/// A fold: waves per trace along inline and crossline, start in radians, height in samples.
struct Fold {
    wave: [f64; 2],
    start: f64,
    height: f64,
}

struct Seismic {
    reflectors: Key,
    noise: Key,
    dtype: DType,
    /// Samples per trace along inline and crossline.
    dip: [f64; 2],
    folds: Vec<Fold>,
    /// Crossline of the fault at inline 0 and time 0, its lean along inline and time, and the throw in samples.
    fault: f64,
    lean: [f64; 2],
    throw: f64,
    /// `PHASES + 1` rows: row `p` is the wavelet around a middle that lies `p / PHASES` behind a sample.
    wavelet: Vec<[f64; TAPS]>,
}

fn build(seed: u64, shape: &[u64], dtype: DType) -> Result<Box<dyn Generator>, String> {
    let key = Key::new(seed, b"seisgeom");
    let fold = |n: u64| {
        let key = key.at(n);
        // wavelengths of about 100, 200 and 400 traces, in any direction
        let (sin, cos) = libm::sincos(key.range(0, 0.0, 2.0 * std::f64::consts::PI));
        let number = 2.0 * std::f64::consts::PI / (key.range(1, 80.0, 130.0) * (1u64 << n) as f64);
        let start = key.range(2, 0.0, 2.0 * std::f64::consts::PI);
        Fold { wave: [number * cos, number * sin], start, height: key.range(3, 1.5, 3.0) * (1u64 << n) as f64 }
    };
    let own = key.at(9);
    Ok(Box::new(Seismic {
        reflectors: Key::new(seed, b"seislayr"),
        noise: Key::new(seed, b"seisnois"),
        dtype,
        dip: [own.range(0, -0.15, 0.15), own.range(1, -0.15, 0.15)],
        folds: (0..3).map(fold).collect(),
        fault: own.range(2, 0.35, 0.55) * shape[1] as f64,
        lean: [own.range(3, -0.3, 0.3), own.range(4, 0.1, 0.25)],
        throw: own.range(5, 10.0, 24.0),
        wavelet: (0..=PHASES).map(|p| wavelet(p as f64 / PHASES as f64)).collect(),
    }))
}

/// The Ricker wavelet at the samples around its middle, which lies `late` samples behind sample `REACH`.
fn wavelet(late: f64) -> [f64; TAPS] {
    std::array::from_fn(|tap| {
        let t = (tap as f64 - REACH as f64 - late) * DT * PEAK * std::f64::consts::PI;
        (1.0 - 2.0 * t * t) * libm::exp(-t * t)
    })
}

impl Seismic {
    /// How far down the layers of a trace are moved, samples.
    fn shift(&self, inline: f64, crossline: f64) -> f64 {
        let plane = self.dip[0] * inline + self.dip[1] * crossline;
        self.folds.iter().fold(plane, |sum, f| sum + f.height * libm::sin(f.wave[0] * inline + f.wave[1] * crossline + f.start))
    }

    /// The first sample of a trace above which it lies behind the fault: the plane leans with time.
    fn fault_time(&self, inline: f64, crossline: f64) -> i64 {
        ((crossline - self.fault - self.lean[0] * inline) / self.lean[1]).ceil() as i64
    }

    /// Adds the reflectors, moved down by `shift`, to the samples `from..from + out.len()` of a trace.
    fn add_reflectors(&self, shift: f64, from: i64, out: &mut [f64]) {
        let end = from + out.len() as i64;
        let layer = |t: i64| ((t as f64 - shift) / LAYER).floor() as i64;
        for k in layer(from - REACH - 1)..=layer(end + REACH + 1) {
            let bits = self.reflectors.bits(k as u64);
            let inside = (bits >> 40) as f64 * (LAYER / (1u64 << 24) as f64);
            let time = k as f64 * LAYER + inside + shift;
            // a whole sample and a place behind it
            let sample = time.floor();
            let phase = ((time - sample) * PHASES as f64 + 0.5) as usize;
            let start = sample as i64 - REACH;
            let (low, high) = (start.max(from), (start + TAPS as i64).min(end));
            if low >= high {
                continue;
            }
            let strength = 0.6 * normal().real(bits as u32) / (1.0 + time.max(0.0) * (1.0 / 600.0));
            let taps = &self.wavelet[phase][(low - start) as usize..(high - start) as usize];
            for (v, tap) in out[(low - from) as usize..(high - from) as usize].iter_mut().zip(taps) {
                *v += strength * tap;
            }
        }
    }

    fn fill_as<T: Store>(&self, part: &Part, out: &mut [u8]) {
        let mut buffer = [0.0; SEGMENT as usize];
        for i in part.start[0]..part.stop[0] {
            for x in part.start[1]..part.stop[1] {
                let shift = self.shift(i as f64, x as f64);
                let fault = self.fault_time(i as f64, x as f64);
                let noise = self.noise.at(i).at(x);
                for (_, t0, t1) in cells(part.start[2], part.stop[2], SEGMENT) {
                    let trace = &mut buffer[..(t1 - t0) as usize];
                    normal().row(noise, t0, trace);
                    trace.iter_mut().for_each(|v| *v *= NOISE);
                    let cut = fault.clamp(t0 as i64, t1 as i64);
                    let (behind, before) = trace.split_at_mut((cut - t0 as i64) as usize);
                    self.add_reflectors(shift + self.throw, t0 as i64, behind);
                    self.add_reflectors(shift, cut, before);
                    put::<T>(trace, part.offset(&[i, x, t0]), out);
                }
            }
        }
    }
}

impl Generator for Seismic {
    fn describe(&self, meta: &mut ArrayMeta) {
        let pairs = [
            ("description", json!("synthetic seismic cube: folded layers, one fault, Ricker wavelet, noise")),
            ("units", json!("1")),
            ("sample_interval", json!(DT * 1000.0)),
            ("sample_interval_units", json!("ms")),
            ("trace_spacing", json!([25.0, 25.0])),
            ("trace_spacing_units", json!("m")),
            ("peak_frequency", json!(PEAK)),
            ("peak_frequency_units", json!("Hz")),
        ];
        attributes(meta, pairs);
    }

    fn fill(&self, part: &Part, out: &mut [u8]) {
        match self.dtype {
            DType::F64 => self.fill_as::<f64>(part, out),
            _ => self.fill_as::<f32>(part, out),
        }
    }

    fn resident_bytes(&self) -> u64 {
        (self.wavelet.len() * size_of::<[f64; TAPS]>()) as u64
    }
}
