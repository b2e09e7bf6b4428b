//! What the stages of one phase share: the plan, the accounts of the budget, the clocks, the stop flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::Observer;
use super::resume::Done;
use super::stage::Clock;
use super::window::Window;
use crate::array::Block;
use crate::array::{Account, Region};
use crate::codec::{self, AutoPark, Packed, Park};
use crate::compute::gpu::fleet::Fleet;
use crate::compute::running::Running;
use crate::plan::{PhasePlan, Plan};
use crate::reader::again::Again;
use crate::writer::Sink;

/// One account per reservation of the plan.
#[derive(Clone)]
pub struct Accounts {
    pub source: Account,
    pub margins: Account,
    pub decode: Account,
    pub blocks: Account,
    pub compute: Account,
    pub assemble: Account,
    pub fold: Account,
}

impl Accounts {
    pub fn new(plan: &PhasePlan) -> Self {
        let r = &plan.reservation;
        Self {
            source: Account::new("source", r.source),
            margins: Account::new("margins", r.margins),
            decode: Account::new("decode", r.decode),
            blocks: Account::new("blocks", r.blocks),
            compute: Account::new("compute", r.compute),
            assemble: Account::new("assemble", r.assemble),
            fold: Account::new("fold", r.fold),
        }
    }

    pub fn leased(&self) -> u64 {
        self.all().iter().map(|a| a.leased()).sum()
    }

    pub fn all(&self) -> [&Account; 7] {
        [&self.source, &self.margins, &self.decode, &self.blocks, &self.compute, &self.assemble, &self.fold]
    }
}

/// One clock per stage.
#[derive(Clone, Default)]
pub struct Clocks {
    pub reader: Arc<Clock>,
    pub halo: Arc<Clock>,
    pub compute: Arc<Clock>,
    pub trim: Arc<Clock>,
    pub writer: Arc<Clock>,
}

impl Clocks {
    /// Clocks whose spans an observer hears, if it wants to.
    pub fn of(observer: &Arc<dyn Observer>) -> Self {
        let clock = |stage| Arc::new(Clock::of(stage, observer));
        Self {
            reader: clock("reader"),
            halo: clock("halo"),
            compute: clock("compute"),
            trim: clock("trim"),
            writer: clock("writer"),
        }
    }

    /// In the order of the stages.
    pub fn all(&self) -> [&Clock; 5] {
        [&self.reader, &self.halo, &self.compute, &self.trim, &self.writer]
    }
}

/// Totals beside the stages' own numbers.
#[derive(Default)]
pub struct Totals {
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub chunk_reads: AtomicU64,
    pub filled_chunks: AtomicU64,
    pub objects_written: AtomicU64,
    pub blocks_sent: AtomicU64,
    pub blocks_done: AtomicU64,
    pub blocks_resumed: AtomicU64,
    pub blocks_in_flight_max: AtomicU64,
}

/// How chunks are held while they wait.
pub struct Parking {
    park: Park,
    /// One per feed: what `auto` has learned.
    auto: Vec<AutoPark>,
}

impl Parking {
    pub fn new(plan: &PhasePlan) -> Self {
        Self { park: plan.park, auto: plan.feeds.iter().map(|_| AutoPark::default()).collect() }
    }

    /// The chunk packed, if that helps and there is room.
    pub fn pack(&self, feed: usize, block: &Block, account: &Account, scratch: &mut Vec<u8>) -> Option<Packed> {
        match self.park {
            Park::None => None,
            Park::Auto => self.auto[feed].pack(block, account, scratch),
            park => codec::pack(block, park, account, scratch),
        }
    }
}

#[derive(Clone)]
pub struct Context {
    pub plan: Arc<Plan>,
    pub phase: usize,
    pub accounts: Accounts,
    pub clocks: Clocks,
    pub totals: Arc<Totals>,
    pub stop: Arc<AtomicBool>,
    pub window: Arc<Window>,
    /// Per graph target.
    pub sinks: Arc<Vec<Arc<dyn Sink>>>,
    pub observer: Arc<dyn Observer>,
    pub parking: Arc<Parking>,
    pub done: Arc<Done>,
    /// Chunks that earlier passes of the phase held.
    pub again: Option<Arc<Again>>,
    /// States of order-free folds.
    pub running: Arc<Running>,
    pub fleet: Option<Arc<Fleet>>,
}

impl Context {
    pub fn phase(&self) -> &PhasePlan {
        self.plan.phases[self.phase].of_run(self.done.is_empty())
    }

    /// True when an earlier run stored all that a block gives.
    pub fn is_done(&self, core: &Region) -> bool {
        self.done.has_block(&self.plan, self.phase(), core)
    }
}
