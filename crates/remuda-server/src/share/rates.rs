//! How many requests in a second.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use remuda_core::Tenant;

use super::guest::{Address, Guest};

/// Guests that are remembered before those who have been quiet are forgotten.
const REMEMBERED: usize = 10_000;

/// Requests per second, of each tenant and of each address. Twice as many may come together.
#[derive(Debug)]
pub(crate) struct Rates {
    per_second: f64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    tenants: HashMap<Tenant, Bucket>,
    addresses: HashMap<Address, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn take(&mut self, per_second: f64, now: Instant) -> bool {
        let came = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        (self.left, self.at) = ((self.left + came).min(2.0 * per_second), now);
        let there = self.left >= 1.0;
        if there {
            self.left -= 1.0;
        }
        there
    }
}

impl Rates {
    /// Zero: as many as come.
    pub(crate) fn new(per_second: u64) -> Self {
        Self { per_second: per_second as f64, seen: Mutex::default() }
    }

    /// Whether one more request of this guest is answered.
    pub(crate) fn admit(&self, guest: &Guest) -> bool {
        if self.per_second == 0.0 {
            return true;
        }
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { tenants, addresses } = &mut *seen;
        guest.address.is_none_or(|address| admit(addresses, &address, self.per_second, now))
            && guest.tenant.as_ref().is_none_or(|tenant| admit(tenants, tenant, self.per_second, now))
    }
}

fn admit<K: Eq + Hash + Clone>(
    buckets: &mut HashMap<K, Bucket>,
    who: &K,
    per_second: f64,
    now: Instant,
) -> bool {
    if let Some(bucket) = buckets.get_mut(who) {
        return bucket.take(per_second, now);
    }
    if buckets.len() >= REMEMBERED {
        // After two seconds a bucket is full again, as a new one is.
        buckets.retain(|_, bucket| now.saturating_duration_since(bucket.at).as_secs() < 2);
        if buckets.len() >= REMEMBERED {
            buckets.clear();
        }
    }
    let mut bucket = Bucket { left: 2.0 * per_second, at: now };
    let there = bucket.take(per_second, now);
    buckets.insert(who.clone(), bucket);
    there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_rate_and_nothing_grows_for_ever() {
        let guest = |tenant: &str| Guest { tenant: Some(Tenant::new(tenant).unwrap()), address: None };
        let rates = Rates::new(5);
        let came = (0..100).filter(|_| rates.admit(&guest("a"))).count();
        assert!((10..20).contains(&came), "{came}");
        assert!(rates.admit(&guest("b")));
        for n in 0..2 * REMEMBERED {
            rates.admit(&guest(&format!("t{n}")));
        }
        assert!(rates.seen.lock().unwrap().tenants.len() <= REMEMBERED);
        let free = Rates::new(0);
        assert!((0..1000).all(|_| free.admit(&guest("a"))));
    }

    #[test]
    fn time_brings_requests_back() {
        let now = Instant::now();
        let mut bucket = Bucket { left: 0.0, at: now };
        assert!(!bucket.take(10.0, now));
        assert!(bucket.take(10.0, now + std::time::Duration::from_millis(101)));
    }
}
