//! Normal values and phases made of the process's counter-based random numbers ([`Key`]).
//!
//! Normal values come from a table: the modulus of a complex normal value by its inverse distribution sqrt(-ln(1 - u)) on 4096
//! cells with linear interpolation, its direction by one of 4096 unit phasors. 32 bits give one complex or two real values; the
//! largest real one is 4.55 standard deviations. Tables are made with `libm` (pure Rust) because glibc's functions differ
//! between CPUs; everything else is IEEE addition, multiplication and square root, so the bits are the same everywhere.

use std::sync::LazyLock;

pub(super) use crate::random::Key;

const CELLS: usize = 4096;

/// Tables for normal values and phases; made once per process (128 KiB).
pub(super) struct Normal {
    /// Modulus at the ends of the cells.
    radius: [f64; CELLS + 1],
    /// e^(2 pi i k / 4096)
    phasor: [[f64; 2]; CELLS],
}

static NORMAL: LazyLock<Box<Normal>> = LazyLock::new(|| Box::new(Normal::new()));

/// The process's tables.
pub(super) fn normal() -> &'static Normal {
    &NORMAL
}

impl Normal {
    fn new() -> Self {
        let mut radius = [0.0; CELLS + 1];
        for (i, r) in radius.iter_mut().take(CELLS).enumerate() {
            *r = libm::sqrt(-libm::log1p(-(i as f64) / CELLS as f64));
        }
        // The last cell reaches to infinity: its far end is put where the mean square over the cell is right,
        // (a^2 + ab + b^2) / 3 = a^2 + 1.
        let a = radius[CELLS - 1];
        radius[CELLS] = (libm::sqrt(9.0 * a * a + 12.0) - a) / 2.0;
        let mut phasor = [[0.0; 2]; CELLS];
        for (k, p) in phasor.iter_mut().enumerate() {
            let (sin, cos) = libm::sincos(k as f64 * (2.0 * std::f64::consts::PI / CELLS as f64));
            *p = [cos, sin];
        }
        Self { radius, phasor }
    }

    /// A circular complex normal value (re, im) with mean square modulus 1.
    #[inline]
    pub fn complex(&self, bits: u32) -> [f64; 2] {
        let cell = (bits >> 20) as usize;
        let inside = (f64::from((bits >> 12) & 0xff) + 0.5) * (1.0 / 256.0);
        let r = self.radius[cell] + (self.radius[cell + 1] - self.radius[cell]) * inside;
        let p = self.phasor[(bits & 0xfff) as usize];
        [r * p[0], r * p[1]]
    }

    /// e^(2 pi i turn / 2^64), the angle cut to 1/4096 turn.
    #[inline]
    pub fn phasor(&self, turn: u64) -> [f64; 2] {
        self.phasor[(turn >> 52) as usize]
    }

    /// A real standard normal value.
    pub fn real(&self, bits: u32) -> f64 {
        self.complex(bits)[0] * std::f64::consts::SQRT_2
    }

    /// Standard normal values for the elements `from..` of a row: element `x` depends on `key` and `x` only.
    pub fn row(&self, key: Key, from: u64, out: &mut [f64]) {
        let mut x = from;
        let end = from + out.len() as u64;
        while x < end {
            let (quad, lane) = (x / 4, (x % 4) as usize);
            let bits = key.bits(quad);
            let [a, b] = self.complex(bits as u32);
            let [c, d] = self.complex((bits >> 32) as u32);
            let n = (4 - lane).min((end - x) as usize);
            let at = (x - from) as usize;
            for (o, v) in out[at..at + n].iter_mut().zip(&[a, b, c, d][lane..]) {
                *o = v * std::f64::consts::SQRT_2;
            }
            x += n as u64;
        }
    }
}

/// A fraction of a turn (|turn| < 0.5) as a 64-bit angle: wrapping products with integers stay exact.
pub(super) fn angle(turn: f64) -> u64 {
    (turn * 18_446_744_073_709_551_616.0) as i64 as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_have_the_moments_of_a_normal_distribution() {
        let mut v = vec![0.0; 400_000];
        normal().row(Key::new(3, b"normals."), 0, &mut v);
        let moment = |p: i32| v.iter().map(|x: &f64| x.powi(p)).sum::<f64>() / v.len() as f64;
        assert!(moment(1).abs() < 0.006, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.01, "{}", moment(2));
        assert!(moment(3).abs() < 0.03, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.08, "{}", moment(4));
        // neighbours are independent
        let lag = v.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / v.len() as f64;
        assert!(lag.abs() < 0.006, "{lag}");
    }

    #[test]
    fn an_element_of_a_row_does_not_depend_on_where_the_row_is_cut() {
        let key = Key::new(1, b"normals.");
        let mut whole = [0.0; 41];
        normal().row(key, 0, &mut whole);
        for from in 0..9 {
            for to in from..41 {
                let mut part = vec![0.0; to - from];
                normal().row(key, from as u64, &mut part);
                assert_eq!(part, whole[from..to]);
            }
        }
    }

    #[test]
    fn units_fill_their_range_and_keys_differ() {
        let key = Key::new(0, b"units...");
        let units: Vec<f64> = (0..10_000).map(|x| key.at(x).unit(0)).collect();
        let mean = units.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.01 && units.iter().all(|u| (0.0..1.0).contains(u)), "{mean}");
        assert_ne!(Key::new(0, b"units...").bits(0), Key::new(1, b"units...").bits(0));
        assert_ne!(Key::new(0, b"units...").bits(0), Key::new(0, b"other...").bits(0));
        assert_ne!(key.at(5).bits(0), key.bits(5));
    }
}
