//! Zstd frames that come piece by piece. They are decoded to where their bytes belong as far as these are wanted; of what lies behind,
//! only the headers of blocks are looked at, which tell whether all of it is there.

use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// Stored bytes are read and decoded so many at a time: they stay in the core's cache, in memory that is touched again and again.
pub const PIECE: usize = 256 << 10;

/// The longest header of a zstd frame.
const LONGEST_HEADER: usize = 18;

/// Frames on their way into `out`.
pub struct Frames<'f> {
    stream: &'f mut DCtx<'static>,
    out: &'f mut [u8],
    filled: usize,
    /// So many bytes of `out` are wanted.
    end: usize,
    /// What the decoder wants next; 0 between frames.
    hint: usize,
    /// Stored bytes seen.
    seen: u64,
    /// Where less is wanted than there is.
    walk: Option<Walk>,
}

impl<'f> Frames<'f> {
    /// For `out`, as long as all frames together, of which the first `end` bytes are wanted.
    pub fn begin(stream: &'f mut DCtx<'static>, out: &'f mut [u8], end: usize) -> Result<Self, String> {
        let failed = |code| format!("zstd: {}", zstd_safe::get_error_name(code));
        stream.reset(ResetDirective::SessionAndParameters).map_err(failed)?;
        // Decodes to where the bytes belong, without a window of its own: `out` has room for all of it.
        stream.set_parameter(DParameter::StableOutBuffer(true)).map_err(failed)?;
        let walk = (end < out.len()).then(Walk::default);
        Ok(Self { stream, out, filled: 0, end, hint: 0, seen: 0, walk })
    }

    /// Takes the stored bytes that come next.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        if self.seen == 0
            && let Ok(Some(claimed)) = zstd_safe::get_frame_content_size(piece)
            && claimed > self.out.len() as u64
        {
            return Err(super::decode::too_long("zstd", claimed, self.out.len()));
        }
        let before = self.seen;
        self.seen += piece.len() as u64;
        if let Some(walk) = &mut self.walk {
            walk.take(piece)?;
        }
        let is_early = self.walk.is_some();
        let mut read = 0;
        while read < piece.len() && !(is_early && self.filled >= self.end) {
            // Where the rest is not wanted, one block after the other; between frames there is no hint.
            let upto = match (is_early, self.hint) {
                (false, _) => piece.len(),
                (true, 0) => (read + LONGEST_HEADER).min(piece.len()),
                (true, hint) => (read + hint).min(piece.len()),
            };
            let (mut target, mut source) =
                (OutBuffer::around_pos(self.out, self.filled), InBuffer { src: &piece[..upto], pos: read });
            let hint = self.stream.decompress_stream(&mut target, &mut source).map_err(|code| {
                let at = before + source.pos() as u64;
                format!("zstd cannot decode what follows byte {at}: {}", zstd_safe::get_error_name(code))
            })?;
            let is_stuck = (source.pos, target.pos()) == (read, self.filled);
            (self.hint, read, self.filled) = (hint, source.pos, target.pos());
            if is_stuck {
                return Err(format!("the chunk is torn: zstd stops after {} bytes, expected {}", self.filled, self.out.len()));
            }
        }
        Ok(())
    }

    /// Says how many bytes all frames decode to, now that they are all there; `None` where that could only be told by
    /// decoding all of them.
    pub fn finish(self) -> Result<Option<u64>, String> {
        let torn = || format!("the chunk is torn: its zstd frames end after {} bytes, expected {}", self.filled, self.out.len());
        match &self.walk {
            None if self.hint > 0 => Err(torn()),
            None => Ok(Some(self.filled as u64)),
            Some(walk) if !walk.is_between() || self.filled < self.end => Err(torn()),
            Some(walk) => Ok(walk.decoded),
        }
    }
}

/// A look at the headers of frames and of their blocks.
struct Walk {
    /// Bytes until the next header.
    skip: u64,
    /// As much as there is of it.
    header: [u8; LONGEST_HEADER],
    held: usize,
    /// The header is that of a block; of a frame that ends with a checksum, or not.
    in_frame: Option<bool>,
    /// What all frames decode to, as they tell.
    decoded: Option<u64>,
}

impl Default for Walk {
    fn default() -> Self {
        Self { skip: 0, header: [0; LONGEST_HEADER], held: 0, in_frame: None, decoded: Some(0) }
    }
}

impl Walk {
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        loop {
            let skipped = self.skip.min(bytes.len() as u64);
            (self.skip, bytes) = (self.skip - skipped, &bytes[skipped as usize..]);
            let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
            (self.header[self.held], bytes) = (*first, rest);
            self.held += 1;
            if self.held == self.header_len() {
                self.pass()?;
                self.held = 0;
            }
        }
    }

    /// Bytes of the header that begins with what is held, as far as can be told.
    fn header_len(&self) -> usize {
        if self.in_frame.is_some() {
            return 3;
        }
        if self.held < 5 {
            return LONGEST_HEADER;
        }
        if self.is_skippable() {
            return 8;
        }
        let (descriptor, flag) = (self.header[4], self.header[4] >> 6);
        let is_single = descriptor & 0x20 != 0;
        let content = if flag == 0 { usize::from(is_single) } else { 1 << flag };
        5 + usize::from(!is_single) + [0, 1, 2, 4][usize::from(descriptor & 3)] + content
    }

    fn is_skippable(&self) -> bool {
        let [a, b, c, d, ..] = self.header;
        u32::from_le_bytes([a, b, c, d]) & 0xffff_fff0 == 0x184d_2a50
    }

    /// Goes past a header that is all there.
    fn pass(&mut self) -> Result<(), String> {
        let Some(has_checksum) = self.in_frame else {
            if self.is_skippable() {
                let [_, _, _, _, a, b, c, d, ..] = self.header;
                self.skip = u64::from(u32::from_le_bytes([a, b, c, d]));
                return Ok(());
            }
            let claimed = zstd_safe::get_frame_content_size(&self.header[..self.held])
                .map_err(|_| "zstd cannot decode it: what follows a frame is not one".to_owned())?;
            self.decoded = self.decoded.zip(claimed).and_then(|(sum, n)| sum.checked_add(n));
            self.in_frame = Some(self.header[4] & 4 != 0);
            return Ok(());
        };
        let [a, b, c, ..] = self.header;
        let header = u32::from_le_bytes([a, b, c, 0]);
        let (is_last, kind, size) = (header & 1 == 1, header >> 1 & 3, header >> 3);
        self.skip = match kind {
            // One byte, repeated.
            1 => 1,
            3 => return Err("zstd cannot decode it: a block is of no kind that there is".into()),
            _ => u64::from(size),
        };
        if is_last {
            self.skip += if has_checksum { 4 } else { 0 };
            self.in_frame = None;
        }
        Ok(())
    }

    fn is_between(&self) -> bool {
        (self.skip, self.held, self.in_frame) == (0, 0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::testing::Random;

    /// Frames of any number and kind, in pieces of any length, as far as anybody wants: as the library decodes them at once.
    #[test]
    fn pieces_decode_as_a_whole() {
        let mut random = Random::new(5);
        let mut stream = DCtx::create();
        let (mut early, mut untold) = (0, 0);
        for case in 0..400 {
            let (mut values, mut stored) = (Vec::new(), Vec::new());
            let mut is_told = true;
            for _ in 0..1 + random.below(3) {
                let most = 1 << (4 + random.below(15));
                let len = random.below(most) as usize;
                let bits = random.below(9) as u32;
                let part: Vec<u8> = (0..len).map(|_| (random.below(256) as u32 & ((1 << bits) - 1)) as u8).collect();
                match random.below(4) {
                    0 => {
                        is_told = false;
                        stored.extend(zstd::stream::encode_all(&part[..], 1).unwrap());
                    }
                    1 => {
                        let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
                        compressor.include_checksum(true).unwrap();
                        stored.extend(compressor.compress(&part).unwrap());
                    }
                    2 => {
                        stored.extend([0x5b, 0x2a, 0x4d, 0x18, 5, 0, 0, 0, 1, 2, 3, 4, 5]);
                        stored.extend(zstd::bulk::compress(&part, -5).unwrap());
                    }
                    _ => stored.extend(zstd::bulk::compress(&part, 3).unwrap()),
                }
                values.extend(part);
            }
            if values.is_empty() {
                continue;
            }
            let end = if random.below(2) == 0 { values.len() } else { 1 + random.below(values.len() as u64) as usize };
            let mut out = vec![0xee; values.len()];
            let mut run = |random: &mut Random, stored: &[u8], out: &mut [u8]| {
                let mut frames = Frames::begin(&mut stream, out, end)?;
                let mut rest = stored;
                while !rest.is_empty() {
                    let most = 1 << (1 + random.below(16));
                    let len = (1 + random.below(most)).min(rest.len() as u64) as usize;
                    frames.take(&rest[..len])?;
                    rest = &rest[len..];
                }
                frames.finish()
            };
            let found = run(&mut random, &stored, &mut out).unwrap_or_else(|e| panic!("case {case}: {e}"));
            assert!(out[..end] == values[..end], "case {case}, {end} of {}", values.len());
            let is_known = is_told || end == values.len();
            assert_eq!(found, is_known.then_some(values.len() as u64), "case {case}");
            (early, untold) = (early + usize::from(end < values.len()), untold + usize::from(!is_known));

            let cut = random.below(stored.len() as u64) as usize;
            let ended = run(&mut random, &stored[..cut], &mut out);
            assert!(
                !matches!(ended, Ok(n) if n == Some(values.len() as u64)) || untold_rest(&stored[cut..]),
                "case {case} cut to {cut}"
            );
            assert!(run(&mut random, &[&stored[..], b"garbage"].concat(), &mut out).is_err(), "case {case} with garbage");
            // Damage ends in an error or in other values: nothing else, panics included.
            let mut bad = stored.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(if case % 2 == 0 { stored.len().min(24) as u64 } else { stored.len() as u64 });
                bad[at as usize] = random.below(256) as u8;
            }
            let _ = run(&mut random, &bad, &mut out);
        }
        assert!(early > 100 && untold > 30, "{early} {untold}");
    }

    /// Frames of nothing lack to nobody.
    fn untold_rest(rest: &[u8]) -> bool {
        zstd::stream::decode_all(rest).is_ok_and(|left| left.is_empty())
    }
}
