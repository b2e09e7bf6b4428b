//! The map of all scalers: elements changed by the values that were fitted to their feature.

use std::sync::Arc;

use crate::array::dtype::f16_from_f64;
use crate::array::grid::for_each_index;
use crate::array::{Block, DType, Scalar};
use crate::operators::pointwise::{place, show};
use crate::operators::reduce::element::{Real, with_type};
use crate::operators::{
    ArrayMeta, Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, OutputBinding, Padded, Workspace,
};

/// One operation, with a value of the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Subtract,
    Divide,
    Multiply,
    Add,
}

/// Elements changed at once: what stays in the nearest cache as doubles.
const PIECE: usize = 256;

/// The map from the table and one vector over the axes `features` for each change; results of dtype `to` are held between
/// `limits`.
pub fn apply(meta: &ArrayMeta, to: DType, features: &[usize], changes: Vec<Change>, limits: Option<[f64; 2]>) -> Binding {
    let rank = meta.rank();
    let vector = InputBinding { axes: features.iter().map(|a| Some(*a)).collect(), ..InputBinding::plain(features.len()) };
    let mut inputs = vec![InputBinding::plain(rank)];
    inputs.extend(changes.iter().map(|_| vector.clone()));
    let mut output = OutputBinding::like("scaled", to, meta);
    output.missing = meta.missing.and_then(|_| Scalar::from_number(to, f64::NAN).ok());
    let map = Apply { name: meta.name.clone(), to, features: features.to_vec(), changes, limits };
    Binding {
        reference: 0,
        inputs,
        outputs: vec![output],
        whole: Vec::new(),
        kind: Kind::Map(Arc::new(map)),
        is_exact: false,
        child_bytes: 0,
    }
}

struct Apply {
    /// The table, for messages.
    name: String,
    to: DType,
    features: Vec<usize>,
    changes: Vec<Change>,
    limits: Option<[f64; 2]>,
}

impl Apply {
    /// Changes a piece of a row, given the vectors' values beside it: contiguous, or one for all.
    fn change(&self, values: &mut [f64], vectors: &[Values<'_>], from: usize) {
        for (change, vector) in self.changes.iter().zip(vectors) {
            let with = |values: &mut [f64], f: fn(f64, f64) -> f64| match vector {
                Values::One(one) => values.iter_mut().for_each(|v| *v = f(*v, *one)),
                Values::Row(row) => values.iter_mut().zip(&row[from..]).for_each(|(v, own)| *v = f(*v, *own)),
            };
            match change {
                Change::Subtract => with(values, |v, own| v - own),
                Change::Divide => with(values, |v, own| v / own),
                Change::Multiply => with(values, |v, own| v * own),
                Change::Add => with(values, |v, own| v + own),
            }
        }
        if let Some([low, high]) = self.limits {
            // A NaN passes: it is neither below nor above.
            let held = |v: f64| if v < low { low } else { v };
            values.iter_mut().for_each(|v| *v = held(if *v > high { high } else { *v }));
        }
    }

    fn write(&self, values: &[f64], out: &mut [u8]) {
        // One NaN for all.
        let one = |v: f64| if v.is_nan() { f64::NAN } else { v };
        match self.to {
            DType::F16 => {
                out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = f16_from_f64(one(*v)).to_ne_bytes());
            }
            DType::F32 => out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = (one(*v) as f32).to_ne_bytes()),
            _ => out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = one(*v).to_ne_bytes()),
        }
    }

    /// All rows along the last axis, in C order; the answer is the first infinite element.
    fn rows<T: Real>(&self, table: &Block, vectors: &[&Block], out: &mut [u8]) -> Option<usize> {
        let rank = table.shape().len();
        let (data, first) = table.raw();
        let (size, step, len) = (size_of::<T>(), table.strides()[rank - 1], table.shape()[rank - 1]);
        let strides: Vec<Vec<isize>> = vectors.iter().map(|v| self.along(v, rank)).collect();
        let mut doubles = [0.0; PIECE];
        let mut gathered: Vec<Vec<f64>> = vec![Vec::new(); vectors.len()];
        let mut done = 0;
        let lists: Vec<Vec<u64>> = table.shape()[..rank - 1].iter().map(|&n| (0..n as u64).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let walked = for_each_index(&lists, |index| {
            let at = |strides: &[isize]| -> isize { index.iter().zip(strides).map(|(i, s)| *i as isize * s).sum() };
            let begin = first + at(table.strides());
            let row: Vec<Values<'_>> = vectors
                .iter()
                .zip(&strides)
                .zip(&mut gathered)
                .map(|((vector, strides), gathered)| {
                    let (bytes, first) = vector.raw();
                    let (begin, step) = ((first + at(strides)) as usize, strides[rank - 1]);
                    match step {
                        0 => Values::One(bytemuck::pod_read_unaligned(&bytes[begin..begin + 8])),
                        8 => Values::Row(bytemuck::cast_slice(&bytes[begin..begin + 8 * len])),
                        _ => {
                            let value = |i: usize| (begin as isize + i as isize * step) as usize;
                            gathered.clear();
                            gathered
                                .extend((0..len).map(|i| bytemuck::pod_read_unaligned::<f64>(&bytes[value(i)..value(i) + 8])));
                            Values::Row(gathered)
                        }
                    }
                })
                .collect();
            for from in (0..len).step_by(PIECE) {
                let values = &mut doubles[..PIECE.min(len - from)];
                for (i, value) in values.iter_mut().enumerate() {
                    let at = (begin + (from + i) as isize * step) as usize;
                    *value = bytemuck::pod_read_unaligned::<T>(&data[at..at + size]).wide();
                }
                if let Some(at) = values.iter().position(|v| v.is_infinite()) {
                    return Err(done + at);
                }
                self.change(values, &row, from);
                self.write(values, &mut out[done * self.to.size()..(done + values.len()) * self.to.size()]);
                done += values.len();
            }
            Ok(())
        });
        walked.err()
    }

    /// How far apart neighbours of a vector are along the axes of the table: 0 along samples.
    fn along(&self, vector: &Block, rank: usize) -> Vec<isize> {
        let mut strides = vec![0; rank];
        for (axis, stride) in self.features.iter().zip(vector.strides()) {
            strides[*axis] = *stride;
        }
        strides
    }
}

/// What a vector has beside a row.
enum Values<'a> {
    One(f64),
    Row(&'a [f64]),
}

impl MapOperator for Apply {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let region = &task.outputs[0];
        let mut out = work.buffer(region.count() * self.to.size())?;
        if region.count() > 0 {
            let Some((table, vectors)) = inputs.split_first() else {
                return Err(OperatorError::data("no table was given"));
            };
            let table = table.block.cut(&table.region, region);
            let vectors: Vec<&Block> = vectors.iter().map(|v| &v.block).collect();
            let infinite = with_type!(real table.dtype(), T => self.rows::<T>(&table, &vectors, &mut out), else None);
            if let Some(at) = infinite {
                return Err(OperatorError::data(format!(
                    "{} holds {} at {:?}: its feature has no scale; make it NaN to leave it out",
                    self.name,
                    show(&table, at),
                    place(region, at)
                )));
            }
        }
        Ok(vec![Some(Computed { block: Block::new(out, self.to, region.shape()), region: region.clone() })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}
