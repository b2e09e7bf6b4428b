//! Every number of images up to a few vectors, and large ones, against the naive form in double precision on every path.

use num_complex::{Complex32, Complex64};
use serde_json::json;

use crate::array::{Block, Element, Region};
use crate::operators::stack::{Cell, all_pairs};
use crate::operators::testing::{Random, Whole, bind, map, values};
use crate::simd::both_paths;

const ROWS: usize = 3;
const COLS: usize = 6;
/// Window of 3 x 5 cells.
const HALF: [usize; 2] = [1, 2];

/// Coherence of one pixel as it is defined: sums over the selected cells inside the image.
fn naive(z: &[Complex64], images: usize, mask: &[bool], row: usize, col: usize) -> Vec<Complex64> {
    let breadth = 2 * HALF[1] + 1;
    let cells: Vec<usize> = (0..mask.len())
        .filter(|cell| mask[*cell])
        .filter_map(|cell| {
            let y = (row + cell / breadth).checked_sub(HALF[0]).filter(|y| *y < ROWS)?;
            let x = (col + cell % breadth).checked_sub(HALF[1]).filter(|x| *x < COLS)?;
            Some((y * COLS + x) * images)
        })
        .collect();
    let sum = |i: usize, j: usize| cells.iter().map(|at| z[at + i] * z[at + j].conj()).sum::<Complex64>();
    all_pairs(images).map(|(i, j)| sum(i, j) / (sum(i, i).re * sum(j, j).re).sqrt()).collect()
}

/// Bits of both parts, one NaN.
fn bits(found: &[Complex64]) -> Vec<[u64; 2]> {
    let of = |part: f64| if part.is_nan() { f64::NAN.to_bits() } else { part.to_bits() };
    found.iter().map(|z| [of(z.re), of(z.im)]).collect()
}

fn check<T: Cell + Element>(r: &mut Random, images: usize, tolerance: f64) {
    let gauss = |r: &mut Random| (0..4).map(|_| r.unit()).sum::<f64>() - 2.0;
    let mut z: Vec<T> = (0..ROWS * COLS * images).map(|_| T::new(gauss(r), gauss(r))).collect();
    // A NaN, an image without power in a corner, and somewhere an infinity.
    z[(COLS + 4) * images + images / 2] = T::nan();
    (0..ROWS * COLS).filter(|pixel| pixel % COLS < 2).for_each(|pixel| z[pixel * images] = T::new(0.0, 0.0));
    z[(2 * COLS + 5) * images + images - 1] = T::new(f64::INFINITY, 1.0);
    let cells = (2 * HALF[0] + 1) * (2 * HALF[1] + 1);
    let masks: Vec<bool> = (0..ROWS * COLS * cells).map(|_| r.below(3) > 0).collect();
    let bytes: Vec<u8> = masks
        .chunks(cells)
        .flat_map(|mask| mask.chunks(8))
        .map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
        .collect();
    let mut mask = Whole::new(Block::from_values(&[ROWS, COLS, cells.div_ceil(8)], &bytes));
    mask.meta.attributes.insert("window".to_owned(), json!([2 * HALF[0] + 1, 2 * HALF[1] + 1]));
    let slc = Whole::new(Block::from_values(&[ROWS, COLS, images], &z));
    let mut images_first = Whole::new(slc.block.transposed(&[2, 0, 1]));
    images_first.meta.shape = vec![images as u64, ROWS as u64, COLS as u64];

    let wide: Vec<Complex64> = z.iter().map(|z| z.wide()).collect();
    let want: Vec<Complex64> = (0..ROWS * COLS)
        .flat_map(|pixel| naive(&wide, images, &masks[pixel * cells..][..cells], pixel / COLS, pixel % COLS))
        .collect();
    let mut seen: Option<Vec<[u64; 2]>> = None;
    both_paths(|scalar| {
        let run = |stack: &Whole, lines: &str, core: &Region| -> Vec<Complex64> {
            let bound = bind("coherence", lines, &[stack, &mask]).unwrap();
            let found = map(&bound, &[stack, &mask], core, &[true]).unwrap();
            values::<T>(found[0].as_ref().unwrap()).iter().map(|z| z.wide()).collect()
        };
        let all = Region::whole(&slc.meta.shape);
        let found = run(&slc, "", &all);
        for (got, want) in found.iter().zip(&want) {
            let is_same = (got - want).norm() < tolerance || want.is_nan() && got.is_nan();
            assert!(is_same, "{got} for {want}, N = {images}, scalar {scalar}");
        }
        let pairs = images * (images - 1) / 2;
        for (full, by_pairs) in run(&slc, "layout = \"full\"", &all).chunks(images * images).zip(found.chunks(pairs)) {
            let upper: Vec<Complex64> = all_pairs(images).map(|(i, j)| full[i * images + j]).collect();
            let lower: Vec<Complex64> = all_pairs(images).map(|(i, j)| full[j * images + i].conj()).collect();
            assert_eq!(bits(&upper), bits(by_pairs), "N = {images}");
            assert_eq!(bits(&lower), bits(by_pairs), "N = {images}");
        }
        let turned = Region::whole(&images_first.meta.shape);
        assert_eq!(bits(&run(&images_first, "image_axis = 0", &turned)), bits(&found), "N = {images}");
        assert_eq!(seen.get_or_insert_with(|| bits(&found)), &bits(&found), "N = {images}, scalar {scalar}");
    });
}

#[test]
fn every_number_of_images_equals_the_definition() {
    let mut r = Random::new(41);
    for images in (2..=36).chain([47, 48, 49, 60, 63, 64, 65, 100, 254]) {
        check::<Complex32>(&mut r, images, 2e-7);
        check::<Complex64>(&mut r, images, 1e-14);
    }
}
