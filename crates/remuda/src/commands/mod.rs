//! The commands, one file for each command or group of commands.

pub(crate) mod config;
mod direct;
pub(crate) mod follow;
pub(crate) mod keys;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod submit;
pub(crate) mod tasks;
pub(crate) mod worker;
pub(crate) mod workers;
mod workflow_file;

pub(crate) use workflow_file::BadInput;

use crate::api::Api;
use crate::config::Settings;

/// The server that the settings name.
fn api(settings: &Settings) -> anyhow::Result<Api> {
    Api::new(&settings.client.server, settings.client.key.as_ref().map(|key| key.reveal()))
}
