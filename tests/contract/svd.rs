//! Singular values and vectors: numpy's where they can be told apart, a decomposition of the matrix always, and the same bytes
//! on any grid.

use std::path::Path;

use halostream::array::DType;
use serde_json::{Value, json};

use crate::common::{Array, Folder, Random, read, run};
use crate::tables::{doubles, same_on_any_grid, step, stored};
use crate::{Case, random_array};

const OUTPUTS: [&str; 4] = ["u", "s", "v", "residual"];

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/svd.json");
    serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON")
}

/// The parameters as a job file writes them.
fn written(parameters: &Value) -> Value {
    let nan = |(key, value): (&String, &Value)| (key.clone(), if *value == "nan" { json!("NaN") } else { value.clone() });
    Value::Object(parameters.as_object().expect("parameters").iter().map(nan).collect())
}

fn found(case: &Case, output: &str) -> Array {
    read(&case.folder.path(&format!("out-{output}.zarr")), None)
}

#[test]
fn svd_is_numpys() {
    let golden = golden();
    let mut r = Random(90);
    for case in golden["cases"].as_array().expect("cases") {
        let input = case["input"].as_str().expect("an input");
        let x = stored(&golden["inputs"][input]);
        let wanted: Vec<&str> = case["outputs"].as_object().expect("outputs").keys().map(String::as_str).collect();
        let (steps, stores) = step("svd", &written(&case["parameters"]), &wanted);
        let streamed = Case::new(&mut r, "numpy", &[("x", &x)]);
        streamed.run(&steps, &stores);
        let is_single = x.dtype.size() <= 2 || x.dtype == DType::F32;
        let rounding: f64 = if is_single { 2e-6 } else { 1e-13 };
        for name in wanted {
            let (got, want) = (found(&streamed, name), stored(&case["outputs"][name]));
            let about = format!("{name} of {input}, {}", streamed.job(&steps, &stores));
            let is_vector = name == "u" || name == "v";
            assert_eq!(got.shape, want.shape, "{about}");
            assert_eq!(got.dtype, if is_vector && is_single { DType::F32 } else { DType::F64 }, "{about}");
            let (got, want) = (doubles(&got), doubles(&want));
            let largest = if name == "s" { want[0] } else { 1.0 };
            // What the residual lacks to 0 is a root of rounding; vectors differ by rounding over the gap to the next value.
            let near = match name {
                "residual" => rounding + 2e-7,
                "s" => rounding * largest,
                _ => 40.0 * rounding + if case["parameters"]["tol"].is_null() { 2e-9 } else { 2e-3 },
            };
            let near = if case["parameters"]["tol"].is_null() { near } else { near + 1e-6 * largest };
            for (at, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= near, "[{at}] is {g}, numpy has {w}: {about}");
            }
        }
    }
}

/// The matrix that is decomposed, plainly.
fn standardised(x: &[f64], columns: usize, center: bool, scale: &str, missing: Option<(f64, bool)>) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(columns) {
        let is_gone = |v: f64| missing.is_some_and(|(m, _)| v == m);
        let zero = missing.is_some_and(|(_, zero)| zero);
        let present: Vec<f64> =
            row.iter().filter(|v| zero || !is_gone(**v)).map(|v| if is_gone(*v) { 0.0 } else { *v }).collect();
        let mean = if present.is_empty() { 0.0 } else { present.iter().sum::<f64>() / present.len() as f64 };
        let variance = mean / 2.0 * (1.0 - mean / 2.0) * if scale == "hwe" { 2.0 } else { 1.0 };
        for value in row {
            let filled = if is_gone(*value) { if zero { 0.0 } else { mean } } else { *value };
            let centered = filled - if center || scale != "none" { mean } else { 0.0 };
            out.push(match scale {
                "none" => centered,
                _ if variance <= 0.0 => 0.0,
                _ => centered / variance.sqrt(),
            });
        }
    }
    out
}

/// Of a random matrix: `u` and `v` are orthonormal, `A^T u = v s` exactly and `residual` is what is left; with all of them the
/// product is the matrix.
#[test]
fn what_comes_out_decomposes_the_matrix() {
    let mut r = Random(91);
    for round in 0..24 {
        let dtype = *r.pick(&[DType::U8, DType::F32, DType::F64, DType::I16, DType::I64, DType::Bool]);
        let (rows, columns) = if round % 3 == 0 { (r.range(257, 700), r.range(1, 50)) } else { (r.range(1, 90), r.range(1, 90)) };
        let x = random_array(&mut r, dtype, &[rows, columns]);
        let values = match dtype {
            DType::F32 | DType::I32 | DType::F64 => doubles(&x),
            DType::I16 => x.values::<i16>().iter().map(|v| f64::from(*v)).collect(),
            DType::I64 => x.values::<i64>().iter().map(|v| *v as f64).collect(),
            _ => x.bytes.iter().map(|v| f64::from(*v)).collect(),
        };
        let least = rows.min(columns);
        let k = if round % 2 == 0 { least } else { r.range(1, least) };
        let center = round % 4 == 1;
        let missing = (dtype != DType::Bool && round % 3 == 1).then_some((3.0, r.range(0, 1) == 0));
        let mut parameters = json!({ "k": k, "n_power_iter": r.range(0, 3), "center": center, "seed": round });
        if let Some((value, zero)) = missing {
            parameters["missing"] = json!(value as i64);
            parameters["missing_as"] = json!(if zero { "zero" } else { "mean" });
        }
        let (steps, stores) = step("svd", &parameters, &OUTPUTS);
        let case = Case::new(&mut r, "decomposes", &[("x", &x)]);
        case.run(&steps, &stores);
        let about = case.job(&steps, &stores);
        let a = standardised(&values, columns as usize, center, "none", missing);
        let (k, m, n) = (k as usize, rows as usize, columns as usize);
        let [u, s, v, residual] = OUTPUTS.map(|name| doubles(&found(&case, name)));
        let is_single = dtype.size() <= 2 || dtype == DType::F32;
        let near: f64 = if is_single { 2e-5 } else { 1e-11 };
        let norm = a.iter().map(|v| v * v).sum::<f64>().sqrt();
        assert!(s.is_sorted_by(|a, b| a >= b) && s.iter().all(|s| *s >= 0.0), "{s:?}: {about}");
        // Vectors of values that are rounding have no counterpart.
        let rank = s.iter().filter(|value| **value > 3e-2 * s[0]).count();
        let inner = |x: &[f64], len: usize, i: usize, j: usize| (0..len).map(|p| x[p * k + i] * x[p * k + j]).sum::<f64>();
        for i in 0..rank {
            for j in 0..rank {
                let want = f64::from(u8::from(i == j));
                let (of_u, of_v) = (inner(&u, m, i, j), inner(&v, n, i, j));
                assert!((of_u - want).abs() < 50.0 * near && (of_v - want).abs() < 50.0 * near, "{of_u} {of_v} {i} {j}: {about}");
            }
            // Lines are rows, but for wide matrices without means.
            let by_row = rows >= columns || center || missing.is_some_and(|(_, zero)| !zero);
            for p in 0..if by_row { n } else { m } {
                let (product, want) = match by_row {
                    true => ((0..m).map(|q| a[q * n + p] * u[q * k + i]).sum::<f64>(), v[p * k + i] * s[i]),
                    false => ((0..n).map(|q| a[p * n + q] * v[q * k + i]).sum::<f64>(), u[p * k + i] * s[i]),
                };
                assert!((product - want).abs() <= 50.0 * near * norm, "{product} for {want} at {p}, {i}: {about}");
            }
        }
        let left: f64 = (0..m * n)
            .map(|at| a[at] - (0..k).map(|i| u[at / n * k + i] * s[i] * v[at % n * k + i]).sum::<f64>())
            .map(|v| v * v)
            .sum::<f64>();
        let want = if norm > 0.0 { left.sqrt() / norm } else { 0.0 };
        assert!((residual[0] - want).abs() < 2e-3 * want + near.sqrt(), "{residual:?} for {want}: {about}");
        assert!(k < least as usize || want < 50.0 * near, "{want} is left by all: {about}");
    }
}

#[test]
fn i1_svd_does_not_depend_on_the_grid() {
    let mut r = Random(92);
    for round in 0..16 {
        let dtype = [DType::U8, DType::U8, DType::F32, DType::F64, DType::I16, DType::F16][round % 6];
        let shape = if round % 5 == 4 { [r.range(5, 60), r.range(200, 900)] } else { [r.range(30, 1500), r.range(5, 80)] };
        let x = random_array(&mut r, dtype, &shape);
        let k = r.range(1, shape[0].min(shape[1]).min(30));
        let mut parameters = json!({ "k": k, "n_power_iter": r.range(0, 3), "n_oversamples": r.range(0, 12), "seed": round });
        match round % 4 {
            1 => parameters["center"] = json!(true),
            2 => parameters["missing"] = json!(1),
            3 => parameters["tol"] = json!(1e-2),
            _ => {}
        }
        let case = Case::new(&mut r, "svd", &[("x", &x)]);
        let (steps, stores) = step("svd", &parameters, &OUTPUTS);
        same_on_any_grid(&case, &steps, &stores, &OUTPUTS, &shape);
    }
    // Genotypes, standardised.
    let calls: Vec<u8> = (0..900 * 37).map(|_| (r.next() % 4) as u8).collect();
    let x = Array::new::<u8>(&[900, 37], &calls);
    let case = Case::new(&mut r, "calls", &[("x", &x)]);
    let (steps, stores) = step("svd", &json!({ "k": 5, "scale": "hwe", "missing": 3 }), &OUTPUTS);
    same_on_any_grid(&case, &steps, &stores, &OUTPUTS, &[900, 37]);
}

/// Fewer directions than are asked for: values of 0 behind those that there are, and still orthonormal vectors.
#[test]
fn ranks_below_k_end_in_zeros() {
    let mut r = Random(93);
    let outer = |m: u64, n: u64, rank: u64| -> Vec<f64> {
        (0..m * n).map(|at| (1..=rank).map(|i| ((at / n * i % 7) * (at % n * (i + 1) % 5)) as f64).sum()).collect()
    };
    for (m, n, rank) in [(300, 20, 3), (40, 20, 1), (20, 60, 2), (50, 9, 0)] {
        for single in [false, true] {
            let values = outer(m, n, rank);
            let x = match single {
                true => Array::new::<f32>(&[m, n], &values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
                false => Array::new::<f64>(&[m, n], &values),
            };
            let case = Case::new(&mut r, "rank", &[("x", &x)]);
            let (steps, stores) = step("svd", &json!({ "k": 6 }), &OUTPUTS);
            case.run(&steps, &stores);
            let about = case.job(&steps, &stores);
            let s = doubles(&found(&case, "s"));
            let rounding: f64 = if single { 1e-5 } else { 1e-12 };
            let rank = rank as usize;
            assert!(s[..rank].iter().all(|v| *v > 1e-2 * s[0]), "{s:?}: {about}");
            assert!(s[rank..].iter().all(|v| *v <= rounding * s[0]), "{s:?}: {about}");
            let short = doubles(&found(&case, if m < n { "u" } else { "v" }));
            let places = m.min(n) as usize;
            for i in 0..6 {
                for j in 0..6 {
                    let inner = (0..places).map(|p| short[p * 6 + i] * short[p * 6 + j]).sum::<f64>();
                    assert!((inner - f64::from(u8::from(i == j))).abs() < 1e-5, "{inner} {i} {j}: {about}");
                }
            }
            let residual = doubles(&found(&case, "residual"))[0];
            assert!(residual <= if rank == 0 { 0.0 } else { rounding.sqrt() }, "{residual}: {about}");
        }
    }
}

/// Rows of one value, and rows without a call, are zeros to a scale.
#[test]
fn rows_that_say_nothing_are_zeros() {
    let mut r = Random(94);
    let calls: Vec<u8> = (0..40u64)
        .flat_map(|row| (0..12u64).map(move |at| (row, at)))
        .map(|(row, at)| match row % 5 {
            1 => 0,
            2 => 2,
            3 => 3,
            _ => [0, 1, 2, 3][((row * 7 + at * (2 * row + 1)) % 4) as usize],
        })
        .collect();
    let x = Array::new::<u8>(&[40, 12], &calls);
    let case = Case::new(&mut r, "nothing", &[("x", &x)]);
    let (steps, stores) = step("svd", &json!({ "k": 4, "scale": "patterson", "missing": 3 }), &OUTPUTS);
    case.run(&steps, &stores);
    let u = doubles(&found(&case, "u"));
    for (row, values) in u.chunks(4).enumerate() {
        assert_eq!(values.iter().all(|v| *v == 0.0), (1..4).contains(&(row % 5)), "row {row}: {values:?}");
    }
    let values: Vec<f64> = calls.iter().map(|v| f64::from(*v)).collect();
    let a = standardised(&values, 12, true, "patterson", Some((3.0, false)));
    let norm = a.iter().map(|v| v * v).sum::<f64>();
    let held = doubles(&found(&case, "s")).iter().map(|s| s * s).sum::<f64>();
    let residual = doubles(&found(&case, "residual"))[0];
    assert!((residual - (1.0 - held / norm).sqrt()).abs() < 1e-5, "{residual}");
}

#[test]
fn i5_what_has_no_decomposition_is_told() {
    let mut r = Random(95);
    let mut fails = |x: &Array, lines: &str, words: &str| {
        let case = Case::new(&mut r, "no-svd", &[("x", x)]);
        let job = case.job(&format!("[[step]]\nop = \"svd\"\ninputs = [\"x\"]\n{lines}"), "");
        let error = run(&job, &case.folder.0).expect_err(words);
        assert!(error.contains(words), "{error}");
    };
    let numbers: Vec<f32> = (0..600).map(|i| if i == 517 { f32::NAN } else { (i % 13) as f32 }).collect();
    let x = Array::new::<f32>(&[60, 10], &numbers);
    fails(&x, "k = 2", "x holds NaN at [51, 7]");
    fails(&x, "k = 11", "has 10 singular values");
    fails(&x, "k = 2\nmissing = nan\nscale = \"patterson\"", "is no count of alleles");
    fails(&x, "k = 0", "expected an integer from 1");
    fails(&x, "k = 2\nn_oversamples = 5000", "expected an integer from 0");
    fails(&x, "k = 2\nmethod = \"exact\"", "randomized");
    fails(&x, "k = 2\ntol = -1", "at least 0");
    fails(&x, "k = 2\nscale = \"hwe\"\ncenter = false", "leave one of them out");
    fails(&x, "k = 2\nmissing_as = \"zero\"", "give it as `missing`");
    let large =
        Array::new::<f32>(&[60, 10], &numbers.iter().map(|v| if v.is_nan() { f32::INFINITY } else { *v }).collect::<Vec<_>>());
    fails(&large, "k = 2", "x holds inf at [51, 7]");
    let beyond = Array::new::<f64>(&[5, 5], &[1e200; 25]);
    fails(&beyond, "k = 2", "leave the range");
    let counts = Array::new::<u8>(&[30, 4], &(0..120u8).map(|i| if i == 66 { 3 } else { i % 3 }).collect::<Vec<_>>());
    fails(&counts, "k = 2\nscale = \"hwe\"", "x holds 3 at [16, 2]: it is no count of alleles (0 to 2)");
    fails(&counts, "k = 2\nmissing = 300", "missing: 300 does not fit uint8");
    let cube = Array::new::<f32>(&[2, 2, 2], &[1.0; 8]);
    fails(&cube, "k = 1", "takes a matrix");
    let complex = Array::new(&[1, 1], &[num_complex::Complex32::new(1.0, 2.0)]);
    fails(&complex, "k = 1", "take its amplitude");
    let empty = Folder::new("svd-empty");
    let nothing = Array::new::<f64>(&[0, 3], &[]);
    crate::common::write(&empty.path("x.zarr"), &nothing, &[1, 3], None, halostream::config::CodecName::None);
    let job = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"svd\"\nk = 1\n[output]\npath = \"o.zarr\"\n";
    let error = run(job, &empty.0).expect_err("nothing");
    assert!(error.contains("has 0 singular values"), "{error}");
}
