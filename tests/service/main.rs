//! The service as people leave it running: the real binary over temporary folders, port 0 of 127.0.0.1 only.
//!
//! Nothing here depends on how fast the machine is: what is waited for has generous deadlines, and what must not happen is
//! read from the ledger afterwards. Rounds of kills: `HALOSTREAM_KILLS` (10); inputs of the arrival test:
//! `HALOSTREAM_ARRIVALS` (42).

#[path = "../common/mod.rs"]
mod common;

mod arrivals;
mod faults;
mod hostile;
mod http;
mod kill;
mod kit;
mod lifecycle;
mod quarantine;
mod reload;
mod shipped;
