//! The engine itself: backpressure, frontier, reads, crashes, ends, stops, memory, reports (I2, I3, I6, I7, I8).
//!
//! Jobs run in this process, over sources, operators and sinks of the test's own (`kit`): they count, stall and fail
//! where they are told to. Every run is under a watchdog: a pipeline that stalls fails its test, with the job.

#[path = "../common/mod.rs"]
mod common;

mod backpressure;
mod crash;
mod encoding;
mod ends;
mod fallback;
mod frontier;
mod kit;
mod memory;
mod moving;
mod passes;
mod reads;
mod report;
mod stop;
mod sweeping;
