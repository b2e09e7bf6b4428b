//! Where results go: shape, chunks, shards and codec of every output array.

use super::graph::{Graph, Target};
use crate::config::{CodecName, CodecSpec, OutputSpec};
use crate::operators::OutAxis;
use crate::remote::is_url;
use crate::writer::npy::{self, is_npy};
use crate::writer::points::default_chunk;
use crate::writer::{OutputLayout, PointLayout};

/// Default chunks are halved until they hold at most this many bytes.
const DEFAULT_CHUNK_BYTES: u64 = 16 << 20;

/// The layout of a target. `shape` is the array's shape, known or following from the block grid.
pub fn layout(
    graph: &Graph,
    target: &Target,
    spec: &OutputSpec,
    shape: &[u64],
    chunk: &[u64],
    default_format: u8,
) -> Result<OutputLayout, String> {
    let meta = &graph.arrays[target.array].meta;
    let rank = shape.len();
    let of_rank = |key: &str, list: &Vec<u64>| -> Result<Vec<u64>, String> {
        if list.len() != rank {
            return Err(format!("{key} has {} entries, the array has {rank} axes", list.len()));
        }
        if list.contains(&0) {
            return Err(format!("{key} {list:?}: lengths start at 1"));
        }
        Ok(list.clone())
    };
    if is_npy(&spec.path) {
        return npy(graph, target, shape, chunk);
    }
    if spec.is_points {
        return points(graph, target, spec, shape, chunk, default_format);
    }
    let chunks = match (&spec.chunks, &spec.shards) {
        (Some(list), _) => of_rank("chunks", list)?,
        (None, _) => default_chunks(graph, target, shape, chunk),
    };
    let shards = spec.shards.as_ref().map(|list| of_rank("shards", list)).transpose()?;
    if let Some(shards) = &shards {
        for axis in 0..rank {
            if !shards[axis].is_multiple_of(chunks[axis]) {
                return Err(format!("shards {shards:?} are no multiple of chunks {chunks:?} on axis {axis}"));
            }
        }
    }
    let zarr_format = spec.zarr_format.unwrap_or(if shards.is_some() { 3 } else { default_format });
    if shards.is_some() && zarr_format == 2 {
        return Err("zarr_format = 2 has no shards: drop `shards` or write format 3".to_owned());
    }
    let object = shards.as_ref().unwrap_or(&chunks);
    let bytes = crate::array::element_count(object).and_then(|n| n.checked_mul(meta.dtype.size() as u64));
    if bytes.is_none_or(|b| b > crate::array::MAX_CHUNK_BYTES) {
        return Err(format!("an object of {object:?} elements is too large to hold"));
    }
    Ok(OutputLayout {
        shape: shape.to_vec(),
        dtype: meta.dtype,
        chunks,
        shards,
        codec: spec.codec.clone(),
        zarr_format,
        dimension_names: meta.dimension_names.clone(),
        attributes: meta.attributes.clone(),
        points: None,
        is_remote: is_url(&spec.path),
    })
}

/// The layout of a file without chunks: assembled from objects whose cells lie in long runs.
fn npy(graph: &Graph, target: &Target, shape: &[u64], chunk: &[u64]) -> Result<OutputLayout, String> {
    let meta = &graph.arrays[target.array].meta;
    let objects = npy::objects(shape, &default_chunks(graph, target, shape, chunk), meta.dtype.size() as u64);
    let bytes = crate::array::element_count(&objects).and_then(|n| n.checked_mul(meta.dtype.size() as u64));
    if bytes.is_none_or(|b| b > crate::array::MAX_CHUNK_BYTES) {
        return Err(format!("{objects:?} elements of {} are too large to hold at once", meta.dtype));
    }
    Ok(OutputLayout {
        shape: shape.to_vec(),
        dtype: meta.dtype,
        chunks: objects,
        shards: None,
        codec: CodecSpec { name: CodecName::None, level: None },
        zarr_format: 3,
        dimension_names: meta.dimension_names.clone(),
        attributes: Default::default(),
        points: None,
        is_remote: false,
    })
}

/// The layout of a list of points: assembled as rows of the raster.
fn points(
    graph: &Graph,
    target: &Target,
    spec: &OutputSpec,
    shape: &[u64],
    chunk: &[u64],
    default_format: u8,
) -> Result<OutputLayout, String> {
    let meta = &graph.arrays[target.array].meta;
    let is_carried = carried(graph, target, shape.len());
    let axes = is_carried.iter().take_while(|carried| **carried).count();
    if axes == 0 || is_carried[axes..].contains(&true) {
        return Err(format!(
            "a list of points needs the axes of the pixels before those of their values, {} has {:?}; leave image_axis at its \
             default",
            meta.name, meta.dimension_names
        ));
    }
    let bytes = |lengths: &[u64]| {
        crate::array::element_count(lengths)
            .and_then(|n| n.checked_mul(meta.dtype.size() as u64))
            .filter(|n| *n <= crate::array::MAX_CHUNK_BYTES)
            .ok_or_else(|| format!("{lengths:?} elements of {} are too large to hold at once", meta.dtype))
    };
    let (pixels, value) = shape.split_at(axes);
    let count = pixels.iter().try_fold(1u64, |n, len| n.checked_mul(*len)).ok_or("the raster has too many pixels")?;
    let length = match &spec.chunks {
        Some(list) => list[0],
        None => default_chunk(bytes(value)?),
    };
    if length == 0 {
        return Err("chunks [0]: lengths start at 1".to_owned());
    }
    let length = length.min(count.max(1));
    bytes(&[&[length], value].concat())?;
    // A row in one piece, so that rows that come out of order are few; a single row in pieces, so that it need not be held.
    let mut object = vec![1; axes];
    object[axes - 1] = if axes == 1 { chunk[0].clamp(1, shape[0].max(1)) } else { shape[axes - 1].max(1) };
    object.extend(value.iter().map(|len| (*len).max(1)));
    bytes(&object)?;
    Ok(OutputLayout {
        shape: shape.to_vec(),
        dtype: meta.dtype,
        chunks: object,
        shards: None,
        codec: spec.codec.clone(),
        zarr_format: spec.zarr_format.unwrap_or(default_format),
        dimension_names: meta.dimension_names.clone(),
        attributes: meta.attributes.clone(),
        points: Some(PointLayout { axes, chunk: length }),
        is_remote: false,
    })
}

/// Per axis of a target, whether it runs along an axis of an input.
fn carried(graph: &Graph, target: &Target, rank: usize) -> Vec<bool> {
    match graph.arrays[target.array].producer {
        super::graph::Producer::Input(_) | super::graph::Producer::State { .. } => vec![true; rank],
        super::graph::Producer::Step { step, output } => {
            graph.steps[step].binding.outputs[output].axes.iter().map(|a| !matches!(a, OutAxis::New { .. })).collect()
        }
    }
}

/// Axes carried from the input keep its chunk length, new axes are whole, then the longest carried axis is halved until
/// a chunk is small enough.
fn default_chunks(graph: &Graph, target: &Target, shape: &[u64], chunk: &[u64]) -> Vec<u64> {
    let meta = &graph.arrays[target.array].meta;
    let mut chunks: Vec<u64> = shape.iter().zip(chunk).map(|(&len, &c)| c.clamp(1, len.max(1))).collect();
    let is_carried = carried(graph, target, shape.len());
    loop {
        let bytes: u64 = chunks.iter().fold(meta.dtype.size() as u64, |n, &c| n.saturating_mul(c));
        let longest =
            (0..chunks.len()).filter(|&a| is_carried[a] && chunks[a] > 1).max_by_key(|&a| (chunks[a], std::cmp::Reverse(a)));
        match longest {
            Some(axis) if bytes > DEFAULT_CHUNK_BYTES => chunks[axis] = chunks[axis].div_ceil(2),
            _ => return chunks,
        }
    }
}
