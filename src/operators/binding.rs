//! A step that knows its inputs: arrays, halos, outputs, and what kind of operator it is.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{FoldOperator, MapOperator};
use crate::array::{Boundary, DType, Rule, Scalar};

/// What an operator knows about an array that flows into it.
#[derive(Clone, Debug)]
pub struct ArrayMeta {
    /// `slc`, or `ks_test.p`: for messages.
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Preferred chunk length per axis: the source's, carried along; the axis length where nothing is known.
    pub chunk: Vec<u64>,
    pub dimension_names: Vec<Option<String>>,
    /// User attributes of the input that still make sense.
    pub attributes: Map<String, Value>,
    /// The value that stands for "missing", when the source declares one (`.bed`: 3).
    pub missing: Option<Scalar>,
    /// Largest value the array can hold, where it is guaranteed (a mask: 1, genotypes: 3): decides packing widths.
    pub max_value: Option<u64>,
}

impl ArrayMeta {
    /// An array without names or attributes: tests, and arrays the engine makes itself.
    pub fn plain(name: &str, shape: &[u64], dtype: DType) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            chunk: shape.to_vec(),
            dimension_names: vec![None; shape.len()],
            attributes: Map::new(),
            missing: None,
            max_value: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// One input of a step: the array, and what the job file says about this use of it.
#[derive(Clone, Debug)]
pub struct StepInput {
    pub meta: ArrayMeta,
    /// Boundary given for this input or for the whole step, expanded to the input's rank.
    pub boundary: Option<Boundary>,
    /// `depth` of an input table, expanded to the rank; only operators that take a depth accept it.
    pub depth: Option<Vec<(u64, u64)>>,
}

/// The axis that a number names, negative ones from the end; `key` is the parameter that holds it.
pub fn axis_at(key: &str, axis: i64, rank: usize) -> Result<usize, String> {
    let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < rank);
    at.ok_or_else(|| format!("{key} {axis} does not exist, the array has {rank} axes"))
}

/// The axes and halo of one input of a bound step.
#[derive(Clone, Debug)]
pub struct InputBinding {
    /// The reference axis that each axis follows; `None`: the axis is read whole for every block.
    pub axes: Vec<Option<usize>>,
    /// Elements needed (before, after) on each axis.
    pub depth: Vec<(u64, u64)>,
    /// What the step gets for the cells outside the array.
    pub boundary: Boundary,
    /// The rules that the operator follows itself where it gets no cells outside: `boundary` is `none` there.
    pub own_rules: Option<Boundary>,
}

impl InputBinding {
    /// The reference input itself, without halo.
    pub fn plain(rank: usize) -> Self {
        let boundary = vec![[Rule::None; 2]; rank];
        Self { axes: (0..rank).map(Some).collect(), depth: vec![(0, 0); rank], boundary, own_rules: None }
    }

    /// The rules that the result follows, whoever applies them.
    pub fn rules(&self) -> &Boundary {
        self.own_rules.as_ref().unwrap_or(&self.boundary)
    }

    /// An input that broadcasts by trailing axes against the reference: equal lengths follow it, axes of length 1 are
    /// read whole. An axis that fits neither is an error.
    pub fn broadcast(meta: &ArrayMeta, reference: &ArrayMeta) -> Result<Self, String> {
        let lead = reference.rank().checked_sub(meta.rank());
        let lead = lead.ok_or_else(|| format!("{} has more axes than {}", meta.name, reference.name))?;
        let axes = meta
            .shape
            .iter()
            .enumerate()
            .map(|(axis, &len)| match len {
                len if len == reference.shape[lead + axis] => Ok(Some(lead + axis)),
                1 => Ok(None),
                len => Err(format!(
                    "axis {axis} of {} has length {len}, axis {} of {} has {}: they do not broadcast",
                    meta.name,
                    lead + axis,
                    reference.name,
                    reference.shape[lead + axis]
                )),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { axes, ..Self::plain(meta.rank()) })
    }
}

/// Where an axis of an output comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum OutAxis {
    /// The reference axis, same length.
    Carried(usize),
    /// A new axis, whole in every block.
    New { len: u64, name: Option<String> },
    /// Blocks laid side by side along a reference axis, their lengths not the cores' (`external`: `trim = false`,
    /// `block_shape`; `multilook`). The length of the axis follows from the block grid, or is a fraction of the axis.
    Laid { axis: usize, length: LaidLength },
}

#[derive(Clone, Debug, PartialEq)]
pub enum LaidLength {
    /// The core and its halo, which is shorter at the array's ends where the rule is `none`.
    Padded { depth: (u64, u64), rules: [Rule; 2] },
    /// The same for every block.
    Fixed(u64),
    /// One for every so many cells of the axis, where all of them are in the array; of the block in which they begin. The
    /// axis has the same length and values on any block grid.
    Every(u64),
}

impl LaidLength {
    /// Whether the axis looks different on another block grid.
    pub fn depends_on_grid(&self) -> bool {
        !matches!(self, LaidLength::Every(_))
    }
}

#[derive(Clone, Debug)]
pub struct OutputBinding {
    pub name: String,
    pub dtype: DType,
    pub axes: Vec<OutAxis>,
    /// Written when a job asks for the whole step (`k` of `ks_test` is not).
    pub is_default: bool,
    pub attributes: Map<String, Value>,
    pub missing: Option<Scalar>,
    pub max_value: Option<u64>,
}

impl OutputBinding {
    /// An output of the reference's shape.
    pub fn like(name: &str, dtype: DType, reference: &ArrayMeta) -> Self {
        Self {
            name: name.to_owned(),
            dtype,
            axes: (0..reference.rank()).map(OutAxis::Carried).collect(),
            is_default: true,
            attributes: reference.attributes.clone(),
            missing: None,
            max_value: None,
        }
    }
}

/// A step that knows its inputs: everything the plan and the stages need.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The input whose axes are the step's own axes.
    pub reference: usize,
    pub inputs: Vec<InputBinding>,
    pub outputs: Vec<OutputBinding>,
    /// Reference axes that a block must hold whole.
    pub whole: Vec<usize>,
    pub kind: Kind,
    /// Results are integers, counts or selections: any arithmetic class gives the same bytes.
    pub is_exact: bool,
    /// Bytes that children hold beside this process, per worker (`external`); reported apart.
    pub child_bytes: u64,
}

#[derive(Clone)]
pub enum Kind {
    Map(Arc<dyn MapOperator>),
    /// Reduces these reference axes (sorted). The outputs' axes do not mention them.
    Fold {
        fold: Arc<dyn FoldOperator>,
        axes: Vec<usize>,
    },
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Map(_) => f.write_str("Map"),
            Kind::Fold { axes, .. } => write!(f, "Fold({axes:?})"),
        }
    }
}
