//! Documents as files in folders. A folder is there when something is in it.

use std::collections::HashSet;

use remuda_core::Timestamp;
use remuda_store::DocumentInfo;
use serde::Serialize;

/// How many entries a list may have, folders included …
const MOST: usize = 100_000;

/// … and how many bytes of paths.
const MOST_BYTES: usize = 16 << 20;

/// How many parts a path may have, the name of the file included.
pub(super) const DEEPEST: usize = 32;

/// The list would be too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl TooLong {
    pub(super) const TEXT: &'static str =
        "There are too many files and folders to list at once: ask for a folder further down";
}

/// What a list has room for.
struct Left {
    entries: usize,
    bytes: usize,
}

impl Left {
    fn new() -> Self {
        Self { entries: MOST, bytes: MOST_BYTES }
    }

    fn take(&mut self, entries: usize, bytes: usize) -> Result<(), TooLong> {
        self.entries = self.entries.checked_sub(entries).ok_or(TooLong)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(TooLong)?;
        Ok(())
    }
}

/// One file in a list, as it was asked for.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum File<'a> {
    Name(&'a str),
    Split(Vec<&'a str>),
    Info(FileInfo<'a>),
}

/// A file with all that is known of it.
#[derive(Debug, Serialize)]
pub(super) struct FileInfo<'a> {
    path: &'a str,
    size: i64,
    modified: f64,
    created: f64,
}

/// A file or a folder in the newer list.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    name: &'a str,
    path: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<f64>,
}

/// What stands in front of everything in a folder; the root is the empty path.
pub(super) fn prefix(folder: &str) -> String {
    match folder {
        "" => String::new(),
        folder => format!("{folder}/"),
    }
}

/// How files are listed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How {
    pub(super) recurse: bool,
    pub(super) full_info: bool,
    pub(super) split: bool,
}

/// `GET /userdata`: the files of a folder, with names as seen from it. Hidden ones are left out.
pub(super) fn list<'a>(
    documents: &'a [DocumentInfo],
    folder: &str,
    how: How,
) -> Result<Vec<File<'a>>, TooLong> {
    let prefix = prefix(folder);
    let files = documents.iter().filter_map(|info| Some((info.path.strip_prefix(&prefix)?, info)));
    let wanted = files.filter(|(name, _)| {
        (how.recurse || !name.contains('/')) && !name.split('/').any(|part| part.starts_with('.'))
    });
    let mut left = Left::new();
    wanted
        .map(|(name, info)| {
            if how.full_info {
                left.take(1, name.len())?;
                return Ok(File::Info(file_info(name, info)));
            }
            if how.split {
                let parts: Vec<_> = std::iter::once(name).chain(name.split('/')).collect();
                left.take(parts.len(), 2 * name.len())?;
                return Ok(File::Split(parts));
            }
            left.take(1, name.len())?;
            Ok(File::Name(name))
        })
        .collect()
}

/// `GET /v2/userdata`: everything below a folder, folders first, with names as seen from the root.
pub(super) fn list_v2<'a>(documents: &'a [DocumentInfo], folder: &str) -> Result<Vec<Entry<'a>>, TooLong> {
    let prefix = prefix(folder);
    let mut left = Left::new();
    let mut folders = HashSet::new();
    let mut found = Vec::new();
    for info in documents.iter().filter(|info| info.path.starts_with(&prefix)) {
        let path = info.path.as_str();
        left.take(1, path.len())?;
        found.push(Entry {
            name: name_of(path),
            path,
            kind: "file",
            size: Some(info.size),
            modified: Some(seconds(info.modified_at)),
        });
        // From the innermost outwards: around a folder that is known, all are.
        for (slash, _) in path.rmatch_indices('/').take_while(|(slash, _)| *slash >= prefix.len()) {
            let path = &path[..slash];
            if !folders.insert(path) {
                break;
            }
            left.take(1, path.len())?;
            found.push(Entry { name: name_of(path), path, kind: "directory", size: None, modified: None });
        }
    }
    found.sort_by_cached_key(|entry| (entry.kind == "file", entry.name.to_lowercase(), entry.path));
    Ok(found)
}

/// A file with all that is known of it.
pub(super) fn file_info<'a>(name: &'a str, info: &DocumentInfo) -> FileInfo<'a> {
    let (modified, created) = (seconds(info.modified_at), seconds(info.created_at));
    FileInfo { path: name, size: info.size, modified, created }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn seconds(moment: Timestamp) -> f64 {
    moment.as_microsecond() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn documents() -> Vec<DocumentInfo> {
        let at = Timestamp::from_microsecond(1_500_000).unwrap();
        let paths =
            ["user.css", "workflows/.index.json", "workflows/B.json", "workflows/sub/a.json", "x/y/z.txt"];
        let info =
            |path: &&str| DocumentInfo { path: (*path).to_owned(), size: 3, created_at: at, modified_at: at };
        paths.iter().map(info).collect()
    }

    fn listed(documents: &[DocumentInfo], folder: &str, how: How) -> Value {
        json!(list(documents, folder, how).unwrap())
    }

    #[test]
    fn files_are_listed_as_seen_from_their_folder() {
        let documents = documents();
        let plain = How::default();
        assert_eq!(listed(&documents, "workflows", plain), json!(["B.json"]));
        let all = How { recurse: true, ..plain };
        assert_eq!(listed(&documents, "workflows", all), json!(["B.json", "sub/a.json"]));
        let split = How { split: true, ..all };
        assert_eq!(listed(&documents, "x", split), json!([["y/z.txt", "y", "z.txt"]]));
        assert_eq!(
            listed(&documents, "x/y", How { full_info: true, split: true, ..all }),
            json!([{"path": "z.txt", "size": 3, "modified": 1.5, "created": 1.5}])
        );
        assert_eq!(listed(&documents, "work", all), json!([]));
    }

    #[test]
    fn a_list_has_an_end() {
        let at = Timestamp::from_microsecond(0).unwrap();
        let info = |n: usize| DocumentInfo {
            path: format!("{n}/{}z", "a/".repeat(500)),
            size: 1,
            created_at: at,
            modified_at: at,
        };
        let documents: Vec<_> = (0..2000).map(info).collect();
        assert_eq!(list_v2(&documents, "").unwrap_err(), TooLong);
        let split = How { recurse: true, split: true, full_info: false };
        assert_eq!(list(&documents, "", split).unwrap_err(), TooLong);
        assert_eq!(list_v2(&documents[..10], "").unwrap().len(), 10 * 502);
    }

    #[test]
    fn the_newer_list_has_folders_first() {
        let documents = documents();
        let found = list_v2(&documents, "").unwrap();
        let paths: Vec<_> = found.iter().map(|entry| entry.path).collect();
        assert_eq!(
            paths,
            [
                "workflows/sub",
                "workflows",
                "x",
                "x/y",
                "workflows/.index.json",
                "workflows/sub/a.json",
                "workflows/B.json",
                "user.css",
                "x/y/z.txt"
            ]
        );
        assert_eq!(list_v2(&documents, "x").unwrap().len(), 2);
    }
}
