//! Arrays kept between phases: which phase makes them, which reads them last, and whether they fit beside everything else
//! or go to `engine.scratch`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::feeds::FeedUse;
use super::graph::{ArrayId, Graph, GraphLoop};
use super::memory::{Choice, Refusal, Setting};
use super::phase::{Destination, Phase};
use super::{Kept, PlanError, Rounds, Way};
use crate::codec::Park;
use crate::config::{EngineSpec, JobSpec};
use crate::reader::input::{Feed, InputArray};
use crate::reader::kept::{Copies, KeptArray};
use crate::reader::{Source, again};

/// Smaller arrays stay in memory: their bookkeeping is as large.
const SMALL: u64 = 64 << 10;
/// What an array in memory takes beside its values.
const BESIDE: u64 = 4096;

struct Life {
    array: Arc<KeptArray>,
    made: usize,
    /// `None`: nobody reads it in a later phase.
    last_read: Option<usize>,
}

impl Life {
    fn spans(&self, phase: usize) -> bool {
        self.made <= phase && self.last_read.is_some_and(|last| last >= phase)
    }

    fn goes_to_scratch(&self) -> bool {
        self.array.byte_len() > SMALL
    }
}

/// Every array that outlives its phase.
pub struct Keeping(BTreeMap<ArrayId, Life>);

impl Keeping {
    pub fn new(graph: &Graph, phases: &[Phase]) -> Self {
        let mut lives: BTreeMap<ArrayId, Life> = BTreeMap::new();
        for (p, phase) in phases.iter().enumerate() {
            let repeats = phase.repeats.map(|of| &graph.loops[of]);
            if let Some(of) = repeats.filter(|of| of.next.is_none()) {
                let array = Arc::new(KeptArray::whole(&graph.arrays[of.state].meta));
                lives.insert(of.state, Life { array, made: p, last_read: Some(p) });
            }
            for target in &phase.targets {
                if let Destination::State(id) = target.to {
                    let array = Arc::new(KeptArray::new(&graph.arrays[id].meta, Copies::Two));
                    lives.insert(id, Life { array, made: p, last_read: None });
                }
            }
            for output in phase.folds.iter().flat_map(|f| &f.outputs).filter(|o| o.is_kept) {
                let meta = &graph.arrays[output.array].meta;
                // What a pass came to is read when it ends.
                let is_found = repeats.is_some_and(|of| of.found == output.array);
                let array = Arc::new(if is_found { KeptArray::whole(meta) } else { KeptArray::new(meta, Copies::One) });
                let last_read = is_found.then_some(p);
                lives.insert(output.array, Life { array, made: p, last_read });
            }
            for &input in &phase.inputs {
                if let Some(life) = lives.get_mut(&phase.arrays[input].id) {
                    life.last_read = Some(p);
                }
            }
        }
        Self(lives)
    }

    /// Bytes in memory while a phase runs.
    fn held(&self, phase: usize, in_scratch: bool) -> u64 {
        let here = self.0.values().filter(|l| l.spans(phase) && !(in_scratch && l.goes_to_scratch()));
        here.fold(0, |n, l| n.saturating_add(l.array.byte_len()).saturating_add(BESIDE))
    }

    /// Most bytes in the scratch folder at once.
    fn scratch_bytes(&self, phases: usize) -> u64 {
        let here = |p: usize| self.0.values().filter(move |l| l.spans(p) && l.goes_to_scratch());
        (0..phases).map(|p| here(p).fold(0u64, |n, l| n.saturating_add(l.array.byte_len()))).max().unwrap_or(0)
    }

    pub fn made_in(&self, phase: usize, in_scratch: bool) -> Vec<Kept> {
        let made = self.0.iter().filter(|(_, life)| life.made == phase);
        made.map(|(id, l)| Kept { id: *id, array: l.array.clone(), in_scratch: in_scratch && l.goes_to_scratch() }).collect()
    }

    pub fn rounds(&self, of: &GraphLoop) -> Option<Rounds> {
        let (state, found) = (self.0.get(&of.state)?.array.clone(), self.0.get(&of.found)?.array.clone());
        let is_controlled = of.next.is_none();
        Some(Rounds { name: of.name.clone(), state, is_controlled, found, control: of.control.clone() })
    }

    /// Bytes in memory while no pass runs and a control looks at what the last one found.
    fn between_passes(&self, phase: usize, of: &GraphLoop, in_scratch: bool) -> u64 {
        let rounds = self.rounds(of);
        rounds.map_or(0, |rounds| self.held(phase, in_scratch).saturating_add(rounds.control_bytes()))
    }

    pub fn released_after(&self, phase: usize) -> Vec<Arc<KeptArray>> {
        self.0.values().filter(|l| l.last_read == Some(phase)).map(|l| l.array.clone()).collect()
    }

    fn feeds(&self, phase: &Phase, inputs: &[InputArray]) -> Vec<FeedUse> {
        let mut uses = Vec::new();
        for (n, &array) in phase.inputs.iter().enumerate() {
            let id = phase.arrays[array].id;
            let kept = self.0.get(&id);
            let feeds: Vec<Feed> = match kept {
                Some(life) => InputArray::of(life.array.clone() as Arc<dyn Source>).feeds,
                None => inputs[id].feeds.clone(),
            };
            // What is kept lies in memory as it is, or where its room is.
            let is_reread = phase.repeats.is_some() && kept.is_none();
            let used = |(number, feed)| FeedUse { is_reread, ..FeedUse::new(phase, n, number, feed) };
            uses.extend(feeds.iter().enumerate().map(used));
        }
        uses
    }
}

/// What all phases are decided from.
pub struct Deciding<'a> {
    pub job: &'a JobSpec,
    pub engine: &'a EngineSpec,
    pub graph: &'a Graph,
    pub inputs: &'a [InputArray],
    pub limit: u64,
    pub workers: usize,
    pub default_format: u8,
    pub way: Way,
}

/// All phases, decided.
pub struct Decided {
    pub choices: Vec<(Vec<FeedUse>, Choice)>,
    /// Kept arrays of any size are in `engine.scratch`.
    pub in_scratch: bool,
}

impl Deciding<'_> {
    /// With everything kept in memory, else in `engine.scratch` where there is one.
    pub fn decide(&self, phases: &[Phase], keeping: &Keeping) -> Result<Decided, Vec<PlanError>> {
        if let Some(folder) = self.engine.scratch.as_ref().filter(|f| !f.is_dir()) {
            let text = format!("engine.scratch = {}: this is not a folder, make it or name another", folder.display());
            return Err(vec![PlanError::Wrong(text)]);
        }
        let scratch_bytes = keeping.scratch_bytes(phases.len());
        let in_memory = self.choose(phases, keeping, false);
        match in_memory {
            Err(errors) if self.engine.scratch.is_some() && scratch_bytes > 0 && is_memory_only(&errors) => {
                let choices = self.choose(phases, keeping, true)?;
                match self.engine.scratch_limit {
                    Some(limit) if limit < scratch_bytes => Err(vec![PlanError::Scratch { limit, bytes: scratch_bytes }]),
                    _ => Ok(Decided { choices, in_scratch: true }),
                }
            }
            in_memory => Ok(Decided { choices: in_memory?, in_scratch: false }),
        }
    }

    fn choose(
        &self,
        phases: &[Phase],
        keeping: &Keeping,
        in_scratch: bool,
    ) -> Result<Vec<(Vec<FeedUse>, Choice)>, Vec<PlanError>> {
        let mut errors = Vec::new();
        let mut choices = Vec::new();
        let mut needs_more: Option<u64> = None;
        for (p, phase) in phases.iter().enumerate() {
            let feeds = keeping.feeds(phase, self.inputs);
            let choose = |limit: u64| {
                let setting = Setting {
                    job: self.job,
                    park: self.engine.park,
                    graph: self.graph,
                    phase,
                    feeds: &feeds,
                    limit,
                    workers: self.workers,
                    held: keeping.held(p, in_scratch),
                    default_format: self.default_format,
                    way: self.way,
                    open: RefCell::default(),
                };
                setting.choose()
            };
            let between = phase.repeats.map_or(0, |of| keeping.between_passes(p, &self.graph.loops[of], in_scratch));
            if between > self.limit {
                needs_more = needs_more.max(Some(between));
            }
            match choose(self.limit) {
                Ok(mut choice) => {
                    let (values, beside) = reread_bytes(&feeds, &choice, self.engine.park);
                    // Room for all of it, as it is or in the two bits of genotypes, is worth readers and read-ahead; not workers.
                    for share in [1, 4] {
                        let rest = self.limit.checked_sub((values / share).saturating_add(beside)).filter(|_| values > 0);
                        let is_as_good = |less: &Choice| {
                            let of = |c: &Choice| (c.concurrency.workers, c.frontier.reads, c.counts_packed);
                            of(less) == of(&choice)
                        };
                        if let Some(less) = rest.and_then(|rest| choose(rest).ok()).filter(is_as_good) {
                            choice = less;
                            break;
                        }
                    }
                    let taken = choice.reservation.total().max(between);
                    choice.reservation.again = values.saturating_add(beside).min(self.limit.saturating_sub(taken));
                    choices.push((feeds, choice));
                }
                Err(Refusal::TooSmall { smallest }) => needs_more = needs_more.max(Some(smallest)),
                Err(refusal) => errors.push(refusal.into_error(self.limit)),
            }
        }
        if let (Some(smallest), true) = (needs_more, errors.is_empty()) {
            errors.push(PlanError::Memory { limit: self.limit, smallest });
        }
        if errors.is_empty() { Ok(choices) } else { Err(errors) }
    }
}

/// Bytes of the chunks that all passes read, as they would be held, and what they take beside. Chunks that a plan counts as
/// packed leave no room for more.
fn reread_bytes(feeds: &[FeedUse], choice: &Choice, park: Park) -> (u64, u64) {
    let packs = matches!(park, Park::Auto | Park::Bitpack);
    let reread = feeds.iter().filter(|f| f.is_reread && f.packed_bits(choice.counts_packed).is_none());
    let bytes = |feed: &FeedUse| {
        let meta = feed.feed.source.meta();
        let chunk: Vec<usize> = meta.chunk_shape.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
        let chunks = meta.grid.cells().unwrap_or(u64::MAX);
        (chunks.saturating_mul(feed.held_bytes(&chunk, packs)), chunks.saturating_mul(again::BESIDE))
    };
    reread.map(bytes).fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
}

/// True when nothing but the limit stands in the way.
pub fn is_memory_only(errors: &[PlanError]) -> bool {
    errors.iter().all(|e| matches!(e, PlanError::Memory { .. }))
}

/// A refusal that asks for at least so much.
pub fn raise_refusal(mut errors: Vec<PlanError>, least: u64) -> Vec<PlanError> {
    for error in &mut errors {
        if let PlanError::Memory { smallest, .. } = error {
            *smallest = (*smallest).max(least);
        }
    }
    errors
}

/// Of two refusals, the one that asks for less.
pub fn smaller_refusal(first: Vec<PlanError>, second: Vec<PlanError>) -> Vec<PlanError> {
    match (&first[..], &second[..]) {
        ([PlanError::Memory { smallest: a, .. }], [PlanError::Memory { smallest: b, .. }]) if b < a => second,
        // It would fit, were it not for the folder's limit.
        ([PlanError::Memory { .. }], [PlanError::Scratch { .. }]) => second,
        _ => first,
    }
}
