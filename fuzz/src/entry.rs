//! What the fuzzers call: one function per target, from bytes to a panic or to nothing. Shared by the fuzz targets and by
//! the test that replays the corpus, so it uses nothing but halostream, crc32c and the standard library.
//!
//! What must hold beside "no panic": a chunk is read twice into buffers that held different bytes, and both reads agree
//! (nothing of the buffer's past is taken for data); damage is `SourceError::Corrupt`; a reader's transient bytes stay
//! below what its metadata made it announce; what was packed unpacks to the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use halostream::array::{Account, Block, Buffer, DType, Scalar};
use halostream::codec::{self, Form, Packed, Park};
use halostream::config::{self, InputPlace, JobSpec, Missing};
use halostream::operators::external;
use halostream::plan::Plan;
use halostream::plan::machine::Machine;
use halostream::reader::zarr::{self, ZarrSource};
use halostream::reader::{ChunkRead, Source, SourceError};

/// Chunks larger than this, or that need more to be read, are opened and not read.
const MOST_BYTES: u64 = 1 << 20;
/// Largest input array of a job that is planned.
const MOST_PLANNED: u64 = 1 << 14;

/// A folder in memory where the machine has one, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("halostream-fuzz-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.0.join(key);
        fs::create_dir_all(path.parent().expect("a key lies in the folder")).expect("a temporary folder");
        fs::write(path, bytes).expect("a temporary file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Documents of a store: the first byte names the files, which follow each other with NUL between them.
///
/// | first byte | files |
/// | --- | --- |
/// | `2` | `.zarray`, `.zattrs`, chunk 0 |
/// | `m` | `.zmetadata`, `.zgroup`, `a/.zarray` |
/// | `g` | `zarr.json`, `a/zarr.json`, `a/b/.zarray` |
/// | else | `zarr.json`, chunk 0 |
pub fn metadata(data: &[u8]) {
    let Some((&form, rest)) = data.split_first() else { return };
    let (files, has_chunk): (&[&str], bool) = match form {
        b'2' => (&[".zarray", ".zattrs"], true),
        b'm' => (&[".zmetadata", ".zgroup", "a/.zarray"], false),
        b'g' => (&["zarr.json", "a/zarr.json", "a/b/.zarray"], false),
        _ => (&["zarr.json"], true),
    };
    let folder = Folder::new();
    let mut parts = rest.splitn(files.len() + usize::from(has_chunk), |b| *b == 0);
    for file in files {
        if let Some(bytes) = parts.next() {
            folder.put(file, bytes);
        }
    }
    let chunk = parts.next().filter(|_| has_chunk);
    let _ = halostream::zarr::describe::describe(&folder.0, None);
    for array in [None, Some("a")] {
        match zarr::open(&folder.0, array, Missing::Fill) {
            Ok(source) => {
                let meta = source.meta();
                assert_eq!(meta.array.shape.len(), meta.chunk_shape.len());
                read_first_chunk(&folder, &source, chunk);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Stores `bytes` (if any) as the first stored object and reads the first chunk.
fn read_first_chunk(folder: &Folder, source: &ZarrSource, bytes: Option<&[u8]>) {
    let (meta, header) = (source.meta(), source.header());
    let most = header.pipeline.raw_bytes() as u64;
    if most > MOST_BYTES || meta.transient_bytes > 8 * MOST_BYTES {
        return;
    }
    let first = vec![0; meta.array.rank()];
    if let Some(bytes) = bytes {
        folder.put(&header.keys.key("", &first), bytes);
    }
    read_twice(source, &first);
}

/// Reads a chunk into two buffers that held different bytes: the same result, or the same error. True when it is data.
fn read_twice(source: &ZarrSource, chunk: &[u64]) -> bool {
    let meta = source.meta();
    let len = source.header().pipeline.raw_bytes();
    let read = |past: u8| {
        let (mut out, mut transient) = (vec![past; len], Vec::new());
        let result = source.read_chunk(chunk, &mut out, &mut transient);
        assert!(transient.len() as u64 <= meta.transient_bytes, "{} > {}", transient.len(), meta.transient_bytes);
        // Bytes of a shard's index count for the first chunk that needs it.
        result.map(|read| (read == ChunkRead::Missing, out)).map_err(|error| match error {
            SourceError::Corrupt { reason, .. } => reason,
            other => panic!("not told as damage: {other}"),
        })
    };
    let (one, other) = (read(0x55), read(0xaa));
    assert!(one == other, "two reads differ: {:?}, {:?}", one.as_ref().map(|r| r.0), other.as_ref().map(|r| r.0));
    if let (Ok((_, values)), DType::Bool) = (&one, meta.array.dtype) {
        assert!(values.iter().all(|v| *v <= 1), "a bool that is none");
    }
    // Who looks at the beginning only is told less of damage behind it, and never something else.
    let (mut part, half) = (vec![0; len], (len / 2).next_multiple_of(meta.array.dtype.size()).min(len));
    let read = source.read_part(chunk, 0..half, &mut part, &mut Vec::new());
    if let Ok((_, values)) = &one {
        assert!(read.is_ok() && part[..half] == values[..half], "a part differs: {read:?}");
    }
    one.is_ok()
}

const LITTLE: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;
const BIG: &str = r#"{"name":"bytes","configuration":{"endian":"big"}}"#;

/// Forms of arrays: metadata, and the key of the first object. All have chunks of 4 x 6 or shards of 2 x 2 such chunks.
fn forms() -> &'static [(String, &'static str)] {
    static FORMS: OnceLock<Vec<(String, &'static str)>> = OnceLock::new();
    FORMS.get_or_init(|| {
        let v3 = |dtype: &str, chunk: &str, codecs: &str| {
            let fill = match dtype {
                "bool" => "false",
                "complex128" => "[0,0]",
                _ => "0",
            };
            let text = format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[8,12],"data_type":"{dtype}","fill_value":{fill},
                "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{chunk}}}}},
                "chunk_key_encoding":{{"name":"default"}},"codecs":[{codecs}]}}"#
            );
            (text, "zarr.json")
        };
        let shards = |inner: &str, location: &str, index: &str| {
            let codec = format!(
                r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[4,6],"index_location":"{location}",
                "codecs":[{inner}],"index_codecs":[{index}]}}}}"#
            );
            v3("int32", "[8,12]", &codec)
        };
        let v2 = |dtype: &str, order: &str, filters: &str, compressor: &str| {
            let text = format!(
                r#"{{"zarr_format":2,"shape":[8,12],"chunks":[4,6],"dtype":"{dtype}","order":"{order}","fill_value":null,
                "filters":{filters},"compressor":{compressor}}}"#
            );
            (text, ".zarray")
        };
        let plain = |rest: &str| v3("float32", "[4,6]", &format!("{LITTLE}{rest}"));
        let transpose = r#"{"name":"transpose","configuration":{"order":[1,0]}}"#;
        let shuffle = |n: u32| format!(r#"[{{"id":"shuffle","elementsize":{n}}}]"#);
        vec![
            plain(""),
            plain(r#","zstd""#),
            plain(r#","gzip""#),
            plain(r#",{"name":"numcodecs.zlib"}"#),
            plain(
                r#",{"name":"blosc","configuration":{"cname":"lz4","typesize":4,"shuffle":"shuffle","clevel":5,"blocksize":0}}"#,
            ),
            plain(r#","crc32c""#),
            plain(r#","zstd","crc32c""#),
            plain(r#","blosc","gzip","zstd""#),
            v3("bool", "[4,6]", &format!("{LITTLE},\"zstd\"")),
            v3("uint8", "[4,6]", r#"{"name":"bytes"},"blosc""#),
            v3("complex128", "[4,6]", &format!("{transpose},{BIG},\"blosc\",\"crc32c\"")),
            v3("int16", "[4,6]", &format!("{transpose},{LITTLE}")),
            v3("float64", "[4,6]", &format!("{transpose},{BIG},\"crc32c\",\"zstd\"")),
            shards(LITTLE, "end", LITTLE),
            shards(LITTLE, "start", LITTLE),
            shards(&format!("{LITTLE},\"zstd\""), "end", &format!("{LITTLE},\"crc32c\"")),
            shards(&format!("{transpose},{BIG},\"blosc\",\"crc32c\""), "start", &format!("{BIG},\"crc32c\"")),
            v2("<i4", "C", "null", r#"{"id":"lz4"}"#),
            v2(">f4", "F", &shuffle(4), r#"{"id":"zlib","level":1}"#),
            v2("<f8", "F", "null", r#"{"id":"blosc","cname":"zstd","clevel":1,"shuffle":2,"blocksize":64}"#),
            v2("<u2", "C", &shuffle(6), r#"{"id":"gzip","level":1}"#),
            v2(">i8", "F", "null", "null"),
            v2("|b1", "C", "null", r#"{"id":"zstd","level":1}"#),
            v2("<c8", "C", &shuffle(3), r#"{"id":"lz4"}"#),
        ]
    })
}

/// Bytes of a chunk or shard: the first byte chooses the form, and whether the harness puts the right checksum behind the
/// bytes (or the shard's index), which a fuzzer does not guess. Returns how many chunks were read as data.
pub fn chunk(data: &[u8]) -> usize {
    let Some((&choice, bytes)) = data.split_first() else { return 0 };
    let forms = forms();
    let (document, name) = &forms[(choice & 0x7f) as usize % forms.len()];
    let mut bytes = bytes.to_vec();
    let folder = Folder::new();
    folder.put(name, document.as_bytes());
    let source = zarr::open(&folder.0, None, Missing::Error).expect("a form that can be read");
    let header = source.header();
    if choice & 0x80 != 0 {
        match &header.shards {
            Some(shards) if shards.index.has_checksum => {
                let index = 16 * shards.count as usize;
                let at = if shards.index.is_at_end { bytes.len().saturating_sub(index) } else { 0 };
                let stop = (at + index).min(bytes.len());
                let sum = crc32c::crc32c(&bytes[at..stop]).to_le_bytes();
                bytes.splice(stop..stop, sum);
            }
            _ => bytes.extend(crc32c::crc32c(&bytes).to_le_bytes()),
        }
    }
    let first = [0, 0];
    folder.put(&header.keys.key("", &first), &bytes);
    let others: &[[u64; 2]] = if header.shards.is_some() { &[[0, 1], [1, 0], [1, 1]] } else { &[] };
    [first].iter().chain(others).filter(|chunk| read_twice(&source, *chunk)).count()
}

/// A job file; behind a NUL, lines `key=value` as `--set` gives them.
pub fn job(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, sets) = text.split_once('\0').unwrap_or((text, ""));
    let sets: Vec<(String, String)> =
        sets.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let env = |name: &str| name.strip_prefix('H').map(str::to_owned);
    let job = match config::job::parse(text, Path::new("."), &sets, &env) {
        Ok(job) => job,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            return problems.iter().for_each(|p| assert!(!p.to_string().is_empty()));
        }
    };
    let again = config::to_toml(&job.resolved);
    assert!(again.is_ok(), "a job that was read cannot be written: {again:?}");
    if !job.inputs.iter().all(is_small) || job.inputs.len() > 4 || job.steps.len() > 8 {
        return;
    }
    plan(&job);
}

/// A sample that is cut into few chunks.
fn is_small(input: &config::InputSpec) -> bool {
    let InputPlace::Sample(sample) = &input.from else { return false };
    let count = |shape: &Option<Vec<u64>>| shape.as_ref().and_then(|s| s.iter().try_fold(1u64, |n, len| n.checked_mul(*len)));
    count(&sample.shape).is_some_and(|n| n <= MOST_PLANNED)
}

fn plan(job: &JobSpec) {
    let machine = Machine { cores: 2, memory_available: 1 << 30 };
    match Plan::new(job, &machine) {
        Ok(plan) => {
            let smallest = halostream::plan::smallest_memory(job, &machine).unwrap_or(0);
            assert!(plan.predicted_peak_bytes() <= plan.memory_limit, "the plan is larger than its limit");
            let _ = plan.to_json(smallest).to_string();
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "refused without a reason");
            errors.iter().for_each(|e| assert!(!e.to_string().is_empty()));
        }
    }
}

/// Everything a child process says on its stdout: the greeting, the answer to a block, and whatever follows.
pub fn protocol(data: &[u8]) {
    let expected = [("dist", DType::F32, vec![2, 3]), ("mask", DType::Bool, vec![4])];
    let read = |past: u8| external::replay(data, 7, &expected, past);
    let (one, other) = (read(0x55), read(0xaa));
    assert_eq!(one, other, "two talks differ");
    if let Ok(outputs) = one {
        assert_eq!(outputs.iter().map(Vec::len).collect::<Vec<_>>(), [24, 4]);
    }
}

/// A packed chunk with damaged bytes. Four bytes of header: form, dtype, rows and row length (also the bit width).
pub fn park(data: &[u8]) {
    let Some((&[form, dtype, rows, row_len], bytes)) = data.split_first_chunk::<4>() else { return };
    let dtype = DType::ALL[dtype as usize % DType::ALL.len()];
    if form % 5 == 4 {
        return round_trip(dtype, row_len, bytes);
    }
    let shape = vec![rows as usize % 33, row_len as usize];
    let packed = |bytes: &[u8]| match form % 5 {
        0 => Form::Lz4(Buffer::from_slice(bytes)),
        1 => Form::Blosc(Buffer::from_slice(bytes)),
        2 => Form::Bits { width: form / 5, bytes: Buffer::from_slice(bytes) },
        _ => Form::Constant(bytes.get(..dtype.size()).and_then(|b| Scalar::from_bytes(dtype, b)).unwrap_or(Scalar::zero(dtype))),
    };
    let packed = Packed { dtype, shape, form: packed(bytes) };
    let unpack = |past: u8| {
        let mut out = vec![past; packed.byte_len()];
        packed.unpack_into(&mut out).map(|()| out).map_err(|e| e.to_string())
    };
    let (one, other) = (unpack(0x55), unpack(0xaa));
    assert!(one == other, "two unpacks differ");
    let mut short = vec![0; packed.byte_len() + 1];
    assert!(packed.unpack_into(&mut short).is_err(), "unpacked into the wrong size");
}

/// What packs must unpack to the same bytes.
fn round_trip(dtype: DType, row_len: u8, bytes: &[u8]) {
    let row = dtype.size() * (row_len as usize).max(1);
    let len = bytes.len() / row * row;
    let mut bytes = bytes[..len].to_vec();
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b &= 1);
    }
    let shape = vec![len / row, (row_len as usize).max(1)];
    let block = Block::new(Buffer::from_slice(&bytes), dtype, shape);
    let (account, mut scratch) = (Account::unbounded("fuzz"), Vec::new());
    for park in [Park::Auto, Park::Lz4, Park::Blosc, Park::Bitpack] {
        if let Some(packed) = codec::pack(&block, park, &account, &mut scratch) {
            let mut out = vec![0xaa; bytes.len()];
            packed.unpack_into(&mut out).expect("what was packed unpacks");
            assert!(out == bytes, "{park:?} changed the values");
        }
    }
}
