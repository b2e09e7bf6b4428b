//! A step that goes through its input strip by strip, in a block whose chunks are all here: it takes what it needs from where the
//! chunks lie, so no padded input is put together.

use crate::array::block::{c_strides, copy_strided};
use crate::array::chunk::Piece;
use crate::array::{Block, Region};
use crate::operators::{Binding, Computed, MapOperator, OperatorError, Stretch, Workspace};

/// The step's result for its core `own`, from parts of its input; `None` where it is not for strips.
pub fn sweep(
    map: &dyn MapOperator,
    own: &Region,
    binding: &Binding,
    pieces: &[Piece],
    work: &mut Workspace<'_>,
) -> Result<Option<Computed>, OperatorError> {
    let (Some(sweep), [output]) = (map.sweep(), &binding.outputs[..]) else { return Ok(None) };
    let dtype = output.dtype;
    let size = dtype.size();
    let mut out = work.buffer(own.count() * size)?;
    let strides = c_strides(&own.shape(), size);
    let mut strips = sweep.begin(own, false, work)?;
    let columns = columns(pieces, sweep.joined());
    while let Some(wanted) = strips.next() {
        for column in &columns {
            let needed = column.iter().filter(|piece| !piece.region.intersect(&wanted).is_empty());
            let parts: Vec<Stretch<'_>> = needed.map(|piece| Stretch::of(piece.region.clone(), &piece.block)).collect();
            if !parts.is_empty() {
                strips.take(&parts);
            }
        }
        while let Some((region, values)) = strips.slab() {
            let (shape, from) = (region.shape(), c_strides(&region.shape(), size));
            let to = (0..own.rank()).map(|a| (region.start[a] - own.start[a]) as isize * strides[a]).sum();
            copy_strided(&mut out, to, &strides, values, 0, &from, &shape, size);
        }
    }
    let (region, shape) = (own.clone(), own.shape());
    Ok(Some(Computed { region, block: Block::new(out, dtype, shape) }))
}

/// Pieces that lie behind each other along the joined axis, in their order.
fn columns(pieces: &[Piece], joined: Option<usize>) -> Vec<Vec<&Piece>> {
    let is_beside = |a: &Region, b: &Region| {
        (0..a.rank()).filter(|axis| Some(*axis) != joined).any(|x| a.stop[x] <= b.start[x] || b.stop[x] <= a.start[x])
    };
    let mut columns: Vec<Vec<&Piece>> = Vec::new();
    for piece in pieces {
        match columns.iter_mut().find(|column| joined.is_some() && !is_beside(&column[0].region, &piece.region)) {
            Some(column) => column.push(piece),
            None => columns.push(vec![piece]),
        }
    }
    if let Some(axis) = joined {
        columns.iter_mut().for_each(|column| column.sort_by_key(|piece| piece.region.start[axis]));
    }
    columns
}
