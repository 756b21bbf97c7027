//! Waiting for a condition, with a deadline: never sleep and hope.

use std::fmt::Display;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The pause between two looks grows from the first to the second.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(100);

/// What was waited for did not come.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} for {what}; last seen: {seen}")]
pub struct Timeout {
    /// What was awaited.
    pub what: String,
    /// For how long.
    pub waited: Duration,
    /// What the last look found instead.
    pub seen: String,
}

/// One look at the world: found, or what was seen instead.
///
/// `Option` has nothing to tell; the `Err` of a `Result` is what the error will name.
pub trait Look {
    /// What is found at last.
    type Found;

    /// Found, or the state that was seen.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "not there".to_owned())
    }
}

impl<T, S: Display> Look for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| seen.to_string())
    }
}

/// Looks again and again until it is found, for at most `within`.
///
/// A look that itself hangs is cut off at the deadline. There is always at least one look.
///
/// ```
/// use remuda_testbed::wait;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut count = 0;
/// let found = wait::until("the third look", Duration::from_secs(5), async || {
///     count += 1;
///     (count == 3).then_some(count)
/// });
/// assert_eq!(found.await.unwrap(), 3);
///
/// let late = wait::until("a task to end", Duration::from_millis(20), async || Err::<(), _>("state running"));
/// assert!(late.await.unwrap_err().to_string().ends_with("for a task to end; last seen: state running"));
/// # });
/// ```
pub async fn until<L: Look>(
    what: impl Display,
    within: Duration,
    mut look: impl AsyncFnMut() -> L,
) -> Result<L::Found, Timeout> {
    let started = Instant::now();
    let deadline = started + within;
    let mut pause = SHORTEST;
    let mut seen = None;
    loop {
        match timeout_at(deadline, look()).await.map(Look::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(state)) => seen = Some(state),
            Err(_) => {
                let seen = seen.unwrap_or_else(|| "nothing, the first look did not end".to_owned());
                return Err(Timeout { what: what.to_string(), waited: started.elapsed(), seen });
            }
        }
        // The last look is at the deadline itself, not before it.
        let now = Instant::now();
        if now >= deadline {
            let seen = seen.unwrap_or_default();
            return Err(Timeout { what: what.to_string(), waited: started.elapsed(), seen });
        }
        sleep(pause.min(deadline - now)).await;
        pause = (pause * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hanging_look_ends_at_the_deadline_with_what_was_seen_before() {
        let mut looks = 0;
        let late = until("an answer", Duration::from_millis(50), async || {
            looks += 1;
            if looks > 1 {
                std::future::pending::<()>().await;
            }
            Err::<(), _>("one of two")
        });
        let error = late.await.unwrap_err();
        assert!(error.waited >= Duration::from_millis(50) && error.seen == "one of two", "{error}");
    }
}
