//! The watches' threads as the manager sees them: which run, what their last scan said.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flume::Sender;

use super::clock::Clock;
use super::manager::Message;
use super::watch::{self, Report, Setting};
use crate::config::service::{After, ServiceSpec, WatchSpec};

pub struct Watch {
    pub spec: Arc<WatchSpec>,
    generation: u64,
    /// What the thread goes by; the same text after a reload leaves it running.
    signature: String,
    stop: Arc<AtomicBool>,
    forget: Arc<Mutex<Vec<Vec<u8>>>>,
    /// When the last whole scan began.
    pub scanned: Option<Duration>,
    pub error: Option<String>,
    pub settling: u64,
    pub incomplete: u64,
    pub stalled: u64,
    pub present: u64,
}

#[derive(Default)]
pub struct Watches {
    list: BTreeMap<String, Watch>,
    generations: u64,
}

impl Watches {
    /// Starts threads for what is new, ends those of what is gone, lets the others be. Says what it did.
    pub fn follow(&mut self, spec: &ServiceSpec, clock: &Arc<dyn Clock>, tell: &Sender<Message>) -> std::io::Result<String> {
        let mut changes = Vec::new();
        let names: Vec<&str> = spec.watches.iter().map(|w| w.name.as_str()).collect();
        self.list.retain(|name, watch| {
            let stays = names.contains(&name.as_str());
            if !stays {
                watch.stop.store(true, Ordering::Relaxed);
                changes.push(format!("-{name}"));
            }
            stays
        });
        let excluded = excluded(spec);
        for new in &spec.watches {
            let signature = signature(new, &excluded);
            if let Some(old) = self.list.get_mut(&new.name) {
                if old.spec.config_hash != new.config_hash || old.signature != signature {
                    changes.push(format!("~{}", new.name));
                }
                old.spec = new.clone();
                if old.signature == signature {
                    continue;
                }
                old.stop.store(true, Ordering::Relaxed);
            } else {
                changes.push(format!("+{}", new.name));
            }
            self.generations += 1;
            let watch = Watch {
                spec: new.clone(),
                generation: self.generations,
                signature,
                stop: Arc::default(),
                forget: Arc::default(),
                scanned: None,
                error: None,
                settling: 0,
                incomplete: 0,
                stalled: 0,
                present: 0,
            };
            let setting = Setting {
                spec: new.clone(),
                excluded: excluded.clone(),
                generation: watch.generation,
                clock: clock.clone(),
                stop: watch.stop.clone(),
                forget: watch.forget.clone(),
            };
            watch::start(setting, tell.clone(), Message::Scanned)?;
            self.list.insert(new.name.clone(), watch);
        }
        Ok(if changes.is_empty() { "no watch changed".to_owned() } else { changes.join(" ") })
    }

    pub fn get(&self, name: &str) -> Option<&Watch> {
        self.list.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Watch> {
        self.list.values()
    }

    /// The watch that a report is of; `None` for one of a thread that was told to end.
    pub fn reported(&mut self, report: &Report) -> Option<&mut Watch> {
        self.list.get_mut(&report.watch).filter(|w| w.generation == report.generation)
    }

    /// Has an entry told anew, complete or not.
    pub fn forget(&self, watch: &str, relpath: &[u8]) {
        if let Some(watch) = self.list.get(watch) {
            watch.forget.lock().unwrap_or_else(PoisonError::into_inner).push(relpath.to_vec());
        }
    }

    /// True when the directory could be read last time.
    pub fn is_up(&self, name: &str) -> bool {
        self.list.get(name).is_some_and(|w| w.scanned.is_some() && w.error.is_none())
    }

    /// Every directory was looked at.
    pub fn are_scanned(&self) -> bool {
        self.list.values().all(|w| w.scanned.is_some())
    }

    /// Every directory was looked at since `moment`, and nothing in them is about to become complete.
    pub fn are_quiet(&self, moment: Duration) -> bool {
        let is_quiet = |w: &Watch| w.scanned.is_some_and(|at| at > moment) && w.settling == 0 && lock_is_empty(w);
        self.list.values().all(is_quiet)
    }

    pub fn stop(&self) {
        self.list.values().for_each(|w| w.stop.store(true, Ordering::Relaxed));
    }
}

fn lock_is_empty(watch: &Watch) -> bool {
    watch.forget.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Folders of the service that may lie in a watched directory.
fn excluded(spec: &ServiceSpec) -> Vec<PathBuf> {
    let mut list = vec![spec.state.clone(), spec.quarantine.clone()];
    list.extend(spec.watches.iter().filter_map(|w| match &w.after {
        After::Archive(to) => Some(to.clone()),
        After::Keep | After::Delete => None,
    }));
    list
}

fn signature(spec: &WatchSpec, excluded: &[PathBuf]) -> String {
    let ignore: Vec<&str> = spec.ignore.iter().map(glob::Pattern::as_str).collect();
    let times = (spec.poll, spec.stalled_after, spec.events, spec.content, spec.job.fills_missing);
    format!("{:?}", (&spec.directory, &spec.pattern.text, &spec.complete, ignore, times, excluded))
}
