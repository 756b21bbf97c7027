//! Nothing is left for later in the code, and no test is switched off.
//!
//! What is open belongs into an issue; a test that cannot pass asserts what happens today and says why
//! that is wrong.

use super::Findings;
use super::repository::{File, Repository};

/// Files that people write; recordings of others may say what they like.
const WRITTEN: &[&str] =
    &[".rs", ".md", ".toml", ".sh", ".py", ".js", ".ts", ".html", ".css", ".sql", ".ci/run"];

/// Marks anywhere in them. Put together from parts, for this file is checked as well.
const LEFT_OVER: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// Further marks in Rust.
const IN_RUST: &[(&str, &str)] = &[
    (concat!("todo", "!("), "is left over"),
    (concat!("unimplemented", "!("), "is left over"),
    (concat!("#[", "ignore"), "switches a test off"),
    (concat!(", ", "ignore)]"), "switches a test off"),
    (concat!("```", "ignore"), "switches a documentation test off; use `text` for what is not Rust"),
    (concat!("```rust,", "ignore"), "switches a documentation test off; use `text` for what is not Rust"),
];

pub(super) fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let mut seen = 0;
    for (file, text) in repository.with_ending(WRITTEN) {
        seen += 1;
        findings.problems.extend(problems(file, text));
    }
    findings.seen = format!("{seen} written files");
    findings
}

fn problems(file: &File, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for mark in LEFT_OVER.iter().filter(|mark| contains_word(line, mark)) {
            problems.push(format!("{}:{number}: `{mark}` is left over", file.path));
        }
        if file.path.ends_with(".rs") {
            for (mark, why) in IN_RUST.iter().filter(|(mark, _)| line.contains(mark)) {
                problems.push(format!("{}:{number}: `{mark}` {why}", file.path));
            }
        }
    }
    problems
}

fn contains_word(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_of_name) && !line[at + word.len()..].starts_with(part_of_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        problems(&File::new(path, text), text).len()
    }

    #[test]
    fn marks_are_words_not_parts_of_names() {
        let mark = LEFT_OVER[0];
        assert_eq!(found("a.md", &format!("// {mark}: later")), 1);
        assert_eq!(found("a.md", &format!("MY_{mark}S and {mark}_LIST")), 0);
    }

    #[test]
    fn switched_off_tests_are_found_in_rust_only() {
        for (mark, _) in IN_RUST {
            assert_eq!(found("a.rs", &format!("    {mark} ")), 1, "{mark}");
            assert_eq!(found("a.md", mark), 0, "{mark}");
        }
    }
}
