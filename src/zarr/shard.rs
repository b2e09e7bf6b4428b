//! Shards (`sharding_indexed`): one stored object with many chunks and an index of where each lies. The index of a shard
//! is read once and kept, with the open object, while it is among the most recently used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::codecs::IndexForm;
use super::decode::strip_checksum;
use super::read::{Object, Part};

/// Bytes of index that all cached shards may hold, unless [`LEAST_SHARDS`] need more.
const CACHE_BYTES: u64 = 8 << 20;
const LEAST_SHARDS: u64 = 8;
/// Every cached shard of a folder holds a file open.
const MOST_SHARDS: u64 = 64;

/// An index with more bytes than this is refused: it would have to be held several times.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Offset and length that stand for "no chunk here, all fill value".
const EMPTY: [u64; 2] = [u64::MAX; 2];

/// One shard, open.
#[derive(Debug)]
pub struct Shard {
    object: Object,
    /// Bytes of the object when it was opened.
    size: u64,
    /// Offset and length of every chunk, in C order of the chunks in the shard.
    index: Vec<[u64; 2]>,
}

impl Shard {
    /// Where the index of a shard with `count` chunks lies.
    pub fn index_part(count: u64, form: IndexForm) -> Part {
        let stored = index_bytes(count, form.has_checksum);
        if form.is_at_end { Part::Last(stored) } else { Part::Bytes(0..stored) }
    }

    /// Reads the index of a shard with `count` chunks; the reason when it is not one.
    pub fn read(object: Object, count: u64, form: IndexForm) -> Result<Self, ShardError> {
        let (stored, size) = (index_bytes(count, form.has_checksum), object.size());
        if size < stored {
            return Err(ShardError::Corrupt(format!("the shard is torn: it holds {size} bytes, its index alone has {stored}")));
        }
        let mut bytes = vec![0; stored as usize];
        object.read_exact_at(&mut bytes, if form.is_at_end { size - stored } else { 0 }).map_err(ShardError::Io)?;
        let values = match form.has_checksum {
            true => strip_checksum(&bytes).map_err(|e| ShardError::Corrupt(format!("shard index: {e}")))?,
            false => &bytes,
        };
        let number = |b: &[u8; 8]| if form.is_big_endian { u64::from_be_bytes(*b) } else { u64::from_le_bytes(*b) };
        let index = values.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|[a, b]| [number(a), number(b)]).collect();
        Ok(Self { object, size, index })
    }

    /// Where chunk `at` lies (offset, bytes), at most `most` bytes long; `None` when it is empty.
    pub fn chunk(&self, at: usize, most: u64) -> Result<Option<(u64, u64)>, ShardError> {
        let entry @ [offset, len] =
            *self.index.get(at).ok_or_else(|| ShardError::Corrupt(format!("the shard has no chunk {at}")))?;
        if entry == EMPTY {
            return Ok(None);
        }
        if offset.checked_add(len).is_none_or(|stop| stop > self.size) {
            let reason = format!("shard index: chunk {at} claims {len} bytes at {offset}, the shard holds {}", self.size);
            return Err(ShardError::Corrupt(reason));
        }
        if len > most {
            return Err(ShardError::Corrupt(format!("shard index: chunk {at} claims {len} bytes, at most {most} are expected")));
        }
        Ok(Some((offset, len)))
    }

    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), ShardError> {
        self.object.read_exact_at(out, offset).map_err(ShardError::Io)
    }
}

#[derive(Debug)]
pub enum ShardError {
    Io(std::io::Error),
    Corrupt(String),
}

/// Stored bytes of an index.
pub fn index_bytes(count: u64, has_checksum: bool) -> u64 {
    16 * count + if has_checksum { 4 } else { 0 }
}

/// A shard being loaded or loaded: `Some(None)` when there is no such object.
type Slot = Arc<Mutex<Option<Option<Arc<Shard>>>>>;

/// The most recently used shards, shared by the reader's workers.
#[derive(Debug)]
pub struct ShardCache {
    capacity: u64,
    slots: Mutex<Slots>,
}

/// Shards by their coordinates, each with the time of its last use; time counts the calls.
#[derive(Debug, Default)]
struct Slots {
    now: u64,
    held: HashMap<Vec<u64>, (u64, Slot)>,
}

impl ShardCache {
    /// A cache for shards with `count` chunks each.
    pub fn new(count: u64) -> Self {
        let capacity = (CACHE_BYTES / index_bytes(count, true)).clamp(LEAST_SHARDS, MOST_SHARDS);
        Self { capacity, slots: Mutex::default() }
    }

    /// Bytes held when full.
    pub fn resident_bytes(&self, count: u64) -> u64 {
        self.capacity * index_bytes(count, false)
    }

    /// The shard, loaded by `load` when it is not held. Two workers that want the same one load it once. The flag is
    /// true for the one that loaded it. Errors are not kept.
    pub fn get<E>(
        &self,
        shard: &[u64],
        load: impl FnOnce() -> Result<Option<Shard>, E>,
    ) -> Result<(Option<Arc<Shard>>, bool), E> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.now += 1;
            let Slots { now, held } = &mut *slots;
            if let Some((used, slot)) = held.get_mut(shard) {
                *used = *now;
                slot.clone()
            } else {
                if held.len() as u64 >= self.capacity
                    && let Some(oldest) = held.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())
                {
                    held.remove(&oldest);
                }
                let slot = Slot::default();
                held.insert(shard.to_vec(), (*now, slot.clone()));
                slot
            }
        };
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shard) = &*held {
            return Ok((shard.clone(), false));
        }
        let loaded = load()?.map(Arc::new);
        *held = Some(loaded.clone());
        Ok((loaded, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::File;
    use crate::zarr::store::tests::Scratch;

    const FORM: IndexForm = IndexForm { is_at_end: true, is_big_endian: false, has_checksum: false };

    fn shard(bytes: &[u8], count: u64) -> Result<Shard, ShardError> {
        let scratch = Scratch::new();
        let path = scratch.0.join("s");
        std::fs::write(&path, bytes).unwrap();
        Shard::read(Object::File(File::open(&path).unwrap(), bytes.len() as u64), count, FORM)
    }

    #[test]
    fn hostile_indexes_are_refused() {
        let entries: [[u64; 2]; 5] = [[0, 4], [u64::MAX - 1, 4], [0, 1 << 60], [u64::MAX, u64::MAX], [3, 200]];
        let mut bytes = b"data".to_vec();
        entries.iter().flatten().for_each(|v| bytes.extend(v.to_le_bytes()));
        let shard = shard(&bytes, 5).unwrap();
        assert_eq!(shard.chunk(0, 100).unwrap(), Some((0, 4)));
        assert_eq!(shard.chunk(3, 100).unwrap(), None);
        for at in [1, 2, 4, 5] {
            assert!(matches!(shard.chunk(at, 100), Err(ShardError::Corrupt(_))), "{at}");
        }
        assert!(shard.chunk(0, 3).is_err(), "longer than a chunk can be");
        assert!(matches!(super::tests::shard(b"short", 5), Err(ShardError::Corrupt(_))));
    }

    #[test]
    fn a_shard_is_loaded_once_while_it_is_in_use() {
        let cache = ShardCache::new(1 << 16);
        assert_eq!(cache.capacity, LEAST_SHARDS);
        let load = |key: u64| cache.get::<()>(&[key], || Ok(None)).unwrap().1;
        assert!(load(0));
        assert!(!load(0));
        for key in 1..=LEAST_SHARDS {
            assert!(load(key));
            if key < LEAST_SHARDS {
                assert!(!load(0), "the most recently used stays");
            }
        }
        assert!(load(1), "the least recently used went");
        assert!(cache.get(&[99], || Err::<Option<Shard>, _>("no")).is_err());
        assert!(load(99), "errors are not kept");
    }
}
