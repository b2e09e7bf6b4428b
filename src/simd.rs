//! Which code path may run: the one switch that every SIMD loop of the project asks before it detects features.
//!
//! Both paths give equal bits (I1); the switch is there so that tests can show it on one machine, and so that a user who
//! doubts a result can rule the vector code out with `HALOSTREAM_SIMD=off`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

static SCALAR: AtomicBool = AtomicBool::new(false);

/// Turns the scalar paths on (`true`) or gives the choice back to the machine, for the whole process. Results don't change,
/// so other threads don't mind; a test that must know which path ran uses [`both_paths`].
pub fn force_scalar(on: bool) {
    SCALAR.store(on, Ordering::Relaxed);
}

/// False while [`force_scalar`] is on, or when the environment says `HALOSTREAM_SIMD=off`. The environment is read once.
pub fn simd_allowed() -> bool {
    static ENV: OnceLock<bool> = OnceLock::new();
    let by_env = *ENV.get_or_init(|| std::env::var_os("HALOSTREAM_SIMD").is_none_or(|v| v != "off"));
    by_env && !SCALAR.load(Ordering::Relaxed)
}

/// AVX2 is allowed and present.
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return simd_allowed() && is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// AVX-512 with vectors of bytes and of all lengths is allowed and present.
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return simd_allowed()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A loop that is compiled twice, with AVX2 and without, for the compiler to vectorise. `run` and what it calls must be
/// `#[inline(always)]`: only code that ends up inside the compiled copy uses its vectors. The copies differ in width alone
/// (the compiler neither reorders nor fuses float operations), so results have equal bits.
pub trait Vectored {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a [`Vectored`] loop.
pub fn vectored<V: Vectored>(job: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<V: Vectored>(job: V) -> V::Output {
            job.run()
        }
        if has_avx2() {
            // SAFETY: the feature was detected.
            return unsafe { avx2(job) };
        }
    }
    job.run()
}

/// Runs `test` with the vector paths (where the machine has them), then with the scalar ones. `scalar` says which. One
/// caller at a time, so that tests which run beside each other don't switch the path under each other.
pub fn both_paths(mut test: impl FnMut(bool)) {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            force_scalar(false);
        }
    }
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _back = Back;
    for scalar in [false, true] {
        force_scalar(scalar);
        test(scalar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_turns_vector_code_off_and_comes_back() {
        let mut seen = Vec::new();
        both_paths(|scalar| seen.push((scalar, has_avx2())));
        assert_eq!(seen[1], (true, false));
        #[cfg(target_arch = "x86_64")]
        if std::env::var_os("HALOSTREAM_SIMD").is_none() {
            assert_eq!(seen[0], (false, is_x86_feature_detected!("avx2")));
        }
    }
}
