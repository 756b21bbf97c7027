//! The official Python SDK works with the double exactly as it was recorded to work.
//!
//! That makes the double an honest one. Left out are recordings that take longer than they are worth here: `report-hangs`
//! and `server-down-45s-busy` wait for deadlines of 30 s, `shutdown-busy-long` for minutes; `start-unreachable` has no
//! server; `origin-worker-…` show a program that was written with this SDK, and nothing new of the SDK.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

#[path = "../scenarios/mod.rs"]
mod scenarios;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use littlehorse_double::recording::{Lane, Line, Transcript};
use remuda_testbed::process::Program;
use scenarios::{Scenario, listed};
use serde_json::Value;

/// All that are played, and the pause between heartbeats, if not the SDK's own of a minute.
const SCENARIOS: [(&str, Option<&str>); 25] = [
    ("success-json", None),
    ("success-no-log", None),
    ("success-null-output", None),
    ("success-tenant-version", None),
    ("business-exception", None),
    ("business-exception-no-content", None),
    ("unexpected-exception", None),
    ("output-not-serialisable", None),
    ("input-bad-json", None),
    ("one-thread-three-tasks", None),
    ("two-threads-four-tasks", None),
    ("rebalance", Some("1")),
    ("empty-poll-response", None),
    ("worker-context-identity", None),
    ("checkpoints", None),
    ("report-retried", None),
    ("report-resource-exhausted", None),
    ("server-restart-idle", Some("1")),
    ("server-restart-busy", Some("1")),
    ("shutdown-idle", Some("3")),
    // The SDK leaves at the heartbeat after the signal, whatever it is doing.
    ("shutdown-busy-short", Some("14")),
    ("taskdef-conflict", None),
    ("taskdef-missing", None),
    ("tls-oauth-tenant", None),
    ("mtls", None),
];

#[tokio::test]
async fn the_official_sdk_says_what_it_was_recorded_to_say() {
    let python = installation().join("bin/python");
    // All at once, since most of the time they wait.
    let stage = tokio::task::LocalSet::new();
    let mut playing = tokio::task::JoinSet::new();
    for (name, heartbeat) in SCENARIOS.into_iter().chain([("oauth-on-plaintext", None)]) {
        let python = python.clone();
        playing.spawn_local_on(async move { (name, play(name, heartbeat, python).await) }, &stage);
    }
    let mut wrong = Vec::new();
    while let Some(played) = stage.run_until(playing.join_next()).await {
        let (name, differences) = played.expect("a scenario that is played to its end");
        if !differences.is_empty() {
            wrong.push(format!("=== {name}\n{differences}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plays a scenario and says what is not as recorded.
async fn play(name: &'static str, heartbeat: Option<&'static str>, python: PathBuf) -> String {
    let scenario = Scenario::new(name, None).await;
    scenario.prepare();
    let mut command = Command::new(python);
    command.arg(scripts().join("worker.py")).arg(name).envs(scenario.settings());
    if let Some(pause) = heartbeat {
        command.env("HEARTBEAT", pause);
    }
    let mut worker = Program::spawn(command).expect("the worker starts");
    scenario.perform(|| worker.term().expect("a signal")).await;
    let differences = scenario.differences(|transcript| settle(name, transcript)).await;
    // It ends by itself only where it was recorded to.
    let ends = name.starts_with("taskdef-") || name.starts_with("shutdown-");
    let ended = match ends {
        true => Some(worker.wait_exit(Duration::from_secs(180)).await.expect("its end").code()),
        false => worker.exited().expect("its state").map(|status| status.code()),
    };
    let wanted = ends.then_some(if name.starts_with("taskdef-") { Some(1) } else { Some(0) });
    let mut said = listed(&differences);
    if ended != wanted {
        said.push_str(&format!("\nit ended with {ended:?}, not {wanted:?}"));
    }
    let (recorded, asked) = scenario.token_requests();
    if recorded != asked {
        said.push_str(&format!("\nit asked for tokens with {asked:?}, not {recorded:?}"));
    }
    if !said.is_empty() {
        said.push_str(&format!("\nits output:\n{}", worker.output().join("\n")));
    }
    said
}

/// What need not be equal.
fn settle(name: &str, transcript: Transcript) -> Transcript {
    let transcript = match name {
        // The server of the recording forgot the parent in one of the two places where it belongs.
        "worker-context-identity" => transcript.map(without_source),
        _ => transcript,
    };
    // A stream that the test ends with the worker is not part of the recording.
    transcript.without(|_, line: &Line| !name.starts_with("shutdown-") && line.kind == "PollTask gone")
}

fn without_source(_: &Lane, line: &mut Line) {
    if let Some(task) = line.message.get_mut("result").and_then(Value::as_object_mut) {
        task.remove("source");
    }
}

/// The folder of an installation of exactly this list.
fn installation() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let folder = target.join("clients/littlehorse");
    let installed = std::fs::read_to_string(folder.join("installed.txt")).unwrap_or_default();
    assert!(
        installed == include_str!("requirements.txt"),
        "the LittleHorse SDK is not installed as listed; run `cargo xtask test --only needs`"
    );
    folder
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")
}
