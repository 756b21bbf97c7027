//! `[worker]`: `remuda worker`, a process of its own beside a ComfyUI.

use std::fmt;
use std::str::FromStr;

use super::client;
use super::store;
use crate::commands::worker::{SOURCES, WorkerSource};
use crate::config::error::{ConfigError, Problem};
use crate::config::resolve::{Origin, Resolved};
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Secret, StoreUrl};
use url::Url;

const WORKER: &[Program] = &[Program::Worker];

static SOURCE: Setting = Setting {
    name: "worker.source",
    env: &["REMUDA_SOURCE"],
    flags: &[flag("source", "SOURCE", WORKER)],
    default: "queue",
    shape: Shape::Source,
    help: "Where a worker's tasks come from, such as queue or littlehorse",
    ..Setting::BASE
};

static ID: Setting = Setting {
    name: "worker.id",
    env: &["REMUDA_WORKER_ID"],
    flags: &[flag("worker-id", "ID", WORKER)],
    shape: Shape::Name,
    help: "Name of this worker; not set: it makes one and keeps it in the data directory",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&SOURCE, &ID];

/// Where tasks are claimed from: one of those that there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source(&'static WorkerSource);

impl Source {
    /// Which one.
    pub(crate) fn get(self) -> &'static WorkerSource {
        self.0
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_lowercase();
        if let Some(source) = SOURCES.iter().find(|source| source.name == wanted) {
            return Ok(Self(source));
        }
        let names: Vec<&str> = SOURCES.iter().map(|source| source.name).collect();
        match wanted.as_str() {
            "supabase" | "runpod" => {
                let there = names.join("` and `");
                Err(format!("the source `{text}` is not in this version yet; `{there}` are"))
            }
            _ => Err(format!("`{text}` is not a source; write {}", names.join(" or "))),
        }
    }
}

/// How a worker reaches the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueLink {
    /// Over HTTP, through any server of the installation.
    Server {
        /// Its address.
        url: Url,
        /// A key with the scope `worker`.
        key: Option<Secret>,
    },
    /// Straight to PostgreSQL, inside a trusted network.
    Store(StoreUrl),
}

impl fmt::Display for QueueLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { url, .. } => url.fmt(f),
            Self::Store(url) => url.fmt(f),
        }
    }
}

/// A process of its own beside a ComfyUI.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    /// Where its tasks come from: `REMUDA_SOURCE`, the queue.
    pub(crate) source: Source,
    /// Its name: `REMUDA_WORKER_ID`, not set.
    pub(crate) id: Option<String>,
    /// How it reaches the queue: the stronger of `--server` and `--store`.
    pub(crate) link: Result<QueueLink, String>,
}

impl Worker {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self { source: from.get(&SOURCE)?, id: from.optional(&ID)?, link: link(from)? })
    }

    /// How it reaches the queue, or why it cannot.
    pub(crate) fn queue(&self) -> Result<&QueueLink, ConfigError> {
        self.link
            .as_ref()
            .map_err(|reason| Problem::Value { at: "--store".to_owned(), reason: reason.clone() }.into())
    }
}

/// A store that is named at least as strongly as the server is used directly. One in SQLite belongs to the server's
/// process: from the file it is the server's business, from a flag or a variable it is a misunderstanding.
fn link(from: &Resolved) -> Result<Result<QueueLink, String>, ConfigError> {
    let (store, server) = (from.origin(&store::URL), from.origin(&client::SERVER));
    let url: StoreUrl = from.get(&store::URL)?;
    let over_http = || -> Result<_, ConfigError> {
        let client = super::Client::read(from)?;
        Ok(Ok(QueueLink::Server { url: client.server, key: client.key }))
    };
    match url {
        _ if strength(&store) <= strength(&server) => over_http(),
        StoreUrl::Postgres(_) => Ok(Ok(QueueLink::Store(url))),
        StoreUrl::Sqlite(_) if matches!(store, Origin::File { .. }) => over_http(),
        StoreUrl::Sqlite(_) => Ok(Err(
            "a SQLite store belongs to the server's process; give the worker --server URL and --key KEY instead"
                .to_owned(),
        )),
    }
}

fn strength(origin: &Origin) -> u8 {
    match origin {
        Origin::Default => 0,
        Origin::File { .. } => 1,
        Origin::Env(_) => 2,
        Origin::Flag(_) => 3,
    }
}
