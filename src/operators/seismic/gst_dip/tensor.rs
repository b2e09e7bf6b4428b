//! From the smoothed structure tensor to dips: along one axis of traces in closed form, along two by the eigenvector of the 3 x 3
//! tensor.

use super::super::super::matrices::eigen::{Complex, Space, smallest, space_len};
use super::super::super::matrices::{self, Kernel, Lanes, MOST_LANES};

/// A field to smooth, made of derivatives: those along the traces first, that along the samples last.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Product(usize, usize),
    /// The square of the first less that of the second. Smoothing is linear: the difference need be smoothed once.
    Squares(usize, usize),
}

/// The fields that dips along so many axes are made of.
pub fn forms(spatial: usize) -> &'static [Form] {
    use Form::{Product, Squares};
    match spatial {
        1 => &[Product(0, 1), Squares(1, 0)],
        // The lower triangle, row by row.
        _ => &[Product(0, 0), Product(1, 0), Product(1, 1), Product(2, 0), Product(2, 1), Product(2, 2)],
    }
}

/// The dips of as many cells as `dips` have, one axis of traces after the other.
pub fn dips(fields: &[&[f64]], dips: &mut [&mut [f64]]) {
    match (fields, dips) {
        ([mixed, squares], [dips]) => {
            for ((dip, xz), zz_xx) in dips.iter_mut().zip(*mixed).zip(*squares) {
                *dip = 0.5 * libm::atan2(2.0 * xz, *zz_xx);
            }
        }
        (triangle, [first, second]) => matrices::run(Normals { triangle, dips: [first, second] }),
        _ => unreachable!("one axis of traces or two"),
    }
}

/// The tensor's first eigenvector is the last one of its negative, which the solver finds.
struct Normals<'a> {
    triangle: &'a [&'a [f64]],
    dips: [&'a mut [f64]; 2],
}

impl Kernel for Normals<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { triangle, dips: [first, second] } = self;
        let mut memory = [V::zero(); space_len(3)];
        let mut space = Space::new(&mut memory, 3);
        for start in (0..first.len()).step_by(V::COUNT) {
            let count = V::COUNT.min(first.len() - start);
            let mut matrix = [Complex::<V>::zero(); 6];
            let mut size = [0.0; MOST_LANES];
            for (element, field) in matrix.iter_mut().zip(triangle) {
                let mut values = [0.0; MOST_LANES];
                for (lane, value) in field[start..start + count].iter().enumerate() {
                    values[lane] = -value;
                    size[lane] += value.abs();
                }
                element.re = V::load(&values);
            }
            smallest(&mut matrix, 3, &mut space);
            let mut normal = [[0.0; MOST_LANES]; 3];
            for (values, element) in normal.iter_mut().zip(space.eigenvector()) {
                element.re.store(values);
            }
            for lane in 0..count {
                let [x, y, z] = [normal[0][lane], normal[1][lane], normal[2][lane]];
                (first[start + lane], second[start + lane]) = match size[lane] {
                    0.0 => (0.0, 0.0),
                    nan if nan.is_nan() => (f64::NAN, f64::NAN),
                    _ => (angle(x, z), angle(y, z)),
                };
            }
        }
    }
}

/// The angle between the samples' axis and a direction without sign, seen along one axis.
fn angle(across: f64, along: f64) -> f64 {
    if along < 0.0 { libm::atan2(-across, -along) } else { libm::atan2(across, along) }
}
