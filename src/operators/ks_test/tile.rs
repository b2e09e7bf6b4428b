//! The walk over a block: column tiles narrow enough for the cache, row by row within a tile.
//!
//! Two rings of rows are kept. One holds sorted amplitudes of the rows that the current one is tested against. The other
//! holds results, [row][offset][column], of each row against its *forward* neighbours (later rows, and later columns of the
//! same row); the backward half of a pixel's window is read from the rows before, because k(x, y) = k(y, x). Rows of the
//! halo above the core are tested only against rows of the core. Windows so large that the second ring would not stay small
//! are tested whole, row for row. What the second ring holds is its owner's: `counts`, or bits (`within`).

use std::sync::atomic::{AtomicBool, Ordering};

use super::kernel::{self, Form, Key, LANES};
use super::load::Source;
use super::pair;
use crate::array::Buffer;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::operators::{OperatorError, Workspace};

/// Widest tile, and what the rings of results and of keys should stay below while tiles are wider than the narrowest.
const WIDEST: usize = 256;
const NARROWEST: usize = 64;
const CACHED_BYTES: usize = 192 << 10;
/// A ring of results beyond this (at the narrowest tile) costs more than the symmetry saves.
const MAX_RING_BYTES: usize = 8 << 20;

/// The image stack and the window.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Half window along azimuth and range.
    pub half: (usize, usize),
    pub images: usize,
    /// Size of the image, not of the block.
    pub rows: i64,
    pub cols: i64,
}

impl Geometry {
    pub fn window(&self) -> (usize, usize) {
        (2 * self.half.0 + 1, 2 * self.half.1 + 1)
    }

    /// Offsets of a window, or of its forward half: later columns of the row itself, then later lines.
    pub fn planes(&self, symmetric: bool) -> usize {
        let (height, breadth) = self.window();
        if symmetric { self.half.1 + self.half.0 * breadth } else { height * breadth }
    }
}

/// What the results of a tile are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Results {
    /// A byte each.
    Counts,
    /// A bit each.
    Bits,
}

/// Lengths of the rings for tiles of up to `width` columns.
pub struct Layout {
    width: usize,
    pub symmetric: bool,
    key_rows: usize,
    /// Rows of results.
    pub rows: usize,
    /// Offsets per row of results.
    pub planes: usize,
    /// Columns from one image (or offset) to the next: tile, halo on both sides, and slack for whole vectors.
    pub stride: usize,
    /// Samples lie by column, this far apart, to be compared one pair at a time.
    pub by_pair: Option<usize>,
    /// Elements of a row of keys.
    key_len: usize,
    results: Results,
}

fn stride_for(geometry: &Geometry, width: usize) -> usize {
    let columns = (width + 2 * geometry.half.1 + 2 * LANES).next_multiple_of(LANES);
    // An odd number of cache lines, so that the rows of a column do not share a cache set.
    if (columns / LANES).is_multiple_of(2) { columns + LANES } else { columns }
}

impl Layout {
    fn new(geometry: &Geometry, cols: usize, key_bytes: usize, results: Results) -> Self {
        let a = geometry.half.0;
        let height = geometry.window().0;
        let by_pair = (results == Results::Counts && geometry.images >= pair::PAYS).then(|| pair::sample_len(geometry.images));
        let key_len = |stride: usize| stride * by_pair.unwrap_or(geometry.images);
        let bytes = |stride: usize| if results == Results::Bits { stride / 8 } else { stride };
        let forward = geometry.planes(true);
        let symmetric = (a + 1) * forward * bytes(stride_for(geometry, NARROWEST)) <= MAX_RING_BYTES;
        let planes = geometry.planes(symmetric);
        let (key_rows, rows) = if symmetric { (a + 1, a + 1) } else { (height, 1) };
        let is_cached = |width: usize| {
            let stride = stride_for(geometry, width);
            rows * planes * bytes(stride) <= CACHED_BYTES && key_rows * key_len(stride) * key_bytes <= 2 * CACHED_BYTES
        };
        let mut width = WIDEST;
        while width > NARROWEST && !is_cached(width) {
            width /= 2;
        }
        let width = width.min(cols.max(1));
        let stride = stride_for(geometry, width);
        Self { width, symmetric, key_rows, rows, planes, stride, by_pair, key_len: key_len(stride), results }
    }

    /// Elements of the row that is being sorted before its samples go to their places by column.
    fn sorted_len(&self, geometry: &Geometry) -> usize {
        if self.by_pair.is_some() { geometry.images * self.stride } else { 0 }
    }

    /// Bytes that say which columns of a row have a valid pixel: a byte each, then a bit each.
    fn valid_len(&self) -> usize {
        self.stride + self.stride / 8 + 4
    }

    /// Bytes from one offset to the next.
    pub fn plane_bytes(&self) -> usize {
        if self.results == Results::Bits { self.stride / 8 } else { self.stride }
    }

    /// Bytes of keys, of the validity of their columns, of results, and of one pixel's window.
    fn bytes(&self, geometry: &Geometry, key_bytes: usize) -> [usize; 4] {
        let (height, breadth) = geometry.window();
        [
            (self.key_rows * self.key_len + self.sorted_len(geometry)) * key_bytes,
            self.key_rows * self.valid_len(),
            self.rows * self.planes * self.plane_bytes(),
            height * breadth,
        ]
    }
}

/// Working memory for a core with so many columns, in bytes. `has_masks`: selections may be all that is asked for.
pub fn scratch_bytes(geometry: &Geometry, cols: u64, key_bytes: usize, has_masks: bool) -> u64 {
    let cols = usize::try_from(cols).unwrap_or(WIDEST);
    let layout = |results, key_bytes| Layout::new(geometry, cols, key_bytes, results).bytes(geometry, key_bytes);
    // Narrow keys may allow wider tiles.
    let sum = |bytes: [usize; 4]| bytes.iter().map(|b| capacity_for(*b) as u64).sum::<u64>();
    let most = |results| sum(layout(results, 4)).max(sum(layout(results, key_bytes)));
    let masks = if has_masks { most(Results::Bits) + super::within::cell_bytes(geometry) } else { 0 };
    most(Results::Counts).max(masks)
}

/// The part of a pixel's window that lies in the image.
pub struct Window {
    pub lines: (usize, usize),
    pub cells: (usize, usize),
    height: usize,
    breadth: usize,
}

impl Window {
    pub fn new(geometry: &Geometry, row: i64, col: i64) -> Self {
        let clip = |at: i64, half: usize, len: i64| {
            let half = half as i64;
            ((half - at).max(0) as usize, (len - at + half).min(2 * half + 1) as usize)
        };
        let (height, breadth) = geometry.window();
        let lines = clip(row, geometry.half.0, geometry.rows);
        Self { lines, cells: clip(col, geometry.half.1, geometry.cols), height, breadth }
    }

    pub fn is_inside(&self) -> bool {
        self.lines == (0, self.height) && self.cells == (0, self.breadth)
    }

    pub fn each_outside(&self, mut visit: impl FnMut(usize)) {
        for line in 0..self.height {
            for cell in 0..self.breadth {
                let inside = (self.lines.0..self.lines.1).contains(&line) && (self.cells.0..self.cells.1).contains(&cell);
                if !inside {
                    visit(line * self.breadth + cell);
                }
            }
        }
    }
}

/// The working memory of a block and the walk over its tiles.
pub struct Tiles<'g, K> {
    pub geometry: &'g Geometry,
    pub layout: Layout,
    pub form: Form,
    network: &'g [(u8, u8)],
    core: [(i64, i64); 2],
    keys: Buffer,
    /// 255 for columns without a valid pixel, per row of keys.
    invalid: Buffer,
    key: std::marker::PhantomData<K>,
}

/// A row of a tile: columns `left..right`, and whether it belongs to the core.
#[derive(Clone, Copy)]
pub struct Row {
    pub row: i64,
    pub left: i64,
    pub right: i64,
    pub is_core: bool,
}

/// Sixteen columns against those at one offset.
pub struct Sixteen {
    pub plane: usize,
    /// The first column: `left - half window + column` in the image.
    pub column: usize,
    /// Lines down to the neighbours, and where both lie in a row of keys.
    pub line: i64,
    pub here: usize,
    pub there: usize,
}

impl<'g, K: Key> Tiles<'g, K> {
    /// With buffers for the results and for one pixel's window.
    pub fn new(
        geometry: &'g Geometry,
        network: &'g [(u8, u8)],
        core: [(i64, i64); 2],
        results: Results,
        work: &mut Workspace<'_>,
    ) -> Result<(Self, Buffer, Buffer), BudgetError> {
        let layout = Layout::new(geometry, (core[1].1 - core[1].0) as usize, size_of::<K>(), results);
        let [keys, invalid, counts, pixel] = layout.bytes(geometry, size_of::<K>());
        let tiles = Self {
            geometry,
            network,
            core,
            form: kernel::form(),
            keys: work.buffer(keys)?,
            invalid: work.buffer(invalid)?,
            layout,
            key: std::marker::PhantomData,
        };
        Ok((tiles, work.buffer(counts)?, work.buffer(pixel)?))
    }

    /// Calls `each` for every row whose results are needed, in order, tile by tile, once its neighbours are loaded.
    pub fn run(&mut self, source: &Source<'_>, stop: &AtomicBool, mut each: impl FnMut(&Self, Row)) -> Result<(), OperatorError> {
        let [(first_row, last_row), (first_col, last_col)] = self.core;
        let width = self.layout.width as i64;
        let mut left = first_col;
        while left < last_col {
            let right = (left + width).min(last_col);
            let above = self.geometry.half.0 as i64;
            let mut loaded = (first_row - above).max(0);
            // By symmetry the rows above the core are tested forward, for the core's rows to read.
            let start = if self.layout.symmetric { loaded } else { first_row };
            for row in start..last_row {
                if stop.load(Ordering::Relaxed) {
                    return Err(BudgetError::Stopped.into());
                }
                while loaded < (row + above + 1).min(self.geometry.rows) {
                    self.load(source, loaded, left, right);
                    loaded += 1;
                }
                each(self, Row { row, left, right, is_core: row >= first_row });
            }
            left = right;
        }
        Ok(())
    }

    /// Sorted amplitudes of a row, [image][column] or by pair [column][image]: column `c` of the tile's padded columns is at
    /// `LANES + c`.
    fn load(&mut self, source: &Source<'_>, row: i64, left: i64, right: i64) {
        let (stride, images, half) = (self.layout.stride, self.geometry.images, self.geometry.half.1 as i64);
        let slot = row as usize % self.layout.key_rows;
        let (rows, sorted) = self.keys.as_mut_slice_of::<K>().split_at_mut(self.layout.key_rows * self.layout.key_len);
        let row_keys = &mut rows[slot * self.layout.key_len..][..self.layout.key_len];
        let keys = if self.layout.by_pair.is_some() { &mut *sorted } else { &mut *row_keys };
        let keys = &mut keys[..images * stride];
        let (invalid, valid) = self.invalid[slot * self.layout.valid_len()..][..self.layout.valid_len()].split_at_mut(stride);
        let cols = (left - half).max(0)..(right + half).min(self.geometry.cols);
        let before = LANES + (cols.start - (left - half)) as usize;
        let after = before + (cols.end - cols.start) as usize;
        // Columns that no pixel has are never read as results; zeros keep their lanes cheap.
        for image in keys.chunks_exact_mut(stride) {
            image[..before].fill(K::zeroed());
            image[after..].fill(K::zeroed());
        }
        invalid[..before].fill(255);
        invalid[after..].fill(255);
        source.load(row, cols, images, keys, (stride, before), invalid);
        for (bits, bytes) in valid.iter_mut().zip(invalid.chunks(8)) {
            *bits = bytes.iter().enumerate().fold(0, |bits, (n, byte)| bits | u8::from(*byte == 0) << n);
        }
        kernel::sort_columns(keys, stride, self.network);
        if let Some(len) = self.layout.by_pair {
            for (column, sample) in row_keys.chunks_exact_mut(len).enumerate() {
                for (image, value) in sample[..images].iter_mut().enumerate() {
                    *value = sorted[image * stride + column];
                }
                sample[images..].fill(K::of(f64::INFINITY));
            }
        }
    }

    /// Sorted amplitudes of a row that is loaded.
    pub fn keys(&self, row: i64) -> &[K] {
        &self.keys.as_slice_of::<K>()[row as usize % self.layout.key_rows * self.layout.key_len..][..self.layout.key_len]
    }

    /// 255 for the columns of a loaded row without a valid pixel.
    pub fn invalid(&self, row: i64) -> &[u8] {
        &self.invalid[row as usize % self.layout.key_rows * self.layout.valid_len()..][..self.layout.stride]
    }

    /// Sixteen columns of a loaded row from `column` on: bits of those that have a valid pixel, the first lowest.
    #[inline(always)]
    pub fn valid(&self, row: i64, column: usize) -> u16 {
        let at = row as usize % self.layout.key_rows * self.layout.valid_len() + self.layout.stride + column / 8;
        let bits: [u8; 4] = std::array::from_fn(|n| self.invalid[at..at + 4][n]);
        (u32::from_le_bytes(bits) >> (column % 8)) as u16
    }

    /// Where a row's results lie in their ring, in rows.
    pub fn slot(&self, row: i64) -> usize {
        row as usize % self.layout.rows
    }

    /// All columns of a row against their neighbours whose results somebody reads: of the forward half of the window, or of
    /// all of it.
    #[inline(always)]
    pub fn each_sixteen(&self, at: Row, mut visit: impl FnMut(Sixteen)) {
        let Row { row, left, right, .. } = at;
        let (a, r) = (self.geometry.half.0 as i64, self.geometry.half.1 as i64);
        let breadth = self.geometry.window().1;
        let width = right - left;
        let symmetric = self.layout.symmetric;
        let first_line = if symmetric { (self.core[0].0 - row).max(0) } else { (-row).max(-a) };
        let last_line = a.min(self.geometry.rows - 1 - row);
        for column in (0..width + 2 * r).step_by(LANES) {
            let here = LANES + column as usize;
            for line in first_line..=last_line {
                let first = if symmetric && line == 0 { 1 } else { -r };
                for shift in first..=r {
                    let plane = if !symmetric {
                        (line + a) as usize * breadth + (shift + r) as usize
                    } else if line == 0 {
                        (shift - 1) as usize
                    } else {
                        r as usize + (line - 1) as usize * breadth + (shift + r) as usize
                    };
                    // The tile's own columns, and those that look forward into the tile.
                    let (from, to) = match symmetric {
                        true => (r - shift.max(0), r + width + (-shift).max(0)),
                        false => (r, r + width),
                    };
                    if column + LANES as i64 > from && column < to {
                        visit(Sixteen { plane, column: column as usize, line, here, there: (here as i64 + shift) as usize });
                    }
                }
            }
        }
    }
}
