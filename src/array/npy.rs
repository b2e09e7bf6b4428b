//! The header of numpy's `.npy` files (numpy.lib.format, versions 1 to 3): a magic string, a Python literal of three keys,
//! then the values.
//!
//! Nothing is sized by what a header says: it is text of at most 64 KiB, and shapes are checked by whoever uses them.

use super::DType;

const MAGIC: &[u8] = b"\x93NUMPY";

/// A file of at most this many bytes holds its whole header, or is refused.
pub const MAX_HEADER: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub dtype: DType,
    pub is_big_endian: bool,
    /// The first axis runs fastest.
    pub is_fortran: bool,
    pub shape: Vec<u64>,
    /// Where the values begin.
    pub data: usize,
}

impl Header {
    /// From the first bytes of a file ([`MAX_HEADER`] of them, or all).
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_prefix(MAGIC).ok_or("is no .npy file")?;
        let (length, start) = match body {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
            _ => return Err("is a .npy file of an unknown version".to_owned()),
        };
        let header = bytes.get(start..).and_then(|rest| rest.get(..length)).ok_or("is cut off in its header")?;
        let header = std::str::from_utf8(header).map_err(|_| "has a header that is no text".to_owned())?;
        let value = |key: &str| {
            let after = header.split_once(&format!("'{key}':")).map(|(_, after)| after.trim_start());
            after.ok_or_else(|| format!("has no {key} in its header"))
        };
        let descr = value("descr")?;
        let descr = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|(d, _)| d);
        let descr = descr.ok_or("holds records, not numbers")?;
        let (dtype, is_big_endian) =
            DType::parse_stored(descr).ok_or_else(|| format!("holds {descr}, which is no dtype of ours"))?;
        let is_fortran = value("fortran_order")?.starts_with("True");
        let inner = value("shape")?.strip_prefix('(').and_then(|s| s.split_once(')')).map(|(inner, _)| inner);
        let shape = inner.ok_or("has no shape in its header")?.split(',').map(str::trim).filter(|n| !n.is_empty());
        let shape: Vec<u64> =
            shape.map(str::parse).collect::<Result<_, _>>().map_err(|_| "has a shape that is no list of lengths".to_owned())?;
        Ok(Self { dtype, is_big_endian, is_fortran, shape, data: start + length })
    }
}

/// The header of an array in C order, byte for byte as numpy writes it (numpy.lib.format, version 1.0): values begin at a
/// multiple of 64, and there is room for the first axis to become longer.
pub fn header(dtype: DType, shape: &[u64]) -> Vec<u8> {
    const LONGEST_LENGTH: usize = 21;
    const ALIGNED: usize = 64;
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut text =
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{comma}), }}", dtype.typestr(), lengths.join(", "));
    let growth = lengths.first().map_or(0, |length| LONGEST_LENGTH - length.len());
    let start = MAGIC.len() + 4;
    let end = start + text.len() + growth + 1;
    // A whole step more where nothing is missing, as numpy has it.
    let padding = growth + ALIGNED - end % ALIGNED;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// python3 -c "import numpy as np, io, hashlib; ..." of np.save (numpy 2.4.6): lengths of headers, and one of them.
    #[test]
    fn headers_are_numpys() {
        let text = |dtype, shape: &[u64]| String::from_utf8_lossy(&header(dtype, shape)[10..]).into_owned();
        let one = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        assert_eq!(text(DType::F32, &[2, 3]), format!("{one:117}\n"));
        assert_eq!(text(DType::Bool, &[]), format!("{:117}\n", "{'descr': '|b1', 'fortran_order': False, 'shape': (), }"));
        assert_eq!(text(DType::C128, &[7]), format!("{:117}\n", "{'descr': '<c16', 'fortran_order': False, 'shape': (7,), }"));
        for (shape, bytes) in [(vec![], 128), (vec![5], 128), (vec![1_000_000_000_000, 10, 10, 10, 10], 128), (vec![1; 20], 192)]
        {
            let header = header(DType::U8, &shape);
            assert_eq!(header.len(), bytes, "{shape:?}");
            let read = Header::parse(&header).unwrap();
            assert_eq!((read.shape, read.dtype, read.data, read.is_fortran), (shape, DType::U8, bytes, false));
        }
    }

    fn file(version: &[u8], header: &str) -> Vec<u8> {
        [MAGIC, version, header.as_bytes()].concat()
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        // What np.save writes for np.zeros((2, 3), ">i2", order="F"), without its padding.
        let text = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n";
        let length = text.len() as u8;
        for (version, data) in [(&[1, 0, length, 0][..], 10), (&[2, 0, length, 0, 0, 0], 12), (&[3, 0, length, 0, 0, 0], 12)] {
            let want =
                Header { dtype: DType::I16, is_big_endian: true, is_fortran: true, shape: vec![2, 3], data: data + text.len() };
            assert_eq!(Header::parse(&file(version, text)), Ok(want));
        }
        let scalar = "{'descr': '|b1', 'fortran_order': False, 'shape': ()}";
        let got = Header::parse(&file(&[1, 0, scalar.len() as u8, 0], scalar)).unwrap();
        assert_eq!((got.dtype, got.is_big_endian, got.shape), (DType::Bool, false, vec![]));
    }

    #[test]
    fn others_are_refused() {
        let with = |descr: &str, shape: &str| {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
            Header::parse(&file(&[1, 0, text.len() as u8, 0], &text)).unwrap_err()
        };
        assert_eq!(Header::parse(b"PK").unwrap_err(), "is no .npy file");
        assert!(Header::parse(&file(&[9, 0, 0, 0], "")).unwrap_err().contains("unknown version"));
        assert!(Header::parse(&file(&[1, 0, 200, 0], "{")).unwrap_err().contains("cut off"));
        assert!(Header::parse(&file(&[2, 0, 255, 255, 255, 255], "{")).unwrap_err().contains("cut off"));
        assert!(with("'<U8'", "(1,)").contains("holds <U8"));
        assert!(with("'|O'", "(1,)").contains("holds |O"));
        assert!(with("[('a', '<f8')]", "(1,)").contains("records"));
        assert!(with("'<f8'", "(x,)").contains("no list of lengths"));
        assert!(with("'<f8'", "(-1,)").contains("no list of lengths"));
        assert!(with("'<f8'", "3").contains("no shape"));
    }
}
