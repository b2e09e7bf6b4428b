//! Chunk grids: a product of per-axis divisions, regular (Zarr) or given by their edges (concatenated arrays).

use std::ops::Range;
use std::sync::Arc;

use super::{Dims, Region};

/// How one axis is divided into cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisGrid {
    /// Cells of `cell` elements, the last one shorter.
    Regular { len: u64, cell: u64 },
    /// Cell `i` is `edges[i]..edges[i + 1]`; `edges[0] == 0`.
    Edges(Arc<[u64]>),
}

impl AxisGrid {
    /// `cell` 0 is taken as 1, so that an axis of length 0 has a grid too.
    pub fn regular(len: u64, cell: u64) -> Self {
        AxisGrid::Regular { len, cell: cell.max(1) }
    }

    /// One cell over the whole axis.
    pub fn whole(len: u64) -> Self {
        Self::regular(len, len)
    }

    pub fn edges(edges: Vec<u64>) -> Self {
        debug_assert!(edges.first() == Some(&0) && edges.windows(2).all(|w| w[0] <= w[1]));
        AxisGrid::Edges(edges.into())
    }

    pub fn len(&self) -> u64 {
        match self {
            AxisGrid::Regular { len, .. } => *len,
            AxisGrid::Edges(e) => e[e.len() - 1],
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn cells(&self) -> u64 {
        match self {
            AxisGrid::Regular { len, cell } => len.div_ceil(*cell),
            AxisGrid::Edges(e) => e.len() as u64 - 1,
        }
    }

    /// The elements of cell `i`, clipped to the axis.
    pub fn range(&self, i: u64) -> Range<u64> {
        match self {
            AxisGrid::Regular { len, cell } => i * cell..((i + 1) * cell).min(*len),
            AxisGrid::Edges(e) => e[i as usize]..e[i as usize + 1],
        }
    }

    /// The cell that holds element `x`, which must lie on the axis.
    pub fn cell_of(&self, x: u64) -> u64 {
        match self {
            AxisGrid::Regular { cell, .. } => x / cell,
            AxisGrid::Edges(e) => e.partition_point(|&edge| edge <= x) as u64 - 1,
        }
    }

    /// The cells that hold `start..stop` (not empty, on the axis).
    pub fn cells_of(&self, start: u64, stop: u64) -> Range<u64> {
        self.cell_of(start)..self.cell_of(stop - 1) + 1
    }

    /// The longest cell.
    pub fn longest(&self) -> u64 {
        match self {
            AxisGrid::Regular { len, cell } => (*cell).min(*len),
            AxisGrid::Edges(e) => e.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0),
        }
    }
}

/// The grid of an array: one division per axis.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Grid(pub Vec<AxisGrid>);

impl Grid {
    pub fn regular(shape: &[u64], cell: &[u64]) -> Self {
        Grid(shape.iter().zip(cell).map(|(&n, &c)| AxisGrid::regular(n, c)).collect())
    }

    pub fn shape(&self) -> Vec<u64> {
        self.0.iter().map(AxisGrid::len).collect()
    }

    /// The cells that a region touches (not empty, in the array), per axis.
    pub fn cells_of(&self, region: &Region) -> Dims<Range<u64>> {
        let cells = |(axis, grid): (usize, &AxisGrid)| grid.cells_of(region.start[axis] as u64, region.stop[axis] as u64);
        self.0.iter().enumerate().map(cells).collect()
    }

    /// All cells, per axis.
    pub fn all(&self) -> Dims<Range<u64>> {
        self.0.iter().map(|grid| 0..grid.cells()).collect()
    }

    /// The elements of a cell.
    pub fn region(&self, cell: &[u64]) -> Region {
        let range = |(grid, &i): (&AxisGrid, &u64)| grid.range(i);
        let ranges = || self.0.iter().zip(cell).map(range);
        Region::new(ranges().map(|r| r.start as i64), ranges().map(|r| r.end as i64))
    }

    /// Number of cells, `None` when it leaves 64 bits.
    pub fn cells(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |n, a| n.checked_mul(a.cells()))
    }
}

/// Walks the product of per-axis index lists, last axis fastest.
pub fn for_each_index<E>(lists: &[&[u64]], mut visit: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    if lists.iter().any(|l| l.is_empty()) {
        return Ok(());
    }
    let mut at: Dims<usize> = Dims::from_elem(0, lists.len());
    let mut index: Dims<u64> = lists.iter().map(|l| l[0]).collect();
    loop {
        visit(&index)?;
        let mut axis = lists.len();
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < lists[axis].len() {
                index[axis] = lists[axis][at[axis]];
                break;
            }
            at[axis] = 0;
            index[axis] = lists[axis][0];
        }
    }
}

/// Walks the product of per-axis ranges, last axis fastest.
pub fn for_each_cell<E>(ranges: &[Range<u64>], mut visit: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    if ranges.iter().any(Range::is_empty) {
        return Ok(());
    }
    let mut index: Dims<u64> = ranges.iter().map(|r| r.start).collect();
    loop {
        visit(&index)?;
        let Some(axis) = (0..ranges.len()).rev().find(|&a| index[a] + 1 < ranges[a].end) else { return Ok(()) };
        index[axis] += 1;
        for a in axis + 1..ranges.len() {
            index[a] = ranges[a].start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_ranges_agree() {
        for grid in [AxisGrid::regular(23, 6), AxisGrid::edges(vec![0, 3, 12, 17]), AxisGrid::regular(5, 50)] {
            let mut at = 0;
            for i in 0..grid.cells() {
                let r = grid.range(i);
                assert_eq!(r.start, at);
                assert!(r.clone().all(|x| grid.cell_of(x) == i));
                at = r.end;
            }
            assert_eq!(at, grid.len());
        }
        assert_eq!(AxisGrid::regular(0, 4).cells(), 0);
    }

    #[test]
    fn every_index_once_last_axis_fastest() {
        let mut seen = Vec::new();
        let _ = for_each_index::<()>(&[&[4, 7], &[1, 2]], |i| {
            seen.push((i[0], i[1]));
            Ok(())
        });
        assert_eq!(seen, [(4, 1), (4, 2), (7, 1), (7, 2)]);
        let mut cells = Vec::new();
        let _ = for_each_cell::<()>(&[4..6, 1..1, 0..2], |_| panic!("there is none"));
        let _ = for_each_cell::<()>(&[4..6, 1..2, 0..2], |i| {
            cells.push((i[0], i[1], i[2]));
            Ok(())
        });
        assert_eq!(cells, [(4, 1, 0), (4, 1, 1), (5, 1, 0), (5, 1, 1)]);
        let mut n = 0;
        let mut count = |_: &[u64]| {
            n += 1;
            Ok(())
        };
        let _ = for_each_index::<()>(&[], &mut count);
        let _ = for_each_cell::<()>(&[], &mut count);
        assert_eq!(n, 2);
    }
}
