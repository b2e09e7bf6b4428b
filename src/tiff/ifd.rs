//! The header of a TIFF file and one of its directories (IFDs). A directory is read with one call; lists behind it stay in
//! the file until an entry of them is asked for, so that what a hostile file claims costs nothing.
//!
//! Source of the layout: TIFF revision 6.0 (1992) section 2, and the BigTIFF proposal for the wide one.

use super::{TiffError, wrong};
use crate::files::File;

/// Tags that are read; all others are passed over.
pub mod tag {
    pub const NEW_SUBFILE_TYPE: u16 = 254;
    pub const IMAGE_WIDTH: u16 = 256;
    pub const IMAGE_LENGTH: u16 = 257;
    pub const BITS_PER_SAMPLE: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const FILL_ORDER: u16 = 266;
    pub const IMAGE_DESCRIPTION: u16 = 270;
    pub const STRIP_OFFSETS: u16 = 273;
    pub const SAMPLES_PER_PIXEL: u16 = 277;
    pub const ROWS_PER_STRIP: u16 = 278;
    pub const STRIP_BYTE_COUNTS: u16 = 279;
    pub const PLANAR_CONFIGURATION: u16 = 284;
    pub const PREDICTOR: u16 = 317;
    pub const TILE_WIDTH: u16 = 322;
    pub const TILE_LENGTH: u16 = 323;
    pub const TILE_OFFSETS: u16 = 324;
    pub const TILE_BYTE_COUNTS: u16 = 325;
    pub const SAMPLE_FORMAT: u16 = 339;
}

/// More tags than this are no image; usual are 10 to 30.
const MOST_TAGS: u64 = 4096;
/// Read at once where a directory begins: enough for most.
const FIRST_READ: usize = 1024;

/// Byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    /// An unsigned number of up to 8 bytes.
    fn number(self, bytes: &[u8]) -> u64 {
        let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
        match self {
            Order::Little => bytes.iter().rev().fold(0, fold),
            Order::Big => bytes.iter().fold(0, fold),
        }
    }
}

/// What the first bytes of a file say, and the file.
#[derive(Debug)]
pub struct Header {
    pub file: File,
    pub len: u64,
    pub order: Order,
    /// BigTIFF: offsets and counts of 8 bytes.
    is_big: bool,
    /// Where the first directory is.
    pub first: u64,
}

/// A tag's value, or where it is.
#[derive(Clone, Debug)]
pub struct List {
    item: u64,
    pub count: u64,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Here([u8; 8]),
    At(u64),
}

/// One directory: the tags that are read, by number.
#[derive(Debug)]
pub struct Directory {
    pub at: u64,
    entries: Vec<(u16, List)>,
    /// Where the next one is, 0 after the last.
    pub next: u64,
}

impl Header {
    pub fn read(file: File) -> Result<Self, TiffError> {
        let found = file.metadata()?;
        if !found.is_file() {
            return wrong("this is no file");
        }
        let len = found.len();
        let mut bytes = [0u8; 16];
        let held = bytes.len().min(len as usize);
        file.read_exact_at(&mut bytes[..held], 0)?;
        let order = match &bytes[..2] {
            b"II" => Order::Little,
            b"MM" => Order::Big,
            _ => return wrong("this is no TIFF file: it does not begin with II or MM"),
        };
        let (is_big, first) = match order.number(&bytes[2..4]) {
            42 if held >= 8 => (false, order.number(&bytes[4..8])),
            43 if held >= 16 && order.number(&bytes[4..6]) == 8 => (true, order.number(&bytes[8..16])),
            42 | 43 => return wrong("the file is torn: its header is not whole"),
            version => return wrong(format!("this is no TIFF file: its version is {version}, not 42 or 43")),
        };
        Ok(Self { file, len, order, is_big, first })
    }

    fn fetch(&self, out: &mut [u8], at: u64, what: &str) -> Result<(), TiffError> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return wrong(format!("the file is torn: {what} at offset {at} lies beyond its {} bytes", self.len));
        }
        Ok(self.file.read_exact_at(out, at)?)
    }

    /// The directory at an offset.
    pub fn directory(&self, at: u64) -> Result<Directory, TiffError> {
        let (head, entry, tail) = if self.is_big { (8, 20, 8) } else { (2, 12, 4) };
        let mut bytes = vec![0u8; FIRST_READ.min(self.len.saturating_sub(at) as usize).max(head)];
        self.fetch(&mut bytes, at, "a directory")?;
        let count = self.order.number(&bytes[..head]);
        if count > MOST_TAGS {
            return wrong(format!("the directory at offset {at} claims {count} tags, more than {MOST_TAGS}"));
        }
        let size = head + count as usize * entry + tail;
        if size > bytes.len() {
            bytes.resize(size, 0);
            self.fetch(&mut bytes, at, "a directory")?;
        }
        let (entries, next) = (&bytes[head..size - tail], &bytes[size - tail..size]);
        let entries = entries.chunks_exact(entry).filter_map(|e| self.entry(e)).collect();
        Ok(Directory { at, entries, next: self.order.number(next) })
    }

    /// One entry; `None` for a type of value that no tag of ours has.
    fn entry(&self, bytes: &[u8]) -> Option<(u16, List)> {
        let wide = if self.is_big { 8 } else { 4 };
        let item = match self.order.number(&bytes[2..4]) {
            // BYTE and ASCII, SHORT, LONG and IFD, LONG8 and IFD8
            1 | 2 => 1,
            3 => 2,
            4 | 13 => 4,
            16 | 18 => 8,
            _ => return None,
        };
        let count = self.order.number(&bytes[4..4 + wide]);
        let value = &bytes[4 + wide..4 + 2 * wide];
        let is_here = count.checked_mul(item).is_some_and(|n| n <= wide as u64);
        let place = match is_here {
            true => {
                let mut here = [0; 8];
                here[..wide].copy_from_slice(value);
                Place::Here(here)
            }
            false => Place::At(self.order.number(value)),
        };
        Some((self.order.number(&bytes[..2]) as u16, List { item, count, place }))
    }

    /// The bytes of entries `first..first + count` of a list.
    fn bytes(&self, list: &List, first: u64, count: u64) -> Result<Vec<u8>, TiffError> {
        let len = count as usize * list.item as usize;
        let skipped = first.checked_mul(list.item);
        let mut out = vec![0; len];
        match &list.place {
            Place::Here(here) => out.copy_from_slice(&here[skipped.unwrap_or(0) as usize..][..len]),
            Place::At(at) => {
                let at = skipped.and_then(|skipped| at.checked_add(skipped)).unwrap_or(u64::MAX);
                self.fetch(&mut out, at, "a list of values")?;
            }
        }
        Ok(out)
    }

    /// Numbers `first..first + count` of a list, which must be there: [`List::count`].
    pub fn numbers(&self, list: &List, first: u64, count: u64) -> Result<Vec<u64>, TiffError> {
        debug_assert!(first + count <= list.count);
        let bytes = self.bytes(list, first, count)?;
        Ok(bytes.chunks_exact(list.item as usize).map(|item| self.order.number(item)).collect())
    }

    /// The number of a tag, of a list its first.
    pub fn number(&self, directory: &Directory, tag: u16) -> Result<Option<u64>, TiffError> {
        let Some(list) = directory.list(tag) else { return Ok(None) };
        Ok(self.numbers(list, 0, 1)?.first().copied())
    }

    /// The text of a tag, at most `most` bytes of it; bytes that are no UTF-8 are replaced.
    pub fn text(&self, directory: &Directory, tag: u16, most: u64) -> Result<Option<String>, TiffError> {
        let Some(list) = directory.list(tag).filter(|list| list.item == 1) else { return Ok(None) };
        let bytes = self.bytes(list, 0, list.count.min(most))?;
        Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()))
    }

    /// True when all entries of a list lie in the file.
    pub fn holds(&self, list: &List) -> bool {
        let end = |at: u64| list.count.checked_mul(list.item).and_then(|bytes| at.checked_add(bytes));
        match list.place {
            Place::Here(_) => true,
            Place::At(at) => end(at).is_some_and(|end| end <= self.len),
        }
    }
}

impl Directory {
    /// The value of a tag; an empty list is as none.
    pub fn list(&self, tag: u16) -> Option<&List> {
        self.entries.iter().find(|(t, list)| *t == tag && list.count > 0).map(|(_, list)| list)
    }
}
