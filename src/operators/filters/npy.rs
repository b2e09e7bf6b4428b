//! Small arrays of numbers from `.npy` files: the weights of a correlation.
//!
//! The format is numpy's (numpy.lib.format, versions 1 to 3): a magic string, a header that is a Python literal of three
//! keys, and the values. Any real dtype and either byte order; the header is checked before anything is sized by it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::params::{Cells, MAX_CELLS};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longer ones belong to other files.
const MAX_HEADER: usize = 64 << 10;

/// The numbers of a file as float64, in C order.
pub fn read(path: &Path) -> Result<Cells, String> {
    let file = File::open(path).map_err(|e| format!("cannot be opened: {e}"))?;
    let mut bytes = Vec::new();
    let most = MAX_HEADER + 12 + MAX_CELLS * 8;
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() > most {
        return Err(format!("is larger than weights may be ({MAX_CELLS} numbers)"));
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Cells, String> {
    let body = bytes.strip_prefix(MAGIC).ok_or("is no .npy file")?;
    let (length, rest) = match body {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err("is a .npy file of an unknown version".to_owned()),
    };
    let cut = || "is cut off in its header".to_owned();
    let header = rest.get(..length.min(MAX_HEADER)).filter(|h| h.len() == length).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "has a header that is no text".to_owned())?;
    let value = |key: &str| {
        let after = header.split_once(&format!("'{key}':")).map(|(_, after)| after.trim_start());
        after.ok_or_else(|| format!("has no {key} in its header"))
    };
    let descr = value("descr")?;
    let descr = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|(d, _)| d);
    let descr = descr.ok_or("holds records, not numbers")?;
    let is_fortran = value("fortran_order")?.starts_with("True");
    let inner = value("shape")?.strip_prefix('(').and_then(|s| s.split_once(')')).map(|(inner, _)| inner);
    let shape = inner.ok_or("has no shape in its header")?.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape: Vec<usize> =
        shape.map(str::parse).collect::<Result<_, _>>().map_err(|_| "has a shape that is no list of lengths".to_owned())?;
    let count = shape.iter().try_fold(1usize, |n, len| n.checked_mul(*len)).filter(|n| (1..=MAX_CELLS).contains(n));
    let count = count.ok_or_else(|| format!("has the shape {shape:?}; 1 to {MAX_CELLS} numbers are possible"))?;
    if shape.is_empty() {
        return Err("holds a single number; weights have one axis or more".to_owned());
    }
    let values = numbers(descr, &rest[length..], count)?;
    if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
        return Err(format!("holds {bad}, which is no weight"));
    }
    Ok(Cells { values: if is_fortran { c_order(&values, &shape) } else { values }, shape })
}

fn numbers(descr: &str, data: &[u8], count: usize) -> Result<Vec<f64>, String> {
    let is_big = descr.starts_with('>');
    macro_rules! read {
        ($t:ty) => {{
            let (cells, _) = data.as_chunks::<{ size_of::<$t>() }>();
            let cells = cells.get(..count).ok_or_else(|| format!("is cut off: {count} numbers of {descr} do not fit"))?;
            cells.iter().map(|b| if is_big { <$t>::from_be_bytes(*b) } else { <$t>::from_le_bytes(*b) } as f64).collect()
        }};
    }
    Ok(match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f8" => read!(f64),
        "f4" => read!(f32),
        "i1" => read!(i8),
        "u1" | "b1" => read!(u8),
        "i2" => read!(i16),
        "u2" => read!(u16),
        "i4" => read!(i32),
        "u4" => read!(u32),
        "i8" => read!(i64),
        "u8" => read!(u64),
        _ => return Err(format!("holds {descr}; weights are real numbers such as <f8")),
    })
}

/// Values whose first axis runs fastest, with the last running fastest.
fn c_order(values: &[f64], shape: &[usize]) -> Vec<f64> {
    let mut strides = vec![1; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    (0..values.len())
        .map(|flat| {
            let (mut rest, mut at) = (flat, 0);
            for axis in (0..shape.len()).rev() {
                at += rest % shape[axis] * strides[axis];
                rest /= shape[axis];
            }
            values[at]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn numpy_files_are_read() {
        // The header is what np.save writes for np.arange(6, dtype=">i2").reshape(2, 3).
        let header = |order: &str| format!("{{'descr': '>i2', 'fortran_order': {order}, 'shape': (2, 3), }}\n");
        let data = [0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5];
        let read = |order| parse(&file(&header(order), &data)).unwrap();
        assert_eq!(read("False"), Cells { shape: vec![2, 3], values: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0] });
        assert_eq!(read("True").values, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }

    #[test]
    fn others_are_refused() {
        let error = |bytes: &[u8]| parse(bytes).unwrap_err();
        let with = |descr: &str, shape: &str, data: &[u8]| {
            error(&file(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"), data))
        };
        assert_eq!(error(b"PK"), "is no .npy file");
        assert!(error(&file("", &[])[..9]).contains("unknown version") || error(&file("", &[])[..9]).contains("cut off"));
        assert!(with("'<f8'", "(2,)", &[0; 8]).contains("cut off: 2 numbers"));
        assert!(with("'<f8'", "(1000000000000000000, 99)", &[]).contains("possible"));
        assert!(with("'<f8'", "(0, 3)", &[]).contains("possible"));
        assert!(with("'<f8'", "()", &[0; 8]).contains("single number"));
        assert!(with("'<c8'", "(1,)", &[0; 8]).contains("holds <c8"));
        assert!(with("[('a', '<f8')]", "(1,)", &[0; 8]).contains("records"));
        assert!(with("'<f8'", "(1,)", &f64::NAN.to_le_bytes()).contains("no weight"));
        assert!(with("'<f8'", "(x,)", &[]).contains("no list of lengths"));
    }
}
