//! Zarr written here opens in zarr-python, and the other way round. Needs a Python with zarr (`HALOSTREAM_PYTHON`, else
//! `python3`); skips with a line when there is none. One process for all stores, so that imports are paid once.

use std::path::{Path, PathBuf};
use std::process::Command;

use halostream::array::DType;
use halostream::array::grid::for_each_index;
use halostream::config::{CodecName, CodecSpec, Missing};
use halostream::reader::{Source, zarr::open};
use halostream::writer::{OutputLayout, Sink, zarr::create};
use serde_json::{Value, json};

fn cells(counts: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let lists: Vec<Vec<u64>> = counts.map(|n| (0..n).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let mut all = Vec::new();
    let _ = for_each_index::<()>(&lists, |i| {
        all.push(i.to_vec());
        Ok(())
    });
    all
}

/// For every element of a cell, in C order: its place in the array, `None` outside.
fn elements(shape: &[u64], cell: &[u64], at: &[u64]) -> Vec<Option<usize>> {
    let place = |i: Vec<u64>| {
        let x: Vec<u64> = (0..i.len()).map(|a| at[a] * cell[a] + i[a]).collect();
        let is_inside = x.iter().zip(shape).all(|(x, n)| x < n);
        is_inside.then(|| x.iter().zip(shape).fold(0, |sum, (x, n)| sum * n + x) as usize)
    };
    cells(cell.iter().copied()).into_iter().map(place).collect()
}

fn read_all(path: &Path) -> Result<(DType, Vec<u64>, Vec<u8>), String> {
    let source = open(path, None, Missing::Fill).map_err(|e| e.to_string())?;
    let meta = source.meta();
    let (size, shape) = (meta.array.dtype.size(), &meta.array.shape);
    let mut values = vec![0; shape.iter().product::<u64>() as usize * size];
    let mut out = vec![0; meta.chunk_shape.iter().product::<u64>() as usize * size];
    let mut transient = Vec::new();
    for at in cells(meta.grid.0.iter().map(|a| a.cells())) {
        source.read_chunk(&at, &mut out, &mut transient).map_err(|e| e.to_string())?;
        for (from, to) in elements(shape, &meta.chunk_shape, &at).into_iter().enumerate() {
            if let Some(to) = to {
                values[to * size..(to + 1) * size].copy_from_slice(&out[from * size..(from + 1) * size]);
            }
        }
    }
    Ok((meta.array.dtype, shape.clone(), values))
}

/// Writes one store with its values beside it; the entry for the list.
fn write_one(folder: &Path, number: usize, array: &str, layout: OutputLayout) -> Value {
    let path = format!("ours{number}.zarr");
    let size = layout.dtype.size();
    let count = layout.shape.iter().product::<u64>() as usize * size;
    let limit = if layout.dtype == DType::Bool { 2 } else { 251 };
    let values: Vec<u8> = (0..count).map(|i| if i < count / 3 { 0 } else { (i * i / 5 % limit) as u8 }).collect();
    std::fs::write(folder.join(format!("{path}.bin")), &values).unwrap();
    let entry =
        json!({"path": path, "array": array, "dtype": layout.dtype.name(), "shape": layout.shape, "chunks": layout.chunks});
    let sink = create(&folder.join(&path), array, layout.clone(), false).unwrap();
    for at in cells(layout.object_grid().0.iter().map(|a| a.cells())) {
        let cut = |e: Option<usize>| e.map_or(vec![0; size], |e| values[e * size..(e + 1) * size].to_vec());
        let object: Vec<u8> = elements(&layout.shape, layout.object_shape(), &at).into_iter().flat_map(cut).collect();
        sink.put(&at, &object).unwrap();
    }
    sink.finish().unwrap();
    entry
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn zarr_python_and_halostream_read_each_other() {
    let python = std::env::var("HALOSTREAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !Command::new(&python).args(["-c", "import zarr"]).output().is_ok_and(|o| o.status.success()) {
        println!("skipped: {python} cannot import zarr (HALOSTREAM_PYTHON names another)");
        return;
    }
    let folder = Folder(std::env::temp_dir().join(format!("halostream-interop-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let mut ours = Vec::new();
    for dtype in DType::ALL {
        for name in [CodecName::None, CodecName::Zstd, CodecName::BloscLz4, CodecName::BloscZstd, CodecName::Gzip] {
            for (zarr_format, shards) in [(2, None), (3, None), (3, Some(vec![6, 8]))] {
                let n = ours.len();
                let layout = OutputLayout {
                    shape: vec![13, 9],
                    dtype,
                    chunks: vec![3, 4],
                    shards,
                    codec: CodecSpec { name, level: None },
                    zarr_format,
                    dimension_names: vec![Some("y".into()), (n % 2 == 0).then(|| "x".into())],
                    attributes: json!({"units": "m"}).as_object().unwrap().clone(),
                    points: None,
                    is_remote: false,
                };
                ours.push(write_one(&folder.0, n, if n % 4 == 0 { "a/b" } else { "" }, layout));
            }
        }
    }
    std::fs::write(folder.0.join("ours.json"), Value::from(ours).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop.py");
    let ran = Command::new(&python).arg(script).arg(&folder.0).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{err}");
    print!("{out}");
    let theirs: Vec<Value> = serde_json::from_slice(&std::fs::read(folder.0.join("theirs.json")).unwrap()).unwrap();
    let mut failed = Vec::new();
    for case in &theirs {
        let path = folder.0.join(case["path"].as_str().unwrap());
        let expected = std::fs::read(path.with_extension("zarr.bin")).unwrap();
        let verdict = match read_all(&path) {
            Err(e) => e,
            Ok((dtype, ..)) if case["dtype"] != dtype.name() => format!("dtype {dtype}"),
            Ok((_, shape, _)) if case["shape"] != json!(shape) => format!("shape {shape:?}"),
            Ok((.., values)) if values != expected => "values differ".to_owned(),
            Ok(_) => continue,
        };
        failed.push(format!("{}: {verdict}", case["how"]));
    }
    assert!(theirs.len() > 300 && failed.is_empty(), "{} of {} failed:\n{}", failed.len(), theirs.len(), failed.join("\n"));
}
