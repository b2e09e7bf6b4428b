//! What a URL names: a key of a bucket, or a path of a server.

use std::fmt;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    S3,
    Gs,
    Http,
    Https,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::S3, Self::Gs, Self::Http, Self::Https];

    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }
}

/// True for a URL of a store that is known here.
pub fn is_url(path: &Path) -> bool {
    path.to_str().and_then(|text| text.split_once("://")).is_some_and(|(scheme, _)| Scheme::of(scheme).is_some())
}

/// A key in a store; shown as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub scheme: Scheme,
    /// The bucket, or the server with its port.
    pub host: String,
    /// Without a `/` at its ends.
    pub key: String,
}

impl Place {
    /// Reads a URL; the reason when it is none that can be a store.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("is no URL")?;
        let scheme = Scheme::of(scheme).ok_or("has an unknown scheme; s3, gs, http and https are known")?;
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            // Not quoted: what stands before the @ may be a password.
            return Err("has a user or password in it, which would end up in logs and outputs; leave it out".to_owned());
        }
        if rest.contains(['?', '#']) {
            return Err(
                "has a `?` or `#` in it: an array is many objects, of which each would need a query of its own".to_owned()
            );
        }
        let what = if matches!(scheme, Scheme::S3 | Scheme::Gs) { "bucket" } else { "server" };
        if host.is_empty() || host.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
            return Err(format!("names no {what}; write {}://{}/KEY", scheme.name(), what.to_uppercase()));
        }
        let key = key.trim_end_matches('/');
        if !key.is_empty() && key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err("has a part that is empty, `.` or `..`".to_owned());
        }
        if key.chars().any(|c| c.is_control() || c == '\\') {
            return Err("has a control character or `\\` in it".to_owned());
        }
        Ok(Self { scheme, host: host.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.key.is_empty() { "" } else { "/" };
        write!(f, "{}://{}{separator}{}", self.scheme.name(), self.host, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown() {
        for text in ["s3://bucket/a/b.zarr", "gs://bucket", "http://127.0.0.1:8080/x y.zarr", "https://host/a%20b"] {
            assert_eq!(Place::parse(text).unwrap().to_string(), text);
            assert!(is_url(Path::new(text)));
        }
        let place = Place::parse("s3://bucket/a/b.zarr/").unwrap();
        assert_eq!((place.scheme, place.host.as_str(), place.key.as_str()), (Scheme::S3, "bucket", "a/b.zarr"));
        assert!(!is_url(Path::new("folder/a.zarr")) && !is_url(Path::new("ftp://host/a")));
    }

    #[test]
    fn urls_that_lead_elsewhere_are_refused() {
        for (text, want) in [
            ("s3://user:secret@bucket/a", "user or password"),
            ("https://host/a?X-Amz-Signature=0", "`?`"),
            ("s3:///a", "names no bucket"),
            ("http:// /a", "names no server"),
            ("gs://bucket/a/../b", "empty, `.` or `..`"),
            ("gs://bucket/a//b", "empty, `.` or `..`"),
            ("s3://bucket/a\nb", "control character"),
            ("ftp://host/a", "unknown scheme"),
        ] {
            let refused = Place::parse(text).unwrap_err();
            assert!(refused.contains(want) && !refused.contains("secret"), "{text:?}: {refused}");
        }
    }
}
