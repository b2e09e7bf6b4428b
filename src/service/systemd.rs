//! Words to the service manager (`sd_notify`): ready, reloading, stopping, alive. Without `NOTIFY_SOCKET` nothing is said.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that we live.
    pub watchdog: Option<Duration>,
}

impl Notifier {
    pub fn from_env() -> Self {
        let place = std::env::var_os("NOTIFY_SOCKET");
        let to = place
            .as_deref()
            .and_then(|p| connect(p).inspect_err(|error| tracing::warn!(%error, "the service manager cannot be told")).ok());
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|t| t.parse().ok());
        Self { to, watchdog: micros.map(|us| Duration::from_micros(us) / 2) }
    }

    pub fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.to
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager was not told");
        }
    }

    /// A reload is told with the time at which it began.
    pub fn reloading(&self) {
        // SAFETY: zeroes are a valid timespec, and clock_gettime only writes to it.
        let now = unsafe {
            let mut now: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now);
            now
        };
        let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }
}

fn connect(place: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let bytes = place.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    Ok((UnixDatagram::unbound()?, address))
}
