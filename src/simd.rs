//! Which code path may run: the one switch that every SIMD loop of the project asks before it detects features.
//!
//! All paths give equal bits (I1); the switch is there so that tests can show it on one machine, so that one can see what a
//! machine with less would do (`HALOSTREAM_SIMD=avx2`), and so that a user who doubts a result can rule the vector code out
//! (`HALOSTREAM_SIMD=off`).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How much of the machine's vector code may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Scalar,
    Avx2,
    /// All there is.
    Avx512,
}

const LEVELS: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];

static MOST: AtomicU8 = AtomicU8::new(Level::Avx512 as u8);

/// Rules wider vector code out for the whole process. Results don't change, so other threads don't mind; a test that must
/// know which path ran uses [`both_paths`].
pub fn limit(most: Level) {
    MOST.store(most as u8, Ordering::Relaxed);
}

/// Turns the scalar paths on (`true`) or gives the choice back to the machine: see [`limit`].
pub fn force_scalar(on: bool) {
    limit(if on { Level::Scalar } else { Level::Avx512 });
}

/// The lesser of what [`limit`] and the environment allow. The environment is read once.
fn allowed() -> Level {
    static ENV: OnceLock<Level> = OnceLock::new();
    let by_env = *ENV.get_or_init(|| by_name(std::env::var("HALOSTREAM_SIMD").as_deref().unwrap_or_default()));
    by_env.min(LEVELS[usize::from(MOST.load(Ordering::Relaxed))])
}

fn by_name(name: &str) -> Level {
    match name {
        "off" => Level::Scalar,
        "avx2" => Level::Avx2,
        _ => Level::Avx512,
    }
}

/// AVX2 is allowed and present.
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return allowed() >= Level::Avx2 && is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// AVX-512 with vectors of bytes and of all lengths is allowed and present.
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return allowed() >= Level::Avx512
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Asks for the memory at a place where there need not be any, so that it is near when it is read.
#[inline(always)]
pub fn fetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing; every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
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

/// [`vectored`] with a third copy for AVX-512: for loops that take a job's time with their arithmetic, as each copy is code.
pub fn widest<V: Vectored>(job: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn avx512<V: Vectored>(job: V) -> V::Output {
            job.run()
        }
        if has_avx512() {
            // SAFETY: the features were detected.
            return unsafe { avx512(job) };
        }
    }
    vectored(job)
}

/// [`widest`] for loops of fused multiply-adds, which the machine has beside AVX2. The plain copy asks the system's function for
/// each of them: as exact, and slow.
pub fn fused<V: Vectored>(job: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
        fn avx512<V: Vectored>(job: V) -> V::Output {
            job.run()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<V: Vectored>(job: V) -> V::Output {
            job.run()
        }
        if has_avx2() && is_x86_feature_detected!("fma") {
            return match has_avx512() {
                // SAFETY: the features were detected.
                true => unsafe { avx512(job) },
                // SAFETY: as above.
                false => unsafe { avx2(job) },
            };
        }
    }
    job.run()
}

/// Runs `test` with the vector paths (the widest of the machine, then narrower ones), then with the scalar ones. `scalar`
/// says which. One caller at a time, so that tests which run beside each other don't switch the path under each other.
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
    let widest = if has_avx512() { Level::Avx512 } else { Level::Avx2 };
    for level in LEVELS.into_iter().rev().filter(|level| *level <= widest) {
        limit(level);
        test(level == Level::Scalar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_turns_vector_code_off_and_comes_back() {
        let mut seen = Vec::new();
        both_paths(|scalar| seen.push((scalar, has_avx2(), has_avx512())));
        assert_eq!(seen.pop(), Some((true, false, false)));
        assert!(seen.iter().all(|path| !path.0));
        #[cfg(target_arch = "x86_64")]
        if std::env::var_os("HALOSTREAM_SIMD").is_none() {
            let avx2 = is_x86_feature_detected!("avx2");
            assert_eq!(seen.pop(), Some((false, avx2, false)));
            // What remains is the path of AVX-512, where there is one.
            assert_eq!(seen.len(), usize::from(has_avx512()));
            assert!(seen.iter().all(|path| *path == (false, true, true)));
        }
    }

    #[test]
    fn the_environment_names_the_most_that_runs() {
        let levels = ["off", "avx2", "avx512", "", "on"].map(by_name);
        assert_eq!(levels, [Level::Scalar, Level::Avx2, Level::Avx512, Level::Avx512, Level::Avx512]);
    }
}
