//! CF's packed numbers (cfconventions.org, sections 2.5.1 and 8.1) as what they stand for: `stored * scale_factor + add_offset`,
//! and NaN where the stored number is `_FillValue` or one of `missing_value`.
//!
//! The attributes are read as xarray's `open_zarr(decode_cf=True)` reads them (xarray/coding/variables.py, backends/zarr.py):
//! in format 2 the array's own fill value stands for `_FillValue`; `_Unsigned` turns the sign of integers; `valid_min`,
//! `valid_max` and `valid_range` mask nothing. Times ("days since ..") stay numbers.
//!
//! Values are those of xarray, which computes with the doubles that JSON has. The dtype is smaller where that loses nothing:
//! float32 for 8 and 16 bits as long as its rounding stays below a quarter of a packed step, so that packing again gives the
//! same integers; float32 stays float32; float64 for the rest. What is only masked has xarray's dtype.

use half::f16;
use serde_json::{Map, Value};

use super::fill;
use super::metadata::Header;
use crate::array::dtype::f16_from_f64;
use crate::array::{DType, Scalar};

/// Attributes that say how numbers are packed, in units of the packed ones.
const PACKING: [&str; 8] =
    ["scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "valid_min", "valid_max", "valid_range"];

/// Values that can be missing at once: longer lists are nothing that anybody wrote by hand.
const MOST_MISSING: usize = 64;

/// Removes what holds of the packed numbers only.
pub fn drop_packing(attributes: &mut Map<String, Value>) {
    PACKING.iter().for_each(|name| drop(attributes.shift_remove(*name)));
}

/// How the numbers of an array are packed.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// What is stored, `_Unsigned` taken into account: of the size of the array's own dtype.
    pub stored: DType,
    pub decoded: DType,
    /// Of `stored`.
    missing: Vec<Scalar>,
    /// Something is named as missing, if only what is in no cell.
    is_masked: bool,
    /// Scale and offset.
    linear: Option<(f64, f64)>,
    /// What could not be followed.
    pub notes: Vec<String>,
}

impl Packing {
    /// From an array's metadata; `None` where values stand for themselves. The reason when they cannot be decoded.
    pub fn of(header: &Header) -> Result<Option<Self>, String> {
        let attributes = &header.attributes;
        let given = |name: &str| attributes.get(name).filter(|value| !value.is_null());
        let (scale, offset) = (number(given("scale_factor"), "scale_factor")?, number(given("add_offset"), "add_offset")?);
        let fill = if header.fill_is_missing { None } else { given("_FillValue") };
        let unsigned = given("_Unsigned").and_then(Value::as_str);
        if header.dtype.is_complex() || header.dtype == DType::Bool {
            let name = PACKING.into_iter().find(|name| given(name).is_some());
            return match name {
                Some(name) => Err(format!("{name} of {} numbers: decode_cf is for real ones; leave it out", header.dtype)),
                None => Ok(None),
            };
        }
        let stored = match unsigned {
            Some("true") => signed(header.dtype, false),
            Some("false") => signed(header.dtype, true),
            _ => header.dtype,
        };
        let mut packing =
            Self { stored, decoded: stored, missing: Vec::new(), is_masked: false, linear: None, notes: Vec::new() };
        if header.fill_is_missing {
            packing.add_missing(header.fill);
        }
        for (name, value) in [("_FillValue", fill), ("missing_value", given("missing_value"))] {
            packing.read_missing(name, value, header.dtype)?;
        }
        if scale.is_some() || offset.is_some() {
            packing.linear = Some((scale.unwrap_or(1.0), offset.unwrap_or(0.0)));
        }
        packing.decoded = packing.choose();
        let is_plain = packing.decoded == header.dtype && !packing.is_masked && packing.linear.is_none();
        Ok((!is_plain).then_some(packing))
    }

    /// Reads what an attribute names as missing, one value or a list. What the dtype cannot hold is in no cell.
    fn read_missing(&mut self, name: &str, value: Option<&Value>, own: DType) -> Result<(), String> {
        let list = match value {
            None => return Ok(()),
            Some(Value::Array(list)) if list.len() > MOST_MISSING => {
                return Err(format!("{name} lists {} values, at most {MOST_MISSING} are supported", list.len()));
            }
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        for value in list.iter().filter(|value| value.as_str() != Some("NaN")) {
            // A list of numbers beside `_Unsigned` may be in either sign.
            match [own, self.stored].into_iter().find_map(|dtype| fill::declared(value, dtype)) {
                Some(missing) => self.add_missing(missing),
                None => {
                    self.is_masked = true;
                    self.notes.push(format!("{name} {value} is no value of {}: it marks nothing", self.stored));
                }
            }
        }
        Ok(())
    }

    /// The same bits, whatever their sign; NaN is missing anyway.
    fn add_missing(&mut self, missing: Scalar) {
        let missing = Scalar::from_bytes(self.stored, missing.bytes()).filter(|m| !m.to_f64().is_nan());
        self.is_masked |= missing.is_some();
        self.missing.extend(missing.filter(|m| !self.missing.contains(m)));
    }

    /// The dtype of what comes out.
    fn choose(&self) -> DType {
        let is_small = self.stored.size() <= 2;
        match (self.linear, self.stored) {
            (None, _) if !self.is_masked => self.stored,
            (None, float) if float.is_float() => float,
            (None, _) if is_small => DType::F32,
            (Some(_), DType::F16 | DType::F32) => DType::F32,
            (Some((scale, offset)), _) if is_small => {
                let (low, high) = self.stored.integer_range().unwrap_or_default();
                let most = [low, high].map(|n| (n as f64 * scale + offset).abs()).into_iter().fold(0.0, f64::max);
                // Half of the distance of neighbouring floats of that size, at most.
                let rounding = most * f64::from(f32::EPSILON) / 2.0;
                let fits =
                    most < f64::from(f32::MAX) && rounding <= scale.abs() / 4.0 && scale.abs() > f64::from(f32::MIN_POSITIVE);
                if fits { DType::F32 } else { DType::F64 }
            }
            _ => DType::F64,
        }
    }

    /// True when a cell may be NaN for want of a value.
    pub fn can_miss(&self) -> bool {
        !self.missing.is_empty()
    }

    /// What a stored value stands for.
    pub fn value(&self, stored: &Scalar) -> Scalar {
        let mut out = [0; 8];
        let out = &mut out[..self.decoded.size()];
        self.decode(stored.bytes(), out);
        Scalar::from_bytes(self.decoded, out).unwrap_or(Scalar::zero(self.decoded))
    }

    /// Decodes as many numbers as both slices hold.
    pub fn decode(&self, stored: &[u8], out: &mut [u8]) {
        if !self.decoded.is_float() {
            // Only the sign of integers was turned.
            return out.copy_from_slice(stored);
        }
        match self.stored {
            DType::U8 => self.decode_from::<u8>(stored, out),
            DType::I8 => self.decode_from::<i8>(stored, out),
            DType::U16 => self.decode_from::<u16>(stored, out),
            DType::I16 => self.decode_from::<i16>(stored, out),
            DType::U32 => self.decode_from::<u32>(stored, out),
            DType::I32 => self.decode_from::<i32>(stored, out),
            DType::U64 => self.decode_from::<u64>(stored, out),
            DType::I64 => self.decode_from::<i64>(stored, out),
            DType::F16 => self.decode_from::<f16>(stored, out),
            DType::F32 => self.decode_from::<f32>(stored, out),
            _ => self.decode_from::<f64>(stored, out),
        }
    }

    fn decode_from<T: Number>(&self, stored: &[u8], out: &mut [u8]) {
        match self.decoded {
            DType::F16 => self.decode_as::<T, f16>(stored, out),
            DType::F32 => self.decode_as::<T, f32>(stored, out),
            _ => self.decode_as::<T, f64>(stored, out),
        }
    }

    fn decode_as<T: Number, R: Number>(&self, stored: &[u8], out: &mut [u8]) {
        let missing: Vec<T> = self.missing.iter().map(|m| bytemuck::pod_read_unaligned(m.bytes())).collect();
        let nan = R::rounded(f64::NAN);
        let (scale, offset) = self.linear.unwrap_or((1.0, 0.0));
        for (value, place) in stored.chunks_exact(size_of::<T>()).zip(out.chunks_exact_mut(size_of::<R>())) {
            let value: T = bytemuck::pod_read_unaligned(value);
            let number = value.to_double();
            let number = if self.linear.is_some() { number * scale + offset } else { number };
            let is_nan = number.is_nan() || missing.contains(&value);
            place.copy_from_slice(bytemuck::bytes_of(&if is_nan { nan } else { R::rounded(number) }));
        }
    }
}

/// A stored number, or one that comes out.
trait Number: bytemuck::Pod + PartialEq {
    fn to_double(self) -> f64;
    fn rounded(value: f64) -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => { $(impl Number for $t {
        fn to_double(self) -> f64 {
            self as f64
        }
        fn rounded(value: f64) -> Self {
            value as $t
        }
    })* };
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Number for f16 {
    fn to_double(self) -> f64 {
        self.to_f64()
    }
    fn rounded(value: f64) -> Self {
        f16_from_f64(value)
    }
}

/// A number, or a list of one.
fn number(value: Option<&Value>, name: &str) -> Result<Option<f64>, String> {
    let Some(value) = value else { return Ok(None) };
    let one = match value {
        Value::Array(list) if list.len() == 1 => &list[0],
        other => other,
    };
    match one.as_f64() {
        Some(number) if number.is_finite() => Ok(Some(number)),
        _ => Err(format!("{name} is {value}, not a number: the array cannot be decoded; leave decode_cf out")),
    }
}

/// The integer type of the same size with or without a sign; others stay.
fn signed(dtype: DType, is_signed: bool) -> DType {
    match (dtype, is_signed) {
        (DType::I8, false) => DType::U8,
        (DType::I16, false) => DType::U16,
        (DType::I32, false) => DType::U32,
        (DType::I64, false) => DType::U64,
        (DType::U8, true) => DType::I8,
        (DType::U16, true) => DType::I16,
        (DType::U32, true) => DType::I32,
        (DType::U64, true) => DType::I64,
        (other, _) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_again_is_what_was_stored() {
        let packings = [(0.01, 0.0), (0.01, 273.15), (1e-3, 1e6), (1e-30, 0.0), (-2.5, 1e3), (0.0, 1.0), (1e-4, 400.0)];
        for (scale, offset) in packings {
            let mut packing = Packing {
                stored: DType::I16,
                decoded: DType::I16,
                missing: Vec::new(),
                is_masked: false,
                linear: Some((scale, offset)),
                notes: Vec::new(),
            };
            packing.decoded = packing.choose();
            for stored in (i16::MIN..=i16::MAX).step_by(13) {
                let value = packing.value(&Scalar::of(stored)).to_f64();
                let again = (value - offset) / scale;
                assert!(scale == 0.0 || again.round() == f64::from(stored), "{scale} {offset}: {stored} became {value}");
            }
            let wide = [(1e-3, 1e6), (0.0, 1.0)].contains(&(scale, offset));
            assert_eq!(packing.decoded, if wide { DType::F64 } else { DType::F32 }, "{scale} {offset}");
        }
    }
}
