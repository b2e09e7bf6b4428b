//! Read once (I3): every source chunk exactly once without bricks, exactly as often as planned with them.

use halostream::array::{Intervals, Rule};
use halostream::config::CodecName;
use halostream::plan::needs::{InputNeeds, axis_needs};
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, write};
use crate::kit::{Window, count_reads, empty_store, job, naive_window, plan_of, quiet, run_plan, shared, whole_numbers};
use halostream::array::DType;

#[test]
fn chunks_are_read_once_or_as_often_as_the_bricks_say() {
    let _shared = shared();
    let mut r = Random(21);
    let mut bricked = 0;
    for round in 0..20 {
        let folder = Folder::new("reads");
        let shape = [r.range(10, 40), r.range(10, 40)];
        let x = whole_numbers(&mut r, &shape);
        let chunks = [r.range(2, 9), r.range(2, 9)];
        write(&folder.path("x.zarr"), &x, &chunks, None, CodecName::None);
        let depth = [(r.range(0, 3), r.range(0, 3)), (r.range(0, 3), r.range(0, 3))];
        let text = format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\nboundary = \"periodic\"\n\
             [output]\npath = \"o.zarr\"\n[engine]\nblock = [{}, {}]\nworkers = 2\n",
            r.range(3, 9),
            r.range(3, 9)
        );
        let mut spec = job(&text, &folder.0, &[Window::new(&depth)]);
        let smallest = smallest_memory(&spec, &machine()).expect("a number");
        spec.engine.memory = Some(if round % 2 == 0 { smallest } else { 64 << 20 });
        let mut plan = plan_of(&spec);
        let phase = &plan.phases[0];
        let (bricks, planned, needed) = (phase.traversal.brick_count(), phase.frontier.reads, phase.chunks);
        let all = shape[0].div_ceil(chunks[0]) * shape[1].div_ceil(chunks[1]);
        assert_eq!(needed, all);
        let sources = count_reads(&mut plan, quiet());
        let (report, sinks) = run_plan(plan).expect("a good end");
        assert_eq!((sources[0].total(), report.source_chunk_reads), (planned, planned), "{text}");
        assert_eq!(sources[0].reads.lock().expect("no panic").len() as u64, all, "every chunk at least once");
        if bricks == 1 {
            assert_eq!((planned, sources[0].most()), (all, 1));
        } else {
            bricked += 1;
        }
        assert_eq!(sinks[0].array(), naive_window(&x, &depth, &vec![[Rule::Periodic; 2]; 2], &[]));
    }
    assert!(bricked >= 3, "only {bricked} jobs read again: the test has lost its point");
}

#[test]
fn two_chained_periodic_steps_need_core_and_depths_only() {
    let folder = Folder::new("periodic");
    empty_store(&folder.path("x.zarr"), &[10_000], &[100], DType::F64);
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\nboundary = \"periodic\"\n\
                [[step]]\nop = \"identity\"\nname = \"s1\"\nboundary = \"periodic\"\n[output]\npath = \"o.zarr\"\n\
                [engine]\nblock = [100]\n";
    let plan = plan_of(&job(text, &folder.0, &[Window::new(&[(2, 3)]), Window::new(&[(4, 1)])]));
    let phase = &plan.phases[0];
    let input = phase.phase.inputs[0];
    let edge = axis_needs(&phase.phase, 0, (0, 100));
    let mut both_ends = Intervals::one(0, 104);
    both_ends.add(9_994, 10_000);
    assert_eq!(edge.arrays[input], both_ends);
    let inner = axis_needs(&phase.phase, 0, (5_000, 5_100));
    assert_eq!(inner.arrays[input], Intervals::one(4_994, 5_104));
    // And the chunks of these blocks: both neighbours, and the other end for the first.
    let of = |block: u64| {
        let needs = InputNeeds::new(&phase.phase, 0, &phase.grid.0[0], (block, block + 1));
        phase.feeds[0].axis_use(0, Some(&needs), false)
    };
    let chunks = |n: u64| of(n).needed[0].iter().flat_map(|r| r.0..r.1).collect::<Vec<_>>();
    assert_eq!((chunks(0), chunks(50)), (vec![0, 1, 99], vec![49, 50, 51]));
    assert_eq!(of(0).kept(99), Some((9_994, 10_000)));
}

/// Blocks much smaller than chunks, of a stack that is reduced along its first axis: where the chunks of a row of blocks do
/// not fit beside each other, the states of all blocks over one chunk do, and every chunk is read once all the same.
#[test]
fn i3_folds_hold_states_where_shared_chunks_do_not_fit() {
    let _shared = shared();
    let mut r = Random(31);
    let shape = [20u64, 96, 96];
    let n = shape.iter().product::<u64>() as usize;
    let folder = Folder::new("states");
    let whole: Vec<i64> = (0..n).map(|_| r.range(0, 2000) as i64 - 1000).collect();
    let tenths: Vec<f64> = whole.iter().map(|v| *v as f64 / 10.0).collect();
    write(&folder.path("i.zarr"), &Array::new(&shape, &whole), &[1, 48, 48], None, CodecName::Zstd);
    write(&folder.path("f.zarr"), &Array::new(&shape, &tenths), &[1, 48, 48], None, CodecName::Zstd);
    let text = |input: &str| {
        format!(
            "[input]\npath = \"{input}.zarr\"\n[[step]]\nop = \"sum\"\naxis = 0\n[output]\npath = \"o.zarr\"\nchunks = [12, 24]\n\
             [engine]\nworkers = 2\nblock = [1, 12, 12]\n"
        )
    };
    for input in ["i", "f"] {
        let mut spec = job(&text(input), &folder.0, &[]);
        let smallest = smallest_memory(&spec, &machine()).expect("a limit that works");
        let mut once = Vec::new();
        for percent in [100, 115, 130, 150, 175, 200, 250, 300, 400, 600, 1000] {
            spec.engine.memory = Some(smallest * percent / 100);
            let plan = plan_of(&spec);
            let phase = &plan.phases[0];
            let is_states = phase.traversal.order[0] == 0 && phase.frontier.reads == phase.chunks;
            let about = format!("{input} at {percent} %\n{plan}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            match input {
                "i" => {
                    let want: Vec<i64> = (0..96 * 96).map(|c| whole.iter().skip(c).step_by(96 * 96).sum()).collect();
                    assert!(sinks[0].array().values::<i64>() == want, "{about}");
                }
                _ => {
                    // Twenty values are one leaf: they are added in order.
                    let want: Vec<f64> = (0..96 * 96).map(|c| tenths.iter().skip(c).step_by(96 * 96).sum()).collect();
                    assert!(sinks[0].array().values::<f64>() == want, "{about}");
                }
            }
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
            once.push((report.source_chunk_reads == 80, is_states));
        }
        assert!(once.iter().any(|(is_once, is_states)| *is_once && *is_states), "{input}: {once:?}");
        assert!(once.is_sorted_by_key(|(is_once, _)| *is_once), "{input}: {once:?}");
    }
}
