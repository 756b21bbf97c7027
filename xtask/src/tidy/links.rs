//! Links between the documents lead somewhere.
//!
//! Only targets in the repository: whether an address on the network answers is not ours to decide.

use super::Findings;
use super::repository::{File, Repository};
use crate::run;
use std::path::{Path, PathBuf};

pub(super) fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let (mut documents, mut links) = (0, 0);
    for (file, text) in repository.with_ending(&[".md"]) {
        documents += 1;
        for (number, target) in targets(text) {
            links += 1;
            findings.problems.extend(problem(file, number, &target, &|path| run::root().join(path).exists()));
        }
    }
    findings.seen = format!("{links} links in {documents} documents");
    findings
}

fn problem(file: &File, number: usize, target: &str, exists: &dyn Fn(&Path) -> bool) -> Option<String> {
    let path = target.split('#').next().unwrap_or_default();
    let complain = |what: &str| Some(format!("{}:{number}: link to `{target}` {what}", file.path));
    match resolve(&file.path, path) {
        None => complain("leads out of the repository"),
        Some(path) if exists(&path) => None,
        Some(_) => complain("leads nowhere"),
    }
}

/// The path from the root, or nothing if it is not below the root.
fn resolve(document: &str, target: &str) -> Option<PathBuf> {
    let mut parts: Vec<&str> = document.split('/').collect();
    // The document itself; a link is relative to its folder.
    let document = parts.pop();
    if target.is_empty() {
        parts.extend(document);
    }
    if let Some(from_root) = target.strip_prefix('/') {
        parts = from_root.split('/').collect();
    } else {
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()?),
                part => parts.push(part),
            }
        }
    }
    Some(parts.iter().collect())
}

/// Every link to a file, with its line: `[text](target)` and `[name]: target`, outside of code.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let defined =
            prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
        found.extend(
            inline.chain(defined).filter(|target| is_file(target)).map(|target| (number, target.to_owned())),
        );
    }
    found
}

/// Neither an address with a scheme nor an item of the documentation (`crate::Client`).
fn is_file(target: &str) -> bool {
    !target.contains(':') && !target.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_where_they_are_links() {
        let text = "\
[one](a.md), ![two](img/b.png \"title\") and [web](https://example.org)
```
[not](code.md)
```
`[nor](this.md)` but [`three`](c.md#part), [item](crate::Client)

[four]: ../d.md
";
        let found = targets(text);
        let expected = [(1, "a.md"), (1, "img/b.png"), (5, "c.md#part"), (7, "../d.md")];
        assert_eq!(found, expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn links_are_resolved_from_their_document() {
        let file = File::new("docs/guide/a.md", "");
        let exists =
            |path: &Path| ["README.md", "docs/b.md", "docs/guide/a.md"].contains(&path.to_str().unwrap());
        let check = |target| problem(&file, 1, target, &exists);
        for good in ["../../README.md", "../b.md", "./a.md", "#part", "/README.md", "../b.md#x"] {
            assert_eq!(check(good), None, "{good}");
        }
        assert!(check("b.md").unwrap().ends_with("leads nowhere"));
        assert!(check("../../../x.md").unwrap().ends_with("leads out of the repository"));
    }
}
