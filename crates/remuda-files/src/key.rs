//! Names of files in the store: the same string works as an S3 key and as a path on every file system.
//!
//! Rows hold these keys, never paths. Two ways make one: [`FileKey::parse`] takes a key that we once made (a row, a URL) and
//! refuses anything else; [`FileKey::join_name`] takes a name that somebody else made (a graph, a user) and makes it fit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::content::Sha256;
use crate::error::{Error, Result};

/// The longest segment in bytes. File systems allow 255; the local store adds a suffix while a file is being written.
const MAX_SEGMENT: usize = 200;

/// The longest key in bytes. S3 allows 1,024, of which the prefix of the location needs some.
const MAX_KEY: usize = 800;

/// An extension longer than this is not one, and is cut with the rest.
const MAX_EXTENSION: usize = 20;

/// The key of one file, or of a folder of files: relative, `/` between the segments.
///
/// A segment has 1 to 200 bytes of letters and digits of any script, blanks and `- _ . ( ) + = , @ !`; it begins with
/// neither `.` nor a blank, ends with neither, and is no device name of Windows. So no key leads out of its store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FileKey(String);

impl FileKey {
    /// A key as it was written before. Nothing is repaired.
    pub fn parse(key: &str) -> Result<Self> {
        let bad = |reason| Error::BadKey { key: key.chars().take(120).collect(), reason };
        if key.len() > MAX_KEY {
            return Err(bad("longer than 800 bytes"));
        }
        key.split('/').try_for_each(check_segment).map_err(bad)?;
        Ok(Self(key.to_owned()))
    }

    /// The key of a file with this name in this folder. The name may be anything: what does not fit is replaced, and what is
    /// too long is cut, with the extension kept. Two names may become the same key.
    pub fn join_name(&self, name: &str) -> Result<Self> {
        let key = format!("{}/{}", self.0, safe_name(name, MAX_SEGMENT));
        if key.len() > MAX_KEY {
            return Err(Error::BadKey {
                key: key.chars().take(120).collect(),
                reason: "longer than 800 bytes",
            });
        }
        Ok(Self(key))
    }

    /// The `n`th output of an attempt: `outputs/<task>/<attempt>-<fence>/<nnn>-<name>`. The fence is in it so that a runner
    /// that lost its lease can never overwrite what its successor wrote.
    pub fn output(task: Uuid, attempt: u32, fence: u64, n: u32, filename: &str) -> Self {
        let number = format!("{n:03}-");
        let name = safe_name(filename, MAX_SEGMENT - number.len());
        Self(format!("{}/{number}{name}", Self::outputs_of_attempt(task, attempt, fence)))
    }

    /// The folder of everything that a task brought forth.
    pub fn outputs_of(task: Uuid) -> Self {
        Self(format!("outputs/{task}"))
    }

    /// The folder of what one attempt brought forth under one lease.
    pub fn outputs_of_attempt(task: Uuid, attempt: u32, fence: u64) -> Self {
        Self(format!("outputs/{task}/{attempt}-{fence}"))
    }

    /// Where content with this hash lives: `assets/<first 2 digits>/<hash>`.
    pub fn asset(sha256: Sha256) -> Self {
        let digits = sha256.to_string();
        Self(format!("assets/{}/{digits}", &digits[..2]))
    }

    /// One of the 256 folders of content-addressed files.
    pub(crate) fn assets_below(folder: u8) -> Self {
        Self(format!("assets/{folder:02x}"))
    }

    /// Where an upload waits until its hash is known.
    pub(crate) fn temporary(id: Uuid) -> Self {
        Self(format!("tmp/{id}"))
    }

    /// The folder of [`FileKey::temporary`].
    pub(crate) fn all_temporary() -> Self {
        Self("tmp".to_owned())
    }

    /// The file that says whose store this is. Its name is none that `parse` lets through, so nobody else can reach it.
    pub(crate) fn installation() -> Self {
        Self(".remuda-installation".to_owned())
    }

    /// The key as it is written in rows.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The segments, from the outside in.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl fmt::Display for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FileKey {
    type Err = Error;

    fn from_str(key: &str) -> Result<Self> {
        Self::parse(key)
    }
}

impl TryFrom<String> for FileKey {
    type Error = Error;

    fn try_from(key: String) -> Result<Self> {
        Self::parse(&key)
    }
}

impl From<FileKey> for String {
    fn from(key: FileKey) -> String {
        key.0
    }
}

impl AsRef<str> for FileKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn is_safe(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.' | '(' | ')' | '+' | '=' | ',' | '@' | '!')
}

pub(crate) fn check_segment(segment: &str) -> Result<(), &'static str> {
    if segment.is_empty() {
        return Err("empty segment, or a slash at an end");
    }
    if segment.len() > MAX_SEGMENT {
        return Err("segment longer than 200 bytes");
    }
    if !segment.chars().all(is_safe) {
        return Err("character that some file system does not allow");
    }
    if segment.starts_with(['.', ' ']) || segment.ends_with(['.', ' ']) {
        return Err("segment that begins or ends with a dot or a blank");
    }
    if is_device(segment) {
        return Err("device name of Windows");
    }
    Ok(())
}

/// Windows takes `nul`, `NUL.txt` and `con .png` for devices, whatever folder they are in.
fn is_device(segment: &str) -> bool {
    let stem = segment.split('.').next().unwrap_or(segment).trim_end_matches(' ').to_ascii_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL") {
        return true;
    }
    let Some(rest) = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT")) else { return false };
    let mut rest = rest.chars();
    matches!((rest.next(), rest.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
}

/// Makes a segment of at most `limit` bytes of any text.
fn safe_name(name: &str, limit: usize) -> String {
    let replaced: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    let trimmed = replaced.trim_start_matches(' ').trim_end_matches(['.', ' ']);
    let mut safe = match trimmed.strip_prefix('.') {
        // A hidden file stays recognisable: `.env` becomes `_env`.
        Some(rest) => format!("_{rest}"),
        None => trimmed.to_owned(),
    };
    if safe.is_empty() {
        "file".clone_into(&mut safe);
    }
    if is_device(&safe) {
        safe.insert(0, '_');
    }
    let mut short = shorten(&safe, limit);
    // The cut may have made one of `con     x.png`; what is left of such a name is always short.
    if is_device(&short) {
        short.insert(0, '_');
    }
    short
}

/// Cuts in front of the extension, between characters, and leaves no dot or blank at the cut's end.
fn shorten(name: &str, limit: usize) -> String {
    if name.len() <= limit {
        return name.to_owned();
    }
    let extension = match name.rfind('.') {
        Some(dot) if dot > 0 && name.len() - dot <= MAX_EXTENSION => &name[dot..],
        _ => "",
    };
    let stem = &name[..name.len() - extension.len()];
    let stem = &stem[..stem.floor_char_boundary(limit - extension.len())];
    format!("{}{extension}", stem.trim_end_matches(['.', ' ']))
}
