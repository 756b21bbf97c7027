//! The program on the command line. The attacks themselves need a server: `cargo xtask test --only attack`.

#![allow(clippy::unwrap_used, reason = "clippy does not see that the helper is part of tests")]

use remuda_attack::CATALOGUE;
use std::process::{Command, Output};

fn attack(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remuda-attack")).args(arguments).output().unwrap()
}

#[test]
fn the_list_has_every_attack() {
    let listed = attack(&["--list"]);
    assert!(listed.status.success());
    let text = String::from_utf8(listed.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let expected: Vec<&str> = CATALOGUE.iter().map(|attack| attack.name).chain(["fuzz"]).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_name_that_nothing_has_is_an_error() {
    let refused = attack(&["--remuda", "/nowhere/remuda", "--only", "no-such-attack"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--list"));
}
