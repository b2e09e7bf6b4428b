//! The iterations over a box, in the order that [`Order`](super::fields::Order) chose.
//!
//! With `out_k` made from `p_k` and the one cell before it on each axis, and `p_{k+1}` from `out_k` and the one after it, `out_k`
//! may be made one slab and one line of a strip behind `out_{k-1}`, and `p_{k+1}` right behind that: then every cell still finds
//! its neighbours as they were, in fields that are stored once.

use super::fields::{Fields, Order, each_row};
use super::kernel::{self, Descend, Diverge, Rows, Square, Weigh};
use super::load::Float;
use crate::array::Region;
use crate::array::block::c_strides;
use crate::simd::vectored;

/// What one block takes.
pub struct Walk<'w, T> {
    pub order: &'w Order,
    pub fields: &'w Fields,
    /// The array's shape.
    pub shape: &'w [i64],
    pub weight: f64,
    pub memory: Memory<'w, T>,
    /// Where the state is asked for after the last update, or the result.
    pub own: &'w Region,
    pub is_result: bool,
    /// Updates of `p`: the last one on `own`, others on a cell more on each side than the one after them. Where a result is asked
    /// for, they all go one cell further back.
    pub updates: u64,
    /// `p` is 0 at first, and nothing is loaded there.
    pub is_fresh: bool,
    /// The box whose energies are asked for, and the cells for each iteration, in C order.
    pub energies: Option<(&'w Region, &'w mut [f64])>,
}

/// Working memory of a walk.
pub struct Memory<'w, T> {
    pub image: &'w mut [T],
    pub out: &'w mut [T],
    /// One component after the other.
    pub p: &'w mut [T],
    /// A row of a field, and a cell per axis.
    pub spare: &'w mut [T],
}

/// What a walk reads and writes, a part of the box at a time, in the fields' layout.
pub trait Ends<T> {
    /// Fills image and state on a part of the box.
    fn load(&mut self, part: &Region, fields: &Fields, image: &mut [T], p: &mut [T]);
    /// Takes what is finished on a part of the box: the result, or the state where no result is asked for.
    fn store(&mut self, part: &Region, fields: &Fields, out: &[T], p: &[T]);
}

impl<T: Float> Walk<'_, T> {
    pub fn run(mut self, ends: &mut impl Ends<T>) {
        let bounds = &self.fields.bounds;
        let (start, stop) = self.order.wave.map_or((0, 1), |a| bounds.axis(a));
        let (across, width) = self.order.strips.map_or((0, u64::MAX), |(a, width)| (a, width));
        let strips = (bounds.len(across) as u64).div_ceil(width).max(1) as i64;
        let (own, lead) = (self.own, u64::from(self.is_result));
        let mut sweep = Part { region: bounds.clone(), place: Vec::new(), rows: Rows::default() };
        let mut first = 0;
        loop {
            let after = self.updates.min(first + self.order.at_once.max(1));
            for strip in 0..strips {
                // The lines of the strip's first iteration; those at the box's ends take all there are.
                let edge = |n: i64| bounds.start[across] + n * width as i64;
                let from = if strip == 0 { i64::MIN / 2 } else { edge(strip) };
                let to = if strip + 1 == strips { i64::MAX / 2 } else { edge(strip + 1) };
                let cut = |part: &mut Part, region: (&Region, u64, u64), time: i64, behind: u64| {
                    let behind = behind as i64;
                    part.cut(region, (self.order.wave, time - behind), (across, from - behind, to - behind), self.shape)
                };
                for time in start..stop + (after - first) as i64 {
                    if first == 0 && cut(&mut sweep, (bounds, 0, 0), time, 0) {
                        ends.load(&sweep.region, self.fields, self.memory.image, self.memory.p);
                    }
                    for n in first..after {
                        let (behind, left) = (n - first, self.updates - 1 - n);
                        let is_fresh = n == 0 && self.is_fresh;
                        if !is_fresh && cut(&mut sweep, (own, left + lead, left + 1), time, behind) {
                            sweep.diverge(self.fields, &mut self.memory, self.energies.as_mut().map(|e| energy_of(e, n)));
                        }
                        if cut(&mut sweep, (own, left + lead, left), time, behind + 1) {
                            let step = (self.weight, self.shape, is_fresh);
                            sweep.descend(self.fields, &mut self.memory, step, self.energies.as_mut().map(|e| energy_of(e, n)));
                        }
                    }
                    if after == self.updates && cut(&mut sweep, (own, 0, 0), time, after - first) {
                        if self.is_result {
                            sweep.diverge(self.fields, &mut self.memory, None);
                        }
                        ends.store(&sweep.region, self.fields, self.memory.out, self.memory.p);
                    }
                }
            }
            first = after;
            if first == self.updates {
                return;
            }
        }
    }
}

/// The box whose energies are asked for, and those of one iteration.
type Energies<'e> = (&'e Region, &'e mut [f64]);

fn energy_of<'e>(all: &'e mut (&Region, &mut [f64]), iteration: u64) -> Energies<'e> {
    let (count, iteration) = (all.0.count(), iteration as usize);
    (all.0, &mut all.1[iteration * count..(iteration + 1) * count])
}

/// A part of the box that is computed at once, and its rows. Kept from part to part for its memory.
struct Part {
    region: Region,
    place: Vec<i64>,
    rows: Rows,
}

impl Part {
    /// Sets the part to a region, so many cells longer before and after where the array goes on, at one place of the wave and
    /// between two of the strips' axis. False if nothing is left.
    fn cut(
        &mut self,
        (region, before, after): (&Region, u64, u64),
        (wave, at): (Option<usize>, i64),
        (across, from, to): (usize, i64, i64),
        shape: &[i64],
    ) -> bool {
        let own = &mut self.region;
        for a in 0..region.rank() {
            own.start[a] = (region.start[a] - before as i64).max(0);
            own.stop[a] = (region.stop[a] + after as i64).min(shape[a]);
        }
        own.start[across] = own.start[across].max(from);
        own.stop[across] = own.stop[across].min(to);
        match wave {
            Some(wave) => {
                own.start[wave] = own.start[wave].max(at);
                own.stop[wave] = own.stop[wave].min(at + 1);
            }
            None if at != 0 => return false,
            None => {}
        }
        !own.is_empty()
    }

    /// Lists the part's rows, with the neighbours before or after.
    fn list(&mut self, fields: &Fields, shape: Option<&[i64]>) {
        let Self { region, place, rows } = self;
        let last = region.rank() - 1;
        rows.first.clear();
        rows.near.clear();
        rows.len = region.len(last);
        rows.at_edge = match shape {
            None => region.start[last] == 0,
            Some(shape) => region.stop[last] == shape[last],
        };
        // A part lies in one slab, so that neighbours are as far off in all rows.
        let ahead = shape.is_some();
        let origin = fields.at(&region.start);
        let steps: Vec<isize> =
            (0..=last).map(|a| fields.beside(origin, &region.start, a, ahead) as isize - origin as isize).collect();
        each_row(region, place, |place| {
            let first = fields.at(place);
            rows.first.push(first);
            for (a, step) in steps.iter().enumerate() {
                let is_inside = a == last || shape.map_or(place[a] > 0, |shape| place[a] + 1 < shape[a]);
                rows.near.push(if is_inside { Some((first as isize + step) as usize) } else { None });
            }
        });
    }

    /// `out = image - div p` on the part. Sets energies to the squares of the divergence.
    fn diverge<T: Float>(&mut self, fields: &Fields, memory: &mut Memory<'_, T>, energies: Option<Energies<'_>>) {
        self.list(fields, None);
        let Memory { image, out, p, spare } = memory;
        let mut job = Diverge { rank: self.region.rank(), image, p, apart: fields.cells, out, seen: None };
        let Some((own, energies)) = energies else { return kernel::compute(&mut job, &self.rows) };
        job.seen = Some(spare);
        self.one_by_one(own, |row, found| {
            kernel::compute(&mut job, row);
            if let (Some((from, to, start)), Some(seen)) = (found, &job.seen) {
                vectored(Square(&seen[from..to], &mut energies[start..start + (to - from)]));
            }
        });
    }

    /// `p = (p - tau g) / (1 + tau/weight |g|)` on the part, `g` the gradient of `out`, at first of the image. Adds
    /// `weight |g|` to the energies.
    fn descend<T: Float>(
        &mut self,
        fields: &Fields,
        memory: &mut Memory<'_, T>,
        (weight, shape, is_fresh): (f64, &[i64], bool),
        energies: Option<Energies<'_>>,
    ) {
        self.list(fields, Some(shape));
        let rank = shape.len();
        let tau = 1.0 / (2.0 * rank as f64);
        let Memory { image, out, p, spare } = memory;
        let (spare, seen) = spare.split_at_mut(rank);
        let (field, apart) = (if is_fresh { &**image } else { &**out }, fields.cells);
        let (factor, tau) = (T::of(tau / weight), T::of(tau));
        let mut job = Descend { rank, field, p, apart, tau, factor, is_fresh, seen: None, spare };
        let Some((own, energies)) = energies else { return kernel::compute(&mut job, &self.rows) };
        job.seen = Some(seen);
        self.one_by_one(own, |row, found| {
            kernel::compute(&mut job, row);
            if let (Some((from, to, start)), Some(seen)) = (found, &job.seen) {
                vectored(Weigh(&seen[from..to], weight, &mut energies[start..start + (to - from)]));
            }
        });
    }

    /// Visits the listed rows each by itself, with its part of the box `own`: from, to (in the row), and where that begins
    /// in the box's own cells.
    fn one_by_one(&mut self, own: &Region, mut visit: impl FnMut(&Rows, Option<(usize, usize, usize)>)) {
        let Self { region, place, rows } = self;
        let rank = region.rank();
        let mut single = Rows { len: rows.len, at_edge: rows.at_edge, ..Rows::default() };
        let mut listed = rows.first.iter().zip(rows.near.chunks_exact(rank));
        each_row(region, place, |place| {
            let Some((first, near)) = listed.next() else { return };
            single.first.splice(.., [*first]);
            single.near.splice(.., near.iter().copied());
            visit(&single, part_of(own, place, rows.len));
        });
    }
}

/// The part of a row that lies in a box: from, to (in the row), and where it begins in the box's own cells.
fn part_of(own: &Region, place: &[i64], len: usize) -> Option<(usize, usize, usize)> {
    let last = own.rank() - 1;
    if (0..last).any(|a| place[a] < own.start[a] || place[a] >= own.stop[a]) {
        return None;
    }
    let from = place[last].max(own.start[last]);
    let to = (place[last] + len as i64).min(own.stop[last]);
    if from >= to {
        return None;
    }
    let strides = c_strides(&own.shape(), 1);
    let mut start: isize = (0..last).map(|a| (place[a] - own.start[a]) as isize * strides[a]).sum();
    start += (from - own.start[last]) as isize;
    Some(((from - place[last]) as usize, (to - place[last]) as usize, start as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::testing::Random;

    /// An image in memory and the cells of the result.
    struct Whole<'a> {
        shape: Vec<i64>,
        image: &'a [f32],
        found: Vec<f32>,
    }

    impl Whole<'_> {
        fn each_cell(&self, part: &Region, mut visit: impl FnMut(&[i64], usize)) {
            let strides = c_strides(&self.shape.iter().map(|&n| n as usize).collect::<Vec<_>>(), 1);
            let last = part.rank() - 1;
            each_row(part, &mut Vec::new(), |place| {
                let mut place = place.to_vec();
                for x in part.start[last]..part.stop[last] {
                    place[last] = x;
                    visit(&place, place.iter().zip(&strides).map(|(p, s)| *p as usize * *s as usize).sum());
                }
            });
        }
    }

    impl Ends<f32> for Whole<'_> {
        fn load(&mut self, part: &Region, fields: &Fields, image: &mut [f32], _p: &mut [f32]) {
            self.each_cell(part, |place, at| image[fields.at(place)] = self.image[at]);
        }
        fn store(&mut self, part: &Region, fields: &Fields, out: &[f32], _p: &[f32]) {
            let mut found = std::mem::take(&mut self.found);
            self.each_cell(part, |place, at| found[at] = out[fields.at(place)]);
            self.found = found;
        }
    }

    fn denoised(shape: &[u64], image: &[f32], updates: u64, order: &Order) -> Vec<u32> {
        let lens: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let own = Region::whole(shape);
        let fields = Fields::new(&own, order);
        // What nobody has written yet must not matter.
        let field = |n: usize| vec![f32::NAN; n * fields.cells];
        let (mut values, mut out, mut p) = (field(1), field(1), field(shape.len()));
        let mut spare = vec![0.0; shape[shape.len() - 1] as usize + shape.len() + 64];
        let walk = Walk {
            order,
            fields: &fields,
            shape: &lens,
            weight: 0.3,
            memory: Memory { image: &mut values, out: &mut out, p: &mut p, spare: &mut spare },
            own: &own,
            is_result: true,
            updates,
            is_fresh: true,
            energies: None,
        };
        let mut ends = Whole { shape: lens.clone(), image, found: vec![f32::NAN; image.len()] };
        walk.run(&mut ends);
        ends.found.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn every_order_gives_the_same_bits() {
        let mut rng = Random::new(4);
        for round in 0..60 {
            let rank = 1 + round % 4;
            let shape: Vec<u64> = (0..rank).map(|_| 1 + rng.below([40, 14, 9, 5][rank - 1])).collect();
            let image: Vec<f32> = (0..shape.iter().product()).map(|_| rng.unit() as f32).collect();
            let updates = 1 + rng.below(9);
            // One iteration after the other, each over everything.
            let plain = Order { wave: None, slabs: 1, at_once: 1, strips: None };
            let want = denoised(&shape, &image, updates, &plain);
            assert!(want.iter().all(|bits| !f32::from_bits(*bits).is_nan()));
            for _ in 0..4 {
                let wave = (rank > 1).then(|| rng.below(rank as u64 - 1) as usize);
                let len = wave.map_or(1, |a| shape[a]);
                let others: Vec<usize> = (0..rank - 1).filter(|a| Some(*a) != wave).collect();
                let at_once = 1 + rng.below(updates);
                let strips = (!others.is_empty()).then(|| (others[rng.below(others.len() as u64) as usize], 1 + rng.below(6)));
                for order in [
                    Order { wave, slabs: len, at_once, strips },
                    Order { wave, slabs: len, at_once, strips: None },
                    Order { wave, slabs: (updates + 2).min(len), at_once: updates, strips: None },
                ] {
                    assert_eq!(denoised(&shape, &image, updates, &order), want, "{shape:?}, {updates} updates, {order:?}");
                }
            }
        }
    }
}
