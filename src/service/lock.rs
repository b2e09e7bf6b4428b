//! The state folder belongs to one service: a lock that the system takes back when its holder dies, with a note of who that
//! is and where it listens.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const NAME: &str = "lock";

/// Who holds a state folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    pub service: PathBuf,
    /// `None` until it listens, or when it has no HTTP.
    pub address: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{state}: another service uses this state folder: process {} on {}, with {}", holder.pid, holder.host, holder.service.display())]
    Held { state: String, holder: Holder },
    #[error("{path}: {error}")]
    Io { path: String, error: io::Error },
}

/// Held until dropped.
pub struct StateLock {
    file: File,
    holder: Holder,
}

impl StateLock {
    pub fn take(state: &Path, service: &Path) -> Result<Self, LockError> {
        let path = state.join(NAME);
        let wrong = |error| LockError::Io { path: path.display().to_string(), error };
        std::fs::create_dir_all(state).map_err(wrong)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(wrong)?;
        if !try_lock(&file) {
            let holder = read(&file).unwrap_or_else(|| Holder::unknown(service));
            return Err(LockError::Held { state: state.display().to_string(), holder });
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let holder = Holder { pid: std::process::id(), host, service: service.to_owned(), address: None };
        let mut lock = Self { file, holder };
        lock.write().map_err(wrong)?;
        Ok(lock)
    }

    /// Notes where the service listens.
    pub fn listens(&mut self, address: SocketAddr) -> io::Result<()> {
        self.holder.address = Some(address);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.holder)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.set_len(0)?;
        self.file.write_all(&text)
    }
}

impl Holder {
    fn unknown(service: &Path) -> Self {
        Self { pid: 0, host: "this host".to_owned(), service: service.to_owned(), address: None }
    }
}

fn try_lock(file: &File) -> bool {
    // SAFETY: the descriptor is open; flock has no other effect.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn read(mut file: &File) -> Option<Holder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(1 << 16).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Who holds a state folder now; `None` when nobody does.
pub fn holder(state: &Path, service: &Path) -> io::Result<Option<Holder>> {
    let file = match OpenOptions::new().read(true).write(true).open(state.join(NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Taken for a moment when nobody has it; a service that starts in that moment tries again.
    Ok(if try_lock(&file) { None } else { Some(read(&file).unwrap_or_else(|| Holder::unknown(service))) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let state = std::env::temp_dir().join(format!("halostream-service-lock-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&state);
        let mut lock = StateLock::take(&state, Path::new("/a/service.toml")).unwrap();
        lock.listens("127.0.0.1:7".parse().unwrap()).unwrap();
        let refused = StateLock::take(&state, Path::new("/b/service.toml")).err().unwrap().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())) && refused.contains("/a/service.toml"), "{refused}");
        let found = holder(&state, Path::new("/b/service.toml")).unwrap().unwrap();
        assert_eq!(found.address.unwrap().port(), 7);
        drop(lock);
        assert_eq!(holder(&state, Path::new("/b/service.toml")).unwrap(), None);
        assert!(StateLock::take(&state, Path::new("/b/service.toml")).is_ok());
        let _ = std::fs::remove_dir_all(&state);
    }
}
