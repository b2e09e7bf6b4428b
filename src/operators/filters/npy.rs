//! Small arrays of numbers from `.npy` files: the weights of a correlation.
//!
//! Any real dtype and either byte order; the header is checked before anything is sized by it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::params::{Cells, MAX_CELLS};
use crate::array::DType;
use crate::array::npy::{Header, MAX_HEADER};

/// The numbers of a file as float64, in C order.
pub fn read(path: &Path) -> Result<Cells, String> {
    let file = File::open(path).map_err(|e| format!("cannot be opened: {e}"))?;
    let mut bytes = Vec::new();
    let most = MAX_HEADER + MAX_CELLS * 8;
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() > most {
        return Err(format!("is larger than weights may be ({MAX_CELLS} numbers)"));
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Cells, String> {
    let header = Header::parse(bytes)?;
    let shape: Vec<usize> = header.shape.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
    let count = shape.iter().try_fold(1usize, |n, len| n.checked_mul(*len)).filter(|n| (1..=MAX_CELLS).contains(n));
    let count = count.ok_or_else(|| format!("has the shape {shape:?}; 1 to {MAX_CELLS} numbers are possible"))?;
    if shape.is_empty() {
        return Err("holds a single number; weights have one axis or more".to_owned());
    }
    let values = numbers(&header, &bytes[header.data..], count)?;
    if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
        return Err(format!("holds {bad}, which is no weight"));
    }
    Ok(Cells { values: if header.is_fortran { c_order(&values, &shape) } else { values }, shape })
}

fn numbers(header: &Header, data: &[u8], count: usize) -> Result<Vec<f64>, String> {
    let (dtype, is_big) = (header.dtype, header.is_big_endian);
    macro_rules! read {
        ($t:ty) => {{
            let (cells, _) = data.as_chunks::<{ size_of::<$t>() }>();
            let cells = cells.get(..count).ok_or_else(|| format!("is cut off: {count} numbers of {dtype} do not fit"))?;
            cells.iter().map(|b| if is_big { <$t>::from_be_bytes(*b) } else { <$t>::from_le_bytes(*b) } as f64).collect()
        }};
    }
    Ok(match dtype {
        DType::F64 => read!(f64),
        DType::F32 => read!(f32),
        DType::I8 => read!(i8),
        DType::U8 | DType::Bool => read!(u8),
        DType::I16 => read!(i16),
        DType::U16 => read!(u16),
        DType::I32 => read!(i32),
        DType::U32 => read!(u32),
        DType::I64 => read!(i64),
        DType::U64 => read!(u64),
        DType::F16 | DType::C64 | DType::C128 => return Err(format!("holds {dtype}; weights are real numbers such as <f8")),
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
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
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
        assert!(with("'<f8'", "(2,)", &[0; 8]).contains("cut off: 2 numbers"));
        assert!(with("'<f8'", "(1000000000000000000, 99)", &[]).contains("possible"));
        assert!(with("'<f8'", "(0, 3)", &[]).contains("possible"));
        assert!(with("'<f8'", "()", &[0; 8]).contains("single number"));
        assert!(with("'<c8'", "(1,)", &[0; 8]).contains("holds complex64"));
        assert!(with("'<f8'", "(1,)", &f64::NAN.to_le_bytes()).contains("no weight"));
    }
}
