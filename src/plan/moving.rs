//! Which phases only move bytes from file to file, at most through arithmetic that is less work than that. Those that only fold
//! them, or sweep over them, are chosen as such (`memory/columns`, `memory/sweeps`).

use super::feeds::FeedUse;
use super::frontier::Bricks;
use super::memory::Choice;
use super::phase::{Phase, PhaseStep};
use crate::config::CodecName;
use crate::operators::Kind;
use crate::trim::Trimmer;
use crate::writer::OutputLayout;

/// What a thread takes that does all of a block by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// The next block.
    Blocks,
    /// The next brick: all blocks over the same kept cells, to be folded.
    Columns,
    /// The next block, of which it never holds more than a strip.
    Sweeps,
}

/// True where nothing is decoded or encoded, nothing but light steps computed, and each block has chunks and objects of its own.
pub fn moves_blocks(phase: &Phase, feeds: &[FeedUse], choice: &Choice) -> bool {
    let is_stored_as_is = |layout: &OutputLayout| {
        layout.codec.name == CodecName::None && layout.shards.is_none() && layout.points.is_none() && !layout.is_remote
    };
    let is_light = |step: &PhaseStep| match &step.binding.kind {
        Kind::Map(map) => map.is_light() && !step.on_device,
        _ => false,
    };
    let is_plain = phase.steps.iter().all(is_light)
        && phase.repeats.is_none()
        && Trimmer::is_of_single_blocks(phase)
        && !choice.counts_packed
        && feeds.iter().all(|feed| feed.feed.source.is_stored_as_is())
        && choice.layouts.iter().all(|(_, layout)| is_stored_as_is(layout));
    // What is assembled is parts of objects.
    is_plain && choice.reservation.assemble == 0 && are_chunks_own(phase, feeds, choice)
}

fn are_chunks_own(phase: &Phase, feeds: &[FeedUse], choice: &Choice) -> bool {
    let mut each = choice.traversal.each_brick();
    let (Some(all), None) = (each.next(), each.next()) else { return false };
    let brick = Bricks::new(phase, &choice.grid, feeds, choice.counts_packed).brick(&all);
    brick.feeds.iter().flat_map(|feed| &feed.links).all(|link| link.is_apart())
}
