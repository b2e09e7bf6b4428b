//! Where the cells of an iteration lie, and in which order it goes through them.
//!
//! Iterations run one behind the other along one axis, the *wave*: iteration `k` is `k` slabs behind the first, so that a
//! slab is used by all of them while it is in the cache, and only the slabs between the first and the last iteration need
//! to be stored, in a ring. Every cell is computed once per iteration, whatever the order.
//!
//! Where such a ring would be large (slabs of large blocks), fields are stored whole and a few iterations at a time go through
//! them, in *strips* along a second axis, which lean back by one cell per iteration as the wave does.

use super::kernel::LANES;
use crate::array::Region;

/// A ring of up to this many bytes is taken. It is beyond the second-level cache, and still costs less than going through
/// memory several times.
const RING_BYTES: u64 = 24 << 20;
/// What the iterations of a strip touch should stay in the second-level cache.
const STRIP_BYTES: u64 = 1 << 20;

/// How a box is gone through.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The axis of the wave; none where rows are all there is.
    pub wave: Option<usize>,
    /// Slabs that are stored.
    pub slabs: u64,
    /// Iterations that follow each other in one wave.
    pub at_once: u64,
    /// The axis of the strips, and their width.
    pub strips: Option<(usize, u64)>,
}

/// Cells from one row to the next: room for stripes that reach beyond a row, and for the neighbour before the next.
fn row_len(len: u64) -> u64 {
    len.saturating_add(LANES as u64).next_multiple_of(LANES as u64)
}

/// Cells of a slab of a box, `wave` left out.
fn slab_cells(shape: &[u64], wave: Option<usize>) -> u64 {
    let last = shape.len() - 1;
    (0..shape.len())
        .filter(|a| Some(*a) != wave)
        .fold(1, |n, a| n.saturating_mul(if a == last { row_len(shape[a]) } else { shape[a] }))
}

impl Order {
    /// For a box of this shape, `updates` iterations, and so many bytes of all fields a cell.
    pub fn of(shape: &[u64], updates: u64, bytes: u64) -> Self {
        let last = shape.len() - 1;
        let mut axes: Vec<usize> = (0..last).collect();
        axes.sort_by_key(|&a| (std::cmp::Reverse(shape[a]), a));
        let wave = axes.first().copied();
        let slab = slab_cells(shape, wave).saturating_mul(bytes);
        let len = wave.map_or(1, |a| shape[a]);
        // The last iteration's slab and the one before it, and one for each iteration before.
        let ring = updates.saturating_add(2);
        if ring.saturating_mul(slab) <= RING_BYTES || wave.is_none() {
            return Self { wave, slabs: ring.min(len), at_once: updates, strips: None };
        }
        let Some(&across) = axes.get(1) else {
            let at_once = (STRIP_BYTES / slab).saturating_sub(2).clamp(1, updates.max(1));
            return Self { wave, slabs: len, at_once, strips: None };
        };
        // A strip as wide as it leans touches (n + 2) slabs of 2 n lines.
        let line = (slab / shape[across].max(1)).max(1);
        let at_once = (STRIP_BYTES / (2 * line)).isqrt().clamp(1, updates.max(1));
        Self { wave, slabs: len, at_once, strips: Some((across, at_once.max(4))) }
    }

    /// Cells of one field.
    pub fn cells(&self, shape: &[u64]) -> u64 {
        slab_cells(shape, self.wave).saturating_mul(self.slabs).saturating_add(LANES as u64)
    }
}

/// Fields over a box, stored as an [`Order`] says.
pub struct Fields {
    pub bounds: Region,
    wave: Option<usize>,
    slabs: i64,
    /// Cells from one to the next, per axis; from slab to slab along the wave.
    pub strides: Vec<usize>,
    /// Cells of one field.
    pub cells: usize,
}

impl Fields {
    pub fn new(bounds: &Region, order: &Order) -> Self {
        let shape: Vec<u64> = bounds.shape().iter().map(|&n| n as u64).collect();
        let last = shape.len() - 1;
        let mut strides = vec![1; shape.len()];
        let mut step = row_len(shape[last]) as usize;
        for a in (0..last).rev().filter(|a| Some(*a) != order.wave) {
            strides[a] = step;
            step *= shape[a] as usize;
        }
        if let Some(wave) = order.wave {
            strides[wave] = step;
        }
        Self { bounds: bounds.clone(), wave: order.wave, slabs: order.slabs as i64, strides, cells: order.cells(&shape) as usize }
    }

    /// Where a cell lies.
    pub fn at(&self, place: &[i64]) -> usize {
        let along = |a: usize| {
            let at = place[a] - self.bounds.start[a];
            (if Some(a) == self.wave { at % self.slabs } else { at }) as usize * self.strides[a]
        };
        LANES + (0..place.len()).map(along).sum::<usize>()
    }

    /// The neighbour of the cell at `place`, which lies at `at`, one cell before or after along an axis.
    pub fn beside(&self, at: usize, place: &[i64], axis: usize, is_after: bool) -> usize {
        let stride = self.strides[axis];
        if Some(axis) == self.wave {
            let slab = (place[axis] - self.bounds.start[axis]) % self.slabs;
            let turn = (self.slabs - 1) as usize * stride;
            return match is_after {
                true if slab + 1 == self.slabs => at - turn,
                false if slab == 0 => at + turn,
                true => at + stride,
                false => at - stride,
            };
        }
        // Before the box's first row there may be nothing, and then nobody looks there.
        if is_after { at + stride } else { at.wrapping_sub(stride) }
    }
}

/// Visits the rows of a box: the place of the first cell of each.
pub fn each_row(region: &Region, place: &mut Vec<i64>, mut visit: impl FnMut(&[i64])) {
    if region.is_empty() {
        return;
    }
    let last = region.rank() - 1;
    place.clear();
    place.extend(&region.start);
    loop {
        visit(place);
        let Some(axis) = (0..last).rev().find(|&a| place[a] + 1 < region.stop[a]) else { return };
        place[axis] += 1;
        place[axis + 1..last].copy_from_slice(&region.start[axis + 1..last]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_slabs_are_a_ring_and_large_ones_strips_of_a_few_iterations() {
        // 10 x 314 x 314 floats: the slabs of axis 1 are small, 19 iterations need 21 of them.
        let order = Order::of(&[10, 314, 314], 19, 20);
        assert_eq!(order, Order { wave: Some(1), slabs: 21, at_once: 19, strips: None });
        assert_eq!(order.cells(&[10, 314, 314]), 21 * 10 * 336 + 16);
        // No more slabs than there are.
        assert_eq!(Order::of(&[5, 7], 19, 16).slabs, 5);
        assert_eq!(Order::of(&[100], 19, 12), Order { wave: None, slabs: 1, at_once: 19, strips: None });
        let order = Order::of(&[600, 600, 600], 199, 20);
        assert_eq!((order.wave, order.slabs, order.strips.is_some()), (Some(0), 600, true));
        assert!(order.at_once > 1 && order.at_once < 199, "{order:?}");
        // Two axes have lines only.
        let order = Order::of(&[40_000, 30_000], 199, 16);
        assert_eq!((order.slabs, order.strips), (40_000, None));
        assert!((1..199).contains(&order.at_once), "{order:?}");
    }

    #[test]
    fn a_smaller_box_needs_no_more_room() {
        for updates in [0, 3, 19, 400] {
            for len in [4, 90, 300, 301] {
                let cells = |shape: &[u64]| Order::of(shape, updates, 20).cells(shape);
                let most = cells(&[len, 300, 300]);
                assert!(cells(&[len, 281, 300]) <= most && cells(&[len - 1, 300, 281]) <= most, "{updates} {len}");
            }
        }
    }

    #[test]
    fn neighbours_are_found_around_the_ring() {
        let bounds = Region::from_ranges(&[(2, 12), (5, 9), (0, 7)]);
        let order = Order { wave: Some(0), slabs: 3, at_once: 1, strips: None };
        let fields = Fields::new(&bounds, &order);
        for slab in 3..11 {
            let place = [slab, 6, 2];
            for (axis, is_after) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
                let mut other = place;
                other[axis] += if is_after { 1 } else { -1 };
                assert_eq!(fields.beside(fields.at(&place), &place, axis, is_after), fields.at(&other));
            }
        }
    }
}
