//! Where counts go: as they are, as distances or p values, or as bits of those that are selected.

use super::table::Expansion;
use super::tile::{Geometry, Window};
use crate::array::{Buffer, Region};
use crate::operators::OperatorError;

/// Where one output goes.
pub struct Sink<'a> {
    values: Values<'a>,
    rows: (i64, i64),
    cols: (i64, i64),
}

enum Values<'a> {
    Counts(&'a mut [u8]),
    /// Bits, by the counts that are selected.
    Mask(&'a mut [u8], &'a [bool; 256]),
    Singles(&'a mut [f32], &'a Expansion),
    Doubles(&'a mut [f64], &'a Expansion),
}

impl<'a> Sink<'a> {
    /// A mask of the counts that are selected: `region` is azimuth and range of the pixels, and the whole mask.
    pub fn mask(buffer: &'a mut Buffer, region: &Region, selected: &'a [bool; 256]) -> Self {
        Self { values: Values::Mask(buffer, selected), rows: region.axis(0), cols: region.axis(1) }
    }

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
    pub fn put(&mut self, row: i64, col: i64, counts: &[u8], window: &Window) {
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
            Values::Mask(out, selected) => {
                let bytes = counts.len().div_ceil(8);
                for (byte, counts) in out[pixel as usize * bytes..][..bytes].iter_mut().zip(counts.chunks(8)) {
                    let bit = |(i, count): (usize, &u8)| u8::from(selected[usize::from(*count)]) << i;
                    *byte = counts.iter().enumerate().map(bit).fold(0, |byte, bit| byte | bit);
                }
            }
            Values::Singles(out, expansion) => expand!(out, expansion.single, expansion.outside.map(|v| v as f32)),
            Values::Doubles(out, expansion) => expand!(out, expansion.double, expansion.outside),
        }
    }
}
