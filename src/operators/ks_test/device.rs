//! `ks_test` on a device: amplitudes, sort and counts there; counts come back by offset (the forward half of the window,
//! which is half the bytes of k), and the worker turns them into k, dist and p with the code of the CPU path.
//!
//! Memory on the device for a part of r x c pixels: input, a sorted copy of the amplitudes, and 1 byte for each count.

use super::counts::Counts;
use super::{DType, KsMap};
use crate::array::{Buffer, Region};
use crate::compute::gpu::job::{Arg, Job, Launch, Program};
use crate::compute::gpu::kernels::{Kernel, Variant};
use crate::operators::{DeviceMap, DevicePart, MapTask, OperatorError, Workspace};

/// Columns and offsets that a thread block counts.
const TILE: i64 = 128;
const SPAN: i64 = 32;
/// Threads that sort in shared memory together: 254 doubles for each still fit the 48 KiB that every device has.
const SORTED: i64 = 16;
/// A pixel's sample up to this size stays in registers: twice, beside what else a thread holds, it spills nowhere.
const REGISTER_BYTES: usize = 128;

pub static KERNEL: Kernel =
    Kernel { name: "ks_test", source: include_str!("ks_test.cu"), entries: &["ks_sort", "ks_count"], variants };

fn variants() -> Vec<Variant> {
    let of = |images: usize, dtype: DType| {
        let is_double = compares_doubles(dtype);
        Variant { defines: defines(images, dtype, is_double), is_hot: is_in_registers(images, is_double) }
    };
    let mut list = vec![of(17, DType::C64), of(32, DType::C64), of(17, DType::F32), of(16, DType::C128), of(40, DType::C64)];
    list.extend([of(254, DType::F64), of(1, DType::U8)]);
    list.extend([DType::I8, DType::U16, DType::I16, DType::U32, DType::I32, DType::F16].map(|dtype| of(5, dtype)));
    list
}

/// Singles do not hold every value of these.
fn compares_doubles(dtype: DType) -> bool {
    matches!(dtype, DType::U32 | DType::I32 | DType::F64 | DType::C128)
}

fn is_in_registers(images: usize, is_double: bool) -> bool {
    images * if is_double { 8 } else { 4 } <= REGISTER_BYTES
}

fn defines(images: usize, dtype: DType, is_double: bool) -> Vec<(&'static str, String)> {
    let dtype = match dtype {
        DType::C64 => "DTYPE_C64",
        DType::C128 => "DTYPE_C128",
        DType::F16 => "DTYPE_F16",
        DType::F32 => "DTYPE_F32",
        DType::F64 => "DTYPE_F64",
        DType::I8 => "DTYPE_I8",
        DType::U16 => "DTYPE_U16",
        DType::I16 => "DTYPE_I16",
        DType::U32 => "DTYPE_U32",
        DType::I32 => "DTYPE_I32",
        // The others are refused when the step is bound.
        _ => "DTYPE_U8",
    };
    vec![
        ("IMAGES", images.to_string()),
        ("DTYPE", dtype.to_owned()),
        ("KEY", if is_double { "double" } else { "float" }.to_owned()),
        ("IN_REGISTERS", u8::from(is_in_registers(images, is_double)).to_string()),
        ("TILE", TILE.to_string()),
        ("SPAN", SPAN.to_string()),
        ("SORTED", SORTED.to_string()),
    ]
}

/// The counts of a part: which rows, and by which offsets.
struct Rows {
    first: i64,
    count: i64,
    symmetric: bool,
}

impl KsMap {
    /// Half of the offsets on rows that reach above the part, or all of them on its own rows: whichever is less.
    fn rows(&self, need: &Region, part: &Region) -> Rows {
        let (first, last) = part.axis(self.spatial[0]);
        let above = (first - self.geometry.half.0 as i64).max(need.start[self.spatial[0]]);
        let planes = |symmetric| self.geometry.planes(symmetric) as i128;
        match i128::from(last - above) * planes(true) <= i128::from(last - first) * planes(false) {
            true => Rows { first: above, count: last - above, symmetric: true },
            false => Rows { first, count: last - first, symmetric: false },
        }
    }
}

impl DeviceMap for KsMap {
    fn is_exact(&self) -> bool {
        true
    }

    fn needs(&self, given: &[Region], part: &Region) -> Vec<Region> {
        let mut need = given[0].clone();
        for (axis, half) in self.spatial.into_iter().zip([self.geometry.half.0 as i64, self.geometry.half.1 as i64]) {
            need.start[axis] = need.start[axis].max(part.start[axis] - half);
            need.stop[axis] = need.stop[axis].min(part.stop[axis] + half);
        }
        vec![need]
    }

    fn job(&self, needs: &[Region], part: &Region) -> Option<Job> {
        let need = &needs[0];
        let [azimuth, range] = self.spatial;
        let int = |n: i64| i32::try_from(n).ok();
        let (rows, cols) = (need.len(azimuth) as i64, need.len(range) as i64);
        let counted = self.rows(need, part);
        let (height, breadth) = self.geometry.window();
        let lines = if counted.symmetric { self.geometry.half.0 + 1 } else { height } as i64;
        let tiles = (cols + TILE - 1) / TILE;
        let spans = (breadth as i64 + SPAN - 1) / SPAN;
        let count_blocks = int(counted.count.checked_mul(lines)?.checked_mul(spans)?.checked_mul(tiles)?)?;
        let pixels = rows.checked_mul(cols)?;
        let images = self.geometry.images;
        let is_double = compares_doubles(self.dtype);
        let sort_threads = if is_in_registers(images, is_double) { TILE } else { SORTED };
        let planes = self.geometry.planes(counted.symmetric);

        let bytes = |parts: &[usize]| parts.iter().try_fold(1usize, |n, p| n.checked_mul(*p)).filter(|n| *n < 1 << 46);
        let input = bytes(&[pixels as usize, images, self.dtype.size()])?;
        let keys = bytes(&[pixels as usize, images, if is_double { 8 } else { 4 }])?;
        let counts = bytes(&[counted.count as usize, planes, cols as usize])?;
        let mut strides = [1i64; 3];
        for axis in (0..2).rev() {
            strides[axis] = strides[axis + 1].checked_mul(need.len(axis + 1) as i64)?;
        }
        let missing = self.missing.filter(|m| m.dtype() == self.dtype).map(|m| m.parts());
        let (re, im) = missing.unwrap_or((0.0, 0.0));
        const INPUT: Arg = Arg::Buffer(0);
        const COUNTS: Arg = Arg::Buffer(1);
        const INVALID: Arg = Arg::Buffer(2);
        const KEYS: Arg = Arg::Buffer(3);
        let sort = Launch {
            entry: "ks_sort",
            blocks: int((pixels.checked_add(sort_threads)? - 1) / sort_threads)? as u32,
            threads: sort_threads as u32,
            args: vec![
                INPUT,
                Arg::I64(strides[azimuth]),
                Arg::I64(strides[range]),
                Arg::I64(strides[self.image]),
                Arg::I64(pixels),
                Arg::I32(int(cols)?),
                KEYS,
                INVALID,
                Arg::I32(i32::from(missing.is_some())),
                Arg::F64(re),
                Arg::F64(im),
            ],
        };
        let count = Launch {
            entry: "ks_count",
            blocks: count_blocks as u32,
            threads: TILE as u32,
            args: vec![
                KEYS,
                INVALID,
                COUNTS,
                Arg::I32(int(rows)?),
                Arg::I32(int(cols)?),
                Arg::I32(int(counted.first - need.start[azimuth])?),
                Arg::I32(self.geometry.half.0 as i32),
                Arg::I32(self.geometry.half.1 as i32),
                Arg::I32(i32::from(counted.symmetric)),
                Arg::I32(int(tiles)?),
            ],
        };
        Some(Job {
            program: Program { kernel: &KERNEL, defines: defines(images, self.dtype, is_double) },
            inputs: vec![input],
            outputs: vec![counts, pixels as usize],
            scratch: vec![keys],
            launches: vec![sort, count],
        })
    }

    fn split(&self, part: &Region) -> Option<[Region; 2]> {
        part.halves(self.spatial)
    }

    fn finish(
        &self,
        part: &DevicePart<'_>,
        staging: &[u8],
        task: &MapTask<'_>,
        outputs: &mut [Option<Buffer>],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let need = &part.needs[0];
        let [azimuth, range] = self.spatial;
        let counted = self.rows(need, part.core);
        let (rows, cols) = (need.axis(azimuth), need.axis(range));
        let width = (cols.1 - cols.0) as usize;
        let counts = Counts {
            geometry: &self.geometry,
            symmetric: counted.symmetric,
            stride: width,
            rows: counted.count as usize,
            first_row: counted.first,
            values: &staging[part.job.staged(1)],
        };
        let invalid = &staging[part.job.staged(2)];
        let (height, breadth) = self.geometry.window();
        let mut pixel = work.buffer(height * breadth)?;
        let mut sinks = self.sinks(task, outputs)?;
        for row in part.core.start[azimuth]..part.core.stop[azimuth] {
            let invalid = &invalid[(row - rows.0) as usize * width..][..width];
            for col in part.core.start[range]..part.core.stop[range] {
                let column = (col - cols.0) as usize;
                counts.expand((row, col), column, invalid[column], &mut pixel, &mut sinks);
            }
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        let (height, breadth) = self.geometry.window();
        crate::array::buffer::capacity_for(height * breadth) as u64
    }
}
