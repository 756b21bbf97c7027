//! `[graph]`: how large graphs and their results may be.

use remuda_preflight::GraphLimits;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};

const SERVE: &[Program] = &[Program::Serve];

/// The largest number that any of them takes.
const MOST: u64 = 10_000_000;

const LIMIT: Setting = Setting { shape: Shape::Number, range: (1, MOST), ..Setting::BASE };

static NODES: Setting = Setting {
    name: "graph.nodes",
    env: &["REMUDA_GRAPH_NODES"],
    flags: &[flag("graph-nodes", "N", Program::RUNNING)],
    default: "20000",
    help: "Most nodes in a graph; larger ones are refused",
    ..LIMIT
};

static INPUTS: Setting = Setting {
    name: "graph.inputs",
    env: &["REMUDA_GRAPH_INPUTS"],
    flags: &[flag("graph-inputs", "N", Program::RUNNING)],
    default: "4096",
    help: "Most inputs of one node",
    ..LIMIT
};

static TARGETS: Setting = Setting {
    name: "graph.targets",
    env: &["REMUDA_GRAPH_TARGETS"],
    flags: &[flag("graph-targets", "N", SERVE)],
    default: "10000",
    help: "Most output nodes that a request may choose (partial_execution_targets)",
    ..LIMIT
};

static NAME_LENGTH: Setting = Setting {
    name: "graph.name_length",
    env: &["REMUDA_GRAPH_NAME_LENGTH"],
    flags: &[flag("graph-name-length", "BYTES", Program::RUNNING)],
    default: "1024",
    range: (64, 65_536),
    help: "Longest node id, class name, input name or file name, in bytes",
    ..LIMIT
};

static FILES: Setting = Setting {
    name: "graph.files",
    env: &["REMUDA_GRAPH_FILES"],
    flags: &[flag("graph-files", "N", SERVE)],
    default: "1000",
    help: "Most different input files that a task may name",
    ..LIMIT
};

static OUTPUT_FILES: Setting = Setting {
    name: "graph.output_files",
    env: &["REMUDA_GRAPH_OUTPUT_FILES"],
    flags: &[flag("graph-output-files", "N", Program::RUNNING)],
    default: "20000",
    help: "Most files that a task may leave; one that leaves more fails, and is not rendered again",
    ..LIMIT
};

static OUTPUTS: Setting = Setting {
    name: "graph.outputs",
    env: &["REMUDA_GRAPH_OUTPUTS"],
    flags: &[flag("graph-outputs", "N", Program::RUNNING)],
    default: "100000",
    help: "Most results of any kind that a task may leave: files, texts and data",
    ..LIMIT
};

static ALLOWED_PATHS: Setting = Setting {
    name: "graph.allowed_paths",
    env: &["REMUDA_ALLOWED_PATHS"],
    flags: &[flag("allow-path", "DIR", SERVE)],
    shape: Shape::List,
    help: "Folders on the workers' hosts, as absolute paths, from which every tenant's graphs may read files; not set: none",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] =
    &[&NODES, &INPUTS, &TARGETS, &NAME_LENGTH, &FILES, &OUTPUT_FILES, &OUTPUTS, &ALLOWED_PATHS];

/// The limits that the settings name.
pub(in crate::config) fn read(from: &Resolved) -> Result<GraphLimits, ConfigError> {
    Ok(GraphLimits {
        nodes: from.get(&NODES)?,
        inputs: from.get(&INPUTS)?,
        targets: from.get(&TARGETS)?,
        name_length: from.get(&NAME_LENGTH)?,
        files: from.get(&FILES)?,
        output_files: from.get(&OUTPUT_FILES)?,
        outputs: from.get(&OUTPUTS)?,
        allowed_paths: allowed_paths(from.list(&ALLOWED_PATHS)?)
            .map_err(|reason| from.blame(&ALLOWED_PATHS, reason))?,
    })
}

/// Folders by their absolute paths, of Windows too: workers may run elsewhere.
fn allowed_paths(given: Vec<String>) -> Result<Vec<String>, String> {
    for folder in &given {
        let drive =
            matches!(folder.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic());
        let upwards = folder.split(['/', '\\']).any(|part| part == "..");
        if upwards || !(drive || folder.starts_with('/') || folder.starts_with("\\\\")) {
            return Err(format!("`{folder}` is not an absolute path; write one such as /mnt/nas"));
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_folders_are_absolute() {
        let read = |folder: &str| allowed_paths(vec![folder.to_owned()]);
        for folder in ["/mnt/nas", "/", "D:\\films", "d:/films", "\\\\nas\\films"] {
            assert_eq!(read(folder), Ok(vec![folder.to_owned()]));
        }
        for folder in ["films", "../films", "/mnt/../etc", "D:films", "~/films"] {
            assert!(read(folder).is_err(), "{folder}");
        }
    }
}
