//! Linear algebra of many small Hermitian matrices, such as the 17 x 17 to 100 x 100 coherence matrices of a stack's pixels.
//!
//! One matrix per lane, all in double precision, every step in a fixed order and with a fixed number of iterations: no
//! library, no threads underneath, and the same bits whatever matrices share a batch (I1). A batch's matrices lie
//! element by element side by side, the lower triangle row by row.

pub mod eigen;
pub mod inverse;
mod lanes;
pub mod singles;
#[cfg(test)]
mod tests;

pub use lanes::Lanes;

/// Elements in the lower triangle, diagonal included.
pub const fn triangle(n: usize) -> usize {
    n * (n + 1) / 2
}

/// Row `i` of a lower triangle: columns `0..=i`.
#[inline(always)]
pub fn row<T>(triangle: &[T], i: usize) -> &[T] {
    &triangle[i * (i + 1) / 2..][..i + 1]
}

#[inline(always)]
pub fn row_mut<T>(triangle: &mut [T], i: usize) -> &mut [T] {
    &mut triangle[i * (i + 1) / 2..][..i + 1]
}

/// A loop written once for any vector of doubles. `run` and all it calls must be `#[inline(always)]`, so that [`run`]
/// compiles them for the instructions it found.
pub trait Kernel {
    type Output;
    fn run<V: Lanes>(self) -> Self::Output;
}

/// Most lanes that any form has: what buffers are sized by.
pub const MOST_LANES: usize = 8;

/// The forms that [`run`] chooses from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Form {
    Plain,
    /// AVX2 and fused multiply-add.
    Avx,
    /// AVX-512.
    Wide,
}

/// The widest form that this machine has and the user allows.
fn widest() -> Form {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx2() && is_x86_feature_detected!("fma") {
        return if crate::simd::has_avx512() { Form::Wide } else { Form::Avx };
    }
    Form::Plain
}

/// Runs a kernel in the widest form that this machine has and the user allows.
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    run_as(widest(), kernel)
}

/// Runs a kernel in a form that is not wider than [`widest`] says.
fn run_as<K: Kernel>(form: Form, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn avx<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<lanes::Avx>()
        }
        #[target_feature(enable = "avx512f")]
        fn wide<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<lanes::Wide>()
        }
        match form {
            // SAFETY: `widest` found the features of its form, which those of a narrower one are among.
            Form::Wide => return unsafe { wide(kernel) },
            Form::Avx => return unsafe { avx(kernel) },
            Form::Plain => (),
        }
    }
    let _ = form;
    kernel.run::<lanes::Plain>()
}
