//! The discrete Fourier transform of eight traces at once, of any length, in double precision.
//!
//! `X[k] = sum over j of x[j] e^(-2 pi i j k / n)`, by Stockham's algorithm (one pass per factor of `n`, sorted as it goes) with
//! factors 4, 2 and odd primes; lengths with a large prime factor become a convolution of a power of two (L. Bluestein, A linear
//! filtering approach to the computation of discrete Fourier transform, IEEE Trans. Audio Electroacoust. 18, 1970).
//!
//! No FFT crate: rustfft and realfft choose their code by CPU and take their roots of unity from the system's sine, whose last
//! bits differ by CPU, and results may not (I1). With one trace a lane all vector widths do the same arithmetic, nothing is
//! shuffled, and the roots come from `libm`.

use super::traces::{LANES, Lane};
use crate::simd::{Vectored, widest};

/// A complex number for each of eight traces.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Wave {
    pub re: Lane,
    pub im: Lane,
}

impl Wave {
    pub const ZERO: Self = Self { re: [0.0; LANES], im: [0.0; LANES] };

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let mut out = Self::ZERO;
        for l in 0..LANES {
            out.re[l] = f(self.re[l], other.re[l]);
            out.im[l] = f(self.im[l], other.im[l]);
        }
        out
    }

    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    /// `self + other * by`
    #[inline(always)]
    fn plus_scaled(self, other: Self, by: f64) -> Self {
        self.zip(other, |a, b| a + b * by)
    }

    /// The product with a complex number.
    #[inline(always)]
    pub fn times(self, [re, im]: [f64; 2]) -> Self {
        let mut out = Self::ZERO;
        for l in 0..LANES {
            out.re[l] = self.re[l] * re - self.im[l] * im;
            out.im[l] = self.re[l] * im + self.im[l] * re;
        }
        out
    }

    /// Real and imaginary part changed over. An inverse transform is a forward one between two of these.
    #[inline(always)]
    pub fn swapped(self) -> Self {
        Self { re: self.im, im: self.re }
    }

    #[inline(always)]
    pub fn conjugate(self) -> Self {
        let mut im = self.im;
        im.iter_mut().for_each(|v| *v = -*v);
        Self { re: self.re, im }
    }
}

/// The root of unity `e^(-2 pi i k / n)`.
pub fn root(k: usize, n: usize) -> [f64; 2] {
    let (k, n) = (k % n, n as f64);
    // Small angles round less.
    let turn = if k as f64 * 2.0 > n { k as f64 - n } else { k as f64 };
    let (sin, cos) = libm::sincos(2.0 * std::f64::consts::PI * turn / n);
    [cos, -sin]
}

/// The largest prime factor that has a pass of its own: beyond, its square of products costs more than a convolution.
const LARGEST_PRIME: usize = 61;

/// A transform of one length.
pub struct Fourier {
    n: usize,
    way: Way,
}

enum Way {
    Passes(Vec<Pass>),
    Convolution {
        /// Of a power of two that holds the convolution without wrapping.
        inner: Box<Fourier>,
        /// `e^(-pi i k^2 / n)`
        chirp: Vec<[f64; 2]>,
        /// The transform of the chirp's conjugate, both ways around zero, over the inner length.
        kernel: Vec<[f64; 2]>,
    },
}

/// One factor: `stride * radix * parts` numbers.
struct Pass {
    radix: usize,
    stride: usize,
    parts: usize,
    /// `e^(-2 pi i j q / (radix * parts))` for q = 1 .. radix, part by part.
    twiddles: Vec<[f64; 2]>,
    /// `e^(-2 pi i k / radix)`
    roots: Vec<[f64; 2]>,
}

impl Fourier {
    /// For `n` numbers, `n` > 0.
    pub fn new(n: usize) -> Self {
        let factors = factors(n);
        if factors.iter().any(|p| *p > LARGEST_PRIME) {
            return Self { n, way: convolution(n) };
        }
        let (mut stride, mut rest) = (1, n);
        let passes = factors.into_iter().map(|radix| {
            let parts = rest / radix;
            let twiddles = (0..parts).flat_map(|j| (1..radix).map(move |q| root(j * q, radix * parts))).collect();
            let pass = Pass { radix, stride, parts, twiddles, roots: (0..radix).map(|k| root(k, radix)).collect() };
            (stride, rest) = (stride * radix, parts);
            pass
        });
        Self { n, way: Way::Passes(passes.collect()) }
    }

    /// Numbers that `run` needs to work in.
    pub fn work_len(&self) -> usize {
        match &self.way {
            Way::Passes(_) => self.n,
            Way::Convolution { inner, .. } => 2 * inner.n,
        }
    }

    /// Transforms `data`; `work` holds anything, before and after.
    pub fn run(&self, data: &mut [Wave], work: &mut [Wave]) {
        let data = &mut data[..self.n];
        match &self.way {
            Way::Passes(passes) => {
                let work = &mut work[..self.n];
                let (mut from, mut to) = (&mut *data, &mut *work);
                for pass in passes {
                    widest(Step { pass, from: &*from, to: &mut *to });
                    std::mem::swap(&mut from, &mut to);
                }
                if passes.len() % 2 == 1 {
                    data.copy_from_slice(work);
                }
            }
            Way::Convolution { inner, chirp, kernel } => {
                let (padded, work) = work.split_at_mut(inner.n);
                padded[self.n..].fill(Wave::ZERO);
                padded.iter_mut().zip(data.iter().zip(chirp)).for_each(|(p, (x, c))| *p = x.times(*c));
                inner.run(padded, work);
                padded.iter_mut().zip(kernel).for_each(|(p, k)| *p = p.times(*k).swapped());
                inner.run(padded, work);
                data.iter_mut().zip(padded.iter().zip(chirp)).for_each(|(x, (p, c))| *x = p.swapped().times(*c));
            }
        }
    }
}

/// Fours first, then at most one two, then odd primes.
fn factors(n: usize) -> Vec<usize> {
    let (mut list, mut rest, mut factor) = (Vec::new(), n, 4);
    while rest > 1 {
        if rest % factor == 0 {
            list.push(factor);
            rest /= factor;
        } else {
            factor = match factor {
                4 => 2,
                2 => 3,
                odd if odd * odd > rest => rest,
                odd => odd + 2,
            };
        }
    }
    list
}

fn convolution(n: usize) -> Way {
    let inner = Fourier::new((2 * n - 1).next_power_of_two());
    // Squares are taken modulo a whole turn, which keeps the angles small.
    let chirp: Vec<[f64; 2]> = (0..n).map(|k| root((k as u128 * k as u128 % (2 * n as u128)) as usize, 2 * n)).collect();
    let mut kernel = vec![Wave::ZERO; inner.n];
    for (k, [re, im]) in chirp.iter().enumerate() {
        let value = Wave { re: [*re; LANES], im: [-im; LANES] };
        kernel[k] = value;
        kernel[(inner.n - k) % inner.n] = value;
    }
    inner.run(&mut kernel, &mut vec![Wave::ZERO; inner.n]);
    // What the inverse transform divides by.
    let scale = 1.0 / inner.n as f64;
    let kernel = kernel.iter().map(|w| [w.re[0] * scale, w.im[0] * scale]).collect();
    Way::Convolution { inner: Box::new(inner), chirp, kernel }
}

struct Step<'a> {
    pass: &'a Pass,
    from: &'a [Wave],
    to: &'a mut [Wave],
}

impl Vectored for Step<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Pass { radix, stride, parts, twiddles, roots } = self.pass;
        let (from, to, radix, stride, parts) = (self.from, self.to, *radix, *stride, *parts);
        for j in 0..parts {
            let twiddles = &twiddles[j * (radix - 1)..][..radix - 1];
            for k in 0..stride {
                let get = |r: usize| from[k + stride * (j + parts * r)];
                let put = |q: usize, value: Wave| {
                    to[k + stride * (radix * j + q)] = if q == 0 { value } else { value.times(twiddles[q - 1]) };
                };
                match radix {
                    2 => two(get, put),
                    3 => odd::<1>(1, roots, get, put),
                    4 => four(get, put),
                    5 => odd::<2>(2, roots, get, put),
                    7 => odd::<3>(3, roots, get, put),
                    11 => odd::<5>(5, roots, get, put),
                    13 => odd::<6>(6, roots, get, put),
                    _ => odd::<{ LARGEST_PRIME / 2 }>(radix / 2, roots, get, put),
                }
            }
        }
    }
}

#[inline(always)]
fn two(get: impl Fn(usize) -> Wave, mut put: impl FnMut(usize, Wave)) {
    let (a, b) = (get(0), get(1));
    put(0, a.plus(b));
    put(1, a.minus(b));
}

#[inline(always)]
fn four(get: impl Fn(usize) -> Wave, mut put: impl FnMut(usize, Wave)) {
    let (a, b) = (get(0).plus(get(2)), get(0).minus(get(2)));
    let (c, d) = (get(1).plus(get(3)), get(1).minus(get(3)));
    // -i times d
    let d = d.swapped().conjugate();
    put(0, a.plus(c));
    put(1, b.plus(d));
    put(2, a.minus(c));
    put(3, b.minus(d));
}

/// A transform of `2 half + 1` numbers, `half` at most `H`: what lies at equal distance from the first is added and subtracted
/// first, so that two results come from the same products.
#[inline(always)]
fn odd<const H: usize>(half: usize, roots: &[[f64; 2]], get: impl Fn(usize) -> Wave, mut put: impl FnMut(usize, Wave)) {
    let n = 2 * half + 1;
    let first = get(0);
    let (mut sums, mut differences) = ([Wave::ZERO; H], [Wave::ZERO; H]);
    let mut total = first;
    for r in 0..half {
        let (a, b) = (get(1 + r), get(n - 1 - r));
        (sums[r], differences[r]) = (a.plus(b), a.minus(b));
        total = total.plus(sums[r]);
    }
    put(0, total);
    for q in 1..=half {
        let (mut a, mut b) = (first, Wave::ZERO);
        let mut turn = 0;
        for r in 0..half {
            turn = if turn + q >= n { turn + q - n } else { turn + q };
            a = a.plus_scaled(sums[r], roots[turn][0]);
            b = b.plus_scaled(differences[r], roots[turn][1]);
        }
        // i times b
        let b = b.conjugate().swapped();
        put(q, a.plus(b));
        put(n - q, a.minus(b));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Random;
    use super::*;

    #[test]
    fn transforms_of_any_length_are_the_sum_with_any_vectors() {
        let mut random = Random::new(21);
        for n in (1..=70).chain([97, 128, 134, 143, 225, 231, 240, 251, 360]) {
            let data: Vec<Wave> = (0..n)
                .map(|_| Wave { re: std::array::from_fn(|_| random.unit() - 0.5), im: std::array::from_fn(|_| random.unit()) })
                .collect();
            let fourier = Fourier::new(n);
            let mut seen: Vec<Vec<Wave>> = Vec::new();
            crate::simd::both_paths(|_| {
                let mut got = data.clone();
                fourier.run(&mut got, &mut vec![Wave::ZERO; fourier.work_len()]);
                seen.push(got);
            });
            for (k, got) in seen[0].iter().enumerate() {
                for lane in [0, LANES - 1] {
                    let (mut re, mut im) = (0.0, 0.0);
                    for (j, x) in data.iter().enumerate() {
                        let (sin, cos) = (2.0 * std::f64::consts::PI * (j * k % n) as f64 / n as f64).sin_cos();
                        re += x.re[lane] * cos + x.im[lane] * sin;
                        im += x.im[lane] * cos - x.re[lane] * sin;
                    }
                    let error = (got.re[lane] - re).abs().max((got.im[lane] - im).abs());
                    assert!(error < 1e-13 * n as f64, "{n} numbers, result {k} is {error:e} off");
                }
            }
            let bits = |list: &[Wave]| bytemuck::cast_slice::<Wave, u64>(list).to_vec();
            assert!(seen.iter().all(|list| bits(list) == bits(&seen[0])), "{n} numbers");
        }
    }
}
