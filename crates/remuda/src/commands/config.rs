//! `remuda config`: every setting, its value and where it came from.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Style};
use serde_json::json;

use crate::config::{self, Entry, Origin, ServeFlags, Settings, Stage};

/// The exit code for settings that do not hold, the same as for flags that do not.
const BAD_SETTINGS: u8 = 2;

/// What can be asked for. The flags of `serve` are taken as well, to see what they would change.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document.
    #[arg(long, conflicts_with_all = ["example", "check"])]
    json: bool,
    /// Print a remuda.toml to begin with, all defaults commented out.
    #[arg(long)]
    example: bool,
    /// Only say whether the settings hold; the exit code is 2 if they do not.
    #[arg(long, conflicts_with = "example")]
    check: bool,
    /// Print the table of docs/configuration.md.
    #[arg(long, hide = true)]
    markdown: bool,
    #[command(flatten)]
    flags: ServeFlags,
}

/// Shows or checks the settings.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if args.markdown {
        write!(out, "{}", config::markdown())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.example {
        write!(out, "{}", config::example())?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = match Settings::load(&args.flags.sources()) {
        Ok(settings) => settings,
        Err(error) => {
            writeln!(std::io::stderr(), "{error}")?;
            return Ok(ExitCode::from(BAD_SETTINGS));
        }
    };
    if args.json {
        writeln!(out, "{}", as_json(&settings))?;
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &settings.warnings {
        writeln!(std::io::stderr(), "warning: {warning}")?;
    }
    if args.check {
        writeln!(out, "The settings hold ({}).", read_from(&settings))?;
    } else {
        let colour =
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        write!(out, "{}", as_table(&settings, colour))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_from(settings: &Settings) -> String {
    match &settings.file {
        Some(path) => format!("read from {}", path.display()),
        None => "no remuda.toml here, none named".to_owned(),
    }
}

/// Columns: setting, value, origin; what is not the default stands out.
fn as_table(settings: &Settings, colour: bool) -> String {
    let style = |style: Style| if colour { style } else { Style::new() };
    let (head, set, dim) =
        (style(Style::new().bold()), style(AnsiColor::Green.on_default()), style(Style::new().dimmed()));
    // Settings without effect are shown only where somebody set them.
    let entries: Vec<&Entry> = settings
        .found
        .entries
        .iter()
        .filter(|entry| entry.setting.stage == Stage::Now || entry.origin != Origin::Default)
        .collect();
    let shown: Vec<String> = entries.iter().map(|entry| value(entry)).collect();
    let names = entries.iter().map(|entry| entry.setting.name.len()).max().unwrap_or(0);
    let values = shown.iter().map(|text| text.chars().count()).max().unwrap_or(0).min(48);
    let mut out = format!("{head}{:names$}  {:values$}  origin{head:#}\n", "setting", "value");
    for (entry, text) in entries.iter().zip(shown) {
        let colour = if entry.origin == Origin::Default { dim } else { set };
        let name = entry.setting.name;
        out.push_str(&format!("{name:names$}  {colour}{text:values$}  {}{colour:#}\n", entry.origin));
    }
    out.push_str(&format!(
        "\n{}. Every setting is explained in docs/configuration.md.\n",
        sentence(settings)
    ));
    out
}

fn sentence(settings: &Settings) -> String {
    let text = read_from(settings);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn value(entry: &Entry) -> String {
    if entry.is_set() { entry.shown() } else { "-".to_owned() }
}

fn as_json(settings: &Settings) -> serde_json::Value {
    let entries: Vec<_> = settings
        .found
        .entries
        .iter()
        .map(|entry| {
            let setting = entry.setting;
            let origin = match &entry.origin {
                Origin::Flag(flag) => json!({"kind": "flag", "name": flag}),
                Origin::Env(name) => json!({"kind": "env", "name": name}),
                Origin::File { path, line } => json!({"kind": "file", "name": path, "line": line}),
                Origin::Default => json!({"kind": "default"}),
            };
            json!({
                "name": setting.name,
                "value": entry.is_set().then(|| entry.shown()),
                "origin": origin,
                "env": setting.env,
                "flags": setting.flags.iter().map(|flag| format!("--{}", flag.long)).collect::<Vec<_>>(),
                "unit": setting.shape.unit(),
                "help": setting.help,
                "secret": setting.secret,
                "effective": setting.stage == Stage::Now,
            })
        })
        .collect();
    json!({"file": settings.file, "settings": entries, "warnings": settings.warnings})
}
