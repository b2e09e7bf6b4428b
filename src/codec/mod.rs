//! Chunks packed while they wait (`engine.park`). Packing never changes a value: a chunk that does not pack stays plain.
//!
//! | form | holds | one core |
//! | --- | --- | --- |
//! | constant | one value | memory speed |
//! | [`bitpack`] | integers 0..=15 and bool, 1, 2 or 4 bits each | memory speed |
//! | [`lz4`] | anything that repeats | 0.2-0.8 GB/s in, 0.5-2 GB/s out |
//! | [`blosc`] | smooth values: lz4 behind a bit shuffle | 1-3 GB/s in, 1-4 GB/s out |
//!
//! The plan counts only widths that a dtype or a source guarantees ([`guaranteed_bits`]); what compression saves beyond
//! that is used at run time to read ahead.

pub mod auto;
pub mod bitpack;
pub mod blosc;
pub mod lz4;

pub use auto::AutoPark;

use crate::array::{Account, Block, Buffer, DType, Lease, Scalar};

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
    /// A source said that its values fit a width, and they do not.
    #[error(
        "a chunk of shape {shape:?} holds a value that does not fit the {width} bits its source declares; park = \"none\" holds it as it is"
    )]
    Wide { width: u8, shape: Vec<usize> },
    #[error(transparent)]
    Budget(#[from] crate::array::budget::BudgetError),
}

/// Packs a contiguous block by `park`, charged to `account` when room is free at once; `None` when it stays plain
/// because packing does not help (or no bytes are free for it).
///
/// Constant chunks become one value in every mode but [`Park::None`]. Other forms are kept when they save at least 1/8 of
/// the bytes. `scratch` belongs to the worker and is kept between chunks; [`pack_scratch_bytes`] bounds it.
/// [`Park::Auto`] packs constants and bits here; lz4 and blosc are chosen by what a feed's chunks showed, which
/// [`AutoPark`] remembers.
pub fn pack(block: &Block, park: Park, account: &Account, scratch: &mut Vec<u8>) -> Option<Packed> {
    try_pack(block, park, account, scratch).ok()
}

/// Why a chunk stays plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    /// No packing was asked for, or it saves too little.
    NoGain,
    /// It would pack, but the account has no bytes for it now.
    NoRoom,
}

fn try_pack(block: &Block, park: Park, account: &Account, scratch: &mut Vec<u8>) -> Result<Packed, Plain> {
    let bytes = block.bytes().filter(|b| !b.is_empty()).ok_or(Plain::NoGain)?;
    if park == Park::None {
        return Err(Plain::NoGain);
    }
    if let Some(value) = block.constant() {
        return Ok(Packed::of(block, Form::Constant(value)));
    }
    let form = match park {
        Park::None => return Err(Plain::NoGain),
        Park::Auto | Park::Bitpack => {
            let (width, bytes) = bitpack::pack(bytes, block.dtype(), block.shape(), account)?;
            Form::Bits { width, bytes }
        }
        Park::Lz4 => Form::Lz4(keep(lz4::compress(bytes, scratch), scratch, account)?),
        Park::Blosc => Form::Blosc(keep(blosc::compress(bytes, block.dtype(), scratch), scratch, account)?),
    };
    Ok(Packed::of(block, form))
}

/// Most bytes a packed form may have: at least 1/8 is saved.
fn kept_limit(len: usize) -> usize {
    len - len.div_ceil(8)
}

/// Makes `scratch` at least `len` long, never holding the old and the new allocation at once.
fn grow(scratch: &mut Vec<u8>, len: usize) {
    if scratch.len() < len {
        *scratch = Vec::new();
        *scratch = vec![0; len];
    }
}

/// The first `len` bytes of the scratch as a buffer of their own, if the account has room now.
fn keep(len: Option<usize>, scratch: &[u8], account: &Account) -> Result<Buffer, Plain> {
    let len = len.ok_or(Plain::NoGain)?;
    let mut buffer = lease_buffer(len, account)?;
    buffer.copy_from_slice(&scratch[..len]);
    Ok(buffer)
}

fn lease_buffer(len: usize, account: &Account) -> Result<Buffer, Plain> {
    let lease = account.try_lease(len as u64).ok_or(Plain::NoRoom)?;
    Buffer::new(lease, len).map_err(|_| Plain::NoRoom)
}

/// Bytes one packing worker needs beside the chunk and its packed form, for chunks of at most `chunk_bytes`: its scratch,
/// and what the codec allocates inside.
pub fn pack_scratch_bytes(park: Park, dtype: DType, chunk_bytes: u64) -> u64 {
    match park {
        Park::None | Park::Bitpack => 0,
        Park::Lz4 => lz4::scratch_bytes(chunk_bytes),
        Park::Blosc => blosc::pack_scratch_bytes(dtype, chunk_bytes),
        Park::Auto => lz4::scratch_bytes(chunk_bytes).max(blosc::pack_scratch_bytes(dtype, chunk_bytes)),
    }
}

/// Bytes a codec allocates inside while one worker unpacks a chunk.
pub fn unpack_scratch_bytes(park: Park, dtype: DType, chunk_bytes: u64) -> u64 {
    match park {
        Park::Blosc | Park::Auto => blosc::inner_bytes(dtype, chunk_bytes),
        Park::None | Park::Bitpack | Park::Lz4 => 0,
    }
}

/// The bit width the plan may count on, for values in `0..=max_value` (declared by the source: 3 for `.bed`). `None`:
/// nothing is guaranteed. A source with a negative missing value declares no `max_value`.
pub fn guaranteed_bits(dtype: DType, max_value: Option<u64>) -> Option<u8> {
    if dtype == DType::Bool {
        return Some(1);
    }
    if dtype.is_integer() { bitpack::width_for(max_value?) } else { None }
}

/// Bytes of a row (innermost axis) of `len` values at a guaranteed width: what the plan counts.
pub fn guaranteed_row_bytes(len: u64, width: u8) -> u64 {
    len.div_ceil(8 / u64::from(width.clamp(1, 8)))
}

/// Packs a contiguous block of an integer or bool dtype to a width that its source guarantees, into the bytes that the
/// plan counted for it.
pub fn pack_guaranteed(block: &Block, width: u8, lease: Lease) -> Result<Packed, PackError> {
    let broken = || PackError::Wide { width, shape: block.shape().to_vec() };
    let len = bitpack::packed_bytes(block.shape(), width).ok_or_else(broken)?;
    let mut buffer = Buffer::new(lease, len)?;
    let bytes = block.bytes().ok_or_else(broken)?;
    match bitpack::pack_into(bytes, block.dtype(), block.shape(), width, &mut buffer) {
        true => Ok(Packed::of(block, Form::Bits { width, bytes: buffer })),
        false => Err(broken()),
    }
}

impl Packed {
    fn of(block: &Block, form: Form) -> Self {
        Packed { dtype: block.dtype(), shape: block.shape().to_vec(), form }
    }

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

    /// The form's name, for messages and reports.
    pub fn form_name(&self) -> &'static str {
        match &self.form {
            Form::Constant(_) => "constant",
            Form::Lz4(_) => "lz4",
            Form::Blosc(_) => "blosc",
            Form::Bits { .. } => "bits",
        }
    }

    /// Restores the values into `out` (C order, `byte_len` bytes). After an error `out` holds anything.
    pub fn unpack_into(&self, out: &mut [u8]) -> Result<(), PackError> {
        let damaged = |reason: String| PackError::Damaged { form: self.form_name(), reason };
        if out.len() != self.byte_len() {
            return Err(damaged(format!("{} bytes of room for {} bytes", out.len(), self.byte_len())));
        }
        match &self.form {
            Form::Constant(value) => {
                if value.dtype() != self.dtype {
                    return Err(damaged(format!("a {} in a chunk of {}", value.dtype(), self.dtype)));
                }
                fill(out, value.bytes());
                Ok(())
            }
            Form::Lz4(bytes) => lz4::decompress(bytes, out),
            Form::Blosc(bytes) => blosc::decompress(bytes, out),
            Form::Bits { width, bytes } => bitpack::unpack(bytes, *width, self.dtype, &self.shape, out),
        }
        .map_err(damaged)
    }
}

/// Repeats `value` over `out`, at memory speed: what is filled doubles with each copy.
fn fill(out: &mut [u8], value: &[u8]) {
    if value.iter().all(|b| *b == value[0]) {
        return out.fill(value[0]);
    }
    let mut done = value.len().min(out.len());
    out[..done].copy_from_slice(&value[..done]);
    while done < out.len() {
        let n = done.min(out.len() - done);
        out.copy_within(..n, done);
        done += n;
    }
}

#[cfg(test)]
mod tests;
