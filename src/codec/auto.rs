//! `park = "auto"`: which packing a feed's chunks get, by what its first chunks showed.
//!
//! Constants and bit packing are always tried first: the scan that proves a width leaves at the first value above 15, and
//! the plan counts on guaranteed widths. The first [`TRIALS`] chunks that neither fits are packed both by lz4 and blosc;
//! then the feed keeps one of them, or stays plain. Which one it is never changes a value, so threads may race here.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Form, Packed, Park, Plain, blosc, grow, keep, lz4, try_pack};
use crate::array::{Account, Block, Buffer};

/// Chunks on which both codecs are measured.
pub const TRIALS: u32 = 4;
/// A codec must save at least one byte in `MIN_SAVED` of what it is given.
pub const MIN_SAVED: u64 = 4;
/// Where both codecs will do, the smaller result wins when it saves this part (one in 8) of the bytes more than the other;
/// else the faster.
pub const CLEARLY_SMALLER: u64 = 8;
/// Chunks in a row that don't pack after the choice was made; then the feed stays plain.
pub const MAX_MISSES: u32 = 8;
/// Bytes per second and worker that packing must reach where the plan names no rate. Slower than a disk, it would be
/// cheaper to read again.
pub const DEFAULT_RATE: u64 = 150_000_000;

const UNDECIDED: u8 = 0;
const PLAIN: u8 = 1;
const LZ4: u8 = 2;
const BLOSC: u8 = 3;

/// What one codec did on the trial chunks.
#[derive(Default)]
struct Tally {
    saved: AtomicU64,
    nanos: AtomicU64,
}

/// The measurements and the choice for one feed, shared by its packing workers.
pub struct AutoPark {
    /// Bytes per second that one worker must pack.
    min_rate: u64,
    /// Trials begun, and trials whose numbers are in.
    begun: AtomicU32,
    finished: AtomicU32,
    bytes: AtomicU64,
    lz4: Tally,
    blosc: Tally,
    choice: AtomicU8,
    misses: AtomicU32,
}

impl Default for AutoPark {
    fn default() -> Self {
        Self::new(DEFAULT_RATE)
    }
}

impl AutoPark {
    /// `min_rate`: bytes per second at which one worker must pack, or packing would hold the pipeline up.
    pub fn new(min_rate: u64) -> Self {
        Self {
            min_rate,
            begun: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            lz4: Tally::default(),
            blosc: Tally::default(),
            choice: AtomicU8::new(UNDECIDED),
            misses: AtomicU32::new(0),
        }
    }

    /// What chunks get that neither are constant nor fit in bits: `None` while the trials run, [`Park::None`] for plain.
    pub fn choice(&self) -> Option<Park> {
        match self.choice.load(Ordering::Relaxed) {
            UNDECIDED => None,
            PLAIN => Some(Park::None),
            LZ4 => Some(Park::Lz4),
            _ => Some(Park::Blosc),
        }
    }

    /// Packs a contiguous block as [`super::pack`] does, by the best form known for this feed.
    pub fn pack(&self, block: &Block, account: &Account, scratch: &mut Vec<u8>) -> Option<Packed> {
        match try_pack(block, Park::Auto, account, scratch) {
            Ok(packed) => return Some(packed),
            // What fits in bits has no need of a codec, and says nothing about chunks that don't.
            Err(Plain::NoRoom) => return None,
            Err(Plain::NoGain) => {}
        }
        let bytes = block.bytes().filter(|b| !b.is_empty())?;
        let form = match self.choice.load(Ordering::Relaxed) {
            PLAIN => return None,
            LZ4 => Form::Lz4(keep(self.counted(lz4::compress(bytes, scratch)), scratch, account).ok()?),
            BLOSC => {
                let len = self.counted(blosc::compress(bytes, block.dtype(), scratch));
                Form::Blosc(keep(len, scratch, account).ok()?)
            }
            _ => self.trial(block, bytes, account, scratch)?,
        };
        Some(Packed::of(block, form))
    }

    /// Gives up packing after too many chunks in a row that saved nothing.
    fn counted(&self, len: Option<usize>) -> Option<usize> {
        if len.is_some() {
            self.misses.store(0, Ordering::Relaxed);
        } else if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_MISSES {
            self.choice.store(PLAIN, Ordering::Relaxed);
        }
        len
    }

    fn trial(&self, block: &Block, bytes: &[u8], account: &Account, scratch: &mut Vec<u8>) -> Option<Form> {
        if self.begun.fetch_add(1, Ordering::Relaxed) >= TRIALS {
            // Other workers are still measuring; this chunk need not wait for them.
            return None;
        }
        // The first touch of fresh pages must not count against the codec that comes first.
        grow(scratch, lz4::scratch_len(bytes.len()));
        scratch.fill(0);
        let (lz4, time) = timed(|| lz4::compress(bytes, scratch));
        self.lz4.add(bytes.len(), lz4, time);
        let first: Option<Buffer> = keep(lz4, scratch, account).ok();
        let (blosc, time) = timed(|| blosc::compress(bytes, block.dtype(), scratch));
        self.blosc.add(bytes.len(), blosc, time);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self.finished.fetch_add(1, Ordering::AcqRel) + 1 == TRIALS {
            self.choice.store(self.decide(), Ordering::Relaxed);
        }
        match (first, blosc) {
            (Some(first), Some(len)) if first.len() <= len => Some(Form::Lz4(first)),
            (first, Some(len)) => {
                drop(first);
                keep(Some(len), scratch, account).ok().map(Form::Blosc)
            }
            (first, None) => first.map(Form::Lz4),
        }
    }

    fn decide(&self) -> u8 {
        let bytes = self.bytes.load(Ordering::Relaxed);
        choose(bytes, self.min_rate, self.lz4.read(), self.blosc.read())
    }
}

/// The better of two codecs, each (bytes saved, nanoseconds) on `bytes` bytes.
fn choose(bytes: u64, min_rate: u64, lz4: (u64, u64), blosc: (u64, u64)) -> u8 {
    let will_do = |(saved, nanos): (u64, u64)| {
        let rate = bytes as u128 * 1_000_000_000 / nanos.max(1) as u128;
        saved >= bytes / MIN_SAVED && rate >= min_rate as u128
    };
    match (will_do(lz4), will_do(blosc)) {
        (false, false) => PLAIN,
        (true, false) => LZ4,
        (false, true) => BLOSC,
        (true, true) if lz4.0.abs_diff(blosc.0) > bytes / CLEARLY_SMALLER => {
            if lz4.0 > blosc.0 {
                LZ4
            } else {
                BLOSC
            }
        }
        (true, true) if lz4.1 < blosc.1 => LZ4,
        (true, true) => BLOSC,
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let since = Instant::now();
    let result = work();
    (result, since.elapsed())
}

impl Tally {
    fn add(&self, bytes: usize, packed: Option<usize>, time: Duration) {
        self.saved.fetch_add((bytes - packed.unwrap_or(bytes)) as u64, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.saved.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::noise;

    #[test]
    fn the_choice_follows_its_thresholds() {
        let second = 1_000_000_000;
        // Nothing saves a quarter, or nothing is fast enough.
        assert_eq!(choose(1000, 0, (249, 1), (249, 1)), PLAIN);
        assert_eq!(choose(1000, 1001, (900, second), (900, second)), PLAIN);
        assert_eq!(choose(1000, 1000, (900, second), (900, second + 10_000_000)), LZ4);
        // Clearly smaller beats faster; nearly as small does not.
        assert_eq!(choose(1000, 0, (300, 1), (500, 9)), BLOSC);
        assert_eq!(choose(1000, 0, (500, 9), (300, 1)), LZ4);
        assert_eq!(choose(1000, 0, (400, 1), (500, 9)), LZ4);
        assert_eq!(choose(1000, 0, (500, 9), (400, 1)), BLOSC);
    }

    fn run(auto: &AutoPark, values: &[f32]) -> Option<Packed> {
        let block = Block::from_values(&[values.len()], values);
        let packed = auto.pack(&block, &Account::unbounded("test"), &mut Vec::new())?;
        let mut out = vec![7; block.byte_len()];
        packed.unpack_into(&mut out).unwrap();
        assert_eq!(out, block.bytes().unwrap());
        Some(packed)
    }

    #[test]
    fn noise_ends_the_trials_and_smooth_values_pick_a_codec() {
        let auto = AutoPark::new(0);
        let hard: Vec<f32> = noise(5, 80_000).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        for i in 0..TRIALS {
            assert_eq!(auto.choice(), None, "{i}");
            assert!(run(&auto, &hard).is_none());
        }
        assert_eq!(auto.choice(), Some(Park::None));
        // Constants still pack.
        assert!(matches!(run(&auto, &[2.5; 100]).unwrap().form, Form::Constant(_)));

        let auto = AutoPark::new(0);
        let smooth: Vec<f32> = (0..20_000).map(|i| (i / 50) as f32).collect();
        for _ in 0..TRIALS {
            assert!(run(&auto, &smooth).is_some());
        }
        assert!(matches!(auto.choice(), Some(Park::Lz4 | Park::Blosc)), "{:?}", auto.choice());
        assert!(matches!(run(&auto, &smooth).unwrap().form, Form::Lz4(_) | Form::Blosc(_)));
        // A feed that turns to noise is given up.
        for _ in 0..MAX_MISSES {
            assert!(run(&auto, &hard).is_none());
        }
        assert_eq!(auto.choice(), Some(Park::None));
        assert!(run(&auto, &smooth).is_none());
    }

    #[test]
    fn bits_need_no_trial_and_no_room_is_no_verdict() {
        let auto = AutoPark::default();
        let block = Block::from_values(&[10, 100], &noise(1, 1000).iter().map(|b| b % 3).collect::<Vec<u8>>());
        let room = Account::unbounded("test");
        assert!(matches!(auto.pack(&block, &room, &mut Vec::new()).unwrap().form, Form::Bits { width: 2, .. }));
        assert!(auto.pack(&block, &Account::new("full", 0), &mut Vec::new()).is_none());
        assert_eq!(auto.begun.load(Ordering::Relaxed), 0);
    }
}
