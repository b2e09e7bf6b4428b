//! The Hilbert transform of whole traces: the imaginary part of the analytic signal, as `scipy.signal.hilbert` has it, that is
//! by the discrete Fourier transform of the trace's own length, with no padding: `X[k]` times `-i` for positive frequencies, `i`
//! for negative ones, 0 for the mean and for the frequency of half the sampling rate.
//!
//! Traces of even length are transformed as complex numbers of half that length, `z[j] = x[2j] + i x[2j + 1]`. With E and O the
//! transforms of even and odd samples and `W = e^(-2 pi i / n)`, the transform's even samples have the spectrum `-i W^k O[k]`,
//! its odd ones `-i W^-k E[k]`.

use super::fourier::{Fourier, Wave, root};
use super::traces::Lane;
use crate::simd::{Vectored, widest};

/// The transform of traces of one length.
pub struct Hilbert {
    samples: usize,
    fourier: Fourier,
    /// `W^k` for the first half of the frequencies, of even lengths.
    turns: Vec<[f64; 2]>,
}

impl Hilbert {
    /// For traces of so many samples, at least one.
    pub fn new(samples: usize) -> Self {
        if samples % 2 == 1 {
            return Self { samples, fourier: Fourier::new(samples), turns: Vec::new() };
        }
        let turns = (0..=samples / 4).map(|k| root(k, samples)).collect();
        Self { samples, fourier: Fourier::new(samples / 2), turns }
    }

    /// Complex numbers that `run` needs to work in.
    pub fn work_len(&self) -> usize {
        self.fourier.work_len() + if self.samples % 2 == 1 { self.samples } else { 0 }
    }

    /// The transform of `trace` goes to `quadrature`; both are whole traces.
    pub fn run(&self, trace: &[Lane], quadrature: &mut [Lane], work: &mut [Wave]) {
        if self.samples % 2 == 1 {
            let (data, work) = work.split_at_mut(self.samples);
            data.iter_mut().zip(trace).for_each(|(wave, sample)| *wave = Wave { re: *sample, im: Wave::ZERO.im });
            self.fourier.run(data, work);
            widest(Odd(data));
            self.fourier.run(data, work);
            quadrature.iter_mut().zip(data).for_each(|(sample, wave)| *sample = wave.im);
        } else {
            quadrature.copy_from_slice(trace);
            let data: &mut [Wave] = bytemuck::cast_slice_mut(quadrature);
            self.fourier.run(data, work);
            widest(Even { data, turns: &self.turns });
            self.fourier.run(data, work);
            data.iter_mut().for_each(|wave| *wave = wave.swapped());
        }
    }
}

/// The spectrum of a trace becomes that of its transform, with real and imaginary part changed over for the inverse.
struct Odd<'a>(&'a mut [Wave]);

impl Vectored for Odd<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let scale = 1.0 / self.0.len() as f64;
        let half = self.0.len() / 2;
        let Some((mean, rest)) = self.0.split_first_mut() else { return };
        let (positive, negative) = rest.split_at_mut(half);
        *mean = Wave::ZERO;
        positive.iter_mut().for_each(|wave| *wave = wave.times([0.0, -scale]).swapped());
        negative.iter_mut().for_each(|wave| *wave = wave.times([0.0, scale]).swapped());
    }
}

/// The same for the transform of pairs of samples.
struct Even<'a> {
    data: &'a mut [Wave],
    turns: &'a [[f64; 2]],
}

impl Vectored for Even<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Self { data, turns } = self;
        let n = data.len();
        let scale = 0.5 / n as f64;
        data[0] = Wave::ZERO;
        for k in 1..=n / 2 {
            // E and i O of this frequency, twice; those of frequency n - k are their conjugates.
            let (a, b) = (data[k], data[n - k].conjugate());
            let [re, im] = turns[k];
            let odd = a.plus(b).times([re * scale, -im * scale]);
            let even = a.minus(b).times([re * scale, im * scale]);
            data[k] = odd.minus(even).swapped();
            let mirrored = odd.plus(even);
            // Minus the conjugate.
            data[n - k] = Wave::ZERO.minus(mirrored).conjugate().swapped();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Random;
    use super::super::traces::LANES;
    use super::*;

    #[test]
    fn quadrature_is_the_convolution_with_the_discrete_kernel() {
        let mut random = Random::new(5);
        for n in (1..=40).chain([75, 118, 126, 134, 251, 252, 462]) {
            let trace: Vec<Lane> = (0..n).map(|_| std::array::from_fn(|_| random.unit() - 0.3)).collect();
            let hilbert = Hilbert::new(n);
            let mut quadrature = vec![[0.0; LANES]; n];
            hilbert.run(&trace, &mut quadrature, &mut vec![Wave::ZERO; hilbert.work_len()]);
            // (2/n) sum over positive frequencies of sin(2 pi f d / n)
            let kernel = |d: usize| -> f64 {
                let waves = 1..n.div_ceil(2);
                waves.map(|f| (2.0 * std::f64::consts::PI * (f * d % n) as f64 / n as f64).sin()).sum::<f64>() * 2.0 / n as f64
            };
            let kernel: Vec<f64> = (0..n).map(kernel).collect();
            for (t, got) in quadrature.iter().enumerate() {
                let want: f64 = (0..n).map(|j| trace[j][3] * kernel[(t + n - j) % n]).sum();
                assert!((got[3] - want).abs() < 1e-12, "{n} samples, sample {t}: {} is not {want}", got[3]);
            }
        }
    }

    #[test]
    fn a_trace_does_not_depend_on_its_neighbours() {
        let mut random = Random::new(6);
        for n in [7, 90, 251] {
            let mut trace: Vec<Lane> = (0..n).map(|_| [random.unit(); LANES]).collect();
            let hilbert = Hilbert::new(n);
            let mut work = vec![Wave::ZERO; hilbert.work_len()];
            let mut run = |trace: &[Lane]| {
                let mut out = vec![[0.0; LANES]; n];
                hilbert.run(trace, &mut out, &mut work);
                out.iter().map(|lane| lane[2].to_bits()).collect::<Vec<_>>()
            };
            let alone = run(&trace);
            trace.iter_mut().enumerate().for_each(|(i, lane)| (lane[1], lane[3]) = (f64::NAN, 1e9 * i as f64));
            assert_eq!(run(&trace), alone);
        }
    }
}
