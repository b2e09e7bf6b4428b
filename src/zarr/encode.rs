//! Values of one chunk to encoded bytes: the codec of an output. The same values give the same bytes.

use std::io::Write;

use flate2::write::GzEncoder;

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

    /// Encodes `values` into `context.encoded`.
    pub fn encode(&self, values: &[u8], context: &mut Context) -> Result<(), String> {
        let Context { zstd, encoded, .. } = context;
        encoded.clear();
        match *self {
            Encoder::None => encoded.extend_from_slice(values),
            Encoder::Zstd { level } => {
                encoded.reserve_exact(self.bound(values.len()));
                let compressor = match zstd {
                    Some(c) => c,
                    none => none.insert(zstd::bulk::Compressor::new(level).map_err(|e| format!("zstd: {e}"))?),
                };
                compressor.compress_to_buffer(values, encoded).map_err(|e| format!("zstd: {e}"))?;
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
            }
        }
    }
}
