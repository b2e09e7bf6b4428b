//! Stage 4: cuts the halo off. Views only: no byte is copied, so workers do it where they stand. Folds come together here,
//! since their results are what is left of a block after its reduced axes are cut away, and states of loops: these have a
//! thread.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::array::chunk::{ComputedBlock, FoldPart, TrimmedBlock};
use crate::array::{Account, Block, Buffer, Region};
use crate::compute::fold::Collector;
use crate::engine::context::Context;
use crate::engine::stage::{Cause, Fault, Halt, Inlet, Onward, current, working_on};
use crate::operators::{Kind, OutAxis};
use crate::plan::graph::ArrayId;
use crate::plan::phase::{Destination, Phase, PhaseFold, PhaseTarget};
use crate::reader::kept::KeptArray;

/// What cuts blocks, and brings their parts of folds together.
pub struct Trimmer<'c> {
    ctx: &'c Context,
    results: HashMap<usize, &'c Arc<KeptArray>>,
    collectors: Vec<Collector<'c>>,
    out: Box<dyn Onward<TrimmedBlock> + 'c>,
}

/// Trims until no block comes any more.
pub fn run(mut trimmer: Trimmer<'_>, mut blocks: Inlet<ComputedBlock>) -> Result<u64, Halt> {
    while let Some(block) = blocks.receive()? {
        trimmer.pass(block)?;
    }
    Box::new(trimmer).end()?;
    Ok(blocks.received)
}

impl<'c> Trimmer<'c> {
    pub fn new(ctx: &'c Context, out: Box<dyn Onward<TrimmedBlock> + 'c>) -> Self {
        let plan = ctx.phase();
        let results = plan.kept.iter().map(|k| (k.id, &k.array)).collect();
        let collectors = (0..plan.phase.folds.len()).filter_map(|f| collector(ctx, f)).collect();
        Self { ctx, results, collectors, out }
    }

    /// True when nothing comes together here: then each block may be cut by whoever made it.
    pub fn is_of_single_blocks(phase: &Phase) -> bool {
        let is_output = |target: &PhaseTarget| target.output().is_some();
        phase.folds.is_empty() && phase.targets.iter().all(is_output)
    }
}

impl Onward<ComputedBlock> for Trimmer<'_> {
    fn pass(&mut self, block: ComputedBlock) -> Result<(), Halt> {
        let (ctx, plan) = (self.ctx, self.ctx.phase());
        let clock = &ctx.clocks.trim;
        let ComputedBlock { seq, number, outputs, folds, ticket } = block;
        working_on(|t| {
            let _ = write!(t, "block {number}");
        });
        let mut cut: Vec<(usize, Region, Block)> = Vec::with_capacity(outputs.len());
        let mut bytes = 0;
        for o in outputs {
            let block = o.block.cut(&o.region, &o.core);
            bytes += block.byte_len() as u64;
            match o.to {
                Destination::Output(target) => cut.push((target, o.core, block)),
                Destination::State(id) => keep_state(ctx, id, &o.core, &block)?,
            }
        }
        clock.count(bytes, bytes);
        for part in folds {
            let FoldPart { fold, kept, nodes } = part;
            if ctx.done.has_kept(&ctx.plan, &plan.phase.folds[fold], &kept) {
                // Stored by an earlier run; only some of its blocks come by.
                self.collectors[fold].pass_over(&kept);
                continue;
            }
            let state = clock
                .busy(|| self.collectors[fold].add(&kept, nodes))
                .map_err(|e| fault(&plan.phase.folds[fold], plan, format!("{e}, in {kept} of the result")))?;
            let Some(state) = state else { continue };
            let finished = clock.busy(|| finish(ctx, fold, &kept, state))?;
            let mut written = Vec::new();
            for (output, region, block) in finished {
                let spec = &plan.phase.folds[fold].outputs[output];
                if let Some(result) = self.results.get(&spec.array).filter(|_| spec.is_kept) {
                    result.write(&region, &block).map_err(|e| fault(&plan.phase.folds[fold], plan, e.to_string()))?;
                }
                written.extend(spec.targets.iter().map(|&t| (t, region.clone(), block.clone())));
            }
            if !written.is_empty() {
                self.out.pass(TrimmedBlock { seq, number, outputs: written, ticket: None })?;
            }
        }
        if !cut.is_empty() {
            self.out.pass(TrimmedBlock { seq, number, outputs: cut, ticket: Some(ticket) })?;
        }
        ctx.totals.blocks_done.fetch_add(1, Ordering::Relaxed);
        ctx.observer.block_done(ctx.phase, number);
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<(), Halt> {
        let plan = self.ctx.phase();
        if let Some(open) = self.collectors.iter().position(|c| !c.is_empty()) {
            return Err(fault(&plan.phase.folds[open], plan, "parts of the reduction never came".to_owned()));
        }
        self.out.end()
    }
}

fn fault(fold: &PhaseFold, plan: &crate::plan::PhasePlan, message: String) -> Halt {
    let place = format!("step `{}`, {}", plan.phase.steps[fold.step].name, current());
    Halt::Fault(Fault { stage: "trim", place, message, cause: Cause::Final })
}

fn collector(ctx: &Context, number: usize) -> Option<Collector<'_>> {
    let plan = ctx.phase();
    let fold = &plan.phase.folds[number];
    let Kind::Fold { fold: operator, .. } = &plan.phase.steps[fold.step].binding.kind else { return None };
    let (operator, account) = (operator.as_ref(), ctx.accounts.fold.clone());
    let grids = fold.reduced.iter().map(|&a| &plan.grid.0[a]);
    Some(match &fold.leaf {
        Some(leaf) => Collector::of_trees(operator, account, grids.zip(leaf).map(|(g, leaf)| g.len().div_ceil(*leaf)).collect()),
        None => Collector::of_running(operator, account, &ctx.running, number, grids.map(|g| g.cells()).product()),
    })
}

/// Stores a part of a loop's next state.
fn keep_state(ctx: &Context, id: ArrayId, region: &Region, block: &Block) -> Result<(), Halt> {
    let kept = ctx.phase().kept.iter().find(|k| k.id == id);
    let kept = kept.ok_or_else(|| Halt::Fault(Fault::here("trim", "there is no place for this state")))?;
    let written = ctx.clocks.trim.busy(|| kept.array.write(region, block));
    written.map_err(|e| Halt::Fault(Fault::here("trim", e.to_string()).because(e.cause())))
}

/// A complete state as the fold's outputs: (output, its region, values).
fn finish(ctx: &Context, at: usize, kept: &Region, state: Buffer) -> Result<Vec<(usize, Region, Block)>, Halt> {
    let plan = ctx.phase();
    let fold = &plan.phase.folds[at];
    let step = &plan.phase.steps[fold.step];
    let Kind::Fold { fold: operator, .. } = &step.binding.kind else { return Ok(Vec::new()) };
    let count: u64 = fold.reduced.iter().map(|&a| plan.phase.axes[a].len).product();
    let cells = kept.count();
    let account: &Account = &ctx.accounts.fold;
    let mut buffers = Vec::new();
    for output in &step.binding.outputs {
        let new = output.axes.iter().map(|axis| match axis {
            OutAxis::New { len, .. } => *len as usize,
            _ => 1,
        });
        let bytes = cells * new.product::<usize>() * output.dtype.size();
        buffers.push(Buffer::new(account.lease(bytes as u64, &ctx.stop)?, bytes)?);
    }
    {
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|b| &mut **b).collect();
        operator.finish(&state, count, &mut slices).map_err(|e| fault(fold, plan, format!("{e}, in {kept} of the result")))?;
    }
    let mut found = Vec::new();
    for (o, buffer) in buffers.into_iter().enumerate() {
        let Some(at) = fold.outputs.iter().position(|f| f.output == o) else { continue };
        let spec = &fold.outputs[at];
        let region = spec.region(kept);
        let block = Block::new(buffer, spec.dtype, region.shape());
        found.push((at, region, block));
    }
    Ok(found)
}
