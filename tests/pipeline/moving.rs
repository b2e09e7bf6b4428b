//! Phases that only move bytes: threads that take whole blocks give what the stages give, and are used only where they may.

use halostream::config::CodecName;
use halostream::plan::moving::Moving;
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, plan, read, run, write};
use crate::kit::{run_plan, shared, whole_numbers};

/// What a slice of the input holds, and what stands where a chunk is missing.
fn naive(x: &Array, from: &[u64], missing: &[(u64, u64)], fill: f64) -> Vec<f64> {
    let values = x.values::<f64>();
    let (rows, columns) = (x.shape[0], x.shape[1]);
    let at = |i: u64, j: u64| match missing.contains(&(i, j)) {
        true => fill,
        false => values[(i * columns + j) as usize],
    };
    (from[0]..rows).flat_map(|i| (from[1]..columns).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect()
}

#[test]
fn moved_blocks_are_what_the_input_holds() {
    let mut r = Random(77);
    let mut moved = 0;
    for round in 0..60 {
        let folder = Folder::new("moving");
        let shape = [r.range(3, 30), r.range(3, 30)];
        let chunks = [r.range(1, 9), r.range(1, 9)];
        let x = whole_numbers(&mut r, &shape);
        write(&folder.path("x.zarr"), &x, &chunks, None, CodecName::None);
        // One chunk is missing: it is fill, as Zarr says.
        let gone: Vec<u64> = shape.iter().zip(&chunks).map(|(n, c)| r.range(0, n.div_ceil(*c) - 1)).collect();
        let is_gone = round % 3 == 0;
        let mut missing = Vec::new();
        if is_gone {
            std::fs::remove_file(folder.path(&format!("x.zarr/c/{}/{}", gone[0], gone[1]))).expect("a chunk");
            let cells = |a: usize| gone[a] * chunks[a]..((gone[a] + 1) * chunks[a]).min(shape[a]);
            missing = cells(0).flat_map(|i| cells(1).map(move |j| (i, j))).collect();
        }
        // A slice that begins at an edge of a chunk, or anywhere.
        let from: Vec<u64> = shape
            .iter()
            .zip(&chunks)
            .map(|(n, c)| match round % 4 {
                1 => r.range(0, n - 1) / c * c,
                2 => r.range(0, n - 1),
                _ => 0,
            })
            .collect();
        let block: Vec<u64> = chunks.iter().map(|c| c * r.range(1, 3) + u64::from(round % 10 == 9)).collect();
        let steps = ["", "[[step]]\nop = \"abs\"\n", "[[step]]\nop = \"intensity\"\n[[step]]\nop = \"identity\"\n"];
        let (step, f) = [(steps[0], (|v| v) as fn(f64) -> f64), (steps[1], f64::abs), (steps[2], |v| v * v)][round % 7 % 3];
        let mut text = format!(
            "[input]\npath = \"x.zarr\"\nselect = \"{}:, {}:\"\n{step}[output]\npath = \"o.zarr\"\ncodec = \"none\"\n\
             [engine]\nworkers = {}\n",
            from[0],
            from[1],
            r.range(1, 4)
        );
        if round % 2 == 0 {
            text += &format!("block = [{}, {}]\n", block[0], block[1]);
        }
        let plan = plan(&text, &folder.0).expect("a plan");
        let spec = halostream::config::job::parse(&text, &folder.0, &[], &|_| None).expect("a job");
        if round % 5 == 0 {
            text += &format!("memory = {}\n", smallest_memory(&spec, &machine()).expect("a number"));
        }
        let is_moved = plan.phases[0].moving.is_some();
        let is_at_edges = from.iter().zip(&chunks).all(|(f, c)| f % c == 0);
        let is_of_chunks = round % 2 == 1 || round % 10 != 9;
        assert!(!(is_at_edges && is_of_chunks) || is_moved, "nothing is shared here: {text}");
        moved += u32::from(is_moved);
        let report = run(&text, &folder.0).expect("a good end");
        let out = read(&folder.path("o.zarr"), None);
        let want: Vec<f64> = naive(&x, &from, &missing, 0.0).into_iter().map(f).collect();
        assert_eq!(out.values::<f64>(), want, "{shape:?} in {chunks:?}: {text}");
        if is_moved {
            let phase = &plan.phases[0];
            assert_eq!((report.source_chunk_reads, report.source_chunks), (phase.chunks, phase.chunks));
            assert_eq!(report.blocks_computed, phase.traversal.block_count());
            assert!(report.blocks_in_flight_max <= phase.movers() as u64);
        }
    }
    assert!(moved > 30, "only {moved} of 60 were moved: the test has lost its point");
}

/// Chunks that follow each other in a block are read to where they lie in it: slices of one array, and arrays that are stacked.
#[test]
fn rows_of_chunks_become_blocks() {
    let folder = Folder::new("moving-rows");
    let mut r = Random(11);
    let x = whole_numbers(&mut r, &[13, 5, 6]);
    write(&folder.path("x.zarr"), &x, &[1, 5, 6], None, CodecName::None);
    write(&folder.path("halves.zarr"), &x, &[2, 5, 3], None, CodecName::None);
    for i in 0..13usize {
        let one = Array::new(&[5, 6], &x.values::<f64>()[i * 30..(i + 1) * 30]);
        write(&folder.path(&format!("p{i:02}.zarr")), &one, &[5, 6], None, CodecName::None);
        std::fs::write(folder.path(&format!("r{i:02}.raw")), &one.bytes).expect("a file");
    }
    for name in ["x.zarr", "halves.zarr"] {
        std::fs::remove_file(folder.path(&format!("{name}/c/3/0/0"))).expect("a chunk");
    }
    let stacked = |paths: &str, more: &str| format!("path = {paths}\nstack = 0\n{more}");
    let raw = "format = \"raw\"\ndtype = \"<f8\"\nshape = [5, 6]\n";
    let arrays: Vec<String> = (0..13).map(|i| format!("p{i:02}.zarr")).collect();
    let inputs = [
        ("path = \"x.zarr\"\n".to_owned(), Some(90..120)),
        ("path = \"halves.zarr\"\n".to_owned(), None),
        (stacked(&format!("{arrays:?}"), ""), Some(0..0)),
        (stacked("\"r*.raw\"", raw), Some(0..0)),
    ];
    for (input, gone) in inputs {
        for (chunk, workers) in [([4, 5, 6], 2), ([1, 5, 6], 3), ([13, 5, 6], 1), ([4, 5, 3], 2), ([6, 2, 6], 2)] {
            let text = format!(
                "[input]\n{input}[output]\npath = \"o.zarr\"\ncodec = \"none\"\nchunks = {chunk:?}\n[engine]\nworkers = {workers}\n"
            );
            run(&text, &folder.0).unwrap_or_else(|error| panic!("{error}: {text}"));
            let mut want = x.values::<f64>();
            match &gone {
                Some(range) => want[range.clone()].fill(0.0),
                None => (6..8).flat_map(|i| (0..5).map(move |j| i * 30 + j * 6)).for_each(|at| want[at..at + 3].fill(0.0)),
            }
            assert_eq!(read(&folder.path("o.zarr"), None).values::<f64>(), want, "{text}");
            std::fs::remove_dir_all(folder.path("o.zarr")).expect("an output");
        }
    }
}

/// Room for fewer blocks than there are threads: a block that is ahead must not hold what the one behind it waits for.
#[test]
fn movers_that_wait_for_room_let_each_other_go() {
    let _shared = shared();
    let folder = Folder::new("moving-room");
    let x = whole_numbers(&mut Random(4), &[40, 96]);
    write(&folder.path("x.zarr"), &x, &[4, 4], None, CodecName::None);
    let text =
        "[input]\npath = \"x.zarr\"\n[output]\npath = \"o.zarr\"\ncodec = \"none\"\n[engine]\nblock = [8, 8]\nworkers = 4\n";
    for round in 0..40 {
        let mut plan = plan(text, &folder.0).expect("a plan");
        let phase = &mut plan.phases[0];
        assert!(phase.moving.is_some() && phase.movers() == 4);
        let block = 8 * 8 * 8;
        phase.reservation.source = block * (1 + round % 3);
        phase.concurrency.window = 4;
        let (report, sinks) = run_plan(plan).expect("a good end");
        assert_eq!((report.blocks_computed, sinks[0].array()), (60, x.clone()));
    }
}

/// Sums along random axes of an array, or of a stack of its slices, cut, stored and packed in every way: by columns where the
/// plan says so, and always what plain loops give.
#[test]
fn columns_are_the_sums_of_what_the_input_holds() {
    let mut r = Random(91);
    let (mut columns, mut parts) = (0, 0);
    for round in 0..160 {
        let folder = Folder::new("columns");
        let shape = [r.range(2, 9), r.range(8, 40), r.range(8, 40)];
        let chunks = [[1, r.range(1, 3).min(shape[0])][round % 2], r.range(2, 9), r.range(2, 9)];
        let x = whole_numbers(&mut r, &shape);
        let is_stack = round % 3 == 0;
        let codec = [CodecName::None, CodecName::None, CodecName::Zstd][round % 7 % 3];
        let plane = (shape[1] * shape[2]) as usize;
        if is_stack {
            for (i, values) in x.values::<f64>().chunks_exact(plane).enumerate() {
                write(&folder.path(&format!("x{i}.zarr")), &Array::new(&shape[1..], values), &chunks[1..], None, codec);
            }
        } else {
            write(&folder.path("x.zarr"), &x, &chunks, None, codec);
        }
        // A chunk that is missing counts as zeros; a slice begins anywhere.
        let name = if is_stack { "x0.zarr/c/0/0" } else { "x.zarr/c/0/0/0" };
        let mut values = x.values::<f64>();
        if round % 4 == 1 {
            std::fs::remove_file(folder.path(name)).expect("a chunk");
            for z in 0..if is_stack { 1 } else { chunks[0] } {
                for y in 0..chunks[1].min(shape[1]) {
                    let at = z as usize * plane + (y * shape[2]) as usize;
                    values[at..at + chunks[2].min(shape[2]) as usize].fill(0.0);
                }
            }
        }
        let from = if round % 5 == 0 { r.range(0, shape[1] - 2) } else { 0 };
        let axes: &[usize] = [&[0][..], &[0], &[1], &[0, 2], &[2], &[1, 2]][round % 6];
        let dtype = ["float64", "int64"][round % 2];
        // As large as chunks; of one row; or of several chunks.
        let rows = [chunks[1], 1, chunks[1] * 2][r.range(0, 2) as usize];
        let block = [chunks[0] * r.range(1, 2), rows, chunks[2] * r.range(1, 2)];
        let out: Vec<u64> = (0..3).filter(|a| !axes.contains(a)).map(|a| block[a] * r.range(1, 2)).collect();
        let input = if is_stack {
            let names: Vec<String> = (0..shape[0]).map(|i| format!("x{i}.zarr")).collect();
            format!("path = {names:?}\nstack = 0\n")
        } else {
            "path = \"x.zarr\"\n".to_owned()
        };
        let (codec_out, op) = (["none", "zstd"][round % 4 / 2], ["sum", "max"][round % 3 / 2]);
        let text = format!(
            "[input]\n{input}select = \":, {from}:, :\"\n[[step]]\nop = \"cast\"\ndtype = \"{dtype}\"\n\
             [[step]]\nop = \"{op}\"\naxis = {axes:?}\n[output]\npath = \"o.zarr\"\ncodec = \"{codec_out}\"\nchunks = {out:?}\n\
             [engine]\nworkers = {}\n{}",
            r.range(1, 2),
            if round % 8 == 7 { String::new() } else { format!("block = {block:?}\n") }
        );
        let plan = plan(&text, &folder.0).expect("a plan");
        let phase = &plan.phases[0];
        let is_columns = phase.moving == Some(Moving::Columns);
        let report = run(&text, &folder.0).unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut want: std::collections::BTreeMap<Vec<u64>, f64> = std::collections::BTreeMap::new();
        for (at, value) in values.iter().enumerate() {
            let at = at as u64;
            let place = [at / plane as u64, at / shape[2] % shape[1], at % shape[2]];
            if place[1] >= from {
                let kept = (0..3).filter(|a| !axes.contains(a)).map(|a| place[a]).collect();
                let cell = want.entry(kept).or_insert(if op == "sum" { 0.0 } else { f64::NEG_INFINITY });
                *cell = if op == "sum" { *cell + value } else { cell.max(*value) };
            }
        }
        let got = read(&folder.path("o.zarr"), None);
        let got = if dtype == "int64" { got.values::<i64>().iter().map(|v| *v as f64).collect() } else { got.values::<f64>() };
        assert_eq!(got, want.into_values().collect::<Vec<_>>(), "{shape:?} in {chunks:?}: {text}");
        if is_columns {
            columns += 1;
            parts += u32::from(phase.traversal.block_count() > phase.chunks);
            assert_eq!((report.source_chunk_reads, report.source_chunks), (phase.chunks, phase.chunks), "{text}");
            assert_eq!(report.blocks_computed, phase.traversal.block_count());
        }
    }
    assert!(columns > 25 && parts > 6, "only {columns} of 160 by columns, {parts} by parts: the test has lost its point");
}

/// Sums of floats by columns are the stages' to the last bit, however many leaves lie along the axis.
#[test]
fn columns_add_floats_in_the_same_order() {
    let folder = Folder::new("columns-floats");
    let mut r = Random(17);
    let values: Vec<f64> = (0..600 * 16).map(|_| r.signed() * 1e3).collect();
    for codec in [CodecName::None, CodecName::Zstd] {
        write(&folder.path("x.zarr"), &Array::new(&[600, 16], &values), &[256, 4], None, codec);
        let sums = |block: &str, is_columns: bool| {
            let text = format!(
                "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"mean\"\naxis = 0\n[output]\npath = \"o.zarr\"\nchunks = [4]\n\
                 [engine]\nworkers = 1\nblock = {block}\n"
            );
            let plan = plan(&text, &folder.0).expect("a plan");
            assert_eq!(plan.phases[0].moving == Some(Moving::Columns), is_columns, "{text}");
            run_plan(plan).expect("a good end").1[0].array()
        };
        let want = sums("[600, 16]", false);
        assert_eq!(sums("[256, 4]", true), want);
        assert_eq!(sums("[512, 4]", true), want);
        assert_eq!(sums("[100, 4]", false), want, "leaves reach into other blocks");
        std::fs::remove_dir_all(folder.path("x.zarr")).expect("an input");
    }
}

/// Blocks are parts of chunks, and objects of several blocks: each byte is read once, and chunks are counted once.
#[test]
fn columns_read_parts_of_chunks() {
    let folder = Folder::new("columns-parts");
    let mut r = Random(5);
    let x = whole_numbers(&mut r, &[6, 32, 8]);
    for codec in [CodecName::None, CodecName::Zstd] {
        write(&folder.path("x.zarr"), &x, &[1, 16, 8], None, codec);
        let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"max\"\naxis = 0\n[output]\npath = \"o.zarr\"\ncodec = \"none\"\n\
                    chunks = [8, 4]\n[engine]\nblock = [1, 4, 8]\nworkers = 1\n";
        let plan = plan(text, &folder.0).expect("a plan");
        let phase = &plan.phases[0];
        if codec == CodecName::Zstd {
            assert_eq!(phase.moving, None, "a chunk would be decoded for each of its blocks");
            continue;
        }
        assert_eq!((phase.moving, phase.traversal.brick_count()), (Some(Moving::Columns), 4));
        let (report, sinks) = run_plan(plan).expect("a good end");
        assert_eq!((report.source_chunk_reads, report.blocks_computed, report.bytes_read), (12, 48, 6 * 32 * 8 * 8));
        let values = x.values::<f64>();
        let largest = |at: usize| (0..6).map(|z| values[z * 256 + at]).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(sinks[0].array().values::<f64>(), (0..256).map(largest).collect::<Vec<_>>());
        std::fs::remove_dir_all(folder.path("x.zarr")).expect("an input");
    }
}

#[test]
fn what_is_computed_decoded_or_shared_goes_through_the_stages() {
    let folder = Folder::new("not-moving");
    let x = whole_numbers(&mut Random(3), &[24, 24]);
    write(&folder.path("x.zarr"), &x, &[6, 6], None, CodecName::None);
    write(&folder.path("z.zarr"), &x, &[6, 6], None, CodecName::Zstd);
    write(&folder.path("s.zarr"), &x, &[6, 6], Some(vec![12, 12]), CodecName::None);
    let moves = |input: &str, rest: &str| {
        let text = format!("[input]\npath = \"{input}.zarr\"\n{rest}");
        plan(&text, &folder.0).expect("a plan").phases[0].moving.is_some()
    };
    let output = |more: &str| format!("[output]\npath = \"o.zarr\"\n{more}\n");
    assert!(moves("x", &output("codec = \"none\"")));
    assert!(moves("x", &output("codec = \"none\"\nchunks = [6, 3]")), "objects within a chunk");
    assert!(moves("x", &output("codec = \"none\"\nchunks = [12, 12]")), "blocks of whole objects");
    assert!(!moves("x", &output("codec = \"none\"\nchunks = [5, 6]")), "objects in several chunks of several blocks");
    assert!(!moves("x", &output("codec = \"zstd\"")));
    assert!(!moves("x", &output("codec = \"none\"\nshards = [12, 12]\nchunks = [6, 6]")));
    assert!(!moves("x", &output("codec = \"none\"\npoints = \"index\"")));
    assert!(!moves("z", &output("codec = \"none\"")));
    assert!(!moves("s", &output("codec = \"none\"")));
    assert!(moves("x", &format!("[[step]]\nop = \"abs\"\n{}", output("codec = \"none\""))), "light");
    assert!(!moves("x", &format!("[[step]]\nop = \"log10\"\n{}", output("codec = \"none\""))), "not light");
    let filter = "[[step]]\nop = \"uniform_filter\"\nsize = 3\n";
    assert!(!moves("x", &format!("{filter}{}", output("codec = \"none\""))));
    let fold = |op: &str, more: &str| format!("[[step]]\nop = \"{op}\"\naxis = 0\n{}{more}", output("codec = \"none\""));
    assert!(moves("x", &fold("max", "[engine]\nblock = [6, 6]\nworkers = 1\n")), "four columns for a thread");
    assert!(moves("z", &fold("max", "[engine]\nblock = [6, 6]\nworkers = 1\n")), "chunks of their own");
    assert!(!moves("x", &fold("max", "[engine]\nblock = [6, 6]\nworkers = 2\n")), "a thread could be left with nothing to do");
    assert!(!moves("x", &fold("std", "[engine]\nblock = [6, 6]\nworkers = 1\n")), "not light");
    assert!(!moves("x", &format!("{}[engine]\nblock = [3, 6]\n", output("codec = \"none\"\nchunks = [3, 6]"))));
}
