//! `[output]` / `[outputs.NAME]`: where a result goes, and its layout on disk.

use std::path::Path;

use toml::de::DeValue;

use super::input::lengths;
use super::table::{Table, describe};
use super::{CodecName, CodecSpec, IfExists, OutputSpec, not_available, resolve_path};
use crate::remote::is_url;
use crate::remote::place::{Place, Scheme};
use crate::writer::npy::is_npy;

const CODECS: [&str; 5] = ["none", "zstd", "blosc-lz4", "blosc-zstd", "gzip"];

/// Reads the table of one output; `None` when it has no usable path (problems are in the table's list).
pub fn read(mut table: Table<'_>, name: &str, folder: &Path) -> Option<OutputSpec> {
    let line = table.problems.line_of(&table.span());
    let path = match table.string("path") {
        Some(text) => match unusable(&text) {
            Some(message) => {
                table.problem("path", message);
                None
            }
            None if is_url(Path::new(text.as_str())) => Some(text.trim_end_matches('/').into()),
            None => Some(resolve_path(folder, &text)),
        },
        None => {
            if !table.has("path") {
                table.problem("path", "missing; write path = \"result.zarr\"");
            }
            None
        }
    };
    let from = table.string("from");
    let is_points = table.has("points") && table.one_of("points", &["index"]).is_some();
    if let Some(url) = path.as_ref().filter(|path| is_points && is_url(path)) {
        table.problem("points", not_available(&format!("\"{}\": lists of points in object stores are", url.display())));
    }
    let chunks = lengths(&mut table, "chunks");
    if let Some(list) = chunks.as_ref().filter(|list| is_points && list.len() != 1) {
        table.problem("chunks", format!("has {} entries; a list of points has one: how many of them make a chunk", list.len()));
    }
    let shards = lengths(&mut table, "shards");
    if is_points && shards.is_some() {
        table.problem("shards", "a list of points has none; leave them out, or raise chunks");
    } else if let (Some(chunks), Some(shards)) = (&chunks, &shards) {
        if chunks.len() != shards.len() {
            table.problem("shards", format!("has {} entries, chunks has {}", shards.len(), chunks.len()));
        } else if let Some(axis) = (0..chunks.len()).find(|a| shards[*a] % chunks[*a] != 0) {
            let message = format!("entry {axis} is {}, no multiple of the chunk's {}", shards[axis], chunks[axis]);
            table.problem("shards", message);
        }
    }
    let codec = codec(&mut table);
    if path.as_deref().is_some_and(is_npy) {
        for key in ["chunks", "shards", "codec", "zarr_format", "points"] {
            if table.has(key) {
                table.problem(key, "a .npy file has none; leave it out, or write a path that ends in .zarr");
            }
        }
    }
    let zarr_format = match table.count("zarr_format") {
        Some(n @ (2 | 3)) => Some(n as u8),
        Some(n) => {
            table.problem("zarr_format", format!("Zarr has formats 2 and 3, not {n}"));
            None
        }
        None => None,
    };
    if zarr_format == Some(2) && shards.is_some() {
        table.problem("shards", "Zarr format 2 has no shards; leave them out or write zarr_format = 3");
    }
    let if_exists = match table.one_of("if_exists", &["resume", "overwrite", "error"]) {
        Some("overwrite") => IfExists::Overwrite,
        Some("error") => IfExists::Error,
        _ => IfExists::Resume,
    };
    table.finish();
    Some(OutputSpec { name: name.to_owned(), line, path: path?, from, is_points, chunks, shards, codec, zarr_format, if_exists })
}

fn unusable(path: &str) -> Option<String> {
    if let Some(message) = elsewhere(path) {
        return Some(message);
    }
    match Path::new(path).extension().and_then(|e| e.to_str()) {
        Some("npy") if is_url(Path::new(path)) => Some(not_available(&format!("\"{path}\": .npy files in object stores are"))),
        Some("zarr" | "npy") => None,
        _ => Some(format!("\"{path}\" does not say what to write; outputs end in .zarr or .npy")),
    }
}

/// What is wrong with a place that is not on this machine.
pub(super) fn elsewhere(path: &str) -> Option<String> {
    let (scheme, _) = path.split_once("://")?;
    let place = match Place::parse(path) {
        Ok(place) => place,
        // Not quoted: it may hold a password.
        Err(reason) => return Some(format!("the {scheme}:// URL {reason}")),
    };
    match place.scheme {
        Scheme::S3 | Scheme::Gs if place.key.is_empty() => Some(format!("\"{path}\" names a bucket; write a key in it, too")),
        Scheme::S3 | Scheme::Gs => None,
        Scheme::Http | Scheme::Https => Some(format!("\"{path}\": web servers are only read; write to s3:// or gs://")),
    }
}

/// `codec = "zstd"` or `{ name = "zstd", level = 3 }`.
fn codec(table: &mut Table<'_>) -> CodecSpec {
    let default = CodecSpec { name: CodecName::Zstd, level: None };
    let Some(node) = table.get("codec") else {
        return default;
    };
    match node.get_ref() {
        DeValue::String(_) => match table.one_of("codec", &CODECS) {
            Some(name) => CodecSpec { name: codec_name(name), level: None },
            None => default,
        },
        DeValue::Table(_) => {
            let Some(mut inner) = table.table("codec") else {
                return default;
            };
            let name = inner.one_of("name", &CODECS);
            if !inner.has("name") {
                inner.problem("name", format!("missing; one of {}", CODECS.join(", ")));
            }
            let level = inner.integer("level");
            if let (Some(name), Some(level)) = (name, level) {
                let range = match name {
                    "none" => None,
                    "zstd" => Some((-7, 22)),
                    _ => Some((0, 9)),
                };
                match range {
                    None => inner.problem("level", "codec \"none\" has no level"),
                    Some((low, high)) if !(low..=high).contains(&level) => {
                        inner.problem("level", format!("{name} has levels {low} to {high}, not {level}"));
                    }
                    _ => {}
                }
            }
            inner.finish();
            CodecSpec { name: name.map_or(CodecName::Zstd, codec_name), level: level.and_then(|l| l.try_into().ok()) }
        }
        other => {
            table.problem("codec", format!("expected a codec's name or {{ name, level }}, found {}", describe(other)));
            default
        }
    }
}

fn codec_name(name: &str) -> CodecName {
    match name {
        "none" => CodecName::None,
        "blosc-lz4" => CodecName::BloscLz4,
        "blosc-zstd" => CodecName::BloscZstd,
        "gzip" => CodecName::Gzip,
        _ => CodecName::Zstd,
    }
}
