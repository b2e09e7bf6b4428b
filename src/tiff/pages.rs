//! The pages of a file that make an array: all directories of its chain, without reduced copies and masks, or the images that
//! ImageJ writes one after the other behind a single directory, or of an OME file the planes of its first series.
//!
//! Opening reads each directory once, some hundred bytes a page; their values are checked when the page is read.

use std::collections::HashSet;
use std::path::Path;

use super::ifd::{Header, tag};
use super::page::{Compression, Page};
use super::{TiffError, wrong};
use crate::files::File;

/// A longer chain is not followed; an axis has no more chunks, either.
const MOST_PAGES: usize = 1 << 18;
/// Looked through for what ImageJ and OME say.
const DESCRIPTION_BYTES: u64 = 1 << 20;

/// Bits of NewSubfileType: a smaller copy of another page, a mask.
const NO_PAGES: u64 = 1 | 4;

/// An open file and its pages.
#[derive(Debug)]
pub struct TiffFile {
    header: Header,
    pages: Pages,
    /// What the user should know of how pages were chosen.
    pub note: Option<String>,
}

#[derive(Debug)]
enum Pages {
    /// Offsets of their directories.
    Chain(Vec<u64>),
    /// The page's data are followed by those of `count - 1` more.
    Images { page: Box<Page>, count: u64 },
}

impl TiffFile {
    pub fn open(path: &Path) -> Result<Self, TiffError> {
        let header = Header::read(File::open(path)?)?;
        let mut offsets = Vec::new();
        let mut seen = HashSet::new();
        let mut description = None;
        let mut at = header.first;
        while at != 0 {
            if !seen.insert(at) {
                return wrong(format!("the directories form a loop: the one at offset {at} follows itself"));
            }
            if seen.len() > MOST_PAGES {
                return wrong(format!("there are more than {MOST_PAGES} pages"));
            }
            let directory = header.directory(at).map_err(|e| e.at(format!("page {}", offsets.len())))?;
            if header.number(&directory, tag::NEW_SUBFILE_TYPE)?.unwrap_or(0) & NO_PAGES == 0 {
                if offsets.is_empty() {
                    description = header.text(&directory, tag::IMAGE_DESCRIPTION, DESCRIPTION_BYTES)?;
                }
                offsets.push(at);
            }
            at = directory.next;
        }
        if offsets.is_empty() {
            return wrong("there is no page in it");
        }
        offsets.shrink_to_fit();
        let mut file = Self { header, pages: Pages::Chain(offsets), note: None };
        let description = description.unwrap_or_default();
        if description.contains("<OME") {
            file.take_series(&description);
        } else if file.count() == 1 {
            file.take_images(&description)?;
        }
        Ok(file)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn count(&self) -> u64 {
        match &self.pages {
            Pages::Chain(offsets) => offsets.len() as u64,
            Pages::Images { count, .. } => *count,
        }
    }

    /// A page, and how far its data lie behind where its directory says.
    pub fn page(&self, number: u64) -> Result<(Page, u64), TiffError> {
        match &self.pages {
            Pages::Chain(offsets) => match offsets.get(number as usize) {
                Some(at) => Ok((Page::read(&self.header, &self.header.directory(*at)?)?, 0)),
                None => wrong(format!("there is no page {number}, the file has {}", offsets.len())),
            },
            Pages::Images { page, count } if number < *count => Ok(((**page).clone(), number * page.bytes())),
            Pages::Images { count, .. } => wrong(format!("there is no page {number}, the file has {count}")),
        }
    }

    /// ImageJ's files beyond 4 GB have one directory, and say in its description how many images there are; so do those that
    /// tifffile truncates.
    fn take_images(&mut self, description: &str) -> Result<(), TiffError> {
        let Some(images) = said_by_tifffile(description).or_else(|| said_by_imagej(description)) else { return Ok(()) };
        let (page, _) = self.page(0)?;
        let count = match images {
            Images::Count(count) => count,
            Images::Elements(count) => count / (page.rows * page.cols * page.samples),
        };
        if count <= 1 {
            return Ok(());
        }
        if page.compression != Compression::None || page.is_tiled || page.offsets.count != 1 {
            return wrong(format!(
                "its description says that there are {count} images, but there is one directory, and its data are not in one piece"
            ));
        }
        let first = self.header.numbers(&page.offsets, 0, 1)?.first().copied().unwrap_or(u64::MAX);
        let end = page.bytes().checked_mul(count).and_then(|bytes| bytes.checked_add(first));
        if end.is_none_or(|end| end > self.header.len) {
            let (bytes, len) = (page.bytes(), self.header.len);
            return wrong(format!(
                "the file is torn: {count} images of {bytes} bytes from offset {first} on lie beyond its {len} bytes"
            ));
        }
        self.pages = Pages::Images { page: Box::new(page), count };
        Ok(())
    }

    /// OME: the first series has as many planes as its sizes say, and they come first.
    fn take_series(&mut self, description: &str) {
        let Pages::Chain(offsets) = &mut self.pages else { return };
        let Some(pixels) = description.split_once("<Pixels").and_then(|(_, rest)| rest.split('>').next()) else { return };
        let size = |name: &str| {
            let value = pixels.split_once(&format!("{name}=\""))?.1.split('"').next()?;
            value.parse::<u64>().ok().filter(|n| *n > 0)
        };
        let sizes = [size("SizeZ"), size("SizeC"), size("SizeT")].into_iter().flatten();
        let Some(planes) = sizes.reduce(u64::saturating_mul) else { return };
        // RGB planes hold several channels each.
        let per_page = description.split_once("SamplesPerPixel=\"").and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
        let planes = planes.div_ceil(per_page.filter(|n| *n > 0).unwrap_or(1));
        let held = offsets.len() as u64;
        if planes < held {
            offsets.truncate(planes as usize);
            self.note = Some(format!("{held} pages, of which the first {planes} are the first OME series: only they are read"));
        } else if planes > held {
            self.note = Some(format!("the OME series has {planes} planes, {held} of them in this file: only they are read"));
        }
    }
}

/// What a description says of the images behind a directory.
enum Images {
    Count(u64),
    /// All their values.
    Elements(u64),
}

/// What tifffile says where it wrote a directory for the first page only.
fn said_by_tifffile(description: &str) -> Option<Images> {
    let said: serde_json::Value = serde_json::from_str(description).ok()?;
    let shape = said.get("shape").filter(|_| said.get("truncated").is_some_and(|t| t == true))?.as_array()?;
    shape.iter().try_fold(1u64, |n, len| Some(n.saturating_mul(len.as_u64()?))).map(Images::Elements)
}

/// What ImageJ says.
fn said_by_imagej(description: &str) -> Option<Images> {
    let is_its_own = description.starts_with("ImageJ=");
    let said = description.lines().filter(|_| is_its_own).find_map(|line| line.strip_prefix("images=")?.trim().parse().ok());
    said.map(Images::Count)
}
