//! Who cleans up when the test process itself is killed.
//!
//! A keeper is a shell that reads from a pipe which only its owner holds. The pipe closes when the owner lets
//! go of it or dies, however it dies; then the shell ends the process that it was told of last, and removes the folder.
//! The orderly end takes the same way, so that the way for disasters is walked by every test.
//!
//! `PR_SET_PDEATHSIG` would be shorter but wrong: it fires when the *thread* that started the child ends, and
//! a cluster shared by the tests of a process outlives the thread of the first of them.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Arguments: the signal to end the process with, and the folder to remove (or nothing).
const SCRIPT: &str = r#"
pid=0
while read -r line; do pid=$line; done
# One that has ended counts as gone even if nobody has reaped it.
lives() { kill -s 0 -- "$pid" && ! grep -q '^State:.Z' "/proc/${pid#-}/status"; }
if [ "$pid" != 0 ]; then
    # A stopped process takes no signal but KILL, and its children are not told of that.
    for stopped in "$pid" $(cat "/proc/$pid/task/$pid/children"); do kill -s CONT -- "$stopped"; done
    kill -s "$1" -- "$pid"
    tries=0
    while [ $tries -lt 100 ] && lives; do tries=$((tries + 1)); sleep 0.05; done
    kill -s KILL -- "$pid"
fi
tries=0
# What the process has started may write for another moment.
while [ -n "$2" ] && ! rm -rf "$2" && [ $tries -lt 20 ]; do tries=$((tries + 1)); sleep 1; done
"#;

/// Ends a process and removes a folder when it is dropped, or when this whole process is gone.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Keeper {
    /// `signal` is the name of the one that asks the process to end; after five seconds comes `KILL`.
    pub(crate) fn new(signal: &str, folder: Option<&Path>) -> std::io::Result<Keeper> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "keeper", signal])
            .arg(folder.unwrap_or(Path::new("")))
            // What kills the owner's process group (Ctrl-C, a test runner's timeout) must not reach the keeper.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = shell.stdin.take();
        Ok(Keeper { shell, pipe })
    }

    /// From now on this process is the one to end (a negative number is a process group); 0 is none.
    pub(crate) fn watch(&mut self, pid: i64) -> std::io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => writeln!(pipe, "{pid}"),
            None => Ok(()),
        }
    }

    /// Has the process ended. If it is a child of ours, reap it next: the keeper waits until it is gone.
    pub(crate) fn release(&mut self) {
        self.pipe = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.release();
        // Bounded by the script: half a minute at the very worst.
        let _ = self.shell.wait();
    }
}
