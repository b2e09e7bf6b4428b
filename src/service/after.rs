//! The thread that carries out what follows a job, and the manager's side of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use flume::Sender;

use super::effects::{self, Removal};
use super::events::Event;
use super::manager::{Manager, Message};
use super::quarantine;
use super::record::{Effect, Key, Record, State};
use super::scan;

/// What failed is tried again after this.
const AGAIN: Duration = Duration::from_secs(30);

/// One input's follow-up.
#[derive(Clone)]
pub struct Task {
    key: Key,
    record: Record,
    input: PathBuf,
    directory: PathBuf,
    content: bool,
    quarantine: PathBuf,
    moves: bool,
    hook: Option<Vec<String>>,
}

pub struct AfterEnded {
    task: Box<Task>,
    effect: Result<&'static str, String>,
    hook: Result<(), String>,
}

/// Tasks that are on their way, and those that wait for another try.
pub struct After {
    to: Sender<Task>,
    open: usize,
    waiting: HashMap<Key, (Duration, Task)>,
}

impl After {
    pub fn start(tell: Sender<Message>) -> std::io::Result<Self> {
        let (to, tasks) = flume::unbounded::<Task>();
        std::thread::Builder::new().name("after".to_owned()).spawn(move || {
            for task in tasks {
                let ended = work(task);
                if tell.send(Message::AfterEnded(ended)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { to, open: 0, waiting: HashMap::new() })
    }

    /// Nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    fn send(&mut self, task: Task) {
        self.waiting.remove(&task.key);
        if self.to.send(task).is_ok() {
            self.open += 1;
        }
    }

    pub fn retry(&mut self, now: Duration) {
        let due: Vec<Key> = self.waiting.iter().filter(|(_, (at, _))| *at <= now).map(|(k, _)| k.clone()).collect();
        for key in due {
            if let Some((_, task)) = self.waiting.remove(&key) {
                self.send(task);
            }
        }
    }
}

fn work(task: Task) -> AfterEnded {
    let guarded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| effect(&task)));
    let effect = guarded.unwrap_or_else(|_| Err("panicked; please report this".to_owned()));
    let hook = match &task.hook {
        Some(command) => effects::tell(command, &task.record.to_json()),
        None => Ok(()),
    };
    AfterEnded { task: Box::new(task), effect, hook }
}

fn effect(task: &Task) -> Result<&'static str, String> {
    let wrong = |e: std::io::Error| e.to_string();
    let (Some(effect), Some(fingerprint)) = (&task.record.effect, task.record.fingerprint) else { return Ok("") };
    match effect {
        Effect::Quarantine => {
            quarantine::put(&task.quarantine, &task.record, &task.input, task.moves).map(|()| "").map_err(wrong)
        }
        Effect::Archive(_) | Effect::Delete => {
            let removal = Removal {
                directory: task.directory.clone(),
                input: task.input.clone(),
                id: task.record.id,
                fingerprint,
                content: task.content,
                effect: effect.clone(),
            };
            match (effects::remove(&removal).map_err(wrong)?, effect) {
                (false, _) => Ok("left alone: it is another version by now"),
                (true, Effect::Delete) => Ok("deleted"),
                (true, _) => Ok("archived"),
            }
        }
    }
}

impl Manager {
    /// Hands on what a record says is still to be done.
    pub(super) fn follow_up(&mut self, key: &Key, record: &Record) {
        if record.effect.is_none() && !record.hook {
            return;
        }
        let Some(watch) = self.watches.get(key.watch()) else { return };
        let hook = match record.state {
            _ if !record.hook => None,
            State::Done => self.spec.on_done.clone(),
            _ => self.spec.on_failed.clone(),
        };
        let task = Task {
            key: key.clone(),
            record: record.clone(),
            input: scan::place(&watch.spec.directory, key.relpath()),
            directory: watch.spec.directory.clone(),
            content: watch.spec.content,
            quarantine: self.spec.quarantine.clone(),
            moves: self.spec.quarantine_move,
            hook,
        };
        self.after.send(task);
    }

    pub(super) fn after_ended(&mut self, ended: AfterEnded) {
        self.after.open -= 1;
        let AfterEnded { mut task, effect, hook } = ended;
        if let Err(error) = &hook {
            self.emit(&Event::HookFailed { record: &task.record, error });
        }
        match &effect {
            Ok("") => {}
            Ok(what) => self.emit(&Event::AfterDone { record: &task.record, what }),
            Err(error) if task.record.effect == Some(Effect::Quarantine) => {
                self.emit(&Event::QuarantineFailed { record: &task.record, error });
            }
            Err(error) => self.emit(&Event::AfterFailed { record: &task.record, error }),
        }
        let Some(mut record) = self.inputs.get(&task.key) else { return };
        // A newer version has intents of its own.
        if record.state != task.record.state || record.ended_ms != task.record.ended_ms {
            return;
        }
        record.hook = false;
        if effect.is_ok() {
            record.effect = None;
        } else {
            task.hook = None;
            let at = self.clock.now() + AGAIN;
            self.after.waiting.insert(task.key.clone(), (at, *task.clone()));
        }
        self.inputs.put(&task.key, &record);
    }

    /// Undoes a quarantine: the record goes, a moved input comes back.
    pub(super) fn take_back(&self, key: &Key, record: &Record, spec: &crate::config::service::WatchSpec) {
        let input = scan::place(&spec.directory, key.relpath());
        if let Err(error) = quarantine::take_back(&self.spec.quarantine, record, &input) {
            self.emit(&Event::QuarantineFailed { record, error: &error.to_string() });
        }
    }
}
