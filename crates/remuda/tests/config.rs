//! `remuda config` as a program: what it prints, and its exit codes.
#![allow(clippy::expect_used, reason = "clippy does not see that the helpers are part of tests")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs `remuda config` in a folder, with an environment of its own.
fn config(dir: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remuda"))
        .arg("config")
        .args(arguments)
        .env_clear()
        .envs(env.iter().copied())
        .current_dir(dir)
        .output()
        .expect("remuda runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn every_setting_is_shown_with_its_origin() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("remuda.toml"), "[tasks]\nlease = \"5s\"\n").expect("a file");
    let env =
        [("PORT", "9000"), ("REMUDA_STORE", "postgres://me:hunter2@db/x"), ("REMUDA_API_KEY", "hunter2")];
    let output = config(dir.path(), &["--sim", "2"], &env);
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stdout);
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
    let words = |name: &str| row(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words("server.listen"), "server.listen 127.0.0.1:9000 env PORT");
    assert_eq!(words("store.url"), "store.url postgres://me:***@db/x env REMUDA_STORE");
    assert_eq!(words("client.key"), "client.key *** env REMUDA_API_KEY");
    assert_eq!(words("tasks.lease"), "tasks.lease 5s remuda.toml:2");
    assert_eq!(words("workers.sim"), "workers.sim 2 --sim");
    assert!(!shown.contains('\u{1b}'), "colours without a terminal");

    let output = config(dir.path(), &["--json", "--sim", "2"], &env);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(!json.to_string().contains("hunter2"), "{json}");
    let lease =
        json["settings"].as_array().expect("settings").iter().find(|one| one["name"] == "tasks.lease");
    let lease = lease.expect("the lease");
    assert_eq!(lease["value"], "5s");
    assert_eq!(lease["origin"], serde_json::json!({"kind": "file", "name": "remuda.toml", "line": 2}));
    assert_eq!(json["file"], "remuda.toml");
}

#[test]
fn mistakes_are_told_with_exit_code_2() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("remuda.toml"), "[tasks]\ntimout = \"30m\"\n").expect("a file");
    for arguments in [&["--check"][..], &[], &["--json"]] {
        let output = config(dir.path(), arguments, &[("PORT", "http")]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with("remuda.toml:2:1: unknown key `tasks.timout`\n"), "{said}");
        assert!(said.contains("did you mean `timeout`?") && said.contains("\nPORT=http: "), "{said}");
        assert!(output.stdout.is_empty());
    }
    let output = config(dir.path(), &["--check", "--config", "other.toml"], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("other.toml (named by --config)"), "{output:?}");
}

#[test]
fn the_example_can_be_used_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let example = config(dir.path(), &["--example"], &[]);
    std::fs::write(dir.path().join("remuda.toml"), &example.stdout).expect("a file");
    let output = config(dir.path(), &["--check"], &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "The settings hold (read from remuda.toml).\n");
}
