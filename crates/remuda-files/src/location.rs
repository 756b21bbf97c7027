//! Where a file store is: what stands behind `--files`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::key::check_segment;

/// A place for files: `file:DIR`, a plain path, or `s3://bucket/prefix`.
///
/// Display and Debug never print a credential: credentials come with [`Location::with_settings`], not in the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Location {
    pub(crate) kind: Kind,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory(PathBuf),
    S3 {
        bucket: String,
        /// Without slashes at its ends; empty for the whole bucket.
        prefix: String,
        /// Lower-case names without `aws_` in front.
        settings: BTreeMap<String, String>,
    },
}

impl Location {
    /// A directory on this machine, or one that is mounted on it.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self { kind: Kind::Directory(path.into()) }
    }

    /// Gives the store its settings, usually [`std::env::vars`]: of all names only those that begin with `AWS_` are looked at.
    ///
    /// The usual ones are `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` (or
    /// `AWS_DEFAULT_REGION`) and `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`) for a store that is not Amazon's. A directory
    /// needs none and ignores them.
    #[must_use]
    pub fn with_settings<K, V>(mut self, settings: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: AsRef<str>,
        V: Into<String>,
    {
        if let Kind::S3 { settings: known, .. } = &mut self.kind {
            for (name, value) in settings {
                let value = value.into();
                let name = name.as_ref().to_ascii_lowercase();
                // An empty variable is how compose files say "not set".
                if let Some(name) = name.strip_prefix("aws_")
                    && !value.is_empty()
                {
                    known.insert(name.to_owned(), value);
                }
            }
        }
        self
    }

    /// Whether this is a directory: another machine sees it only when the same one is mounted there.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Directory(path) => write!(f, "file:{}", path.display()),
            Kind::S3 { bucket, prefix, .. } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Kind::S3 { bucket, prefix, .. } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = match text.split_once(':') {
            // `C:\data` is a path, and so is `./a:b`.
            Some((scheme, rest)) if scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                (scheme.to_ascii_lowercase(), rest)
            }
            _ => (String::new(), text),
        };
        match (scheme.as_str(), rest) {
            ("", "") => Err(bad("\"\"", "it is empty; write file:DIR or s3://bucket/prefix")),
            ("", path) => Ok(Self::directory(path)),
            ("file", rest) => parse_directory(rest),
            ("s3" | "s3a", rest) => parse_s3(rest),
            ("gs" | "gcs", _) => {
                Err(bad("gs:…", "Google Cloud Storage is not built in yet; use s3://… or file:DIR"))
            }
            ("az" | "azure" | "abfs" | "abfss" | "adl", _) => {
                Err(bad("az:…", "Azure storage is not built in yet; use s3://… or file:DIR"))
            }
            ("http" | "https", _) => Err(bad(
                "http…",
                "a URL is no file store; write s3://bucket/prefix and set AWS_ENDPOINT_URL to the address",
            )),
            // Only the scheme is shown: what follows may hold a password.
            (other, _) => {
                Err(bad(&format!("{other}:…"), "unknown kind of store; write file:DIR or s3://bucket/prefix"))
            }
        }
    }
}

fn bad(location: &str, reason: impl Into<String>) -> Error {
    Error::BadLocation { location: location.to_owned(), reason: reason.into() }
}

/// `file:DIR`, `file:/DIR` and `file:///DIR`.
fn parse_directory(rest: &str) -> Result<Location> {
    let path = match rest.strip_prefix("//") {
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(bad(&format!("file:{rest}"), "it names a host; write file:DIR or file:///DIR"));
        }
        None => rest,
    };
    if path.is_empty() {
        return Err(bad("file:", "it names no directory; write file:DIR"));
    }
    Ok(Location::directory(path))
}

fn parse_s3(rest: &str) -> Result<Location> {
    // What is between `//` and `@` is never shown.
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(bad("s3:…", "write s3://bucket/prefix"));
    };
    if rest.contains('@') {
        let reason = "credentials do not belong here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        return Err(bad("s3://…", reason));
    }
    if rest.contains(['?', '#']) {
        return Err(bad(
            "s3://…",
            "settings do not belong here; set AWS_REGION, AWS_ENDPOINT_URL and the like",
        ));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let shown = format!("s3://{rest}");
    let usual = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(usual) {
        let reason = "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens";
        return Err(bad(&shown, reason));
    }
    let prefix = prefix.trim_matches('/');
    if prefix.len() > 200 {
        return Err(bad(&shown, "the prefix has more than 200 bytes"));
    }
    if !prefix.is_empty() {
        prefix
            .split('/')
            .try_for_each(check_segment)
            .map_err(|reason| bad(&shown, format!("its prefix has a {reason}")))?;
    }
    let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
    Ok(Location { kind: Kind::S3 { bucket, prefix, settings: BTreeMap::new() } })
}
