//! The service's ledger: one record per input, in one file that survives a kill at any instant (redb: copy on write, each
//! commit synced).
//!
//! A commit costs one or two waits for the disk (some milliseconds), so what a scan finds is written in one.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use sha2::{Digest, Sha256};

use super::record::{Key, Record};

/// Records by key, as JSON: fields may come, none is ever read as something else.
const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");
/// Keys by number.
const IDS: TableDefinition<u64, &[u8]> = TableDefinition::new("ids");
/// Numbers of the inputs that outputs belong to, by [`claim_of`].
const CLAIMS: TableDefinition<u64, u64> = TableDefinition::new("claims");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// Of the form above.
const VERSION: u64 = 1;

/// Pages kept in memory: a commit touches a dozen, the system's cache has the others, and memory belongs to the jobs.
const CACHE_BYTES: usize = 1 << 18;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{path}: {message}")]
    Store { path: String, message: String },
    #[error("{path}: the ledger has form {found}, this version reads {VERSION}; use the version that wrote it")]
    Version { path: String, found: u64 },
}

/// An output's path, condensed: the first bytes of its SHA-256.
pub fn claim_of(output: &str) -> u64 {
    Sha256::digest(output.as_bytes()).iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

pub struct Ledger {
    /// `None` while it could not be opened again: after an error of the disk a database does not go on by itself.
    database: RwLock<Option<Database>>,
    path: PathBuf,
}

/// One change of the ledger.
pub enum Change {
    Put(Key, Box<Record>),
    Remove(Key, u64),
}

impl Ledger {
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let ledger = Self { database: RwLock::new(None), path: path.to_owned() };
        ledger.reopen()?;
        Ok(ledger)
    }

    fn reopen(&self) -> Result<(), LedgerError> {
        let mut held = self.database.write().unwrap_or_else(PoisonError::into_inner);
        *held = None;
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(&self.path).map_err(|e| self.wrong(e.into()))?;
        let found = Self::first(&database).map_err(|e| self.wrong(e))?;
        if found != VERSION {
            return Err(LedgerError::Version { path: self.path.display().to_string(), found });
        }
        *held = Some(database);
        Ok(())
    }

    /// Runs `work` on the open database; opens it again first when an earlier error closed it.
    fn with<T>(&self, work: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<T, LedgerError> {
        let attempt = || {
            let held = self.database.read().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map(&work)
        };
        match attempt() {
            None | Some(Err(redb::Error::PreviousIo | redb::Error::DatabaseClosed)) => {
                self.reopen()?;
                attempt().unwrap_or(Err(redb::Error::DatabaseClosed)).map_err(|e| self.wrong(e))
            }
            Some(result) => result.map_err(|e| self.wrong(e)),
        }
    }

    /// Makes the tables; the form of the file.
    fn first(database: &Database) -> Result<u64, redb::Error> {
        let write = database.begin_write()?;
        let found = {
            let mut meta = write.open_table(META)?;
            let found = meta.get("version")?.map(|v| v.value());
            if found.is_none() {
                meta.insert("version", VERSION)?;
            }
            write.open_table(RECORDS)?;
            write.open_table(IDS)?;
            write.open_table(CLAIMS)?;
            found.unwrap_or(VERSION)
        };
        write.commit()?;
        Ok(found)
    }

    fn wrong(&self, error: redb::Error) -> LedgerError {
        LedgerError::Store { path: self.path.display().to_string(), message: error.to_string() }
    }

    /// Makes changes, all or none; on disk on return.
    pub fn commit(&self, changes: &[Change]) -> Result<(), LedgerError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.with(|database| commit(database, changes))
    }

    pub fn get(&self, key: &Key) -> Result<Option<Record>, LedgerError> {
        self.with(|database| {
            // The transaction outlives what was read from it: without one its pages may be given to a writer.
            let read = database.begin_read()?;
            let found = read.open_table(RECORDS)?.get(key.bytes())?;
            found.map(|v| parse(v.value())).transpose()
        })
    }

    /// The number after the largest that was ever given.
    pub fn next_id(&self) -> Result<u64, LedgerError> {
        self.with(|database| {
            let read = database.begin_read()?;
            Ok(read.open_table(META)?.get("next_id")?.map_or(1, |v| v.value()))
        })
    }

    pub fn by_id(&self, id: u64) -> Result<Option<(Key, Record)>, LedgerError> {
        self.with(|database| {
            let read = database.begin_read()?;
            let Some(key) = read.open_table(IDS)?.get(id)?.map(|v| Key::from_bytes(v.value())) else { return Ok(None) };
            let found = read.open_table(RECORDS)?.get(key.bytes())?;
            found.map(|v| Ok((key, parse(v.value())?))).transpose()
        })
    }

    /// The input that an output belongs to.
    pub fn claimed(&self, claim: u64) -> Result<Option<Key>, LedgerError> {
        self.with(|database| {
            let read = database.begin_read()?;
            let Some(id) = read.open_table(CLAIMS)?.get(claim)?.map(|v| v.value()) else { return Ok(None) };
            Ok(read.open_table(IDS)?.get(id)?.map(|v| Key::from_bytes(v.value())))
        })
    }

    /// Goes through every record, in no useful order, without holding them all.
    pub fn fold<T>(&self, start: impl Fn() -> T, take: impl Fn(&mut T, Key, Record)) -> Result<T, LedgerError> {
        self.with(|database| {
            let read = database.begin_read()?;
            let mut folded = start();
            for entry in read.open_table(RECORDS)?.iter()? {
                let (key, value) = entry?;
                take(&mut folded, Key::from_bytes(key.value()), parse(value.value())?);
            }
            Ok(folded)
        })
    }

    /// The newest records below number `before` that `wanted` takes, at most `limit` of them.
    pub fn newest(&self, before: u64, limit: usize, wanted: impl Fn(&Record) -> bool) -> Result<Vec<Record>, LedgerError> {
        self.with(|database| {
            let read = database.begin_read()?;
            let (ids, records) = (read.open_table(IDS)?, read.open_table(RECORDS)?);
            let mut found = Vec::new();
            for entry in ids.range(..before)?.rev() {
                let (_, key) = entry?;
                let Some(value) = records.get(key.value())? else { continue };
                let record = parse(value.value())?;
                if wanted(&record) {
                    found.push(record);
                    if found.len() >= limit {
                        break;
                    }
                }
            }
            Ok(found)
        })
    }
}

fn parse(value: &[u8]) -> Result<Record, redb::Error> {
    serde_json::from_slice(value).map_err(|e| redb::Error::Io(e.into()))
}

fn commit(database: &Database, changes: &[Change]) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut records = write.open_table(RECORDS)?;
        let mut ids = write.open_table(IDS)?;
        let mut claims = write.open_table(CLAIMS)?;
        let mut meta = write.open_table(META)?;
        let mut next = meta.get("next_id")?.map_or(1, |v| v.value());
        for change in changes {
            match change {
                Change::Put(key, record) => {
                    let old = records.get(key.bytes())?.map(|v| parse(v.value())).transpose()?;
                    if old.as_ref().map(|o| &o.outputs) != Some(&record.outputs) {
                        release(&mut claims, old.as_ref())?;
                        for output in &record.outputs {
                            claims.insert(claim_of(output), record.id)?;
                        }
                    }
                    let text = serde_json::to_vec(record).map_err(|e| redb::Error::Io(e.into()))?;
                    records.insert(key.bytes(), text.as_slice())?;
                    ids.insert(record.id, key.bytes())?;
                    next = next.max(record.id + 1);
                }
                Change::Remove(key, id) => {
                    let old = records.remove(key.bytes())?.map(|v| parse(v.value())).transpose()?;
                    release(&mut claims, old.as_ref())?;
                    ids.remove(id)?;
                }
            }
        }
        meta.insert("next_id", next)?;
    }
    write.commit()?;
    Ok(())
}

/// A record's outputs belong to nobody any more, those aside that somebody else has by now.
fn release(claims: &mut redb::Table<'_, u64, u64>, old: Option<&Record>) -> Result<(), redb::Error> {
    let Some(old) = old else { return Ok(()) };
    for claim in old.outputs.iter().map(|o| claim_of(o)) {
        let is_own = claims.get(claim)?.is_some_and(|holder| holder.value() == old.id);
        if is_own {
            claims.remove(claim)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::record::State;

    #[test]
    fn what_was_committed_comes_back() {
        let folder = std::env::temp_dir().join(format!("halostream-service-ledger-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("ledger.redb");
        {
            let ledger = Ledger::open(&path).unwrap();
            assert_eq!(ledger.next_id().unwrap(), 1);
            let changes: Vec<Change> = (1..=20u64)
                .map(|id| {
                    let key = Key::new(if id % 2 == 0 { "even" } else { "odd" }, format!("n{id}").as_bytes());
                    let mut record = Record::new(&key, id, 5);
                    record.state = if id > 15 { State::Done } else { State::Settled };
                    Change::Put(key, Box::new(record))
                })
                .collect();
            ledger.commit(&changes).unwrap();
            ledger.commit(&[Change::Remove(Key::new("even", b"n20"), 20)]).unwrap();
        }
        let ledger = Ledger::open(&path).unwrap();
        // A number is never given twice, so that the API's names stay true.
        assert_eq!(ledger.next_id().unwrap(), 21);
        assert!(ledger.by_id(20).unwrap().is_none());
        let (key, record) = ledger.by_id(7).unwrap().unwrap();
        assert_eq!((key.name(), record.state), ("n7".to_owned(), State::Settled));
        let newest = ledger.newest(19, 2, |r| r.state == State::Done).unwrap();
        assert_eq!(newest.iter().map(|r| r.id).collect::<Vec<_>>(), [18, 17]);
        let done = ledger.fold(|| 0, |n, k, r| *n += u32::from(k.watch() == "odd" && r.state == State::Done)).unwrap();
        assert_eq!(done, 2);
        drop(ledger);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn outputs_have_one_holder() {
        let folder = std::env::temp_dir().join(format!("halostream-service-claims-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let ledger = Ledger::open(&folder.join("ledger.redb")).unwrap();
        let put = |id: u64, outputs: &[&str]| {
            let key = Key::new("w", format!("n{id}").as_bytes());
            let mut record = Record::new(&key, id, 0);
            record.outputs = outputs.iter().map(|o| (*o).to_owned()).collect();
            ledger.commit(&[Change::Put(key, Box::new(record))]).unwrap();
        };
        let of = |id: u64| Some(format!("n{id}"));
        let holder = |output: &str| ledger.claimed(claim_of(output)).unwrap().map(|key| key.name());
        put(1, &["a", "b"]);
        assert_eq!((holder("a"), holder("b"), holder("c")), (of(1), of(1), None));
        put(1, &["b", "c"]);
        put(2, &["a"]);
        assert_eq!((holder("a"), holder("b"), holder("c")), (of(2), of(1), of(1)));
        ledger.commit(&[Change::Remove(Key::new("w", b"n1"), 1)]).unwrap();
        assert_eq!((holder("a"), holder("b")), (of(2), None));
        drop(ledger);
        let _ = std::fs::remove_dir_all(&folder);
    }
}
