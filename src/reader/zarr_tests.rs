//! Whole arrays through the sink and the source, and stores that others might have made.

use std::fs;

use serde_json::json;

use super::*;
use crate::array::grid::for_each_index;
use crate::config::{CodecName, CodecSpec};
use crate::writer::zarr::{create, create_group, is_zarr, read_attributes, write_attributes};
use crate::writer::{OutputLayout, Sink};
use crate::zarr::describe;
use crate::zarr::store::tests::Scratch;

/// Cells of a grid in C order.
fn cells(counts: &[u64]) -> Vec<Vec<u64>> {
    let lists: Vec<Vec<u64>> = counts.iter().map(|&n| (0..n).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let mut all = Vec::new();
    let _ = for_each_index::<()>(&lists, |i| {
        all.push(i.to_vec());
        Ok(())
    });
    all
}

/// The values of one cell, cut out of an array (0 outside it) or put into it, element by element.
fn cell_elements(shape: &[u64], cell: &[u64], at: &[u64]) -> Vec<Option<usize>> {
    let inside = cells(cell).into_iter().map(|i| {
        let x: Vec<u64> = (0..i.len()).map(|a| at[a] * cell[a] + i[a]).collect();
        let is_inside = x.iter().zip(shape).all(|(x, n)| x < n);
        is_inside.then(|| x.iter().zip(shape).fold(0, |sum, (x, n)| sum * n + x) as usize)
    });
    inside.collect()
}

fn cut(values: &[u8], size: usize, shape: &[u64], cell: &[u64], at: &[u64]) -> Vec<u8> {
    cell_elements(shape, cell, at)
        .into_iter()
        .flat_map(|e| e.map_or(vec![0; size], |e| values[e * size..(e + 1) * size].to_vec()))
        .collect()
}

/// Reads every chunk; returns the whole array and how many chunks were missing.
fn read_all(source: &ZarrSource) -> Result<(Vec<u8>, usize), SourceError> {
    let meta = source.meta();
    let size = meta.array.dtype.size();
    let shape = &meta.array.shape;
    let mut values = vec![0xcd; shape.iter().product::<u64>() as usize * size];
    let mut out = vec![0xab; meta.chunk_shape.iter().product::<u64>() as usize * size];
    let mut transient = Vec::new();
    let (mut missing, mut state) = (0, 0x9e37_79b9_7f4a_7c15);
    for at in cells(&meta.grid.0.iter().map(|a| a.cells()).collect::<Vec<_>>()) {
        missing += (source.read_chunk(&at, &mut out, &mut transient)? == ChunkRead::Missing) as usize;
        // A part of it has the same bytes.
        let count = (out.len() / size) as u64;
        let first = random(&mut state, count) as usize;
        let part = first * size..(first + 1 + random(&mut state, count - first as u64) as usize) * size;
        let mut beside = vec![0x5a; out.len()];
        source.read_part(&at, part.clone(), &mut beside, &mut transient)?;
        assert_eq!(beside[part.clone()], out[part.clone()]);
        let mut alone = vec![0x5a; part.len()];
        match source.read_stored(&at, &[part.start], &mut alone) {
            Ok(_) => assert!(source.reads_parts() && alone == out[part.clone()]),
            Err(error) => assert!(!source.reads_parts(), "{error}"),
        }
        if source.reads_parts() {
            // Runs of it, in any order, some of which follow each other.
            let run = size * (1 + random(&mut state, count.min(3)) as usize);
            let places = ((out.len() - run) / size + 1) as u64;
            let mut starts: Vec<usize> = (0..4).map(|_| random(&mut state, places) as usize * size).collect();
            starts.extend((0..3).map(|i| part.start + i * run).filter(|start| start + run <= out.len()));
            let mut runs = vec![0x5a; run * starts.len()];
            source.read_stored(&at, &starts, &mut runs)?;
            assert!(runs.chunks_exact(run).zip(&starts).all(|(got, &start)| *got == out[start..start + run]), "{starts:?}");
        }
        for (i, e) in cell_elements(shape, &meta.chunk_shape, &at).into_iter().enumerate() {
            if let Some(e) = e {
                values[e * size..(e + 1) * size].copy_from_slice(&out[i * size..(i + 1) * size]);
            }
        }
    }
    assert!(transient.len() as u64 <= meta.transient_bytes, "{} > {}", transient.len(), meta.transient_bytes);
    Ok((values, missing))
}

fn write_all(sink: &dyn Sink, values: &[u8]) {
    let layout = sink.layout();
    let objects = layout.object_grid().0.iter().map(|a| a.cells()).collect::<Vec<_>>();
    for at in cells(&objects) {
        let object = cut(values, layout.dtype.size(), &layout.shape, layout.object_shape(), &at);
        assert!(sink.put(&at, &object).unwrap() > 0);
    }
    sink.finish().unwrap();
}

fn layout(shape: &[u64], chunks: &[u64], dtype: DType) -> OutputLayout {
    OutputLayout {
        shape: shape.to_vec(),
        dtype,
        chunks: chunks.to_vec(),
        shards: None,
        codec: CodecSpec { name: CodecName::Zstd, level: None },
        zarr_format: 3,
        dimension_names: vec![None; shape.len()],
        attributes: Default::default(),
        points: None,
        is_remote: false,
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

const CODECS: [CodecName; 5] = [CodecName::None, CodecName::Zstd, CodecName::BloscLz4, CodecName::BloscZstd, CodecName::Gzip];

#[test]
fn what_is_written_is_read_again() {
    let mut state = 0x1234_5678_9abc_def1;
    for dtype in DType::ALL {
        for name in CODECS {
            for (format, is_sharded) in [(2, false), (3, false), (3, true)] {
                let scratch = Scratch::new();
                let rank = 1 + random(&mut state, 3) as usize;
                let shape: Vec<u64> = (0..rank).map(|_| 1 + random(&mut state, 9)).collect();
                let chunks: Vec<u64> = (0..rank).map(|_| 1 + random(&mut state, 5)).collect();
                let mut layout = layout(&shape, &chunks, dtype);
                layout.shards = is_sharded.then(|| chunks.iter().map(|c| c * (1 + random(&mut state, 3))).collect());
                layout.codec = CodecSpec { name, level: None };
                layout.zarr_format = format;
                layout.dimension_names[0] = Some("y".into());
                layout.attributes = json!({"units": "m"}).as_object().unwrap().clone();
                let bytes = shape.iter().product::<u64>() as usize * dtype.size();
                let limit = if dtype == DType::Bool { 2 } else { 256 };
                // Half of the arrays start with zeros, so that some chunks are all fill value.
                let zeros = random(&mut state, 2) as usize * bytes / 2;
                let values: Vec<u8> = (0..bytes).map(|i| if i < zeros { 0 } else { random(&mut state, limit) as u8 }).collect();
                let root = scratch.0.join("a.zarr");
                let sink = create(&root, "", layout.clone(), false).unwrap();
                write_all(&sink, &values);
                let source = open(&root, None, Missing::Error).unwrap();
                let (read, missing) = read_all(&source).unwrap();
                assert_eq!((read == values, missing), (true, 0), "{layout:?}");
                let meta = source.meta();
                assert_eq!((meta.zarr_format, meta.array.dtype), (Some(format), dtype));
                assert_eq!(meta.array.attributes, layout.attributes);
                assert_eq!(meta.array.dimension_names[0].as_deref(), Some("y"));
                assert!(meta.group.is_none());
                if format == 3 {
                    assert_eq!(meta.array.dimension_names, layout.dimension_names);
                }
            }
        }
    }
}

/// Copies a folder into a store of zarrs.
fn load(root: &Path, folder: &str, store: &zarrs::storage::store::MemoryStore) {
    use zarrs::storage::{StoreKey, WritableStorageTraits};
    for entry in crate::zarr::FileStore::new(root).unwrap().list_dir(folder).unwrap().unwrap() {
        let key = if folder.is_empty() { entry.name } else { format!("{folder}/{}", entry.name) };
        match entry.is_dir {
            true => load(root, &key, store),
            false => store.set(&StoreKey::new(&key).unwrap(), fs::read(root.join(&key)).unwrap().into()).unwrap(),
        }
    }
}

#[test]
fn zarrs_reads_what_is_written() {
    for (format, shards, name) in
        [(2, None, CodecName::BloscLz4), (3, Some(vec![8, 6]), CodecName::Zstd), (3, None, CodecName::Gzip)]
    {
        let scratch = Scratch::new();
        let root = scratch.0.join("a.zarr");
        let values: Vec<f32> = (0..13 * 11).map(|i| i as f32 * 0.5).collect();
        let layout = OutputLayout {
            shards,
            zarr_format: format,
            codec: CodecSpec { name, level: None },
            ..layout(&[13, 11], &[4, 3], DType::F32)
        };
        write_all(&create(&root, "g/a", layout, true).unwrap(), bytemuck::cast_slice(&values));
        let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
        load(&root, "", &store);
        let array = zarrs::array::Array::open(store, "/g/a").unwrap();
        let read: Vec<f32> = array.retrieve_array_subset(&[0..13, 0..11]).unwrap();
        assert_eq!(read, values);
    }
}

/// A v2 array of one chunk with these documents and bytes.
fn hand_made(change: serde_json::Value, chunk: &[u8]) -> (Scratch, std::path::PathBuf) {
    let scratch = Scratch::new();
    let root = scratch.0.join("hand.zarr");
    fs::create_dir(&root).unwrap();
    let mut document = json!({"zarr_format": 2, "shape": [2, 3], "chunks": [2, 3], "dtype": "<i2", "order": "C",
        "compressor": null, "filters": null, "fill_value": null});
    document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    fs::write(root.join(".zarray"), document.to_string()).unwrap();
    if !chunk.is_empty() {
        fs::write(root.join("0.0"), chunk).unwrap();
    }
    (scratch, root)
}

fn read_i16(root: &Path) -> Result<Vec<i16>, String> {
    let source = open(root, None, Missing::Fill).map_err(|e| e.to_string())?;
    let (values, _) = read_all(&source).map_err(|e| e.to_string())?;
    Ok(bytemuck::pod_collect_to_vec(&values))
}

#[test]
fn stores_of_others_are_read() {
    let expected = [0i16, 1, 2, 10, 11, 12];
    let bytes = |values: &[i16]| values.iter().flat_map(|v| v.to_be_bytes()).collect::<Vec<u8>>();
    let (_s, root) = hand_made(json!({"dtype": ">i2"}), &bytes(&expected));
    assert_eq!(read_i16(&root).unwrap(), expected);
    let (_s, root) = hand_made(json!({"dtype": ">i2", "order": "F"}), &bytes(&[0, 10, 1, 11, 2, 12]));
    assert_eq!(read_i16(&root).unwrap(), expected);
    let little: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    let lz4 = [&12u32.to_le_bytes()[..], &lz4_flex::block::compress(&little)].concat();
    let (_s, root) = hand_made(json!({"compressor": {"id": "lz4", "acceleration": 1}}), &lz4);
    assert_eq!(read_i16(&root).unwrap(), expected);
    let (_s, root) = hand_made(json!({"fill_value": 7}), &[]);
    assert_eq!(read_i16(&root).unwrap(), [7; 6]);
    let SourceError::Missing { place } = read_all(&open(&root, None, Missing::Error).unwrap()).unwrap_err() else { panic!() };
    assert!(place.ends_with("hand.zarr/0.0"));
}

#[test]
fn damaged_chunks_are_named_with_their_sizes() {
    for (chunk, words) in [(&[0u8; 11][..], ["torn", "11", "12"]), (&[0; 13], ["too long", "13", "12"])] {
        let (_s, root) = hand_made(json!({}), chunk);
        let error = read_i16(&root).unwrap_err();
        assert!(error.contains("hand.zarr/0.0") && words.iter().all(|w| error.contains(w)), "{error}");
        let source = open(&root, None, Missing::Fill).unwrap();
        let alone = source.read_stored(&[0, 0], &[2], &mut [0; 4]).unwrap_err().to_string();
        assert!(alone.contains("hand.zarr/0.0") && words.iter().all(|w| alone.contains(w)), "a part says the same: {alone}");
    }
    let (_s, root) = hand_made(json!({"dtype": "|b1"}), &[0, 1, 1, 2, 0, 0]);
    assert!(read_i16(&root).unwrap_err().contains("byte 3 of the chunk is 2"));
    let (_s, root) = hand_made(json!({"compressor": {"id": "zstd"}}), &[0; 1 << 20]);
    assert!(read_i16(&root).unwrap_err().contains("too long"), "a file far larger than its chunk is not even read");
    let (_s, root) = hand_made(json!({}), &[]);
    std::os::unix::fs::symlink("/dev/zero", root.join("0.0")).unwrap();
    assert!(read_i16(&root).unwrap_err().contains("symlink"));
    fs::remove_file(root.join("0.0")).unwrap();
    fs::create_dir(root.join("0.0")).unwrap();
    assert!(read_i16(&root).unwrap_err().contains("regular file"));
    let (_s, root) = hand_made(json!({"fill_value": "NaN"}), &[]);
    assert!(read_i16(&root).unwrap_err().contains("fill_value"));
}

#[test]
fn large_chunks_are_written_and_read_in_pieces() {
    // Noise and runs: pieces end within blocks of any length.
    let mut noise = crate::operators::testing::Random::new(3);
    let values: Vec<u8> = (0..3 * 1500 * 2500).map(|i| if i / 70_000 % 3 == 0 { 7 } else { noise.below(256) as u8 }).collect();
    for shards in [None, Some(vec![3, 1500, 2500])] {
        let scratch = Scratch::new();
        let mut layout = layout(&[3, 1500, 2500], &[1, 1500, 2500], DType::U8);
        layout.shards = shards;
        write_all(&create(&scratch.0, "", layout, false).unwrap(), &values);
        let source = open(&scratch.0, None, Missing::Error).unwrap();
        let chunk = 1500 * 2500;
        let (mut out, mut transient) = (vec![0; chunk], Vec::new());
        for n in 0..3 {
            let whole = &values[n * chunk..(n + 1) * chunk];
            source.read_chunk(&[n as u64, 0, 0], &mut out, &mut transient).unwrap();
            assert!(out == whole);
            for end in [1, PIECE - 1, 700_000, chunk - 1] {
                out.fill(0xee);
                source.read_part(&[n as u64, 0, 0], end / 2..end, &mut out, &mut transient).unwrap();
                assert!(out[end / 2..end] == whole[end / 2..end], "{end}");
                assert!(end > chunk / 2 || out[chunk - 1] == 0xee, "the last byte was not asked for");
            }
        }
        assert!(transient.len() <= PIECE && source.meta().transient_bytes < 2 * PIECE as u64 + (1 << 20));
    }
    let scratch = Scratch::new();
    write_all(&create(&scratch.0, "", layout(&[1500, 2500], &[1500, 2500], DType::U8), false).unwrap(), &values[..1500 * 2500]);
    let good = fs::read(scratch.0.join("c/0/0")).unwrap();
    assert!(good.len() > 4 * PIECE);
    let read = |stored: &[u8], part: Range<usize>| {
        fs::write(scratch.0.join("c/0/0"), stored).unwrap();
        let source = open(&scratch.0, None, Missing::Error).unwrap();
        source.read_part(&[0, 0], part, &mut vec![0; 1500 * 2500], &mut Vec::new()).map(drop).map_err(|e| e.to_string())
    };
    for part in [0..1500 * 2500, 0..1000] {
        assert_eq!(read(&good, part.clone()), Ok(()));
        for cut in [good.len() - 1, good.len() / 2, PIECE + 3, PIECE, 5] {
            let reason = read(&good[..cut], part.clone()).unwrap_err();
            assert!(reason.contains("torn") || (cut == 5 && reason.contains("zstd")), "{cut}: {reason}");
        }
        assert!(read(&[&good[..], b"and more"].concat(), part.clone()).is_err());
    }
    let mut flipped = good.clone();
    flipped[3 * PIECE] ^= 0x55;
    flipped[3 * PIECE + 1] ^= 0x55;
    let _ = read(&flipped, 0..1500 * 2500); // values may be wrong, nothing else
}

#[test]
fn damaged_shards_are_refused() {
    let scratch = Scratch::new();
    let root = scratch.0.join("s.zarr");
    let sharded = OutputLayout {
        shards: Some(vec![4]),
        codec: CodecSpec { name: CodecName::None, level: None },
        ..layout(&[7], &[2], DType::U8)
    };
    write_all(&create(&root, "", sharded, false).unwrap(), &[1, 2, 3, 4, 5, 6, 7]);
    let path = root.join("c/0");
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len(), 4 + 2 * 16 + 4);
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read_all(&open(&root, None, Missing::Error).unwrap()).map(|(values, _)| values).map_err(|e| e.to_string())
    };
    assert_eq!(read(&good).unwrap(), [1, 2, 3, 4, 5, 6, 7]);
    let patched = |at: usize, value: u64| {
        let mut index = good[4..36].to_vec();
        index[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let sum = crc32c::crc32c(&index);
        [&good[..4], &index, &sum.to_le_bytes()].concat()
    };
    for (bytes, word) in [
        (good[..20].to_vec(), "torn"),
        ([&good[..39], &[good[39] ^ 1]].concat(), "crc32c"),
        (patched(0, u64::MAX - 7), "claims"),
        (patched(0, 1 << 40), "claims"),
        (patched(8, 1 << 40), "claims"),
        (patched(8, 1), "torn"),
        (patched(8, 3), "expected"),
    ] {
        let error = read(&bytes).unwrap_err();
        assert!(error.contains(word) && error.contains("c/0"), "{word}: {error}");
    }
    let mut empty = patched(0, u64::MAX);
    empty[12..20].fill(0xff);
    let sum = crc32c::crc32c(&empty[4..36]);
    empty[36..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(read(&empty).unwrap(), [0, 0, 3, 4, 5, 6, 7], "an empty chunk is fill value, not missing");
    fs::remove_file(&path).unwrap();
    assert!(matches!(read_all(&open(&root, None, Missing::Error).unwrap()), Err(SourceError::Missing { .. })));
    assert_eq!(read_all(&open(&root, None, Missing::Fill).unwrap()).unwrap(), (vec![0, 0, 0, 0, 5, 6, 7], 2));
}

/// A group with a 2-d array, its coordinates, and strings.
fn group(format: u8) -> (Scratch, std::path::PathBuf) {
    let scratch = Scratch::new();
    let root = scratch.0.join("g.zarr");
    let names = |names: &[&str]| names.iter().map(|n| Some(n.to_string())).collect::<Vec<_>>();
    let attributes = json!({"title": "t"});
    create_group(&root, "", format, attributes.as_object().unwrap()).unwrap();
    for (name, shape, dims) in [("u", &[4u64, 6][..], &["y", "x"][..]), ("y", &[4], &["y"]), ("x", &[6], &["x"])] {
        let layout = OutputLayout { zarr_format: format, dimension_names: names(dims), ..layout(shape, shape, DType::F32) };
        let count = shape.iter().product::<u64>() as usize;
        write_all(&create(&root, name, layout, false).unwrap(), &vec![1; 4 * count]);
    }
    let text = json!({"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|O", "filters": [{"id": "vlen-utf8"}],
        "compressor": null, "fill_value": null, "order": "C"});
    if format == 2 {
        fs::create_dir(root.join("names")).unwrap();
        fs::write(root.join("names/.zarray"), text.to_string()).unwrap();
    }
    (scratch, root)
}

#[test]
fn the_array_that_is_meant_is_found() {
    for format in [2, 3] {
        let (_s, root) = group(format);
        let source = open(&root, None, Missing::Error).unwrap();
        let meta = source.meta();
        assert_eq!((meta.array.name.as_str(), meta.group.as_ref().map(|g| g.array.as_str())), ("u", Some("u")));
        assert_eq!(meta.notes.len(), (format == 2) as usize);
        assert_eq!(open(&root, Some("y"), Missing::Error).unwrap().meta().array.shape, [4]);
        let error = |array| open(&root, Some(array), Missing::Error).err().unwrap().to_string();
        assert!(error("uu").contains("did you mean \"u\"?"), "{}", error("uu"));
        assert!(error("../g.zarr").contains("refused"));
        if format == 2 {
            assert!(error("names").contains("|O"));
        }
        let again = open(&root, None, Missing::Error).unwrap();
        assert_eq!(again.meta().identity, meta.identity);
        let extra = OutputLayout { zarr_format: format, ..layout(&[2, 2], &[2, 2], DType::U8) };
        create(&root, "deep/v", extra, false).unwrap();
        let error = open(&root, None, Missing::Error).err().unwrap().to_string();
        assert!(error.contains("deep/v [2, 2] uint8") && error.contains("u [4, 6]") && !error.contains("y ["), "{error}");
        assert_eq!(open(&root, Some("deep/v"), Missing::Error).unwrap().meta().group.as_ref().unwrap().array, "deep/v");
        let error = open(&root, Some("deep"), Missing::Error).err().unwrap().to_string();
        assert!(error.contains("deep/v"), "{error}");
        let error = open(&root.join("u"), Some("u"), Missing::Error).err().unwrap().to_string();
        assert!(error.contains("not a group"), "{error}");
        let described = describe(&root, None).unwrap();
        assert_eq!(described.arrays.len(), if format == 2 { 5 } else { 4 });
        let u = described.arrays.iter().find(|a| a.name == "u").unwrap();
        assert_eq!((u.stored.unwrap().objects, u.codecs.as_str(), u.fill.as_str()), (1, "zstd", "0"));
        assert_eq!(described.attributes["title"], "t");
    }
}

#[test]
fn what_is_no_store_is_refused() {
    let scratch = Scratch::new();
    let error = |path: &Path| open(path, None, Missing::Fill).err().unwrap().to_string();
    assert!(error(&scratch.0.join("none.zarr")).contains("none.zarr"));
    assert!(error(&scratch.0).contains("neither"));
    assert!(!is_zarr(&scratch.0));
    fs::write(scratch.0.join("zarr.json"), "{").unwrap();
    assert!(error(&scratch.0).contains("not JSON"));
    fs::write(scratch.0.join("zarr.json"), "{}").unwrap();
    assert!(error(&scratch.0).contains("neither"));
    fs::write(scratch.0.join("zarr.json"), vec![b' '; 17 << 20]).unwrap();
    assert!(error(&scratch.0).contains("bytes"));
}

#[test]
fn a_consolidated_document_alone_is_enough() {
    let (_s, root) = group(2);
    let mut metadata = serde_json::Map::new();
    for key in [".zgroup", ".zattrs", "u/.zarray", "u/.zattrs", "x/.zarray", "x/.zattrs", "y/.zarray", "y/.zattrs"] {
        let text = fs::read(root.join(key)).unwrap();
        metadata.insert(key.into(), serde_json::from_slice(&text).unwrap());
        fs::remove_file(root.join(key)).unwrap();
    }
    fs::write(root.join(".zmetadata"), json!({"zarr_consolidated_format": 1, "metadata": metadata}).to_string()).unwrap();
    assert!(is_zarr(&root));
    let source = open(&root, None, Missing::Error).unwrap();
    assert_eq!(source.meta().array.name, "u");
    assert_eq!(read_all(&source).unwrap().0, vec![1; 96]);
}

#[test]
fn attributes_are_replaced_in_place() {
    for format in [2, 3] {
        let (_s, root) = group(format);
        let new = json!({"halostream": {"hash": "ab"}});
        for path in ["", "u"] {
            write_attributes(&root, path, new.as_object().unwrap()).unwrap();
            assert_eq!(read_attributes(&root.join(path)).unwrap().as_ref(), new.as_object());
        }
        assert_eq!(read_all(&open(&root, Some("u"), Missing::Error).unwrap()).unwrap().0, vec![1; 96]);
        assert!(write_attributes(&root, "none", new.as_object().unwrap()).is_err());
        assert_eq!(read_attributes(&root.join("none")).unwrap(), None);
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let scratch = Scratch::new();
    let good = layout(&[4, 4], &[2, 2], DType::U8);
    let refused = |change: fn(&mut OutputLayout)| {
        let mut layout = good.clone();
        change(&mut layout);
        create(&scratch.0, "", layout, false).err().unwrap().to_string()
    };
    for (error, word) in [
        (refused(|l| l.zarr_format = 4), "zarr_format"),
        (refused(|l| l.chunks = vec![0, 2]), "0"),
        (refused(|l| l.chunks = vec![2]), "2 axes"),
        (refused(|l| l.chunks = vec![1 << 30, 1 << 30]), "larger"),
        (refused(|l| l.shards = Some(vec![3, 2])), "multiples"),
        (refused(|l| (l.shards, l.zarr_format) = (Some(vec![4, 4]), 2)), "zarr_format"),
        (refused(|l| l.codec.level = Some(40)), "level 40"),
    ] {
        assert!(error.contains(word), "{error}");
    }
    let sink = create(&scratch.0, "", good, false).unwrap();
    assert!(sink.put(&[2, 0], &[0; 4]).is_err());
    assert!(sink.put(&[0, 0], &[0; 3]).is_err());
    assert!(sink.put(&[0], &[0; 4]).is_err());
}
