//! halostream: an actor-based streaming processor for arrays larger than memory.
//!
//! ```text
//!   job file -> config -> plan -> engine
//!
//!   reader  ->  halo-exchange  ->  compute  ->  trim  ->  writer       chunks on bounded channels
//!     |              |                |           |          |
//!     +--------------+---- supervisor (actix) ----+----------+         lifecycle, faults, counts
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`config`] | what the user wrote: a job file, its problems found together |
//! | [`plan`] | what will happen: phases, block grid, traversal, memory; pure data |
//! | [`array`] | geometry and values: regions, grids, boundaries, dtypes, buffers, messages |
//! | [`reader`] | stage 1 and the sources it reads |
//! | [`halo`] | stage 2: collects neighbours, builds padded blocks |
//! | [`compute`] | stage 3: evaluates the steps of a block; folds |
//! | [`trim`] | stage 4: cuts the halo off |
//! | [`writer`] | stage 5 and the sinks it writes |
//! | [`operators`] | what is computed, one file each |
//! | [`codec`] | chunks packed while they wait |
//! | [`zarr`] | the Zarr format: metadata, codecs, file store |
//! | [`remote`] | object stores and web servers: requests, ranges, listings |
//! | [`tiff`] | the TIFF format: pages of files, regions of pages |
//! | [`child`] | programs of the user: started, asked, ended |
//! | [`files`] | every file-system call of what is stored, and faults for tests |
//! | [`engine`] | a plan as running stages; budget, supervision, report |
//! | [`service`] | the long-lived process around it: watched directories, ledger, queue, HTTP |
//! | [`telemetry`] | logging, progress |
//! | [`random`] | random numbers by seed and coordinates |
//! | [`simd`] | the switch between vector and scalar code |

pub mod array;
pub mod child;
pub mod cli;
pub mod codec;
pub mod compute;
pub mod config;
pub mod engine;
pub mod files;
pub mod halo;
pub mod operators;
pub mod plan;
pub mod random;
pub mod reader;
pub mod remote;
pub mod service;
pub mod simd;
pub mod telemetry;
pub mod tiff;
pub mod trim;
pub mod writer;
pub mod zarr;
