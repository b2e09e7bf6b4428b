//! Every filter against scipy.ndimage on whole arrays (`tests/golden/filters.py`), and any part of its result against the
//! whole, with and without vector code.

use serde_json::Value;

use super::super::testing::{Random, Whole, bind, bind_inputs, boundary_of, from_hex, golden_file, map_one, values, whole_of};
use super::super::{Binding, StepInput, find};
use super::chain::TEST_CACHE;
use crate::array::{Block, Boundary, DType, Region, Rule};

fn golden() -> Value {
    golden_file("filters.json")
}

fn bound(op: &str, lines: &str, whole: &Whole, boundary: Boundary) -> Binding {
    let input = StepInput { meta: whole.meta.clone(), boundary: Some(boundary), depth: None };
    bind_inputs(op, lines, &[input]).unwrap_or_else(|e| panic!("{op}\n{lines}\n{e}"))
}

/// Integers equal; floats within the last bits, because libm's exponential is not numpy's.
fn assert_near(got: &[u8], want: &[u8], dtype: DType, case: &str) {
    let near = |got: Vec<f64>, want: Vec<f64>, tolerance: f64| {
        let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance * largest, "{worst:e} off: {case}");
    };
    let singles = |b: &[u8]| bytemuck::pod_collect_to_vec::<u8, f32>(b).iter().map(|v| f64::from(*v)).collect();
    match dtype {
        DType::F32 => near(singles(got), singles(want), 3e-7),
        DType::F64 => near(bytemuck::pod_collect_to_vec(got), bytemuck::pod_collect_to_vec(want), 1e-14),
        _ => assert_eq!(got, want, "{case}"),
    }
}

#[test]
fn filters_equal_scipy_on_whole_arrays_and_any_part_equals_the_whole() {
    let golden = golden();
    let mut random = Random::new(11);
    let mut seen = std::collections::BTreeSet::new();
    for case in golden["cases"].as_array().expect("cases") {
        let whole = whole_of(&golden["inputs"][case["input"].as_str().expect("a name")]);
        let op = case["op"].as_str().expect("an op");
        if find(op).is_none() {
            continue;
        }
        let lines: String =
            case["params"].as_object().expect("parameters").iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let text = format!("{op} of {}, boundary {}\n{lines}", case["input"], case["boundary"]);
        let bound = bound(op, &lines, &whole, boundary_of(&case["boundary"], whole.meta.rank()));
        seen.insert(find(op).expect("listed").name);
        let all = Region::whole(&whole.meta.shape);
        let result = map_one(&bound, &[&whole], &all).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_near(&values(&result), &from_hex(&case["want"]), whole.meta.dtype, &text);

        for _ in 0..12 {
            let ranges: Vec<(i64, i64)> = (whole.meta.shape.iter())
                .map(|&n| {
                    let start = random.below(n);
                    (start as i64, (start + 1 + random.below(n - start)) as i64)
                })
                .collect();
            let part = Region::from_ranges(&ranges);
            let want = values::<u8>(&result.cut(&all, &part));
            let cache = 1 << random.below(12);
            crate::simd::both_paths(|scalar| {
                for cache in [None, Some(cache)] {
                    TEST_CACHE.set(cache);
                    let got = map_one(&bound, &[&whole], &part).unwrap_or_else(|e| panic!("{e}: {text}"));
                    TEST_CACHE.set(None);
                    assert_eq!(values::<u8>(&got), want, "{part} scalar {scalar} cache {cache:?}: {text}");
                }
            });
        }
    }
    assert!(seen.len() > 20, "golden values for {seen:?} only");
}

#[test]
fn strips_through_the_cache_make_no_difference_i1() {
    let mut random = Random::new(23);
    let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(7.5)];
    for round in 0..60 {
        let rank = 2 + round % 3;
        let shape: Vec<usize> = (0..rank).map(|_| 1 + random.below([40, 24, 12][rank - 2]) as usize).collect();
        let cells: Vec<f64> = (0..shape.iter().product()).map(|_| random.unit()).collect();
        let whole = Whole::new(Block::from_values(&shape, &cells));
        let mut rule = || rules[random.below(5) as usize];
        let boundary: Boundary = (0..rank).map(|_| [rule(), rule()]).collect();
        for (op, lines) in [
            ("gaussian_filter", "sigma = 1.1"),
            ("gaussian_gradient_magnitude", "sigma = 0.6"),
            ("uniform_filter", "size = 4"),
            ("maximum_filter", "size = 5"),
            ("white_tophat", "size = 3"),
        ] {
            let bound = bound(op, lines, &whole, boundary.clone());
            let mut part = Region::whole(&whole.meta.shape);
            for axis in (0..rank).filter(|a| !bound.whole.contains(a)) {
                part.start[axis] = random.below(shape[axis] as u64) as i64;
            }
            let want = values::<u8>(&map_one(&bound, &[&whole], &part).expect("a result"));
            TEST_CACHE.set(Some(1 << random.below(14)));
            let got = map_one(&bound, &[&whole], &part).expect("a result");
            TEST_CACHE.set(None);
            assert_eq!(values::<u8>(&got), want, "{op} {part} of {shape:?}, {boundary:?}");
        }
    }
}

#[test]
fn rules_may_differ_from_side_to_side() {
    let golden = golden();
    let whole = whole_of(&golden["inputs"]["f64_2d"]);
    let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(7.5)];
    let mut random = Random::new(5);
    for (op, lines) in
        [("gaussian_filter", "sigma = 1.5"), ("grey_opening", "size = [4, 3]"), ("grey_closing", "footprint = [[1, 0], [1, 1]]")]
    {
        for _ in 0..20 {
            let mut rule = || rules[random.below(5) as usize];
            let bound = bound(op, lines, &whole, vec![[rule(), rule()], [rule(), rule()]]);
            let all = Region::whole(&whole.meta.shape);
            let result = map_one(&bound, &[&whole], &all).expect("a result");
            let mut part = all.clone();
            for axis in (0..2).filter(|a| !bound.whole.contains(a)) {
                part.start[axis] = random.below(4) as i64;
                part.stop[axis] -= random.below(4) as i64;
            }
            let got = map_one(&bound, &[&whole], &part).expect("a result");
            assert_eq!(values::<u8>(&got), values::<u8>(&result.cut(&all, &part)), "{op} {part} {:?}", bound.inputs[0].rules());
        }
    }
}

#[test]
fn what_no_filter_can_mean_is_refused() {
    let golden = golden();
    let volume = whole_of(&golden["inputs"]["f32"]);
    let refuse = |op: &str, lines: &str, text: &str| {
        let message = bind(op, lines, &[&volume]).map(|_| ()).unwrap_err();
        assert!(message.contains(text), "{op}: {message}");
    };
    refuse("gaussian_filter", "", "missing; give the standard deviation");
    refuse("gaussian_filter", "sigma = [1.0, 2.0]", "sigma has 2 entries, the array has 3 axes");
    refuse("gaussian_filter", "sigma = -1.0", "a number from 0 up, found -1");
    refuse("gaussian_filter", "sigma = 1e300", "at most 524288");
    refuse("gaussian_filter", "sigma = 1.0\norder = 4", "order 0 to 3");
    refuse("gaussian_filter", "sigma = 1.0\nradius = 3\ntruncate = 3.0", "no effect beside `radius`");
    refuse("uniform_filter", "size = 0", "1 to 1048576 cells long, found 0");
    refuse("uniform_filter", "size = 3\norigin = 2", "-1 to 1 is possible");
    refuse("sobel", "axis = 3", "axis 3 does not exist");
    refuse("median_filter", "", "size or footprint");
    refuse("median_filter", "size = 3\nfootprint = [[[1]]]", "not both");
    refuse("median_filter", "footprint = [[1, 1]]", "footprint has 2 axes, the array has 3");
    refuse("median_filter", "footprint = [[[0]]]", "no cell");
    refuse("median_filter", "footprint = [[[1, 1], [1]]]", "not all of one length");
    refuse("percentile_filter", "size = 3\npercentile = 101", "-100 to 100");
    refuse("rank_filter", "size = 3\nrank = 27", "27 cells");
    refuse("correlate", "", "weights");
    refuse("correlate", "weights = [1, 2]", "weights has 1 axes, the array has 3");

    let with = |boundary: Rule, dtype: DType| {
        let mut input = StepInput { meta: volume.meta.clone(), boundary: Some(vec![[boundary; 2]; 3]), depth: None };
        input.meta.dtype = dtype;
        bind_inputs("gaussian_filter", "sigma = 1", &[input]).map(|_| ()).unwrap_err()
    };
    assert!(with(Rule::None, DType::F32).contains("boundary \"none\" has none"));
    assert!(with(Rule::Constant(0.5), DType::U8).contains("0.5 does not fit uint8"));
    assert!(with(Rule::Reflect, DType::C64).contains("takes no complex64"));
    assert!(with(Rule::Reflect, DType::Bool).contains("takes no bool"));
}

#[test]
fn a_missing_value_is_not_taken_for_data() {
    let mut whole = Whole::new(Block::from_values(&[2, 3], &[1i16, 2, 3, -9, 5, 6]));
    whole.meta.missing = Some(crate::array::Scalar::of(-9i16));
    let bound = bind("median_filter", "size = [1, 3]", &[&whole]).unwrap();
    let message = map_one(&bound, &[&whole], &Region::whole(&[2, 3])).unwrap_err().to_string();
    assert!(message.starts_with("input holds its missing value -9 at [1, 0]"), "{message}");
    assert!(map_one(&bound, &[&whole], &Region::from_ranges(&[(0, 1), (0, 3)])).is_ok());
}
