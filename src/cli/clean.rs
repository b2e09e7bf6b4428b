//! `clean`: removes what unfinished jobs left beside their outputs.

use std::path::Path;

use super::{Exit, complain, say};
use crate::config::units::format_bytes;
use crate::engine::staging::{self, Cleaned as Left};
use crate::files::advice;
use crate::remote::is_url;
use crate::writer::remote::{self, Cleaned};
use crate::writer::zarr::is_zarr;

/// What unfinished jobs left of one output in an object store; nobody can tell whether one is running.
fn clean_remote(url: &Path) -> Exit {
    match remote::clean(url) {
        Ok(Cleaned { objects: 0, .. }) => say(format!("nothing to remove at {}", url.display())),
        Ok(Cleaned { objects, bytes }) => {
            say(format!("removed {objects} objects of {}, {}", url.display(), format_bytes(bytes)));
        }
        Err(error) => {
            complain(format!("{}: {error}{}", url.display(), advice(&error)));
            return Exit::Failed;
        }
    }
    Exit::Done
}

/// `path` is an output (standing or not), or a folder that is searched with all below it.
pub fn clean(path: &Path) -> Exit {
    if is_url(path) {
        return clean_remote(path);
    }
    let found = if path.is_dir() && !is_zarr(path) {
        staging::below(path)
    } else if staging::folder_of(path).is_dir() {
        Ok(staging::beside(path))
    } else {
        complain(format!("{}: no such file or folder", path.display()));
        return Exit::Usage;
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            complain(format!("{}: {error}", path.display()));
            return Exit::Failed;
        }
    };
    let (mut exit, mut count, mut total) = (Exit::Done, 0, 0);
    for left in &found {
        let name = left.path.display();
        match staging::clean(left) {
            Ok(Left::Removed(bytes)) => {
                say(format!("removed {name}, {}", format_bytes(bytes)));
                (count, total) = (count + 1, total + bytes);
            }
            Ok(Left::Busy) => say(format!("kept {name}: its job is running")),
            Ok(Left::Needed) => {
                say(format!("kept {name}: the only copy of {}; run its job again, or rename it", left.output.display()));
            }
            Err(error) => {
                complain(format!("{name}: {error}"));
                exit = Exit::Failed;
            }
        }
    }
    match (found.len(), count) {
        (0, _) => say(format!("nothing to remove at {}", path.display())),
        (_, n) if n > 1 => say(format!("removed {n} folders, {}", format_bytes(total))),
        _ => {}
    }
    exit
}
