//! Arguments and commands of the contract that this version does not have: they are known, so that whoever uses them is
//! told that, and not that they are misspelt.

use std::path::{Path, PathBuf};

use super::{Exit, complain};

#[derive(clap::Args)]
pub struct RunArgs {
    #[arg(long, hide = true, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "FOLDER")]
    quicklook: Option<PathBuf>,
}

impl RunArgs {
    /// The first of them that was given.
    pub fn refusal(&self, report: Option<&Path>) -> Option<String> {
        let is_page = report.and_then(Path::extension).is_some_and(|e| e.eq_ignore_ascii_case("html"));
        [
            ("--trace", self.trace.is_some()),
            ("--quicklook", self.quicklook.is_some()),
            ("--report FILE.html (FILE.json is)", is_page),
        ]
        .into_iter()
        .find(|(_, is_given)| *is_given)
        .map(|(name, _)| name.to_owned())
    }
}

pub fn refuse(what: &str) -> Exit {
    complain(format!("{what}: not available in this version"));
    Exit::Usage
}
