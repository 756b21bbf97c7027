//! From what object_store reports to what a caller can act on.
//!
//! Answers of S3 are shortened to their code and message: the whole answer to a wrong signature repeats the request, session
//! token included.

use std::error::Error as StdError;
use std::io;

use object_store::Error as StoreError;
use object_store::client::HttpError;

use crate::error::Error;
use crate::key::FileKey;

/// The longest text of a store that goes into an error.
const MAX_DETAIL: usize = 400;

/// Knows the store's name, and what must not be said.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    location: String,
    secrets: Vec<String>,
}

impl Trouble {
    pub(crate) fn new(location: String, secrets: Vec<String>) -> Self {
        Self { location, secrets }
    }

    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    pub(crate) fn unavailable(&self, detail: impl Into<String>) -> Error {
        Error::Unavailable { location: self.location.clone(), detail: detail.into() }
    }

    pub(crate) fn other(&self, detail: impl Into<String>) -> Error {
        Error::Other { location: self.location.clone(), detail: detail.into() }
    }

    /// What a request about this key met.
    pub(crate) fn with_key(&self, key: &FileKey, error: &StoreError) -> Error {
        match self.reason(error) {
            Reason::Absent => Error::NotFound { key: key.clone() },
            reason => self.because(reason, self.summary(error)),
        }
    }

    /// What a write met: there "not found" can only mean the bucket or the directory.
    pub(crate) fn of_write(&self, error: &StoreError) -> Error {
        match self.reason(error) {
            Reason::Absent => {
                self.unavailable(format!("the bucket or directory was not found ({})", self.summary(error)))
            }
            reason => self.because(reason, self.summary(error)),
        }
    }

    /// What the file system said.
    pub(crate) fn of_io(&self, error: &io::Error) -> Error {
        self.because(io_reason(error), error.to_string())
    }

    fn because(&self, reason: Reason, detail: String) -> Error {
        let location = self.location.clone();
        match reason {
            Reason::Absent | Reason::Away => Error::Unavailable { location, detail },
            Reason::Full => Error::Full { location, detail },
            Reason::Denied => Error::Denied { location, detail },
            Reason::Broken => Error::Other { location, detail },
        }
    }

    fn reason(&self, error: &StoreError) -> Reason {
        match error {
            StoreError::NotFound { .. } => return Reason::Absent,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                return Reason::Denied;
            }
            StoreError::JoinError { .. } => return Reason::Away,
            _ => {}
        }
        for cause in causes(error) {
            if let Some(error) = cause.downcast_ref::<HttpError>() {
                tracing::debug!(error.kind = ?error.kind(), "the file store's connection failed");
                return Reason::Away;
            }
            // `Other` is a wrapping, or says nothing.
            if let Some(error) =
                cause.downcast_ref::<io::Error>().filter(|error| error.kind() != io::ErrorKind::Other)
            {
                return io_reason(error);
            }
        }
        match status(&error.to_string()) {
            Some(404) => Reason::Absent,
            Some(401 | 403) => Reason::Denied,
            Some(507) => Reason::Full,
            Some(408 | 429 | 500..) => Reason::Away,
            _ => Reason::Broken,
        }
    }

    /// One line without secrets.
    fn summary(&self, error: &StoreError) -> String {
        let text = match error {
            StoreError::Generic { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        let mut summary = match between(&text, "<Code>", "</Code>") {
            Some(code) => match between(&text, "<Message>", "</Message>") {
                Some(message) => format!("{code}: {message}"),
                None => code.to_owned(),
            },
            // An answer of unknown shape is not repeated at all.
            None if text.contains('<') => match status(&text) {
                Some(status) => format!("HTTP status {status}"),
                None => "an answer that is not S3's".to_owned(),
            },
            None => match causes(error).last().map(ToString::to_string) {
                Some(root) if !text.contains(&root) => format!("{text}: {root}"),
                _ => text,
            },
        };
        for secret in &self.secrets {
            summary = summary.replace(secret.as_str(), "***");
        }
        if summary.len() > MAX_DETAIL {
            summary.truncate(summary.floor_char_boundary(MAX_DETAIL));
            summary.push('…');
        }
        summary
    }
}

enum Reason {
    Absent,
    Away,
    Full,
    Denied,
    Broken,
}

fn io_reason(error: &io::Error) -> Reason {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Reason::Absent,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Reason::Full,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Reason::Denied,
        ErrorKind::IsADirectory
        | ErrorKind::AlreadyExists
        | ErrorKind::DirectoryNotEmpty
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename
        | ErrorKind::InvalidData
        | ErrorKind::FileTooLarge
        | ErrorKind::CrossesDevices
        | ErrorKind::Unsupported => Reason::Broken,
        // Input/output errors of failing or remote disks, too many open files, and the like.
        _ => Reason::Away,
    }
}

/// The error and what is behind it.
fn causes<'a>(error: &'a StoreError) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let first: &'a (dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// The HTTP status of a refused request. object_store keeps the type that holds it to itself, so its text has to do; a change
/// of that text is noticed by the tests for denied access and for a missing bucket.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("non-2xx status code: ")?;
    rest.get(..3)?.parse().ok()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> StoreError {
        StoreError::Generic { store: "test", source: source.into() }
    }

    /// As `write` reports it on Linux and on Windows; wrapped, as object_store hands it on.
    #[test]
    fn a_full_disk_is_told_apart() {
        let trouble = Trouble::new("file:x".to_owned(), Vec::new());
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = trouble.of_write(&generic(io::Error::other(generic(full))));
        assert!(matches!(&error, Error::Full { location, .. } if location == "file:x"), "{error:?}");
        let full = trouble.of_write(&generic("Server returned non-2xx status code: 507: <html>"));
        assert!(matches!(&full, Error::Full { detail, .. } if detail == "HTTP status 507"), "{full:?}");
    }

    #[test]
    fn answers_are_shortened_and_secrets_are_not_repeated() {
        let trouble = Trouble::new("s3://x".to_owned(), vec!["hush".to_owned()]);
        let answer = "Server returned non-2xx status code: 403: <Error><Code>Bad</Code><Message>no hush here</Message>\
                      <CanonicalRequest>x-amz-security-token:hush</CanonicalRequest></Error>";
        let error = trouble.of_write(&generic(answer));
        assert_eq!(error.to_string(), "access to s3://x was denied: Bad: no *** here");
        let long = trouble.of_write(&generic("é".repeat(1000))).to_string();
        assert!(long.len() < 500 && long.ends_with('…'), "{long}");
    }
}
