//! Boxes and sets of intervals in array coordinates. Coordinates are signed: a halo may leave the array.

use std::fmt;

use smallvec::SmallVec;

/// A number per axis. Those of usual ranks lie in the value itself: the messages of a small chunk are made of them, and
/// memory that one thread takes and another gives back costs more than copying a few words.
pub type Dims<T> = SmallVec<[T; 4]>;

/// A box: `start[a] <= x < stop[a]` on every axis. May be empty, may leave the array.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Region {
    pub start: Dims<i64>,
    pub stop: Dims<i64>,
}

impl Region {
    pub fn new(start: impl IntoIterator<Item = i64>, stop: impl IntoIterator<Item = i64>) -> Self {
        let region = Self { start: start.into_iter().collect(), stop: stop.into_iter().collect() };
        debug_assert_eq!(region.start.len(), region.stop.len());
        region
    }

    /// The whole of an array with this shape.
    pub fn whole(shape: &[u64]) -> Self {
        Self::new(shape.iter().map(|_| 0), shape.iter().map(|&n| n as i64))
    }

    pub fn from_ranges(ranges: &[(i64, i64)]) -> Self {
        Self::new(ranges.iter().map(|r| r.0), ranges.iter().map(|r| r.1))
    }

    pub fn rank(&self) -> usize {
        self.start.len()
    }

    pub fn axis(&self, axis: usize) -> (i64, i64) {
        (self.start[axis], self.stop[axis])
    }

    pub fn len(&self, axis: usize) -> usize {
        (self.stop[axis] - self.start[axis]).max(0) as usize
    }

    pub fn shape(&self) -> Dims<usize> {
        (0..self.rank()).map(|a| self.len(a)).collect()
    }

    /// Elements inside. A region of rank 0 holds one.
    pub fn count(&self) -> usize {
        (0..self.rank()).map(|a| self.len(a)).product()
    }

    pub fn is_empty(&self) -> bool {
        (0..self.rank()).any(|a| self.stop[a] <= self.start[a])
    }

    pub fn contains(&self, other: &Region) -> bool {
        (0..self.rank()).all(|a| self.start[a] <= other.start[a] && other.stop[a] <= self.stop[a])
    }

    /// Two halves of the longest of these axes (the first of equals), the longer one last; `None` where all have length 1.
    pub fn halves(&self, axes: impl IntoIterator<Item = usize>) -> Option<[Region; 2]> {
        let axis = axes.into_iter().max_by_key(|&axis| (self.len(axis), std::cmp::Reverse(axis)))?;
        let middle = self.start[axis] + (self.len(axis) / 2) as i64;
        let (mut low, mut high) = (self.clone(), self.clone());
        low.stop[axis] = middle;
        high.start[axis] = middle;
        (self.len(axis) > 1).then_some([low, high])
    }

    pub fn intersect(&self, other: &Region) -> Region {
        Region::new(
            self.start.iter().zip(&other.start).map(|(a, b)| *a.max(b)),
            self.stop.iter().zip(&other.stop).map(|(a, b)| *a.min(b)),
        )
    }

    /// Grown by `depth[axis] = (before, after)`.
    pub fn grow(&self, depth: &[(u64, u64)]) -> Region {
        Region::new(
            self.start.iter().zip(depth).map(|(s, d)| s - d.0 as i64),
            self.stop.iter().zip(depth).map(|(s, d)| s + d.1 as i64),
        )
    }

    /// Every box of the product of per-axis intervals, first axis slowest.
    pub fn product(axes: &[Intervals]) -> Vec<Region> {
        let mut boxes = vec![Region::default()];
        for intervals in axes {
            boxes = boxes
                .iter()
                .flat_map(|r| {
                    intervals.iter().map(move |(start, stop)| {
                        let mut r = r.clone();
                        r.start.push(start);
                        r.stop.push(stop);
                        r
                    })
                })
                .collect();
        }
        boxes
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for a in 0..self.rank() {
            let sep = if a == 0 { "" } else { ", " };
            write!(f, "{sep}{}:{}", self.start[a], self.stop[a])?;
        }
        write!(f, "]")
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Disjoint, sorted, non-empty, non-touching half-open intervals: what is needed of one axis.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Intervals(Vec<(i64, i64)>);

impl Intervals {
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    pub fn one(start: i64, stop: i64) -> Self {
        Self(if start < stop { vec![(start, stop)] } else { Vec::new() })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    /// The number of disjoint parts.
    pub fn parts(&self) -> usize {
        self.0.len()
    }

    /// Cells covered.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(a, b)| (b - a) as u64).sum()
    }

    /// Smallest single interval around all of them.
    pub fn hull(&self) -> Option<(i64, i64)> {
        Some((self.0.first()?.0, self.0.last()?.1))
    }

    /// Adds an interval and restores order; touching intervals merge.
    pub fn add(&mut self, start: i64, stop: i64) {
        if start >= stop {
            return;
        }
        let first = self.0.partition_point(|r| r.1 < start);
        let last = self.0.partition_point(|r| r.0 <= stop);
        let (mut start, mut stop) = (start, stop);
        if first < last {
            start = start.min(self.0[first].0);
            stop = stop.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(start, stop)]);
    }

    pub fn union(&mut self, other: &Intervals) {
        for (start, stop) in other.iter() {
            self.add(start, stop);
        }
    }

    pub fn clip(&self, start: i64, stop: i64) -> Intervals {
        Intervals(self.0.iter().map(|r| (r.0.max(start), r.1.min(stop))).filter(|r| r.0 < r.1).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_merge_and_stay_sorted() {
        let mut set = Intervals::empty();
        for (a, b) in [(10, 12), (0, 3), (3, 5), (20, 20), (11, 15)] {
            set.add(a, b);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [(0, 5), (10, 15)]);
        assert_eq!((set.parts(), set.total(), set.hull()), (2, 10, Some((0, 15))));
        set.add(4, 11);
        assert_eq!(set, Intervals::one(0, 15));
        assert_eq!(set.clip(3, 7), Intervals::one(3, 7));
    }

    #[test]
    fn product_of_intervals_is_every_box() {
        let mut x = Intervals::one(0, 2);
        x.add(5, 6);
        let boxes = Region::product(&[x, Intervals::one(1, 4)]);
        assert_eq!(boxes.iter().map(|b| b.to_string()).collect::<Vec<_>>(), ["[0:2, 1:4]", "[5:6, 1:4]"]);
        assert_eq!(Region::product(&[]).len(), 1);
        assert!(Region::product(&[Intervals::empty()]).is_empty());
    }
}
