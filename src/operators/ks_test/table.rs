//! Distances and p values by count, and the tables that turn counts into output values.

use super::Convention;

/// dist(k) = k / N for k = 0..=N, in float64.
pub fn distances(images: usize) -> Vec<f64> {
    (0..=images).map(|k| k as f64 / images as f64).collect()
}

/// p(k) for k = 0..=N, in float64: with `en = sqrt(N / 2)` and `x = (en + 0.12 + 0.11 / en) * k / N`,
/// `2 * sum((-1)^(i-1) * exp(-2 x^2 i^2))` over i = 1..=100, stopped when a term no longer changes the sum (Numerical
/// Recipes' `probks`). `libm`'s exponential, so that the last bit is the same on every machine.
pub fn p_values(images: usize, convention: Convention) -> Vec<f64> {
    let en = (images as f64 / 2.0).sqrt();
    let factor = en + 0.12 + 0.11 / en;
    let mut table: Vec<f64> = distances(images).iter().map(|dist| series(factor * dist)).collect();
    if convention == Convention::Standard {
        // The series has no limit there.
        table[0] = 1.0;
    }
    table
}

fn series(x: f64) -> f64 {
    let mut sum = 0.0;
    let mut sign = 2.0;
    for i in 1..=100 {
        let i = f64::from(i);
        let next = sum + sign * libm::exp(-2.0 * x * x * i * i);
        if next == sum {
            break;
        }
        sum = next;
        sign = -sign;
    }
    sum
}

/// What each count becomes in an output: by count, 255 (no test) is NaN.
pub struct Expansion {
    pub single: [f32; 256],
    pub double: [f64; 256],
    /// For cells outside the image, where it differs from the 255 of a NaN pixel.
    pub outside: Option<f64>,
}

impl Expansion {
    pub fn new(table: &[f64], convention: Convention) -> Self {
        let mut double = [f64::NAN; 256];
        double[..table.len()].copy_from_slice(table);
        let outside = (convention == Convention::Decorrelation).then_some(-1.0);
        Self { single: double.map(|v| v as f32), double, outside }
    }
}
