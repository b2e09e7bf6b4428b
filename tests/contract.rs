//! The contract suite: every operator, streamed over random grids, equals its naive form on the whole array, byte for
//! byte (I1). Shapes, chunks, shards, blocks, workers, parking, codecs and boundaries are drawn at random from fixed
//! seeds; a case that fails prints its job.

mod common;
#[path = "contract/files.rs"]
mod files;
#[path = "contract/insar.rs"]
mod insar;
#[path = "contract/points.rs"]
mod points;
#[path = "contract/seismic.rs"]
mod seismic;
#[path = "contract/subsets.rs"]
mod subsets;
#[path = "contract/svd.rs"]
mod svd;
#[path = "contract/tables.rs"]
mod tables;

use common::{Array, Folder, Random, child, read, run, write};
use half::f16;
use halostream::array::boundary::{Origin, origin};
use halostream::array::{DType, Rule};
use halostream::config::CodecName;
use halostream::operators::OPERATORS;
use num_complex::{Complex32, Complex64};

const CODECS: [CodecName; 5] = [CodecName::None, CodecName::Zstd, CodecName::BloscLz4, CodecName::BloscZstd, CodecName::Gzip];

/// Random values that bring out ties, zeros and extremes.
fn random_array(r: &mut Random, dtype: DType, shape: &[u64]) -> Array {
    let n = shape.iter().product::<u64>() as usize;
    let mut small = |limit: u64| r.next() % limit;
    macro_rules! ints {
        ($t:ty) => {
            Array::new::<$t>(shape, &(0..n).map(|_| (small(7) as i64 - 2).max(<$t>::MIN as i64) as $t).collect::<Vec<_>>())
        };
    }
    match dtype {
        DType::Bool => {
            let mut a = Array::new::<u8>(shape, &(0..n).map(|_| small(2) as u8).collect::<Vec<_>>());
            a.dtype = DType::Bool;
            a
        }
        DType::U8 => Array::new::<u8>(shape, &(0..n).map(|_| small(5) as u8).collect::<Vec<_>>()),
        DType::I8 => ints!(i8),
        DType::U16 => Array::new::<u16>(shape, &(0..n).map(|_| small(9) as u16).collect::<Vec<_>>()),
        DType::I16 => ints!(i16),
        DType::U32 => Array::new::<u32>(shape, &(0..n).map(|_| small(9) as u32).collect::<Vec<_>>()),
        DType::I32 => ints!(i32),
        DType::U64 => Array::new::<u64>(shape, &(0..n).map(|_| small(9)).collect::<Vec<_>>()),
        DType::I64 => ints!(i64),
        DType::F16 => Array::new::<f16>(shape, &(0..n).map(|_| f16::from_f32(small(64) as f32 / 8.0 - 3.0)).collect::<Vec<_>>()),
        DType::F32 => Array::new::<f32>(shape, &(0..n).map(|_| (r.signed() * 100.0) as f32).collect::<Vec<_>>()),
        DType::F64 => Array::new::<f64>(shape, &(0..n).map(|_| r.signed() * 1e3).collect::<Vec<_>>()),
        DType::C64 => Array::new::<Complex32>(
            shape,
            &(0..n).map(|_| Complex32::new(r.range(0, 9) as f32 - 4.0, r.range(0, 9) as f32 - 4.0)).collect::<Vec<_>>(),
        ),
        DType::C128 => {
            Array::new::<Complex64>(shape, &(0..n).map(|_| Complex64::new(r.signed(), r.signed())).collect::<Vec<_>>())
        }
    }
}

/// A store with a random grid, and how the engine is to go about it.
struct Case {
    folder: Folder,
    engine: String,
    output: String,
}

impl Case {
    fn new(r: &mut Random, name: &str, arrays: &[(&str, &Array)]) -> Self {
        let folder = Folder::new(name);
        for (name, array) in arrays {
            let chunks: Vec<u64> = array.shape.iter().map(|&n| r.range(1, n + 2)).collect();
            let shards = (r.range(0, 3) == 0).then(|| chunks.iter().map(|c| c * r.range(1, 3)).collect());
            write(&folder.path(&format!("{name}.zarr")), array, &chunks, shards, *r.pick(&CODECS));
        }
        let rank = arrays[0].1.shape.len();
        let block = match r.range(0, 3) {
            0 => "\"auto\"".to_owned(),
            1 => "\"source\"".to_owned(),
            _ => format!("{:?}", (0..rank).map(|a| r.range(1, arrays[0].1.shape[a] + 1)).collect::<Vec<_>>()),
        };
        let park = r.pick(&["auto", "none", "lz4", "blosc", "bitpack"]);
        let memory = r.pick(&["64MiB", "8MiB", "1GiB"]);
        let engine =
            format!("[engine]\nblock = {block}\nworkers = {}\npark = \"{park}\"\nmemory = \"{memory}\"\n", r.range(1, 3));
        let codec = r.pick(&["none", "zstd", "blosc-lz4", "blosc-zstd", "gzip"]);
        Self { folder, engine, output: format!("codec = \"{codec}\"\nzarr_format = {}\n", r.range(2, 3)) }
    }

    /// Runs the steps from `x` to `out.zarr`; panics with the job when it fails.
    fn run(&self, steps: &str, more: &str) {
        let job = self.job(steps, more);
        if let Err(error) = run(&job, &self.folder.0) {
            panic!("{error}\n--- job:\n{job}");
        }
    }

    fn job(&self, steps: &str, more: &str) -> String {
        let mut inputs = String::new();
        for entry in std::fs::read_dir(&self.folder.0).expect("the folder").flatten() {
            let file = entry.file_name().into_string().expect("a name");
            if let Some(name) = file.strip_suffix(".zarr").filter(|n| !n.starts_with("out")) {
                inputs += &format!("[inputs.{name}]\npath = \"{file}\"\n");
            }
        }
        format!("{inputs}{steps}\n[outputs.out]\npath = \"out.zarr\"\n{}{more}\n{}", self.output, self.engine)
    }

    fn result(&self) -> Array {
        read(&self.folder.path("out.zarr"), None)
    }

    #[track_caller]
    fn expect(&self, steps: &str, more: &str, want: &Array) {
        self.run(steps, more);
        let got = self.result();
        assert_eq!(got.shape, want.shape, "{}", self.job(steps, more));
        assert_eq!(got.dtype, want.dtype, "{}", self.job(steps, more));
        if got.bytes != want.bytes {
            let size = got.dtype.size();
            let at = (0..got.bytes.len() / size).find(|i| got.bytes[i * size..][..size] != want.bytes[i * size..][..size]);
            panic!("other bytes, first at cell {at:?}\n--- job:\n{}", self.job(steps, more));
        }
    }
}

fn random_shape(r: &mut Random, rank: usize, most: u64) -> Vec<u64> {
    (0..rank).map(|_| r.range(1, most)).collect()
}

#[test]
fn every_operator_is_under_contract() {
    // A new operator must be added to this suite.
    let names: Vec<&str> = OPERATORS.iter().map(|o| o.name).collect();
    const OTHERS: [&str; 45] = [
        "abs",
        "all",
        "amplitude",
        "amplitude_dispersion",
        "angle",
        "any",
        "argmax",
        "argmin",
        "cast",
        "clip",
        "coherence",
        "count",
        "db",
        "denoise_tv_chambolle",
        "emi",
        "evd",
        "expression",
        "external",
        "group_mean",
        "histogram",
        "identity",
        "imag",
        "intensity",
        "interferogram",
        "kmeans",
        "ks_test",
        "log10",
        "max",
        "mean",
        "min",
        "min_max_scaler",
        "multilook",
        "quantile",
        "real",
        "robust_scaler",
        "scale",
        "select_shp",
        "standard_scaler",
        "std",
        "sum",
        "svd",
        "temporal_coherence",
        "threshold",
        "var",
        "where",
    ];
    let mut covered: Vec<&str> =
        OTHERS.iter().copied().chain(FILTERS.iter().chain(&seismic::ATTRIBUTES).map(|(op, _)| *op)).collect();
    covered.sort_unstable();
    covered.dedup();
    assert_eq!(names, covered);
}

#[test]
fn identity_of_every_dtype_on_any_grid() {
    let mut r = Random(1);
    for round in 0..42 {
        let dtype = DType::ALL[round % 14];
        let rank = r.range(1, 4) as usize;
        let shape = random_shape(&mut r, rank, 11);
        let x = random_array(&mut r, dtype, &shape);
        let case = Case::new(&mut r, "identity", &[("x", &x)]);
        let chunks: Vec<u64> = shape.iter().map(|&n| r.range(1, n)).collect();
        let steps = if round % 2 == 0 { "[[step]]\nop = \"identity\"" } else { "" };
        case.expect(steps, &format!("chunks = {chunks:?}"), &x);
    }
}

#[test]
fn select_takes_what_numpy_takes() {
    let mut r = Random(2);
    let shape = [9u64, 8, 7];
    let x = random_array(&mut r, DType::I32, &shape);
    let values = x.values::<i32>();
    let at = |i: usize, j: usize, k: usize| values[(i * 8 + j) * 7 + k];
    // (select, rows, columns, planes taken, axes dropped)
    let all = |n: usize| (0..n).collect::<Vec<_>>();
    let cases: Vec<(&str, Vec<usize>, Vec<usize>, Vec<usize>, Vec<usize>)> = vec![
        ("2:7, :, 3", (2..7).collect(), all(8), vec![3], vec![2]),
        ("::2, 1::3", all(9).into_iter().step_by(2).collect(), (1..8).step_by(3).collect(), all(7), vec![]),
        ("::-1, -3:, ...", all(9).into_iter().rev().collect(), (5..8).collect(), all(7), vec![]),
        ("-1, 7:1:-2, :", vec![8], vec![7, 5, 3], all(7), vec![0]),
    ];
    for round in 0..12 {
        let (select, rows, columns, planes, dropped) = &cases[round % cases.len()];
        let mut want = Vec::new();
        for &i in rows {
            for &j in columns {
                for &k in planes {
                    want.push(at(i, j, k));
                }
            }
        }
        let lengths = [rows.len() as u64, columns.len() as u64, planes.len() as u64];
        let kept: Vec<u64> = (0..3).filter(|a| !dropped.contains(a)).map(|a| lengths[a]).collect();
        let mut case = Case::new(&mut r, "select", &[("x", &x)]);
        case.engine = format!("[engine]\nblock = {:?}\n", kept.iter().map(|&n| r.range(1, n)).collect::<Vec<_>>());
        let job = case.job("", "").replace("path = \"x.zarr\"\n", &format!("path = \"x.zarr\"\nselect = \"{select}\"\n"));
        run(&job, &case.folder.0).unwrap_or_else(|e| panic!("{e}\n{job}"));
        assert_eq!(case.result(), Array::new(&kept, &want), "{job}");
    }
}

#[test]
fn arrays_with_grids_of_their_own_are_stacked_and_joined() {
    let mut r = Random(3);
    for round in 0..8 {
        let folder = Folder::new("join");
        let shapes = if round % 2 == 0 { [[4u64, 5]; 3] } else { [[4, 5], [1, 5], [7, 5]] };
        let mut rows = Vec::new();
        for (n, shape) in shapes.iter().enumerate() {
            let x = random_array(&mut r, DType::I16, shape);
            let chunks = [r.range(1, shape[0]), r.range(1, 5)];
            write(&folder.path(&format!("part{n}.zarr")), &x, &chunks, None, CodecName::Zstd);
            rows.extend(x.values::<i16>());
        }
        let (join, mut shape) = if round % 2 == 0 { ("stack = 0", vec![3, 4, 5]) } else { ("concat = 0", vec![12, 5]) };
        // `select` is of the joined array: slices leave whole parts out.
        let (select, taken): (&str, Vec<u64>) = match round / 2 {
            0 => (":", (0..shape[0]).collect()),
            1 => ("::-2", (0..shape[0]).rev().step_by(2).collect()),
            2 => ("1:6:3", (1..shape[0].min(6)).step_by(3).collect()),
            _ => ("-1:", vec![shape[0] - 1]),
        };
        let slab = rows.len() / shape[0] as usize;
        let rows: Vec<i16> = taken.iter().flat_map(|&i| rows[i as usize * slab..][..slab].to_vec()).collect();
        shape[0] = taken.len() as u64;
        let job = format!(
            "[input]\npath = \"part*.zarr\"\nselect = \"{select}\"\n{join}\n[output]\npath = \"out.zarr\"\n[engine]\nblock = {:?}\nworkers = 2\n",
            shape.iter().map(|&n| r.range(1, n)).collect::<Vec<_>>()
        );
        run(&job, &folder.0).unwrap_or_else(|e| panic!("{e}\n{job}"));
        assert_eq!(read(&folder.path("out.zarr"), None), Array::new(&shape, &rows), "{job}");
    }
}

#[test]
fn cast_intensity_and_amplitude() {
    let mut r = Random(4);
    for _ in 0..12 {
        let shape = random_shape(&mut r, 3, 9);
        let x = random_array(&mut r, DType::I16, &shape);
        let want = Array::new::<f64>(&shape, &x.values::<i16>().iter().map(|&v| v as f64).collect::<Vec<_>>());
        Case::new(&mut r, "cast", &[("x", &x)]).expect("[[step]]\nop = \"cast\"\ndtype = \"float64\"", "", &want);

        let want = Array::new::<u8>(&shape, &x.values::<i16>().iter().map(|&v| v.clamp(0, 255) as u8).collect::<Vec<_>>());
        let steps = "[[step]]\nop = \"cast\"\ndtype = \"uint8\"\noverflow = \"saturate\"";
        Case::new(&mut r, "saturate", &[("x", &x)]).expect(steps, "", &want);

        let z = random_array(&mut r, DType::C64, &shape);
        let square = |c: &Complex32| c.re as f64 * c.re as f64 + c.im as f64 * c.im as f64;
        let want = Array::new::<f32>(&shape, &z.values::<Complex32>().iter().map(|c| square(c) as f32).collect::<Vec<_>>());
        Case::new(&mut r, "intensity", &[("x", &z)]).expect("[[step]]\nop = \"intensity\"", "", &want);
        let want =
            Array::new::<f32>(&shape, &z.values::<Complex32>().iter().map(|c| square(c).sqrt() as f32).collect::<Vec<_>>());
        Case::new(&mut r, "amplitude", &[("x", &z)]).expect("[[step]]\nop = \"amplitude\"", "", &want);
    }
}

/// k by the two-pointer merge of facts everybody knows: the largest distance of the two empirical distributions.
fn naive_k(u: &[f32], v: &[f32]) -> u8 {
    let (mut i, mut j, mut k) = (0usize, 0usize, 0usize);
    while i < u.len() && j < v.len() {
        let (a, b) = (u[i], v[j]);
        i += usize::from(a <= b);
        j += usize::from(a >= b);
        k = k.max(i.abs_diff(j));
    }
    k as u8
}

#[test]
fn ks_test_equals_the_naive_merge() {
    let mut r = Random(5);
    for _ in 0..10 {
        let shape = [r.range(1, 14), r.range(1, 14), r.range(1, 9)];
        let half = [r.range(0, 3), r.range(0, 4)];
        let z = random_array(&mut r, DType::C64, &shape);
        let (rows, columns, n) = (shape[0] as i64, shape[1] as i64, shape[2] as usize);
        let amplitude: Vec<f32> = z
            .values::<Complex32>()
            .iter()
            .map(|c| (c.re as f64 * c.re as f64 + c.im as f64 * c.im as f64).sqrt() as f32)
            .collect();
        let sorted = |y: i64, x: i64| {
            let mut v = amplitude[((y * columns + x) as usize) * n..][..n].to_vec();
            v.sort_by(f32::total_cmp);
            v
        };
        let mut want = Vec::new();
        for y in 0..rows {
            for x in 0..columns {
                for dy in -(half[0] as i64)..=half[0] as i64 {
                    for dx in -(half[1] as i64)..=half[1] as i64 {
                        let (v, u) = (y + dy, x + dx);
                        let inside = (0..rows).contains(&v) && (0..columns).contains(&u);
                        want.push(if inside { naive_k(&sorted(y, x), &sorted(v, u)) } else { 255 });
                    }
                }
            }
        }
        let want = Array::new::<u8>(&[shape[0], shape[1], 2 * half[0] + 1, 2 * half[1] + 1], &want);
        let steps = format!("[[step]]\nop = \"ks_test\"\nhalf_window = [{}, {}]", half[0], half[1]);
        halostream::simd::both_paths(|_| {
            Case::new(&mut r, "ks", &[("x", &z)]).expect(&steps, "from = \"ks_test.k\"", &want);
        });
        // dist and p are functions of k alone.
        let case = Case::new(&mut r, "ks-dist", &[("x", &z)]);
        case.run(&steps, "from = \"ks_test\"");
        let dist = read(&case.folder.path("out.zarr"), Some("dist")).values::<f32>();
        for (d, &k) in dist.iter().zip(&want.bytes) {
            assert!(if k == 255 { d.is_nan() } else { *d == (k as f64 / n as f64) as f32 });
        }
    }
}

#[test]
fn sum_does_not_depend_on_the_grid() {
    let mut r = Random(6);
    for round in 0..24 {
        let shape = random_shape(&mut r, 3, 40);
        let dtype = *r.pick(&[DType::F32, DType::F64, DType::I16, DType::U8, DType::C64]);
        let x = random_array(&mut r, dtype, &shape);
        let axes: Vec<usize> = match round % 4 {
            0 => vec![0],
            1 => vec![2],
            2 => vec![0, 2],
            _ => vec![0, 1, 2],
        };
        let keepdims = round % 3 == 0;
        let steps = format!("[[step]]\nop = \"sum\"\naxis = {axes:?}\nkeepdims = {keepdims}");
        // One block, one worker: the sum of the whole array by the operator itself.
        let case = Case::new(&mut r, "sum", &[("x", &x)]);
        let alone = case.job(&steps, "").replace(&case.engine, &format!("[engine]\nworkers = 1\nblock = {shape:?}\n"));
        run(&alone, &case.folder.0).unwrap_or_else(|e| panic!("{e}\n{alone}"));
        let want = case.result();
        std::fs::rename(case.folder.path("out.zarr"), case.folder.path("out-alone")).expect("renamed");
        case.expect(&steps, "", &want);
        // And it is the sum: exact for integers, near for floats.
        let naive = naive_sum(&x, &axes);
        let kept = |a: &usize| if axes.contains(a) { keepdims.then_some(1) } else { Some(shape[*a]) };
        assert_eq!(want.shape, (0..3).filter_map(|a| kept(&a)).collect::<Vec<_>>());
        let got: Vec<f64> = match want.dtype {
            DType::I64 => want.values::<i64>().iter().map(|&v| v as f64).collect(),
            DType::U64 => want.values::<u64>().iter().map(|&v| v as f64).collect(),
            DType::F32 => want.values::<f32>().iter().map(|&v| v as f64).collect(),
            DType::F64 => want.values::<f64>(),
            _ => want.values::<Complex32>().iter().map(|c| c.re as f64).collect(),
        };
        for (g, n) in got.iter().zip(&naive) {
            assert!((g - n).abs() <= 1e-5 * n.abs().max(100.0), "{g} and {n}\n{steps}");
        }
    }
}

/// Every reduction: any grid gives the bytes of one block and one worker. (That those are numpy's values is shown where
/// the operators are.)
#[test]
fn reductions_do_not_depend_on_the_grid() {
    let mut r = Random(9);
    let steps = [
        "op = \"mean\"",
        "op = \"min\"",
        "op = \"max\"",
        "op = \"var\"\nddof = 1",
        "op = \"std\"",
        "op = \"count\"\nignore = 1",
        "op = \"any\"",
        "op = \"all\"\nignore = 0",
        "op = \"argmin\"",
        "op = \"argmax\"",
        "op = \"histogram\"\nbins = 5\nrange = [-3, 30.5]",
        "op = \"quantile\"\nq = 0.3",
        "op = \"quantile\"\nq = [0.9, 0.25]\nmethod = \"hazen\"\nignore = 2",
        "op = \"sum\"\nignore = 2",
        "op = \"mean\"\nignore = 2",
        "op = \"group_mean\"\ninputs = [\"x\", \"labels\"]\nkeys = [2, 0, 7]",
    ];
    for round in 0..2 * steps.len() {
        let step = steps[round % steps.len()];
        let shape = random_shape(&mut r, 3, 40);
        let dtype = *r.pick(&[DType::F32, DType::F64, DType::I16, DType::U8, DType::F16, DType::I64, DType::Bool]);
        let mut x = random_array(&mut r, dtype, &shape);
        if dtype == DType::F32 && round % 3 == 0 {
            let mut values = x.values::<f32>();
            values.iter_mut().step_by(17).for_each(|v| *v = f32::NAN);
            x = Array::new(&shape, &values);
        }
        let one_axis = step.contains("arg") || step.contains("group");
        let axis = r.range(0, 2);
        let axes = match round % 4 {
            1 if !one_axis => format!("axis = [{}, {}]", axis.min(1), 2),
            2 if !step.contains("group") => String::new(),
            _ => format!("axis = {axis}"),
        };
        let keepdims = if round % 3 == 0 && !step.contains("group") { "keepdims = true" } else { "" };
        let count = shape[axis as usize];
        let labels = Array::new::<u8>(&[count], &(0..count).map(|_| r.range(0, 3) as u8).collect::<Vec<_>>());
        let ignored = if dtype == DType::Bool { step.replace("ignore = 2", "ignore = 1") } else { step.to_owned() };
        let mut job = format!("[[step]]\n{ignored}\n{axes}\n{keepdims}");
        let mut arrays = vec![("x", &x)];
        if step.contains("labels") {
            arrays.push(("labels", &labels));
        } else {
            job += "\ninputs = [\"x\"]";
        }
        let case = Case::new(&mut r, "reduce", &arrays);
        let mut want: Option<Array> = None;
        halostream::simd::both_paths(|_| {
            let alone = case.job(&job, "").replace(&case.engine, &format!("[engine]\nworkers = 1\nblock = {shape:?}\n"));
            run(&alone, &case.folder.0).unwrap_or_else(|e| panic!("{e}\n{alone}"));
            let found = case.result();
            std::fs::remove_dir_all(case.folder.path("out.zarr")).expect("removed");
            assert!(want.as_ref().is_none_or(|w| *w == found), "vector and scalar code differ\n{alone}");
            want = Some(found);
        });
        case.expect(&job, "", &want.expect("two paths"));
    }
}

#[test]
fn operators_of_single_elements_equal_their_definitions() {
    let mut r = Random(10);
    for _ in 0..3 {
        let shape = random_shape(&mut r, 3, 9);
        let x = random_array(&mut r, DType::F32, &shape);
        let i = random_array(&mut r, DType::I16, &shape);
        let z = random_array(&mut r, DType::C64, &shape);
        let (xs, is, zs) = (x.values::<f32>(), i.values::<i16>(), z.values::<Complex32>());
        let floats =
            |f: &dyn Fn(f64) -> f64| Array::new::<f32>(&shape, &xs.iter().map(|v| f(f64::from(*v)) as f32).collect::<Vec<_>>());
        let bools = |f: &dyn Fn(f32) -> bool| {
            let mut a = Array::new::<u8>(&shape, &xs.iter().map(|v| u8::from(f(*v))).collect::<Vec<_>>());
            a.dtype = DType::Bool;
            a
        };
        let parts = |f: &dyn Fn(&Complex32) -> f32| Array::new::<f32>(&shape, &zs.iter().map(f).collect::<Vec<_>>());
        let cases: Vec<(&str, &Array, Array)> = vec![
            ("op = \"abs\"", &x, floats(&f64::abs)),
            ("op = \"real\"", &z, parts(&|z| z.re)),
            ("op = \"imag\"", &z, parts(&|z| z.im)),
            ("op = \"angle\"", &z, parts(&|z| libm::atan2(z.im.into(), z.re.into()) as f32)),
            ("op = \"scale\"\nfactor = 0.7\noffset = -3", &x, floats(&|v| v * 0.7 - 3.0)),
            ("op = \"db\"\nof = \"amplitude\"", &x, floats(&|v| 20.0 * libm::log10(v.abs()))),
            ("op = \"clip\"\nmin = -20\nmax = 33.5", &x, floats(&|v| v.clamp(-20.0, 33.5))),
            ("op = \"threshold\"\nvalue = 12", &x, bools(&|v| v > 12.0)),
            ("op = \"log10\"", &i, Array::new::<f64>(&shape, &is.iter().map(|v| libm::log10(f64::from(*v))).collect::<Vec<_>>())),
        ];
        for (step, input, want) in cases {
            halostream::simd::both_paths(|_| {
                let case = Case::new(&mut r, "single", &[("x", input)]);
                case.run(&format!("[[step]]\n{step}"), "");
                let got = case.result();
                assert_eq!((&got.shape, got.dtype), (&want.shape, want.dtype), "{step}");
                // NaN may carry any sign here: what the naive form makes is the machine's.
                let size = got.dtype.size();
                for at in 0..got.bytes.len() / size {
                    let (a, b) = (&got.bytes[at * size..][..size], &want.bytes[at * size..][..size]);
                    let nan = |v: &[u8]| match got.dtype {
                        DType::F32 => bytemuck::pod_read_unaligned::<f32>(v).is_nan(),
                        DType::F64 => bytemuck::pod_read_unaligned::<f64>(v).is_nan(),
                        _ => false,
                    };
                    assert!(a == b || (nan(a) && nan(b)), "{step} at {at}");
                }
            });
        }
    }
}

#[test]
fn formulas_broadcast_the_results_of_folds() {
    let mut r = Random(11);
    for round in 0..6 {
        let shape = random_shape(&mut r, 3, 14);
        let x = random_array(&mut r, DType::F32, &shape);
        let values = x.values::<f32>();
        let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let steps = "[[step]]\nop = \"abs\"\n[[step]]\nop = \"max\"\nname = \"absmax\"\n";
        let last = match round % 2 {
            0 => "[[step]]\nop = \"expression\"\ninputs = [\"x\", \"absmax\"]\nformula = \"where(x < 0, 0, x / absmax)\"",
            _ => {
                "[[step]]\nop = \"threshold\"\ninputs = [\"x\"]\nvalue = 0\ncompare = \">=\"\n[[step]]\nop = \"expression\"\nname = \"share\"\ninputs = [\"x\", \"absmax\"]\nformula = \"x / absmax\"\n[[step]]\nop = \"where\"\ninputs = [\"threshold\", \"share\"]\ny = 0"
            }
        };
        let want: Vec<f32> = values.iter().map(|v| if *v < 0.0 { 0.0 } else { v / most }).collect();
        Case::new(&mut r, "formula", &[("x", &x)]).expect(&format!("{steps}{last}"), "", &Array::new(&shape, &want));
    }
}

/// Real parts, summed in f64.
fn naive_sum(x: &Array, axes: &[usize]) -> Vec<f64> {
    let values: Vec<f64> = match x.dtype {
        DType::F32 => x.values::<f32>().iter().map(|&v| v as f64).collect(),
        DType::F64 => x.values::<f64>(),
        DType::I16 => x.values::<i16>().iter().map(|&v| v as f64).collect(),
        DType::U8 => x.values::<u8>().iter().map(|&v| v as f64).collect(),
        _ => x.values::<Complex32>().iter().map(|c| c.re as f64).collect(),
    };
    let s: Vec<usize> = x.shape.iter().map(|&n| n as usize).collect();
    let kept: Vec<usize> = (0..3).filter(|a| !axes.contains(a)).collect();
    let mut out = vec![0.0; kept.iter().map(|&a| s[a]).product()];
    for i in 0..s[0] {
        for j in 0..s[1] {
            for k in 0..s[2] {
                let index = [i, j, k];
                let at = kept.iter().fold(0, |n, &a| n * s[a] + index[a]);
                out[at] += values[(i * s[1] + j) * s[2] + k];
            }
        }
    }
    out
}

fn external(function: &str, more: &str) -> String {
    format!(
        "[[step]]\nop = \"external\"\ncommand = [{:?}]\nparams = {{ function = \"{function}\" }}\n{more}",
        child().display().to_string()
    )
}

fn rule_text(rule: Rule) -> String {
    match rule {
        Rule::Constant(v) => format!("{v:?}"),
        other => format!("\"{other}\""),
    }
}

/// The sum over the window -r..+r of an array padded by its rules: the definition.
fn naive_box(x: &Array, r: i64, rules: &[[Rule; 2]]) -> Array {
    let values = x.values::<f64>();
    let (h, w) = (x.shape[0] as i64, x.shape[1] as i64);
    let at = |y: i64, x: i64| -> f64 {
        match (origin(y, h, &rules[0]), origin(x, w, &rules[1])) {
            (_, Origin::Constant(s)) => constant(rules[1][s]),
            (Origin::Constant(s), _) => constant(rules[0][s]),
            (Origin::Cell(y), Origin::Cell(x)) => values[(y * w + x) as usize],
            _ => 0.0,
        }
    };
    let mut out = Vec::new();
    for y in 0..h {
        for x in 0..w {
            let mut sum = 0.0;
            for dy in -r..=r {
                for dx in -r..=r {
                    sum += at(y + dy, x + dx);
                }
            }
            out.push(sum);
        }
    }
    Array::new(&x.shape, &out)
}

fn constant(rule: Rule) -> f64 {
    match rule {
        Rule::Constant(v) => v,
        _ => 0.0,
    }
}

/// Whole numbers in f64: any order of additions gives the same bits.
fn whole_numbers(r: &mut Random, shape: &[u64]) -> Array {
    let n = shape.iter().product::<u64>();
    Array::new::<f64>(shape, &(0..n).map(|_| r.range(0, 20) as f64 - 10.0).collect::<Vec<_>>())
}

#[test]
fn chained_windows_equal_whole_array_calls_under_every_rule() {
    let mut r = Random(7);
    let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(3.0), Rule::None];
    for round in 0..18 {
        let shape = random_shape(&mut r, 2, 13);
        let x = whole_numbers(&mut r, &shape);
        let mut want = x.clone();
        let mut steps = String::new();
        for n in 0..1 + round % 3 {
            let radius = r.range(1, 3);
            // Both sides of an axis may have rules of their own.
            let boundary: Vec<[Rule; 2]> = (0..2).map(|_| [*r.pick(&rules[..5]), *r.pick(&rules[..5])]).collect();
            let boundary = if round % 6 == 0 { vec![[Rule::None; 2]; 2] } else { boundary };
            want = naive_box(&want, radius as i64, &boundary);
            let text: Vec<String> = boundary.iter().map(|b| format!("[{}, {}]", rule_text(b[0]), rule_text(b[1]))).collect();
            let more = format!("name = \"s{n}\"\ndepth = {radius}\ndtype = \"float64\"\nboundary = [{}]\n", text.join(", "));
            steps +=
                &external("box_sum", &more).replace("function = \"box_sum\"", &format!("function = \"box_sum\", r = {radius}"));
            steps.push('\n');
        }
        Case::new(&mut r, "chain", &[("x", &x)]).expect(&steps, "", &want);
    }
}

#[test]
fn a_sum_divides_its_own_source_in_a_second_phase() {
    let mut r = Random(8);
    for _ in 0..6 {
        let shape = random_shape(&mut r, 3, 12);
        let x = random_array(&mut r, DType::F64, &shape);
        let case = Case::new(&mut r, "two-phase", &[("x", &x)]);
        let divide = external("divide", "name = \"divide\"\ninputs = [\"x\", \"sum\"]\ndtype = \"float64\"\n");
        let steps = format!("[[step]]\nop = \"sum\"\nkeepdims = true\n{divide}");
        case.run(&steps, "from = \"divide\"\n[outputs.total]\npath = \"total.zarr\"\nfrom = \"sum\"");
        let total = read(&case.folder.path("total.zarr"), None);
        assert_eq!(total.shape, [1, 1, 1]);
        let total = total.values::<f64>()[0];
        let naive: f64 = x.values::<f64>().iter().sum();
        assert!((total - naive).abs() < 1e-9 * naive.abs().max(1e3));
        let want = Array::new::<f64>(&shape, &x.values::<f64>().iter().map(|v| v / total).collect::<Vec<_>>());
        assert_eq!(case.result(), want);
    }
}

/// Every filter with a step that fits arrays of rank 3.
const FILTERS: [(&str, &str); 29] = [
    ("black_tophat", "size = [2, 3, 1]"),
    ("convolve", "weights = [[[1, 2.5], [-1, 0]], [[0, 3], [1, 1]]]\norigin = [0, -1, 0]"),
    ("correlate", "weights = [[[1, 0.25, 2]], [[0, -1, 0.5]], [[1, 1, 1]]]"),
    ("gaussian_filter", "sigma = [0.8, 0, 1.7]"),
    ("gaussian_filter", "sigma = 1.1\norder = [0, 1, 2]\nradius = [2, 4, 3]"),
    ("gaussian_gradient_magnitude", "sigma = [0.7, 1.2, 0.9]"),
    ("gaussian_laplace", "sigma = 0.8\ntruncate = 3.0"),
    ("grey_closing", "size = [3, 2, 4]\norigin = [1, 0, -2]"),
    ("grey_dilation", "size = 4"),
    ("grey_erosion", "footprint = [[[1, 0, 1]], [[1, 1, 0]]]"),
    ("grey_opening", "size = [5, 4, 2]"),
    ("grey_opening", "footprint = [[[1, 0], [1, 1], [0, 1]]]"),
    ("laplace", ""),
    ("maximum_filter", "size = [1, 9, 6]"),
    ("median_filter", "size = 3"),
    ("median_filter", "size = [5, 9, 7]"),
    ("minimum_filter", "footprint = [[[1, 0, 0], [0, 1, 1]]]"),
    ("morphological_gradient", "size = [3, 4, 2]"),
    ("percentile_filter", "size = [2, 3, 4]\npercentile = 30"),
    ("prewitt", "axis = 1"),
    ("rank_filter", "footprint = [[[1, 0, 1], [0, 1, 1]], [[1, 1, 1], [1, 0, 1]]]\nrank = -3"),
    ("sobel", ""),
    ("uniform_filter", "size = [4, 3, 5]"),
    ("uniform_filter", "size = [1, 12, 19]\norigin = [0, 2, -3]"),
    ("white_tophat", "footprint = [[[0, 1, 0], [1, 1, 1], [0, 1, 0]]]"),
    ("white_tophat", "size = 3"),
    ("grey_closing", "footprint = [[[1, 1, 0]], [[0, 1, 1]]]"),
    ("rank_filter", "size = 2\nrank = 0"),
    ("median_filter", "footprint = [[[1], [1], [0], [1]]]"),
];

/// Random rules of a boundary; both sides of an axis alike, or each with its own.
fn random_boundary(r: &mut Random, rank: usize) -> String {
    let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(3.0)];
    let same = r.range(0, 2) > 0;
    let axes: Vec<String> = (0..rank)
        .map(|_| {
            let before = *r.pick(&rules);
            let after = if same { before } else { *r.pick(&rules) };
            format!("[{}, {}]", rule_text(before), rule_text(after))
        })
        .collect();
    format!("boundary = [{}]", axes.join(", "))
}

/// The result of a step on the whole array: one block, one worker.
fn alone(case: &Case, steps: &str, shape: &[u64]) -> Array {
    let job = case.job(steps, "").replace(&case.engine, &format!("[engine]\nworkers = 1\nblock = {shape:?}\n"));
    run(&job, &case.folder.0).unwrap_or_else(|e| panic!("{e}\n{job}"));
    let result = case.result();
    std::fs::rename(case.folder.path("out.zarr"), case.folder.path("out-alone")).expect("renamed");
    result
}

#[test]
fn filters_do_not_depend_on_the_grid_or_on_vector_code() {
    let mut r = Random(9);
    for (op, lines) in FILTERS {
        for _ in 0..3 {
            let shape = random_shape(&mut r, 3, 12);
            let dtype = *r.pick(&[DType::F32, DType::F64, DType::I16, DType::U8, DType::U16, DType::I64, DType::F32]);
            let x = random_array(&mut r, dtype, &shape);
            let steps = format!("[[step]]\nop = \"{op}\"\n{lines}\n{}", random_boundary(&mut r, 3));
            let mut want = None;
            halostream::simd::both_paths(|_| {
                let case = Case::new(&mut r, "filter", &[("x", &x)]);
                let whole = alone(&case, &steps, &shape);
                case.expect(&steps, "", want.get_or_insert(whole));
            });
        }
    }
}

#[test]
fn denoising_does_not_depend_on_the_grid_or_on_vector_code() {
    let mut r = Random(12);
    for eps in ["0", "0", "1e-3", "1e-2"] {
        let shape = random_shape(&mut r, 3, 12);
        let dtype = *r.pick(&[DType::F32, DType::F64, DType::U8]);
        let x = random_array(&mut r, dtype, &shape);
        let steps = format!("[[step]]\nop = \"denoise_tv_chambolle\"\nmax_num_iter = 9\neps = {eps}\nweight = 2.5\n");
        let mut want = None;
        halostream::simd::both_paths(|_| {
            let case = Case::new(&mut r, "denoise", &[("x", &x)]);
            let whole = alone(&case, &steps, &shape);
            case.expect(&steps, "", want.get_or_insert(whole));
        });
    }
}

fn hex(text: &serde_json::Value) -> Vec<u8> {
    let text = text.as_str().expect("hex");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

#[test]
fn three_filters_with_boundaries_of_their_own_equal_three_whole_array_calls_of_scipy() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/filters.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON");
    let x = Array::new::<f32>(&[6, 7, 5], &bytemuck::pod_collect_to_vec::<u8, f32>(&hex(&golden["inputs"]["f32"]["values"])));
    let want: Vec<f32> = bytemuck::pod_collect_to_vec(&hex(&golden["chain"]["want"]));
    let steps = "[[step]]\nop = \"gaussian_filter\"\nsigma = [1.5, 0.8, 1.0]\nboundary = \"mirror\"\n\
                 [[step]]\nop = \"median_filter\"\nsize = [3, 1, 4]\nboundary = \"periodic\"\n\
                 [[step]]\nop = \"sobel\"\naxis = 2\nboundary = 50\n";
    let mut r = Random(10);
    let mut first: Option<Array> = None;
    for _ in 0..8 {
        let case = Case::new(&mut r, "three", &[("x", &x)]);
        case.run(steps, "");
        let got = case.result();
        for (g, w) in got.values::<f32>().iter().zip(&want) {
            // The gaussian of float32 rounds in float32: a unit of what it gives is 8e-6, of which the last filter adds up 32.
            assert!((g - w).abs() <= 32.0 * 8e-6, "{g}, scipy has {w}\n{}", case.job(steps, ""));
        }
        assert_eq!(first.get_or_insert(got.clone()), &got);
    }
}

#[test]
fn weights_come_from_a_file_beside_the_job_and_are_part_of_it() {
    let mut r = Random(11);
    let x = random_array(&mut r, DType::F64, &[5, 6]);
    let case = Case::new(&mut r, "weights", &[("x", &x)]);
    let file = |last: f64| {
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        [1.0, 0.0, 2.0, -1.0, 0.5, last].iter().for_each(|w: &f64| bytes.extend(w.to_le_bytes()));
        std::fs::write(case.folder.path("w.npy"), bytes).expect("a file");
    };
    let named = "[[step]]\nop = \"correlate\"\nweights = \"w.npy\"\n";
    let written = "[[step]]\nop = \"correlate\"\nweights = [[1, 0, 2], [-1, 0.5, 3]]\n";
    file(3.0);
    let hash = |steps: &str| common::plan(&case.job(steps, ""), &case.folder.0).expect("a plan").hash;
    let before = hash(named);
    let want = alone(&case, written, &x.shape);
    case.expect(named, "", &want);
    file(4.0);
    assert_ne!(hash(named), before, "other weights, another job");
    std::fs::write(case.folder.path("w.npy"), "no array").expect("a file");
    let message = common::plan(&case.job(named, ""), &case.folder.0).err().expect("refused");
    assert!(message.contains("weights") && message.contains("is no .npy file"), "{message}");
}
