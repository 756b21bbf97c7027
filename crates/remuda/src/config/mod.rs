//! The settings of Remuda: flags over environment over `remuda.toml` over defaults.
//!
//! There is one table of settings, made of the `SETTINGS` of every file in [`sections`]. The flags of the
//! commands, the reader of the file, `remuda config` and the table in `docs/configuration.md` all come from it,
//! so a new setting is one constant and one field.
//!
//! ```text
//! flags ─┐
//! env ───┼─▶ resolve (text and origin of every setting) ─▶ sections (typed values) ─▶ Settings
//! file ──┘
//! ```
//!
//! A command flattens [`ServeFlags`], [`WorkerFlags`] or [`ClientFlags`] into its arguments and calls
//! `Settings::load(&flags.sources())`.
#![allow(dead_code, reason = "settings are described here before the command that uses them exists")]
#![allow(unused_imports, reason = "the names that commands may use")]

mod describe;
mod error;
mod file;
mod flags;
mod redact;
mod resolve;
mod sections;
mod setting;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use describe::{example, markdown};
pub(crate) use error::ConfigError;
pub(crate) use flags::{ClientFlags, Given, ServeFlags, WorkerFlags};
pub(crate) use resolve::{Entry, Origin, Resolved};
pub(crate) use sections::{
    Client, Files, Log, LogFormat, LogOutput, QueueLink, Server, Store, Sync, Tasks, Worker, Workers,
};
pub(crate) use setting::{Program, Setting, Shape, Stage, flag};
pub(crate) use settings::Settings;
pub(crate) use sources::{ProcessEnv, Sources, Strings};
pub(crate) use values::{ComfyUi, Listen, Secret, Size, Span, StoreUrl};
