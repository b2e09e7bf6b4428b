//! What the contract has and this version has not: known, so that whoever uses it is told that, and not that it is misspelt.

use super::{Exit, complain};

pub fn refuse(what: &str) -> Exit {
    complain(format!("{what}: not available in this version"));
    Exit::Usage
}
