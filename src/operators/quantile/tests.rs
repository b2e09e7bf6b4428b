use super::super::testing::{Random, Whole, bind, build, folds, map_one, run_fold, values};
use super::rule::{Between, METHODS, Method, Quantiles};
use crate::array::{Block, Buffer, DType, Region, Scalar};
use crate::operators::{Operator, StepInput};

fn step(whole: &Whole) -> [StepInput; 1] {
    [StepInput { meta: whole.meta.clone(), boundary: None, depth: None }]
}

fn whole_form(lines: &str, whole: &Whole) -> Block {
    let bound = bind("quantile", lines, &[whole]).unwrap();
    map_one(&bound, &[whole], &Region::whole(&whole.meta.shape)).unwrap()
}

/// By passes, whose results are laid out with the kept axes in `kept`.
fn by_passes(operator: &dyn Operator, whole: &Whole, kept: &[usize], leaf: u64) -> Vec<u8> {
    let folds = folds(operator, &step(whole));
    let mut found: Option<Whole> = None;
    for fold in &folds[..folds.len() - 1] {
        let inputs: Vec<&Whole> = std::iter::once(whole).chain(&found).collect();
        let (dtype, bytes) = run_fold(fold, &inputs, leaf).unwrap();
        let words = bytes.len() / 8 / kept.iter().product::<usize>();
        let shape: Vec<usize> = kept.iter().copied().chain([words]).collect();
        found = Some(Whole::new(Block::new(Buffer::from_slice(&bytes), dtype, shape)));
    }
    let inputs: Vec<&Whole> = std::iter::once(whole).chain(&found).collect();
    run_fold(&folds[folds.len() - 1], &inputs, leaf).unwrap().1
}

/// Random bits: every kind of float.
fn wild(n: usize, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    (0..n)
        .map(|_| match random.below(9) {
            0 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1e-310][random.below(5) as usize],
            1..4 => random.below(50) as f64 - 25.0,
            _ => Some(f64::from_bits(random.bits())).filter(|v| !v.is_nan()).unwrap_or(2.5),
        })
        .collect()
}

#[test]
fn passes_find_the_elements_that_sorting_finds() {
    let n = 4000;
    let values64 = wild(2 * n, 5);
    let x = Whole::new(Block::from_values(&[2, n], &values64));
    // Many places, so that some share leading bits for long and some part at once.
    let q: Vec<f64> = (0..=40).map(|i| f64::from(i) / 40.0).collect();
    let operator = build("quantile", &format!("q = {q:?}\nmethod = \"lower\"\naxis = 1")).unwrap();
    let got: Vec<f64> = bytemuck::pod_collect_to_vec(&by_passes(&*operator, &x, &[2], 700));
    for (row, values) in values64.chunks(n).enumerate() {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        for (i, q) in q.iter().enumerate() {
            let want = sorted[((n - 1) as f64 * q).floor() as usize];
            assert_eq!(got[i * 2 + row].to_bits(), want.to_bits(), "row {row}, q {q}");
        }
    }
    let lines = format!("q = {q:?}\nmethod = \"lower\"\naxis = 1");
    let one = values::<f64>(&whole_form(&lines, &x));
    assert!(one.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()), "one pass and four differ");
}

#[test]
fn many_kept_cells_take_narrow_bins_and_give_the_same() {
    let (rows, cols) = (9usize, 300usize);
    let x = Whole::new(Block::from_values(&[rows, cols], &wild(rows * cols, 6).iter().map(|v| *v as f32).collect::<Vec<_>>()));
    for lines in ["q = 0.5\naxis = 0", "q = [0.1, 0.77, 0.1]\naxis = 0\nmethod = \"weibull\"\nignore = 0"] {
        let operator = build("quantile", lines).unwrap();
        assert_eq!(folds(&*operator, &step(&x)).len(), 4, "8 bits a pass");
        let mut want = vec![0u8; whole_form(lines, &x).byte_len()];
        whole_form(lines, &x).copy_to(&mut want);
        for leaf in [1, 4, 100] {
            assert_eq!(by_passes(&*operator, &x, &[cols], leaf), want, "{lines}, leaves of {leaf}");
        }
    }
}

#[test]
fn nan_shows_unless_it_is_left_out() {
    let x = Whole::new(Block::from_values(&[2, 3], &[1.0f32, f32::NAN, 3.0, f32::NAN, f32::NAN, f32::NAN]));
    let run = |lines: &str| {
        let operator = build("quantile", lines).unwrap();
        let one = values::<f32>(&whole_form(lines, &x));
        let passes: Vec<f32> = bytemuck::pod_collect_to_vec(&by_passes(&*operator, &x, &[2], 2));
        assert!(one.iter().zip(&passes).all(|(a, b)| a.to_bits() == b.to_bits()), "{one:?} {passes:?}");
        one
    };
    assert!(run("q = 0.5\naxis = 1").iter().all(|v| v.is_nan()));
    let left = run("q = 0.5\naxis = 1\nignore = nan");
    assert!(left[0] == 2.0 && left[1].is_nan());
}

#[test]
fn infinities_are_limits() {
    let x = Whole::new(Block::from_values(&[4], &[1.0f64, 2.0, f64::INFINITY, f64::INFINITY]));
    for (q, want) in [("0.1", 1.3), ("0.5", f64::INFINITY), ("1", f64::INFINITY), ("0.3333333333333333", 2.0)] {
        let got = values::<f64>(&whole_form(&format!("q = {q}"), &x))[0];
        assert!(got == want || (got - want).abs() < 1e-12, "{q}: {got}");
    }
    let x = Whole::new(Block::from_values(&[2], &[-1.5e308f64, 1.5e308]));
    assert_eq!(values::<f64>(&whole_form("q = 0.5", &x)), [0.0]);
    let x = Whole::new(Block::from_values(&[2], &[i64::MIN, i64::MAX]));
    assert_eq!(values::<f64>(&whole_form("q = 0.25", &x)), [-(2f64.powi(62))]);
}

#[test]
fn results_have_the_dtype_that_the_method_calls_for() {
    let x = Whole::new(Block::from_values(&[5], &[5i16, -3, 9, 2, 2]));
    let dtype = |lines: &str| bind("quantile", lines, &[&x]).unwrap().outputs[0].dtype;
    assert_eq!(dtype("q = 0.5"), DType::F64);
    assert_eq!(dtype("q = 0.5\nmethod = \"nearest\""), DType::I16);
    assert_eq!(dtype("q = 0.5\nmethod = \"nearest\"\ndtype = \"float32\""), DType::F32);
    assert_eq!(values::<i16>(&whole_form("q = [0.5, 1, 0]\nmethod = \"lower\"", &x)), [2, 9, -3]);
    assert_eq!(values::<f32>(&whole_form("q = 0.75\nmethod = \"higher\"\ndtype = \"float32\"", &x)), [5.0]);
    let bound = bind("quantile", "q = [0.5, 1]\nkeepdims = true", &[&x]).unwrap();
    assert_eq!(map_one(&bound, &[&x], &Region::whole(&[5])).unwrap().shape(), [2, 1]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut x = Whole::new(Block::from_values(&[2, 2], &[1u8, 3, 3, 3]));
    let error = |lines: &str, x: &Whole| bind("quantile", lines, &[x]).unwrap_err();
    assert!(error("", &x).contains("missing; give the quantile"));
    assert!(error("q = 1.5", &x).contains("from 0 to 1"));
    assert!(error("q = []", &x).contains("from 0 to 1"));
    assert!(error("q = 0.5\nmethod = \"median\"", &x).contains("expected one of linear"));
    assert!(error("q = 0.5\ndtype = \"int8\"", &x).contains("a quantile is no int8"));
    assert!(error("q = 0.5", &Whole::new(Block::from_values::<f32>(&[0, 3], &[]))).contains("of nothing has no value"));
    // All of a result left out: NaN where there is one.
    let nothing = |lines: &str| map_one(&bind("quantile", lines, &[&x]).unwrap(), &[&x], &Region::whole(&[2, 2]));
    assert!(nothing("q = 0.5\naxis = 1\nignore = 3\nmethod = \"lower\"").unwrap_err().to_string().contains("left nothing"));
    let got: Vec<f64> = values(&nothing("q = 0.5\naxis = 1\nignore = 3").unwrap());
    assert!(got[0] == 1.0 && got[1].is_nan());
    x.meta.missing = Some(Scalar::from_integer(DType::U8, 3).unwrap());
    let message = map_one(&bind("quantile", "q = 0.5", &[&x]).unwrap(), &[&x], &Region::whole(&[2, 2])).unwrap_err();
    assert!(message.to_string().contains("missing value 3 at [0, 1]"), "{message}");
    assert_eq!(values::<f64>(&whole_form("q = 0.5\nignore = 3", &x)), [1.0]);
}

#[test]
fn places_stay_inside_the_sorted_values() {
    for (name, method) in METHODS {
        for count in [1, 2, 3, 10, 1001] {
            let q: Vec<f64> = (0..=20).map(|i| f64::from(i) / 20.0).collect();
            let quantiles = Quantiles { q, method };
            let ranks = quantiles.ranks(count);
            assert!(ranks.is_sorted() && ranks.iter().all(|r| *r < count) && ranks.len() == quantiles.ranks_len(), "{name}");
        }
    }
    let linear = Quantiles { q: vec![], method: Method::Linear };
    assert_eq!(linear.between(0.5, 4), Between { low: 1, high: 2, weight: 0.5 });
}
