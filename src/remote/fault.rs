//! What went wrong with a store, in words without anything secret. A [`Fault`] travels inside an [`io::Error`], so that
//! whoever reads files reads objects with the same code; [`crate::files::advice`] and [`crate::engine::stage::Cause`] look
//! for it there.

use std::error::Error;
use std::fmt;
use std::io;

use object_store::client::HttpError;

use super::place::Scheme;

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) reason: String,
    /// What the user can do; goes behind the reason.
    pub advice: &'static str,
    /// Another attempt may do better.
    pub(super) may_pass: bool,
    /// What the server answered, if it did.
    pub(super) status: Option<u16>,
    /// There was no server to talk to.
    pub(super) is_unreachable: bool,
}

impl Fault {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), advice: "", may_pass: false, status: None, is_unreachable: false }
    }

    pub(super) fn passing(reason: impl Into<String>) -> Self {
        Self { may_pass: true, ..Self::new(reason) }
    }

    /// What we refuse ourselves.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::new(reason)
    }

    /// A right that is missing.
    pub fn denied(reason: impl Into<String>) -> Self {
        Self { status: Some(403), ..Self::new(reason) }
    }

    pub(super) fn advised(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// A bucket that lies elsewhere.
    pub(super) fn of_region(self, region: Option<String>) -> Self {
        let reason = match region {
            Some(region) => format!("{}: the bucket is in region {region}", self.reason),
            None => self.reason,
        };
        Self { reason, advice: "; set AWS_REGION to the bucket's region", ..self }
    }

    /// The same after so many attempts.
    pub(super) fn after(mut self, attempts: usize) -> Self {
        if attempts > 1 {
            self.reason = format!("{} ({attempts} attempts)", self.reason);
        }
        self
    }

    /// What an error of a store carries; `None` for errors of files.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// True where another run may do better: credentials expire and are renewed.
    pub fn is_passing(&self) -> bool {
        self.may_pass || matches!(self.status, Some(401 | 403))
    }

    fn kind(&self) -> io::ErrorKind {
        match self.status {
            Some(401 | 403) => io::ErrorKind::PermissionDenied,
            // The object ends before the range.
            Some(416) => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        io::Error::new(fault.kind(), fault)
    }
}

/// What to look at when a store lets nobody in.
fn credentials(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "; check credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or AWS_SKIP_SIGNATURE=true for \
             a public bucket, and AWS_REGION; where listing is not allowed, S3 says the same of an object that is not there"
        }
        Scheme::Gs => "; check credentials: GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
        Scheme::Http | Scheme::Https => "; the server wants credentials, and none are sent to http(s):// paths",
    }
}

/// An error, what it comes from, what that comes from.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The first error of a chain of causes that is a `T`.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The last reason of a chain of causes, which says most.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// An error of the client library as one of files: an object that is not there is `NotFound`.
pub(super) fn of_store(error: object_store::Error, scheme: Scheme) -> io::Error {
    use object_store::Error::{NotFound, NotSupported, PermissionDenied, Precondition, Unauthenticated};
    let fault = match &error {
        NotFound { .. } => return io::ErrorKind::NotFound.into(),
        Precondition { .. } => Fault::passing("the object was changed while it was read").advised("; run the same command again"),
        PermissionDenied { .. } | Unauthenticated { .. } => {
            Fault { status: Some(403), ..Fault::new("access is denied").advised(credentials(scheme)) }
        }
        NotSupported { .. } => Fault::new("the server does not answer requests for a range, by which parts of objects are read"),
        other => match (find::<Fault>(other), find::<HttpError>(other)) {
            (Some(fault), _) => fault.clone(),
            (None, Some(_)) => Fault::passing(format!("the answer was cut off: {}", innermost(other))),
            (None, None) => Fault::new(innermost(other)),
        },
    };
    let fault = match fault.status {
        Some(401 | 403) => fault.advised(credentials(scheme)),
        _ => fault,
    };
    fault.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stage::Cause;
    use crate::files::{advice, is_absent};

    fn error(fault: Fault) -> io::Error {
        fault.into()
    }

    #[test]
    fn errors_carry_what_follows_from_them() {
        let denied = error(Fault { status: Some(403), ..Fault::new("denied") }.advised("; look there"));
        assert_eq!((denied.kind(), advice(&denied)), (io::ErrorKind::PermissionDenied, "; look there"));
        assert_eq!(Cause::of(&denied), Cause::Passing, "credentials expire");
        assert_eq!(Cause::of(&error(Fault::passing("lost"))), Cause::Passing);
        let refused = error(Fault { status: Some(400), ..Fault::new("refused") });
        assert_eq!((Cause::of(&refused), advice(&refused), is_absent(&refused)), (Cause::Final, "", false));
    }

    #[test]
    fn errors_of_the_library_are_told_apart() {
        let of = |error| of_store(error, Scheme::S3);
        let source = || Box::new(Fault::new("inner")) as Box<dyn Error + Send + Sync>;
        let path = String::new;
        assert!(is_absent(&of(object_store::Error::NotFound { path: path(), source: source() })));
        let changed = of(object_store::Error::Precondition { path: path(), source: source() });
        assert!(changed.to_string().contains("changed while it was read") && Cause::of(&changed) == Cause::Passing);
        let denied = of(object_store::Error::PermissionDenied { path: path(), source: source() });
        assert!(advice(&denied).contains("AWS_SECRET_ACCESS_KEY"));
        // The innermost reason counts, and a fault of ours before the library's words for it.
        let http = HttpError::new(object_store::client::HttpErrorKind::Unknown, Fault::passing("the server answers 503"));
        let wrapped = of(object_store::Error::Generic { store: "S3", source: Box::new(http) });
        assert!(wrapped.to_string() == "the server answers 503" && Cause::of(&wrapped) == Cause::Passing);
    }
}
