//! Formulas over several arrays, evaluated block by block: what `expression`, `where`, `clip` and `threshold` run.
//!
//! A formula is compiled once, when the step is bound, to a short program over slices of a few hundred elements
//! ([`compile`], [`lane`]); no element is ever looked up by name. Inputs broadcast by trailing axes, axes of length 1 too.
//! Costs a few slices per worker beside inputs and output.

pub mod compile;
pub mod function;
pub mod lane;
pub mod syntax;

use std::sync::Arc;

use bytemuck::Pod;
use half::f16;
use num_complex::{Complex32, Complex64};

use super::pointwise::{guarded, no_halo, place, refuse_missing};
use super::{Binding, Computed, InputBinding, MapOperator, MapTask, OperatorError, OutputBinding, Padded, StepInput, Workspace};
use crate::array::dtype::f16_from_f64;
use crate::array::{Block, DType, Scalar};
use compile::{Program, compile};
use lane::{LANE, Lane};
use syntax::Node;

/// Binds a formula whose names are resolved; `takes_missing`: declared missing values are numbers like others.
pub fn bind(op: &str, node: &Node, inputs: &[StepInput], takes_missing: bool) -> Result<Binding, String> {
    for input in inputs {
        no_halo(op, input)?;
    }
    let dtypes: Vec<DType> = inputs.iter().map(|i| i.meta.dtype).collect();
    let program = compile(node, &dtypes)?;
    // The one with most axes has the result's shape; of several, the one with most elements.
    let size = |i: &StepInput| (i.meta.rank(), i.meta.shape.iter().fold(1u64, |n, &l| n.saturating_mul(l)));
    let largest = inputs.iter().map(size).max().unwrap_or_default();
    let reference = inputs.iter().position(|i| size(i) == largest).ok_or_else(|| format!("{op} takes at least one input"))?;
    let base = &inputs[reference].meta;
    let bound = inputs.iter().map(|i| InputBinding::broadcast(&i.meta, base)).collect::<Result<_, _>>()?;
    let mut output = OutputBinding::like(op, program.dtype, base);
    if program.dtype == DType::Bool {
        output.max_value = Some(1);
        // Units of what was compared say nothing about truth.
        output.attributes.clear();
    }
    let is_exact = matches!(lane::Kind::of(program.dtype), lane::Kind::Bool | lane::Kind::Int)
        && dtypes.iter().all(|d| matches!(lane::Kind::of(*d), lane::Kind::Bool | lane::Kind::Int));
    let guards = inputs.iter().map(|i| guarded(&i.meta).filter(|_| !takes_missing)).collect();
    Ok(Binding {
        reference,
        inputs: bound,
        outputs: vec![output],
        whole: Vec::new(),
        kind: super::Kind::Map(Arc::new(Formula { program, guards })),
        is_exact,
        child_bytes: 0,
    })
}

struct Formula {
    program: Program,
    /// Per input, the declared missing value that must not be met.
    guards: Vec<Option<Scalar>>,
}

impl MapOperator for Formula {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        if !task.wanted[0] {
            return Ok(vec![None]);
        }
        let region = task.outputs[0].clone();
        let shape = region.shape();
        let mut views = Vec::with_capacity(inputs.len());
        for (input, guard) in inputs.iter().zip(&self.guards) {
            refuse_missing(&input.block, &input.region, guard)?;
            let view = input.block.broadcast(&shape);
            views.push(view.ok_or_else(|| OperatorError::data(format!("{} does not broadcast to {region}", input.region)))?);
        }
        let dtype = self.program.dtype;
        let count = region.count();
        let mut out = work.buffer(count * dtype.size())?;
        let cursors: Vec<Cursor> = views.iter().map(Cursor::new).collect();
        let mut lanes = self.program.lanes();
        for first in (0..count).step_by(LANE) {
            let n = LANE.min(count - first);
            for (input, cursor) in cursors.iter().enumerate() {
                cursor.load(first, n, &mut lanes[input]).map_err(|at| {
                    let text = "holds a value beyond int64, in which integers are computed; cast it to float64 first";
                    OperatorError::data(format!("input {input} at {:?} {text}", place(&region, first + at)))
                })?;
            }
            self.program
                .run(&mut lanes, n)
                .map_err(|fault| OperatorError::data(format!("{} at {:?}", fault.why, place(&region, first + fault.at))))?;
            store(&lanes[self.program.result], dtype, &mut out[first * dtype.size()..(first + n) * dtype.size()]);
        }
        Ok(vec![Some(Computed { region, block: Block::new(out, dtype, shape) })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}

/// An input as its block is walked in the result's C order.
struct Cursor<'a> {
    block: &'a Block,
    /// Shape and strides of as few axes as the strides allow; the last is walked in runs.
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl<'a> Cursor<'a> {
    fn new(block: &'a Block) -> Self {
        let (mut shape, mut strides): (Vec<usize>, Vec<isize>) = (Vec::new(), Vec::new());
        for (&n, &step) in block.shape().iter().zip(block.strides()).filter(|(n, _)| **n != 1) {
            match (shape.last_mut(), strides.last_mut()) {
                (Some(len), Some(before)) if *before == step * n as isize => (*len, *before) = (*len * n, step),
                _ => {
                    shape.push(n);
                    strides.push(step);
                }
            }
        }
        if shape.is_empty() {
            (shape, strides) = (vec![1], vec![block.dtype().size() as isize]);
        }
        Self { block, shape, strides }
    }

    /// Elements `first..first + n` into a lane of their kind; the index of one that it cannot hold otherwise.
    fn load(&self, first: usize, n: usize, lane: &mut Lane) -> Result<(), usize> {
        macro_rules! with {
            ($lane:ident, $t:ty, $f:expr) => {
                match lane {
                    Lane::$lane(out) => self.fetch::<$t, _>(first, &mut out[..n], $f),
                    _ => unreachable!("an input's lane has its dtype's kind"),
                }
            };
        }
        match self.block.dtype() {
            DType::Bool => with!(Bool, u8, |v| v != 0),
            DType::U8 => with!(Int, u8, i64::from),
            DType::I8 => with!(Int, i8, i64::from),
            DType::U16 => with!(Int, u16, i64::from),
            DType::I16 => with!(Int, i16, i64::from),
            DType::U32 => with!(Int, u32, i64::from),
            DType::I32 => with!(Int, i32, i64::from),
            DType::I64 => with!(Int, i64, |v| v),
            DType::U64 => {
                with!(Int, u64, |v| v as i64);
                if let Lane::Int(out) = lane {
                    return out[..n].iter().position(|v| *v < 0).map_or(Ok(()), Err);
                }
            }
            DType::F16 => with!(Real, f16, f16::to_f64_const),
            DType::F32 => with!(Real, f32, f64::from),
            DType::F64 => with!(Real, f64, |v| v),
            DType::C64 => with!(Complex, Complex32, |v: Complex32| Complex64::new(v.re.into(), v.im.into())),
            DType::C128 => with!(Complex, Complex64, |v| v),
        }
        Ok(())
    }

    fn fetch<T: Pod, D: Copy>(&self, first: usize, out: &mut [D], f: impl Fn(T) -> D) {
        let size = size_of::<T>();
        let (data, offset) = self.block.raw();
        let last = self.shape.len() - 1;
        let (len, step) = (self.shape[last], self.strides[last]);
        let (mut flat, mut done) = (first, 0);
        while done < out.len() {
            let mut at = offset;
            let mut rest = flat / len;
            for axis in (0..last).rev() {
                at += (rest % self.shape[axis]) as isize * self.strides[axis];
                rest /= self.shape[axis];
            }
            let within = flat % len;
            at += within as isize * step;
            let run = (len - within).min(out.len() - done);
            let part = &mut out[done..done + run];
            let read = |at: isize| bytemuck::pod_read_unaligned::<T>(&data[at as usize..at as usize + size]);
            if step == size as isize {
                let values: &[T] = bytemuck::cast_slice(&data[at as usize..at as usize + run * size]);
                part.iter_mut().zip(values).for_each(|(d, v)| *d = f(*v));
            } else if step == 0 {
                part.fill(f(read(at)));
            } else {
                part.iter_mut().enumerate().for_each(|(i, d)| *d = f(read(at + i as isize * step)));
            }
            (flat, done) = (flat + run, done + run);
        }
    }
}

/// Values of a lane, which are already those of the dtype, as its bytes. One NaN for all.
fn store(lane: &Lane, dtype: DType, out: &mut [u8]) {
    macro_rules! put {
        ($values:ident, $t:ty, $f:expr) => {
            bytemuck::cast_slice_mut::<u8, $t>(out).iter_mut().zip($values).for_each(|(d, v)| *d = $f(*v))
        };
    }
    let one = |v: f64| if v.is_nan() { f64::NAN } else { v };
    match (lane, dtype) {
        (Lane::Bool(v), _) => put!(v, u8, u8::from),
        (Lane::Int(v), DType::U8) => put!(v, u8, |v| v as u8),
        (Lane::Int(v), DType::I8) => put!(v, i8, |v| v as i8),
        (Lane::Int(v), DType::U16) => put!(v, u16, |v| v as u16),
        (Lane::Int(v), DType::I16) => put!(v, i16, |v| v as i16),
        (Lane::Int(v), DType::U32) => put!(v, u32, |v| v as u32),
        (Lane::Int(v), DType::I32) => put!(v, i32, |v| v as i32),
        (Lane::Int(v), _) => put!(v, i64, |v| v),
        (Lane::Real(v), DType::F16) => put!(v, f16, |v| f16_from_f64(one(v))),
        (Lane::Real(v), DType::F32) => put!(v, f32, |v| one(v) as f32),
        (Lane::Real(v), _) => put!(v, f64, one),
        (Lane::Complex(v), DType::C64) => put!(v, Complex32, |v: Complex64| Complex32::new(one(v.re) as f32, one(v.im) as f32)),
        (Lane::Complex(v), _) => put!(v, Complex64, |v: Complex64| Complex64::new(one(v.re), one(v.im))),
    }
}
