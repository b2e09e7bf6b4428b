//! Steps that take several passes: total-variation denoising with its stopping test on the whole array, state in memory and
//! in scratch, against the algorithm written down plainly.

use halostream::array::DType;
use halostream::config::CodecName;
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, write};
use crate::kit::{job, plan_of, run_plan, shared};

/// `skimage.restoration.denoise_tv_chambolle` in f64, cell by cell. Also the iteration at which it stopped.
fn naive(x: &Array, weight: f64, eps: f64, most: usize) -> (Vec<f64>, usize) {
    let shape: Vec<usize> = x.shape.iter().map(|&n| n as usize).collect();
    let rank = shape.len();
    let x = x.values::<f64>();
    let strides: Vec<usize> = (0..rank).map(|a| shape[a + 1..].iter().product()).collect();
    let at = |i: usize, a: usize| i / strides[a] % shape[a];
    let tau = 1.0 / (2.0 * rank as f64);
    let mut p = vec![vec![0f64; x.len()]; rank];
    let (mut out, mut first, mut previous) = (x.clone(), 0.0, 0.0);
    for n in 0..most {
        let mut energy = 0.0;
        for i in 0..x.len() {
            let mut d = p[0][i];
            (1..rank).for_each(|a| d += p[a][i]);
            d = -d;
            (0..rank).filter(|&a| at(i, a) > 0).for_each(|a| d += p[a][i - strides[a]]);
            out[i] = x[i] + d;
            energy += d * d;
        }
        for i in 0..x.len() {
            let g: Vec<f64> =
                (0..rank).map(|a| if at(i, a) + 1 < shape[a] { out[i + strides[a]] - out[i] } else { 0.0 }).collect();
            let mut norm = g[0] * g[0];
            g[1..].iter().for_each(|g| norm += g * g);
            let norm = norm.sqrt();
            energy += weight * norm;
            (0..rank).for_each(|a| p[a][i] = (p[a][i] - tau * g[a]) / (norm * (tau / weight) + 1.0));
        }
        energy /= x.len() as f64;
        if n == 0 {
            first = energy;
        } else if (previous - energy).abs() < eps * first {
            return (out, n);
        }
        previous = energy;
    }
    (out, most)
}

fn noisy(r: &mut Random, shape: &[u64]) -> Array {
    let n: u64 = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| f64::from(u32::from((i * 3 / n).is_multiple_of(2))) + r.signed() * 0.3).collect();
    Array::new(shape, &values)
}

#[test]
fn i1_passes_give_the_bytes_of_the_whole_array_at_any_limit() {
    let _shared = shared();
    let mut stops = Vec::new();
    for seed in 0..14 {
        let mut r = Random(seed * 131 + 7);
        let rank = r.range(1, 3) as usize;
        let shape: Vec<u64> = (0..rank).map(|_| r.range(1, [700, 50, 17][rank - 1])).collect();
        let x = noisy(&mut r, &shape);
        let folder = Folder::new("passes");
        let parts = |r: &mut Random| shape.iter().map(|&n| r.range((n / 6).max(1), n)).collect::<Vec<u64>>();
        write(&folder.path("x.zarr"), &x, &parts(&mut r), None, CodecName::Zstd);
        let most = r.range(2, 40);
        let eps = *r.pick(&[0.0, 1e-2, 1e-3, 1e-5]);
        let scratch = if r.range(0, 1) == 0 { format!("scratch = \"{}\"\n", folder.0.display()) } else { String::new() };
        let block = if r.range(0, 1) == 0 { "\"auto\"".to_owned() } else { format!("{:?}", parts(&mut r)) };
        let text = format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"denoise_tv_chambolle\"\nweight = 0.15\neps = {eps:?}\n\
             max_num_iter = {most}\n[[step]]\nop = \"identity\"\n[output]\npath = \"o.zarr\"\n\
             [engine]\nworkers = {}\nblock = {block}\n{scratch}",
            r.range(1, 3)
        );
        let (want, stopped) = naive(&x, 0.15, eps, most as usize);
        stops.push(stopped < most as usize);
        let mut spec = job(&text, &folder.0, &[]);
        let smallest = smallest_memory(&spec, &machine()).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        for percent in [100, 140, 400] {
            spec.engine.memory = Some(smallest * percent / 100);
            let plan = plan_of(&spec);
            let about = format!("seed {seed} at {percent} %, {text}\n{plan}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            assert!(sinks[0].array().values::<f64>() == want, "other values: {about}");
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
        }
    }
    assert!(stops.contains(&true) && stops.contains(&false), "{stops:?}");
}

#[test]
fn deep_halos_become_passes_where_memory_is_short() {
    let _shared = shared();
    let folder = Folder::new("deep");
    let x = noisy(&mut Random(3), &[300, 310]);
    write(&folder.path("x.zarr"), &x, &[64, 64], None, CodecName::None);
    let text = |more: &str| {
        format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"denoise_tv_chambolle\"\neps = 0\nmax_num_iter = 100\n\
             [output]\npath = \"o.zarr\"\n[engine]\nworkers = 1\n{more}"
        )
    };
    let scratch = format!("scratch = \"{}\"\n", folder.0.display());
    let (want, _) = naive(&x, 0.1, 0.0, 100);
    let wide = plan_of(&job(&text("memory = \"64MiB\"\n"), &folder.0, &[]));
    assert!(wide.phases.len() == 1 && wide.phases[0].rounds.is_none());
    let mut spec = job(&text(&scratch), &folder.0, &[]);
    spec.engine.memory = Some(smallest_memory(&spec, &machine()).unwrap());
    let narrow = plan_of(&spec);
    assert!(narrow.phases[0].rounds.is_some() && narrow.phases[0].kept.iter().any(|k| k.in_scratch), "{narrow}");
    let text = narrow.to_string();
    assert!(text.contains("at most 25 passes"), "{text}");
    for plan in [wide, narrow] {
        let passes = if plan.phases[0].rounds.is_some() { 25 } else { 0 };
        let (report, sinks) = run_plan(plan).unwrap();
        assert_eq!((report.passes, sinks[0].array().dtype), (passes, DType::F64));
        assert!(sinks[0].array().values::<f64>() == want);
    }
}

/// Quantiles of reduced axes that a block holds, and of axes that take narrowing passes (a cell's values are more than 16
/// MiB): the elements that sorting gives, under any limit and grid, and reads that are those of the passes.
#[test]
fn i1_quantiles_of_axes_longer_than_memory() {
    let _shared = shared();
    let mut r = Random(77);
    let shape = [1100u64, 2000];
    let n = shape.iter().product::<u64>() as usize;
    let values: Vec<f64> = (0..n)
        .map(|i| if i % 3 == 0 { (r.next() % 1000) as f64 } else { r.signed() * 10f64.powi((i % 40) as i32 - 20) })
        .collect();
    let folder = Folder::new("quantiles");
    write(&folder.path("x.zarr"), &Array::new(&shape, &values), &[300, 256], None, CodecName::None);
    let pick = |sorted: &mut Vec<f64>, q: f64| {
        sorted.sort_by(f64::total_cmp);
        let place = (sorted.len() - 1) as f64 * q;
        let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        let weight = place - place.floor();
        let difference = high - low;
        if weight >= 0.5 { high - difference * (1.0 - weight) } else { low + difference * weight }
    };
    let mut all = values.clone();
    let want_all: Vec<f64> = [0.9, 0.5].map(|q| pick(&mut all, q)).to_vec();
    let columns: Vec<f64> = (0..2000).map(|c| pick(&mut values.iter().skip(c).step_by(2000).copied().collect(), 0.3)).collect();
    for (lines, want, passes) in [("q = [0.9, 0.5]", &want_all, 4), ("q = 0.3\naxis = 0", &columns, 1)] {
        for engine in ["memory = \"64MiB\"\nworkers = 2", "memory = \"24MiB\"\nworkers = 1\nblock = [177, 400]"] {
            let text = format!(
                "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"quantile\"\n{lines}\n[output]\npath = \"o.zarr\"\n[engine]\n{engine}\n"
            );
            let plan = plan_of(&job(&text, &folder.0, &[]));
            let about = format!("{text}\n{plan}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            assert!(sinks[0].array().values::<f64>() == *want, "other values: {about}");
            // Each pass but the first reads what the one before has found, too.
            assert_eq!(report.source_chunk_reads, passes * 4 * 8 + passes - 1, "{about}");
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
        }
    }
}

/// A stack whose images are many and large takes passes where blocks with whole columns don't fit the limit.
#[test]
fn i2_quantiles_take_passes_where_memory_is_short() {
    let _shared = shared();
    let mut r = Random(78);
    let shape = [6000u64, 40];
    let values: Vec<f32> = (0..6000 * 40).map(|_| r.signed() as f32).collect();
    let folder = Folder::new("quantiles-short");
    write(&folder.path("x.zarr"), &Array::new(&shape, &values), &[100, 40], None, CodecName::Zstd);
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"quantile\"\nq = 0.5\nmethod = \"lower\"\naxis = 0\n\
                [output]\npath = \"o.zarr\"\n[engine]\nworkers = 1\nmemory = \"64MiB\"\n";
    let mut spec = job(text, &folder.0, &[]);
    let want: Vec<f32> = (0..40)
        .map(|c| {
            let mut column: Vec<f32> = values.iter().skip(c).step_by(40).copied().collect();
            column.sort_by(f32::total_cmp);
            column[2999]
        })
        .collect();
    let (roomy, sinks) = run_plan(plan_of(&spec)).expect("whole columns");
    assert!(sinks[0].array().values::<f32>() == want);
    assert_eq!(roomy.source_chunk_reads, 60);
    let smallest = smallest_memory(&spec, &machine()).expect("a limit that works");
    spec.engine.memory = Some(smallest);
    let plan = plan_of(&spec);
    let about = plan.to_string();
    let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
    assert!(sinks[0].array().values::<f32>() == want, "{about}");
    assert!(report.source_chunk_reads > 60, "{about}");
}

/// Passes whose state the control makes: a table that is larger than the limit, and a state that goes to scratch.
#[test]
fn i2_clusters_of_a_table_larger_than_memory() {
    let _shared = shared();
    let mut r = Random(79);
    let (rows, features) = (30_000u64, 24u64);
    let values: Vec<f64> = (0..rows * features).map(|i| (i / features % 5 * 10) as f64 + r.signed()).collect();
    let folder = Folder::new("clusters");
    write(&folder.path("x.zarr"), &Array::new(&[rows, features], &values), &[500, features], None, CodecName::Zstd);
    let scratch = format!("scratch = \"{}\"", folder.0.display());
    for (step, is_large) in [("n_clusters = 5\nseed = 3", false), ("n_clusters = 70\nmax_iter = 2\ninit_max_iter = 3", true)] {
        let text = |engine: &str| {
            format!(
                "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"standard_scaler\"\n[[step]]\nop = \"kmeans\"\n{step}\n\
                 [output]\npath = \"o.zarr\"\n[engine]\nworkers = 2\n{engine}\n"
            )
        };
        let (_, want) = run_plan(plan_of(&job(&text("memory = \"256MiB\""), &folder.0, &[]))).expect("in memory");
        let mut spec = job(&text(&scratch), &folder.0, &[]);
        let smallest = smallest_memory(&spec, &machine()).expect("a limit that works");
        assert!(smallest < rows * features * 8 / 2, "{smallest}");
        for limit in [smallest, smallest * 3 / 2] {
            spec.engine.memory = Some(limit);
            let plan = plan_of(&spec);
            let about = plan.to_string();
            assert!(about.contains("passes over this phase"), "{about}");
            let in_scratch = plan.phases.iter().flat_map(|p| &p.kept).any(|k| k.in_scratch);
            assert!(in_scratch == is_large || limit > smallest, "{about}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            // One to gather, the rounds of k-means||, one to weigh, those of Lloyd's; the scaler and the labels beside them.
            // What one pass holds in memory the next need not read.
            assert!(report.passes >= 7 && report.source_chunks >= 60 * (report.passes + 2), "{about}");
            assert!(report.source_chunk_reads > 4 * 60, "{about}");
            for (got, want) in sinks.iter().zip(&want) {
                assert!(got.array() == want.array(), "other values: {about}");
            }
            let labels = sinks[0].array().values::<i32>();
            assert!(is_large || (5..labels.len()).all(|i| labels[i] == labels[i % 5]), "{about}");
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
        }
    }
}

/// Genotypes are read once where two bits each fit beside the rest, as often as there are passes where nothing does, and
/// something between where some do: the same bytes.
#[test]
fn i3_passes_hold_what_they_read_again() {
    let _shared = shared();
    let mut r = Random(80);
    let (rows, columns) = (24_000u64, 200u64);
    let calls: Vec<u8> = (0..rows * columns).map(|at| ((r.next() % 3 + u64::from(at % columns < 80)) % 4) as u8).collect();
    let folder = Folder::new("genotypes");
    let chunk = [1000, 120];
    write(&folder.path("x.zarr"), &Array::new(&[rows, columns], &calls), &chunk, None, CodecName::Zstd);
    let chunks = 24 * 2;
    let text = |park: &str| {
        let outputs: String =
            ["s", "v"].iter().map(|o| format!("[outputs.{o}]\npath = \"{o}.zarr\"\nfrom = \"svd.{o}\"\n")).collect();
        format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"svd\"\nk = 3\nn_power_iter = 2\nscale = \"hwe\"\nmissing = 3\n\
             {outputs}[engine]\nworkers = 2\npark = \"{park}\"\n"
        )
    };
    let mut want = None;
    for park in ["auto", "bitpack", "none"] {
        let mut spec = job(&text(park), &folder.0, &[]);
        let smallest = smallest_memory(&spec, &machine()).expect("a limit that works");
        assert!(smallest < rows * columns, "{smallest}");
        let mut plan_at = |limit: u64| {
            spec.engine.memory = Some(limit);
            plan_of(&spec)
        };
        // The first limit that leaves room for some.
        let some = (1..200).map(|n| smallest + n * 200_000).find(|limit| plan_at(*limit).phases[0].reservation.again > 600_000);
        let [none, some, all] = [smallest, some.expect("room for some"), 256 << 20].map(|limit| {
            let plan = plan_at(limit);
            let planned = plan.phases[0].frontier.reads;
            let about = format!("{park}, {limit}: {plan}");
            let (report, sinks) = run_plan(plan).unwrap_or_else(|e| panic!("{e}: {about}"));
            let found: Vec<Array> = sinks.iter().map(|sink| sink.array()).collect();
            assert!(want.get_or_insert_with(|| found.clone()) == &found, "other values: {about}");
            // The state is read by each pass, and by what makes the results of it.
            assert_eq!((report.passes, report.source_chunks), (3, 3 * (chunks + 1) + 1), "{about}");
            for (name, peak, reserved) in &report.leased_peak_bytes {
                assert!(peak <= reserved, "{name} took {peak} of {reserved}: {about}");
            }
            let again = report.leased_peak_bytes.iter().find(|e| e.0 == "again").map_or(0, |e| e.1);
            (report.source_chunk_reads, 3 * planned + 1, again)
        });
        assert_eq!(none.0, none.1, "{park}: nothing is held");
        assert!(some.0 < some.1 && (some.0 > all.0 || park != "none"), "{park}: {some:?}");
        // Everything but the state is read once: in two bits a value, with a little for each chunk; or as it is.
        assert_eq!(all.0, chunks + 3 + 1, "{park}");
        assert!((all.2 < rows * columns / 3) == (park != "none"), "{park}: {all:?}");
    }
}
