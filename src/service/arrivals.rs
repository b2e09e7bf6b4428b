//! What the watches tell: inputs come, become complete, change and go.

use super::effects;
use super::events::Event;
use super::inputs::{is_open, output_text};
use super::manager::Manager;
use super::record::{Effect, Key, Record, State};
use super::scan::Fingerprint;
use super::watch::{News, Report};
use crate::config::job;
use crate::config::service::{OnChange, WatchSpec};

impl Manager {
    pub(super) fn scanned(&mut self, mut report: Report) {
        let Some(watch) = self.watches.reported(&report) else { return };
        let metrics = &self.reporter.metrics;
        let label = [report.watch.as_str()];
        let is_first = report.is_last && watch.scanned.is_none() && report.error.is_none();
        let was_up = watch.error.is_none();
        watch.error.clone_from(&report.error);
        if report.is_last {
            if report.error.is_none() {
                (watch.settling, watch.incomplete, watch.stalled) = (report.settling, report.incomplete, report.stalled);
                watch.present = report.present;
            }
            watch.scanned = Some(report.began);
            let as_gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            metrics.scans.with_label_values(&label).inc();
            metrics.scan_errors.with_label_values(&label).inc_by(u64::from(report.error.is_some()));
            metrics.scan_seconds.with_label_values(&label).set(report.took.as_secs_f64());
            metrics.settling.with_label_values(&label).set(as_gauge(watch.incomplete));
            metrics.stalled.with_label_values(&label).set(as_gauge(watch.stalled));
            metrics.watch_up.with_label_values(&label).set(i64::from(report.error.is_none()));
        }
        let spec = watch.spec.clone();
        match (&report.error, was_up) {
            (Some(error), true) => self.emit(&Event::WatchLost { watch: &spec.name, error }),
            (None, false) => self.emit(&Event::WatchFound { watch: &spec.name }),
            _ => {}
        }
        let mut records = Vec::new();
        let mut gone = Vec::new();
        for news in std::mem::take(&mut report.news) {
            self.hear(&spec, report.generation, news, &mut records, &mut gone);
        }
        self.inputs.write(records);
        if is_first {
            // What went while nobody looked.
            gone.extend(self.inputs.unseen(&spec.name, report.generation).cloned());
        }
        self.went(&gone);
    }

    fn hear(&mut self, spec: &WatchSpec, by: u64, news: News, records: &mut Vec<(Key, Record)>, gone: &mut Vec<Key>) {
        // A record may be changed twice by one report: the later change builds on the earlier.
        let key_of = |relpath: &[u8]| Key::new(&spec.name, relpath);
        match news {
            News::Seen(relpath) => {
                let key = key_of(&relpath);
                gone.retain(|k| *k != key);
                if let Some(record) = self.inputs.came(&key, by) {
                    self.emit(&Event::InputSeen(&record));
                    self.inputs.put_later(&key, &record, records);
                }
            }
            News::Complete(relpath, fingerprint) => {
                let key = key_of(&relpath);
                if let Some(slim) = self.inputs.slim_mut(&key) {
                    slim.latest = Some(fingerprint);
                }
                self.decide(spec, &key, fingerprint, records);
            }
            News::Changed(relpath) => {
                let key = key_of(&relpath);
                let Some(slim) = self.inputs.slim_mut(&key) else { return };
                slim.latest = None;
                if matches!(slim.state, State::Settled | State::Failed)
                    && let Some(mut record) = self.inputs.current(&key, records)
                {
                    self.queue.remove(&key);
                    record.state = State::Seen;
                    record.reason = Some("was changed before it was processed".to_owned());
                    self.emit(&Event::InputChanged(&record));
                    self.inputs.put_later(&key, &record, records);
                }
            }
            News::Refused(relpath, fingerprint, reason) => {
                let key = key_of(&relpath);
                let Some(mut record) = self.inputs.current(&key, records) else { return };
                if record.state != State::Quarantined || record.fingerprint != Some(fingerprint) {
                    record.fingerprint = Some(fingerprint);
                    self.quarantine(&key, record, reason, records);
                }
            }
            News::Stalled(relpath, why) => {
                if let Some(record) = self.inputs.current(&key_of(&relpath), records) {
                    self.emit(&Event::InputStalled { record: &record, why: &why });
                }
            }
            News::Gone(relpath) => gone.push(key_of(&relpath)),
        }
    }

    /// What becomes of a version that is complete.
    pub(super) fn decide(&mut self, spec: &WatchSpec, key: &Key, found: Fingerprint, records: &mut Vec<(Key, Record)>) {
        // Most of what is told at a start was done before: no need to look it up.
        let is_done = |s: &super::inputs::Slim| s.state == State::Done && s.fingerprint == Some(found);
        if self.inputs.slim(key).is_some_and(is_done) {
            return;
        }
        let Some(mut record) = self.inputs.current(key, records) else { return };
        let is_known = record.fingerprint.is_some_and(|f| same_version(&f, &found));
        match (record.state, spec.on_change) {
            (State::Running, _) => {}
            (State::Seen, _) => {
                record.fingerprint = Some(found);
                self.settle(spec, key, record, records);
            }
            (State::Settled | State::Failed, _) => {
                if !is_known {
                    record.fingerprint = Some(found);
                    record.attempts = 0;
                    self.settle(spec, key, record, records);
                } else if !self.queue.contains(key) {
                    self.queue.push(key.clone(), spec.priority, self.clock.now(), 0);
                }
            }
            (State::Done | State::Quarantined, _) if is_known => {}
            (State::Done | State::Quarantined, OnChange::Reprocess) => {
                record.fingerprint = Some(found);
                record.version += 1;
                record.attempts = 0;
                self.settle(spec, key, record, records);
            }
            (State::Done, OnChange::Quarantine) => {
                record.fingerprint = Some(found);
                let reason = "was changed after it was processed (on_change = \"quarantine\"); its outputs stand".to_owned();
                self.quarantine(key, record, reason, records);
            }
            (State::Done, OnChange::Ignore) | (State::Quarantined, OnChange::Ignore | OnChange::Quarantine) => {}
        }
    }

    /// Into the queue, or into quarantine when its outputs belong to another input.
    pub(super) fn settle(&mut self, spec: &WatchSpec, key: &Key, mut record: Record, records: &mut Vec<(Key, Record)>) {
        let Ok(relpath) = std::str::from_utf8(key.relpath()) else {
            let reason = "its name is not UTF-8: rename it".to_owned();
            return self.quarantine(key, record, reason, records);
        };
        let outputs = match outputs_of(spec, relpath) {
            Ok(outputs) => outputs,
            Err(reason) => return self.quarantine(key, record, reason, records),
        };
        let is_served = |watch: &str| self.watches.get(watch).is_some();
        if let Some((output, other)) = self.inputs.taken(key, &outputs, is_served) {
            let other = other.name();
            let reason = format!("its output {output} is that of another input, {other:?}: rename one of them");
            record.outputs.clear();
            return self.quarantine(key, record, reason, records);
        }
        if record.state == State::Quarantined {
            self.take_back(key, &record, spec);
        }
        record.state = State::Settled;
        record.reason = None;
        record.outputs = outputs;
        record.config_hash.clone_from(&spec.config_hash);
        record.settled_ms = Some(self.clock.wall_ms());
        record.ended_ms = None;
        (record.effect, record.hook, record.interrupted) = (None, false, 0);
        self.queue.push(key.clone(), spec.priority, self.clock.now(), 0);
        self.emit(&Event::InputSettled(&record));
        self.inputs.put_later(key, &record, records);
    }

    /// Given up, with a reason; nobody else is touched.
    pub(super) fn quarantine(&mut self, key: &Key, mut record: Record, reason: String, records: &mut Vec<(Key, Record)>) {
        self.queue.remove(key);
        record.state = State::Quarantined;
        record.reason = Some(reason);
        record.ended_ms = Some(self.clock.wall_ms());
        record.effect = Some(Effect::Quarantine);
        record.hook = self.spec.on_failed.is_some();
        self.tally.quarantined += 1;
        self.emit(&Event::InputQuarantined(&record));
        self.inputs.put_later(key, &record, records);
        self.follow_up(key, &record);
    }

    /// Inputs that are not in their directories any more. Whatever waits for them is dropped; what was processed stays in
    /// the ledger for a while.
    fn went(&mut self, gone: &[Key]) {
        let mut removed = Vec::new();
        for key in gone {
            let Some(state) = self.inputs.went(key) else { continue };
            if state == State::Seen || (is_open(state) && state != State::Running) {
                self.queue.remove(key);
                if let Some(record) = self.inputs.get(key) {
                    self.emit(&Event::InputGone(&record));
                }
                removed.push(key.clone());
            }
        }
        self.inputs.remove(&removed);
    }
}

/// The same version: times don't count where content does, but then the hash is of content on both sides.
fn same_version(a: &Fingerprint, b: &Fingerprint) -> bool {
    effects::same(a, b, false)
}

/// Where all outputs of an input will stand.
fn outputs_of(spec: &WatchSpec, relpath: &str) -> Result<Vec<String>, String> {
    if !spec.job.has_other_outputs {
        return Ok(vec![output_text(&spec.output_of(relpath))]);
    }
    let job = spec
        .job
        .fill(&spec.filling(relpath))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    Ok(job.outputs.iter().map(|o| output_text(&job::plain(&o.path))).collect())
}
