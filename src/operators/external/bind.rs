//! What an `external` step does to its inputs: axes, halo, outputs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::Map;

use super::params::Settings;
use super::{BlockAxis, External};
use crate::array::boundary::constants;
use crate::array::{MAX_CHUNK_BYTES, Rule};
use crate::operators::{ArrayMeta, Binding, InputBinding, Kind, LaidLength, Operator, OutAxis, OutputBinding, StepInput};

impl Operator for Settings {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let highest = inputs.iter().map(|i| i.meta.rank()).max().ok_or("external needs at least one input")?;
        let reference = inputs.iter().position(|i| i.meta.rank() == highest).unwrap_or(0);
        let meta = &inputs[reference].meta;
        let step_depth = self.depth.expand(highest)?;
        let bindings = inputs
            .iter()
            .map(|input| bind_input(input, meta, &step_depth).map_err(|e| format!("input {}: {e}", input.meta.name)))
            .collect::<Result<Vec<_>, _>>()?;
        let depth = bindings[reference].depth.clone();

        let dropped = axes_of(&self.drop_axes, highest, "drop_axes")?;
        let carried: Vec<usize> = (0..highest).filter(|a| !dropped.contains(a)).collect();
        let is_trimmed = self.is_trimmed(&carried, &depth)?;
        let axes = self.block_axes(&carried)?;
        let rules = &bindings[reference].boundary;
        let mut kept = carried.iter();
        let out_axes: Vec<OutAxis> = axes
            .iter()
            .map(|(axis, is_new)| match (*axis, if *is_new { None } else { kept.next() }) {
                (BlockAxis::Fixed(length), Some(&axis)) => OutAxis::Laid { axis, length: LaidLength::Fixed(length) },
                (BlockAxis::Fixed(len), None) => OutAxis::New { len, name: None },
                (BlockAxis::Padded(a), _) if is_trimmed => OutAxis::Carried(a),
                (BlockAxis::Padded(axis), _) => {
                    OutAxis::Laid { axis, length: LaidLength::Padded { depth: depth[axis], rules: rules[axis] } }
                }
            })
            .collect();
        let outputs = self
            .outputs
            .iter()
            .map(|(name, dtype)| OutputBinding {
                axes: out_axes.clone(),
                // What units or scales of the input mean for the function's result, nobody but its author knows.
                attributes: Map::new(),
                ..OutputBinding::like(name, *dtype, meta)
            })
            .collect();
        let external = External {
            program: self.program.clone(),
            reference,
            input_names: inputs.iter().map(|i| i.meta.name.clone()).collect(),
            outputs: self.outputs.clone(),
            axes: axes.into_iter().map(|(axis, _)| axis).collect(),
            is_trimmed,
            children: Mutex::new(HashMap::new()),
        };
        Ok(Binding {
            reference,
            inputs: bindings,
            outputs,
            whole: dropped,
            kind: Kind::Map(Arc::new(external)),
            is_exact: false,
            child_bytes: self.program.memory,
        })
    }
}

impl Settings {
    fn is_trimmed(&self, carried: &[usize], depth: &[(u64, u64)]) -> Result<bool, String> {
        if self.block_shape.is_none() {
            return Ok(self.trim.unwrap_or(true));
        }
        if self.trim == Some(true) && carried.iter().any(|&a| depth[a] != (0, 0)) {
            return Err("trim = true and block_shape exclude each other: blocks of a declared shape are laid side by side as \
                        returned; set trim = false, or leave block_shape out"
                .to_owned());
        }
        Ok(false)
    }

    /// The axes of a returned block, each with whether it is new.
    fn block_axes(&self, carried: &[usize]) -> Result<Vec<(BlockAxis, bool)>, String> {
        let rank = carried.len() + self.new_axes.len();
        let positions: Vec<i64> = self.new_axes.iter().map(|(axis, _)| *axis).collect();
        axes_of(&positions, rank, "new_axes")?;
        let mut axes: Vec<Option<(BlockAxis, bool)>> = vec![None; rank];
        for &(axis, length) in &self.new_axes {
            let at = if axis < 0 { axis + rank as i64 } else { axis };
            axes[at as usize] = Some((BlockAxis::Fixed(length), true));
        }
        let mut kept = carried.iter();
        for slot in axes.iter_mut().filter(|a| a.is_none()) {
            *slot = kept.next().map(|&a| (BlockAxis::Padded(a), false));
        }
        let mut axes: Vec<(BlockAxis, bool)> = axes.into_iter().flatten().collect();
        if let Some(shape) = &self.block_shape {
            if shape.len() != rank {
                return Err(format!("block_shape has {} entries, the output has {rank} axes", shape.len()));
            }
            for (at, (axis, &length)) in axes.iter_mut().zip(shape).enumerate() {
                if let (BlockAxis::Fixed(new), true) = *axis
                    && new != length
                {
                    return Err(format!("block_shape says {length} on axis {at}, new_axes says {new}"));
                }
                axis.0 = BlockAxis::Fixed(length);
            }
        }
        let fixed = |axis: &(BlockAxis, bool)| if let BlockAxis::Fixed(n) = axis.0 { n.max(1) } else { 1 };
        let size = self.outputs.iter().map(|(_, dtype)| dtype.size() as u64).max().unwrap_or(1);
        let bytes = axes.iter().map(fixed).try_fold(size, u64::checked_mul);
        if bytes.is_none_or(|b| b > MAX_CHUNK_BYTES) {
            return Err("block_shape and new_axes make blocks beyond a TiB; no machine holds them".to_owned());
        }
        Ok(axes)
    }
}

fn bind_input(input: &StepInput, reference: &ArrayMeta, step_depth: &[(u64, u64)]) -> Result<InputBinding, String> {
    let meta = &input.meta;
    let mut binding = InputBinding::broadcast(meta, reference)?;
    binding.depth = match &input.depth {
        Some(depth) => depth.clone(),
        None => step_depth[reference.rank() - meta.rank()..].to_vec(),
    };
    for (axis, follows) in binding.axes.iter().enumerate() {
        if follows.is_some() {
            continue;
        }
        // The block has one cell here and broadcasts against any length; with a halo it would fit none.
        if input.depth.is_some() && binding.depth[axis] != (0, 0) {
            let (before, after) = binding.depth[axis];
            return Err(format!("depth [{before}, {after}] on axis {axis}, which has length 1 and broadcasts; write 0 there"));
        }
        binding.depth[axis] = (0, 0);
    }
    if let Some(boundary) = &input.boundary {
        binding.boundary = boundary.clone();
    }
    for (what, len) in [("depth", binding.depth.len()), ("boundary", binding.boundary.len())] {
        if len != meta.rank() {
            return Err(format!("{what} has {len} entries, the array has {} axes", meta.rank()));
        }
    }
    constants(&binding.boundary, meta.dtype)?;
    for (axis, rules) in binding.boundary.iter().enumerate() {
        let (before, after) = binding.depth[axis];
        let reads_outside = (before > 0 && rules[0] != Rule::None) || (after > 0 && rules[1] != Rule::None);
        let is_constant = rules.iter().all(|r| matches!(r, Rule::Constant(_) | Rule::None));
        if meta.shape[axis] == 0 && reads_outside && !is_constant {
            return Err(format!("axis {axis} has no cells that boundary {} could repeat", rules[0]));
        }
    }
    Ok(binding)
}

/// Axis numbers from 0 up, sorted; negative ones count from the end.
fn axes_of(list: &[i64], rank: usize, key: &str) -> Result<Vec<usize>, String> {
    let mut axes = Vec::with_capacity(list.len());
    for &axis in list {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(at) {
            Ok(at) if at < rank && !axes.contains(&at) => axes.push(at),
            Ok(at) if at < rank => return Err(format!("{key} names axis {at} twice")),
            _ => return Err(format!("{key} names axis {axis}, there are {rank} (0 to {})", rank as i64 - 1)),
        }
    }
    axes.sort_unstable();
    Ok(axes)
}
