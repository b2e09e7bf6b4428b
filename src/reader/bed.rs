//! PLINK 1 binary genotypes: `NAME.bed` with `NAME.bim` (a line per variant) and `NAME.fam` (a line per sample) beside it.
//!
//! The array is (variants, samples) of uint8: how often a call has the allele that the `.bim` names first, 0 to 2, and 3 where
//! the call is missing. The file holds four calls a byte, variant by variant (format: cog-genomics.org/plink/1.9/formats#bed).

use std::path::Path;

use super::file::InputFile;
use super::{ChunkRead, OpenError, Source, SourceError, SourceMeta};
use crate::array::{DType, Grid, Scalar};
use crate::operators::ArrayMeta;

const MAGIC: [u8; 3] = [0x6c, 0x1b, 0x01];
/// Of a chunk's decoded bytes.
const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of a `.bim` or `.fam` that are read at once.
const READ_BYTES: u64 = 1 << 20;
/// A missing call.
const MISSING: u8 = 3;
/// A line of a `.bim` or `.fam` that is longer belongs to another file.
const LONGEST_LINE: usize = 1 << 20;

/// Calls by their two bits.
const CALLS: [u8; 4] = [2, MISSING, 1, 0];

/// The four calls of every byte.
static DECODED: [[u8; 4]; 256] = {
    let mut table = [[0; 4]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut i = 0;
        while i < 4 {
            table[byte][i] = CALLS[byte >> (2 * i) & 3];
            i += 1;
        }
        byte += 1;
    }
    table
};

pub struct BedSource {
    bed: InputFile,
    /// The `.bim` and the `.fam`, which say how many calls there are.
    beside: [InputFile; 2],
    meta: SourceMeta,
    /// Bytes of a variant's calls.
    row: u64,
}

pub fn open(path: &Path) -> Result<BedSource, OpenError> {
    let refused = |reason| OpenError::refused(path.display().to_string(), reason);
    let bed = InputFile::open(path)?;
    match &bed.head(MAGIC.len())?[..] {
        head if head == MAGIC => {}
        [0x6c, 0x1b, 0x00] => {
            return Err(refused("is ordered by sample; `plink --bfile NAME --make-bed` writes it ordered by variant".to_owned()));
        }
        _ => return Err(refused("is no PLINK 1 .bed file".to_owned())),
    }
    let (bim, variants) = count_lines(&path.with_extension("bim"), "variant")?;
    let (fam, samples) = count_lines(&path.with_extension("fam"), "sample")?;
    let row = samples.div_ceil(4);
    let want = row.checked_mul(variants).and_then(|n| n.checked_add(MAGIC.len() as u64));
    if want != Some(bed.size()) {
        let want = want.map_or_else(|| "more than 2^64".to_owned(), |n| n.to_string());
        return Err(refused(format!(
            "holds {} bytes, {variants} variants (.bim) of {samples} samples (.fam) take {want}: the three files do not belong together, or one is cut off",
            bed.size()
        )));
    }
    let shape = [variants, samples];
    // Columns are cut between bytes.
    let columns = samples.clamp(1, CHUNK_BYTES);
    let chunk = [(CHUNK_BYTES / columns).clamp(1, variants.max(1)), columns];
    let name = path.file_stem().map_or_else(|| "genotypes".to_owned(), |s| s.to_string_lossy().into_owned());
    let mut array = ArrayMeta::plain(&name, &shape, DType::U8);
    array.chunk = chunk.to_vec();
    array.dimension_names = ["variants", "samples"].map(|name| Some(name.to_owned())).to_vec();
    array.missing = Scalar::from_integer(DType::U8, i128::from(MISSING)).ok();
    array.max_value = Some(u64::from(MISSING));
    let meta = SourceMeta {
        array,
        grid: Grid::regular(&shape, &chunk),
        chunk_shape: chunk.to_vec(),
        fill_value: Scalar::zero(DType::U8),
        transient_bytes: columns.div_ceil(4),
        resident_bytes: 0,
        child_bytes: 0,
        zarr_format: None,
        group: None,
        identity: format!("{}#bed {variants} {samples}", bed.place().display()),
        place: bed.place().to_owned(),
        notes: Vec::new(),
    };
    Ok(BedSource { bed, beside: [bim, fam], meta, row })
}

/// Opens a file that has a line for each `what`, and counts them.
fn count_lines(path: &Path, what: &str) -> Result<(InputFile, u64), OpenError> {
    if let Err(error) = crate::files::followed(path)
        && crate::files::is_absent(&error)
    {
        let reason = format!("is not there; a .bed file needs it: it has a line for each {what}");
        return Err(OpenError::refused(path.display().to_string(), reason));
    }
    let file = InputFile::open(path)?;
    let mut count = 0;
    each_line(&file, what, |_| count += 1)?;
    Ok((file, count))
}

/// Lines that are not empty, of a file that has one per `what`; a few bytes of each at a time.
fn each_line(file: &InputFile, what: &str, mut each: impl FnMut(&str)) -> Result<(), OpenError> {
    let mut buffer = vec![0; file.size().min(READ_BYTES) as usize];
    let mut line: Vec<u8> = Vec::new();
    let mut end = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line);
        if !text.trim().is_empty() {
            each(text.trim());
        }
        line.clear();
    };
    for at in (0..file.size()).step_by(READ_BYTES as usize) {
        let bytes = &mut buffer[..(file.size() - at).min(READ_BYTES) as usize];
        file.read_at(bytes, at).map_err(|error| OpenError::Wrong(error.to_string()))?;
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            line.extend_from_slice(part);
            if line.len() > LONGEST_LINE {
                let reason = format!("has a line of more than {LONGEST_LINE} bytes: it is no list of {what}s");
                return Err(OpenError::refused(file.place().display().to_string(), reason));
            }
            if part.ends_with(b"\n") {
                end(&mut line);
            }
        }
    }
    end(&mut line);
    Ok(())
}

impl Source for BedSource {
    fn meta(&self) -> &SourceMeta {
        &self.meta
    }

    /// Variants by the identifier of their line in the `.bim`; samples by their own identifier and by `FAMILY SAMPLE`, as in
    /// the lists that plink takes.
    fn names(&self, axis: usize, each: &mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> {
        let (file, what) = if axis == 0 { (&self.beside[0], "variant") } else { (&self.beside[1], "sample") };
        let mut number = 0;
        each_line(file, what, |line| {
            let mut fields = line.split_ascii_whitespace();
            if let (Some(first), Some(own)) = (fields.next(), fields.next()) {
                each(number, own);
                if what == "sample" {
                    each(number, &format!("{first} {own}"));
                }
            }
            number += 1;
        })?;
        Ok(Some(file.place().display().to_string()))
    }

    fn stamp(&self) -> Result<String, SourceError> {
        let [bim, fam] = &self.beside;
        Ok([self.bed.stamp()?, bim.stamp()?, fam.stamp()?].join(" "))
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let ranges = self.meta.chunk(chunk, out.len())?;
        let (rows, samples, columns) = (ranges[0].clone(), ranges[1].clone(), self.meta.chunk_shape[1] as usize);
        let (first, count) = (samples.start / 4, (samples.end - samples.start) as usize);
        let bytes = count.div_ceil(4);
        if transient.len() < bytes {
            transient.resize(bytes, 0);
        }
        let encoded = &mut transient[..bytes];
        for (variant, out) in rows.clone().zip(out.chunks_exact_mut(columns)) {
            self.bed.read_at(encoded, MAGIC.len() as u64 + variant * self.row + first)?;
            for (calls, byte) in out[..count].chunks_mut(4).zip(&*encoded) {
                calls.copy_from_slice(&DECODED[usize::from(*byte)][..calls.len()]);
            }
        }
        Ok(ChunkRead::Data { encoded_bytes: (rows.end - rows.start) * bytes as u64 })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::operators::testing::Random;
    use crate::zarr::store::tests::Scratch;

    fn write(folder: &Path, calls: &[Vec<u8>], samples: usize) {
        // The two bits of a call, as the format's description has them.
        let bits = |call: &u8| match call {
            2 => 0b00,
            3 => 0b01,
            1 => 0b10,
            _ => 0b11,
        };
        let byte = |calls: &[u8]| calls.iter().enumerate().fold(0u8, |byte, (i, call)| byte | bits(call) << (2 * i));
        let mut bytes = MAGIC.to_vec();
        calls.iter().for_each(|row| bytes.extend(row.chunks(4).map(byte)));
        fs::write(folder.join("a.bed"), bytes).unwrap();
        fs::write(folder.join("a.bim"), "1 rs 0 1 A G\n".repeat(calls.len())).unwrap();
        // Without a line end at the end, and with an empty line.
        let lines: Vec<String> = (0..samples).map(|i| format!("f{i} i{i} 0 0 0 -9")).collect();
        fs::write(folder.join("a.fam"), "\n".to_owned() + &lines.join("\n")).unwrap();
    }

    #[test]
    fn calls_are_counts_of_the_first_allele() {
        let scratch = Scratch::new();
        let mut random = Random::new(5);
        for (variants, samples) in [(1, 1), (7, 4), (40, 13), (3, 1030), (0, 5)] {
            let calls: Vec<Vec<u8>> = (0..variants).map(|_| (0..samples).map(|_| random.below(4) as u8).collect()).collect();
            write(&scratch.0, &calls, samples);
            let source = open(&scratch.0.join("a.bed")).unwrap();
            let meta = source.meta();
            assert_eq!(meta.array.shape, [variants as u64, samples as u64]);
            assert_eq!((meta.array.max_value, meta.array.missing), (Some(3), Scalar::from_integer(DType::U8, 3).ok()));
            let mut out = vec![9; variants * samples];
            if variants > 0 {
                let read = source.read_chunk(&[0, 0], &mut out, &mut Vec::new()).unwrap();
                assert_eq!(read, ChunkRead::Data { encoded_bytes: (variants * samples.div_ceil(4)) as u64 });
            }
            assert_eq!(out, calls.concat());
            assert!(source.read_chunk(&[1, 0], &mut out, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused() {
        let scratch = Scratch::new();
        let path = scratch.0.join("a.bed");
        let refused = || open(&path).err().unwrap().to_string();
        let again = || write(&scratch.0, &[vec![0, 1, 2, 3, 0], vec![2; 5]], 5);
        again();
        let source = open(&path).unwrap();
        let before = source.stamp().unwrap();
        fs::write(scratch.0.join("a.bim"), "1 rs 0 1 A G\n".repeat(3)).unwrap();
        assert!(refused().contains("holds 7 bytes, 3 variants (.bim) of 5 samples (.fam) take 9"), "{}", refused());
        assert_ne!(source.stamp().unwrap(), before);
        fs::remove_file(scratch.0.join("a.fam")).unwrap();
        assert!(refused().contains("a.fam: is not there; a .bed file needs it: it has a line for each sample"), "{}", refused());
        fs::write(scratch.0.join("a.fam"), vec![b'x'; LONGEST_LINE + 1]).unwrap();
        assert!(refused().contains("it is no list of samples"), "{}", refused());
        again();
        fs::write(&path, [0x6c, 0x1b, 0, 0, 0]).unwrap();
        assert!(refused().contains("is ordered by sample"), "{}", refused());
        fs::write(&path, [0x6c]).unwrap();
        assert!(refused().contains("is no PLINK 1 .bed file"), "{}", refused());
    }
}
