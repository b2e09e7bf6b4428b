//! Rows of chunks that lie in files as they are, read as a strip of a block needs them: only these, into memory that is used again.

use std::sync::Arc;

use super::SourceError;
use super::margins::{Column, Margin, Margins, Shared};
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
    margins: &'c Margins,
    /// Those of the block that are here, by their first row.
    held: Vec<(i64, Arc<Margin>)>,
    _reading: Reading<'c>,
}

impl<'c> StripReader<'c> {
    /// With as much memory as the plan has for a thread's input.
    pub fn new(ctx: &'c Context, margins: &'c Margins, (axis, joined): (usize, Option<usize>), bytes: u64) -> Result<Self, Halt> {
        let lease = ctx.clocks.reader.blocked(|| ctx.accounts.source.lease(bytes, &ctx.stop))?;
        let (room, feed) = (Buffer::new(lease, bytes as usize)?, &ctx.phase().feeds[0]);
        let (starts, held, _reading) = (Vec::new(), Vec::new(), Reading::begin(ctx));
        Ok(Self { ctx, feed, axis, joined, room, starts, margins, held, _reading })
    }

    /// Forgets the margins of the last block.
    pub fn begin(&mut self) {
        self.held.clear();
    }

    /// Reads a region of the input for the block with this core, and gives what lies behind each other along the joined axis to
    /// `each`. Rows of margins that it shares are read by the first of the two blocks that comes there.
    pub fn read(
        &mut self,
        wanted: &Region,
        core: &Region,
        shared: &[Shared],
        mut each: impl FnMut(&[Stretch<'_>]),
    ) -> Result<(), Halt> {
        let (mut at, stop) = wanted.axis(self.axis);
        while at < stop {
            let mut part = wanted.clone();
            part.start[self.axis] = at;
            let margin = shared.iter().find(|margin| margin.rows.contains(&at));
            let next = || shared.iter().map(|margin| margin.rows.start).filter(|&start| start > at).min();
            at = margin.map_or_else(|| next().unwrap_or(stop), |margin| margin.rows.end).min(stop);
            part.stop[self.axis] = at;
            match margin {
                Some(margin) => {
                    let margin = self.margin(margin, wanted)?;
                    margin.columns.iter().for_each(|column| give(column, &margin.room, self.feed.itemsize as usize, &mut each));
                }
                None => {
                    let mut room = std::mem::replace(&mut self.room, Buffer::loose(0));
                    let size = self.feed.itemsize as usize;
                    let read =
                        self.columns(&part, core, &mut room, false, &mut |column, room| give(&column, room, size, &mut each));
                    self.room = room;
                    read?;
                }
            }
        }
        Ok(())
    }

    /// The rows of a margin, from whoever has read them.
    fn margin(&mut self, shared: &Shared, wanted: &Region) -> Result<Arc<Margin>, Halt> {
        if let Some((_, margin)) = self.held.iter().find(|(first, _)| *first == shared.rows.start) {
            return Ok(margin.clone());
        }
        let (ctx, margins) = (self.ctx, self.margins);
        let mut all = wanted.clone();
        (all.start[self.axis], all.stop[self.axis]) = (shared.rows.start, shared.rows.end);
        let margin = margins.get(&shared.first, &ctx.stop, || {
            let bytes = self.bytes(&all);
            let lease = ctx.clocks.reader.blocked(|| ctx.accounts.margins.lease(bytes, &ctx.stop))?;
            let (mut room, mut columns) = (Buffer::new(lease, bytes as usize)?, Vec::new());
            self.columns(&all, &shared.core, &mut room, true, &mut |column, _| columns.push(column))?;
            Ok(Margin { columns, room })
        })?;
        self.held.push((shared.rows.start, margin.clone()));
        Ok(margin)
    }

    /// Bytes of all columns of a region.
    fn bytes(&self, wanted: &Region) -> u64 {
        let meta = self.feed.feed.source.meta();
        let length = |a: usize| match a > self.axis {
            true => meta.grid.0[a].cells() * meta.chunk_shape[a],
            false => wanted.len(a) as u64,
        };
        (0..wanted.rank()).map(length).fold(self.feed.itemsize, u64::saturating_mul)
    }

    /// Reads columns of parts: one behind the other, or each to the beginning of the room.
    fn columns(
        &mut self,
        wanted: &Region,
        core: &Region,
        room: &mut Buffer,
        stay: bool,
        each: &mut dyn FnMut(Column, &Buffer),
    ) -> Result<(), Halt> {
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
        let mut end = 0;
        for_each_index(&columns, |column| {
            let mut chunk = Dims::from(column);
            let mut parts = Column::new();
            end = if stay { end } else { 0 };
            let behind = self.joined.map_or(&one[..], |a| &chunks[a]);
            for &at in behind {
                self.joined.into_iter().for_each(|a| chunk[a] = at);
                let begin = end;
                let region = self.read_part(&chunk, &shift, (wanted, core), room, &mut end)?;
                parts.push((region, begin..end));
            }
            each(parts, room);
            Ok(())
        })
    }

    /// Reads the rows of a chunk that are wanted behind what is there, and says what they cover.
    fn read_part(
        &mut self,
        chunk: &[u64],
        shift: &[i64],
        (wanted, core): (&Region, &Region),
        room: &mut Buffer,
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
        let out = room.get_mut(begin..*end).ok_or_else(|| {
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

fn give(column: &Column, room: &Buffer, size: usize, each: &mut impl FnMut(&[Stretch<'_>])) {
    let parts: Vec<Stretch<'_>> =
        column.iter().map(|(region, bytes)| Stretch::in_order(region.clone(), &room[bytes.clone()], size)).collect();
    each(&parts);
}
