//! Stage 2: collects neighbours, builds padded blocks, lets chunks go as soon as nobody needs them.
//!
//! Chunks wait here, parked, for the blocks that need them. When the next block of the traversal has all of its chunks
//! it is assembled, boundary cells included, and handed on; chunks whose last block it was are dropped. Costs one copy
//! of each padded block, none where a block lies inside one chunk or chunks are written as they are; and one of each margin
//! that is kept of a chunk when the rest of it goes.

pub mod assemble;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::array::boundary::{clip_none, constants};
use crate::array::chunk::{HaloBlock, Payload, Piece, RawChunk};
use crate::array::grid::for_each_index;
use crate::array::{Block, Buffer, Dims, Lease, Region};
use crate::codec::Packed;
use crate::engine::context::Context;
use crate::engine::stage::{Fault, Halt, Inlet, Onward, working_on};
use crate::engine::window::Ticket;
use crate::plan::frontier::{Brick, Bricks, at};
use crate::plan::needs::block_needs;
use crate::plan::sizes::Delivery;
use crate::plan::thinning::Thinning;
use assemble::{Assembly, Field};

/// A chunk that waits for its blocks, or what is kept of it.
struct Parked {
    kept: Kept,
    /// For the next block.
    part: Part,
    /// For the rows of blocks behind this one, where `part` is not.
    behind: Option<Box<Part>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Whole,
    /// What this row of blocks still needs.
    Side,
    /// What the rows to come need.
    Rest,
}

struct Part {
    region: Region,
    payload: Payload,
}

/// Brick, feed, chunk.
type Key = (u64, usize, Dims<u64>);
type Parking = HashMap<Key, Parked>;

pub fn run(ctx: &Context, mut chunks: Inlet<RawChunk>, mut out: Box<dyn Onward<HaloBlock> + '_>) -> Result<u64, Halt> {
    let plan = ctx.phase();
    let mut bricks = Bricks::new(&plan.phase, &plan.grid, &plan.feeds, plan.counts_packed);
    let mut parked = Parking::new();
    let mut seq = 0u64;
    for (number_of_brick, range) in (0u64..).zip(plan.traversal.each_brick()) {
        let brick = bricks.brick(&range);
        for position in plan.traversal.blocks_of(&range) {
            let block = plan.traversal.block(&range, &position);
            let number = plan.traversal.number(&block);
            let core = plan.core(&block);
            if ctx.is_done(&core) {
                ctx.totals.blocks_resumed.fetch_add(1, Ordering::Relaxed);
                let_go(ctx, number_of_brick, &brick, &position, &mut parked)?;
                continue;
            }
            working_on(|t| {
                let _ = write!(t, "block {number} (core {core})");
            });
            // Everything this block needs, by input.
            let mut keys: Vec<Key> = Vec::new();
            for (f, (feed, uses)) in plan.feeds.iter().zip(&brick.feeds).enumerate() {
                let lists: Vec<Vec<u64>> = feed
                    .links
                    .iter()
                    .zip(&uses.links)
                    .map(|(l, u)| u.needed[at(l.axis, &position)].iter().flat_map(|r| r.0..r.1).collect())
                    .collect();
                let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
                for_each_index(&lists, |c| {
                    keys.push((number_of_brick, f, c.into()));
                    Ok::<(), Halt>(())
                })?;
            }
            for key in &keys {
                while !parked.contains_key(key) {
                    match chunks.receive()? {
                        Some(raw) => {
                            parked.insert((raw.brick, raw.feed, raw.chunk), Parked::whole(raw.region, raw.payload));
                        }
                        None => return Err(fault(format!("chunk {:?} of feed {} never came", key.2, key.1))),
                    }
                }
            }
            let ticket = enter(ctx, seq)?;
            let block = assembled(ctx, ticket, (seq, number, core), &keys, &mut parked)?;
            let_go(ctx, number_of_brick, &brick, &position, &mut parked)?;
            out.pass(block)?;
            note_sent(ctx);
            seq += 1;
        }
    }
    // The readers' end must come too: what they sent and what was needed are the same chunks.
    if let Some(raw) = chunks.receive()? {
        return Err(fault(format!("chunk {:?} of feed {} was read and nobody needs it", raw.chunk, raw.feed)));
    }
    if chunks.announced() != chunks.received {
        return Err(fault(format!("readers sent {} chunks, {} arrived", chunks.announced(), chunks.received)));
    }
    out.end()?;
    Ok(seq)
}

/// Waits until a block may start.
pub fn enter(ctx: &Context, seq: u64) -> Result<Arc<Ticket>, Halt> {
    ctx.clocks.halo.blocked(|| ctx.window.enter(seq, &ctx.stop)).ok_or(Halt::Stopped)
}

/// A block of chunks that are all here, and are no other block's.
pub fn of_own(ctx: &Context, ticket: Arc<Ticket>, block: Place, chunks: Vec<RawChunk>) -> Result<HaloBlock, Halt> {
    let keys: Vec<Key> = chunks.iter().map(|raw| (raw.brick, raw.feed, raw.chunk.clone())).collect();
    let parked = chunks.into_iter().map(|raw| Parked::whole(raw.region, raw.payload));
    assembled(ctx, ticket, block, &keys, &mut keys.iter().cloned().zip(parked).collect())
}

/// A block's place in the sequence, its number and its core.
pub type Place = (u64, u64, Region);

fn assembled(
    ctx: &Context,
    ticket: Arc<Ticket>,
    (seq, number, core): Place,
    keys: &[Key],
    parked: &mut Parking,
) -> Result<HaloBlock, Halt> {
    let inputs = build(ctx, &core, keys, parked)?;
    let bytes: u64 = inputs.iter().flatten().map(|p: &Piece| p.block.byte_len() as u64).sum();
    ctx.clocks.halo.count(bytes, bytes);
    Ok(HaloBlock { seq, number, core, inputs, ticket })
}

/// Counts a block that was handed on.
pub fn note_sent(ctx: &Context) {
    let sent = ctx.totals.blocks_sent.fetch_add(1, Ordering::Relaxed) + 1;
    let in_flight = sent.saturating_sub(ctx.totals.blocks_done.load(Ordering::Relaxed));
    ctx.totals.blocks_in_flight_max.fetch_max(in_flight, Ordering::Relaxed);
}

/// Lets the chunks go that no later block needs, and the larger part of those of which a margin is still needed.
fn let_go(ctx: &Context, number: u64, brick: &Brick, position: &[u64], parked: &mut Parking) -> Result<(), Halt> {
    let plan = ctx.phase();
    let [rows, sides] = [plan.thin_axis(), plan.side_axis()];
    for (f, (feed, uses)) in plan.feeds.iter().zip(&brick.feeds).enumerate() {
        let last = feed.last_at(uses, position);
        for_each_index(&last, |c| {
            parked.remove(&(number, f, c.into()));
            Ok::<(), Halt>(())
        })?;
        let along = |axis| {
            let (l, thinning) = feed.thinning(uses, axis)?;
            let (view, block) = feed.links[l].view.zip(feed.links[l].axis.map(|a| position[a]))?;
            Some(Along { l, view, block, thinning })
        };
        let (rows, sides) = (along(rows), along(sides));
        if let Some(rows) = &rows {
            let mut lists = last.clone();
            lists[rows.l] = &rows.thinning.after[rows.block as usize];
            for_each_index(&lists, |c| match parked.get_mut(&(number, f, c.into())) {
                Some(chunk) => chunk.end_row(rows.rest(c, &chunk.part.region), ctx),
                None => Ok(()),
            })?;
        }
        let Some(sides) = &sides else { continue };
        let mut lists = last;
        lists[sides.l] = &sides.thinning.after[sides.block as usize];
        for_each_index(&lists, |c| match parked.get_mut(&(number, f, c.into())) {
            Some(chunk) => chunk.cut_side(sides.rest(c, &chunk.part.region), None, ctx),
            None => Ok(()),
        })?;
        let Some(rows) = &rows else { continue };
        lists[rows.l] = &rows.thinning.after[rows.block as usize];
        for_each_index(&lists, |c| match parked.get_mut(&(number, f, c.into())) {
            Some(chunk) => {
                let [side, rest] = [sides, rows].map(|along| along.rest(c, &chunk.part.region));
                chunk.cut_side(side, rest, ctx)
            }
            None => Ok(()),
        })?;
    }
    Ok(())
}

/// An axis along which chunks become thin, at a block.
struct Along<'a> {
    l: usize,
    view: usize,
    block: u64,
    thinning: &'a Thinning,
}

impl Along<'_> {
    /// What is still needed of a part of a chunk.
    fn rest(&self, chunk: &[u64], part: &Region) -> Option<Region> {
        let (start, stop) = self.thinning.rest(chunk[self.l], self.block + 1)?;
        let mut region = part.clone();
        (region.start[self.view], region.stop[self.view]) =
            (region.start[self.view].max(start), region.stop[self.view].min(stop));
        Some(region)
    }
}

impl Parked {
    fn whole(region: Region, payload: Payload) -> Self {
        Self { kept: Kept::Whole, part: Part { region, payload }, behind: None }
    }

    /// Keeps what the rows of blocks behind this one need, and nothing else.
    fn end_row(&mut self, rest: Option<Region>, ctx: &Context) -> Result<(), Halt> {
        let rest = match (self.kept, self.behind.take()) {
            (Kept::Side, Some(behind)) => Some(*behind),
            (Kept::Side, None) => return Err(fault(format!("nothing is left of {} for the rows to come", self.part.region))),
            _ => rest.filter(|region| *region != self.part.region).map(|region| self.part.copied(region, ctx)).transpose()?,
        };
        if let Some(rest) = rest {
            (self.kept, self.part) = (Kept::Rest, rest);
        }
        Ok(())
    }

    /// Keeps what this row of blocks still needs, and what those behind it do; of a chunk of which the rows before have left just
    /// that, nothing changes.
    fn cut_side(&mut self, side: Option<Region>, rest: Option<Region>, ctx: &Context) -> Result<(), Halt> {
        let Some(side) = side.filter(|_| self.kept != Kept::Rest) else { return Ok(()) };
        let side = self.part.copied(side, ctx)?;
        if self.kept == Kept::Whole {
            self.behind = rest.map(|rest| self.part.copied(rest, ctx).map(Box::new)).transpose()?;
        }
        (self.kept, self.part) = (Kept::Side, side);
        Ok(())
    }
}

impl Part {
    /// A copy of a part of it. The plan has room for that.
    fn copied(&self, region: Region, ctx: &Context) -> Result<Self, Halt> {
        // A plan that counts on margins packs nothing.
        let Payload::Host(block) = &self.payload else { return Err(fault(format!("{} is packed", self.region))) };
        let bytes = region.count() * block.dtype().size();
        // Waits at most for blocks that are views of other margins and on their way.
        let lease = ctx.clocks.halo.blocked(|| ctx.accounts.margins.lease(bytes as u64, &ctx.stop))?;
        let mut buffer = Buffer::new(lease, bytes)?;
        ctx.clocks.halo.busy(|| block.cut(&self.region, &region).copy_to(&mut buffer));
        let payload = Payload::Host(Block::new(buffer, block.dtype(), region.shape()));
        Ok(Self { region, payload })
    }
}

fn fault(message: String) -> Halt {
    Halt::Fault(Fault::here("halo", message))
}

/// The pieces of every input of a block.
fn build(ctx: &Context, core: &Region, keys: &[Key], parked: &mut Parking) -> Result<Vec<Vec<Piece>>, Halt> {
    let plan = ctx.phase();
    let block_needs = block_needs(&plan.phase, core);
    let mut inputs = Vec::with_capacity(plan.phase.inputs.len());
    // What stays inside the array has no boundary.
    let inside = Vec::new();
    for (n, &array) in plan.phase.inputs.iter().enumerate() {
        let meta = &plan.phase.arrays[array];
        let keys: Vec<&Key> = keys.iter().filter(|k| plan.feeds[k.1].input == n).collect();
        let needs = |k: usize| &block_needs[meta.axes[k].phase_axis()];
        match plan.deliveries[n] {
            Delivery::Pieces => {
                let axes: Vec<_> = (0..meta.axes.len()).map(|k| needs(k).arrays[array].clone()).collect();
                let mut parts = Vec::new();
                for region in Region::product(&axes) {
                    let field = Field { shape: &meta.shape, dtype: meta.dtype, boundary: &inside, constants: &[] };
                    parts.push(cut_or_copy(ctx, region, &field, &keys, parked, 0)?);
                }
                inputs.push(parts);
            }
            Delivery::Chunks | Delivery::Strips { .. } => {
                let axes: Vec<_> = (0..meta.axes.len()).map(|k| needs(k).arrays[array].hull()).collect();
                let Some(region) = axes.into_iter().collect::<Option<Vec<_>>>().map(|r| Region::from_ranges(&r)) else {
                    inputs.push(Vec::new());
                    continue;
                };
                let field = Field { shape: &meta.shape, dtype: meta.dtype, boundary: &inside, constants: &[] };
                let mut parts = Vec::with_capacity(keys.len());
                for key in keys {
                    let Some(chunk) = parked.get(key) else { return Err(missing(key)) };
                    let part = chunk.part.region.intersect(&region);
                    match &chunk.part.payload {
                        _ if part.is_empty() => {}
                        Payload::Host(block) => parts.push(Piece { block: block.cut(&chunk.part.region, &part), region: part }),
                        _ => parts.push(cut_or_copy(ctx, part, &field, &[key], parked, 0)?),
                    }
                }
                inputs.push(parts);
            }
            Delivery::Padded { step, input } => {
                let s = &plan.phase.steps[step];
                let bound = &s.binding.inputs[input];
                let mut ranges = Vec::with_capacity(meta.axes.len());
                for k in 0..meta.axes.len() {
                    let len = meta.shape[k] as i64;
                    ranges.push(match bound.axes[k] {
                        None => Some((0, len)),
                        Some(j) => {
                            let axis = s.reference_axes[j];
                            block_needs[axis].steps[step].hull().map(|(a, b)| {
                                clip_none(a - bound.depth[k].0 as i64, b + bound.depth[k].1 as i64, len, &bound.boundary[k])
                            })
                        }
                    });
                }
                // A fold that begins no leaf in this block needs nothing.
                let Some(ranges) = ranges.into_iter().collect::<Option<Vec<_>>>() else {
                    inputs.push(Vec::new());
                    continue;
                };
                let values = constants(&bound.boundary, meta.dtype).map_err(fault)?;
                let field = Field { shape: &meta.shape, dtype: meta.dtype, boundary: &bound.boundary, constants: &values };
                // Blocks at the array's ends are a little smaller: the room of the largest lets them share their memory.
                let room = if plan.phase.inputs.len() == 1 { plan.bytes.inputs } else { 0 };
                inputs.push(vec![cut_or_copy(ctx, Region::from_ranges(&ranges), &field, &keys, parked, room)?]);
            }
        }
    }
    Ok(inputs)
}

/// A view where one plain chunk holds it all, else a copy, in memory of at least `room` bytes. Chunks that there is no room to unpack for good are unpacked
/// one at a time: this stage must never wait for bytes that it holds itself.
fn cut_or_copy(
    ctx: &Context,
    region: Region,
    field: &Field<'_>,
    keys: &[&Key],
    parked: &mut Parking,
    room: u64,
) -> Result<Piece, Halt> {
    if let Some(key) = keys.iter().find(|k| parked.get(k).is_some_and(|c| c.part.region.contains(&region)))
        && let Some(piece) = plain(ctx, key, parked)?
    {
        return Ok(Piece { block: piece.block.cut(&piece.region, &region), region });
    }
    let bytes = region.count() * field.dtype.size();
    let clock = &ctx.clocks.halo;
    let lease = clock.blocked(|| ctx.accounts.blocks.lease((bytes as u64).max(room), &ctx.stop))?;
    let mut buffer = Buffer::roomy(lease, bytes)?;
    let assembly = Assembly::new(&region, field);
    clock.busy(|| assembly.fill_constants(&mut buffer, field));
    for key in keys {
        if !parked.get(key).is_some_and(|c| assembly.reads(&c.part.region)) {
            continue;
        }
        let piece = match plain(ctx, key, parked)? {
            Some(piece) => piece,
            None => unpacked(ctx, key, parked)?,
        };
        clock.busy(|| assembly.copy(&mut buffer, &piece));
    }
    let block = Block::new(buffer, field.dtype, region.shape());
    Ok(Piece { region, block })
}

/// A parked chunk as plain values; one that is packed is unpacked for good when there is room, else `None`.
fn plain(ctx: &Context, key: &Key, parked: &mut Parking) -> Result<Option<Piece>, Halt> {
    let Some(chunk) = parked.get_mut(key).map(|chunk| &mut chunk.part) else { return Err(missing(key)) };
    let block = match &chunk.payload {
        Payload::Host(block) => block.clone(),
        // The plan has no bytes for it as plain values.
        Payload::Packed(_) if ctx.phase().feeds[key.1].packed_bits(ctx.phase().counts_packed).is_some() => return Ok(None),
        Payload::Packed(packed) => {
            let Some(lease) = ctx.accounts.source.try_lease(packed.byte_len() as u64) else { return Ok(None) };
            let block = ctx.clocks.halo.busy(|| unpack(packed, lease))?;
            chunk.payload = Payload::Host(block.clone());
            block
        }
        Payload::Device(device) => return Err(fault(format!("a source chunk came from device {}", device.device))),
    };
    Ok(Some(Piece { region: chunk.region.clone(), block }))
}

/// A packed chunk as plain values for the moment: the caller copies what it needs and lets go.
fn unpacked(ctx: &Context, key: &Key, parked: &Parking) -> Result<Piece, Halt> {
    let Some(Part { region, payload: Payload::Packed(packed) }) = parked.get(key).map(|chunk| &chunk.part) else {
        return Err(missing(key));
    };
    let clock = &ctx.clocks.halo;
    let lease = clock.blocked(|| ctx.accounts.decode.lease(packed.byte_len() as u64, &ctx.stop))?;
    Ok(Piece { region: region.clone(), block: clock.busy(|| unpack(packed, lease))? })
}

fn unpack(packed: &Packed, lease: Lease) -> Result<Block, Halt> {
    let mut buffer = Buffer::new(lease, packed.byte_len())?;
    packed.unpack_into(&mut buffer).map_err(|e| fault(e.to_string()))?;
    Ok(Block::new(buffer, packed.dtype, packed.shape.clone()))
}

fn missing(key: &Key) -> Halt {
    fault(format!("chunk {:?} is not here", key.2))
}
