//! Does the stack behave as the InSAR chain expects: speckle, neighbours of a class, coherence, point scatterers, fringes?

use super::super::tests::{read_all, spec};
use super::*;

/// Pixels (row by row), each the series of its images, and the class of each.
fn scene(height: u64, width: u64, images: u64) -> (Vec<Vec<Complex32>>, Vec<usize>) {
    let shape = [height, width, images];
    let bytes = read_all(&spec("slc", &shape, &shape));
    let values: Vec<Complex32> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    assert!(values.iter().all(|v| v.re.is_finite() && v.im.is_finite()));
    let slc = Slc::new(7, &shape, DType::C64).unwrap();
    let class = |i: u64| {
        let (y, x) = (i / width, i % width);
        nearest(&slc.sites(y / PATCH, x / PATCH), y as i64, x as i64)
    };
    (values.chunks_exact(images as usize).map(<[_]>::to_vec).collect(), (0..height * width).map(class).collect())
}

fn is_point(pixel: &[Complex32]) -> bool {
    let n = pixel.len() as f32;
    let mean = pixel.iter().map(|v| v.norm()).sum::<f32>() / n;
    let variance = pixel.iter().map(|v| (v.norm() - mean) * (v.norm() - mean)).sum::<f32>() / n;
    variance.sqrt() / mean < 0.15
}

#[test]
fn every_class_has_rayleigh_amplitudes_of_its_own_level() {
    let (pixels, classes) = scene(300, 300, 20);
    for (c, class) in CLASSES.iter().enumerate() {
        let of_class = pixels.iter().zip(&classes).filter(|(p, k)| **k == c && !is_point(p));
        let amplitudes: Vec<f64> = of_class.map(|(p, _)| f64::from(p[3].norm())).collect();
        let n = amplitudes.len() as f64;
        assert!(n > 5000.0, "class {c}: {n} pixels");
        let mean = amplitudes.iter().sum::<f64>() / n;
        let square = amplitudes.iter().map(|v| v * v).sum::<f64>() / n;
        // of a Rayleigh law: sqrt(pi / (4 - pi)) = 1.913
        let ratio = mean / (square - mean * mean).sqrt();
        assert!((ratio - 1.913).abs() < 0.06, "class {c}: {ratio}");
        assert!((square.sqrt() / class.amplitude - 1.0).abs() < class.season + 0.03, "class {c}: {}", square.sqrt());
    }
}

/// Largest distance of two empirical distributions.
fn ks_distance(a: &[Complex32], b: &[Complex32]) -> f64 {
    let below = |of: &[Complex32], x: f32| of.iter().filter(|v| v.norm() <= x).count() as f64 / of.len() as f64;
    a.iter().chain(b).map(|v| (below(a, v.norm()) - below(b, v.norm())).abs()).fold(0.0, f64::max)
}

#[test]
fn the_ks_test_accepts_neighbours_of_a_class_and_rejects_others() {
    let (height, width) = (150usize, 150usize);
    let (pixels, classes) = scene(height as u64, width as u64, 25);
    // the 5 % point of the two-sample test of 25 and 25
    let critical = 1.358 * (2.0f64 / 25.0).sqrt();
    let mut counts = [[0.0; 2]; 2];
    for at in (0..height * width - 5 * width).filter(|at| at % width < width - 5) {
        for other in [at + 1, at + 5, at + 5 * width] {
            let is_same = classes[at] == classes[other];
            counts[usize::from(is_same)][usize::from(ks_distance(&pixels[at], &pixels[other]) < critical)] += 1.0;
        }
    }
    let [other, same] = counts.map(|[rejected, accepted]| accepted / (accepted + rejected));
    // nominally 0.95; images that are coherent count for fewer than 25, and towns have point scatterers
    assert!((0.84..0.96).contains(&same), "of the same class accepted: {same}");
    assert!(other < 0.35, "of another class accepted: {other}");
}

#[test]
fn coherence_decays_as_the_class_says_and_the_phase_is_smooth() {
    let (pixels, classes) = scene(240, 240, 4);
    for (c, class) in CLASSES.iter().enumerate() {
        for (i, j) in [(0usize, 1usize), (1, 3)] {
            // one pixel against its right neighbour cancels ramps and deformation
            let product = |at: usize| pixels[at][i] * pixels[at][j].conj();
            let pairs = (0..pixels.len() - 1).filter(|at| at % 240 < 239 && classes[*at] == c && classes[at + 1] == c);
            let (mut sum, mut power, mut n) = (Complex32::default(), 0.0f32, 0.0f32);
            for at in pairs.filter(|at| pixels[*at..at + 2].iter().all(|p| p[0].norm() < 4.0 * class.amplitude as f32)) {
                sum += product(at) * product(at + 1).conj();
                power += pixels[at][i].norm_sqr() * pixels[at][j].norm_sqr();
                n += 1.0;
            }
            let days = (j - i) as f64 * DAYS;
            let expected = class.lasting + (1.0 - class.lasting) * libm::exp(-days / class.tau);
            // the mean product of two pixels over the mean power: coherence^2 / (1 + coherence^2)
            let found = f64::from(sum.norm() / power);
            let expected = expected * expected / (1.0 + expected * expected);
            assert!(n > 1500.0 && (found - expected).abs() < 0.06, "class {c}, {i}-{j}: {found} {expected}, {n} pairs");
        }
    }
}

#[test]
fn a_few_pixels_are_point_scatterers() {
    let (pixels, _) = scene(300, 300, 20);
    let share = pixels.iter().filter(|p| is_point(p)).count() as f64 / pixels.len() as f64;
    assert!((0.002..0.02).contains(&share), "{share}");
}
