//! Numbers from numpy (`golden.py` prints them), and what becomes of matrices without a solution.

use num_complex::{Complex32, Complex64};

use crate::array::{Block, Region};
use crate::operators::testing::{Whole, bind, map, values};
use crate::simd::both_paths;

const MANY_LOOKS: [f32; 20] = [
    0.6102807,
    -0.58852845,
    0.055401098,
    -0.8597036,
    -0.43796715,
    -0.7710571,
    -0.8592595,
    -0.17519839,
    0.65101296,
    -0.6087022,
    0.23664579,
    -0.84517556,
    -0.5196285,
    -0.724835,
    0.7813094,
    -0.45109624,
    0.11218739,
    -0.85788345,
    0.56726754,
    -0.69156575,
];
const FEW_LOOKS: [f32; 20] = [
    0.37532228,
    -0.16019729,
    -0.6153586,
    -0.32416347,
    0.3443104,
    0.5193603,
    0.6513496,
    -0.1317649,
    -0.46676052,
    -0.5431255,
    -0.5228347,
    0.57462823,
    0.11244632,
    0.5288505,
    -0.3593511,
    -0.37960088,
    -0.21632671,
    0.026586179,
    0.37489375,
    -0.79038125,
];

fn pairs(parts: &[f32; 20]) -> Vec<Complex32> {
    parts.chunks(2).map(|c| Complex32::new(c[0], c[1])).collect()
}

/// Phases (radians) and quality of each pixel.
fn link(op: &str, lines: &str, whole: &Whole) -> Vec<(Vec<f32>, f32)> {
    let bound = bind(op, lines, &[whole]).unwrap();
    let found = map(&bound, &[whole], &Region::whole(&whole.meta.shape), &[true, true]).unwrap();
    let [Some(phase), Some(quality)] = &found[..] else { panic!("two outputs") };
    let quality: Vec<f32> = values(quality);
    let images = phase.count() / quality.len();
    let phases: Vec<Complex32> = values(phase);
    phases.chunks(images).map(|p| p.iter().map(|z| z.arg()).collect()).zip(quality).collect()
}

#[track_caller]
fn close(got: &(Vec<f32>, f32), phases: [f64; 5], quality: f64, tolerance: f64) {
    for (got, want) in got.0.iter().zip(phases) {
        assert!((f64::from(*got) - want).abs() < tolerance, "{got} for {want}");
    }
    assert!((f64::from(got.1) - quality).abs() < tolerance * quality.abs(), "{} for {quality}", got.1);
}

#[test]
fn phases_and_quality_are_those_of_numpy() {
    // Six pixels: more than a batch, and one left over.
    let values = [pairs(&MANY_LOOKS), pairs(&FEW_LOOKS)].concat().repeat(3);
    let whole = Whole::new(Block::from_values(&[3, 2, 10], &values));
    both_paths(|_| {
        for got in link("emi", "ref = 1", &whole).iter().step_by(2) {
            let want = [-0.767_381_630_262, 0.0, 0.759_809_089_676, 1.299_021_432_621, 2.184_536_428_127];
            close(got, want, 1.000_499_669_908, 1e-6);
            assert_eq!(got.0[1], 0.0);
        }
        for got in link("emi", "ref = -4\nbeta = 0.1", &whole).iter().step_by(2) {
            let want = [-0.766_146_722_911, 0.0, 0.757_011_080_5, 1.299_668_506_926, 2.186_029_417_383];
            close(got, want, 1.000_233_951_299, 1e-6);
        }
        for got in link("evd", "ref = 1", &whole).iter().step_by(2) {
            let want = [-0.765_367_285_683, 0.0, 0.754_089_547_677, 1.299_928_048_548, 2.186_618_782_554];
            close(got, want, 0.903_637_092_195, 1e-6);
        }
        for got in link("emi", "", &whole).iter().skip(1).step_by(2) {
            let want = [0.0, 0.894_106_581_57, -0.306_837_029_438, -1.140_756_528_441, 3.133_480_918_692];
            close(got, want, -42.943_475_980_097, 1e-5);
        }
        for (pixel, got) in link("emi", "beta = \"adaptive\"", &whole).iter().enumerate() {
            if pixel % 2 == 1 {
                let want = [0.0, 1.345_068_235_886, 2.989_240_797_117, -0.925_420_991_731, 0.188_843_219_552];
                close(got, want, 1.222_782_113_171, 1e-5);
            } else {
                // Nothing to repair: not one bit differs.
                assert_eq!(*got, link("emi", "", &whole)[pixel]);
            }
        }
    });
}

#[test]
fn full_matrices_dates_first_and_double_precision() {
    let (c, n) = (pairs(&MANY_LOOKS), 5);
    let mut full = vec![Complex32::ONE; n * n];
    for ((i, j), z) in crate::operators::stack::all_pairs(n).zip(&c) {
        (full[i * n + j], full[j * n + i]) = (*z, z.conj());
    }
    let flat = Whole::new(Block::from_values(&[1, 10], &c));
    let want = link("emi", "", &flat);
    let whole = Whole::new(Block::from_values(&[1, n, n], &full));
    assert_eq!(link("emi", "layout = \"full\"", &whole), want);
    let mut named = Whole::new(Block::from_values(&[1, n, n], &full));
    named.meta.attributes.insert("layout".to_owned(), "full".into());
    assert_eq!(link("emi", "", &named), want);

    let both = Whole::new(Block::from_values(&[2, 10], &[pairs(&FEW_LOOKS), c.clone()].concat()));
    let bound = bind("emi", "image_axis = 0", &[&both]).unwrap();
    let found = map(&bound, &[&both], &Region::whole(&[2, 10]), &[true, false]).unwrap();
    assert!(found[1].is_none());
    let phase = found[0].as_ref().unwrap();
    assert_eq!(phase.shape(), [5, 2]);
    let phases: Vec<Complex32> = values(&phase.view(&[0, 1], &[5, 2]));
    assert_eq!(phases.iter().map(|z| z.arg()).collect::<Vec<_>>(), want[0].0);

    let wide: Vec<Complex64> = c.iter().map(|z| Complex64::new(z.re.into(), z.im.into())).collect();
    let wide = Whole::new(Block::from_values(&[10], &wide));
    let found = map(&bind("emi", "ref = 1", &[&wide]).unwrap(), &[&wide], &Region::whole(&[10]), &[true, true]).unwrap();
    let (phase, quality) = (values::<Complex64>(found[0].as_ref().unwrap()), values::<f64>(found[1].as_ref().unwrap()));
    let (phase, quality) = (phase[4].arg(), quality[0]);
    assert!((phase - 2.184_536_428_126_624).abs() < 1e-12, "{phase}");
    assert!((quality - 1.000_499_669_907_675_4).abs() < 1e-12, "{quality}");
}

#[test]
fn what_has_no_solution_is_nan_and_harms_nobody() {
    let good = pairs(&MANY_LOOKS);
    let mut nan = good.clone();
    nan[7].im = f32::NAN;
    // All images alike: |C| is singular.
    let ones = vec![Complex32::ONE; 10];
    // No coherence at all: any phases are as good.
    let whole = Whole::new(Block::from_values(&[4, 10], &[nan, ones, good.clone(), vec![Complex32::ZERO; 10]].concat()));
    let alone = Whole::new(Block::from_values(&[1, 10], &good));
    both_paths(|_| {
        let got = link("emi", "", &whole);
        assert!(got[0].1.is_nan() && got[0].0.iter().all(|p| p.is_nan()));
        assert!(got[1].1.is_nan() && got[1].0.iter().all(|p| p.is_nan()));
        assert_eq!(got[2], link("emi", "", &alone)[0]);
        assert!((got[3].1 - 1.0).abs() < 1e-6);
        for beta in ["0.01", "\"adaptive\""] {
            let repaired = link("emi", &format!("beta = {beta}"), &whole);
            assert!(repaired[1].0.iter().all(|p| p.abs() < 1e-4) && (repaired[1].1 - 1.0).abs() < 1e-4, "{:?}", repaired[1]);
        }
        let got = link("evd", "", &whole);
        assert!(got[0].1.is_nan() && (got[1].1 - 1.0).abs() < 1e-6 && got[1].0.iter().all(|p| p.abs() < 1e-6));
    });
}

#[test]
fn temporal_coherence_is_that_of_numpy() {
    let c = [pairs(&MANY_LOOKS), pairs(&FEW_LOOKS), pairs(&FEW_LOOKS)].concat();
    let mut coherence = Whole::new(Block::from_values(&[3, 10], &c));
    let found = map(&bind("emi", "", &[&coherence]).unwrap(), &[&coherence], &Region::whole(&[3, 10]), &[true, false]).unwrap();
    let phase = Whole::new(found[0].clone().unwrap());
    let looks = Whole::new(Block::from_values(&[3], &[3i32, 3, 1]));
    both_paths(|_| {
        let run = |inputs: &[&Whole], lines: &str| -> Vec<f32> {
            let bound = bind("temporal_coherence", lines, inputs).unwrap();
            values(map(&bound, inputs, &Region::whole(&[3, 10]), &[true]).unwrap()[0].as_ref().unwrap())
        };
        let plain = run(&[&coherence, &phase], "");
        assert!((plain[0] - 0.999_919_05).abs() < 1e-6 && (plain[1] - 0.210_398_68).abs() < 1e-5, "{plain:?}");
        let weighted = run(&[&coherence, &phase, &looks], "weighted = true");
        assert!((weighted[0] - 0.999_919_4).abs() < 1e-6 && (weighted[1] - 0.463_053_67).abs() < 1e-5, "{weighted:?}");
        // One look shows nothing but noise.
        assert!(weighted[2].is_nan());
    });
    coherence.block = Block::from_values(&[3, 10], &[&c[..10], &[Complex32::ZERO; 20][..]].concat());
    let bound = bind("temporal_coherence", "", &[&coherence, &phase]).unwrap();
    let found = map(&bound, &[&coherence, &phase], &Region::whole(&[3, 10]), &[true]).unwrap();
    let t: Vec<f32> = values(found[0].as_ref().unwrap());
    assert!(!t[0].is_nan() && t[1].is_nan() && t[2].is_nan());
}

#[test]
fn what_does_not_fit_is_refused() {
    let whole = |shape: &[usize]| Whole::new(Block::from_values(shape, &vec![Complex32::ONE; shape.iter().product()]));
    let real = Whole::new(Block::from_values(&[1, 3], &[1.0f32; 3]));
    let refused = |op: &str, lines: &str, inputs: &[&Whole], part: &str| {
        let message = bind(op, lines, inputs).err().unwrap_or_default();
        assert!(message.contains(part), "{op} {lines}: {message}");
    };
    refused("emi", "", &[&whole(&[2, 4])], "no number of pairs");
    refused("emi", "layout = \"full\"", &[&whole(&[2, 3])], "do not hold matrices");
    refused("emi", "", &[&real], "needs complex values");
    refused("emi", "ref = 3", &[&whole(&[2, 3])], "there are 3 images");
    refused("emi", "beta = 2", &[&whole(&[2, 3])], "from 0 to 1");
    refused("emi", "beta = \"some\"", &[&whole(&[2, 3])], "\"adaptive\"");
    refused("evd", "beta = 0.1", &[&whole(&[2, 3])], "unknown key");
    refused("emi", "image_axis = 2", &[&whole(&[2, 3])], "image_axis 2 does not exist");
    refused("temporal_coherence", "", &[&whole(&[2, 3])], "takes two inputs");
    refused("temporal_coherence", "weighted = true", &[&whole(&[2, 3]), &whole(&[2, 3])], "takes three inputs");
    refused("temporal_coherence", "", &[&whole(&[2, 3]), &whole(&[2, 4])], "do not fit");
    refused("temporal_coherence", "weighted = true", &[&whole(&[2, 3]), &whole(&[2, 3]), &real], "not one real number");
    let mask = Whole::new(Block::from_values(&[2, 2, 2], &[0u8; 8]));
    refused("coherence", "", &[&whole(&[2, 2, 3]), &mask], "no attribute `window`");
    let mut mask = mask;
    mask.meta.attributes.insert("window".to_owned(), serde_json::json!([5, 5]));
    refused("coherence", "", &[&whole(&[2, 2, 3]), &mask], "takes 4");
    mask.meta.attributes.insert("window".to_owned(), serde_json::json!([2, 5]));
    refused("coherence", "", &[&whole(&[2, 2, 3]), &mask], "odd lengths");
    mask.meta.attributes.insert("window".to_owned(), serde_json::json!([3, 5]));
    refused("coherence", "", &[&whole(&[2, 3, 3]), &mask], "not of one image");
    refused("coherence", "points = \"index\"", &[&whole(&[2, 2, 3]), &mask], "belongs to the output");
    refused("coherence", "", &[&whole(&[2, 2, 3])], "takes two inputs");
    let k = Whole::new(Block::from_values(&[1, 1, 3, 3], &[0u8; 9]));
    refused("select_shp", "", &[&k], "no attribute `p_table`");
    refused("select_shp", "alpha = 1.5", &[&k], "no probability");
    refused("select_shp", "", &[&whole(&[1, 1, 3, 3])], "takes counts");
}
