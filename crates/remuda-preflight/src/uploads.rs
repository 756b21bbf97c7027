//! How files are named in ComfyUI's graphs and requests: `folder/name [temp]`.

/// The folders that ComfyUI has; `input` is the one that is meant when none is named.
const KINDS: [&str; 3] = ["output", "input", "temp"];

/// Takes `[temp]` and its kin off the end of a name, as ComfyUI does.
pub fn annotation(name: &str) -> (&str, Option<&'static str>) {
    for kind in KINDS {
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

/// A path without detours; `None` when it leaves the folder that it is meant in, or cannot be a name.
pub fn straight(path: &str) -> Option<String> {
    if path.starts_with('/') || path.chars().any(char::is_control) {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Under which name the upload `path` of this kind is kept. Those that are no inputs say so, as graphs do.
pub fn kept_name(path: &str, kind: &str) -> String {
    match kind {
        "input" => path.to_owned(),
        other => format!("{path} [{other}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_read_as_comfyui_reads_them() {
        assert_eq!(annotation("a.png [output]"), ("a.png", Some("output")));
        assert_eq!(annotation("a.png[temp]"), ("a.pn", Some("temp")));
        assert_eq!(annotation("[input]"), ("", Some("input")));
        assert_eq!(annotation("a.png [nowhere]"), ("a.png [nowhere]", None));
    }

    #[test]
    fn paths_cannot_leave_unseen() {
        for (path, expected) in [
            ("a.png", Some("a.png")),
            ("./sub//x/../a.png", Some("sub/a.png")),
            ("..hidden", Some("..hidden")),
            ("", Some("")),
            ("../a.png", None),
            ("sub/../../a.png", None),
            ("/etc/passwd", None),
            ("a\0b", None),
        ] {
            assert_eq!(straight(path).as_deref(), expected, "{path:?}");
        }
        assert_eq!(kept_name("a.png", "input"), "a.png");
        assert_eq!(kept_name("s/a.png", "temp"), "s/a.png [temp]");
    }
}
