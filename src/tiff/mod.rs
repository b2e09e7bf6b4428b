//! TIFF files as arrays: which pages a file has, how their pixels are stored, and any region of them decoded into the
//! caller's buffer. Classic TIFF and BigTIFF, both byte orders, strips and tiles, samples side by side or in planes.
//!
//! - `ifd`: the header and one directory; values are read when they are asked for
//! - `page`: a directory as a [`Page`], every number checked against the file before anything is allocated
//! - `pages`: the pages of a file: its chain of directories, ImageJ's images behind one directory, OME's first series
//! - `unpack`: LZW, deflate, PackBits and zstd as streams, no output larger than what was asked for
//! - `values`: byte order and predictors undone
//! - `read`: a region of a page, strip by strip or tile by tile
//!
//! Encoded bytes pass through one small buffer and rows are decoded where they will lie, so memory does not grow with strips or
//! tiles, and a bomb ends where the region ends. The `tiff` crate decodes whole strips into memory of its own, reads lists of
//! offsets whole, turns grey values of `WhiteIsZero` around and leaves extra samples out: it writes the frames of
//! `sample tiff` and is the second opinion in the tests.

mod ifd;
mod page;
mod pages;
mod read;
mod unpack;
mod values;

use std::path::{Path, PathBuf};

pub use page::{Compression, Page};
pub use pages::TiffFile;
pub use read::{Part, Scratch};

use crate::files;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TiffError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is not what it says, or holds what is not read here.
    #[error("{0}")]
    Wrong(String),
}

impl TiffError {
    /// Says where in the file it happened.
    fn at(self, place: impl std::fmt::Display) -> Self {
        match self {
            TiffError::Wrong(reason) => TiffError::Wrong(format!("{place}: {reason}")),
            io => io,
        }
    }
}

fn wrong<T>(reason: impl Into<String>) -> Result<T, TiffError> {
    Err(TiffError::Wrong(reason.into()))
}

/// True for names that end as those of TIFF files do.
pub fn is_tiff_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("tif") || e.eq_ignore_ascii_case("tiff"))
}

/// The TIFF files of a folder, in natural order of their names; names with a dot in front and other files are passed over.
pub fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in files::list(folder)? {
        let name = entry?.file_name();
        if is_tiff_name(Path::new(&name)) && !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_by(|a, b| files::natural::order(a.as_encoded_bytes(), b.as_encoded_bytes()));
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}
