//! Encoded bytes of one chunk to its values. Every codec writes into a slice of the size that the metadata allows, so a
//! bomb fails at the first byte too many; a chunk that ends early, or goes on, is refused with both numbers.
//!
//! The last codec of a plain chunk (little endian, C order) decodes straight into the caller's buffer. Other chunks take
//! one pass more in place (byte order) or through a buffer (axes).

use std::io::Read;

use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::zstd_safe::{self, DCtx};

use super::codecs::{BytesCodec, Chain};
use super::frames::{Frames, PIECE};
use crate::array::DType;
use crate::array::block::{c_strides, copy_strided};

/// Memory of a decoder's own tables (zstd and inflate contexts).
const CONTEXT_BYTES: u64 = 512 << 10;

/// Automatic blocks of blosc do not exceed 1 MiB; a file that claims larger ones than this (and than its metadata
/// says) is refused, because blosc holds three of them while decoding.
const BLOSC_BLOCK: u64 = 4 << 20;

/// Size of a stage's bytes: exactly known, or at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub bytes: usize,
    pub is_exact: bool,
}

/// Decodes the chunks of one array.
#[derive(Clone, Debug)]
pub struct Pipeline {
    dtype: DType,
    chain: Chain,
    /// `sizes[i]`: bytes in front of `chain.bytes[i]` when encoding; the last entry is what is stored.
    sizes: Vec<Size>,
    /// Shape and source strides by which a transposed chunk is put in C order.
    moved: Option<(Vec<usize>, Vec<isize>)>,
}

/// Decoder state worth keeping from chunk to chunk.
#[derive(Default)]
pub struct Context {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// For what comes in pieces, and for beginnings of chunks.
    stream: Option<DCtx<'static>>,
}

impl Pipeline {
    /// `shape` must hold at most [`crate::array::MAX_CHUNK_BYTES`].
    pub fn new(chain: Chain, dtype: DType, shape: &[u64]) -> Result<Self, String> {
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let raw = shape.iter().product::<usize>() * dtype.size();
        let mut sizes = vec![Size { bytes: raw, is_exact: true }];
        for codec in &chain.bytes {
            let before = sizes[sizes.len() - 1];
            let n = before.bytes;
            // What honest encoders can make of n bytes, with room for small frames.
            let (bytes, is_exact) = match codec {
                BytesCodec::Crc32c => (n + 4, before.is_exact),
                BytesCodec::Shuffle { .. } => (n, before.is_exact),
                BytesCodec::Zstd | BytesCodec::Lz4 => (n + n / 128 + (4 << 10), false),
                BytesCodec::Gzip | BytesCodec::Zlib => (n + n / 7 + (4 << 10), false),
                BytesCodec::Blosc { .. } => (n + n / 128 + (4 << 10), false),
            };
            if matches!(codec, BytesCodec::Blosc { .. } | BytesCodec::Lz4) && n > i32::MAX as usize {
                return Err(format!("a chunk of {n} bytes cannot be stored with {codec:?}, which ends at 2 GiB"));
            }
            sizes.push(Size { bytes, is_exact });
        }
        let moved = chain.layout.order.as_ref().map(|order| {
            let stored: Vec<usize> = order.iter().map(|&a| shape[a]).collect();
            let mut strides = vec![0; shape.len()];
            for (stride, &axis) in c_strides(&stored, dtype.size()).into_iter().zip(order) {
                strides[axis] = stride;
            }
            (shape.clone(), strides)
        });
        Ok(Self { dtype, chain, sizes, moved })
    }

    /// Decodes bytes of unknown length, at most `bytes` of them: [`Pipeline::decode_some`].
    pub fn up_to(chain: Chain, bytes: usize) -> Result<Self, String> {
        let mut pipeline = Self::new(chain, DType::U8, &[bytes as u64])?;
        pipeline.sizes.iter_mut().for_each(|size| size.is_exact = false);
        Ok(pipeline)
    }

    /// What is stored, decoded: as much as there is, up to the bytes of a chunk.
    pub fn decode_some(&self, encoded: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = vec![0; self.raw_bytes()];
        let mut scratch = vec![0; self.scratch_bytes()];
        let len = self.run(self.chain.bytes.len(), encoded, &mut out, &mut scratch, &mut Context::default())?;
        out.truncate(len);
        Ok(out)
    }

    /// Bytes of a decoded chunk.
    pub fn raw_bytes(&self) -> usize {
        self.sizes[0].bytes
    }

    /// Bytes of a stored chunk.
    pub fn stored(&self) -> Size {
        self.sizes[self.sizes.len() - 1]
    }

    /// True when the stored bytes are the values: they can be read in place.
    pub fn is_plain(&self) -> bool {
        self.chain.bytes.is_empty() && self.moved.is_none()
    }

    /// Bytes that [`Pipeline::decode`] wants as `scratch`.
    pub fn scratch_bytes(&self) -> usize {
        let codecs = self.without_checksums();
        if codecs == 0 {
            return 0;
        }
        let between: usize = (1..codecs).map(|i| self.sizes[i].bytes).sum();
        between + if self.moved.is_some() { self.raw_bytes() } else { 0 }
    }

    /// Stored bytes that are held while a chunk is decoded.
    pub fn held_bytes(&self) -> usize {
        let stored = self.stored().bytes;
        match self.takes_pieces() {
            true => stored.min(PIECE),
            false if self.is_plain() => 0,
            false => stored,
        }
    }

    /// Bytes that the codec libraries take while decoding one chunk.
    pub fn context_bytes(&self) -> u64 {
        let of = |(i, codec): (usize, &BytesCodec)| match codec {
            BytesCodec::Zstd | BytesCodec::Gzip | BytesCodec::Zlib => CONTEXT_BYTES,
            BytesCodec::Blosc { blocksize } => 3 * self.blosc_block(i, *blocksize) + 2 * CONTEXT_BYTES,
            BytesCodec::Lz4 | BytesCodec::Crc32c | BytesCodec::Shuffle { .. } => 0,
        };
        self.chain.bytes.iter().enumerate().map(of).sum()
    }

    fn blosc_block(&self, codec: usize, blocksize: u64) -> u64 {
        blocksize.saturating_mul(2).max(BLOSC_BLOCK).min(self.sizes[codec].bytes as u64)
    }

    /// Number of codecs left once the checksums at the end are stripped, which needs no buffer.
    fn without_checksums(&self) -> usize {
        self.chain.bytes.iter().rposition(|c| *c != BytesCodec::Crc32c).map_or(0, |i| i + 1)
    }

    /// [`Pipeline::decode`] for a caller that looks at the first `end` bytes only: what follows in `out` may hold anything.
    /// The stored bytes still have to be all there, as far as frames tell without being decoded.
    pub fn decode_to(
        &self,
        end: usize,
        encoded: &[u8],
        scratch: &mut [u8],
        out: &mut [u8],
        context: &mut Context,
    ) -> Result<(), String> {
        let is_early = end < self.raw_bytes() && self.moved.is_none();
        if is_early && self.without_checksums() == 1 && self.chain.bytes[0] == BytesCodec::Zstd {
            let mut input = encoded;
            for _ in 1..self.chain.bytes.len() {
                input = strip_checksum(input)?;
            }
            let mut frames = Frames::begin(context.stream.get_or_insert_with(DCtx::create), out, end)?;
            frames.take(input)?;
            if frames.finish()? == Some(self.raw_bytes() as u64) {
                return self.finish(&mut out[..end], 0);
            }
        }
        self.decode(encoded, scratch, out, context)
    }

    /// True where stored bytes may come piece by piece: [`Pipeline::decode_pieces`].
    pub fn takes_pieces(&self) -> bool {
        self.moved.is_none() && self.chain.bytes == [BytesCodec::Zstd]
    }

    /// [`Pipeline::decode_to`] for `len` stored bytes of which `read` fetches those from a place on. `wrong` makes an error of a
    /// reason.
    pub fn decode_pieces<E>(
        &self,
        end: usize,
        len: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
        piece: &mut [u8],
        out: &mut [u8],
        (context, wrong): (&mut Context, impl Fn(String) -> E),
    ) -> Result<(), E> {
        let raw = self.raw_bytes();
        for end in [end, raw] {
            let mut frames = Frames::begin(context.stream.get_or_insert_with(DCtx::create), out, end).map_err(&wrong)?;
            let mut at = 0;
            while at < len {
                let n = (piece.len() as u64).min(len - at) as usize;
                read(&mut piece[..n], at)?;
                frames.take(&piece[..n]).map_err(&wrong)?;
                at += n as u64;
            }
            if let Some(decoded) = frames.finish().map_err(&wrong)? {
                check_size(decoded as usize, self.sizes[0], "decodes to").map_err(&wrong)?;
                return self.finish(&mut out[..end], 0).map_err(wrong);
            }
        }
        Err(wrong("zstd does not tell how long the chunk is".into()))
    }

    /// Decodes a chunk into `out` (`raw_bytes` long, C order, native endian). `scratch` has `scratch_bytes`.
    pub fn decode(&self, encoded: &[u8], scratch: &mut [u8], out: &mut [u8], context: &mut Context) -> Result<(), String> {
        let mut input = encoded;
        let codecs = self.without_checksums();
        for _ in codecs..self.chain.bytes.len() {
            input = strip_checksum(input)?;
        }
        match &self.moved {
            None if codecs == 0 => out.copy_from_slice(self.expect_raw(input)?),
            None => {
                self.run(codecs, input, out, scratch, context)?;
            }
            Some((shape, strides)) => {
                let raw = if codecs == 0 {
                    self.expect_raw(input)?
                } else {
                    let (raw, rest) = scratch.split_at_mut(self.raw_bytes());
                    self.run(codecs, input, raw, rest, context)?;
                    raw
                };
                let size = self.dtype.size();
                copy_strided(out, 0, &c_strides(shape, size), raw, 0, strides, shape, size);
            }
        }
        self.finish(out, 0)
    }

    /// What is left to do once stored bytes, from `first` of the chunk on, lie in `out` in C order: byte order, and bools
    /// that are no bools.
    pub fn finish(&self, out: &mut [u8], first: usize) -> Result<(), String> {
        if self.chain.layout.is_big_endian {
            swap_bytes(out, self.dtype);
        }
        if self.dtype == DType::Bool
            && let Some(at) = first_non_bool(out)
        {
            return Err(format!("byte {} of the chunk is {}, which is not a bool (0 or 1)", first + at, out[at]));
        }
        Ok(())
    }

    fn expect_raw<'i>(&self, input: &'i [u8]) -> Result<&'i [u8], String> {
        check_size(input.len(), self.sizes[0], "holds")?;
        Ok(input)
    }

    /// Undoes the first `codecs` codecs; returns how many bytes of `out` that filled.
    fn run(
        &self,
        codecs: usize,
        input: &[u8],
        out: &mut [u8],
        scratch: &mut [u8],
        context: &mut Context,
    ) -> Result<usize, String> {
        let Some(last) = codecs.checked_sub(1) else {
            let raw = self.expect_raw(input)?;
            out[..raw.len()].copy_from_slice(raw);
            return Ok(raw.len());
        };
        let codec = &self.chain.bytes[last];
        if *codec == BytesCodec::Crc32c {
            return self.run(last, strip_checksum(input)?, out, scratch, context);
        }
        let size = self.sizes[last];
        if last == 0 {
            let found = self.undo(last, input, out, context)?;
            return check_size(found, size, "decodes to").map(|()| found);
        }
        let (between, rest) = scratch.split_at_mut(size.bytes);
        let found = self.undo(last, input, between, context)?;
        check_size(found, size, "decodes to")?;
        self.run(last, &between[..found], out, rest, context)
    }

    /// Undoes one codec; returns how many bytes of `out` it filled. More than `out` holds is an error.
    fn undo(&self, at: usize, input: &[u8], out: &mut [u8], context: &mut Context) -> Result<usize, String> {
        match &self.chain.bytes[at] {
            BytesCodec::Zstd => unzstd(input, out, context),
            BytesCodec::Gzip => ungzip(input, out),
            BytesCodec::Zlib => unzlib(input, out),
            BytesCodec::Blosc { blocksize } => unblosc(input, out, self.blosc_block(at, *blocksize)),
            BytesCodec::Lz4 => unlz4(input, out),
            BytesCodec::Shuffle { element } => unshuffle(input, out, *element),
            BytesCodec::Crc32c => Err("a checksum is no codec with an output of its own".into()),
        }
    }
}

fn check_size(found: usize, expected: Size, verb: &str) -> Result<(), String> {
    let Size { bytes, is_exact } = expected;
    match found {
        n if n == bytes || (!is_exact && n < bytes) => Ok(()),
        n if n < bytes => Err(format!("the chunk is torn: it {verb} {n} bytes, expected {bytes}")),
        n => Err(format!("the chunk is too long: it {verb} {n} bytes, expected {bytes}")),
    }
}

pub(super) fn strip_checksum(input: &[u8]) -> Result<&[u8], String> {
    let Some((bytes, stored)) = input.split_last_chunk::<4>() else {
        return Err(format!("the chunk is torn: it holds {} bytes, too few for its checksum", input.len()));
    };
    let (stored, found) = (u32::from_le_bytes(*stored), crc32c::crc32c(bytes));
    if stored != found {
        return Err(format!("the checksum (crc32c) is {found:08x}, the chunk says {stored:08x}"));
    }
    Ok(bytes)
}

fn unzstd(input: &[u8], out: &mut [u8], context: &mut Context) -> Result<usize, String> {
    if let Ok(Some(claimed)) = zstd_safe::get_frame_content_size(input)
        && claimed > out.len() as u64
    {
        return Err(too_long("zstd", claimed, out.len()));
    }
    let decompressor = match &mut context.zstd {
        Some(d) => d,
        none => none.insert(zstd::bulk::Decompressor::new().map_err(|e| format!("zstd: {e}"))?),
    };
    decompressor.decompress_to_buffer(input, out).map_err(|e| {
        // What zstd says of a frame that ends too early.
        let torn = if e.to_string() == "Src size is incorrect" { "the chunk is torn: " } else { "" };
        format!("{torn}zstd cannot decode the {} bytes: {e}", input.len())
    })
}

pub(super) fn too_long(codec: &str, claimed: u64, expected: usize) -> String {
    format!("the chunk is too long: its {codec} header claims {claimed} bytes, expected {expected}")
}

fn ungzip(input: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let mut decoder = MultiGzDecoder::new(input);
    let mut filled = 0;
    // The read past the end also verifies the checksum.
    let mut beyond = [0u8; 1];
    loop {
        let target = if filled < out.len() { &mut out[filled..] } else { &mut beyond[..] };
        match decoder.read(target) {
            Ok(0) => return Ok(filled),
            Ok(_) if filled == out.len() => {
                return Err(format!("the chunk is too long: its gzip bytes go on after the expected {filled}"));
            }
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => {
                return Err(format!(
                    "gzip cannot decode the {} bytes (stopped after {filled} of {}): {e}",
                    input.len(),
                    out.len()
                ));
            }
        }
    }
}

fn unzlib(input: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let mut state = Decompress::new(true);
    let mut beyond = [0u8; 1];
    loop {
        let (read, filled) = (state.total_in() as usize, state.total_out() as usize);
        let is_full = filled >= out.len();
        if filled > out.len() {
            return Err(format!("the chunk is too long: its zlib bytes go on after the expected {}", out.len()));
        }
        let target = if is_full { &mut beyond[..] } else { &mut out[filled..] };
        let status = state.decompress(&input[read..], target, FlushDecompress::None).map_err(|e| {
            format!("zlib cannot decode the {} bytes (stopped after {filled} of {}): {e}", input.len(), out.len())
        })?;
        let (now_read, now_filled) = (state.total_in() as usize, state.total_out() as usize);
        if status == Status::StreamEnd && now_filled <= out.len() {
            let trailing = input.len() - now_read;
            return match trailing {
                0 => Ok(now_filled),
                n => Err(format!("the chunk is too long: {n} bytes follow its zlib stream")),
            };
        }
        if (now_read, now_filled) == (read, filled) {
            return Err(format!("the chunk is torn: its zlib stream ends after {filled} bytes, expected {}", out.len()));
        }
    }
}

fn unlz4(input: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let Some((len, block)) = input.split_first_chunk::<4>() else {
        return Err(format!("the chunk is torn: it holds {} bytes, too few for its lz4 length", input.len()));
    };
    let len = u32::from_le_bytes(*len) as usize;
    let room = out.len();
    let out = out.get_mut(..len).ok_or_else(|| too_long("lz4", len as u64, room))?;
    let found =
        lz4_flex::block::decompress_into(block, out).map_err(|e| format!("lz4 cannot decode the {} bytes: {e}", input.len()))?;
    match found == len {
        true => Ok(found),
        false => Err(format!("the chunk is torn: its lz4 block decodes to {found} bytes, its length says {len}")),
    }
}

fn unblosc(input: &[u8], out: &mut [u8], largest_block: u64) -> Result<usize, String> {
    let Some(header) = input.first_chunk::<16>() else {
        return Err(format!("the chunk is torn: it holds {} bytes, too few for a blosc header", input.len()));
    };
    let field = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as u64;
    let (decoded, block, encoded) = (field(4), field(8), field(12));
    if encoded != input.len() as u64 {
        let word = if encoded > input.len() as u64 { "torn" } else { "too long" };
        return Err(format!("the chunk is {word}: it holds {} bytes, its blosc header claims {encoded}", input.len()));
    }
    if decoded > out.len() as u64 {
        return Err(too_long("blosc", decoded, out.len()));
    }
    if block > largest_block {
        return Err(format!("its blosc blocks have {block} bytes, the metadata allows {largest_block}"));
    }
    // SAFETY: both pointers are valid for the lengths given: blosc reads no further than the length in the header, which
    // is the input's, and writes at most `out.len()` bytes. One internal thread means none beside this one.
    let found = unsafe { blosc_src::blosc_decompress_ctx(input.as_ptr().cast(), out.as_mut_ptr().cast(), out.len(), 1) };
    match found {
        n if n >= 0 && n as u64 == decoded => Ok(n as usize),
        n => Err(format!("blosc cannot decode the {} bytes (code {n}, expected {decoded} bytes)", input.len())),
    }
}

fn unshuffle(input: &[u8], out: &mut [u8], element: usize) -> Result<usize, String> {
    if !input.len().is_multiple_of(element) {
        return Err(format!("{} bytes are not whole elements of {element} bytes, as its shuffle filter says", input.len()));
    }
    let count = input.len() / element;
    let out = out.get_mut(..input.len()).ok_or_else(|| format!("the chunk is too long: {} shuffled bytes", input.len()))?;
    for (byte, plane) in input.chunks_exact(count.max(1)).enumerate() {
        for (value, &b) in out.chunks_exact_mut(element).zip(plane) {
            value[byte] = b;
        }
    }
    Ok(input.len())
}

/// Turns every number (each half of a complex one) around.
pub fn swap_bytes(bytes: &mut [u8], dtype: DType) {
    fn turn<const N: usize>(bytes: &mut [u8]) {
        bytes.as_chunks_mut::<N>().0.iter_mut().for_each(|v| v.reverse());
    }
    match if dtype.is_complex() { dtype.size() / 2 } else { dtype.size() } {
        2 => turn::<2>(bytes),
        4 => turn::<4>(bytes),
        8 => turn::<8>(bytes),
        _ => {}
    }
}

pub fn first_non_bool(bytes: &[u8]) -> Option<usize> {
    let all = bytes.iter().fold(0, |all, b| all | b);
    if all <= 1 { None } else { bytes.iter().position(|b| *b > 1) }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
