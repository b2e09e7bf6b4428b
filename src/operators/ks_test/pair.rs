//! The count k of one pair of sorted samples: vectors lie along the samples, and t is searched.
//!
//! Whether `k > t` takes N / 16 steps here, and about log2(N) of such questions settle k, fewer from a good guess: neighbouring
//! pairs have similar counts. Sixteen pairs side by side (see `kernel`) ask once for each t up to the largest k among them,
//! which grows as the root of N, so few images are faster there and many here.

use super::kernel::Key;

/// Values compared at once.
const STEP: usize = 16;

/// From this many images on it is the faster way, measured with AVX2 and AVX-512: side by side takes 12 and 9 ns a pair at 40
/// images, 24 and 18 at 60, 290 and 240 at 254; this one 14 and 12, 20 and 15, 76 and 55.
pub const PAYS: usize = 56;

/// Length of a sample with what vectors reach beyond it.
pub fn sample_len(images: usize) -> usize {
    images.next_multiple_of(STEP) + STEP
}

/// The first t without `k > t`: steps away from the guess grow until it is passed, then the rest is halved.
#[inline(always)]
pub fn search(images: usize, guess: u8, is_beyond: impl Fn(usize) -> bool) -> u8 {
    let guess = usize::from(guess).min(images);
    let mut step = 2;
    let (mut low, mut high);
    if guess < images && is_beyond(guess) {
        (low, high) = (guess + 1, images);
        while low + step < high {
            if !is_beyond(low + step - 1) {
                high = low + step - 1;
                break;
            }
            low += step;
            step *= 2;
        }
    } else {
        (low, high) = (0, guess);
        while high > step {
            if is_beyond(high - step) {
                low = high - step + 1;
                break;
            }
            high -= step;
            step *= 2;
        }
    }
    while low < high {
        let middle = (low + high) / 2;
        match is_beyond(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low as u8
}

/// Whether `k > t`, by the rule of `kernel`; `t` is below the number of images.
pub fn is_beyond<K: Key>(u: &[K], v: &[K], images: usize, t: usize) -> bool {
    (t..images).any(|i| u[i] < v[i - t] || v[i] < u[i - t])
}
