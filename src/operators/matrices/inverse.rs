//! The inverse of a symmetric real matrix, in place.
//!
//! Symmetric Gauss-Jordan (the sweep operator) without exchanges: n^3 / 2 multiply-adds. For a positive definite matrix the
//! pivots are those of its LDL' factorisation, all positive, and no exchange is needed. An indefinite one is inverted all
//! the same as long as no pivot vanishes.

use super::{Lanes, row, row_mut};

/// What the pivots said, as masks.
pub struct Pivots<V> {
    /// A pivot vanished beside the matrix's elements (which are about one), or was NaN: there is no inverse to trust.
    pub is_singular: V,
}

/// Replaces the lower triangle of `a` by that of its negative inverse. `tiny`: pivots up to this count as zero. `column`
/// holds `n` elements.
#[inline(always)]
pub fn negative_inverse<V: Lanes>(a: &mut [V], n: usize, tiny: f64, column: &mut [V]) -> Pivots<V> {
    let column = &mut column[..n];
    let (one, tiny) = (V::splat(1.0), V::splat(tiny));
    let mut is_regular = one.greater(V::zero());
    for k in 0..n {
        let pivot = row(a, k)[k];
        is_regular = is_regular.and(pivot.abs().greater(tiny));
        let factor = one.div(pivot);
        column[..k].copy_from_slice(&row(a, k)[..k]);
        for i in k + 1..n {
            column[i] = row(a, i)[k];
        }
        for i in 0..n {
            if i == k {
                continue;
            }
            let scaled = column[i].mul(factor);
            let own = row_mut(a, i);
            for (value, other) in own.iter_mut().zip(column.iter()) {
                *value = scaled.mul_sub_from(*other, *value);
            }
            // The row's own element in column k is replaced, not updated.
            if k < i {
                own[k] = scaled;
            } else {
                row_mut(a, k)[i] = scaled;
            }
        }
        row_mut(a, k)[k] = V::zero().sub(factor);
    }
    Pivots { is_singular: V::zero().select(is_regular, one.greater(V::zero())) }
}
