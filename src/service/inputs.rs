//! All inputs the service knows: the ledger on disk, and in memory a slim index of those that are in their directories or
//! have something left to do (some hundred bytes each). What was processed and is gone costs no memory, so that a process
//! that ran for months stays as small as its inboxes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::events::{Event, Reporter};
use super::ledger::{Change, Ledger, LedgerError, claim_of};
use super::record::{Key, Record, State};
use super::scan::Fingerprint;

/// What is in memory of an input.
#[derive(Clone, Debug)]
pub struct Slim {
    pub state: State,
    pub fingerprint: Option<Fingerprint>,
    /// The version that the watch last told as complete; `None` while it is not.
    pub latest: Option<Fingerprint>,
    /// Which run of its watch's thread has it in its directory; 0: none.
    seen_by: u64,
    /// Attempts that failed because of the output's place, one after the other.
    pub place_failures: u32,
    /// Of its outputs.
    claims: Box<[u64]>,
}

/// News of one input stand together in a report: a change that is not written yet is among the last.
const SAME_REPORT: usize = 4;

pub struct Inputs {
    pub ledger: Arc<Ledger>,
    index: HashMap<Key, Slim>,
    /// Which input of the index an output belongs to; the ledger knows it of the others.
    claims: HashMap<u64, Key>,
    /// Of all records.
    counts: BTreeMap<(String, State), i64>,
    next_id: u64,
    reporter: Arc<Reporter>,
    clock: Arc<dyn Clock>,
}

impl Inputs {
    /// With the records that have something left to do.
    pub fn load(
        ledger: Arc<Ledger>,
        reporter: Arc<Reporter>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<(Key, Record)>), LedgerError> {
        let next_id = ledger.next_id()?;
        let start = || (BTreeMap::new(), Vec::new());
        let (counts, known) = ledger.fold(start, |(counts, known): &mut (BTreeMap<_, _>, Vec<_>), key, record| {
            *counts.entry((record.watch.clone(), record.state)).or_insert(0) += 1;
            if !is_over(record.state) || record.effect.is_some() || record.hook {
                known.push((key, record));
            }
        })?;
        let mut inputs = Self { ledger, index: HashMap::new(), claims: HashMap::new(), counts, next_id, reporter, clock };
        for (key, record) in known.iter().filter(|(_, r)| !is_over(r.state)) {
            inputs.hold(key, record);
        }
        let mut open: Vec<_> = known.into_iter().filter(|(_, r)| r.state != State::Seen).collect();
        // Those that were running go first.
        open.sort_by_key(|(_, r)| (r.state != State::Running, r.settled_ms, r.id));
        Ok((inputs, open))
    }

    /// Takes a record into the index.
    fn hold(&mut self, key: &Key, record: &Record) {
        let mut slim = Slim {
            state: record.state,
            fingerprint: record.fingerprint,
            latest: None,
            seen_by: 0,
            place_failures: 0,
            claims: record.outputs.iter().map(|o| claim_of(o)).collect(),
        };
        if let Some(old) = self.release(key) {
            (slim.latest, slim.seen_by, slim.place_failures) = (old.latest, old.seen_by, old.place_failures);
        }
        self.claims.extend(slim.claims.iter().map(|claim| (*claim, key.clone())));
        self.index.insert(key.clone(), slim);
    }

    /// Takes an input out of the index.
    fn release(&mut self, key: &Key) -> Option<Slim> {
        let slim = self.index.remove(key)?;
        for claim in &slim.claims {
            if self.claims.get(claim) == Some(key) {
                self.claims.remove(claim);
            }
        }
        Some(slim)
    }

    fn count(&mut self, key: &Key, state: State, by: i64) {
        *self.counts.entry((key.watch().to_owned(), state)).or_insert(0) += by;
    }

    /// Takes a change of a record in.
    fn note(&mut self, key: &Key, record: &Record) {
        let before = self.slim(key).map(|s| s.state).or_else(|| self.get(key).map(|r| r.state));
        if let Some(before) = before {
            self.count(key, before, -1);
        }
        self.count(key, record.state, 1);
        self.hold(key, record);
        self.let_go(key);
    }

    /// Forgets what is processed and gone, as far as memory goes.
    fn let_go(&mut self, key: &Key) {
        if self.slim(key).is_some_and(|s| s.seen_by == 0 && is_over(s.state)) {
            self.release(key);
        }
    }

    /// An entry is in its directory, says run `by` of its watch's thread. The record to write when it was never seen.
    pub fn came(&mut self, key: &Key, by: u64) -> Option<Record> {
        let mut fresh = None;
        if self.slim(key).is_none() {
            match self.get(key) {
                Some(known) => self.hold(key, &known),
                None => {
                    let record = Record::new(key, self.next_id, self.clock.wall_ms());
                    self.next_id += 1;
                    self.count(key, record.state, 1);
                    self.hold(key, &record);
                    fresh = Some(record);
                }
            }
        }
        if let Some(slim) = self.slim_mut(key) {
            slim.seen_by = by;
        }
        fresh
    }

    /// An entry is in its directory no more: its state, unless it was known to be gone before.
    pub fn went(&mut self, key: &Key) -> Option<State> {
        let slim = self.slim_mut(key)?;
        (slim.seen_by, slim.latest) = (0, None);
        let state = slim.state;
        self.let_go(key);
        Some(state)
    }

    pub fn slim(&self, key: &Key) -> Option<&Slim> {
        self.index.get(key)
    }

    pub fn is_present(&self, key: &Key) -> bool {
        self.slim(key).is_some_and(|s| s.seen_by != 0)
    }

    /// Entries of a watch that run `by` of its thread has not seen.
    pub fn unseen(&self, watch: &str, by: u64) -> impl Iterator<Item = &Key> {
        self.index.iter().filter(move |(key, slim)| key.watch() == watch && slim.seen_by != by).map(|(key, _)| key)
    }

    pub fn slim_mut(&mut self, key: &Key) -> Option<&mut Slim> {
        self.index.get_mut(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Slim)> {
        self.index.iter()
    }

    pub fn counts(&self) -> &BTreeMap<(String, State), i64> {
        &self.counts
    }

    /// The record of an input. One that holds something else counts as none, and is reported.
    pub fn get(&self, key: &Key) -> Option<Record> {
        self.until_it_works(|| match self.ledger.get(key) {
            Err(error @ LedgerError::Record { .. }) => {
                self.failed(&error);
                Ok(None)
            }
            result => result,
        })
    }

    /// Writes records that were noted, all or none.
    pub fn write(&self, records: Vec<(Key, Record)>) {
        self.commit(records.into_iter().map(|(key, record)| Change::Put(key, Box::new(record))).collect());
    }

    /// Notes and writes one record.
    pub fn put(&mut self, key: &Key, record: &Record) {
        self.note(key, record);
        self.write(vec![(key.clone(), record.clone())]);
    }

    /// Takes a change in now and writes it with the others of a report, in one commit.
    pub fn put_later(&mut self, key: &Key, record: &Record, records: &mut Vec<(Key, Record)>) {
        self.note(key, record);
        records.push((key.clone(), record.clone()));
    }

    /// The record with the changes that are not written yet.
    pub fn current(&self, key: &Key, records: &[(Key, Record)]) -> Option<Record> {
        let unwritten = records.iter().rev().take(SAME_REPORT).find(|(k, _)| k == key);
        unwritten.map(|(_, r)| r.clone()).or_else(|| self.get(key))
    }

    pub fn remove(&mut self, keys: &[Key]) {
        let mut changes = Vec::new();
        for key in keys {
            let Some(record) = self.get(key) else { continue };
            self.count(key, record.state, -1);
            self.release(key);
            changes.push(Change::Remove(key.clone(), record.id));
        }
        self.commit(changes);
    }

    fn commit(&self, changes: Vec<Change>) {
        self.until_it_works(|| self.ledger.commit(&changes));
    }

    /// A ledger that can't be read or written holds the service up until it can: nothing may happen that is not noted, and
    /// nothing that was noted may be missed.
    fn until_it_works<T>(&self, attempt: impl Fn() -> Result<T, LedgerError>) -> T {
        let mut pause = Duration::from_millis(100);
        loop {
            match attempt() {
                Ok(value) => return value,
                Err(error) => self.failed(&error),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(10));
        }
    }

    fn failed(&self, error: &LedgerError) {
        self.reporter.emit(&Event::LedgerFailed { error: &error.to_string() }, self.clock.wall_ms());
    }

    /// The first of an input's outputs that another input has, with that input. Those of watches that are not served (any
    /// more) have none: a watch that was given another name finds its own outputs.
    pub fn taken(&self, key: &Key, outputs: &[String], is_served: impl Fn(&str) -> bool) -> Option<(String, Key)> {
        outputs.iter().find_map(|output| {
            let claim = claim_of(output);
            let holder = match self.claims.get(&claim) {
                Some(holder) => holder.clone(),
                // What the ledger says of an input of the index may be about to change.
                None => self.ledger.claimed(claim).ok().flatten().filter(|holder| !self.index.contains_key(holder))?,
            };
            (holder != *key && is_served(holder.watch())).then(|| (output.clone(), holder))
        })
    }
}

/// States with something left to do.
pub fn is_open(state: State) -> bool {
    matches!(state, State::Settled | State::Running | State::Failed)
}

/// States that nothing leaves by itself.
pub fn is_over(state: State) -> bool {
    matches!(state, State::Done | State::Quarantined)
}

/// An output's path as claims and records have it.
pub fn output_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
