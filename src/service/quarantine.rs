//! The quarantine folder: one JSON file per input that was given up, with the reason. The input stays where it is unless
//! the service says `quarantine_move = true`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::effects;
use super::record::Record;

/// Longest part of an input's name in a file's name.
const MAX_NAME: usize = 80;

/// `slc-12-scene_a.zarr`: letters, digits, `.`, `_` and `-` only, and unique by its number.
fn stem(record: &Record) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = record.name.chars().map(safe).take(MAX_NAME).collect();
    format!("{}-{}-{name}", record.watch, record.id)
}

fn note(folder: &Path, record: &Record) -> PathBuf {
    folder.join(format!("{}.json", stem(record)))
}

/// Where the input itself goes with `quarantine_move`.
fn moved(folder: &Path, record: &Record) -> PathBuf {
    folder.join(stem(record))
}

/// Writes the record; with `moves` the input goes beside it.
pub fn put(folder: &Path, record: &Record, input: &Path, moves: bool) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let to = moved(folder, record);
    let is_moved = moves && fs::symlink_metadata(input).is_ok() && {
        effects::carry(input, &to)?;
        true
    };
    let mut document = record.to_json();
    document["input"] = json!(input.to_string_lossy());
    document["moved_to"] = json!(is_moved.then(|| to.to_string_lossy().into_owned()));
    let text = serde_json::to_string_pretty(&document)?;
    effects::write_whole(&note(folder, record), (text + "\n").as_bytes())
}

/// Removes the record, and brings the input back where it was if it was moved and nothing took its place.
pub fn take_back(folder: &Path, record: &Record, input: &Path) -> io::Result<()> {
    let from = moved(folder, record);
    if fs::symlink_metadata(&from).is_ok() && fs::symlink_metadata(input).is_err() {
        effects::carry(&from, input)?;
    }
    match fs::remove_file(note(folder, record)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::record::Key;

    #[test]
    fn names_stay_in_the_folder() {
        let folder = std::env::temp_dir().join(format!("halostream-service-quarantine-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("in")).unwrap();
        let input = folder.join("in/a\n\"'b.zarr");
        fs::write(&input, "x").unwrap();
        let mut record = Record::new(&Key::new("w", b"../a\n\"'b.zarr"), 3, 0);
        record.reason = Some("chunk c/0/1 is torn".to_owned());
        let place = folder.join("q");
        put(&place, &record, &input, true).unwrap();
        let text = fs::read_to_string(place.join("w-3-.._a___b.zarr.json")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["reason"], "chunk c/0/1 is torn");
        assert!(!input.exists() && place.join("w-3-.._a___b.zarr").exists());
        take_back(&place, &record, &input).unwrap();
        assert!(input.exists() && fs::read_dir(&place).unwrap().next().is_none());
        let _ = fs::remove_dir_all(&folder);
    }
}
