//! How much processor time a thread has used, where the system tells it.
//!
//! In a container with a tenth of a processor, ten seconds on the clock are one second of work: a large graph that does
//! nothing wrong would look like one that never ends.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static OURS: OnceCell<Option<Arc<Path>>> = const { OnceCell::new() };
}

/// The processor time of one thread, from a certain moment on.
#[derive(Debug)]
pub(crate) struct Effort {
    told_in: Arc<Path>,
    before: Duration,
}

impl Effort {
    /// Of the thread that asks, from now on. Nothing where the system does not tell.
    pub(crate) fn begin() -> Option<Self> {
        let told_in = OURS.with(|ours| ours.get_or_init(find).clone())?;
        let before = read(&told_in)?;
        Some(Self { told_in, before })
    }

    /// How much it has used since. Nothing when the thread is gone.
    pub(crate) fn spent(&self) -> Option<Duration> {
        Some(read(&self.told_in)?.saturating_sub(self.before))
    }
}

/// Where the system tells of the thread that asks.
fn find() -> Option<Arc<Path>> {
    // "1234/task/1240"
    let thread = std::fs::read_link("/proc/thread-self").ok()?;
    let told_in = PathBuf::from("/proc/self/task").join(thread.file_name()?).join("schedstat");
    Some(told_in.into())
}

/// The first number: nanoseconds on a processor.
fn read(told_in: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(told_in).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn waiting_is_no_effort() {
        // Not every system tells.
        let Some(effort) = Effort::begin() else { return };
        std::thread::park_timeout(Duration::from_millis(200));
        let waited = effort.spent().unwrap();
        assert!(waited < Duration::from_millis(150), "{waited:?}");
        let since = Instant::now();
        while effort.spent().unwrap() < waited + Duration::from_millis(20) {
            assert!(since.elapsed() < Duration::from_secs(60), "work is counted");
        }
    }
}
