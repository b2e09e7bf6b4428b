//! Hostile inputs are refused cheaply (I10): within 200 MB, with exit 1 or 2, and without an end that never comes. (What
//! a refusal takes is a matter of the machine: up to about a second where as many chunks are absent as are taken.)

use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command;
use crate::common::{Array, Folder, write};
use halostream::config::CodecName;

/// Memory that the process may map for data; going beyond ends it, which no refusal survives. (Its peak as the kernel
/// reports it would count the test that started it, too.)
const MOST_BYTES: libc::rlim_t = 200 << 20;

/// Processor time after which the kernel ends it: far beyond what a refusal takes, on any machine.
const MOST_SECONDS: libc::rlim_t = 60;

/// Its exit code, or the signal that ended it, below zero; and what it said.
fn bounded(folder: &Folder, args: &[&str]) -> (i32, String) {
    let mut command = command(&folder.0, args);
    // SAFETY: setrlimit is all that runs between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for (what, most) in [(libc::RLIMIT_DATA, MOST_BYTES), (libc::RLIMIT_CPU, MOST_SECONDS)] {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
                if libc::setrlimit(what, &limit) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        })
    };
    let done = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().expect("the binary starts");
    let code = done.status.code().or(done.status.signal().map(|s| -s)).expect("an end");
    (code, String::from_utf8_lossy(&done.stderr).into_owned())
}

const STEPS: [&str; 3] = ["", "[[step]]\nop = \"sum\"\n", "[[step]]\nop = \"cast\"\ndtype = \"float64\"\n"];

#[track_caller]
fn refused(folder: &Folder, input: &str, words: &[&str]) {
    for steps in STEPS {
        let text = format!("[input]\n{input}\n{steps}[output]\npath = \"out.zarr\"\n[engine]\nmemory = \"64MiB\"\n");
        std::fs::write(folder.path("job.toml"), text).expect("a job file");
        let (code, err) = bounded(folder, &["run", "job.toml", "--quiet"]);
        assert!(code == 1 || code == 2, "exit {code}: {err}");
        assert!(words.iter().all(|w| err.contains(w)), "{input}\n{steps}: {err}");
        assert!(!folder.path("out.zarr").exists());
    }
}

fn document(changes: &[(&str, Value)]) -> Value {
    let mut document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
    });
    for (key, value) in changes {
        document[*key] = value.clone();
    }
    document
}

fn array(folder: &Folder, changes: &[(&str, Value)]) {
    std::fs::create_dir_all(folder.path("x.zarr/c")).expect("a folder");
    std::fs::write(folder.path("x.zarr/zarr.json"), document(changes).to_string()).expect("metadata");
}

fn grid(chunks: Value) -> Value {
    json!({"name": "regular", "configuration": {"chunk_shape": chunks}})
}

const X: &str = "path = \"x.zarr\"";

#[test]
fn sizes_that_nobody_has() {
    let folder = Folder::new("hostile-sizes");
    let huge = 1_000_000_000_000_000_000u64;
    let cases = [
        vec![("shape", json!([huge])), ("chunk_grid", grid(json!([huge])))],
        vec![("shape", json!([u64::MAX, u64::MAX])), ("chunk_grid", grid(json!([4, 4])))],
        vec![("shape", json!([8])), ("chunk_grid", grid(json!([huge])))],
        vec![("shape", json!([8])), ("chunk_grid", grid(json!([-4])))],
        vec![("shape", json!([8])), ("chunk_grid", grid(json!([0])))],
        vec![("shape", json!([-8]))],
        vec![("shape", json!([1e18]))],
        vec![("shape", json!(vec![2; 100_000])), ("chunk_grid", grid(json!(vec![1; 100_000])))],
    ];
    for changes in cases {
        array(&folder, &changes);
        refused(&folder, X, &["x.zarr"]);
    }
    // 10^18 elements in chunks of four, and in chunks that are of a fair size.
    for chunk in [4u64, 1 << 20] {
        array(&folder, &[("shape", json!([huge])), ("chunk_grid", grid(json!([chunk])))]);
        refused(&folder, &format!("{X}\nmissing = \"error\""), &[]);
    }
    // As many chunks along an axis as are taken, none of them there; the same on two axes, which are too many blocks.
    for (shape, chunk) in [(json!([1u64 << 34]), json!([1 << 16])), (json!([1u64 << 26, 1u64 << 26]), json!([256, 256]))] {
        array(&folder, &[("shape", shape), ("chunk_grid", grid(chunk))]);
        refused(&folder, &format!("{X}\nmissing = \"error\""), &[]);
    }
}

#[test]
fn metadata_that_makes_no_sense() {
    let folder = Folder::new("hostile-metadata");
    let index = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
    let shard = |chunk: u64| json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [chunk], "codecs": index, "index_codecs": index}}]);
    let cases = [
        vec![("fill_value", json!("NaN"))],
        vec![("fill_value", json!(1e300))],
        vec![("fill_value", json!({"a": [1]}))],
        vec![("data_type", json!("int1024"))],
        vec![("data_type", json!({"name": "struct"}))],
        vec![("codecs", json!([]))],
        vec![("codecs", shard(0))],
        vec![("codecs", shard(3))],
        vec![("shape", json!([1u64 << 50])), ("chunk_grid", grid(json!([1u64 << 50]))), ("codecs", shard(1))],
        vec![("node_type", json!("planet"))],
    ];
    for changes in cases {
        array(&folder, &changes);
        refused(&folder, X, &["x.zarr"]);
    }
    for text in ["", "{", "[]", "null", "\u{0}", &"[".repeat(1 << 20)] {
        std::fs::write(folder.path("x.zarr/zarr.json"), text).expect("metadata");
        refused(&folder, X, &["x.zarr"]);
    }
    // Metadata without an end.
    let file = std::fs::File::create(folder.path("x.zarr/zarr.json")).expect("metadata");
    file.set_len(8 << 40).expect("a sparse file");
    refused(&folder, X, &["x.zarr"]);
}

#[test]
fn chunks_that_grow() {
    let folder = Folder::new("hostile-bombs");
    let codec = |name: &str, configuration: Value| json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": name, "configuration": configuration}]);
    array(&folder, &[("codecs", codec("zstd", json!({"level": 1, "checksum": false})))]);
    // A gigabyte in some 30 kB: as one frame; then more frames than one, and a head that claims 2^63 bytes.
    let zeros = std::io::Read::take(std::io::repeat(0), 1 << 30);
    let bomb = zstd::stream::encode_all(zeros, 1).expect("compressed");
    let frame = zstd::bulk::compress(&[0u8; 16], 1).expect("compressed");
    for bytes in [bomb, frame.repeat(4), vec![0x28, 0xb5, 0x2f, 0xfd, 0xe4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        std::fs::write(folder.path("x.zarr/c/0"), bytes).expect("a chunk");
        refused(&folder, X, &["x.zarr/c/0"]);
    }
    // A file of 8 TB that takes no room, under a codec and without.
    for changes in [vec![], vec![("codecs", codec("gzip", json!({"level": 1})))]] {
        array(&folder, &changes);
        let file = std::fs::File::create(folder.path("x.zarr/c/0")).expect("a chunk");
        file.set_len(8 << 40).expect("a sparse file");
        refused(&folder, X, &["x.zarr/c/0"]);
    }
}

#[test]
fn ways_out_of_the_store() {
    let folder = Folder::new("hostile-paths");
    write(&folder.path("secret.zarr"), &Array::new::<i32>(&[8], &[7; 8]), &[4], None, CodecName::None);
    std::fs::create_dir_all(folder.path("g.zarr")).expect("a folder");
    std::fs::write(folder.path("g.zarr/zarr.json"), "{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": {}}")
        .expect("a group");
    for name in ["../secret.zarr", "a/../../secret.zarr", "/secret.zarr", ".", "..", "a\\\\b", "a//b"] {
        refused(&folder, &format!("path = \"g.zarr\"\narray = \"{name}\""), &[]);
    }
    symlink(folder.path("secret.zarr"), folder.path("g.zarr/link")).expect("a link");
    refused(&folder, "path = \"g.zarr\"\narray = \"link\"", &[]);

    array(&folder, &[]);
    symlink(folder.path("secret.zarr/c/0"), folder.path("x.zarr/c/0")).expect("a link");
    refused(&folder, X, &["a symlink leads out of the store"]);
    std::fs::remove_file(folder.path("x.zarr/c/0")).expect("a link");
    // Endless files, and one that never answers.
    symlink("/dev/zero", folder.path("x.zarr/c/0")).expect("a link");
    refused(&folder, X, &["x.zarr/c/0"]);
    std::fs::remove_file(folder.path("x.zarr/c/0")).expect("a link");
    let pipe = std::ffi::CString::new(folder.path("x.zarr/c/0").display().to_string()).expect("a path");
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    refused(&folder, X, &["x.zarr/c/0", "not a regular file"]);
    // Links in a circle.
    std::fs::remove_file(folder.path("x.zarr/c/0")).expect("a pipe");
    symlink("0", folder.path("x.zarr/c/0")).expect("a link");
    refused(&folder, X, &["x.zarr/c/0"]);
}
