//! What `inspect` shows of a store: its arrays, how they are stored, and how much of them is there.

use std::path::Path;

use serde_json::{Map, Value};

use super::hierarchy::{Hierarchy, Node};
use super::read::ReadStore;
use super::store::FileStore;
use super::{codecs, fill};
use crate::reader::OpenError;
use crate::remote::RemoteStore;

/// Folder entries or objects that are counted per array before the count is given up.
const MAX_COUNTED: u64 = 200_000;

#[derive(Clone, Debug)]
pub struct Description {
    /// 2 or 3.
    pub format: u8,
    pub is_array: bool,
    /// Attributes of the node itself; an array has them in `arrays` too.
    pub attributes: Map<String, Value>,
    pub arrays: Vec<ArrayDescription>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ArrayDescription {
    /// Path in the group; `""` for the root itself.
    pub name: String,
    /// Empty when the metadata gives none.
    pub shape: Vec<u64>,
    /// As the metadata says, also when it is not one of ours.
    pub dtype: String,
    /// Chunks that are decoded one by one.
    pub chunks: Vec<u64>,
    pub shards: Option<Vec<u64>>,
    pub codecs: String,
    pub fill: String,
    pub dimension_names: Vec<Option<String>>,
    pub attributes: Map<String, Value>,
    /// Bytes and number of stored chunks or shards; `None` when there are too many to count, or nobody can tell.
    pub stored: Option<Stored>,
    /// Why it cannot be streamed.
    pub refused: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub bytes: u64,
    pub objects: u64,
}

/// Describes an array, or all arrays of a group; with `array` only what lies there.
pub fn describe(path: &Path, array: Option<&str>) -> Result<Description, OpenError> {
    let hierarchy = Hierarchy::open(path)?;
    let root = hierarchy.root()?;
    let at = array.map_or("", |a| a.trim_matches('/'));
    let node = match at {
        "" => root,
        // Finding it again gives the message with the nearest name.
        _ => match hierarchy.node(at)? {
            Some(node) => node,
            None => hierarchy.find(Some(at))?.node,
        },
    };
    let listed = if node.is_array { vec![(at.to_owned(), node.clone())] } else { hierarchy.arrays(at)? };
    let mut notes = Vec::new();
    let arrays = listed
        .iter()
        .map(|(name, node)| {
            let described = describe_array(&hierarchy.store, name, node);
            notes.extend(described.refused.iter().map(|reason| format!("{name} cannot be streamed: {reason}")));
            described
        })
        .collect();
    Ok(Description { format: node.format, is_array: node.is_array, attributes: node.attributes, arrays, notes })
}

fn describe_array(store: &ReadStore, name: &str, node: &Node) -> ArrayDescription {
    let stored = match store {
        ReadStore::Folder(store) => count(store, name, &mut 0),
        ReadStore::Remote(store) => count_listed(store, name),
    };
    match node.header() {
        Ok(header) => ArrayDescription {
            name: name.to_owned(),
            dtype: header.dtype.name().to_owned(),
            shards: header.shards.map(|s| s.shape),
            shape: header.shape,
            chunks: header.chunk_shape,
            codecs: header.codecs,
            fill: fill::show(&header.fill),
            dimension_names: header.dimension_names,
            attributes: header.attributes,
            stored,
            refused: None,
        },
        Err(reason) => {
            let field = |keys: [&str; 2]| keys.iter().find_map(|k| node.document.get(k));
            let text = |v: Option<&Value>| v.map_or(String::new(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
            ArrayDescription {
                name: name.to_owned(),
                shape: codecs::lengths(node.document.get("shape"), "shape").unwrap_or_default(),
                dtype: text(field(["dtype", "data_type"])),
                chunks: codecs::lengths(node.document.get("chunks"), "chunks").unwrap_or_default(),
                shards: None,
                codecs: text(field(["compressor", "codecs"])),
                fill: text(node.document.get("fill_value")),
                dimension_names: Vec::new(),
                attributes: node.attributes.clone(),
                stored,
                refused: Some(reason),
            }
        }
    }
}

/// True for the name of what is neither a chunk nor a shard.
fn is_document(name: &str) -> bool {
    name.starts_with('.') || name == "zarr.json"
}

/// Chunks and shards below an array's key.
fn count_listed(store: &RemoteStore, array: &str) -> Option<Stored> {
    let (mut total, mut counted) = (Stored::default(), 0);
    let is_listed = store.list(array, |key, bytes, _| {
        counted += 1;
        if !is_document(key.rsplit('/').next().unwrap_or(key)) {
            total = Stored { bytes: total.bytes.saturating_add(bytes), objects: total.objects + 1 };
        }
        counted <= MAX_COUNTED
    });
    Some(total).filter(|_| is_listed.unwrap_or(false) && counted <= MAX_COUNTED)
}

/// Chunks and shards below an array's folder.
fn count(store: &FileStore, folder: &str, counted: &mut u64) -> Option<Stored> {
    let mut total = Stored::default();
    for entry in store.list_dir(folder).ok()?? {
        *counted += 1;
        if *counted > MAX_COUNTED {
            return None;
        }
        let key = if folder.is_empty() { entry.name.clone() } else { format!("{folder}/{}", entry.name) };
        if entry.is_dir {
            let below = count(store, &key, counted)?;
            total = Stored { bytes: total.bytes + below.bytes, objects: total.objects + below.objects };
        } else if !is_document(&entry.name) {
            total = Stored { bytes: total.bytes + entry.bytes, objects: total.objects + 1 };
        }
    }
    Some(total)
}
