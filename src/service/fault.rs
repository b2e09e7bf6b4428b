//! Whose fault a failure is: the input's (no attempt will change that), the world's for a while, or the output's place.

use crate::engine::JobError;
use crate::engine::execute::ExecuteError;
use crate::engine::journal::LedgerError;
use crate::engine::publish::PublishError;
use crate::plan::PlanError;
use crate::reader::OpenError;
use crate::writer::SinkError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The input or the job: quarantined at once.
    Bad,
    /// May pass: tried again, `retries` times.
    Passing,
    /// The output's place has no room or may not be written: tried again until it can; no input is to blame.
    Place,
}

/// Errors of the place where something is written.
fn is_of_place(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EACCES, libc::EPERM].contains(&errno)
}

fn of_reading(error: &std::io::Error) -> Verdict {
    // Without a number it is our own word about the data; a link out of the store, a folder instead of a file.
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ENAMETOOLONG) | None => Verdict::Bad,
        Some(_) => Verdict::Passing,
    }
}

fn of_writing(error: &std::io::Error) -> Verdict {
    match error.raw_os_error() {
        Some(errno) if is_of_place(errno) => Verdict::Place,
        _ => Verdict::Passing,
    }
}

fn of_sink(error: &SinkError) -> Verdict {
    match error {
        SinkError::Io { error, .. } => of_writing(error),
        SinkError::Encode { .. } => Verdict::Bad,
        SinkError::GivenUp => Verdict::Passing,
    }
}

pub fn of_plan(errors: &[PlanError]) -> Verdict {
    let of = |error: &PlanError| match error {
        PlanError::Input { error: OpenError::Io { error, .. }, .. } => of_reading(error),
        _ => Verdict::Bad,
    };
    let is_passing = errors.iter().all(|e| of(e) == Verdict::Passing);
    if is_passing { Verdict::Passing } else { Verdict::Bad }
}

fn of_publish(error: &PublishError) -> Verdict {
    match error {
        PublishError::Exists { .. } => Verdict::Bad,
        // The reason wraps the system's own error, number and all.
        PublishError::Io { error, .. } => match os_number(&error.to_string()) {
            Some(errno) if is_of_place(errno) => Verdict::Place,
            _ => of_writing(error),
        },
        PublishError::Sink(error) => of_sink(error),
        PublishError::Ledger(LedgerError::Io { error, .. }) => of_writing(error),
        PublishError::Ledger(LedgerError::Busy { .. }) => Verdict::Passing,
    }
}

pub fn of_execute(error: &ExecuteError) -> Verdict {
    match error {
        ExecuteError::Prepare(error) | ExecuteError::Job(JobError::Publish(error)) => of_publish(error),
        // The program's own memory and scratch: another moment may have room.
        ExecuteError::Stopped { .. }
        | ExecuteError::Job(
            JobError::Changed(_) | JobError::Threads(_) | JobError::Stopped | JobError::Keep(_) | JobError::State(_),
        ) => Verdict::Passing,
        ExecuteError::Job(JobError::Sink(error)) => of_sink(error),
        ExecuteError::Job(JobError::Fault(fault)) => of_fault(fault.stage, &fault.message),
    }
}

/// A stage's fault carries text. What the system refused ends in its error's number; what is wrong with the data does not.
fn of_fault(stage: &str, message: &str) -> Verdict {
    let world = message.contains("can't start a thread") || (message.contains("gave no answer within"));
    match (os_number(message), stage) {
        (Some(errno), "writer") if is_of_place(errno) => Verdict::Place,
        (Some(libc::ENOENT), "reader") => Verdict::Bad,
        (Some(_), _) => Verdict::Passing,
        (None, _) if world => Verdict::Passing,
        (None, _) => Verdict::Bad,
    }
}

/// The number of the system's error in a message: `No space left on device (os error 28)`.
fn os_number(message: &str) -> Option<i32> {
    let (_, rest) = message.rsplit_once("(os error ")?;
    rest.split(')').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_a_table() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC).to_string();
        let broken = std::io::Error::from_raw_os_error(libc::EIO).to_string();
        for (stage, message, verdict) in [
            ("writer", format!("out.zarr/c/0: {full}"), Verdict::Place),
            ("writer", format!("out.zarr/c/0: {broken}"), Verdict::Passing),
            ("reader", format!("in.zarr/c/0: {broken}"), Verdict::Passing),
            ("reader", "in.zarr/c/0: checksum is wrong".to_owned(), Verdict::Bad),
            ("reader", "in.zarr/c/0: the chunk is missing (missing = \"error\")".to_owned(), Verdict::Bad),
            ("compute", "panicked: index out of bounds".to_owned(), Verdict::Bad),
            ("compute", "step `f`: `python3` gave no answer within 5s (raise timeout)".to_owned(), Verdict::Passing),
            ("writer", "can't start a thread: x".to_owned(), Verdict::Passing),
        ] {
            assert_eq!(of_fault(stage, &message), verdict, "{stage}: {message}");
        }
        let io = |n| std::io::Error::from_raw_os_error(n);
        let publish = |error| ExecuteError::Prepare(PublishError::Io { path: "out".to_owned(), error });
        assert_eq!(of_execute(&publish(io(libc::EROFS))), Verdict::Place);
        let wrapped = std::io::Error::other(format!("the folder out cannot be made: {}", io(libc::EACCES)));
        assert_eq!(of_execute(&publish(wrapped)), Verdict::Place);
        let open = |error| PlanError::Input { name: "input".to_owned(), error: OpenError::Io { path: "in".to_owned(), error } };
        assert_eq!(of_plan(&[open(io(libc::ESTALE))]), Verdict::Passing);
        assert_eq!(of_plan(&[open(io(libc::EACCES))]), Verdict::Passing);
        assert_eq!(of_plan(&[open(std::io::Error::other("a link leaves the store"))]), Verdict::Bad);
        assert_eq!(of_plan(&[PlanError::Wrong("x".to_owned())]), Verdict::Bad);
    }
}
