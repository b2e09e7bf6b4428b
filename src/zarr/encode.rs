//! Values of one chunk to encoded bytes: the codec of an output. The same values give the same bytes.

use std::io::{self, BufWriter, Write};

use flate2::write::GzEncoder;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{self, InBuffer, OutBuffer, ResetDirective};

use super::frames::PIECE;
use crate::array::DType;
use crate::config::{CodecName, CodecSpec};

/// The largest buffer blosc takes.
const BLOSC_LIMIT: u64 = i32::MAX as u64 - 16;

/// A codec with its level, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    None,
    Zstd { level: i32 },
    Gzip { level: u32 },
    Blosc { cname: Cname, level: i32, typesize: usize, shuffle: Shuffle },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cname {
    Lz4,
    Zstd,
}

impl Cname {
    pub fn name(self) -> &'static str {
        match self {
            Cname::Lz4 => "lz4",
            Cname::Zstd => "zstd",
        }
    }
}

/// The numbers are blosc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    Bytes = 1,
    Bits = 2,
}

/// Why a chunk was not encoded and written.
#[derive(Debug)]
pub enum EncodeError {
    Codec(String),
    Io(io::Error),
}

/// Encoder state and buffers worth keeping from chunk to chunk.
#[derive(Default)]
pub struct Context {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    pub encoded: Vec<u8>,
    /// A subchunk cut out of its shard.
    pub gathered: Vec<u8>,
}

impl Encoder {
    /// Fills in default levels and refuses what the codec does not know, or a chunk it cannot hold.
    pub fn new(spec: &CodecSpec, dtype: DType, chunk_bytes: u64) -> Result<Self, String> {
        let level = |name: &str, default: i32, from: i32, to: i32| match spec.level.unwrap_or(default) {
            level if (from..=to).contains(&level) => Ok(level),
            level => Err(format!("level {level} is not a level of {name} ({from} to {to})")),
        };
        let shuffle = if dtype.size() == 1 { Shuffle::Bits } else { Shuffle::Bytes };
        let blosc = |cname: Cname, level| {
            if chunk_bytes > BLOSC_LIMIT {
                return Err(format!(
                    "a chunk of {chunk_bytes} bytes is too large for blosc ({BLOSC_LIMIT}); use smaller chunks or zstd"
                ));
            }
            Ok(Encoder::Blosc { cname, level, typesize: dtype.size(), shuffle })
        };
        match spec.name {
            CodecName::None if spec.level.is_some() => Err("codec none takes no level".into()),
            CodecName::None => Ok(Encoder::None),
            CodecName::Zstd => Ok(Encoder::Zstd { level: level("zstd", 3, 1, 22)? }),
            CodecName::Gzip => Ok(Encoder::Gzip { level: level("gzip", 5, 0, 9)? as u32 }),
            CodecName::BloscLz4 => blosc(Cname::Lz4, level("blosc-lz4", 5, 0, 9)?),
            CodecName::BloscZstd => blosc(Cname::Zstd, level("blosc-zstd", 5, 0, 9)?),
        }
    }

    /// Most bytes that `n` bytes encode to.
    pub fn bound(&self, n: usize) -> usize {
        match self {
            Encoder::None => n,
            Encoder::Zstd { .. } => zstd::zstd_safe::compress_bound(n),
            // Stored blocks as zlib makes them at worst, and the header.
            Encoder::Gzip { .. } => n + n / 8 + n / 64 + 64,
            Encoder::Blosc { .. } => n + 16,
        }
    }

    /// True where `n` bytes are encoded piece by piece, so that what comes of them is never held as a whole: where that takes less.
    pub fn gives_pieces(&self, n: usize) -> bool {
        self.pieces_bytes(n).is_some_and(|held| held < self.bound(n) as u64)
    }

    /// Bytes of what is held of `n` bytes' encoded form, and of a window over them.
    pub fn held_bytes(&self, n: usize) -> u64 {
        self.pieces_bytes(n).into_iter().chain([self.bound(n) as u64]).min().unwrap_or(0)
    }

    fn pieces_bytes(&self, n: usize) -> Option<u64> {
        match self {
            Encoder::None => Some(0),
            Encoder::Zstd { level } => Some(PIECE as u64 + window_bytes(*level, n)),
            Encoder::Gzip { .. } => Some(PIECE as u64),
            Encoder::Blosc { .. } => None,
        }
    }

    /// Bytes that the codec library takes while encoding `n` bytes.
    pub fn context_bytes(&self, n: usize) -> u64 {
        match self {
            Encoder::None => 0,
            Encoder::Zstd { level } => zstd_bytes(*level, n),
            Encoder::Gzip { .. } => 512 << 10,
            Encoder::Blosc { cname, level, .. } => {
                let block = n.min(1 << 20);
                let inner = match cname {
                    Cname::Lz4 => 32 << 10,
                    // blosc's level l is zstd's 2 l - 1, and 22 for 9.
                    Cname::Zstd => zstd_bytes(if *level >= 9 { 22 } else { 2 * level - 1 }, block),
                };
                3 * block as u64 + inner
            }
        }
    }

    /// Encodes `values` and gives what comes of them to `write`, in pieces where that takes less memory. Says how many bytes that was.
    pub fn encode_to(
        &self,
        values: &[u8],
        context: &mut Context,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, EncodeError> {
        if matches!(self, Encoder::None) {
            return write(values).map(|()| values.len() as u64).map_err(EncodeError::Io);
        }
        if !self.gives_pieces(values.len()) {
            self.encode(values, context).map_err(EncodeError::Codec)?;
            return write(&context.encoded).map(|()| context.encoded.len() as u64).map_err(EncodeError::Io);
        }
        let mut written = 0;
        let mut write = |bytes: &[u8]| {
            written += bytes.len() as u64;
            write(bytes)
        };
        match *self {
            Encoder::Zstd { level } => {
                let failed = |code| EncodeError::Codec(format!("zstd: {}", zstd_safe::get_error_name(code)));
                let Context { zstd, encoded, .. } = context;
                let stream = compressor(zstd, level).map_err(EncodeError::Codec)?.context_mut();
                stream.reset(ResetDirective::SessionOnly).map_err(failed)?;
                stream.set_pledged_src_size(Some(values.len() as u64)).map_err(failed)?;
                encoded.resize(PIECE, 0);
                let mut source = InBuffer::around(values);
                let mut left = 1;
                while left > 0 {
                    let mut piece = OutBuffer::around(&mut encoded[..]);
                    left = stream.compress_stream2(&mut piece, &mut source, ZSTD_EndDirective::ZSTD_e_end).map_err(failed)?;
                    write(piece.as_slice()).map_err(EncodeError::Io)?;
                }
            }
            Encoder::Gzip { level } => {
                let mut encoder =
                    GzEncoder::new(BufWriter::with_capacity(PIECE, Writing(write)), flate2::Compression::new(level));
                encoder.write_all(values).and_then(|()| encoder.finish()?.flush()).map_err(EncodeError::Io)?;
            }
            Encoder::None | Encoder::Blosc { .. } => {}
        }
        Ok(written)
    }

    /// Encodes `values` into `context.encoded`.
    pub fn encode(&self, values: &[u8], context: &mut Context) -> Result<(), String> {
        let Context { zstd, encoded, .. } = context;
        encoded.clear();
        match *self {
            Encoder::None => encoded.extend_from_slice(values),
            Encoder::Zstd { level } => {
                encoded.reserve_exact(self.bound(values.len()));
                compressor(zstd, level)?.compress_to_buffer(values, encoded).map_err(|e| format!("zstd: {e}"))?;
            }
            Encoder::Gzip { level } => {
                encoded.reserve_exact(self.bound(values.len()));
                let mut encoder = GzEncoder::new(std::mem::take(encoded), flate2::Compression::new(level));
                encoder.write_all(values).map_err(|e| format!("gzip: {e}"))?;
                *encoded = encoder.finish().map_err(|e| format!("gzip: {e}"))?;
            }
            Encoder::Blosc { cname, level, typesize, shuffle } => {
                encoded.reserve_exact(self.bound(values.len()));
                let name = match cname {
                    Cname::Lz4 => c"lz4",
                    Cname::Zstd => c"zstd",
                };
                // SAFETY: blosc reads `values.len()` bytes and writes at most the reserved capacity; the vector takes
                // just the bytes it says it wrote. One internal thread means none beside this one.
                unsafe {
                    let written = blosc_src::blosc_compress_ctx(
                        level,
                        shuffle as i32,
                        typesize,
                        values.len(),
                        values.as_ptr().cast(),
                        encoded.as_mut_ptr().cast(),
                        encoded.capacity(),
                        name.as_ptr(),
                        0,
                        1,
                    );
                    if written <= 0 {
                        return Err(format!("blosc cannot encode {} bytes (code {written})", values.len()));
                    }
                    encoded.set_len(written as usize);
                }
            }
        }
        Ok(())
    }
}

type Compressor = zstd::bulk::Compressor<'static>;

fn compressor(held: &mut Option<Compressor>, level: i32) -> Result<&mut Compressor, String> {
    match held {
        Some(compressor) => Ok(compressor),
        none => Ok(none.insert(Compressor::new(level).map_err(|e| format!("zstd: {e}"))?)),
    }
}

/// Gives what is written to a function.
struct Writing<F>(F);

impl<F: FnMut(&[u8]) -> io::Result<()>> Write for Writing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What zstd holds of `n` bytes that it encodes in pieces: the window of zstd 1.5's levels, cut down to the source as zstd does, and
/// three blocks.
fn window_bytes(level: i32, n: usize) -> u64 {
    let log = match level {
        ..=1 => 19,
        2 => 20,
        3..=8 => 21,
        9..=16 => 22,
        17..=19 => 23,
        20 => 25,
        21 => 26,
        _ => 27,
    };
    (1u64 << log).min(n.next_power_of_two() as u64) + (3 << 17)
}

/// An upper bound of zstd's compression context for one-shot compression of `n` bytes: its tables (chain and hash logs
/// of zstd 1.5's default parameters, cut down to the source as zstd does) and 3 MiB for the rest, most of which only the
/// optimal parsers use.
fn zstd_bytes(level: i32, n: usize) -> u64 {
    const LOGS: [(u32, u32); 22] = [
        (13, 14),
        (15, 16),
        (16, 17),
        (18, 18),
        (18, 19),
        (18, 19),
        (19, 20),
        (19, 20),
        (20, 21),
        (21, 22),
        (21, 22),
        (22, 23),
        (22, 22),
        (22, 23),
        (23, 23),
        (22, 22),
        (23, 22),
        (23, 22),
        (24, 22),
        (25, 23),
        (26, 24),
        (27, 25),
    ];
    let (chain, hash) = LOGS[level.clamp(1, 22) as usize - 1];
    let source = usize::BITS - n.max(1 << 10).leading_zeros() + 1;
    (4u64 << chain.min(source)) + (5u64 << hash.min(source)) + (3 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: CodecName, level: Option<i32>) -> CodecSpec {
        CodecSpec { name, level }
    }

    #[test]
    fn levels_are_checked() {
        assert_eq!(Encoder::new(&spec(CodecName::Zstd, None), DType::F32, 9).unwrap(), Encoder::Zstd { level: 3 });
        assert!(Encoder::new(&spec(CodecName::Gzip, Some(10)), DType::F32, 9).unwrap_err().contains("0 to 9"));
        assert!(Encoder::new(&spec(CodecName::None, Some(1)), DType::F32, 9).is_err());
        assert!(Encoder::new(&spec(CodecName::BloscLz4, None), DType::F32, 1 << 31).unwrap_err().contains("blosc"));
    }

    #[test]
    fn encoding_stays_below_its_bound_and_repeats() {
        let noise: Vec<u8> = (0..100_003u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8).collect();
        for name in [CodecName::None, CodecName::Zstd, CodecName::Gzip, CodecName::BloscLz4, CodecName::BloscZstd] {
            let encoder = Encoder::new(&spec(name, None), DType::U8, noise.len() as u64).unwrap();
            let mut context = Context::default();
            for n in [1, 7, 1000, noise.len()] {
                encoder.encode(&noise[..n], &mut context).unwrap();
                let first = context.encoded.clone();
                assert!(!first.is_empty() && first.len() <= encoder.bound(n));
                encoder.encode(&noise[..n], &mut context).unwrap();
                assert_eq!(context.encoded, first);
            }
        }
    }

    #[test]
    fn pieces_are_the_chunk() {
        let noise: Vec<u8> = (0..6 << 20).map(|i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8 & 31).collect();
        for (name, in_pieces) in [(CodecName::None, 2), (CodecName::Zstd, 1), (CodecName::Gzip, 2), (CodecName::BloscLz4, 0)] {
            let encoder = Encoder::new(&spec(name, None), DType::U8, noise.len() as u64).unwrap();
            let (mut context, mut pieces) = (Context::default(), 0);
            // Twice with the same context, after a run that was given up.
            for n in [noise.len(), 1 << 20, noise.len()] {
                let broken = encoder.encode_to(&noise[..n], &mut context, |_| Err(io::ErrorKind::StorageFull.into()));
                assert!(matches!(broken, Err(EncodeError::Io(e)) if e.kind() == io::ErrorKind::StorageFull));
                let (mut whole, mut count) = (Vec::new(), 0);
                let mut write = |bytes: &[u8]| {
                    count += 1;
                    assert!(matches!(encoder, Encoder::None) || !encoder.gives_pieces(n) || bytes.len() <= PIECE);
                    whole.extend_from_slice(bytes);
                    Ok(())
                };
                let written = encoder.encode_to(&noise[..n], &mut context, &mut write).unwrap();
                assert_eq!(written, whole.len() as u64);
                let is_one = !encoder.gives_pieces(n) || name == CodecName::None;
                let is_right = if is_one { count == 1 } else { count >= whole.len().div_ceil(PIECE) };
                assert!(is_right, "{name:?} {n}: {count} pieces");
                pieces += usize::from(encoder.gives_pieces(n));
                let values = match name {
                    CodecName::Zstd => zstd::bulk::decompress(&whole, n).unwrap(),
                    CodecName::Gzip => {
                        let mut out = Vec::new();
                        io::Read::read_to_end(&mut flate2::bufread::GzDecoder::new(&whole[..]), &mut out).unwrap();
                        out
                    }
                    CodecName::None => whole,
                    _ => {
                        encoder.encode(&noise[..n], &mut context).unwrap();
                        assert_eq!(whole, context.encoded);
                        continue;
                    }
                };
                assert!(values == noise[..n], "{name:?} {n}");
            }
            assert_eq!(pieces, [0, 2, 3][in_pieces], "{name:?}");
        }
    }

    #[test]
    fn zstd_tables_are_bounded() {
        for level in 1..=22 {
            for n in [1 << 10, 1 << 14, 1 << 17, 300_000, 3 << 20] {
                if level > 12 && n > 300_000 {
                    continue;
                }
                let mut compressor = zstd::bulk::Compressor::new(level).unwrap();
                compressor.compress(&vec![7; n]).unwrap();
                let held = compressor.context_mut().sizeof() as u64;
                assert!(held <= zstd_bytes(level, n), "level {level}, {n} bytes: {held}");
                let encoder = Encoder::Zstd { level };
                let mut context = Context::default();
                encoder.encode_to(&vec![7; n], &mut context, |_| Ok(())).unwrap();
                let held = context.zstd.as_mut().unwrap().context_mut().sizeof() as u64;
                let window = if encoder.gives_pieces(n) { window_bytes(level, n) } else { 0 };
                assert!(held <= zstd_bytes(level, n) + window, "level {level}, {n} bytes in pieces: {held}");
            }
        }
    }
}
