//! What people ask of a service: try again, reload, stop.

use serde_json::{Value, json};

use super::events::Event;
use super::inputs::is_open;
use super::ledger::{Change, Ledger, LedgerError};
use super::manager::Manager;
use super::quarantine;
use super::record::{Key, Record, State};
use super::scan;
use crate::config::service::{ServiceSpec, WatchSpec};

/// Which inputs are to be processed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// By name, `WATCH/NAME` or number.
    Named(String),
    /// Everything that failed or was given up.
    All,
    /// Everything that was processed under another job file or output than today's.
    Changed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Requeue(Which),
    Reload,
    Drain,
}

impl Which {
    /// The records of a ledger that are meant.
    fn of<'w>(
        &self,
        ledger: &Ledger,
        watch_of: impl Fn(&Key) -> Option<&'w WatchSpec>,
    ) -> Result<Vec<(Key, Record)>, LedgerError> {
        ledger.fold(Vec::new, |list, key, record| {
            if self.takes(&record, watch_of(&key)) {
                list.push((key, record));
            }
        })
    }

    fn takes(&self, record: &Record, watch: Option<&WatchSpec>) -> bool {
        match self {
            Which::Named(name) => {
                let full = record.name.strip_suffix(name.as_str()).is_some_and(str::is_empty);
                full || name.strip_prefix(&record.watch).and_then(|n| n.strip_prefix('/')) == Some(&record.name)
                    || name.parse() == Ok(record.id)
            }
            Which::All => matches!(record.state, State::Quarantined | State::Failed),
            Which::Changed => {
                let is_over = matches!(record.state, State::Done | State::Quarantined);
                is_over && watch.is_some_and(|w| w.config_hash != record.config_hash)
            }
        }
    }
}

/// Puts a record back to its beginning; the reason when that can't be.
fn restart(record: &mut Record, key: &Key, spec: &ServiceSpec, watch: Option<&WatchSpec>) -> Result<(), String> {
    let watch = watch.ok_or_else(|| format!("the service has no watch \"{}\" any more", record.watch))?;
    if record.state == State::Running {
        return Err("it is running".to_owned());
    }
    let input = scan::place(&watch.directory, key.relpath());
    if record.state == State::Quarantined {
        quarantine::take_back(&spec.quarantine, record, &input).map_err(|e| format!("its quarantine record: {e}"))?;
    }
    if std::fs::symlink_metadata(&input).is_err() {
        return Err(format!("{} is not there any more", input.display()));
    }
    record.state = State::Seen;
    record.reason = Some("requeued".to_owned());
    (record.attempts, record.interrupted) = (0, 0);
    (record.effect, record.hook) = (None, false);
    Ok(())
}

fn answer(requeued: &[String], refused: &[String], which: &Which) -> Value {
    let mut value = json!({ "requeued": requeued, "refused": refused });
    if let (Which::Named(name), true) = (which, requeued.is_empty() && refused.is_empty()) {
        value["error"] = json!(format!("there is no input called {name:?} in the ledger; `halostream status` lists them"));
    }
    value
}

/// Requeues in the ledger of a service that does not run.
pub fn requeue_offline(spec: &ServiceSpec, ledger: &Ledger, which: &Which) -> Result<Value, LedgerError> {
    let (mut requeued, mut refused, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    let watch_of = |key: &Key| spec.watches.iter().find(|w| w.name == key.watch()).map(AsRef::as_ref);
    for (key, mut record) in which.of(ledger, watch_of)? {
        let watch = watch_of(&key);
        // Nothing runs: what the ledger has as running was interrupted, and goes on by itself.
        match restart(&mut record, &key, spec, watch) {
            Ok(()) => {
                requeued.push(record.name.clone());
                changes.push(Change::Put(key, Box::new(record)));
            }
            Err(why) => refused.push(format!("{}: {why}", record.name)),
        }
    }
    ledger.commit(&changes)?;
    Ok(answer(&requeued, &refused, which))
}

impl Manager {
    pub(super) fn command(&mut self, command: Command) -> Value {
        match command {
            Command::Requeue(which) => self.requeue(&which),
            Command::Reload => {
                self.reload(true);
                let error = self.files.error();
                json!({ "reloaded": error.is_none(), "error": error })
            }
            Command::Drain => {
                let _ = self.tell.send(super::manager::Message::Signal(libc::SIGTERM));
                json!({ "draining": true })
            }
        }
    }

    fn requeue(&mut self, which: &Which) -> Value {
        let asked = which.of(&self.inputs.ledger, |key| Some(self.watches.get(key.watch())?.spec.as_ref()));
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => return json!({ "error": error.to_string(), "requeued": [], "refused": [] }),
        };
        let spec = self.spec.clone();
        let (mut requeued, mut refused, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (key, mut record) in asked {
            let watch = self.watches.get(key.watch()).map(|w| w.spec.clone());
            match restart(&mut record, &key, &spec, watch.as_deref()) {
                Ok(()) => {
                    self.queue.remove(&key);
                    self.emit(&Event::InputRequeued(&record));
                    requeued.push(record.name.clone());
                    self.inputs.put_later(&key, &record, &mut records);
                    self.watches.forget(key.watch(), key.relpath());
                }
                Err(why) => refused.push(format!("{}: {why}", record.name)),
            }
        }
        self.inputs.write(records);
        self.last_change = self.clock.now();
        answer(&requeued, &refused, which)
    }

    /// Inputs that wait under an older configuration get the outputs of the new one.
    pub(super) fn settle_again(&mut self) {
        let waiting: Vec<Key> = self
            .inputs
            .iter()
            .filter(|(_, slim)| is_open(slim.state) && slim.state != State::Running)
            .map(|(key, _)| key.clone())
            .collect();
        let mut records = Vec::new();
        for key in waiting {
            let Some(watch) = self.watches.get(key.watch()).map(|w| w.spec.clone()) else {
                self.queue.remove(&key);
                continue;
            };
            let Some(record) = self.inputs.get(&key) else { continue };
            if record.config_hash != watch.config_hash || !self.queue.contains(&key) {
                self.settle(&watch, &key, record, &mut records);
            }
        }
        self.inputs.write(records);
    }
}
