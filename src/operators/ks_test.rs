//! The two-sample Kolmogorov-Smirnov test of every pixel of an image stack against each pixel of a window around it.
//!
//! Input: a stack of N images (azimuth, range, image; the image axis may be any). Complex pixels stand for |z|, computed in
//! float64 and rounded once (see `amplitude`). Outputs, at [azimuth, range, l, m] for pixel (azimuth, range) against
//! (azimuth + l - a, range + m - r):
//! - `k` (uint8): largest difference of the two empirical distributions, in counts; 255 where there is no test, that is
//!   outside the image, or where either pixel has a NaN (or the source's missing value) in any image;
//! - `dist` = k / N, divided in float64 and rounded once;
//! - `p`: the asymptotic Kolmogorov series with Stephens' correction, a table of N + 1 entries (see `table`).
//!
//! `convention = "standard"`: p(0) = 1, NaN where there is no test. `"decorrelation"`, as that package does: p(0) = 0 (its
//! series, cut after 100 terms, ends there) and -1 outside the image; it does not know NaN, so those cells are NaN here too.
//!
//! A step that needs only which p reach a level asks for that mask (`Operator::asks`): it is found without counts.
//!
//! Cost: N sorted amplitudes a pixel, then half of the pairs by symmetry, sixteen at a time: N (k + 1) vector compares for the
//! counts, 2 (N - limit) for a mask. Counts of many images are searched (see `pair`).
//! `k` is an integer, so all code paths and devices agree exactly.

mod counts;
pub mod device;
#[cfg(test)]
mod device_tests;
pub(super) mod kernel;
pub(super) mod load;
mod pair;
mod sink;
mod table;
#[cfg(test)]
mod tests;
mod tile;
mod within;

use std::sync::Arc;

use serde_json::json;

use super::pointwise::only_input;
use super::shp_mask::{self, MAX_HALF_WINDOW};
use super::stack::{amplitudes_input, image_axis, read_image_axis};
use super::{
    Ask, Binding, Computed, DeviceMap, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutAxis,
    OutputBinding, Padded, Param, StepInput, Workspace,
};
use crate::array::{Block, Buffer, DType, Region, Rule};
use crate::config::OneOrMany;
use crate::config::table::Table;
use kernel::Key;
use sink::Sink;
use table::Expansion;
use tile::{Geometry, Results, Tiles};
use within::{Limit, Mask};

pub static INFO: Info = Info {
    name: "ks_test",
    summary: "Kolmogorov-Smirnov test of each pixel of an image stack against its neighbours in a window",
    kind: "map",
    inputs: "one stack with three axes; complex (taken as amplitude), float, or integer of up to 32 bits",
    outputs: "dist, p: float32 (float64 of float64 and complex128); k: uint8, 255 = no test, written when named",
    halo: "half_window on the two spatial axes; the image axis is whole in every block",
    boundary: "\"none\" (default), and no other: pixels outside the image have no test",
    devices: "cpu, cuda",
    cost: "N log N a pixel to sort, then about N (k + 1) comparisons a pair of pixels, 8 pairs at once; half of the pairs by symmetry",
    source: "N. V. Smirnov's two-sample statistic; p by Kolmogorov's series with M. A. Stephens' correction (1970), as Numerical Recipes prints it",
    params: &[
        Param {
            name: "half_window",
            kind: "int or [int, int]",
            default: "",
            doc: "half window along azimuth and range: the window has 2a + 1 by 2r + 1 cells",
        },
        Param {
            name: "convention",
            kind: "\"standard\" | \"decorrelation\"",
            default: "\"standard\"",
            doc: "standard: p = 1 at distance 0, NaN without a test; decorrelation: p = 0 at distance 0, -1 outside the image",
        },
        Param {
            name: "image_axis",
            kind: "int",
            default: "-1",
            doc: "the axis of the images; the other two are azimuth and range",
        },
    ],
    build,
};

/// Counts up to 254 fit a byte beside the 255 that says "no test".
const MAX_IMAGES: u64 = 254;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Convention {
    Standard,
    Decorrelation,
}

impl Convention {
    fn name(self) -> &'static str {
        match self {
            Convention::Standard => "standard",
            Convention::Decorrelation => "decorrelation",
        }
    }
}

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    if !table.has("half_window") {
        table.problem("half_window", "ks_test needs its half window, such as half_window = [5, 5]");
    }
    let half_window = table.counts("half_window").and_then(|counts| match counts.expand(2, "half_window") {
        Ok(list) if list.iter().all(|h| *h <= MAX_HALF_WINDOW) => Some((list[0], list[1])),
        Ok(_) => {
            table.problem("half_window", format!("at most {MAX_HALF_WINDOW} is allowed"));
            None
        }
        Err(_) => {
            let count = if let OneOrMany::Many(list) = &counts { list.len() } else { 1 };
            table.problem("half_window", format!("expected [azimuth, range], or one number for both; found {count} numbers"));
            None
        }
    });
    let convention = match table.has("convention").then(|| table.one_of("convention", &["standard", "decorrelation"])) {
        None => Convention::Standard,
        Some(Some("decorrelation")) => Convention::Decorrelation,
        Some(Some(_)) => Convention::Standard,
        Some(None) => return None,
    };
    let image_axis = read_image_axis(table)?;
    Some(Box::new(KsTest { half_window: half_window?, convention, image_axis }))
}

struct KsTest {
    half_window: (u64, u64),
    convention: Convention,
    image_axis: i64,
}

impl Operator for KsTest {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        self.bind_asked(inputs, &[])
    }

    fn bind_asked(&self, inputs: &[StepInput], asks: &[Ask]) -> Result<Binding, String> {
        let input = only_input("ks_test", inputs)?;
        let meta = &input.meta;
        if input.depth.is_some() {
            return Err("ks_test takes its depth from half_window; leave depth out".to_owned());
        }
        if input.boundary.iter().flatten().flatten().any(|rule| *rule != Rule::None) {
            return Err("ks_test takes boundary \"none\" only: pixels outside the image have no test".to_owned());
        }
        amplitudes_input("ks_test", meta)?;
        let image = image_axis(self.image_axis, 3)?;
        let images = meta.shape[image];
        if images == 0 || images > MAX_IMAGES {
            return Err(format!(
                "ks_test takes 1 to {MAX_IMAGES} images, axis {image} of {} has {images}; select fewer, or give image_axis",
                meta.name
            ));
        }
        let spatial: Vec<usize> = (0..3).filter(|a| *a != image).collect();
        let (a, r) = self.half_window;
        let geometry = Geometry {
            half: (a as usize, r as usize),
            images: images as usize,
            rows: meta.shape[spatial[0]] as i64,
            cols: meta.shape[spatial[1]] as i64,
        };
        let mut bound_input = InputBinding::plain(3);
        bound_input.depth[spatial[0]] = (a, a);
        bound_input.depth[spatial[1]] = (r, r);

        let p_table = table::p_values(images as usize, self.convention);
        let wide = matches!(meta.dtype, DType::F64 | DType::C128);
        let value = if wide { DType::F64 } else { DType::F32 };
        let window = |half: u64, name: &str| OutAxis::New { len: 2 * half + 1, name: Some(name.to_owned()) };
        let output = |name: &str, dtype: DType| {
            let mut output = OutputBinding::like(name, dtype, meta);
            output.axes = vec![
                OutAxis::Carried(spatial[0]),
                OutAxis::Carried(spatial[1]),
                window(a, "window_azimuth"),
                window(r, "window_range"),
            ];
            output.attributes.insert("half_window".to_owned(), json!([a, r]));
            output.attributes.insert("images".to_owned(), json!(images));
            output.attributes.insert("convention".to_owned(), json!(self.convention.name()));
            output
        };
        let mut k = output("k", DType::U8);
        k.is_default = false;
        k.attributes.insert("p_table".to_owned(), json!(p_table));
        let mut outputs = vec![output("dist", value), output("p", value), k];
        let window = shp_mask::Window { half: (a as usize, r as usize) };
        let mut masks = Vec::new();
        for ask in asks {
            let mut mask = output(&ask.output, DType::U8);
            mask.axes.truncate(2);
            mask.axes.push(window.packed_axis());
            mask.is_default = false;
            ask.selection.note(&mut mask.attributes);
            mask.attributes.insert("window".to_owned(), window.attribute());
            outputs.push(mask);
            masks.push(ask.selection.by_count(&p_table));
        }
        let map = KsMap {
            geometry,
            spatial: [spatial[0], spatial[1]],
            image,
            wide,
            dtype: meta.dtype,
            missing: meta.missing,
            network: kernel::sorting_network(images as usize),
            dist: Expansion::new(&table::distances(images as usize), self.convention),
            p: Expansion::new(&p_table, self.convention),
            masks,
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![bound_input],
            outputs,
            whole: vec![image],
            kind: Kind::Map(Arc::new(map)),
            is_exact: true,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct KsMap {
    geometry: Geometry,
    /// Azimuth and range axis of the input.
    spatial: [usize; 2],
    image: usize,
    /// Compare doubles, not singles.
    wide: bool,
    dtype: DType,
    missing: Option<crate::array::Scalar>,
    network: Vec<(u8, u8)>,
    dist: Expansion,
    p: Expansion,
    /// The counts that each mask selects.
    masks: Vec<[bool; 256]>,
}

impl KsMap {
    /// Whether singles hold every value of the input in order.
    fn key_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// One sink for each output that is wanted and not empty.
    fn sinks<'a>(&'a self, task: &MapTask<'_>, buffers: &'a mut [Option<Buffer>]) -> Result<Vec<Sink<'a>>, OperatorError> {
        let expansions = [Some(&self.dist), Some(&self.p), None];
        let mut sinks = Vec::with_capacity(buffers.len());
        for (output, (region, buffer)) in task.outputs.iter().zip(buffers).enumerate() {
            let Some(buffer) = buffer.as_mut().filter(|_| !region.is_empty()) else { continue };
            sinks.push(match output.checked_sub(expansions.len()) {
                None => Sink::new(buffer, region, expansions[output], self.wide, &self.geometry)?,
                Some(mask) => Sink::mask(buffer, region, &self.masks[mask]),
            });
        }
        Ok(sinks)
    }

    /// The one mask that is all that is wanted, if a limit parts its counts.
    fn only_mask<'a>(&self, task: &MapTask<'_>, buffers: &'a mut [Option<Buffer>]) -> Option<Mask<'a>> {
        let mut made = buffers.iter_mut().enumerate().filter_map(|(output, buffer)| Some((output, buffer.as_mut()?)));
        let (Some((output, buffer)), None) = (made.next(), made.next()) else { return None };
        let limit = Limit::of(&self.masks[output.checked_sub(3)?], self.geometry.images)?;
        Some(Mask::new(buffer, &task.outputs[output], limit))
    }

    fn run<K: Key>(
        &self,
        input: &Padded,
        task: &MapTask<'_>,
        buffers: &mut [Option<Buffer>],
        core: [(i64, i64); 2],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let axes = [self.spatial[0], self.spatial[1], self.image];
        let source = load::Source::new(input, axes, self.missing);
        if let Some(mut mask) = self.only_mask(task, buffers) {
            let (mut tiles, mut ring, _) = Tiles::<K>::new(&self.geometry, &self.network, core, Results::Bits, work)?;
            let mut cells = work.buffer(within::cell_bytes(&self.geometry) as usize)?;
            return tiles.run(&source, work.stop, |tiles, at| mask.row(tiles, at, &mut ring, &mut cells));
        }
        let mut sinks = self.sinks(task, buffers)?;
        let (mut tiles, mut ring, mut pixel) = Tiles::<K>::new(&self.geometry, &self.network, core, Results::Counts, work)?;
        tiles.run(&source, work.stop, |tiles, at| counts::row(tiles, at, &mut ring, &mut pixel, &mut sinks))
    }
}

impl MapOperator for KsMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = <[Padded; 1]>::try_from(inputs)
            .map_err(|inputs| OperatorError::data(format!("expected one input, got {}", inputs.len())))?;
        let mut buffers: Vec<Option<Buffer>> = Vec::with_capacity(task.outputs.len());
        let value = if self.wide { DType::F64 } else { DType::F32 };
        let dtype = |output: usize| if output < 2 { value } else { DType::U8 };
        for ((region, dtype), wanted) in task.outputs.iter().zip((0..).map(dtype)).zip(task.wanted) {
            let bytes = region.count() * dtype.size();
            buffers.push(if *wanted { Some(work.buffer(bytes)?) } else { None });
        }
        // The rows and columns that any wanted output needs.
        let mut core = [(i64::MAX, i64::MIN); 2];
        for (region, _) in task.outputs.iter().zip(&buffers).filter(|(region, buffer)| buffer.is_some() && !region.is_empty()) {
            for (axis, hull) in core.iter_mut().enumerate() {
                *hull = (hull.0.min(region.start[axis]), hull.1.max(region.stop[axis]));
            }
        }
        if core[0].0 < core[0].1 {
            self.check_cover(&input.region, core)?;
            match self.wide {
                false if self.narrow_input(&input.block) => self.run::<f32>(&input, task, &mut buffers, core, work)?,
                _ => self.run::<f64>(&input, task, &mut buffers, core, work)?,
            }
        }
        Ok(buffers
            .into_iter()
            .enumerate()
            .map(|(output, buffer)| {
                let region = task.outputs[output].clone();
                let shape = region.shape();
                buffer.map(|b| Computed { region, block: Block::new(b, dtype(output), shape) })
            })
            .collect())
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        let cols = core.get(self.spatial[1]).copied().unwrap_or(0);
        // 32-bit integers are compared as doubles though their outputs are singles.
        tile::scratch_bytes(&self.geometry, cols, self.key_bytes().max(8), !self.masks.is_empty())
    }

    fn device(&self) -> Option<&dyn DeviceMap> {
        Some(self)
    }
}

impl KsMap {
    /// True when a single holds every value of the dtype (or its amplitude) exactly.
    fn narrow_input(&self, block: &Block) -> bool {
        !matches!(block.dtype(), DType::U32 | DType::I32 | DType::F64 | DType::C128)
    }

    /// The halo stage promises this; a slip there must not become a wrong number here.
    fn check_cover(&self, region: &Region, core: [(i64, i64); 2]) -> Result<(), OperatorError> {
        let half = [self.geometry.half.0 as i64, self.geometry.half.1 as i64];
        let lens = [self.geometry.rows, self.geometry.cols];
        let is_covered = (0..2).all(|i| {
            let (start, stop) = region.axis(self.spatial[i]);
            start <= (core[i].0 - half[i]).max(0) && stop >= (core[i].1 + half[i]).min(lens[i])
        }) && region.axis(self.image) == (0, self.geometry.images as i64);
        match is_covered {
            true => Ok(()),
            false => Err(OperatorError::data(format!("the block's input {region} does not hold the window around {core:?}"))),
        }
    }
}
