//! One pass against the algorithm written down plainly, and against scikit-image's numbers. The passes of `eps > 0` run
//! through the engine in tests/pipeline.

use super::super::testing::{Random, Whole, bind, map_one, values};
use crate::array::{Block, DType, Region};

#[test]
fn equals_scikit_image() {
    // import numpy as np; from skimage.restoration import denoise_tv_chambolle as tv
    // x = ((np.arange(20) * 7) % 11).reshape(4, 5) / 4.0
    let x: Vec<f64> = (0..20).map(|i| f64::from(i * 7 % 11) / 4.0).collect();
    // tv(x, weight=0.3, eps=0, max_num_iter=3)
    let want = [
        0.3079437330691566,
        1.44012130241829,
        1.1888378266322048,
        1.947639198491894,
        1.6976365033369187,
        0.7090344366024475,
        1.5966651403479983,
        1.226700834429732,
        0.9470627727264653,
        1.7790000743679395,
        0.9128549811382409,
        0.6660602716539905,
        1.3995217615569577,
        1.119187551498991,
        1.8968184014626104,
        1.1973750900251678,
        0.8634757348630728,
        1.7032555717318645,
        1.2058705128917977,
        0.6949383007542589,
    ];
    let whole = Region::from_ranges(&[(0, 4), (0, 5)]);
    let run = |block: Block, lines: &str| {
        let array = Whole::new(block);
        map_one(&bind("denoise_tv_chambolle", lines, &[&array]).unwrap(), &[&array], &whole).unwrap()
    };
    let got = run(Block::from_values(&[4, 5], &x), "weight = 0.3\neps = 0.0\nmax_num_iter = 3\n");
    assert_eq!(values::<f64>(&got), want);
    // tv(x.astype('f4'), weight=0.3, eps=0, max_num_iter=7), the first three
    let single: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    let got = run(Block::from_values(&[4, 5], &single), "weight = 0.3\neps = 0\nmax_num_iter = 7\n");
    assert_eq!(values::<f32>(&got)[..3], [0.379_238_6_f32, 1.386_039, 1.256_702_4]);
    // tv((x * 40).astype('u1'), weight=0.1, eps=0, max_num_iter=4), the last; img_as_float scales by 255
    let bytes: Vec<u8> = x.iter().map(|v| (v * 40.0) as u8).collect();
    let got = run(Block::from_values(&[4, 5], &bytes), "eps = 0\nmax_num_iter = 4\n");
    assert!((values::<f64>(&got)[19] - 0.15599683916036136).abs() < 1e-15);
    // tv((x * 1000 - 1000).astype('i2'), weight=0.1, eps=0, max_num_iter=2), the first
    let signed: Vec<i16> = x.iter().map(|v| (v * 1000.0 - 1000.0) as i16).collect();
    let got = run(Block::from_values(&[4, 5], &signed), "eps = 0\nmax_num_iter = 2\n");
    assert!((values::<f64>(&got)[0] - -0.015444978250608985).abs() < 1e-16);
}

/// Cell by cell, whole array, as the formula says.
fn naive(x: &[f32], shape: &[usize], weight: f64, iterations: usize) -> Vec<f32> {
    let rank = shape.len();
    let strides: Vec<usize> = (0..rank).map(|a| shape[a + 1..].iter().product()).collect();
    let at = |i: usize, a: usize| i / strides[a] % shape[a];
    let tau = 1.0 / (2.0 * rank as f64);
    let mut p = vec![vec![0f32; x.len()]; rank];
    let mut out = x.to_vec();
    for n in 0..iterations {
        for i in 0..x.len() {
            let mut d = p[0][i];
            (1..rank).for_each(|a| d += p[a][i]);
            d = -d;
            (0..rank).filter(|&a| at(i, a) > 0).for_each(|a| d += p[a][i - strides[a]]);
            out[i] = if n == 0 { x[i] } else { x[i] + d };
        }
        if n + 1 == iterations {
            break;
        }
        for i in 0..x.len() {
            let g: Vec<f32> =
                (0..rank).map(|a| if at(i, a) + 1 < shape[a] { out[i + strides[a]] - out[i] } else { 0.0 }).collect();
            let mut norm = g[0] * g[0];
            g[1..].iter().for_each(|g| norm += g * g);
            let scale = norm.sqrt() * (tau / weight) as f32 + 1.0;
            (0..rank).for_each(|a| p[a][i] = (p[a][i] - tau as f32 * g[a]) / scale);
        }
    }
    out
}

#[test]
fn i1_any_core_gives_the_bytes_of_the_whole_array_with_and_without_simd() {
    crate::simd::both_paths(|scalar| {
        let mut rng = Random::new(9);
        for round in 0..40 {
            let rank = 1 + round % 3;
            let shape: Vec<usize> = (0..rank).map(|_| 1 + rng.below([40, 12, 7][rank - 1]) as usize).collect();
            let x: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| rng.unit() as f32).collect();
            let iterations = 1 + rng.below(6);
            let array = Whole::new(Block::from_values(&shape, &x));
            let lines = format!("weight = 0.2\neps = 0\nmax_num_iter = {iterations}\n");
            let bound = bind("denoise_tv_chambolle", &lines, &[&array]).unwrap();
            assert_eq!(bound.outputs[0].dtype, DType::F32);
            let want = Block::from_values(&shape, &naive(&x, &shape, 0.2, iterations as usize));
            let whole = Region::from_ranges(&shape.iter().map(|&n| (0, n as i64)).collect::<Vec<_>>());
            for _ in 0..3 {
                let core: Vec<(i64, i64)> = shape
                    .iter()
                    .map(|&n| {
                        let start = rng.below(n as u64) as i64;
                        (start, start + 1 + rng.below((n as i64 - start) as u64) as i64)
                    })
                    .collect();
                let core = Region::from_ranges(&core);
                let got = map_one(&bound, &[&array], &core).unwrap();
                let (got, want) = (values::<f32>(&got), values::<f32>(&want.cut(&whole, &core)));
                assert_eq!(got, want, "{shape:?}, {iterations} iterations, core {core}, scalar {scalar}");
            }
        }
    });
}

#[test]
fn bad_parameters_and_inputs_are_refused() {
    let array = Whole::new(Block::from_values(&[3], &[1f64, 2.0, 3.0]));
    for (lines, part) in [
        ("weight = 0", "weight: expected a number above 0"),
        ("eps = -1", "eps: expected a number of at least 0"),
        ("max_num_iter = 0", "max_num_iter"),
        ("n_iter_max = 5", "n_iter_max"),
    ] {
        let error = bind("denoise_tv_chambolle", lines, &[&array]).map(|_| ()).unwrap_err();
        assert!(error.contains(part), "{lines}: {error}");
    }
    let complex = Whole::new(Block::from_values(&[1], &[num_complex::Complex::new(1f32, 0.0)]));
    let error = bind("denoise_tv_chambolle", "eps = 0\n", &[&complex]).map(|_| ()).unwrap_err();
    assert!(error.contains("complex64"), "{error}");
}
