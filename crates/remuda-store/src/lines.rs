//! Lines for reads that take long: one tenant's wait for each other, and not for them everybody else's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use remuda_core::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, Result};

/// Beyond this many tenants, those without a read under way are forgotten.
const REMEMBERED: usize = 1024;

/// One line for each tenant. Lists and counts take longer the more a tenant has stored, and a store reads only a few
/// things at once: without lines, whoever has most and asks most would have all of them.
#[derive(Debug)]
pub(crate) struct Lines {
    /// How many reads of one tenant are under way at once.
    each: usize,
    known: Mutex<HashMap<Tenant, Weak<Semaphore>>>,
}

impl Lines {
    pub(crate) fn new(each: usize) -> Self {
        Self { each, known: Mutex::default() }
    }

    /// Waits for the turn of this tenant's read.
    pub(crate) async fn wait(&self, tenant: &Tenant) -> Result<OwnedSemaphorePermit> {
        self.of(tenant).acquire_owned().await.map_err(|_| Error::Closed)
    }

    fn of(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = known.get(tenant).and_then(Weak::upgrade) {
            return line;
        }
        if known.len() >= REMEMBERED {
            known.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(Semaphore::new(self.each));
        known.insert(tenant.clone(), Arc::downgrade(&line));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_of_one_tenant_wait_for_each_other_only() {
        let lines = Lines::new(1);
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).unwrap());
        let first = lines.wait(&a).await.unwrap();
        let second = lines.wait(&a);
        tokio::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(lines.wait(&b).await.unwrap());
        drop(first);
        drop(second.await.unwrap());
        assert!(lines.known.lock().unwrap().values().all(|line| line.strong_count() == 0));
    }
}
