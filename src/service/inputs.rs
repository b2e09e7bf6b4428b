//! All inputs the service knows: the ledger on disk and a slim index of it in memory (some hundred bytes per input, so that
//! a process that ran for months stays small).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::events::{Event, Reporter};
use super::ledger::{Change, Ledger, LedgerError};
use super::record::{Key, Record, State};
use super::scan::Fingerprint;

/// What is in memory of an input.
#[derive(Clone, Debug)]
pub struct Slim {
    pub id: u64,
    pub state: State,
    pub fingerprint: Option<Fingerprint>,
    /// The version that the watch last told as complete; `None` while it is not.
    pub latest: Option<Fingerprint>,
    /// It is in its directory.
    pub present: bool,
    pub ended_ms: i64,
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
    /// Which input an output belongs to, by the first bytes of the path's SHA-256.
    claims: HashMap<u64, u64>,
    counts: BTreeMap<(String, State), i64>,
    next_id: u64,
    reporter: Arc<Reporter>,
}

fn claim_of(output: &str) -> u64 {
    Sha256::digest(output.as_bytes()).iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

impl Inputs {
    pub fn load(ledger: Arc<Ledger>, reporter: Arc<Reporter>) -> Result<(Self, Vec<(Key, Record)>), LedgerError> {
        let next_id = ledger.next_id()?;
        let mut inputs =
            Self { ledger, index: HashMap::new(), claims: HashMap::new(), counts: BTreeMap::new(), next_id, reporter };
        let mut open = Vec::new();
        for (key, record) in inputs.ledger.all()? {
            inputs.note(&key, &record);
            if record.state != State::Seen && (record.effect.is_some() || record.hook || is_open(record.state)) {
                open.push((key, record));
            }
        }
        // Those that were running go first.
        open.sort_by_key(|(_, r)| (r.state != State::Running, r.settled_ms, r.id));
        Ok((inputs, open))
    }

    /// Takes a record into the index.
    fn note(&mut self, key: &Key, record: &Record) {
        let slim = Slim {
            id: record.id,
            state: record.state,
            fingerprint: record.fingerprint,
            latest: None,
            present: false,
            ended_ms: record.ended_ms.unwrap_or(0),
            place_failures: 0,
            claims: record.outputs.iter().map(|o| claim_of(o)).collect(),
        };
        if let Some(old) = self.index.get(key) {
            for claim in &old.claims {
                self.claims.remove(claim);
            }
        }
        self.claims.extend(slim.claims.iter().map(|claim| (*claim, record.id)));
        match self.index.get_mut(key) {
            Some(old) => {
                *self.counts.entry((record.watch.clone(), old.state)).or_insert(0) -= 1;
                *old = Slim { latest: old.latest, present: old.present, place_failures: old.place_failures, ..slim };
            }
            None => {
                self.index.insert(key.clone(), slim);
            }
        }
        *self.counts.entry((record.watch.clone(), record.state)).or_insert(0) += 1;
    }

    pub fn slim(&self, key: &Key) -> Option<&Slim> {
        self.index.get(key)
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

    /// A record for an input that was never seen.
    pub fn fresh(&mut self, key: &Key, wall_ms: i64) -> Record {
        let id = self.next_id;
        self.next_id += 1;
        Record::new(key, id, wall_ms)
    }

    /// The record of an input; a ledger that can't be read counts as one without it, and is reported.
    pub fn get(&self, key: &Key) -> Option<Record> {
        match self.ledger.get(key) {
            Ok(found) => found,
            Err(error) => {
                self.reporter.emit(&Event::LedgerFailed { error: &error.to_string() }, 0);
                None
            }
        }
    }

    /// Writes records that were noted, all or none. A ledger that can't be written holds the service up until it can: nothing may happen
    /// that is not noted.
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
            let Some(slim) = self.index.remove(key) else { continue };
            *self.counts.entry((key.watch().to_owned(), slim.state)).or_insert(0) -= 1;
            for claim in &slim.claims {
                self.claims.remove(claim);
            }
            changes.push(Change::Remove(key.clone(), slim.id));
        }
        self.commit(changes);
    }

    fn commit(&self, changes: Vec<Change>) {
        let mut pause = Duration::from_millis(100);
        while let Err(error) = self.ledger.commit(&changes) {
            self.reporter.emit(&Event::LedgerFailed { error: &error.to_string() }, 0);
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(10));
        }
    }

    /// The first of an input's outputs that another input has, with that input's number.
    pub fn taken(&self, id: u64, outputs: &[String]) -> Option<(String, u64)> {
        outputs.iter().find_map(|output| {
            let holder = *self.claims.get(&claim_of(output))?;
            (holder != id).then(|| (output.clone(), holder))
        })
    }

    /// The name of an input by its number.
    pub fn name_of(&self, id: u64) -> String {
        self.ledger.by_id(id).ok().flatten().map_or_else(|| format!("number {id}"), |(_, r)| r.name)
    }
}

/// States with something left to do.
pub fn is_open(state: State) -> bool {
    matches!(state, State::Settled | State::Running | State::Failed)
}

/// An output's path as claims and records have it.
pub fn output_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
