//! `[log]`: what is logged, how and where to.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;

use crate::config::error::{ConfigError, Problem};
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

static LEVEL: Setting = Setting {
    name: "log.level",
    env: &["REMUDA_LOG_LEVEL", "LOG_LEVEL", "RUST_LOG"],
    flags: &[flag("log-level", "LEVEL", Program::ALL)],
    shape: Shape::LogLevel,
    help: "error, warn, info, debug, trace, off, or directives such as info,remuda=debug; without it servers and \
           workers log at info, other commands at warn",
    ..Setting::BASE
};

static FORMAT: Setting = Setting {
    name: "log.format",
    env: &["REMUDA_LOG_FORMAT", "LOG_FORMAT"],
    flags: &[flag("log-format", "FORMAT", Program::RUNNING)],
    shape: Shape::Choice(&["text", "json"]),
    help: "text for people, json for machines; without it a file gets json and everything else text",
    ..Setting::BASE
};

static OUTPUT: Setting = Setting {
    name: "log.output",
    env: &["REMUDA_LOG_OUTPUT", "LOG_OUTPUT"],
    flags: &[flag("log-output", "WHERE", Program::RUNNING)],
    default: "stderr",
    shape: Shape::LogOutput,
    help: "Where the log goes: stderr (or console), stdout, or the path of a file that is appended to",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&LEVEL, &FORMAT, &OUTPUT];

/// What is logged, how and where to.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// What is logged: `REMUDA_LOG_LEVEL`, `LOG_LEVEL`, left to the command.
    pub(crate) level: Option<LogLevel>,
    /// How: `REMUDA_LOG_FORMAT`, `LOG_FORMAT`, JSON in a file and else text.
    pub(crate) format: LogFormat,
    /// Where to: `REMUDA_LOG_OUTPUT`, `LOG_OUTPUT`, standard error.
    pub(crate) output: LogOutput,
}

impl Log {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let output = from.get(&OUTPUT)?;
        let format = match (from.text(&FORMAT).to_lowercase().as_str(), &output) {
            ("json", _) | ("", LogOutput::File(_)) => LogFormat::Json,
            _ => LogFormat::Text,
        };
        Ok(Self { level: from.optional(&LEVEL)?, format, output })
    }

    /// Makes this the log of the process; `fallback` is the level where none is set. To be called once.
    pub(crate) fn install(&self, fallback: &str) -> Result<(), ConfigError> {
        let writer = match &self.output {
            LogOutput::Stderr => BoxMakeWriter::new(std::io::stderr),
            LogOutput::Stdout => BoxMakeWriter::new(std::io::stdout),
            LogOutput::File(path) => {
                let opened = OpenOptions::new().create(true).append(true).open(path);
                BoxMakeWriter::new(Mutex::new(opened.map_err(|error| {
                    trouble(format!("cannot append to the log file {}: {error}", path.display()))
                })?))
            }
        };
        let colours = match self.output {
            LogOutput::Stderr => std::io::stderr().is_terminal(),
            LogOutput::Stdout => std::io::stdout().is_terminal(),
            LogOutput::File(_) => false,
        };
        let directives = self.level.as_ref().map_or(fallback, |level| &level.0);
        let filter = EnvFilter::try_new(directives).map_err(|error| trouble(error.to_string()))?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
        let installed = match self.format {
            LogFormat::Text => log.with_ansi(colours).try_init(),
            LogFormat::Json => log.json().flatten_event(true).try_init(),
        };
        installed.map_err(|error| trouble(error.to_string()))
    }
}

fn trouble(reason: String) -> ConfigError {
    Problem::Value { at: "log".to_owned(), reason }.into()
}

/// Directives for `tracing_subscriber::EnvFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLevel(pub(crate) String);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_lowercase();
        let level = match text.as_str() {
            "off" | "error" | "warn" | "info" | "debug" | "trace" => text,
            // Python's words, which the environment of other systems has.
            "warning" => "warn".to_owned(),
            "critical" | "fatal" => "error".to_owned(),
            // A single word that is no level would silently be taken for the name of a module.
            _ if text.contains(['=', ',']) && EnvFilter::try_new(&text).is_ok() => text,
            _ => {
                return Err(format!(
                    "`{text}` is not a log level; write error, warn, info, debug or trace, or info,remuda=debug"
                ));
            }
        };
        Ok(Self(level))
    }
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Where the log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file.
    File(PathBuf),
}

impl FromStr for LogOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "stderr" | "console" => Ok(Self::Stderr),
            "stdout" => Ok(Self::Stdout),
            _ => Ok(Self::File(PathBuf::from(text))),
        }
    }
}
