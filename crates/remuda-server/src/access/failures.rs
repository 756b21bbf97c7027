//! Keys that were not right: said in the log, counted, and answered slowly when one address shows many.
//!
//! Only wrong keys come here. Who shows a right one is never slowed, from whatever address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// In which time failures of an address are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// How many addresses are remembered. When there are more, the oldest half is forgotten.
const REMEMBERED: usize = 8192;

/// How many failures of an address are written to the log within a window.
const LOGGED: u32 = 10;

/// How many answers are held back at once, of all addresses together.
const HELD_BACK: usize = 256;

/// The way in which servers of one installation show who they are.
pub(super) const CLUSTER_KEY: &str = "cluster key";

/// During an upgrade nobody attacks: the key is another one since secrets are encrypted.
const OLDER: &str = ": it may be a server of the release before, which does not know the new cluster key; \
                     live frames pass between the two when both are upgraded";

/// Who showed wrong keys lately.
#[derive(Debug)]
pub(crate) struct Failures {
    limit: u32,
    delay: Duration,
    by_address: Mutex<HashMap<IpAddr, Lately>>,
    held_back: Semaphore,
}

#[derive(Debug, Clone, Copy)]
struct Lately {
    since: Instant,
    count: u32,
}

impl Failures {
    /// After `limit` failures within a minute the answers to an address come `delay` later.
    pub(crate) fn new(limit: u32, delay: Duration) -> Self {
        Self { limit, delay, by_address: Mutex::default(), held_back: Semaphore::new(HELD_BACK) }
    }

    /// A wrong key came from an address. How many were it within the last minute, this one included.
    fn count(&self, address: IpAddr, now: Instant) -> u32 {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if by_address.len() >= REMEMBERED && !by_address.contains_key(&address) {
            let mut moments: Vec<Instant> = by_address.values().map(|lately| lately.since).collect();
            moments.sort_unstable();
            let middle = moments.get(moments.len() / 2).copied().unwrap_or(now);
            by_address.retain(|_, lately| lately.since > middle);
        }
        let lately = by_address.entry(address).or_insert(Lately { since: now, count: 0 });
        if now.duration_since(lately.since) >= WINDOW {
            *lately = Lately { since: now, count: 0 };
        }
        lately.count = lately.count.saturating_add(1);
        lately.count
    }

    /// Notes a wrong key, and waits if the address has shown many. Never says the key, only how it begins.
    pub(crate) async fn note(&self, address: IpAddr, way: &'static str, key: &str) -> Result<(), ApiError> {
        let address = address.to_canonical();
        let count = self.count(address, Instant::now());
        if count <= LOGGED {
            let more = if count == LOGGED { "; more of this minute are not logged" } else { "" };
            let perhaps = if way == CLUSTER_KEY { OLDER } else { "" };
            tracing::warn!(client.address = %address, key.shown = way, key.prefix = prefix(key), "a wrong key was shown{perhaps}{more}");
        }
        if count <= self.limit {
            return Ok(());
        }
        match self.held_back.try_acquire() {
            Ok(_held_to_the_end) => {
                tokio::time::sleep(self.delay).await;
                Ok(())
            }
            // Too many to hold: they cost less when they are sent away.
            Err(_) => Err(ApiError::over_limit(
                "server.login_failures",
                "too many wrong keys came from this address: wait a minute",
            )),
        }
    }
}

/// How a key of ours begins; nothing of anything else, which may be a password of another place.
fn prefix(key: &str) -> String {
    match key.strip_prefix("rmd_") {
        Some(rest) => {
            format!("rmd_{}…", rest.chars().take(4).filter(char::is_ascii_alphanumeric).collect::<String>())
        }
        None => "not a key of Remuda".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_address_and_minute_in_bounded_memory() {
        let failures = Failures::new(20, Duration::ZERO);
        let now = Instant::now();
        let [one, two] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!((failures.count(one, now), failures.count(one, now), failures.count(two, now)), (1, 2, 1));
        assert_eq!(failures.count(one, now + WINDOW), 1);
        for n in 0..20_000_u32 {
            failures.count(IpAddr::from(n.to_be_bytes()), now + Duration::from_micros(n.into()));
        }
        assert!(failures.by_address.lock().unwrap().len() <= REMEMBERED);
    }

    #[test]
    fn nothing_of_a_foreign_password_is_logged() {
        assert_eq!(prefix("hunter2"), "not a key of Remuda");
        assert_eq!(prefix("rmd_abcdefghij"), "rmd_abcd…");
        assert_eq!(prefix("rmd_a\n\"c"), "rmd_ac…");
    }

    #[tokio::test]
    async fn many_failures_are_answered_slowly() {
        let failures = Failures::new(2, Duration::from_millis(30));
        let began = Instant::now();
        let address = IpAddr::from([10, 0, 0, 1]);
        for _ in 0..2 {
            failures.note(address, "header", "x").await.unwrap();
        }
        let before = began.elapsed();
        failures.note(address, "header", "x").await.unwrap();
        assert!(began.elapsed() >= before + Duration::from_millis(30));
        let _all = failures.held_back.try_acquire_many(256).unwrap();
        let refused = failures.note(address, "header", "x").await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.body.limit), (429, Some("server.login_failures")));
    }
}
