//! What operators share whose every output element comes from the input element at the same place.
//!
//! One pass over the input in C order, in the longest contiguous runs its strides allow; views without contiguous rows
//! are gathered through a small buffer on the stack. No working memory beside the output.

use std::sync::Arc;

use bytemuck::Pod;

use super::reduce::element::{Real, with_type};
use super::{
    ArrayMeta, Binding, Computed, DeviceMap, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutputBinding,
    Padded, StepInput, Workspace,
};
use crate::array::dtype::f16_from_f64;
use crate::array::{Block, DType, Region, Rule, Scalar};
use crate::with_element;

/// Elements gathered at a time from views without contiguous rows.
const GATHER: usize = 256;

/// The only input of an operator that takes one.
pub fn only_input<'a>(op: &str, inputs: &'a [StepInput]) -> Result<&'a StepInput, String> {
    match inputs {
        [one] => Ok(one),
        _ => Err(format!("{op} takes one input, the step gives it {}", inputs.len())),
    }
}

/// Refuses a halo where there is nothing to do with it, so that no key is silently without effect.
pub fn no_halo(op: &str, input: &StepInput) -> Result<(), String> {
    if input.depth.is_some() {
        return Err(format!("{op} looks at single elements and takes no depth; leave it out"));
    }
    if input.boundary.iter().flatten().flatten().any(|rule| *rule != Rule::None) {
        return Err(format!("{op} looks at single elements and has no boundary; leave it out"));
    }
    Ok(())
}

/// Why an element could not be computed.
pub struct Fault {
    /// Which element, in C order of the input.
    pub at: usize,
    /// Ends the sentence `VALUE at [i, j] ...`.
    pub why: String,
}

/// The arithmetic of a pointwise operator, and what is known of its results.
pub trait Elementwise: Send + Sync {
    fn dtype(&self) -> DType;

    /// Fills `out` (C order, `dtype`) from `input`, which is not empty.
    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault>;

    /// True when the output is the input, element for element and byte for byte.
    fn is_identity(&self) -> bool {
        false
    }

    /// Any arithmetic class gives the same bytes.
    fn is_exact(&self) -> bool {
        self.is_identity()
    }

    /// True for a few instructions an element.
    fn is_light(&self) -> bool {
        false
    }

    /// What becomes of the source's missing value; `None`: something that would pass for data, so it must not be met.
    fn missing(&self, value: &Scalar) -> Option<Scalar> {
        match value {
            same if self.is_identity() => Some(*same),
            nan if nan.to_f64().is_nan() => Scalar::from_number(self.dtype(), f64::NAN).ok(),
            _ => None,
        }
    }

    /// False where `fill` itself stops at a missing value that it has no result for, or NaN stays NaN.
    fn must_not_meet(&self, value: &Scalar) -> bool {
        self.missing(value).is_none() && !value.to_f64().is_nan()
    }

    /// The same on a device, which knows nothing of missing values.
    fn device(&self) -> Option<&dyn DeviceMap> {
        None
    }

    /// The largest value of the output, given that of the input.
    fn max_value(&self, of_input: Option<u64>) -> Option<u64> {
        of_input.filter(|_| self.is_identity())
    }
}

/// An [`Elementwise`] as a map operator with one input and one output.
struct Pointwise<E> {
    arithmetic: E,
    /// The declared missing value, where it must not be met.
    guard: Option<Scalar>,
}

impl<E: Elementwise> MapOperator for Pointwise<E> {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        if !task.wanted[0] {
            return Ok(vec![None]);
        }
        let [Padded { region: own, block }] = <[Padded; 1]>::try_from(inputs)
            .map_err(|inputs| OperatorError::data(format!("expected one input, got {}", inputs.len())))?;
        let region = task.outputs[0].clone();
        // The block as it came stays its buffer's only owner, which the writer can then take over.
        let part = if own == region { block } else { block.cut(&own, &region) };
        if self.arithmetic.is_identity() {
            return Ok(vec![Some(Computed { region, block: part })]);
        }
        refuse_missing(&part, &region, &self.guard)?;
        let dtype = self.arithmetic.dtype();
        let mut out = work.buffer(part.count() * dtype.size())?;
        if !out.is_empty() {
            self.arithmetic.fill(&part, &mut out).map_err(|fault| {
                OperatorError::data(format!("{} at {:?} {}", show(&part, fault.at), place(&region, fault.at), fault.why))
            })?;
        }
        let shape = region.shape();
        Ok(vec![Some(Computed { region, block: Block::new(out, dtype, shape) })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }

    fn passes_through(&self) -> bool {
        self.arithmetic.is_identity()
    }

    fn is_light(&self) -> bool {
        self.arithmetic.is_light()
    }

    fn device(&self) -> Option<&dyn DeviceMap> {
        self.arithmetic.device().filter(|_| self.guard.is_none())
    }
}

/// Stops at a declared missing value, whose result would pass for data.
pub fn refuse_missing(block: &Block, region: &Region, guard: &Option<Scalar>) -> Result<(), OperatorError> {
    let Some(at) = guard.and_then(|value| find(block, &value)) else { return Ok(()) };
    Err(OperatorError::data(format!(
        "{} at {:?} is the source's missing value, whose result would pass for data; select data without it",
        show(block, at),
        place(region, at)
    )))
}

/// A pointwise operator of one input: `make` gives its arithmetic for an input's metadata.
pub fn unary<E: Elementwise + 'static>(
    op: &'static str,
    make: impl Fn(&ArrayMeta) -> Result<E, String> + Send + Sync + 'static,
) -> Option<Box<dyn Operator>> {
    Some(Box::new(move |inputs: &[StepInput]| {
        let input = only_input(op, inputs)?;
        no_halo(op, input)?;
        let meta = &input.meta;
        let arithmetic = make(meta)?;
        let mut output = OutputBinding::like(op, arithmetic.dtype(), meta);
        output.missing = meta.missing.and_then(|m| arithmetic.missing(&m));
        output.max_value = arithmetic.max_value(meta.max_value);
        let is_exact = arithmetic.is_exact();
        let guard = meta.missing.filter(|m| arithmetic.must_not_meet(m));
        Ok(Binding {
            reference: 0,
            inputs: vec![InputBinding::plain(meta.rank())],
            outputs: vec![output],
            whole: Vec::new(),
            kind: Kind::Map(Arc::new(Pointwise { arithmetic, guard })),
            is_exact,
            child_bytes: 0,
        })
    }))
}

/// The float dtype in which functions of real numbers are given: floats keep theirs, integers and bool get float64.
/// (numpy gives float16 and float32 for integers of 8 and 16 bits.)
pub fn float_of(op: &str, from: DType) -> Result<DType, String> {
    match from {
        float if float.is_float() => Ok(float),
        complex if complex.is_complex() => Err(format!("{op} takes real arrays, this is {complex}; take the amplitude first")),
        _ => Ok(DType::F64),
    }
}

/// Fills `out`, of the float dtype `to`, from real elements: `f` changes doubles in place, each is rounded once.
pub fn in_doubles(input: &Block, to: DType, out: &mut [u8], f: &dyn Fn(&mut [f64])) {
    let mut doubles = [0.0; GATHER];
    let mut each = |at: usize, values: &mut [f64]| {
        f(values);
        let bytes = &mut out[at * to.size()..(at + values.len()) * to.size()];
        match to {
            DType::F16 => bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = f16_from_f64(*v).to_ne_bytes()),
            DType::F32 => bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = (*v as f32).to_ne_bytes()),
            _ => bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = v.to_ne_bytes()),
        }
    };
    with_type!(real input.dtype(), T => {
        each_run::<T>(input, |flat, slice| {
            for (n, part) in slice.chunks(GATHER).enumerate() {
                let values = &mut doubles[..part.len()];
                values.iter_mut().zip(part).for_each(|(d, v)| *d = v.wide());
                each(flat + n * GATHER, values);
            }
            None
        });
    }, else ())
}

/// Visits all elements in C order as contiguous slices; `visit` gets the index of the slice's first element and may stop
/// the walk with an index inside the slice. The answer is that element's index in C order.
pub fn each_run<S: Pod>(block: &Block, mut visit: impl FnMut(usize, &[S]) -> Option<usize>) -> Option<usize> {
    if block.count() == 0 {
        return None;
    }
    let size = size_of::<S>() as isize;
    let (shape, strides) = (block.shape(), block.strides());
    let (data, start) = block.raw();
    let (mut outer, mut run) = (shape.len(), 1);
    while outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1] == size * run as isize) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    // When not even the last axis is contiguous it is gathered.
    let gathered = (run == 1 && outer > 0).then(|| {
        outer -= 1;
        (shape[outer], strides[outer])
    });
    let mut index = vec![0usize; outer];
    let (mut at, mut flat) = (start, 0);
    loop {
        match gathered {
            None => {
                let from = at as usize;
                let slice = bytemuck::cast_slice(&data[from..from + run * size as usize]);
                if let Some(i) = visit(flat, slice) {
                    return Some(flat + i);
                }
                flat += run;
            }
            Some((len, stride)) => {
                let mut buffer = [S::zeroed(); GATHER];
                for first in (0..len).step_by(GATHER) {
                    let count = GATHER.min(len - first);
                    for (i, value) in buffer[..count].iter_mut().enumerate() {
                        let from = (at + (first + i) as isize * stride) as usize;
                        *value = bytemuck::pod_read_unaligned(&data[from..from + size as usize]);
                    }
                    if let Some(i) = visit(flat, &buffer[..count]) {
                        return Some(flat + i);
                    }
                    flat += count;
                }
            }
        }
        let mut axis = outer;
        loop {
            if axis == 0 {
                return None;
            }
            axis -= 1;
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis] as isize;
            index[axis] = 0;
        }
    }
}

/// Fills `out` from the elements of `input`, slice by slice; `each` gives the index of an element it can't convert.
pub fn convert<S: Pod, D: Pod>(
    input: &Block,
    out: &mut [u8],
    mut each: impl FnMut(&[S], &mut [D]) -> Option<usize>,
) -> Option<usize> {
    let out: &mut [D] = bytemuck::cast_slice_mut(out);
    each_run(input, |flat, slice| each(slice, &mut out[flat..flat + slice.len()]))
}

/// Array coordinates of element `flat` (C order) of a region.
pub fn place(region: &Region, flat: usize) -> Vec<i64> {
    let mut rest = flat;
    let mut at = region.start.to_vec();
    for axis in (0..region.rank()).rev() {
        let len = region.len(axis).max(1);
        at[axis] += (rest % len) as i64;
        rest /= len;
    }
    at
}

/// Element `flat` (C order) of a block, for messages.
pub fn show(block: &Block, flat: usize) -> String {
    with_element!(block.dtype(), T => {
        let mut text = String::new();
        each_run::<T>(block, |first, slice| {
            let i = flat.checked_sub(first).filter(|i| *i < slice.len())?;
            text = slice[i].to_string();
            Some(i)
        });
        text
    })
}

/// The first element with this value (a NaN finds any NaN), as its index in C order.
pub fn find(block: &Block, value: &Scalar) -> Option<usize> {
    if value.dtype() != block.dtype() {
        return None;
    }
    with_element!(block.dtype(), T => {
        let wanted: T = bytemuck::pod_read_unaligned(value.bytes());
        // Only a NaN differs from itself.
        #[allow(clippy::eq_op)]
        let is_nan = wanted != wanted;
        #[allow(clippy::eq_op)]
        each_run::<T>(block, |_, slice| {
            if is_nan { slice.iter().position(|v| v != v) } else { slice.iter().position(|v| *v == wanted) }
        })
    })
}

/// The declared missing value that an operator must not meet, because its result would pass for data. A missing value
/// that is NaN needs no guard where NaN stays NaN.
pub fn guarded(meta: &ArrayMeta) -> Option<Scalar> {
    meta.missing.filter(|m| !m.to_f64().is_nan())
}

/// Refuses a declared missing value that is not NaN, for steps that know no other.
pub fn refuse_declared_missing(meta: &ArrayMeta) -> Result<(), String> {
    match guarded(meta) {
        None => Ok(()),
        Some(missing) => Err(format!(
            "{} declares {} as its missing value, which would pass for data; make it NaN first (`decode_cf = true`, or a `where` step)",
            meta.name,
            missing.to_f64()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Random;
    use super::*;

    #[test]
    fn runs_follow_any_strides_in_c_order() {
        let values: Vec<i32> = (0..3 * 5 * 700).collect();
        let whole = Block::from_values(&[3, 5, 700], &values);
        let views = [
            whole.clone(),
            whole.view(&[1, 0, 0], &[3, 5, 700]),
            whole.view(&[0, 1, 2], &[3, 4, 699]),
            whole.transposed(&[2, 0, 1]),
            whole.transposed(&[0, 2, 1]).view(&[0, 10, 0], &[2, 600, 5]),
            whole.view(&[0, 2, 0], &[3, 3, 700]).transposed(&[2, 1, 0]),
            whole.view(&[2, 2, 2], &[3, 3, 3]),
        ];
        for view in views {
            let mut want = vec![0u8; view.byte_len()];
            view.copy_to(&mut want);
            let want: Vec<i32> = bytemuck::pod_collect_to_vec(&want);
            let mut got = Vec::new();
            each_run::<i32>(&view, |flat, slice| {
                assert_eq!(flat, got.len());
                got.extend_from_slice(slice);
                None
            });
            assert_eq!(got, want);
            let pick = Random::new(7).below(want.len() as u64) as usize;
            let first = want.iter().position(|v| *v == want[pick]);
            assert_eq!(find(&view, &Scalar::of(want[pick])), first);
            assert_eq!(show(&view, pick), want[pick].to_string());
        }
        assert_eq!(each_run::<i32>(&whole.view(&[1, 0, 0], &[1, 5, 700]), |_, _| Some(0)), None);
    }

    #[test]
    fn places_are_array_coordinates() {
        let region = Region::from_ranges(&[(10, 13), (5, 9)]);
        assert_eq!(place(&region, 0), [10, 5]);
        assert_eq!(place(&region, 6), [11, 7]);
    }
}
