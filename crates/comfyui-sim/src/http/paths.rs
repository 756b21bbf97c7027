//! Paths as Python's `os.path` treats them: as text, without a look at the disk.

use std::path::{Component, Path, PathBuf};

/// `os.path.abspath(os.path.join(base, name))`: `..` is resolved, an absolute `name` stands for itself.
pub(crate) fn resolve(base: &Path, name: &str) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in base.join(name).components() {
        match component {
            Component::ParentDir => {
                // Above the root is the root.
                resolved.pop();
            }
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// Whether a resolved path is `root` or lies below it.
pub(crate) fn within(root: &Path, path: &Path) -> bool {
    path.starts_with(root)
}

/// `os.path.splitext`: the ending includes its dot; dots at the start of the name do not count.
pub(crate) fn split_ending(name: &str) -> (&str, &str) {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let first = name[file..].find(|c| c != '.').map_or(name.len(), |at| file + at);
    match name[first..].rfind('.') {
        Some(dot) => name.split_at(first + dot),
        None => (name, ""),
    }
}

/// `folder_paths.annotated_filepath`: `name [output]` says where it lies.
pub(crate) fn annotation(name: &str) -> (&str, Option<&'static str>) {
    for kind in ["output", "input", "temp"] {
        let marked = name
            .strip_suffix(']')
            .and_then(|rest| rest.strip_suffix(kind))
            .and_then(|rest| rest.strip_suffix('['));
        if let Some(rest) = marked {
            // The blank before the bracket is cut off unseen, whatever stands there.
            let mut characters = rest.chars();
            characters.next_back();
            return (characters.as_str(), Some(kind));
        }
    }
    (name, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_unseen() {
        let root = Path::new("/srv/input");
        let inside = |name: &str| within(root, &resolve(root, name));
        assert!(inside("a.png") && inside("sub/../a.png") && inside("..hidden") && inside("."));
        assert!(!inside("../a.png") && !inside("/etc/passwd") && !inside("sub/../../x") && !inside(".."));
        assert!(!inside("../input2/x"));
        assert_eq!(resolve(root, "../../../../x"), Path::new("/x"));
    }

    #[test]
    fn endings_are_split_as_in_python() {
        let cases = [
            ("a.png", "a", ".png"),
            (".hidden", ".hidden", ""),
            ("..a.b", "..a", ".b"),
            ("dir.x/name", "dir.x/name", ""),
            ("a.tar.gz", "a.tar", ".gz"),
            ("a.", "a", "."),
            ("", "", ""),
        ];
        for (name, stem, ending) in cases {
            assert_eq!(split_ending(name), (stem, ending), "{name}");
        }
    }

    #[test]
    fn annotations_are_read() {
        assert_eq!(annotation("a.png [output]"), ("a.png", Some("output")));
        assert_eq!(annotation("a.png[temp]"), ("a.pn", Some("temp")));
        assert_eq!(annotation("[input]"), ("", Some("input")));
        assert_eq!(annotation("a.png [nowhere]"), ("a.png [nowhere]", None));
    }
}
