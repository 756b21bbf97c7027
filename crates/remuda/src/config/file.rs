//! `remuda.toml`: every key is in the table of settings, and every mistake is shown where it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{InFile, Problem};
use super::redact;
use super::resolve::check;
use super::setting::{Setting, Shape};
use super::settings;
use super::values::is_label;

/// No file of settings is as long as this; something else was named.
const LONGEST: u64 = 1 << 20;

/// What a file says.
#[derive(Default)]
pub(super) struct FileValues {
    /// By the name of the setting: its text and its line.
    pub(super) values: BTreeMap<&'static str, (String, usize)>,
}

/// Reads a file; what is wrong with it goes to `problems`.
pub(super) fn read(path: &Path, named_by: &'static str, problems: &mut Vec<Problem>) -> FileValues {
    match text_of(path) {
        Ok(text) => parse(path, &text, problems),
        Err(reason) => {
            problems.push(Problem::Unreadable { path: path.to_owned(), named_by, reason });
            FileValues::default()
        }
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LONGEST {
        return Err("it is longer than 1 MiB, which no file of settings is".to_owned());
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 text (byte {} is not)", error.utf8_error().valid_up_to()))
}

/// Understands the text of a file.
pub(super) fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> FileValues {
    let mut parser = Parser { path, text, found: FileValues::default(), problems: Vec::new() };
    match DeTable::parse(text) {
        Ok(document) => parser.document(document.get_ref()),
        Err(error) => {
            let span = error.span().unwrap_or(text.len()..text.len());
            let reason = format!("this is not TOML: {}", error.message().replace('\n', ", "));
            parser.complain(span, reason, None);
        }
    }
    parser.problems.sort_by_key(|problem| (problem.line, problem.column));
    problems.extend(parser.problems.into_iter().map(Problem::from));
    parser.found
}

struct Parser<'a> {
    path: &'a Path,
    text: &'a str,
    found: FileValues,
    problems: Vec<InFile>,
}

impl Parser<'_> {
    fn document(&mut self, document: &DeTable<'_>) {
        for (name, value) in document {
            let section = name.get_ref().as_ref();
            if !settings::table().any(|setting| setting.section() == section) {
                self.unknown_section(section, name.span());
            } else if let DeValue::Table(table) = value.get_ref() {
                self.section(section, table);
            } else {
                let reason = format!("`{section}` is a table, not {}", kind(value.get_ref()));
                self.complain(value.span(), reason, Some(format!("write [{section}] and its keys below it")));
            }
        }
    }

    fn unknown_section(&mut self, name: &str, span: Range<usize>) {
        // A key that somebody wrote above the first table is the likeliest mistake.
        let hint = match settings::table().find(|setting| setting.key() == name) {
            Some(setting) => Some(format!("it belongs below [{}]", setting.section())),
            None => nearest(name, settings::table().map(Setting::section))
                .map(|section| format!("did you mean `{section}`?")),
        };
        self.complain(span, format!("unknown key `{name}`"), hint);
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let mut known = settings::table().filter(|setting| setting.section() == section);
            match known.find(|setting| setting.key() == name) {
                Some(setting) => self.value(setting, value),
                None => {
                    let hint = unknown_key(section, name);
                    self.complain(key.span(), format!("unknown key `{section}.{name}`"), hint);
                }
            }
        }
    }

    fn value(&mut self, setting: &'static Setting, value: &Spanned<DeValue<'_>>) {
        let text = match text_of_value(setting, value) {
            Ok(text) => text,
            Err(Misfit { span, reason, hint }) => return self.complain(span, reason, hint),
        };
        match check(setting, &text) {
            Ok(()) => {
                let line = self.place(value.span().start).0;
                self.found.values.insert(setting.name, (text, line));
            }
            Err(reason) => self.complain(value.span(), format!("`{}`: {reason}", setting.name), None),
        }
    }

    fn complain(&mut self, span: Range<usize>, reason: String, hint: Option<String>) {
        let (line, column) = self.place(span.start);
        let whole = self.text.lines().nth(line - 1).unwrap_or_default();
        let text = without_secrets(whole);
        let marked = self.text.get(span).unwrap_or_default().lines().next().unwrap_or_default();
        // Where something was hidden, the marks may not point beyond what is left.
        let room = text.chars().count().saturating_sub(column - 1);
        let width = marked.chars().count().min(room).max(1);
        let path = PathBuf::from(self.path);
        self.problems.push(InFile { path, line, column, reason, text, width, hint });
    }

    /// Line and column of a byte, both counted from 1.
    fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

/// Where a value does not fit, why, and what to do.
struct Misfit {
    span: Range<usize>,
    reason: String,
    hint: Option<String>,
}

impl Misfit {
    fn new(setting: &Setting, value: &Spanned<DeValue<'_>>, wants: &str) -> Self {
        let reason = format!("`{}` wants {wants}, not {}", setting.name, kind(value.get_ref()));
        Self { span: value.span(), reason, hint: None }
    }
}

/// The text of a value as it would stand in the environment.
fn text_of_value(setting: &Setting, value: &Spanned<DeValue<'_>>) -> Result<String, Misfit> {
    let shape = setting.shape;
    match value.get_ref() {
        DeValue::Boolean(on) if shape == Shape::Switch => Ok(on.to_string()),
        DeValue::Integer(number)
            if matches!(shape, Shape::Number | Shape::Duration | Shape::Size | Shape::Listen) =>
        {
            u64::from_str_radix(number.as_str(), number.radix()).map(|n| n.to_string()).map_err(|_| Misfit {
                span: value.span(),
                reason: format!("`{}` wants a number from 0 on, not {number}", setting.name),
                hint: None,
            })
        }
        DeValue::String(text) if !matches!(shape, Shape::Switch | Shape::Number) => Ok(text.to_string()),
        DeValue::Array(array) if shape.is_list() => {
            let items: Result<Vec<_>, _> = array.iter().map(|item| item_of_list(setting, item)).collect();
            Ok(items?.join(", "))
        }
        _ => Err(Misfit::new(setting, value, wants(shape))),
    }
}

fn item_of_list(setting: &Setting, item: &Spanned<DeValue<'_>>) -> Result<String, Misfit> {
    match item.get_ref() {
        DeValue::String(text) if text.contains(',') => Err(Misfit {
            span: item.span(),
            reason: format!("an item of `{}` has no comma in it", setting.name),
            hint: Some("write one text for each item".to_owned()),
        }),
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Table(table) if setting.shape == Shape::ComfyUis => comfyui(setting, item, table),
        _ => Err(Misfit::new(setting, item, "texts")),
    }
}

/// `{ url = "…", labels = ["…"] }` as text.
fn comfyui(setting: &Setting, item: &Spanned<DeValue<'_>>, table: &DeTable<'_>) -> Result<String, Misfit> {
    let (mut url, mut labels) = (None, Vec::new());
    for (key, value) in table {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("url", DeValue::String(text)) if !text.contains([',', ' ']) => url = Some(text.to_string()),
            ("url", _) => return Err(Misfit::new(setting, value, "a URL")),
            ("labels", DeValue::Array(array)) => {
                for label in array.iter() {
                    match label.get_ref() {
                        DeValue::String(text) if is_label(text) => labels.push(text.to_string()),
                        _ => {
                            return Err(Misfit::new(
                                setting,
                                label,
                                "labels such as \"gpu=4090\" or \"fast\"",
                            ));
                        }
                    }
                }
            }
            ("labels", _) => return Err(Misfit::new(setting, value, "an array of labels")),
            (name, _) => {
                let near = nearest(name, ["url", "labels"].into_iter());
                return Err(Misfit {
                    span: key.span(),
                    reason: format!("unknown key `{name}` in `{}`", setting.name),
                    hint: Some(match near {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => "there are url and labels".to_owned(),
                    }),
                });
            }
        }
    }
    let url = url.ok_or_else(|| Misfit {
        span: item.span(),
        reason: format!("an item of `{}` lacks its `url`", setting.name),
        hint: None,
    })?;
    Ok(std::iter::once(url).chain(labels).collect::<Vec<_>>().join(" "))
}

fn wants(shape: Shape) -> &'static str {
    match shape {
        Shape::Switch => "true or false",
        Shape::Number => "a number",
        Shape::Duration => "a duration such as \"30s\" or a number of seconds",
        Shape::Size => "a size such as \"32MiB\" or a number of bytes",
        Shape::Listen => "\"HOST:PORT\" or a port",
        Shape::List | Shape::Origins | Shape::Networks => "an array of texts",
        Shape::ComfyUis => "an array of URLs",
        _ => "a text",
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn unknown_key(section: &str, key: &str) -> Option<String> {
    let here = || settings::table().filter(|setting| setting.section() == section);
    if let Some(near) = nearest(key, here().map(Setting::key)) {
        return Some(format!("did you mean `{near}`?"));
    }
    if let Some(other) = settings::table().find(|setting| setting.key() == key) {
        return Some(format!("it belongs below [{}]", other.section()));
    }
    let keys: Vec<_> = here().map(Setting::key).collect();
    Some(format!("[{section}] has {}", keys.join(", ")))
}

/// The known word that somebody may have meant.
pub(super) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_lowercase().replace('-', "_");
    known
        .map(|candidate| (strsim::damerau_levenshtein(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A line of the file as it may be shown: from the first secret on, nothing.
fn without_secrets(line: &str) -> String {
    let secret = |before: &str| {
        let before = before.trim_end().trim_end_matches(['"', '\'']);
        let letter = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
        let key = &before[before.trim_end_matches(letter).len()..];
        settings::table().any(|setting| setting.secret && setting.key() == key)
    };
    match line.match_indices('=').find(|(at, _)| secret(&line[..*at])) {
        Some((at, _)) => format!("{}= {}", redact::addresses(&line[..at]), redact::HIDDEN),
        None => redact::addresses(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::values::parts;

    fn problems_of(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        parse(Path::new("remuda.toml"), text, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        for (text, shown) in [
            (
                "[tasks]\ntimout = \"30m\"\n",
                "remuda.toml:2:1: unknown key `tasks.timout`\n  |\n2 | timout = \"30m\"\n  | ^^^^^^ did you mean `timeout`?",
            ),
            (
                "[server]\n\n  body_limit = true # oh",
                "remuda.toml:3:16: `server.body_limit` wants a size such as \"32MiB\" or a number of bytes, not true or false\n  |\n3 |   body_limit = true # oh\n  |                ^^^^",
            ),
            (
                "[tasks]\nlease = \"30x\"",
                "remuda.toml:2:9: `tasks.lease`: `30x` is not a duration; write one such as 30s, 5m, 1h30m or 7d, or seconds\n  |\n2 | lease = \"30x\"\n  |         ^^^^^",
            ),
            (
                "listen = \"127.0.0.1:1\"",
                "remuda.toml:1:1: unknown key `listen`\n  |\n1 | listen = \"127.0.0.1:1\"\n  | ^^^^^^ it belongs below [server]",
            ),
            (
                "[sever]\nlisten = 1",
                "remuda.toml:1:2: unknown key `sever`\n  |\n1 | [sever]\n  |  ^^^^^ did you mean `server`?",
            ),
            (
                "server = 5",
                "remuda.toml:1:10: `server` is a table, not a number\n  |\n1 | server = 5\n  |          ^ write [server] and its keys below it",
            ),
            (
                "[tasks]\npriority = 10",
                "remuda.toml:2:12: `tasks.priority`: 10 is more than 9\n  |\n2 | priority = 10\n  |            ^^",
            ),
            (
                "[tasks]\nmax_retries = -1",
                "remuda.toml:2:15: `tasks.max_retries` wants a number from 0 on, not -1\n  |\n2 | max_retries = -1\n  |               ^^",
            ),
            (
                "[workers]\ncomfyui = [\"http://ä:1\", { url = \"http://b:2\", lables = [] }]",
                "remuda.toml:2:48: unknown key `lables` in `workers.comfyui`\n  |\n2 | comfyui = [\"http://ä:1\", { url = \"http://b:2\", lables = [] }]\n  |                                                ^^^^^^ did you mean `labels`?",
            ),
        ] {
            assert_eq!(problems_of(text), [shown], "{text}");
        }
    }

    #[test]
    fn what_is_not_toml_is_shown_with_its_place() {
        let problems = problems_of("[server]\nlisten = 127.0.0.1:8080\n");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("remuda.toml:2:"), "{}", problems[0]);
        assert!(problems[0].contains("\n2 | listen = 127.0.0.1:8080\n"), "{}", problems[0]);
        assert!(
            problems_of("[server]\ninsecure = true\ninsecure = true")[0].starts_with("remuda.toml:3:1: ")
        );
    }

    #[test]
    fn all_mistakes_are_shown_in_their_order_and_without_secrets() {
        let text = "[tasks]\npriority = 99\n[client]\nkey = 12345\nserver = \"ftp://me:hunter2@host\"\n";
        let problems = problems_of(text);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains(":2:"));
        assert!(problems[1].contains("4 | key = ***"), "{}", problems[1]);
        assert!(problems[2].contains("me:***@host"), "{}", problems[2]);
        assert!(
            !problems.concat().contains("12345") && !problems.concat().contains("hunter2"),
            "{problems:?}"
        );
    }

    #[test]
    fn values_are_understood_in_both_ways_of_writing() {
        let mut problems = Vec::new();
        let text = "[tasks]\ntimeout = 90\ndrain = \"10s\"\n[server]\nlisten = 9000\ncors_origins = [\"http://a\", \"http://b\"]\n\
                    [[workers.comfyui]]\nurl = \"http://a:1\"\nlabels = [\"gpu=4090\", \"fast\"]\n[[workers.comfyui]]\nurl = \"http://b:2\"\n";
        let found = parse(Path::new("remuda.toml"), text, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let value = |name: &str| found.values[name].0.as_str();
        assert_eq!(
            (value("tasks.timeout"), value("tasks.drain"), value("server.listen")),
            ("90", "10s", "9000")
        );
        assert_eq!(value("workers.comfyui"), "http://a:1 gpu=4090 fast, http://b:2");
        assert_eq!(parts(value("server.cors_origins")).collect::<Vec<_>>(), ["http://a", "http://b"]);
        assert_eq!(found.values["tasks.drain"].1, 3);
    }
}
