//! Files that tifffile wrote against the values that it reads from them (`tests/golden/tiffs.py`), parts of them, and files that
//! are torn, damaged or lie.

use std::fs;

use super::*;
use crate::array::DType;
use crate::array::block::{c_strides, copy_strided};
use crate::array::grid::for_each_index;
use crate::tiff::Compression;
use crate::zarr::store::tests::Scratch as Folder;

struct Golden {
    name: String,
    file: Vec<u8>,
    shape: Vec<u64>,
    dtype: DType,
    want: Vec<u8>,
}

fn golden() -> Vec<Golden> {
    let cases: Vec<serde_json::Value> = serde_json::from_str(include_str!("../../tests/golden/tiffs.json")).unwrap();
    let bytes = |hex: &serde_json::Value| {
        let digits = hex.as_str().unwrap().as_bytes().as_chunks::<2>().0;
        digits.iter().map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect::<Vec<u8>>()
    };
    let case = |case: &serde_json::Value| Golden {
        name: case["name"].as_str().unwrap().to_owned(),
        file: bytes(&case["file"]),
        shape: case["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect(),
        dtype: DType::parse(case["dtype"].as_str().unwrap()).unwrap(),
        want: bytes(&case["want"]),
    };
    cases.iter().map(case).collect()
}

fn find(name: &str) -> Golden {
    golden().into_iter().find(|case| case.name == name).unwrap()
}

fn open_bytes(folder: &Folder, bytes: &[u8]) -> Result<TiffSource, OpenError> {
    let path = folder.0.join("x.tif");
    fs::write(&path, bytes).unwrap();
    open(&path)
}

fn cells(source: &TiffSource) -> Vec<Vec<u64>> {
    let lists: Vec<Vec<u64>> = source.meta.grid.0.iter().map(|a| (0..a.cells()).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let mut all = Vec::new();
    let _ = for_each_index::<()>(&lists, |index| {
        all.push(index.to_vec());
        Ok(())
    });
    all
}

/// The whole array, chunk by chunk; of each chunk a part is read once more, which must give the same.
fn read_all(source: &TiffSource) -> Result<Vec<u8>, SourceError> {
    let (meta, size) = (&source.meta, source.meta.array.dtype.size());
    let lengths = |list: &[u64]| list.iter().map(|&n| n as usize).collect::<Vec<usize>>();
    let (shape, full) = (lengths(&meta.array.shape), lengths(&meta.chunk_shape));
    let mut all = vec![0x77; shape.iter().product::<usize>() * size];
    let strides = c_strides(&shape, size);
    let (mut transient, mut turn) = (Vec::new(), 0usize);
    for chunk in cells(source) {
        let mut out = vec![0x55; full.iter().product::<usize>() * size];
        source.read_chunk(&chunk, &mut out, &mut transient)?;
        assert!(transient.len() as u64 <= meta.transient_bytes, "{} > {}", transient.len(), meta.transient_bytes);
        let ranges: Vec<Range<u64>> = chunk.iter().zip(&meta.grid.0).map(|(&i, axis)| axis.range(i)).collect();
        let part: Vec<usize> = ranges.iter().map(|r| (r.end - r.start) as usize).collect();
        let at: isize = ranges.iter().zip(&strides).map(|(r, s)| r.start as isize * s).sum();
        copy_strided(&mut all, at, &strides, &out, 0, &c_strides(&full, size), &part, size);
        // Within the rows that the array has.
        turn = turn.wrapping_mul(31).wrapping_add(17);
        let inside = out.iter().rposition(|b| *b != 0x55).map_or(0, |last| last / size);
        let first = turn % (inside + 1);
        let bytes = first * size..(first + 1 + turn / 7 % (inside + 1 - first)) * size;
        let mut beside = vec![0x55; out.len()];
        source.read_part(&chunk, bytes.clone(), &mut beside, &mut transient)?;
        assert_eq!(beside[bytes.clone()], out[bytes]);
    }
    Ok(all)
}

#[test]
fn what_tifffile_wrote() {
    let folder = Folder::new();
    for Golden { name, file, shape, dtype, want } in golden() {
        let source = open_bytes(&folder, &file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((&source.meta.array.shape, source.meta.array.dtype), (&shape, dtype), "{name}");
        let got = read_all(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(got == want, "{name}: other values");
    }
}

#[test]
fn chunks_are_tiles_or_whole_strips() {
    let folder = Folder::new();
    let chunks = |name: &str| {
        let source = open_bytes(&folder, &find(name).file).unwrap();
        (
            source.meta.chunk_shape.clone(),
            source.meta.array.dimension_names.iter().flatten().cloned().collect::<Vec<_>>().join(" "),
        )
    };
    assert_eq!(chunks("tiles"), (vec![16, 16], "y x".to_owned()));
    assert_eq!(chunks("pages"), (vec![1, 7, 6], "page y x".to_owned()));
    assert_eq!(chunks("rgb contig {'tile': (16, 16)}"), (vec![16, 16, 3], "y x sample".to_owned()));
    assert_eq!(chunks("rgb separate {'tile': (16, 16)}").0, [16, 16, 1]);
    let mut page = open_bytes(&folder, &find("lzw u2 predictor 1 < strips").file).unwrap().first;
    // Packed strips of three rows of 1 MiB: two of them are more than a chunk has. Of smaller ones a chunk has several.
    (page.cols, page.unit_cols, page.unit_rows, page.rows) = (1 << 19, 1 << 19, 3, 20);
    (page.samples, page.dtype) = (1, DType::U16);
    assert_eq!(chunk_of(&page), (3, 1 << 19));
    (page.cols, page.unit_cols) = (1 << 16, 1 << 16);
    assert_eq!(chunk_of(&page), (20, 1 << 16));
    // Unpacked ones are cut anywhere.
    (page.rows, page.compression) = (100, Compression::None);
    assert_eq!(chunk_of(&page), (25, 1 << 16));
}

/// A file cut off anywhere is refused or gives an error; what it gives is right.
#[test]
fn torn_files() {
    let folder = Folder::new();
    for name in ["pages lzw", "tiles", "bigtiff big", "imagej one directory", "zstd u2 predictor 2 < strips"] {
        let Some(case) = golden().into_iter().find(|c| c.name == name || c.name == name.replace('<', ">")) else {
            panic!("{name}")
        };
        for len in 0..case.file.len() {
            let read = match open_bytes(&folder, &case.file[..len]) {
                Ok(source) => read_all(&source).map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match read {
                Ok(got) => assert!(got == case.want, "{name} cut to {len} of {} bytes", case.file.len()),
                Err(error) => assert!(error.contains("x.tif"), "{error}"),
            }
        }
    }
}

/// Bytes that were changed anywhere: no panic, no more memory than planned, no endless work.
#[test]
fn damaged_files() {
    let folder = Folder::new();
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for case in golden() {
        for _ in 0..40 {
            let mut file = case.file.clone();
            for _ in 0..1 + random(3) {
                // Mostly where headers and directories are.
                let most = if random(3) == 0 { file.len() } else { file.len().min(400) };
                let (at, value, bit) = (random(most), random(256) as u8, random(16));
                file[at] = if bit < 8 { file[at] ^ 1 << bit } else { value };
            }
            let Ok(source) = open_bytes(&folder, &file) else { continue };
            let bytes = source.meta.chunk_shape.iter().product::<u64>() * source.meta.array.dtype.size() as u64;
            // What the plan would refuse, or the number of chunks.
            if bytes < 1 << 20 && source.meta.transient_bytes < 1 << 24 && source.meta.grid.cells().is_some_and(|n| n < 1000) {
                let mut out = vec![0; bytes as usize];
                for chunk in cells(&source) {
                    let _ = source.read_chunk(&chunk, &mut out, &mut Vec::new());
                }
            }
        }
    }
}

/// A little-endian file of one directory with these tags (number, type, value), and bytes behind it.
fn made(tags: &[(u16, u16, u32)], next: u32, behind: &[u8]) -> Vec<u8> {
    let mut file = b"II\x2a\0\x08\0\0\0".to_vec();
    file.extend((tags.len() as u16).to_le_bytes());
    for (tag, kind, value) in tags {
        file.extend(tag.to_le_bytes().iter().chain(&kind.to_le_bytes()).chain(&1u32.to_le_bytes()).chain(&value.to_le_bytes()));
    }
    file.extend(next.to_le_bytes());
    file.extend(behind);
    file
}

#[test]
fn hostile_files_are_refused_with_the_reason() {
    let folder = Folder::new();
    let refusal = |bytes: &[u8]| match open_bytes(&folder, bytes) {
        Err(error) => error.to_string(),
        Ok(source) => read_all(&source).unwrap_err().to_string(),
    };
    let image = |cols: u32, rows: u32, more: &[(u16, u16, u32)], behind: &[u8]| {
        let mut tags = vec![(256, 4, cols), (257, 4, rows), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 200), (279, 4, 100)];
        for tag in more {
            tags.retain(|t| t.0 != tag.0);
            tags.push(*tag);
        }
        tags.sort();
        let mut file = made(&tags, 0, &[]);
        file.resize(200, 0);
        file.extend(behind);
        file
    };
    let has = |bytes: &[u8], want: &str| {
        let told = refusal(bytes);
        assert!(told.contains("x.tif") && told.contains(want), "{told}\nwanted {want}");
    };
    has(b"", "this is no TIFF file");
    has(b"GIF89a  ", "this is no TIFF file: it does not begin with II or MM");
    has(b"II\x2b\0\x08\0\0\0", "its header is not whole");
    has(b"II\x2a\0\x08\0\0\0", "a directory at offset 8 lies beyond");
    has(b"II\x2a\0\0\0\0\0", "there is no page in it");
    has(&made(&[(256, 4, 5)], 8, &[]), "the directories form a loop: the one at offset 8 follows itself");
    has(&made(&[(256, 4, 5)], 0, &[]), "ImageLength is missing");
    has(&image(0, 5, &[], &[]), "ImageWidth is 0");
    // 10^9 x 10^9 pixels: in one strip, in strips of a row each, in tiles.
    has(&image(1_000_000_000, 1_000_000_000, &[], &[7; 100]), "of uint8 take 1000000000000000000 bytes, it has 300");
    has(
        &image(1_000_000_000, 1_000_000_000, &[(259, 3, 5)], &[7; 100]),
        "bytes, more than 1099511627776: save it with smaller ones",
    );
    has(&image(10, 10, &[(279, 4, 99)], &[7; 100]), "strip 0 at offset 200: it has 99 bytes, 100 are needed");
    has(&image(1_000_000_000, 1_000_000_000, &[(278, 4, 1)], &[]), "need more strips than the 1 that are listed");
    has(
        &image(1_000_000_000, 1_000_000_000, &[(322, 4, 16), (323, 4, 16), (324, 4, 200), (325, 4, 9)], &[]),
        "need more tiles than the 1",
    );
    has(&image(4_000_000_000, 4_000_000_000, &[(258, 3, 64)], &[]), "are more than 2^62 bytes");
    has(
        &image(16, 16, &[(322, 4, u32::MAX), (323, 4, u32::MAX), (324, 4, 200), (325, 4, 9), (259, 3, 8), (258, 3, 64)], &[]),
        "is too large",
    );
    has(&image(10, 10, &[], &[7; 99]), "strip 0 at offset 200: the file is torn: its 100 bytes lie beyond the file's 299");
    has(&image(10, 10, &[(273, 4, u32::MAX)], &[]), "offset 4294967295");
    has(&image(10, 10, &[(278, 4, 0)], &[]), "RowsPerStrip is 0");
    has(&image(10, 10, &[(258, 3, 1)], &[]), "unsigned integers of 1 bits are not read");
    has(&image(10, 10, &[(258, 3, 12)], &[]), "unsigned integers of 12 bits are not read");
    has(&image(10, 10, &[(262, 3, 3)], &[]), "palette");
    has(&image(10, 10, &[(262, 3, 6)], &[]), "YCbCr");
    has(&image(10, 10, &[(259, 3, 7)], &[]), "compression 7 (JPEG) is not read, only none, LZW, deflate, PackBits and zstd");
    has(&image(10, 10, &[(259, 3, 12345)], &[]), "compression 12345 is not read");
    has(&image(10, 10, &[(266, 3, 2)], &[]), "FillOrder");
    has(&image(10, 10, &[(317, 3, 3)], &[]), "predictor 3 is not read for uint8");
    has(&image(10, 10, &[(277, 3, 0)], &[]), "SamplesPerPixel is 0");
    has(&image(10, 10, &[(284, 3, 9)], &[]), "PlanarConfiguration is 9");
    has(&image(10, 10, &[(259, 3, 32773), (279, 4, 4)], &[0x9e, 5, 0x80, 0x80]), "strip 0 at offset 200: it ends");
    has(&image(10, 10, &[(259, 3, 8), (279, 4, 4)], b"nope"), "strip 0 at offset 200: its deflate data are damaged");
    has(&image(10, 10, &[(259, 3, 50000), (279, 4, 4)], b"nope"), "strip 0 at offset 200: its zstd data are damaged");
    // A directory of more tags than its two bytes should say, in a file without them.
    has(&made(&[], 0, &[]).iter().copied().take(8).chain([0xff, 0xff]).collect::<Vec<u8>>(), "claims 65535 tags");
}

/// A stack takes its shape from the first file; each other file is checked when it is read.
#[test]
fn files_of_a_stack_agree() {
    let folder = Folder::new();
    let case = find("pages lzw");
    let page = |name: &str| find(name).file;
    let mut files = Vec::new();
    for (n, bytes) in [&case.file, &case.file, &page("pages"), &page("tiles"), &case.file].iter().enumerate() {
        files.push(folder.0.join(format!("f{n}.tif")));
        fs::write(&files[n], bytes).unwrap();
    }
    let source = open_stack(files.clone(), &folder.0).unwrap();
    assert_eq!((&source.meta.array.shape[..], &source.meta.chunk_shape[..]), (&[5, 3, 20, 17][..], &[1, 1, 20, 17][..]));
    let mut out = vec![0; 20 * 17 * 2];
    for file in [0u64, 1, 4] {
        for page in [2u64, 0, 1] {
            source.read_chunk(&[file, page, 0, 0], &mut out, &mut Vec::new()).unwrap();
            assert!(out == case.want[page as usize * 680..][..680]);
        }
    }
    let mut error = |file| source.read_chunk(&[file, 0, 0, 0], &mut out, &mut Vec::new()).unwrap_err().to_string();
    let told = error(2);
    assert!(told.contains("f2.tif, page 0: it has 5 pages, ") && told.contains("f0.tif has 3"), "{told}");
    assert!(error(3).contains("f3.tif, page 0: it has 1 pages"));
    // One page each: shapes are compared.
    let source = open_stack(vec![files[3].clone(), folder.0.join("g.tif")], &folder.0).unwrap();
    fs::write(folder.0.join("g.tif"), page("u2 little")).unwrap();
    let mut out = vec![0; 16 * 16 * 2];
    let told = source.read_chunk(&[1, 0, 0], &mut out, &mut Vec::new()).unwrap_err().to_string();
    assert!(
        told.contains("g.tif: it has 7 x 9 pixels of uint16, the first page of ") && told.contains("has 33 x 18 pixels"),
        "{told}"
    );
    fs::remove_file(folder.0.join("g.tif")).unwrap();
    let source = open_stack(source.files, &folder.0).unwrap();
    assert!(
        matches!(source.read_chunk(&[1, 0, 0], &mut out, &mut Vec::new()), Err(SourceError::Io { place, .. }) if place.ends_with("g.tif"))
    );
    assert!(open_stack(Vec::new(), &folder.0).err().unwrap().to_string().contains("there is no TIFF file in it"));
    // A link in a folder of frames leads nowhere.
    std::os::unix::fs::symlink(&files[3], folder.0.join("g.tif")).unwrap();
    assert!(source.read_chunk(&[1, 0, 0], &mut out, &mut Vec::new()).is_err());
    assert!(source.read_chunk(&[2, 0, 0], &mut out, &mut Vec::new()).is_err(), "no such chunk");
}

/// Frames may be packed and cut in other ways than the first one.
#[test]
fn frames_packed_in_several_ways() {
    let folder = Folder::new();
    let frame = |n: usize| (0..24 * 20u32).map(|i| (i * 7 + n as u32 * 13) as u16).collect::<Vec<u16>>();
    let mut files = Vec::new();
    for n in 0..6 {
        let mut encoded = Vec::new();
        let mut file = tiff::encoder::TiffEncoder::new(std::io::Cursor::new(&mut encoded)).unwrap();
        if n % 2 == 1 {
            file = file.with_compression(tiff::encoder::Compression::Packbits);
        }
        let mut image = file.new_image::<tiff::encoder::colortype::Gray16>(20, 24).unwrap();
        image.rows_per_strip(1 + n as u32 * 4).unwrap();
        image.write_data(&frame(n)).unwrap();
        files.push(folder.0.join(format!("f{n}.tif")));
        fs::write(&files[n], encoded).unwrap();
    }
    let source = open_stack(files, &folder.0).unwrap();
    let want: Vec<u16> = (0..6).flat_map(frame).collect();
    assert!(read_all(&source).unwrap() == bytemuck::cast_slice::<u16, u8>(&want));
    assert!(source.open.lock().unwrap().len() <= OPEN_FILES);
}

#[test]
fn stamps_change_with_any_file() {
    let folder = Folder::new();
    let files: Vec<PathBuf> = (0..3).map(|n| folder.0.join(format!("f{n}.tif"))).collect();
    files.iter().for_each(|f| fs::write(f, find("pages").file).unwrap());
    let source = open_stack(files.clone(), &folder.0).unwrap();
    let stamp = source.stamp().unwrap();
    assert_eq!(source.stamp().unwrap(), stamp);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    fs::File::options().write(true).open(&files[2]).unwrap().set_modified(later).unwrap();
    assert_ne!(source.stamp().unwrap(), stamp);
    fs::remove_file(&files[1]).unwrap();
    assert_ne!(source.stamp().unwrap(), stamp);
}

#[test]
fn what_the_user_should_know_is_noted() {
    let folder = Folder::new();
    let notes = |name: &str| open_bytes(&folder, &find(name).file).unwrap().meta.notes;
    assert!(notes("ome").is_empty() && notes("overviews").is_empty());
    assert!(
        notes("ome series")[0].contains("5 pages, of which the first 3 are the first OME series"),
        "{:?}",
        notes("ome series")
    );
}
