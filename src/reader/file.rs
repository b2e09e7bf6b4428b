//! One file that holds an array, or a part of one: opened once, read at offsets.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{OpenError, SourceError};
use crate::files::stamp::Hash;
use crate::files::{self, Facts, File};

/// An open input file.
pub struct InputFile {
    file: File,
    /// Links followed.
    place: PathBuf,
    size: u64,
}

impl InputFile {
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Io { path: path.display().to_string(), error };
        let place = files::canonicalize(path).map_err(failed)?;
        let file = File::open(&place).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(OpenError::refused(path.display().to_string(), "is no regular file"));
        }
        Ok(Self { file, place, size: found.len() })
    }

    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its first bytes, at most so many.
    pub fn head(&self, most: usize) -> Result<Vec<u8>, OpenError> {
        let mut bytes = vec![0; self.size.min(most as u64) as usize];
        let failed = |error| OpenError::Io { path: self.place.display().to_string(), error };
        self.file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        Ok(bytes)
    }

    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), SourceError> {
        let place = || self.place.display().to_string();
        self.file.read_exact_at(out, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let reason = format!("became shorter while it was read: {} bytes at offset {offset} are not there", out.len());
                SourceError::Corrupt { place: place(), reason }
            }
            _ => SourceError::Io { place: place(), error },
        })
    }

    /// Size and time of what is under its name now: another stamp means that it was changed.
    pub fn stamp(&self) -> Result<String, SourceError> {
        let found =
            files::followed(&self.place).map_err(|error| SourceError::Io { place: self.place.display().to_string(), error })?;
        Ok(format!("{:016x}", Hash::START.facts(Facts::of(&found))))
    }
}
