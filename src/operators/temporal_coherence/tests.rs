//! Against the naive form in double precision, with every path, layout and batch.

use num_complex::{Complex32, Complex64};

use crate::array::{Block, Region};
use crate::operators::stack::all_pairs;
use crate::operators::testing::{Random, Whole, bind, map, values};
use crate::simd::both_paths;

/// t of each pixel.
fn run(coherence: &Whole, phase: &Whole, lines: &str, core: &Region) -> Vec<f32> {
    let inputs = [coherence, phase];
    let bound = bind("temporal_coherence", lines, &inputs).unwrap();
    values(map(&bound, &inputs, core, &[true]).unwrap()[0].as_ref().unwrap())
}

fn wide(z: Complex32) -> Complex64 {
    Complex64::new(z.re.into(), z.im.into())
}

fn naive(coherence: &[Complex32], phase: &[Complex32]) -> f64 {
    let terms = coherence.iter().zip(all_pairs(phase.len())).map(|(c, (i, j))| {
        let c = wide(*c);
        c / (c.re * c.re + c.im * c.im).sqrt() * wide(phase[i]).conj() * wide(phase[j])
    });
    terms.sum::<Complex64>().norm() / coherence.len() as f64
}

fn turn(r: &mut Random, length: f64) -> Complex32 {
    let z = Complex64::from_polar(length, 6.3 * r.unit());
    Complex32::new(z.re as f32, z.im as f32)
}

/// Pixels of `images` images: phases that explain the coherence well, fairly or not at all.
fn pixels(r: &mut Random, count: usize, images: usize) -> (Vec<Complex32>, Vec<Complex32>) {
    let (mut coherence, mut phase) = (Vec::new(), Vec::new());
    for pixel in 0..count {
        let own: Vec<Complex32> = (0..images).map(|_| turn(r, 1.0)).collect();
        let noise = [0.0, 1.0, 30.0][pixel % 3];
        for (i, j) in all_pairs(images) {
            let error = Complex64::from_polar(0.05 + 0.9 * r.unit(), noise * (r.unit() - 0.5));
            let z = wide(own[i]) * wide(own[j]).conj() * error;
            coherence.push(Complex32::new(z.re as f32, z.im as f32));
        }
        phase.extend(own);
    }
    (coherence, phase)
}

#[test]
fn t_is_as_near_to_its_definition_as_single_precision_allows() {
    let mut r = Random::new(31);
    // Groups of eight pairs: none, one in part, some with a rest, many; more and fewer pixels than lanes.
    for (images, count) in [(2, 40), (3, 17), (4, 16), (5, 33), (9, 5), (17, 35), (60, 18), (254, 3)] {
        let (coherence, phase) = pixels(&mut r, count, images);
        let pairs = images * (images - 1) / 2;
        let wants = coherence.chunks(pairs).zip(phase.chunks(images)).map(|(c, p)| naive(c, p));
        let wants: Vec<f64> = wants.collect();
        let whole = |shape: &[usize], values: &[Complex32]| Whole::new(Block::from_values(shape, values));
        let by_pairs = whole(&[count, pairs], &coherence);
        let phases = whole(&[count, images], &phase);
        let mut matrices = vec![Complex32::new(7.0, 7.0); count * images * images];
        for (pixel, c) in coherence.chunks(pairs).enumerate() {
            all_pairs(images).zip(c).for_each(|((i, j), c)| matrices[(pixel * images + i) * images + j] = *c);
        }
        let in_full = whole(&[count, images, images], &matrices);
        let images_first: Vec<Complex32> = (0..images * count).map(|at| phase[at % count * images + at / count]).collect();
        let images_first = whole(&[images, count], &images_first);
        let all = Region::whole(&[count as u64, pairs as u64]);
        let mut seen: Option<Vec<f32>> = None;
        both_paths(|scalar| {
            let found = run(&by_pairs, &phases, "", &all);
            for (got, want) in found.iter().zip(&wants) {
                assert!((f64::from(*got) - want).abs() < 1.5e-7, "{got} for {want}, N = {images}, scalar {scalar}");
            }
            let full = Region::whole(&[count as u64, images as u64, images as u64]);
            assert_eq!(run(&in_full, &phases, "layout = \"full\"", &full), found, "full, N = {images}");
            assert_eq!(run(&by_pairs, &images_first, "image_axis = 0", &all), found, "images first, N = {images}");
            // Other batches.
            let part = Region::from_ranges(&[(1, count as i64), (0, pairs as i64)]);
            assert_eq!(run(&by_pairs, &phases, "", &part), found[1..], "N = {images}");
            assert_eq!(seen.get_or_insert_with(|| found.clone()), &found, "N = {images}, scalar {scalar}");
        });
    }
}

#[test]
fn lengths_beyond_the_range_of_squares_have_a_phase_and_zero_has_none() {
    let mut r = Random::new(32);
    let images = 7;
    let pairs = images * (images - 1) / 2;
    let (mut coherence, phase) = pixels(&mut r, 24, images);
    let lengths = [1e-12, 0.9e-12, 1.1e-12, 1e-19, 1e-30, 1e-38, 1e-42, 1e12, 1e19, 1e30, 3e38];
    for (pixel, c) in coherence.chunks_mut(pairs).enumerate() {
        if pixel % 4 == 3 {
            continue;
        }
        for c in c.iter_mut().skip(pixel % 3) {
            let length = lengths[r.below(lengths.len() as u64) as usize];
            *c = turn(&mut r, length);
        }
    }
    let usual = run_list(&coherence, &phase, images);
    for (pixel, got) in usual.iter().enumerate() {
        let want = naive(&coherence[pixel * pairs..][..pairs], &phase[pixel * images..][..images]);
        assert!((f64::from(*got) - want).abs() < 1.5e-7, "{got} for {want} at {pixel}");
    }
    // What has no phase, in one pixel of a batch each: the others' bits stay.
    let nan = Complex32::new(0.5, f32::NAN);
    let infinite = Complex32::new(f32::INFINITY, 0.0);
    for (n, value) in [Complex32::ZERO, nan, infinite].into_iter().enumerate() {
        let at = (5 + n) * pairs + [0, 11, pairs - 1][n];
        let mut spoilt = coherence.clone();
        spoilt[at] = value;
        let mut expected = usual.clone();
        expected[5 + n] = f32::NAN;
        let bits = |t: &[f32]| t.iter().map(|t| t.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&run_list(&spoilt, &phase, images)), bits(&expected), "{value}");
        let mut without = phase.clone();
        without[(5 + n) * images + 2 * n] = nan;
        assert_eq!(bits(&run_list(&coherence, &without, images)), bits(&expected), "phase {}", 2 * n);
    }
}

/// t of a list of pixels, the same on every path.
fn run_list(coherence: &[Complex32], phase: &[Complex32], images: usize) -> Vec<f32> {
    let (count, pairs) = (phase.len() / images, images * (images - 1) / 2);
    let coherence = Whole::new(Block::from_values(&[count, pairs], coherence));
    let phase = Whole::new(Block::from_values(&[count, images], phase));
    let mut found = Vec::new();
    both_paths(|_| found.push(run(&coherence, &phase, "", &Region::whole(&coherence.meta.shape))));
    let bits = |t: &[f32]| t.iter().map(|t| t.to_bits()).collect::<Vec<_>>();
    assert!(found.windows(2).all(|two| bits(&two[0]) == bits(&two[1])));
    found.swap_remove(0)
}
