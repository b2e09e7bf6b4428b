//! `semblance_coherence`: how alike neighbouring traces are, from 0 to 1; low at faults and channels' edges.
//!
//! Over a window of n traces and a number of samples: `sum over samples of (sum over traces of x)^2 / (n * sum over samples and
//! traces of x^2)` (K. J. Marfurt et al., 3-D seismic attributes using a semblance-based coherency algorithm, Geophysics 63,
//! 1998, without a search over dips). 0 where the window holds zeros only; a window with a NaN gives NaN.
//!
//! Computed slab by slab across the first axis of traces: the sums over a slab's window along that axis, in the order of the
//! traces, then means along one axis after the other, which are each window's alone. So two slabs of doubles are all the
//! working memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::filters::frame::MAX_WINDOW;
use super::super::filters::kernel::Kernel;
use super::super::filters::lines::{Combine, Layout, Pass, Within, tile_len};
use super::super::filters::sample::{Sample, with_sample};
use super::super::filters::{buffer_bytes, buffers};
use super::super::pointwise::{each_run, guarded, only_input, refuse_missing};
use super::super::stack::{computed, take};
use super::super::{
    Binding, Computed, Info, Kind, MapOperator, MapTask, Operator, OperatorError, Padded, Param, StepInput, Workspace, axis_at,
};
use super::traces::Stored;
use super::{ATTRIBUTE, AXIS, attribute_dtype, output, reach, read_axis, windowed};
use crate::array::block::c_strides;
use crate::array::boundary::{Run, RunFrom};
use crate::array::budget::BudgetError;
use crate::array::{Block, DType, Scalar};
use crate::config::OneOrMany;
use crate::config::table::Table;
use crate::simd::{Vectored, widest};

pub static INFO: Info = Info {
    name: "semblance_coherence",
    summary: "semblance of the traces in a window: 1 where they are alike, lower at faults and edges",
    inputs: "one array of integers, float32 or float64, with two axes or more",
    halo: "half the aperture on both sides of each axis",
    cost: "two additions a sample and trace of the window along the first axis of traces, fewer than 16 along each other axis, or four times the binary logarithm of the window",
    source: "Marfurt et al., Geophysics 63 (1998), without a search over dips: energy of the mean trace over mean energy",
    params: &[
        AXIS,
        Param {
            name: "aperture",
            kind: "[int, ...]",
            default: "",
            doc: "length of the window along each axis of the input: traces, and samples along the axis of the samples; even ones reach further back",
        },
    ],
    build,
    ..ATTRIBUTE
};

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    if !table.has("aperture") {
        table.problem("aperture", "missing; give the window's length along each axis, such as aperture = [3, 3, 9]");
    }
    let (axis, aperture) = (read_axis(table), table.counts("aperture")?);
    let lengths = match &aperture {
        OneOrMany::One(one) => std::slice::from_ref(one),
        OneOrMany::Many(list) => list,
    };
    if let Some(bad) = lengths.iter().find(|n| !(1..=MAX_WINDOW).contains(*n)) {
        table.problem("aperture", format!("a window is 1 to {MAX_WINDOW} cells long, found {bad}"));
        return None;
    }
    Some(Box::new(Semblance { axis: axis?, aperture }))
}

struct Semblance {
    axis: i64,
    aperture: OneOrMany<u64>,
}

impl Operator for Semblance {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let input = only_input("semblance_coherence", inputs)?;
        let meta = &input.meta;
        let rank = meta.rank();
        let dtype = attribute_dtype("semblance_coherence", meta.dtype)?;
        let samples = axis_at("axis", self.axis, rank)?;
        let Some(across) = (0..rank).find(|a| *a != samples) else {
            return Err(format!("semblance_coherence compares traces, {} is a single one; it needs two axes or more", meta.name));
        };
        let aperture = self.aperture.expand(rank, "aperture")?;
        let depth: Vec<(u64, u64)> = aperture.iter().map(|n| reach(*n)).collect();
        let map = SemblanceMap {
            aperture: aperture.iter().map(|n| *n as usize).collect(),
            across,
            samples,
            dtype,
            guard: guarded(meta),
        };
        Ok(Binding {
            reference: 0,
            inputs: vec![windowed("semblance_coherence", input, &depth)?],
            outputs: vec![output("semblance_coherence", dtype, meta)],
            whole: Vec::new(),
            kind: Kind::Map(Arc::new(map)),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

/// The bound operator.
struct SemblanceMap {
    aperture: Vec<usize>,
    /// The first axis of traces, along which a slab is one cell.
    across: usize,
    samples: usize,
    dtype: DType,
    guard: Option<Scalar>,
}

impl SemblanceMap {
    /// Bytes of each of the two slabs, of a tile, and of a second tile where one is needed.
    fn sizes(&self, core: &[u64]) -> [u64; 4] {
        let rank = self.aperture.len();
        let padded = |axis: usize| core.get(axis).copied().unwrap_or(1).saturating_add(self.aperture[axis] as u64 - 1);
        let others = || (0..rank).filter(|a| *a != self.across);
        let slab = others().fold(size_of::<f64>() as u64, |bytes, a| bytes.saturating_mul(padded(a)));
        let line = others().map(padded).max().unwrap_or(1);
        let tile = tile_len(line, size_of::<f64>()).saturating_mul(size_of::<f64>() as u64);
        let needs_spare = others().any(|a| Kernel::Mean(self.aperture[a]).needs_spare());
        [slab, slab, tile, if needs_spare { tile } else { 0 }]
    }

    /// Fills `out` (C order over `shape`) from the block with its halo.
    fn fill<T: Stored>(
        &self,
        block: &Block,
        shape: &[usize],
        out: &mut [T],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        let core: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        let [mut sums, mut energies, mut tile, mut spare] = buffers(work, self.sizes(&core))?;
        let [sums, energies, tile, spare] = [&mut sums, &mut energies, &mut tile, &mut spare].map(|b| b.as_mut_slice_of::<f64>());
        let traces = self.aperture[self.across];
        let mut slab = block.shape().to_vec();
        slab[self.across] = 1;
        for i in 0..shape[self.across] {
            if work.stop.load(Ordering::Relaxed) {
                return Err(BudgetError::Stopped.into());
            }
            sums.fill(0.0);
            energies.fill(0.0);
            for trace in i..i + traces {
                let (mut start, mut stop) = (vec![0; slab.len()], block.shape().to_vec());
                (start[self.across], stop[self.across]) = (trace, trace + 1);
                with_sample!(block.dtype(), S => add::<S>(&block.view(&start, &stop), sums, energies));
            }
            // Means over the traces of the window along the other axes, then over its samples.
            let others = (0..slab.len()).filter(|a| *a != self.across && *a != self.samples);
            let mut held = slab.clone();
            for axis in others {
                held[axis] = shape[axis];
                for field in [&mut *sums, &mut *energies] {
                    self.mean(field, &slab, &held, axis, tile, spare);
                }
            }
            widest(Squares { sums, energies, traces: traces as f64 });
            held[self.samples] = shape[self.samples];
            for field in [&mut *sums, &mut *energies] {
                self.mean(field, &slab, &held, self.samples, tile, spare);
            }
            self.quotients(sums, energies, &slab, (i, shape), out);
        }
        Ok(())
    }

    /// Means along an axis, in place, of a field that is laid out as `slab`; `held`: the shape that comes out.
    fn mean(&self, field: &mut [f64], slab: &[usize], held: &[usize], axis: usize, tile: &mut [f64], spare: &mut [f64]) {
        let size = self.aperture[axis];
        if size == 1 {
            return;
        }
        let layout = Layout { offset: 0, strides: c_strides(slab, 1) };
        let runs = [Run { dst: 0, len: held[axis] + size - 1, from: RunFrom::Cells { src: 0, step: 1 } }];
        let (source, target) = (&layout, &layout);
        let pass = Pass { axis, shape: held, runs: &runs, constants: [0.0; 2], source, target, combine: Combine::Set };
        let mut filter = |_, tile: &mut [f64], step, count| Kernel::Mean(size).apply(tile, spare, step, count);
        pass.run(&mut Within(field), tile, 0, &mut filter);
    }

    /// Slab `i` of the result, from the fields' first cells along each axis.
    fn quotients<T: Stored>(&self, sums: &[f64], energies: &[f64], slab: &[usize], (i, shape): (usize, &[usize]), out: &mut [T]) {
        let (from, to) = (c_strides(slab, 1), c_strides(shape, 1));
        let last = shape.len() - 1;
        // Rows along the last axis, of which a slab across it has one cell.
        let row = if last == self.across { 1 } else { shape[last] };
        let rows = shape.iter().product::<usize>() / (shape[self.across] * row);
        for n in 0..rows {
            let (mut rest, mut source, mut target) = (n, 0, i as isize * to[self.across]);
            for axis in (0..last).rev().filter(|a| *a != self.across) {
                let index = (rest % shape[axis]) as isize;
                rest /= shape[axis];
                (source, target) = (source + index * from[axis], target + index * to[axis]);
            }
            let (source, target) = (source as usize, target as usize);
            let (sums, energies) = (&sums[source..][..row], &energies[source..][..row]);
            widest(Quotients { sums, energies, out: &mut out[target..][..row] });
        }
    }
}

/// Adds a slab's cells to the sums, and their squares to the energies; fields lie in C order.
fn add<S: Sample>(slab: &Block, sums: &mut [f64], energies: &mut [f64]) {
    each_run::<S>(slab, |at, values| {
        widest(Add { values, sums: &mut sums[at..][..values.len()], energies: &mut energies[at..][..values.len()] });
        None
    });
}

struct Add<'a, S> {
    values: &'a [S],
    sums: &'a mut [f64],
    energies: &'a mut [f64],
}

impl<S: Sample> Vectored for Add<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for ((value, sum), energy) in self.values.iter().zip(self.sums).zip(self.energies) {
            let x = value.to_f64();
            *sum += x;
            *energy += x * x;
        }
    }
}

/// Sums over traces become squares of means, energies means.
struct Squares<'a> {
    sums: &'a mut [f64],
    energies: &'a mut [f64],
    traces: f64,
}

impl Vectored for Squares<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (sum, energy) in self.sums.iter_mut().zip(self.energies) {
            let mean = *sum / self.traces;
            (*sum, *energy) = (mean * mean, *energy / self.traces);
        }
    }
}

struct Quotients<'a, T> {
    sums: &'a [f64],
    energies: &'a [f64],
    out: &'a mut [T],
}

impl<T: Stored> Vectored for Quotients<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for ((sum, energy), out) in self.sums.iter().zip(self.energies).zip(self.out) {
            *out = T::of(if *energy == 0.0 { 0.0 } else { *sum / *energy });
        }
    }
}

impl MapOperator for SemblanceMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let [input] = take(inputs)?;
        refuse_missing(&input.block, &input.region, &self.guard)?;
        let region = &task.outputs[0];
        let mut out = work.buffer(region.count() * self.dtype.size())?;
        if !region.is_empty() {
            let shape = region.shape();
            match self.dtype {
                DType::F64 => self.fill::<f64>(&input.block, &shape, out.as_mut_slice_of(), work)?,
                _ => self.fill::<f32>(&input.block, &shape, out.as_mut_slice_of(), work)?,
            }
        }
        Ok(vec![computed(Some(out), self.dtype, region)])
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        buffer_bytes(&self.sizes(core))
    }
}
