//! Coordinates beside an output's arrays ([`Carried`]), written while the output is laid out: objects first, then metadata.
//!
//! One chunk of a coordinate is held at a time, decoded, and one that is made of it. What is copied goes through a small buffer.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::store::WriteStore;
use super::zarr;
use super::{OutputLayout, Sink, SinkError};
use crate::array::block::c_strides;
use crate::array::grid::for_each_cell;
use crate::plan::carried::{Carried, Cells, Content, Cut};
use crate::reader::stage::read_whole;
use crate::reader::{Source, SourceError};
use crate::zarr::ReadStore;
use crate::zarr::coordinates::Coordinate;
use crate::zarr::read::Part;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// Of what is not decoded nobody knows how long it may be.
const MOST_OBJECT_BYTES: u64 = 256 << 20;

/// Why a coordinate was not carried: its source or the output failed.
#[derive(Debug, thiserror::Error)]
pub enum CoordinateError {
    #[error("coordinate {name}: {error}")]
    Source { name: String, error: SourceError },
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// Writes a coordinate. `trusts_names`: what lies under its name was stored whole, and is not stored again.
pub fn put(carried: &Carried, store: WriteStore, sync: bool, trusts_names: bool) -> Result<(), CoordinateError> {
    let name = || carried.name.clone();
    match &carried.content {
        Content::Stored { root, coordinate, numbers } => {
            let reading = |error| CoordinateError::Source { name: name(), error };
            if let Some(numbers) = numbers {
                check(numbers).map_err(reading)?;
            }
            let place = |error| reading(SourceError::Io { place: root.display().to_string(), error });
            let from = ReadStore::open(root).map_err(place)?;
            copy(&from, coordinate, carried, &store, trusts_names)?;
            Ok(zarr::put_node(&store, &carried.path, &coordinate.node, sync)?)
        }
        Content::Cut { cells: Cells::Numbers(sources), cuts, layout } => {
            let sink = zarr::create_in(store, &carried.path, (**layout).clone(), sync)?;
            let shapes: Vec<&[u64]> = sources.iter().map(|source| &source.meta().chunk_shape[..]).collect();
            let read = |source: usize, chunk: &[u64]| {
                let block = read_whole(&sources[source], chunk)?;
                Ok(block.raw().0.to_vec())
            };
            for_each_cell(&layout.object_grid().all(), |object| {
                if trusts_names && sink.is_stored(object) {
                    return Ok(());
                }
                let values = gather(&shapes, cuts, layout, object, (layout.dtype.size(), 0), &read);
                let values = values.map_err(|error| CoordinateError::Source { name: name(), error })?;
                sink.put(object, &values)?;
                Ok(())
            })
        }
        Content::Cut { cells: Cells::Strings(arrays), cuts, layout } => {
            let sink = zarr::create_strings_in(store, &carried.path, (**layout).clone(), sync)?;
            let shapes: Vec<&[u64]> = arrays.iter().map(|(_, _, strings)| &strings.chunk_shape[..]).collect();
            let read = |array: usize, chunk: &[u64]| {
                let (root, path, strings) = &arrays[array];
                let store = ReadStore::open(root);
                let store = store.map_err(|error| SourceError::Io { place: root.display().to_string(), error })?;
                let corrupt = |(key, reason): (String, String)| SourceError::Corrupt { place: store.place(&key), reason };
                strings.chunk(&store, path, chunk).map_err(corrupt)
            };
            for_each_cell(&layout.object_grid().all(), |object| {
                if trusts_names && sink.is_stored(object) {
                    return Ok(());
                }
                let values = gather(&shapes, cuts, layout, object, (1, String::new()), &read);
                let values = values.map_err(|error| CoordinateError::Source { name: name(), error })?;
                sink.put_strings(object, &values)?;
                Ok(())
            })
        }
    }
}

/// Decodes every chunk: a torn one is told, not carried on.
fn check(source: &Arc<dyn Source>) -> Result<(), SourceError> {
    for_each_cell(&source.meta().grid.all(), |chunk| read_whole(source, chunk).map(drop))
}

fn copy(
    from: &ReadStore,
    coordinate: &Coordinate,
    carried: &Carried,
    to: &WriteStore,
    trusts_names: bool,
) -> Result<(), CoordinateError> {
    for key in coordinate.frame.keys_at(&coordinate.path) {
        let failed = |error| CoordinateError::Source { name: carried.name.clone(), error };
        let corrupt = |reason: &str| failed(SourceError::Corrupt { place: from.place(&key), reason: reason.to_owned() });
        let reading = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => corrupt("the chunk is torn: it became shorter while it was read"),
            _ => failed(SourceError::Io { place: from.place(&key), error }),
        };
        let target = format!("{}{}", carried.path, &key[coordinate.path.len()..]);
        let writing = |error| SinkError::Io { place: to.place(&target), error };
        if trusts_names && to.is_stored(&target) {
            continue;
        }
        // What is not there is the fill value, as it was.
        let Some(object) = from.object(&key, Part::Whole).map_err(reading)? else { continue };
        if object.size() > MOST_OBJECT_BYTES {
            return Err(corrupt("it is larger than any chunk of a coordinate"));
        }
        let mut pending = to.begin(&target).map_err(writing)?;
        let (mut at, mut piece) = (0, vec![0; PIECE.min(object.size() as usize)]);
        while at < object.size() {
            let len = (object.size() - at).min(PIECE as u64) as usize;
            object.read_exact_at(&mut piece[..len], at).map_err(reading)?;
            pending.write_all(&piece[..len]).map_err(writing)?;
            at += len as u64;
        }
        pending.commit().map_err(writing)?;
    }
    Ok(())
}

/// Cells of one chunk of one source: where they come from in it and where they go to, along an axis.
type Places = Vec<(usize, usize)>;

/// One object of a coordinate, from the chunks that its cells lie in, which `read` gives by source and index. A cell is so many
/// elements, and one of them stands for what is not there.
fn gather<T: Clone>(
    chunk_shapes: &[&[u64]],
    cuts: &[Cut],
    layout: &OutputLayout,
    object: &[u64],
    (size, blank): (usize, T),
    read: &dyn Fn(usize, &[u64]) -> Result<Vec<T>, SourceError>,
) -> Result<Vec<T>, SourceError> {
    let strides = |shape: &[u64]| c_strides(&shape.iter().map(|&n| n as usize).collect::<Vec<_>>(), size);
    let to_strides = strides(&layout.chunks);
    let mut values = vec![blank; layout.chunks.iter().product::<u64>() as usize * size];
    for (source, chunk_shape) in chunk_shapes.iter().enumerate() {
        let from_strides = strides(chunk_shape);
        let mut kept = 0;
        // Per axis, by chunk.
        let mut axes: Vec<Vec<(u64, Places)>> = Vec::with_capacity(cuts.len());
        for (axis, cut) in cuts.iter().enumerate() {
            let (entries, stride) = match cut.is_kept {
                true => {
                    let (first, chunk) = (object[kept] * layout.chunks[kept], layout.chunks[kept]);
                    kept += 1;
                    (first..(first + chunk).min(cut.shown.len), to_strides[kept - 1] as usize)
                }
                false => (0..1, 0),
            };
            let mut found: BTreeMap<u64, Places> = BTreeMap::new();
            let (first, chunk, from) = (entries.start, chunk_shape[axis], from_strides[axis] as usize);
            for entry in entries {
                let (of, at) = cut.entry(entry);
                if of == source || cut.edges.is_none() {
                    let place = ((at % chunk) as usize * from, (entry - first) as usize * stride);
                    found.entry(at / chunk).or_default().push(place);
                }
            }
            axes.push(found.into_iter().collect());
        }
        let ranges: Vec<_> = axes.iter().map(|parts| 0..parts.len() as u64).collect();
        for_each_cell(&ranges, |parts| {
            let parts: Vec<_> = parts.iter().zip(&axes).map(|(&part, axis)| &axis[part as usize]).collect();
            let chunk: Vec<u64> = parts.iter().map(|(chunk, _)| *chunk).collect();
            let places: Vec<&Places> = parts.iter().map(|(_, places)| places).collect();
            scatter(&read(source, &chunk)?, 0, &mut values, 0, &places, size);
            Ok(())
        })?;
    }
    Ok(values)
}

/// Copies the cells of a chunk, axis by axis.
fn scatter<T: Clone>(from: &[T], at: usize, to: &mut [T], into: usize, places: &[&Places], size: usize) {
    match places {
        [] => to[into..into + size].clone_from_slice(&from[at..at + size]),
        [first, rest @ ..] => first.iter().for_each(|(f, t)| scatter(from, at + f, to, into + t, rest, size)),
    }
}
