//! Documents as files in folders. A folder is there when something is in it.

use std::collections::BTreeSet;

use remuda_core::Timestamp;
use remuda_store::DocumentInfo;
use serde_json::{Value, json};

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
pub(super) fn list(documents: &[DocumentInfo], folder: &str, how: How) -> Vec<Value> {
    let prefix = prefix(folder);
    let files = documents.iter().filter_map(|info| Some((info.path.strip_prefix(&prefix)?, info)));
    let wanted = files.filter(|(name, _)| {
        (how.recurse || !name.contains('/')) && !name.split('/').any(|part| part.starts_with('.'))
    });
    wanted
        .map(|(name, info)| {
            if how.full_info {
                return file_info(name, info);
            }
            if how.split {
                return std::iter::once(name).chain(name.split('/')).collect();
            }
            name.into()
        })
        .collect()
}

/// `GET /v2/userdata`: everything below a folder, folders first, with names as seen from the root.
pub(super) fn list_v2(documents: &[DocumentInfo], folder: &str) -> Vec<Value> {
    let prefix = prefix(folder);
    let mut folders = BTreeSet::new();
    let mut found = Vec::new();
    for info in documents.iter().filter(|info| info.path.starts_with(&prefix)) {
        for (slash, _) in info.path.match_indices('/').filter(|(slash, _)| *slash >= prefix.len()) {
            folders.insert(&info.path[..slash]);
        }
        let entry = json!({
            "name": name_of(&info.path), "path": info.path, "type": "file",
            "size": info.size, "modified": seconds(info.modified_at),
        });
        found.push((true, name_of(&info.path).to_lowercase(), entry));
    }
    for path in folders {
        let entry = json!({"name": name_of(path), "path": path, "type": "directory"});
        found.push((false, name_of(path).to_lowercase(), entry));
    }
    found.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    found.into_iter().map(|(.., entry)| entry).collect()
}

/// A file with all that is known of it.
pub(super) fn file_info(name: &str, info: &DocumentInfo) -> Value {
    json!({
        "path": name, "size": info.size,
        "modified": seconds(info.modified_at), "created": seconds(info.created_at),
    })
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

    fn documents() -> Vec<DocumentInfo> {
        let at = Timestamp::from_microsecond(1_500_000).unwrap();
        let paths =
            ["user.css", "workflows/.index.json", "workflows/B.json", "workflows/sub/a.json", "x/y/z.txt"];
        let info =
            |path: &&str| DocumentInfo { path: (*path).to_owned(), size: 3, created_at: at, modified_at: at };
        paths.iter().map(info).collect()
    }

    #[test]
    fn files_are_listed_as_seen_from_their_folder() {
        let documents = documents();
        let plain = How::default();
        assert_eq!(list(&documents, "workflows", plain), ["B.json"]);
        let all = How { recurse: true, ..plain };
        assert_eq!(list(&documents, "workflows", all), ["B.json", "sub/a.json"]);
        assert_eq!(list(&documents, "x", How { split: true, ..all }), [json!(["y/z.txt", "y", "z.txt"])]);
        assert_eq!(
            list(&documents, "x/y", How { full_info: true, split: true, ..all }),
            [json!({"path": "z.txt", "size": 3, "modified": 1.5, "created": 1.5})]
        );
        assert!(list(&documents, "work", all).is_empty());
    }

    #[test]
    fn the_newer_list_has_folders_first() {
        let found = list_v2(&documents(), "");
        let paths: Vec<_> = found.iter().map(|entry| entry["path"].as_str().unwrap()).collect();
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
        assert_eq!(list_v2(&documents(), "x").len(), 2);
    }
}
