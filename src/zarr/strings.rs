//! Arrays of strings with one axis: the names of what lies along an axis. Nothing else of them is read.
//!
//! Forms: `vlen-utf8` (numcodecs; v3's data type `string`), and characters of four bytes each (numpy's `<U8`; v3's
//! `fixed_length_utf32`). Chunks are read one at a time, none may decode to more than [`CHUNK_BYTES`].

use serde_json::Value;

use super::codecs::{self, BytesCodec, Chain, Layout, lengths};
use super::decode::Pipeline;
use super::hierarchy::Node;
use super::metadata::{Keys, chunk_grid, keys_v2, keys_v3};
use super::read::ReadStore;

/// Of a chunk of names, decoded.
const CHUNK_BYTES: usize = 32 << 20;
/// A list of names in more chunks is no list that somebody wrote.
const MOST_CHUNKS: u64 = 1 << 18;

/// How the strings of a chunk follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Their number, then each with its length in front, in four bytes.
    Lengths,
    /// So many code points each, filled up with zeros.
    Utf32 { characters: usize, is_big_endian: bool },
}

/// An array of strings as its metadata says.
#[derive(Debug)]
pub struct Strings {
    pub len: u64,
    chunk: u64,
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
        let (&[len], &[chunk]) = (shape, chunks) else {
            return Err(format!("names along an axis have one axis, not the shape {shape:?} in chunks {chunks:?}"));
        };
        if chunk == 0 {
            return Err("chunks[0] is 0".to_owned());
        }
        if len.div_ceil(chunk) > MOST_CHUNKS {
            return Err(format!("its {len} names lie in more than {MOST_CHUNKS} chunks"));
        }
        let chain = Chain { layout: Layout { is_big_endian: false, order: None }, bytes };
        Ok(Self { len, chunk, keys, form, pipeline: Pipeline::up_to(chain, CHUNK_BYTES)? })
    }

    /// Calls `each` with the number and the text of every string; those of chunks that are not there have none. An error
    /// comes with its key.
    pub fn each(&self, store: &ReadStore, prefix: &str, each: &mut dyn FnMut(u64, &str)) -> Result<(), (String, String)> {
        for chunk in 0..self.len.div_ceil(self.chunk) {
            let key = self.keys.key(prefix, &[chunk]);
            let at = |reason: String| (key.clone(), reason);
            let encoded = store.get(&key, self.pipeline.stored().bytes as u64).map_err(|e| at(e.to_string()))?;
            let Some(encoded) = encoded else { continue };
            let decoded = self.pipeline.decode_some(&encoded).map_err(at)?;
            let first = chunk * self.chunk;
            let count = self.chunk.min(self.len - first);
            let read = match self.form {
                Form::Lengths => with_lengths(&decoded, |n, text| {
                    n < count && {
                        each(first + n, text);
                        true
                    }
                }),
                Form::Utf32 { characters, is_big_endian } => utf32(&decoded, characters, is_big_endian, |n, text| {
                    n < count && {
                        each(first + n, text);
                        true
                    }
                }),
            };
            read.map_err(at)?;
        }
        Ok(())
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
    use serde_json::{Map, json};

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
    fn metadata_of_strings() {
        let v2 = |dtype: &str, shape: Value, filters: Value| {
            node(2, json!({"shape": shape, "chunks": [2], "dtype": dtype, "filters": filters, "compressor": null}))
        };
        let vlen = json!([{"id": "vlen-utf8"}]);
        let read = |node: &Node| Strings::parse(node).map(|s| s.map(|s| (s.len, s.form)));
        assert_eq!(read(&v2("|O", json!([5]), vlen.clone())), Ok(Some((5, Form::Lengths))));
        assert_eq!(read(&v2(">U3", json!([5]), Value::Null)), Ok(Some((5, Form::Utf32 { characters: 3, is_big_endian: true }))));
        assert_eq!(read(&v2("<f4", json!([5]), Value::Null)), Ok(None));
        assert_eq!(read(&v2("|O", json!([5]), json!([{"id": "pickle"}]))), Ok(None));
        assert!(read(&v2("|O", json!([5, 5]), vlen.clone())).unwrap_err().contains("one axis"));
        assert!(read(&v2("|O", json!([1u64 << 60]), vlen)).unwrap_err().contains("more than"));
        let v3 = json!({"shape": [4], "data_type": "string", "codecs": ["sharding_indexed"],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": "default"});
        assert!(read(&node(3, v3)).unwrap_err().contains("sharding_indexed"));
    }
}
