//! The frontier (I3): the simulation against a toy that really holds and frees chunks, cell by cell.

use std::collections::{BTreeMap, BTreeSet};

use halostream::array::boundary::{Origin, origin};
use halostream::array::grid::for_each_index;
use halostream::array::{AxisGrid, DType, Grid, Region};
use halostream::plan::Plan;
use halostream::plan::frontier::{Bricks, Filling, Frontier, open_objects, simulate};
use halostream::plan::traversal::Traversal;

use crate::common::{Folder, Random};
use crate::kit::{Window, empty_store, job, plan_of};

/// A chain of windows over one array, planned from metadata alone.
fn chain(folder: &Folder, shape: &[u64], chunks: &[u64], rules: &[&str], depths: &[Vec<(u64, u64)>]) -> Plan {
    empty_store(&folder.path("x.zarr"), shape, chunks, DType::F64);
    let mut text = "[input]\npath = \"x.zarr\"\n".to_owned();
    let list = rules.iter().map(|r| format!("[{r}, {r}]")).collect::<Vec<_>>().join(", ");
    for n in 0..depths.len() {
        text += &format!("[[step]]\nop = \"identity\"\nname = \"s{n}\"\nboundary = [{list}]\n");
    }
    text += "[output]\npath = \"o.zarr\"\n[engine]\nmemory = \"8GiB\"\n";
    let steps: Vec<Window> = depths.iter().map(|d| Window::new(d)).collect();
    plan_of(&job(&text, &folder.0, &steps))
}

/// Cells of the input along one axis that a core needs, by the definition of each step.
fn cells(plan: &Plan, axis: usize, core: std::ops::Range<u64>) -> BTreeSet<i64> {
    let phase = &plan.phases[0].phase;
    let mut now: BTreeSet<i64> = core.map(|x| x as i64).collect();
    for step in phase.steps.iter().rev() {
        let bound = &step.binding.inputs[0];
        let (before, after) = bound.depth[axis];
        let len = phase.axes[axis].len as i64;
        now = now
            .iter()
            .flat_map(|&x| x - before as i64..=x + after as i64)
            .filter_map(|y| match origin(y, len, &bound.boundary[axis]) {
                Origin::Cell(c) => Some(c),
                _ => None,
            })
            .collect();
    }
    now
}

/// Walks the traversal with real sets of chunks. `thins`: of a chunk that only later rows of blocks need, half or less, that
/// part is kept.
fn toy(plan: &Plan, chunks: &[u64], grid: &Grid, traversal: &Traversal, thins: bool) -> Frontier {
    let rank = chunks.len();
    let mut found = Frontier::default();
    for range in traversal.each_brick() {
        let blocks: Vec<Vec<u64>> = traversal.blocks_of(&range).collect();
        // Per axis and position: the chunks needed, and per axis and chunk the part that the brick keeps.
        let mut needed: Vec<Vec<BTreeSet<i64>>> = Vec::new();
        let mut of_axis: Vec<Vec<BTreeSet<i64>>> = Vec::new();
        let mut kept: Vec<BTreeMap<i64, (i64, i64)>> = vec![BTreeMap::new(); rank];
        for axis in 0..rank {
            let cells: Vec<_> = (range[axis].0..range[axis].1).map(|b| cells(plan, axis, grid.0[axis].range(b))).collect();
            for &c in cells.iter().flatten() {
                let part = kept[axis].entry(c / chunks[axis] as i64).or_insert((c, c + 1));
                *part = (part.0.min(c), part.1.max(c + 1));
            }
            needed.push(cells.iter().map(|cells| cells.iter().map(|c| c / chunks[axis] as i64).collect()).collect());
            of_axis.push(cells);
        }
        let bytes = |chunk: &[i64]| -> u64 {
            (0..rank).map(|a| (kept[a][&chunk[a]].1 - kept[a][&chunk[a]].0) as u64).product::<u64>() * 8
        };
        let of_block = |position: &[u64]| -> BTreeSet<Vec<i64>> {
            (0..rank).fold(BTreeSet::from([vec![]]), |all, a| {
                let here = &needed[a][position[a] as usize];
                all.iter().flat_map(|c| here.iter().map(move |i| [c.clone(), vec![*i]].concat())).collect()
            })
        };
        let wants: Vec<BTreeSet<Vec<i64>>> = blocks.iter().map(|b| of_block(b)).collect();
        let mut last: BTreeMap<&Vec<i64>, usize> = BTreeMap::new();
        for (n, want) in wants.iter().enumerate() {
            last.extend(want.iter().map(|c| (c, n)));
        }
        let outer = traversal.order.iter().copied().find(|&a| thins && traversal.brick[a] > 1);
        // Chunks that became thin, with what is left of them.
        let mut thin: BTreeMap<&Vec<i64>, u64> = BTreeMap::new();
        let mut held: BTreeSet<&Vec<i64>> = BTreeSet::new();
        let mut seen: BTreeSet<&Vec<i64>> = BTreeSet::new();
        for (n, want) in wants.iter().enumerate() {
            let mut arrived = 0;
            for chunk in want {
                if seen.insert(chunk) {
                    held.insert(chunk);
                    arrived += bytes(chunk);
                    found.reads += 1;
                    found.largest_kept = found.largest_kept.max(bytes(chunk));
                    let length = |(low, high): (i64, i64)| (high - low) as u64;
                    found.cuts |= (0..chunk.len()).any(|a| length(kept[a][&chunk[a]]) != chunks[a]);
                }
                assert!(held.contains(chunk) || thin.contains_key(chunk), "freed too early");
            }
            found.kept_bytes += arrived;
            found.largest_arrival = found.largest_arrival.max(arrived);
            found.peak_bytes = found.peak_bytes.max(held.iter().map(|c| bytes(c)).sum());
            held.retain(|c| last[c] > n);
            let mut gone: u64 = thin.iter().filter(|(c, _)| last[**c] == n).map(|(_, left)| left).sum();
            if let Some(outer) = outer {
                let row = blocks[n][outer];
                let in_row = |n: &usize| blocks[*n][outer] == row;
                for chunk in want.iter().filter(|&c| last[c] > n) {
                    if (n + 1..blocks.len()).filter(in_row).any(|later| wants[later].contains(chunk)) {
                        continue;
                    }
                    let rest = of_axis[outer][row as usize + 1..].iter().flatten();
                    let rest: Vec<i64> = rest.copied().filter(|c| c / chunks[outer] as i64 == chunk[outer]).collect();
                    let (Some(low), Some(high)) = (rest.iter().min(), rest.iter().max()) else { continue };
                    let part = kept[outer][&chunk[outer]];
                    let whole = bytes(chunk);
                    let left = whole / (part.1 - part.0) as u64 * (high + 1 - low) as u64;
                    let now = thin.get(chunk).copied().unwrap_or(whole);
                    if 2 * left <= now {
                        gone += if held.remove(chunk) { 0 } else { now };
                        thin.insert(chunk, left);
                    }
                }
            }
            // What a thinner one replaces goes once that is made.
            thin.retain(|c, _| last[*c] >= n);
            let ends: u64 = thin.iter().filter(|(c, _)| last[**c] == n).map(|(_, left)| left).sum();
            let after = thin.values().sum::<u64>() - ends;
            found.margin_bytes = found.margin_bytes.max(after + gone);
            thin.retain(|c, _| last[*c] > n);
        }
    }
    found
}

fn order(r: &mut Random, rank: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..rank).collect();
    (0..rank).map(|_| left.remove(r.range(0, left.len() as u64 - 1) as usize)).collect()
}

#[test]
fn the_simulation_equals_a_toy_that_holds_chunks() {
    let mut r = Random(11);
    let rules = ["\"reflect\"", "\"mirror\"", "\"nearest\"", "\"periodic\"", "\"none\"", "2.0"];
    let mut thinner = 0;
    for round in 0..120 {
        let rank = r.range(1, 3) as usize;
        let longest = [60, 18, 8][rank - 1];
        let shape: Vec<u64> = (0..rank).map(|_| r.range(1, longest)).collect();
        let chunks: Vec<u64> = shape.iter().map(|&n| r.range((n / 9).max(1), n)).collect();
        // Deeper than the chunk and the axis now and then.
        let most = if round % 4 == 0 { 2 * longest } else { 3 };
        let depths: Vec<Vec<(u64, u64)>> =
            (0..r.range(1, 2)).map(|_| (0..rank).map(|_| (r.range(0, most), r.range(0, most))).collect()).collect();
        // `none` is for all axes or for no axis of an operator: mixed here on purpose, the geometry must not care.
        let rules: Vec<&str> = (0..rank).map(|_| *r.pick(&rules)).collect();
        let folder = Folder::new("frontier");
        let plan = chain(&folder, &shape, &chunks, &rules, &depths);
        let blocks: Vec<u64> = shape.iter().map(|&n| r.range((n / 7).max(1), n)).collect();
        let grid = Grid::regular(&shape, &blocks);
        let mut traversal = Traversal::new(&grid, order(&mut r, rank));
        if r.range(0, 1) == 0 {
            traversal.brick = traversal.blocks.iter().map(|&n| r.range(1, n)).collect();
        }
        let phase = &plan.phases[0];
        for thins in [false, true] {
            let got = simulate(&mut Bricks::new(&phase.phase, &grid, &phase.feeds, false), &traversal, thins);
            let want = toy(&plan, &chunks, &grid, &traversal, thins);
            thinner += usize::from(got.margin_bytes > 0);
            assert_eq!(got, want, "{shape:?} chunks {chunks:?} blocks {blocks:?} {traversal:?} {depths:?} {rules:?} {thins}");
        }
    }
    assert!(thinner > 20, "{thinner} of 120 traversals had margins");
}

/// `1 + sum over axes of 2 * h_a * (chunks inside axis a)`: counted when a block has all its chunks and none is freed yet,
/// which is what the simulation counts too; full chunks, since every chunk is some block's core.
#[test]
fn twenty_by_ten_chunks_with_a_halo_of_one_hold_23_or_43() {
    let folder = Folder::new("formula");
    let plan = chain(&folder, &[80, 40], &[4, 4], &["\"nearest\"", "\"nearest\""], &[vec![(4, 4), (4, 4)]]);
    let grid = Grid::regular(&[80, 40], &[4, 4]);
    let phase = &plan.phases[0];
    for (order, chunks) in [(vec![0, 1], 23), (vec![1, 0], 43)] {
        let traversal = Traversal::new(&grid, order);
        let found = simulate(&mut Bricks::new(&phase.phase, &grid, &phase.feeds, false), &traversal, false);
        assert_eq!(found.peak_bytes, chunks * 4 * 4 * 8);
        assert_eq!(found.reads, 200);
    }
}

#[test]
fn open_objects_equal_a_toy_that_opens_and_closes_them() {
    let mut r = Random(12);
    for _ in 0..200 {
        let rank = r.range(1, 3) as usize;
        let shape: Vec<u64> = (0..rank).map(|_| r.range(1, [60, 18, 8][rank - 1])).collect();
        let pick = |r: &mut Random| -> Vec<u64> { shape.iter().map(|&n| r.range((n / 7).max(1), n)).collect() };
        let grid = Grid::regular(&shape, &pick(&mut r));
        let objects = Grid::regular(&shape, &pick(&mut r));
        let mut traversal = Traversal::new(&grid, order(&mut r, rank));
        if r.range(0, 1) == 0 {
            traversal.brick = traversal.blocks.iter().map(|&n| r.range(1, n)).collect();
        }
        let window = r.range(0, 6) as usize;
        let parts: Vec<(usize, AxisGrid)> = grid.0.iter().cloned().enumerate().collect();
        let got = open_objects(&Filling::new(&parts, &objects, vec![]), &traversal, window);

        let region = |grid: &Grid, at: &[u64]| {
            let range = |(g, &i): (&AxisGrid, &u64)| (g.range(i).start as i64, g.range(i).end as i64);
            Region::from_ranges(&grid.0.iter().zip(at).map(range).collect::<Vec<_>>())
        };
        let mut walk: Vec<Region> = Vec::new();
        for range in traversal.each_brick() {
            for p in traversal.blocks_of(&range) {
                walk.push(region(&grid, &p.iter().zip(&range).map(|(p, b)| p + b.0).collect::<Vec<_>>()));
            }
        }
        // An object that several blocks share is open from its first block until `window` blocks after its last.
        let mut open = vec![0u64; walk.len()];
        let lists: Vec<Vec<u64>> = objects.0.iter().map(|g| (0..g.cells()).collect()).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let _ = for_each_index::<()>(&lists, |at| {
            let cells = region(&objects, at);
            let touches = |n: &usize| !walk[*n].intersect(&cells).is_empty();
            let first = (0..walk.len()).find(touches).expect("blocks cover the array");
            let last = (0..walk.len()).rfind(touches).expect("blocks cover the array");
            if first < last {
                (first..(last + window + 1).min(walk.len())).for_each(|n| open[n] += 1);
            }
            Ok(())
        });
        let want = open.into_iter().max().unwrap_or(0);
        assert_eq!(got, want, "{grid:?} {objects:?} {traversal:?} window {window}");
    }
}
