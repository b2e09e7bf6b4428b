//! Decoded bytes as values: predictors undone, then in native byte order.

use super::ifd::Order;
use super::page::{Page, Predictor};
use crate::array::DType;

/// Finishes whole rows of a strip or tile in place. `spare` has room for one of them.
pub fn finish(page: &Page, rows: &mut [u8], spare: &mut [u8]) {
    let size = page.dtype.size();
    let row_bytes = page.unit_row_bytes() as usize;
    let samples = page.unit_samples() as usize;
    if page.predictor == Predictor::Float {
        // TIFF technical note 3 (2005): planes of bytes, high ones first whatever the file's order.
        for row in rows.chunks_exact_mut(row_bytes) {
            for at in samples..row.len() {
                row[at] = row[at].wrapping_add(row[at - samples]);
            }
            let spare = &mut spare[..row_bytes];
            spare.copy_from_slice(row);
            let count = row_bytes / size;
            for (n, value) in row.chunks_exact_mut(size).enumerate() {
                for (byte, plane) in value.iter_mut().rev().zip(0..) {
                    *byte = spare[plane * count + n];
                }
            }
        }
        return;
    }
    if page.order == Order::Big {
        swap(page.dtype, rows);
    }
    if page.predictor == Predictor::Horizontal {
        for row in rows.chunks_exact_mut(row_bytes) {
            match size {
                1 => add_up::<1, u8>(row, samples, u8::wrapping_add, u8::from_ne_bytes, u8::to_ne_bytes),
                2 => add_up::<2, u16>(row, samples, u16::wrapping_add, u16::from_ne_bytes, u16::to_ne_bytes),
                4 => add_up::<4, u32>(row, samples, u32::wrapping_add, u32::from_ne_bytes, u32::to_ne_bytes),
                _ => add_up::<8, u64>(row, samples, u64::wrapping_add, u64::from_ne_bytes, u64::to_ne_bytes),
            }
        }
    }
}

/// Running sums of each sample of a row.
fn add_up<const N: usize, T: Copy>(
    row: &mut [u8],
    samples: usize,
    add: impl Fn(T, T) -> T,
    get: impl Fn([u8; N]) -> T,
    put: impl Fn(T) -> [u8; N],
) {
    let values = row.as_chunks_mut::<N>().0;
    for at in samples..values.len() {
        values[at] = put(add(get(values[at]), get(values[at - samples])));
    }
}

/// Turns the bytes of each number around.
fn swap(dtype: DType, bytes: &mut [u8]) {
    let size = match dtype {
        DType::C64 => 4,
        DType::C128 => 8,
        _ => dtype.size(),
    };
    match size {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|b| b.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|b| b.reverse()),
        8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|b| b.reverse()),
        _ => {}
    }
}
