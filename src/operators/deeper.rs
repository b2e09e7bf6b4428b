//! A step that computes more than it is asked for: its core grown by its halo, so that what is asked for comes from twice as
//! much context. Where a depth suffices nothing changes; that is what `run --verify` looks at.

use std::sync::Arc;

use super::{Binding, Computed, InputBinding, Kind, MapOperator, MapTask, OperatorError, OutAxis, Padded, Workspace};
use crate::array::Region;
use crate::array::boundary::clip_none;

/// The same step with doubled halo; `None`: it has none, is no map, or lays its blocks side by side. `shapes`: the inputs'.
pub fn deeper(binding: &Binding, shapes: &[&[u64]]) -> Option<Binding> {
    let Kind::Map(map) = &binding.kind else { return None };
    let shape = shapes[binding.reference];
    let mut growth = vec![(0, 0); shape.len()];
    for input in &binding.inputs {
        for (axis, depth) in input.axes.iter().zip(&input.depth) {
            if let Some(axis) = axis {
                let (before, after): &mut (u64, u64) = &mut growth[*axis];
                (*before, *after) = ((*before).max(depth.0), (*after).max(depth.1));
            }
        }
    }
    let is_laid = |axis: &OutAxis| matches!(axis, OutAxis::Laid { .. });
    if growth.iter().all(|g| *g == (0, 0)) || binding.outputs.iter().any(|o| o.axes.iter().any(is_laid)) {
        return None;
    }
    let mut deep = binding.clone();
    for input in &mut deep.inputs {
        for (axis, depth) in input.axes.iter().zip(&mut input.depth) {
            if let Some(axis) = axis {
                *depth = (depth.0.saturating_add(growth[*axis].0), depth.1.saturating_add(growth[*axis].1));
            }
        }
    }
    deep.kind = Kind::Map(Arc::new(Deeper {
        map: map.clone(),
        growth,
        shape: shape.to_vec(),
        inputs: binding.inputs.clone(),
        input_shapes: shapes.iter().map(|s| s.to_vec()).collect(),
        outputs: binding.outputs.iter().map(|o| o.axes.clone()).collect(),
    }));
    Some(deep)
}

struct Deeper {
    map: Arc<dyn MapOperator>,
    /// Cells computed beyond the core, per reference axis.
    growth: Vec<(u64, u64)>,
    /// The reference input's.
    shape: Vec<u64>,
    /// As the operator bound them.
    inputs: Vec<InputBinding>,
    input_shapes: Vec<Vec<u64>>,
    outputs: Vec<Vec<OutAxis>>,
}

impl Deeper {
    fn grown(&self, core: &Region) -> Region {
        let side = |(axis, growth): (usize, &(u64, u64))| {
            let (start, stop) = core.axis(axis);
            ((start - growth.0 as i64).max(0), (stop + growth.1 as i64).min(self.shape[axis] as i64))
        };
        Region::from_ranges(&self.growth.iter().enumerate().map(side).collect::<Vec<_>>())
    }

    /// What the operator would have been given for this core.
    fn usual(&self, i: usize, padded: &Padded, core: &Region) -> Padded {
        let bound = &self.inputs[i];
        let side = |k: usize| match bound.axes[k] {
            None => padded.region.axis(k),
            Some(axis) => {
                let ((start, stop), (before, after)) = (core.axis(axis), bound.depth[k]);
                clip_none(start - before as i64, stop + after as i64, self.input_shapes[i][k] as i64, &bound.boundary[k])
            }
        };
        let region = Region::from_ranges(&(0..bound.axes.len()).map(side).collect::<Vec<_>>());
        Padded { block: padded.block.cut(&padded.region, &region), region }
    }
}

impl MapOperator for Deeper {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let core = self.grown(task.core);
        let inputs = inputs.iter().enumerate().map(|(i, padded)| self.usual(i, padded, &core)).collect();
        let region = |(axes, asked): (&Vec<OutAxis>, &Region)| {
            let side = |(k, axis): (usize, &OutAxis)| match axis {
                OutAxis::Carried(axis) => core.axis(*axis),
                _ => asked.axis(k),
            };
            Region::from_ranges(&axes.iter().enumerate().map(side).collect::<Vec<_>>())
        };
        let outputs: Vec<Region> = self.outputs.iter().zip(task.outputs).map(region).collect();
        self.map.apply(inputs, &MapTask { core: &core, outputs: &outputs, ..*task }, work)
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        let grown: Vec<u64> =
            core.iter().zip(&self.growth).zip(&self.shape).map(|((n, g), len)| (n + g.0 + g.1).min((*len).max(*n))).collect();
        self.map.scratch_bytes(&grown)
    }

    fn returns_halo(&self) -> bool {
        true
    }

    fn close(&self, worker: usize) {
        self.map.close(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, bind_inputs, map_one, values};
    use super::super::{Binding, OperatorError, StepInput};
    use super::deeper;
    use crate::array::{Block, Region};

    /// The cells that a core asks for, from the deeper step.
    fn run(bound: &Binding, whole: &Whole, core: &Region) -> Result<Vec<f64>, OperatorError> {
        let deep = deeper(bound, &[&whole.meta.shape]).expect("a halo to double");
        assert!(deep.inputs[0].depth.iter().zip(&bound.inputs[0].depth).all(|(d, b)| (d.0, d.1) == (2 * b.0, 2 * b.1)));
        Ok(values(&map_one(&deep, &[whole], core)?))
    }

    #[test]
    fn twice_the_halo_gives_the_same_values() {
        let shape = [9usize, 11];
        let x: Vec<f64> = (0..99).map(|i| f64::from(i * i % 23) - 7.5).collect();
        let whole = Whole::new(Block::from_values(&shape, &x));
        for (op, lines) in [
            ("gaussian_filter", "sigma = [1.0, 0.5]\ntruncate = 2.0"),
            ("median_filter", "size = [3, 4]"),
            ("grey_opening", "size = 3"),
            ("denoise_tv_chambolle", "eps = 0\nmax_num_iter = 4"),
        ] {
            for boundary in ["reflect", "periodic"] {
                if op == "denoise_tv_chambolle" && boundary == "periodic" {
                    continue;
                }
                let rule = if boundary == "periodic" { crate::array::Rule::Periodic } else { crate::array::Rule::Reflect };
                let boundary = (op != "denoise_tv_chambolle").then(|| vec![[rule; 2]; 2]);
                let inputs = [StepInput { meta: whole.meta.clone(), boundary, depth: None }];
                let bound = bind_inputs(op, lines, &inputs).unwrap();
                for core in [[(0, 3), (0, 11)], [(4, 6), (5, 7)], [(7, 9), (9, 11)], [(0, 9), (0, 11)]] {
                    let core = Region::from_ranges(&core);
                    let want: Vec<f64> = values(&map_one(&bound, &[&whole], &core).unwrap());
                    assert_eq!(run(&bound, &whole, &core).unwrap(), want, "{op} {core}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_halo_stays_as_it_is() {
        let whole = Whole::new(Block::from_values(&[4], &[1.0f64, 2.0, 3.0, 4.0]));
        for (op, lines) in [("identity", ""), ("sum", ""), ("multilook", "looks = [2]")] {
            if let Ok(bound) = bind(op, lines, &[&whole]) {
                assert!(deeper(&bound, &[&whole.meta.shape]).is_none(), "{op}");
            }
        }
    }
}
