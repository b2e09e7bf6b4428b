//! Whose fault a failure is: the input's (no attempt will change that), the world's for a while, or the output's place.

use crate::engine::JobError;
use crate::engine::execute::ExecuteError;
use crate::engine::journal::LedgerError;
use crate::engine::publish::PublishError;
use crate::engine::stage::{Cause, Fault};
use crate::plan::PlanError;
use crate::reader::OpenError;
use crate::reader::kept::KeepError;
use crate::writer::coordinates::CoordinateError;

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

fn of_reading(cause: Cause) -> Verdict {
    match cause {
        Cause::Final => Verdict::Bad,
        // A link out of the store, a folder instead of a file.
        Cause::System(libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ENAMETOOLONG) => Verdict::Bad,
        Cause::System(_) | Cause::Passing => Verdict::Passing,
    }
}

fn of_writing(cause: Cause) -> Verdict {
    match cause {
        Cause::Final => Verdict::Bad,
        Cause::System(errno) if is_of_place(errno) => Verdict::Place,
        Cause::System(_) | Cause::Passing => Verdict::Passing,
    }
}

/// Of a call of the file system: what it refuses in words of ours may pass too.
fn of_file(error: &std::io::Error) -> Verdict {
    of_writing(error.raw_os_error().map_or(Cause::Passing, Cause::System))
}

pub fn of_plan(errors: &[PlanError]) -> Verdict {
    let of = |error: &PlanError| match error {
        PlanError::Input { error: OpenError::Io { error, .. }, .. } => of_reading(Cause::of(error)),
        _ => Verdict::Bad,
    };
    let is_passing = errors.iter().all(|e| of(e) == Verdict::Passing);
    if is_passing { Verdict::Passing } else { Verdict::Bad }
}

fn of_publish(error: &PublishError) -> Verdict {
    match error {
        PublishError::Exists { .. } => Verdict::Bad,
        PublishError::Io { error, .. } | PublishError::Folder { error, .. } => of_file(error),
        PublishError::Sink(error) | PublishError::Coordinate(CoordinateError::Sink(error)) => of_writing(error.cause()),
        PublishError::Coordinate(CoordinateError::Source { error, .. }) => of_reading(error.cause()),
        PublishError::Ledger(LedgerError::Io { error, .. }) => of_file(error),
        PublishError::Ledger(LedgerError::Busy { .. }) => Verdict::Passing,
    }
}

pub fn of_execute(error: &ExecuteError) -> Verdict {
    match error {
        ExecuteError::Prepare(error) | ExecuteError::Job(JobError::Publish(error)) => of_publish(error),
        ExecuteError::Stopped { .. } | ExecuteError::Job(JobError::Changed(_) | JobError::Threads(_) | JobError::Stopped) => {
            Verdict::Passing
        }
        // The program's own memory and scratch: another moment may have room.
        ExecuteError::Job(JobError::Keep(KeepError::Budget(_)) | JobError::State(_)) => Verdict::Passing,
        ExecuteError::Job(JobError::Keep(KeepError::Scratch { error, .. })) => of_file(error),
        ExecuteError::Job(JobError::Sink(error)) => of_writing(error.cause()),
        ExecuteError::Job(JobError::Fault(fault)) => of_fault(fault),
    }
}

fn of_fault(fault: &Fault) -> Verdict {
    match fault.stage {
        "reader" => of_reading(fault.cause),
        _ => of_writing(fault.cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_a_table() {
        use libc::{EACCES, EAGAIN, EIO, ENOENT, ENOSPC, EROFS, ESTALE};
        for (stage, cause, verdict) in [
            ("writer", Cause::System(ENOSPC), Verdict::Place),
            ("writer", Cause::System(EIO), Verdict::Passing),
            ("writer", Cause::Final, Verdict::Bad),
            // The state of passes lies in scratch.
            ("trim", Cause::System(ENOSPC), Verdict::Place),
            ("reader", Cause::System(EIO), Verdict::Passing),
            ("reader", Cause::System(EACCES), Verdict::Passing),
            ("reader", Cause::System(ENOENT), Verdict::Bad),
            ("reader", Cause::Final, Verdict::Bad),
            ("compute", Cause::Final, Verdict::Bad),
            ("compute", Cause::Passing, Verdict::Passing),
            ("compute", Cause::System(EAGAIN), Verdict::Passing),
        ] {
            // What the message says, a number in it too, counts for nothing.
            let fault = Fault::here(stage, "the user function failed: full (os error 28)").because(cause);
            assert_eq!(of_fault(&fault), verdict, "{stage}: {cause:?}");
        }
        let io = std::io::Error::from_raw_os_error;
        let publish = |error| ExecuteError::Prepare(PublishError::Io { path: "out".to_owned(), error });
        assert_eq!(of_execute(&publish(io(EROFS))), Verdict::Place);
        let (path, folder) = ("out/a".to_owned(), "out".to_owned());
        let folder = ExecuteError::Prepare(PublishError::Folder { path, folder, error: io(EACCES) });
        assert_eq!(of_execute(&folder), Verdict::Place);
        let open = |error| PlanError::Input { name: "input".to_owned(), error: OpenError::Io { path: "in".to_owned(), error } };
        assert_eq!(of_plan(&[open(io(ESTALE))]), Verdict::Passing);
        assert_eq!(of_plan(&[open(io(EACCES))]), Verdict::Passing);
        assert_eq!(of_plan(&[open(std::io::Error::other("a link leaves the store"))]), Verdict::Bad);
        assert_eq!(of_plan(&[PlanError::Wrong("x".to_owned())]), Verdict::Bad);
    }
}
