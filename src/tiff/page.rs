//! A directory as a [`Page`]: shape, dtype, and where its strips or tiles are. Whatever does not hold together is refused
//! here, before a pixel is read.

use super::ifd::{Directory, Header, List, Order, tag};
use super::{TiffError, wrong};
use crate::array::{DType, element_count};

/// How strips and tiles are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
    Zstd,
}

impl Compression {
    fn of(code: u64) -> Result<Self, TiffError> {
        let name = match code {
            1 => return Ok(Compression::None),
            5 => return Ok(Compression::Lzw),
            8 | 32946 => return Ok(Compression::Deflate),
            32773 => return Ok(Compression::PackBits),
            50000 => return Ok(Compression::Zstd),
            2..=4 => "fax",
            6 | 7 => "JPEG",
            33003 | 33005 | 34712 => "JPEG 2000",
            34925 => "LZMA",
            50001 => "WebP",
            _ => "",
        };
        wrong(format!(
            "compression {code}{} is not read, only none, LZW, deflate, PackBits and zstd; save the image with one of these",
            if name.is_empty() { String::new() } else { format!(" ({name})") }
        ))
    }

    /// Most bytes that unpacking holds beside its input and output.
    fn state_bytes(self) -> u64 {
        match self {
            Compression::None | Compression::PackBits => 0,
            // Tables of codes; a window of 32 KiB and tables.
            Compression::Lzw | Compression::Deflate => 128 << 10,
            Compression::Zstd => (128 << 10) + (1 << super::unpack::ZSTD_WINDOW_LOG),
        }
    }
}

/// What was done to rows before they were packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    None,
    /// Each value less the one before it of the same sample.
    Horizontal,
    /// The bytes of floats, high ones first, then as `Horizontal`.
    Float,
}

/// One image of a file.
#[derive(Clone, Debug)]
pub struct Page {
    /// Where its directory is.
    pub at: u64,
    pub rows: u64,
    pub cols: u64,
    pub samples: u64,
    /// Samples lie in planes of their own.
    pub is_planar: bool,
    pub is_tiled: bool,
    pub dtype: DType,
    pub order: Order,
    pub compression: Compression,
    pub predictor: Predictor,
    /// Pixels of a strip or tile. Tiles are stored whole at the edges, strips are not.
    pub unit_rows: u64,
    pub unit_cols: u64,
    pub offsets: List,
    pub counts: Option<List>,
}

impl Page {
    pub fn read(header: &Header, directory: &Directory) -> Result<Self, TiffError> {
        Self::of(header, directory).map_err(|e| e.at(format!("the directory at offset {}", directory.at)))
    }

    fn of(header: &Header, directory: &Directory) -> Result<Self, TiffError> {
        let number = |tag| header.number(directory, tag);
        let length = |tag, name: &str| match number(tag)? {
            Some(n) if n > 0 && n <= i64::MAX as u64 => Ok(n),
            Some(n) => wrong(format!("{name} is {n}")),
            None => wrong(format!("{name} is missing")),
        };
        let cols = length(tag::IMAGE_WIDTH, "ImageWidth")?;
        let rows = length(tag::IMAGE_LENGTH, "ImageLength")?;
        let samples = number(tag::SAMPLES_PER_PIXEL)?.unwrap_or(1);
        if samples == 0 || samples > u64::from(u16::MAX) {
            return wrong(format!("SamplesPerPixel is {samples}"));
        }
        let dtype = dtype(header, directory, samples)?;
        if element_count(&[rows, cols, samples]).and_then(|n| n.checked_mul(dtype.size() as u64)).is_none_or(|n| n > 1 << 62) {
            return wrong(format!("{rows} x {cols} pixels with {samples} samples are more than 2^62 bytes"));
        }
        let is_planar = match number(tag::PLANAR_CONFIGURATION)?.unwrap_or(1) {
            1 => false,
            2 => samples > 1,
            other => return wrong(format!("PlanarConfiguration is {other}, not 1 or 2")),
        };
        let compression = Compression::of(number(tag::COMPRESSION)?.unwrap_or(1))?;
        let predictor = match number(tag::PREDICTOR)?.unwrap_or(1) {
            1 => Predictor::None,
            2 if !dtype.is_complex() => Predictor::Horizontal,
            3 if dtype.is_float() => Predictor::Float,
            other => return wrong(format!("predictor {other} is not read for {dtype}")),
        };
        let is_tiled = directory.list(tag::TILE_OFFSETS).is_some();
        let (unit_rows, unit_cols, offsets, counts) = match is_tiled {
            true => (
                length(tag::TILE_LENGTH, "TileLength")?,
                length(tag::TILE_WIDTH, "TileWidth")?,
                tag::TILE_OFFSETS,
                tag::TILE_BYTE_COUNTS,
            ),
            false => {
                let rows_per_strip = number(tag::ROWS_PER_STRIP)?.unwrap_or(rows).min(rows);
                if rows_per_strip == 0 {
                    return wrong("RowsPerStrip is 0");
                }
                (rows_per_strip, cols, tag::STRIP_OFFSETS, tag::STRIP_BYTE_COUNTS)
            }
        };
        let Some(offsets) = directory.list(offsets).cloned() else { return wrong("neither strips nor tiles are listed") };
        let counts = directory.list(counts).cloned();
        let page = Self {
            at: directory.at,
            rows,
            cols,
            samples,
            is_planar,
            is_tiled,
            dtype,
            order: header.order,
            compression,
            predictor,
            unit_rows,
            unit_cols,
            offsets,
            counts,
        };
        page.check(header)?;
        Ok(page)
    }

    /// Lists and sizes of strips and tiles.
    fn check(&self, header: &Header) -> Result<(), TiffError> {
        let units = self.units().checked_mul(self.planes());
        let Some(units) = units.filter(|units| *units <= self.offsets.count) else {
            let (count, unit) = (self.offsets.count, self.unit());
            let (rows, cols) = (self.rows, self.cols);
            return wrong(format!("{rows} x {cols} pixels need more {unit}s than the {count} that are listed"));
        };
        for list in [Some(&self.offsets), self.counts.as_ref()].into_iter().flatten() {
            if list.count < units || !header.holds(list) {
                return wrong(format!("the file is torn: its list of {units} {}s is not whole", self.unit()));
            }
        }
        let unit = element_count(&[self.unit_rows, self.unit_cols, self.unit_samples(), self.dtype.size() as u64]);
        if unit.is_none_or(|bytes| bytes > 1 << 62) {
            return wrong(format!("a {} of {} x {} pixels is too large", self.unit(), self.unit_rows, self.unit_cols));
        }
        if !self.is_packed() && self.bytes() > header.len {
            let (bytes, len) = (self.bytes(), header.len);
            return wrong(format!("the file is torn: {} take {bytes} bytes, it has {len}", self.describe()));
        }
        Ok(())
    }

    /// `strip` or `tile`.
    pub fn unit(&self) -> &'static str {
        if self.is_tiled { "tile" } else { "strip" }
    }

    pub fn is_packed(&self) -> bool {
        self.compression != Compression::None
    }

    /// True when values are stored as they are, but for the order of their bytes.
    pub fn is_plain(&self) -> bool {
        !self.is_packed() && self.predictor == Predictor::None
    }

    /// Strips or tiles from left to right.
    pub fn units_across(&self) -> u64 {
        self.cols.div_ceil(self.unit_cols)
    }

    /// Strips or tiles of a plane.
    fn units(&self) -> u64 {
        self.rows.div_ceil(self.unit_rows).saturating_mul(self.units_across())
    }

    fn planes(&self) -> u64 {
        if self.is_planar { self.samples } else { 1 }
    }

    /// Samples side by side in a strip or tile.
    pub fn unit_samples(&self) -> u64 {
        if self.is_planar { 1 } else { self.samples }
    }

    /// Bytes of a row of a strip or tile.
    pub fn unit_row_bytes(&self) -> u64 {
        self.unit_cols * self.unit_samples() * self.dtype.size() as u64
    }

    /// Number of the strip or tile at a place of the grid of a plane.
    pub fn unit_number(&self, plane: u64, down: u64, across: u64) -> u64 {
        plane * self.units() + down * self.units_across() + across
    }

    /// Bytes of the image, decoded.
    pub fn bytes(&self) -> u64 {
        self.rows * self.cols * self.samples * self.dtype.size() as u64
    }

    /// Most bytes that decoding holds beside what it fills: a row as it is packed, one to reorder it, the codec's state.
    pub fn decode_bytes(&self) -> u64 {
        self.row_buffer_bytes().saturating_add(super::unpack::INPUT_BYTES as u64 + self.compression.state_bytes())
    }

    pub fn row_buffer_bytes(&self) -> u64 {
        self.unit_row_bytes().saturating_mul(2)
    }

    /// What must be the same in all pages of an array, in words.
    pub fn describe(&self) -> String {
        let samples = if self.samples > 1 { format!(" x {} samples", self.samples) } else { String::new() };
        format!("{} x {} pixels{samples} of {}", self.rows, self.cols, self.dtype)
    }
}

/// The element type, one for all samples.
fn dtype(header: &Header, directory: &Directory, samples: u64) -> Result<DType, TiffError> {
    let one = |tag, default, name: &str| -> Result<u64, TiffError> {
        let Some(list) = directory.list(tag) else { return Ok(default) };
        let all = header.numbers(list, 0, list.count.min(samples))?;
        match all.iter().find(|n| **n != all[0]) {
            Some(other) => wrong(format!("{name} is {} and {other}: samples of several types are not read", all[0])),
            None => Ok(all[0]),
        }
    };
    let bits = one(tag::BITS_PER_SAMPLE, 1, "BitsPerSample")?;
    let format = one(tag::SAMPLE_FORMAT, 1, "SampleFormat")?;
    if header.number(directory, tag::FILL_ORDER)?.unwrap_or(1) != 1 {
        return wrong("FillOrder is not 1: bytes with reversed bits are not read");
    }
    match header.number(directory, tag::PHOTOMETRIC)? {
        Some(3) => return wrong("this is a palette image: its values are numbers of colours; save it as grey or RGB"),
        Some(6) => return wrong("this is a YCbCr image, which is not read; save it as RGB"),
        _ => {}
    }
    Ok(match (format, bits) {
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 8) => DType::I8,
        (2, 16) => DType::I16,
        (2, 32) => DType::I32,
        (2, 64) => DType::I64,
        (3, 16) => DType::F16,
        (3, 32) => DType::F32,
        (3, 64) => DType::F64,
        (6, 64) => DType::C64,
        (6, 128) => DType::C128,
        _ => {
            let kind = match format {
                1 => "unsigned integers",
                2 => "signed integers",
                3 => "floats",
                6 => "complex floats",
                _ => "undefined values",
            };
            return wrong(format!(
                "{kind} of {bits} bits are not read: integers have 8, 16, 32 or 64 bits, floats 16, 32 or 64, complex floats 64 or 128"
            ));
        }
    })
}
