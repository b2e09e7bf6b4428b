//! TIFF files as a source: one file of one or more pages, or many files of the same shape as one array, a file after the other
//! along a new first axis.
//!
//! A chunk is a tile, or whole strips of a page, together up to 4 MiB. When an array is opened only the first file is
//! looked at: shape, dtype and how pages are cut are taken from it, and the headers of the others are read with their pixels.
//! One that differs in shape or dtype is an error that names it; how it is packed and cut may differ.
//!
//! Cost of a chunk: one open for each file (the last few stay open), one read of the directory, then its strips or tiles.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::{Grid, MAX_CHUNK_BYTES, Scalar, element_count};
use crate::files::stamp::{self, Hash};
use crate::files::{self, Facts};
use crate::operators::ArrayMeta;
use crate::tiff::{Page, Part, Scratch, TiffError, TiffFile};

/// Strips are taken together up to this size, and unpacked images cut into pieces of it.
const CHUNK_BYTES: u64 = 4 << 20;
/// Files that are kept open; several workers read different ones.
const OPEN_FILES: usize = 16;
/// Room for the decoder of a frame that is packed while the first is not.
const LEAST_DECODE_BYTES: u64 = 256 << 10;

/// An array of pages.
pub struct TiffSource {
    meta: SourceMeta,
    files: Vec<PathBuf>,
    /// Pages of each file; an axis of its own when there are several.
    pages: u64,
    first: Page,
    is_stack: bool,
    /// The files read last, by number, latest in front.
    open: Mutex<Vec<(usize, Arc<TiffFile>)>>,
    scratch: Mutex<Vec<Scratch>>,
}

/// Opens one file: (page, y, x), without the first axis when it has one page; samples are a trailing axis.
pub fn open(path: &Path) -> Result<TiffSource, OpenError> {
    TiffSource::new(vec![path.to_owned()], false, path)
}

/// Opens files of one shape as one array, (file, page, y, x), in the order in which they are given. `place` is what messages
/// name when they mean all of them.
pub fn open_stack(files: Vec<PathBuf>, place: &Path) -> Result<TiffSource, OpenError> {
    TiffSource::new(files, true, place)
}

impl TiffSource {
    fn new(files: Vec<PathBuf>, is_stack: bool, place: &Path) -> Result<Self, OpenError> {
        let Some(path) = files.first() else {
            return Err(OpenError::refused(place.display().to_string(), "there is no TIFF file in it"));
        };
        let name = || path.display().to_string();
        let failed = |error: TiffError| match error {
            TiffError::Io(error) => OpenError::Io { path: name(), error },
            TiffError::Wrong(reason) => OpenError::refused(name(), reason),
        };
        let file = TiffFile::open(path).map_err(failed)?;
        let (page, _) = file.page(0).map_err(failed)?;
        let pages = file.count();

        let mut axes: Vec<(u64, u64, &str)> = Vec::new();
        if is_stack {
            axes.push((files.len() as u64, 1, "frame"));
        }
        if pages > 1 {
            axes.push((pages, 1, "page"));
        }
        let (rows, cols) = chunk_of(&page);
        axes.push((page.rows, rows, "y"));
        axes.push((page.cols, cols, "x"));
        if page.samples > 1 {
            axes.push((page.samples, page.unit_samples(), "sample"));
        }
        let chunk_bytes = element_count(&[rows, cols, page.unit_samples(), page.dtype.size() as u64]);
        if chunk_bytes.is_none_or(|bytes| bytes > MAX_CHUNK_BYTES) {
            let (unit, bytes) = (page.unit(), chunk_bytes.unwrap_or(u64::MAX));
            return Err(OpenError::refused(
                name(),
                format!("its {unit}s have {bytes} bytes, more than {MAX_CHUNK_BYTES}: save it with smaller ones"),
            ));
        }
        let shape: Vec<u64> = axes.iter().map(|a| a.0).collect();
        let chunk_shape: Vec<u64> = axes.iter().map(|a| a.1).collect();
        let mut array =
            ArrayMeta::plain(&place.file_stem().map_or_else(|| "input".into(), |s| s.to_string_lossy()), &shape, page.dtype);
        array.chunk = chunk_shape.iter().zip(&shape).map(|(c, n)| *c.min(n)).collect();
        array.dimension_names = axes.iter().map(|a| Some(a.2.to_owned())).collect();
        let names: u64 = files.iter().map(|f| (f.as_os_str().len() + size_of::<PathBuf>()) as u64).sum();
        let mut listed = Hash::START;
        for file in &files {
            listed = listed.with(file.as_os_str().as_encoded_bytes()).with(b"\0");
        }
        let meta = SourceMeta {
            array,
            grid: Grid::regular(&shape, &chunk_shape),
            chunk_shape,
            fill_value: Scalar::zero(page.dtype),
            transient_bytes: page.decode_bytes().max(LEAST_DECODE_BYTES + page.row_buffer_bytes()),
            resident_bytes: names + OPEN_FILES as u64 * (8 * pages + 1024),
            child_bytes: 0,
            zarr_format: None,
            group: None,
            identity: format!("{}#tiff files={} names={:016x}", place.display(), files.len(), listed.mixed()),
            place: place.to_owned(),
            notes: file.note.iter().map(|note| format!("{}: {note}", name())).collect(),
        };
        let open = Mutex::new(vec![(0, Arc::new(file))]);
        Ok(Self { meta, files, pages, first: page, is_stack, open, scratch: Mutex::default() })
    }

    fn failed(&self, file: usize, page: u64, error: TiffError) -> SourceError {
        let place = self.files.get(file).unwrap_or(&self.meta.place).display().to_string();
        let place = if self.pages > 1 { format!("{place}, page {page}") } else { place };
        match error {
            // The file became shorter after it was opened.
            TiffError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                SourceError::Corrupt { place, reason: "the file is torn: it became shorter while it was read".to_owned() }
            }
            TiffError::Io(error) => SourceError::Io { place, error },
            TiffError::Wrong(reason) => SourceError::Corrupt { place, reason },
        }
    }

    /// A file, opened unless it was among the last.
    fn file(&self, number: usize) -> Result<Arc<TiffFile>, TiffError> {
        let lock = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |open: &mut Vec<(usize, Arc<TiffFile>)>| {
            let at = open.iter().position(|(n, _)| *n == number)?;
            open[..=at].rotate_right(1);
            Some(open[0].1.clone())
        };
        if let Some(file) = find(&mut lock()) {
            return Ok(file);
        }
        let Some(path) = self.files.get(number) else { return Err(TiffError::Wrong("there is no such file".to_owned())) };
        let file = Arc::new(TiffFile::open(path)?);
        if file.count() != self.pages {
            let (count, pages, first) = (file.count(), self.pages, self.files[0].display());
            return Err(TiffError::Wrong(format!("it has {count} pages, {first} has {pages}: files of one array must agree")));
        }
        let mut open = lock();
        if find(&mut open).is_none() {
            open.insert(0, (number, file.clone()));
            open.truncate(OPEN_FILES);
        }
        Ok(file)
    }

    /// A page of a file, which must be as the first one is.
    fn page(&self, file: &TiffFile, number: u64) -> Result<(Page, u64), TiffError> {
        let (page, shift) = file.page(number)?;
        let first = &self.first;
        if (page.rows, page.cols, page.samples, page.dtype) != (first.rows, first.cols, first.samples, first.dtype) {
            let (found, want, name) = (page.describe(), first.describe(), self.files[0].display());
            return Err(TiffError::Wrong(format!(
                "it has {found}, the first page of {name} has {want}: pages of one array must agree"
            )));
        }
        if page.decode_bytes() > self.meta.transient_bytes {
            let (need, room) = (page.decode_bytes(), self.meta.transient_bytes);
            return Err(TiffError::Wrong(format!(
                "decoding it takes {need} bytes, the plan has room for {room} after the first page; save all pages with one compression"
            )));
        }
        Ok((page, shift))
    }
}

/// Rows and columns of a chunk.
fn chunk_of(page: &Page) -> (u64, u64) {
    if page.is_tiled {
        return (page.unit_rows, page.unit_cols);
    }
    let row = page.unit_row_bytes();
    // Packed strips can only be read from their beginning; others are cut anywhere.
    let step = if page.is_packed() { page.unit_rows } else { 1 };
    let most = (CHUNK_BYTES / row.saturating_mul(step).max(1)).max(1).saturating_mul(step);
    // Pieces of about the same size: an image of a little more than one is not cut into one and a rest.
    let pieces = page.rows.div_ceil(most);
    ((page.rows.div_ceil(pieces).div_ceil(step) * step).min(page.rows), page.cols)
}

impl Source for TiffSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    fn is_stored_as_is(&self) -> bool {
        self.first.is_plain()
    }

    fn stamp(&self) -> Result<String, SourceError> {
        let stamp = stamp::of(self.files.len() as u64, |(): &mut (), n| {
            let file = &self.files[n as usize];
            match files::followed(file) {
                Ok(found) => Ok(Some(Hash::START.with(file.as_os_str().as_encoded_bytes()).facts(Facts::of(&found)))),
                Err(error) if files::is_absent(&error) => Ok(None),
                Err(error) => Err((file, error)),
            }
        });
        let stamp = stamp.map_err(|(file, error)| SourceError::Io { place: file.display().to_string(), error })?;
        Ok(format!("{stamp:016x}"))
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        self.read_part(chunk, 0..out.len(), out, transient)
    }

    fn read_part(
        &self,
        chunk: &[u64],
        bytes: Range<usize>,
        out: &mut [u8],
        transient: &mut Vec<u8>,
    ) -> Result<ChunkRead, SourceError> {
        let meta = &self.meta;
        let mut axes = meta.chunk(chunk, out.len())?.into_iter();
        let mut next = |is_there: bool| if is_there { axes.next().unwrap_or(0..1) } else { 0..1 };
        let file = next(self.is_stack).start as usize;
        let number = next(self.pages > 1).start;
        let (rows, cols, samples) = (next(true), next(true), next(self.first.samples > 1));
        let width = meta.chunk_shape[chunk.len() - if self.first.samples > 1 { 2 } else { 1 }];
        let row_bytes = width as usize * (samples.end - samples.start) as usize * meta.array.dtype.size();
        // Whole rows around what is asked for.
        let first = rows.start + (bytes.start / row_bytes) as u64;
        let last = rows.end.min(rows.start + bytes.end.div_ceil(row_bytes) as u64);
        if first >= last {
            return Ok(ChunkRead::Data { encoded_bytes: 0 });
        }
        let part = Part { rows: first..last, cols, samples, row_bytes };
        let out = &mut out[(first - rows.start) as usize * row_bytes..];
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let read = self.file(file).and_then(|opened| {
            let (page, shift) = self.page(&opened, number)?;
            opened.read(&page, shift, &part, out, transient, &mut scratch)
        });
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        let encoded_bytes = read.map_err(|error| self.failed(file, number, error))?;
        Ok(ChunkRead::Data { encoded_bytes })
    }
}

#[cfg(test)]
#[path = "tiff_tests.rs"]
mod tests;
