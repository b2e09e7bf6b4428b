//! What a run did: totals, the five numbers of each stage, and the bottleneck.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::stage::Clock;
use crate::compute::gpu::fleet::DeviceReport;

#[derive(Clone, Debug, Default, Serialize)]
pub struct StageReport {
    pub name: &'static str,
    pub threads: usize,
    /// Summed over the stage's threads.
    pub busy_s: f64,
    pub starved_s: f64,
    pub blocked_s: f64,
    pub chunks: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl StageReport {
    pub fn add(&mut self, clock: &Clock, threads: usize) {
        let seconds = |ns: &std::sync::atomic::AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed)).as_secs_f64();
        self.threads = self.threads.max(threads);
        self.busy_s += seconds(&clock.busy_ns);
        self.starved_s += seconds(&clock.starved_ns);
        self.blocked_s += seconds(&clock.blocked_ns);
        self.chunks += clock.chunks.load(Ordering::Relaxed);
        self.bytes_in += clock.bytes_in.load(Ordering::Relaxed);
        self.bytes_out += clock.bytes_out.load(Ordering::Relaxed);
    }
}

/// One of several processes that make the outputs together.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionReport {
    pub index: u64,
    pub count: u64,
    /// Partitions that are complete, this one among them.
    pub complete: u64,
    /// The outputs have their names.
    pub is_published: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    pub wall_s: f64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Chunks needed, summed over passes and inputs.
    pub source_chunks: u64,
    pub source_chunk_reads: u64,
    pub filled_chunks: u64,
    /// Requests to object stores for inputs, from opening them on, and how many of these were sent again.
    pub store_requests: u64,
    pub store_requests_again: u64,
    /// Passes of steps that take several.
    pub passes: u64,
    pub objects_written: u64,
    pub peak_rss_bytes: u64,
    pub memory_limit_bytes: u64,
    pub predicted_peak_bytes: u64,
    pub baseline_rss_bytes: u64,
    pub blocks_total: u64,
    pub blocks_computed: u64,
    /// Blocks that gave nothing that was not stored before, or is another partition's.
    pub blocks_resumed: u64,
    pub blocks_in_flight_max: u64,
    /// Largest sum of leases of each account.
    pub leased_peak_bytes: Vec<(&'static str, u64, u64)>,
    pub bottleneck: String,
    pub stages: Vec<StageReport>,
    /// The devices of the run, in the plan's order; their time is part of stage `compute`.
    pub devices: Vec<DeviceReport>,
    /// Parts of blocks that were halved because a device had no room for them.
    pub device_blocks_halved: u64,
    /// Parts of blocks whose device was lost and that another one computed.
    pub device_failovers: u64,
    pub partition: Option<PartitionReport>,
    pub job_hash: String,
    pub arithmetic: &'static str,
    pub version: &'static str,
}

impl RunReport {
    /// Notes the peak of an account; the passes of a phase are one entry.
    pub fn note_account(&mut self, name: &'static str, peak: u64, limit: u64) {
        match self.leased_peak_bytes.iter_mut().find(|e| e.0 == name && e.2 == limit) {
            Some(entry) => entry.1 = entry.1.max(peak),
            None => self.leased_peak_bytes.push((name, peak, limit)),
        }
    }

    /// The stage whose threads were busy for the largest share of the time.
    pub fn name_bottleneck(&mut self) {
        let share = |s: &StageReport| s.busy_s / s.threads.max(1) as f64;
        let most = self.stages.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        self.bottleneck = most.map_or("none", |s| s.name).to_owned();
    }
}

/// Resident and peak resident bytes of this process.
pub fn resident() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    (of("VmRSS:").unwrap_or(0), of("VmHWM:").unwrap_or(0))
}
