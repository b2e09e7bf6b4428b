//! Fill values, in all the spellings of v2 and v3, as a [`Scalar`]. A value that the dtype cannot hold is refused (I5).

use half::f16;
use num_complex::{Complex32, Complex64};
use serde_json::{Map, Value};

use crate::array::{DType, Scalar};

/// Reads a `fill_value`: numbers; `true`; `"NaN"`, `"Infinity"`; `"0x7fc00001"` (the bits); `[re, im]`. v2 also writes
/// `null` (read as 0), numbers for bool, and a plain number for complex.
pub fn parse(value: &Value, dtype: DType, format: u8) -> Result<Scalar, String> {
    let bad = || format!("fill_value {value} is not a value of {dtype}");
    match (value, dtype) {
        (Value::Null, _) if format == 2 => Ok(Scalar::zero(dtype)),
        (Value::Bool(b), DType::Bool) => Scalar::from_number(dtype, *b as u8 as f64),
        (Value::Array(parts), DType::C64 | DType::C128) => {
            let [re, im] = &parts[..] else { return Err(bad()) };
            let component = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            complex(dtype, float(re, component).ok_or_else(bad)?, float(im, component).ok_or_else(bad)?).ok_or_else(bad)
        }
        (_, DType::C64 | DType::C128) if format == 2 => {
            let component = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            complex(dtype, float(value, component).ok_or_else(bad)?, Scalar::zero(component)).ok_or_else(bad)
        }
        (_, DType::F16 | DType::F32 | DType::F64) => float(value, dtype).ok_or_else(bad),
        (Value::Number(n), DType::Bool) if format == 2 => {
            n.as_f64().and_then(|v| Scalar::from_number(dtype, v).ok()).ok_or_else(bad)
        }
        (Value::Number(n), d) if d.is_integer() => {
            let integer = n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
            match integer {
                Some(i) => Scalar::from_integer(d, i),
                None => Scalar::from_number(d, n.as_f64().ok_or_else(bad)?),
            }
            .map_err(|e| format!("fill_value: {e}"))
        }
        _ => Err(bad()),
    }
}

/// A float fill value (also a component of a complex one).
fn float(value: &Value, dtype: DType) -> Option<Scalar> {
    let number = match value {
        Value::Number(n) => n.as_f64()?,
        Value::String(s) => match s.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            hex => {
                let digits = hex.strip_prefix("0x")?;
                let bits = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 * dtype.size())?;
                return Scalar::from_bytes(dtype, &bits.to_le_bytes()[..dtype.size()]);
            }
        },
        _ => return None,
    };
    Some(match dtype {
        DType::F16 => Scalar::of(f16::from_f64(number)),
        DType::F32 => Scalar::of(number as f32),
        _ => Scalar::of(number),
    })
}

fn complex(dtype: DType, re: Scalar, im: Scalar) -> Option<Scalar> {
    Scalar::from_bytes(dtype, &[re.bytes(), im.bytes()].concat())
}

/// A fill value as text for people: `0`, `NaN`, `1+2j`.
pub fn show(value: &Scalar) -> String {
    match value.dtype() {
        DType::C64 => bytemuck::pod_read_unaligned::<Complex32>(value.bytes()).to_string(),
        DType::C128 => bytemuck::pod_read_unaligned::<Complex64>(value.bytes()).to_string(),
        DType::U64 => bytemuck::pod_read_unaligned::<u64>(value.bytes()).to_string(),
        DType::I64 => bytemuck::pod_read_unaligned::<i64>(value.bytes()).to_string(),
        _ => value.to_f64().to_string(),
    }
}

/// The value an array's attributes declare as missing: CF's `_FillValue` (xarray stores floats in v3 as base64 of the
/// little-endian double). What cannot be read as the array's dtype declares nothing.
pub fn declared_missing(attributes: &Map<String, Value>, dtype: DType) -> Option<Scalar> {
    declared(attributes.get("_FillValue")?, dtype)
}

/// A value of an attribute in the spellings of [`declared_missing`].
pub fn declared(value: &Value, dtype: DType) -> Option<Scalar> {
    if let (Value::String(text), true) = (value, dtype.is_float())
        && let Some(bytes) = base64(text)
        && let Ok(bytes) = <[u8; 8]>::try_from(bytes)
    {
        return Scalar::from_number(dtype, f64::from_le_bytes(bytes)).ok();
    }
    parse(value, dtype, 3).ok()
}

/// A real number in the spelling of metadata documents.
pub fn json(value: &Scalar) -> Value {
    match value.dtype() {
        DType::Bool => (value.to_f64() != 0.0).into(),
        DType::U64 => bytemuck::pod_read_unaligned::<u64>(value.bytes()).into(),
        DType::I64 => bytemuck::pod_read_unaligned::<i64>(value.bytes()).into(),
        dtype if dtype.is_integer() => (value.to_f64() as i64).into(),
        _ => match value.to_f64() {
            number if number.is_nan() => "NaN".into(),
            number if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            number => number.into(),
        },
    }
}

/// `_FillValue` as xarray stores it in format 3: floats as base64 of the little-endian double.
pub fn attribute_v3(value: &Scalar) -> Value {
    match value.dtype().is_float() {
        true => to_base64(&value.to_f64().to_le_bytes()).into(),
        false => json(value),
    }
}

fn to_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let bits = part.iter().enumerate().fold(0u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for digit in 0..4 {
            let is_there = digit <= part.len();
            text.push(if is_there { DIGITS[(bits >> (18 - 6 * digit)) as usize & 63] as char } else { '=' });
        }
    }
    text
}

/// Standard base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for c in text.bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | digit as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_spelling() {
        let get = |v: Value, d, f| parse(&v, d, f).map(|s| show(&s));
        assert_eq!(get(json!(7), DType::U8, 3).unwrap(), "7");
        assert_eq!(get(json!(18446744073709551615u64), DType::U64, 3).unwrap(), "18446744073709551615");
        assert_eq!(get(json!(0.0), DType::I16, 2).unwrap(), "0");
        assert_eq!(get(json!(null), DType::C64, 2).unwrap(), "0+0i");
        assert_eq!(get(json!(0.0), DType::C128, 2).unwrap(), "0+0i");
        assert_eq!(get(json!([1.5, "NaN"]), DType::C64, 3).unwrap(), "1.5+NaNi");
        assert_eq!(get(json!("-Infinity"), DType::F16, 3).unwrap(), "-inf");
        assert_eq!(get(json!("0x3fc00000"), DType::F32, 3).unwrap(), "1.5");
        assert_eq!(get(json!(true), DType::Bool, 3).unwrap(), "1");
        assert_eq!(get(json!(0), DType::Bool, 2).unwrap(), "0");
        for (v, d, f) in [
            (json!("NaN"), DType::I32, 2),
            (json!(300), DType::U8, 3),
            (json!(-1), DType::U64, 3),
            (json!(1.5), DType::I8, 2),
            (json!(null), DType::F32, 3),
            (json!([1]), DType::C64, 3),
            (json!("0x3fc0"), DType::F32, 3),
            (json!({"a": 1}), DType::F32, 2),
        ] {
            assert!(parse(&v, d, f).unwrap_err().starts_with("fill_value"), "{v} {d}");
        }
    }

    #[test]
    fn cf_declares_what_is_missing() {
        let get = |v: Value, d| declared_missing(json!({"_FillValue": v}).as_object().unwrap(), d).map(|s| s.to_f64());
        assert!(get(json!("AAAAAAAA+H8="), DType::F32).unwrap().is_nan());
        assert!(get(json!("NaN"), DType::F64).unwrap().is_nan());
        assert_eq!(get(json!(-32767), DType::I16), Some(-32767.0));
        assert_eq!(get(json!("text"), DType::I16), None);
        assert_eq!(declared_missing(&Map::new(), DType::F32), None);
    }
}
