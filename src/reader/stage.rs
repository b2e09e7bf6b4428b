//! The reader stage: a dispatcher takes memory for chunks in traversal order, workers fetch and decode them.
//!
//! A chunk is fetched when the first block that needs it comes up and there is room; only the part that the brick needs
//! is kept. Room is given in traversal order, so the block that is next can always be completed.

use std::collections::HashSet;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ChunkRead, SourceError};
use crate::array::block::{c_strides, copy_strided};
use crate::array::chunk::{Payload, RawChunk};
use crate::array::grid::for_each_index;
use crate::array::{Block, Buffer, Dims, Lease, Region};
use crate::codec;
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, Inlet, Outlet, working_on};
use crate::plan::feeds::{FeedBrick, FeedUse};
use crate::plan::frontier::{Brick, Bricks, at};

/// A chunk to fetch.
struct Wanted {
    brick: u64,
    feed: usize,
    /// One index per link of the feed; those of the source's axes come first.
    chunk: Dims<u64>,
    region: Region,
    /// What is kept of it takes so much.
    bytes: u64,
    /// False when its first block is its last: parking it would be in vain.
    waits: bool,
    /// False for a later part of a chunk of which another one is counted.
    is_counted: bool,
}

/// The same with its room.
pub struct ReadTask {
    wanted: Wanted,
    lease: Lease,
}

/// Small chunks of one block, for which room is taken together: each alone would wake its reader, and be woken for.
/// Never of two blocks: the next one must not wait for room that only comes free behind it.
struct Group {
    tasks: Vec<Wanted>,
    bytes: u64,
}

impl Group {
    fn take(&mut self, ctx: &Context, out: &mut Outlet<ReadTask>) -> Result<(), Halt> {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let mut room = out.lease(&ctx.accounts.source, self.bytes)?;
        self.bytes = 0;
        for wanted in self.tasks.drain(..) {
            let feed = &ctx.phase().feeds[wanted.feed];
            let lease = room.split(wanted.bytes)?;
            let task = ReadTask { wanted, lease };
            match waits_long(feed) {
                // Chunks of one message would wait one after the other.
                true => out.send(task)?,
                false => out.queue(task, chunk_bytes(feed))?,
            }
        }
        Ok(())
    }
}

/// Walks the traversal and hands out chunks in the order in which blocks need them.
pub fn dispatch(ctx: &Context, mut out: Outlet<ReadTask>, workers: usize) -> Result<u64, Halt> {
    let plan = ctx.phase();
    let mut bricks = Bricks::new(&plan.phase, &plan.grid, &plan.feeds, plan.counts_packed);
    let thin_axis = plan.thin_axis();
    let mut group = Group { tasks: Vec::new(), bytes: 0 };
    // When blocks are passed over, a chunk may be needed later than by its first block, or not at all.
    let mut held: Option<HashSet<(usize, Vec<u64>)>> = (!ctx.done.is_empty()).then(HashSet::new);
    for (number, range) in (0u64..).zip(plan.traversal.each_brick()) {
        let brick = bricks.brick(&range);
        for position in plan.traversal.blocks_of(&range) {
            let is_done = held.is_some() && ctx.is_done(&plan.core(&plan.traversal.block(&range, &position)));
            for (f, (feed, uses)) in plan.feeds.iter().zip(&brick.feeds).enumerate() {
                let lists: Vec<Vec<u64>> = feed
                    .links
                    .iter()
                    .zip(&uses.links)
                    .map(|(l, u)| match &held {
                        None => u.first[at(l.axis, &position)].to_vec(),
                        Some(_) if is_done => Vec::new(),
                        Some(_) => u.needed[at(l.axis, &position)].iter().flat_map(|r| r.0..r.1).collect(),
                    })
                    .collect();
                let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
                for_each_index(&lists, |chunk| {
                    if held.as_mut().is_some_and(|held| !held.insert((f, chunk.to_vec()))) {
                        return Ok(());
                    }
                    let region = kept_region(feed, uses, chunk, thin_axis.map(|a| (a, position[a])));
                    working_on(|t| {
                        let _ = t.write_str("input chunk ");
                        t.cell(chunk);
                    });
                    let bytes = feed.held_bytes(&region.shape(), plan.counts_packed);
                    let waits = feed
                        .links
                        .iter()
                        .zip(&uses.links)
                        .zip(chunk)
                        .any(|((l, u), c)| !u.last[at(l.axis, &position)].contains(c));
                    group.tasks.push(Wanted {
                        brick: number,
                        feed: f,
                        chunk: chunk.into(),
                        region,
                        bytes,
                        waits,
                        is_counted: true,
                    });
                    group.bytes += bytes;
                    match Outlet::<ReadTask>::is_enough(group.tasks.len(), group.bytes) {
                        true => group.take(ctx, &mut out),
                        false => Ok(()),
                    }
                })?;
            }
            group.take(ctx, &mut out)?;
            if let Some(held) = &mut held {
                for (f, (feed, uses)) in plan.feeds.iter().zip(&brick.feeds).enumerate() {
                    for_each_index(&feed.last_at(uses, &position), |chunk| {
                        held.remove(&(f, chunk.to_vec()));
                        Ok::<(), Halt>(())
                    })?;
                }
            }
        }
    }
    out.end(workers)
}

/// The part of a chunk that its brick needs, in coordinates of the input. Where chunks become thin, one that comes late, since
/// its first blocks were done before, comes as thin as it would be by then: `from` is the outermost axis and the block on it.
fn kept_region(feed: &FeedUse, uses: &FeedBrick, chunk: &[u64], from: Option<(usize, u64)>) -> Region {
    let thin = from.and_then(|(axis, block)| feed.thinning(uses, Some(axis)).map(|(link, _)| (link, block)));
    let rank = feed.feed.extent.rank();
    let zero = || std::iter::repeat_n(0, rank);
    let mut region = Region::new(zero(), zero());
    for (l, ((link, u), c)) in feed.links.iter().zip(&uses.links).zip(chunk).enumerate() {
        if let Some(view) = link.view {
            let kept = match thin {
                Some((along, block)) if along == l => u.kept_from(*c, block),
                _ => u.kept(*c),
            };
            let (start, stop) = kept.unwrap_or((0, 0));
            (region.start[view], region.stop[view]) = (start, stop);
        }
    }
    region
}

/// What a worker keeps from chunk to chunk; the plan counts both.
#[derive(Default)]
struct Buffers {
    encoded: Vec<u8>,
    packing: Vec<u8>,
}

/// A reader worker's time with the sources of its phase.
pub(super) struct Reading<'c>(&'c Context);

impl<'c> Reading<'c> {
    pub(super) fn begin(ctx: &'c Context) -> Self {
        ctx.phase().feeds.iter().for_each(|feed| feed.feed.source.enter(&ctx.stop));
        Self(ctx)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.phase().feeds.iter().for_each(|feed| feed.feed.source.leave());
    }
}

/// One reader worker: fetches and decodes until the dispatcher is done.
pub fn work(ctx: &Context, mut tasks: Inlet<ReadTask>, mut out: Outlet<RawChunk>) -> Result<u64, Halt> {
    let mut buffers = Buffers::default();
    let clock = ctx.clocks.reader.clone();
    let _reading = Reading::begin(ctx);
    loop {
        if !tasks.is_ready() {
            out.flush()?;
        }
        let Some(ReadTask { wanted, mut lease }) = tasks.receive()? else { break };
        let feed = &ctx.phase().feeds[wanted.feed];
        let index = &wanted.chunk[..feed.feed.source.meta().grid.0.len()];
        name_unit(ctx, feed, index);
        if let Some(block) = clock.busy(|| held(ctx, feed, &wanted, &mut lease))? {
            clock.count(0, block.byte_len() as u64);
            let Wanted { brick, feed: number, chunk, region, .. } = wanted;
            out.queue(RawChunk { brick, feed: number, chunk, region, payload: Payload::Host(block) }, chunk_bytes(feed))?;
            continue;
        }
        let extent = Extent::of(feed, index, &wanted.region);
        if waits_long(feed) {
            out.flush()?;
        }
        let room = room(ctx, feed, &wanted, &extent).map(|bytes| out.lease(&ctx.accounts.decode, bytes)).transpose()?;
        let payload = clock.busy(|| fetch(ctx, feed, &wanted, extent, lease, room, &mut buffers))?;
        let Wanted { brick, feed: number, chunk, region, .. } = wanted;
        let chunk = RawChunk { brick, feed: number, chunk, region, payload };
        out.queue(chunk, chunk_bytes(feed))?;
    }
    out.end(1)
}

/// Reads for a thread that does everything else about a block as well.
pub struct Fetcher<'c> {
    ctx: &'c Context,
    buffers: Buffers,
    _reading: Reading<'c>,
}

impl<'c> Fetcher<'c> {
    pub fn new(ctx: &'c Context) -> Self {
        Self { ctx, buffers: Buffers::default(), _reading: Reading::begin(ctx) }
    }

    /// All chunks of a block that shares none with another one.
    pub fn block(&mut self, number: u64, brick: &Brick, position: &[u64]) -> Result<Vec<RawChunk>, Halt> {
        let wanted = self.wanted(number, brick, position, |_, _, _| true)?;
        self.fetch(wanted)
    }

    /// The parts of chunks that a block needs, which is a brick of its own. Where nothing that `whole`, all blocks,
    /// needs of a chunk comes before, its part is counted as the chunk.
    pub fn parts(&mut self, number: u64, alone: &Brick, whole: &Brick) -> Result<Vec<RawChunk>, Halt> {
        let feeds = &self.ctx.phase().feeds;
        let begins =
            |f: usize, chunk: &[u64], part: &Region| kept_region(&feeds[f], &whole.feeds[f], chunk, None).start == part.start;
        let wanted = self.wanted(number, alone, &vec![0; alone.range.len()], begins)?;
        self.fetch(wanted)
    }

    fn wanted(
        &self,
        number: u64,
        brick: &Brick,
        position: &[u64],
        is_counted: impl Fn(usize, &[u64], &Region) -> bool,
    ) -> Result<Vec<Wanted>, Halt> {
        let mut all = Vec::new();
        for (f, (feed, uses)) in self.ctx.phase().feeds.iter().zip(&brick.feeds).enumerate() {
            for_each_index(&feed.first_at(uses, position), |chunk| {
                let region = kept_region(feed, uses, chunk, None);
                let bytes = feed.held_bytes(&region.shape(), false);
                let is_counted = is_counted(f, chunk, &region);
                all.push(Wanted { brick: number, feed: f, chunk: chunk.into(), region, bytes, waits: false, is_counted });
                Ok::<(), Halt>(())
            })?;
        }
        Ok(all)
    }

    /// Room for all of a block is taken at once: who waits holds none.
    fn fetch(&mut self, all: Vec<Wanted>) -> Result<Vec<RawChunk>, Halt> {
        let (ctx, clock) = (self.ctx, &self.ctx.clocks.reader);
        let bytes = all.iter().map(|wanted| wanted.bytes).sum();
        let mut leased = clock.blocked(|| ctx.accounts.source.lease(bytes, &ctx.stop))?;
        if let Some(region) = in_a_row(ctx, &all) {
            return Ok(vec![self.row(all, region, leased)?]);
        }
        let mut chunks = Vec::with_capacity(all.len());
        for wanted in all {
            let feed = &ctx.phase().feeds[wanted.feed];
            let index = &wanted.chunk[..feed.feed.source.meta().grid.0.len()];
            name_unit(ctx, feed, index);
            let extent = Extent::of(feed, index, &wanted.region);
            let room = room(ctx, feed, &wanted, &extent);
            let room = room.map(|bytes| clock.blocked(|| ctx.accounts.decode.lease(bytes, &ctx.stop))).transpose()?;
            let lease = leased.split(wanted.bytes)?;
            let payload = clock.busy(|| fetch(ctx, feed, &wanted, extent, lease, room, &mut self.buffers))?;
            let Wanted { brick, feed, chunk, region, .. } = wanted;
            chunks.push(RawChunk { brick, feed, chunk, region, payload });
        }
        Ok(chunks)
    }

    /// Chunks that follow each other in a block, read to where they lie there.
    fn row(&mut self, all: Vec<Wanted>, region: Region, lease: Lease) -> Result<RawChunk, Halt> {
        let ctx = self.ctx;
        let Some(Wanted { brick, feed: number, chunk, .. }) = all.first() else { return Err(Halt::Stopped) };
        let (brick, number, chunk) = (*brick, *number, chunk.clone());
        let dtype = ctx.phase().feeds[number].feed.source.meta().array.dtype;
        let mut buffer = Buffer::new(lease, region.count() * dtype.size())?;
        let mut rest = &mut buffer[..];
        for wanted in all {
            let feed = &ctx.phase().feeds[wanted.feed];
            let index = &wanted.chunk[..feed.feed.source.meta().grid.0.len()];
            name_unit(ctx, feed, index);
            let (out, behind) = rest.split_at_mut(wanted.region.count() * dtype.size());
            ctx.clocks.reader.busy(|| {
                let read = feed.feed.source.read_chunk(index, out, &mut self.buffers.encoded).map_err(failed)?;
                count(ctx, &read, out.len(), true);
                Ok::<(), Halt>(())
            })?;
            rest = behind;
        }
        let block = Block::new(buffer, dtype, region.shape());
        Ok(RawChunk { brick, feed: number, chunk, region, payload: Payload::Host(block) })
    }
}

/// The region of an input whose chunks are whole and follow each other in it in C order; `None` for a single one.
fn in_a_row(ctx: &Context, all: &[Wanted]) -> Option<Region> {
    let (first, last) = (all.first()?, all.last()?);
    let feeds = &ctx.phase().feeds;
    let region = Region::new(first.region.start.iter().copied(), last.region.stop.iter().copied());
    let along = (0..region.rank()).find(|&a| first.region.axis(a) != region.axis(a))?;
    let mut at = region.start[along];
    let is_row = (0..along).all(|a| region.len(a) == 1)
        && all.iter().all(|wanted| {
            let (from, to) = wanted.region.axis(along);
            let feed = &feeds[wanted.feed];
            let follows = feed.input == feeds[first.feed].input && from == std::mem::replace(&mut at, to);
            let others = (0..region.rank()).all(|a| a == along || wanted.region.axis(a) == region.axis(a));
            let index = &wanted.chunk[..feed.feed.source.meta().grid.0.len()];
            follows && others && !needs_cutting(feed, index, &wanted.region)
        });
    (is_row && at == region.stop[along]).then_some(region)
}

pub(super) fn name_unit(ctx: &Context, feed: &FeedUse, chunk: &[u64]) {
    let input = &ctx.phase().phase.arrays[ctx.phase().phase.inputs[feed.input]].name;
    working_on(|t| {
        let _ = write!(t, "input `{input}`, chunk ");
        t.cell(chunk);
    });
}

/// Bytes beside those that are kept: of the decoded chunk and, when it is packed afterwards, of the part of it that is kept.
fn room(ctx: &Context, feed: &FeedUse, wanted: &Wanted, extent: &Extent) -> Option<u64> {
    let packs = feed.packed_bits(ctx.phase().counts_packed).is_some();
    let is_part = !matches!(extent, Extent::Whole);
    let kept = if is_part && packs { wanted.region.count() as u64 * feed.itemsize } else { 0 };
    (matches!(extent, Extent::Cut(_)) || packs).then(|| chunk_bytes(feed) + kept)
}

/// True where a read waits long for its first byte.
fn waits_long(feed: &FeedUse) -> bool {
    feed.feed.source.in_flight() > 1
}

/// A chunk that an earlier pass held.
fn held(ctx: &Context, feed: &FeedUse, wanted: &Wanted, lease: &mut Lease) -> Result<Option<Block>, Halt> {
    let Some(again) = ctx.again.as_ref().filter(|_| feed.is_reread) else { return Ok(None) };
    let key = (wanted.brick, wanted.feed, wanted.chunk.clone());
    again.find(&key, &wanted.region, lease).map_err(|e| Halt::Fault(Fault::here("reader", e.to_string())))
}

fn chunk_bytes(feed: &FeedUse) -> u64 {
    feed.feed.source.meta().chunk_shape.iter().product::<u64>() * feed.itemsize
}

/// True unless the kept part is the decoded chunk as it is.
fn needs_cutting(feed: &FeedUse, index: &[u64], region: &Region) -> bool {
    let meta = feed.feed.source.meta();
    feed.feed.axes.iter().enumerate().any(|(s, axis)| {
        let full = meta.chunk_shape[s];
        match axis.view {
            None => full != 1,
            Some(view) => {
                axis.step != 1
                    || region.len(view) as u64 != full
                    || meta.grid.0[s].range(index[s]).end - meta.grid.0[s].range(index[s]).start != full
            }
        }
    })
}

/// How much of a chunk is kept.
enum Extent {
    Whole,
    /// These bytes of it, which are read alone.
    Row(Range<usize>),
    Cut(Cut),
}

impl Extent {
    fn of(feed: &FeedUse, index: &[u64], region: &Region) -> Self {
        if !needs_cutting(feed, index, region) {
            return Self::Whole;
        }
        let cut = Cut::new(feed, index, region);
        match cut.row().filter(|_| feed.feed.source.reads_parts()) {
            Some(bytes) => Self::Row(bytes),
            None => Self::Cut(cut),
        }
    }
}

/// `room` is for a chunk of which a part is cut out (then it holds the whole chunk) or that is packed afterwards.
fn fetch(
    ctx: &Context,
    feed: &FeedUse,
    wanted: &Wanted,
    extent: Extent,
    mut lease: Lease,
    mut room: Option<Lease>,
    buffers: &mut Buffers,
) -> Result<Payload, Halt> {
    let source = &feed.feed.source;
    let meta = source.meta();
    let dtype = meta.array.dtype;
    let index = &wanted.chunk[..meta.grid.0.len()];
    let full = chunk_bytes(feed) as usize;
    let kept = wanted.region.count() * dtype.size();
    let bits = feed.packed_bits(ctx.phase().counts_packed);
    let whole = match (&mut room, &extent) {
        (Some(room), Extent::Cut(_)) => Some(Buffer::from_lease(room, full)?),
        _ => None,
    };
    // What is packed afterwards is charged to the room, else to the chunk's own lease.
    let payer = match (&mut room, bits) {
        (Some(room), Some(_)) => room,
        _ => &mut lease,
    };
    let (read, buffer) = match (whole, extent) {
        (_, Extent::Row(bytes)) => {
            let mut buffer = Buffer::from_lease(payer, kept)?;
            (source.read_stored(index, &[bytes.start], &mut buffer).map_err(failed)?, buffer)
        }
        (Some(mut whole), Extent::Cut(cut)) => {
            let read = source.read_part(index, cut.bytes(), &mut whole, &mut buffers.encoded).map_err(failed)?;
            let mut buffer = Buffer::from_lease(payer, kept)?;
            cut.copy(&whole, &mut buffer);
            (read, buffer)
        }
        _ => {
            let mut buffer = Buffer::from_lease(payer, full)?;
            (source.read_chunk(index, &mut buffer, &mut buffers.encoded).map_err(failed)?, buffer)
        }
    };
    count(ctx, &read, kept, wanted.is_counted);
    let block = Block::new(buffer, dtype, wanted.region.shape());
    if let Some(bits) = bits {
        let packed = codec::pack_guaranteed(&block, bits, lease);
        return packed.map(Payload::Packed).map_err(|e| Halt::Fault(Fault::here("reader", e.to_string())));
    }
    let block = match ctx.again.as_ref().filter(|_| feed.is_reread) {
        Some(again) => {
            let key = (wanted.brick, wanted.feed, wanted.chunk.clone());
            again.hold(key, &wanted.region, block, &mut buffers.packing)
        }
        None => block,
    };
    let packed = match wanted.waits {
        true => ctx.parking.pack(wanted.feed, &block, &ctx.accounts.source, &mut buffers.packing),
        false => None,
    };
    Ok(packed.map_or(Payload::Host(block), Payload::Packed))
}

pub(super) fn failed(error: SourceError) -> Halt {
    match error {
        SourceError::Stopped => Halt::Stopped,
        error => Halt::Fault(Fault::here("reader", error.to_string()).because(error.cause())),
    }
}

/// Counts a chunk of which so many bytes are kept, or the bytes of one that is counted elsewhere.
pub(super) fn count(ctx: &Context, read: &ChunkRead, kept: usize, is_counted: bool) {
    let totals = &ctx.totals;
    totals.chunk_reads.fetch_add(u64::from(is_counted), Ordering::Relaxed);
    let encoded = match read {
        ChunkRead::Data { encoded_bytes } => *encoded_bytes,
        ChunkRead::Missing => {
            totals.filled_chunks.fetch_add(u64::from(is_counted), Ordering::Relaxed);
            0
        }
    };
    totals.bytes_read.fetch_add(encoded, Ordering::Relaxed);
    ctx.clocks.reader.count(encoded, kept as u64);
}

/// Where the kept part of a decoded chunk lies: steps of `select`, dropped axes and edge chunks are resolved here.
struct Cut {
    shape: Dims<usize>,
    offset: isize,
    strides: Dims<isize>,
    size: usize,
}

impl Cut {
    fn new(feed: &FeedUse, index: &[u64], region: &Region) -> Self {
        let meta = feed.feed.source.meta();
        let size = meta.array.dtype.size();
        let chunk_shape: Dims<usize> = meta.chunk_shape.iter().map(|&n| n as usize).collect();
        let own = c_strides(&chunk_shape, size);
        let shape = region.shape();
        let mut strides = Dims::from_elem(0isize, shape.len());
        let mut offset = 0isize;
        for (s, axis) in feed.feed.axes.iter().enumerate() {
            let first = meta.grid.0[s].range(index[s]).start as i64;
            let at = match axis.view {
                None => axis.start,
                Some(view) => {
                    strides[view] = own[s] * axis.step as isize;
                    axis.start + (region.start[view] - feed.feed.extent.start[view]) * axis.step
                }
            };
            offset += (at - first) as isize * own[s];
        }
        Self { shape, offset, strides, size }
    }

    /// The bytes between the part's first and its last, both included.
    fn bytes(&self) -> Range<usize> {
        if self.shape.contains(&0) {
            return 0..0;
        }
        let reach = self.shape.iter().zip(&self.strides).map(|(&len, stride)| (len as isize - 1) * stride);
        let (before, behind) = reach.fold((0, 0), |(low, high), n: isize| (low + n.min(0), high + n.max(0)));
        (self.offset + before) as usize..(self.offset + behind) as usize + self.size
    }

    /// Those bytes, where the part is all of them as they lie.
    fn row(&self) -> Option<Range<usize>> {
        let follow = c_strides(&self.shape, self.size);
        let is_row = self.shape.iter().zip(&self.strides).zip(&follow).all(|((&len, own), next)| len == 1 || own == next);
        Some(self.bytes()).filter(|bytes| is_row && !bytes.is_empty())
    }

    fn copy(&self, whole: &[u8], out: &mut [u8]) {
        copy_strided(out, 0, &c_strides(&self.shape, self.size), whole, self.offset, &self.strides, &self.shape, self.size);
    }
}

/// Opens the same accounts to callers that read outside a job (quick looks, tests): one chunk, whole.
pub fn read_whole(source: &Arc<dyn super::Source>, index: &[u64]) -> Result<Block, super::SourceError> {
    let meta = source.meta();
    let shape: Vec<usize> = meta.chunk_shape.iter().map(|&n| n as usize).collect();
    let mut buffer = Buffer::loose(shape.iter().product::<usize>() * meta.array.dtype.size());
    source.read_chunk(index, &mut buffer, &mut Vec::new())?;
    Ok(Block::new(buffer, meta.array.dtype, shape))
}
