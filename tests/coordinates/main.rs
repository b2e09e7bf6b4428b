//! What is carried to an output beside its array: coordinates, attributes of groups, consolidated metadata.

#[path = "../common/mod.rs"]
mod common;

mod broken;
mod cuts;
mod groups;
mod kit;
mod python;
