//! The walk over a block: column tiles narrow enough for the cache, row by row within a tile.
//!
//! Two rings of rows are kept. One holds sorted amplitudes of the rows that the current one is tested against. The other
//! holds counts, [row][offset][column], of each row against its *forward* neighbours (later rows, and later columns of the
//! same row); the backward half of a pixel's window is read from the rows before, because k(x, y) = k(y, x). Rows of the
//! halo above the core are tested only against rows of the core. Windows so large that the second ring would not stay small
//! are tested whole, row for row.

use std::sync::atomic::{AtomicBool, Ordering};

use super::kernel::{self, Key, LANES};
use super::load::Source;
use super::table::Expansion;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{Buffer, Region};
use crate::operators::{OperatorError, Workspace};

/// Widest tile, and what the rings of counts and of keys should stay below while tiles are wider than the narrowest.
const WIDEST: usize = 256;
const NARROWEST: usize = 64;
const CACHED_BYTES: usize = 192 << 10;
/// A ring of counts beyond this (at the narrowest tile) costs more than the symmetry saves.
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
}

/// Lengths of the rings for tiles of up to `width` columns.
struct Layout {
    width: usize,
    symmetric: bool,
    key_rows: usize,
    count_rows: usize,
    /// Offsets per row of counts.
    planes: usize,
    /// Columns from one image (or offset) to the next: tile, halo on both sides, and slack for whole vectors.
    stride: usize,
}

fn stride_for(geometry: &Geometry, width: usize) -> usize {
    let columns = (width + 2 * geometry.half.1 + 2 * LANES).next_multiple_of(2 * LANES);
    // An odd number of cache lines, so that the rows of a column do not share a cache set.
    if (columns / (2 * LANES)).is_multiple_of(2) { columns + 2 * LANES } else { columns }
}

impl Layout {
    fn new(geometry: &Geometry, cols: usize, key_bytes: usize) -> Self {
        let a = geometry.half.0;
        let height = geometry.window().0;
        let forward = Counts::planes(geometry, true);
        let count_bytes = |width: usize| (a + 1) * forward * stride_for(geometry, width);
        let symmetric = count_bytes(NARROWEST) <= MAX_RING_BYTES;
        let planes = Counts::planes(geometry, symmetric);
        let (key_rows, count_rows) = if symmetric { (a + 1, a + 1) } else { (height, 1) };
        let is_cached = |width: usize| {
            let stride = stride_for(geometry, width);
            count_rows * planes * stride <= CACHED_BYTES && key_rows * geometry.images * stride * key_bytes <= 2 * CACHED_BYTES
        };
        let mut width = WIDEST;
        while width > NARROWEST && !is_cached(width) {
            width /= 2;
        }
        let width = width.min(cols.max(1));
        Self { width, symmetric, key_rows, count_rows, planes, stride: stride_for(geometry, width) }
    }

    /// Bytes of keys, of the validity of their columns, of counts, and of one pixel's window.
    fn bytes(&self, geometry: &Geometry, key_bytes: usize) -> [usize; 4] {
        let (height, breadth) = geometry.window();
        [
            self.key_rows * geometry.images * self.stride * key_bytes,
            self.key_rows * self.stride,
            self.count_rows * self.planes * self.stride,
            height * breadth,
        ]
    }
}

/// Working memory for a core with so many columns, in bytes.
pub fn scratch_bytes(geometry: &Geometry, cols: u64, key_bytes: usize) -> u64 {
    let cols = usize::try_from(cols).unwrap_or(WIDEST);
    let layout = |key_bytes| Layout::new(geometry, cols, key_bytes).bytes(geometry, key_bytes);
    // Narrow keys may allow wider tiles.
    let sum = |bytes: [usize; 4]| bytes.iter().map(|b| capacity_for(*b) as u64).sum::<u64>();
    sum(layout(4)).max(sum(layout(key_bytes)))
}

/// Where one output goes.
pub struct Sink<'a> {
    values: Values<'a>,
    rows: (i64, i64),
    cols: (i64, i64),
}

enum Values<'a> {
    Counts(&'a mut [u8]),
    Singles(&'a mut [f32], &'a Expansion),
    Doubles(&'a mut [f64], &'a Expansion),
}

impl<'a> Sink<'a> {
    /// `region`: azimuth and range of the pixels, and the whole window. Without an expansion the counts themselves.
    pub fn new(
        buffer: &'a mut Buffer,
        region: &Region,
        expansion: Option<&'a Expansion>,
        wide: bool,
        geometry: &Geometry,
    ) -> Result<Self, OperatorError> {
        let (height, breadth) = geometry.window();
        if region.axis(2) != (0, height as i64) || region.axis(3) != (0, breadth as i64) {
            return Err(OperatorError::data(format!("ks_test computes whole windows, {region} is a part of one")));
        }
        let values = match expansion {
            None => Values::Counts(buffer),
            Some(expansion) if wide => Values::Doubles(buffer.as_mut_slice_of(), expansion),
            Some(expansion) => Values::Singles(buffer.as_mut_slice_of(), expansion),
        };
        Ok(Self { values, rows: region.axis(0), cols: region.axis(1) })
    }

    /// Writes one pixel's window.
    fn put(&mut self, row: i64, col: i64, counts: &[u8], window: &Window) {
        if row < self.rows.0 || row >= self.rows.1 || col < self.cols.0 || col >= self.cols.1 {
            return;
        }
        let pixel = (row - self.rows.0) * (self.cols.1 - self.cols.0) + (col - self.cols.0);
        let at = pixel as usize * counts.len();
        macro_rules! expand {
            ($out:expr, $table:expr, $outside:expr) => {{
                let out = &mut $out[at..at + counts.len()];
                for (value, count) in out.iter_mut().zip(counts) {
                    *value = $table[usize::from(*count)];
                }
                if let Some(outside) = $outside
                    && !window.is_inside()
                {
                    window.each_outside(|cell| out[cell] = outside);
                }
            }};
        }
        match &mut self.values {
            Values::Counts(out) => out[at..at + counts.len()].copy_from_slice(counts),
            Values::Singles(out, expansion) => expand!(out, expansion.single, expansion.outside.map(|v| v as f32)),
            Values::Doubles(out, expansion) => expand!(out, expansion.double, expansion.outside),
        }
    }
}

/// The part of a pixel's window that lies in the image.
struct Window {
    lines: (usize, usize),
    cells: (usize, usize),
    height: usize,
    breadth: usize,
}

impl Window {
    fn new(geometry: &Geometry, row: i64, col: i64) -> Self {
        let clip = |at: i64, half: usize, len: i64| {
            let half = half as i64;
            ((half - at).max(0) as usize, (len - at + half).min(2 * half + 1) as usize)
        };
        let (height, breadth) = geometry.window();
        let lines = clip(row, geometry.half.0, geometry.rows);
        Self { lines, cells: clip(col, geometry.half.1, geometry.cols), height, breadth }
    }

    fn is_inside(&self) -> bool {
        self.lines == (0, self.height) && self.cells == (0, self.breadth)
    }

    fn each_outside(&self, mut visit: impl FnMut(usize)) {
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
    geometry: &'g Geometry,
    network: &'g [(u8, u8)],
    core: [(i64, i64); 2],
    layout: Layout,
    use_avx2: bool,
    keys: Buffer,
    /// 255 for columns without a valid pixel, per row of keys.
    invalid: Buffer,
    counts: Buffer,
    pixel: Buffer,
    key: std::marker::PhantomData<K>,
}

impl<'g, K: Key> Tiles<'g, K> {
    pub fn new(
        geometry: &'g Geometry,
        network: &'g [(u8, u8)],
        core: [(i64, i64); 2],
        work: &mut Workspace<'_>,
    ) -> Result<Self, BudgetError> {
        let layout = Layout::new(geometry, (core[1].1 - core[1].0) as usize, size_of::<K>());
        let [keys, invalid, counts, pixel] = layout.bytes(geometry, size_of::<K>());
        Ok(Self {
            geometry,
            network,
            core,
            use_avx2: kernel::use_avx2(),
            keys: work.buffer(keys)?,
            invalid: work.buffer(invalid)?,
            counts: work.buffer(counts)?,
            pixel: work.buffer(pixel)?,
            layout,
            key: std::marker::PhantomData,
        })
    }

    pub fn run(&mut self, source: &Source<'_>, sinks: &mut [Sink<'_>], stop: &AtomicBool) -> Result<(), OperatorError> {
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
                self.count(row, left, right);
                if row >= first_row {
                    self.expand(row, left, right, sinks);
                }
            }
            left = right;
        }
        Ok(())
    }

    fn key_slot(&self, row: i64) -> usize {
        row as usize % self.layout.key_rows
    }

    /// Sorted amplitudes of a row: column `c` of the tile's padded columns is at `LANES + c`.
    fn load(&mut self, source: &Source<'_>, row: i64, left: i64, right: i64) {
        let (stride, images, half) = (self.layout.stride, self.geometry.images, self.geometry.half.1 as i64);
        let slot = self.key_slot(row);
        let keys = &mut self.keys.as_mut_slice_of::<K>()[slot * images * stride..][..images * stride];
        let invalid = &mut self.invalid[slot * stride..][..stride];
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
        kernel::sort_columns(keys, stride, self.network);
    }

    /// Counts of a row against its neighbours: the forward half of the window, or all of it.
    fn count(&mut self, row: i64, left: i64, right: i64) {
        let (stride, images) = (self.layout.stride, self.geometry.images);
        let (a, r) = (self.geometry.half.0 as i64, self.geometry.half.1 as i64);
        let breadth = self.geometry.window().1;
        let width = right - left;
        let symmetric = self.layout.symmetric;
        let keys = self.keys.as_slice_of::<K>();
        let slot_keys = |row: i64| &keys[(row as usize % self.layout.key_rows) * images * stride..][..images * stride];
        let slot_invalid = |row: i64| &self.invalid[(row as usize % self.layout.key_rows) * stride..][..stride];
        let count_slot = row as usize % self.layout.count_rows;
        let counts = &mut self.counts[count_slot * self.layout.planes * stride..][..self.layout.planes * stride];
        let (own, own_invalid) = (slot_keys(row), slot_invalid(row));

        let first_line = if symmetric { (self.core[0].0 - row).max(0) } else { (-row).max(-a) };
        let last_line = a.min(self.geometry.rows - 1 - row);
        for chunk in (0..width + 2 * r).step_by(LANES) {
            // Where the chunk's first column lies in a row of keys.
            let here = LANES + chunk as usize;
            for line in first_line..=last_line {
                let (other, other_invalid) = (slot_keys(row + line), slot_invalid(row + line));
                let first = if symmetric && line == 0 { 1 } else { -r };
                for shift in first..=r {
                    let plane = if !symmetric {
                        (line + a) as usize * breadth + (shift + r) as usize
                    } else if line == 0 {
                        (shift - 1) as usize
                    } else {
                        r as usize + (line - 1) as usize * breadth + (shift + r) as usize
                    };
                    // Columns whose count somebody reads: the tile's own, and those that look forward into the tile.
                    let (from, to) = match symmetric {
                        true => (r - shift.max(0), r + width + (-shift).max(0)),
                        false => (r, r + width),
                    };
                    if chunk + LANES as i64 <= from || chunk >= to {
                        continue;
                    }
                    let there = (here as i64 + shift) as usize;
                    let no_test: [u8; LANES] = std::array::from_fn(|i| own_invalid[here + i] | other_invalid[there + i]);
                    let out = &mut counts[plane * stride + chunk as usize..][..LANES];
                    if no_test == [255; LANES] {
                        out.fill(255);
                        continue;
                    }
                    let k = K::counts(self.use_avx2, &own[here..], &other[there..], stride, images);
                    for lane in 0..LANES {
                        out[lane] = k[lane] | no_test[lane];
                    }
                }
            }
        }
    }

    /// A row of the core: each pixel's window gathered from the ring of counts and written to the outputs.
    fn expand(&mut self, row: i64, left: i64, right: i64, sinks: &mut [Sink<'_>]) {
        let key_slot = self.key_slot(row);
        let invalid = &self.invalid[key_slot * self.layout.stride..][..self.layout.stride];
        let half = self.geometry.half.1;
        let counts = Counts {
            geometry: self.geometry,
            symmetric: self.layout.symmetric,
            stride: self.layout.stride,
            rows: self.layout.count_rows,
            first_row: 0,
            values: &self.counts,
        };
        for col in left..right {
            let column = half + (col - left) as usize;
            counts.expand((row, col), column, invalid[LANES + column], &mut self.pixel, sinks);
        }
    }
}

/// Counts by offset, [row][plane][column]: a plane is one offset of the window, or of its forward half when `symmetric`
/// (later columns of the row itself, then later lines).
pub struct Counts<'a> {
    pub geometry: &'a Geometry,
    pub symmetric: bool,
    /// Columns from one plane to the next.
    pub stride: usize,
    /// Row `first_row + i` of the image is row `i % rows` here.
    pub rows: usize,
    pub first_row: i64,
    pub values: &'a [u8],
}

impl Counts<'_> {
    /// Planes of a row.
    pub fn planes(geometry: &Geometry, symmetric: bool) -> usize {
        let (height, breadth) = geometry.window();
        if symmetric { geometry.half.1 + geometry.half.0 * breadth } else { height * breadth }
    }

    /// Gathers the window of a pixel, which lies at `column` here, and writes it to the outputs. `pixel` holds a window.
    pub fn expand(&self, (row, col): (i64, i64), column: usize, invalid: u8, pixel: &mut [u8], sinks: &mut [Sink<'_>]) {
        let (a, r) = (self.geometry.half.0 as i64, self.geometry.half.1 as i64);
        let breadth = self.geometry.window().1;
        let stride = self.stride as i64;
        let column = column as i64;
        let planes = Self::planes(self.geometry, self.symmetric) as i64;
        let slot = |row: i64| ((row - self.first_row) as usize % self.rows) as i64 * planes;
        let window = Window::new(self.geometry, row, col);
        if !window.is_inside() {
            pixel.fill(255);
        }
        let (from, to) = (window.cells.0 as i64, window.cells.1 as i64);
        for l in window.lines.0 as i64..window.lines.1 as i64 {
            let line = l - a;
            let out = &mut pixel[l as usize * breadth..][..breadth];
            // The counts of cells `cells` lie at `first + cell * step`.
            let mut gather = |cells: (i64, i64), first: i64, step: i64| {
                let (from, to) = (cells.0.max(from), cells.1.min(to));
                let mut at = first + from * step;
                for value in out.iter_mut().take(to.max(from) as usize).skip(from as usize) {
                    *value = self.values[at as usize];
                    at += step;
                }
            };
            let whole = (0, breadth as i64);
            // Forward cell m is plane `base + m` at this column; backward cell m is the mirrored plane `base - m` of the
            // earlier row, at the neighbour's column.
            let forward = |plane: i64| plane * stride + column;
            let backward = |plane: i64| plane * stride + column - r;
            if !self.symmetric {
                gather(whole, forward(slot(row) + l * breadth as i64), stride);
            } else if line > 0 {
                gather(whole, forward(slot(row) + r + (line - 1) * breadth as i64), stride);
            } else if line < 0 {
                gather(whole, backward(slot(row + line) + r + (-line - 1) * breadth as i64 + 2 * r), 1 - stride);
            } else {
                gather((r + 1, whole.1), forward(slot(row) - r - 1), stride);
                gather((0, r), backward(slot(row) + r - 1), 1 - stride);
            }
        }
        // A pixel against itself: 0, or no test.
        pixel[(a * breadth as i64 + r) as usize] = invalid;
        for sink in sinks.iter_mut() {
            sink.put(row, col, pixel, &window);
        }
    }
}
