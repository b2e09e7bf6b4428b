//! `inspect`: what an array or group holds, and the job that made it.

use std::path::Path;

use super::{Exit, complain, say};
use crate::config::units::format_bytes;
use crate::config::{InputPlace, InputSpec, Missing, to_toml};
use crate::engine::record::{self, ATTRIBUTE};
use crate::reader::OpenError;
use crate::reader::input::InputArray;
use crate::remote::is_url;
use crate::tiff::{files_in, is_tiff_name};
use crate::writer::npy::is_npy;
use crate::writer::zarr::is_zarr;
use crate::zarr::describe::{ArrayDescription, Description, describe};

pub fn inspect(path: &Path, array: Option<&str>, wants_job: bool) -> Exit {
    if !is_url(path) && !path.exists() {
        complain(format!("{}: no such file or folder", path.display()));
        return Exit::Usage;
    }
    if wants_job {
        return job_of(path);
    }
    let described = match (are_images(path), is_npy(path) && path.is_file()) {
        (true, _) => as_read("tiff", path, array),
        (_, true) => as_read("npy", path, array),
        _ => describe(path, array).map(|description| show(&description)),
    };
    match described {
        Ok(text) => {
            say(text);
            Exit::Done
        }
        Err(error) => {
            complain(error);
            Exit::Usage
        }
    }
}

/// True for a TIFF file, and for a folder of them.
fn are_images(path: &Path) -> bool {
    let is_folder_of_them = || !is_zarr(path) && files_in(path).is_ok_and(|files| !files.is_empty());
    !is_url(path) && (is_tiff_name(path) || is_folder_of_them())
}

/// The array that a job would read from files that are no Zarr store.
fn as_read(format: &str, path: &Path, array: Option<&str>) -> Result<String, OpenError> {
    let spec = InputSpec {
        name: "input".to_owned(),
        line: 0,
        from: InputPlace::Paths(vec![path.display().to_string()]),
        raw: None,
        array: array.map(str::to_owned),
        select: None,
        join: None,
        keep: Vec::new(),
        missing: Missing::Error,
        decode_cf: false,
    };
    let input = InputArray::open(&spec)?;
    let names: Vec<&str> = input.meta.dimension_names.iter().map(|n| n.as_deref().unwrap_or("-")).collect();
    let mut text = format!("{format}  {} {:?}", input.meta.dtype, input.meta.shape);
    text += &format!("\n  chunks      {:?}\n  dimensions  {}", input.meta.chunk, names.join(", "));
    for note in &input.notes {
        text += &format!("\nnote: {note}");
    }
    Ok(text)
}

fn show(description: &Description) -> String {
    let kind = if description.is_array { "array" } else { "group" };
    let mut text = format!("zarr v{} {kind}", description.format);
    if !description.is_array && !description.attributes.is_empty() {
        text += &format!("\n{}", attributes(&description.attributes, "  "));
    }
    for array in &description.arrays {
        text += &format!("\n{}", show_array(array));
    }
    for note in &description.notes {
        text += &format!("\nnote: {note}");
    }
    text
}

fn show_array(array: &ArrayDescription) -> String {
    let name = if array.name.is_empty() { "." } else { &array.name };
    let mut text = format!("{name}  {} {:?}", array.dtype, array.shape);
    if let Some(reason) = &array.refused {
        return text + &format!("\n  can't be streamed: {reason}");
    }
    text += &format!("\n  chunks      {:?}", array.chunks);
    if let Some(shards) = &array.shards {
        text += &format!("\n  shards      {shards:?}");
    }
    text += &format!("\n  codecs      {}\n  fill value  {}", array.codecs, array.fill);
    if array.dimension_names.iter().any(Option::is_some) {
        let names: Vec<&str> = array.dimension_names.iter().map(|n| n.as_deref().unwrap_or("-")).collect();
        text += &format!("\n  dimensions  {}", names.join(", "));
    }
    if let Some(stored) = array.stored {
        text += &format!("\n  stored      {} in {} objects", format_bytes(stored.bytes), stored.objects);
    }
    if !array.attributes.is_empty() {
        text += &format!("\n{}", attributes(&array.attributes, "  "));
    }
    text
}

fn attributes(map: &serde_json::Map<String, serde_json::Value>, indent: &str) -> String {
    let lines: Vec<String> = map
        .iter()
        .map(|(key, value)| match key.as_str() {
            ATTRIBUTE => format!("{indent}{key} = made by this program; `inspect --job` prints the job"),
            _ => {
                let mut text = value.to_string();
                if let Some((at, _)) = text.char_indices().nth(100) {
                    text.truncate(at);
                    text += "...";
                }
                format!("{indent}{key} = {text}")
            }
        })
        .collect();
    lines.join("\n")
}

fn job_of(path: &Path) -> Exit {
    let record = match record::read(path) {
        Ok(record) => record,
        Err(error) => {
            complain(error);
            return Exit::Usage;
        }
    };
    let Some(record) = record else {
        let lacks = match is_npy(path) {
            true => format!("no record of this very file in {}", record::beside(path).display()),
            false => format!("no attribute `{ATTRIBUTE}`"),
        };
        complain(format!("{}: was not made by halostream ({lacks})", path.display()));
        return Exit::Usage;
    };
    match to_toml(&record["job"]) {
        Ok(text) => {
            let version = record["version"].as_str().unwrap_or("?");
            let folder = record["folder"].as_str().unwrap_or("?");
            say(format!("# made by halostream {version}; relative paths start at {folder}\n{text}"));
            Exit::Done
        }
        Err(error) => {
            complain(format!("{}: the recorded job is damaged: {error}", path.display()));
            Exit::Failed
        }
    }
}
