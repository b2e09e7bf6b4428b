//! What others may see of the service while it runs: one JSON object, put together by the manager, read by HTTP.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::clock::{Clock, timestamp};
use super::ledger::{Ledger, LedgerError};
use super::manager::Manager;
use super::record::{Record, State};
use crate::config::service::{After, ServiceSpec};

/// A manager that was not heard of for so long is in trouble.
const SILENCE: Duration = Duration::from_secs(30);
/// The picture is put together at most this often.
const EVERY: Duration = Duration::from_millis(100);

pub struct View {
    status: Mutex<Arc<Value>>,
    config: Mutex<Arc<Value>>,
    /// Milliseconds of the forward clock.
    beat: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl View {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let beat = AtomicU64::new(clock.now().as_millis() as u64);
        Self { status: Mutex::new(Arc::new(Value::Null)), config: Mutex::new(Arc::new(Value::Null)), beat, clock }
    }

    pub fn status(&self) -> Arc<Value> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn config(&self) -> Arc<Value> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The manager was heard of lately.
    pub fn is_alive(&self) -> bool {
        let now = self.clock.now().as_millis() as u64;
        now.saturating_sub(self.beat.load(Ordering::Relaxed)) < SILENCE.as_millis() as u64
    }

    fn put(&self, status: Value, config: Option<Value>) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(status);
        if let Some(config) = config {
            *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        }
    }
}

/// States with how many inputs of a watch are in them.
fn counts_of(watch: &str, count: impl Fn(&str, State) -> i64) -> Value {
    State::ALL
        .iter()
        .map(|state| (state.name().to_owned(), json!(count(watch, *state))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

impl Manager {
    pub(super) fn show(&mut self) {
        let now = self.clock.now();
        let beat = self.view.beat.swap(now.as_millis() as u64, Ordering::Relaxed);
        if now.as_millis() as u64 == beat || (now < self.next_show && self.view.status().is_object()) {
            return;
        }
        self.next_show = now + EVERY;
        let metrics = &self.reporter.metrics;
        let count = |watch: &str, state: State| self.inputs.counts().get(&(watch.to_owned(), state)).copied().unwrap_or(0);
        for watch in self.watches.iter() {
            for state in State::ALL {
                metrics.inputs.with_label_values(&[watch.spec.name.as_str(), state.name()]).set(count(&watch.spec.name, state));
            }
        }
        let reserved: u64 = self.running.values().map(|r| r.grant).sum();
        let as_gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        metrics.queue.set(as_gauge(self.queue.len() as u64));
        metrics.running.set(as_gauge(self.running.len() as u64));
        metrics.memory_limit.set(as_gauge(self.memory));
        metrics.memory_reserved.set(as_gauge(reserved));
        metrics.ready.set(i64::from(self.is_ready && self.draining.is_none()));
        let watches: Vec<Value> = self
            .watches
            .iter()
            .map(|w| {
                json!({
                    "name": w.spec.name,
                    "directory": w.spec.directory.to_string_lossy(),
                    "up": w.scanned.is_some() && w.error.is_none(),
                    "error": w.error,
                    "present": w.present,
                    "incomplete": w.incomplete,
                    "stalled": w.stalled,
                    "inputs": counts_of(&w.spec.name, count),
                })
            })
            .collect();
        let running: Vec<Value> = self
            .running
            .iter()
            .map(|(key, r)| {
                let p = *r.progress.lock().unwrap_or_else(PoisonError::into_inner);
                json!({
                    "id": r.id,
                    "watch": key.watch(),
                    "name": r.name,
                    "seconds": r.since.elapsed().as_secs_f64(),
                    "phase": p.phase,
                    "phases": p.phases,
                    "blocks_done": p.blocks_done,
                    "blocks_total": p.blocks_total,
                    "bytes_read": p.bytes_read,
                    "bytes_written": p.bytes_written,
                    "granted_bytes": r.grant,
                })
            })
            .collect();
        let state = match (&self.draining, self.is_ready) {
            (Some(_), _) => "draining",
            (None, true) => "ready",
            (None, false) => "starting",
        };
        let status = json!({
            "service": self.spec.path.to_string_lossy(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "state": state,
            "config_hash": self.spec.hash,
            "config_error": self.files.error(),
            "config_loaded": timestamp(self.files.loaded_ms),
            "queue": self.queue.len(),
            "max_jobs": self.spec.max_jobs,
            "memory_limit_bytes": self.memory,
            "memory_reserved_bytes": reserved,
            "waiting_for_disk": self.disk.low.as_ref().map(|(place, free)| json!({ "place": place, "free_bytes": free })),
            "watches": watches,
            "running": running,
        });
        let shown = self.view.config().get("config_hash").cloned();
        let config = (shown != Some(json!(self.spec.hash))
            || self.view.config().get("error") != Some(&json!(self.files.error())))
        .then(|| config_of(&self.spec, self.files.error()));
        self.view.put(status, config);
    }
}

/// The configuration in use, without secrets (the token is a file's name only).
fn config_of(spec: &ServiceSpec, error: Option<&str>) -> Value {
    let watches: Vec<Value> = spec
        .watches
        .iter()
        .map(|w| {
            json!({
                "name": w.name,
                "directory": w.directory.to_string_lossy(),
                "pattern": w.pattern.text,
                "complete": w.complete.iter().map(|p| format!("{p:?}")).collect::<Vec<_>>(),
                "job": w.job.path.to_string_lossy(),
                "output": w.output,
                "after": match &w.after {
                    After::Keep => "keep".to_owned(),
                    After::Delete => "delete".to_owned(),
                    After::Archive(to) => format!("archive:{}", to.display()),
                },
                "retries": w.retries,
                "priority": w.priority,
                "poll_s": w.poll.as_secs_f64(),
                "stalled_after_s": w.stalled_after.as_secs_f64(),
                "config_hash": w.config_hash,
            })
        })
        .collect();
    json!({
        "service": spec.path.to_string_lossy(),
        "config_hash": spec.hash,
        "error": error,
        "listen": spec.listen.map(|a| a.to_string()),
        "state": spec.state.to_string_lossy(),
        "quarantine": spec.quarantine.to_string_lossy(),
        "max_jobs": spec.max_jobs,
        "memory_bytes": spec.memory,
        "grace_s": spec.grace.as_secs_f64(),
        "min_free_bytes": spec.min_free,
        "ledger_keep_s": spec.ledger_keep.as_secs_f64(),
        "watches": watches,
    })
}

/// The status of a service that does not run, from its ledger.
pub fn offline(spec: &ServiceSpec, ledger: Option<&Ledger>) -> Result<Value, LedgerError> {
    let counts = match ledger {
        Some(ledger) => ledger.fold(HashMap::new, |counts, key, record| {
            *counts.entry((key.watch().to_owned(), record.state)).or_insert(0i64) += 1;
        })?,
        None => HashMap::new(),
    };
    let count = |watch: &str, state: State| counts.get(&(watch.to_owned(), state)).copied().unwrap_or(0);
    let watches: Vec<Value> = spec
        .watches
        .iter()
        .map(|w| {
            json!({
                "name": w.name,
                "directory": w.directory.to_string_lossy(),
                "up": w.directory.is_dir(),
                "inputs": counts_of(&w.name, count),
            })
        })
        .collect();
    Ok(json!({
        "service": spec.path.to_string_lossy(),
        "state": "stopped",
        "config_hash": spec.hash,
        "watches": watches,
        "running": [],
    }))
}

/// Records as the API lists them.
pub fn listing(records: &[Record], limit: usize) -> Value {
    let jobs: Vec<Value> = records.iter().map(Record::to_json).collect();
    let next = (records.len() == limit).then(|| records.last().map(|r| r.id)).flatten();
    json!({ "jobs": jobs, "next_before": next })
}
