//! Stores written byte by byte, decoded through random grids, against xarray (`tests/golden/cf.py`).

use std::fs;

use serde_json::{Map, Value, json};

use super::*;
use crate::array::DType;
use crate::array::grid::for_each_cell;
use crate::config::Missing;
use crate::operators::testing::Random;
use crate::reader::zarr;
use crate::zarr::store::tests::Scratch;

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn cells(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Writes an uncompressed array of two axes in these chunks; those of `absent` are left out.
fn store(folder: &std::path::Path, case: &Value, chunks: &[u64; 2], absent: &[[u64; 2]]) {
    let shape = cells(&case["shape"]);
    let dtype = DType::parse(case["dtype"].as_str().unwrap()).unwrap();
    let (size, values) = (dtype.size(), hex(&case["stored"]));
    let format = case["zarr_format"].as_u64().unwrap();
    fs::create_dir_all(folder).unwrap();
    if format == 2 {
        let document = json!({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype.typestr(), "order": "C",
            "fill_value": case["fill_value"], "filters": null, "compressor": null});
        fs::write(folder.join(".zarray"), document.to_string()).unwrap();
        fs::write(folder.join(".zattrs"), case["attributes"].to_string()).unwrap();
    } else {
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": dtype.name(),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}, "fill_value": case["fill_value"],
            "chunk_key_encoding": {"name": "v2"}, "attributes": case["attributes"],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
        fs::write(folder.join("zarr.json"), document.to_string()).unwrap();
    }
    let counts = [0, 1].map(|a| 0..shape[a].div_ceil(chunks[a]));
    for_each_cell::<()>(&counts, |at| {
        let mut bytes = vec![0; (chunks[0] * chunks[1]) as usize * size];
        for row in 0..chunks[0].min(shape[0] - at[0] * chunks[0]) {
            let len = chunks[1].min(shape[1] - at[1] * chunks[1]) as usize * size;
            let from = ((at[0] * chunks[0] + row) * shape[1] + at[1] * chunks[1]) as usize * size;
            let to = (row * chunks[1]) as usize * size;
            bytes[to..to + len].copy_from_slice(&values[from..from + len]);
        }
        if !absent.contains(&[at[0], at[1]]) {
            fs::write(folder.join(format!("{}.{}", at[0], at[1])), bytes).unwrap();
        }
        Ok(())
    })
    .unwrap();
}

/// The whole array, chunk by chunk; of each chunk a random part is read again.
fn read_all(source: &dyn Source, random: &mut Random) -> Vec<u8> {
    let meta = source.meta();
    let (size, shape) = (meta.array.dtype.size(), &meta.array.shape);
    let mut all = vec![0xcd; (shape[0] * shape[1]) as usize * size];
    let mut out = vec![0xab; meta.chunk_shape.iter().product::<u64>() as usize * size];
    for_each_cell::<()>(&meta.grid.all(), |at| {
        source.read_chunk(at, &mut out, &mut Vec::new()).unwrap();
        let ranges = meta.grid.region(at);
        for (i, row) in (ranges.start[0]..ranges.stop[0]).enumerate() {
            let len = ranges.len(1) * size;
            let to = (row as u64 * shape[1]) as usize * size + ranges.start[1] as usize * size;
            let from = i * meta.chunk_shape[1] as usize * size;
            all[to..to + len].copy_from_slice(&out[from..from + len]);
        }
        let count = (out.len() / size) as u64;
        let first = random.below(count) as usize;
        let part = first * size..(first + 1 + random.below(count - first as u64) as usize) * size;
        let mut again = vec![0xab; out.len()];
        source.read_part(at, part.clone(), &mut again, &mut Vec::new()).unwrap();
        assert_eq!(again[part.clone()], out[part]);
        Ok(())
    })
    .unwrap();
    all
}

fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    bytes.chunks_exact(dtype.size()).map(|b| Scalar::from_bytes(dtype, b).unwrap().to_f64()).collect()
}

#[test]
fn xarray_decodes_the_same_values() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cf.json");
    let golden: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut random = Random::new(3);
    let mut narrower = Vec::new();
    for case in &golden {
        let name = case["name"].as_str().unwrap();
        let scratch = Scratch::new();
        let folder = scratch.0.join("u.zarr");
        store(&folder, case, &[1 + random.below(10), 1 + random.below(8)], &[]);
        let source = decoded(zarr::open(&folder, None, Missing::Error).unwrap()).unwrap();
        let meta = source.meta();
        let (dtype, got) = (meta.array.dtype, read_all(source.as_ref(), &mut random));
        let want_dtype = DType::parse(case["decoded_dtype"].as_str().unwrap()).unwrap();
        let want = hex(&case["decoded"]);
        if dtype == want_dtype && !dtype.is_float() {
            assert_eq!(got, want, "{name}");
        }
        if dtype != want_dtype {
            // Only float32 where xarray takes the float64 of the JSON numbers.
            assert_eq!((dtype, want_dtype), (DType::F32, DType::F64), "{name}");
            narrower.push(name);
        }
        for (got, want) in numbers(&got, dtype).iter().zip(numbers(&want, want_dtype)) {
            let want = if dtype == want_dtype { want } else { f64::from(want as f32) };
            assert!(*got == want || got.is_nan() && want.is_nan(), "{name}: {got}, xarray has {want}");
        }
        let attributes = &meta.array.attributes;
        let left: Vec<&String> = attributes.keys().filter(|k| !["units"].contains(&k.as_str())).collect();
        assert!(left.is_empty(), "{name} kept {left:?}");
        assert_eq!(
            meta.identity.ends_with(" decode_cf"),
            dtype.name() != case["dtype"] || want != hex(&case["stored"]),
            "{name}"
        );
    }
    assert!(golden.len() > 50 && narrower.len() > 10, "{narrower:?}");
    assert!(narrower.contains(&"a large offset that it can"), "{narrower:?}");
    assert!(!narrower.contains(&"an offset that float32 cannot carry"), "{narrower:?}");
}

#[test]
fn chunks_that_are_absent_are_decoded_too() {
    let case = json!({"shape": [4, 6], "dtype": "int16", "zarr_format": 2, "fill_value": -5,
        "attributes": {"scale_factor": 0.5}, "stored": "0200".repeat(24)});
    let scratch = Scratch::new();
    store(&scratch.0, &case, &[2, 3], &[[0, 1]]);
    let source = decoded(zarr::open(&scratch.0, None, Missing::Fill).unwrap()).unwrap();
    assert!(source.meta().fill_value.to_f64().is_nan());
    let mut out = [0; 24];
    assert_eq!(source.read_chunk(&[0, 1], &mut out, &mut Vec::new()).unwrap(), ChunkRead::Missing);
    assert!(numbers(&out, DType::F32).iter().all(|v| v.is_nan()));
    source.read_chunk(&[1, 1], &mut out, &mut Vec::new()).unwrap();
    assert!(numbers(&out, DType::F32).iter().all(|v| *v == 1.0));
    // In format 3 the fill value is one like others.
    let mut plain = case.clone();
    (plain["zarr_format"], plain["fill_value"]) = (json!(3), json!(6));
    let scratch = Scratch::new();
    store(&scratch.0, &plain, &[2, 3], &[[0, 1]]);
    let source = decoded(zarr::open(&scratch.0, None, Missing::Fill).unwrap()).unwrap();
    assert_eq!((source.meta().fill_value.to_f64(), source.meta().array.missing), (3.0, None));
}

#[test]
fn attributes_that_cannot_be_followed() {
    let open = |dtype: &str, attributes: Value| {
        let size = DType::parse(dtype).unwrap().size();
        let case = json!({"shape": [2, 2], "dtype": dtype, "zarr_format": 3, "fill_value": if dtype == "complex64" { json!([0.0, 0.0]) } else { json!(0) },
            "attributes": attributes, "stored": "00".repeat(4 * size)});
        let scratch = Scratch::new();
        store(&scratch.0, &case, &[2, 2], &[]);
        let source = decoded(zarr::open(&scratch.0, None, Missing::Error).unwrap());
        source.map(|s| s.meta().clone()).map_err(|e| e.to_string())
    };
    for (dtype, attributes, words) in [
        ("int16", json!({"scale_factor": "0.5"}), "scale_factor is \"0.5\", not a number"),
        ("int16", json!({"add_offset": [1, 2]}), "add_offset is [1,2], not a number"),
        ("complex64", json!({"scale_factor": 2}), "scale_factor of complex64 numbers"),
        ("int16", json!({"missing_value": vec![1; 65]}), "missing_value lists 65 values"),
    ] {
        let error = open(dtype, attributes).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let meta = open("int16", json!({"missing_value": 70000, "_FillValue": 1})).unwrap();
    assert_eq!(meta.notes.len(), 1);
    assert!(meta.notes[0].ends_with("missing_value 70000 is no value of int16: it marks nothing"), "{:?}", meta.notes);
    let meta = open("complex64", json!({"units": "m"})).unwrap();
    assert_eq!((meta.array.dtype, meta.array.attributes), (DType::C64, Map::from_iter([("units".to_owned(), json!("m"))])));
}
