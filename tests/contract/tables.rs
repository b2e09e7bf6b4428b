//! Tables: scalers and clusters as scikit-learn has them, and the same bytes on any grid.

use std::path::Path;

use halostream::array::DType;
use serde_json::Value;

use crate::common::{Array, Folder, Random, read, run};
use crate::{Case, hex};

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tables.json");
    serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON")
}

pub fn stored(value: &Value) -> Array {
    let shape: Vec<u64> = value["shape"].as_array().expect("a shape").iter().map(|n| n.as_u64().expect("a length")).collect();
    let dtype = DType::parse(value["dtype"].as_str().expect("a dtype")).expect("a dtype");
    Array { shape, dtype, bytes: hex(&value["values"]) }
}

/// A step with a store for each output.
pub fn step(op: &str, parameters: &Value, outputs: &[&str]) -> (String, String) {
    let lines: String = parameters.as_object().expect("parameters").iter().map(|(k, v)| format!("{k} = {v}\n")).collect();
    let more = |name: &&str| format!("[outputs.{name}]\npath = \"out-{name}.zarr\"\nfrom = \"{op}.{name}\"\n");
    (format!("[[step]]\nop = \"{op}\"\ninputs = [\"x\"]\n{lines}"), outputs.iter().map(more).collect())
}

pub fn doubles(array: &Array) -> Vec<f64> {
    match array.dtype {
        DType::F32 => array.values::<f32>().iter().map(|v| f64::from(*v)).collect(),
        DType::I32 => array.values::<i32>().iter().map(|v| f64::from(*v)).collect(),
        _ => array.values(),
    }
}

/// What scikit-learn has, within the rounding of sums in another order; `near` in units of the largest value of a column (what is nothing but rounding is 0 here or there).
fn compare(got: &Array, want: &Array, near: f64, about: &str) {
    assert_eq!((&got.shape, got.dtype), (&want.shape, want.dtype), "{about}");
    let width = want.shape.last().map_or(1, |n| *n as usize);
    let (got, want) = (doubles(got), doubles(want));
    for column in 0..width {
        let largest = want.iter().skip(column).step_by(width).filter(|v| !v.is_nan()).fold(0f64, |n, v| n.max(v.abs()));
        for (at, (g, w)) in got.iter().zip(&want).enumerate().skip(column).step_by(width) {
            let is_near = (g - w).abs() <= near * largest.max(1e-3) || (g.is_nan() && w.is_nan());
            assert!(is_near, "[{at}] is {g}, scikit-learn has {w}: {about}");
        }
    }
}

#[test]
fn scalers_and_clusters_are_scikit_learns() {
    let golden = golden();
    let mut r = Random(50);
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for case in golden["cases"].as_array().expect("cases") {
        let (op, input) = (case["op"].as_str().expect("an op"), case["input"].as_str().expect("an input"));
        let x = stored(&golden["inputs"][input]);
        let outputs: Vec<&str> = case["outputs"].as_object().expect("outputs").keys().map(String::as_str).collect();
        let (steps, stores) = step(op, &case["parameters"], &outputs);
        for _ in 0..2 {
            let streamed = Case::new(&mut r, "sklearn", &[("x", &x)]);
            // The case's own output goes to a store of the step's default.
            streamed.run(&steps, &stores);
            let about = streamed.job(&steps, &stores);
            for name in &outputs {
                let want = stored(&case["outputs"][name]);
                let got = read(&streamed.folder.path(&format!("out-{name}.zarr")), None);
                let near = match (op, got.dtype) {
                    (_, DType::I32) => 0.0,
                    // scikit-learn rounds to the table's dtype after each operation, and clusters in it.
                    (_, DType::F32) => 5e-6,
                    ("kmeans", _) if input.ends_with("32") => 1e-5,
                    ("min_max_scaler", _) if input == "f32" => 1e-6,
                    ("robust_scaler", _) if input == "f32" => 1e-6,
                    _ => 1e-10,
                };
                compare(&got, &want, near, &format!("{name} of\n{about}"));
            }
        }
        *counts.entry(op.to_owned()).or_default() += 1;
    }
    assert!(counts.len() == 4 && counts.values().all(|n| *n >= 7), "{counts:?}");
}

/// A table of any dtype, NaN and infinities left out.
fn table(r: &mut Random, dtype: DType, shape: &[u64]) -> Array {
    let n = shape.iter().product::<u64>() as usize;
    let mut one = || (r.range(0, 40) as f64 - 11.0) * 0.75;
    match dtype {
        DType::F32 => Array::new::<f32>(shape, &(0..n).map(|_| one() as f32).collect::<Vec<_>>()),
        DType::F16 => Array::new::<half::f16>(shape, &(0..n).map(|_| half::f16::from_f64(one())).collect::<Vec<_>>()),
        DType::U8 => Array::new::<u8>(shape, &(0..n).map(|_| one().abs() as u8).collect::<Vec<_>>()),
        DType::I32 => Array::new::<i32>(shape, &(0..n).map(|_| one() as i32).collect::<Vec<_>>()),
        _ => Array::new::<f64>(shape, &(0..n).map(|_| one()).collect::<Vec<_>>()),
    }
}

/// Runs the steps of a case in one block by one worker, on every code path, then in its own way.
pub fn same_on_any_grid(case: &Case, steps: &str, stores: &str, outputs: &[&str], shape: &[u64]) {
    let found = || -> Vec<Array> { outputs.iter().map(|o| read(&case.folder.path(&format!("out-{o}.zarr")), None)).collect() };
    let clear = || {
        for name in outputs.iter().map(|o| format!("out-{o}.zarr")).chain(["out.zarr".to_owned()]) {
            std::fs::remove_dir_all(case.folder.path(&name)).expect("removed");
        }
    };
    let mut want: Option<Vec<Array>> = None;
    halostream::simd::both_paths(|_| {
        let alone = case
            .job(steps, stores)
            .replace(&case.engine, &format!("[engine]\nworkers = 1\nblock = {shape:?}\nmemory = \"1GiB\"\n"));
        run(&alone, &case.folder.0).unwrap_or_else(|e| panic!("{e}\n{alone}"));
        let here = found();
        clear();
        assert!(want.as_ref().is_none_or(|w| *w == here), "vector and scalar code differ\n{alone}");
        want = Some(here);
    });
    case.run(steps, stores);
    let streamed = found();
    for ((name, got), want) in outputs.iter().zip(&streamed).zip(want.iter().flatten()) {
        assert!(got == want, "{name} depends on the grid\n{}", case.job(steps, stores));
    }
}

#[test]
fn i1_scalers_do_not_depend_on_the_grid() {
    let mut r = Random(51);
    for round in 0..18 {
        let op = ["standard_scaler", "min_max_scaler", "robust_scaler"][round % 3];
        let dtype = *r.pick(&[DType::F32, DType::F64, DType::F16, DType::U8, DType::I32]);
        let shape = [[r.range(1, 700), r.range(1, 9)].to_vec(), [r.range(1, 30), r.range(1, 20), r.range(1, 7)].to_vec()]
            [usize::from(round % 4 == 3)]
        .clone();
        let x = table(&mut r, dtype, &shape);
        let axis = match round % 4 {
            1 => "axis = 1\n",
            2 => "axis = [0, 1]\n",
            _ => "",
        };
        let case = Case::new(&mut r, "scalers", &[("x", &x)]);
        let outputs = ["scaled", "scale"];
        let (steps, stores) = step(op, &serde_json::json!({}), &outputs);
        same_on_any_grid(&case, &format!("{steps}{axis}"), &stores, &outputs, &shape);
    }
}

#[test]
fn i5_what_has_no_scale_is_told() {
    let mut r = Random(52);
    let mut fails = |x: &Array, steps: &str| {
        let case = Case::new(&mut r, "no-scale", &[("x", x)]);
        run(&case.job(&format!("[[step]]\ninputs = [\"x\"]\n{steps}"), ""), &case.folder.0).expect_err(steps)
    };
    let x = Array::new::<f32>(&[2, 3], &[1.0, 2.0, 3.0, 4.0, f32::INFINITY, 6.0]);
    let error = fails(&x, "op = \"standard_scaler\"");
    assert!(error.contains("x holds inf at [1, 1]"), "{error}");
    let line = Array::new::<f32>(&[3], &[1.0, 2.0, 3.0]);
    let error = fails(&line, "op = \"robust_scaler\"");
    assert!(error.contains("give axis = 0"), "{error}");
    let error = fails(&x, "op = \"robust_scaler\"\nquantile_range = [75, 25]");
    assert!(error.contains("the smaller first"), "{error}");
    let error = fails(&x, "op = \"min_max_scaler\"\nfeature_range = 3");
    assert!(error.contains("expected two numbers"), "{error}");
    let error = fails(&x, "op = \"standard_scaler\"\naxis = 2");
    assert!(error.contains("axis 2 does not exist"), "{error}");
    let z = Array::new(&[1, 1], &[num_complex::Complex32::new(1.0, 2.0)]);
    let error = fails(&z, "op = \"min_max_scaler\"");
    assert!(error.contains("take its amplitude"), "{error}");
    let folder = Folder::new("empty");
    let nothing = Array::new::<f64>(&[0, 3], &[]);
    crate::common::write(&folder.path("x.zarr"), &nothing, &[1, 3], None, halostream::config::CodecName::None);
    let job = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"standard_scaler\"\n[output]\npath = \"o.zarr\"\n";
    let error = run(job, &folder.0).expect_err("nothing");
    assert!(error.contains("is empty"), "{error}");
}

/// Lloyd's, plainly: labels, centers, rounds.
fn naive_kmeans(x: &[f64], features: usize, rows: &[usize], most: usize) -> (Vec<i32>, Vec<f64>, usize) {
    let row = |i: usize| &x[i * features..(i + 1) * features];
    let mut centers: Vec<Vec<f64>> = rows.iter().map(|i| row(*i).to_vec()).collect();
    let nearest = |centers: &[Vec<f64>], i: usize| {
        let distance = |c: &Vec<f64>| row(i).iter().zip(c).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let mut best = 0;
        (1..centers.len()).for_each(|c| best = if distance(&centers[c]) < distance(&centers[best]) { c } else { best });
        best
    };
    let count = x.len() / features;
    let mut rounds = 0;
    while rounds < most {
        rounds += 1;
        let labels: Vec<usize> = (0..count).map(|i| nearest(&centers, i)).collect();
        let mean = |c: usize| {
            let own: Vec<usize> = (0..count).filter(|i| labels[*i] == c).collect();
            assert!(!own.is_empty(), "the case has an empty cluster");
            (0..features).map(|f| own.iter().map(|i| row(*i)[f]).sum::<f64>() / own.len() as f64).collect::<Vec<f64>>()
        };
        let means: Vec<Vec<f64>> = (0..centers.len()).map(mean).collect();
        let has_moved = means != centers;
        centers = means;
        if !has_moved {
            break;
        }
    }
    ((0..count).map(|i| nearest(&centers, i) as i32).collect(), centers.concat(), rounds)
}

#[test]
fn clusters_equal_the_naive_form() {
    let mut r = Random(53);
    for _ in 0..10 {
        let (count, features) = (r.range(20, 600), r.range(1, 12));
        // Whole numbers: sums in any order have the same bits.
        let x =
            Array::new::<f64>(&[count, features], &(0..count * features).map(|_| r.range(0, 1 << 20) as f64).collect::<Vec<_>>());
        let clusters = r.range(1, 11).min(count);
        let rows: Vec<u64> = (0..clusters).map(|c| c * (count / clusters)).collect();
        let at: Vec<usize> = rows.iter().map(|row| *row as usize).collect();
        let (labels, centers, rounds) = naive_kmeans(&x.values(), features as usize, &at, 9);
        let parameters = serde_json::json!({ "n_clusters": clusters, "init_rows": rows, "tol": 0, "max_iter": 9 });
        let outputs = ["labels", "centers", "n_iter"];
        let (steps, stores) = step("kmeans", &parameters, &outputs);
        let case = Case::new(&mut r, "naive", &[("x", &x)]);
        case.run(&steps, &stores);
        let found = |name: &str| read(&case.folder.path(&format!("out-{name}.zarr")), None);
        let about = case.job(&steps, &stores);
        assert!(found("labels") == Array::new(&[count], &labels), "{about}");
        assert!(found("centers") == Array::new(&[clusters, features], &centers), "{about}");
        assert_eq!(found("n_iter").values::<i32>(), [rounds as i32], "{about}");
    }
}

#[test]
fn i1_clusters_do_not_depend_on_the_grid() {
    let mut r = Random(54);
    for round in 0..15 {
        let dtype = *r.pick(&[DType::F32, DType::F64, DType::F16, DType::U8, DType::I32]);
        let shape = [r.range(12, 1500), r.range(1, 20)];
        let x = table(&mut r, dtype, &shape);
        let clusters = r.range(1, 12);
        let mut parameters = serde_json::json!({ "n_clusters": clusters, "seed": round, "max_iter": 6 });
        match round % 3 {
            0 => parameters["init"] = "random".into(),
            1 => parameters["init_rows"] = (0..clusters).map(|c| c * (shape[0] / clusters)).collect::<Vec<u64>>().into(),
            _ => parameters["init_max_iter"] = r.range(1, 4).into(),
        }
        let case = Case::new(&mut r, "clusters", &[("x", &x)]);
        let outputs = ["labels", "centers", "inertia", "n_iter"];
        let (steps, stores) = step("kmeans", &parameters, &outputs);
        same_on_any_grid(&case, &steps, &stores, &outputs, &shape);
    }
}

/// Of rows that lie in groups far from each other, k-means|| finds the groups; other seeds find them, too.
#[test]
fn clusters_that_are_there_are_found() {
    let mut r = Random(55);
    let (groups, each, features) = (9usize, 60usize, 4usize);
    let places: Vec<f64> = (0..groups * features).map(|_| r.signed() * 1e4).collect();
    let member = |i: usize| i * 7 % groups;
    let values: Vec<f32> = (0..groups * each * features)
        .map(|n| (places[member(n / features) * features + n % features] + r.signed()) as f32)
        .collect();
    let x = Array::new::<f32>(&[(groups * each) as u64, features as u64], &values);
    for seed in 0..6 {
        let case = Case::new(&mut r, "groups", &[("x", &x)]);
        let parameters = serde_json::json!({ "n_clusters": groups, "seed": seed });
        let (steps, stores) = step("kmeans", &parameters, &["labels"]);
        case.run(&steps, &stores);
        let labels = read(&case.folder.path("out-labels.zarr"), None).values::<i32>();
        let of_group: Vec<i32> =
            (0..groups).map(|g| labels[(0..labels.len()).find(|i| member(*i) == g).expect("a member")]).collect();
        assert!(labels.iter().enumerate().all(|(i, label)| *label == of_group[member(i)]), "seed {seed}");
        let different: std::collections::BTreeSet<i32> = of_group.into_iter().collect();
        assert_eq!(different.len(), groups, "seed {seed}");
    }
}

/// More clusters than different rows: every row is a center of its own, other clusters are empty.
#[test]
fn more_clusters_than_different_rows_end() {
    let mut r = Random(56);
    let x = Array::new::<u8>(&[20, 2], &(0..20u8).flat_map(|i| [i % 3, 1]).collect::<Vec<_>>());
    for init in ["init = \"random\"", "init = \"k-means||\"", "init_rows = [0, 3, 6, 9, 12]"] {
        let case = Case::new(&mut r, "few", &[("x", &x)]);
        let (steps, stores) = step("kmeans", &serde_json::json!({ "n_clusters": 5 }), &["labels", "inertia"]);
        case.run(&format!("{steps}{init}\n"), &stores);
        assert_eq!(read(&case.folder.path("out-inertia.zarr"), None).values::<f64>(), [0.0], "{init}");
        let labels = read(&case.folder.path("out-labels.zarr"), None).values::<i32>();
        assert!((0..20).all(|i| labels[i] == labels[i % 3]), "{init}: {labels:?}");
    }
}

#[test]
fn i5_what_has_no_clusters_is_told() {
    let mut r = Random(57);
    let mut fails = |x: &Array, lines: &str, words: &str| {
        let case = Case::new(&mut r, "no-clusters", &[("x", x)]);
        let job = case.job(&format!("[[step]]\nop = \"kmeans\"\ninputs = [\"x\"]\n{lines}"), "");
        let error = run(&job, &case.folder.0).expect_err(words);
        assert!(error.contains(words), "{error}");
    };
    let mut values = vec![1.0f32; 300 * 2];
    let x = Array::new::<f32>(&[300, 2], &values);
    values[2 * 270 + 1] = f32::NAN;
    let holed = Array::new::<f32>(&[300, 2], &values);
    fails(&holed, "n_clusters = 2", "x holds NaN at [270, 1]");
    fails(&x, "n_clusters = 301", "too few for 301 clusters");
    fails(&x, "n_clusters = 2\ninit_rows = [1, 300]", "row 300 does not exist");
    fails(&x, "n_clusters = 2\ninit_rows = [1, 1]", "a row is listed twice");
    fails(&x, "n_clusters = 3\ninit_rows = [1, 2]", "2 rows for 3 clusters");
    fails(&x, "n_clusters = 0", "expected an integer from 1");
    fails(&x, "init = \"random\"\ninit_rows = [1]\nn_clusters = 1", "leave one of them out");
    fails(&x, "init = \"kmeans||\"", "did you mean \"k-means||\"");
    fails(&x, "n_clusters = 20\noversampling_factor = 0.1\ninit_max_iter = 3", "raise oversampling_factor");
    fails(&x, "tol = -1", "tol");
    fails(&Array::new::<f32>(&[4], &[1.0; 4]), "n_clusters = 2", "takes a table of rows and features");
}
