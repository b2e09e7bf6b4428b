//! Where a job's steps are computed: the devices, what each may hold, and what is left to the CPU.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::PlanError;
use super::graph::Graph;
use super::phase::{Phase, PhaseStep};
use crate::array::Region;
use crate::compute::device::{DeviceInfo, arithmetic_class, select};
use crate::compute::gpu::Hardware;
use crate::compute::gpu::apply::{host_bytes, smallest_device_bytes};
use crate::compute::gpu::fleet::{CpuShare, Fleet, Seat};
use crate::compute::gpu::pulse::Patience;
use crate::config::EngineSpec;
use crate::config::units::format_bytes;
use crate::operators::{DeviceMap, Kind};

/// The devices of a job; none: the CPU computes everything.
pub struct DevicePlan {
    /// One actor each; a device that was named twice is here twice.
    pub seats: Vec<DeviceInfo>,
    /// Bytes that each may hold.
    pub budgets: Vec<u64>,
    pub cpu: CpuShare,
    pub arithmetic: &'static str,
    pub note: Option<String>,
    is_auto: bool,
    timeout: Duration,
    hardware: Arc<dyn Hardware>,
}

/// What a step does on a device, if it has kernels. `auto` has it there only where that pays.
fn entry(kind: &Kind, is_auto: bool) -> Option<&dyn DeviceMap> {
    match kind {
        Kind::Map(map) => map.device().filter(|entry| !is_auto || entry.pays()),
        Kind::Fold { .. } => None,
    }
}

/// The same of a step that was marked.
fn marked(step: &PhaseStep) -> Option<&dyn DeviceMap> {
    entry(&step.binding.kind, false).filter(|_| step.on_device)
}

impl DevicePlan {
    pub fn new(engine: &EngineSpec, graph: &Graph, hardware: Arc<dyn Hardware>) -> Result<Self, PlanError> {
        let asked = engine.devices.as_deref();
        let is_auto = asked.is_none();
        let entries: Vec<&dyn DeviceMap> = graph.steps.iter().filter_map(|s| entry(&s.binding.kind, is_auto)).collect();
        let mut plan = Self {
            seats: Vec::new(),
            budgets: Vec::new(),
            cpu: CpuShare::default(),
            arithmetic: "cpu",
            note: None,
            is_auto,
            timeout: engine.device_timeout,
            hardware: hardware.clone(),
        };
        // Asking the driver takes a moment, and `auto` has no use for the answer.
        if entries.is_empty() && is_auto {
            return Ok(plan);
        }
        let mut found = select(asked, || hardware.devices(), || hardware.compiler()).map_err(PlanError::Wrong)?;
        if entries.is_empty() {
            plan.note =
                (!found.devices.is_empty()).then(|| "no step of this job has a CUDA kernel: the CPU computes it".to_owned());
            return Ok(plan);
        }
        plan.arithmetic = arithmetic_class(&mut found, entries.iter().all(|e| e.is_exact()));
        plan.cpu = CpuShare { mixes: found.with_cpu && !is_auto, takes_over: found.with_cpu || engine.fallback };
        plan.note = found.note;
        for device in &found.devices {
            let twins = found.devices.iter().filter(|d| d.ordinal == device.ordinal).count() as u64;
            // What is left belongs to the driver, to its copy of the kernels, and to others.
            plan.budgets.push(engine.device_memory.unwrap_or(device.total_bytes / 4 * 3) / twins);
        }
        plan.seats = found.devices;
        Ok(plan)
    }

    /// Notes which steps run on devices.
    pub fn mark(&self, phases: &mut [Phase]) {
        for step in phases.iter_mut().flat_map(|p| &mut p.steps) {
            step.on_device = !self.seats.is_empty() && entry(&step.binding.kind, self.is_auto).is_some();
        }
    }

    /// Refuses a budget that holds not even the smallest part of some step.
    pub fn check_room(&self, phases: &[Phase]) -> Result<(), PlanError> {
        let Some(least) = self.budgets.iter().min() else { return Ok(()) };
        for (phase, step) in phases.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s))) {
            let Some(entry) = marked(step) else { continue };
            let whole = |j: usize| step.binding.whole.contains(&j);
            let axes = step.reference_axes.iter().enumerate();
            let lengths: Vec<u64> = axes.map(|(j, &a)| if whole(j) { phase.axes[a].len } else { 1 }).collect();
            let (given, core) = around(step, &lengths);
            let needed = smallest_device_bytes(entry, &given, &core);
            if needed > *least {
                return Err(PlanError::Wrong(format!(
                    "engine.device_memory = {} is below the {} that step `{}` needs for its smallest part: raise it, or use devices = [\"cpu\"]",
                    format_bytes(*least),
                    format_bytes(needed),
                    step.name
                )));
            }
        }
        Ok(())
    }

    /// Starts the actors. A device that does not open is a lost device.
    pub fn start(&self) -> std::io::Result<Option<Fleet>> {
        if self.seats.is_empty() {
            return Ok(None);
        }
        let seat = |(info, budget): (&DeviceInfo, &u64)| {
            let (info, hardware) = (info.clone(), self.hardware.clone());
            Seat { label: info.label(), budget: *budget, open: Box::new(move || hardware.open(&info)) }
        };
        let seats = self.seats.iter().zip(&self.budgets).map(seat).collect();
        let (all, hardware) = (self.seats.clone(), self.hardware.clone());
        Fleet::start(seats, self.cpu, Box::new(move || hardware.pinner(&all)), Patience::new(self.timeout)).map(Some)
    }

    pub fn to_json(&self) -> Value {
        let device = |(d, budget): (&DeviceInfo, &u64)| json!({ "device": d.label(), "name": d.name, "arch": d.arch.to_string(), "budget_bytes": budget });
        Value::Array(self.seats.iter().zip(&self.budgets).map(device).collect())
    }

    /// `cuda:0 (NVIDIA H200, sm_90), 100 GiB for blocks`
    pub fn describe(&self) -> Vec<String> {
        let line = |(d, budget): (&DeviceInfo, &u64)| {
            format!("{} ({}, {}), {} for blocks", d.label(), d.name, d.arch, format_bytes(*budget))
        };
        self.seats.iter().zip(&self.budgets).map(line).collect()
    }
}

/// Host memory that a step on a device takes for a core of these lengths, in bytes.
pub fn step_host_bytes(step: &PhaseStep, lengths: &[u64]) -> u64 {
    let (given, core) = around(step, lengths);
    marked(step).map_or(0, |e| host_bytes(e, &given, &core))
}

/// The inputs' regions for a core of these lengths that begins at 0, halo and all, as if the array did not end.
fn around(step: &PhaseStep, lengths: &[u64]) -> (Vec<Region>, Region) {
    let core = Region::from_ranges(&lengths.iter().map(|&n| (0, n as i64)).collect::<Vec<_>>());
    let given = step
        .binding
        .inputs
        .iter()
        .map(|bound| {
            let ranges: Vec<(i64, i64)> = bound
                .axes
                .iter()
                .zip(&bound.depth)
                .map(|(axis, depth)| match axis {
                    Some(j) => (-(depth.0 as i64), lengths[*j] as i64 + depth.1 as i64),
                    None => (0, 1),
                })
                .collect();
            Region::from_ranges(&ranges)
        })
        .collect();
    (given, core)
}
