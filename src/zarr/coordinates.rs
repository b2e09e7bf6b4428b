//! What a group holds for an array beside itself: its coordinates, as CF, xarray and VCF-Zarr name them, and the attributes of
//! the groups that it lies in.
//!
//! Coordinates are arrays of the array's own group: those that are called like an axis, those that the attributes
//! `coordinates` (of the array or of the group) and `grid_mapping` name, and the `bounds` of these. Only names are looked up, a few
//! small reads each, so a group need not be listed. A group of VCF-Zarr is: its conventions name what belongs to calls by axes
//! (`vcf`).

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::ReadStore;
use super::codecs::lengths;
use super::hierarchy::{Hierarchy, Node};
use super::metadata::{Header, Keys, chunk_grid, keys_v2, keys_v3};
use super::store::check;
use super::strings::Strings;
use super::vcf;
use crate::array::element_count;
use crate::reader::OpenError;

/// Names that are looked up for one array.
const MOST_NAMES: usize = 512;
/// Larger ones are data, not coordinates.
const MOST_CELLS: u64 = 1 << 28;
const MOST_OBJECTS: u64 = 1 << 16;
/// A chunk is held decoded where a coordinate is looked into.
const MOST_CHUNK_BYTES: u64 = 64 << 20;

/// The group of an array.
#[derive(Clone, Debug)]
pub struct Group {
    /// The store's folder or URL.
    pub root: PathBuf,
    /// Path of the array in the store.
    pub array: String,
    /// Attributes of the groups that it lies in, from its own outwards.
    pub attributes: Vec<Map<String, Value>>,
    /// The store's metadata lies in one document, too.
    pub is_consolidated: bool,
    pub coordinates: Vec<Coordinate>,
    /// Why something that is named is not among them.
    pub notes: Vec<String>,
}

/// One array that says what lies along axes of another.
#[derive(Clone, Debug)]
pub struct Coordinate {
    pub name: String,
    /// In the store.
    pub path: String,
    pub node: Node,
    pub frame: Frame,
    pub values: Values,
    /// Per axis of its own: the axis of the array that it runs along; `None`: one of its own, such as the two ends of bounds.
    pub axes: Vec<Option<usize>>,
}

/// What a coordinate holds.
#[derive(Clone, Debug)]
pub enum Values {
    Numbers(Box<Header>),
    Strings(Box<Strings>),
    /// Nothing that is looked into.
    Other,
}

/// How an array of any data type lies in its store.
#[derive(Clone, Debug)]
pub struct Frame {
    pub shape: Vec<u64>,
    /// Of a stored object: the chunk, or the shard.
    pub objects: Vec<u64>,
    pub keys: Keys,
    pub names: Vec<Option<String>>,
}

impl Frame {
    fn parse(node: &Node) -> Result<Self, String> {
        let get = |key: &str| node.document.get(key);
        let shape = lengths(get("shape"), "shape")?;
        let (objects, keys, names) = if node.format == 2 {
            let keys = keys_v2(get("dimension_separator"))?;
            (lengths(get("chunks"), "chunks")?, keys, node.attributes.get("_ARRAY_DIMENSIONS"))
        } else {
            if get("storage_transformers").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
                return Err("storage_transformers are not supported".to_owned());
            }
            (chunk_grid(get("chunk_grid"))?, keys_v3(get("chunk_key_encoding"))?, get("dimension_names"))
        };
        let names = match names.and_then(Value::as_array) {
            Some(list) if list.len() == shape.len() => list.iter().map(|n| n.as_str().map(str::to_owned)).collect(),
            _ => vec![None; shape.len()],
        };
        if objects.len() != shape.len() || objects.contains(&0) {
            return Err(format!("chunks of {objects:?} do not divide an array of {shape:?}"));
        }
        if element_count(&shape).is_none_or(|cells| cells > MOST_CELLS) {
            return Err(format!("an array of {shape:?} is larger than coordinates are ({MOST_CELLS} cells)"));
        }
        let frame = Self { shape, objects, keys, names };
        if element_count(&frame.grid()).is_none_or(|count| count > MOST_OBJECTS) {
            return Err(format!("it lies in more than {MOST_OBJECTS} objects"));
        }
        Ok(frame)
    }

    /// Objects along each axis.
    pub fn grid(&self) -> Vec<u64> {
        self.shape.iter().zip(&self.objects).map(|(len, object)| len.div_ceil(*object)).collect()
    }

    /// The keys of all objects of the array at `path`.
    pub fn keys_at(&self, path: &str) -> impl Iterator<Item = String> + '_ {
        let (grid, prefix) = (self.grid(), format!("{path}/"));
        (0..grid.iter().product()).map(move |number| self.keys.key(&prefix, &index_of(number, &grid)))
    }
}

/// The index of cell `number` of a grid, C order.
fn index_of(mut number: u64, cells: &[u64]) -> Vec<u64> {
    let mut index = vec![0; cells.len()];
    for (i, n) in index.iter_mut().zip(cells).rev() {
        (*i, number) = (number % n, number / n);
    }
    index
}

impl Coordinate {
    /// Most bytes that looking into it takes: a decoded chunk, encoded beside it, and one that is made of it.
    pub fn peak_bytes(&self) -> u64 {
        let Values::Numbers(header) = &self.values else { return 0 };
        let pipeline = &header.pipeline;
        let held = 2 * pipeline.raw_bytes() + pipeline.stored().bytes + pipeline.scratch_bytes();
        2 * held as u64 + pipeline.context_bytes()
    }
}

impl Group {
    /// The array's name in its group, and the path of that.
    pub fn split(&self) -> (&str, &str) {
        self.array.rsplit_once('/').map_or(("", &self.array), |(group, name)| (group, name))
    }

    /// All that outputs take from here, condensed.
    pub fn identity(&self) -> String {
        let coordinates: Vec<Value> = self.coordinates.iter().map(|c| json!([c.name, c.node.hash])).collect();
        let text = json!([self.attributes, self.is_consolidated, coordinates]).to_string();
        let hash: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("group sha256:{hash}")
    }

    /// The state of the coordinates' objects, condensed; an error with its place.
    pub fn stamp(&self) -> Result<String, (String, io::Error)> {
        let store = ReadStore::open(&self.root).map_err(|error| (self.root.display().to_string(), error))?;
        let mut stamps = Vec::with_capacity(self.coordinates.len());
        for Coordinate { path, node, frame, .. } in &self.coordinates {
            let (grid, prefix) = (frame.grid(), format!("{path}/"));
            let documents: &[&str] = if node.format == 2 { &[".zarray", ".zattrs"] } else { &["zarr.json"] };
            let key = |number| frame.keys.key(&prefix, &index_of(number, &grid));
            let stamp = store.stamp(path, documents, element_count(&grid), key);
            stamps.push(stamp.map_err(|(key, error)| (store.place(&key), error))?);
        }
        let hash = Sha256::digest(stamps.iter().flat_map(|stamp| stamp.to_le_bytes()).collect::<Vec<u8>>());
        Ok(if stamps.is_empty() { String::new() } else { hash[..8].iter().map(|b| format!("{b:02x}")).collect() })
    }
}

/// The words of an attribute.
pub fn words<'a>(attributes: &'a Map<String, Value>, name: &str) -> Vec<&'a str> {
    attributes.get(name).and_then(Value::as_str).map(|text| text.split_whitespace().collect()).unwrap_or_default()
}

/// The variables of a `grid_mapping`: `crs`, or `crs: x y other: lat lon`.
pub fn grid_mappings(attributes: &Map<String, Value>) -> Vec<&str> {
    words(attributes, "grid_mapping").into_iter().map(|word| word.trim_end_matches(':')).collect()
}

/// The group of the array at `array` with this header. Names that lead nowhere are no coordinates; what can't be read is an error,
/// since the output would be another one next time.
pub fn of(hierarchy: &Hierarchy, array: &str, header: &Header) -> Result<Group, OpenError> {
    let mut attributes = Vec::new();
    let mut path = array;
    while !path.is_empty() {
        path = path.rsplit_once('/').map_or("", |(group, _)| group);
        let node = hierarchy.node(path)?.filter(|node| !node.is_array);
        attributes.push(node.map(|node| node.attributes).unwrap_or_default());
    }
    let mut group = Group {
        root: hierarchy.store.root(),
        array: array.to_owned(),
        attributes,
        is_consolidated: hierarchy.is_consolidated,
        coordinates: Vec::new(),
        notes: Vec::new(),
    };
    let (parent, own) = group.split();
    let (parent, own) = (parent.to_owned(), own.to_owned());
    let axes: Vec<&str> = header.dimension_names.iter().flatten().map(String::as_str).collect();
    let mut names: VecDeque<String> = axes.iter().map(|name| (*name).to_owned()).collect();
    let of_group = group.attributes.first().cloned().unwrap_or_default();
    let named = [grid_mappings(&header.attributes), words(&header.attributes, "coordinates"), words(&of_group, "coordinates")];
    names.extend(named.into_iter().flatten().map(str::to_owned));
    if vcf::is_vcf(&of_group) {
        names.extend(vcf::beside_calls(hierarchy.children(&parent)?));
    }
    let mut seen: HashSet<String> = HashSet::from([own]);
    while let Some(name) = names.pop_front() {
        if name.contains('/') || check(&name).is_err() || !seen.insert(name.clone()) {
            continue;
        }
        if seen.len() > MOST_NAMES {
            group.notes.push(format!("more than {MOST_NAMES} coordinates are named: the rest is not carried"));
            break;
        }
        match find(hierarchy, &parent, &name, header)? {
            Ok(Some(found)) => {
                let more = ["bounds", "climatology"].iter().flat_map(|key| words(&found.node.attributes, key));
                more.for_each(|name| names.push_front(name.to_owned()));
                group.coordinates.push(found);
            }
            Ok(None) => {}
            Err(reason) => group.notes.push(format!("coordinate {name} is not carried: {reason}")),
        }
    }
    Ok(group)
}

/// The coordinate of a name; `None` when there is no such array, the reason when it is none.
fn find(
    hierarchy: &Hierarchy,
    parent: &str,
    name: &str,
    header: &Header,
) -> Result<Result<Option<Coordinate>, String>, OpenError> {
    let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
    match hierarchy.node(&path) {
        Ok(Some(node)) if node.is_array => Ok(coordinate(name, path, node, header).map(Some)),
        Ok(_) => Ok(Ok(None)),
        Err(OpenError::Io { error, path }) if hierarchy.store.is_remote() || !is_link_out(&error) => {
            Err(OpenError::Io { error, path })
        }
        Err(refused) => Ok(Err(refused.to_string())),
    }
}

/// A link out of the store is refused by us, not by the system.
fn is_link_out(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// The reason when an array is no coordinate of one with this header.
fn coordinate(name: &str, path: String, node: Node, header: &Header) -> Result<Coordinate, String> {
    let mut frame = Frame::parse(&node)?;
    if let ([None], [_]) = (&frame.names[..], &frame.shape[..])
        && header.dimension_names.iter().flatten().any(|axis| axis == name)
    {
        frame.names = vec![Some(name.to_owned())];
    }
    let mut axes = Vec::with_capacity(frame.shape.len());
    for (own, &len) in frame.names.iter().zip(&frame.shape) {
        let along = header.dimension_names.iter().position(|axis| axis.is_some() && axis == own);
        if let Some(axis) = along
            && header.shape[axis] != len
        {
            let own = own.as_deref().unwrap_or_default();
            return Err(format!("it has {len} entries along {own}, the array has {}", header.shape[axis]));
        }
        axes.push(along);
    }
    let values = match (node.header(), Strings::parse(&node)) {
        (Ok(header), _) if header.pipeline.raw_bytes() as u64 > MOST_CHUNK_BYTES => {
            return Err(format!("a chunk of {:?} is larger than {MOST_CHUNK_BYTES} bytes", header.chunk_shape));
        }
        (Ok(header), _) => Values::Numbers(Box::new(header)),
        (_, Ok(Some(strings))) if strings.has_small_chunks() => Values::Strings(Box::new(strings)),
        _ => Values::Other,
    };
    Ok(Coordinate { name: name.to_owned(), path, node, frame, values, axes })
}
