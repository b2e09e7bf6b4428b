//! `median_filter`, `percentile_filter`, `rank_filter`, as scipy.ndimage has them.
//!
//! The rank among n cells, counted from 0: n // 2 for the median; int(n * percentile / 100) for a percentile, n - 1 for
//! 100; negative percentiles and ranks count from above. The lowest and the highest rank are a minimum and a maximum.

use super::super::{Binding, Computed, Info, MapOperator, MapTask, Operator, OperatorError, Padded, Param, StepInput, Workspace};
use super::frame::Frame;
use super::lines::Layout;
use super::order::{self, Extreme, Recipe};
use super::params::{FOOTPRINT, Footprint, FootprintSpec, ORIGIN, SIZE};
use super::sample::{Sample, with_sample};
use super::select::Selection;
use super::window::each_row;
use crate::array::Region;
use crate::config::table::Table;

pub static MEDIAN_FILTER: Info = Info {
    name: "median_filter",
    summary: "median of a window",
    cost: "up to 255 cells by a selection network, one window a vector lane; larger windows by a sliding histogram (8 and 16 bits) or a selection",
    source: "scipy.ndimage.median_filter",
    build: |table| build(table, "median_filter", |_| Some(Rank::Median)),
    ..super::ORDERED
};

pub static PERCENTILE_FILTER: Info = Info {
    name: "percentile_filter",
    summary: "percentile of a window",
    cost: "as median_filter; the lowest and highest rank as minimum_filter",
    source: "scipy.ndimage.percentile_filter",
    params: &[
        Param { name: "percentile", kind: "number", default: "", doc: "0 to 100; negative ones count from 100 down" },
        SIZE,
        FOOTPRINT,
        ORIGIN,
    ],
    build: |table| build(table, "percentile_filter", percentile),
    ..super::ORDERED
};

pub static RANK_FILTER: Info = Info {
    name: "rank_filter",
    summary: "value of a given rank in a window",
    cost: "as median_filter; the lowest and highest rank as minimum_filter",
    source: "scipy.ndimage.rank_filter",
    params: &[
        Param { name: "rank", kind: "int", default: "", doc: "0 is the smallest value; -1 the largest" },
        SIZE,
        FOOTPRINT,
        ORIGIN,
    ],
    build: |table| build(table, "rank_filter", rank),
    ..super::ORDERED
};

#[derive(Clone, Copy)]
enum Rank {
    Median,
    Percentile(f64),
    Of(i64),
}

impl Rank {
    fn among(self, cells: usize) -> Result<usize, String> {
        match self {
            Rank::Median => Ok(cells / 2),
            Rank::Percentile(100.0) => Ok(cells - 1),
            Rank::Percentile(p) => Ok((cells as f64 * p / 100.0) as usize),
            Rank::Of(rank) => {
                let at = if rank < 0 { rank.checked_add(cells as i64) } else { Some(rank) };
                let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < cells);
                at.ok_or_else(|| {
                    format!("there is no rank {rank} in a window of {cells} cells; give {} to {}", -(cells as i64), cells - 1)
                })
            }
        }
    }
}

fn percentile(table: &mut Table<'_>) -> Option<Rank> {
    if !table.has("percentile") {
        table.problem("percentile", "missing; give a number from 0 to 100, such as percentile = 50");
    }
    let p = table.number("percentile")?;
    if !(-100.0..=100.0).contains(&p) {
        table.problem("percentile", format!("expected a number from -100 to 100, found {p}"));
        return None;
    }
    Some(Rank::Percentile(if p < 0.0 { p + 100.0 } else { p }))
}

fn rank(table: &mut Table<'_>) -> Option<Rank> {
    if !table.has("rank") {
        table.problem("rank", "missing; 0 is the smallest value of the window, -1 the largest");
    }
    table.integer("rank").map(Rank::Of)
}

fn build(table: &mut Table<'_>, op: &'static str, rank: fn(&mut Table<'_>) -> Option<Rank>) -> Option<Box<dyn Operator>> {
    let (rank, footprint) = (rank(table), FootprintSpec::read(table));
    Some(Box::new(Ranked { op, rank: rank?, footprint: footprint? }))
}

struct Ranked {
    op: &'static str,
    rank: Rank,
    footprint: FootprintSpec,
}

impl Operator for Ranked {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let frame = Frame::new(self.op, inputs, true)?;
        let footprint = self.footprint.expand(frame.rank())?;
        let cells = footprint.count();
        match self.rank.among(cells)? {
            0 => order::bind(frame, &inputs[0], footprint, Recipe::Plain(Extreme::Smallest)),
            rank if rank + 1 == cells => order::bind(frame, &inputs[0], footprint, Recipe::Plain(Extreme::Largest)),
            rank => {
                let depth = footprint.window.reach();
                let map = RankMap::new(frame.clone(), &footprint, rank);
                frame.bind(&inputs[0], &depth, map, true, true)
            }
        }
    }
}

struct RankMap {
    frame: Frame,
    depth: Vec<u64>,
    offsets: Vec<Vec<i64>>,
    selection: Selection,
}

impl RankMap {
    fn new(frame: Frame, footprint: &Footprint, rank: usize) -> Self {
        let offsets = footprint.offsets();
        let selection = Selection::new(&offsets, rank, frame.dtype.size() <= 2);
        Self { depth: footprint.window.reach(), offsets, selection, frame }
    }

    fn run<S: Sample>(
        &self,
        input: &Padded,
        core: &Region,
        out: &mut [S],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError> {
        self.frame.take(input, core, &self.depth)?;
        let [mut scratch] = super::buffers(work, [self.selection.bytes(size_of::<S>())])?;
        scratch.fill(0);
        let rims = self.selection.rims(&Layout::of::<S>(&input.block).1);
        each_row((&input.block, &input.region), core, &self.offsets, out, |rows, out| {
            self.selection.row(rows, &rims, out, &mut scratch);
        });
        Ok(())
    }
}

impl MapOperator for RankMap {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        super::one_output(
            inputs,
            task,
            work,
            self.frame.dtype,
            |input, region, out, work| with_sample!(self.frame.dtype, S => self.run::<S>(input, region, out.as_mut_slice_of(), work)),
        )
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        super::buffer_bytes(&[self.selection.bytes(self.frame.dtype.size())])
    }
}
