//! One thread per watched directory: scans it, follows what is not complete yet, and tells the service what changed.
//!
//! Scanning is the truth; events of the system only shorten the wait for the next scan (they get lost in new folders, in
//! full queues and on network file systems). Each watch has a thread of its own, so a hanging mount holds up nobody else.
//! Scanning takes at most about a tenth of a thread's time, a third while something happens: after a long scan the next one
//! comes later.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecursiveMode, Watcher};
use sha2::{Digest, Sha256};

use super::clock::Clock;
use super::manifest;
use super::scan::{self, Entry, Fingerprint, Kind};
use super::settle::{Pending, Standing};
use crate::config::service::WatchSpec;

/// What is complete is looked into again at least this often, to see whether it was changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Events come in bursts; one scan for all of them.
const BURST: Duration = Duration::from_millis(20);
/// What changed so recently is waited for by a service that ends when nothing is left.
const MOVING: Duration = Duration::from_secs(2);
/// Entries told in one message.
const PART: usize = 4096;

/// What a scan found out.
#[derive(Debug)]
pub enum News {
    /// An entry that is not complete.
    Seen(Vec<u8>),
    /// A version is complete.
    Complete(Vec<u8>, Fingerprint),
    /// It was complete, and is something else now.
    Changed(Vec<u8>),
    /// It never will be complete.
    Refused(Vec<u8>, Fingerprint, String),
    /// It stays incomplete for so long that somebody should look.
    Stalled(Vec<u8>, String),
    /// It is not there any more.
    Gone(Vec<u8>),
}

#[derive(Debug)]
pub struct Report {
    pub watch: String,
    /// Which run of the watch's thread: a reload starts a new one.
    pub generation: u64,
    pub news: Vec<News>,
    /// The directory could not be read: nothing is known, nothing is concluded.
    pub error: Option<String>,
    /// Entries that are incomplete and may become complete by waiting.
    pub settling: u64,
    pub incomplete: u64,
    pub stalled: u64,
    pub present: u64,
    /// When the scan began.
    pub began: Duration,
    pub took: Duration,
    /// The last part of a scan.
    pub is_last: bool,
}

/// What a watch's thread needs.
pub struct Setting {
    pub spec: Arc<WatchSpec>,
    pub excluded: Vec<PathBuf>,
    pub generation: u64,
    pub clock: Arc<dyn Clock>,
    pub stop: Arc<AtomicBool>,
    /// Entries that are to be told anew, complete or not.
    pub forget: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Starts the thread; it ends soon after `stop` is set or when nobody listens.
pub fn start<T: Send + 'static>(
    setting: Setting,
    told: Sender<T>,
    wrap: impl Fn(Report) -> T + Send + 'static,
) -> std::io::Result<()> {
    let name = format!("watch-{}", setting.spec.name);
    std::thread::Builder::new().name(name).spawn(move || run(&setting, &told, &wrap)).map(drop)
}

fn run<T>(setting: &Setting, told: &Sender<T>, wrap: &dyn Fn(Report) -> T) {
    let mut following = Following { pending: HashMap::new(), looked: None, interval: LOOK_AGAIN };
    let mut hints = Hints::default();
    while !setting.stop.load(Ordering::Relaxed) {
        hints.start(&setting.spec);
        let mut report = following.scan(setting);
        report.took = setting.clock.now().saturating_sub(report.began);
        if report.error.is_some() {
            // The directory may come back as another one.
            hints = Hints::default();
        }
        let (wait, took) = (following.wait(setting, report.took), report.took);
        let mut news = std::mem::take(&mut report.news).into_iter().peekable();
        loop {
            let part: Vec<News> = news.by_ref().take(PART).collect();
            let is_last = news.peek().is_none();
            let report = Report { news: part, is_last, error: report.error.clone(), watch: report.watch.clone(), ..report };
            if told.send(wrap(report)).is_err() {
                return;
            }
            if is_last {
                break;
            }
        }
        hints.wait(took * 2, wait, &setting.stop);
    }
}

/// The entries of one watch, from scan to scan.
struct Following {
    pending: HashMap<Vec<u8>, Tracked>,
    /// When complete folders were last looked into, and how long until it is done again.
    looked: Option<Duration>,
    interval: Duration,
}

struct Tracked {
    pending: Pending,
    own: (u64, i64, i64),
    is_stalled: bool,
    is_refused: bool,
    generation: u64,
    more: Option<Duration>,
}

impl Following {
    fn scan(&mut self, setting: &Setting) -> Report {
        let spec = &setting.spec;
        let mut report = Report {
            watch: spec.name.clone(),
            generation: setting.generation,
            news: Vec::new(),
            error: None,
            settling: 0,
            incomplete: 0,
            stalled: 0,
            present: 0,
            began: setting.clock.now(),
            took: Duration::ZERO,
            is_last: true,
        };
        // Taken before the directory is read: what is asked for now is told by this scan.
        for relpath in setting.forget.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(tracked) = self.pending.get_mut(&relpath) {
                tracked.pending.told = None;
                tracked.is_refused = false;
            }
        }
        let entries = match scan::entries(spec, &setting.excluded) {
            Ok(entries) => entries,
            Err(error) => {
                report.error = Some(format!("{}: {error}", spec.directory.display()));
                return report;
            }
        };
        let now = setting.clock.now();
        let look_into_all = self.looked.is_none_or(|at| now.saturating_sub(at) >= self.interval);
        let round = self.pending.values().map(|t| t.generation).max().unwrap_or(0) + 1;
        for entry in &entries {
            self.follow(setting, entry, look_into_all, round, &mut report);
        }
        if look_into_all {
            let after = setting.clock.now();
            self.looked = Some(after);
            self.interval = LOOK_AGAIN.max(after.saturating_sub(now) * 20);
        }
        self.pending.retain(|relpath, tracked| {
            if tracked.generation != round {
                report.news.push(News::Gone(relpath.clone()));
            }
            tracked.generation == round
        });
        report.present = self.pending.len() as u64;
        report
    }

    fn follow(&mut self, setting: &Setting, entry: &Entry, look_into_all: bool, round: u64, report: &mut Report) {
        let spec = &setting.spec;
        let path = scan::place(&spec.directory, &entry.relpath);
        if let Some(tracked) = self.pending.get_mut(&entry.relpath) {
            tracked.generation = round;
            // A folder that was told as complete and was not touched at its top is looked into less often.
            let is_told = tracked.pending.told == Some(tracked.pending.fingerprint);
            if is_told && tracked.own == entry.own && (entry.kind != Kind::Folder || !look_into_all) {
                return;
            }
            tracked.own = entry.own;
        }
        let fingerprint = match scan::fingerprint(&path) {
            Ok(fingerprint) => fingerprint,
            // Gone since the directory was listed: the next scan says so.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                report.incomplete += 1;
                tracing::warn!(watch = %spec.name, path = ?path, %error, "an entry could not be looked at");
                return;
            }
        };
        // Seen at the time after it was read: whatever changes later is later.
        let now = setting.clock.now();
        let tracked = self.pending.entry(entry.relpath.clone()).or_insert_with(|| {
            report.news.push(News::Seen(entry.relpath.clone()));
            let pending = Pending::new(fingerprint, now);
            Tracked { pending, own: entry.own, is_stalled: false, is_refused: false, generation: round, more: None }
        });
        let was_told = tracked.pending.told == Some(tracked.pending.fingerprint);
        if was_told && fingerprint != tracked.pending.fingerprint {
            report.news.push(News::Changed(entry.relpath.clone()));
            (tracked.is_stalled, tracked.is_refused) = (false, false);
        }
        tracked.pending.observe(fingerprint, now);
        if tracked.pending.told == Some(fingerprint) {
            return;
        }
        let standing = tracked.pending.standing(spec, entry, &path, now);
        tracked.more = None;
        match standing {
            Standing::Complete => match told(spec, &path, &mut tracked.pending) {
                Some(version) => {
                    tracked.pending.told = Some(fingerprint);
                    tracked.is_stalled = false;
                    report.news.push(News::Complete(entry.relpath.clone(), version));
                }
                None => report.incomplete += 1,
            },
            Standing::Refused(reason) => {
                if !tracked.is_refused {
                    tracked.is_refused = true;
                    report.news.push(News::Refused(entry.relpath.clone(), fingerprint, reason));
                }
            }
            Standing::Incomplete { why, more } => {
                report.incomplete += 1;
                // Without a settling time of its own, something that was just touched is still being written.
                let is_moving = now.saturating_sub(tracked.pending.unchanged_since) < MOVING;
                report.settling += u64::from(more.is_some() || is_moving);
                tracked.more = more;
                if now.saturating_sub(tracked.pending.first_seen) >= spec.stalled_after {
                    report.stalled += 1;
                    if !tracked.is_stalled {
                        tracked.is_stalled = true;
                        report.news.push(News::Stalled(entry.relpath.clone(), why));
                    }
                }
            }
        }
    }

    /// How long until the next scan.
    fn wait(&self, setting: &Setting, took: Duration) -> Duration {
        let more = self.pending.values().filter_map(|t| t.more).min();
        let poll = more.map_or(setting.spec.poll, |more| more.min(setting.spec.poll));
        poll.max(took * 10).max(Duration::from_millis(10))
    }
}

/// The version as the ledger knows it: with `identity = "content"` times don't count, content does. `None` when it was
/// changed while it was read.
fn told(spec: &WatchSpec, path: &std::path::Path, pending: &mut Pending) -> Option<Fingerprint> {
    let now = pending.fingerprint;
    if !spec.content {
        return Some(now);
    }
    if let Some((of, hash)) = pending.content.filter(|(of, _)| *of == now) {
        return Some(Fingerprint { hash, ..of });
    }
    let hash = content(path).ok()?;
    if scan::fingerprint(path).ok()? != now {
        return None;
    }
    pending.content = Some((now, hash));
    Some(Fingerprint { hash, ..now })
}

/// The first eight bytes of a SHA-256 over names and content of a tree.
pub fn content(path: &std::path::Path) -> std::io::Result<u64> {
    fn visit(path: &std::path::Path, digest: &mut Sha256) -> std::io::Result<()> {
        let metadata = std::fs::symlink_metadata(path)?;
        if metadata.is_dir() {
            let mut names: Vec<_> = std::fs::read_dir(path)?.map(|e| e.map(|e| e.file_name())).collect::<Result<_, _>>()?;
            names.sort();
            for name in names {
                digest.update(std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()));
                digest.update([0]);
                visit(&path.join(name), digest)?;
            }
        } else if metadata.is_file() {
            digest.update(metadata.len().to_le_bytes());
            manifest::feed(path, digest)?;
        }
        Ok(())
    }
    let mut digest = Sha256::new();
    visit(path, &mut digest)?;
    let bytes = digest.finalize();
    Ok(bytes.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// The system's word that something happened below a directory.
#[derive(Default)]
struct Hints {
    watcher: Option<notify::RecommendedWatcher>,
    heard: Option<Receiver<()>>,
    is_refused: bool,
}

impl Hints {
    /// Listens, if it can; a directory that is not there is tried again with each scan.
    fn start(&mut self, spec: &WatchSpec) {
        if self.watcher.is_some() || self.is_refused || !spec.events {
            return;
        }
        // One place is enough: it only says that something happened. The handler never waits.
        let (tell, heard) = flume::bounded(1);
        let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Our own scans open folders: that is no news.
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = tell.try_send(());
            }
        });
        // Folders inside of inputs are not listened to: a store has thousands of them.
        let mode = if spec.pattern.depth == Some(1) { RecursiveMode::NonRecursive } else { RecursiveMode::Recursive };
        let started = made.and_then(|mut watcher| watcher.watch(&spec.directory, mode).map(|()| watcher));
        match started {
            Ok(watcher) => (self.watcher, self.heard) = (Some(watcher), Some(heard)),
            Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => {}
            Err(error) => {
                self.is_refused = true;
                tracing::warn!(watch = %spec.name, %error, "no events of the system here; the directory is polled");
            }
        }
    }

    /// Waits until something is heard, but `at_least` and `at_most` so long.
    fn wait(&self, at_least: Duration, at_most: Duration, stop: &AtomicBool) {
        let since = Instant::now();
        let mut until = since + at_most;
        let mut is_heard = false;
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let slice = left.min(Duration::from_millis(200));
            match &self.heard {
                Some(heard) if !is_heard => match heard.recv_timeout(slice) {
                    Ok(()) => {
                        is_heard = true;
                        until = until.min(Instant::now().max(since + at_least) + BURST);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(slice),
                },
                _ => std::thread::sleep(slice),
            }
        }
    }
}

/// Whether an event says that something was changed, not only looked at.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}
