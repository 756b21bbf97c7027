//! Programs as processes: their lines, their end, and that none is left behind.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use remuda_testbed::process::{Error, Program};
use remuda_testbed::wait;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);
const NONE: [(&str, &str); 0] = [];

fn shell(script: &str) -> Program {
    Program::start("sh", ["-c", script], NONE).expect("start a shell")
}

fn state(pid: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let state = status.lines().find_map(|line| line.strip_prefix("State:"))?;
    Some(state.trim().to_owned()).filter(|state| !state.starts_with('Z'))
}

async fn gone(pid: u32) {
    let look = async || state(pid).map_or(Ok(()), Err);
    wait::until(format!("the end of process {pid}"), LONG, look).await.expect("it ends");
}

#[tokio::test]
async fn lines_of_both_outputs_are_found_before_and_after_they_come() {
    let mut program = shell("echo first; echo second >&2; exec sleep 600");
    assert_eq!(program.wait_line("sec", LONG).await.unwrap(), "second");
    assert_eq!(program.wait_line("fir", LONG).await.unwrap(), "first");
    let late = program.wait_line("third", Duration::from_millis(50)).await.unwrap_err();
    assert!(late.to_string().contains("second"), "the error shows the output: {late}");
    assert!(program.rss_bytes().unwrap() > 100_000);
}

#[tokio::test]
async fn a_line_that_cannot_come_any_more_is_not_waited_for() {
    let mut program = shell("echo sorry; exit 3");
    let error = program.wait_line("ready", LONG).await.unwrap_err();
    assert!(matches!(&error, Error::Ended { status, .. } if status.contains('3')), "{error}");
    assert_eq!(program.wait_exit(LONG).await.unwrap().code(), Some(3));
    assert_eq!(program.output(), ["sorry"]);
    // Signals to one that has ended reach nobody else.
    program.kill_9().unwrap();
    program.term().unwrap();
}

#[tokio::test]
async fn stopped_it_stands_still_and_continued_it_goes_on() {
    // The shell starts nothing after `up`: stopped between a vfork and its exec, it would hang elsewhere.
    let mut program = shell("trap 'echo asked; exit 0' TERM; sleep 600 & echo up; wait");
    program.wait_line("up", LONG).await.unwrap();
    program.stop().unwrap();
    let pid = program.id();
    let stopped = async || state(pid).filter(|state| state.starts_with('T'));
    wait::until("the stop", LONG, stopped).await.unwrap();
    program.term().unwrap();
    assert!(program.wait_exit(Duration::from_millis(100)).await.is_err());
    program.cont().unwrap();
    assert!(program.wait_exit(LONG).await.unwrap().success());
    program.wait_line("asked", LONG).await.unwrap();
}

#[tokio::test]
async fn what_it_started_is_killed_with_it() {
    let mut program = shell("sleep 600 & echo child $!; wait");
    let line = program.wait_line("child ", LONG).await.unwrap();
    let child: u32 = line.trim_start_matches("child ").parse().unwrap();
    program.stop().unwrap();
    drop(program);
    gone(child).await;

    let mut program = shell("sleep 600 >/dev/null 2>&1 & echo child $!");
    let line = program.wait_line("child ", LONG).await.unwrap();
    program.wait_exit(LONG).await.unwrap();
    gone(line.trim_start_matches("child ").parse().unwrap()).await;
}
