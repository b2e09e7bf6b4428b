//! Memory (I2): random jobs at exactly the smallest limit the plan names, and a little above. Each must end, with right
//! values, inside its reservation.

use halostream::array::{Boundary, Rule};
use halostream::config::CodecName;
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, write};
use crate::kit::{Window, job, naive_sum, naive_window, plan_of, run_plan, shared, whole_numbers};

const RULES: [Rule; 6] = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(3.0), Rule::None];

fn rule_text(rule: Rule) -> String {
    match rule {
        Rule::Constant(v) => format!("{v:?}"),
        other => format!("\"{other}\""),
    }
}

/// A job, and what each output must be.
struct Case {
    folder: Folder,
    text: String,
    steps: Vec<Window>,
    want: Vec<(String, Array)>,
}

fn random_case(r: &mut Random) -> Case {
    let folder = Folder::new("memory");
    let rank = r.range(1, 3) as usize;
    let longest = [900, 40, 13][rank - 1];
    let shape: Vec<u64> = (0..rank).map(|_| r.range(1, longest)).collect();
    let mut text = String::new();
    let mut arrays: Vec<(String, Array)> = Vec::new();
    for name in ["x", "y", "z"].iter().take(r.range(1, 3) as usize) {
        let array = whole_numbers(r, &shape);
        let least = |n: u64| (n / 12).max(1);
        let chunks: Vec<u64> = shape.iter().map(|&n| r.range(least(n), n)).collect();
        let shards = (r.range(0, 4) == 0).then(|| chunks.iter().map(|c| c * r.range(1, 3)).collect());
        write(&folder.path(&format!("{name}.zarr")), &array, &chunks, shards, *r.pick(&[CodecName::None, CodecName::Zstd]));
        text += &format!("[inputs.{name}]\npath = \"{name}.zarr\"\n");
        arrays.push(((*name).to_owned(), array));
    }
    // Every other job looks at the inputs through a slice.
    if r.range(0, 2) == 0 && shape[0] > 4 {
        let (start, step) = (r.range(0, 2), r.range(1, 2));
        let select = format!("select = \"{start}::{step}\"\n");
        text = text.replace(".zarr\"\n", &format!(".zarr\"\n{select}"));
        for (_, array) in &mut arrays {
            let row: usize = array.shape[1..].iter().product::<u64>() as usize;
            let values = array.values::<f64>();
            let rows: Vec<usize> = (start as usize..array.shape[0] as usize).step_by(step as usize).collect();
            let mut new = array.shape.clone();
            new[0] = rows.len() as u64;
            *array =
                Array::new::<f64>(&new, &rows.iter().flat_map(|&i| values[i * row..(i + 1) * row].to_vec()).collect::<Vec<_>>());
        }
    }
    let shape = arrays[0].1.shape.clone();
    let mut steps = Vec::new();
    let mut last = 0;
    for n in 0..r.range(0, 3) as usize {
        // Deeper than a chunk now and then, on one axis: windows are summed cell by cell.
        let deep = if r.range(0, 4) == 0 { r.range(0, rank as u64 - 1) as usize } else { rank };
        let depth: Vec<(u64, u64)> =
            (0..rank).map(|a| if a == deep { (r.range(3, 9), r.range(0, 9)) } else { (r.range(0, 2), r.range(0, 2)) }).collect();
        let one = r.range(0, 1) == 0;
        let rules: Boundary = match one {
            true => vec![[*r.pick(&RULES); 2]; rank],
            false => (0..rank).map(|_| [*r.pick(&RULES[..5]), *r.pick(&RULES[..5])]).collect(),
        };
        let rule: Vec<String> = rules.iter().map(|b| format!("[{}, {}]", rule_text(b[0]), rule_text(b[1]))).collect();
        let mut from = vec![last];
        for other in 0..arrays.len() {
            if r.range(0, 3) == 0 && other != last {
                from.push(other);
            }
        }
        let names: Vec<String> = from
            .iter()
            .enumerate()
            .map(|(i, &f)| match i {
                0 => format!("{{ from = {:?}, boundary = [{}] }}", arrays[f].0, rule.join(", ")),
                _ => format!("{:?}", arrays[f].0),
            })
            .collect();
        text += &format!("[[step]]\nop = \"identity\"\nname = \"s{n}\"\ninputs = [{}]\n", names.join(", "));
        let others: Vec<&Array> = from[1..].iter().map(|&f| &arrays[f].1).collect();
        let result = naive_window(&arrays[last].1, &depth, &rules, &others);
        steps.push(Window::new(&depth));
        last = arrays.len();
        arrays.push((format!("s{n}"), result));
    }
    if r.range(0, 2) == 0 {
        let mut axes: Vec<usize> = (0..rank).filter(|_| r.range(0, 1) == 0).collect();
        if axes.is_empty() {
            axes = (0..rank).collect();
        }
        text += &format!(
            "[[step]]\nop = \"sum\"\nname = \"total\"\ninputs = {:?}\naxis = {axes:?}\nkeepdims = true\n",
            arrays[last].0
        );
        let total = naive_sum(&arrays[last].1, &axes);
        if r.range(0, 1) == 0 {
            // A second phase over the same source.
            let n = steps.len();
            let depth = vec![(r.range(0, 1), r.range(0, 1)); rank];
            text += &format!("[[step]]\nop = \"identity\"\nname = \"s{n}\"\ninputs = [{:?}, \"total\"]\n", arrays[last].0);
            let result = naive_window(&arrays[last].1, &depth, &vec![[Rule::Nearest; 2]; rank], &[&total]);
            steps.push(Window::new(&depth));
            arrays.push(("total".to_owned(), total));
            last = arrays.len();
            arrays.push((format!("s{n}"), result));
        } else {
            last = arrays.len();
            arrays.push(("total".to_owned(), total));
        }
    }
    let mut want = vec![arrays[last].clone()];
    for (n, extra) in arrays.iter().enumerate() {
        if n != last && r.range(0, 4) == 0 {
            want.push(extra.clone());
        }
    }
    for (n, (from, array)) in want.iter().enumerate() {
        let aligned = r.range(0, 2) == 0;
        let chunks: Vec<u64> = array.shape.iter().map(|&n| r.range((n / 6).max(1), n)).collect();
        text += &format!("[outputs.o{n}]\npath = \"o{n}.zarr\"\nfrom = {from:?}\n");
        if !aligned {
            text += &format!("chunks = {chunks:?}\n");
            if r.range(0, 2) == 0 {
                text += &format!("shards = {:?}\n", chunks.iter().map(|c| c * r.range(1, 3)).collect::<Vec<_>>());
            }
        }
        text += &format!("codec = {:?}\n", r.pick(&["none", "zstd"]));
    }
    let block = match r.range(0, 3) {
        0 => "\"source\"".to_owned(),
        1 => format!("{:?}", shape.iter().map(|&n| r.range((n / 8).max(1), n)).collect::<Vec<_>>()),
        _ => "\"auto\"".to_owned(),
    };
    let park = r.pick(&["auto", "none", "lz4", "blosc", "bitpack"]);
    text += &format!("[engine]\nblock = {block}\nworkers = {}\npark = \"{park}\"\n", r.range(1, 4));
    Case { folder, text, steps, want }
}

/// Seeds of jobs that once hung: steps of different sizes that left a worker waiting for the rest of its own lease.
const FOUND: [u64; 1] = [3565];

#[test]
fn random_jobs_end_at_the_smallest_limit_and_above() {
    let _shared = shared();
    let (first, count) = match std::env::var("HALOSTREAM_MEMORY_SEEDS") {
        Ok(range) => {
            let (a, b) = range.split_once('+').expect("first+count");
            (a.parse().expect("a number"), b.parse().expect("a number"))
        }
        Err(_) => (0, 80),
    };
    let mut failed = Vec::new();
    for seed in FOUND.into_iter().chain(first..first + count) {
        let mut r = Random(seed * 7919 + 13);
        let case = random_case(&mut r);
        let mut spec = job(&case.text, &case.folder.0, &case.steps);
        let smallest = smallest_memory(&spec, &machine()).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{}", case.text));
        for percent in [100, 110, 200, 600] {
            let limit = smallest * percent / 100;
            spec.engine.memory = Some(limit);
            let plan = plan_of(&spec);
            assert!(plan.predicted_peak_bytes() <= limit, "seed {seed} at {percent} %: the plan is above its limit");
            let about = format!("{:?}, {} bricks", plan.phases[0].concurrency, plan.phases[0].traversal.brick_count());
            match run_plan(plan) {
                Err(error) => failed.push(format!("seed {seed} at {percent} % ({limit} bytes, {about}): {error}\n{}", case.text)),
                Ok((report, sinks)) => {
                    for (name, peak, reserved) in &report.leased_peak_bytes {
                        assert!(peak <= reserved, "seed {seed}: {name} took {peak} of {reserved}");
                    }
                    for (sink, (name, want)) in sinks.iter().zip(&case.want) {
                        if sink.array() != *want {
                            failed.push(format!("seed {seed} at {percent} % ({about}): other values in `{name}`"));
                        }
                    }
                }
            }
        }
        if failed.len() >= 3 {
            break;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn blocks_get_smaller_before_workers_idle() {
    let folder = Folder::new("near");
    let text = |memory: &str| {
        format!(
            "[input]\npath = \"sample:slc\"\nshape = [1024, 1024, 12]\nchunks = [512, 512, 12]\n\
             [[step]]\nop = \"ks_test\"\nhalf_window = 5\n[[step]]\nop = \"select_shp\"\n\
             [[step]]\nop = \"coherence\"\ninputs = [\"input\", \"select_shp\"]\n[[step]]\nop = \"emi\"\n\
             [output]\npath = \"out.zarr\"\nfrom = \"emi.quality\"\n[engine]\nworkers = 2\nmemory = \"{memory}\"\n"
        )
    };
    let plan = |memory: &str| {
        let plan = plan_of(&job(&text(memory), &folder.0, &[]));
        let phase = &plan.phases[0];
        (phase.concurrency.workers, phase.grid.0[0].longest() * phase.grid.0[1].longest())
    };
    assert_eq!(plan("4GiB"), (2, 512 * 512));
    let (workers, pixels) = plan("448MiB");
    assert!(workers == 2 && (64 * 64..512 * 512).contains(&pixels), "{workers} workers, blocks of {pixels} pixels");
}

/// Reading chunks once is not worth blocks that are mostly halo.
#[test]
fn deep_halos_read_again_rather_than_work_by_tiny_blocks() {
    let folder = Folder::new("deep");
    let plan = |memory: u64| {
        let text = format!(
            "[input]\npath = \"sample:volume\"\nshape = [50, 1104, 1104]\nchunks = [50, 276, 276]\ndtype = \"float32\"\n\
             [[step]]\nop = \"denoise_tv_chambolle\"\neps = 0\nmax_num_iter = 50\n[output]\npath = \"out.zarr\"\n\
             [engine]\nworkers = 2\nmemory = \"{memory}MiB\"\n"
        );
        let plan = plan_of(&job(&text, &folder.0, &[]));
        let phase = &plan.phases[0];
        (phase.grid.0[1].longest() * phase.grid.0[2].longest(), phase.frontier.reads)
    };
    let (pixels, reads) = plan(250);
    assert!(pixels >= 64 * 64 && (17..=32).contains(&reads), "blocks of {pixels} pixels, {reads} reads");
    let (pixels, reads) = plan(400);
    assert!(pixels >= 64 * 64 && reads == 16, "blocks of {pixels} pixels, {reads} reads");
}

/// Blocks of phases that only fold are cut to what the cache holds, but not into slabs that are nothing but halo.
#[test]
fn a_filter_that_is_folded_keeps_its_blocks_compact() {
    let folder = Folder::new("compact");
    for (sigma, shape) in [("3", [300u64, 512, 512]), ("[8, 0, 0]", [300, 512, 512]), ("[0, 0, 12]", [64, 64, 8192])] {
        let text = format!(
            "[input]\npath = \"sample:volume\"\nshape = {shape:?}\nchunks = [64, 128, 128]\ndtype = \"float32\"\n\
             [[step]]\nop = \"gaussian_filter\"\nsigma = {sigma}\n[[step]]\nop = \"max\"\n\
             [output]\npath = \"out.zarr\"\n[engine]\nworkers = 2\nmemory = \"1GiB\"\n"
        );
        let plan = plan_of(&job(&text, &folder.0, &[]));
        let phase = &plan.phases[0];
        let (blocks, array) = (phase.grid.cells().expect("a number"), shape.iter().product::<u64>() * 4);
        let copied = phase.bytes.inputs * blocks;
        assert!(blocks >= 16 && copied < 3 * array, "{sigma}: {blocks} blocks of {} bytes", phase.bytes.inputs);
    }
}
