//! What one setting is: its names, its default, its unit and its help.

use crate::commands::worker::SOURCES;

/// One setting. Everything that is said about it anywhere is said here.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Section and key in `remuda.toml`, as in `server.listen`.
    pub(crate) name: &'static str,
    /// Environment variables, the strongest first: our own, then the names that other systems use.
    pub(crate) env: &'static [&'static str],
    /// Flags, of which one may be given.
    pub(crate) flags: &'static [Flag],
    /// The default as it would be written in the environment; `{data}` is the data directory, empty is "not set".
    pub(crate) default: &'static str,
    /// What its value looks like.
    pub(crate) shape: Shape,
    /// Smallest and largest value of a number, a duration (seconds) or a size (bytes).
    pub(crate) range: (u64, u64),
    /// What it does, in one sentence without a full stop.
    pub(crate) help: &'static str,
    /// Whether the value is never shown.
    pub(crate) secret: bool,
    /// Whether it has an effect in this version.
    pub(crate) stage: Stage,
}

impl Setting {
    /// What most settings have in common.
    pub(crate) const BASE: Self = Self {
        name: "",
        env: &[],
        flags: &[],
        default: "",
        shape: Shape::Text,
        range: (0, u64::MAX),
        help: "",
        secret: false,
        stage: Stage::Now,
    };

    /// The table of the file that it belongs to.
    pub(crate) fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Its name within its section.
    pub(crate) fn key(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }
}

/// A flag of some commands that gives a setting its value.
#[derive(Debug)]
pub(crate) struct Flag {
    /// The name after the two dashes.
    pub(crate) long: &'static str,
    /// What stands for the value in the help; empty for a switch.
    pub(crate) value: &'static str,
    /// Put in front of the value: `--output-dir DIR` means `--files file:DIR`.
    pub(crate) prefix: &'static str,
    /// The programs that take it.
    pub(crate) on: &'static [Program],
}

/// A flag for some programs, with the name of its value.
pub(crate) const fn flag(long: &'static str, value: &'static str, on: &'static [Program]) -> Flag {
    Flag { long, value, prefix: "", on }
}

/// The commands as far as settings are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// `remuda serve`, and `remuda config`, which shows what it would see.
    Serve,
    /// `remuda worker`.
    Worker,
    /// Every command that talks to a server.
    Client,
}

impl Program {
    pub(super) const ALL: &'static [Self] = &[Self::Serve, Self::Worker, Self::Client];
    pub(super) const RUNNING: &'static [Self] = &[Self::Serve, Self::Worker];

    /// Whether it looks at a section; a broken variable of another one does not stop it.
    pub(super) fn uses(self, section: &str) -> bool {
        match self {
            Self::Serve => SOURCES.iter().all(|source| source.name != section),
            Self::Worker => true,
            Self::Client => matches!(section, "client" | "log"),
        }
    }
}

/// Whether a setting has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has.
    Now,
    /// It is understood, so that nobody has to rename a variable later, and changes nothing yet.
    Later,
}

/// What the value of a setting looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A path.
    Path,
    /// On or off.
    Switch,
    /// A whole number.
    Number,
    /// A duration: `30s`, `7d`, or plain seconds.
    Duration,
    /// A size: `32MiB`, or plain bytes.
    Size,
    /// Host and port to listen on.
    Listen,
    /// An http or https address.
    Url,
    /// Several words: separated by commas in the environment, an array in the file.
    List,
    /// Origins of web pages.
    Origins,
    /// Addresses of machines or networks.
    Networks,
    /// A name without blanks and the like.
    Name,
    /// Addresses of ComfyUIs with their labels.
    ComfyUis,
    /// `sqlite:PATH` or `postgres://…`.
    Store,
    /// `file:DIR` or `s3://…`.
    Files,
    /// A level, or filter directives.
    LogLevel,
    /// Where the log goes.
    LogOutput,
    /// Where a worker's tasks come from.
    Source,
}

impl Shape {
    /// The word for it in tables.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Choice(_) => "word",
            Self::Path => "path",
            Self::Switch => "true or false",
            Self::Number => "number",
            Self::Duration => "duration",
            Self::Size => "size",
            Self::Listen => "host:port",
            Self::Url => "URL",
            Self::List | Self::Origins | Self::Networks => "list",
            Self::Name => "name",
            Self::ComfyUis => "list of URLs",
            Self::Store => "`sqlite:PATH` or `postgres://…`",
            Self::Files => "`file:DIR` or `s3://…`",
            Self::LogLevel => "level",
            Self::LogOutput => "`stderr`, `stdout` or path",
            Self::Source => "word",
        }
    }

    /// Whether there can be several values.
    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::List | Self::Origins | Self::Networks | Self::ComfyUis)
    }
}
