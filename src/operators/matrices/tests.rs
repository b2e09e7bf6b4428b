//! Against naive forms: Gauss-Jordan with exchanges, and the residual of the eigenpair beside Jacobi's eigenvalues.

use num_complex::Complex64;

use super::eigen::{self, Complex, Space, space_len};
use super::singles::{GROUP_BYTES, GROUP_FLOATS, MOST_SINGLES, Rows, Singles};
use super::{Form, Kernel, Lanes, MOST_LANES, inverse, run, run_as, triangle, widest};
use crate::operators::testing::Random;
use crate::simd::both_paths;

type Matrix = Vec<Vec<Complex64>>;

/// Puts up to a batch of matrices side by side.
fn triangles<V: Lanes>(matrices: &[Matrix]) -> Vec<Complex<V>> {
    let n = matrices[0].len();
    let mut all = Vec::with_capacity(triangle(n));
    for i in 0..n {
        for j in 0..=i {
            let (mut re, mut im) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
            for (lane, m) in matrices.iter().enumerate() {
                (re[lane], im[lane]) = (m[i][j].re, m[i][j].im);
            }
            all.push(Complex { re: V::load(&re), im: V::load(&im) });
        }
    }
    all
}

fn lanes_of<V: Lanes>(value: V) -> Vec<f64> {
    let mut all = [0.0; MOST_LANES];
    value.store(&mut all);
    all[..V::COUNT].to_vec()
}

struct Smallest<'a>(&'a [Matrix]);

impl Kernel for Smallest<'_> {
    /// Per matrix: eigenvalue and eigenvector, and the extremes.
    type Output = Vec<(f64, Vec<Complex64>, f64, f64)>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let n = self.0[0].len();
        let mut memory = vec![V::zero(); space_len(n)];
        let mut found = Vec::new();
        for batch in self.0.chunks(V::COUNT) {
            let mut a = triangles::<V>(batch);
            let mut space = Space::new(&mut memory, n);
            let value = lanes_of(eigen::smallest(&mut a, n, &mut space));
            let vector: Vec<_> = space.eigenvector().iter().map(|c| (lanes_of(c.re), lanes_of(c.im))).collect();
            let (low, high) = eigen::extremes(&mut triangles::<V>(batch), n, &mut space);
            for lane in 0..batch.len() {
                let vector = vector.iter().map(|(re, im)| Complex64::new(re[lane], im[lane])).collect();
                found.push((value[lane], vector, lanes_of(low)[lane], lanes_of(high)[lane]));
            }
        }
        found
    }
}

/// Eigenvalues by Jacobi's rotations of the real symmetric matrix of twice the order, sorted; each comes twice.
fn eigenvalues(m: &Matrix) -> Vec<f64> {
    let n = 2 * m.len();
    let mut a: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let part = |j: usize| match (i < n / 2, j < n / 2) {
                (true, true) => m[i][j].re,
                (true, false) => -m[i][j - n / 2].im,
                (false, true) => m[i - n / 2][j].im,
                (false, false) => m[i - n / 2][j - n / 2].re,
            };
            (0..n).map(part).collect()
        })
        .collect();
    for _ in 0..60 {
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let t = if theta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for i in 0..n {
                    let (x, y) = (a[i][p], a[i][q]);
                    (a[i][p], a[i][q]) = (c * x - s * y, s * x + c * y);
                }
                for i in 0..n {
                    let (x, y) = (a[p][i], a[q][i]);
                    (a[p][i], a[q][i]) = (c * x - s * y, s * x + c * y);
                }
            }
        }
    }
    let mut values: Vec<f64> = (0..n).map(|i| a[i][i]).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn random_hermitian(r: &mut Random, n: usize) -> Matrix {
    let mut m = vec![vec![Complex64::ZERO; n]; n];
    for i in 0..n {
        for j in 0..=i {
            let z = Complex64::new(2.0 * r.unit() - 1.0, if i == j { 0.0 } else { 2.0 * r.unit() - 1.0 });
            (m[i][j], m[j][i]) = (z, z.conj());
        }
    }
    m
}

#[test]
fn the_smallest_eigenpair_solves_its_equation() {
    let mut r = Random::new(3);
    let mut matrices: Vec<Vec<Matrix>> =
        [1, 2, 3, 5, 8, 17].map(|n| (0..6).map(|_| random_hermitian(&mut r, n)).collect()).into();
    let diagonal = |values: &[f64]| -> Matrix {
        let n = values.len();
        (0..n).map(|i| (0..n).map(|j| Complex64::from(if i == j { values[i] } else { 0.0 })).collect()).collect()
    };
    // Diagonal, degenerate, all equal, with a block apart, of rank one, of a large scale.
    let ones: Matrix = vec![vec![Complex64::ONE; 4]; 4];
    let mut apart = diagonal(&[3.0, 1.0, -2.0, 5.0]);
    (apart[3][1], apart[1][3]) = (Complex64::I, -Complex64::I);
    let huge = random_hermitian(&mut r, 4).iter().map(|row| row.iter().map(|z| z * 1e120).collect()).collect();
    matrices.push(vec![diagonal(&[4.0, 3.0, 2.0, 1.0]), diagonal(&[1.0; 4]), diagonal(&[0.0; 4]), apart, ones, huge]);
    both_paths(|_| {
        for group in &matrices {
            for (m, (value, vector, low, high)) in group.iter().zip(run(Smallest(group))) {
                let want = eigenvalues(m);
                let scale = want.iter().fold(1e-30f64, |s, v| s.max(v.abs()));
                assert!((value - want[0]).abs() < 1e-12 * scale, "{value} for {}", want[0]);
                assert!((low - want[0]).abs() < 1e-8 * scale && low <= want[0] + 1e-12 * scale, "{low}");
                assert!((high - want[want.len() - 1]).abs() < 1e-8 * scale, "{high}");
                let norm: f64 = vector.iter().map(|z| z.norm_sqr()).sum::<f64>().sqrt();
                for (i, row) in m.iter().enumerate() {
                    let image: Complex64 = row.iter().zip(&vector).map(|(a, v)| a * v).sum();
                    assert!((image - value * vector[i]).norm() < 1e-9 * scale * norm, "row {i}");
                }
            }
        }
    });
}

#[test]
fn lanes_do_not_disturb_each_other_and_all_forms_agree() {
    let mut r = Random::new(4);
    let matrices: Vec<Matrix> = (0..11).map(|_| random_hermitian(&mut r, 7)).collect();
    let bits = |found: &[(f64, Vec<Complex64>, f64, f64)]| -> Vec<u64> {
        found
            .iter()
            .flat_map(|(v, x, ..)| [v.to_bits()].into_iter().chain(x.iter().flat_map(|z| [z.re.to_bits(), z.im.to_bits()])))
            .collect()
    };
    let forms = match widest() {
        Form::Wide => vec![Form::Plain, Form::Avx, Form::Wide],
        Form::Avx => vec![Form::Plain, Form::Avx],
        Form::Plain => vec![Form::Plain],
    };
    let mut seen = Vec::new();
    for form in forms {
        seen.push(bits(&run_as(form, Smallest(&matrices))));
        let alone: Vec<_> = matrices.iter().flat_map(|m| run_as(form, Smallest(std::slice::from_ref(m)))).collect();
        seen.push(bits(&alone));
        let mut poisoned = matrices.clone();
        poisoned[1][2][0] = Complex64::new(f64::NAN, 0.0);
        let mut found = run_as(form, Smallest(&poisoned));
        found[1] = run_as(form, Smallest(&matrices)).swap_remove(1);
        seen.push(bits(&found));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

struct Invert<'a>(&'a [Matrix], f64);

impl Kernel for Invert<'_> {
    type Output = Vec<(Vec<f64>, bool)>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let n = self.0[0].len();
        let mut column = vec![V::zero(); n];
        let mut found = Vec::new();
        for batch in self.0.chunks(V::COUNT) {
            let mut a: Vec<V> = triangles::<V>(batch).iter().map(|c| c.re).collect();
            let pivots = inverse::negative_inverse(&mut a, n, self.1, &mut column);
            for lane in 0..batch.len() {
                let values = a.iter().map(|v| lanes_of(*v)[lane]).collect();
                found.push((values, lanes_of(pivots.is_singular)[lane].to_bits() != 0));
            }
        }
        found
    }
}

#[test]
fn inverses_times_their_matrices_are_one() {
    let mut r = Random::new(5);
    both_paths(|_| {
        for n in [1, 2, 6, 17] {
            let mut group: Vec<Matrix> = Vec::new();
            for _ in 0..5 {
                let mut m: Matrix = vec![vec![Complex64::ZERO; n]; n];
                for i in 0..n {
                    for j in 0..i {
                        let x = Complex64::from(r.unit() * 0.9);
                        (m[i][j], m[j][i]) = (x, x);
                    }
                    m[i][i] = Complex64::from(1.0 + n as f64 * 0.3);
                }
                group.push(m);
            }
            for (m, (values, is_singular)) in group.iter().zip(run(Invert(&group, 1e-12))) {
                assert!(!is_singular);
                let inverse = |i: usize, j: usize| -values[i.max(j) * (i.max(j) + 1) / 2 + i.min(j)];
                for i in 0..n {
                    for j in 0..n {
                        let sum: f64 = (0..n).map(|k| m[i][k].re * inverse(k, j)).sum();
                        assert!((sum - f64::from(i == j)).abs() < 1e-12, "{i} {j}: {sum}");
                    }
                }
            }
        }
        let ones: Matrix = vec![vec![Complex64::ONE; 3]; 3];
        let unit: Matrix = (0..3).map(|i| (0..3).map(|j| Complex64::from(f64::from(i == j))).collect()).collect();
        let mut nan = unit.clone();
        nan[1][0] = Complex64::from(f64::NAN);
        let found = run(Invert(&[ones, unit, nan], 1e-7));
        assert_eq!(found.iter().map(|f| f.1).collect::<Vec<_>>(), [true, false, true]);
    });
}

/// The bits of reciprocal roots.
struct Roots<'a>(&'a [f32]);

impl Kernel for Roots<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let mut found = Vec::new();
        for values in self.0.chunks_exact(MOST_SINGLES) {
            for values in values.chunks_exact(V::Singles::COUNT) {
                let mut roots = [0.0; MOST_SINGLES];
                V::Singles::load(values).rsqrt().store(&mut roots);
                found.extend(roots[..values.len()].iter().map(|root: &f32| root.to_bits()));
            }
        }
        found
    }
}

#[test]
fn reciprocal_roots_of_floats_are_good_to_their_last_bits() {
    let mut r = Random::new(6);
    let values: Vec<f32> = (0..1 << 16).map(|_| ((2.0 * r.unit() - 1.0) * 80.0).exp2() as f32).collect();
    let mut seen: Option<Vec<u32>> = None;
    both_paths(|_| {
        let found = run(Roots(&values));
        for (value, root) in values.iter().zip(&found) {
            let error = f64::from(f32::from_bits(*root)) * f64::from(*value).sqrt() - 1.0;
            assert!(error.abs() < 2f64.powi(-23), "{error} for {value}");
        }
        assert_eq!(seen.get_or_insert_with(|| found.clone()), &found);
    });
}

/// Lane by lane the floats of a group.
struct Turn<'a>(Vec<&'a [u8]>, usize);

impl Kernel for Turn<'_> {
    type Output = Vec<Vec<f32>>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let mut to = [V::Singles::splat(0.0); GROUP_FLOATS];
        let lanes: Vec<_> = self.0.chunks(V::Singles::COUNT).collect();
        let mut found = Vec::new();
        for lanes in lanes {
            let rows = std::array::from_fn(|lane| lanes[lane % lanes.len()]);
            let rows = Rows::new(rows);
            V::Singles::columns(&rows, self.1, &rows, 1 << 20, &mut to);
            for lane in 0..lanes.len() {
                let mut parts = [0.0; MOST_SINGLES];
                let each = to.iter().map(|column| {
                    column.store(&mut parts);
                    parts[lane]
                });
                found.push(each.collect());
            }
        }
        found
    }
}

#[test]
fn groups_of_floats_are_turned_into_lanes() {
    let floats: Vec<f32> = (0..16 * 40).map(|v| v as f32).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&floats);
    // Rows of forty floats, read from the third on, at any address.
    let rows: Vec<&[u8]> = bytes.chunks(160).map(|row| &row[..12 + GROUP_BYTES]).collect();
    both_paths(|_| {
        for (lane, found) in run(Turn(rows.clone(), 12)).iter().enumerate() {
            assert_eq!(found, &floats[40 * lane + 3..][..GROUP_FLOATS]);
        }
    });
}

#[test]
#[should_panic(expected = "group at 16 of 79")]
fn a_group_beyond_its_row_is_refused() {
    let bytes = [0u8; 80];
    run(Turn(vec![&bytes[..], &bytes[1..]], 16));
}
