//! What lies outside the array for filters, whose intermediate results are arrays with edges of their own.
//!
//! scipy applies a separable filter axis by axis to the whole array, and opens with an erosion of the whole array. Cells
//! outside an *intermediate* array are filled from it by the boundary rule; they are not what the filter would compute
//! outside. So filters compute inside the array only, and take what lies outside through index maps at every pass.
//! A periodic axis has no outside: there the halo's copies of the other end are computed like any cell.
//!
//! For the maps to find their cells in the block, the halo is as deep on one side as on the other: a window that reaches 3
//! cells to the left and 1 to the right needs, in the first row, the cells that 3 cells to the left are reflected to.

use std::sync::Arc;

use super::super::pointwise::{find, guarded, only_input, place, show};
use super::super::{ArrayMeta, Binding, InputBinding, Kind, MapOperator, OperatorError, OutputBinding, Padded, StepInput};
use super::sample::is_real;
use crate::array::block::{c_strides, copy_strided, fill_strided};
use crate::array::boundary::{Run, RunFrom, constants, runs};
use crate::array::grid::for_each_index;
use crate::array::{Block, Boundary, DType, Region, Rule, Scalar};

/// A window longer than this is a slip, and sums of several stay far inside 64 bits.
pub const MAX_WINDOW: u64 = 1 << 20;

/// The array that a filter runs over, and its edges.
#[derive(Clone, Debug)]
pub struct Frame {
    op: String,
    input: String,
    pub shape: Vec<u64>,
    pub dtype: DType,
    pub boundary: Boundary,
    /// The boundary's constants in the array's dtype.
    pub constants: Vec<[Option<Scalar>; 2]>,
    /// The declared missing value, which must not pass for data (NaN does not).
    missing: Option<Scalar>,
}

impl Frame {
    /// The only input of a filter, its boundary `reflect` where none is given. `takes_bool`: the filter only compares.
    pub fn new(op: &str, inputs: &[StepInput], takes_bool: bool) -> Result<Self, String> {
        let input = only_input(op, inputs)?;
        let ArrayMeta { name, shape, dtype, .. } = &input.meta;
        if input.depth.is_some() {
            return Err(format!("{op} takes its depth from its parameters; leave depth out"));
        }
        if !(is_real(*dtype) || takes_bool && *dtype == DType::Bool) {
            let hint = match dtype {
                DType::C64 | DType::C128 => "take `real`, `imag` or `amplitude` first, or cast",
                _ => "cast to float32 first",
            };
            return Err(format!("{op} takes no {dtype}; {hint}"));
        }
        let boundary = input.boundary.clone().unwrap_or_else(|| vec![[Rule::Reflect; 2]; shape.len()]);
        if boundary.iter().flatten().any(|rule| *rule == Rule::None) {
            return Err(format!("{op} needs cells outside the array: boundary \"none\" has none, \"reflect\" is the default"));
        }
        let constants = constants(&boundary, *dtype)?;
        let missing = guarded(&input.meta);
        Ok(Self { op: op.to_owned(), input: name.clone(), shape: shape.clone(), dtype: *dtype, boundary, constants, missing })
    }

    /// The part of a padded block that lies in the array (all of it along periodic axes), grown by `depth` around `core`.
    /// Stops at a declared missing value.
    pub fn take(&self, input: &Padded, core: &Region, depth: &[u64]) -> Result<(Block, Region), OperatorError> {
        let region = self.grow(core, depth);
        if !input.region.contains(&region) {
            return Err(OperatorError::data(format!("the block's input {} does not hold {region}", input.region)));
        }
        let block = input.block.cut(&input.region, &region);
        if let Some(at) = self.missing.and_then(|m| find(&block, &m)) {
            return Err(OperatorError::data(format!(
                "{} holds its missing value {} at {:?}, which {} would take for data; select data without it or decode it to NaN",
                self.input,
                show(&block, at),
                place(&region, at),
                self.op
            )));
        }
        Ok((block, region))
    }

    /// True where cells are looked at before they are filtered.
    pub fn is_guarded(&self) -> bool {
        self.missing.is_some()
    }

    /// The same array as doubles: for intermediate results that the array's dtype would round.
    pub fn in_doubles(&self) -> Result<Self, String> {
        let constants = constants(&self.boundary, DType::F64)?;
        Ok(Self { dtype: DType::F64, constants, ..self.clone() })
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// True when the axis has no edges.
    pub fn is_periodic(&self, axis: usize) -> bool {
        self.boundary[axis] == [Rule::Periodic; 2]
    }

    /// True when a line's cells near one end are taken from the other end of the array, though the axis has edges.
    pub fn needs_whole(&self, axis: usize) -> bool {
        !self.is_periodic(axis) && self.boundary[axis].contains(&Rule::Periodic)
    }

    /// Grown by the depth on every side, cut at the array's edges.
    pub fn grow(&self, region: &Region, depth: &[u64]) -> Region {
        let ranges: Vec<(i64, i64)> = (0..self.rank())
            .map(|axis| {
                let (start, stop) = (region.start[axis] - depth[axis] as i64, region.stop[axis] + depth[axis] as i64);
                if self.is_periodic(axis) { (start, stop) } else { (start.max(0), stop.min(self.shape[axis] as i64)) }
            })
            .collect();
        Region::from_ranges(&ranges)
    }

    /// The most elements that [`Frame::grow`] gives for a core of this shape.
    pub fn grown_len(&self, axis: usize, core: u64, depth: u64) -> u64 {
        let grown = core.saturating_add(2 * depth);
        if self.is_periodic(axis) { grown } else { grown.min(self.shape[axis]) }
    }

    pub fn grown_shape(&self, core: &[u64], depth: &[u64]) -> Vec<u64> {
        (0..self.rank()).map(|a| self.grown_len(a, core.get(a).copied().unwrap_or(1), depth[a])).collect()
    }

    /// Where the cells `wanted` of an axis come from in a field that has the cells `have`: places are counted from the
    /// field's first cell, constants keep their side.
    pub fn runs(&self, axis: usize, wanted: (i64, i64), have: (i64, i64)) -> Vec<Run> {
        if self.is_periodic(axis) {
            let from = RunFrom::Cells { src: wanted.0 - have.0, step: 1 };
            return vec![Run { dst: 0, len: (wanted.1 - wanted.0).max(0) as usize, from }];
        }
        let mut list = runs(wanted.0, wanted.1, self.shape[axis] as i64, &self.boundary[axis]);
        for run in &mut list {
            if let RunFrom::Cells { src, .. } = &mut run.from {
                *src -= have.0;
            }
        }
        list
    }

    /// Fills `out` (C order over `want`) from `field` (C order over `have`): the cells in the array and those that the
    /// boundary rules put outside. A constant beats the other rules, and of several the one on the highest axis.
    pub fn extend(&self, field: &[u8], have: &Region, want: &Region, out: &mut [u8]) {
        let (rank, size) = (self.rank(), self.dtype.size());
        let (from, to) = (c_strides(&have.shape(), size), c_strides(&want.shape(), size));
        let runs: Vec<Vec<Run>> = (0..rank).map(|a| self.runs(a, want.axis(a), have.axis(a))).collect();
        let lists: Vec<Vec<u64>> = runs.iter().map(|r| (0..r.len() as u64).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let _ = for_each_index::<()>(&lists, |index| {
            let (mut source, mut target) = (0, 0);
            let (mut shape, mut steps) = (vec![0; rank], vec![0; rank]);
            for axis in 0..rank {
                let run = &runs[axis][index[axis] as usize];
                let RunFrom::Cells { src, step } = run.from else { return Ok(()) };
                source += src as isize * from[axis];
                target += run.dst as isize * to[axis];
                shape[axis] = run.len;
                steps[axis] = step as isize * from[axis];
            }
            copy_strided(out, target, &to, field, source, &steps, &shape, size);
            Ok(())
        });
        for (axis, runs) in runs.iter().enumerate() {
            for run in runs {
                if let RunFrom::Constant(side) = run.from
                    && let Some(value) = &self.constants[axis][side]
                {
                    let mut slab = want.shape();
                    slab[axis] = run.len;
                    fill_strided(out, run.dst as isize * to[axis], &to, &slab, value.bytes());
                }
            }
        }
    }

    /// The binding of a filter with one output of the input's shape and dtype, needing `depth` cells on both sides.
    /// `wants_outside`: the filter looks at the cells outside the array in its block; the others need not be given any.
    pub fn bind(
        &self,
        input: &StepInput,
        depth: &[u64],
        map: impl MapOperator + 'static,
        is_exact: bool,
        wants_outside: bool,
    ) -> Result<Binding, String> {
        for (axis, depth) in depth.iter().enumerate() {
            if *depth > MAX_WINDOW {
                return Err(format!(
                    "{} would reach {depth} cells along axis {axis}, at most {MAX_WINDOW} are possible",
                    self.op
                ));
            }
        }
        let mut bound = InputBinding::plain(self.rank());
        bound.depth = depth.iter().map(|&d| (d, d)).collect();
        // Where nothing is taken from outside, nothing need lie there.
        for (axis, rules) in bound.boundary.iter_mut().enumerate().filter(|(axis, _)| depth[*axis] > 0) {
            *rules = self.boundary[axis];
        }
        if !wants_outside {
            let mut given = bound.boundary.clone();
            given.iter_mut().enumerate().filter(|(axis, _)| !self.is_periodic(*axis)).for_each(|(_, r)| *r = [Rule::None; 2]);
            bound.own_rules = Some(std::mem::replace(&mut bound.boundary, given));
        }
        // Periodic on one side only: the other end of an intermediate result is at hand when the axis is whole.
        let whole = (0..self.rank()).filter(|&a| depth[a] > 0 && self.needs_whole(a)).collect();
        let mut output = OutputBinding::like(&self.op, self.dtype, &input.meta);
        output.missing = input.meta.missing.filter(|m| m.to_f64().is_nan());
        Ok(Binding {
            reference: 0,
            inputs: vec![bound],
            outputs: vec![output],
            whole,
            kind: Kind::Map(Arc::new(map)),
            is_exact,
            child_bytes: 0,
        })
    }
}
