//! One pass over the matrix: a fold whose leaves multiply their lines by the basis, and the result by the lines again.

use std::marker::PhantomData;

use super::layout::{Finding, Sizes, State};
use super::lines::{Lines, Standard};
use super::product::{Backward, Float, Forward, LINES, Space};
use crate::array::{Block, Scalar};
use crate::operators::matrices::run;
use crate::operators::pointwise::{each_run, find, place, show};
use crate::operators::reduce::element::Real;
use crate::operators::{FoldOperator, OperatorError, Padded};

/// Products of a matrix of elements `T`, in the precision `F`.
pub struct Pass<T, F> {
    /// The matrix, for messages.
    pub name: String,
    pub sizes: Sizes,
    pub standard: Standard<T>,
    /// The axis along which lines follow each other.
    pub along: usize,
    /// A missing value that the source declares and the step says nothing about.
    pub guard: Option<Scalar>,
    pub precision: PhantomData<fn() -> F>,
}

/// The state as every block gets it: whole, in one piece.
pub fn state<'a>(sizes: &'a Sizes, given: &'a Padded) -> Result<State<'a>, OperatorError> {
    let words = given.block.values::<f64>().filter(|words| words.len() == sizes.state_len());
    Ok(State { sizes, words: words.ok_or_else(|| OperatorError::data("the state came in several pieces"))? })
}

/// The lines of a block as its first axis.
pub fn lines(block: &Block, along: usize) -> Block {
    if along == 0 { block.clone() } else { block.transposed(&[1, 0]) }
}

/// The first element that is wrong, in C order.
fn first<T: Real>(block: &Block, is_wrong: impl Fn(&T) -> bool) -> Option<usize> {
    // All of a part are looked at before anybody asks: vector units can do that.
    const PART: usize = 256;
    each_run::<T>(block, |_, run| {
        let parts = run.chunks(PART).enumerate();
        let mut wrong = parts.filter(|(_, part)| part.iter().fold(false, |any, v| any | is_wrong(v)));
        wrong.next().and_then(|(number, part)| Some(number * PART + part.iter().position(&is_wrong)?))
    })
}

impl<T: Real, F: Float> Pass<T, F> {
    /// Refuses what has no place in a product: it would spoil all of the result.
    fn check(&self, matrix: &Padded) -> Result<(), OperatorError> {
        let is_missing = |v: &T| self.standard.missing.is_some_and(|(missing, _)| v.is(missing));
        let limit = if self.standard.scale.is_some() { 0.0..=2.0 } else { f64::MIN..=f64::MAX };
        let Padded { block, region } = matrix;
        let declared = self.guard.and_then(|value| find(block, &value));
        let is_wrong = |v: &T| !limit.contains(&v.wide()) && !is_missing(v);
        // Integers without a scale are all welcome.
        let may_fail = T::HAS_NAN || self.standard.scale.is_some();
        let at = declared.or_else(|| if may_fail { first(block, is_wrong) } else { None });
        let Some(at) = at else { return Ok(()) };
        let value = show(block, at);
        let what = match (declared, self.standard.scale) {
            (Some(_), _) => "is the source's missing value: say what it counts as (missing_as = \"mean\" or \"zero\")".to_owned(),
            (None, Some(_)) => format!(
                "is no count of alleles (0 to 2), which this scale takes; if it stands for missing calls, give missing = {value}"
            ),
            (None, None) => "has no place in a product; fill it first, or give it as `missing`".to_owned(),
        };
        Err(OperatorError::data(format!("{} holds {value} at {:?}: it {what}", self.name, place(region, at))))
    }
}

impl<T: Real + 'static, F: Float + 'static> FoldOperator for Pass<T, F> {
    fn state_bytes(&self) -> usize {
        8 * self.sizes.found_len()
    }

    fn is_order_free(&self) -> bool {
        false
    }

    fn leaf(&self, inputs: &[Padded], _axes: &[usize], words: &mut [u8]) -> Result<(), OperatorError> {
        let [matrix, given] = inputs else { return Err(OperatorError::data("a pass reads a matrix and its state")) };
        let state = state(&self.sizes, given)?;
        let is_first = state.passes() == 0;
        if is_first {
            self.check(matrix)?;
        }
        let Finding { norm_squared, gram, image } = Finding::of(&self.sizes, bytemuck::cast_slice_mut(words));
        let block = lines(&matrix.block, self.along);
        let mut space = Space::<F>::new(self.sizes.width);
        for first in (0..block.shape()[0]).step_by(LINES) {
            let tiles = Lines::panel(&block, self.standard, first);
            let squares = is_first.then_some(&mut *norm_squared);
            run(Forward { tiles: &tiles, basis: state.basis(), space: &mut space, squares });
            run(Backward { tiles: &tiles, space: &mut space, image: &mut *image, gram: &mut *gram });
        }
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        let (into, other): (&mut [f64], &[f64]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
        into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        Ok(())
    }

    fn finish(&self, words: &[u8], _count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        outputs[0].copy_from_slice(words);
        Ok(())
    }
}
