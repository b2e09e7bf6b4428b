//! The service as people leave it running: the real binary over temporary folders, port 0 of 127.0.0.1 only.
//!
//! Nothing here depends on how fast the machine is: what is waited for has generous deadlines, and what must not happen is
//! read from the ledger afterwards. Small by default; the full size is
//! `HALOSTREAM_ARRIVALS=200 HALOSTREAM_PAUSE=60 HALOSTREAM_INPUTS=100 HALOSTREAM_KILLS=100 cargo test --release --test service`.

#[path = "../common/mod.rs"]
mod common;

mod arrivals;
mod clock;
mod faults;
mod hostile;
mod http;
mod kill;
mod kit;
mod lifecycle;
mod policies;
mod quarantine;
mod reload;
mod shipped;
