//! Which source gives a setting its value.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::{ConfigError, Problem};
use super::file::{FileValues, nearest};
use super::redact;
use super::sections::{self, LogLevel, LogOutput, Source};
use super::setting::{Setting, Shape, Stage};
use super::settings;
use super::sources::Sources;
use super::values::{
    Listen, Secret, Size, Span, StoreUrl, comfyuis, host_name, name, origin, parts, server_url, switch,
};
use remuda_files::Location;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag, as in `--listen`.
    Flag(String),
    /// Environment variables, as in `PORT`.
    Env(String),
    /// A line of the file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The value of one setting, as text, and where it came from.
#[derive(Clone)]
pub(crate) struct Entry {
    /// The setting.
    pub(crate) setting: &'static Setting,
    /// Its value; empty when it is not set.
    text: String,
    /// Where that came from.
    pub(crate) origin: Origin,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.setting.name, self.shown(), self.origin)
    }
}

impl Entry {
    /// Whether it has a value at all.
    pub(crate) fn is_set(&self) -> bool {
        !self.text.is_empty()
    }

    /// The value as anybody may see it, in the one way we write it.
    pub(crate) fn shown(&self) -> String {
        if self.text.is_empty() {
            return String::new();
        }
        if self.setting.secret {
            return redact::HIDDEN.to_owned();
        }
        let text = self.text.as_str();
        let canonical = match self.setting.shape {
            Shape::Duration => text.parse::<Span>().map(|value| value.to_string()),
            Shape::Size => text.parse::<Size>().map(|value| value.to_string()),
            Shape::Switch => switch(text).map(|value| value.to_string()),
            Shape::Listen => text.parse::<Listen>().map(|value| value.to_string()),
            Shape::Store => text.parse::<StoreUrl>().map(|value| value.to_string()),
            Shape::Files => {
                text.parse::<Location>().map(|value| value.to_string()).map_err(|error| error.to_string())
            }
            Shape::Source | Shape::LogLevel => Ok(text.to_lowercase()),
            Shape::List | Shape::Origins | Shape::Networks | Shape::ComfyUis => {
                Ok(parts(text).collect::<Vec<_>>().join(", "))
            }
            _ => Ok(text.to_owned()),
        };
        redact::addresses(&canonical.unwrap_or_else(|_| text.to_owned()))
    }
}

/// All settings with their texts.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) entries: Vec<Entry>,
}

impl Resolved {
    fn entry(&self, setting: &Setting) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.setting.name == setting.name)
    }

    /// Where a setting's value came from.
    pub(crate) fn origin(&self, setting: &Setting) -> Origin {
        self.entry(setting).map_or(Origin::Default, |entry| entry.origin.clone())
    }

    /// The text of a setting; empty when it is not set.
    pub(crate) fn text(&self, setting: &Setting) -> &str {
        self.entry(setting).map_or("", |entry| entry.text.as_str())
    }

    /// The value of a setting that has one.
    pub(crate) fn get<T: FromStr<Err = E>, E: ToString>(&self, setting: &Setting) -> Result<T, ConfigError> {
        self.text(setting).parse().map_err(|reason: E| self.blame(setting, reason.to_string()))
    }

    /// The value of a setting that may have none.
    pub(crate) fn optional<T: FromStr<Err = E>, E: ToString>(
        &self,
        setting: &Setting,
    ) -> Result<Option<T>, ConfigError> {
        if self.text(setting).is_empty() { Ok(None) } else { self.get(setting).map(Some) }
    }

    /// The items of a list.
    pub(crate) fn list<T: FromStr<Err = E>, E: ToString>(
        &self,
        setting: &Setting,
    ) -> Result<Vec<T>, ConfigError> {
        parts(self.text(setting))
            .map(|part| part.parse().map_err(|reason: E| self.blame(setting, reason.to_string())))
            .collect()
    }

    /// A switch.
    pub(crate) fn switch(&self, setting: &Setting) -> Result<bool, ConfigError> {
        switch(self.text(setting)).map_err(|reason| self.blame(setting, reason))
    }

    /// An error that names where the value came from.
    pub(crate) fn blame(&self, setting: &Setting, reason: String) -> ConfigError {
        let at = match self.origin(setting) {
            Origin::Flag(flag) => flag,
            Origin::Env(name) => name,
            Origin::File { path, line } => format!("{}:{line}: {}", path.display(), setting.name),
            Origin::Default => setting.name.to_owned(),
        };
        Problem::Value { at, reason }.into()
    }
}

/// What is wrong with a text as the value of a setting.
pub(super) fn check(setting: &Setting, text: &str) -> Result<(), String> {
    fn of<T: FromStr<Err = String>>(text: &str) -> Result<(), String> {
        text.parse::<T>().map(drop)
    }
    let within = |value: u64, show: &dyn Fn(u64) -> String| match setting.range {
        (least, _) if value < least => Err(format!("{text} is less than {}", show(least))),
        (_, most) if value > most => Err(format!("{text} is more than {}", show(most))),
        _ => Ok(()),
    };
    match setting.shape {
        // An empty text means "not set", which only a value that may be absent can be.
        _ if text.is_empty() && setting.default.is_empty() => Ok(()),
        _ if setting.secret => of::<Secret>(text),
        Shape::Text | Shape::Path if text.is_empty() => Err("it is empty".to_owned()),
        Shape::Text | Shape::Path => Ok(()),
        Shape::Choice(words) if words.contains(&text.to_lowercase().as_str()) => Ok(()),
        Shape::Choice(words) => Err(format!("`{text}` is none of {}", words.join(", "))),
        Shape::Switch => switch(text).map(drop),
        Shape::Number => {
            let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
            within(number, &|number| number.to_string())
        }
        Shape::Duration => {
            let span: Span = text.parse()?;
            within(span.0.as_secs(), &|n| Span(std::time::Duration::from_secs(n)).to_string())
        }
        Shape::Size => within(text.parse::<Size>()?.0, &|bytes| Size(bytes).to_string()),
        Shape::Listen => of::<Listen>(text),
        Shape::Url => server_url(text).map(drop),
        Shape::List => Ok(()),
        Shape::Networks => parts(text).try_for_each(|part| {
            part.parse::<remuda_server::Network>().map(drop).map_err(|error| error.to_string())
        }),
        Shape::Origins => parts(text).try_for_each(|part| origin(part).map(drop)),
        Shape::Name => name(text),
        Shape::ComfyUis => comfyuis(text).map(drop),
        Shape::Store => of::<StoreUrl>(text),
        Shape::Files => text.parse::<Location>().map(drop).map_err(|error| error.to_string()),
        Shape::LogLevel => of::<LogLevel>(text),
        Shape::LogOutput => of::<LogOutput>(text),
        Shape::Source => of::<Source>(text),
    }
}

/// Finds the value of every setting.
pub(super) struct Resolver<'a> {
    pub(super) sources: &'a Sources<'a>,
    pub(super) path: Option<PathBuf>,
    pub(super) file: FileValues,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
}

impl Resolver<'_> {
    /// All settings in the order of the table.
    pub(super) fn resolve(&mut self) -> Resolved {
        let (data, _) = self.find(&sections::DATA);
        let mut entries = Vec::new();
        for setting in settings::table() {
            let (text, origin) = self.find(setting);
            let text = if origin == Origin::Default { text.replace("{data}", &data) } else { text };
            if setting.stage == Stage::Later && origin != Origin::Default {
                self.warnings
                    .push(format!("{} ({origin}) is understood and has no effect yet", setting.name));
            }
            entries.push(Entry { setting, text, origin });
        }
        self.unknown_variables();
        // The data directory was looked at twice.
        let mut seen = std::collections::BTreeSet::new();
        self.problems.retain(|problem| seen.insert(problem.to_string()));
        Resolved { entries }
    }

    fn find(&mut self, setting: &'static Setting) -> (String, Origin) {
        let flags = self.sources.flags;
        if let Some((_, flag, text)) = flags.values.iter().find(|(given, ..)| given.name == setting.name) {
            let name = format!("--{}", flag.long);
            match check(setting, text) {
                Ok(()) => return (text.clone(), Origin::Flag(name)),
                Err(reason) => self.problems.push(Problem::Value { at: name, reason }),
            }
        }
        let from_env = match setting.shape {
            Shape::Listen => self.listen(setting),
            _ => setting.env.iter().find_map(|name| self.variable(setting, name)),
        };
        from_env.unwrap_or_else(|| self.below_env(setting))
    }

    /// The value in the file, or else the default.
    fn below_env(&self, setting: &Setting) -> (String, Origin) {
        match (self.file.values.get(setting.name), &self.path) {
            (Some((text, line)), Some(path)) => {
                (text.clone(), Origin::File { path: path.clone(), line: *line })
            }
            _ => (setting.default.to_owned(), Origin::Default),
        }
    }

    fn variable(&mut self, setting: &Setting, name: &str) -> Option<(String, Origin)> {
        let value = self.text_of_variable(setting, name)?;
        match check(setting, &value) {
            Ok(()) => Some((value, Origin::Env(name.to_owned()))),
            Err(reason) => {
                self.bad_variable(setting, name, &value, reason);
                None
            }
        }
    }

    /// The text of a variable; an empty one counts as not set, as deployment tools write them.
    fn text_of_variable(&mut self, setting: &Setting, name: &str) -> Option<String> {
        match self.sources.env.get(name) {
            Ok(value) => value.filter(|value| !value.trim().is_empty()),
            Err(reason) => {
                self.bad_variable(setting, name, "", reason);
                None
            }
        }
    }

    fn bad_variable(&mut self, setting: &Setting, name: &str, value: &str, reason: String) {
        let at = if setting.secret || value.is_empty() {
            name.to_owned()
        } else {
            format!("{name}={}", redact::addresses(value))
        };
        let problem = Problem::Value { at, reason };
        // A variable with a common name may well be meant for another program.
        if self.sources.flags.program.uses(setting.section()) && setting.stage == Stage::Now {
            self.problems.push(problem);
        } else {
            self.warnings.push(format!("{problem} (not used here)"));
        }
    }

    /// `REMUDA_LISTEN` is the whole address; `SERVER_HOST`, `SERVER_PORT` and `PORT` are parts of it, and the
    /// part that they do not name comes from the file or the default.
    fn listen(&mut self, setting: &'static Setting) -> Option<(String, Origin)> {
        if let Some(whole) = self.variable(setting, "REMUDA_LISTEN") {
            return Some(whole);
        }
        let host =
            self.text_of_variable(setting, "SERVER_HOST").and_then(|text| match host_name(text.trim()) {
                Some(host) => Some(host),
                None => {
                    let reason = "this is not a host; write a name or a number, without a port".to_owned();
                    self.bad_variable(setting, "SERVER_HOST", &text, reason);
                    None
                }
            });
        let port = ["SERVER_PORT", "PORT"].into_iter().find_map(|name| {
            let text = self.text_of_variable(setting, name)?;
            match text.trim().parse::<u16>() {
                Ok(port) => Some((name, port)),
                Err(_) => {
                    let reason = "this is not a port; write a number up to 65535".to_owned();
                    self.bad_variable(setting, name, &text, reason);
                    None
                }
            }
        });
        if host.is_none() && port.is_none() {
            return None;
        }
        let mut listen: Listen = self.below_env(setting).0.parse().ok()?;
        let mut names = Vec::new();
        if let Some(host) = host {
            listen.host = host;
            names.push("SERVER_HOST");
        }
        if let Some((name, port)) = port {
            listen.port = port;
            names.push(name);
        }
        Some((listen.to_string(), Origin::Env(names.join(", "))))
    }

    /// Warns of variables that look like ours and are not. Only of near misses: Kubernetes makes variables
    /// such as `REMUDA_PORT` and `REMUDA_SERVICE_HOST` for a service of that name.
    fn unknown_variables(&mut self) {
        let known = || settings::table().flat_map(|setting| setting.env).copied().chain(["REMUDA_CONFIG"]);
        for name in self.sources.env.names() {
            let Some(rest) = name.strip_prefix("REMUDA_") else { continue };
            if known().any(|known| known == name) || from_kubernetes(&name) {
                continue;
            }
            if let Some(near) = nearest(rest, known().filter_map(|known| known.strip_prefix("REMUDA_"))) {
                self.warnings
                    .push(format!("{name} is not a variable of Remuda; did you mean REMUDA_{near}?"));
            }
        }
    }
}

fn from_kubernetes(name: &str) -> bool {
    name.ends_with("_PORT") || name.contains("_PORT_") || name.contains("_SERVICE_")
}
