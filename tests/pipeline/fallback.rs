//! What a plan falls back to when not everything fits (I3): packed parking where widths are guaranteed, then reading again,
//! and `engine.scratch` for what is kept between phases.

use halostream::array::DType;
use halostream::config::CodecName;
use halostream::plan::{Plan, PlanError, smallest_memory};

use crate::common::{Array, Folder, Random, machine, write};
use crate::kit::{Window, job, naive_sum, naive_window, plan_of, run_plan, shared, whole_numbers};

fn bools(r: &mut Random, shape: &[u64]) -> Array {
    let n = shape.iter().product::<u64>();
    Array { shape: shape.to_vec(), dtype: DType::Bool, bytes: (0..n).map(|_| (r.next() >> 40) as u8 & 1).collect() }
}

#[test]
fn i3_masks_wait_packed_before_anything_is_read_again() {
    let _shared = shared();
    let folder = Folder::new("packed");
    let mask = bools(&mut Random(5), &[1024, 1000]);
    write(&folder.path("m.zarr"), &mask, &[16, 1000], None, CodecName::None);
    let text = |park: &str, memory: &str| {
        format!(
            "[input]\npath = \"m.zarr\"\n[output]\npath = \"o.zarr\"\nchunks = [1024, 25]\n\
             [engine]\nworkers = 2\npark = \"{park}\"\nmemory = \"{memory}\"\n"
        )
    };
    // 1000 KiB lie plain between rows and columns, 125 KiB packed.
    for (park, memory, counts_packed, is_once) in [
        ("auto", "8MiB", false, true),
        ("auto", "1MiB", true, true),
        ("bitpack", "1MiB", true, true),
        ("none", "1MiB", false, false),
    ] {
        let plan = plan_of(&job(&text(park, memory), &folder.0, &[]));
        let phase = &plan.phases[0];
        let reads = phase.frontier.reads;
        assert_eq!((phase.counts_packed, reads == 64), (counts_packed, is_once), "{park}, {memory}\n{plan}");
        let (report, sinks) = run_plan(plan).unwrap();
        assert_eq!(report.source_chunk_reads, reads);
        assert_eq!(sinks[0].array(), mask, "{park}, {memory}");
    }
}

#[test]
fn i2_packed_jobs_end_at_the_smallest_limit_and_above() {
    let _shared = shared();
    for seed in 0..16 {
        let mut r = Random(seed * 6151 + 3);
        let rank = r.range(1, 3) as usize;
        let longest = [3000, 70, 18][rank - 1];
        let shape: Vec<u64> = (0..rank).map(|_| r.range(1, longest)).collect();
        let folder = Folder::new("packed-memory");
        let mask = bools(&mut r, &shape);
        let parts = |r: &mut Random| shape.iter().map(|&n| r.range((n / 9).max(1), n)).collect::<Vec<u64>>();
        write(&folder.path("m.zarr"), &mask, &parts(&mut r), None, *r.pick(&[CodecName::None, CodecName::Zstd]));
        let cut = if shape[0] > 6 { "select = \"1::2\"\n" } else { "" };
        let given = format!("{:?}", parts(&mut r));
        let block = *r.pick(&["\"auto\"", "\"source\"", given.as_str()]);
        let text = format!(
            "[input]\npath = \"m.zarr\"\n{cut}[output]\npath = \"o.zarr\"\n[engine]\nblock = {}\nworkers = {}\npark = \"{}\"\n",
            block,
            r.range(1, 3),
            r.pick(&["auto", "bitpack"])
        );
        let row = mask.bytes.len() / shape[0] as usize;
        let want: Vec<u8> = match cut {
            "" => mask.bytes.clone(),
            _ => mask.bytes.chunks(row).skip(1).step_by(2).flatten().copied().collect(),
        };
        let mut spec = job(&text, &folder.0, &[]);
        let smallest = smallest_memory(&spec, &machine()).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        for percent in [100, 115, 150, 300] {
            spec.engine.memory = Some(smallest * percent / 100);
            let plan = plan_of(&spec);
            let about = format!("seed {seed} at {percent} %, {text}\n{plan}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            assert_eq!(sinks[0].array().bytes, want, "{about}");
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
        }
    }
}

/// `x + sum(x)` where the sum is as large as a plane of x.
fn two_phases(folder: &Folder, engine: &str) -> (halostream::config::JobSpec, Array) {
    let mut r = Random(11);
    let x = whole_numbers(&mut r, &[6, 120, 80]);
    write(&folder.path("x.zarr"), &x, &[4, 32, 32], None, CodecName::None);
    let text = format!(
        "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"sum\"\naxis = 0\n[[step]]\nop = \"identity\"\nname = \"s0\"\n\
         inputs = [\"input\", \"sum\"]\n[output]\npath = \"o.zarr\"\nchunks = [2, 16, 16]\n[engine]\n{engine}\n"
    );
    let window = Window::new(&[(0, 0); 3]);
    let want = naive_window(&x, &window.depth, &vec![[halostream::array::Rule::Nearest; 2]; 3], &[&naive_sum(&x, &[0])]);
    (job(&text, &folder.0, &[window]), want)
}

#[test]
fn i3_results_that_do_not_fit_go_to_scratch() {
    let _shared = shared();
    let folder = Folder::new("scratch");
    let scratch = format!("scratch = \"{}\"", folder.0.display());
    let (mut spec, want) = two_phases(&folder, "workers = 2");
    let in_memory = smallest_memory(&spec, &machine()).unwrap();
    let (mut with_scratch, _) = two_phases(&folder, &format!("workers = 2\n{scratch}"));
    let smallest = smallest_memory(&with_scratch, &machine()).unwrap();
    // The sum (120, 80) of f64 need not be held.
    assert!(smallest + 120 * 80 * 8 <= in_memory, "{smallest} with scratch, {in_memory} without");
    for limit in [smallest, smallest * 2, in_memory * 2] {
        with_scratch.engine.memory = Some(limit);
        let plan = plan_of(&with_scratch);
        assert_eq!(plan.phases[0].kept[0].in_scratch, limit < in_memory, "{plan}");
        let (_, sinks) = run_plan(plan).unwrap();
        assert!(sinks[0].array() == want, "{limit} bytes: other values");
    }
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["x.zarr"], "scratch files have no names");
    spec.engine.memory = Some(smallest);
    assert!(matches!(Plan::new(&spec, &machine()).err().unwrap()[..], [PlanError::Memory { .. }]));
}

#[test]
fn scratch_that_is_too_small_or_not_there_is_refused() {
    let _shared = shared();
    let folder = Folder::new("scratch-refused");
    let here = folder.0.display();
    let smallest = smallest_memory(&two_phases(&folder, &format!("workers = 1\nscratch = \"{here}\"")).0, &machine()).unwrap();
    let refused = |engine: &str| {
        let (spec, _) = two_phases(&folder, engine);
        let errors = Plan::new(&spec, &machine()).err().unwrap_or_else(|| panic!("{engine} was taken"));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let small = refused(&format!("workers = 1\nmemory = {smallest}\nscratch = \"{here}\"\nscratch_limit = \"50KiB\""));
    assert!(small.starts_with("engine.scratch_limit = 50.0KiB is below the"), "{small}");
    let absent = refused("scratch = \"not/there\"");
    assert!(absent.contains("not/there") && absent.contains("not a folder"), "{absent}");
}
