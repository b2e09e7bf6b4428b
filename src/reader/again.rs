//! Source chunks that passes read again: held from the first pass on, as far as there is room beside everything else.
//!
//! Values that fit 1, 2 or 4 bits take that (genotypes: two bits), others what `engine.park` says, else they lie as they are.
//! Chunks are taken as they come until the room is full, and stay; the rest is read again by each pass. To replace the oldest
//! would leave nothing of use: a pass asks for chunks in the order of the last one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::array::{Account, Block, Buffer, Dims, Lease, Region};
use crate::codec::{self, PackError, Packed, Park};

/// What a chunk takes here beside its values.
pub const BESIDE: u64 = 256;

/// Brick, feed, chunk.
pub type Key = (u64, usize, Dims<u64>);

#[derive(Clone)]
enum Form {
    Plain(Block),
    Packed(Arc<Packed>),
}

struct Held {
    /// The part of the chunk that is kept.
    region: Region,
    form: Form,
    _beside: Lease,
}

/// The chunks that the passes of a phase hold.
pub struct Again {
    account: Account,
    park: Park,
    chunks: Mutex<HashMap<Key, Held>>,
}

impl Again {
    /// Room for `bytes`; `park` as the job says.
    pub fn new(bytes: u64, park: Park) -> Self {
        // Bits are packed at the speed of memory, so they need not be asked for.
        let park = if park == Park::Auto { Park::Bitpack } else { park };
        Self { account: Account::new("again", bytes), park, chunks: Mutex::default() }
    }

    /// For the report: the most that was held, of how much.
    pub fn peak(&self) -> (u64, u64) {
        (self.account.peak(), self.account.limit())
    }

    /// The part of a chunk that an earlier pass held. Packed values are restored into memory of `lease`.
    pub fn find(&self, key: &Key, region: &Region, lease: &mut Lease) -> Result<Option<Block>, PackError> {
        let form = {
            let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
            match chunks.get(key).filter(|held| held.region == *region) {
                Some(held) => held.form.clone(),
                None => return Ok(None),
            }
        };
        Ok(Some(match form {
            Form::Plain(block) => block,
            Form::Packed(packed) => {
                let mut buffer = Buffer::from_lease(lease, packed.byte_len())?;
                packed.unpack_into(&mut buffer)?;
                Block::new(buffer, packed.dtype, &packed.shape[..])
            }
        }))
    }

    /// Holds a chunk if there is room, and gives back what to go on with. `scratch` belongs to the worker.
    pub fn hold(&self, key: Key, region: &Region, block: Block, scratch: &mut Vec<u8>) -> Block {
        let Some(beside) = self.account.try_lease(BESIDE) else { return block };
        let form = match codec::pack(&block, self.park, &self.account, scratch) {
            Some(packed) => Form::Packed(Arc::new(packed)),
            None => match self.copy(&block) {
                Some(copy) => Form::Plain(copy),
                None => return block,
            },
        };
        // What lies here as it is need not lie twice.
        let go_on = if let Form::Plain(copy) = &form { copy.clone() } else { block };
        let held = Held { region: region.clone(), form, _beside: beside };
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).insert(key, held);
        go_on
    }

    fn copy(&self, block: &Block) -> Option<Block> {
        let lease = self.account.try_lease(block.byte_len() as u64)?;
        let mut buffer = Buffer::new(lease, block.byte_len()).ok()?;
        block.copy_to(&mut buffer);
        Some(Block::new(buffer, block.dtype(), block.shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::DType;

    fn key(chunk: u64) -> Key {
        (0, 0, [chunk].as_slice().into())
    }

    fn found(again: &Again, chunk: u64, region: &Region) -> Option<Vec<u8>> {
        let mut lease = Account::unbounded("test").try_lease(1 << 20).expect("unbounded");
        let block = again.find(&key(chunk), region, &mut lease).expect("unpacks")?;
        assert_eq!(*block.shape(), *region.shape());
        let mut bytes = vec![0; block.byte_len()];
        block.copy_to(&mut bytes);
        Some(bytes)
    }

    #[test]
    fn chunks_are_held_until_the_room_is_full_and_stay() {
        let region = Region::from_ranges(&[(0, 4096)]);
        let genotypes: Vec<u8> = (0..4096).map(|i| (i * 7 / 3 % 4) as u8).collect();
        let others: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        let mut scratch = Vec::new();
        for (park, form) in [(Park::Auto, 1024), (Park::Bitpack, 1024), (Park::None, 4096)] {
            let again = Again::new(2 * (BESIDE + form) + BESIDE + 4096 + 100, park);
            let mut hold = |chunk: u64, values: &[u8]| {
                let block = Block::from_values(&[4096], values);
                let after = again.hold(key(chunk), &region, block, &mut scratch);
                assert_eq!((after.bytes().expect("whole"), after.dtype()), (values, DType::U8));
            };
            hold(0, &genotypes);
            hold(1, &genotypes);
            hold(2, &others);
            hold(3, &others);
            assert_eq!(found(&again, 0, &region).as_deref(), Some(&genotypes[..]), "{park:?}");
            assert_eq!(found(&again, 1, &region).as_deref(), Some(&genotypes[..]), "{park:?}");
            assert_eq!(found(&again, 2, &region).as_deref(), Some(&others[..]), "{park:?}");
            assert_eq!(found(&again, 3, &region), None, "there was no room");
            assert_eq!(found(&again, 0, &Region::from_ranges(&[(0, 4095)])), None, "another part");
            let (peak, limit) = again.peak();
            assert!(peak <= limit && peak >= 2 * form + 4096);
        }
    }
}
