//! `remuda sim` as a program: it says where it is, does as it is told, and stops when asked.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Running {
    child: Child,
    /// Address and port, taken from the first line.
    addr: String,
}

impl Running {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_remuda"))
            .args(["sim", "--listen", "127.0.0.1:0", "--json"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let addr = line["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        Self { child, addr }
    }

    /// The whole answer, or nothing if the connection broke.
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        // A reset is one of the things that are looked for here.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn terminate(mut self) -> Option<i32> {
        let told = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(told.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_as_the_version_it_was_told_and_stops_on_sigterm() {
    let sim = Running::start(&["--version", "0.3.64"]);
    let answer = sim.ask("GET", "/system_stats", "");
    assert!(answer.contains(r#""comfyui_version": "0.3.64""#), "{answer}");
    assert_eq!(sim.terminate(), Some(0));
}

#[test]
fn faults_come_from_flags_and_a_dead_process_ends_the_program() {
    let mut sim = Running::start(&[
        "--fault",
        "error,on=GET /queue,times=1,status=503",
        "--fault",
        "crash,on=POST /prompt",
    ]);
    assert!(sim.ask("GET", "/queue", "").starts_with("HTTP/1.1 503"));
    assert!(sim.ask("GET", "/queue", "").starts_with("HTTP/1.1 200"));
    assert_eq!(sim.ask("POST", "/prompt", "{}"), "");
    assert_eq!(sim.child.wait().unwrap().code(), Some(1));
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    let check = |flags: &[&str], expected: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_remuda")).arg("sim").args(flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{flags:?}: {text}");
    };
    check(&["--fault", "hnag"], "unknown variant `hnag`");
    check(&["--version", "1.2.3"], "there are 0.3.30, 0.3.64 and 0.7.0");
    check(&["--listen", "127.0.0.1:0", "--frontend", "/nonexistent"], "holds no frontend");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    check(&["--listen", &addr], "choose another with --listen");
}
