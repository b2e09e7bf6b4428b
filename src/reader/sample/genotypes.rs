//! A genotype matrix (variants, samples): copies of the alternative allele, 0, 1 or 2; 3 is missing (0.5 %).
//!
//! Five populations of unequal size, mixed among the samples. A variant has an ancestral frequency between 1 and 50 %, rare
//! ones being more common (log-uniform); in each population its logit has drifted by a normal step of the population's own
//! width (the Balding-Nichols idea with a cheap law). Genotypes are two independent alleles (Hardy-Weinberg); variants are
//! independent (no linkage).
//!
//! Cost: one 64-bit draw gives four genotypes by comparison with three thresholds, which are made once per variant and
//! population. About 1 ns per value.

use serde_json::json;

use super::rng::{Key, normal};
use super::{Generator, Kind, Part, attributes, cells};
use crate::array::{DType, Scalar};
use crate::operators::ArrayMeta;

pub(super) const KIND: Kind = Kind {
    name: "genotypes",
    version: 1,
    axes: &["variants", "samples"],
    shape: &[100_000, 2000],
    chunks: &[10_000, 2000],
    whole: None,
    dtypes: &[DType::U8],
    build,
};

const MISSING: u8 = 3;
const MISSING_SHARE: f64 = 0.005;
/// A draw for one genotype.
const DRAWS: f64 = 65_536.0;
/// Samples done together; a multiple of 4, the genotypes of one draw.
const SEGMENT: u64 = 4096;

/// Of 256: share of the samples that belong to this population or one before it.
const UP_TO: [u64; POPULATIONS] = [90, 150, 200, 235, 256];
/// Width of the drift of the allele frequency's logit.
const DRIFT: [f64; POPULATIONS] = [0.25, 0.4, 0.5, 0.6, 0.8];
const POPULATIONS: usize = 5;

struct Genotypes {
    samples: Key,
    variants: Key,
    draws: Key,
}

fn build(seed: u64, _shape: &[u64], _dtype: DType) -> Result<Box<dyn Generator>, String> {
    let key = |tag| Key::new(seed, tag);
    Ok(Box::new(Genotypes { samples: key(b"gtsample"), variants: key(b"gtvarian"), draws: key(b"gtdraws.") }))
}

impl Genotypes {
    fn population(&self, sample: u64) -> u8 {
        let share = self.samples.bits(sample) >> 56;
        UP_TO.iter().take_while(|&&end| end <= share).count() as u8
    }

    /// Alternative allele frequency of a variant in every population.
    fn frequencies(&self, variant: u64) -> [f64; POPULATIONS] {
        let key = self.variants.at(variant);
        let ancestral = libm::exp(key.range(0, libm::log(0.01), libm::log(0.5)));
        let odds = ancestral / (1.0 - ancestral);
        std::array::from_fn(|p| {
            let drifted = odds * libm::exp(DRIFT[p] * normal().real(key.bits(1 + p as u64) as u32));
            drifted / (1.0 + drifted)
        })
    }

    /// Draws below the first are 0, below the second 1, below the third 2, others missing.
    fn thresholds(&self, variant: u64) -> [[u32; 3]; POPULATIONS] {
        self.frequencies(variant).map(|p| {
            let known = DRAWS * (1.0 - MISSING_SHARE);
            let none = (1.0 - p) * (1.0 - p);
            [known * none, known * (1.0 - p * p), known].map(|t| (t + 0.5) as u32)
        })
    }
}

impl Generator for Genotypes {
    fn describe(&self, meta: &mut ArrayMeta) {
        meta.missing = Some(Scalar::of(MISSING));
        meta.max_value = Some(u64::from(MISSING));
        let pairs = [
            ("description", json!("synthetic genotypes of five populations: copies of the alternative allele, 3 is missing")),
            ("units", json!("1")),
            ("populations", json!(POPULATIONS)),
            ("missing_value", json!(MISSING)),
        ];
        attributes(meta, pairs);
    }

    fn fill(&self, part: &Part, out: &mut [u8]) {
        for (_, s0, s1) in cells(part.start[1], part.stop[1], SEGMENT) {
            // whole draws of four: samples s0 % 4 before and up to 3 behind are made and left out
            let first = s0 / 4 * 4;
            let mut population = [0u8; SEGMENT as usize];
            let count = (s1.div_ceil(4) * 4 - first) as usize;
            for (p, sample) in population[..count].iter_mut().zip(first..) {
                *p = self.population(sample);
            }
            let skip = (s0 - first) as usize;
            let mut row = [0u8; SEGMENT as usize];
            for variant in part.start[0]..part.stop[0] {
                let thresholds = self.thresholds(variant);
                let key = self.draws.at(variant);
                let quads = row[..count].chunks_exact_mut(4).zip(population[..count].chunks_exact(4));
                for ((values, populations), quad) in quads.zip(first / 4..) {
                    let bits = key.bits(quad);
                    for lane in 0..4 {
                        let draw = (bits >> (16 * lane)) as u32 & 0xffff;
                        let [a, b, c] = thresholds[populations[lane] as usize];
                        values[lane] = u8::from(draw >= a) + u8::from(draw >= b) + u8::from(draw >= c);
                    }
                }
                let at = part.offset(&[variant, s0]);
                let n = (s1 - s0) as usize;
                out[at..at + n].copy_from_slice(&row[skip..skip + n]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, spec};
    use super::*;

    #[test]
    fn frequencies_are_hardy_weinberg_per_population_and_half_a_percent_is_missing() {
        let (variants, samples) = (300u64, 4000u64);
        let values = read_all(&spec("genotypes", &[variants, samples], &[100, 4000]));
        let own =
            Genotypes { samples: Key::new(7, b"gtsample"), variants: Key::new(7, b"gtvarian"), draws: Key::new(7, b"gtdraws.") };
        assert!(values.iter().all(|v| *v <= 3));
        let missing = values.iter().filter(|v| **v == MISSING).count() as f64 / values.len() as f64;
        assert!((missing - 0.005).abs() < 0.0004, "{missing}");
        let groups: Vec<u8> = (0..samples).map(|s| own.population(s)).collect();
        // z scores of the allele count and of the heterozygotes, over variants and populations
        let (mut squares, mut cells) = ([0.0; 2], 0.0);
        for v in 0..variants {
            for (p, f) in own.frequencies(v).into_iter().enumerate() {
                let row = &values[(v * samples) as usize..][..samples as usize];
                let known = row.iter().zip(&groups).filter(|(g, s)| **g != MISSING && **s == p as u8).map(|(g, _)| *g);
                let (n, alleles, het) =
                    known.fold((0.0, 0.0, 0.0), |(n, a, h), g| (n + 1.0, a + f64::from(g), h + f64::from(u8::from(g == 1))));
                let h = 2.0 * f * (1.0 - f);
                squares[0] += (alleles - 2.0 * f * n).powi(2) / (n * h);
                squares[1] += (het - h * n).powi(2) / (n * h * (1.0 - h));
                cells += 1.0;
            }
        }
        for s in squares {
            assert!((s / cells - 1.0).abs() < 0.12, "mean square z {}", s / cells);
        }
    }

    #[test]
    fn populations_are_mixed_in_their_shares_and_drift_apart() {
        let own =
            Genotypes { samples: Key::new(1, b"gtsample"), variants: Key::new(1, b"gtvarian"), draws: Key::new(1, b"gtdraws.") };
        let mut share = [0; POPULATIONS];
        (0..10_000).for_each(|s| share[own.population(s) as usize] += 1);
        for (p, n) in share.into_iter().enumerate() {
            let expected = (UP_TO[p] - if p > 0 { UP_TO[p - 1] } else { 0 }) as f64 / 256.0;
            assert!((f64::from(n) / 1e4 - expected).abs() < 0.02, "{p}: {n}");
        }
        let spread = |p: usize| (0..500).map(|v| (own.frequencies(v)[p] - own.frequencies(v)[0]).abs()).sum::<f64>();
        assert!(spread(4) > 1.2 * spread(1) && spread(1) > 5.0);
    }
}
