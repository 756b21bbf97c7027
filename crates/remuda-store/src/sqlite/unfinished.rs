//! How many tasks of a client, or of all clients of a tenant, have not ended. Clients are asked about again and again; who was
//! asked about once is remembered, and with every commit the number is right again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::{Dialect, Task, Tenant};

use super::batch::Batch;
use super::fault::Outcome;
use super::origins;

/// How many clients are remembered; those who are asked about after that are counted again.
const REMEMBERED: usize = 10_000;

/// One client of a tenant, or all of them.
pub(super) type Client = (Tenant, Dialect, Option<String>);

/// What a transaction did to the number of one client, in the order in which it happened.
#[derive(Debug)]
pub(super) enum Tally {
    Counted(Client, i64),
    Changed(Client, i64),
}

/// The numbers as they are in the file.
#[derive(Debug, Default, Clone)]
pub(super) struct Unfinished {
    known: Arc<Mutex<HashMap<Client, i64>>>,
}

impl Unfinished {
    /// The number of a client, if it is remembered.
    pub(super) fn of(&self, client: &Client) -> Option<i64> {
        self.known().get(client).copied()
    }

    /// After the commit, and before anybody hears of it.
    pub(super) fn note(&self, tallies: Vec<Tally>) {
        if tallies.is_empty() {
            return;
        }
        let mut known = self.known();
        for tally in tallies {
            match tally {
                Tally::Counted(client, n) => {
                    if known.len() >= REMEMBERED {
                        known.clear();
                    }
                    known.insert(client, n);
                }
                Tally::Changed(client, n) => {
                    if let Some(count) = known.get_mut(&client) {
                        *count += n;
                    }
                }
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Client, i64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch<'_> {
    /// Counts the tasks of a client, for the first time.
    pub(super) fn count_unfinished(&mut self, client: &Client) -> Outcome<i64> {
        let n = origins::unfinished(self.db, &client.0, client.1, client.2.as_deref())?;
        self.effects.unfinished.push(Tally::Counted(client.clone(), n));
        Ok(n)
    }

    /// A task came, or ended.
    pub(super) fn tally(&mut self, task: &Task, n: i64) {
        let Some(origin) = &task.origin else { return };
        let all = (task.tenant.clone(), origin.dialect, None);
        if origin.client.is_some() {
            let client = (task.tenant.clone(), origin.dialect, origin.client.clone());
            self.effects.unfinished.push(Tally::Changed(client, n));
        }
        self.effects.unfinished.push(Tally::Changed(all, n));
    }
}
