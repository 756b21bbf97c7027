//! Which tasks run on sidecars, and where their live frames belong.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use remuda_core::{AttemptNo, OwnerId, TaskId};
use remuda_frames::FrameHub;
use remuda_store::Store;
use tokio::time::Instant;

use super::deliveries::Deliveries;
use super::offers::Offers;
use super::owners::Owners;

/// How long one look at the lease is good for: frames come several times in a second.
const FRESH: Duration = Duration::from_secs(3);

/// After this long without a frame a task is forgotten; its end may have been reported to another server.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How many tasks are remembered.
const MOST: usize = 20_000;

/// A server that does not answer the call within this time is not there.
const CONNECT: Duration = Duration::from_secs(1);

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) owner: OwnerId,
    pub(super) attempt: AttemptNo,
    /// Where readers look for frames.
    pub(super) gateway: Option<String>,
}

/// What is known of one task's lease.
#[derive(Debug, Clone)]
struct Known {
    holder: Holder,
    read: Instant,
}

/// Leases of tasks that frames came for.
#[derive(Debug, Default)]
pub(crate) struct Live {
    known: Mutex<HashMap<TaskId, Known>>,
    /// Who sidecars are.
    pub(super) owners: Owners,
    /// What they delivered.
    pub(super) deliveries: Deliveries,
    /// What their workers offer.
    pub(super) offers: Offers,
    client: OnceLock<Result<reqwest::Client, String>>,
}

impl Live {
    fn known(&self) -> MutexGuard<'_, HashMap<TaskId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what is passed on to other servers of the installation.
    pub(super) fn client(&self) -> Result<&reqwest::Client, String> {
        let make = || {
            let client = reqwest::Client::builder()
                .connect_timeout(CONNECT)
                // The cluster key goes to the address on the lease and nowhere else.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy();
            client.build().map_err(|error| error.to_string())
        };
        self.client.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Who holds the lease on a task. Best effort, as frames are: wrong for a few seconds after a change.
    pub(super) async fn holder(&self, store: &dyn Store, task: TaskId) -> Option<Holder> {
        let known = self.known().get(&task).filter(|known| known.read.elapsed() < FRESH).cloned();
        if let Some(known) = known {
            return Some(known.holder);
        }
        let read = Instant::now();
        // Without a store nothing is let through.
        let lease = store.lease(task).await.ok()?;
        let holder =
            lease.map(|lease| Holder { owner: lease.owner, attempt: lease.attempt, gateway: lease.gateway });
        let mut known = self.known();
        // A task that nobody holds is not remembered: anybody can make up the ids of such tasks, and would fill the list.
        match &holder {
            Some(holder) if known.len() < MOST || known.contains_key(&task) => {
                known.insert(task, Known { holder: holder.clone(), read });
            }
            Some(_) => {}
            None => drop(known.remove(&task)),
        }
        holder
    }

    /// The task does not run any more, or elsewhere: its readers see the end of the channel.
    pub(super) fn forget(&self, hub: &FrameHub, task: TaskId) {
        self.known().remove(&task);
        hub.close(task);
    }

    /// A process was told that it lost its lease on a task. Readers are sent to look elsewhere only if it was the one that
    /// is known here to have it.
    pub(super) fn lost(&self, hub: &FrameHub, task: TaskId, owner: OwnerId) {
        let known = self.known().get(&task).map(|known| known.holder.owner);
        if known == Some(owner) {
            self.forget(hub, task);
        }
    }

    /// Forgets what nothing was heard of for long. A reader that still follows such a task looks for it again.
    pub(super) fn sweep(&self, hub: &FrameHub) {
        let mut known = self.known();
        let old = known.iter().filter(|(_, known)| known.read.elapsed() > FORGOTTEN);
        let old: Vec<TaskId> = old.map(|(task, _)| *task).collect();
        for task in old {
            known.remove(&task);
            hub.let_go(task);
        }
    }
}
