//! Zarr v2 and v3 on a file system or in an object store: metadata, hierarchy, codecs and the chunk store behind [`crate::reader::zarr`] and
//! [`crate::writer::zarr`].
//!
//! - `store`: keys to files; atomic puts, capped gets, nothing outside the store's root
//! - `read`: a folder or a URL as what arrays are read from
//! - `json`: metadata documents, with the bare `NaN` that Python writes
//! - `metadata`: an array's document as a [`Header`], every length checked before anything is allocated
//! - `fill`: fill values in all the spellings of v2 and v3
//! - `cf`: what packed numbers stand for, by their attributes
//! - `codecs`: the codec list of a document as a [`decode::Pipeline`]
//! - `decode`: encoded bytes to values, no output larger than the chunk
//! - `encode`: values to encoded bytes, the same for the same values
//! - `shard`: shard indexes and their cache
//! - `strings`: names of what lies along an axis
//! - `hierarchy`: groups, their arrays, and which one is meant
//! - `coordinates`: what a group holds for an array beside itself; `vcf`: the same in VCF-Zarr
//! - `seen`: where cells lie after a cut; `multiscales`, `geotransform`: attributes that follow it
//! - `describe`: what `inspect` shows

pub mod cf;
pub mod codecs;
pub mod coordinates;
pub mod decode;
pub mod describe;
pub mod encode;
pub mod fill;
pub mod frames;
pub mod geotransform;
pub mod hierarchy;
pub mod json;
pub mod metadata;
pub mod multiscales;
pub mod read;
pub mod seen;
pub mod shard;
pub mod store;
pub mod strings;
pub mod vcf;

use std::io;
use std::path::Path;

pub use describe::{ArrayDescription, Description, describe};
pub use metadata::Header;
pub use read::ReadStore;
pub use store::FileStore;

use crate::files;

/// True when the folder holds the metadata of a Zarr array or group of either format.
pub fn is_zarr(path: &Path) -> bool {
    find_zarr(path).unwrap_or(false)
}

/// The same, with the error that keeps one from telling.
pub fn find_zarr(path: &Path) -> io::Result<bool> {
    for name in ["zarr.json", ".zarray", ".zgroup", ".zmetadata"] {
        match files::followed(&path.join(name)) {
            Ok(found) if found.is_file() => return Ok(true),
            Err(error) if !files::is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}
