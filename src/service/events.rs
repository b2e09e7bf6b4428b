//! Everything worth reporting happens here once: a log line, a metric and an entry of the event stream together.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use flume::{Receiver, Sender};
use serde_json::{Value, json};

use super::clock::timestamp;
use super::metrics::Metrics;
use super::record::Record;

/// Listeners of the event stream at one time.
const MAX_LISTENERS: usize = 16;
/// Events that wait for a slow listener; more are dropped, and it is told how many.
const MAX_WAITING: usize = 256;
/// Recent events kept for who comes later.
const RECENT: usize = 100;

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    ServiceStarted { address: Option<String>, watches: usize },
    ServiceReady,
    ServiceDraining { running: usize },
    ServiceStopped { reason: &'a str },
    InputSeen(&'a Record),
    InputSettled(&'a Record),
    InputChanged(&'a Record),
    InputGone(&'a Record),
    InputStalled { record: &'a Record, why: &'a str },
    JobStarted(&'a Record),
    JobDone(&'a Record),
    JobRetried { record: &'a Record, pause_s: f64 },
    JobStopped(&'a Record),
    JobWaits { record: &'a Record, needs_bytes: u64 },
    InputQuarantined(&'a Record),
    InputRequeued(&'a Record),
    AfterDone { record: &'a Record, what: &'a str },
    AfterFailed { record: &'a Record, error: &'a str },
    HookFailed { record: &'a Record, error: &'a str },
    QuarantineFailed { record: &'a Record, error: &'a str },
    WatchLost { watch: &'a str, error: &'a str },
    WatchFound { watch: &'a str },
    DiskLow { place: &'a str, free_bytes: u64 },
    DiskFreed,
    Reloaded { hash: &'a str, changes: &'a str },
    ReloadRefused { reason: &'a str },
    SampleFailed { error: &'a str },
    LedgerFailed { error: &'a str },
}

impl Event<'_> {
    pub fn name(&self) -> &'static str {
        match self {
            Event::ServiceStarted { .. } => "service_started",
            Event::ServiceReady => "service_ready",
            Event::ServiceDraining { .. } => "service_draining",
            Event::ServiceStopped { .. } => "service_stopped",
            Event::InputSeen(_) => "input_seen",
            Event::InputSettled(_) => "input_settled",
            Event::InputChanged(_) => "input_changed",
            Event::InputGone(_) => "input_gone",
            Event::InputStalled { .. } => "input_stalled",
            Event::JobStarted(_) => "job_started",
            Event::JobDone(_) => "job_done",
            Event::JobRetried { .. } => "job_retried",
            Event::JobStopped(_) => "job_stopped",
            Event::JobWaits { .. } => "job_waits",
            Event::InputQuarantined(_) => "input_quarantined",
            Event::InputRequeued(_) => "input_requeued",
            Event::AfterDone { .. } => "after_done",
            Event::AfterFailed { .. } => "after_failed",
            Event::HookFailed { .. } => "hook_failed",
            Event::QuarantineFailed { .. } => "quarantine_failed",
            Event::WatchLost { .. } => "watch_lost",
            Event::WatchFound { .. } => "watch_found",
            Event::DiskLow { .. } => "disk_low",
            Event::DiskFreed => "disk_freed",
            Event::Reloaded { .. } => "reloaded",
            Event::ReloadRefused { .. } => "reload_refused",
            Event::SampleFailed { .. } => "sample_failed",
            Event::LedgerFailed { .. } => "ledger_failed",
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Event::InputSeen(r)
            | Event::InputSettled(r)
            | Event::InputChanged(r)
            | Event::InputGone(r)
            | Event::JobStarted(r)
            | Event::JobDone(r)
            | Event::JobStopped(r)
            | Event::InputQuarantined(r)
            | Event::InputRequeued(r) => Some(r),
            Event::InputStalled { record, .. }
            | Event::JobRetried { record, .. }
            | Event::JobWaits { record, .. }
            | Event::AfterDone { record, .. }
            | Event::AfterFailed { record, .. }
            | Event::HookFailed { record, .. }
            | Event::QuarantineFailed { record, .. } => Some(record),
            _ => None,
        }
    }

    /// What is said beside the input.
    fn details(&self) -> Value {
        match self {
            Event::ServiceStarted { address, watches } => json!({ "address": address, "watches": watches }),
            Event::ServiceDraining { running } => json!({ "running": running }),
            Event::ServiceStopped { reason } | Event::ReloadRefused { reason } => json!({ "reason": reason }),
            Event::InputStalled { why, .. } => json!({ "why": why }),
            Event::JobRetried { record, pause_s } => {
                json!({ "reason": record.reason, "attempts": record.attempts, "pause_s": pause_s })
            }
            Event::JobWaits { needs_bytes, .. } => json!({ "needs_bytes": needs_bytes }),
            Event::InputQuarantined(record) => json!({ "reason": record.reason, "attempts": record.attempts }),
            Event::JobDone(record) => {
                let numbers = record.numbers.clone().unwrap_or_default();
                json!({ "outputs": record.outputs, "wall_s": numbers.wall_s, "bytes_read": numbers.bytes_read, "bytes_written": numbers.bytes_written })
            }
            Event::AfterDone { what, .. } => json!({ "what": what }),
            Event::AfterFailed { error, .. } | Event::HookFailed { error, .. } | Event::QuarantineFailed { error, .. } => {
                json!({ "error": error })
            }
            Event::WatchLost { watch, error } => json!({ "watch": watch, "error": error }),
            Event::WatchFound { watch } => json!({ "watch": watch }),
            Event::DiskLow { place, free_bytes } => json!({ "place": place, "free_bytes": free_bytes }),
            Event::Reloaded { hash, changes } => json!({ "config_hash": hash, "changes": changes }),
            Event::SampleFailed { error } | Event::LedgerFailed { error } => json!({ "error": error }),
            _ => json!({}),
        }
    }

    fn level(&self) -> tracing::Level {
        match self {
            Event::InputQuarantined(_)
            | Event::AfterFailed { .. }
            | Event::HookFailed { .. }
            | Event::QuarantineFailed { .. }
            | Event::ReloadRefused { .. }
            | Event::SampleFailed { .. }
            | Event::LedgerFailed { .. } => tracing::Level::ERROR,
            Event::InputStalled { .. }
            | Event::JobRetried { .. }
            | Event::JobStopped(_)
            | Event::WatchLost { .. }
            | Event::DiskLow { .. } => tracing::Level::WARN,
            Event::InputSeen(_) | Event::InputGone(_) => tracing::Level::DEBUG,
            _ => tracing::Level::INFO,
        }
    }

    fn count(&self, metrics: &Metrics) {
        match self {
            Event::JobDone(record) => {
                metrics.jobs.with_label_values(&[record.watch.as_str(), "done"]).inc();
                let numbers = record.numbers.clone().unwrap_or_default();
                metrics.job_seconds.with_label_values(&[&record.watch]).observe(numbers.wall_s);
                metrics.bytes_read.with_label_values(&[&record.watch]).inc_by(numbers.bytes_read);
                metrics.bytes_written.with_label_values(&[&record.watch]).inc_by(numbers.bytes_written);
            }
            Event::JobRetried { record, .. } => metrics.jobs.with_label_values(&[record.watch.as_str(), "retried"]).inc(),
            Event::JobStopped(record) => metrics.jobs.with_label_values(&[record.watch.as_str(), "stopped"]).inc(),
            Event::InputQuarantined(record) => metrics.jobs.with_label_values(&[record.watch.as_str(), "quarantined"]).inc(),
            Event::Reloaded { .. } => metrics.reloads.with_label_values(&["done"]).inc(),
            Event::ReloadRefused { .. } => metrics.reloads.with_label_values(&["refused"]).inc(),
            _ => {}
        }
        metrics.events.with_label_values(&[self.name()]).inc();
    }
}

/// Hears events and passes them on.
pub struct Reporter {
    pub metrics: Metrics,
    stream: Mutex<Stream>,
}

#[derive(Default)]
struct Stream {
    number: u64,
    recent: VecDeque<(u64, String)>,
    listeners: Vec<Listener>,
}

struct Listener {
    to: Sender<String>,
    dropped: u64,
}

impl Reporter {
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, stream: Mutex::default() }
    }

    /// Logs, counts and passes on.
    pub fn emit(&self, event: &Event<'_>, wall_ms: i64) {
        event.count(&self.metrics);
        let mut document = event.details();
        if let Some(record) = event.record() {
            document["id"] = json!(record.id);
            document["watch"] = json!(record.watch);
            document["name"] = json!(record.name);
        }
        let name = event.name();
        // One string: a name with a line break in it stays on the line.
        let details = document.to_string();
        match event.level() {
            tracing::Level::ERROR => tracing::error!(event = name, details = %details),
            tracing::Level::WARN => tracing::warn!(event = name, details = %details),
            tracing::Level::INFO => tracing::info!(event = name, details = %details),
            _ => tracing::debug!(event = name, details = %details),
        }
        document["event"] = json!(name);
        document["time"] = json!(timestamp(wall_ms));
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).pass_on(&document);
    }

    /// A new listener: the recent events after number `after`, then what comes. `None` when there are too many.
    pub fn listen(&self, after: Option<u64>) -> Option<Receiver<String>> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.listeners.retain(|l| !l.to.is_disconnected());
        if stream.listeners.len() >= MAX_LISTENERS {
            return None;
        }
        let (to, heard) = flume::bounded(MAX_WAITING);
        for (number, text) in &stream.recent {
            if after.is_none_or(|after| *number > after) {
                let _ = to.try_send(text.clone());
            }
        }
        stream.listeners.push(Listener { to, dropped: 0 });
        Some(heard)
    }
}

impl Stream {
    fn pass_on(&mut self, document: &Value) {
        self.number += 1;
        let text =
            format!("id: {}\nevent: {}\ndata: {document}\n\n", self.number, document["event"].as_str().unwrap_or_default());
        self.listeners.retain_mut(|listener| {
            if listener.dropped > 0 {
                let told = format!("event: dropped\ndata: {{\"events\":{}}}\n\n", listener.dropped);
                if listener.to.try_send(told).is_ok() {
                    listener.dropped = 0;
                }
            }
            match listener.to.try_send(text.clone()) {
                Ok(()) => true,
                Err(flume::TrySendError::Full(_)) => {
                    listener.dropped += 1;
                    true
                }
                Err(flume::TrySendError::Disconnected(_)) => false,
            }
        });
        self.recent.push_back((self.number, text));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_listeners_lose_events_and_are_told() {
        let reporter = Reporter::new(Metrics::new().unwrap());
        reporter.emit(&Event::ServiceReady, 0);
        let heard = reporter.listen(None).unwrap();
        assert!(heard.try_recv().unwrap().starts_with("id: 1\nevent: service_ready\n"));
        for _ in 0..MAX_WAITING + 5 {
            reporter.emit(&Event::DiskFreed, 0);
        }
        assert_eq!(heard.drain().count(), MAX_WAITING);
        reporter.emit(&Event::ServiceReady, 0);
        assert_eq!(heard.try_recv().unwrap(), "event: dropped\ndata: {\"events\":5}\n\n");
        assert!(heard.try_recv().unwrap().contains("service_ready"));
        let more: Vec<_> = (0..MAX_LISTENERS).map(|_| reporter.listen(Some(u64::MAX))).collect();
        assert_eq!(more.iter().flatten().count(), MAX_LISTENERS - 1);
    }
}
