//! Linear filters that are passes along single axes, and sums of such filters: gaussian, uniform, sobel, laplace and kin.
//!
//! A *term* is a chain of passes, one axis each; each pass is computed in float64 and stored in the array's dtype, as scipy
//! does; smoothing of float32 by weights that cannot cancel is computed in float32 (see `singles`). Terms are added, or their
//! squares are.

use super::super::{
    Binding, Computed, MapOperator, MapTask, Operator, OperatorError, Padded, StepInput, Strips, Sweep, Workspace,
};
use super::chain::{Chain, Reach};
use super::frame::Frame;
use super::kernel::Kernel;
use super::lines::{Combine, Filter, Keyed, Lane, tile_len};
use super::sample::{Sample, with_sample};
use super::singles::Singles;
use super::sweep::{self, Swept};
use crate::array::{DType, Region};
use crate::simd::{Vectored, vectored};

/// A filter along one axis.
#[derive(Clone, Debug)]
pub struct AxisFilter {
    pub axis: usize,
    pub kernel: Kernel,
    /// Cells of the window before the one it belongs to.
    pub before: usize,
    /// The same for float32, where that does.
    pub singles: Option<Singles>,
}

impl AxisFilter {
    /// A correlation whose window is centred as scipy centres it: an even one reaches further back.
    pub fn centred(axis: usize, weights: &[f64]) -> Self {
        Self { axis, kernel: Kernel::correlation(weights), before: weights.len() / 2, singles: None }
    }

    fn reach(&self) -> Reach {
        Reach { axis: self.axis, before: self.before, after: self.kernel.size() - 1 - self.before }
    }
}

/// How terms become the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    Sum,
    /// The root of the sum of squares.
    Magnitude,
}

/// Terms as an operator knows them before its input is known.
pub type Terms = Vec<Vec<AxisFilter>>;

/// A step whose terms follow from the rank of its input.
pub struct Separable {
    pub op: &'static str,
    pub join: Join,
    pub terms: Box<dyn Fn(usize) -> Result<Terms, String> + Send + Sync>,
}

impl Operator for Separable {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let frame = Frame::new(self.op, inputs, false)?;
        let terms: Vec<Term> = (self.terms)(frame.rank())?
            .into_iter()
            .map(|filters| Term { reaches: filters.iter().map(AxisFilter::reach).collect(), filters })
            .collect();
        let mut depth = vec![0; frame.rank()];
        for reach in terms.iter().flat_map(|t| &t.reaches) {
            depth[reach.axis] = depth[reach.axis].max(reach.before.max(reach.after) as u64);
        }
        let of_term = |term: &Term| term.filters.iter().map(|filter| filter.singles.clone()).collect();
        let singles = if frame.dtype == DType::F32 { terms.iter().map(of_term).collect() } else { None };
        let swept = match (&terms[..], &singles) {
            ([term], Some(_)) if !term.filters.is_empty() && self.join == Join::Sum && !frame.is_guarded() => {
                sweep::Plan::of(&Chain { frame: &frame, reaches: &term.reaches })
            }
            _ => None,
        };
        let map = SeparableMap { frame: frame.clone(), terms, singles, swept, join: self.join, depth: depth.clone() };
        frame.bind(&inputs[0], &depth, map, false, false)
    }
}

struct Term {
    filters: Vec<AxisFilter>,
    reaches: Vec<Reach>,
}

struct SeparableMap {
    frame: Frame,
    terms: Vec<Term>,
    /// The passes of each term, where all of them are for float32.
    singles: Option<Vec<Vec<Singles>>>,
    /// How the only term is swept, where it can be.
    swept: Option<sweep::Plan>,
    join: Join,
    depth: Vec<u64>,
}

impl SeparableMap {
    /// Bytes of the buffer between passes, of a tile, and of a second tile where one is needed.
    fn sizes(&self, core: &[u64]) -> [u64; 3] {
        let lane = if self.singles.is_some() { size_of::<f32>() } else { size_of::<f64>() };
        let (mut between, mut tile, mut spare) = (0u64, 0u64, 0);
        for term in &self.terms {
            let chain = Chain { frame: &self.frame, reaches: &term.reaches };
            between = between.max(chain.between_len(core));
            tile = tile.max(tile_len(chain.line_len(core), lane));
            spare |= u64::from(term.filters.iter().any(|f| f.kernel.needs_spare()));
        }
        let tile = tile.saturating_mul(lane as u64);
        [between.saturating_mul(self.frame.dtype.size() as u64), tile, tile * spare]
    }

    /// `arithmetic(term, run, spare)` runs a term with its filters.
    fn run<S: Sample, W: Lane<S>>(
        &self,
        input: &Padded,
        core: &Region,
        out: &mut [S],
        work: &mut Workspace<'_>,
        arithmetic: impl Fn(usize, &mut dyn FnMut(&mut dyn Filter<W>), &mut [W]),
    ) -> Result<(), OperatorError> {
        let (block, have) = self.frame.take(input, core, &self.depth)?;
        let [mut between, mut tile, mut spare] = super::buffers(work, self.sizes(&super::shape_of(core)))?;
        for (n, term) in self.terms.iter().enumerate() {
            let combine = match (self.join, n) {
                (Join::Sum, 0) => Combine::Set,
                (Join::Sum, _) => Combine::Add,
                (Join::Magnitude, 0) => Combine::SetSquare,
                (Join::Magnitude, _) => Combine::AddSquare,
            };
            let chain = Chain { frame: &self.frame, reaches: &term.reaches };
            let between = between.as_mut_slice_of::<S>();
            if term.filters.is_empty() {
                // Doubles don't hold every integer of 64 bits; keys do.
                let tile = bytemuck::cast_slice_mut::<u8, Keyed<S::Key>>(&mut tile);
                chain.run((&block, &have), core, (&mut *out, combine), between, tile, &mut |_, _: &mut [Keyed<S::Key>], _, _| {});
            } else {
                let (tile, spare) = (tile.as_mut_slice_of::<W>(), spare.as_mut_slice_of::<W>());
                let mut run = |filter: &mut dyn Filter<W>| {
                    chain.run((&block, &have), core, (&mut *out, combine), &mut *between, &mut *tile, filter);
                };
                arithmetic(n, &mut run, spare);
            }
        }
        if self.join == Join::Magnitude {
            vectored(Roots(out));
        }
        Ok(())
    }
}

struct Roots<'a, S>(&'a mut [S]);

impl<S: Sample> Vectored for Roots<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|cell| *cell = cell.root());
    }
}

impl MapOperator for SeparableMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        super::one_output(inputs, task, work, self.frame.dtype, |input, region, out, work| match &self.singles {
            Some(singles) => {
                self.run::<f32, f32>(input, region, out.as_mut_slice_of(), work, |term, run, _| run(&mut &singles[term][..]))
            }
            None => with_sample!(self.frame.dtype, S => {
                self.run::<S, f64>(input, region, out.as_mut_slice_of(), work, |term, run, spare| {
                    let filters = &self.terms[term].filters;
                    run(&mut |at: usize, tile: &mut [f64], step, n| filters[at].kernel.apply(tile, spare, step, n));
                })
            }),
        })
    }

    fn scratch_bytes(&self, core: &[u64]) -> u64 {
        super::buffer_bytes(&self.sizes(core))
    }

    fn sweep(&self) -> Option<&dyn Sweep> {
        self.swept.as_ref().map(|_| self as &dyn Sweep)
    }
}

impl SeparableMap {
    /// The only term, as it is swept.
    fn sweeping(&self) -> Option<(Chain<'_>, &sweep::Plan, &[Singles])> {
        let (term, singles) = (self.terms.first()?, self.singles.as_ref()?.first()?);
        Some((Chain { frame: &self.frame, reaches: &term.reaches }, self.swept.as_ref()?, singles))
    }
}

impl Sweep for SeparableMap {
    fn axis(&self) -> usize {
        self.swept.as_ref().map_or(0, |plan| plan.axis)
    }

    fn joined(&self) -> Option<usize> {
        self.sweeping().and_then(|(chain, plan, _)| plan.joined(&chain))
    }

    fn needs(&self, core: &Region) -> Region {
        self.frame.grow(core, &self.depth)
    }

    fn rows(&self, core: u64) -> u64 {
        self.swept.as_ref().map_or(0, |plan| plan.rows.min(core))
    }

    fn taken(&self) -> u64 {
        self.swept.as_ref().map_or(0, |plan| plan.portion)
    }

    fn bytes(&self, core: &[u64], is_stored: bool) -> u64 {
        self.sweeping().map_or(0, |(chain, plan, _)| super::buffer_bytes(&plan.of_slabs(is_stored).sizes(&chain, core)))
    }

    fn begin<'s>(
        &'s self,
        core: &Region,
        is_stored: bool,
        work: &mut Workspace<'_>,
    ) -> Result<Box<dyn Strips + 's>, OperatorError> {
        let (chain, plan, singles) = self.sweeping().ok_or_else(|| OperatorError::data("it is not swept"))?;
        Ok(Box::new(Swept::begin(chain, plan.of_slabs(is_stored), singles, core, work)?))
    }
}
