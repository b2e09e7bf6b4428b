//! Stamps: sizes and times of many files condensed into one number, which is another when one of them was changed.

use super::Facts;

/// More files than this are asked for their times by another thread, up to so many threads.
const STAMPS_PER_THREAD: u64 = 512;
const MOST_STAMPING: u64 = 4;

/// FNV-1a, and a final mix after which sums tell changed trees apart.
#[derive(Clone, Copy)]
pub struct Hash(u64);

impl Hash {
    pub const START: Self = Self(0xcbf2_9ce4_8422_2325);

    pub fn with(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// A file's facts behind its name.
    pub fn facts(self, found: Facts) -> u64 {
        let facts = [found.len, found.seconds as u64, found.nanoseconds as u64];
        facts.iter().fold(self.with(b"\0"), |hash, fact| hash.with(&fact.to_le_bytes())).mixed()
    }

    pub fn mixed(self) -> u64 {
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

/// The stamp of `count` files, each given by [`Hash::facts`], or `None` when it is not there. Their order does not matter.
/// Each thread asks for neighbours, and keeps a `T` from one to the next.
pub fn of<T: Default, E: Send>(count: u64, facts: impl Fn(&mut T, u64) -> Result<Option<u64>, E> + Sync) -> Result<u64, E> {
    let threads = (count / STAMPS_PER_THREAD).clamp(1, MOST_STAMPING);
    let part = |thread: u64| {
        let (mut kept, each) = (T::default(), count.div_ceil(threads));
        let range = (thread * each).min(count)..((thread + 1) * each).min(count);
        range.into_iter().try_fold(0u64, |sum, n| Ok(sum.wrapping_add(facts(&mut kept, n)?.unwrap_or(0))))
    };
    std::thread::scope(|scope| {
        let part = &part;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let own = part(0);
        others.into_iter().fold(own, |sum, other| match other.join() {
            Ok(other) => Ok(sum?.wrapping_add(other?)),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
