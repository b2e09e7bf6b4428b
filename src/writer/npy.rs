//! `.npy` files as a sink: one file in C order, written in place by objects that come in any order.
//!
//! The file is laid out at its full length beside a file of marks, a byte for each object, which is set once the object's bytes are
//! written: after a kill the marks say what is there, after a power failure the ledger. Cost of an object: a write for each run
//! of its cells that lie together in the file (objects of this sink are made so that runs are long), and one for its mark.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{OutputLayout, Sink, SinkError};
use crate::array::{Dims, npy};
use crate::files::File;

/// In the staging folder: the array, and the marks of its objects.
pub const ARRAY: &str = "array.npy";
const MARKS: &str = "stored";

/// Marks that are read at once.
const MARKS_AT_ONCE: u64 = 64 << 10;
/// Runs of cells are at least this long where the array is. Pages of the file that two objects share are few then.
const RUN_BYTES: u64 = 64 << 10;
/// Objects are about this large at most, unless one run is larger.
const OBJECT_BYTES: u64 = 4 << 20;

/// True when an output's path says that it is such a file.
pub fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy")
}

/// Objects of an array whose results come in pieces of `chunk`: these, made longer along the axes that run fastest and shorter
/// along the others. Shape and chunks decide alone, so that a job goes on with any memory limit.
pub fn objects(shape: &[u64], chunk: &[u64], size: u64) -> Vec<u64> {
    let mut object: Vec<u64> = chunk.iter().zip(shape).map(|(c, n)| (*c).clamp(1, (*n).max(1))).collect();
    let (mut run, mut first) = (size, shape.len());
    while let Some(axis) = first.checked_sub(1) {
        let len = shape[axis].max(1);
        let wanted = RUN_BYTES.div_ceil(run.max(1)).max(object[axis]);
        object[axis] = wanted.next_multiple_of(object[axis]).min(len);
        run = run.saturating_mul(object[axis]);
        first = axis;
        if object[axis] < len || run >= RUN_BYTES {
            break;
        }
    }
    while object.iter().fold(size, |n, &len| n.saturating_mul(len)) > OBJECT_BYTES {
        let Some(longest) = (0..first).filter(|&a| object[a] > 1).max_by_key(|&a| (object[a], std::cmp::Reverse(a))) else {
            break;
        };
        object[longest] = object[longest].div_ceil(2);
    }
    object
}

/// A file being written, or one that stands.
pub struct NpySink {
    layout: OutputLayout,
    place: PathBuf,
    /// The array and its marks; `None`: it stands, complete.
    files: Option<(File, File)>,
    /// Where the first value lies.
    data: u64,
    is_synced: bool,
}

/// Lays the array out in a staging folder, or goes on with what an earlier run left there. With `sync`, [`Sink::finish`] makes it
/// durable.
pub fn create(folder: &Path, layout: OutputLayout, sync: bool) -> Result<NpySink, SinkError> {
    let place = folder.join(ARRAY);
    let marks = folder.join(MARKS);
    let failed = |error| SinkError::Io { place: place.display().to_string(), error };
    let refused = |reason: &str| SinkError::Encode { place: place.display().to_string(), reason: reason.to_owned() };
    let header = npy::header(layout.dtype, &layout.shape);
    let objects = layout.object_grid().cells().ok_or_else(|| refused("the array has more objects than 64 bits count"))?;
    let bytes = crate::array::element_count(&layout.shape).and_then(|n| n.checked_mul(layout.dtype.size() as u64));
    let bytes = bytes.and_then(|n| n.checked_add(header.len() as u64)).filter(|n| *n <= i64::MAX as u64);
    let bytes = bytes.ok_or_else(|| refused("the array has more bytes than a file can hold"))?;
    let open = |path: &Path, len: u64| -> std::io::Result<File> {
        let mut file = File::open_to_change(path, true)?;
        if file.metadata()?.len() != len {
            file.cut(len)?;
        }
        Ok(file)
    };
    let array = open(&place, bytes).map_err(failed)?;
    array.write_all_at(&header, 0).map_err(failed)?;
    let marks = open(&marks, objects).map_err(failed)?;
    Ok(NpySink { layout, place, files: Some((array, marks)), data: header.len() as u64, is_synced: sync })
}

/// The file that stands at `path`, made by this very job: nothing is put into it.
pub fn standing(path: &Path, layout: OutputLayout) -> NpySink {
    NpySink { layout, place: path.to_path_buf(), files: None, data: 0, is_synced: false }
}

impl NpySink {
    fn failed(&self, error: std::io::Error) -> SinkError {
        SinkError::Io { place: self.place.display().to_string(), error }
    }

    /// Writes the cells of an object that lie inside the array; returns their bytes.
    fn write(&self, file: &File, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let (shape, full, size) = (&self.layout.shape, self.layout.object_shape(), self.layout.dtype.size() as u64);
        let cells: Vec<(u64, u64)> =
            object.iter().zip(full).zip(shape).map(|((i, n), len)| (i * n, (n * (i + 1)).min(*len) - i * n)).collect();
        // Axes at the end that are whole, in the file and in the object, make one run with the one before them.
        let (mut outer, mut run) = (shape.len(), size);
        while let Some(axis) = outer.checked_sub(1) {
            run *= cells[axis].1;
            outer = axis;
            if cells[axis].1 != shape[axis] || cells[axis].1 != full[axis] {
                break;
            }
        }
        let mut index = Dims::from_elem(0u64, outer);
        let mut written = 0;
        loop {
            let (mut from, mut to) = (0, 0);
            for axis in 0..shape.len() {
                let at = index.get(axis).copied().unwrap_or(0);
                from = from * full[axis] + at;
                to = to * shape[axis] + cells[axis].0 + at;
            }
            let from = (from * size) as usize;
            file.write_all_at(&values[from..from + run as usize], self.data + to * size).map_err(|e| self.failed(e))?;
            written += run;
            let Some(axis) = (0..outer).rev().find(|&a| index[a] + 1 < cells[a].1) else { return Ok(written) };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }
}

impl Sink for NpySink {
    fn layout(&self) -> &OutputLayout {
        &self.layout
    }

    fn transient_bytes(&self) -> u64 {
        0
    }

    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let is_inside = object.iter().zip(self.layout.object_axes()).all(|(i, axis)| *i < axis.cells());
        let wrong = |reason: String| SinkError::Encode { place: self.place.display().to_string(), reason };
        if object.len() != self.layout.shape.len() || !is_inside || values.len() as u64 != self.layout.object_bytes() {
            return Err(wrong(format!("there is no object {object:?} of {} bytes", values.len())));
        }
        let (array, marks) = self.files.as_ref().ok_or_else(|| wrong("it is complete already".to_owned()))?;
        let written = self.write(array, object, values)?;
        marks.write_all_at(&[1], self.layout.object_number(object)).map_err(|e| self.failed(e))?;
        Ok(written)
    }

    fn resume(&self, _among: &Range<u64>, trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        let count = self.layout.object_grid().cells().unwrap_or(u64::MAX);
        let Some((_, marks)) = &self.files else { return Ok((0..count).collect()) };
        let mut done = HashSet::new();
        let mut buffer = vec![0; count.min(MARKS_AT_ONCE) as usize];
        for first in (0..count).step_by(MARKS_AT_ONCE as usize) {
            let part = &mut buffer[..(count - first).min(MARKS_AT_ONCE) as usize];
            marks.read_exact_at(part, first).map_err(|e| self.failed(e))?;
            for number in (first..).zip(part.iter()).filter(|(_, mark)| **mark == 1).map(|(number, _)| number) {
                if trusts(number) {
                    done.insert(number);
                } else {
                    marks.write_all_at(&[0], number).map_err(|e| self.failed(e))?;
                }
            }
        }
        Ok(done)
    }

    fn finish(&self) -> Result<u64, SinkError> {
        if let (Some((array, _)), true) = (&self.files, self.is_synced) {
            array.sync_all().map_err(|e| self.failed(e))?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::DType;
    use crate::array::grid::for_each_cell;
    use crate::config::{CodecName, CodecSpec};
    use crate::operators::testing::Random;
    use crate::zarr::store::tests::Scratch;

    fn layout(shape: &[u64], object: &[u64]) -> OutputLayout {
        OutputLayout {
            shape: shape.to_vec(),
            dtype: DType::U16,
            chunks: object.to_vec(),
            shards: None,
            codec: CodecSpec { name: CodecName::None, level: None },
            zarr_format: 3,
            dimension_names: vec![None; shape.len()],
            attributes: Default::default(),
            points: None,
            is_remote: false,
        }
    }

    /// Every object in C order: the number of each cell in the array, what lies outside 0xffff.
    fn values(layout: &OutputLayout, object: &[u64]) -> Vec<u8> {
        let full = layout.object_shape();
        let mut out = Vec::new();
        for at in 0..full.iter().product::<u64>() {
            let (mut rest, mut number, mut scale, mut is_inside) = (at, 0, 1, true);
            for axis in (0..full.len()).rev() {
                let x = object[axis] * full[axis] + rest % full[axis];
                rest /= full[axis];
                is_inside &= x < layout.shape[axis];
                number += x * scale;
                scale *= layout.shape[axis];
            }
            out.extend(if is_inside { number as u16 } else { u16::MAX }.to_ne_bytes());
        }
        out
    }

    #[test]
    fn any_grid_makes_one_file() {
        let mut random = Random::new(4);
        for _ in 0..60 {
            let rank = random.below(4) as usize;
            let shape: Vec<u64> = (0..rank).map(|_| 1 + random.below(7)).collect();
            let object: Vec<u64> = shape.iter().map(|n| 1 + random.below(n + 2)).collect();
            let layout = layout(&shape, &object);
            let scratch = Scratch::new();
            let mut cells = Vec::new();
            for_each_cell::<()>(&layout.object_grid().all(), |at| {
                cells.push(at.to_vec());
                Ok(())
            })
            .unwrap();
            if rank == 0 {
                cells = vec![Vec::new()];
            }
            // In any order, and in two runs.
            (1..cells.len()).for_each(|i| cells.swap(i, random.below(i as u64 + 1) as usize));
            let half = cells.len() / 2;
            let (mut sum, first) = (0, create(&scratch.0, layout.clone(), true).unwrap());
            assert!(first.resume(&(0..u64::MAX), &|_| true).unwrap().is_empty());
            for at in &cells[..half] {
                sum += first.put(at, &values(&layout, at)).unwrap();
            }
            drop(first);
            let second = create(&scratch.0, layout.clone(), true).unwrap();
            assert_eq!(second.resume(&(0..u64::MAX), &|_| true).unwrap().len(), half);
            // What the ledger does not know is put again.
            let known = cells[..half / 2].iter().map(|at| layout.object_number(at)).collect::<HashSet<_>>();
            assert_eq!(second.resume(&(0..u64::MAX), &|number| known.contains(&number)).unwrap(), known);
            assert_eq!(second.resume(&(0..u64::MAX), &|_| true).unwrap(), known);
            for at in &cells[half / 2..] {
                sum += second.put(at, &values(&layout, at)).unwrap();
            }
            second.finish().unwrap();
            assert!(second.put(&vec![99; rank.max(1)], &[]).is_err());
            let bytes = std::fs::read(scratch.0.join(ARRAY)).unwrap();
            let header = npy::Header::parse(&bytes).unwrap();
            assert_eq!((header.shape, header.dtype, header.data % 64), (shape.clone(), DType::U16, 0));
            let count = shape.iter().product::<u64>();
            let want: Vec<u8> = (0..count as u16).flat_map(u16::to_ne_bytes).collect();
            assert!(bytes[header.data..] == want, "{shape:?} by {object:?}");
            assert!(sum >= 2 * count);
        }
    }

    #[test]
    fn objects_are_made_of_long_runs() {
        // Rows of 4416 bytes: whole ones, as many as a chunk has.
        assert_eq!(objects(&[50, 1104, 1104], &[50, 256, 256], 4), [2, 256, 1104]);
        assert_eq!(objects(&[100_000, 100_000], &[1000, 1000], 4), [32, 17_000]);
        assert_eq!(objects(&[10], &[3], 8), [10]);
        assert_eq!(objects(&[7, 5, 3], &[1, 1, 1], 1), [7, 5, 3]);
        assert_eq!(objects(&[1 << 40], &[1 << 20], 8), [1 << 20]);
        assert_eq!(objects(&[0, 5], &[1, 5], 8), [1, 5]);
        assert!(objects(&[], &[], 8).is_empty());
    }
}
