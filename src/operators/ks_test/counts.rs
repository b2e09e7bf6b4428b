//! Counts of a block, and how a pixel's window is put together from them.

use super::kernel::{Key, LANES};
use super::sink::Sink;
use super::tile::{Geometry, Row, Tiles, Window};
use crate::array::Buffer;

/// Computes a row's counts into the ring, and writes its windows when it belongs to the core.
pub fn row<K: Key>(tiles: &Tiles<'_, K>, at: Row, ring: &mut Buffer, pixel: &mut [u8], sinks: &mut [Sink<'_>]) {
    let layout = &tiles.layout;
    let images = tiles.geometry.images;
    let (own, own_invalid) = (tiles.keys(at.row), tiles.invalid(at.row));
    let counts = &mut ring[tiles.slot(at.row) * layout.planes * layout.stride..][..layout.planes * layout.stride];
    let mut guess = (images / 5) as u8;
    tiles.each_sixteen(at, |pairs| {
        let (other, other_invalid) = (tiles.keys(at.row + pairs.line), tiles.invalid(at.row + pairs.line));
        let no_test: [u8; LANES] = std::array::from_fn(|i| own_invalid[pairs.here + i] | other_invalid[pairs.there + i]);
        let out = &mut counts[pairs.plane * layout.stride + pairs.column..][..LANES];
        if no_test == [255; LANES] {
            out.fill(255);
            return;
        }
        let k = match layout.by_pair {
            None => K::counts(tiles.form, &own[pairs.here..], &other[pairs.there..], layout.stride, images),
            Some(len) => std::array::from_fn(|lane| {
                let (u, v) = (&own[(pairs.here + lane) * len..][..len], &other[(pairs.there + lane) * len..][..len]);
                let k = K::pair(tiles.form, u, v, images, guess);
                // The counts of neighbours are alike.
                guess = ((7 * u16::from(guess) + u16::from(k) + 3) / 8) as u8;
                k
            }),
        };
        for lane in 0..LANES {
            out[lane] = k[lane] | no_test[lane];
        }
    });
    if at.is_core {
        let half = tiles.geometry.half.1;
        let counts = Counts {
            geometry: tiles.geometry,
            symmetric: layout.symmetric,
            stride: layout.stride,
            rows: layout.rows,
            first_row: 0,
            values: ring,
        };
        for col in at.left..at.right {
            let column = half + (col - at.left) as usize;
            counts.expand((at.row, col), column, own_invalid[LANES + column], pixel, sinks);
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
    /// Gathers the window of a pixel, which lies at `column` here, and writes it to the outputs. `pixel` holds a window.
    pub fn expand(&self, (row, col): (i64, i64), column: usize, invalid: u8, pixel: &mut [u8], sinks: &mut [Sink<'_>]) {
        let (a, r) = (self.geometry.half.0 as i64, self.geometry.half.1 as i64);
        let breadth = self.geometry.window().1;
        let stride = self.stride as i64;
        let column = column as i64;
        let planes = self.geometry.planes(self.symmetric) as i64;
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
