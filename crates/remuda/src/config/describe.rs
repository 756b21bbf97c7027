//! The settings as documents: the table for people, and a file to begin with.

use super::setting::{Setting, Shape, Stage};
use super::settings;

/// The table of all settings in Markdown, as it stands in `docs/configuration.md`.
pub(crate) fn markdown() -> String {
    let mut out = String::from("| setting | environment | flag | value | default | what it does |\n");
    out.push_str("| --- | --- | --- | --- | --- | --- |\n");
    for setting in settings::table() {
        let env = listed(setting.env.iter().map(|name| format!("`{name}`")));
        let flags = listed(setting.flags.iter().map(|flag| match flag.value {
            "" => format!("`--{}`", flag.long),
            value => format!("`--{} {value}`", flag.long),
        }));
        let default = match default_of(setting) {
            text if text.is_empty() => String::new(),
            text => format!("`{text}`"),
        };
        let mut help = setting.help.replace('|', "\\|");
        if setting.secret {
            help.push_str(" (secret)");
        }
        if setting.stage == Stage::Later {
            help.push_str(" (no effect yet)");
        }
        let row = [format!("`{}`", setting.name), env, flags, setting.shape.unit().to_owned(), default, help];
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    out
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// The default as it is explained: with the data directory's name for the directory.
pub(crate) fn default_of(setting: &Setting) -> String {
    setting.default.replace("{data}", "DATA")
}

/// A `remuda.toml` in which every setting has its default and is commented out.
pub(crate) fn example() -> String {
    let mut out = String::from(
        "# Settings of Remuda. Flags and environment variables are stronger than this file; what is commented out is\n\
         # the default, or an example where there is none. `remuda config` shows what holds and where it came from.\n",
    );
    let mut section = "";
    for setting in settings::table().filter(|setting| setting.stage == Stage::Now) {
        if setting.section() != section {
            section = setting.section();
            out.push_str(&format!("\n[{section}]\n"));
        }
        let env = setting.env.first().map(|name| format!(" ({name})")).unwrap_or_default();
        out.push_str(&format!("# {}{env}\n# {} = {}\n", setting.help, setting.key(), value_of(setting)));
    }
    out
}

/// A value to show in the example, in the words of TOML.
fn value_of(setting: &Setting) -> String {
    let text = setting.default.replace("{data}", "remuda-data");
    match setting.shape {
        Shape::Number if text.is_empty() => "1".to_owned(),
        Shape::Switch | Shape::Number => text,
        Shape::ComfyUis => "[\"http://127.0.0.1:8188\", \"http://10.0.0.5:8188 gpu=4090\"]".to_owned(),
        Shape::Origins => "[\"https://example.org\"]".to_owned(),
        Shape::List if setting.name == "tasks.tenant_labels" => "[\"alice=pool=a\"]".to_owned(),
        Shape::List if setting.name == "graph.allowed_paths" => "[\"/mnt/nas\"]".to_owned(),
        Shape::Networks => "[\"10.0.0.0/8\"]".to_owned(),
        Shape::List => "[\"remuda.example.org\"]".to_owned(),
        Shape::Size if text.is_empty() => "\"96MiB\"".to_owned(),
        Shape::Url if text.is_empty() => "\"http://10.0.0.2:8080\"".to_owned(),
        Shape::LogLevel => "\"info\"".to_owned(),
        _ if text.is_empty() => "\"\"".to_owned(),
        _ => format!("\"{text}\""),
    }
}
