//! Stage 3: evaluates the steps of a block on CPU workers.

pub mod fold;
