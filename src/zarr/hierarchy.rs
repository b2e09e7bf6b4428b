//! Groups and arrays below one folder or URL: what a path names, and which array is meant when only a group is given.
//!
//! Costs one small read per node. Consolidated metadata is used only where the nodes' own documents are not there, that of
//! v3 only where nobody can list what is there.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::metadata::Header;
use super::{ReadStore, json};
use crate::config::table::nearest;
use crate::reader::OpenError;

/// Largest metadata document that is read.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;
const MAX_DEPTH: usize = 16;
/// A listing ends here, with a note.
const MAX_ARRAYS: usize = 10_000;

/// A group or array as its documents say.
#[derive(Clone, Debug)]
pub struct Node {
    pub is_array: bool,
    /// 2 or 3.
    pub format: u8,
    pub document: Value,
    pub attributes: Map<String, Value>,
    /// SHA-256 of the documents' bytes.
    pub hash: [u8; 32],
}

impl Node {
    pub fn header(&self) -> Result<Header, String> {
        Header::parse(self.format, &self.document, &self.attributes)
    }
}

/// An open store and the metadata in it.
#[derive(Debug)]
pub struct Hierarchy {
    pub store: ReadStore,
    /// Where the user said it is.
    path: String,
    /// Consolidated documents by their key, sorted, so that those below a group lie together.
    consolidated: BTreeMap<String, Value>,
    /// The root says in one document what is below it.
    pub is_consolidated: bool,
    /// What a store said when it let nobody read a document. Where it may not be listed, S3 says so of each that is not there:
    /// told only when nothing else is found.
    denied: Mutex<Option<io::Error>>,
}

/// The array that is meant.
#[derive(Debug)]
pub struct Found {
    /// `""` for the root itself.
    pub path: String,
    pub node: Node,
    pub header: Header,
    /// True when the store holds other arrays beside it.
    pub has_siblings: bool,
    pub notes: Vec<String>,
}

impl Hierarchy {
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let place = path.display().to_string();
        let store = ReadStore::open(path).map_err(|error| OpenError::Io { path: place.clone(), error })?;
        let mut hierarchy =
            Self { store, path: place, consolidated: BTreeMap::new(), is_consolidated: false, denied: Mutex::default() };
        if let Some((Value::Object(mut document), _)) = hierarchy.document(".zmetadata")?
            && let Some(Value::Object(metadata)) = document.remove("metadata")
        {
            hierarchy.consolidated = metadata.into_iter().collect();
            hierarchy.is_consolidated = true;
        } else if let Some((document, _)) = hierarchy.document("zarr.json")?
            && let Some(Value::Object(metadata)) = document.pointer("/consolidated_metadata/metadata")
        {
            hierarchy.is_consolidated = true;
            if hierarchy.store.is_remote() {
                hierarchy.consolidated =
                    metadata.iter().map(|(path, node)| (format!("{path}/zarr.json"), node.clone())).collect();
            }
        }
        Ok(hierarchy)
    }

    fn refused(&self, key: &str, reason: impl Into<String>) -> OpenError {
        let path = if key.is_empty() { self.path.clone() } else { format!("{}/{key}", self.path) };
        OpenError::refused(path, reason)
    }

    /// A document with its bytes: the file, else the consolidated entry.
    fn document(&self, key: &str) -> Result<Option<(Value, Vec<u8>)>, OpenError> {
        let found = match self.store.get(key, MAX_DOCUMENT_BYTES) {
            Err(error) if self.store.is_remote() && error.kind() == io::ErrorKind::PermissionDenied => {
                self.denied.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                None
            }
            read => read.map_err(|error| OpenError::Io { path: format!("{}/{key}", self.path), error })?,
        };
        match found {
            Some(bytes) => Ok(Some((json::parse(&bytes).map_err(|e| self.refused(key, e))?, bytes))),
            None => Ok(self.consolidated.get(key).map(|value| (value.clone(), value.to_string().into_bytes()))),
        }
    }

    /// Tells, where nothing was found, that it may be there and not be shown.
    fn check_access(&self) -> Result<(), OpenError> {
        match self.denied.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(OpenError::Io { path: self.path.clone(), error }),
            None => Ok(()),
        }
    }

    /// The node at a path (`""`: the root), `None` when there is none. v3 goes before v2.
    pub fn node(&self, path: &str) -> Result<Option<Node>, OpenError> {
        let key = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if let Some((document, bytes)) = self.document(&key("zarr.json"))? {
            let is_array =
                match (document.get("zarr_format").and_then(Value::as_u64), document.get("node_type").and_then(Value::as_str)) {
                    (Some(3), Some("array")) => true,
                    (Some(3), Some("group")) => false,
                    _ => return Err(self.refused(&key("zarr.json"), "neither an array nor a group of Zarr format 3")),
                };
            let attributes = document.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default();
            return Ok(Some(Node { is_array, format: 3, document, attributes, hash: Sha256::digest(&bytes).into() }));
        }
        for (name, is_array) in [(".zarray", true), (".zgroup", false)] {
            let Some((document, bytes)) = self.document(&key(name))? else { continue };
            if document.get("zarr_format").and_then(Value::as_u64) != Some(2) {
                return Err(self.refused(&key(name), "zarr_format is not 2"));
            }
            let mut hash = Sha256::new_with_prefix(&bytes);
            let attributes = match self.document(&key(".zattrs"))? {
                Some((Value::Object(attributes), bytes)) => {
                    hash.update(&bytes);
                    attributes
                }
                Some(_) => return Err(self.refused(&key(".zattrs"), "not a JSON object")),
                None => Map::new(),
            };
            return Ok(Some(Node { is_array, format: 2, document, attributes, hash: hash.finalize().into() }));
        }
        Ok(None)
    }

    /// True when the root has a document of its own.
    pub fn has_root(&self) -> io::Result<bool> {
        let mut names = ["zarr.json", ".zgroup", ".zarray"].into_iter();
        names.try_fold(false, |found, name| Ok(found || self.store.has(name)?))
    }

    /// The root, which must be a group or an array.
    pub fn root(&self) -> Result<Node, OpenError> {
        match self.node("")? {
            Some(node) => Ok(node),
            // Some writers leave only the consolidated document.
            None if !self.consolidated.is_empty() => Ok(Node {
                is_array: false,
                format: 2,
                document: Value::Null,
                attributes: Map::new(),
                hash: Sha256::digest(b"").into(),
            }),
            None => {
                self.check_access()?;
                Err(self.refused("", "neither a Zarr array nor a group: no zarr.json, .zarray, .zgroup or .zmetadata in it"))
            }
        }
    }

    /// Names below a group, from the folder and the consolidated document.
    pub fn children(&self, group: &str) -> Result<Vec<String>, OpenError> {
        let listed = self.store.folders(group).map_err(|error| OpenError::Io { path: self.store.place(group), error })?;
        let mut names = listed.unwrap_or_default();
        let prefix = if group.is_empty() { String::new() } else { format!("{group}/") };
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below = self.consolidated.range::<str, _>(from).map_while(|(key, _)| key.strip_prefix(&prefix));
        names.extend(below.filter_map(|key| Some(key.split_once('/')?.0.to_owned())));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// All arrays below a group, by path. Folders that are no nodes are passed over.
    pub fn arrays(&self, group: &str) -> Result<Vec<(String, Node)>, OpenError> {
        let mut found = Vec::new();
        self.collect(group, 0, &mut found)?;
        Ok(found)
    }

    fn collect(&self, group: &str, depth: usize, found: &mut Vec<(String, Node)>) -> Result<(), OpenError> {
        for name in self.children(group)? {
            let path = if group.is_empty() { name } else { format!("{group}/{name}") };
            match self.node(&path) {
                Ok(Some(node)) if node.is_array && found.len() < MAX_ARRAYS => found.push((path, node)),
                Ok(Some(node)) if !node.is_array && depth < MAX_DEPTH => self.collect(&path, depth + 1, found)?,
                // A damaged neighbour, or a link out of the store, is no reason to refuse the array that was asked for.
                _ => {}
            }
        }
        Ok(())
    }

    /// The array at `array`; without a name the root when it is one, else the only one that can be meant.
    pub fn find(&self, array: Option<&str>) -> Result<Found, OpenError> {
        let root = self.root()?;
        match array {
            Some(name) if root.is_array => {
                Err(self.refused("", format!("this is an array, not a group: leave out array = {name:?}")))
            }
            None if root.is_array => self.found(String::new(), root, false),
            Some(name) => self.find_named(name),
            None => self.find_only(),
        }
    }

    fn found(&self, path: String, node: Node, has_siblings: bool) -> Result<Found, OpenError> {
        let header = node.header().map_err(|reason| self.refused(&path, reason))?;
        Ok(Found { path, node, header, has_siblings, notes: Vec::new() })
    }

    fn find_named(&self, name: &str) -> Result<Found, OpenError> {
        let path = name.trim_matches('/');
        match self.node(path)? {
            Some(node) if node.is_array => {
                let has_siblings = self.arrays("")?.len() > 1;
                self.found(path.to_owned(), node, has_siblings)
            }
            Some(_) => {
                let names = self.arrays(path)?.into_iter().map(|(p, _)| p).collect::<Vec<_>>();
                Err(self.refused("", format!("{path:?} is a group; name one of its arrays: {}", listing(&names))))
            }
            None => {
                self.check_access()?;
                let names = self.arrays("")?.into_iter().map(|(p, _)| p).collect::<Vec<_>>();
                let hint = nearest(path, names.iter().map(String::as_str)).map(|near| format!("; did you mean {near:?}?"));
                let hint = hint.unwrap_or_else(|| format!("; the group holds {}", listing(&names)));
                Err(self.refused("", format!("there is no array {path:?}{hint}")))
            }
        }
    }

    fn find_only(&self) -> Result<Found, OpenError> {
        let arrays = self.arrays("")?;
        let mut notes = Vec::new();
        let mut usable = Vec::new();
        for (path, node) in &arrays {
            match node.header() {
                Ok(header) if header.shape.is_empty() => {
                    notes.push(format!("{path} is passed over: it is a single value, without axes"))
                }
                Ok(header) => usable.push((path, node, header)),
                Err(reason) => notes.push(format!("{path} is passed over: {reason}")),
            }
        }
        let place = |path: &'_ str| path.rsplit_once('/').map_or((0, 0), |(group, _)| (group.len(), group.len() + 1));
        // Group and name of every axis that an array there names.
        let axes: HashSet<(&str, &str)> = usable
            .iter()
            .flat_map(|(path, _, h)| h.dimension_names.iter().flatten().map(|name| (&path[..place(path).0], name.as_str())))
            .collect();
        let is_coordinate = |path: &str, header: &Header| {
            let (group, name) = place(path);
            header.shape.len() == 1 && axes.contains(&(&path[..group], &path[name..]))
        };
        let meant: Vec<_> = usable.iter().filter(|(path, _, header)| !is_coordinate(path, header)).collect();
        match meant[..] {
            [(path, node, header)] => Ok(Found {
                path: (*path).clone(),
                node: (*node).clone(),
                header: header.clone(),
                has_siblings: arrays.len() > 1,
                notes,
            }),
            [] => {
                let why = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
                if arrays.is_empty() && self.store.is_remote() && matches!(self.store.folders(""), Ok(None)) {
                    let reason = "the group can't be listed and has no consolidated metadata; say which array is meant with array = \"NAME\"";
                    return Err(self.refused("", reason));
                }
                Err(self.refused("", format!("the group holds no numeric array with axes{why}")))
            }
            _ => {
                let names = meant
                    .iter()
                    .map(|(path, _, header)| format!("{path} {:?} {}", header.shape, header.dtype))
                    .collect::<Vec<_>>();
                Err(self
                    .refused("", format!("the group holds several arrays; say which with array = \"NAME\": {}", listing(&names))))
            }
        }
    }
}

/// The first names of a list.
fn listing(names: &[String]) -> String {
    const SHOWN: usize = 20;
    match names.len() {
        0 => "no arrays".to_owned(),
        n if n > SHOWN => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zarr::store::tests::Scratch;
    use serde_json::json;
    use std::time::{Duration, Instant};

    fn consolidated(entries: impl Iterator<Item = (String, Value)>) -> (Scratch, Hierarchy) {
        let scratch = Scratch::new();
        let metadata: Map<String, Value> = entries.collect();
        let document = json!({"zarr_consolidated_format": 1, "metadata": metadata});
        std::fs::write(scratch.0.join(".zmetadata"), document.to_string()).unwrap();
        let hierarchy = Hierarchy::open(&scratch.0).unwrap();
        (scratch, hierarchy)
    }

    fn array(rank: usize, names: &str) -> [Value; 2] {
        let ones = vec![1; rank];
        let document = json!({"zarr_format": 2, "shape": ones, "chunks": ones, "dtype": "<i4", "order": "C", "fill_value": 0,
            "filters": null, "compressor": null});
        [document, json!({"_ARRAY_DIMENSIONS": vec![names; rank]})]
    }

    #[test]
    fn children_are_found_in_the_sorted_document() {
        let [document, _] = array(1, "x");
        let paths = ["a", "g/b", "g/h/c", "g-h/d", "gg/e"];
        let groups = ["g", "g/h", "g-h", "gg"].map(|g| (format!("{g}/.zgroup"), json!({"zarr_format": 2})));
        let arrays = paths.map(|p| (format!("{p}/.zarray"), document.clone()));
        let (_scratch, hierarchy) = consolidated(arrays.into_iter().chain(groups));
        assert_eq!(hierarchy.children("").unwrap(), ["a", "g", "g-h", "gg"]);
        assert_eq!(hierarchy.children("g").unwrap(), ["b", "h"]);
        let mut found: Vec<String> = hierarchy.arrays("").unwrap().into_iter().map(|(path, _)| path).collect();
        found.sort();
        assert_eq!(found, ["a", "g-h/d", "g/b", "g/h/c", "gg/e"]);
    }

    #[test]
    fn a_coordinate_is_named_by_an_array_of_its_own_group() {
        let [plane, names] = array(2, "x");
        let [line, _] = array(1, "x");
        let all = [("a/x/.zarray", &line), ("a/u/.zarray", &plane), ("a/u/.zattrs", &names)];
        let group = ("a/.zgroup".to_owned(), json!({"zarr_format": 2}));
        let entries = all.map(|(key, v)| (key.to_owned(), v.clone()));
        let (_scratch, hierarchy) = consolidated(entries.clone().into_iter().chain([group.clone()]));
        assert_eq!(hierarchy.find(None).unwrap().path, "a/u");
        // The same name elsewhere is an array like others.
        let other = ("x/.zarray".to_owned(), line);
        let (_scratch, hierarchy) = consolidated(entries.into_iter().chain([group, other]));
        assert!(hierarchy.find(None).unwrap_err().to_string().contains("several arrays"));
    }

    #[test]
    fn large_consolidated_documents_cost_little() {
        let started = Instant::now();
        let groups = (0..40_000).map(|i| (format!("g{i}/.zgroup"), json!({"zarr_format": 2})));
        let (_scratch, hierarchy) = consolidated(groups);
        assert!(hierarchy.find(None).is_err());
        let [many, names] = array(64, "n");
        let [one, _] = array(1, "n");
        let arrays = (0..3000).flat_map(|i| {
            [("b", ".zarray", &many), ("b", ".zattrs", &names), ("c", ".zarray", &one)]
                .map(|(name, file, value)| (format!("{name}{i}/{file}"), value.clone()))
        });
        let (_scratch, hierarchy) = consolidated(arrays);
        assert!(hierarchy.find(None).is_err());
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
