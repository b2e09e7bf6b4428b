//! Files made element by element, read through the grid, against the values they were made of.

use std::fs;

use super::*;
use crate::array::grid::for_each_index;
use crate::operators::testing::Random;
use crate::zarr::store::tests::Scratch;

/// The bytes of an array: C order, native.
fn values(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let top = if dtype == DType::Bool { 2 } else { 256 };
    (0..count * dtype.size()).map(|_| random.below(top) as u8).collect()
}

/// As a file has them: the axes in order or turned, the bytes of each number forwards or backwards.
fn stored(values: &[u8], shape: &[u64], dtype: DType, is_fortran: bool, is_big_endian: bool) -> Vec<u8> {
    let size = dtype.size();
    let mut out = values.to_vec();
    if is_fortran {
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let turned: Vec<usize> = shape.iter().rev().copied().collect();
        let mut strides = c_strides(&turned, size);
        strides.reverse();
        copy_strided(&mut out, 0, &strides, values, 0, &c_strides(&shape, size), &shape, size);
    }
    if is_big_endian {
        swap_bytes(&mut out, dtype);
    }
    out
}

/// All chunks, put together; of each a random part is read again.
fn read_all(source: &dyn Source, random: &mut Random) -> Result<Vec<u8>, SourceError> {
    let meta = source.meta();
    let (size, shape) = (meta.array.dtype.size(), &meta.array.shape);
    let usize_of = |list: &[u64]| list.iter().map(|&n| n as usize).collect::<Vec<_>>();
    let mut all = vec![0xcd; usize_of(shape).iter().product::<usize>() * size];
    let mut out = vec![0xab; usize_of(&meta.chunk_shape).iter().product::<usize>() * size];
    let mut transient = Vec::new();
    let counts: Vec<Vec<u64>> = meta.grid.0.iter().map(|axis| (0..axis.cells()).collect()).collect();
    let counts: Vec<&[u64]> = counts.iter().map(Vec::as_slice).collect();
    for_each_index(&counts, |chunk| {
        source.read_chunk(chunk, &mut out, &mut transient)?;
        let ranges: Vec<_> = chunk.iter().zip(&meta.grid.0).map(|(&i, axis)| axis.range(i)).collect();
        let (to, from) = (c_strides(&usize_of(shape), size), c_strides(&usize_of(&meta.chunk_shape), size));
        let at = ranges.iter().zip(&to).map(|(r, stride)| r.start as isize * stride).sum();
        let len: Vec<usize> = ranges.iter().map(|r| (r.end - r.start) as usize).collect();
        copy_strided(&mut all, at, &to, &out, 0, &from, &len, size);

        let count = (out.len() / size) as u64;
        let first = random.below(count) as usize;
        let part = first * size..(first + 1 + random.below(count - first as u64) as usize) * size;
        let mut beside = out.clone();
        beside[part.clone()].fill(0);
        source.read_part(chunk, part.clone(), &mut beside, &mut transient)?;
        // Before and behind it there may be anything.
        beside[..part.start].copy_from_slice(&out[..part.start]);
        beside[part.end..].copy_from_slice(&out[part.end..]);
        let mut again = all.clone();
        copy_strided(&mut again, at, &to, &beside, 0, &from, &len, size);
        assert!(again == all, "a part of chunk {chunk:?} of {:?}", meta.identity);
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn files_of_any_order_give_their_values() {
    let scratch = Scratch::new();
    let mut random = Random::new(11);
    for round in 0..120 {
        let dtype = DType::ALL[round % DType::ALL.len()];
        let rank = random.below(5) as usize;
        let shape: Vec<u64> = (0..rank).map(|_| 1 + random.below(if round % 5 == 0 { 90 } else { 9 })).collect();
        let count = shape.iter().product::<u64>().min(1 << 22);
        let shape = if shape.iter().product::<u64>() > count { vec![2; rank] } else { shape };
        let want = values(&mut random, dtype, shape.iter().product::<u64>() as usize);
        let (is_fortran, is_big_endian) = (random.below(2) == 1, random.below(2) == 1 && dtype.size() > 1);
        let data = random.below(40) as usize;
        let path = scratch.0.join("values");
        fs::write(&path, [vec![7; data], stored(&want, &shape, dtype, is_fortran, is_big_endian)].concat()).unwrap();
        let file = InputFile::open(&path).unwrap();
        let header = Header { dtype, is_big_endian, is_fortran, shape: shape.clone(), data };
        let most = 1 + random.below(200);
        let source = FlatSource::with_chunks(file, &path, "raw", header, most).unwrap();
        let got = read_all(&source, &mut random).unwrap();
        assert!(got == want, "{dtype} {shape:?} fortran {is_fortran} big {is_big_endian} chunks {:?}", source.meta.chunk_shape);
    }
}

#[test]
fn chunks_are_whole_along_the_axis_that_runs_fastest() {
    assert_eq!(chunk_of(&[50, 1104, 1104], 4, false, CHUNK_BYTES), [25, 35, 1104]);
    assert_eq!(chunk_of(&[50, 1104, 1104], 4, true, CHUNK_BYTES), [50, 138, 138]);
    assert_eq!(chunk_of(&[1 << 40], 8, false, CHUNK_BYTES), [1 << 19]);
    assert_eq!(chunk_of(&[3, 0], 8, false, CHUNK_BYTES), [3, 1]);
    assert_eq!(chunk_of(&[], 8, false, CHUNK_BYTES), [0; 0]);
}

#[test]
fn files_that_are_too_short_or_hold_no_bools_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.0.join("a.raw");
    fs::write(&path, [1, 0, 1, 3]).unwrap();
    let raw = |dtype, shape: &[u64], offset| {
        open_raw(&path, &RawSpec { dtype, is_big_endian: false, shape: shape.to_vec(), offset }).map_err(|e| e.to_string())
    };
    let refused = |dtype, shape: &[u64], offset| raw(dtype, shape, offset).err().unwrap();
    assert!(
        refused(DType::U16, &[3], 0).contains("a.raw: is cut off: the shape [3] of uint16 takes 6 bytes from offset 0 on, 4 are")
    );
    assert!(refused(DType::U8, &[1], 9).contains("0 are there"));
    assert!(refused(DType::U8, &[u64::MAX, 3], 0).contains("more than 2^63 bytes"));
    assert!(refused(DType::U8, &[1], u64::MAX).contains("more than 2^63 bytes"));

    let source = raw(DType::Bool, &[4], 0).unwrap();
    let error = source.read_chunk(&[0], &mut [0; 4], &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("byte 3 of a chunk is 3, which is not a bool"), "{error}");
    assert!(source.read_part(&[0], 0..3, &mut [0; 4], &mut Vec::new()).is_ok());
    assert!(source.read_chunk(&[1], &mut [0; 4], &mut Vec::new()).is_err());
    // Cut after it was opened: an error, and another stamp.
    let before = source.stamp().unwrap();
    fs::write(&path, [1]).unwrap();
    let error = source.read_chunk(&[0], &mut [0; 4], &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("a.raw: became shorter while it was read: 4 bytes at offset 0"), "{error}");
    assert_ne!(source.stamp().unwrap(), before);
    assert!(InputFile::open(&scratch.0).err().unwrap().to_string().contains("is no regular file"));
}
