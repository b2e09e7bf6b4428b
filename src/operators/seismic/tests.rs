//! Every attribute against numpy and scipy on whole arrays (`tests/golden/seismic.py`), and any part of its result against the
//! whole, with and without vector code.

use std::f64::consts::PI;

use super::super::testing::{
    Random, Whole, bind, bind_inputs, boundary_of, from_hex, golden_file, map, map_one, values, whole_of,
};
use super::super::{Binding, StepInput};
use crate::array::{Block, DType, Region, Rule, Scalar};

fn lines(params: &serde_json::Value) -> String {
    params.as_object().expect("parameters").iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

fn bound(op: &str, lines: &str, whole: &Whole, boundary: &serde_json::Value) -> Binding {
    let boundary = (!boundary.is_null()).then(|| boundary_of(boundary, whole.meta.rank()));
    bind_inputs(op, lines, &[StepInput { meta: whole.meta.clone(), boundary, depth: None }])
        .unwrap_or_else(|e| panic!("{op}\n{lines}\n{e}"))
}

fn doubles(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).iter().map(|v| f64::from(*v)).collect(),
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}

/// A random part of the array, along these axes all of it.
fn part(random: &mut Random, shape: &[u64], whole: &[usize]) -> Region {
    let ranges = shape.iter().enumerate().map(|(axis, &n)| {
        let start = if whole.contains(&axis) { 0 } else { random.below(n) };
        let len = if whole.contains(&axis) { n } else { 1 + random.below(n - start) };
        (start as i64, (start + len) as i64)
    });
    Region::from_ranges(&ranges.collect::<Vec<_>>())
}

#[test]
fn attributes_equal_scipy_on_whole_arrays_and_any_part_equals_the_whole() {
    let golden = golden_file("seismic.json");
    let mut random = Random::new(17);
    let mut seen = std::collections::BTreeMap::new();
    for case in golden["cases"].as_array().expect("cases") {
        let input = whole_of(&golden["inputs"][case["input"].as_str().expect("a name")]);
        let (op, lines) = (case["op"].as_str().expect("an op"), lines(&case["params"]));
        let text = format!("{op} of {}, boundary {}\n{lines}", case["input"], case["boundary"]);
        let bound = bound(op, &lines, &input, &case["boundary"]);
        *seen.entry(op).or_insert(0) += 1;
        let all = Region::whole(&input.meta.shape);
        let wanted = vec![true; bound.outputs.len()];
        let run = |part: &Region| map(&bound, &[&input], part, &wanted).unwrap_or_else(|e| panic!("{e}: {text}"));
        let results = run(&all);
        assert_eq!(results.len(), case["want"].as_array().expect("outputs").len(), "{text}");
        for (n, result) in results.iter().enumerate() {
            let dtype = bound.outputs[n].dtype;
            let got = doubles(&values(result.as_ref().expect("wanted")), dtype);
            let want = doubles(&from_hex(&case["want"][n]), dtype);
            let largest = want.iter().fold(1f64, |most, v| most.max(v.abs()));
            let near = match (dtype, results.len()) {
                (DType::F32, _) => 3e-7,
                // What an angle is known to where its sides nearly vanish is worse than the rounding; so is an eigenvector
                // where eigenvalues are near each other.
                (_, 1) => 2e-12,
                _ => 1e-9,
            };
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = (got - want).abs();
                let off = match op {
                    "instantaneous_phase" => off.min((off - 2.0 * PI).abs()),
                    "gst_dip" => off.min((off - PI).abs()),
                    _ => off,
                };
                assert!(off <= near * largest, "[{at}] {got}, scipy has {want}: {text}");
            }
        }
        for _ in 0..8 {
            let part = part(&mut random, &input.meta.shape, &bound.whole);
            crate::simd::both_paths(|scalar| {
                for (got, whole) in run(&part).iter().zip(&results) {
                    let [got, whole] = [got, whole].map(|block| block.as_ref().expect("wanted"));
                    let want = values::<u8>(&whole.cut(&all, &part));
                    assert_eq!(values::<u8>(got), want, "{part} scalar {scalar}: {text}");
                }
            });
        }
    }
    assert!(seen.len() == 7 && seen.values().all(|cases| *cases > 10), "golden values for {seen:?} only");
}

const ANY: [(&str, &str); 7] = [
    ("envelope", ""),
    ("instantaneous_phase", ""),
    ("instantaneous_frequency", "dt = 0.004"),
    ("sweetness", "window = 3"),
    ("rms_amplitude", "window = 3"),
    ("semblance_coherence", "aperture = [3, 3]"),
    ("gst_dip", "sigma = 0.3\ngradient_sigma = 0.3"),
];

#[test]
fn a_nan_reaches_as_far_as_documented() {
    let mut values_in = vec![0f32; 5 * 9];
    values_in.iter_mut().enumerate().for_each(|(i, v)| *v = (i * i % 17) as f32 - 8.0);
    values_in[2 * 9 + 4] = -f32::NAN;
    let input = Whole::new(Block::from_values(&[5, 9], &values_in));
    for (op, lines) in ANY {
        let bound = bind(op, lines, &[&input]).unwrap();
        let got: Vec<u32> = values(&map_one(&bound, &[&input], &Region::whole(&[5, 9])).unwrap());
        for (at, bits) in got.iter().enumerate() {
            let (trace, sample) = ((at / 9) as i64 - 2, (at % 9) as i64 - 4);
            let reached = match op {
                "rms_amplitude" => trace == 0 && sample.abs() <= 1,
                "semblance_coherence" => trace.abs() <= 1 && sample.abs() <= 1,
                // One cell of each derivative, one of the smoothing.
                "gst_dip" => trace.abs() <= 1 && sample.abs() <= 2 || trace.abs() <= 2 && sample.abs() <= 1,
                _ => trace == 0,
            };
            assert_eq!(f32::from_bits(*bits).is_nan(), reached, "{op} [{trace}, {sample}]");
            assert!(!reached || *bits == f32::NAN.to_bits(), "{op} has another NaN");
        }
    }
}

#[test]
fn silence_has_no_phase_frequency_dip_or_semblance() {
    let input = Whole::new(Block::from_values(&[4, 12], &[-0.0f64; 48]));
    for (op, lines) in ANY {
        let bound = bind(op, lines, &[&input]).unwrap();
        let got: Vec<f64> = values(&map_one(&bound, &[&input], &Region::whole(&[4, 12])).unwrap());
        assert!(got.iter().all(|v| *v == 0.0), "{op}: {got:?}");
    }
}

#[test]
fn what_no_attribute_can_mean_is_refused() {
    let input = Whole::new(Block::from_values(&[3, 6], &[1f32; 18]));
    let refuse = |op: &str, lines: &str, text: &str| {
        let message = bind(op, lines, &[&input]).map(|_| ()).unwrap_err();
        assert!(message.contains(text), "{op}: {message}");
    };
    refuse("envelope", "axis = 2", "axis 2 does not exist, the array has 2 axes");
    refuse("instantaneous_frequency", "", "missing; give the seconds");
    refuse("instantaneous_frequency", "dt = 0", "above zero, found 0");
    refuse("sweetness", "min_frequency = -1.0", "above zero, found -1");
    refuse("sweetness", "window = 0", "1 to 1048576 samples long, found 0");
    refuse("rms_amplitude", "", "missing; give the window's length");
    refuse("semblance_coherence", "", "missing; give the window's length along each axis");
    refuse("semblance_coherence", "aperture = [3, 3, 9]", "aperture has 3 entries, the array has 2 axes");
    refuse("semblance_coherence", "aperture = [3, 0]", "1 to 1048576 cells long, found 0");
    refuse("gst_dip", "spatial_axis = 1", "name an axis twice: [1, 1]");
    refuse("gst_dip", "spatial_axis = [0, 1, 0]", "one axis or two, found 3");
    refuse("gst_dip", "spatial_axis = -3", "spatial_axis -3 does not exist");
    refuse("gst_dip", "sigma = [1.0, 2.0, 3.0]", "above zero, or two");
    refuse("gst_dip", "gradient_sigma = 1e30", "at most 262144");
    refuse("gst_dip", "sigma = 1e6", "reaches 4000000 cells");

    let with = |op: &str, lines: &str, shape: &[u64], dtype: DType, rule: Option<Rule>| {
        let meta = super::ArrayMeta::plain("x", shape, dtype);
        let boundary = rule.map(|rule| vec![[rule; 2]; shape.len()]);
        bind_inputs(op, lines, &[StepInput { meta, boundary, depth: None }]).map(|_| ()).unwrap_err()
    };
    for (op, lines) in ANY {
        assert!(with(op, lines, &[3, 6], DType::C64, None).contains("takes no complex64; take `real`"), "{op}");
        assert!(with(op, lines, &[3, 6], DType::F16, None).contains("takes no float16; cast"), "{op}");
    }
    assert!(with("envelope", "", &[3, 6], DType::F32, Some(Rule::Reflect)).contains("\"none\" only"));
    assert!(with("rms_amplitude", "window = 3", &[3, 6], DType::F32, Some(Rule::None)).contains("\"none\" has none"));
    assert!(with("gst_dip", "", &[3, 6], DType::F32, Some(Rule::None)).contains("\"none\" has none"));
    assert!(with("gst_dip", "", &[3, 6], DType::F32, Some(Rule::Constant(0.0))).contains("no use for the boundary 0"));
    assert!(with("gst_dip", "", &[3, 4, 6], DType::F32, None).contains("with spatial_axis"));
    assert!(with("semblance_coherence", "aperture = [3]", &[9], DType::F32, None).contains("a single one"));
    assert!(with("sweetness", "", &[9, 1], DType::F32, None).contains("2 to 262144 samples"));
    // Metadata that claims a trace of 10^18 samples costs nothing.
    assert!(with("envelope", "", &[2, 1 << 60], DType::F32, None).contains("is it the axis of the samples?"));
}

#[test]
fn a_missing_value_is_not_taken_for_data() {
    let mut input = Whole::new(Block::from_values(&[2, 3], &[1i16, 2, 3, -999, 5, 6]));
    input.meta.missing = Some(Scalar::of(-999i16));
    for (op, lines) in ANY {
        let bound = bind(op, lines, &[&input]).unwrap();
        assert_eq!(bound.outputs[0].missing, None, "{op}");
        let message = map_one(&bound, &[&input], &Region::whole(&[2, 3])).unwrap_err().to_string();
        assert!(message.contains("missing value"), "{op}: {message}");
    }
}
