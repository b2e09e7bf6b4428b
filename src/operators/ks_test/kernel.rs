//! The count k of sixteen pairs of sorted samples at once, whether it stays below a limit, and the sort.
//!
//! With u and v sorted, `k > t` exactly when for some i in t..N: `u[i] < v[i - t]` or `v[i] < u[i - t]`. (At u[i] at least
//! i + 1 values of u and at most i - t of v are reached, a difference above t; and so for v.) So k is the number of t with
//! such an i; the condition for t + 1 implies the one for t, so the search stops at the first t without. No branch depends
//! on single pairs, so pairs of neighbouring pixels go side by side: samples lie as [image][column].

use bytemuck::Pod;

use super::pair;

/// Pairs computed at once.
pub const LANES: usize = 16;

/// Which code computes: all forms give the same integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Plain,
    Avx2,
    Avx512,
}

/// The fastest form that may be used here.
pub fn form() -> Form {
    #[cfg(target_arch = "x86_64")]
    {
        if crate::simd::has_avx512() {
            return Form::Avx512;
        }
        if crate::simd::has_avx2() {
            return Form::Avx2;
        }
    }
    Form::Plain
}

/// A sortable amplitude. NaN never gets here.
pub trait Key: Pod + PartialOrd + Send + Sync {
    /// Exact for every value a block of this key type holds.
    fn of(value: f64) -> Self;

    /// k of columns `0..LANES` of `u` against those of `v`; image `i` of a column is `stride * i` further on. `form` comes
    /// from [`form`].
    fn counts(form: Form, u: &[Self], v: &[Self], stride: usize, images: usize) -> [u8; LANES];

    /// Bit by column, the first lowest, whether k is at most `limit`.
    fn within(form: Form, u: &[Self], v: &[Self], stride: usize, images: usize, limit: usize) -> u16;

    /// k of one pair of samples of [`pair::sample_len`], infinite beyond their values; `guess` is where the search begins.
    fn pair(form: Form, u: &[Self], v: &[Self], images: usize, guess: u8) -> u8;
}

fn row<K: Key>(sample: &[K], stride: usize, image: usize) -> [K; LANES] {
    std::array::from_fn(|lane| sample[image * stride..][..LANES][lane])
}

/// Lanes with `k > t`, one or zero.
fn beyond<K: Key>(u: &[K], v: &[K], stride: usize, images: usize, t: usize) -> [u32; LANES] {
    let mut hit = [0u32; LANES];
    for i in t..images {
        let (a, b) = (row(u, stride, i), row(v, stride, i - t));
        let (c, d) = (row(v, stride, i), row(u, stride, i - t));
        for lane in 0..LANES {
            hit[lane] |= u32::from(a[lane] < b[lane]) | u32::from(c[lane] < d[lane]);
        }
    }
    hit
}

/// The plain form of [`Key::counts`].
pub fn counts<K: Key>(u: &[K], v: &[K], stride: usize, images: usize) -> [u8; LANES] {
    let mut k = [0u8; LANES];
    for t in 0..images {
        let hit = beyond(u, v, stride, images, t);
        if hit == [0; LANES] {
            break;
        }
        for lane in 0..LANES {
            k[lane] += hit[lane] as u8;
        }
    }
    k
}

/// The plain form of [`Key::within`].
pub fn within<K: Key>(u: &[K], v: &[K], stride: usize, images: usize, limit: usize) -> u16 {
    let hit = beyond(u, v, stride, images, limit);
    hit.iter().enumerate().fold(0, |bits, (lane, hit)| bits | u16::from(*hit == 0) << lane)
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;

    use super::super::pair;

    /// The forms of one kind of vector. Masks of lanes are `$mask`; `$add` adds them to counts.
    macro_rules! forms {
        ($counts:ident, $within:ident, $pair:ident, $features:literal, $key:ty, $lanes:literal, $load:ident, $less:expr, $mask:ty, $any:expr,
         $start:expr, $add:expr, $store:expr) => {
            /// Two values of t in one sweep: the rows that `t + 1` compares with are those that `t` loaded the step before.
            #[target_feature(enable = $features)]
            pub fn $counts(u: &[$key], v: &[$key], stride: usize, images: usize) -> [u8; $lanes] {
                let needed = images.saturating_sub(1) * stride + $lanes;
                assert!(u.len() >= needed && v.len() >= needed);
                // SAFETY: rows 0..images of both slices are inside them, as asserted.
                let u_row = |i: usize| unsafe { $load(u.as_ptr().add(i * stride)) };
                let v_row = |i: usize| unsafe { $load(v.as_ptr().add(i * stride)) };
                let mut k = $start;
                let mut t = 0;
                while t < images {
                    let (mut u_low, mut v_low) = (u_row(0), v_row(0));
                    let mut here: $mask = $less(u_row(t), v_low, v_row(t), u_low);
                    let mut next: $mask = $less(u_low, u_low, u_low, u_low);
                    for i in t + 1..images {
                        let (u_i, v_i) = (u_row(i), v_row(i));
                        next = $any(next, $less(u_i, v_low, v_i, u_low));
                        (u_low, v_low) = (u_row(i - t), v_row(i - t));
                        here = $any(here, $less(u_i, v_low, v_i, u_low));
                    }
                    k = $add(k, here);
                    k = $add(k, next);
                    if Bits::bits(next) == 0 {
                        break;
                    }
                    t += 2;
                }
                $store(k)
            }

            #[target_feature(enable = $features)]
            pub fn $within(u: &[$key], v: &[$key], stride: usize, images: usize, limit: usize) -> u16 {
                let needed = images.saturating_sub(1) * stride + $lanes;
                assert!(u.len() >= needed && v.len() >= needed);
                const ALL: u16 = (0xffff_u32 >> (16 - $lanes)) as u16;
                if limit >= images {
                    return ALL;
                }
                // SAFETY: as above.
                let u_row = |i: usize| unsafe { $load(u.as_ptr().add(i * stride)) };
                let v_row = |i: usize| unsafe { $load(v.as_ptr().add(i * stride)) };
                let mut beyond: $mask = $less(u_row(limit), v_row(0), v_row(limit), u_row(0));
                let mut i = limit + 1;
                while i < images {
                    // Nothing changes once every pair is beyond it.
                    if Bits::bits(beyond) == ALL {
                        return 0;
                    }
                    let stop = images.min(i + STEP);
                    while i < stop {
                        beyond = $any(beyond, $less(u_row(i), v_row(i - limit), v_row(i), u_row(i - limit)));
                        i += 1;
                    }
                }
                !Bits::bits(beyond) & ALL
            }

            #[target_feature(enable = $features)]
            pub fn $pair(u: &[$key], v: &[$key], images: usize, guess: u8) -> u8 {
                let len = pair::sample_len(images);
                assert!(u.len() >= len && v.len() >= len);
                pair::search(images, guess, |t| {
                    // SAFETY: at most images - 1 + $lanes of a sample is loaded, and t is below images.
                    let at = |s: &[$key], i: usize| unsafe { $load(s.as_ptr().add(i)) };
                    let mut beyond: $mask = $less(at(u, t), at(v, 0), at(v, t), at(u, 0));
                    for i in (t + $lanes..images).step_by($lanes) {
                        beyond = $any(beyond, $less(at(u, i), at(v, i - t), at(v, i), at(u, i - t)));
                    }
                    Bits::bits(beyond) != 0
                })
            }
        };
    }

    /// Images between two looks at whether every pair is decided.
    const STEP: usize = 8;

    /// A mask of lanes as bits.
    trait Bits {
        fn bits(self) -> u16;
    }
    impl Bits for __mmask16 {
        #[inline(always)]
        fn bits(self) -> u16 {
            self
        }
    }
    impl Bits for __mmask8 {
        #[inline(always)]
        fn bits(self) -> u16 {
            self.into()
        }
    }
    impl Bits for __m256 {
        #[inline(always)]
        fn bits(self) -> u16 {
            // SAFETY: only the AVX2 forms have such masks.
            unsafe { _mm256_movemask_ps(self) as u16 }
        }
    }
    impl Bits for __m256d {
        #[inline(always)]
        fn bits(self) -> u16 {
            // SAFETY: as above.
            unsafe { _mm256_movemask_pd(self) as u16 }
        }
    }

    // A true lane of these masks is all ones: minus one.
    forms!(
        singles_256,
        singles_within_256,
        singles_pair_256,
        "avx2",
        f32,
        8,
        _mm256_loadu_ps,
        |a, b, c, d| _mm256_or_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b), _mm256_cmp_ps::<_CMP_LT_OQ>(c, d)),
        __m256,
        |a, b| _mm256_or_ps(a, b),
        _mm256_setzero_si256(),
        |k, mask| _mm256_sub_epi32(k, _mm256_castps_si256(mask)),
        |k| {
            let mut counts = [0i32; 8];
            // SAFETY: the array is as long as the vector.
            unsafe { _mm256_storeu_si256(counts.as_mut_ptr().cast(), k) };
            counts.map(|count| count as u8)
        }
    );
    forms!(
        doubles_256,
        doubles_within_256,
        doubles_pair_256,
        "avx2",
        f64,
        4,
        _mm256_loadu_pd,
        |a, b, c, d| _mm256_or_pd(_mm256_cmp_pd::<_CMP_LT_OQ>(a, b), _mm256_cmp_pd::<_CMP_LT_OQ>(c, d)),
        __m256d,
        |a, b| _mm256_or_pd(a, b),
        _mm256_setzero_si256(),
        |k, mask| _mm256_sub_epi64(k, _mm256_castpd_si256(mask)),
        |k| {
            let mut counts = [0i64; 4];
            // SAFETY: the array is as long as the vector.
            unsafe { _mm256_storeu_si256(counts.as_mut_ptr().cast(), k) };
            counts.map(|count| count as u8)
        }
    );
    forms!(
        singles_512,
        singles_within_512,
        singles_pair_512,
        "avx512f,avx512bw,avx512vl",
        f32,
        16,
        _mm512_loadu_ps,
        |a, b, c, d| _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) | _mm512_cmp_ps_mask::<_CMP_LT_OQ>(c, d),
        __mmask16,
        |a: __mmask16, b: __mmask16| a | b,
        _mm_setzero_si128(),
        |k, mask| _mm_sub_epi8(k, _mm_movm_epi8(mask)),
        |k| {
            let mut counts = [0u8; 16];
            // SAFETY: the array is as long as the vector.
            unsafe { _mm_storeu_si128(counts.as_mut_ptr().cast(), k) };
            counts
        }
    );
    forms!(
        doubles_512,
        doubles_within_512,
        doubles_pair_512,
        "avx512f,avx512bw,avx512vl",
        f64,
        8,
        _mm512_loadu_pd,
        |a, b, c, d| _mm512_cmp_pd_mask::<_CMP_LT_OQ>(a, b) | _mm512_cmp_pd_mask::<_CMP_LT_OQ>(c, d),
        __mmask8,
        |a: __mmask8, b: __mmask8| a | b,
        _mm_setzero_si128(),
        |k, mask: __mmask8| _mm_sub_epi8(k, _mm_movm_epi8(mask.into())),
        |k| {
            let mut counts = [0u8; 16];
            // SAFETY: the array is as long as the vector.
            unsafe { _mm_storeu_si128(counts.as_mut_ptr().cast(), k) };
            std::array::from_fn(|lane| counts[lane])
        }
    );
}

/// Vectors of `$lanes` side by side until there are [`LANES`].
#[cfg(target_arch = "x86_64")]
macro_rules! side_by_side {
    ($counts:path, $lanes:literal, $u:expr, $v:expr, $($more:expr),*) => {{
        let mut all = [0u8; LANES];
        for (n, part) in all.chunks_exact_mut($lanes).enumerate() {
            // SAFETY: the form says that the machine has what the function needs.
            part.copy_from_slice(&unsafe { $counts(&$u[n * $lanes..], &$v[n * $lanes..], $($more),*) });
        }
        all
    }};
    (bits $within:path, $lanes:literal, $u:expr, $v:expr, $($more:expr),*) => {
        (0..LANES / $lanes).fold(0u16, |bits, n| {
            // SAFETY: as above.
            bits | unsafe { $within(&$u[n * $lanes..], &$v[n * $lanes..], $($more),*) } << (n * $lanes)
        })
    };
}

macro_rules! key {
    ($key:ty, $of:expr, $counts_256:ident, $within_256:ident, $pair_256:ident, $lanes_256:literal, $counts_512:ident,
     $within_512:ident, $pair_512:ident, $lanes_512:literal) => {
        impl Key for $key {
            fn of(value: f64) -> Self {
                $of(value)
            }

            #[inline]
            fn counts(form: Form, u: &[$key], v: &[$key], stride: usize, images: usize) -> [u8; LANES] {
                match form {
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx512 => side_by_side!(vector::$counts_512, $lanes_512, u, v, stride, images),
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx2 => side_by_side!(vector::$counts_256, $lanes_256, u, v, stride, images),
                    _ => counts(u, v, stride, images),
                }
            }

            #[inline]
            fn within(form: Form, u: &[$key], v: &[$key], stride: usize, images: usize, limit: usize) -> u16 {
                match form {
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx512 => side_by_side!(bits vector::$within_512, $lanes_512, u, v, stride, images, limit),
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx2 => side_by_side!(bits vector::$within_256, $lanes_256, u, v, stride, images, limit),
                    _ => within(u, v, stride, images, limit),
                }
            }

            #[inline]
            fn pair(form: Form, u: &[$key], v: &[$key], images: usize, guess: u8) -> u8 {
                match form {
                    // SAFETY: the form says that the machine has what the function needs.
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx512 => unsafe { vector::$pair_512(u, v, images, guess) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Form::Avx2 => unsafe { vector::$pair_256(u, v, images, guess) },
                    _ => pair::search(images, guess, |t| pair::is_beyond(u, v, images, t)),
                }
            }
        }
    };
}
key!(
    f32,
    |value| value as f32,
    singles_256,
    singles_within_256,
    singles_pair_256,
    8,
    singles_512,
    singles_within_512,
    singles_pair_512,
    16
);
key!(
    f64,
    |value| value,
    doubles_256,
    doubles_within_256,
    doubles_pair_256,
    4,
    doubles_512,
    doubles_within_512,
    doubles_pair_512,
    8
);
/// Comparators that sort any `images` values (Batcher's merge exchange; Knuth, volume 3, algorithm 5.2.2M).
pub fn sorting_network(images: usize) -> Vec<(u8, u8)> {
    let mut network = Vec::new();
    if images < 2 {
        return network;
    }
    let top = images.next_power_of_two() / 2;
    let mut p = top;
    while p > 0 {
        let (mut q, mut r, mut d) = (top, 0, p);
        loop {
            network.extend((0..images - d).filter(|i| i & p == r).map(|i| (i as u8, (i + d) as u8)));
            if q == p {
                break;
            }
            (d, q, r) = (q - p, q / 2, p);
        }
        p /= 2;
    }
    network
}

/// Sorts every column of `keys` ([image][column], rows `stride` apart): a comparator works on all columns at once.
pub fn sort_columns<K: Key>(keys: &mut [K], stride: usize, network: &[(u8, u8)]) {
    for &(low, high) in network {
        let (head, tail) = keys.split_at_mut(usize::from(high) * stride);
        let low = &mut head[usize::from(low) * stride..][..stride];
        for (a, b) in low.iter_mut().zip(&mut tail[..stride]) {
            let (x, y) = (*a, *b);
            *a = if y < x { y } else { x };
            *b = if y < x { x } else { y };
        }
    }
}
