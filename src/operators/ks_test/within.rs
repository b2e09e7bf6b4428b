//! Which cells of each pixel's window a test selects, without their counts: whether k is at most a limit takes 2 (N - limit)
//! compares a pair, the count itself about 2 N (k + 1).
//!
//! The ring holds a bit a pair, [row][offset][column]. A mask has a bit a cell, [column][cell]: eight columns of eight cells
//! are turned at a time.

use super::kernel::{Key, LANES};
use super::tile::{Geometry, Row, Tiles};
use crate::array::buffer::capacity_for;
use crate::array::{Buffer, Region};

/// The cells with k up to `limit`, or of all that are tested the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub limit: usize,
    pub is_inverse: bool,
}

impl Limit {
    /// `selected`: by count. `None` where no limit parts the counts.
    pub fn of(selected: &[bool; 256], images: usize) -> Option<Self> {
        let counts = &selected[..=images];
        let is_inverse = !counts[0];
        let limit = counts.iter().take_while(|s| **s != is_inverse).count() - 1;
        counts[limit + 1..].iter().all(|s| *s == is_inverse).then_some(Self { limit, is_inverse })
    }
}

/// Where the bits of a cell lie: of eight columns, in the ring or (itself) among the valid columns of its row.
#[derive(Clone, Copy, Default, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
struct Cell {
    /// Byte of the offset's first column; [`NOWHERE`] outside the image.
    plane: usize,
    /// Columns from the pixel to the one whose bit it is.
    shift: isize,
}

const NOWHERE: usize = usize::MAX;
/// The pixel itself.
const ITSELF: usize = usize::MAX - 1;

/// Bytes for the cells of a window.
pub fn cell_bytes(geometry: &Geometry) -> u64 {
    let (height, breadth) = geometry.window();
    capacity_for(height * breadth * size_of::<Cell>()) as u64
}

/// A mask being written.
pub struct Mask<'a> {
    out: &'a mut [u8],
    cols: (i64, i64),
    first_row: i64,
    limit: Limit,
}

impl<'a> Mask<'a> {
    /// `region`: azimuth and range of the pixels, and the whole mask.
    pub fn new(buffer: &'a mut Buffer, region: &Region, limit: Limit) -> Self {
        Self { out: buffer, cols: region.axis(1), first_row: region.start[0], limit }
    }

    /// Computes a row's bits into the ring, and writes its masks when it belongs to the core. `cells` is working memory.
    pub fn row<K: Key>(&mut self, tiles: &Tiles<'_, K>, at: Row, ring: &mut Buffer, cells: &mut Buffer) {
        let layout = &tiles.layout;
        let images = tiles.geometry.images;
        let own = tiles.keys(at.row);
        let bytes = layout.planes * layout.plane_bytes();
        let bits = &mut ring[tiles.slot(at.row) * bytes..][..bytes];
        tiles.each_sixteen(at, |pairs| {
            let other = tiles.keys(at.row + pairs.line);
            let within =
                K::within(tiles.form, &own[pairs.here..], &other[pairs.there..], layout.stride, images, self.limit.limit);
            let selected = if self.limit.is_inverse { !within } else { within };
            let tested = tiles.valid(at.row, pairs.here) & tiles.valid(at.row + pairs.line, pairs.there);
            let byte = pairs.plane * layout.plane_bytes() + pairs.column / 8;
            bits[byte..byte + 2].copy_from_slice(&(selected & tested).to_le_bytes());
        });
        if at.is_core {
            let cells = &mut cells.as_mut_slice_of::<Cell>()[..tiles.geometry.planes(false)];
            find_cells(tiles, at.row, cells);
            self.turn(tiles, at, ring, cells);
        }
    }

    /// Turns the bits of a row into masks.
    fn turn<K: Key>(&mut self, tiles: &Tiles<'_, K>, at: Row, ring: &[u8], cells: &[Cell]) {
        let half = tiles.geometry.half.1;
        let bytes = cells.len().div_ceil(8);
        let width = (self.cols.1 - self.cols.0) as usize;
        let row = (at.row - self.first_row) as usize * width;
        for col in (at.left..at.right).step_by(8) {
            let column = half + (col - at.left) as usize;
            let itself = match self.limit.is_inverse {
                true => 0,
                false => tiles.valid(at.row, LANES + column),
            };
            let count = (at.right - col).min(8) as usize;
            let out = &mut self.out[(row + (col - self.cols.0) as usize) * bytes..][..count * bytes];
            for (byte, cells) in cells.chunks(8).enumerate() {
                let mut block = 0u64;
                for (n, cell) in cells.iter().enumerate() {
                    let bits = match cell.plane {
                        NOWHERE => 0,
                        ITSELF => itself,
                        plane => {
                            let from = (column as isize + cell.shift) as usize;
                            let at = plane + from / 8;
                            u16::from_le_bytes([ring[at], ring[at + 1]]) >> (from % 8)
                        }
                    };
                    block |= u64::from(bits as u8) << (8 * n);
                }
                let block = transposed(block).to_le_bytes();
                for (pixel, value) in block[..count].iter().enumerate() {
                    out[pixel * bytes + byte] = *value;
                }
            }
        }
    }
}

/// For each cell of a window in C order, where its bits are.
fn find_cells<K: Key>(tiles: &Tiles<'_, K>, row: i64, cells: &mut [Cell]) {
    let (a, r) = (tiles.geometry.half.0 as i64, tiles.geometry.half.1 as i64);
    let layout = &tiles.layout;
    let breadth = tiles.geometry.window().1;
    let plane = |row: i64, plane: i64| (tiles.slot(row) * layout.planes + plane as usize) * layout.plane_bytes();
    for (n, cell) in cells.iter_mut().enumerate() {
        let (line, shift) = ((n / breadth) as i64 - a, (n % breadth) as i64 - r);
        let forward = |line: i64, shift: i64| if line == 0 { shift - 1 } else { r + (line - 1) * breadth as i64 + shift + r };
        *cell = if !(0..tiles.geometry.rows).contains(&(row + line)) {
            Cell { plane: NOWHERE, shift: 0 }
        } else if (line, shift) == (0, 0) {
            Cell { plane: ITSELF, shift: 0 }
        } else if !layout.symmetric {
            Cell { plane: plane(row, n as i64), shift: 0 }
        } else if line > 0 || line == 0 && shift > 0 {
            Cell { plane: plane(row, forward(line, shift)), shift: 0 }
        } else {
            // What the earlier pixel found of this one.
            Cell { plane: plane(row + line, forward(-line, -shift)), shift: shift as isize }
        };
    }
}

/// Bit i of byte j becomes bit j of byte i.
fn transposed(mut block: u64) -> u64 {
    for (shift, mask) in [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)] {
        let swap = (block ^ (block >> shift)) & mask;
        block ^= swap ^ (swap << shift);
    }
    block
}
