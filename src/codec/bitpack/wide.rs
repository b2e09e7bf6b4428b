//! Bit packing of 2, 4 and 8 byte integers: narrowed to bytes piece by piece on the stack, then packed as those are.

use super::{joined, pack_rows as pack_bytes, packed_row_bytes, unpack_rows as unpack_bytes, width_for};

/// Values narrowed at once. A multiple of 8, so that a piece that is not its row's last ends on a whole byte.
const PIECE: usize = 4096;

macro_rules! by_size {
    ($size:expr, $f:ident($($arg:expr),*)) => {
        match $size {
            2 => $f::<2>($($arg),*),
            4 => $f::<4>($($arg),*),
            _ => $f::<8>($($arg),*),
        }
    };
}

/// The width that holds every value, or `None` when one is negative or above 15.
pub fn width_of(bytes: &[u8], size: usize) -> Option<u8> {
    let mut seen = 0;
    for part in bytes.chunks(64 << 10) {
        // The bits of all values together need as many bits as the largest value; a negative one has its top bit set.
        seen |= by_size!(size, or_all(part));
        width_for(seen)?;
    }
    width_for(seen)
}

fn or_all<const N: usize>(bytes: &[u8]) -> u64 {
    let mut seen = [0u8; N];
    for value in bytes.as_chunks::<N>().0 {
        for i in 0..N {
            seen[i] |= value[i];
        }
    }
    let mut word = [0; 8];
    word[..N].copy_from_slice(&seen);
    u64::from_le_bytes(word)
}

/// As [`super::pack_rows`], for values of `size` little endian bytes that [`width_of`] found to fit.
#[must_use]
pub fn pack_rows(bytes: &[u8], size: usize, row_len: usize, width: u8, out: &mut [u8]) -> bool {
    by_size!(size, pack_sized(bytes, row_len, width, out))
}

pub fn unpack_rows(packed: &[u8], size: usize, row_len: usize, width: u8, out: &mut [u8]) {
    by_size!(size, unpack_sized(packed, row_len, width, out))
}

fn pack_sized<const N: usize>(bytes: &[u8], row_len: usize, width: u8, out: &mut [u8]) -> bool {
    let values = bytes.as_chunks::<N>().0;
    let row_len = joined(row_len, width, values.len());
    let mut piece = [0u8; PIECE];
    for (row, out) in values.chunks_exact(row_len).zip(out.chunks_exact_mut(packed_row_bytes(row_len, width))) {
        for (values, out) in row.chunks(PIECE).zip(out.chunks_mut(packed_row_bytes(PIECE, width))) {
            let piece = &mut piece[..values.len()];
            for (narrow, value) in piece.iter_mut().zip(values) {
                *narrow = value[0];
            }
            if !pack_bytes(piece, piece.len(), width, out) {
                return false;
            }
        }
    }
    true
}

fn unpack_sized<const N: usize>(packed: &[u8], row_len: usize, width: u8, out: &mut [u8]) {
    let values = out.as_chunks_mut::<N>().0;
    let row_len = joined(row_len, width, values.len());
    let mut piece = [0u8; PIECE];
    for (row, packed) in values.chunks_exact_mut(row_len).zip(packed.chunks_exact(packed_row_bytes(row_len, width))) {
        for (values, packed) in row.chunks_mut(PIECE).zip(packed.chunks(packed_row_bytes(PIECE, width))) {
            let piece = &mut piece[..values.len()];
            unpack_bytes(packed, piece.len(), width, piece);
            for (value, narrow) in values.iter_mut().zip(piece.iter()) {
                *value = [0; N];
                value[0] = *narrow;
            }
        }
    }
}
