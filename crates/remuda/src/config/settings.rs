//! All settings, typed and checked.

use std::path::{Path, PathBuf};

use remuda_preflight::GraphLimits;

use super::error::{ConfigError, Problem};
use super::file::{self, FileValues};
use super::resolve::{Origin, Resolved, Resolver};
use super::sections::{self, Client, Door, Files, Log, Process, Server, Store, Sync, Tasks, Worker, Workers};
use super::setting::Setting;
use super::sources::Sources;
use crate::commands::worker::SOURCES;

/// The file that is read when none is named.
const FILE: &str = "remuda.toml";

/// The settings of one process.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `[server]`: the API and the data directory.
    pub(crate) server: Server,
    /// `[server]`, too: what one guest may take.
    pub(crate) door: Door,
    /// `[store]`: the tasks.
    pub(crate) store: Store,
    /// `[files]`: outputs and uploads.
    pub(crate) files: Files,
    /// `[workers]`: the ComfyUIs.
    pub(crate) workers: Workers,
    /// `[tasks]`: what holds for a task that does not say otherwise, and how tasks are run.
    pub(crate) tasks: Tasks,
    /// `[graph]`: how large graphs and their results may be.
    pub(crate) graph: GraphLimits,
    /// `[sync]`: the synchronous handler.
    pub(crate) sync: Sync,
    /// `[process]`: how the process keeps itself going.
    pub(crate) process: Process,
    /// `[client]`: the server to talk to.
    pub(crate) client: Client,
    /// `[worker]`: a process of its own beside a ComfyUI.
    pub(crate) worker: Worker,
    /// `[log]`.
    pub(crate) log: Log,
    /// Every setting as text, with where it came from: what a source reads its own from.
    pub(crate) found: Resolved,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// What is odd and stops nothing. To be logged once.
    pub(crate) warnings: Vec<String>,
}

/// Every setting there is.
pub(crate) fn table() -> impl Iterator<Item = &'static Setting> {
    let sources = || SOURCES.iter().map(|source| source.settings);
    let after = |section: &[&Setting]| section.first().is_some_and(|first| first.section() == "worker");
    let with = move |section: &&'static [&'static Setting]| {
        let sources = after(section).then(sources).into_iter().flatten();
        std::iter::once(*section).chain(sources)
    };
    sections::ALL.iter().flat_map(with).flat_map(|section| section.iter().copied())
}

impl Settings {
    /// Reads everything; an error names all that is wrong.
    pub(crate) fn load(sources: &Sources<'_>) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let (path, file) = read_file(sources, &mut problems);
        let mut resolver = Resolver { sources, path, file, problems, warnings: Vec::new() };
        let found = resolver.resolve();
        let Resolver { path, problems, warnings, .. } = resolver;
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        Ok(Self {
            server: Server::read(&found)?,
            door: Door::read(&found)?,
            store: Store::read(&found)?,
            files: Files::read(&found, sources.env)?,
            workers: Workers::read(&found)?,
            tasks: Tasks::read(&found)?,
            graph: sections::read_graph(&found)?,
            sync: Sync::read(&found)?,
            process: Process::read(&found)?,
            client: Client::read(&found)?,
            worker: Worker::read(&found)?,
            log: Log::read(&found)?,
            found,
            file: path,
            warnings,
        })
    }
}

impl Settings {
    /// Whether somebody gave a setting its value; otherwise it is the default.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.found.entries.iter().any(|entry| entry.setting.name == name && entry.origin != Origin::Default)
    }
}

/// The file that `--config` or `REMUDA_CONFIG` names, which must be there, or `remuda.toml`, if it is there.
fn read_file(sources: &Sources<'_>, problems: &mut Vec<Problem>) -> (Option<PathBuf>, FileValues) {
    let named = match (&sources.flags.config, sources.env.get("REMUDA_CONFIG")) {
        (Some(path), _) => Some((path.clone(), "--config")),
        (None, Ok(Some(path))) if !path.is_empty() => Some((PathBuf::from(path), "REMUDA_CONFIG")),
        (None, Ok(_)) => None,
        (None, Err(reason)) => {
            problems.push(Problem::Value { at: "REMUDA_CONFIG".to_owned(), reason });
            None
        }
    };
    let usual = || {
        // What cannot be looked at is not absent: reading it says why.
        let there = Path::new(&sources.dir.join(FILE)).try_exists().unwrap_or(true);
        there.then(|| (PathBuf::from(FILE), "the current directory"))
    };
    match named.or_else(usual) {
        Some((path, named_by)) => {
            let values = file::read(&sources.dir.join(&path), named_by, problems);
            (Some(path), values)
        }
        None => (None, FileValues::default()),
    }
}
