//! An array's metadata document (`.zarray` or `zarr.json`) as a [`Header`]. Every length is checked before anything is
//! sized by it: metadata may claim 10^18 elements per chunk, and is refused for the price of a few multiplications.

use serde_json::{Map, Value};

use super::codecs::{self, Chain, Codecs, IndexForm, Layout, lengths};
use super::decode::Pipeline;
use super::{fill, shard};
use crate::array::{DType, MAX_CHUNK_BYTES, Scalar, element_count};

/// numpy's own limit.
const MAX_RANK: usize = 64;

/// What is known of an array from its metadata alone.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub format: u8,
    pub shape: Vec<u64>,
    pub dtype: DType,
    pub fill: Scalar,
    /// The fill value is what CF calls `_FillValue`: in format 2, unless it is `null`.
    pub fill_is_missing: bool,
    /// The chunks that are decoded one by one: inside a shard, its subchunks.
    pub chunk_shape: Vec<u64>,
    pub shards: Option<Shards>,
    pub pipeline: Pipeline,
    pub keys: Keys,
    /// The codecs as text for people.
    pub codecs: String,
    pub dimension_names: Vec<Option<String>>,
    pub attributes: Map<String, Value>,
}

/// How chunks lie in shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Shards {
    /// Elements of a shard per axis.
    pub shape: Vec<u64>,
    /// Chunks of a shard per axis.
    pub chunks: Vec<u64>,
    /// Chunks of a shard.
    pub count: u64,
    pub index: IndexForm,
}

/// From the coordinates of a stored object to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// v3's `default` encoding puts `c` in front.
    pub has_prefix: bool,
    pub separator: char,
}

impl Keys {
    /// The key of an object of the array at `prefix`.
    pub fn key(&self, prefix: &str, object: &[u64]) -> String {
        let mut key = String::with_capacity(prefix.len() + 2 + 8 * object.len());
        key.push_str(prefix);
        if object.is_empty() {
            // A 0-d array has one chunk, named like this by zarr-python too.
            key.push(if self.has_prefix { 'c' } else { '0' });
        }
        for (axis, i) in object.iter().enumerate() {
            match (axis, self.has_prefix) {
                (0, true) => key.extend(['c', self.separator]),
                (0, false) => {}
                _ => key.push(self.separator),
            }
            push_number(&mut key, *i);
        }
        key
    }
}

/// The digits of a number, without the machinery of formatting.
fn push_number(text: &mut String, number: u64) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push((b'0' + (number % 10) as u8) as char);
}

impl Header {
    /// Reads a document; the reason when it is not a numeric array with axes that can be streamed. v2 keeps its
    /// attributes in a document of their own.
    pub fn parse(format: u8, document: &Value, attributes: &Map<String, Value>) -> Result<Self, String> {
        let document = document.as_object().ok_or("the metadata is not a JSON object")?;
        match format {
            2 => Self::parse_v2(document, attributes),
            _ => Self::parse_v3(document, attributes),
        }
    }

    fn parse_v2(document: &Map<String, Value>, attributes: &Map<String, Value>) -> Result<Self, String> {
        let (dtype, is_big_endian) = dtype_v2(document.get("dtype"))?;
        let shape = lengths(document.get("shape"), "shape")?;
        let chunk_shape = lengths(document.get("chunks"), "chunks")?;
        check_chunks(&shape, &chunk_shape, "chunks", dtype)?;
        let is_reversed = match document.get("order").and_then(Value::as_str) {
            None | Some("C") => false,
            Some("F") => shape.len() > 1,
            Some(other) => return Err(format!("order is {other:?}, not \"C\" or \"F\"")),
        };
        let layout = Layout { is_big_endian, order: is_reversed.then(|| (0..shape.len()).rev().collect()) };
        let chain = Chain { layout, bytes: codecs::parse_v2(document.get("filters"), document.get("compressor"))? };
        let keys = keys_v2(document.get("dimension_separator"))?;
        let mut attributes = attributes.clone();
        let names = match attributes.remove("_ARRAY_DIMENSIONS") {
            Some(Value::Array(names)) if names.len() == shape.len() => {
                names.iter().map(|n| n.as_str().map(str::to_owned)).collect()
            }
            _ => vec![None; shape.len()],
        };
        Ok(Self {
            format: 2,
            fill: fill::parse(document.get("fill_value").unwrap_or(&Value::Null), dtype, 2)?,
            fill_is_missing: document.get("fill_value").is_some_and(|value| !value.is_null()),
            codecs: codecs::show(&chain),
            pipeline: Pipeline::new(chain, dtype, &chunk_shape)?,
            keys,
            shards: None,
            dimension_names: names,
            shape,
            dtype,
            chunk_shape,
            attributes,
        })
    }

    fn parse_v3(document: &Map<String, Value>, attributes: &Map<String, Value>) -> Result<Self, String> {
        check_fields_v3(document)?;
        let dtype = dtype_v3(document.get("data_type"))?;
        let shape = lengths(document.get("shape"), "shape")?;
        let object_shape = chunk_grid(document.get("chunk_grid"))?;
        check_chunks(&shape, &object_shape, "chunk_shape", dtype)?;
        let (chunk_shape, chain, shards, codecs) = match codecs::parse_v3(document.get("codecs"), dtype, shape.len())? {
            Codecs::Plain(chain) => {
                let text = codecs::show(&chain);
                (object_shape, chain, None, text)
            }
            Codecs::Sharded { chunk_shape, inner, index } => {
                check_chunks(&shape, &chunk_shape, "sharding_indexed: chunk_shape", dtype)?;
                let text = format!("shards of {}", codecs::show(&inner));
                let shards = Shards::new(object_shape, &chunk_shape, index)?;
                (chunk_shape, inner, Some(shards), text)
            }
        };
        let names = match document.get("dimension_names") {
            None | Some(Value::Null) => vec![None; shape.len()],
            Some(Value::Array(names)) if names.len() == shape.len() => {
                names.iter().map(|n| n.as_str().map(str::to_owned)).collect()
            }
            Some(other) => return Err(format!("dimension_names is {other}, the array has {} axes", shape.len())),
        };
        Ok(Self {
            format: 3,
            fill: fill::parse(document.get("fill_value").unwrap_or(&Value::Null), dtype, 3)?,
            fill_is_missing: false,
            pipeline: Pipeline::new(chain, dtype, &chunk_shape)?,
            keys: keys_v3(document.get("chunk_key_encoding"))?,
            dimension_names: names,
            attributes: attributes.clone(),
            shape,
            dtype,
            chunk_shape,
            shards,
            codecs,
        })
    }

    /// Elements of a stored object per axis: the shard, or the chunk.
    pub fn object_shape(&self) -> &[u64] {
        self.shards.as_ref().map_or(&self.chunk_shape, |s| &s.shape)
    }
}

impl Shards {
    fn new(shape: Vec<u64>, chunk_shape: &[u64], index: IndexForm) -> Result<Self, String> {
        if shape.iter().zip(chunk_shape).any(|(s, c)| s % c != 0) {
            return Err(format!("shards of {shape:?} do not hold whole chunks of {chunk_shape:?}"));
        }
        let chunks: Vec<u64> = shape.iter().zip(chunk_shape).map(|(s, c)| s / c).collect();
        let count = element_count(&chunks).filter(|n| *n <= shard::MAX_INDEX_BYTES / 16);
        let count = count
            .ok_or_else(|| format!("shards of {shape:?} with chunks of {chunk_shape:?} hold too many chunks for one index"))?;
        Ok(Self { shape, chunks, count, index })
    }
}

/// Shape and chunk shape agree, have elements, and a chunk can be held.
fn check_chunks(shape: &[u64], chunks: &[u64], key: &str, dtype: DType) -> Result<(), String> {
    if shape.len() > MAX_RANK {
        return Err(format!("the array has {} axes, at most {MAX_RANK} are supported", shape.len()));
    }
    if chunks.len() != shape.len() {
        return Err(format!("{key} {chunks:?} has {} entries, the array has {} axes", chunks.len(), shape.len()));
    }
    if let Some(axis) = chunks.iter().position(|n| *n == 0) {
        return Err(format!("{key}[{axis}] is 0"));
    }
    if element_count(shape).and_then(|n| n.checked_mul(dtype.size() as u64)).is_none() {
        return Err(format!("shape {shape:?} of {dtype} has more bytes than 64 bits count"));
    }
    let bytes = element_count(chunks).and_then(|n| n.checked_mul(dtype.size() as u64));
    match bytes {
        Some(bytes) if bytes <= MAX_CHUNK_BYTES => Ok(()),
        _ => Err(format!("{key} {chunks:?} of {dtype} is larger than any chunk can be ({MAX_CHUNK_BYTES} bytes)")),
    }
}

/// A v2 dtype and whether it is big endian.
fn dtype_v2(value: Option<&Value>) -> Result<(DType, bool), String> {
    let Some(Value::String(text)) = value else {
        return Err(format!("dtype {} is not a numeric type", value.unwrap_or(&Value::Null)));
    };
    let not_numeric = || format!("dtype {text:?} is not a numeric type");
    let (order, short) = text.split_at_checked(1).ok_or_else(not_numeric)?;
    let dtype = DType::ALL.into_iter().find(|d| &d.typestr()[1..] == short).ok_or_else(not_numeric)?;
    match order {
        ">" => Ok((dtype, dtype.size() > 1)),
        "<" | "|" | "=" => Ok((dtype, false)),
        _ => Err(not_numeric()),
    }
}

fn dtype_v3(value: Option<&Value>) -> Result<DType, String> {
    let name = value.and_then(|v| codecs::named(v).ok()).map(|(name, _)| name);
    let found = name.and_then(|name| DType::ALL.into_iter().find(|d| d.name() == name));
    found.ok_or_else(|| format!("data_type {} is not a numeric type", value.unwrap_or(&Value::Null)))
}

pub(super) fn chunk_grid(value: Option<&Value>) -> Result<Vec<u64>, String> {
    let (name, configuration) = codecs::named(value.ok_or("there is no chunk_grid")?)?;
    match name {
        "regular" => lengths(configuration.get("chunk_shape"), "chunk_shape"),
        other => Err(format!("chunk_grid {other:?} is not supported, only \"regular\"; store the array with equal chunks")),
    }
}

pub(super) fn keys_v2(separator: Option<&Value>) -> Result<Keys, String> {
    let separator = match separator.map(Value::as_str) {
        None | Some(Some(".")) => '.',
        Some(Some("/")) => '/',
        _ => return Err("dimension_separator is not \".\" or \"/\"".into()),
    };
    Ok(Keys { has_prefix: false, separator })
}

pub(super) fn keys_v3(value: Option<&Value>) -> Result<Keys, String> {
    let (name, configuration) = codecs::named(value.ok_or("there is no chunk_key_encoding")?)?;
    let (has_prefix, default) = match name {
        "default" => (true, "/"),
        "v2" => (false, "."),
        other => return Err(format!("chunk_key_encoding {other:?} is not known (default, v2)")),
    };
    let separator = match configuration.get("separator").map_or(Some(default), Value::as_str) {
        Some("/") => '/',
        Some(".") => '.',
        _ => return Err("chunk_key_encoding: separator is not \".\" or \"/\"".into()),
    };
    Ok(Keys { has_prefix, separator })
}

/// v3 demands that a reader stops at fields it does not know, unless they say otherwise.
fn check_fields_v3(document: &Map<String, Value>) -> Result<(), String> {
    const KNOWN: [&str; 11] = [
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "storage_transformers",
        "dimension_names",
    ];
    for (key, value) in document {
        let may_be_ignored = value.get("must_understand") == Some(&Value::Bool(false));
        if !KNOWN.contains(&key.as_str()) && !may_be_ignored {
            return Err(format!("the metadata field {key:?} is not known, and does not say that it may be ignored"));
        }
    }
    match document.get("storage_transformers") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(other) => Err(format!("storage_transformers {other} are not supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn v2(change: Value) -> Result<Header, String> {
        let mut document = json!({"zarr_format": 2, "shape": [20, 30], "chunks": [7, 30], "dtype": ">f4", "order": "F",
            "compressor": null, "filters": null, "fill_value": "NaN"});
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Header::parse(2, &document, json!({"_ARRAY_DIMENSIONS": ["y", "x"], "a": 1}).as_object().unwrap())
    }

    fn v3(change: Value) -> Result<Header, String> {
        let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [20, 30], "data_type": "int16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [7, 30]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Header::parse(3, &document, &Map::new())
    }

    #[test]
    fn both_formats_are_read() {
        let header = v2(json!({})).unwrap();
        assert_eq!(header.codecs, "F order, big endian");
        assert_eq!(header.dimension_names, [Some("y".to_owned()), Some("x".to_owned())]);
        assert_eq!(header.attributes.len(), 1);
        assert_eq!(header.keys.key("", &[2, 0]), "2.0");
        assert!(header.fill.to_f64().is_nan());
        let header = v3(json!({"extra": {"must_understand": false}})).unwrap();
        assert_eq!(header.keys.key("", &[2, 0]), "c/2/0");
        assert_eq!((header.chunk_shape, header.format), (vec![7, 30], 3));
    }

    #[test]
    fn what_cannot_be_is_refused_at_once() {
        let grid = |shape: Value| json!({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}}});
        let shards = |inner: Value| {
            json!({"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": inner,
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "index_codecs": ["crc32c"]}}]})
        };
        let big = 1_000_000_000u64;
        for (result, word) in [
            (v2(json!({"shape": [big, big], "chunks": [big, big]})), "larger"),
            (v2(json!({"chunks": [u64::MAX / 4, 2]})), "chunks[0]"),
            (v2(json!({"chunks": [-1, 2]})), "chunks[0] is -1"),
            (v2(json!({"chunks": [0, 2]})), "chunks[0] is 0"),
            (v2(json!({"chunks": [7]})), "2 axes"),
            (v2(json!({"shape": [-3, 2]})), "shape[0] is -3"),
            (v2(json!({"shape": [u64::MAX / 16, u64::MAX / 16]})), "64 bits"),
            (v2(json!({"shape": vec![1; 65], "chunks": vec![1; 65]})), "65 axes"),
            (v2(json!({"dtype": "<U5"})), "<U5"),
            (v2(json!({"dtype": "é"})), "numeric"),
            (v2(json!({"dtype": [["a", "<f4"]]})), "numeric"),
            (v2(json!({"dtype": "<i4"})), "fill_value"),
            (v2(json!({"order": "K"})), "order"),
            (v3(grid(json!([big, big]))), "larger"),
            (v3(grid(json!([1.5, 2]))), "chunk_shape[0] is 1.5"),
            (v3(json!({"chunk_grid": {"name": "rectilinear", "configuration": {}}})), "rectilinear"),
            (v3(json!({"data_type": "string"})), "string"),
            (v3(json!({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}})), "datetime64"),
            (v3(json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "pcodec"}]})), "pcodec"),
            (v3(json!({"extra": 1})), "extra"),
            (v3(json!({"storage_transformers": [{"name": "x"}]})), "storage_transformers"),
            (v3(shards(json!([7, 30]))), "in front of"),
            (v3(json!({"codecs": []})), "neither"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn shards_hold_whole_chunks() {
        let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let with = |inner: [u64; 2]| {
            v3(json!({"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": inner,
                "codecs": [little], "index_codecs": [little, {"name": "crc32c"}], "index_location": "start"}}]}))
        };
        let header = with([7, 10]).unwrap();
        let index = IndexForm { is_at_end: false, is_big_endian: false, has_checksum: true };
        assert_eq!(header.shards, Some(Shards { shape: vec![7, 30], chunks: vec![1, 3], count: 3, index }));
        assert_eq!(header.chunk_shape, [7, 10]);
        assert!(with([7, 20]).unwrap_err().contains("whole chunks"));
        assert!(with([7, 0]).unwrap_err().contains("is 0"));
    }
}
