//! The arithmetic: whole rows along the last axis, in scikit-image's order of operations, in the image's own dtype.

use bytemuck::Pod;
use half::f16;

use crate::array::block::{c_strides, copy_strided};
use crate::array::{Block, DType, Region};
use crate::simd::has_avx2;

/// `f32` and `f64`.
pub trait Float:
    Pod
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    const SIZE: usize = size_of::<Self>();
    const ZERO: Self;
    const ONE: Self;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;

    fn cells(bytes: &[u8]) -> &[Self] {
        bytemuck::cast_slice(bytes)
    }

    fn cells_mut(bytes: &mut [u8]) -> &mut [Self] {
        bytemuck::cast_slice_mut(bytes)
    }
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn of(value: f64) -> Self {
                value as $t
            }
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}
float!(f32);
float!(f64);

/// Copies a block of `from` values that covers `own` into cells of T that cover `bounds`. Integers become floats as
/// `skimage.util.img_as_float` makes them: divided by their dtype's largest value, not below -1.
pub fn load<T: Float>(block: &Block, from: DType, cells: &mut [T], bounds: &Region, own: &Region) {
    let to = c_strides(&bounds.shape(), 1);
    let offset: isize = own.start.iter().zip(&bounds.start).zip(&to).map(|((o, b), s)| (o - b) as isize * s).sum();
    let is_plain = matches!((from, T::SIZE), (DType::F32, 4) | (DType::F64, 8));
    let (raw, raw_offset) = block.raw();
    if is_plain {
        let strides: Vec<isize> = to.iter().map(|s| s * T::SIZE as isize).collect();
        let out: &mut [u8] = bytemuck::cast_slice_mut(cells);
        copy_strided(out, offset * T::SIZE as isize, &strides, raw, raw_offset, block.strides(), block.shape(), T::SIZE);
        return;
    }
    let size = from.size();
    for_each_row(block.shape(), |at, len| {
        let source = raw_offset + at.iter().zip(block.strides()).map(|(&i, s)| i as isize * s).sum::<isize>();
        let first = offset + at.iter().zip(&to).map(|(&i, s)| i as isize * s).sum::<isize>();
        let step = block.strides().last().copied().unwrap_or(size as isize);
        for i in 0..len {
            let start = (source + i as isize * step) as usize;
            cells[first as usize + i] = T::of(as_float(from, &raw[start..start + size]));
        }
    });
}

fn as_float(dtype: DType, bytes: &[u8]) -> f64 {
    macro_rules! scaled {
        ($t:ty) => {{
            let value = bytemuck::pod_read_unaligned::<$t>(bytes);
            (value as f64 * (1.0 / <$t>::MAX as f64)).max(-1.0)
        }};
    }
    match dtype {
        DType::Bool => f64::from(bytes[0] != 0),
        DType::U8 => scaled!(u8),
        DType::I8 => scaled!(i8),
        DType::U16 => scaled!(u16),
        DType::I16 => scaled!(i16),
        DType::U32 => scaled!(u32),
        DType::I32 => scaled!(i32),
        DType::U64 => scaled!(u64),
        DType::I64 => scaled!(i64),
        DType::F16 => f16::to_f64(bytemuck::pod_read_unaligned::<f16>(bytes)),
        DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        // Complex inputs are refused when the step is bound.
        DType::F64 | DType::C64 | DType::C128 => bytemuck::pod_read_unaligned::<f64>(&bytes[..8]),
    }
}

/// Copies the cells of `own` out of those of `bounds`.
pub fn store<T: Float>(cells: &[T], bounds: &Region, out: &mut [T], own: &Region) {
    let (from, to) = (c_strides(&bounds.shape(), T::SIZE), c_strides(&own.shape(), T::SIZE));
    let offset: isize = own.start.iter().zip(&bounds.start).zip(&from).map(|((o, b), s)| (o - b) as isize * s).sum();
    copy_strided(bytemuck::cast_slice_mut(out), 0, &to, bytemuck::cast_slice(cells), offset, &from, &own.shape(), T::SIZE);
}

/// Visits the rows of a box: indices on all axes (0 on the last), and the rows' length.
fn for_each_row(shape: &[usize], mut visit: impl FnMut(&[usize], usize)) {
    if shape.contains(&0) {
        return;
    }
    let last = shape.len().saturating_sub(1);
    let len = shape.last().copied().unwrap_or(1);
    let mut at = vec![0usize; shape.len()];
    loop {
        visit(&at, len);
        let Some(axis) = (0..last).rev().find(|&a| at[a] + 1 < shape[a]) else { return };
        at[axis] += 1;
        at[axis + 1..last].fill(0);
    }
}

/// Where the cells of a box lie in the array.
pub struct Cells {
    bounds: Region,
    shape: Vec<i64>,
    strides: Vec<usize>,
    count: usize,
}

impl Cells {
    pub fn new(bounds: &Region, shape: &[i64]) -> Self {
        let strides = c_strides(&bounds.shape(), 1).iter().map(|&s| s as usize).collect();
        Self { bounds: bounds.clone(), shape: shape.to_vec(), strides, count: bounds.count() }
    }

    fn at(&self, place: &[i64]) -> usize {
        place.iter().zip(&self.bounds.start).zip(&self.strides).map(|((p, b), s)| (p - b) as usize * s).sum()
    }
}

/// Energies of the cells of a box, in C order.
pub type Energies<'e> = Option<(&'e Region, &'e mut [f64])>;

/// The state of the iteration inside one box.
pub struct Tv<'t, T> {
    pub cells: Cells,
    pub weight: f64,
    pub image: &'t [T],
    pub out: &'t mut [T],
    /// One component after the other.
    pub p: &'t mut [T],
    /// A row for the norm and one for each gradient.
    pub rows: &'t mut [T],
}

impl<T: Float> Tv<'_, T> {
    /// One iteration: `p` on `region`, from `p` one cell around it. Energies are added for the cells of their box.
    /// `is_ready`: `out` is up to date.
    pub fn update(&mut self, region: &Region, energies: Energies<'_>, is_ready: bool) {
        let mut wider = region.clone();
        for a in 0..region.rank() {
            wider.stop[a] = (region.stop[a] + 1).min(self.cells.shape[a]);
        }
        let mut energies = energies;
        if !is_ready {
            self.divergence(&wider, energies.as_mut().map(|(own, cells)| (*own, &mut **cells)));
        }
        self.descend(region, energies);
    }

    /// `out = image - div p` on `region`. Adds the squares of the divergence to the energies.
    pub fn divergence(&mut self, region: &Region, mut energies: Energies<'_>) {
        let rank = region.rank();
        let count = self.cells.count;
        let shape = region.shape();
        for_each_row(&shape, |at, len| {
            let place: Vec<i64> = at.iter().zip(&region.start).map(|(&i, s)| i as i64 + s).collect();
            let first = self.cells.at(&place);
            let row = &mut self.out[first..first + len];
            let components = (0..rank).map(|a| {
                let base = a * count + first;
                let before = if a + 1 == rank { 1 } else { self.cells.strides[a] };
                // At the array's edge there is no neighbour; on the last axis that is the row's first cell only.
                let skip = usize::from(a + 1 == rank && place[a] == 0);
                let has_before = a + 1 == rank || place[a] > 0;
                let p = &self.p[base..base + len];
                (p, (has_before && len > skip).then(|| (&self.p[base + skip - before..base + len - before], skip)))
            });
            diverge(row, &self.image[first..first + len], components, |row| {
                let Some((own, cells)) = &mut energies else { return };
                if let Some((from, to, start)) = part_of(own, &place, len) {
                    square(&row[from..to], &mut cells[start..start + (to - from)]);
                }
            });
        });
    }

    /// `p = (p - tau g) / (1 + tau/weight |g|)` on `region`, `g` the gradient of `out`. Adds `weight |g|` to the energies.
    fn descend(&mut self, region: &Region, mut energies: Energies<'_>) {
        let rank = region.rank();
        let count = self.cells.count;
        let tau = 1.0 / (2.0 * rank as f64);
        let shape = region.shape();
        let row_len = shape.last().copied().unwrap_or(1).next_multiple_of(16);
        let (norm, gradients) = self.rows.split_at_mut(row_len.min(self.rows.len()));
        for_each_row(&shape, |at, len| {
            let place: Vec<i64> = at.iter().zip(&region.start).map(|(&i, s)| i as i64 + s).collect();
            let first = self.cells.at(&place);
            for a in 0..rank {
                let g = &mut gradients[a * row_len..a * row_len + len];
                let here = &self.out[first..first + len];
                if a + 1 == rank {
                    // The last cell of the array has no neighbour.
                    let whole = if place[a] + len as i64 == self.cells.shape[a] { len - 1 } else { len };
                    difference(&self.out[first + 1..first + 1 + whole], &here[..whole], &mut g[..whole]);
                    g[whole..].fill(T::ZERO);
                } else if place[a] + 1 < self.cells.shape[a] {
                    let after = first + self.cells.strides[a];
                    difference(&self.out[after..after + len], here, g);
                } else {
                    g.fill(T::ZERO);
                }
            }
            length(gradients, row_len, rank, &mut norm[..len]);
            if let Some((own, cells)) = &mut energies
                && let Some((from, to, start)) = part_of(own, &place, len)
            {
                weigh(&norm[from..to], self.weight, &mut cells[start..start + (to - from)]);
            }
            soften(&mut norm[..len], T::of(tau / self.weight));
            for a in 0..rank {
                let base = a * count + first;
                step(&mut self.p[base..base + len], &gradients[a * row_len..a * row_len + len], &norm[..len], T::of(tau));
            }
        });
    }
}

/// The part of a row that lies in a box: from, to (in the row), and where it begins in the box's own cells.
fn part_of(own: &Region, place: &[i64], len: usize) -> Option<(usize, usize, usize)> {
    let last = own.rank() - 1;
    if (0..last).any(|a| place[a] < own.start[a] || place[a] >= own.stop[a]) {
        return None;
    }
    let from = place[last].max(own.start[last]);
    let to = (place[last] + len as i64).min(own.stop[last]);
    if from >= to {
        return None;
    }
    let strides = c_strides(&own.shape(), 1);
    let mut start: isize = (0..last).map(|a| (place[a] - own.start[a]) as isize * strides[a]).sum();
    start += (from - own.start[last]) as isize;
    Some(((from - place[last]) as usize, (to - place[last]) as usize, start as usize))
}

/// Gives a row function an AVX2 form: the same operations in the same order on wider registers, so equal bits.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident<T: Float>($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        fn $name<T: Float>($($arg: $ty),*) {
            #[inline(always)]
            fn plain<T: Float>($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide<T: Float>($($arg: $ty),*) {
                    plain($($arg),*)
                }
                if has_avx2() {
                    // SAFETY: AVX2 is there.
                    return unsafe { wide($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    };
}

/// A component of `p` along a row, and its neighbours before with the cell at which they begin.
type Component<'c, T> = (&'c [T], Option<(&'c [T], usize)>);

/// `image - div p` along a row; `seen` gets the divergence's negative before the image is added.
fn diverge<'c, T: Float>(
    row: &mut [T],
    image: &[T],
    components: impl Iterator<Item = Component<'c, T>> + Clone,
    seen: impl FnOnce(&[T]),
) {
    for (a, (p, _)) in components.clone().enumerate() {
        if a == 0 { row.copy_from_slice(p) } else { add(row, p) }
    }
    negate(row);
    for (_, before) in components {
        if let Some((before, skip)) = before {
            add(&mut row[skip..], before);
        }
    }
    seen(row);
    add_to(row, image);
}

vectorised! {
    fn add<T: Float>(row: &mut [T], other: &[T]) {
        for (r, o) in row.iter_mut().zip(other) {
            *r = *r + *o;
        }
    }
}

vectorised! {
    /// `image + d`, in this order.
    fn add_to<T: Float>(row: &mut [T], image: &[T]) {
        for (r, i) in row.iter_mut().zip(image) {
            *r = *i + *r;
        }
    }
}

vectorised! {
    fn negate<T: Float>(row: &mut [T]) {
        for r in row.iter_mut() {
            *r = -*r;
        }
    }
}

vectorised! {
    fn difference<T: Float>(after: &[T], here: &[T], g: &mut [T]) {
        for ((g, a), h) in g.iter_mut().zip(after).zip(here) {
            *g = *a - *h;
        }
    }
}

vectorised! {
    /// Lengths of the gradients, which lie `row_len` cells apart.
    fn length<T: Float>(gradients: &[T], row_len: usize, rank: usize, norm: &mut [T]) {
        for (n, g) in norm.iter_mut().zip(gradients) {
            *n = *g * *g;
        }
        for a in 1..rank {
            for (n, g) in norm.iter_mut().zip(&gradients[a * row_len..]) {
                *n = *n + *g * *g;
            }
        }
        for n in norm.iter_mut() {
            *n = n.root();
        }
    }
}

vectorised! {
    fn soften<T: Float>(norm: &mut [T], factor: T) {
        for n in norm.iter_mut() {
            *n = *n * factor + T::ONE;
        }
    }
}

vectorised! {
    fn step<T: Float>(p: &mut [T], g: &[T], norm: &[T], tau: T) {
        for ((p, g), n) in p.iter_mut().zip(g).zip(norm) {
            *p = (*p - tau * *g) / *n;
        }
    }
}

vectorised! {
    fn square<T: Float>(row: &[T], energies: &mut [f64]) {
        for (e, d) in energies.iter_mut().zip(row) {
            *e += d.wide() * d.wide();
        }
    }
}

vectorised! {
    fn weigh<T: Float>(norm: &[T], weight: f64, energies: &mut [f64]) {
        for (e, n) in energies.iter_mut().zip(norm) {
            *e += weight * n.wide();
        }
    }
}
