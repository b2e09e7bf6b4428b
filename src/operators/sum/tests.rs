use half::f16;
use num_complex::Complex64;

use super::super::OutAxis;
use super::super::pointwise::place;
use super::super::testing::{Random, Whole, bind, fold, values};
use crate::array::{Block, Buffer, DType, Element, Region, Scalar};

fn sum<D: bytemuck::Pod>(whole: &Whole, lines: &str, leaf: u64) -> Result<Vec<D>, String> {
    fold("sum", lines, &[whole], leaf)
}

/// The sums by the definition: one pass in C order.
fn naive<T: Element>(whole: &Whole, axes: &[usize], wide: impl Fn(T) -> f64) -> Vec<f64> {
    let shape = &whole.meta.shape;
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let mut out = vec![0.0; kept.iter().map(|&a| shape[a] as usize).product()];
    for (flat, value) in values::<T>(&whole.block).into_iter().enumerate() {
        let at = place(&Region::whole(shape), flat);
        let cell = kept.iter().fold(0, |cell, &a| cell * shape[a] as usize + at[a] as usize);
        out[cell] += wide(value);
    }
    out
}

#[test]
fn integers_are_exact_over_any_axes_leaves_and_strides() {
    let mut random = Random::new(1);
    let input: Vec<i16> = (0..6 * 7 * 9).map(|_| random.bits() as i16).collect();
    let plain = Whole::new(Block::from_values(&[6, 7, 9], &input));
    let mut turned = Whole::new(plain.block.transposed(&[2, 0, 1]));
    turned.meta.shape = vec![9, 6, 7];
    for whole in [&plain, &turned] {
        for (lines, axes) in [
            ("axis = 0", vec![0]),
            ("axis = 1", vec![1]),
            ("axis = -1", vec![2]),
            ("axis = [2, 0]", vec![0, 2]),
            ("", vec![0, 1, 2]),
        ] {
            let want: Vec<i64> = naive::<i16>(whole, &axes, f64::from).iter().map(|v| *v as i64).collect();
            for leaf in [1, 4, 100] {
                assert_eq!(sum::<i64>(whole, lines, leaf).unwrap(), want, "{lines}, leaves of {leaf}");
            }
        }
    }
}

#[test]
fn float_sums_are_near_and_do_not_depend_on_strides_or_kept_cells() {
    let mut random = Random::new(2);
    let input: Vec<f32> = (0..5 * 6 * 1003).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect();
    let plain = Whole::new(Block::from_values(&[5, 6, 1003], &input));
    // The same array from a buffer with its axes in another order.
    let moved = values::<f32>(&plain.block.transposed(&[2, 1, 0]));
    let mut turned = Whole::new(Block::from_values(&[1003, 6, 5], &moved));
    turned.block = turned.block.transposed(&[2, 1, 0]);
    turned.meta.shape = vec![5, 6, 1003];
    for (lines, axes) in [("axis = 2", vec![2]), ("axis = 0", vec![0]), ("axis = [0, 2]", vec![0, 2]), ("", vec![0, 1, 2])] {
        let lines = format!("{lines}\ndtype = \"float64\"");
        let got = sum::<f64>(&plain, &lines, 512).unwrap();
        assert_eq!(
            bytemuck::cast_slice::<_, u64>(&got),
            bytemuck::cast_slice::<_, u64>(&sum::<f64>(&turned, &lines, 512).unwrap())
        );
        for (a, b) in got.iter().zip(naive::<f32>(&plain, &axes, f64::from)) {
            assert!((a - b).abs() < 1e-10, "{a} {b}");
        }
    }
    // A part of the kept cells gives the same bits as all of them.
    let all = sum::<f32>(&plain, "axis = 2", 512).unwrap();
    let mut part = Whole::new(plain.block.view(&[2, 3, 0], &[4, 5, 1003]));
    part.meta.shape = vec![2, 2, 1003];
    assert_eq!(sum::<f32>(&part, "axis = 2", 512).unwrap(), [all[2 * 6 + 3], all[2 * 6 + 4], all[3 * 6 + 3], all[3 * 6 + 4]]);
}

#[test]
fn the_scheme_of_a_row_is_the_documented_one() {
    let input: Vec<f64> = (0..21).map(|i| 1.0 / (1.0 + f64::from(i))).collect();
    let whole = Whole::new(Block::from_values(&[21], &input));
    let mut lanes = [0.0; 8];
    for (i, v) in input.iter().enumerate() {
        lanes[i % 8] += v;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let want: f64 = ((a + e) + (c + g)) + ((b + f) + (d + h));
    assert_eq!(sum::<f64>(&whole, "", 100).unwrap()[0].to_bits(), want.to_bits());
}

#[test]
fn dtypes_follow_numpy_and_overflow_is_an_error() {
    let whole = Whole::new(Block::from_values(&[3], &[200u8, 200, 1]));
    assert_eq!(sum::<u64>(&whole, "", 2).unwrap(), [401]);
    assert_eq!(sum::<i16>(&whole, "dtype = \"int16\"", 2).unwrap(), [401]);
    assert!(sum::<u8>(&whole, "dtype = \"uint8\"", 2).unwrap_err().contains("401 does not fit uint8"));
    assert_eq!(sum::<f16>(&whole, "dtype = \"float16\"", 2).unwrap(), [f16::from_f32_const(401.0)]);
    assert_eq!(sum::<[f32; 2]>(&whole, "dtype = \"complex64\"", 2).unwrap(), [[401.0, 0.0]]);
    let whole = Whole::new(Block::from_values(&[2], &[u64::MAX, 1]));
    assert!(sum::<u64>(&whole, "", 2).unwrap_err().contains("18446744073709551616 does not fit uint64"));
    assert_eq!(sum::<f64>(&whole, "dtype = \"float64\"", 2).unwrap(), [2f64.powi(64)]);
    let whole = Whole::new(Block::new(Buffer::from_slice(&[1, 0, 7]), DType::Bool, vec![3]));
    assert_eq!(sum::<i64>(&whole, "", 2).unwrap(), [2]);
    let whole = Whole::new(Block::from_values(&[2], &[Complex64::new(1.0, 2.0), Complex64::new(0.5, -4.0)]));
    assert_eq!(sum::<[f64; 2]>(&whole, "", 1).unwrap(), [[1.5, -2.0]]);
    assert!(sum::<f64>(&whole, "dtype = \"float64\"", 1).unwrap_err().contains("is complex"));
    let whole = Whole::new(Block::from_values(&[2], &[1.0f32, 2.0]));
    assert!(sum::<i64>(&whole, "dtype = \"int64\"", 1).unwrap_err().contains("the sum of float32 is no int64"));
    assert_eq!(sum::<f32>(&Whole::new(Block::from_values::<f32>(&[0], &[])), "", 1).unwrap(), [0.0]);
}

#[test]
fn ignored_and_missing_values() {
    let mut whole = Whole::new(Block::from_values(&[2, 3], &[0u8, 1, 3, 2, 3, 3]));
    whole.meta.missing = Some(Scalar::of(3u8));
    assert_eq!(sum::<i64>(&whole, "axis = 1\nignore = 3\ndtype = \"int64\"", 2).unwrap(), [1, 2]);
    let message = sum::<u64>(&whole, "axis = 1", 4).unwrap_err();
    assert_eq!(message, "input holds its missing value 3 at [0, 2]; give ignore = 3 to leave such values out");
    assert!(sum::<u64>(&whole, "ignore = 2", 4).is_err());
    assert!(sum::<u64>(&whole, "ignore = 300", 4).unwrap_err().contains("ignore: 300 does not fit uint8"));
    let mut whole = Whole::new(Block::from_values(&[3], &[1.0f32, f32::NAN, 2.5]));
    assert!(sum::<f32>(&whole, "", 4).unwrap()[0].is_nan());
    assert_eq!(sum::<f32>(&whole, "ignore = nan", 4).unwrap(), [3.5]);
    whole.meta.missing = Some(Scalar::of(-f32::NAN));
    assert!(sum::<f32>(&whole, "", 4).unwrap_err().contains("give ignore = nan"));
    assert_eq!(sum::<f32>(&whole, "ignore = nan", 4).unwrap(), [3.5]);
    let big = (1i64 << 60) + 1;
    let whole = Whole::new(Block::from_values(&[2], &[big, big - 1]));
    assert_eq!(sum::<i64>(&whole, &format!("ignore = {big}"), 4).unwrap(), [big - 1]);
}

#[test]
fn axes_of_the_output() {
    let mut whole = Whole::new(Block::from_values(&[2, 3, 4], &[1i32; 24]));
    whole.meta.dimension_names = vec![Some("t".into()), None, Some("x".into())];
    let axes = |lines: &str| bind("sum", lines, &[&whole]).map(|b| b.outputs[0].axes.clone());
    assert_eq!(axes("axis = 1").unwrap(), [OutAxis::Carried(0), OutAxis::Carried(2)]);
    let kept = OutAxis::New { len: 1, name: Some("t".into()) };
    assert_eq!(axes("axis = 0\nkeepdims = true").unwrap(), [kept, OutAxis::Carried(1), OutAxis::Carried(2)]);
    assert_eq!(axes("").unwrap(), []);
    assert!(axes("axis = 3").unwrap_err().contains("axis 3 does not exist, the array has 3 axes"));
    assert!(axes("axis = [0, -3]").unwrap_err().contains("axis -3 is given twice"));
    assert!(axes("axis = []").unwrap_err().contains("names no axis"));
    assert!(axes("axis = 0\nkeepdim = true").unwrap_err().contains("did you mean `keepdims`"));
}

#[test]
fn sums_of_64_bits_are_exact_whatever_they_pass_through() {
    let mut random = Random::new(9);
    let (rows, cells) = (14usize, 101usize);
    crate::simd::both_paths(|scalar| {
        // Some cells stay small, others go over and under, and half of those come back: the second half of the rows is the
        // first with the other sign, and a small number more.
        let mut signed = vec![0i64; rows * cells];
        let mut unsigned = vec![0u64; rows * cells];
        for cell in 0..cells {
            let (is_large, returns) = (random.below(3) == 0, random.below(2) == 0);
            for row in 0..rows {
                let value = if is_large { (random.bits() | 1 << 62) as i64 } else { random.below(1000) as i64 - 500 };
                let mirrored = signed[(rows - 1 - row) * cells + cell].wrapping_neg().saturating_add(random.below(9) as i64);
                signed[row * cells + cell] = if returns && row >= rows / 2 { mirrored } else { value };
                unsigned[row * cells + cell] = if is_large { random.bits() } else { random.below(1 << 40) };
            }
        }
        let total = |exact: &dyn Fn(usize) -> i128| -> Vec<i128> {
            (0..cells).map(|cell| (0..rows).map(|row| exact(row * cells + cell)).sum()).collect()
        };
        let (wide, wide_unsigned) = (total(&|at| signed[at].into()), total(&|at| unsigned[at].into()));
        let shape = [rows, cells];
        let (of_signed, of_unsigned) =
            (Whole::new(Block::from_values(&shape, &signed)), Whole::new(Block::from_values(&shape, &unsigned)));
        let doubles = |wide: &[i128]| -> Vec<f64> { wide.iter().map(|v| *v as f64).collect() };
        for leaf in [1, 3, 100] {
            let text = format!("scalar {scalar}, leaves of {leaf}");
            let lines = "axis = 0\ndtype = \"float64\"";
            assert_eq!(sum::<f64>(&of_signed, lines, leaf).unwrap(), doubles(&wide), "{text}");
            assert_eq!(sum::<f64>(&of_unsigned, lines, leaf).unwrap(), doubles(&wide_unsigned), "{text}");
            // All but those that fit are left out, so that there is a result.
            let fits: Vec<usize> = (0..cells).filter(|&cell| i64::try_from(wide[cell]).is_ok()).collect();
            let some: Vec<i64> =
                (0..rows * fits.len()).map(|at| signed[at / fits.len() * cells + fits[at % fits.len()]]).collect();
            let some = Whole::new(Block::from_values(&[rows, fits.len()], &some));
            let want: Vec<i64> = fits.iter().map(|&cell| wide[cell] as i64).collect();
            assert_eq!(sum::<i64>(&some, "axis = 0", leaf).unwrap(), want, "{text}");
            assert!(fits.len() < cells && want.iter().any(|v| v.abs() > 1 << 20), "the case shows nothing");
            // Values that are left out, and means of the others.
            let ignored = signed[cells];
            let kept: Vec<f64> = (0..cells)
                .map(|cell| {
                    let of = (0..rows).map(|row| signed[row * cells + cell]).filter(|v| *v != ignored);
                    of.clone().map(i128::from).sum::<i128>() as f64 / of.count() as f64
                })
                .collect();
            assert_eq!(
                fold::<f64>("mean", &format!("axis = 0\nignore = {ignored}"), &[&of_signed], leaf).unwrap(),
                kept,
                "{text}"
            );
        }
    });
}
