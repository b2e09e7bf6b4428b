use num_complex::{Complex32, Complex64};

use super::super::testing::{Random, Whole, bind, bind_inputs, map, values};
use super::kernel::{Form, Key, LANES, counts, sort_columns, sorting_network};
use super::*;
use crate::array::{Element, Scalar};

/// The statistic by its definition: walk both sorted samples, keep the largest difference of the positions.
fn merge<K: PartialOrd>(u: &[K], v: &[K]) -> u8 {
    let (mut i, mut j, mut k) = (0usize, 0usize, 0usize);
    while i < u.len() && j < v.len() {
        let (step_i, step_j) = (u[i] <= v[j], u[i] >= v[j]);
        i += usize::from(step_i);
        j += usize::from(step_j);
        k = k.max(i.abs_diff(j));
    }
    k as u8
}

/// k of a whole (azimuth, range, image) stack, pair by pair.
fn naive(stack: &[f64], shape: [usize; 3], half: [i64; 2]) -> Vec<u8> {
    let n = shape[2];
    let pixels: Vec<Option<Vec<f64>>> = stack
        .chunks(n)
        .map(|p| {
            let mut p = p.to_vec();
            p.sort_by(f64::total_cmp);
            p.iter().all(|v| !v.is_nan()).then_some(p)
        })
        .collect();
    let pixel = |y: i64, x: i64| {
        let inside = (0..shape[0] as i64).contains(&y) && (0..shape[1] as i64).contains(&x);
        inside.then(|| pixels[y as usize * shape[1] + x as usize].as_deref()).flatten()
    };
    let mut out = Vec::new();
    for y in 0..shape[0] as i64 {
        for x in 0..shape[1] as i64 {
            for l in -half[0]..=half[0] {
                for m in -half[1]..=half[1] {
                    out.push(match (pixel(y, x), pixel(y + l, x + m)) {
                        (Some(u), Some(v)) => merge(u, v),
                        _ => 255,
                    });
                }
            }
        }
    }
    out
}

/// The part of `k` for a core of pixels.
fn part(k: &[u8], cols: usize, window: usize, core: &Region) -> Vec<u8> {
    let mut out = Vec::new();
    for y in core.start[0]..core.stop[0] {
        for x in core.start[1]..core.stop[1] {
            out.extend_from_slice(&k[(y as usize * cols + x as usize) * window..][..window]);
        }
    }
    out
}

/// A stack with ties, a few zeros, and NaN pixels when asked for.
fn stack(random: &mut Random, shape: [usize; 3], has_nan: bool) -> Vec<f64> {
    let mut values: Vec<f64> = Vec::with_capacity(shape.iter().product());
    for _ in 0..shape[0] * shape[1] {
        let scale = 1.0 + random.below(3) as f64;
        let is_nan = has_nan && random.below(15) == 0;
        for image in 0..shape[2] {
            // Quantised, so that ties happen; in single precision without loss.
            let value = (random.unit() * 12.0 * scale).floor() * 0.25;
            values.push(if is_nan && image as u64 == random.below(shape[2] as u64) { f64::NAN } else { value });
        }
    }
    values
}

/// The forms that this machine has.
fn forms() -> Vec<Form> {
    let is_there = |form: &Form| match form {
        Form::Plain => true,
        Form::Avx2 => crate::simd::has_avx2(),
        Form::Avx512 => crate::simd::has_avx512(),
    };
    [Form::Plain, Form::Avx2, Form::Avx512].into_iter().filter(is_there).collect()
}

#[test]
fn the_counting_form_equals_the_merge_for_every_number_of_images() {
    let mut random = Random::new(3);
    for n in (1..=40).chain([64, 100, 253, 254]) {
        for quantum in [1e-9, 0.1, 0.6] {
            let stride = 32;
            let mut u: Vec<f32> = (0..n * stride).map(|_| ((random.unit() / quantum).floor() * quantum) as f32).collect();
            let mut v: Vec<f32> = (0..n * stride).map(|_| ((random.unit() * 1.7 / quantum).floor() * quantum) as f32).collect();
            // Extremes: equal, and all above.
            for i in 0..n {
                v[i * stride] = u[i * stride];
                v[i * stride + 1] = u[i * stride + 1] + 9.0;
            }
            let network = sorting_network(n);
            sort_columns(&mut u, stride, &network);
            sort_columns(&mut v, stride, &network);
            let column = |s: &[f32], c: usize| -> Vec<f32> { (0..n).map(|i| s[i * stride + c]).collect() };
            for first in [0, 5] {
                let want: Vec<u8> = (first..first + LANES)
                    .map(|c| {
                        let (u, v) = (column(&u, c), column(&v, c));
                        assert!(u.is_sorted() && v.is_sorted());
                        merge(&u, &v)
                    })
                    .collect();
                let wide = |s: &[f32]| -> Vec<f64> { s.iter().map(|v| f64::from(*v)).collect() };
                assert_eq!(counts(&u[first..], &v[first..], stride, n).as_slice(), want, "plain, N = {n}");
                let limits = [0, want[0].into(), want[3].into(), usize::from(want[5]) + 1, n / 3, n, n + 1];
                let below =
                    |limit: usize| want.iter().rev().fold(0u16, |bits, k| bits << 1 | u16::from(usize::from(*k) <= limit));
                let (wide_u, wide_v) = (wide(&u[first..]), wide(&v[first..]));
                for form in forms() {
                    assert_eq!(f32::counts(form, &u[first..], &v[first..], stride, n).as_slice(), want, "N = {n}, {form:?}");
                    assert_eq!(f64::counts(form, &wide_u, &wide_v, stride, n).as_slice(), want, "doubles, N = {n}, {form:?}");
                    for limit in limits {
                        let got = f32::within(form, &u[first..], &v[first..], stride, n, limit);
                        assert_eq!(got, below(limit), "N = {n}, {form:?}, limit {limit}");
                        let got = f64::within(form, &wide_u, &wide_v, stride, n, limit);
                        assert_eq!(got, below(limit), "doubles, N = {n}, {form:?}, limit {limit}");
                    }
                    for (lane, want) in want.iter().enumerate() {
                        let sample = |s: &[f32]| -> Vec<f32> {
                            let mut sample = column(s, first + lane);
                            sample.resize(pair::sample_len(n), f32::INFINITY);
                            sample
                        };
                        let (u, v) = (sample(&u), sample(&v));
                        for guess in [0, *want, want / 2, n as u8, 255] {
                            assert_eq!(f32::pair(form, &u, &v, n, guess), *want, "pair, N = {n}, {form:?}, guess {guess}");
                            assert_eq!(f64::pair(form, &wide(&u), &wide(&v), n, guess), *want, "pair, N = {n}, {form:?}");
                        }
                    }
                }
            }
        }
    }
}

/// All three outputs of a core against the naive counts and the tables by their definition.
fn check(whole: &Whole, k: &[u8], half: [u64; 2], convention: &str, core: &Region, extra: &str) {
    let lines = format!("half_window = [{}, {}]\nconvention = \"{convention}\"\n{extra}", half[0], half[1]);
    let bound = bind("ks_test", &lines, &[whole]).unwrap();
    let got = map(&bound, &[whole], core, &[true, true, true]).unwrap();
    let image = bound.whole[0];
    let spatial: Vec<usize> = (0..3).filter(|a| *a != image).collect();
    let plane = Region::from_ranges(&[core.axis(spatial[0]), core.axis(spatial[1])]);
    let (rows, cols) = (whole.meta.shape[spatial[0]] as i64, whole.meta.shape[spatial[1]] as i64);
    let n = whole.meta.shape[image] as usize;
    let window = ((2 * half[0] + 1) * (2 * half[1] + 1)) as usize;
    let want = part(k, cols as usize, window, &plane);
    assert_eq!(values::<u8>(got[2].as_ref().unwrap()), want, "k of {core}, half {half:?}, {extra}");
    let table = table::p_values(n, if convention == "standard" { Convention::Standard } else { Convention::Decorrelation });
    let read = |block: &Block| -> Vec<f64> {
        match block.dtype() {
            DType::F32 => values::<f32>(block).into_iter().map(f64::from).collect(),
            _ => values::<f64>(block),
        }
    };
    let round = |v: f64| if got[0].as_ref().unwrap().dtype() == DType::F32 { f64::from(v as f32) } else { v };
    let (dist, p) = (read(got[0].as_ref().unwrap()), read(got[1].as_ref().unwrap()));
    for (i, &k) in want.iter().enumerate() {
        let (pixel, cell) = ((i / window) as i64, (i % window) as i64);
        let width = plane.len(1) as i64;
        let breadth = 2 * half[1] as i64 + 1;
        let y = plane.start[0] + pixel / width + cell / breadth - half[0] as i64;
        let x = plane.start[1] + pixel % width + cell % breadth - half[1] as i64;
        let outside = y < 0 || y >= rows || x < 0 || x >= cols;
        let (want_dist, want_p) = match k {
            255 if outside && convention != "standard" => (-1.0, -1.0),
            255 => (f64::NAN, f64::NAN),
            k => (round(f64::from(k) / n as f64), round(table[usize::from(k)])),
        };
        assert_eq!(dist[i].to_bits(), want_dist.to_bits());
        assert_eq!(p[i].to_bits(), want_p.to_bits());
    }
    for wanted in [[true, false, false], [false, true, true]] {
        let some = map(&bound, &[whole], core, &wanted).unwrap();
        for (one, all) in some.iter().zip(&got) {
            let bytes = |b: &Block| values::<u8>(b);
            assert!(one.as_ref().is_none_or(|one| Some(bytes(one)) == all.as_ref().map(bytes)));
        }
    }
}

fn singles(values: &[f64], shape: [usize; 3]) -> Whole {
    Whole::new(Block::from_values(&shape, &values.iter().map(|v| *v as f32).collect::<Vec<_>>()))
}

#[test]
fn any_core_of_any_image_gives_the_cells_of_the_whole_i1() {
    let mut random = Random::new(4);
    for (shape, half) in [
        ([13, 21, 17], [2, 3]),
        ([9, 40, 5], [1, 0]),
        ([8, 19, 4], [0, 5]),
        ([3, 4, 6], [7, 9]),
        ([1, 1, 3], [1, 1]),
        ([6, 300, 3], [1, 2]),
        ([5, 7, 1], [1, 1]),
    ] {
        for convention in ["standard", "decorrelation"] {
            let data = stack(&mut random, shape, true);
            let k = naive(&data, shape, [half[0] as i64, half[1] as i64]);
            let whole = singles(&data, shape);
            let image = (0, shape[2] as i64);
            check(&whole, &k, half, convention, &Region::whole(&whole.meta.shape), "");
            for _ in 0..6 {
                let range = |random: &mut Random, len: usize| {
                    let start = random.below(len as u64) as i64;
                    (start, start + 1 + random.below(len as u64 - start as u64) as i64)
                };
                let core = Region::from_ranges(&[range(&mut random, shape[0]), range(&mut random, shape[1]), image]);
                check(&whole, &k, half, convention, &core, "");
            }
        }
    }
}

#[test]
fn masks_without_counts_are_those_of_counts_i1() {
    let mut random = Random::new(14);
    let cases = [([13, 21, 17], [2, 3]), ([9, 300, 5], [1, 20]), ([8, 19, 4], [0, 5]), ([3, 4, 60], [7, 9]), ([1, 1, 3], [1, 1])];
    for (round, (shape, half)) in cases.into_iter().chain([([9, 11, 3], [60, 60]), ([5, 7, 1], [1, 0])]).enumerate() {
        let data = stack(&mut random, shape, true);
        let counts = naive(&data, shape, [half[0] as i64, half[1] as i64]);
        let whole = singles(&data, shape);
        let convention = if round % 3 == 2 { Convention::Decorrelation } else { Convention::Standard };
        let selection = |alpha, is_rejected| shp_mask::Selection { alpha, is_rejected };
        let selections = [selection(0.05, false), selection(0.4, true), selection(0.0, false), selection(1.0, true)];
        let asks = selections.map(|selection| selection.ask());
        let step = KsTest { half_window: (half[0], half[1]), convention, image_axis: -1 };
        let input = StepInput { meta: whole.meta.clone(), boundary: None, depth: None };
        let bound = step.bind_asked(&[input], &asks).unwrap();
        assert!(bound.outputs.len() == 7 && bound.outputs[3..].iter().all(|mask| !mask.is_default));
        let table = table::p_values(shape[2], convention);
        let window = ((2 * half[0] + 1) * (2 * half[1] + 1)) as usize;
        for _ in 0..4 {
            let range = |random: &mut Random, len: usize| {
                let start = random.below(len as u64) as i64;
                (start, start + 1 + random.below(len as u64 - start as u64) as i64)
            };
            let rows = range(&mut random, shape[0]);
            let core = Region::from_ranges(&[rows, range(&mut random, shape[1]), (0, shape[2] as i64)]);
            for (n, selection) in selections.iter().enumerate() {
                let selected = selection.by_count(&table);
                let want: Vec<u8> = part(&counts, shape[1], window, &core)
                    .chunks(window)
                    .flat_map(|pixel| pixel.chunks(8))
                    .map(|cells| cells.iter().rev().fold(0, |byte, k| byte << 1 | u8::from(selected[usize::from(*k)])))
                    .collect();
                let wanted: [bool; 7] = std::array::from_fn(|output| output == 3 + n);
                for forced in [true, false] {
                    crate::simd::force_scalar(forced);
                    let got = map(&bound, &[&whole], &core, &wanted).unwrap();
                    assert!(values::<u8>(got[3 + n].as_ref().unwrap()) == want, "{selection:?}, {shape:?}, {half:?}, {core}");
                }
                // Beside counts, from counts.
                let got = map(&bound, &[&whole], &core, &std::array::from_fn::<bool, 7, _>(|o| o == 2 || o == 3 + n)).unwrap();
                assert!(values::<u8>(got[3 + n].as_ref().unwrap()) == want);
            }
        }
    }
}

#[test]
fn windows_too_large_for_symmetry_take_the_direct_way() {
    let mut random = Random::new(5);
    let (shape, half) = ([9, 11, 3], [60u64, 60u64]);
    let data = stack(&mut random, shape, true);
    let k = naive(&data, shape, [60, 60]);
    let whole = singles(&data, shape);
    check(&whole, &k, half, "standard", &Region::from_ranges(&[(2, 5), (1, 9), (0, 3)]), "");
}

#[test]
fn image_axis_dtypes_and_strided_views() {
    let mut random = Random::new(6);
    let shape = [7, 18, 6];
    let data = stack(&mut random, shape, true);
    let k = naive(&data, shape, [2, 1]);
    let core = Region::from_ranges(&[(1, 6), (3, 18), (0, 6)]);
    let wide = Whole::new(Block::from_values(&shape, &data));
    check(&wide, &k, [2, 1], "standard", &core, "");
    // (image, azimuth, range), as a view and as a copy
    let mut turned = Whole::new(wide.block.transposed(&[2, 0, 1]));
    turned.meta.shape = vec![6, 7, 18];
    let turned_core = Region::from_ranges(&[(0, 6), (1, 6), (3, 18)]);
    check(&turned, &k, [2, 1], "standard", &turned_core, "image_axis = 0");
    let copied = Whole::new(Block::from_values(&[6, 7, 18], &values::<f64>(&turned.block)));
    check(&copied, &k, [2, 1], "decorrelation", &turned_core, "image_axis = -3");
    let mut middle = Whole::new(wide.block.transposed(&[0, 2, 1]));
    middle.meta.shape = vec![7, 6, 18];
    check(&middle, &k, [2, 1], "standard", &Region::from_ranges(&[(0, 7), (0, 6), (0, 18)]), "image_axis = 1");

    // Integers: no NaN, but the source's missing value does the same.
    fn integers<T: Element>(data: &[f64], shape: [usize; 3], of: impl Fn(f64) -> T) -> Whole {
        let values: Vec<T> = data.iter().map(|v| of(if v.is_nan() { 99.0 } else { v * 4.0 })).collect();
        let mut whole = Whole::new(Block::from_values(&shape, &values));
        whole.meta.missing = Some(Scalar::of(of(99.0)));
        whole
    }
    let core = Region::whole(&[7, 18, 6]);
    check(&integers(&data, shape, |v| v as u8), &k, [2, 1], "standard", &core, "");
    check(&integers(&data, shape, |v| v as i16), &k, [2, 1], "standard", &core, "");
    check(&integers(&data, shape, |v| v as i32 - (1 << 30)), &k, [2, 1], "standard", &core, "");
    check(&integers(&data, shape, |v| v as u32 | 0x8000_0000), &k, [2, 1], "standard", &core, "");
    let halves = integers(&data, shape, |v| half::f16::from_f32_const(v as f32));
    check(&halves, &k, [2, 1], "standard", &core, "");
}

#[test]
fn complex_pixels_are_their_amplitudes() {
    let mut random = Random::new(7);
    let shape = [6, 12, 9];
    // Quantised, so that the rounding of |z| makes ties.
    let z: Vec<Complex32> = (0..shape.iter().product())
        .map(|_| {
            let part = |random: &mut Random| (random.unit() as f32 * 9.0).floor() * 0.1;
            let nan = if random.below(200) == 0 { f32::NAN } else { 0.0 };
            Complex32::new(part(&mut random), part(&mut random) + nan)
        })
        .collect();
    let narrow: Vec<f64> = z
        .iter()
        .map(|z| f64::from((f64::from(z.re) * f64::from(z.re) + f64::from(z.im) * f64::from(z.im)).sqrt() as f32))
        .collect();
    let core = Region::from_ranges(&[(0, 5), (2, 12), (0, 9)]);
    for forced in [true, false] {
        crate::simd::force_scalar(forced);
        check(&Whole::new(Block::from_values(&shape, &z)), &naive(&narrow, shape, [1, 2]), [1, 2], "standard", &core, "");
    }
    let wide: Vec<Complex64> = z.iter().map(|z| Complex64::new(z.re.into(), z.im.into())).collect();
    let amplitudes: Vec<f64> = wide.iter().map(|z| (z.re * z.re + z.im * z.im).sqrt()).collect();
    check(&Whole::new(Block::from_values(&shape, &wide)), &naive(&amplitudes, shape, [1, 2]), [1, 2], "standard", &core, "");
}

#[test]
fn p_values_are_the_series() {
    let table = table::p_values(17, Convention::Standard);
    assert_eq!(table.len(), 18);
    assert_eq!(table[0], 1.0);
    // numpy: en = sqrt(8.5); x = (en + .12 + .11/en) * k/17; 2*sum((-1)**(i-1) * exp(-2*x*x*i*i) for i in 1..100)
    for (k, want) in [(1, 0.999_999_999_999_999_2), (7, 0.081_301_994_877_312_56), (8, 0.030_503_048_575_092_003)] {
        assert!((table[k] - want).abs() < 1e-12, "p({k}) = {}", table[k]);
    }
    assert_eq!(table::p_values(17, Convention::Decorrelation)[0], 0.0);
    assert!(table.is_sorted_by(|a, b| a >= b));
}

#[test]
fn what_is_bound_and_what_is_refused() {
    let whole = |shape: &[u64], dtype: DType| StepInput {
        meta: crate::operators::ArrayMeta::plain("slc", shape, dtype),
        boundary: None,
        depth: None,
    };
    let bound = bind_inputs("ks_test", "half_window = 5", &[whole(&[2500, 1834, 17], DType::C64)]).unwrap();
    let [dist, p, k] = &bound.outputs[..] else { panic!("three outputs") };
    assert_eq!((dist.dtype, p.dtype, k.dtype), (DType::F32, DType::F32, DType::U8));
    assert!(dist.is_default && p.is_default && !k.is_default);
    assert_eq!(bound.inputs[0].depth, [(5, 5), (5, 5), (0, 0)]);
    assert_eq!(bound.whole, [2]);
    assert_eq!(k.axes[2], OutAxis::New { len: 11, name: Some("window_azimuth".into()) });
    assert_eq!(k.attributes["p_table"].as_array().unwrap().len(), 18);
    assert_eq!((&dist.attributes["images"], &dist.attributes["half_window"]), (&json!(17), &json!([5, 5])));
    let Kind::Map(map) = &bound.kind else { panic!("a map") };
    assert!(map.scratch_bytes(&[256, 256, 17]) < 1 << 20);

    let refused = |lines: &str, input: StepInput, words: &str| {
        let message = bind_inputs("ks_test", lines, &[input]).unwrap_err();
        assert!(message.contains(words), "{message}");
    };
    refused("half_window = 1", whole(&[4, 4], DType::C64), "three axes");
    refused("half_window = 1", whole(&[4, 4, 255], DType::C64), "1 to 254 images");
    refused("half_window = 1", whole(&[4, 4, 0], DType::C64), "1 to 254 images");
    refused("half_window = 1", whole(&[4, 4, 3], DType::I64), "cast to float64 first");
    refused("half_window = 1\nimage_axis = 3", whole(&[4, 4, 3], DType::F32), "image_axis 3 does not exist");
    refused("half_window = [1, 2, 3]", whole(&[4, 4, 3], DType::F32), "found 3 numbers");
    refused("half_window = -1", whole(&[4, 4, 3], DType::F32), "from 0 up");
    refused("half_window = 1000000000000", whole(&[4, 4, 3], DType::F32), "at most 4095");
    refused("half_windw = 1", whole(&[4, 4, 3], DType::F32), "did you mean `half_window`?");
    refused("half_window = 1\nconvention = \"standart\"", whole(&[4, 4, 3], DType::F32), "did you mean \"standard\"?");
    let mut input = whole(&[4, 4, 3], DType::F32);
    input.boundary = Some(vec![[Rule::Reflect; 2]; 3]);
    refused("half_window = 1", input, "boundary \"none\" only");
    let mut input = whole(&[4, 4, 3], DType::F32);
    input.depth = Some(vec![(1, 1); 3]);
    refused("half_window = 1", input, "depth from half_window");
}
