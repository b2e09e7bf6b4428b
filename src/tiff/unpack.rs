//! Packed strips and tiles as streams of bytes. Input comes through a buffer of fixed size, output goes where the caller wants
//! it, and never further.

use std::ops::Range;

use flate2::{Decompress, FlushDecompress};
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

use super::page::Compression;
use super::{TiffError, wrong};
use crate::files::File;

/// Packed bytes that are read at once.
pub const INPUT_BYTES: usize = 64 << 10;
/// Largest window of a zstd frame, as a power of two: 8 MiB, what level 19 takes.
pub const ZSTD_WINDOW_LOG: u32 = 23;

/// Codec states that a worker keeps from strip to strip.
#[derive(Default)]
pub struct Codecs {
    lzw: Option<weezl::decode::Decoder>,
    deflate: Option<Decompress>,
    zstd: Option<ZstdDecoder<'static>>,
}

/// The packed bytes of one strip or tile.
pub struct Input<'a> {
    file: &'a File,
    buffer: &'a mut [u8],
    /// Bytes of the buffer that were read and not used.
    held: Range<usize>,
    /// Bytes of the file that were not read.
    rest: Range<u64>,
}

impl<'a> Input<'a> {
    pub fn new(file: &'a File, buffer: &'a mut [u8], place: Range<u64>) -> Self {
        Self { file, buffer, held: 0..0, rest: place }
    }

    /// What is there, read from the file when nothing is; empty at the end.
    fn bytes(&mut self) -> Result<&[u8], TiffError> {
        if self.held.is_empty() && !self.rest.is_empty() {
            let len = self.buffer.len().min((self.rest.end - self.rest.start) as usize);
            self.file.read_exact_at(&mut self.buffer[..len], self.rest.start)?;
            self.held = 0..len;
            self.rest.start += len as u64;
        }
        Ok(&self.buffer[self.held.clone()])
    }

    fn used(&mut self, count: usize) {
        self.held.start += count;
    }
}

/// A strip or tile being unpacked.
pub struct Unpacker<'a> {
    input: Input<'a>,
    codec: Codec<'a>,
}

enum Codec<'a> {
    Lzw(&'a mut weezl::decode::Decoder),
    Deflate(&'a mut Decompress),
    Zstd(&'a mut ZstdDecoder<'static>),
    PackBits(Run),
}

/// What PackBits has begun.
enum Run {
    Literal(usize),
    /// So many of the value that comes next.
    Value(usize),
    Repeat(usize, u8),
}

impl<'a> Unpacker<'a> {
    /// `None` where nothing is packed.
    pub fn new(compression: Compression, input: Input<'a>, codecs: &'a mut Codecs) -> Result<Option<Self>, TiffError> {
        let codec = match compression {
            Compression::None => return Ok(None),
            Compression::Lzw => {
                let new = || weezl::decode::Decoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8);
                let decoder = codecs.lzw.get_or_insert_with(new);
                decoder.reset();
                Codec::Lzw(decoder)
            }
            Compression::Deflate => {
                let decoder = codecs.deflate.get_or_insert_with(|| Decompress::new(true));
                decoder.reset(true);
                Codec::Deflate(decoder)
            }
            Compression::Zstd => {
                let decoder = match &mut codecs.zstd {
                    Some(decoder) => decoder,
                    none => {
                        let mut decoder = ZstdDecoder::new()?;
                        decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                        none.insert(decoder)
                    }
                };
                decoder.reinit()?;
                Codec::Zstd(decoder)
            }
            Compression::PackBits => Codec::PackBits(Run::Literal(0)),
        };
        Ok(Some(Self { input, codec }))
    }

    /// The next `out.len()` bytes.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<(), TiffError> {
        let mut done = 0;
        while done < out.len() {
            let bytes = self.input.bytes()?;
            let is_last = bytes.is_empty();
            let (used, made) = self.codec.step(bytes, &mut out[done..])?;
            self.input.used(used);
            done += made;
            if used == 0 && made == 0 {
                let what = if is_last { "it ends" } else { "its packed data end" };
                return wrong(format!("{what} {} bytes too early", out.len() - done));
            }
        }
        Ok(())
    }
}

impl Codec<'_> {
    /// Unpacks what is at hand: bytes used, bytes made. Neither: there is no more.
    fn step(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(usize, usize), TiffError> {
        match self {
            Codec::Lzw(decoder) => {
                let step = decoder.decode_bytes(bytes, out);
                match step.status {
                    Ok(_) => Ok((step.consumed_in, step.consumed_out)),
                    Err(error) => wrong(format!("its LZW data are damaged: {error}")),
                }
            }
            Codec::Deflate(decoder) => {
                let (used, made) = (decoder.total_in(), decoder.total_out());
                match decoder.decompress(bytes, out, FlushDecompress::None) {
                    Ok(_) => Ok(((decoder.total_in() - used) as usize, (decoder.total_out() - made) as usize)),
                    Err(error) => wrong(format!("its deflate data are damaged: {error}")),
                }
            }
            Codec::Zstd(decoder) => {
                let mut input = InBuffer::around(bytes);
                let mut output = OutBuffer::around(out);
                match decoder.run(&mut input, &mut output) {
                    Ok(_) => Ok((input.pos(), output.pos())),
                    Err(error) => wrong(format!("its zstd data are damaged, or need a window of more than 8 MiB: {error}")),
                }
            }
            Codec::PackBits(run) => Ok(run.step(bytes, out)),
        }
    }
}

impl Run {
    /// TIFF 6.0 section 9: a byte n from 0 to 127 is followed by n + 1 bytes as they are, one from -127 to -1 by one that is
    /// repeated 1 - n times; -128 means nothing.
    fn step(&mut self, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
        let (mut used, mut made) = (0, 0);
        while made < out.len() {
            match self {
                Run::Literal(0) | Run::Repeat(0, _) => {
                    let Some(head) = bytes.get(used) else { break };
                    match head.cast_signed() {
                        n @ 0.. => *self = Run::Literal(n as usize + 1),
                        -128 => {}
                        n => *self = Run::Value(1 + usize::from(n.unsigned_abs())),
                    }
                    used += 1;
                }
                Run::Value(count) => {
                    let Some(value) = bytes.get(used) else { break };
                    *self = Run::Repeat(*count, *value);
                    used += 1;
                }
                Run::Literal(left) => {
                    let count = (*left).min(out.len() - made).min(bytes.len() - used);
                    if count == 0 {
                        break;
                    }
                    out[made..made + count].copy_from_slice(&bytes[used..used + count]);
                    *left -= count;
                    (used, made) = (used + count, made + count);
                }
                Run::Repeat(left, value) => {
                    let count = (*left).min(out.len() - made);
                    out[made..made + count].fill(*value);
                    *left -= count;
                    made += count;
                }
            }
        }
        (used, made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of TIFF 6.0 section 9, and runs of every length, given in pieces of every size.
    #[test]
    fn pack_bits_in_pieces() {
        let packed = [0xFE, 0xAA, 0x02, 0x80, 0x00, 0x2A, 0xFD, 0xAA, 0x03, 0x80, 0x00, 0x2A, 0x22, 0xF7, 0xAA];
        let mut want = vec![0xAA, 0xAA, 0xAA, 0x80, 0x00, 0x2A, 0xAA, 0xAA, 0xAA, 0xAA, 0x80, 0x00, 0x2A, 0x22];
        want.extend([0xAA; 10]);
        let mut packed = packed.to_vec();
        packed.extend([0x80, 0x81, 7, 0x7F]);
        packed.extend(0..128);
        want.extend([7; 128]);
        want.extend(0..128);
        for (input, output) in [(1, 1), (1, 50), (3, 2), (50, 1), (7, 200), (200, 300)] {
            let (mut run, mut got, mut at) = (Run::Literal(0), Vec::new(), 0);
            while got.len() < want.len() {
                let mut out = vec![0; output.min(want.len() - got.len())];
                let piece = &packed[at..packed.len().min(at + input)];
                let (used, made) = run.step(piece, &mut out);
                assert!(used + made > 0, "{input} {output}: stuck at {at}");
                at += used;
                got.extend_from_slice(&out[..made]);
            }
            assert_eq!((got, at), (want.clone(), packed.len()), "{input} {output}");
        }
        assert_eq!(Run::Literal(0).step(&[], &mut [0; 4]), (0, 0));
    }
}
