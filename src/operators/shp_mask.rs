//! Masks of statistically homogeneous pixels: for each pixel of an image, which cells of the window around it belong to it.
//!
//! Packed, in the graph as on disk: uint8 (azimuth, range, bytes), the window's cells in C order, the first in the lowest
//! bit; attribute `window` says the window's shape. So a mask of 11 x 11 takes 16 bytes a pixel and nothing is converted.
//! `numpy.unpackbits(mask, axis=-1, count=121, bitorder="little")` gives the cells. A bool array (azimuth, range, window,
//! window), as other programs write, is read too.

use serde_json::{Map, Value, json};

use super::stack::Strided;
use super::{ArrayMeta, Ask, OutAxis};
use crate::array::DType;

/// Longest half window: keeps every product of window lengths far inside 64 bits.
pub const MAX_HALF_WINDOW: u64 = 4095;

/// A window around a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Half window along azimuth and range.
    pub half: (usize, usize),
}

impl Window {
    /// From the lengths of the window's axes, which are odd.
    pub fn new(height: u64, breadth: u64) -> Result<Self, String> {
        let half = |len: u64| (len % 2 == 1 && len / 2 <= MAX_HALF_WINDOW).then_some((len / 2) as usize);
        match (half(height), half(breadth)) {
            (Some(a), Some(r)) => Ok(Self { half: (a, r) }),
            _ => Err(format!(
                "a window has odd lengths of at most {}, so that a pixel lies in its middle; found {height} x {breadth}",
                2 * MAX_HALF_WINDOW + 1
            )),
        }
    }

    pub fn shape(&self) -> (usize, usize) {
        (2 * self.half.0 + 1, 2 * self.half.1 + 1)
    }

    pub fn cells(&self) -> usize {
        self.shape().0 * self.shape().1
    }

    /// Bytes of a packed mask.
    pub fn bytes(&self) -> usize {
        self.cells().div_ceil(8)
    }

    /// The attribute that a packed mask carries.
    pub fn attribute(&self) -> Value {
        json!([self.shape().0, self.shape().1])
    }

    pub fn packed_axis(&self) -> OutAxis {
        OutAxis::New { len: self.bytes() as u64, name: Some("window_bytes".to_owned()) }
    }
}

/// Which results of a test select a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    pub alpha: f64,
    /// p < alpha, not p >= alpha.
    pub is_rejected: bool,
}

impl Selection {
    /// False for NaN, and for the -1 that stands for "no test" in the documents' convention.
    pub fn holds(&self, p: f32) -> bool {
        let alpha = self.alpha as f32;
        p >= 0.0 && if self.is_rejected { p < alpha } else { p >= alpha }
    }

    /// By count, from the p of each; a count without p is no test.
    pub fn by_count(&self, p_table: &[f64]) -> [bool; 256] {
        std::array::from_fn(|k| p_table.get(k).is_some_and(|p| self.holds(*p as f32)))
    }

    fn rule(&self) -> &'static str {
        if self.is_rejected { "rejected" } else { "not-rejected" }
    }

    /// What a step may ask the test for.
    pub fn ask(&self) -> Ask {
        Ask { output: format!("selected ({}, alpha {})", self.rule(), self.alpha), selection: *self }
    }

    /// Puts it down in the attributes of a mask or count.
    pub fn note(&self, attributes: &mut Map<String, Value>) {
        attributes.insert("alpha".to_owned(), self.alpha.into());
        attributes.insert("rule".to_owned(), self.rule().into());
    }

    /// Whether a mask's attributes say that it was selected so.
    pub fn is_of(&self, attributes: &Map<String, Value>) -> bool {
        let text = |key: &str| attributes.get(key).and_then(Value::as_str);
        text("rule") == Some(self.rule()) && attributes.get("alpha").and_then(Value::as_f64) == Some(self.alpha)
    }
}

/// How a mask's cells are stored.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Packed,
    Bool,
}

/// The form and window of an array that is to be a mask.
pub fn recognise(meta: &ArrayMeta) -> Result<(Form, Window), String> {
    let name = &meta.name;
    match (meta.dtype, meta.rank()) {
        (DType::Bool, 4) => Ok((Form::Bool, Window::new(meta.shape[2], meta.shape[3]).map_err(|e| format!("{name}: {e}"))?)),
        (DType::U8, 3) => {
            let lengths = meta.attributes.get("window").and_then(|w| match w.as_array()?.as_slice() {
                [a, r] => Some((a.as_u64()?, r.as_u64()?)),
                _ => None,
            });
            let Some((height, breadth)) = lengths else {
                return Err(format!("{name} has no attribute `window` = [azimuth, range] that says how its bits lie"));
            };
            let window = Window::new(height, breadth).map_err(|e| format!("{name}: {e}"))?;
            if window.bytes() as u64 != meta.shape[2] {
                return Err(format!(
                    "{name} has {} bytes a pixel, a window of {height} x {breadth} takes {}",
                    meta.shape[2],
                    window.bytes()
                ));
            }
            Ok((Form::Packed, window))
        }
        _ => Err(format!(
            "{name} is {} with {} axes; a mask is uint8 (azimuth, range, bytes) with attribute `window`, as select_shp makes it, \
             or bool (azimuth, range, window, window)",
            meta.dtype,
            meta.rank()
        )),
    }
}

/// The cells of masks, by pixel.
pub struct Masks<'a> {
    source: Strided<'a>,
    form: Form,
    window: Window,
}

impl<'a> Masks<'a> {
    pub fn new(input: &'a super::Padded, form: Form, window: Window) -> Self {
        Self { source: Strided::new(input), form, window }
    }

    /// Calls `visit` with the number in the window (C order) of each cell that is set, in order.
    #[inline(always)]
    pub fn each(&self, row: i64, col: i64, mut visit: impl FnMut(usize)) {
        let (height, breadth) = self.window.shape();
        match self.form {
            Form::Packed => {
                let (start, step) = (self.source.offset(&[row, col, 0]), self.source.strides[2]);
                for byte in 0..self.window.bytes() {
                    let mut bits = self.source.get::<u8>(start + byte as isize * step);
                    // Bits that fill the last byte stand for nothing.
                    if height * breadth < byte * 8 + 8 {
                        bits &= (1u8 << (height * breadth - byte * 8)) - 1;
                    }
                    while bits != 0 {
                        visit(byte * 8 + bits.trailing_zeros() as usize);
                        bits &= bits - 1;
                    }
                }
            }
            Form::Bool => {
                for cell in 0..height * breadth {
                    let index = [row, col, (cell / breadth) as i64, (cell % breadth) as i64];
                    if self.source.get::<u8>(self.source.offset(&index)) != 0 {
                        visit(cell);
                    }
                }
            }
        }
    }
}
