//! Consolidated metadata: every document of a store once more in one, so that it is opened with one read. `.zmetadata` in format 2;
//! in format 3 part of the root's own document, as zarr-python writes it.

use serde_json::{Map, Value, json};

use super::SinkError;
use super::store::WriteStore;
use super::zarr::put_json;

/// Puts together the documents of the groups and arrays at `nodes` (`""`: the root).
pub fn put(store: &WriteStore, format: u8, nodes: &[&str], sync: bool) -> Result<(), SinkError> {
    let documents: &[&str] = if format == 2 { &[".zgroup", ".zarray", ".zattrs"] } else { &["zarr.json"] };
    let mut metadata = Map::new();
    let mut root = None;
    for node in nodes {
        for name in documents {
            let key = if node.is_empty() { (*name).to_owned() } else { format!("{node}/{name}") };
            let failed = |error| SinkError::Io { place: store.place(&key), error };
            let Some(bytes) = store.document(&key).map_err(failed)? else { continue };
            let reason = |error: serde_json::Error| SinkError::Encode { place: store.place(&key), reason: error.to_string() };
            let document: Value = serde_json::from_slice(&bytes).map_err(reason)?;
            match (format, node.is_empty()) {
                (3, true) => root = Some(document),
                (3, false) => drop(metadata.insert((*node).to_owned(), document)),
                _ => drop(metadata.insert(key, document)),
            }
        }
    }
    match root {
        Some(mut document) => {
            document["consolidated_metadata"] = json!({"kind": "inline", "must_understand": false, "metadata": metadata});
            put_json(store, "zarr.json", &document, sync)
        }
        None => put_json(store, ".zmetadata", &json!({"zarr_consolidated_format": 1, "metadata": metadata}), sync),
    }
}
