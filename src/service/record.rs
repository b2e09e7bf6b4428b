//! What the ledger says of one input.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::clock::timestamp;
use super::scan::Fingerprint;

/// Where an input is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// There, and not yet complete.
    Seen,
    /// Complete, waiting for its turn.
    Settled,
    Running,
    /// Its outputs stand.
    Done,
    /// The last attempt failed; another one follows.
    Failed,
    /// Given up, with a reason; `requeue` tries again.
    Quarantined,
}

impl State {
    pub const ALL: [State; 6] = [State::Seen, State::Settled, State::Running, State::Done, State::Failed, State::Quarantined];

    pub fn name(self) -> &'static str {
        match self {
            State::Seen => "seen",
            State::Settled => "settled",
            State::Running => "running",
            State::Done => "done",
            State::Failed => "failed",
            State::Quarantined => "quarantined",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// Which input: a watch and a path below its directory, byte for byte as the file system has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    pub fn new(watch: &str, relpath: &[u8]) -> Self {
        Self([watch.as_bytes(), b"\0", relpath].concat().into())
    }

    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let at = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        (&self.0[..at], self.0.get(at + 1..).unwrap_or_default())
    }

    pub fn watch(&self) -> &str {
        std::str::from_utf8(self.split().0).unwrap_or_default()
    }

    pub fn relpath(&self) -> &[u8] {
        self.split().1
    }

    /// For people: what is not UTF-8 is shown as such.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.relpath()).into_owned()
    }
}

/// What is still to be done for an input that is done or given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Through the trash folder to this place.
    Archive(String),
    /// Through the trash folder into nothing.
    Delete,
    /// Its quarantine record is still to be written, and the input moved where the service says so.
    Quarantine,
}

/// Numbers of the run that made the outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    pub wall_s: f64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub filled_chunks: u64,
    pub bottleneck: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the input in this ledger; names it in the API.
    pub id: u64,
    pub watch: String,
    /// Path below the watched directory, for people.
    pub name: String,
    pub state: State,
    /// Of the version that the state is about.
    pub fingerprint: Option<Fingerprint>,
    /// Counts versions of the input: 1, then one more for each change after it was processed.
    pub version: u32,
    /// Attempts of this version.
    pub attempts: u32,
    /// Attempts that ended with the service itself, one after the other.
    pub interrupted: u32,
    /// Why it failed, waits or was given up.
    pub reason: Option<String>,
    pub outputs: Vec<String>,
    /// Of the job file and watch under which it last ran.
    pub config_hash: String,
    /// Hashes of the jobs that made its outputs: those may be replaced by a new version.
    pub made: Vec<String>,
    pub first_seen_ms: i64,
    pub settled_ms: Option<i64>,
    pub started_ms: Option<i64>,
    pub ended_ms: Option<i64>,
    pub numbers: Option<Numbers>,
    pub effect: Option<Effect>,
    /// A command (`on_done` or `on_failed`) is still to be told.
    pub hook: bool,
}

impl Record {
    pub fn new(key: &Key, id: u64, wall_ms: i64) -> Self {
        Self {
            id,
            watch: key.watch().to_owned(),
            name: key.name(),
            state: State::Seen,
            fingerprint: None,
            version: 1,
            attempts: 0,
            interrupted: 0,
            reason: None,
            outputs: Vec::new(),
            config_hash: String::new(),
            made: Vec::new(),
            first_seen_ms: wall_ms,
            settled_ms: None,
            started_ms: None,
            ended_ms: None,
            numbers: None,
            effect: None,
            hook: false,
        }
    }

    /// As the API, hooks and the quarantine show it.
    pub fn to_json(&self) -> Value {
        let time = |ms: Option<i64>| ms.map(timestamp);
        let fingerprint = self.fingerprint.as_ref();
        json!({
            "id": self.id,
            "watch": self.watch,
            "name": self.name,
            "state": self.state.name(),
            "reason": self.reason,
            "outputs": self.outputs,
            "version": self.version,
            "attempts": self.attempts,
            "input_files": fingerprint.map(|f| f.files),
            "input_bytes": fingerprint.map(|f| f.bytes),
            "fingerprint": fingerprint.map(ToString::to_string),
            "config_hash": self.config_hash,
            "job_hash": self.made.last(),
            "first_seen": timestamp(self.first_seen_ms),
            "settled": time(self.settled_ms),
            "started": time(self.started_ms),
            "ended": time(self.ended_ms),
            "wall_s": self.numbers.as_ref().map(|n| n.wall_s),
            "bytes_read": self.numbers.as_ref().map(|n| n.bytes_read),
            "bytes_written": self.numbers.as_ref().map(|n| n.bytes_written),
            "filled_chunks": self.numbers.as_ref().map(|n| n.filled_chunks),
            "bottleneck": self.numbers.as_ref().map(|n| n.bottleneck.as_str()),
            "after_pending": self.effect.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_any_name() {
        let key = Key::new("slc", b"sub/a\n\"b\xff.zarr");
        assert_eq!((key.watch(), key.relpath()), ("slc", &b"sub/a\n\"b\xff.zarr"[..]));
        assert_eq!(Key::from_bytes(key.bytes()), key);
        assert_eq!(key.name(), "sub/a\n\"b\u{fffd}.zarr");
    }

    #[test]
    fn states_have_one_name_each() {
        for state in State::ALL {
            assert_eq!(State::parse(state.name()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state.name()));
        }
    }
}
