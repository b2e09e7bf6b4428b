//! `halostream plan`: a plan as text for people and as JSON for programs.

use std::fmt;

use serde_json::{Map, Value, json};

use super::carried::Surroundings;
use super::moving::Moving;
use super::{OutputPlan, PhasePlan, Plan};
use crate::config::units::format_bytes;
use crate::writer::npy::is_npy;

impl Plan {
    /// One object: at least `smallest_memory_bytes`, `predicted_peak_bytes`, `frontier_bytes`.
    pub fn to_json(&self, smallest: u64) -> Value {
        let phases: Vec<Value> = self.phases.iter().map(|p| p.to_json()).collect();
        let outputs: Vec<Value> = self
            .outputs
            .iter()
            .map(|o| {
                json!({
                    "path": o.path, "array": o.target.member, "from": self.graph.arrays[o.target.array].meta.name,
                    "shape": o.layout.shape, "dtype": o.layout.dtype.name(), "chunks": o.layout.chunks, "shards": o.layout.shards,
                    "points": o.layout.points.map(|p| p.chunk),
                    "coordinates": self.coordinates_of(o),
                    "zarr_format": if is_npy(&o.path) { Value::Null } else { json!(o.layout.zarr_format) },
                })
            })
            .collect();
        json!({
            "smallest_memory_bytes": smallest,
            "predicted_peak_bytes": self.predicted_peak_bytes(),
            "frontier_bytes": self.frontier_bytes(),
            "memory_limit_bytes": self.memory_limit,
            "job_hash": self.hash,
            "arithmetic": self.arithmetic,
            "devices": self.devices.to_json(),
            "blocks_total": self.blocks_total(),
            "source_chunks": self.phases.iter().map(|p| p.chunks).sum::<u64>(),
            "source_chunk_reads": self.phases.iter().map(|p| p.frontier.reads).sum::<u64>(),
            "phases": phases,
            "outputs": outputs,
            "notes": self.notes,
        })
    }

    /// The coordinates beside an output's array, with what is done to each.
    fn coordinates_of(&self, output: &OutputPlan) -> Value {
        let found = self.surroundings.get(&output.path).map_or(&[][..], |found| &found.coordinates);
        found.iter().map(|carried| (carried.path.clone(), Value::from(carried.how.name()))).collect::<Map<_, _>>().into()
    }
}

impl PhasePlan {
    fn to_json(&self) -> Value {
        let axes: Vec<Value> = self
            .phase
            .axes
            .iter()
            .enumerate()
            .map(|(a, axis)| json!({ "name": axis.name, "length": axis.len, "block": self.grid.0[a].longest(), "blocks": self.grid.0[a].cells(), "brick": self.traversal.brick[a] }))
            .collect();
        json!({
            "steps": self.phase.steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>(),
            "axes": axes,
            "order": self.traversal.order,
            "blocks": self.traversal.block_count(),
            "bricks": self.traversal.brick_count(),
            "source_chunks": self.chunks,
            "source_chunk_reads": self.frontier.reads,
            "frontier_bytes": self.frontier.source_bytes(),
            "reservation": self.reservation,
            "concurrency": self.concurrency,
            "child_bytes": self.bytes.children,
            "reader_child_bytes": self.feeds.iter().map(|feed| feed.feed.source.meta().child_bytes).sum::<u64>(),
            "passes_at_most": self.rounds.as_ref().map(|r| r.control.most_passes()),
            "counts_packed": self.counts_packed,
            "scratch_bytes": self.kept.iter().filter(|k| k.in_scratch).map(|k| k.array.byte_len()).sum::<u64>(),
        })
    }

    /// Names of outputs and arrays nobody asked for, which are not computed.
    fn unused(&self) -> Vec<String> {
        self.phase
            .steps
            .iter()
            .flat_map(|s| {
                s.binding
                    .outputs
                    .iter()
                    .zip(&s.outputs)
                    .filter(|(_, to)| to.is_none())
                    .map(|(o, _)| format!("{}.{}", s.name, o.name))
            })
            .collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, plan) in self.phases.iter().enumerate() {
            writeln!(f, "phase {} of {}", n + 1, self.phases.len())?;
            for &input in &plan.phase.inputs {
                let array = &plan.phase.arrays[input];
                writeln!(f, "  read     {:<16} {} {:?}, chunks {:?}", array.name, array.dtype, array.shape, array.chunk)?;
            }
            let names: Vec<String> = plan
                .phase
                .axes
                .iter()
                .enumerate()
                .map(|(a, axis)| {
                    let name = axis.name.clone().unwrap_or_else(|| format!("axis {a}"));
                    format!("{name} {} x {}", plan.grid.0[a].cells(), plan.grid.0[a].longest())
                })
                .collect();
            writeln!(
                f,
                "  blocks   {} ({}); axes outermost first: {:?}",
                plan.traversal.block_count(),
                names.join(", "),
                plan.traversal.order
            )?;
            for step in &plan.phase.steps {
                let halos: Vec<String> = step
                    .binding
                    .inputs
                    .iter()
                    .zip(&step.inputs)
                    .map(|(bound, input)| {
                        let name = &plan.phase.arrays[*input].name;
                        if bound.depth.iter().all(|d| *d == (0, 0)) {
                            return format!("{name} without halo");
                        }
                        let rules: Vec<String> = bound
                            .rules()
                            .iter()
                            .map(|r| if r[0] == r[1] { r[0].to_string() } else { format!("{}/{}", r[0], r[1]) })
                            .collect();
                        format!("{name} with halo {:?}, boundary {}", bound.depth, rules.join(", "))
                    })
                    .collect();
                writeln!(f, "  compute  {:<16} from {}", step.name, halos.join(" and "))?;
            }
            let unused = plan.unused();
            if !unused.is_empty() && plan.phase.folds.is_empty() {
                writeln!(f, "           not computed, since nothing asks for it: {}", unused.join(", "))?;
            }
            let again = plan.frontier.reads as f64 / plan.chunks.max(1) as f64;
            writeln!(
                f,
                "  sources  {} chunks, {} reads{}",
                plan.chunks,
                plan.frontier.reads,
                if plan.frontier.reads > plan.chunks {
                    format!(
                        " ({again:.2} times each: {} bricks, since the whole frontier does not fit the limit)",
                        plan.traversal.brick_count()
                    )
                } else {
                    " (each once)".to_owned()
                }
            )?;
            let r = &plan.reservation;
            let parts = [
                ("source", r.source),
                ("margins", r.margins),
                ("decode", r.decode),
                ("blocks", r.blocks),
                ("compute", r.compute),
                ("assemble", r.assemble),
                ("encode", r.encode),
                ("fold", r.fold),
                ("kept", r.kept),
                ("between passes", r.again),
            ];
            let parts: Vec<String> = parts.iter().filter(|p| p.1 > 0).map(|(n, b)| format!("{n} {}", format_bytes(*b))).collect();
            writeln!(
                f,
                "  memory   {} ({}); frontier {}",
                format_bytes(r.total()),
                parts.join(", "),
                format_bytes(plan.frontier.source_bytes())
            )?;
            if plan.counts_packed {
                writeln!(f, "  parked   chunks with guaranteed bit widths wait packed")?;
            }
            if let Some(rounds) = &plan.rounds {
                let state = rounds.state.copy_bytes();
                writeln!(
                    f,
                    "  repeat   at most {} passes over this phase, each reads {}{} and writes {} of state",
                    rounds.control.most_passes(),
                    format_bytes(plan.frontier.kept_bytes),
                    if r.again > 0 { ", as far as memory does not hold it," } else { "" },
                    format_bytes(state)
                )?;
            }
            for kept in &plan.kept {
                let place = match &self.scratch {
                    Some(folder) if kept.in_scratch => folder.display().to_string(),
                    _ => "memory".to_owned(),
                };
                let name = &self.graph.arrays[kept.id].meta.name;
                writeln!(f, "  keep     {name:<16} {} in {place}", format_bytes(kept.array.byte_len()))?;
            }
            let c = &plan.concurrency;
            match plan.moving {
                Some(Moving::Blocks) => writeln!(f, "  threads  {}, each moves blocks whole", plan.movers())?,
                Some(Moving::Columns) => writeln!(
                    f,
                    "  threads  {}, each reads, folds and writes a column of blocks at a time, {} columns",
                    plan.movers(),
                    plan.traversal.brick_count()
                )?,
                Some(Moving::Sweeps) => {
                    writeln!(f, "  threads  {}, each sweeps over a block at a time, strip by strip", plan.movers())?;
                }
                None if c.encoders == 0 => writeln!(
                    f,
                    "  threads  {} readers, {} workers that encode what they made, {} blocks in flight",
                    c.readers, c.workers, c.window
                )?,
                None => writeln!(
                    f,
                    "  threads  {} readers, {} workers, {} encoders, {} blocks in flight",
                    c.readers, c.workers, c.encoders, c.window
                )?,
            }
            let asked: u64 = plan.feeds.iter().map(|feed| feed.feed.source.meta().child_bytes).sum();
            if asked > 0 {
                writeln!(f, "  children {} each reader, beside the limit", format_bytes(asked))?;
            }
            if plan.bytes.children > 0 {
                writeln!(f, "  children {} each worker, beside the limit", format_bytes(plan.bytes.children))?;
            }
        }
        for device in self.devices.describe() {
            writeln!(f, "device     {device}")?;
        }
        for output in &self.outputs {
            let l = &output.layout;
            let is_file = is_npy(&output.path);
            let name = output.target.member.as_deref().map(|m| format!("/{m}")).unwrap_or_default();
            writeln!(
                f,
                "write      {}{name}  {} {:?}, {} {:?}{}{}",
                output.path.display(),
                l.dtype,
                l.shape,
                if is_file { "one file, written in parts of" } else { "chunks" },
                l.points.map_or(l.chunks.clone(), |p| vec![p.chunk]),
                match (&l.shards, l.points) {
                    (Some(shards), _) => format!(", shards {shards:?}"),
                    (None, Some(_)) => ", only points that have a value".to_owned(),
                    (None, None) => String::new(),
                },
                if is_file { String::new() } else { format!(", zarr v{}", l.zarr_format) }
            )?;
        }
        for described in self.surroundings.values().filter_map(Surroundings::describe) {
            writeln!(f, "coordinates {described}")?;
        }
        for note in &self.notes {
            writeln!(f, "note       {note}")?;
        }
        write!(
            f,
            "memory     predicted peak {} of {}",
            format_bytes(self.predicted_peak_bytes()),
            format_bytes(self.memory_limit)
        )
    }
}
