//! The sections of the settings, one file each: their constants are the table, their structs what the rest of the
//! program works with.

mod client;
mod door;
mod files;
mod fleet;
mod graph;
mod log;
mod process;
mod server;
mod store;
mod sync;
mod tasks;
mod worker;
mod workers;

pub(crate) use client::Client;
pub(crate) use door::Door;
pub(crate) use files::Files;
pub(super) use graph::read as read_graph;
pub(crate) use log::{Log, LogFormat, LogLevel, LogOutput};
pub(crate) use process::Process;
pub(super) use server::DATA;
pub(crate) use server::Server;
pub(crate) use store::Store;
pub(crate) use sync::Sync;
pub(crate) use tasks::Tasks;
pub(crate) use worker::{QueueLink, Source, Worker};
pub(crate) use workers::Workers;

use super::setting::Setting;

/// Every section in the order in which it is shown. Those of the sources that a worker can work for follow on `worker`.
pub(super) const ALL: &[&[&Setting]] = &[
    server::SETTINGS,
    door::SETTINGS,
    store::SETTINGS,
    files::SETTINGS,
    workers::SETTINGS,
    tasks::SETTINGS,
    graph::SETTINGS,
    sync::SETTINGS,
    process::SETTINGS,
    client::SETTINGS,
    worker::SETTINGS,
    log::SETTINGS,
    fleet::SETTINGS,
];
