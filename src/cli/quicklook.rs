//! `run --quicklook FOLDER`: a picture of each output, to see at a glance whether a result is what was meant.
//!
//! A picture shows the two longest axes, thinned out to a thousand cells each, in the middle of all others: so it reads only the
//! chunks along one plane, one at a time. Grey from the 2nd to the 98th percentile of what is shown; NaN is transparent. Complex
//! values show their modulus, or their angle where the moduli are all alike.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::array::{AxisGrid, MAX_CHUNK_BYTES, Scalar};
use crate::engine::verify::stored;
use crate::plan::Plan;
use crate::reader::{OpenError, Source, SourceError};

/// Pixels along a side.
const MOST_PIXELS: u64 = 1024;

/// Moduli this near to each other are one.
const ALIKE: f64 = 1e-3;

#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{path}: {error}")]
    Io { path: String, error: std::io::Error },
    #[error("{path}: {error}")]
    Png { path: String, error: png::EncodingError },
}

/// A plane of an array, thinned out.
struct Plane {
    /// Pictured axes: rows and columns, and every how many cells of them.
    axes: [usize; 2],
    every: [u64; 2],
    size: [u64; 2],
    /// Where the other axes are cut.
    at: Vec<u64>,
}

impl Plane {
    /// `None` for arrays that have no plane with more than one cell each way.
    fn of(shape: &[u64], parts: u64) -> Option<Self> {
        let mut axes: Vec<usize> = (0..shape.len()).filter(|&a| shape[a] > 1).collect();
        // The longest two; of equals the later ones, which images usually have last.
        axes.sort_by_key(|&a| (std::cmp::Reverse(shape[a]), std::cmp::Reverse(a)));
        let mut axes: [usize; 2] = axes.get(..2)?.try_into().ok()?;
        axes.sort_unstable();
        let every = axes.map(|a| shape[a].div_ceil(MOST_PIXELS));
        let size = [0, 1].map(|side| shape[axes[side]].div_ceil(every[side]));
        Some(Self { axes, every, size, at: shape.iter().map(|n| n / parts).collect() })
    }

    /// Values of the plane, rows first.
    fn read(&self, source: &dyn Source) -> Result<Vec<Scalar>, SourceError> {
        let meta = source.meta();
        let (dtype, size) = (meta.array.dtype, meta.array.dtype.size());
        let bytes = meta.chunk_shape.iter().product::<u64>().saturating_mul(size as u64);
        if bytes > MAX_CHUNK_BYTES {
            let reason = format!("chunks of {bytes} bytes are too large for a picture");
            return Err(SourceError::Corrupt { place: meta.place.display().to_string(), reason });
        }
        let (mut chunk, mut transient) = (vec![0u8; bytes as usize], Vec::new());
        let mut values = vec![Scalar::zero(dtype); (self.size[0] * self.size[1]) as usize];
        let [rows, columns] = self.axes.map(|a| &meta.grid.0[a]);
        let mut index: Vec<u64> = meta.grid.0.iter().zip(&self.at).map(|(axis, &at)| axis.cell_of(at)).collect();
        // The pixels of each chunk that has any, with their cells.
        let seen = |axis: &AxisGrid, every: u64| {
            let of_chunk = |i: u64| {
                let range = axis.range(i);
                let pixels = range.start.div_ceil(every)..range.end.div_ceil(every);
                (i, pixels.map(|pixel| (pixel, pixel * every)).collect::<Vec<_>>())
            };
            (0..axis.cells()).map(of_chunk).filter(|(_, pixels)| !pixels.is_empty()).collect::<Vec<_>>()
        };
        let columns = seen(columns, self.every[1]);
        let mut cell = self.at.clone();
        for (row_chunk, rows) in seen(rows, self.every[0]) {
            for (column_chunk, columns) in &columns {
                (index[self.axes[0]], index[self.axes[1]]) = (row_chunk, *column_chunk);
                source.read_chunk(&index, &mut chunk, &mut transient)?;
                let starts: Vec<u64> = meta.grid.0.iter().zip(&index).map(|(axis, &i)| axis.range(i).start).collect();
                for (y, row) in &rows {
                    for (x, column) in columns {
                        (cell[self.axes[0]], cell[self.axes[1]]) = (*row, *column);
                        let flat = (0..cell.len()).fold(0, |n, a| n * meta.chunk_shape[a] + (cell[a] - starts[a])) as usize;
                        if let Some(value) = Scalar::from_bytes(dtype, &chunk[flat * size..(flat + 1) * size]) {
                            values[(y * self.size[1] + x) as usize] = value;
                        }
                    }
                }
            }
        }
        Ok(values)
    }

    /// How the array is cut, as one writes it.
    fn words(&self, names: &[Option<String>], shape: &[u64]) -> String {
        let axis = |a: usize| {
            let name = names.get(a).cloned().flatten().map(|n| format!("{n} ")).unwrap_or_default();
            match self.axes.iter().position(|&of| of == a) {
                Some(side) if self.every[side] > 1 => format!("{name}0:{}:{}", shape[a], self.every[side]),
                Some(_) => format!("{name}0:{}", shape[a]),
                None => format!("{name}{}", self.at[a]),
            }
        };
        (0..shape.len()).map(axis).collect::<Vec<_>>().join(", ")
    }
}

/// Numbers to be shown, and what they are.
fn shown(values: &[Scalar], is_complex: bool) -> (Vec<f64>, &'static str) {
    if !is_complex {
        return (values.iter().map(Scalar::to_f64).collect(), "");
    }
    let parts: Vec<(f64, f64)> = values.iter().map(Scalar::parts).collect();
    let moduli: Vec<f64> = parts.iter().map(|(re, im)| re.hypot(*im)).collect();
    let (low, high) = range(&moduli);
    match high - low <= ALIKE * high.abs() {
        true => (parts.iter().map(|(re, im)| im.atan2(*re)).collect(), "angle, "),
        false => (moduli, "modulus, "),
    }
}

/// The 2nd and the 98th percentile of what is finite.
fn range(values: &[f64]) -> (f64, f64) {
    let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let at = |share: f64| finite.get((share * finite.len().saturating_sub(1) as f64).round() as usize).copied().unwrap_or(0.0);
    (at(0.02), at(0.98))
}

/// Grey and opacity of each pixel.
fn pixels(values: &[f64], (low, high): (f64, f64)) -> Vec<u8> {
    let scale = if high > low { 255.0 / (high - low) } else { 0.0 };
    values
        .iter()
        .flat_map(|v| if v.is_nan() { [0, 0] } else { [((v - low) * scale).clamp(0.0, 255.0).round() as u8, 255] })
        .collect()
}

/// Writes the pictures, and says what each shows.
pub fn pictures(plan: &Plan, folder: &Path) -> Result<Vec<String>, LookError> {
    let mut told = Vec::new();
    for output in &plan.outputs {
        let member = output.target.member.as_deref();
        let name = member.map_or_else(|| output.name.clone(), |member| format!("{}.{}", output.name, member.replace('/', ".")));
        if output.layout.points.is_some() {
            told.push(format!("no picture of {name}: it is a list of points"));
            continue;
        }
        let source = stored(output)?;
        let array = &source.meta().array;
        let mut found = None;
        // A cell beside the middle, too: in the middle of a window a pixel is compared with itself.
        for parts in [2, 4] {
            let Some(plane) = Plane::of(&array.shape, parts) else { break };
            let (values, what) = shown(&plane.read(source.as_ref())?, array.dtype.is_complex());
            let (low, high) = range(&values);
            let is_flat = low == high;
            found = Some((plane, values, what, (low, high)));
            if !is_flat {
                break;
            }
        }
        let Some((plane, values, what, (low, high))) = found else {
            told.push(format!("no picture of {name}: {:?} has no two axes to show", array.shape));
            continue;
        };
        let path = folder.join(format!("{name}.png"));
        write(&path, plane.size, &pixels(&values, (low, high)))?;
        let words = plane.words(&array.dimension_names, &array.shape);
        told.push(format!("{}: {what}[{words}], black {low:.4}, white {high:.4}", path.display()));
    }
    Ok(told)
}

fn write(path: &PathBuf, size: [u64; 2], pixels: &[u8]) -> Result<(), LookError> {
    let io = |error| LookError::Io { path: path.display().to_string(), error };
    let png = |error| LookError::Png { path: path.display().to_string(), error };
    let mut to = BufWriter::new(File::create(path).map_err(io)?);
    let mut encoder = png::Encoder::new(&mut to, size[1] as u32, size[0] as u32);
    encoder.set_color(png::ColorType::GrayscaleAlpha);
    let mut writer = encoder.write_header().map_err(png)?;
    writer.write_image_data(pixels).map_err(png)?;
    writer.finish().map_err(png)?;
    to.flush().map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_holds_the_longest_axes() {
        let plane = Plane::of(&[17, 3000, 2500], 2).unwrap();
        assert_eq!((plane.axes, plane.every, plane.size, plane.at[0]), ([1, 2], [3, 3], [1000, 834], 8));
        let plane = Plane::of(&[2500, 1834, 11, 11], 4).unwrap();
        assert_eq!((plane.axes, plane.at[2]), ([0, 1], 2));
        assert_eq!(
            plane.words(&[Some("azimuth".into()), None, None, None], &[2500, 1834, 11, 11]),
            "azimuth 0:2500:3, 0:1834:2, 2, 2"
        );
        assert_eq!(Plane::of(&[5, 5, 5], 2).unwrap().axes, [1, 2]);
        assert!(Plane::of(&[9], 2).is_none() && Plane::of(&[1, 9], 2).is_none() && Plane::of(&[], 2).is_none());
    }

    #[test]
    fn greys_span_the_percentiles_and_nan_is_transparent() {
        let values: Vec<f64> = (0..=100).map(f64::from).chain([f64::NAN, f64::INFINITY]).collect();
        let (low, high) = range(&values);
        assert_eq!((low, high), (2.0, 98.0));
        let pixels = pixels(&values, (low, high));
        assert_eq!(
            (&pixels[..2], &pixels[100..102], &pixels[200..206]),
            (&[0u8, 255][..], &[128u8, 255][..], &[255u8, 255, 0, 0, 255, 255][..])
        );
        assert_eq!(range(&[f64::NAN]), (0.0, 0.0));
    }
}
