//! `sample` and `ops`.

use halostream::array::DType;
use halostream::operators::OPERATORS;

use crate::common::{Folder, read};
use crate::halostream;

#[test]
fn each_kind_with_every_option() {
    let folder = Folder::new("cli-sample");
    let kinds = [
        ("slc", "20,16,3", "10,8,3", "complex64", DType::C64),
        ("volume", "8,20,10", "4,10,10", "uint16", DType::U16),
        ("genotypes", "40,30", "16,16", "uint8", DType::U8),
        ("seismic", "8,20,30", "4,10,30", "float32", DType::F32),
        ("tiff", "4,20,30", "2,20,30", "uint8", DType::U8),
    ];
    for (name, shape, chunks, dtype, want) in kinds {
        let made = |out: &str, more: &[&str]| {
            let args = ["sample", name, out, "--shape", shape, "--chunks", chunks, "--dtype", dtype, "--no-sync"];
            halostream(&folder, &[&args[..], more].concat()).done().out
        };
        let said = made("a.zarr", &[]);
        assert!(said.starts_with("wrote FOLDER/a.zarr in "), "{said}");
        assert_eq!(made("b.zarr", &["--seed", "1", "--quiet"]), "");
        made("c.zarr", &["--codec", "gzip", "--memory", "4MiB"]);
        let a = read(&folder.path("a.zarr"), None);
        let text = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        assert_eq!((text(&a.shape).as_str(), a.dtype), (shape, want));
        assert!(a != read(&folder.path("b.zarr"), None) && a == read(&folder.path("c.zarr"), None), "{name}");
        let shown = halostream(&folder, &["inspect", "c.zarr"]).done().out;
        assert!(shown.contains(&format!("chunks      [{}]", chunks.replace(',', ", "))) && shown.contains("gzip"), "{shown}");
        for out in ["a.zarr", "b.zarr", "c.zarr"] {
            std::fs::remove_dir_all(folder.path(out)).expect("a store to remove");
        }
    }
}

/// Problems name the arguments, not the job made of them.
#[test]
fn wrong_options() {
    let folder = Folder::new("cli-wrong-sample");
    let fails = |args: &[&str], want: &str| {
        halostream(&folder, &[&["sample"], args].concat()).fails(2, &format!("halostream: sample: {want}\n"));
    };
    fails(
        &["slk", "a.zarr"],
        "NAME: there is no sample \"slk\" (slc, volume, genotypes, seismic, tiff); did you mean \"sample:slc\"?",
    );
    fails(&["slc", "a.h5"], "OUT: \"a.h5\" does not say what to write; outputs end in .zarr or .npy");
    fails(&["slc", "a.zarr", "--chunks", "0,1,1"], "--chunks: entry 0 is 0; lengths are at least 1");
    fails(
        &["slc", "a.zarr", "--codec", "lzma"],
        "--codec: \"lzma\" is none of \"none\", \"zstd\", \"blosc-lz4\", \"blosc-zstd\", \"gzip\"",
    );
    fails(
        &["slc", "a.zarr", "--memory", "much"],
        "--memory: \"much\" does not begin with a number; write a size such as \"2GiB\", \"512MiB\" or \"16GB\"",
    );
    let ended = halostream(&folder, &["sample", "volume", "a.zarr", "--dtype", "complex64"]);
    assert!(ended.code == 2 && ended.err.contains("complex64") && ended.err.contains("float32"), "{}", ended.err);
    let ended = halostream(&folder, &["sample", "slc", "a.zarr", "--shape", "10,10"]);
    assert!(ended.code == 2 && ended.err.contains("shape has 2 entries, slc has 3 axes"), "{}", ended.err);
    assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 0);
}

#[test]
fn ops_tells_all() {
    let folder = Folder::new("cli-ops");
    let list = halostream(&folder, &["ops"]).done().out;
    assert_eq!(list.lines().count(), OPERATORS.len());
    for op in OPERATORS {
        let line = list.lines().find(|l| l.split_whitespace().next() == Some(op.name)).expect("each operator");
        assert!(line.contains(op.kind) && line.ends_with(op.summary), "{line}");
        let shown = halostream(&folder, &["ops", op.name]).done().out;
        for text in [op.summary, op.kind, op.inputs, op.outputs, op.halo, op.boundary, op.devices] {
            assert!(shown.contains(text), "{text:?} in {shown}");
        }
        for p in op.params {
            let default = if p.default.is_empty() { "required".to_owned() } else { format!("default {}", p.default) };
            assert!(shown.contains(&format!("  {} ({}, {default})\n      {}", p.name, p.kind, p.doc)), "{} in {shown}", p.name);
        }
    }
    halostream(&folder, &["ops", "nope"]).fails(2, "halostream: there is no operator \"nope\" (`halostream ops` lists them)\n");
    halostream(&folder, &["ops", "kstest"])
        .fails(2, "halostream: there is no operator \"kstest\"; did you mean \"ks_test\"? (`halostream ops` lists them)\n");
}
