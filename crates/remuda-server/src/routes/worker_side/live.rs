//! Which tasks run on sidecars that report to this server: their live frames are let through.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::{AttemptNo, OwnerId, TaskId};
use remuda_runner::frames::FrameHub;
use remuda_store::Store;
use tokio::time::Instant;

/// Frames come several times in a second; so long one look at the lease is good for all of them.
const FRESH: Duration = Duration::from_secs(3);

/// After so long without a frame a task is forgotten; its end may have been reported to another server.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What is known of one task's lease.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Who holds it and which attempt is under way; `None` when nobody does.
    held: Option<(OwnerId, AttemptNo)>,
    read: Instant,
}

/// Leases of tasks that frames came for.
#[derive(Debug, Default)]
pub(crate) struct Live {
    known: Mutex<HashMap<TaskId, Known>>,
}

impl Live {
    fn known(&self) -> MutexGuard<'_, HashMap<TaskId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this attempt is under way and the sidecar's. Best effort, as frames are: wrong for a few seconds after a change.
    pub(super) async fn is_current(
        &self,
        store: &dyn Store,
        owner: OwnerId,
        task: TaskId,
        attempt: AttemptNo,
    ) -> bool {
        let known = self.known().get(&task).copied().filter(|known| known.read.elapsed() < FRESH);
        let held = match known {
            Some(known) => known.held,
            None => {
                let read = Instant::now();
                // Without a store nothing is let through that was not before.
                let Ok(lease) = store.lease(task).await else { return false };
                let held = lease.map(|lease| (lease.owner, lease.attempt));
                self.known().insert(task, Known { held, read });
                held
            }
        };
        held == Some((owner, attempt))
    }

    /// The task does not run any more, or elsewhere: its readers see the end of the channel.
    pub(super) fn forget(&self, hub: &FrameHub, task: TaskId) {
        self.known().remove(&task);
        hub.close(task);
    }

    /// Forgets what nothing was heard of for long. A reader that still follows such a task looks for it again.
    pub(super) fn sweep(&self, hub: &FrameHub) {
        let mut known = self.known();
        let old: Vec<TaskId> = known
            .iter()
            .filter(|(_, known)| known.read.elapsed() > FORGOTTEN)
            .map(|(task, _)| *task)
            .collect();
        for task in old {
            known.remove(&task);
            hub.close(task);
        }
    }
}
