//! The steps of `cargo xtask test`, cheapest and most telling first.

use crate::programs::{self, USUAL};
use crate::run::{cargo, shown};
use crate::tidy::workspace::{Package, Workspace};
use crate::{attack, fuzz, littlehorse, needs, tidy};
use anyhow::Result;
use clap::ValueEnum;

/// One step; the order here is the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Install or find what the tests call.
    Needs,
    /// The rules of the repository: licences, duplicates, links, lengths and the like.
    Tidy,
    /// Formatting.
    Fmt,
    /// Lints of all targets, warnings denied.
    Clippy,
    /// The documentation builds, warnings denied.
    Doc,
    /// Unit and integration tests, examples built.
    Test,
    /// The short form of the attacks, and a few thousand requests made by chance.
    Attack,
    /// The examples in the documentation.
    Doctest,
    /// The tests with a real LittleHorse server, where one can be had.
    Littlehorse,
    /// Every library checked alone, without the features its neighbours switch on, and the gateway without the simulator.
    Alone,
    /// The fuzz targets, which are a workspace of their own, still compile.
    Fuzz,
}

impl Step {
    /// The name as `--only` takes it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What it is for, in a few words.
    pub(crate) fn purpose(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    /// Does it. A required step may leave nothing out.
    pub(crate) fn run(self, required: bool) -> Result<Done> {
        match self {
            Step::Littlehorse => return littlehorse::test(required),
            Step::Needs => needs::provide(),
            Step::Tidy => tidy::run(),
            Step::Fmt => format(),
            Step::Clippy => clippy(),
            Step::Doc => shown(cargo().args(DOC).env("RUSTDOCFLAGS", "-D warnings")),
            Step::Test => programs::run_with_postgres(programs::build(USUAL)?),
            Step::Attack => attack::quick(),
            Step::Doctest => shown(cargo().args(["test", "--workspace", "--locked", "--doc"])),
            Step::Alone => alone(),
            Step::Fuzz => fuzz::check(),
        }?;
        Ok(Done::Everything)
    }
}

/// What a step that did not fail has done.
pub(crate) enum Done {
    /// All that it is for.
    Everything,
    /// Something could not be tested here; the text says what, and why.
    Without(String),
}

/// What `--all-targets` leaves out is looked at, too: tests that `cargo test` alone does not run.
fn clippy() -> Result<()> {
    let clippy = |targets: &[&str]| {
        shown(
            cargo().args(["clippy", "--workspace", "--locked"]).args(targets).args(["--", "-D", "warnings"]),
        )
    };
    clippy(&["--all-targets"])?;
    clippy(&littlehorse::TESTS)
}

const DOC: [&str; 4] = ["doc", "--workspace", "--locked", "--no-deps"];

fn format() -> Result<()> {
    shown(cargo().args(["fmt", "--all", "--", "--check"]))?;
    shown(cargo().args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--", "--check"]))
}

/// In a workspace build a crate can lean on a feature that only its neighbour asked for; a user who takes
/// the crate alone would then meet an error. A program is looked at if there is something to choose, as the gateway without
/// the simulator.
fn alone() -> Result<()> {
    let chosen = |member: &&Package| member.is_library || member.has_features;
    for member in Workspace::load()?.members().filter(chosen) {
        let check = |extra: &[&str]| {
            shown(cargo().args(["check", "--locked", "--package", &member.name]).args(extra))
        };
        check(&[])?;
        if member.has_features {
            check(&["--no-default-features"])?;
            check(&["--all-features"])?;
        }
    }
    Ok(())
}
