//! Passes without tiles, for filters that compute in the array's own dtype: rows of cells go into the arithmetic where they lie.
//!
//! A tile gathers the lines that are filtered together and brings the elements into the type that the filter computes in. Where
//! they are of that type, and lines lie side by side, a list of where their cells lie does: for the cells beyond the array's ends
//! it names the rows that the boundary rules put there. The source may come in several parts, which a line runs through.

use bytemuck::Pod;

use super::lines::{Filter, Layout};
use crate::array::boundary::{Run, RunFrom};

/// Lines that are filtered together: the rows of a window of them stay in the core's cache.
const WIDE: usize = 256;
/// What is left of a row is filtered with the lines before it where it has no more than this.
const REST: usize = 64;

/// A part of the source: of each line, the cells from `first` on.
pub struct Stretch<'a, W> {
    pub cells: &'a [W],
    /// From its first cell in the first line on.
    pub layout: Layout,
    pub first: usize,
    pub len: usize,
}

/// One pass, as in [`super::lines::Pass`]; the axis is not the innermost one.
pub struct Direct<'a, W> {
    pub axis: usize,
    pub shape: &'a [usize],
    pub runs: &'a [Run],
    pub constants: [W; 2],
    /// By places along the axis, the first one at 0, and without gaps.
    pub stretches: &'a [Stretch<'a, W>],
    pub target: &'a Layout,
}

impl<W: Pod> Direct<'_, W> {
    /// How many cells lie side by side, and axes before them that are walked.
    fn row(&self) -> (usize, usize) {
        let layouts = || self.stretches.iter().map(|s| &s.layout).chain([self.target]);
        let (mut outer, mut row) = (self.shape.len(), 1usize);
        while outer > self.axis + 1 {
            let a = outer - 1;
            if self.shape[a] != 1 && layouts().any(|l| l.strides[a] != row as isize) {
                break;
            }
            row *= self.shape[a];
            outer = a;
        }
        (row, outer)
    }

    /// Runs pass `number` of the filter.
    pub fn run(&self, out: &mut [W], number: usize, filter: &mut dyn Filter<W>) {
        if self.shape.contains(&0) {
            return;
        }
        let (row, outer) = self.row();
        let results = self.shape[self.axis];
        let step = self.target.strides[self.axis] as usize;
        let constant = |side: usize| {
            let is_asked = self.runs.iter().any(|run| matches!(run.from, RunFrom::Constant(s) if s == side));
            vec![self.constants[side]; if is_asked { row.min(WIDE + REST) } else { 0 }]
        };
        let beyond = [constant(0), constant(1)];
        let mut rows: Vec<&[W]> = Vec::with_capacity(self.runs.last().map_or(0, |r| r.dst + r.len));
        let loops: Vec<usize> = (0..outer).filter(|&a| a != self.axis).collect();
        let mut index = vec![0usize; loops.len()];
        loop {
            let at = |layout: &Layout| {
                layout.offset + loops.iter().zip(&index).map(|(&a, &i)| layout.strides[a] * i as isize).sum::<isize>()
            };
            let to = at(self.target) as usize;
            let (mut first, mut width) = (0, 0);
            while first + width < row {
                first += width;
                width = if row - first > WIDE + REST { WIDE } else { row - first };
                rows.clear();
                for run in self.runs {
                    match run.from {
                        RunFrom::Constant(side) => rows.extend(std::iter::repeat_n(&beyond[side][..width], run.len)),
                        RunFrom::Cells { src, step } => self.cells((src, step, run.len), (first, width), &at, &mut rows),
                    }
                }
                filter.rows(number, &rows, &mut out[to + first..][..(results - 1) * step + width], step);
            }
            let mut l = loops.len();
            loop {
                if l == 0 {
                    return;
                }
                l -= 1;
                index[l] += 1;
                if index[l] < self.shape[loops[l]] {
                    break;
                }
                index[l] = 0;
            }
        }
    }

    /// The cells `src`, `src + step`, ... (`step` is 1, 0 or -1) of the lines that begin `first` cells into the row.
    fn cells<'b>(
        &'b self,
        (src, step, count): (i64, i64, usize),
        (first, width): (usize, usize),
        at: &dyn Fn(&Layout) -> isize,
        rows: &mut Vec<&'b [W]>,
    ) {
        let mut done = 0;
        while done < count {
            let place = (src + done as i64 * step) as usize;
            let n = self.stretches.iter().position(|s| place < s.first + s.len).unwrap_or(self.stretches.len() - 1);
            let s = &self.stretches[n];
            // As far as this part goes.
            let left = match step {
                0 => usize::MAX,
                1.. => s.first + s.len - place,
                _ => place - s.first + 1,
            };
            let here = left.min(count - done);
            let (origin, stride) = (at(&s.layout) + first as isize, s.layout.strides[self.axis]);
            for i in 0..here {
                let inside = (place - s.first) as isize + i as isize * step as isize;
                rows.push(&s.cells[(origin + inside * stride) as usize..][..width]);
            }
            done += here;
        }
    }
}
