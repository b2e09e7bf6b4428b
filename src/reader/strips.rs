//! Rows of chunks that lie in files as they are, read as a strip of a block needs them: only these, into memory that is used again.

use super::SourceError;
use super::stage::{Reading, count, failed, name_unit};
use crate::array::grid::for_each_index;
use crate::array::{Buffer, Dims, Region};
use crate::engine::context::Context;
use crate::engine::stage::Halt;
use crate::operators::Stretch;
use crate::plan::feeds::FeedUse;

/// Reads strips of the only feed of a phase.
pub struct StripReader<'c> {
    ctx: &'c Context,
    feed: &'c FeedUse,
    /// Rows follow each other along this axis: those behind it are read whole.
    axis: usize,
    /// Parts along this axis come together.
    joined: Option<usize>,
    room: Buffer,
    starts: Vec<usize>,
    _reading: Reading<'c>,
}

impl<'c> StripReader<'c> {
    /// With as much memory as the plan has for a thread's input.
    pub fn new(ctx: &'c Context, (axis, joined): (usize, Option<usize>), bytes: u64) -> Result<Self, Halt> {
        let lease = ctx.clocks.reader.blocked(|| ctx.accounts.source.lease(bytes, &ctx.stop))?;
        let (room, feed) = (Buffer::new(lease, bytes as usize)?, &ctx.phase().feeds[0]);
        Ok(Self { ctx, feed, axis, joined, room, starts: Vec::new(), _reading: Reading::begin(ctx) })
    }

    /// Reads a region of the input, and gives what lies behind each other along the joined axis to `each`. A chunk is counted
    /// where its first cell is read for the block with this core.
    pub fn read(&mut self, wanted: &Region, core: &Region, mut each: impl FnMut(&[Stretch<'_>])) -> Result<(), Halt> {
        if wanted.is_empty() {
            return Ok(());
        }
        let grid = &self.feed.feed.source.meta().grid;
        // From coordinates of the input to those of the source.
        let shift: Dims<i64> =
            self.feed.feed.axes.iter().zip(&self.feed.feed.extent.start).map(|(axis, start)| axis.start - start).collect();
        let chunks: Vec<Vec<u64>> = (0..wanted.rank())
            .map(|a| {
                let (start, stop) = wanted.axis(a);
                let cell = |at: i64| grid.0[a].cell_of((at + shift[a]) as u64);
                (cell(start)..cell(stop - 1) + 1).collect()
            })
            .collect();
        let one = [0];
        let columns: Vec<&[u64]> =
            chunks.iter().enumerate().map(|(a, list)| if Some(a) == self.joined { &one[..] } else { &list[..] }).collect();
        for_each_index(&columns, |column| {
            let mut chunk = Dims::from(column);
            let (mut regions, mut end) = (Vec::new(), 0);
            let behind = self.joined.map_or(&one[..], |a| &chunks[a]);
            for &at in behind {
                self.joined.into_iter().for_each(|a| chunk[a] = at);
                let begin = end;
                let region = self.read_part(&chunk, &shift, wanted, core, &mut end)?;
                regions.push((region, begin..end));
            }
            let parts: Vec<Stretch<'_>> =
                regions.into_iter().map(|(region, bytes)| Stretch { region, bytes: &self.room[bytes] }).collect();
            each(&parts);
            Ok(())
        })
    }

    /// Reads the rows of a chunk that are wanted behind what is there, and says what they cover.
    fn read_part(
        &mut self,
        chunk: &[u64],
        shift: &[i64],
        wanted: &Region,
        core: &Region,
        end: &mut usize,
    ) -> Result<Region, Halt> {
        let (ctx, source) = (self.ctx, &self.feed.feed.source);
        let meta = source.meta();
        let mut whole = wanted.clone();
        for a in 0..whole.rank() {
            let start = meta.grid.0[a].range(chunk[a]).start as i64 - shift[a];
            (whole.start[a], whole.stop[a]) = (start, start + meta.chunk_shape[a] as i64);
        }
        let mut part = whole.intersect(wanted);
        for a in self.axis + 1..part.rank() {
            (part.start[a], part.stop[a]) = whole.axis(a);
        }
        let strides = crate::array::block::c_strides(&whole.shape(), meta.array.dtype.size());
        let run = part.len(self.axis) * strides[self.axis] as usize;
        self.starts.clear();
        let first = (part.start[self.axis] - whole.start[self.axis]) * strides[self.axis] as i64;
        let planes: Vec<Vec<u64>> = (0..self.axis).map(|a| (0..part.len(a) as u64).collect()).collect();
        let planes: Vec<&[u64]> = planes.iter().map(Vec::as_slice).collect();
        let starts = &mut self.starts;
        for_each_index(&planes, |plane| {
            let at = |a: usize| (part.start[a] - whole.start[a] + plane[a] as i64) * strides[a] as i64;
            starts.push((first + (0..plane.len()).map(at).sum::<i64>()) as usize);
            Ok::<(), Halt>(())
        })?;
        name_unit(ctx, self.feed, chunk);
        let begin = std::mem::replace(end, *end + run * self.starts.len());
        let place = || meta.place.display().to_string();
        let out = self.room.get_mut(begin..*end).ok_or_else(|| {
            failed(SourceError::Corrupt { place: place(), reason: "its strips are longer than the plan has them".into() })
        })?;
        let kept = out.len();
        let read = ctx.clocks.reader.busy(|| source.read_stored(chunk, &self.starts, out)).map_err(failed)?;
        // The chunk's first cell that is in the input: it lies in one block's core, and comes there once.
        let is_counted = (0..part.rank()).all(|a| {
            let cell = whole.start[a].max(self.feed.feed.extent.start[a]);
            (core.start[a]..core.stop[a]).contains(&cell) && (part.start[a]..part.stop[a]).contains(&cell)
        });
        count(ctx, &read, kept, is_counted);
        Ok(part)
    }
}
