//! A step that the graph takes apart into several: folds whose results later parts read, passes that are repeated, maps
//! that make the results. Each part is planned as a step of its own would be.

use std::sync::Arc;

use super::{Binding, OperatorError};

/// The parts, in an order in which those that are read come first.
#[derive(Debug)]
pub struct Composite {
    pub parts: Vec<Part>,
    /// Where the step's outputs come from: a part, and which of its outputs. Their names are the part's.
    pub outputs: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub struct Part {
    /// Shown behind the step's name; empty for the part that makes the step's own result.
    pub title: String,
    pub inputs: Vec<PartInput>,
    pub work: PartWork,
}

/// What a part reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartInput {
    /// An input of the step.
    Own(usize),
    /// An output of an earlier part; the last state is the only output of passes.
    Of { part: usize, output: usize },
}

#[derive(Debug)]
pub enum PartWork {
    /// A map or a fold.
    Once(Binding),
    Repeated(Passes),
}

impl Part {
    pub fn once(title: &str, inputs: Vec<PartInput>, binding: Binding) -> Self {
        Self { title: title.to_owned(), inputs, work: PartWork::Once(binding) }
    }

    pub fn repeated(title: &str, inputs: Vec<PartInput>, passes: Passes) -> Self {
        Self { title: title.to_owned(), inputs, work: PartWork::Repeated(passes) }
    }
}

impl Composite {
    /// Folds of which each but the first has the first output of the one before as last input; the step's outputs are the
    /// last one's.
    pub fn chain(folds: Vec<Binding>, inputs: usize) -> Self {
        let (count, last) = (folds.len(), folds.last().map_or(0, |fold| fold.outputs.len()));
        let mut parts = Vec::with_capacity(count);
        for (at, fold) in folds.into_iter().enumerate() {
            let before = at.checked_sub(1).map(|part| PartInput::Of { part, output: 0 });
            parts.push(Part {
                title: if at + 1 == count { String::new() } else { format!("pass {} of {count}", at + 1) },
                inputs: (0..inputs).map(PartInput::Own).chain(before).collect(),
                work: PartWork::Once(fold),
            });
        }
        Self { parts, outputs: (0..last).map(|output| (count - 1, output)).collect() }
    }
}

/// Passes over the part's inputs with a state between them, which each pass reads as its last input. The state starts as
/// zeros and is kept in memory or in scratch.
#[derive(Debug)]
pub struct Passes {
    pub pass: Binding,
    pub next: NextState,
    pub control: Arc<dyn PassControl>,
}

/// How a pass comes to the next state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextState {
    /// The pass is a map whose first output is the next state (which is kept twice: read and written), and whose second,
    /// f64 of shape (measures, axes of the reference), is summed over these axes for the control.
    Mapped,
    /// The pass is a fold with one output, f64. From it the control makes the next state: f64 of this shape, read whole by
    /// every block.
    Controlled(Vec<u64>),
}

/// Decides after each pass whether there is another one. Called by one thread, passes counted from 0, while no pass runs.
/// Arrays are in C order; `state` is empty where passes map it.
pub trait PassControl: Send + Sync + std::fmt::Debug {
    /// A run of the passes begins: nothing that was learned before counts. Fills the first state, which comes as zeros.
    fn begin(&self, state: &mut [f64]);

    /// `found`: what this pass came to (the sums of its measures, or the fold's output), in the fixed tree of folds.
    /// `state`: as the pass read it, for the control to turn into the next.
    fn after(&self, pass: u64, found: &[f64], state: &mut [f64]) -> Result<NextPass, OperatorError>;

    fn most_passes(&self) -> u64;

    /// Bytes that `after` takes beside its arguments.
    fn scratch_bytes(&self) -> u64 {
        0
    }
}

/// What comes after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPass {
    /// Another pass, from the state that this one led to.
    Again,
    /// This pass went too far: once more from the state that it read.
    Redo,
    /// The state that this pass led to is the last.
    Done,
    /// The state that this pass read is the last.
    DoneBefore,
}
