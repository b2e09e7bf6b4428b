//! A strided view of a buffer as an n-dimensional array of one dtype: chunks, padded blocks, results.
//!
//! Views share their buffer, so cutting a halo off or handing a chunk on costs nothing; copies happen in
//! [`copy_strided`] only.

use std::sync::Arc;

use super::{Buffer, DType, Dims, Element, Region, Scalar};

/// A read-only strided view. Cloning shares the buffer.
#[derive(Clone, Debug)]
pub struct Block {
    data: Arc<Buffer>,
    dtype: DType,
    /// Bytes from the buffer's start to the first element.
    offset: isize,
    shape: Dims<usize>,
    /// Bytes from one element to the next, per axis; may be negative or zero.
    strides: Dims<isize>,
}

/// Strides in bytes of a C-order array.
pub fn c_strides(shape: &[usize], itemsize: usize) -> Dims<isize> {
    let mut strides = Dims::from_elem(0, shape.len());
    let mut step = itemsize as isize;
    for axis in (0..shape.len()).rev() {
        strides[axis] = step;
        step *= shape[axis].max(1) as isize;
    }
    strides
}

impl Block {
    /// A C-order block over a whole buffer.
    pub fn new(data: Buffer, dtype: DType, shape: impl Into<Dims<usize>>) -> Self {
        let shape = shape.into();
        debug_assert!(data.len() >= shape.iter().product::<usize>() * dtype.size());
        let strides = c_strides(&shape, dtype.size());
        Self { data: Arc::new(data), dtype, offset: 0, shape, strides }
    }

    /// A block outside any budget, for tests.
    pub fn from_values<T: Element>(shape: &[usize], values: &[T]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Self::new(Buffer::from_slice(bytemuck::cast_slice(values)), T::DTYPE, shape)
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn byte_len(&self) -> usize {
        self.count() * self.dtype.size()
    }

    /// True when the elements follow each other in C order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut step = self.dtype.size() as isize;
        for axis in (0..self.shape.len()).rev() {
            if self.shape[axis] > 1 && self.strides[axis] != step {
                return false;
            }
            step *= self.shape[axis] as isize;
        }
        true
    }

    /// The elements' bytes when contiguous.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.count() == 0 {
            return Some(&[]);
        }
        let offset = self.offset as usize;
        self.is_contiguous().then(|| &self.data[offset..offset + self.byte_len()])
    }

    /// The elements when contiguous. `bool` is seen as `u8`.
    pub fn values<T: bytemuck::Pod>(&self) -> Option<&[T]> {
        debug_assert_eq!(size_of::<T>(), self.dtype.size());
        self.bytes().map(bytemuck::cast_slice)
    }

    /// The whole buffer and the first element's offset in it, for loops that follow the strides themselves.
    pub fn raw(&self) -> (&[u8], isize) {
        (&self.data, self.offset)
    }

    /// The innermost row at `index` (all axes but the last), as elements; needs the last axis to be contiguous.
    pub fn row<T: bytemuck::Pod>(&self, index: &[usize]) -> Option<&[T]> {
        let last = self.shape.len().checked_sub(1)?;
        if self.shape[last] > 1 && self.strides[last] != size_of::<T>() as isize {
            return None;
        }
        let at = self.offset + index.iter().zip(&self.strides).map(|(&i, s)| i as isize * s).sum::<isize>();
        let at = at as usize;
        Some(bytemuck::cast_slice(&self.data[at..at + self.shape[last] * size_of::<T>()]))
    }

    /// The part `[start, stop)` of this block, in the block's own coordinates.
    pub fn view(&self, start: &[usize], stop: &[usize]) -> Block {
        let mut view = self.clone();
        for axis in 0..self.shape.len() {
            assert!(start[axis] <= stop[axis] && stop[axis] <= self.shape[axis], "view outside its block");
            view.offset += start[axis] as isize * self.strides[axis];
            view.shape[axis] = stop[axis] - start[axis];
        }
        view
    }

    /// The part of this block, which covers `own`, that covers `part`.
    pub fn cut(&self, own: &Region, part: &Region) -> Block {
        let at = |from: &[i64]| -> Dims<usize> { from.iter().zip(&own.start).map(|(p, o)| (p - o) as usize).collect() };
        self.view(&at(&part.start), &at(&part.stop))
    }

    /// The same values with axes in another order (`axes[i]`: which axis of this block becomes axis `i`).
    pub fn transposed(&self, axes: &[usize]) -> Block {
        let mut view = self.clone();
        view.shape = axes.iter().map(|&a| self.shape[a]).collect();
        view.strides = axes.iter().map(|&a| self.strides[a]).collect();
        view
    }

    /// The same values with axes of length 1 added or dropped, and nothing else; `shape` must hold as many elements.
    pub fn with_shape(&self, shape: &[usize]) -> Option<Block> {
        let kept = |s: &[usize]| s.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if kept(shape) != kept(&self.shape) {
            return None;
        }
        let mut old = self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1);
        let strides = shape.iter().map(|&n| if n == 1 { 0 } else { old.next().map_or(0, |(_, s)| *s) }).collect();
        Some(Block { shape: shape.into(), strides, ..self.clone() })
    }

    /// The same values repeated along new leading axes and along axes of length 1; `None` where shapes do not broadcast.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Block> {
        let lead = shape.len().checked_sub(self.shape.len())?;
        let mut strides = Dims::from_elem(0, lead);
        for (axis, (&n, &step)) in self.shape.iter().zip(&self.strides).enumerate() {
            match shape[lead + axis] {
                len if len == n => strides.push(step),
                _ if n == 1 => strides.push(0),
                _ => return None,
            }
        }
        Some(Block { shape: shape.into(), strides, ..self.clone() })
    }

    /// The buffer itself when this block is its only, whole, C-order owner.
    pub fn into_buffer(self) -> Result<Buffer, Block> {
        if self.offset != 0 || !self.is_contiguous() || self.byte_len() != self.data.len() {
            return Err(self);
        }
        Arc::try_unwrap(self.data).map_err(|data| Block { data, ..self })
    }

    /// Copies the values into C order at `out`, which has this block's byte length.
    pub fn copy_to(&self, out: &mut [u8]) {
        let strides = c_strides(&self.shape, self.dtype.size());
        copy_strided(out, 0, &strides, &self.data, self.offset, &self.strides, &self.shape, self.dtype.size());
    }

    /// The value of every element when all are the same bytes.
    pub fn constant(&self) -> Option<Scalar> {
        let bytes = self.bytes()?;
        let size = self.dtype.size();
        let first = bytes.get(..size)?;
        // Comparing the bytes with themselves one element later runs at memcmp speed.
        (bytes[size..] == bytes[..bytes.len() - size]).then(|| Scalar::from_bytes(self.dtype, first)).flatten()
    }
}

/// Copies an n-dimensional box between two strided arrays of the same element size. Strides are in bytes and may be
/// zero or negative in the source (boundary rules), never in the destination.
#[allow(clippy::too_many_arguments)]
pub fn copy_strided(
    dst: &mut [u8],
    dst_offset: isize,
    dst_strides: &[isize],
    src: &[u8],
    src_offset: isize,
    src_strides: &[isize],
    shape: &[usize],
    itemsize: usize,
) {
    if shape.contains(&0) {
        return;
    }
    // Drop axes of length 1, merge axes that follow each other in both arrays.
    let mut axes: Vec<(usize, isize, isize)> = Vec::with_capacity(shape.len());
    for axis in 0..shape.len() {
        let (n, d, s) = (shape[axis], dst_strides[axis], src_strides[axis]);
        if n == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(last) if last.1 == d * n as isize && last.2 == s * n as isize => *last = (last.0 * n, d, s),
            _ => axes.push((n, d, s)),
        }
    }
    let Some((n, d, s)) = axes.pop() else {
        let (d, s) = (dst_offset as usize, src_offset as usize);
        dst[d..d + itemsize].copy_from_slice(&src[s..s + itemsize]);
        return;
    };
    let contiguous = d == itemsize as isize && s == itemsize as isize;
    let mut at = vec![0usize; axes.len()];
    let (mut dst_at, mut src_at) = (dst_offset, src_offset);
    loop {
        if contiguous {
            let (from, to) = (src_at as usize, dst_at as usize);
            dst[to..to + n * itemsize].copy_from_slice(&src[from..from + n * itemsize]);
        } else {
            copy_row(dst, dst_at, d, src, src_at, s, n, itemsize);
        }
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            let (n, d, s) = axes[axis];
            at[axis] += 1;
            dst_at += d;
            src_at += s;
            if at[axis] < n {
                break;
            }
            dst_at -= d * n as isize;
            src_at -= s * n as isize;
            at[axis] = 0;
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn copy_row(dst: &mut [u8], dst_at: isize, d: isize, src: &[u8], src_at: isize, s: isize, n: usize, itemsize: usize) {
    macro_rules! each {
        ($size:literal) => {
            for i in 0..n as isize {
                let (to, from) = ((dst_at + i * d) as usize, (src_at + i * s) as usize);
                let value: [u8; $size] = src[from..from + $size].try_into().expect("sliced to the size");
                dst[to..to + $size].copy_from_slice(&value);
            }
        };
    }
    match itemsize {
        1 => each!(1),
        2 => each!(2),
        4 => each!(4),
        8 => each!(8),
        _ => each!(16),
    }
}

/// Fills a box of a strided array with one value.
pub fn fill_strided(dst: &mut [u8], offset: isize, strides: &[isize], shape: &[usize], value: &[u8]) {
    copy_strided(dst, offset, strides, value, 0, &vec![0; shape.len()], shape, value.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_and_copies_follow_the_strides() {
        let values: Vec<i32> = (0..60).collect();
        let block = Block::from_values(&[3, 4, 5], &values);
        let view = block.view(&[1, 1, 2], &[3, 3, 5]);
        assert!(!view.is_contiguous());
        let mut out = vec![0u8; view.byte_len()];
        view.copy_to(&mut out);
        let want: Vec<i32> = vec![27, 28, 29, 32, 33, 34, 47, 48, 49, 52, 53, 54];
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i32>(&out), want);
        assert_eq!(view.row::<i32>(&[1, 0]).unwrap(), [47, 48, 49]);
        let t = block.transposed(&[2, 0, 1]);
        let mut out = vec![0u8; t.byte_len()];
        t.copy_to(&mut out);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i32>(&out)[..5], [0, 5, 10, 15, 20]);
        assert_eq!(block.view(&[1, 0, 0], &[2, 4, 5]).with_shape(&[4, 5]).unwrap().values::<i32>().unwrap()[0], 20);
        assert!(block.with_shape(&[12, 5]).is_none());
    }

    #[test]
    fn negative_and_zero_strides_reverse_and_repeat() {
        let src: Vec<u8> = (0..6).collect();
        let mut dst = [9u8; 6];
        copy_strided(&mut dst, 0, &[3, 1], &src, 2, &[3, -1], &[2, 3], 1);
        assert_eq!(dst, [2, 1, 0, 5, 4, 3]);
        fill_strided(&mut dst, 1, &[3, 1], &[2, 2], &[7]);
        assert_eq!(dst, [2, 7, 7, 5, 7, 7]);
    }

    #[test]
    fn broadcasting_repeats_short_axes() {
        let block = Block::from_values(&[2, 1], &[5u8, 7]).broadcast(&[2, 2, 3]).unwrap();
        let mut out = [0; 12];
        block.copy_to(&mut out);
        assert_eq!(out, [5, 5, 5, 7, 7, 7, 5, 5, 5, 7, 7, 7]);
        assert!(block.broadcast(&[2, 3]).is_none());
        assert!(block.broadcast(&[2, 2, 4]).is_none());
    }

    #[test]
    fn constants_are_found() {
        assert_eq!(Block::from_values(&[4], &[2.5f32; 4]).constant().unwrap().to_f64(), 2.5);
        assert!(Block::from_values(&[4], &[1u8, 1, 1, 2]).constant().is_none());
    }
}
