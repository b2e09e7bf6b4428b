//! Object stores: `s3://`, `gs://` and plain `http(s)://` servers as stores of keys, behind [`crate::zarr::read`].
//!
//! - `place`: what a URL names
//! - `store`: objects, ranges of them, listings; who may open what
//! - `object`: one object and the request that is on its way for it
//! - `upload`: one object that is written
//! - `wire`: requests, tried again where that may help, counted
//! - `fault`: what went wrong, in words without anything secret
//!
//! The client library is asynchronous; whoever reads waits for its own request, so requests in flight are readers at work.
//! A request costs a network's round trip and a connection's buffer ([`CONNECTION_BYTES`]).

pub mod fault;
pub mod object;
pub mod place;
pub mod store;
pub mod upload;
mod wire;

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::{Builder, Runtime};

pub use object::{Object, Part};
pub use place::is_url;
pub use store::RemoteStore;
pub use upload::Upload;

/// Most that a request in flight holds beside what it is read into: the connection's buffer, and that of its encryption.
pub const CONNECTION_BYTES: u64 = 1 << 20;

/// Requests of one job worth having in flight: with answers after 100 ms and chunks of 1 MiB they make 160 MiB/s.
pub const IN_FLIGHT: usize = 16;

/// Threads that carry bytes and encryption for all requests of the process; readers wait elsewhere.
const CARRIERS: usize = 2;

/// Waits for a request.
fn wait<T>(request: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || Builder::new_multi_thread().worker_threads(CARRIERS).thread_name("carrier").enable_all().build();
    match RUNTIME.get_or_init(|| start().map_err(|error| error.to_string())) {
        Ok(runtime) => runtime.block_on(request),
        Err(reason) => Err(io::Error::other(format!("the threads of object stores do not start: {reason}"))),
    }
}

/// Requests of a store.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    again: AtomicU64,
}

/// How many requests were sent, and how many of them because one before had failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub sent: u64,
    pub again: u64,
}

impl Traffic {
    fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn again(&self) {
        self.again.fetch_add(1, Ordering::Relaxed);
    }

    pub fn requests(&self) -> Requests {
        Requests { sent: self.sent.load(Ordering::Relaxed), again: self.again.load(Ordering::Relaxed) }
    }
}
