//! Arrays of strings: the names of what lies along an axis, and coordinates that are cut.
//!
//! Forms: `vlen-utf8` (numcodecs; v3's data type `string`), and characters of four bytes each (numpy's `<U8`; v3's
//! `fixed_length_utf32`). Chunks are read one at a time, none may decode to more than [`CHUNK_BYTES`].

use serde_json::{Value, json};

use super::codecs::{self, BytesCodec, Chain, Layout, lengths};
use super::decode::Pipeline;
use super::hierarchy::Node;
use super::metadata::{Keys, chunk_grid, keys_v2, keys_v3};
use super::read::ReadStore;
use crate::array::element_count;

/// Of a chunk of names, decoded.
const CHUNK_BYTES: usize = 32 << 20;
/// A list of names in more chunks is no list that somebody wrote.
const MOST_CHUNKS: u64 = 1 << 18;
/// Each string takes memory of its own.
const MOST_CHUNK_CELLS: u64 = 1 << 20;

/// How the strings of a chunk follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Their number, then each with its length in front, in four bytes.
    Lengths,
    /// So many code points each, filled up with zeros.
    Utf32 { characters: usize, is_big_endian: bool },
}

/// An array of strings as its metadata says.
#[derive(Clone, Debug)]
pub struct Strings {
    pub shape: Vec<u64>,
    pub chunk_shape: Vec<u64>,
    keys: Keys,
    form: Form,
    pipeline: Pipeline,
}

impl Strings {
    /// `None`: the array holds no strings. The reason when it does and they cannot be read.
    pub fn parse(node: &Node) -> Result<Option<Self>, String> {
        let get = |key: &str| node.document.get(key);
        let (form, bytes, chunks, keys) = if node.format == 2 {
            let filters = get("filters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if get("order").and_then(Value::as_str) == Some("F")
                && get("shape").and_then(Value::as_array).is_some_and(|s| s.len() > 1)
            {
                return Err("strings in F order are not supported".to_owned());
            }
            let first = filters.first().and_then(|f| f.get("id")).and_then(Value::as_str);
            let dtype = get("dtype").and_then(Value::as_str).unwrap_or_default();
            let (form, others) = match (dtype, first) {
                ("|O", Some("vlen-utf8")) => (Form::Lengths, &filters[1..]),
                _ => match (dtype.get(..2), dtype.get(2..).and_then(|n| n.parse().ok())) {
                    (Some(order @ ("<U" | ">U")), Some(characters)) => {
                        (Form::Utf32 { characters, is_big_endian: order == ">U" }, filters)
                    }
                    _ => return Ok(None),
                },
            };
            let others = Value::Array(others.to_vec());
            let bytes = codecs::parse_v2(Some(&others), get("compressor"))?;
            (form, bytes, lengths(get("chunks"), "chunks")?, keys_v2(get("dimension_separator"))?)
        } else {
            let (name, configuration) = match get("data_type").map(codecs::named) {
                Some(Ok(named)) => named,
                _ => return Ok(None),
            };
            let mut list = get("codecs").and_then(Value::as_array).ok_or("codecs is not a list")?.iter();
            let (codec, how) = codecs::named(list.next().ok_or("codecs is empty")?)?;
            let form = match (name, codec) {
                ("string", "vlen-utf8") => Form::Lengths,
                ("fixed_length_utf32", "bytes") => {
                    let bytes = configuration.get("length_bytes").and_then(Value::as_u64).ok_or("length_bytes is no length")?;
                    let is_big_endian = how.get("endian").and_then(Value::as_str) == Some("big");
                    Form::Utf32 { characters: (bytes / 4) as usize, is_big_endian }
                }
                ("string" | "fixed_length_utf32", other) => {
                    return Err(format!("strings in the codec {other} are not supported"));
                }
                _ => return Ok(None),
            };
            (form, codecs::parse_bytes_codecs(list)?, chunk_grid(get("chunk_grid"))?, keys_v3(get("chunk_key_encoding"))?)
        };
        Self::new(&lengths(get("shape"), "shape")?, &chunks, form, bytes, keys).map(Some)
    }

    fn new(shape: &[u64], chunks: &[u64], form: Form, bytes: Vec<BytesCodec>, keys: Keys) -> Result<Self, String> {
        if chunks.len() != shape.len() || chunks.contains(&0) {
            return Err(format!("chunks of {chunks:?} do not divide an array of {shape:?}"));
        }
        let count = element_count(&shape.iter().zip(chunks).map(|(len, chunk)| len.div_ceil(*chunk)).collect::<Vec<_>>());
        if count.is_none_or(|count| count > MOST_CHUNKS) {
            return Err(format!("its strings of {shape:?} lie in more than {MOST_CHUNKS} chunks"));
        }
        let chain = Chain { layout: Layout { is_big_endian: false, order: None }, bytes };
        let (shape, chunk_shape) = (shape.to_vec(), chunks.to_vec());
        Ok(Self { shape, chunk_shape, keys, form, pipeline: Pipeline::up_to(chain, CHUNK_BYTES)? })
    }

    /// Calls `each` with the number and the text of every string along the one axis; those of chunks that are not there have
    /// none. An error comes with its key.
    pub fn each(&self, store: &ReadStore, prefix: &str, each: &mut dyn FnMut(u64, &str)) -> Result<(), (String, String)> {
        let (&[len], &[chunk]) = (&self.shape[..], &self.chunk_shape[..]) else { return Ok(()) };
        for at in 0..len.div_ceil(chunk) {
            let first = at * chunk;
            self.each_of(store, prefix, &[at], chunk.min(len - first), &mut |n, text| each(first + n, text))?;
        }
        Ok(())
    }

    /// True when the strings of a chunk can be held at once.
    pub fn has_small_chunks(&self) -> bool {
        element_count(&self.chunk_shape).is_some_and(|cells| cells <= MOST_CHUNK_CELLS)
    }

    /// The strings of one small chunk, in C order and with those beyond the array's end; empty ones where the chunk has none. An
    /// error comes with its key.
    pub fn chunk(&self, store: &ReadStore, prefix: &str, chunk: &[u64]) -> Result<Vec<String>, (String, String)> {
        let cells = self.chunk_shape.iter().product::<u64>();
        let mut strings = Vec::new();
        self.each_of(store, prefix, chunk, cells, &mut |_, text| strings.push(text.to_owned()))?;
        strings.resize(cells as usize, String::new());
        Ok(strings)
    }

    /// The first strings of a chunk, by their numbers in it.
    fn each_of(
        &self,
        store: &ReadStore,
        prefix: &str,
        chunk: &[u64],
        count: u64,
        each: &mut dyn FnMut(u64, &str),
    ) -> Result<(), (String, String)> {
        let key = self.keys.key(prefix, chunk);
        let at = |reason: String| (key.clone(), reason);
        let encoded = store.get(&key, self.pipeline.stored().bytes as u64).map_err(|e| at(e.to_string()))?;
        let Some(encoded) = encoded else { return Ok(()) };
        let decoded = self.pipeline.decode_some(&encoded).map_err(at)?;
        let mut take = |n: u64, text: &str| {
            n < count && {
                each(n, text);
                true
            }
        };
        let read = match self.form {
            Form::Lengths => with_lengths(&decoded, &mut take),
            Form::Utf32 { characters, is_big_endian } => utf32(&decoded, characters, is_big_endian, &mut take),
        };
        read.map_err(at)
    }
}

/// Strings as `vlen-utf8` has them: their number, then each with its length in front. The reason when one is too long for that.
pub fn encode(strings: &[String]) -> Result<Vec<u8>, String> {
    let len = |n: usize| u32::try_from(n).map(u32::to_le_bytes).map_err(|_| format!("{n} does not fit a length of strings"));
    let mut bytes = len(strings.len())?.to_vec();
    for text in strings {
        bytes.extend(len(text.len())?);
        bytes.extend(text.as_bytes());
    }
    Ok(bytes)
}

/// Makes strings of the metadata of an array of bytes that is encoded alike.
pub fn describe(document: &mut Value, format: u8) {
    if format == 2 {
        // An empty string would stand for a missing one there.
        document["fill_value"] = Value::Null;
        document["dtype"] = json!("|O");
        document["filters"] = json!([{"id": "vlen-utf8"}]);
        return;
    }
    document["fill_value"] = json!("");
    document["data_type"] = json!("string");
    if let Some(Value::Array(codecs)) = document.get_mut("codecs")
        && let Some(first) = codecs.first_mut()
    {
        *first = json!({"name": "vlen-utf8", "configuration": {}});
    }
}

/// Strings with their lengths in front, as long as `each` wants more.
fn with_lengths(bytes: &[u8], mut each: impl FnMut(u64, &str) -> bool) -> Result<(), String> {
    let torn = || "the chunk is torn: a string is longer than what is left".to_owned();
    let number = |rest: &mut &[u8]| -> Option<u32> {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        *rest = tail;
        Some(u32::from_le_bytes(*head))
    };
    let mut rest = bytes;
    let count = number(&mut rest).ok_or_else(torn)?;
    for n in 0..u64::from(count) {
        let len = number(&mut rest).ok_or_else(torn)? as usize;
        let (text, tail) = rest.split_at_checked(len).ok_or_else(torn)?;
        rest = tail;
        let text = std::str::from_utf8(text).map_err(|_| format!("string {n} of the chunk is no UTF-8"))?;
        if !each(n, text) {
            break;
        }
    }
    Ok(())
}

/// Strings of `characters` code points each, as long as `each` wants more.
fn utf32(bytes: &[u8], characters: usize, is_big_endian: bool, mut each: impl FnMut(u64, &str) -> bool) -> Result<(), String> {
    let size = characters.checked_mul(4).filter(|n| *n > 0).ok_or("its strings have no characters")?;
    let mut text = String::new();
    for (n, string) in (0..).zip(bytes.chunks_exact(size)) {
        text.clear();
        for code in string.as_chunks::<4>().0 {
            let code = if is_big_endian { u32::from_be_bytes(*code) } else { u32::from_le_bytes(*code) };
            if code == 0 {
                break;
            }
            text.push(char::from_u32(code).ok_or_else(|| format!("string {n} of the chunk holds {code:#x}, no character"))?);
        }
        if !each(n, &text) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn node(format: u8, document: Value) -> Node {
        Node { is_array: true, format, document, attributes: Map::new(), hash: [0; 32] }
    }

    #[test]
    fn strings_are_read_as_far_as_they_are_sound() {
        let mut found = Vec::new();
        let bytes = [&[3, 0, 0, 0, 1, 0, 0, 0][..], b"a", &[0; 4], &[2, 0, 0, 0], "é".as_bytes()].concat();
        with_lengths(&bytes, |n, text| {
            found.push((n, text.to_owned()));
            true
        })
        .unwrap();
        assert_eq!(found, [(0, "a".to_owned()), (1, String::new()), (2, "é".to_owned())]);
        for (bytes, word) in
            [(&bytes[..3], "torn"), (&bytes[..bytes.len() - 1], "torn"), (&[1, 0, 0, 0, 1, 0, 0, 0, 0xff], "UTF-8")]
        {
            assert!(with_lengths(bytes, |_, _| true).unwrap_err().contains(word));
        }
        let mut text = Vec::new();
        let wide: Vec<u8> = ['x', 'é', '\0', 'y', '\0', '\0'].into_iter().flat_map(|c| (c as u32).to_be_bytes()).collect();
        utf32(&wide, 3, true, |_, t| {
            text.push(t.to_owned());
            true
        })
        .unwrap();
        assert_eq!(text, ["xé", "y"]);
        assert!(utf32(&[0, 0, 0x11, 0], 1, false, |_, _| true).unwrap_err().contains("no character"));
    }

    #[test]
    fn what_is_encoded_is_read() {
        let strings = ["a", "", "é€"].map(str::to_owned);
        let mut found = Vec::new();
        with_lengths(&encode(&strings).unwrap(), |_, text| {
            found.push(text.to_owned());
            true
        })
        .unwrap();
        assert_eq!(found, strings);
    }

    #[test]
    fn metadata_of_strings() {
        let v2 = |dtype: &str, shape: Value, filters: Value| {
            node(2, json!({"shape": shape, "chunks": [2], "dtype": dtype, "filters": filters, "compressor": null}))
        };
        let vlen = json!([{"id": "vlen-utf8"}]);
        let read = |node: &Node| Strings::parse(node).map(|s| s.map(|s| (s.shape, s.form)));
        assert_eq!(read(&v2("|O", json!([5]), vlen.clone())), Ok(Some((vec![5], Form::Lengths))));
        assert_eq!(
            read(&v2(">U3", json!([5]), Value::Null)),
            Ok(Some((vec![5], Form::Utf32 { characters: 3, is_big_endian: true })))
        );
        assert_eq!(read(&v2("<f4", json!([5]), Value::Null)), Ok(None));
        assert_eq!(read(&v2("|O", json!([5]), json!([{"id": "pickle"}]))), Ok(None));
        assert!(read(&v2("|O", json!([5, 5]), vlen.clone())).unwrap_err().contains("do not divide"));
        assert!(read(&v2("|O", json!([1u64 << 60]), vlen)).unwrap_err().contains("more than"));
        let v3 = json!({"shape": [4], "data_type": "string", "codecs": ["sharding_indexed"],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": "default"});
        assert!(read(&node(3, v3)).unwrap_err().contains("sharding_indexed"));
    }
}
