//! Words that must not be in the repository: it has to make sense on every machine.

use super::Findings;
use super::repository::{File, Repository};

/// Each word and what is wrong with it. Put together from parts, for this file is checked as well.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/", "work/"), "a path of one machine"),
    (concat!("/", "root/"), "a path of one machine"),
    (concat!("/opt/", "realcomfy"), "a path of one machine"),
    (concat!("/", "farm/"), "a path of one machine"),
    (concat!("/tmp/", "remuda-"), "a path of one machine"),
    (concat!("..", "/shared"), "outside the repository: copy what is needed into it"),
    (concat!("[source", "."), "a replaced package registry"),
    (concat!("replace", "-with"), "a replaced package registry"),
    (concat!("index", "-url"), "a private package registry"),
    (concat!("arti", "factory"), "a private package registry"),
];

pub(super) fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let mut seen = 0;
    for (file, text) in repository.texts() {
        seen += 1;
        findings.problems.extend(problems(file, text));
    }
    findings.seen = format!("{seen} text files");
    findings
}

fn problems(file: &File, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (word, why) in FORBIDDEN {
        for (at, _) in text.match_indices(word).filter(|(at, _)| begins_there(&text[..*at], word)) {
            let line = text[..at].matches('\n').count() + 1;
            problems.push(format!("{}:{line}: `{word}` is {why}", file.path));
        }
    }
    problems
}

/// Whether a match is the beginning of a path, not the middle of one: a folder or a part of an address
/// may well have such a name.
fn begins_there(before: &str, word: &str) -> bool {
    let follows_a_name = before.ends_with(|c: char| c.is_alphanumeric() || "_-.}~*".contains(c));
    !(word.starts_with('/') && follows_a_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        problems(&File::new("a.md", text), text)
    }

    #[test]
    fn absolute_paths_are_found_with_their_line() {
        let text = format!("fine\nsee {}x and \"{}y\"\n", FORBIDDEN[0].0, FORBIDDEN[1].0);
        let found = found(&text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|problem| problem.starts_with("a.md:2: ")), "{found:?}");
    }

    #[test]
    fn the_middle_of_a_path_is_not_a_machine() {
        for (word, _) in &FORBIDDEN[..2] {
            assert!(found(&format!("crates{word}x https://example.org{word}x")).is_empty());
        }
    }
}
