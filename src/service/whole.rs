//! The policy `zarr`: every array below a store has its metadata and every chunk it claims.
//!
//! Costs one `lstat` per chunk until the first that is missing. What an array claims costs nothing: a store that claims
//! 10^18 chunks is found incomplete at the first one.

use std::collections::BTreeSet;
use std::path::Path;

use crate::zarr::hierarchy::{Hierarchy, Node};

const MAX_DEPTH: usize = 16;
/// Looking for more chunks than this at each scan would keep the disk busy.
const MAX_CHUNKS: u64 = 1 << 22;

/// Ok when nothing is missing; else what. With `only_metadata` chunks may be missing: they are read as the fill value.
pub fn missing(path: &Path, only_metadata: bool) -> Result<(), String> {
    let hierarchy = Hierarchy::open(path).map_err(|e| format!("cannot be opened yet: {e}"))?;
    let root = hierarchy.root().map_err(|e| format!("has no metadata yet: {e}"))?;
    let mut budget = MAX_CHUNKS;
    let found = node(&hierarchy, "", &root, 0, only_metadata, &mut budget)?;
    if found == 0 {
        return Err("is a group without arrays so far".to_owned());
    }
    Ok(())
}

/// Checks a node and all below; the number of arrays.
fn node(
    hierarchy: &Hierarchy,
    path: &str,
    node_: &Node,
    depth: usize,
    only_metadata: bool,
    budget: &mut u64,
) -> Result<u64, String> {
    if node_.is_array {
        return array(hierarchy, path, node_, only_metadata, budget).map(|()| 1);
    }
    if depth > MAX_DEPTH {
        return Err(format!("{path} lies more than {MAX_DEPTH} groups deep"));
    }
    let listed = hierarchy.store.folders(path).map_err(|e| format!("{path}: {e}"))?.unwrap_or_default();
    let mut names: BTreeSet<String> = listed.into_iter().filter(|name| !name.starts_with('.')).collect();
    // A consolidated document names arrays before they are there.
    let promised = node_.document.pointer("/consolidated_metadata/metadata").and_then(|m| m.as_object());
    names.extend(promised.into_iter().flatten().filter_map(|(name, _)| Some(name.split('/').next()?.to_owned())));
    let mut arrays = 0;
    if names.contains("") {
        return Err(format!("the consolidated metadata of {path:?} names something without a name"));
    }
    for name in names {
        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
        let found = hierarchy.node(&below).map_err(|e| format!("{below} has no whole metadata yet: {e}"))?;
        let found = found.ok_or_else(|| format!("{below} has no metadata yet"))?;
        arrays += node(hierarchy, &below, &found, depth + 1, only_metadata, budget)?;
    }
    Ok(arrays)
}

fn array(hierarchy: &Hierarchy, path: &str, node: &Node, only_metadata: bool, budget: &mut u64) -> Result<(), String> {
    // What we can't read is as complete as it gets: the job says what is wrong with it.
    let Ok(header) = node.header() else { return Ok(()) };
    if only_metadata {
        return Ok(());
    }
    let grid = crate::array::Grid::regular(&header.shape, header.object_shape());
    let counts: Vec<u64> = grid.0.iter().map(|axis| axis.cells()).collect();
    if counts.contains(&0) {
        return Ok(());
    }
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let mut index = vec![0u64; counts.len()];
    loop {
        let key = header.keys.key(&prefix, &index);
        if !hierarchy.store.has(&key).map_err(|e| format!("{key}: {e}"))? {
            return Err(format!("chunk {key} is not there yet"));
        }
        *budget = budget.checked_sub(1).ok_or_else(|| format!("has more than {MAX_CHUNKS} chunks to look for; use a marker"))?;
        // The next index in C order.
        let Some(axis) = (0..index.len()).rev().find(|&a| index[a] + 1 < counts[a]) else { return Ok(()) };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}
