//! Random lists over random grids, against picking from the whole array.

use super::*;
use crate::array::{DType, Scalar};
use crate::operators::ArrayMeta;
use crate::operators::testing::Random;

/// An array in memory: every element is its number in C order. What nobody asked for is filled with 0xee.
struct Numbers(SourceMeta);

impl Numbers {
    fn new(shape: &[u64], chunks: &[u64]) -> Self {
        let mut array = ArrayMeta::plain("numbers", shape, DType::I32);
        array.chunk = chunks.to_vec();
        Self(SourceMeta {
            array,
            grid: Grid::regular(shape, chunks),
            chunk_shape: chunks.to_vec(),
            fill_value: Scalar::zero(DType::I32),
            transient_bytes: 100,
            resident_bytes: 7,
            child_bytes: 0,
            zarr_format: None,
            group: None,
            identity: "numbers".to_owned(),
            place: "numbers".into(),
            notes: Vec::new(),
        })
    }
}

impl Source for Numbers {
    fn meta(&self) -> &SourceMeta {
        &self.0
    }

    fn in_flight(&self) -> usize {
        3
    }

    fn requests(&self) -> Requests {
        Requests { sent: 5, again: 2 }
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        self.read_part(chunk, 0..out.len(), out, transient)
    }

    fn read_part(&self, chunk: &[u64], part: Range<usize>, out: &mut [u8], _: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let cells = self.0.chunk(chunk, out.len())?;
        out.fill(0xee);
        for at in (part.start / 4)..part.end.div_ceil(4) {
            let (mut rest, mut number, mut scale, mut is_inside) = (at as u64, 0, 1, true);
            for axis in (0..cells.len()).rev() {
                let x = cells[axis].start + rest % self.0.chunk_shape[axis];
                rest /= self.0.chunk_shape[axis];
                is_inside &= x < cells[axis].end;
                number += x * scale;
                scale *= self.0.array.shape[axis];
            }
            if is_inside {
                out[4 * at..4 * at + 4].copy_from_slice(&(number as i32).to_ne_bytes());
            }
        }
        Ok(ChunkRead::Data { encoded_bytes: part.len() as u64 })
    }
}

#[test]
fn what_lies_far_away_is_asked_for_like_the_whole() {
    let subset = Subset::new(Arc::new(Numbers::new(&[6], &[2])), vec![Some([1, 4].into())]);
    assert_eq!((subset.in_flight(), subset.requests()), (3, Requests { sent: 5, again: 2 }));
}

#[test]
fn what_is_kept_of_any_grid() {
    let mut random = Random::new(8);
    let mut seen = 0;
    for case in 0..300 {
        let rank = 1 + random.below(3) as usize;
        let shape: Vec<u64> = (0..rank).map(|_| 1 + random.below(9)).collect();
        let chunks: Vec<u64> = shape.iter().map(|n| 1 + random.below(n + 1)).collect();
        let mut kept: Vec<Option<Arc<[u64]>>> = Vec::new();
        for &n in &shape {
            let some: Vec<u64> = (0..n).filter(|_| random.below(3) > 0).collect();
            kept.push((random.below(3) > 0 && !some.is_empty()).then(|| some.into()));
        }
        let entries: Vec<Vec<u64>> =
            kept.iter().zip(&shape).map(|(k, n)| k.as_ref().map_or((0..*n).collect(), |k| k.to_vec())).collect();
        let subset = Subset::new(Arc::new(Numbers::new(&shape, &chunks)), kept.clone());
        let meta = subset.meta();
        assert_eq!(meta.array.shape, entries.iter().map(|e| e.len() as u64).collect::<Vec<_>>());
        assert_eq!(meta.grid.shape(), meta.array.shape);
        assert_eq!(meta.transient_bytes, 100 + 4 * chunks.iter().product::<u64>());
        let cells: Vec<Vec<u64>> = meta.grid.0.iter().map(|g| (0..g.cells()).collect()).collect();
        let cells: Vec<&[u64]> = cells.iter().map(Vec::as_slice).collect();
        let bytes = meta.chunk_shape.iter().product::<u64>() as usize * 4;
        for_each_index::<()>(&cells, |chunk| {
            let (first, last) = match random.below(3) {
                0 => (0, bytes / 4),
                _ => {
                    let first = random.below(bytes as u64 / 4) as usize;
                    (first, first + 1 + random.below((bytes / 4 - first) as u64) as usize)
                }
            };
            let mut out = vec![0xcd; bytes];
            subset.read_part(chunk, 4 * first..4 * last, &mut out, &mut Vec::new()).unwrap();
            let region = meta.grid.region(chunk);
            for at in first..last {
                let (mut rest, mut want, mut scale, mut is_inside) = (at as u64, 0, 1, true);
                for axis in (0..rank).rev() {
                    let x = region.start[axis] + (rest % meta.chunk_shape[axis]) as i64;
                    rest /= meta.chunk_shape[axis];
                    is_inside &= x < region.stop[axis];
                    want += if is_inside { entries[axis][x as usize] * scale } else { 0 };
                    scale *= shape[axis];
                }
                if is_inside {
                    let got = i32::from_ne_bytes([out[4 * at], out[4 * at + 1], out[4 * at + 2], out[4 * at + 3]]);
                    assert_eq!(got as u64, want, "case {case}: {shape:?} {chunks:?} {kept:?} chunk {chunk:?} element {at}");
                    seen += 1;
                }
            }
            Ok(())
        })
        .unwrap();
    }
    assert!(seen > 1000, "{seen}");
}

/// Chunks without a kept entry are no cells of the grid.
#[test]
fn chunks_of_which_nothing_is_kept_are_not_there() {
    let subset = Subset::new(Arc::new(Numbers::new(&[100, 10], &[10, 10])), vec![Some(vec![5, 31, 32, 39, 99].into()), None]);
    let meta = subset.meta();
    assert_eq!(meta.grid.0[0], AxisGrid::edges(vec![0, 1, 4, 5]));
    assert_eq!((meta.chunk_shape.clone(), meta.array.chunk.clone()), (vec![3, 10], vec![2, 10]));
    let mut out = vec![0; 120];
    let read = subset.read_chunk(&[1, 0], &mut out, &mut Vec::new()).unwrap();
    // From the first kept row to the last.
    assert_eq!(read, ChunkRead::Data { encoded_bytes: 9 * 40 });
    assert!(subset.read_chunk(&[3, 0], &mut out, &mut Vec::new()).is_err());
}
