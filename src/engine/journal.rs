//! The progress ledger of a job: which objects of an output are stored and durable, kept inside its staging folder.
//!
//! The file begins with a record that names the job and the boot of the machine, then records of objects follow, each
//! framed by length and CRC, so that a torn tail is cut off and nothing before it is lost. Data is synced in groups, and
//! a group is noted only after its sync: what the ledger says survives a power failure. After a mere kill (same boot)
//! the page cache survived too, so every object that has its name counts, noted or not.
//!
//! Cost: one `syncfs` and one small append every two seconds while objects come in.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::partition::Partition;
use crate::files::{self, File, advice, is_absent};

/// Name of the ledger in a staging folder; Zarr readers pass dot files over.
pub const NAME: &str = ".halostream-ledger";

/// Folder beside it with a ledger for each partition of the job that ran.
pub const PARTS: &str = ".halostream-parts";

/// Objects wait at most this long for their sync.
pub const GROUP: Duration = Duration::from_secs(2);

/// A record larger than this was not written by us.
const MAX_RECORD: u32 = 64 << 20;

const OBJECTS: u8 = 1;
const COMPLETE: u8 = 2;
const BOOT: u8 = 3;

/// An object of an output: (graph target, number of the object in C order).
pub type ObjectId = (u32, u64);

/// What a ledger says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    pub hash: String,
    pub boot: String,
    pub objects: HashSet<ObjectId>,
    /// All outputs of the job are complete: only names are missing.
    pub is_complete: bool,
    /// That was noted after a sync, so that it holds in another boot too.
    is_synced: bool,
}

/// An open ledger; the lock on it says that its job is running.
pub struct Ledger {
    file: File,
    path: PathBuf,
    sync: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{path}: {error}{}", advice(error))]
    Io { path: String, error: io::Error },
    #[error("{path}: another process is writing this output")]
    Busy { path: String },
}

/// Identifies the machine's boot: what was in the page cache then is gone after the next.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

impl Noted {
    /// Adds what another ledger of the same job says. Names of objects count only where all were written in this boot of this machine.
    pub fn absorb(&mut self, other: Noted) {
        if self.hash.is_empty() {
            *self = other;
        } else if other.hash == self.hash {
            self.objects.extend(other.objects);
            if self.boot != other.boot {
                self.boot.clear();
            }
        }
    }

    /// True when only names are missing, and what was stored is still what it was.
    pub fn can_be_published(&self) -> bool {
        self.is_complete && (self.is_synced || self.boot == boot_id())
    }
}

/// The ledger of one partition.
pub fn part(staging: &Path, partition: Partition) -> PathBuf {
    staging.join(PARTS).join(format!("{}-of-{}", partition.index(), partition.count()))
}

/// True for the ledger of a partition among as many.
pub fn is_part_like(path: &Path, partition: Partition) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split_once("-of-").is_some_and(|(_, count)| count.parse() == Ok(partition.count()))
}

/// The ledgers of all partitions that ran, however many there were to be.
pub fn parts(staging: &Path) -> io::Result<Vec<PathBuf>> {
    match files::list(&staging.join(PARTS)) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path())).collect(),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The locks of all ledgers of a staging folder, and with them of the folder.
pub fn lock(staging: &Path) -> Result<Vec<File>, LedgerError> {
    let parts = parts(staging).map_err(|error| LedgerError::Io { path: staging.display().to_string(), error })?;
    let ledgers = std::iter::once(staging.join(NAME)).chain(parts);
    ledgers.filter_map(|path| lock_one(&path).transpose()).collect()
}

/// `None` when there is no such ledger.
pub fn lock_one(path: &Path) -> Result<Option<File>, LedgerError> {
    let opened = File::open_to_change(path, false).and_then(|file| Ok(try_lock(&file, path)?.then_some(file)));
    match opened {
        Ok(Some(file)) => Ok(Some(file)),
        Ok(None) => Err(busy(path)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(LedgerError::Io { path: path.display().to_string(), error }),
    }
}

/// The folder's ledger stands for the folder.
fn busy(ledger: &Path) -> LedgerError {
    let place = ledger.parent().filter(|_| ledger.ends_with(NAME)).unwrap_or(ledger);
    LedgerError::Busy { path: place.display().to_string() }
}

/// Locks an open ledger; false when somebody else has it, or when it was removed or renamed since it was opened.
fn try_lock(file: &File, path: &Path) -> io::Result<bool> {
    Ok(file.try_lock()? && file.is_at(path)?)
}

impl Ledger {
    /// Opens or makes the ledger of a staging folder, locks it, and reads what it says. A ledger of another job, or one
    /// whose head is damaged, says nothing and is begun anew.
    pub fn open(staging: &Path, hash: &str, sync: bool) -> Result<(Self, Noted), LedgerError> {
        Self::open_at(staging.join(NAME), hash, sync)
    }

    /// The same for a ledger at any path.
    pub fn open_at(path: PathBuf, hash: &str, sync: bool) -> Result<(Self, Noted), LedgerError> {
        let io = |error| LedgerError::Io { path: path.display().to_string(), error };
        let mut file = File::open_to_change(&path, true).map_err(io)?;
        if !try_lock(&file, &path).map_err(io)? {
            return Err(busy(&path));
        }
        let (noted, good) = read(&mut file).map_err(io)?;
        let mut ledger = Self { file, path: path.clone(), sync };
        if noted.hash == hash {
            ledger.file.cut(good).map_err(io)?;
            return Ok((ledger, noted));
        }
        ledger.begin(hash, &boot_id()).map_err(io)?;
        Ok((ledger, Noted::default()))
    }

    fn begin(&mut self, hash: &str, boot: &str) -> io::Result<()> {
        self.file.cut(0)?;
        self.append(json!({ "hash": hash, "boot": boot, "version": 1 }).to_string().as_bytes())
    }

    /// Nothing that was stored counts, neither by a note nor by its name: as if written in a boot that nobody knows.
    pub fn disown(&mut self, hash: &str) -> io::Result<()> {
        self.begin(hash, "")
    }

    /// What the ledger of a folder says, without locking or changing it; `None` without one.
    pub fn peek(staging: &Path) -> Option<Noted> {
        Self::peek_at(&staging.join(NAME))
    }

    pub fn peek_at(path: &Path) -> Option<Noted> {
        let mut file = File::open(path).ok()?;
        read(&mut file).ok().map(|(noted, _)| noted)
    }

    fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(payload.len() + 8);
        record.extend((payload.len() as u32).to_le_bytes());
        record.extend(crc32c::crc32c(payload).to_le_bytes());
        record.extend(payload);
        self.file.write_all(&record)?;
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Notes objects whose data is durable.
    pub fn note(&mut self, objects: &[ObjectId]) -> io::Result<()> {
        let mut payload = vec![OBJECTS];
        for (target, object) in objects {
            payload.extend(target.to_le_bytes());
            payload.extend(object.to_le_bytes());
        }
        self.append(&payload)
    }

    pub fn note_complete(&mut self) -> io::Result<()> {
        self.append(&[COMPLETE, u8::from(self.sync)])
    }

    /// The machine was started anew since the last note: from here on names count again.
    pub fn note_boot(&mut self) -> io::Result<()> {
        let mut payload = vec![BOOT];
        payload.extend(boot_id().bytes());
        self.append(&payload)
    }

    /// False when the staging folder was removed or renamed by somebody else.
    pub fn is_in_place(&self) -> io::Result<bool> {
        self.file.is_at(&self.path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes everything in the staging folder's file system durable.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_file_system()
    }
}

/// The records of a file up to the first that is not whole, and where that is.
fn read(file: &mut File) -> io::Result<(Noted, u64)> {
    let bytes = file.read_to_end(1 << 32)?;
    let mut noted = Noted::default();
    let mut at = 0usize;
    let mut is_head = true;
    while let Some(frame) = bytes.get(at..at + 8) {
        let word = |i: usize| frame[i..i + 4].try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
        let (len, crc) = (word(0), word(4));
        let Some(payload) = bytes.get(at + 8..at + 8 + len as usize).filter(|_| len <= MAX_RECORD) else { break };
        if crc32c::crc32c(payload) != crc {
            break;
        }
        if is_head {
            let Ok(head) = serde_json::from_slice::<Value>(payload) else { break };
            let text = |key: &str| head.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            (noted.hash, noted.boot) = (text("hash"), text("boot"));
            is_head = false;
        } else {
            match payload.split_first() {
                Some((&OBJECTS, list)) => noted.objects.extend(list.chunks_exact(12).filter_map(|entry| {
                    let target = u32::from_le_bytes(entry[..4].try_into().ok()?);
                    Some((target, u64::from_le_bytes(entry[4..].try_into().ok()?)))
                })),
                Some((&COMPLETE, synced)) => (noted.is_complete, noted.is_synced) = (true, synced == [1]),
                Some((&BOOT, id)) => {
                    // What was complete and never synced may have lost objects.
                    noted.is_complete &= noted.is_synced;
                    noted.boot = String::from_utf8_lossy(id).into_owned();
                }
                _ => break,
            }
        }
        at += 8 + len as usize;
    }
    Ok((noted, at as u64))
}

/// Which objects make a group; tests pass their own.
pub trait Grouping: Send + Sync {
    /// Adds to a group that has begun; true when nobody can tell of more objects. `end` has no sender once the run is over.
    fn fill(&self, group: &mut Vec<ObjectId>, told: &Receiver<ObjectId>, end: &Receiver<Infallible>) -> bool;
}

/// What comes within a time. The keeper sleeps through it, so that telling wakes nobody.
pub struct Within(pub Duration);

impl Grouping for Within {
    fn fill(&self, group: &mut Vec<ObjectId>, told: &Receiver<ObjectId>, end: &Receiver<Infallible>) -> bool {
        let is_over = matches!(end.recv_timeout(self.0), Err(RecvTimeoutError::Disconnected));
        match is_over {
            true => group.extend(told.iter()),
            false => group.extend(told.try_iter()),
        }
        is_over
    }
}

/// Notes objects in groups, from a thread of its own: storing never waits for the disk.
pub struct Journal {
    tell: Option<Sender<ObjectId>>,
    /// Dropped when the run is over.
    end: Option<Sender<Infallible>>,
    keeper: Option<JoinHandle<Result<Vec<Ledger>, LedgerError>>>,
}

impl Journal {
    /// `store_of`: per graph target, which of the ledgers notes its objects.
    pub fn start(ledgers: Vec<Ledger>, store_of: Vec<usize>, grouping: Arc<dyn Grouping>) -> io::Result<Self> {
        let (tell, told) = channel();
        let (end, ended) = channel();
        let keep = move || keep(ledgers, &store_of, &told, &ended, grouping.as_ref());
        let keeper = std::thread::Builder::new().name("journal".to_owned()).spawn(keep)?;
        Ok(Self { tell: Some(tell), end: Some(end), keeper: Some(keeper) })
    }

    /// A handle for the observer that hears of stored objects.
    pub fn teller(&self) -> Option<Sender<ObjectId>> {
        self.tell.clone()
    }

    /// Notes what is left and gives the ledgers back.
    pub fn stop(mut self) -> Result<Vec<Ledger>, LedgerError> {
        self.close();
        match self.keeper.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(LedgerError::Io { path: NAME.to_owned(), error: io::Error::other("the ledger's thread panicked") }),
        }
    }

    fn close(&mut self) {
        (self.tell, self.end) = (None, None);
    }
}

impl Drop for Journal {
    /// Ledgers stay locked while their thread lives.
    fn drop(&mut self) {
        self.close();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn keep(
    mut ledgers: Vec<Ledger>,
    store_of: &[usize],
    told: &Receiver<ObjectId>,
    end: &Receiver<Infallible>,
    grouping: &dyn Grouping,
) -> Result<Vec<Ledger>, LedgerError> {
    loop {
        let Ok(first) = told.recv() else { return Ok(ledgers) };
        let mut group = vec![first];
        let is_over = grouping.fill(&mut group, told, end);
        for (store, ledger) in ledgers.iter_mut().enumerate() {
            let own: Vec<ObjectId> = group.iter().copied().filter(|(t, _)| store_of.get(*t as usize) == Some(&store)).collect();
            // Without syncs there is nothing that a note would add to the file's own name.
            if ledger.sync && !own.is_empty() {
                let noted = ledger.sync_data().and_then(|()| ledger.note(&own));
                noted.map_err(|error| LedgerError::Io { path: ledger.path.display().to_string(), error })?;
            }
        }
        if is_over {
            return Ok(ledgers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("halostream-ledger-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_was_noted_comes_back_and_a_torn_tail_goes() {
        let at = folder("torn");
        let (mut ledger, noted) = Ledger::open(&at, "job", true).unwrap();
        assert_eq!(noted, Noted::default());
        ledger.note(&[(0, 1), (1, 7)]).unwrap();
        ledger.note(&[(0, 2)]).unwrap();
        assert!(matches!(Ledger::open(&at, "job", true), Err(LedgerError::Busy { .. })));
        drop(ledger);
        let path = at.join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (_, noted) = Ledger::open(&at, "job", true).unwrap();
            let want = match whole.len() - cut {
                0 => vec![(0, 1), (0, 2), (1, 7)],
                n if n <= 21 => vec![(0, 1), (1, 7)],
                _ => vec![],
            };
            let mut objects: Vec<_> = noted.objects.into_iter().collect();
            objects.sort_unstable();
            assert_eq!(objects, want, "cut to {cut} of {}", whole.len());
        }
        // A flipped bit ends what is believed.
        let mut damaged = whole.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(Ledger::open(&at, "job", true).unwrap().1.objects.len(), 2);
        // Another job's ledger says nothing to us.
        assert_eq!(Ledger::open(&at, "other", true).unwrap().1, Noted::default());
        assert!(Ledger::peek(&at).unwrap().objects.is_empty());
        std::fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn a_journal_notes_everything_before_it_stops() {
        let at = folder("journal");
        let (ledger, _) = Ledger::open(&at, "job", true).unwrap();
        let journal = Journal::start(vec![ledger], vec![0, 0], Arc::new(Within(GROUP))).unwrap();
        let teller = journal.teller().unwrap();
        (0..100u64).for_each(|n| teller.send(((n % 2) as u32, n)).unwrap());
        drop(teller);
        drop(journal.stop().unwrap());
        assert_eq!(Ledger::peek(&at).unwrap().objects.len(), 100);
        std::fs::remove_dir_all(&at).unwrap();
    }
}
