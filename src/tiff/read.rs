//! A region of a page, decoded into the caller's buffer: only its strips or tiles are read, and of packed ones only what
//! lies before its last row is unpacked.
//!
//! Where a row of a strip or tile is as long as a row of the buffer, rows are decoded in place; strips that follow each other
//! unpacked in the file are read with one call.

use std::ops::Range;

use super::page::{Compression, Page};
use super::unpack::{Codecs, INPUT_BYTES, Input, Unpacker};
use super::{TiffError, TiffFile, values, wrong};
use crate::array::block::{c_strides, copy_strided};

/// Entries of the lists of offsets and lengths that are fetched at once.
const PLACES: u64 = 256;

/// What is read of a page.
#[derive(Clone, Debug)]
pub struct Part {
    pub rows: Range<u64>,
    pub cols: Range<u64>,
    pub samples: Range<u64>,
    /// From a row to the next in the buffer.
    pub row_bytes: usize,
}

/// Room that a worker keeps from part to part.
#[derive(Default)]
pub struct Scratch {
    codecs: Codecs,
}

/// Strips or tiles next to each other: where they lie in the file.
struct Places {
    first: u64,
    offsets: Vec<u64>,
    counts: Option<Vec<u64>>,
}

/// Adjacent unpacked bytes that are read together.
#[derive(Default)]
struct Run {
    at: u64,
    out: Range<usize>,
}

impl TiffFile {
    /// Reads a part of a page that lies `shift` bytes behind where its directory says. `spare` is a worker's own buffer, grown
    /// to [`Page::decode_bytes`] less the codec's state. Returns the bytes read.
    pub fn read(
        &self,
        page: &Page,
        shift: u64,
        part: &Part,
        out: &mut [u8],
        spare: &mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<u64, TiffError> {
        let room = INPUT_BYTES + page.row_buffer_bytes() as usize;
        if spare.len() < room {
            spare.resize(room, 0);
        }
        let mut reading =
            Reading { file: self, page, shift, part, out, spare, scratch, run: Run::default(), places: None, read: 0 };
        reading.all()?;
        reading.flush()?;
        Ok(reading.read)
    }
}

struct Reading<'a> {
    file: &'a TiffFile,
    page: &'a Page,
    shift: u64,
    part: &'a Part,
    out: &'a mut [u8],
    spare: &'a mut [u8],
    scratch: &'a mut Scratch,
    run: Run,
    places: Option<Places>,
    read: u64,
}

impl Reading<'_> {
    fn all(&mut self) -> Result<(), TiffError> {
        let (page, part) = (self.page, self.part);
        let planes = if page.is_planar { part.samples.clone() } else { 0..1 };
        for plane in planes {
            for down in part.rows.start / page.unit_rows..part.rows.end.div_ceil(page.unit_rows) {
                for across in part.cols.start / page.unit_cols..part.cols.end.div_ceil(page.unit_cols) {
                    let unit = page.unit_number(plane, down, across);
                    self.unit(unit, plane, down, across).map_err(|e| {
                        match self.places.as_ref().and_then(|p| p.offset(unit)) {
                            Some(offset) => {
                                e.at(format!("{} {unit} at offset {}", page.unit(), offset.saturating_add(self.shift)))
                            }
                            None => e.at(format!("{} {unit}", page.unit())),
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Where a strip or tile lies.
    fn place(&mut self, unit: u64) -> Result<(u64, Option<u64>), TiffError> {
        let header = self.file.header();
        if self.places.as_ref().is_none_or(|p| p.offset(unit).is_none()) {
            let count = (self.page.offsets.count - unit).min(PLACES);
            let counts = match &self.page.counts {
                Some(list) => Some(header.numbers(list, unit, count.min(list.count.saturating_sub(unit)))?),
                None => None,
            };
            self.places = Some(Places { first: unit, offsets: header.numbers(&self.page.offsets, unit, count)?, counts });
        }
        let places = self.places.as_ref();
        let Some(offset) = places.and_then(|p| p.offset(unit)).and_then(|o| o.checked_add(self.shift)) else {
            return wrong("it has no place in the file");
        };
        let count = places.and_then(|p| p.counts.as_ref()).and_then(|c| c.get((unit - places?.first) as usize)).copied();
        Ok((offset, count))
    }

    fn unit(&mut self, unit: u64, plane: u64, down: u64, across: u64) -> Result<(), TiffError> {
        let (page, part) = (self.page, self.part);
        let (offset, count) = self.place(unit)?;
        let len = self.file.header().len;
        let row_bytes = page.unit_row_bytes() as usize;
        // The last strip ends with the image, tiles are whole.
        let first = down * page.unit_rows;
        let stored_rows = if page.is_tiled { page.unit_rows } else { page.unit_rows.min(page.rows - first) };
        let bytes = stored_rows * page.unit_row_bytes();
        let stored = match (count, page.compression) {
            (None, Compression::None) => bytes,
            (None, _) => len.saturating_sub(offset),
            (Some(count), Compression::None) if count < bytes => {
                return wrong(format!("it has {count} bytes, {bytes} are needed"));
            }
            (Some(_), Compression::None) => bytes,
            (Some(count), _) => count,
        };
        if offset.checked_add(stored).is_none_or(|end| end > len) {
            return wrong(format!("the file is torn: its {stored} bytes lie beyond the file's {len}"));
        }
        let rows = part.rows.start.max(first)..part.rows.end.min(first + page.unit_rows);
        let cols = part.cols.start.max(across * page.unit_cols)..part.cols.end.min((across + 1) * page.unit_cols);
        let is_in_place = row_bytes == part.row_bytes
            && cols.start == across * page.unit_cols
            && cols.start == part.cols.start
            && (page.is_planar || part.samples == (0..page.samples))
            && (!page.is_planar || part.samples.end - part.samples.start == 1);
        let skipped = (rows.start - first) * page.unit_row_bytes();
        let to = (rows.start - part.rows.start) as usize * part.row_bytes;
        let count = (rows.end - rows.start) as usize;
        let (input, row_buffers) = self.spare.split_at_mut(INPUT_BYTES);
        let (row, spare) = row_buffers.split_at_mut(row_bytes);
        let file = &self.file.header().file;
        if is_in_place && page.compression == Compression::None {
            let out = to..to + count * row_bytes;
            let at = offset + skipped;
            self.read += out.len() as u64;
            if self.run.out.end == out.start && self.run.at + self.run.out.len() as u64 == at {
                self.run.out.end = out.end;
                return Ok(());
            }
            self.flush()?;
            self.run = Run { at, out };
            return Ok(());
        }
        let place = offset..offset + stored;
        let mut unpacker = Unpacker::new(page.compression, Input::new(file, input, place), &mut self.scratch.codecs)?;
        if let Some(unpacker) = &mut unpacker {
            self.read += stored;
            for _ in first..rows.start {
                unpacker.fill(&mut row[..row_bytes])?;
            }
            if is_in_place {
                let out = &mut self.out[to..to + count * row_bytes];
                unpacker.fill(out)?;
                values::finish(page, out, spare);
                return Ok(());
            }
        }
        // One row after the other, of which the part's pixels and samples are taken.
        let size = page.dtype.size();
        let wanted = (part.samples.end - part.samples.start) as usize;
        let (left, right) = match page.is_planar {
            true => (0, (plane - part.samples.start) as usize * size),
            false => (part.samples.start as usize * size, 0),
        };
        let taken = [(cols.end - cols.start) as usize, if page.is_planar { 1 } else { wanted }];
        let from = c_strides(&[page.unit_cols as usize, page.unit_samples() as usize], size);
        let into = [(wanted * size) as isize, size as isize];
        let from_at = (cols.start - across * page.unit_cols) as isize * from[0] + left as isize;
        let into_at = (cols.start - part.cols.start) as isize * into[0] + right as isize;
        for n in 0..count {
            match &mut unpacker {
                Some(unpacker) => unpacker.fill(row)?,
                None => {
                    file.read_exact_at(row, offset + skipped + (n * row_bytes) as u64)?;
                    self.read += row_bytes as u64;
                }
            }
            values::finish(page, row, spare);
            let line = &mut self.out[to + n * part.row_bytes..];
            copy_strided(line, into_at, &into, row, from_at, &from, &taken, size);
        }
        Ok(())
    }

    /// Reads the run that was gathered.
    fn flush(&mut self) -> Result<(), TiffError> {
        let Run { at, out } = std::mem::take(&mut self.run);
        if !out.is_empty() {
            let out = &mut self.out[out];
            self.file.header().file.read_exact_at(out, at)?;
            values::finish(self.page, out, &mut self.spare[INPUT_BYTES..]);
        }
        Ok(())
    }
}

impl Places {
    fn offset(&self, unit: u64) -> Option<u64> {
        self.offsets.get(usize::try_from(unit.checked_sub(self.first)?).ok()?).copied()
    }
}
