//! The configuration while the service runs: files that changed are read anew, checked as a whole, and taken only when
//! everything is right. Jobs in flight end under what they started with.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::events::Event;
use super::manager::Manager;
use crate::config::service::{self, ServiceSpec};

/// Files are looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The files a configuration was read from, as they were.
pub struct Files {
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    next: Duration,
    /// Why the files on disk are not what is in use.
    error: Option<String>,
    pub loaded_ms: i64,
}

type Stamp = (u64, u64, i64, i64);

fn stamp(path: &PathBuf) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

impl Files {
    pub fn new(files: &[PathBuf], wall_ms: i64) -> Self {
        let stamps = files.iter().map(|f| (f.clone(), stamp(f))).collect();
        Self { stamps, next: Duration::ZERO, error: None, loaded_ms: wall_ms }
    }

    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// True once after each change of a file.
    fn are_changed(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + LOOK_EVERY;
        let mut is_changed = false;
        for (path, old) in &mut self.stamps {
            let new = stamp(path);
            is_changed |= new != *old;
            *old = new;
        }
        is_changed
    }
}

impl Manager {
    /// Reads the configuration anew when its files changed, or when asked.
    pub(super) fn reload(&mut self, is_asked: bool) {
        if self.draining.is_some() || !(self.files.are_changed(self.clock.now()) || is_asked) {
            return;
        }
        self.notifier.reloading();
        match self.read_again() {
            Ok(spec) if spec.hash == self.spec.hash && self.files.error.is_none() => {
                // Touched, or read twice: a file's time is no news.
            }
            Ok(spec) => self.take(spec),
            Err(reason) => {
                let is_new = self.files.error.as_ref() != Some(&reason);
                self.files.error = Some(reason.clone());
                self.reporter.metrics.config_ok.set(0);
                if is_new || is_asked {
                    self.emit(&Event::ReloadRefused { reason: &reason });
                }
            }
        }
        if self.is_ready {
            self.notifier.tell("READY=1");
        }
    }

    fn read_again(&self) -> Result<ServiceSpec, String> {
        let spec = service::read(&self.spec.path)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let old = &self.spec;
        let fixed = [
            ("state", spec.state != old.state),
            ("listen", spec.listen != old.listen),
            ("token_file", spec.token_file != old.token_file),
        ];
        match fixed.into_iter().find(|(_, is_other)| *is_other) {
            Some((key, _)) => Err(format!("service.{key} can't change while the service runs; restart it")),
            None => Ok(spec),
        }
    }

    fn take(&mut self, spec: ServiceSpec) {
        let spec = Arc::new(spec);
        let changes = match self.watches.follow(&spec, &self.clock, &self.tell) {
            Ok(changes) => changes,
            Err(error) => {
                let reason = format!("a watch could not be started: {error}");
                self.files.error = Some(reason.clone());
                self.reporter.metrics.config_ok.set(0);
                return self.emit(&Event::ReloadRefused { reason: &reason });
            }
        };
        self.spec = spec;
        self.memory = super::memory_limit(&self.spec);
        let error = std::mem::replace(&mut self.files, Files::new(&self.spec.files, self.clock.wall_ms())).error;
        self.reporter.metrics.config_ok.set(1);
        self.last_change = self.clock.now();
        self.settle_again();
        if let Some(error) = error {
            tracing::info!(error, "the configuration that was refused before is right now");
        }
        self.emit(&Event::Reloaded { hash: &self.spec.hash.clone(), changes: &changes });
    }
}
