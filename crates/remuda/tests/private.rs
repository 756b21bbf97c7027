//! What Remuda keeps on its machine is for the user who runs it, and secrets are kept sealed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Running, post, text};

const SECRET: &str = "sk-0123456789-secret";

/// The program under a umask that forbids nothing.
async fn serve(data: &Path, env: &[(&str, &str)]) -> Running {
    let script = "umask 000; exec \"$0\" \"$@\"";
    let data = data.to_str().unwrap();
    let serve = ["serve", "--json", "--listen", "127.0.0.1:0", "--data", data];
    let mut program = remuda_testbed::process::Program::start(
        "/bin/sh",
        [&["-c", script, env!("CARGO_BIN_EXE_remuda")], &serve[..]].concat().as_slice(),
        env.iter().copied(),
    )
    .unwrap();
    let line = program.wait_line("{\"", support::PATIENCE).await.unwrap();
    Running { program, first: serde_json::from_str(&line).unwrap() }
}

fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(everything(&path)) } else { found.push(path) }
    }
    found
}

fn assert_closed(data: &Path) {
    for name in [
        "",
        "remuda.db",
        "remuda.db-wal",
        "remuda.db-shm",
        "remuda.db.lock",
        "owner",
        "secret-key",
        "keys.sock",
    ] {
        let path = data.join(name);
        let mode = std::fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).mode();
        assert_eq!(mode & 0o077, 0, "{name} has the mode {mode:o}");
    }
}

#[tokio::test]
async fn nobody_else_can_look_into_the_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = serve(&data, &[]).await;
    assert_closed(&data);
    assert_eq!(std::fs::metadata(data.join("files")).unwrap().mode() & 0o777, 0o700);
    let prompt = format!(
        r#"{{"prompt": {{"1": {{"class_type": "A", "inputs": {{}}}}}}, "extra_data": {{"api_key_comfy_org": "{SECRET}"}}}}"#
    );
    let (status, answer) = post(&format!("{}/prompt", server.url()), None, &prompt).await;
    assert_eq!(status, 200, "{answer}");
    for file in everything(&data).into_iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "{}", file.display());
    }
    drop(server);

    // As an earlier release left it.
    for path in everything(&data) {
        let mode = if path.is_dir() { 0o777 } else { 0o666 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let server = serve(&data, &[]).await;
    assert_closed(&data);
    drop(server);
}

#[tokio::test]
async fn a_wrong_secret_key_is_refused_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    drop(serve(&data, &[]).await);
    let wrong = "00".repeat(32);
    let start = |key: &str| {
        Command::new(env!("CARGO_BIN_EXE_remuda"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()])
            .env("REMUDA_SECRET_KEY", key)
            .output()
            .unwrap()
    };
    let refused = start(&wrong);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("--secret-key-file") && !said.contains(&wrong), "{said}");
    let refused = start("hunter2");
    let said = text(&refused.stderr);
    assert!(said.contains("openssl rand -hex 32") && !said.contains("hunter2"), "{said}");
    let shown = Command::new(env!("CARGO_BIN_EXE_remuda"))
        .args(["config"])
        .current_dir(dir.path())
        .env("REMUDA_SECRET_KEY", &wrong)
        .output()
        .unwrap();
    let shown = text(&shown.stdout);
    assert!(shown.contains("secret_key") && !shown.contains(&wrong), "{shown}");
    drop(serve(&data, &[]).await);
}
