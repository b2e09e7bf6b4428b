//! The inner loops of `sum`: one leaf added into its state.
//!
//! The order of additions depends on coordinates within the leaf only, never on strides or on which cells are kept beside.

use bytemuck::{Pod, Zeroable};
use half::f16;

use crate::array::{Block, DType, Scalar};

/// Elements looked at in one go: a whole number of the eight lanes, and few enough that 64-bit partial sums of 32-bit
/// values cannot overflow.
const PIECE: usize = 4096;
const LANES: usize = 8;

/// Adds the elements of `block` into `state`, which has one cell per element of the axes not in `axes`, in C order.
/// Elements equal to `ignore` add nothing.
pub fn add(block: &Block, axes: &[usize], ignore: Option<&Scalar>, state: &mut [u8]) {
    if block.count() == 0 {
        return;
    }
    macro_rules! with {
        ($t:ty, $sum:ty) => {
            walk::<$t, $sum>(block, axes, ignore.map(|s| bytemuck::pod_read_unaligned::<$t>(s.bytes())), state)
        };
    }
    match block.dtype() {
        DType::Bool => with!(Flag, Narrow),
        DType::U8 => with!(u8, Narrow),
        DType::I8 => with!(i8, Narrow),
        DType::U16 => with!(u16, Narrow),
        DType::I16 => with!(i16, Narrow),
        DType::U32 => with!(u32, Narrow),
        DType::I32 => with!(i32, Narrow),
        DType::U64 => with!(u64, i128),
        DType::I64 => with!(i64, i128),
        DType::F16 => with!(f16, Lanes<1>),
        DType::F32 => with!(f32, Lanes<1>),
        DType::F64 => with!(f64, Lanes<1>),
        DType::C64 => with!([f32; 2], Lanes<2>),
        DType::C128 => with!([f64; 2], Lanes<2>),
    }
}

/// A bool in memory: any byte but 0 counts as one.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
struct Flag(u8);

/// An element and what it adds to a sum of type `S`.
trait Term<S>: Pod {
    fn term(self) -> S;
    /// Equal to the value to leave out (a NaN equals any NaN).
    fn is(self, other: Self) -> bool;
}

macro_rules! integer_terms {
    ($sum:ty: $($t:ty),*) => { $(
        impl Term<$sum> for $t {
            fn term(self) -> $sum { self.into() }
            fn is(self, other: Self) -> bool { self == other }
        }
    )* };
}
integer_terms!(i64: u8, i8, u16, i16, u32, i32);
integer_terms!(i128: u64, i64);

impl Term<i64> for Flag {
    fn term(self) -> i64 {
        i64::from(self.0 != 0)
    }
    fn is(self, other: Self) -> bool {
        (self.0 != 0) == (other.0 != 0)
    }
}

macro_rules! float_terms {
    ($($t:ty, $wide:expr);*) => { $(
        impl Term<[f64; 1]> for $t {
            fn term(self) -> [f64; 1] { [$wide(self)] }
            fn is(self, other: Self) -> bool { self == other || (self.is_nan() && other.is_nan()) }
        }
    )* };
}
float_terms!(f16, f16::to_f64_const; f32, f64::from; f64, |v: f64| v);

macro_rules! complex_terms {
    ($($t:ty),*) => { $(
        impl Term<[f64; 2]> for [$t; 2] {
            fn term(self) -> [f64; 2] { [self[0].into(), self[1].into()] }
            fn is(self, other: Self) -> bool {
                self == other || (self[0].is_nan() && other[0].is_nan())
            }
        }
    )* };
}
complex_terms!(f32, f64);

/// How a run of terms becomes one number in the state.
trait Row {
    type Term: Copy;
    const ZERO: Self::Term;
    /// Bytes in the state.
    const STATE: usize;
    fn empty() -> Self;
    /// Adds terms that start a whole number of lanes after the row's start.
    fn take(&mut self, terms: impl ExactSizeIterator<Item = Self::Term>);
    fn add_to(&self, cell: &mut [u8]);
    fn add_one(term: Self::Term, cell: &mut [u8]);
}

fn add_integer(sum: i128, cell: &mut [u8]) {
    if let Some(cell) = cell.first_chunk_mut::<16>() {
        *cell = (i128::from_ne_bytes(*cell) + sum).to_ne_bytes();
    }
}

/// Sums of up to 32-bit integers: 64 bits within a piece, 128 beyond.
struct Narrow(i128);

impl Row for Narrow {
    type Term = i64;
    const ZERO: i64 = 0;
    const STATE: usize = 16;
    fn empty() -> Self {
        Narrow(0)
    }
    fn take(&mut self, terms: impl ExactSizeIterator<Item = i64>) {
        self.0 += i128::from(terms.sum::<i64>());
    }
    fn add_to(&self, cell: &mut [u8]) {
        add_integer(self.0, cell);
    }
    fn add_one(term: i64, cell: &mut [u8]) {
        add_integer(term.into(), cell);
    }
}

impl Row for i128 {
    type Term = i128;
    const ZERO: i128 = 0;
    const STATE: usize = 16;
    fn empty() -> Self {
        0
    }
    fn take(&mut self, terms: impl ExactSizeIterator<Item = i128>) {
        *self += terms.sum::<i128>();
    }
    fn add_to(&self, cell: &mut [u8]) {
        add_integer(*self, cell);
    }
    fn add_one(term: i128, cell: &mut [u8]) {
        add_integer(term, cell);
    }
}

/// Eight partial sums of numbers of `P` parts: independent additions that vector units can do side by side, in an order
/// that is the same without them.
struct Lanes<const P: usize>([[f64; P]; LANES]);

impl<const P: usize> Row for Lanes<P> {
    type Term = [f64; P];
    const ZERO: [f64; P] = [0.0; P];
    const STATE: usize = 8 * P;
    fn empty() -> Self {
        Lanes([[0.0; P]; LANES])
    }
    fn take(&mut self, mut terms: impl ExactSizeIterator<Item = [f64; P]>) {
        while terms.len() >= LANES {
            for (lane, term) in self.0.iter_mut().zip(terms.by_ref().take(LANES)) {
                for part in 0..P {
                    lane[part] += term[part];
                }
            }
        }
        for (lane, term) in self.0.iter_mut().zip(terms) {
            for part in 0..P {
                lane[part] += term[part];
            }
        }
    }
    fn add_to(&self, cell: &mut [u8]) {
        let lane = |i: usize, part: usize| self.0[i][part];
        let half = |i: usize, part: usize| (lane(i, part) + lane(i + 4, part)) + (lane(i + 2, part) + lane(i + 6, part));
        Self::add_one(std::array::from_fn(|part| half(0, part) + half(1, part)), cell);
    }
    fn add_one(term: [f64; P], cell: &mut [u8]) {
        for (bytes, part) in cell.as_chunks_mut::<8>().0.iter_mut().zip(term) {
            *bytes = (f64::from_ne_bytes(*bytes) + part).to_ne_bytes();
        }
    }
}

/// Visits the rows (runs along the last axis) in C order. Rows of a kept last axis are added to as many cells; rows of a
/// reduced one become a number first.
fn walk<T: Term<R::Term>, R: Row>(block: &Block, axes: &[usize], ignore: Option<T>, state: &mut [u8]) {
    let (data, start) = block.raw();
    let size = size_of::<T>();
    let rank = block.shape().len();
    // A block of rank 0 is a row of one element.
    let lead = rank.saturating_sub(1);
    let len = block.shape().get(lead).copied().unwrap_or(1);
    let step = block.strides().get(lead).copied().unwrap_or(size as isize);
    let is_kept = rank > 0 && !axes.contains(&lead);
    let shape = &block.shape()[..lead];
    let strides = &block.strides()[..lead];
    // Cells of the state from one index to the next, per leading axis; 0 where it is reduced.
    let mut cells = vec![0usize; lead];
    let mut step_cells = if is_kept { len } else { 1 };
    for axis in (0..lead).rev().filter(|a| !axes.contains(a)) {
        cells[axis] = step_cells;
        step_cells *= shape[axis];
    }
    let term = |value: T| match ignore {
        Some(ignored) if value.is(ignored) => R::ZERO,
        _ => value.term(),
    };
    let mut gathered: Vec<T> = Vec::new();
    let mut index = vec![0usize; lead];
    let (mut at, mut cell) = (start, 0usize);
    loop {
        let mut row = R::empty();
        for first in (0..len).step_by(PIECE) {
            let count = PIECE.min(len - first);
            let from = at + first as isize * step;
            let piece: &[T] = if step == size as isize || count == 1 {
                let from = from as usize;
                bytemuck::cast_slice(&data[from..from + count * size])
            } else {
                gathered.clear();
                gathered.extend((0..count as isize).map(|i| {
                    let from = (from + i * step) as usize;
                    bytemuck::pod_read_unaligned::<T>(&data[from..from + size])
                }));
                &gathered
            };
            if is_kept {
                let row = &mut state[(cell + first) * R::STATE..(cell + first + count) * R::STATE];
                for (value, cell) in piece.iter().zip(row.chunks_exact_mut(R::STATE)) {
                    R::add_one(term(*value), cell);
                }
            } else {
                row.take(piece.iter().map(|value| term(*value)));
            }
        }
        if !is_kept {
            row.add_to(&mut state[cell * R::STATE..(cell + 1) * R::STATE]);
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
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis] as isize;
            cell -= cells[axis] * shape[axis];
            index[axis] = 0;
        }
    }
}
