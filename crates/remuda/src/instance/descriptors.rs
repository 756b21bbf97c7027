//! How many files this process may have open. Every connection is one.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit as far as this process may; what it is then, if that can be found out.
pub(crate) fn raise() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft < hard {
        match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => return Some(hard),
            Err(error) => {
                tracing::warn!(%error, soft, hard, "the limit on open files stays low: raise it with `ulimit -n`");
            }
        }
    }
    Some(soft)
}
