//! Names of the entries along an axis of a Zarr array, from the array beside it that lists them: the dimension's own
//! coordinate (`level` of axis `level`), or identifiers (`sample_id` of axis `samples`, as in VCF-Zarr).

use std::path::Path;

use super::{OpenError, Source, zarr};
use crate::array::{Buffer, Scalar};
use crate::config::Missing;
use crate::zarr::fill;
use crate::zarr::hierarchy::Hierarchy;
use crate::zarr::strings::Strings;

/// Looks in the group of `array` for what names the `len` entries of an axis.
pub fn of_dimension(
    root: &Path,
    array: &str,
    dimension: &str,
    len: u64,
    each: &mut dyn FnMut(u64, &str),
) -> Result<Option<String>, OpenError> {
    if array.is_empty() || dimension.contains('/') {
        return Ok(None);
    }
    let hierarchy = Hierarchy::open(root)?;
    let group = array.rsplit_once('/').map_or(String::new(), |(group, _)| format!("{group}/"));
    let singular = dimension.strip_suffix('s').unwrap_or(dimension);
    for name in [dimension.to_owned(), format!("{singular}_id")] {
        let path = format!("{group}{name}");
        let node = match hierarchy.node(&path) {
            Ok(Some(node)) if node.is_array && path != array => node,
            _ => continue,
        };
        let place = hierarchy.store.place(&path);
        let refused = |reason: String| OpenError::refused(place.clone(), reason);
        let of_axis = |found: u64| match found == len {
            true => Ok(()),
            false => Err(refused(format!("lists {found} names, the axis `{dimension}` has {len} entries"))),
        };
        match Strings::parse(&node).map_err(refused)? {
            Some(strings) => {
                let [found] = strings.shape[..] else { continue };
                of_axis(found)?;
                let read = strings.each(&hierarchy.store, &format!("{path}/"), each);
                read.map_err(|(key, reason)| OpenError::refused(hierarchy.store.place(&key), reason))?;
            }
            None => {
                let source = zarr::open(root, Some(&path), Missing::Fill)?;
                let [found] = source.meta().array.shape[..] else { continue };
                of_axis(found)?;
                each_number(&source, each)?;
            }
        }
        return Ok(Some(place));
    }
    Ok(None)
}

/// Every number of a coordinate as text; those of floats that are whole also with their point, as Python writes them.
fn each_number(source: &zarr::ZarrSource, each: &mut dyn FnMut(u64, &str)) -> Result<(), OpenError> {
    let meta = source.meta();
    let (dtype, grid) = (meta.array.dtype, &meta.grid.0[0]);
    let mut values = Buffer::loose(meta.chunk_shape[0] as usize * dtype.size());
    let mut transient = Vec::new();
    for chunk in 0..grid.cells() {
        source.read_chunk(&[chunk], &mut values, &mut transient).map_err(|error| OpenError::Wrong(error.to_string()))?;
        for (number, value) in grid.range(chunk).zip(values.chunks_exact(dtype.size())) {
            let Some(value) = Scalar::from_bytes(dtype, value) else { continue };
            // A single's own digits, not those of the double next to it.
            let text = match bytemuck::try_pod_read_unaligned::<f32>(value.bytes()) {
                Ok(single) if dtype == crate::array::DType::F32 => single.to_string(),
                _ => fill::show(&value),
            };
            each(number, &text);
            if dtype.is_float() && !text.contains('.') {
                each(number, &format!("{text}.0"));
            }
        }
    }
    Ok(())
}
