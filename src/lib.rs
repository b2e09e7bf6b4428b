//! halostream: an actor-based streaming processor for arrays larger than memory.

pub mod array;
pub mod codec;
pub mod compute;
pub mod config;
pub mod operators;
pub mod reader;
pub mod writer;
