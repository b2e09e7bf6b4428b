//! The count k of eight pairs of sorted samples at once, and the sort.
//!
//! With u and v sorted, `k > t` exactly when for some i in t..N: `u[i] < v[i - t]` or `v[i] < u[i - t]`. (At u[i] at least
//! i + 1 values of u and at most i - t of v are reached, a difference above t; and so for v.) So k is the number of t with
//! such an i; the condition for t + 1 implies the one for t, so the search stops at the first t without. No branch depends
//! on single pairs, so pairs of neighbouring pixels go side by side: samples lie as [image][column].

use bytemuck::Pod;

/// Pairs computed at once.
pub const LANES: usize = 8;

/// A sortable amplitude. NaN never gets here.
pub trait Key: Pod + PartialOrd + Send + Sync {
    /// Exact for every value a block of this key type holds.
    fn of(value: f64) -> Self;

    /// k of columns `0..LANES` of `u` against those of `v`; image `i` of a column is `stride * i` further on.
    fn counts(use_avx2: bool, u: &[Self], v: &[Self], stride: usize, images: usize) -> [u8; LANES];
}

/// The plain form.
pub fn counts<K: Key>(u: &[K], v: &[K], stride: usize, images: usize) -> [u8; LANES] {
    let row = |s: &[K], i: usize| -> [K; LANES] { std::array::from_fn(|lane| s[i * stride..][..LANES][lane]) };
    let mut k = [0u8; LANES];
    for t in 0..images {
        let mut hit = [0u32; LANES];
        for i in t..images {
            let (a, b) = (row(u, i), row(v, i - t));
            let (c, d) = (row(v, i), row(u, i - t));
            for lane in 0..LANES {
                hit[lane] |= u32::from(a[lane] < b[lane]) | u32::from(c[lane] < d[lane]);
            }
        }
        if hit == [0; LANES] {
            break;
        }
        for lane in 0..LANES {
            k[lane] += hit[lane] as u8;
        }
    }
    k
}

/// Whether the vector form may be used here.
pub fn use_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        crate::simd::simd_allowed() && is_x86_feature_detected!("avx2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Two values of t in one sweep: the rows that `t + 1` compares with are those that `t` loaded the step before.
    macro_rules! counts {
        ($name:ident, $key:ty, $vector:ty, $lanes:literal, $load:ident, $compare:ident, $or:ident, $zero:ident, $mask:ident, $cast:ident, $sub:ident, $int:ty) => {
            #[target_feature(enable = "avx2")]
            pub fn $name(u: &[$key], v: &[$key], stride: usize, images: usize) -> [u8; $lanes] {
                let needed = images.saturating_sub(1) * stride + $lanes;
                assert!(u.len() >= needed && v.len() >= needed);
                // SAFETY: rows 0..images of both slices are inside them, as asserted.
                let u_row = |i: usize| unsafe { $load(u.as_ptr().add(i * stride)) };
                let v_row = |i: usize| unsafe { $load(v.as_ptr().add(i * stride)) };
                let violates = |a: $vector, b: $vector, c: $vector, d: $vector| {
                    $or($compare::<_CMP_LT_OQ>(a, b), $compare::<_CMP_LT_OQ>(c, d))
                };
                let mut k = _mm256_setzero_si256();
                let mut t = 0;
                while t < images {
                    let (mut u_low, mut v_low) = (u_row(0), v_row(0));
                    let mut here = violates(u_row(t), v_low, v_row(t), u_low);
                    let mut next = $zero();
                    for i in t + 1..images {
                        let (u_i, v_i) = (u_row(i), v_row(i));
                        next = $or(next, violates(u_i, v_low, v_i, u_low));
                        (u_low, v_low) = (u_row(i - t), v_row(i - t));
                        here = $or(here, violates(u_i, v_low, v_i, u_low));
                    }
                    // A true lane is all ones: minus one.
                    k = $sub(k, $cast(here));
                    k = $sub(k, $cast(next));
                    if $mask(next) == 0 {
                        break;
                    }
                    t += 2;
                }
                let mut counts = [0 as $int; $lanes];
                // SAFETY: the array is as long as the vector.
                unsafe { _mm256_storeu_si256(counts.as_mut_ptr().cast(), k) };
                counts.map(|count| count as u8)
            }
        };
    }
    counts!(
        singles,
        f32,
        __m256,
        8,
        _mm256_loadu_ps,
        _mm256_cmp_ps,
        _mm256_or_ps,
        _mm256_setzero_ps,
        _mm256_movemask_ps,
        _mm256_castps_si256,
        _mm256_sub_epi32,
        i32
    );
    counts!(
        doubles,
        f64,
        __m256d,
        4,
        _mm256_loadu_pd,
        _mm256_cmp_pd,
        _mm256_or_pd,
        _mm256_setzero_pd,
        _mm256_movemask_pd,
        _mm256_castpd_si256,
        _mm256_sub_epi64,
        i64
    );
}

impl Key for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline]
    fn counts(use_avx2: bool, u: &[f32], v: &[f32], stride: usize, images: usize) -> [u8; LANES] {
        #[cfg(target_arch = "x86_64")]
        if use_avx2 {
            // SAFETY: `use_avx2` comes from the function of that name.
            return unsafe { avx2::singles(u, v, stride, images) };
        }
        let _ = use_avx2;
        counts(u, v, stride, images)
    }
}

impl Key for f64 {
    fn of(value: f64) -> Self {
        value
    }

    #[inline]
    fn counts(use_avx2: bool, u: &[f64], v: &[f64], stride: usize, images: usize) -> [u8; LANES] {
        #[cfg(target_arch = "x86_64")]
        if use_avx2 {
            // SAFETY: as above.
            let (low, high) = unsafe { (avx2::doubles(u, v, stride, images), avx2::doubles(&u[4..], &v[4..], stride, images)) };
            return std::array::from_fn(|lane| if lane < 4 { low[lane] } else { high[lane - 4] });
        }
        let _ = use_avx2;
        counts(u, v, stride, images)
    }
}

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
