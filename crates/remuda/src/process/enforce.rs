//! A stop that happens, even when the runtime does not turn.
//!
//! Signals are heard on a runtime. A second, small one on a thread of its own hears them too, and ends the process when the
//! first one cannot.

use std::io;
use std::time::{Duration, Instant};

use remuda_pool::Pulse;

use crate::stop::Stop;

/// A runtime that has not turned for this long will not stop the process either.
const SILENT: Duration = Duration::from_secs(2);

/// Beyond the drain time everything but the drain itself must be done within this.
const BEYOND: Duration = Duration::from_secs(60);

/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);

/// How long the log may take for the last word.
const LAST_WORD: Duration = Duration::from_millis(500);

/// What the process is left to do after a signal.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It stops by itself.
    Wait,
    /// It does not: this is why.
    End(&'static str),
}

/// `since`: how long ago the first signal came; `again`: whether there was another.
fn judge(since: Duration, again: bool, silent: Duration, drain: Duration) -> Verdict {
    if silent >= SILENT && (again || since >= drain) {
        return Verdict::End("it does not turn");
    }
    if since >= drain.saturating_add(BEYOND) {
        return Verdict::End("the drain time is long over");
    }
    Verdict::Wait
}

/// Sees to it for the rest of the process.
pub(super) fn stop(pulse: Pulse, drain: Duration) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("remuda-stop".to_owned());
    // Never joined: it is there for the moment in which nothing else is.
    thread.spawn(move || runtime.block_on(watch(pulse, drain))).map(drop)
}

async fn watch(pulse: Pulse, drain: Duration) {
    let mut stop = match Stop::listen() {
        Ok(stop) => stop,
        Err(error) => {
            return tracing::warn!(%error, "a process that does not turn cannot be stopped by a signal");
        }
    };
    stop.requested().await;
    let first = Instant::now();
    let mut again = false;
    loop {
        tokio::select! {
            () = stop.requested() => again = true,
            () = tokio::time::sleep(LOOK) => {}
        }
        if let Verdict::End(why) = judge(first.elapsed(), again, pulse.silent(), drain) {
            end(why);
        }
    }
}

fn end(why: &'static str) {
    let said = std::thread::spawn(move || {
        tracing::error!(
            why,
            "the process was told to stop and does not; it is ended. Its leases stay, to be adopted"
        );
    });
    let since = Instant::now();
    while !said.is_finished() && since.elapsed() < LAST_WORD {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_turns_stops_by_itself_and_another_is_ended() {
        let (second, drain) = (Duration::from_secs(1), Duration::from_secs(25));
        let ends = |since: u32, again, silent: u32| {
            judge(second * since, again, second * silent, drain) != Verdict::Wait
        };
        assert!(!ends(0, false, 0) && !ends(24, false, 30), "the drain time is the runtime's");
        assert!(ends(25, false, 30));
        assert!(ends(1, true, 30), "once more stops at once");
        assert!(!ends(1, true, 1) && !ends(60, false, 0));
        assert!(ends(85, false, 0));
    }
}
