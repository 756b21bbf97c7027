//! Who is to be told of which prompt.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::{Dialect, Task, TaskId, Tenant};
use tokio::sync::Notify;

use super::client::{Client, KEPT, Prompt};
use super::narrator;
use super::shelf::Shelf;
use crate::changes::Follow;
use crate::share::{Guest, Ledger};
use crate::state::AppState;

/// How many clients are known at once. A socket beyond them is refused.
const CLIENTS: usize = 8192;

/// When this many are known, a prompt's client gets no mailbox before it comes: who sends every prompt under another name and never
/// listens takes no socket's place.
const UNSEEN: usize = CLIENTS / 2;

/// How many tasks that other servers took in wait to be looked at. When there are more, their tenants' clients look for
/// themselves.
const STRANGERS: usize = 1024;

/// How many of them are looked at at once.
const AT_ONCE: usize = 256;

/// A name longer than this is none.
pub(super) const LONGEST_NAME: usize = 1024;

/// A tenant, wherever its clients are.
fn of(tenant: &Tenant) -> Guest {
    Guest { tenant: Some(tenant.clone()), address: None }
}

#[derive(Debug)]
struct Clients {
    known: HashMap<(Tenant, String), Arc<Client>>,
    /// How many of them each tenant has.
    share: Ledger,
    /// Counts what happens to prompts of each tenant that has clients.
    stirs: HashMap<Tenant, Arc<AtomicU64>>,
    /// Where the bytes are counted that wait for each of them, and for all together.
    shelves: HashMap<Tenant, Arc<Shelf>>,
    house: Arc<AtomicUsize>,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            share: Ledger::new(CLIENTS as u64),
            stirs: HashMap::new(),
            shelves: HashMap::new(),
            house: Arc::default(),
        }
    }
}

/// Every client that has a socket, or had one a moment ago, or has prompts under way that came in here.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    clients: Mutex<Clients>,
    strangers: Mutex<Strangers>,
    came: Notify,
}

/// What other servers took in, and nobody here has looked at.
#[derive(Debug, Default)]
struct Strangers {
    tasks: Vec<(Tenant, TaskId)>,
    /// Whose tasks were too many: their clients look for themselves, once for all of them.
    crowds: HashSet<Tenant>,
}

impl Desk {
    /// Whether any client is known.
    pub(crate) fn has_clients(&self) -> bool {
        !self.clients().known.is_empty()
    }

    /// Something may have happened to any prompt: whoever tells a client looks.
    pub(crate) fn doubt_all(&self) {
        self.clients().known.values().for_each(|client| client.doubt());
    }

    fn doubt_of(&self, tenant: &Tenant) {
        self.clients()
            .known
            .values()
            .filter(|client| client.tenant == *tenant)
            .for_each(|client| client.doubt());
    }

    /// Another server took a task in. It may be a prompt of a client that is known here.
    pub(crate) fn came_in_elsewhere(&self, tenant: &Tenant, task: TaskId) {
        if !self.clients().stirs.contains_key(tenant) {
            return;
        }
        let mut strangers = self.strangers();
        if strangers.tasks.len() < STRANGERS {
            strangers.tasks.push((tenant.clone(), task));
        } else if !strangers.crowds.contains(tenant) {
            strangers.crowds.insert(tenant.clone());
        }
        drop(strangers);
        self.came.notify_one();
    }

    /// Finds out whose prompts other servers took in, until the server stops.
    pub(crate) async fn run(state: AppState) {
        loop {
            tokio::select! {
                () = state.stop.cancelled() => return,
                () = state.desk.came.notified() => {}
            }
            let Strangers { tasks, crowds } = std::mem::take(&mut *state.desk.strangers());
            crowds.iter().for_each(|tenant| state.desk.doubt_of(tenant));
            for some in tasks.chunks(AT_ONCE) {
                if state.stop.is_cancelled() {
                    return;
                }
                let ids: Vec<TaskId> = some.iter().map(|(_, task)| *task).collect();
                match state.store.briefly(&ids).await {
                    Ok(mut tasks) => {
                        // As they came.
                        tasks.sort_by_cached_key(|task| ids.iter().position(|id| *id == task.id));
                        tasks.iter().for_each(|task| state.desk.meet(task));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "prompts of another server could not be looked at");
                        let tenants: HashSet<&Tenant> = some.iter().map(|(tenant, _)| tenant).collect();
                        tenants.into_iter().for_each(|tenant| state.desk.doubt_of(tenant));
                    }
                }
            }
        }
    }

    /// Tells a client that is known here of its prompt.
    fn meet(&self, task: &Task) {
        let Some(origin) = &task.origin else { return };
        let Some(name) = origin.client.as_ref().filter(|_| origin.dialect == Dialect::COMFYUI) else {
            return;
        };
        let client = self.clients().known.get(&(task.tenant.clone(), name.clone())).cloned();
        if let Some(client) = client {
            client.submitted(Prompt::known(task));
        }
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A prompt came in: from now on its client's messages are kept, also while it has no socket.
    /// `follow`: since before it was taken in, if this submission made it.
    pub(crate) fn submitted(&self, state: &AppState, task: &Task, follow: Option<Follow>) {
        let Some(origin) = &task.origin else { return };
        let Some(name) = &origin.client else { return };
        if origin.dialect != Dialect::COMFYUI || name.is_empty() || name.len() > LONGEST_NAME {
            return;
        }
        let mut clients = self.clients();
        if let Some(client) = Self::client(&mut clients, state, &task.tenant, name, UNSEEN) {
            client.submitted(Prompt::new(state, task, follow));
        }
    }

    /// A socket came. `None`: there are too many.
    pub(super) fn visit<T>(
        &self,
        state: &AppState,
        tenant: &Tenant,
        name: &str,
        join: impl FnOnce(&Client) -> T,
    ) -> Option<(Arc<Client>, T)> {
        let mut clients = self.clients();
        let client = Self::client(&mut clients, state, tenant, name, CLIENTS)?;
        // Before anybody can think that it is not needed.
        let joined = join(&client);
        Some((client, joined))
    }

    /// Forgets a client that nobody would miss. Whether it did.
    pub(super) fn retire(&self, client: &Client) -> bool {
        let mut clients = self.clients();
        let idle = client.is_idle(KEPT);
        if idle {
            if clients.known.remove(&(client.tenant.clone(), client.id.clone())).is_some() {
                clients.share.give(&of(&client.tenant), 1);
            }
            // Ours and the client's own.
            if Arc::strong_count(&client.stirs) <= 2 {
                clients.stirs.remove(&client.tenant);
                clients.shelves.remove(&client.tenant);
            }
        }
        idle
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(
        clients: &mut Clients,
        state: &AppState,
        tenant: &Tenant,
        name: &str,
        most: usize,
    ) -> Option<Arc<Client>> {
        let key = (tenant.clone(), name.to_owned());
        if let Some(client) = clients.known.get(&key) {
            return Some(client.clone());
        }
        // One tenant's clients leave room for those of others.
        let held = clients.share.held_by(Some(tenant));
        if clients.known.len() >= most
            || held >= (most / 4 * 3) as u64
            || state.stop.is_cancelled()
            || clients.share.take(&of(tenant), 1).is_err()
        {
            return None;
        }
        let stirs = clients.stirs.entry(tenant.clone()).or_default().clone();
        let house = &clients.house;
        let shelf = clients.shelves.entry(tenant.clone());
        let shelf = shelf.or_insert_with(|| Arc::new(Shelf::new(Arc::clone(house)))).clone();
        let client = Arc::new(Client::new(tenant.clone(), name.to_owned(), stirs, shelf));
        clients.known.insert(key, client.clone());
        state.tasks.spawn(narrator::run(state.clone(), client.clone()));
        Some(client)
    }
}
