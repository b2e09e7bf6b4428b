//! Phases that are swept strip by strip give what the stages give, read what they say they read, and are used only where they may.

use halostream::config::CodecName;
use halostream::operators::Kind;
use halostream::plan::moving::Moving;
use halostream::plan::sizes::Delivery;
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, plan, read, run, write};

/// Smoothed along random axes with random rules, cut and stored in every way: swept, and in blocks of a random shape.
#[test]
fn sweeps_are_what_blocks_give() {
    let mut r = Random(203);
    let (mut sweeps, mut cut, mut shared, mut once, mut in_parts) = (0, 0, 0, 0, 0);
    for round in 0..70 {
        let folder = Folder::new("sweeps");
        let rank = [3, 2, 3, 4][round % 4];
        let mut shape: Vec<u64> = (0..rank).map(|_| r.range(2, 7)).collect();
        shape[rank - 2] = r.range(20, 70);
        shape[rank - 1] = r.range(100, 300);
        let mut chunks: Vec<u64> = shape.iter().map(|n| r.range(1, *n)).collect();
        chunks[rank - 2] = r.range(16, 40);
        chunks[rank - 1] = r.range(70, 200);
        let count = shape.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(|_| r.signed() as f32).collect();
        write(&folder.path("x.zarr"), &Array::new(&shape, &values), &chunks, None, CodecName::None);
        let is_gone = round % 5 == 0;
        if is_gone {
            let name = vec!["0"; rank].join("/");
            std::fs::remove_file(folder.path(&format!("x.zarr/c/{name}"))).expect("a chunk");
        }
        let sigma: Vec<f64> = (0..rank)
            .map(|a| if a + 2 < rank { [0.0, 0.4, 0.7][r.range(0, 2) as usize] } else { 0.5 * r.range(1, 4) as f64 })
            .collect();
        let rules = ["\"reflect\"", "\"mirror\"", "\"nearest\"", "0.5", "\"periodic\""];
        let rules: Vec<&str> = (0..rank).map(|_| rules[r.range(0, if round % 9 == 8 { 4 } else { 3 }) as usize]).collect();
        let select: Vec<String> =
            shape.iter().map(|n| if round % 6 == 5 { format!("{}:", r.range(0, n / 4)) } else { ":".to_owned() }).collect();
        let out: Vec<u64> =
            chunks.iter().zip(&shape).map(|(c, n)| if round % 3 == 0 { r.range(1, *n).max(*c) } else { *c }).collect();
        let text = |block: &str, name: &str| {
            format!(
                "[input]\npath = \"x.zarr\"\nselect = \"{}\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = {sigma:?}\n\
                 boundary = [{}]\n[output]\npath = \"{name}.zarr\"\ncodec = \"none\"\nchunks = {out:?}\n\
                 [engine]\nworkers = {}\n{block}",
                select.join(", "),
                rules.join(", "),
                1 + round % 2
            )
        };
        let swept = text("", "swept");
        let plan = plan(&swept, &folder.0).unwrap_or_else(|error| panic!("{error:?}: {swept}"));
        let phase = &plan.phases[0];
        let is_swept = phase.moving == Some(Moving::Sweeps);
        assert!(!is_swept || !rules.iter().zip(&sigma).any(|(rule, s)| rule.contains("periodic") && *s > 0.0), "{swept}");
        let report = run(&swept, &folder.0).unwrap_or_else(|error| panic!("{error}: {swept}"));
        let block: Vec<u64> = shape.iter().map(|n| r.range(1, *n)).collect();
        // Chunks that wait packed have no parts, so these blocks are put together.
        let blocks = text(&format!("block = {block:?}\npark = \"lz4\"\n"), "blocks");
        let padded = crate::common::plan(&blocks, &folder.0).expect("a plan");
        assert!(!matches!(padded.phases[0].deliveries[..], [Delivery::Strips { .. }]), "{blocks}");
        run(&blocks, &folder.0).unwrap_or_else(|error| panic!("{error}: {blocks}"));
        let (got, want) = (read(&folder.path("swept.zarr"), None), read(&folder.path("blocks.zarr"), None));
        assert!(got == want, "{shape:?} in {chunks:?}: {swept}\n{blocks}");
        // The same in blocks whose strips are taken from chunks that wait, and in as little memory as that takes.
        write(&folder.path("z.zarr"), &Array::new(&shape, &values), &chunks, None, CodecName::Zstd);
        if is_gone {
            std::fs::remove_file(folder.path(&format!("z.zarr/c/{}", vec!["0"; rank].join("/")))).expect("a chunk");
        }
        let parts = |name: &str, more: &str| text(&format!("block = {block:?}\n{more}"), name).replace("x.zarr", "z.zarr");
        let spec = halostream::config::job::parse(&parts("least", ""), &folder.0, &[], &|_| None).expect("a job");
        let least = smallest_memory(&spec, &machine()).expect("a number");
        for (name, more) in [("parts", String::new()), ("least", format!("memory = {least}\n"))] {
            let text = parts(name, &more);
            let plan = crate::common::plan(&text, &folder.0).expect("a plan");
            in_parts += u32::from(matches!(plan.phases[0].deliveries[..], [Delivery::Strips { .. }]));
            run(&text, &folder.0).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(read(&folder.path(&format!("{name}.zarr")), None) == want, "{shape:?} in {chunks:?}: {text}");
        }
        // Also what no array shows: what objects hold beyond it.
        let name = vec!["0"; rank].join("/");
        let object = |array: &str| std::fs::read(folder.path(&format!("{array}.zarr/c/{name}"))).expect("an object");
        assert_eq!(object("swept"), object("blocks"));
        if is_swept {
            sweeps += 1;
            cut += u32::from(out.iter().zip(&chunks).any(|(o, c)| o != c));
            shared += u32::from(phase.traversal.block_count() > 1);
            assert_eq!((report.source_chunk_reads, report.source_chunks), (phase.chunks, phase.chunks), "{swept}");
            assert_eq!(report.blocks_computed, phase.traversal.block_count());
            // No byte twice, margins included: rows behind the strips' axis are read whole, all others are in the array.
            let Kind::Map(map) = &phase.phase.steps[0].binding.kind else { panic!("a map") };
            let axis = map.sweep().expect("it is swept").axis();
            if !is_gone && round % 6 != 5 {
                let length = |a: usize| if a > axis { shape[a].next_multiple_of(chunks[a]) } else { shape[a] };
                assert_eq!(report.bytes_read, 4 * (0..rank).map(length).product::<u64>(), "{shape:?} in {chunks:?}: {swept}");
                once += u32::from(phase.grid.0[axis].cells() > 1);
            }
            assert!(is_gone || report.filled_chunks == 0, "{swept}");
            assert!(!is_gone || round % 6 == 5 || report.filled_chunks == 1, "{swept}");
        }
    }
    assert!(
        sweeps > 30 && cut > 5 && shared > 15 && once > 10 && in_parts > 100,
        "{sweeps} of 70 swept, {cut} cut, {shared} in blocks, {once} counted, {in_parts} in parts"
    );
}

/// A swept array takes as much memory however long it is, and far less than its blocks.
#[test]
fn a_sweep_holds_a_strip() {
    let folder = Folder::new("sweeps-memory");
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = 2.0\n[output]\npath = \"o.zarr\"\n\
                codec = \"none\"\n[engine]\nworkers = 2\n";
    let mut seen = Vec::new();
    for rows in [200u64, 800] {
        let values = vec![1f32; (10 * rows * 300) as usize];
        write(&folder.path("x.zarr"), &Array::new(&[10, rows, 300], &values), &[10, 100, 100], None, CodecName::None);
        let plan = plan(text, &folder.0).expect("a plan");
        assert_eq!(plan.phases[0].moving, Some(Moving::Sweeps));
        seen.push(plan.phases[0].reservation.total());
        run(text, &folder.0).expect("a good end");
        assert!(read(&folder.path("o.zarr"), None).values::<f32>().iter().all(|v| (v - 1.0).abs() < 1e-6));
        for name in ["x.zarr", "o.zarr"] {
            std::fs::remove_dir_all(folder.path(name)).expect("an array");
        }
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0] < 10 * 100 * 300 * 4 * 3, "{}", seen[0]);
}

/// The least memory is that of one thread, and is enough.
#[test]
fn a_sweep_works_with_little() {
    let folder = Folder::new("sweeps-least");
    let mut r = Random(8);
    let values: Vec<f32> = (0..24 * 120 * 512).map(|_| r.signed() as f32).collect();
    write(&folder.path("x.zarr"), &Array::new(&[24, 120, 512], &values), &[12, 60, 512], None, CodecName::None);
    let text = |name: &str, more: &str| {
        format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = [0.3, 0.7, 1.0]\n[output]\n\
             path = \"{name}.zarr\"\ncodec = \"none\"\n[engine]\nworkers = 2\n{more}"
        )
    };
    let spec = halostream::config::job::parse(&text("o", ""), &folder.0, &[], &|_| None).expect("a job");
    let least = smallest_memory(&spec, &machine()).expect("a number");
    let small = plan(&text("small", &format!("memory = {least}\n")), &folder.0).expect("a plan");
    let roomy = plan(&text("roomy", ""), &folder.0).expect("a plan");
    assert_eq!([small.phases[0].moving, roomy.phases[0].moving], [Some(Moving::Sweeps); 2]);
    assert!(small.phases[0].movers() == 1 && roomy.phases[0].movers() == 2);
    let error = plan(&text("o", &format!("memory = {}\n", least - 1)), &folder.0).err().expect("too little");
    assert!(format!("{error:?}").contains(&least.to_string()), "{error:?}");
    run(&text("small", &format!("memory = {least}\n")), &folder.0).expect("a good end");
    run(&text("blocks", "block = [7, 51, 500]\n"), &folder.0).expect("a good end");
    assert!(read(&folder.path("small.zarr"), None) == read(&folder.path("blocks.zarr"), None));
}

/// Frames of a stack that share nothing are blocks of their own.
#[test]
fn frames_are_swept_one_by_one() {
    let folder = Folder::new("sweeps-frames");
    write(&folder.path("x.zarr"), &Array::new(&[6, 40, 128], &[1f32; 6 * 40 * 128]), &[2, 40, 128], None, CodecName::None);
    let shape = |sigma: &str| {
        let text = format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = {sigma}\n[output]\npath = \"o.zarr\"\n\
             codec = \"none\"\n[engine]\nworkers = 1\n"
        );
        let plan = plan(&text, &folder.0).expect("a plan");
        assert_eq!(plan.phases[0].moving, Some(Moving::Sweeps), "{text}");
        plan.phases[0].grid.0.iter().map(|axis| axis.longest()).collect::<Vec<_>>()
    };
    assert_eq!(shape("[0.0, 1.0, 1.0]"), [2, 40, 128]);
    assert_eq!(shape("[0.5, 1.0, 1.0]"), [6, 40, 128]);
}

/// What is not as it lies, or is more than one pass over strips, goes through the stages.
#[test]
fn the_rest_is_not_swept() {
    let folder = Folder::new("sweeps-not");
    let values = vec![1f32; 4 * 64 * 128];
    write(&folder.path("x.zarr"), &Array::new(&[4, 64, 128], &values), &[4, 32, 128], None, CodecName::None);
    write(&folder.path("z.zarr"), &Array::new(&[4, 64, 128], &values), &[4, 32, 128], None, CodecName::Zstd);
    let text = |input: &str, step: &str, more: &str| {
        format!("[input]\npath = \"{input}.zarr\"\n[[step]]\n{step}[output]\npath = \"o.zarr\"\n{more}\n[engine]\nworkers = 2\n")
    };
    let smooth = "op = \"gaussian_filter\"\nsigma = 1.0\n";
    let moving = |text: &str| plan(text, &folder.0).unwrap_or_else(|error| panic!("{error:?}: {text}")).phases[0].moving;
    assert_eq!(moving(&text("x", smooth, "codec = \"none\"")), Some(Moving::Sweeps));
    let others = [
        text("z", smooth, "codec = \"none\""),
        text("x", smooth, "codec = \"zstd\""),
        text("x", smooth, "codec = \"none\"\nshards = [4, 64, 128]"),
        text("x", "op = \"gaussian_filter\"\nsigma = 1.0\norder = 1\n", "codec = \"none\""),
        text("x", "op = \"gaussian_filter\"\nsigma = 1.0\nboundary = \"periodic\"\n", "codec = \"none\""),
        text("x", &format!("{smooth}[[step]]\nop = \"abs\"\n"), "codec = \"none\""),
        text("x", smooth, "codec = \"none\"").replace("o.zarr", "o.npy").replace("codec = \"none\"\n", ""),
    ];
    for other in others {
        assert_ne!(moving(&other), Some(Moving::Sweeps), "{other}");
    }
}

/// Several filters that take parts of chunks beside inputs that do not, and steps behind them: as with padded blocks, also in as
/// little memory as that takes.
#[test]
fn parts_of_chunks_go_with_any_other_input() {
    let mut r = Random(77);
    let (mut all, mut some) = (0, 0);
    for round in 0..24 {
        let folder = Folder::new("sweeps-beside");
        let shape = [r.range(3, 12), r.range(20, 50), r.range(20, 70)];
        for name in ["x", "y", "z"] {
            let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(|_| r.signed() as f32).collect();
            let chunks: Vec<u64> = shape.iter().map(|&n| r.range(n.div_ceil(4), n)).collect();
            let codec = *r.pick(&[CodecName::None, CodecName::Zstd]);
            write(&folder.path(&format!("{name}.zarr")), &Array::new(&shape, &values), &chunks, None, codec);
        }
        let select = r.pick(&["", "select = \"::2, 1:, ::-1\"\n"]);
        let inputs: String = ["x", "y", "z"].map(|name| format!("[inputs.{name}]\npath = \"{name}.zarr\"\n{select}")).concat();
        let third = r.pick(&["[\"smooth\", \"smoother\", \"z\"]", "[\"smooth\", \"smoother\", \"y\"]"]);
        let steps = format!(
            "[[step]]\nop = \"gaussian_filter\"\nname = \"smooth\"\ninputs = [\"x\"]\nsigma = [0.4, 0.9, 0.6]\n[[step]]\n\
             op = \"gaussian_filter\"\nname = \"smoother\"\ninputs = [\"y\"]\nsigma = [0.0, 1.6, 0.4]\nboundary = \"mirror\"\n[[step]]\n\
             op = \"expression\"\nname = \"mixed\"\ninputs = {third}\nnames = [\"a\", \"b\", \"c\"]\nformula = \"a - 2 * b + c\"\n\
             [[step]]\nop = \"maximum_filter\"\ninputs = [\"mixed\"]\nsize = [1, 3, 3]\n"
        );
        let block: Vec<u64> = shape.iter().map(|n| r.range(n.div_ceil(5), *n)).collect();
        let text = |name: &str, more: &str| {
            format!(
                "{inputs}{steps}[outputs.o]\npath = \"{name}.zarr\"\ncodec = \"zstd\"\n[engine]\nblock = {block:?}\nworkers = {}\n{more}",
                1 + round % 3
            )
        };
        run(&text("padded", "park = \"lz4\"\n"), &folder.0).unwrap_or_else(|error| panic!("{error}: {}", text("padded", "")));
        let want = read(&folder.path("padded.zarr"), None);
        let spec = halostream::config::job::parse(&text("least", ""), &folder.0, &[], &|_| None).expect("a job");
        let least = smallest_memory(&spec, &machine()).expect("a number");
        for (name, more) in [("roomy", String::new()), ("least", format!("memory = {least}\n"))] {
            let text = text(name, &more);
            let plan = plan(&text, &folder.0).unwrap_or_else(|error| panic!("{error:?}: {text}"));
            let in_parts = plan.phases[0].deliveries.iter().filter(|d| matches!(d, Delivery::Strips { .. })).count();
            all += usize::from(in_parts == 2);
            some += usize::from(in_parts == 1);
            run(&text, &folder.0).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(read(&folder.path(&format!("{name}.zarr")), None) == want, "{shape:?}: {text}");
        }
    }
    assert!(all > 8 && some > 8, "{all} jobs with two in parts, {some} with one");
}
