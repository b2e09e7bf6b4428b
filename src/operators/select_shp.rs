//! Statistically homogeneous pixels (SHP) from a test: which cells of the window around a pixel are like it, and how many.
//!
//! Asks `ks_test` for the mask itself, which is found without counts, or reads its counts `k`, one byte a cell; a step that names `ks_test`, `ks_test.p` or `ks_test.dist` gets them
//! too, so that the four-dimensional p values are never made. An array of p values from elsewhere is taken as it is. Both
//! select alike: p and alpha are compared in float32, whatever p was stored as.
//!
//! `rule = "not-rejected"`: p >= alpha, cells whose distribution the test can't tell from the pixel's own. `"rejected"`:
//! p < alpha, what the decorrelation package's documents compute. That is the wrong way round, a small p means that the
//! distributions differ, and keeps the pixel itself only because that package has p(0) = 0; it is there to reproduce their
//! results. Cells without a test (outside the image, NaN) are never selected.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pointwise::only_input;
use super::shp_mask::{Selection, Window, recognise};
use super::stack::{Strided, computed, plain_input, take};
use super::{
    ArrayMeta, Ask, Binding, Computed, Info, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutputBinding,
    Padded, Param, StepInput, Workspace,
};
use crate::array::DType;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "select_shp",
    summary: "pixels of a window that a test found to be like the one in its middle: mask and count",
    kind: "map",
    inputs: "ks_test, or its k or p from disk: (azimuth, range, window, window)",
    outputs: "mask: uint8 (azimuth, range, bytes), attribute `window`, bits in C order from the lowest; count: int32",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one comparison a pair of pixels",
    source: "the test's decision at level alpha, `p >= alpha`; \"rejected\" as the decorrelation package's documents have it",
    params: &[
        Param {
            name: "alpha",
            kind: "number",
            default: "0.05",
            doc: "significance level: the share of like pixels that the test is allowed to miss",
        },
        Param {
            name: "rule",
            kind: "\"not-rejected\" | \"rejected\"",
            default: "\"not-rejected\"",
            doc: "not-rejected: p >= alpha; rejected: p < alpha, the rule of the decorrelation documents, which is the wrong way round",
        },
        Param {
            name: "connected",
            kind: "bool",
            default: "false",
            doc: "keep only what touches the middle, sides and corners, through selected cells",
        },
    ],
    build,
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let alpha = if table.has("alpha") { table.number("alpha")? } else { 0.05 };
    if !(0.0..=1.0).contains(&alpha) {
        table.problem("alpha", format!("{alpha} is no probability; expected a number from 0 to 1"));
        return None;
    }
    let is_rejected = match table.has("rule").then(|| table.one_of("rule", &["not-rejected", "rejected"])) {
        None => false,
        Some(rule) => rule? == "rejected",
    };
    let is_connected = table.bool("connected").unwrap_or(false);
    Some(Box::new(SelectShp { selection: Selection { alpha, is_rejected }, is_connected }))
}

/// By count, from the table of p that counts carry.
fn by_count(selection: Selection, meta: &ArrayMeta) -> Result<[bool; 256], String> {
    let table: Option<Vec<f64>> = meta.attributes.get("p_table").and_then(|t| t.as_array()?.iter().map(|p| p.as_f64()).collect());
    let table = table
        .filter(|t| (2..=255).contains(&t.len()))
        .ok_or_else(|| format!("{} has no attribute `p_table` with the p of each count, as ks_test writes it", meta.name))?;
    Ok(selection.by_count(&table))
}

struct SelectShp {
    selection: Selection,
    is_connected: bool,
}

impl Operator for SelectShp {
    fn reads(&self, _input: usize, op: &str, _output: Option<&str>) -> Option<&'static str> {
        (op == "ks_test").then_some("k")
    }

    fn asks(&self, _input: usize, op: &str, _output: Option<&str>) -> Option<Ask> {
        (op == "ks_test").then(|| self.selection.ask())
    }

    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("select_shp", inputs)?;
        plain_input("select_shp", input)?;
        let meta = &input.meta;
        let is_selected = meta.rank() == 3 && self.selection.is_of(&meta.attributes);
        if meta.rank() != 4 && !is_selected {
            return Err(format!(
                "select_shp needs test results (azimuth, range, window, window), {} has {} axes",
                meta.name,
                meta.rank()
            ));
        }
        let window = match is_selected {
            true => recognise(meta)?.1,
            false => Window::new(meta.shape[2], meta.shape[3]).map_err(|e| format!("{}: {e}", meta.name))?,
        };
        let test = match meta.dtype {
            DType::U8 if is_selected => Test::Mask,
            DType::U8 => Test::Counts(Box::new(by_count(self.selection, meta)?)),
            DType::F32 => Test::Singles,
            DType::F64 => Test::Doubles,
            other => {
                return Err(format!(
                    "select_shp takes counts (uint8 with attribute `p_table`) or p values (float32, float64), {} is {other}",
                    meta.name
                ));
            }
        };
        let output = |name: &str, dtype: DType| {
            let mut output = OutputBinding::like(name, dtype, meta);
            output.axes.truncate(2);
            output.attributes.shift_remove("p_table");
            output.attributes.shift_remove("window");
            self.selection.note(&mut output.attributes);
            output
        };
        let mut mask = output("mask", DType::U8);
        mask.axes.push(window.packed_axis());
        mask.attributes.insert("window".to_owned(), window.attribute());
        let mut count = output("count", DType::I32);
        count.max_value = Some(window.cells() as u64);
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![mask, count],
            whole: (2..meta.rank()).collect(),
            kind: Kind::Map(Arc::new(SelectMap { test, window, selection: self.selection, is_connected: self.is_connected })),
            is_exact: true,
            child_bytes: 0,
        })
    }
}

enum Test {
    /// It is done.
    Mask,
    /// Whether a count selects.
    Counts(Box<[bool; 256]>),
    Singles,
    Doubles,
}

/// The bound operator.
struct SelectMap {
    test: Test,
    window: Window,
    selection: Selection,
    is_connected: bool,
}

impl SelectMap {
    /// The cells of one pixel's window that are selected: one byte each, 0 or 1.
    fn cells(&self, source: &Strided<'_>, row: i64, col: i64, cells: &mut [u8]) {
        let breadth = self.window.shape().1;
        if matches!(self.test, Test::Mask) {
            let start = source.offset(&[row, col, 0]);
            for (byte, cells) in cells.chunks_mut(8).enumerate() {
                let bits = source.get::<u8>(start + byte as isize * source.strides[2]);
                cells.iter_mut().enumerate().for_each(|(n, cell)| *cell = bits >> n & 1);
            }
            return;
        }
        let start = source.offset(&[row, col, 0, 0]);
        let (line_step, cell_step) = (source.strides[2], source.strides[3]);
        macro_rules! each {
            ($holds:expr) => {
                for (line, cells) in cells.chunks_exact_mut(breadth).enumerate() {
                    let start = start + line as isize * line_step;
                    for (cell, value) in cells.iter_mut().enumerate() {
                        *value = u8::from($holds(start + cell as isize * cell_step));
                    }
                }
            };
        }
        match &self.test {
            Test::Mask => {}
            Test::Counts(table) => each!(|at| table[usize::from(source.get::<u8>(at))]),
            Test::Singles => each!(|at| self.selection.holds(source.get::<f32>(at))),
            Test::Doubles => each!(|at| self.selection.holds(source.get::<f64>(at) as f32)),
        }
    }

    /// Clears all cells but those that the middle reaches in steps to any of the eight neighbours. Nothing is left when the
    /// middle itself is not selected.
    fn keep_connected(&self, cells: &mut [u8], open: &mut [u32]) {
        let (height, breadth) = self.window.shape();
        let middle = self.window.half.0 * breadth + self.window.half.1;
        let mut count = 0;
        // 2: reached.
        if cells[middle] == 1 {
            cells[middle] = 2;
            open[0] = middle as u32;
            count = 1;
        }
        while count > 0 {
            count -= 1;
            let at = open[count] as usize;
            let (line, cell) = (at / breadth, at % breadth);
            for near in line.saturating_sub(1)..(line + 2).min(height) {
                for next in cell.saturating_sub(1)..(cell + 2).min(breadth) {
                    let to = near * breadth + next;
                    if cells[to] == 1 {
                        cells[to] = 2;
                        open[count] = to as u32;
                        count += 1;
                    }
                }
            }
        }
        cells.iter_mut().for_each(|cell| *cell = u8::from(*cell == 2));
    }
}

impl MapOperator for SelectMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        let source = Strided::new(&input);
        let [mask_region, count_region] = [&task.outputs[0], &task.outputs[1]];
        let mut mask = if task.wanted[0] { Some(work.buffer(mask_region.count())?) } else { None };
        let mut count = if task.wanted[1] { Some(work.buffer(count_region.count() * 4)?) } else { None };
        let (rows, cols) = (task.core.axis(0), task.core.axis(1));
        let mut cells = work.buffer(self.window.cells())?;
        let mut open = work.buffer(self.open_bytes())?;
        let bytes = self.window.bytes();
        let mut pixel = 0;
        for row in rows.0..rows.1 {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            for col in cols.0..cols.1 {
                if matches!(self.test, Test::Mask) && !self.is_connected {
                    // Bits stay bits.
                    let start = source.offset(&[row, col, 0]);
                    let bits = |byte: usize| source.get::<u8>(start + byte as isize * source.strides[2]);
                    if let Some(mask) = &mut mask {
                        mask[pixel * bytes..][..bytes].iter_mut().enumerate().for_each(|(n, byte)| *byte = bits(n));
                    }
                    if let Some(count) = &mut count {
                        count.as_mut_slice_of::<i32>()[pixel] = (0..bytes).map(|n| bits(n).count_ones() as i32).sum();
                    }
                    pixel += 1;
                    continue;
                }
                self.cells(&source, row, col, &mut cells);
                if self.is_connected {
                    self.keep_connected(&mut cells, open.as_mut_slice_of());
                }
                if let Some(mask) = &mut mask {
                    for (byte, cells) in mask[pixel * bytes..][..bytes].iter_mut().zip(cells.chunks(8)) {
                        *byte = cells.iter().enumerate().fold(0, |byte, (bit, cell)| byte | cell << bit);
                    }
                }
                if let Some(count) = &mut count {
                    count.as_mut_slice_of::<i32>()[pixel] = cells.iter().map(|cell| i32::from(*cell)).sum();
                }
                pixel += 1;
            }
        }
        Ok(vec![computed(mask, DType::U8, mask_region), computed(count, DType::I32, count_region)])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        (capacity_for(self.window.cells()) + capacity_for(self.open_bytes())) as u64
    }
}

impl SelectMap {
    /// Room for the cells whose neighbours are still to be looked at.
    fn open_bytes(&self) -> usize {
        if self.is_connected { self.window.cells() * 4 } else { 0 }
    }
}
