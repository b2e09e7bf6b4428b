//! The loop of all reductions: the elements of a leaf, run by run, into the states of the cells that are kept.
//!
//! The order in which a cell takes its elements depends on coordinates within the leaf only, never on strides or on which
//! cells are kept beside.

use bytemuck::Pod;

use super::element::Element;
use crate::array::Block;

/// Elements looked at in one go: few enough to stay in the nearest cache when they have to be gathered, and a whole number
/// of any reduction's lanes. Leaves of floats are shorter.
pub const PIECE: usize = 4096;

/// How elements go into states.
pub trait Take {
    type Element: Element;
    /// All bytes zero: nothing taken yet.
    type State: Pod;

    /// States per kept cell.
    fn width(&self) -> usize {
        1
    }

    /// A run of elements along the last axis, all into one cell. The first is the `at`-th of the cell's elements, in C
    /// order over the reduced axes of the whole array.
    fn run(&self, values: &[Self::Element], at: u64, cell: &mut [Self::State]);

    /// One element into each of as many cells; for each it is the `at`-th.
    fn each(&self, values: &[Self::Element], at: u64, cells: &mut [Self::State]) {
        for (value, cell) in values.iter().zip(cells.chunks_exact_mut(self.width().max(1))) {
            self.run(std::slice::from_ref(value), at, cell);
        }
    }

    /// [`Take::run`] into one of all states; for those that do not lie cell by cell.
    fn run_into(&self, values: &[Self::Element], at: u64, states: &mut [Self::State], cell: usize) {
        let width = self.width();
        self.run(values, at, &mut states[cell * width..(cell + 1) * width]);
    }

    /// [`Take::each`] into all states, from this cell on.
    fn each_into(&self, values: &[Self::Element], at: u64, states: &mut [Self::State], first: usize) {
        let width = self.width();
        self.each(values, at, &mut states[first * width..(first + values.len()) * width]);
    }
}

/// Takes all elements of `block`, whose first lies at `start` of the array. `places` holds, per axis, how far apart
/// neighbours are in the order of a cell's elements (0 on kept axes). `states`: `width` per element of the axes not in
/// `axes`, C order.
pub fn walk<T: Take>(take: &T, block: &Block, start: &[i64], axes: &[usize], places: &[u64], states: &mut [T::State]) {
    if block.count() == 0 {
        return;
    }
    let (data, first) = block.raw();
    let size = size_of::<T::Element>();
    let mut shape = block.shape().to_vec();
    let mut strides = block.strides().to_vec();
    let mut is_kept: Vec<bool> = (0..shape.len()).map(|a| !axes.contains(&a)).collect();
    let mut places = places.to_vec();
    let place: u64 = start.iter().zip(&places).map(|(s, p)| *s as u64 * p).sum();
    // Kept axes at the end that follow each other in memory are one: short rows would cost a loop each.
    while shape.len() > 1 {
        let last = shape.len() - 1;
        if !(is_kept[last] && is_kept[last - 1] && strides[last - 1] == strides[last] * shape[last] as isize) {
            break;
        }
        shape[last - 1] *= shape[last];
        strides[last - 1] = strides[last];
        shape.pop();
        strides.pop();
        is_kept.pop();
        places.pop();
    }
    // A block of rank 0 is a row of one element that is kept.
    let (len, step, keeps_row) = match (shape.pop(), strides.pop(), is_kept.pop(), places.pop()) {
        (Some(len), Some(step), Some(kept), Some(_)) => (len, step, kept),
        _ => (1, size as isize, true),
    };
    let lead = shape.len();
    // Cells of the state from one index to the next, per leading axis; 0 where it is reduced.
    let mut cells = vec![0usize; lead];
    let mut step_cells = if keeps_row { len } else { 1 };
    for axis in (0..lead).rev().filter(|a| is_kept[*a]) {
        cells[axis] = step_cells;
        step_cells *= shape[axis];
    }
    let mut gathered: Vec<T::Element> = Vec::new();
    let mut index = vec![0usize; lead];
    let (mut at, mut cell, mut place) = (first, 0usize, place);
    loop {
        for from in (0..len).step_by(PIECE) {
            let count = PIECE.min(len - from);
            let begin = at + from as isize * step;
            let piece: &[T::Element] = if step == size as isize || count == 1 {
                let begin = begin as usize;
                bytemuck::cast_slice(&data[begin..begin + count * size])
            } else {
                gathered.clear();
                gathered.extend((0..count as isize).map(|i| {
                    let begin = (begin + i * step) as usize;
                    bytemuck::pod_read_unaligned::<T::Element>(&data[begin..begin + size])
                }));
                &gathered
            };
            if keeps_row {
                take.each_into(piece, place, states, cell + from);
            } else {
                take.run_into(piece, place + from as u64, states, cell);
            }
        }
        let mut axis = lead;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            at += strides[axis];
            cell += cells[axis];
            place += places[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis] as isize;
            cell -= cells[axis] * shape[axis];
            place -= places[axis] * shape[axis] as u64;
            index[axis] = 0;
        }
    }
}
