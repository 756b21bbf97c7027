//! Signals to processes that we started.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Sends a signal; a process that has just ended is no error, for that is a race nobody can win.
pub(crate) fn send(pid: u32, signal: Signal) -> std::io::Result<()> {
    deliver(raw(pid)?, signal)
}

/// Sends a signal to a process group, by the number of its leader.
pub(crate) fn send_group(leader: u32, signal: Signal) -> std::io::Result<()> {
    deliver(-raw(leader)?, signal)
}

fn raw(pid: u32) -> std::io::Result<i32> {
    i32::try_from(pid).map_err(std::io::Error::other)
}

fn deliver(pid: i32, signal: Signal) -> std::io::Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The processes that this one has started and that are still there.
///
/// Read from `/proc`, where there is one: elsewhere nothing is found.
pub(crate) fn children(parent: u32) -> std::io::Result<Vec<u32>> {
    let listed = match std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}
