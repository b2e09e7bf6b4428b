//! The frontier (I3): the simulation against a toy that really holds and frees chunks, cell by cell.

use std::collections::{BTreeMap, BTreeSet};

use halostream::array::boundary::{Origin, origin};
use halostream::array::grid::for_each_index;
use halostream::array::{AxisGrid, DType, Grid, Region};
use halostream::plan::Plan;
use halostream::plan::frontier::{Bricks, Filling, Frontier, Thin, open_objects, simulate};
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

/// Walks the traversal with real sets of chunks. `thin[0]`: of a chunk that only later rows of blocks along this axis need, half or
/// less, that part is kept. `thin[1]`: of one that no later row needs whole, the part that blocks of this row further along this
/// axis still need is kept, too, where that is half or less.
fn toy(plan: &Plan, chunks: &[u64], grid: &Grid, traversal: &Traversal, thin: [Option<usize>; 2]) -> Frontier {
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
        let [outer, second] = thin;
        // Chunks that became thin, with what is left of them for later rows of blocks, and for this one.
        let mut thin: BTreeMap<&Vec<i64>, u64> = BTreeMap::new();
        let mut side: BTreeMap<&Vec<i64>, u64> = BTreeMap::new();
        // Bytes of a chunk that blocks behind a position need; none of its bytes is `None`.
        let left = |chunk: &Vec<i64>, axis: usize, behind: u64| {
            let rest = of_axis[axis][behind as usize + 1..].iter().flatten();
            let rest: Vec<i64> = rest.copied().filter(|c| c / chunks[axis] as i64 == chunk[axis]).collect();
            let part = kept[axis][&chunk[axis]];
            let (low, high) = (rest.iter().min()?, rest.iter().max()?);
            Some(bytes(chunk) / (part.1 - part.0) as u64 * (high + 1 - low) as u64)
        };
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
                assert!(held.contains(chunk) || thin.contains_key(chunk) || side.contains_key(chunk), "freed too early");
            }
            found.kept_bytes += arrived;
            found.largest_arrival = found.largest_arrival.max(arrived);
            found.peak_bytes = found.peak_bytes.max(held.iter().map(|c| bytes(c)).sum());
            held.retain(|c| last[c] > n);
            let mut replaced = 0;
            for chunk in want.iter().filter(|&c| last[c] > n) {
                let Some(outer) = outer else { break };
                let row = blocks[n][outer];
                let later = |also: &dyn Fn(usize) -> bool| {
                    (n + 1..blocks.len()).any(|m| blocks[m][outer] == row && wants[m].contains(chunk) && also(m))
                };
                let rest = left(chunk, outer, row);
                let whole = bytes(chunk);
                if later(&|_| true) {
                    let Some(second) = second else { continue };
                    let place = blocks[n][second];
                    let Some(of_row) = left(chunk, second, place).filter(|_| !later(&|m| blocks[m][second] == place)) else {
                        continue;
                    };
                    let is_last_whole = held.contains(chunk) && rest.is_none_or(|rest| 2 * rest <= whole);
                    if is_last_whole && 2 * of_row <= whole {
                        held.remove(chunk);
                        side.insert(chunk, of_row);
                        thin.extend(rest.map(|rest| (chunk, rest)));
                    } else if side.get(chunk).is_some_and(|now| 2 * of_row <= *now) {
                        replaced += side.insert(chunk, of_row).unwrap_or(0);
                    }
                    continue;
                }
                let now = thin.get(chunk).copied().unwrap_or(whole);
                if let Some(rest) = rest.filter(|rest| 2 * rest <= now) {
                    replaced += if held.remove(chunk) { 0 } else { now };
                    thin.insert(chunk, rest);
                }
            }
            let sum = thin.values().sum::<u64>() + side.values().sum::<u64>();
            found.margin_bytes = found.margin_bytes.max(sum + replaced);
            let is_over = |c: &Vec<i64>, outer: usize| {
                let row = |n: usize| blocks[n][outer];
                !(n + 1..blocks.len()).any(|m| row(m) == row(n) && wants[m].contains(c))
            };
            side.retain(|c, _| last[*c] > n && !outer.is_some_and(|outer| want.contains(*c) && is_over(c, outer)));
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
    let (mut thinner, mut sides, mut exact) = (0, 0, 0);
    for round in 0..600 {
        let rank = r.range(1, 3) as usize;
        // Blocks that are chunks and look little over their edges: then chunks within a row of blocks wait for little.
        let are_chunks = round % 3 == 0;
        let longest = if are_chunks { [60, 40, 20] } else { [60, 18, 8] }[rank - 1];
        let shape: Vec<u64> = (0..rank).map(|_| r.range(1, longest)).collect();
        let least = |n: u64| if are_chunks { n.min(4) } else { (n / 9).max(1) };
        let chunks: Vec<u64> = shape.iter().map(|&n| r.range(least(n), if are_chunks { n.min(9) } else { n })).collect();
        // Deeper than the chunk and the axis now and then.
        let most = match round % 4 {
            _ if are_chunks => 1,
            0 => 2 * longest,
            _ => 3,
        };
        let depths: Vec<Vec<(u64, u64)>> =
            (0..r.range(1, 2)).map(|_| (0..rank).map(|_| (r.range(0, most), r.range(0, most))).collect()).collect();
        // `none` is for all axes or for no axis of an operator: mixed here on purpose, the geometry must not care.
        let rules: Vec<&str> = (0..rank).map(|_| *r.pick(&rules)).collect();
        let folder = Folder::new("frontier");
        let plan = chain(&folder, &shape, &chunks, &rules, &depths);
        let blocks: Vec<u64> = shape.iter().map(|&n| r.range((n / 7).max(1), n)).collect();
        let blocks = if are_chunks { chunks.clone() } else { blocks };
        let grid = Grid::regular(&shape, &blocks);
        let mut traversal = Traversal::new(&grid, order(&mut r, rank));
        if !are_chunks && r.range(0, 1) == 0 {
            traversal.brick = traversal.blocks.iter().map(|&n| r.range(1, n)).collect();
        }
        let phase = &plan.phases[0];
        let simulated = |thin| simulate(&mut Bricks::new(&phase.phase, &grid, &phase.feeds, false), &traversal, thin);
        let about = format!("{shape:?} chunks {chunks:?} blocks {blocks:?} {traversal:?} {depths:?} {rules:?}");
        assert_eq!(simulated(Thin::No), toy(&plan, &chunks, &grid, &traversal, [None; 2]), "{about}");
        let rows = toy(&plan, &chunks, &grid, &traversal, [traversal.outermost(), None]);
        assert_eq!(simulated(Thin::Rows), rows, "{about}");
        thinner += usize::from(rows.margin_bytes > 0);
        // What no run leaves blocks out of takes less, or the same by the same way.
        let got = simulated(Thin::Whole);
        let rows = Frontier { is_whole: rows.margin_bytes > 0, ..rows };
        assert!(got.held_bytes() <= rows.held_bytes(), "{about}");
        if !got.has_sides {
            assert_eq!(got, rows, "{about}");
            continue;
        }
        let want = toy(&plan, &chunks, &grid, &traversal, [traversal.outermost(), traversal.second()]);
        let want = Frontier { is_whole: true, has_sides: true, ..want };
        // The simulation takes what several rows leave of a chunk to be cut a little earlier than it is.
        assert!(got.margin_bytes >= want.margin_bytes, "{about}: {got:?} {want:?}");
        exact += usize::from(got.margin_bytes == want.margin_bytes);
        assert_eq!(Frontier { margin_bytes: want.margin_bytes, ..got }, want, "{about}");
        sides += 1;
    }
    assert!(sides > 40 && 2 * exact > sides, "{sides} of 600 traversals had sides, {exact} with just those margins");
    assert!(thinner > 20, "{thinner} of 600 traversals had margins");
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
        let found = simulate(&mut Bricks::new(&phase.phase, &grid, &phase.feeds, false), &traversal, Thin::No);
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
