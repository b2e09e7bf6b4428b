//! The codec lists of v2 (`filters`, `compressor`) and v3 (`codecs`) as what they do to bytes. A codec that is not known
//! is refused by name when the array is opened, not when its first chunk is read.

use serde_json::{Map, Value};

use crate::array::DType;

/// Longer lists of codecs are refused: each codec may make a chunk longer, and takes a buffer of its own.
const MAX_CODECS: usize = 16;

/// A step from bytes to bytes, in the order of encoding.
#[derive(Clone, Debug, PartialEq)]
pub enum BytesCodec {
    Zstd,
    Gzip,
    Zlib,
    /// `blocksize` as the metadata gives it, 0 for automatic.
    Blosc {
        blocksize: u64,
    },
    /// numcodecs' LZ4: the length as 4 bytes, then one lz4 block.
    Lz4,
    /// The checksum stands behind the bytes.
    Crc32c,
    /// numcodecs' Shuffle: byte `i` of every element together.
    Shuffle {
        element: usize,
    },
}

/// How the elements of a chunk become bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub is_big_endian: bool,
    /// Stored axis `i` is axis `order[i]` of the chunk; `None` when nothing moves.
    pub order: Option<Vec<usize>>,
}

/// One level of codecs.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    pub layout: Layout,
    pub bytes: Vec<BytesCodec>,
}

/// What a v3 codec list is: plain, or shards with a chain inside.
#[derive(Clone, Debug, PartialEq)]
pub enum Codecs {
    Plain(Chain),
    Sharded { chunk_shape: Vec<u64>, inner: Chain, index: IndexForm },
}

/// How a shard's index is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexForm {
    pub is_at_end: bool,
    pub is_big_endian: bool,
    pub has_checksum: bool,
}

/// `name` and `configuration` of a v3 extension point, which may be a plain string.
pub fn named(value: &Value) -> Result<(&str, Map<String, Value>), String> {
    let bad = || format!("{value} is not a name or an object with \"name\" and \"configuration\"");
    match value {
        Value::String(name) => Ok((name, Map::new())),
        Value::Object(object) => {
            let name = object.get("name").and_then(Value::as_str).ok_or_else(bad)?;
            let configuration = match object.get("configuration") {
                None | Some(Value::Null) => Map::new(),
                Some(Value::Object(configuration)) => configuration.clone(),
                Some(_) => return Err(bad()),
            };
            Ok((name, configuration))
        }
        _ => Err(bad()),
    }
}

/// A list of lengths from 0 up, one message for every way it can be wrong.
pub fn lengths(value: Option<&Value>, key: &str) -> Result<Vec<u64>, String> {
    let list = value.and_then(Value::as_array).ok_or_else(|| format!("{key} is not a list of lengths"))?;
    let one = |(axis, v): (usize, &Value)| {
        v.as_u64().filter(|n| *n <= i64::MAX as u64 / 4).ok_or_else(|| format!("{key}[{axis}] is {v}, which is not a length"))
    };
    list.iter().enumerate().map(one).collect()
}

/// A v2 array's filters and compressor, in the order of encoding.
pub fn parse_v2(filters: Option<&Value>, compressor: Option<&Value>) -> Result<Vec<BytesCodec>, String> {
    let mut bytes = Vec::new();
    match filters {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            check_count(list)?;
            for filter in list {
                bytes.push(parse_numcodecs("filter", filter)?);
            }
        }
        Some(other) => return Err(format!("filters is {other}, not a list")),
    }
    match compressor {
        None | Some(Value::Null) => {}
        Some(one) => bytes.push(parse_numcodecs("compressor", one)?),
    }
    Ok(bytes)
}

fn check_count(list: &[Value]) -> Result<(), String> {
    match list.len() {
        n if n > MAX_CODECS => Err(format!("the array has {n} codecs in a row, at most {MAX_CODECS} are supported")),
        _ => Ok(()),
    }
}

fn parse_numcodecs(role: &str, value: &Value) -> Result<BytesCodec, String> {
    let configuration = value.as_object().ok_or_else(|| format!("{role} {value} is not an object"))?;
    let id = configuration.get("id").and_then(Value::as_str).ok_or_else(|| format!("{role} {value} has no id"))?;
    parse_bytes_codec(id, configuration)?.ok_or_else(|| unknown(role, id))
}

fn unknown(role: &str, name: &str) -> String {
    format!(
        "{role} {name:?} is not known (known are zstd, gzip, zlib, blosc, lz4, crc32c, shuffle); store the array with one of them"
    )
}

fn parse_bytes_codec(name: &str, configuration: &Map<String, Value>) -> Result<Option<BytesCodec>, String> {
    Ok(Some(match name {
        "zstd" => BytesCodec::Zstd,
        "gzip" => BytesCodec::Gzip,
        "zlib" => BytesCodec::Zlib,
        "lz4" => BytesCodec::Lz4,
        "blosc" => {
            if let Some(cname) = configuration.get("cname").and_then(Value::as_str)
                && !["lz4", "lz4hc", "blosclz", "zlib", "zstd", "snappy"].contains(&cname)
            {
                return Err(format!("blosc with {cname:?} is not known"));
            }
            BytesCodec::Blosc { blocksize: configuration.get("blocksize").and_then(Value::as_u64).unwrap_or(0) }
        }
        "crc32c" => match configuration.get("location").and_then(Value::as_str) {
            None | Some("end") => BytesCodec::Crc32c,
            Some(place) => return Err(format!("crc32c with its checksum at {place:?} is not known, only at the end")),
        },
        "shuffle" => {
            let element = configuration.get("elementsize").map_or(Some(4), Value::as_u64);
            let element = element.filter(|e| (1..=4096).contains(e)).ok_or("shuffle: elementsize is not 1 to 4096")?;
            BytesCodec::Shuffle { element: element as usize }
        }
        _ => return Ok(None),
    }))
}

/// A v3 codec list.
pub fn parse_v3(list: Option<&Value>, dtype: DType, rank: usize) -> Result<Codecs, String> {
    let list = list.and_then(Value::as_array).ok_or("codecs is not a list")?;
    check_count(list)?;
    let mut order: Option<Vec<usize>> = None;
    let mut at = list.iter();
    for value in at.by_ref() {
        let (name, configuration) = named(value)?;
        match name {
            "transpose" => {
                let next = parse_order(configuration.get("order"), rank)?;
                order = Some(match order {
                    None => next,
                    Some(first) => next.iter().map(|&a| first[a]).collect(),
                });
            }
            "bytes" => {
                let is_big_endian = parse_endian(&configuration, dtype)?;
                let order = order.filter(|o| o.iter().enumerate().any(|(i, a)| i != *a));
                let bytes = parse_bytes_codecs(at)?;
                return Ok(Codecs::Plain(Chain { layout: Layout { is_big_endian, order }, bytes }));
            }
            "sharding_indexed" => {
                if order.is_some() {
                    return Err("transpose in front of sharding_indexed is not supported, only inside it".into());
                }
                if let Some(after) = at.next() {
                    return Err(format!(
                        "the codec {} behind sharding_indexed is not supported, only inside it",
                        named(after)?.0
                    ));
                }
                return parse_sharding(&configuration, dtype, rank);
            }
            other if parse_bytes_codec(other, &configuration)?.is_some() => {
                return Err(format!("the codec {other} stands in front of bytes or sharding_indexed"));
            }
            other => return Err(unknown("codec", other)),
        }
    }
    Err("codecs has neither bytes nor sharding_indexed".into())
}

/// The codecs of a v3 list that turn bytes into bytes.
pub fn parse_bytes_codecs<'v>(list: impl Iterator<Item = &'v Value>) -> Result<Vec<BytesCodec>, String> {
    list.map(|value| {
        let (name, configuration) = named(value)?;
        let short = name.strip_prefix("numcodecs.").unwrap_or(name);
        parse_bytes_codec(short, &configuration)?.ok_or_else(|| unknown("codec", name))
    })
    .collect()
}

fn parse_order(order: Option<&Value>, rank: usize) -> Result<Vec<usize>, String> {
    match order.and_then(Value::as_str) {
        Some("C") => return Ok((0..rank).collect()),
        Some("F") => return Ok((0..rank).rev().collect()),
        _ => {}
    }
    let axes: Vec<usize> = lengths(order, "transpose: order")?.into_iter().map(|a| a as usize).collect();
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if sorted != (0..rank).collect::<Vec<_>>() {
        return Err(format!("transpose: order {axes:?} does not name each of the {rank} axes once"));
    }
    Ok(axes)
}

fn parse_endian(configuration: &Map<String, Value>, dtype: DType) -> Result<bool, String> {
    match configuration.get("endian") {
        None | Some(Value::Null) if dtype.size() == 1 => Ok(false),
        None | Some(Value::Null) => Err(format!("the bytes codec gives no endian for {dtype}")),
        Some(Value::String(s)) if s == "little" => Ok(false),
        Some(Value::String(s)) if s == "big" => Ok(true),
        Some(other) => Err(format!("the bytes codec's endian is {other}, not \"little\" or \"big\"")),
    }
}

fn parse_sharding(configuration: &Map<String, Value>, dtype: DType, rank: usize) -> Result<Codecs, String> {
    let chunk_shape = lengths(configuration.get("chunk_shape"), "sharding_indexed: chunk_shape")?;
    let Codecs::Plain(inner) = parse_v3(configuration.get("codecs"), dtype, rank)? else {
        return Err("shards inside shards are not supported".into());
    };
    let is_at_end = match configuration.get("index_location").and_then(Value::as_str) {
        None | Some("end") => true,
        Some("start") => false,
        Some(other) => return Err(format!("sharding_indexed: index_location is {other:?}, not \"start\" or \"end\"")),
    };
    let Codecs::Plain(index) = parse_v3(configuration.get("index_codecs"), DType::U64, rank + 1)? else {
        return Err("sharding_indexed: an index in shards is not supported".into());
    };
    let has_checksum = match index.bytes[..] {
        [] => false,
        [BytesCodec::Crc32c] => true,
        _ => return Err("sharding_indexed: index_codecs other than bytes and crc32c are not supported".into()),
    };
    if index.layout.order.is_some() {
        return Err("sharding_indexed: a transposed index is not supported".into());
    }
    let index = IndexForm { is_at_end, is_big_endian: index.layout.is_big_endian, has_checksum };
    Ok(Codecs::Sharded { chunk_shape, inner, index })
}

/// A chain as text for people: `F order, big endian, zstd, crc32c`.
pub fn show(chain: &Chain) -> String {
    let mut words = Vec::new();
    if let Some(order) = &chain.layout.order {
        let is_reversed = order.iter().rev().enumerate().all(|(i, a)| i == *a);
        words.push(if is_reversed { "F order".to_owned() } else { format!("axes stored as {order:?}") });
    }
    if chain.layout.is_big_endian {
        words.push("big endian".to_owned());
    }
    words.extend(chain.bytes.iter().map(|c| match c {
        BytesCodec::Zstd => "zstd".to_owned(),
        BytesCodec::Gzip => "gzip".to_owned(),
        BytesCodec::Zlib => "zlib".to_owned(),
        BytesCodec::Blosc { .. } => "blosc".to_owned(),
        BytesCodec::Lz4 => "lz4".to_owned(),
        BytesCodec::Crc32c => "crc32c".to_owned(),
        BytesCodec::Shuffle { element } => format!("shuffle({element})"),
    }));
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_read_and_what_is_unknown_is_named() {
        let read = |v: Value| parse_v3(Some(&v), DType::F32, 3);
        let Codecs::Plain(chain) = read(json!([
            {"name": "transpose", "configuration": {"order": [1, 2, 0]}},
            {"name": "transpose", "configuration": {"order": [1, 2, 0]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "numcodecs.zlib", "configuration": {"level": 1}}, "crc32c"]))
        .unwrap() else {
            panic!()
        };
        assert_eq!(chain.layout.order, Some(vec![2, 0, 1]));
        assert_eq!(show(&chain), "axes stored as [2, 0, 1], big endian, zlib, crc32c");
        let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let nested = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1, 1],
            "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1, 1], "codecs": [little],
            "index_codecs": [little]}}], "index_codecs": [little]}});
        for (list, word) in [
            (json!([little, "bz2"]), "bz2"),
            (json!([]), "neither"),
            (json!(["bytes"]), "endian"),
            (json!([{"name": "transpose", "configuration": {"order": [0, 0, 1]}}, little]), "order"),
            (json!([{"name": "transpose", "configuration": {"order": [0, -1, 1]}}, little]), "order"),
            (json!([nested]), "inside shards"),
            (json!([7]), "7"),
        ] {
            let error = read(list).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let crowd = json!(vec![little.clone(); MAX_CODECS + 1]);
        assert!(read(crowd).unwrap_err().contains("17 codecs"));
        let filters = json!(vec![json!({"id": "zlib"}); MAX_CODECS + 1]);
        assert!(parse_v2(Some(&filters), None).unwrap_err().contains("17 codecs"));
        let delta = json!([{"id": "delta", "dtype": "<i4"}]);
        assert!(parse_v2(Some(&delta), None).unwrap_err().contains("\"delta\""));
        assert!(parse_v2(None, Some(&json!({"id": "bz2", "level": 1}))).unwrap_err().contains("\"bz2\""));
    }
}
