//! The flags of the commands, made from the table of settings.
//!
//! A command takes them with `#[command(flatten)] flags: ServeFlags`.

use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::setting::{Flag, Program, Setting, Shape};
use super::settings;
use super::sources::{ProcessEnv, Sources};

/// The flag that names the file, which is no setting itself.
const CONFIG: &str = "config";

/// What was given on the command line.
#[derive(Clone)]
pub(crate) struct Given {
    /// The program whose flags these are.
    pub(super) program: Program,
    /// The file.
    pub(super) config: Option<PathBuf>,
    /// Setting, flag and text.
    pub(super) values: Vec<(&'static Setting, &'static Flag, String)>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values: a key may be among them.
        let flags = self.values.iter().map(|(_, flag, _)| flag.long);
        f.debug_struct("Given")
            .field("config", &self.config)
            .field("flags", &flags.collect::<Vec<_>>())
            .finish()
    }
}

impl Given {
    /// No flags at all.
    pub(crate) fn none(program: Program) -> Self {
        Self { program, config: None, values: Vec::new() }
    }

    fn from_matches(program: Program, matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let config = matches.try_remove_one(CONFIG).ok().flatten();
        let mut values = Vec::new();
        for (setting, flag) in flags_of(program) {
            if setting.shape == Shape::Switch {
                if matches.get_flag(flag.long) {
                    values.push((setting, flag, "true".to_owned()));
                }
            } else if let Some(texts) = matches.remove_many::<String>(flag.long) {
                let text = texts.map(|text| format!("{}{text}", flag.prefix)).collect::<Vec<_>>().join(", ");
                values.push((setting, flag, text));
            }
        }
        Ok(Self { program, config, values })
    }
}

/// The flags of one program, in the order of the table.
pub(super) fn flags_of(program: Program) -> impl Iterator<Item = (&'static Setting, &'static Flag)> {
    settings::table()
        .flat_map(|setting| setting.flags.iter().map(move |flag| (setting, flag)))
        .filter(move |(_, flag)| flag.on.contains(&program))
}

fn augment(program: Program, command: Command) -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Read settings from FILE [env: REMUDA_CONFIG] [default: remuda.toml, if it is there]")
        .help_heading("Settings");
    flags_of(program).fold(command.arg(config), |command, (setting, flag)| command.arg(arg(setting, flag)))
}

fn arg(setting: &'static Setting, flag: &'static Flag) -> Arg {
    let others = setting.flags.iter().map(|other| other.long).filter(|other| *other != flag.long);
    let arg = Arg::new(flag.long)
        .long(flag.long)
        .conflicts_with_all(others)
        .help(help(setting, flag))
        .help_heading("Settings");
    match setting.shape {
        Shape::Switch => arg.action(ArgAction::SetTrue),
        shape => {
            let action = if shape.is_list() { ArgAction::Append } else { ArgAction::Set };
            arg.action(action).value_name(flag.value).allow_hyphen_values(false)
        }
    }
}

fn help(setting: &Setting, flag: &Flag) -> String {
    if !flag.prefix.is_empty() {
        return format!("Short for {}{}{}", other_flag(setting, flag), flag.prefix, flag.value);
    }
    let mut help = setting.help.to_owned();
    if setting.shape.is_list() {
        help.push_str("; may be given several times");
    }
    if let Some(env) = setting.env.first() {
        help.push_str(&format!(" [env: {env}]"));
    }
    if !setting.default.is_empty() && setting.shape != Shape::Switch {
        help.push_str(&format!(" [default: {}]", setting.default.replace("{data}", "DATA")));
    }
    help
}

fn other_flag(setting: &Setting, flag: &Flag) -> String {
    let other = setting.flags.iter().find(|other| other.long != flag.long);
    other.map(|other| format!("--{} ", other.long)).unwrap_or_default()
}

/// Makes a struct that clap can flatten into the arguments of a command.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident, $program:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(crate) struct $name(pub(crate) Given);

        impl $name {
            /// These flags, the environment of this process and the current folder.
            pub(crate) fn sources(&self) -> Sources<'_> {
                Sources { flags: &self.0, env: &ProcessEnv, dir: PathBuf::new() }
            }
        }

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Self::from_arg_matches_mut(&mut matches.clone())
            }

            fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
                Given::from_matches($program, matches).map(Self)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl clap::Args for $name {
            fn augment_args(command: Command) -> Command {
                augment($program, command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                augment($program, command)
            }
        }
    };
}

flags! {
    /// The flags of `remuda serve`, and of every command that is a server inside.
    ServeFlags, Program::Serve
}
flags! {
    /// The flags of `remuda worker`.
    WorkerFlags, Program::Worker
}
flags! {
    /// The flags of the commands that talk to a server: where it is, and the key.
    ClientFlags, Program::Client
}
