//! Quantiles in several passes, for reduced axes that no block holds: radix selection by folds.
//!
//! A value's key is its rank among all values of its dtype, an integer of the dtype's width. The first pass counts keys by
//! their leading bits; its result says, for each sought place, in which bin that place falls and how far into it. The next
//! pass reads this beside the data and counts, for each place, the next bits of the keys in its bin; after the last one the
//! keys are known whole. Counts may be added in any order, so results depend on values alone.
//!
//! A pass's state is `places * 2^bits` counts of 8 bytes and a few numbers per kept cell: 1 MiB for one quantile with 16 bits
//! a pass, 4 KiB with 8. What passes hand on is 16 bytes per place and 16 more, per kept cell.

use std::marker::PhantomData;
use std::sync::Arc;

use super::Asked;
use super::rule::Finish;
use crate::array::{DType, Scalar};
use crate::operators::reduce::element::Real;
use crate::operators::reduce::refuse_missing;
use crate::operators::reduce::walk::{Take, walk};
use crate::operators::{ArrayMeta, Binding, FoldOperator, InputBinding, Kind, OperatorError, OutAxis, OutputBinding, Padded};

/// Counts of all kept cells for which a pass takes 16 bits, in bytes: two passes less reading against more counting.
const WIDE_BYTES: u64 = 16 << 20;

/// The folds, in order; each but the first has the result of the one before as its second input.
pub fn bind<T: Real + 'static>(asked: Asked<'_>) -> Vec<Binding> {
    let meta = asked.of.meta;
    let rank = meta.rank();
    let kept: Vec<usize> = (0..rank).filter(|a| !asked.of.axes.contains(a)).collect();
    let cells = kept.iter().fold(1u64, |n, &a| n.saturating_mul(meta.shape[a]));
    let places = asked.finish.quantiles.ranks_len();
    let width = 8 * size_of::<T>() as u32;
    let wide = cells.saturating_mul(places as u64).saturating_mul(8 << 16) <= WIDE_BYTES;
    let bits = width.min(if wide { 16 } else { 8 });
    let passes = width / bits;
    (0..passes)
        .map(|pass| {
            let fold = Pass::<T> {
                name: meta.name.clone(),
                guard: asked.of.guard,
                ignore: asked.of.ignored(),
                places,
                bits,
                shift: width - bits * (pass + 1),
                is_first: pass == 0,
                is_last: pass + 1 == passes,
                finish: asked.finish.clone(),
                element: PhantomData,
            };
            let mut inputs = vec![InputBinding::plain(rank)];
            if pass > 0 {
                let mut found = InputBinding::plain(kept.len() + 1);
                found.axes = kept.iter().map(|a| Some(*a)).chain([None]).collect();
                inputs.push(found);
            }
            let output = if fold.is_last { asked.output.clone() } else { between_passes(meta, &kept, fold.words()) };
            Binding {
                reference: 0,
                inputs,
                outputs: vec![output],
                whole: Vec::new(),
                is_exact: true,
                kind: Kind::Fold { fold: Arc::new(fold), axes: asked.of.axes.clone() },
                child_bytes: 0,
            }
        })
        .collect()
}

/// What a pass hands to the next.
fn between_passes(meta: &ArrayMeta, kept: &[usize], words: usize) -> OutputBinding {
    let mut output = OutputBinding::like("places", DType::U64, meta);
    let tail = OutAxis::New { len: words as u64, name: None };
    output.axes = kept.iter().map(|a| OutAxis::Carried(*a)).chain([tail]).collect();
    output.attributes = Default::default();
    output
}

/// One pass. The state of a kept cell, in 64-bit words: counts of each place's bins (one set for all in the first pass), then
/// what passes hand on: NaNs, values that are none, and per place the leading bits of its key and how many values lie below
/// it among those that begin with them. All leaves hold the same in this last part, but for the NaNs of the first pass.
struct Pass<T> {
    /// The input, for messages.
    name: String,
    guard: Option<Scalar>,
    ignore: Option<T>,
    places: usize,
    bits: u32,
    /// Bits of the key below those that this pass counts.
    shift: u32,
    is_first: bool,
    is_last: bool,
    finish: Finish,
    element: PhantomData<fn() -> T>,
}

const NANS: usize = 0;
const VALUES: usize = 1;
const PLACES: usize = 2;

impl<T: Real> Pass<T> {
    fn bins(&self) -> usize {
        1 << self.bits
    }

    /// Words of the counts.
    fn counts(&self) -> usize {
        self.bins() * if self.is_first { 1 } else { self.places }
    }

    /// Words that passes hand on.
    fn words(&self) -> usize {
        PLACES + 2 * self.places
    }

    fn one(&self, value: T, cell: &mut [u64]) {
        if self.ignore.is_some_and(|ignored| value.is(ignored)) {
            return;
        }
        let (counts, known) = cell.split_at_mut(self.counts());
        if T::HAS_NAN && value.is_nan() {
            known[NANS] += u64::from(self.is_first);
            return;
        }
        let key: u64 = value.rank().into();
        let bin = (key >> self.shift) as usize & (self.bins() - 1);
        if self.is_first {
            counts[bin] += 1;
            return;
        }
        let leading = key >> (self.shift + self.bits);
        // Places ascend and so do their keys: the first place with these leading bits counts for all of them.
        let prefix = |place: usize| known[PLACES + 2 * place];
        let place = if self.places <= 8 {
            (0..self.places).find(|place| prefix(*place) >= leading).unwrap_or(self.places)
        } else {
            let (mut low, mut high) = (0, self.places);
            while low < high {
                let middle = (low + high) / 2;
                if prefix(middle) < leading { low = middle + 1 } else { high = middle }
            }
            low
        };
        if place < self.places && prefix(place) == leading {
            counts[place * self.bins() + bin] += 1;
        }
    }

    /// What the passes know of a cell after this one.
    fn advance(&self, cell: &[u64]) -> Vec<u64> {
        let (counts, known) = cell.split_at(self.counts());
        let mut known = known.to_vec();
        if self.is_first {
            known[VALUES] = counts.iter().sum();
            if known[VALUES] > 0 {
                for (place, rank) in self.finish.quantiles.ranks(known[VALUES]).into_iter().enumerate() {
                    known[PLACES + 2 * place + 1] = rank;
                }
            }
        }
        let mut first = 0;
        for place in 0..self.places {
            let at = PLACES + 2 * place;
            let (prefix, mut below) = (known[at], known[at + 1]);
            // The prefixes of places before this one have a new bin below them by now.
            if place > 0 && known[PLACES + 2 * first] >> self.bits != prefix {
                first = place;
            }
            let of = if self.is_first { 0 } else { first };
            let mut bin = 0;
            for (at, count) in counts[of * self.bins()..(of + 1) * self.bins()].iter().enumerate() {
                bin = at as u64;
                if below < *count {
                    break;
                }
                below -= count;
            }
            known[at] = prefix << self.bits | bin;
            known[at + 1] = below;
        }
        known
    }
}

impl<T: Real> Take for Pass<T> {
    type Element = T;
    type State = u64;

    fn width(&self) -> usize {
        self.counts() + self.words()
    }

    fn run(&self, values: &[T], _at: u64, cell: &mut [u64]) {
        values.iter().for_each(|value| self.one(*value, cell));
    }
}

impl<T: Real + 'static> FoldOperator for Pass<T>
where
    T::Rank: TryFrom<u64>,
{
    fn state_bytes(&self) -> usize {
        8 * self.width()
    }

    fn is_order_free(&self) -> bool {
        true
    }

    fn leaf(&self, inputs: &[Padded], axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError> {
        let input = &inputs[0];
        if self.is_first {
            refuse_missing(&self.name, &self.guard, input)?;
        }
        let state: &mut [u64] = bytemuck::cast_slice_mut(state);
        if let Some(known) = inputs.get(1) {
            let mut words = vec![0u64; known.block.count()];
            known.block.copy_to(bytemuck::cast_slice_mut(&mut words));
            for (cell, words) in state.chunks_exact_mut(self.width()).zip(words.chunks_exact(self.words())) {
                cell[self.counts()..].copy_from_slice(words);
            }
        }
        walk(self, &input.block, &input.region.start, axes, &vec![0; input.block.shape().len()], state);
        Ok(())
    }

    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError> {
        let (into, other): (&mut [u64], &[u64]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
        for (into, other) in into.chunks_exact_mut(self.width()).zip(other.chunks_exact(self.width())) {
            let counted = self.counts() + usize::from(self.is_first);
            into[..counted].iter_mut().zip(other).for_each(|(a, b)| *a += b);
        }
        Ok(())
    }

    fn finish(&self, state: &[u8], _count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        let state: &[u64] = bytemuck::cast_slice(state);
        let cells = state.len() / self.width();
        let size = self.finish.to.size();
        for (at, cell) in state.chunks_exact(self.width()).enumerate() {
            let known = self.advance(cell);
            if !self.is_last {
                let bytes = 8 * self.words();
                outputs[0][at * bytes..(at + 1) * bytes].copy_from_slice(bytemuck::cast_slice(&known));
                continue;
            }
            let values = known[VALUES];
            let ranks = if values > 0 { self.finish.quantiles.ranks(values) } else { Vec::new() };
            let value_at = |rank: u64| {
                let key = known[PLACES + 2 * ranks.partition_point(|r| *r < rank)];
                T::Rank::try_from(key).map_or_else(|_| T::unrank(T::TOP), T::unrank)
            };
            for i in 0..self.finish.quantiles.q.len() {
                let out = &mut outputs[0][(i * cells + at) * size..][..size];
                self.finish.write(i, values, known[NANS] > 0, value_at, out)?;
            }
        }
        Ok(())
    }
}
