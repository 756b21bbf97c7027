//! Faults that tests of the whole program ask for. Only in debug builds.
//!
//! `REMUDA_TEST_FAULT` names a file. While it is there, it says what goes wrong: `hold` holds every thread of the runtime,
//! `die WORK` ends the process in the middle of that work on a stored task, `stall WORK` lets it come to no end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_pool::{Pool, Work};

const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn listen(pool: &Pool) {
    let Some(path) = std::env::var_os("REMUDA_TEST_FAULT").map(PathBuf::from) else { return };
    pool.fault_in({
        let path = path.clone();
        move |what, task| {
            if task.is_some() {
                strike(&path, what);
            }
        }
    });
    tokio::spawn(hold(pool.clone(), path));
}

fn asked(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn strike(path: &Path, what: &str) {
    let is = |verb: &str| asked(path).is_some_and(|text| text == format!("{verb} {what}"));
    if is("die") {
        std::process::abort();
    }
    while is("stall") {
        std::thread::park_timeout(PAUSE);
    }
}

/// Holds every thread of the runtime while the file says so.
async fn hold(pool: Pool, path: PathBuf) {
    let held = |path: &Path| asked(path).as_deref() == Some("hold");
    loop {
        tokio::time::sleep(PAUSE).await;
        if !held(&path) {
            continue;
        }
        // More than there are threads: some may wait behind one that is held.
        for _ in 0..4 * tokio::runtime::Handle::current().metrics().num_workers() {
            let (pool, path) = (pool.clone(), path.clone());
            tokio::spawn(async move {
                pool.here(&Work::new("a test that holds everything", "nobody", 0), || {
                    while held(&path) {
                        std::thread::park_timeout(PAUSE);
                    }
                });
            });
        }
    }
}
