//! Passes along single axes over a block that is never there as a whole, see [`Sweep`](super::super::Sweep).
//!
//! As in `chain`, strips follow each other along the axis of one of the passes, and what that pass takes lies in a window. Here the
//! window is a ring, nothing in it is ever moved: row `y` lies at `y` modulo its length. The passes before it go from the parts of the
//! input straight into the window; it and those after it work on the strip slab by slab, each slab's results being handed on while
//! they are in the cache.

use std::collections::VecDeque;

use super::super::{OperatorError, Stretch, Strips, Workspace};
use super::chain::{self, Chain, Slabs, depth_of, slab, slabs_of};
use super::direct::{self, Direct};
use super::lines::{Combine, Layout, Within, tile_len};
use super::singles::Singles;
use crate::array::block::copy_strided;
use crate::array::{Buffer, Dims, Region};

const SIZE: usize = size_of::<f32>();

/// What a strip takes is filtered in portions, which stay in the core's cache on their way into the window. Its results leave
/// together, and a byte of a long run costs less to write: of so many portions, where the window stays in the last cache.
const PORTIONS: u64 = 2;
const MODERATE: u64 = 16 << 20;

/// How a chain of smoothing passes is swept.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The pass whose window it is.
    pass: usize,
    pub axis: usize,
    /// Rows of a strip whose slabs are written one by one.
    pub rows: u64,
    /// Rows of the input that are taken at a time.
    pub portion: u64,
}

impl Plan {
    /// Along the axis where the window is the smallest; `None` where none can be cut, or the other end of an axis is needed.
    pub fn of(chain: &Chain<'_>) -> Option<Self> {
        let (frame, rank) = (chain.frame, chain.frame.rank());
        if chain.reaches.iter().any(|reach| frame.is_periodic(reach.axis) || frame.needs_whole(reach.axis)) {
            return None;
        }
        // Rows of the innermost axis stay whole.
        let cut = chain.reaches.iter().enumerate().filter(|(_, reach)| reach.axis + 1 < rank);
        let window = |plan: &Self| plan.sizes(chain, &frame.shape)[0];
        let plans = cut.map(|(pass, reach)| {
            let portion = chain::thinnest(reach);
            Self { pass, axis: reach.axis, rows: portion, portion }
        });
        let plan = plans.min_by_key(window)?;
        let thick = Self { rows: PORTIONS * plan.portion, ..plan };
        Some(if window(&thick) <= MODERATE { thick } else { plan })
    }

    /// The same for slabs that are written one by one, or not: then nothing is gained by long runs.
    pub fn of_slabs(self, is_stored: bool) -> Self {
        if is_stored { self } else { Self { rows: self.portion, ..self } }
    }

    /// The axis of the first pass, where that is not the window's own.
    pub fn joined(&self, chain: &Chain<'_>) -> Option<usize> {
        (self.pass > 0).then(|| chain.reaches[0].axis)
    }

    /// The pass that the window's cells go into, but for those along its own axis.
    fn first(&self) -> usize {
        self.pass.min(1)
    }

    /// Rows of the window, for cores of so many.
    pub fn ring(&self, chain: &Chain<'_>, core: u64) -> u64 {
        let reach = &chain.reaches[self.pass];
        chain.frame.grown_len(self.axis, self.rows.min(core), reach.before.max(reach.after) as u64)
    }

    /// How a strip is cut on its way out: not across rows.
    fn slabs(&self, chain: &Chain<'_>, strip: &[u64]) -> Option<Slabs> {
        chain.slabs(strip, &chain::Strips { pass: self.pass, rows: self.rows }).filter(|slabs| slabs.axis + 1 < strip.len())
    }

    /// Bytes of the window, of what lies between passes, of a slab's results, and of a tile, for cores up to this shape.
    pub fn sizes(&self, chain: &Chain<'_>, core: &[u64]) -> [u64; 4] {
        let mut strip = core.to_vec();
        strip[self.axis] = strip[self.axis].min(self.rows);
        let grown = |shape: &[u64], n: usize| {
            let depth = depth_of(&chain.reaches[n..], chain.frame.rank());
            chain.frame.grown_shape(shape, &depth).iter().fold(SIZE as u64, |n, len| n.saturating_mul(*len))
        };
        // A slab is thin where it can be, and a strip where it can't.
        let one = |n: usize| {
            let mut one = strip.clone();
            if let Some(slabs) = self.slabs(chain, &strip) {
                one[slabs.axis] = 1;
            }
            grown(&one, n).max(slab().min(grown(&strip, n)))
        };
        let is_last = self.pass + 1 == chain.reaches.len();
        let between = if is_last { 0 } else { one(self.pass + 1) };
        let tile = tile_len(chain.line_len(core), SIZE).saturating_mul(SIZE as u64);
        [grown(&strip, self.first()), between, one(chain.reaches.len()), tile]
    }
}

/// A block being swept.
pub struct Swept<'s> {
    pub chain: Chain<'s>,
    pub plan: Plan,
    pub filter: &'s [Singles],
    core: Region,
    /// Rows that the window has place for.
    ring: i64,
    /// The strip, and the rows of the input that are new in it.
    part: Region,
    fresh: (i64, i64),
    /// Where the rows end that the strip needs.
    upto: i64,
    /// Slabs of the strip that are still to come, once what lies in the window is filtered as far as it goes there.
    slabs: VecDeque<Region>,
    is_filtered: bool,
    window: Buffer,
    between: Buffer,
    out: Buffer,
    tile: Buffer,
}

impl<'s> Swept<'s> {
    pub fn begin(
        chain: Chain<'s>,
        plan: Plan,
        filter: &'s [Singles],
        core: &Region,
        work: &mut Workspace<'_>,
    ) -> Result<Self, OperatorError> {
        let sizes = plan.sizes(&chain, &super::shape_of(core));
        let [window, between, out, tile] = super::buffers(work, sizes)?;
        let ring = plan.ring(&chain, core.len(plan.axis) as u64) as i64;
        let (mut part, start) = (core.clone(), core.start[plan.axis]);
        part.stop[plan.axis] = start;
        let (fresh, upto) = ((i64::MIN, i64::MIN), i64::MIN);
        let (slabs, is_filtered) = (VecDeque::new(), true);
        let core = core.clone();
        Ok(Self { chain, plan, filter, core, ring, part, fresh, upto, slabs, is_filtered, window, between, out, tile })
    }

    /// The cells that the window holds of these rows.
    fn rows(&self, (start, stop): (i64, i64)) -> Region {
        let mut region = self.chain.held(&self.part, self.plan.first());
        (region.start[self.plan.axis], region.stop[self.plan.axis]) = (start, stop);
        region
    }

    /// Rows as they lie in the ring: one run of them, or two, with the place of each.
    fn runs(&self, (start, stop): (i64, i64)) -> impl Iterator<Item = ((i64, i64), i64)> + use<> {
        let (ring, place) = (self.ring, start.rem_euclid(self.ring));
        let turn = stop.min(start + ring - place);
        [((start, turn), place), ((turn, stop), 0)].into_iter().filter(|((a, b), _)| a < b)
    }

    /// Where cells lie in the window whose first row lies at `place`.
    fn layout(&self, cells: &Region, place: i64) -> Layout {
        let axis = self.plan.axis;
        let mut cells = cells.clone();
        (cells.start[axis], cells.stop[axis]) = (place, place + cells.len(axis) as i64);
        Layout::within(&self.rows((0, self.ring)), &cells)
    }
}

impl Strips for Swept<'_> {
    fn next(&mut self) -> Option<Region> {
        self.filter_window();
        let Plan { axis, pass, rows, portion } = self.plan;
        if self.fresh.1 >= self.upto {
            let (start, end) = (self.part.stop[axis], self.core.stop[axis]);
            if start >= end {
                return None;
            }
            (self.part.start[axis], self.part.stop[axis]) = (start, end.min(start.saturating_add_unsigned(rows)));
            self.upto = self.chain.held(&self.part, pass).axis(axis).1;
            self.slabs = slabs_of(&self.part, self.plan.slabs(&self.chain, &super::shape_of(&self.part))).collect();
        }
        let first = self.chain.held(&self.part, pass).start[axis].max(self.fresh.1);
        self.fresh = (first, self.upto.min(first.saturating_add_unsigned(portion)));
        self.is_filtered = false;
        let mut region = self.chain.held(&self.part, 0);
        (region.start[axis], region.stop[axis]) = self.fresh;
        Some(region)
    }

    fn take(&mut self, parts: &[Stretch<'_>]) {
        let (axis, first) = (self.plan.axis, self.plan.first());
        let along = self.chain.reaches[0].axis;
        let Some(part) = parts.first() else { return };
        // What comes of these parts, and of these rows.
        let mut all = self.rows(self.fresh);
        for a in (0..all.rank()).filter(|&a| first == 0 || a != along) {
            for part in parts {
                (all.start[a], all.stop[a]) = (all.start[a].max(part.region.start[a]), all.stop[a].min(part.region.stop[a]));
            }
        }
        if all.is_empty() {
            return;
        }
        let goes_in = self.chain.held(&self.part, 0).axis(along);
        for (rows, place) in self.runs(all.axis(axis)) {
            let mut comes_out = all.clone();
            (comes_out.start[axis], comes_out.stop[axis]) = rows;
            let target = self.layout(&comes_out, place);
            let shape = comes_out.shape();
            let at = |part: &Stretch<'_>, from: &Region| {
                let strides: Dims<isize> = part.strides.iter().map(|s| s / SIZE as isize).collect();
                let place = |a: usize| (from.start[a] - part.region.start[a]) as isize * strides[a];
                Layout { offset: part.offset / SIZE as isize + (0..from.rank()).map(place).sum::<isize>(), strides }
            };
            if first == 0 {
                let bytes = |layout: &Layout| layout.strides.iter().map(|s| s * SIZE as isize).collect::<Vec<_>>();
                let from = at(part, &comes_out);
                let (to, size) = (target.offset * SIZE as isize, SIZE);
                let (to_strides, from_strides) = (bytes(&target), bytes(&from));
                let offset = from.offset * SIZE as isize;
                copy_strided(&mut self.window, to, &to_strides, part.bytes, offset, &from_strides, &shape, size);
                continue;
            }
            let stretches: Vec<direct::Stretch<'_, f32>> = parts
                .iter()
                .filter_map(|part| {
                    let (start, stop) = part.region.axis(along);
                    let (start, stop) = (start.max(goes_in.0), stop.min(goes_in.1));
                    let mut from = comes_out.clone();
                    from.start[along] = start;
                    let (first, len) = ((start - goes_in.0) as usize, (stop - start).max(0) as usize);
                    let cells = bytemuck::cast_slice(part.bytes);
                    (start < stop).then(|| direct::Stretch { cells, layout: at(part, &from), first, len })
                })
                .collect();
            let runs = self.chain.runs(0, &comes_out, goes_in);
            let (axis, constants) = (along, self.chain.constants::<f32, f32>(0));
            Direct { axis, shape: &shape, runs: &runs, constants, stretches: &stretches, target: &target }.run(
                self.window.as_mut_slice_of(),
                0,
                &mut &*self.filter,
            );
        }
    }

    fn slab(&mut self) -> Option<(Region, &[u8])> {
        if self.fresh.1 < self.upto {
            return None;
        }
        self.filter_window();
        let slab = self.slabs.pop_front()?;
        self.filter_slab(&slab);
        let bytes = &self.out[..slab.count() * SIZE];
        Some((slab, bytes))
    }
}

impl Swept<'_> {
    /// Passes between the first one and the window's own stay within it.
    fn filter_window(&mut self) {
        let Plan { axis, pass, .. } = self.plan;
        if std::mem::replace(&mut self.is_filtered, true) {
            return;
        }
        for n in 1..pass {
            for (rows, place) in self.runs(self.fresh) {
                let (mut goes_in, mut comes_out) = (self.chain.held(&self.part, n), self.chain.held(&self.part, n + 1));
                for region in [&mut goes_in, &mut comes_out] {
                    (region.start[axis], region.stop[axis]) = rows;
                }
                let (from, to) = (self.layout(&goes_in, place), self.layout(&comes_out, place));
                let sides = (&goes_in, &comes_out, &from, &to, Combine::Set);
                let ends = &mut Within(self.window.as_mut_slice_of::<f32>());
                self.chain.pass(n, sides, ends, self.tile.as_mut_slice_of(), &mut &*self.filter);
            }
        }
    }

    /// The window's own pass and those after it.
    fn filter_slab(&mut self, slab: &Region) {
        let Plan { axis, pass, .. } = self.plan;
        let (goes_in, comes_out) = (self.chain.held(slab, pass), self.chain.held(slab, pass + 1));
        let mut stretches = Vec::with_capacity(2);
        for ((start, stop), place) in self.runs(goes_in.axis(axis)) {
            let mut from = comes_out.clone();
            (from.start[axis], from.stop[axis]) = (start, stop);
            let (first, len) = ((start - goes_in.start[axis]) as usize, (stop - start) as usize);
            let layout = self.layout(&from, place);
            stretches.push(direct::Stretch { cells: self.window.as_slice_of::<f32>(), layout, first, len });
        }
        let runs = self.chain.runs(pass, &comes_out, goes_in.axis(axis));
        let constants = self.chain.constants::<f32, f32>(pass);
        let (shape, target) = (comes_out.shape(), Layout::within(&comes_out, &comes_out));
        let is_last = pass + 1 == self.chain.reaches.len();
        let to = if is_last { &mut self.out } else { &mut self.between };
        Direct { axis, shape: &shape, runs: &runs, constants, stretches: &stretches, target: &target }.run(
            to.as_mut_slice_of(),
            pass,
            &mut &*self.filter,
        );
        let (out, between) = (self.out.as_mut_slice_of::<f32>(), self.between.as_mut_slice_of());
        let tile = self.tile.as_mut_slice_of();
        self.chain.rest(pass + 1, (slab, slab), (out, Combine::Set), between, tile, &mut &*self.filter);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::super::testing::{Random, Whole, bind_inputs, map_one, values};
    use super::super::super::{Kind, StepInput};
    use super::chain::TEST_CACHE;
    use super::*;
    use crate::array::{Block, Rule};

    /// A range cut anywhere.
    fn pieces(random: &mut Random, (start, stop): (i64, i64)) -> Vec<(i64, i64)> {
        let mut edges = vec![start, stop];
        (0..random.below(3)).for_each(|_| edges.push(start + random.below((stop - start) as u64) as i64));
        edges.sort_unstable();
        edges.windows(2).map(|e| (e[0], e[1])).filter(|(a, b)| a < b).collect()
    }

    /// A part of the array, in memory of its own, with cells around it that are not asked for.
    fn part_of(random: &mut Random, whole: &Block, shape: &[u64], part: &Region) -> (Region, Vec<f32>) {
        let ranges: Vec<(i64, i64)> = (0..shape.len())
            .map(|a| {
                let (start, stop) = part.axis(a);
                let more = i64::from(a + 1 == shape.len()) * random.below(3) as i64;
                ((start - more).max(0), stop.saturating_add(more).min(shape[a] as i64))
            })
            .collect();
        let region = Region::from_ranges(&ranges);
        let cells = values::<f32>(&whole.cut(&Region::whole(shape), &region));
        (region, cells)
    }

    #[test]
    fn a_swept_block_is_the_block() {
        let mut random = Random::new(31);
        let (mut swept, mut joined, mut copied) = (0, 0, 0);
        for case in 0..400 {
            let rank = 2 + random.below(3) as usize;
            let mut shape: Vec<u64> = (0..rank).map(|_| 1 + random.below(if rank == 4 { 9 } else { 30 })).collect();
            shape[rank - 2] += random.below(2) * 30;
            let count: u64 = shape.iter().product();
            let cells: Vec<f32> = (0..count).map(|_| random.unit() as f32 - 0.5).collect();
            let lengths: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            let whole = Whole::new(Block::from_values(&lengths, &cells));
            let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Constant(0.25)];
            let mut rule = || rules[random.below(4) as usize];
            let boundary = (0..rank).map(|_| [rule(), rule()]).collect();
            let sigma: Vec<f64> = (0..rank).map(|_| [0.0, 0.4, 0.8, 1.7][random.below(4) as usize]).collect();
            let input = StepInput { meta: whole.meta.clone(), boundary: Some(boundary), depth: None };
            let bound = bind_inputs("gaussian_filter", &format!("sigma = {sigma:?}"), &[input]).unwrap();
            let Kind::Map(map) = &bound.kind else { panic!("a map") };
            let Some(sweep) = map.sweep() else { continue };
            swept += 1;
            let ranges: Vec<(i64, i64)> = shape
                .iter()
                .map(|&n| {
                    let start = random.below(n) as i64 * random.below(2) as i64;
                    (start, start + 1 + random.below((n as i64 - start) as u64) as i64)
                })
                .collect();
            let core = Region::from_ranges(&ranges);
            let want = values::<f32>(&map_one(&bound, &[&whole], &core).unwrap());
            let cache = 64 << random.below(10);
            crate::simd::both_paths(|_| {
                TEST_CACHE.set(Some(cache));
                let stop = AtomicBool::new(false);
                let mut strips = sweep.begin(&core, case % 3 > 0, &mut Workspace::unbounded(&stop)).unwrap();
                let mut got = vec![f32::NAN; core.count()];
                let mut seen = sweep.needs(&core);
                (seen.start[sweep.axis()], seen.stop[sweep.axis()]) = (i64::MAX, i64::MIN);
                while let Some(fresh) = strips.next() {
                    let rows = fresh.axis(sweep.axis());
                    assert!(seen.stop[sweep.axis()] <= rows.0, "rows are asked for once");
                    seen.stop[sweep.axis()] = rows.1;
                    if !fresh.is_empty() {
                        // Columns of parts along the axis on which they are joined, each in some pieces.
                        let cut = |random: &mut Random, a: usize| match a == sweep.axis() {
                            true => vec![rows],
                            false => pieces(random, fresh.axis(a)),
                        };
                        let lists: Vec<Vec<(i64, i64)>> = (0..rank).map(|a| cut(&mut random, a)).collect();
                        let along = sweep.joined();
                        let counts: Vec<Vec<u64>> = (0..rank)
                            .map(|a| if along == Some(a) { vec![0] } else { (0..lists[a].len() as u64).collect() })
                            .collect();
                        let counts: Vec<&[u64]> = counts.iter().map(Vec::as_slice).collect();
                        crate::array::grid::for_each_index::<()>(&counts, |index| {
                            let mut region = fresh.clone();
                            for a in 0..rank {
                                (region.start[a], region.stop[a]) = lists[a][index[a] as usize];
                            }
                            let mut stretches = Vec::new();
                            for &(start, stop) in along.map_or(&[(0, 0)][..], |a| &lists[a]) {
                                if let Some(a) = along {
                                    (region.start[a], region.stop[a]) = (start, stop);
                                }
                                stretches.push(region.clone());
                            }
                            let more = random.below(2) as i64;
                            let held: Vec<(Region, Vec<f32>)> = stretches
                                .iter()
                                .map(|region| match along {
                                    Some(_) => (region.clone(), values(&whole.block.cut(&Region::whole(&shape), region))),
                                    None if more > 0 => part_of(&mut random, &whole.block, &shape, region),
                                    None => (region.clone(), values(&whole.block.cut(&Region::whole(&shape), region))),
                                })
                                .collect();
                            let parts: Vec<Stretch<'_>> = held
                                .iter()
                                .map(|(region, cells)| Stretch::in_order(region.clone(), bytemuck::cast_slice(cells), 4))
                                .collect();
                            strips.take(&parts);
                            Ok(())
                        })
                        .unwrap();
                    }
                    while let Some((region, bytes)) = strips.slab() {
                        let (to, from) = (Layout::within(&core, &region), Layout::within(&region, &region));
                        let scaled = |l: &Layout| l.strides.iter().map(|s| s * 4).collect::<Vec<_>>();
                        let out = bytemuck::cast_slice_mut(&mut got);
                        copy_strided(out, to.offset * 4, &scaled(&to), bytes, 0, &scaled(&from), &region.shape(), 4);
                    }
                }
                TEST_CACHE.set(None);
                let same = got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "case {case}: {core} of {shape:?}, sigma {sigma:?}, {:?}", bound.inputs[0].own_rules);
            });
            match sweep.joined() {
                Some(_) => joined += 1,
                None => copied += 1,
            }
        }
        assert!(swept > 200 && joined > 50 && copied > 50, "{swept} swept, {joined} joined, {copied} copied");
    }
}
