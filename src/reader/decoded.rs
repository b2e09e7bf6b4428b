//! Packed numbers as what they stand for ([`Packing`]), chunk by chunk.
//!
//! A chunk is read into the end of its buffer and decoded from the front: the numbers become longer, never shorter, so none is
//! overwritten before it is read. Costs one pass over the part that is asked for, no memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::Scalar;
use crate::reader::zarr::ZarrSource;
use crate::remote::Requests;
use crate::zarr::cf::{Packing, drop_packing};

/// Numbers that are decoded at once.
const AT_ONCE: usize = 512;

/// A source whose numbers are packed.
pub struct Decoded {
    inner: ZarrSource,
    packing: Packing,
    meta: SourceMeta,
}

/// The array with its packing undone; as it is where it has none. Refused when its attributes cannot be followed.
pub fn decoded(inner: ZarrSource) -> Result<Box<dyn Source>, OpenError> {
    let header = inner.header();
    let packing = Packing::of(header).map_err(|reason| OpenError::refused(inner.meta().place.display().to_string(), reason))?;
    let Some(packing) = packing else { return Ok(Box::new(inner)) };
    let mut meta = inner.meta().clone();
    let was_nan = meta.array.missing.is_some_and(|m| m.to_f64().is_nan());
    meta.array.dtype = packing.decoded;
    meta.array.max_value = None;
    meta.array.missing = match packing.decoded.is_float() && (packing.can_miss() || was_nan) {
        true => Scalar::from_number(packing.decoded, f64::NAN).ok(),
        false => None,
    };
    drop_packing(&mut meta.array.attributes);
    meta.fill_value = packing.value(&header.fill);
    meta.identity.push_str(" decode_cf");
    let name = meta.array.name.clone();
    meta.notes.extend(packing.notes.iter().map(|note| format!("{name}: {note}")));
    Ok(Box::new(Decoded { inner, packing, meta }))
}

impl Source for Decoded {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn requests(&self) -> Requests {
        self.inner.requests()
    }

    fn names(&self, axis: usize, each: &mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> {
        self.inner.names(axis, each)
    }

    fn enter(&self, stop: &Arc<AtomicBool>) {
        self.inner.enter(stop);
    }

    fn leave(&self) {
        self.inner.leave();
    }

    fn stamp(&self) -> Result<String, SourceError> {
        self.inner.stamp()
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        self.read_part(chunk, 0..out.len(), out, transient)
    }

    fn read_part(
        &self,
        chunk: &[u64],
        part: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let (small, large) = (self.packing.stored.size(), self.packing.decoded.size());
        let end = out.len() - out.len() / large * small;
        let cells = part.start / large..part.end.div_ceil(large).min(out.len() / large);
        let read = self.inner.read_part(chunk, cells.start * small..cells.end * small, &mut out[end..], transient)?;
        let mut stored = [0; 8 * AT_ONCE];
        for first in cells.clone().step_by(AT_ONCE) {
            let last = (first + AT_ONCE).min(cells.end);
            let stored = &mut stored[..(last - first) * small];
            stored.copy_from_slice(&out[end + first * small..end + last * small]);
            self.packing.decode(stored, &mut out[first * large..last * large]);
        }
        Ok(read)
    }
}

#[cfg(test)]
#[path = "decoded_tests.rs"]
mod tests;
