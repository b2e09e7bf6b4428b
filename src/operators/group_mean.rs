//! The mean of the rows that carry the same label, for each of a list of labels: what a table tool calls group-by.
//!
//! `labels` has one value for each element along `axis`; elements whose label is no key are left out, a key that nobody
//! carries gives NaN. Means are computed in float64, element by element within the leaves of the constant grid and leaf by
//! leaf in the fixed tree, and rounded once. State: 16 bytes per key and kept cell.

use std::collections::HashMap;
use std::sync::Arc;

use toml::de::DeValue;

use super::pointwise::{guarded, no_halo};
use super::reduce::element::{Real, with_type};
use super::reduce::walk::{Take, walk};
use super::reduce::{IGNORE, Number, number, one_axis, refuse_missing, write_float};
use super::{
    Binding, FoldOperator, Info, InputBinding, Kind, Operator, OperatorError, OutAxis, OutputBinding, Padded, Param, StepInput,
};
use crate::array::{Block, DType, Scalar};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "group_mean",
    summary: "mean of the elements that carry the same label, per key",
    kind: "fold",
    inputs: "a real array, and its labels: integers, one per element along `axis`",
    outputs: "`group` (one per key), then the axes that are kept; float64 of integers and bool, else the input's dtype",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "one look at each element; 16 bytes per key and kept cell",
    source: "the definition: pandas' groupby(labels).mean()",
    params: &[
        Param { name: "keys", kind: "[int, ...]", default: "", doc: "the labels to average over, in the order of the output" },
        Param { name: "axis", kind: "int", default: "0", doc: "the axis that the labels run along" },
        IGNORE,
    ],
    build,
};

/// Keys that a job may list: each has a state of its own in every kept cell.
const MOST_KEYS: usize = 1 << 16;

fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    let axis = table.integer("axis").unwrap_or(0);
    let ignore = number(table, "ignore");
    let Some(node) = table.get("keys") else {
        table.problem("keys", "missing; list the labels to average over, such as keys = [0, 1, 2]");
        return None;
    };
    let list = match node.get_ref() {
        DeValue::Array(list) => list.iter().map(|v| crate::config::table::integer(v.get_ref())).collect::<Option<Vec<i64>>>(),
        _ => None,
    };
    let Some(list) = list.filter(|l| (1..=MOST_KEYS).contains(&l.len())) else {
        table.problem("keys", format!("expected a list of 1 to {MOST_KEYS} integers"));
        return None;
    };
    let mut keys = HashMap::new();
    for (at, &key) in list.iter().enumerate() {
        if keys.insert(i128::from(key), at).is_some() {
            table.problem("keys", format!("{key} is listed twice"));
            return None;
        }
    }
    let keys = Arc::new(keys);
    Some(Box::new(move |inputs: &[StepInput]| bind(inputs, axis, ignore, &keys)))
}

fn bind(inputs: &[StepInput], axis: i64, ignore: Option<Number>, keys: &Arc<HashMap<i128, usize>>) -> Result<Binding, String> {
    let [values, labels] = inputs else {
        return Err(format!("group_mean takes an array and its labels, the step gives it {} inputs", inputs.len()));
    };
    no_halo("group_mean", values)?;
    no_halo("group_mean", labels)?;
    let meta = &values.meta;
    let axis = one_axis(axis, meta.rank())?;
    if labels.meta.shape != [meta.shape[axis]] {
        return Err(format!(
            "the labels {} have shape {:?}, axis {axis} of {} has length {}: one label per element is needed",
            labels.meta.name, labels.meta.shape, meta.name, meta.shape[axis]
        ));
    }
    if !labels.meta.dtype.is_integer() && labels.meta.dtype != DType::Bool {
        return Err(format!("the labels {} are {}, not integers; cast them first", labels.meta.name, labels.meta.dtype));
    }
    let from = meta.dtype;
    let to = if from.is_float() { from } else { DType::F64 };
    let ignore = ignore.map(|n| n.scalar(from)).transpose().map_err(|e| format!("ignore: {e}"))?;
    let mut output = OutputBinding::like("group_mean", to, meta);
    let kept = (0..meta.rank()).filter(|a| *a != axis).map(OutAxis::Carried);
    output.axes = [OutAxis::New { len: keys.len() as u64, name: Some("group".to_owned()) }].into_iter().chain(kept).collect();
    let guard = guarded(meta).filter(|m| ignore != Some(*m));
    let fold: Arc<dyn FoldOperator> = with_type!(real from, T => Arc::new(GroupMean::<T> {
        name: meta.name.clone(),
        to,
        keys: Arc::clone(keys),
        guard,
        ignore: ignore.map(|s| bytemuck::pod_read_unaligned(s.bytes())),
    }), else return Err(format!("group_mean takes real arrays, {} is {from}; take its parts first", meta.name)));
    let along = InputBinding { axes: vec![Some(axis)], ..InputBinding::plain(1) };
    Ok(Binding {
        reference: 0,
        inputs: vec![InputBinding::plain(meta.rank()), along],
        outputs: vec![output],
        whole: Vec::new(),
        kind: Kind::Fold { fold, axes: vec![axis] },
        is_exact: false,
        child_bytes: 0,
    })
}

struct GroupMean<T> {
    /// The input, for messages.
    name: String,
    to: DType,
    /// Which group a label belongs to.
    keys: Arc<HashMap<i128, usize>>,
    guard: Option<Scalar>,
    ignore: Option<T>,
}

/// A leaf's elements into (sum, count) per key.
struct Grouped<'a, T> {
    /// Per element of the leaf along the axis.
    groups: &'a [Option<usize>],
    width: usize,
    ignore: Option<T>,
}

impl<T: Real> Take for Grouped<'_, T> {
    type Element = T;
    type State = [f64; 2];

    fn width(&self) -> usize {
        self.width
    }

    fn run(&self, values: &[T], at: u64, cell: &mut [[f64; 2]]) {
        for (value, group) in values.iter().zip(&self.groups[at as usize..]) {
            if let Some(group) = *group
                && self.ignore.is_none_or(|ignored| !value.is(ignored))
            {
                cell[group][0] += value.wide();
                cell[group][1] += 1.0;
            }
        }
    }

    fn each(&self, values: &[T], at: u64, cells: &mut [[f64; 2]]) {
        let Some(group) = self.groups[at as usize] else { return };
        for (value, cell) in values.iter().zip(cells.chunks_exact_mut(self.width)) {
            if self.ignore.is_none_or(|ignored| !value.is(ignored)) {
                cell[group][0] += value.wide();
                cell[group][1] += 1.0;
            }
        }
    }
}

/// The labels of a leaf as groups; the position of labels that the block lacks can't be asked for.
fn groups(labels: &Block, keys: &HashMap<i128, usize>) -> Vec<Option<usize>> {
    let mut bytes = vec![0u8; labels.byte_len()];
    labels.copy_to(&mut bytes);
    with_type!(whole labels.dtype(), T => {
        use super::reduce::element::Whole;
        bytes
            .chunks_exact(size_of::<T>())
            .map(|b| keys.get(&bytemuck::pod_read_unaligned::<T>(b).exact()).copied())
            .collect()
    }, else Vec::new())
}

impl<T: Real + 'static> FoldOperator for GroupMean<T> {
    fn state_bytes(&self) -> usize {
        self.keys.len() * 16
    }

    fn is_order_free(&self) -> bool {
        false
    }

    fn leaf(&self, inputs: &[Padded], axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError> {
        refuse_missing(&self.name, &self.guard, &inputs[0])?;
        let groups = groups(&inputs[1].block, &self.keys);
        let take = Grouped { groups: &groups, width: self.keys.len(), ignore: self.ignore };
        let block = &inputs[0].block;
        // Places count from the leaf's first element, as the groups do.
        let places: Vec<u64> = (0..block.shape().len()).map(|a| u64::from(axes.contains(&a))).collect();
        walk(&take, block, &vec![0; places.len()], axes, &places, bytemuck::cast_slice_mut(state));
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        let (into, other): (&mut [f64], &[f64]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
        into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        Ok(())
    }

    fn finish(&self, state: &[u8], _count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        // Cells are outermost in the state, groups in the result.
        let states: &[[f64; 2]] = bytemuck::cast_slice(state);
        let width = self.keys.len();
        let cells = states.len() / width;
        for (at, out) in outputs[0].chunks_exact_mut(self.to.size()).enumerate() {
            let [sum, count] = states[(at % cells) * width + at / cells];
            write_float(self.to, sum / count, 0.0, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, fold};
    use super::*;

    #[test]
    fn rows_and_columns_are_averaged_by_label() {
        let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let x = Whole::new(Block::from_values(&[4, 2], &values));
        let labels = Whole::new(Block::from_values(&[4], &[7i64, -1, 7, 9]));
        for leaf in [1, 3, 9] {
            let got = fold::<f32>("group_mean", "keys = [9, 7, 5]", &[&x, &labels], leaf).unwrap();
            assert_eq!(got[..4], [7.0, 8.0, 3.0, 4.0]);
            assert!(got[4].is_nan() && got[5].is_nan(), "nobody carries 5");
            let got = fold::<f32>("group_mean", "keys = [7]\nignore = 1", &[&x, &labels], leaf).unwrap();
            assert_eq!(got, [5.0, 4.0]);
            let two = Whole::new(Block::from_values(&[2], &[1u8, 0]));
            let got = fold::<f32>("group_mean", "keys = [0, 1]\naxis = -1", &[&x, &two], leaf).unwrap();
            assert_eq!(got, [2.0, 4.0, 6.0, 8.0, 1.0, 3.0, 5.0, 7.0]);
        }
        let bound = bind("group_mean", "keys = [0, 1]", &[&x, &labels]).unwrap();
        assert_eq!(bound.outputs[0].axes[1], OutAxis::Carried(1));
        let error = |lines: &str, l: &Whole| bind("group_mean", lines, &[&x, l]).unwrap_err();
        assert!(error("", &labels).contains("list the labels"));
        assert!(error("keys = [1, 1]", &labels).contains("1 is listed twice"));
        assert!(error("keys = [1]\naxis = 1", &labels).contains("one label per element"));
        let real = Whole::new(Block::from_values(&[4], &[1.0f64; 4]));
        assert!(error("keys = [1]", &real).contains("not integers"));
        assert!(bind("group_mean", "keys = [1]", &[&x]).unwrap_err().contains("an array and its labels"));
    }
}
