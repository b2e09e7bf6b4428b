//! A padded block from the pieces that hold its cells, boundary cells filled by index maps. Each byte is copied once.

use crate::array::block::{c_strides, copy_strided, fill_strided};
use crate::array::boundary::{Run, RunFrom, runs};
use crate::array::chunk::Piece;
use crate::array::{Block, Boundary, DType, Dims, Region, Rule, Scalar};

/// The array that a block is cut from.
pub struct Field<'a> {
    pub shape: &'a [u64],
    pub dtype: DType,
    pub boundary: &'a Boundary,
    /// The boundary's constants in the array's dtype.
    pub constants: &'a [[Option<Scalar>; 2]],
}

/// The part of `pieces` that is `region`, without a copy, when one piece holds it all.
pub fn view(region: &Region, pieces: &[Piece]) -> Option<Block> {
    pieces.iter().find(|p| p.region.contains(region)).map(|p| p.block.cut(&p.region, region))
}

/// Fills `out` (C order, the shape of `region`) with the cells of `region`, which may leave the array.
/// The pieces hold every cell of the array that it needs.
pub fn assemble(out: &mut [u8], region: &Region, field: &Field<'_>, pieces: &[Piece]) {
    let assembly = Assembly::new(region, field);
    assembly.fill_constants(out, field);
    for piece in pieces {
        assembly.copy(out, piece);
    }
}

/// A block being filled piece by piece, so that pieces which have to be unpacked need not be there all at once.
pub struct Assembly {
    shape: Dims<usize>,
    strides: Dims<isize>,
    size: usize,
    per_axis: Vec<Vec<Run>>,
}

impl Assembly {
    pub fn new(region: &Region, field: &Field<'_>) -> Self {
        let shape = region.shape();
        let rule = |a: usize| field.boundary.get(a).unwrap_or(&[Rule::None; 2]);
        let per_axis =
            (0..region.rank()).map(|a| runs(region.start[a], region.stop[a], field.shape[a] as i64, rule(a))).collect();
        let size = field.dtype.size();
        Self { strides: c_strides(&shape, size), shape, size, per_axis }
    }

    /// A constant beats the other rules, and of several constants the one on the highest-numbered axis: slabs in axis order.
    pub fn fill_constants(&self, out: &mut [u8], field: &Field<'_>) {
        for (axis, runs) in self.per_axis.iter().enumerate() {
            for run in runs {
                if let RunFrom::Constant(side) = run.from
                    && let Some(value) = &field.constants[axis][side]
                {
                    let mut slab = self.shape.clone();
                    slab[axis] = run.len;
                    fill_strided(out, run.dst as isize * self.strides[axis], &self.strides, &slab, value.bytes());
                }
            }
        }
    }

    /// True when some cell of the block comes from a piece with this region.
    pub fn reads(&self, piece: &Region) -> bool {
        self.per_axis.iter().enumerate().all(|(axis, runs)| {
            let (low, high) = piece.axis(axis);
            runs.iter().any(|run| stretch(run, low, high).is_some())
        })
    }

    pub fn copy(&self, out: &mut [u8], piece: &Piece) {
        copy_piece(out, &self.strides, self.size, piece, &self.per_axis);
    }
}

/// One stretch along an axis: cells of the piece that go to cells of the block.
#[derive(Clone, Copy)]
struct Stretch {
    dst: usize,
    /// Relative to the piece.
    src: i64,
    step: i64,
    len: usize,
}

fn copy_piece(out: &mut [u8], strides: &[isize], size: usize, piece: &Piece, per_axis: &[Vec<Run>]) {
    let rank = strides.len();
    let mut stretches: Vec<Vec<Stretch>> = Vec::with_capacity(rank);
    for (axis, runs) in per_axis.iter().enumerate() {
        let (low, high) = piece.region.axis(axis);
        let inside: Vec<Stretch> = runs.iter().filter_map(|run| stretch(run, low, high)).collect();
        if inside.is_empty() {
            return;
        }
        stretches.push(inside);
    }
    let (src, src_offset) = piece.block.raw();
    let mut at = vec![0usize; rank];
    let (mut shape, mut steps) = (vec![0usize; rank], vec![0isize; rank]);
    loop {
        let (mut to, mut from) = (0isize, src_offset);
        for axis in 0..rank {
            let s = stretches[axis][at[axis]];
            to += s.dst as isize * strides[axis];
            from += s.src as isize * piece.block.strides()[axis];
            shape[axis] = s.len;
            steps[axis] = s.step as isize * piece.block.strides()[axis];
        }
        copy_strided(out, to, strides, src, from, &steps, &shape, size);
        let mut axis = rank;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < stretches[axis].len() {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// The part of a run whose cells lie in `low..high`.
fn stretch(run: &Run, low: i64, high: i64) -> Option<Stretch> {
    let RunFrom::Cells { src, step } = run.from else { return None };
    // k from first to last (exclusive) with low <= src + k * step < high
    let (first, last) = match step {
        0 => (0, if (low..high).contains(&src) { run.len as i64 } else { 0 }),
        1.. => ((low - src + step - 1).div_euclid(step), (high - src + step - 1).div_euclid(step)),
        _ => ((src - high).div_euclid(-step) + 1, (src - low).div_euclid(-step) + 1),
    };
    let (first, last) = (first.max(0), last.min(run.len as i64));
    (first < last).then(|| Stretch {
        dst: run.dst + first as usize,
        src: src + first * step - low,
        step,
        len: (last - first) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::boundary::{Origin, constants, origin};

    /// The value at a padded coordinate by the rules, one cell at a time.
    fn naive(x: &[i64], shape: &[u64], boundary: &Boundary) -> f32 {
        let mut cell = 0i64;
        let mut constant = None;
        for a in 0..shape.len() {
            match origin(x[a], shape[a] as i64, &boundary[a]) {
                Origin::Cell(c) => cell = cell * shape[a] as i64 + c,
                Origin::Constant(side) => {
                    let Rule::Constant(v) = boundary[a][side] else { panic!("a constant") };
                    constant = Some(v as f32);
                }
                Origin::Absent => panic!("clipped before"),
            }
        }
        constant.unwrap_or(cell as f32)
    }

    #[test]
    fn any_pieces_any_rules_give_the_cells_of_the_definition() {
        let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(-5.0), Rule::Constant(-9.0)];
        let shape = [5u64, 7];
        let values: Vec<f32> = (0..35).map(|v| v as f32).collect();
        let whole = Block::from_values(&[5, 7], &values);
        let mut n = 0u32;
        for row in rules {
            for column in rules {
                n += 1;
                let boundary = vec![[row, column], [column, row]];
                let region = Region::from_ranges(&[(-4 - (n as i64 % 5), 8), (-9, 9 + n as i64 % 4)]);
                // Pieces of an uneven grid, in an order that is not theirs.
                let mut pieces = Vec::new();
                for (a, b) in [(3, 5), (0, 1), (1, 3)] {
                    for (c, d) in [(4, 7), (0, 4)] {
                        let part = Region::from_ranges(&[(a, b), (c, d)]);
                        pieces.push(Piece { block: whole.cut(&Region::whole(&shape), &part), region: part });
                    }
                }
                let constants = constants(&boundary, DType::F32).unwrap();
                let field = Field { shape: &shape, dtype: DType::F32, boundary: &boundary, constants: &constants };
                let mut out = vec![0u8; region.count() * 4];
                assemble(&mut out, &region, &field, &pieces);
                let got: Vec<f32> = bytemuck::pod_collect_to_vec(&out);
                let mut i = 0;
                for y in region.start[0]..region.stop[0] {
                    for x in region.start[1]..region.stop[1] {
                        assert_eq!(got[i], naive(&[y, x], &shape, &boundary), "{boundary:?} at {y}, {x}");
                        i += 1;
                    }
                }
            }
        }
    }
}
