//! Whoever sends a graph chooses its size. Every function over graphs, descriptions of nodes and results therefore stands in
//! a table of growth (`growth.rs` or `growth/`, one for each crate), whose test runs it with inputs of doubled sizes.

use super::Findings;
use super::repository::Repository;
use std::collections::BTreeSet;

/// Where such functions are.
const CRATES: &[&str] = &[
    "crates/comfyui/src/",
    "crates/remuda-frames/src/",
    "crates/remuda-preflight/src/",
    "crates/remuda-runner/src/",
    "crates/remuda-server/src/",
    "crates/remuda-sidecar/src/",
    "crates/remuda-littlehorse/src/",
];

/// Files in which every function that others can call belongs into a table, whatever it takes.
const WHOLE_FILES: &[&str] =
    &["crates/remuda-core/src/secrets.rs", "crates/remuda-server/src/native/prompts/entry.rs"];

/// What strangers choose the size of. A function that takes one of these, or is a method of one, belongs into a table.
const TYPES: &[&str] =
    &["Workflow", "ObjectInfo", "Outputs", "NodeOutput", "HistoryEntry", "Index", "Report", "Description"];

/// Types whose methods only hold such a thing, or ask a server for it; what reads it is in a table.
const HOLDERS: &[&str] = &["Client", "PromptRequest", "Readings", "Shared"];

pub(super) fn check(repository: &Repository) -> Findings {
    let mut table = BTreeSet::new();
    let mut functions = Vec::new();
    for (file, text) in repository.with_ending(&[".rs"]) {
        // The table of one crate may cover functions of another, which cannot reach what measures.
        if is_table(&file.path) {
            table.extend(names(text));
        } else if CRATES.iter().chain(WHOLE_FILES).any(|path| file.path.starts_with(path)) {
            functions.extend(over_graphs(&file.path, text).map(|name| (file.path.clone(), name)));
        }
    }
    let problems = functions.iter().filter(|(_, name)| !table.contains(name)).map(|(path, name)| {
        format!("{path}: {name} works on a graph and is in no table of growth: add a case to growth.rs of its crate")
    });
    Findings {
        problems: problems.collect(),
        seen: format!("{} functions over graphs, {} in the tables", functions.len(), table.len()),
        ..Findings::default()
    }
}

fn is_table(path: &str) -> bool {
    path.starts_with("crates/") && (path.ends_with("/growth.rs") || path.contains("/growth/"))
}

/// The names in a table: texts such as `Workflow::parse`.
fn names(text: &str) -> impl Iterator<Item = String> {
    let texts = text.split('"').skip(1).step_by(2);
    let is_name = |text: &&str| {
        text.contains("::") && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '_'))
    };
    texts.filter(is_name).map(str::to_owned)
}

/// The functions of a file that others can call and that work on a graph.
fn over_graphs(path: &str, text: &str) -> impl Iterator<Item = String> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let (module, all) = (module(path), WHOLE_FILES.contains(&path));
    let mut of: Option<&str> = None;
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("impl") {
            of = Some(implemented(line));
        } else if line.starts_with('}') {
            of = None;
        }
        let Some(name) = function(line) else { continue };
        let signature: String = lines[at..].iter().take_while(|line| !line.trim().is_empty()).take(12).fold(
            String::new(),
            |all, line| {
                if all.contains('{') { all } else { all + line }
            },
        );
        let words = || signature.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let over =
            all || of.is_some_and(|of| TYPES.contains(&of)) || words().any(|word| TYPES.contains(&word));
        if over && !of.is_some_and(|of| HOLDERS.contains(&of)) {
            found.push(format!("{}::{name}", of.unwrap_or(module)));
        }
    }
    found.into_iter()
}

/// The name of a function that a line begins, if others can call it.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = [
        "pub fn ",
        "pub(crate) fn ",
        "pub(super) fn ",
        "pub async fn ",
        "pub(crate) async fn ",
        "pub(super) async fn ",
    ]
    .iter()
    .find_map(|begin| line.strip_prefix(begin))?;
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
}

/// The type that an `impl` is for.
fn implemented(line: &str) -> &str {
    let line = line.trim_end_matches('{').trim();
    let line = line.rsplit(" for ").next().unwrap_or(line);
    // After `impl` and its parameters, up to the parameters of the type.
    let line = line.strip_prefix("impl").unwrap_or(line);
    let line = match line.strip_prefix('<') {
        Some(rest) => rest.split_once("> ").map_or(rest, |(_, rest)| rest),
        None => line,
    };
    line.trim().split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The name of the module that a file is.
fn module(path: &str) -> &str {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        over_graphs(path, text).collect()
    }

    #[test]
    fn functions_over_graphs_are_seen() {
        let text = "impl Workflow {\n    pub fn nodes(&self) -> usize {\n    }\n    fn own(&self) {}\n}\n\n\
                    pub(super) fn check(\n    graph: &Workflow,\n) -> usize {\n}\n\npub fn other(n: usize) {\n}\n\n\
                    impl<'a> Index<'a> {\n    pub fn get(&self) {\n    }\n}\n";
        assert_eq!(
            found("crates/x/src/guard/mod.rs", text),
            ["Workflow::nodes", "guard::check", "Index::get"]
        );
        assert!(
            found("a/b.rs", "impl Client {\n    pub async fn ask(&self) -> ObjectInfo {\n    }\n}\n")
                .is_empty()
        );
        assert!(found("a/b.rs", "x\n#[cfg(test)]\nmod tests {\n    pub fn f(w: &Workflow) {}\n}").is_empty());
    }

    #[test]
    fn of_some_files_every_function_is_seen() {
        let text = "pub fn split(text: &str) {\n}\n\nfn own() {\n}\n";
        assert_eq!(found("crates/remuda-core/src/secrets.rs", text), ["secrets::split"]);
        assert!(found("crates/remuda-core/src/other.rs", text).is_empty());
    }

    #[test]
    fn tables_are_read() {
        let text = "case(&[\"Workflow::nodes\", \"guard::check\"], \"many nodes: a::b c\", 3, x)";
        assert_eq!(names(text).collect::<Vec<_>>(), ["Workflow::nodes", "guard::check"]);
        assert!(is_table("crates/comfyui/src/growth/graphs.rs") && is_table("crates/a/src/growth.rs"));
        assert!(!is_table("xtask/src/tidy/growth.rs"), "this one");
    }
}
