//! One client of a tenant: its mailbox, and what its narrator should know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::Message;
use remuda_core::{AttemptNo, Dialect, Status, Task, TaskId, Tenant, Version};
use remuda_frames::Messages;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::mailbox::{Mailbox, Picture, Place, ReaderId};
use super::shelf::Shelf;
use crate::changes::Follow;
use crate::native::names;
use crate::state::AppState;

/// What a client missed is kept for this long after its socket left and its last prompt ended.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// A prompt whose news the client wants.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) task: TaskId,
    /// What the client calls it.
    pub(super) name: String,
    /// It runs already: what is said of this attempt, if that is said here.
    pub(super) messages: Option<(AttemptNo, Messages)>,
    /// What version of it this is, and everything that has happened to it since.
    pub(super) since: Option<(Version, Follow)>,
}

impl Prompt {
    /// One that came in a moment ago. If a worker has it already, it is listened to before ComfyUI can say a word.
    /// `follow`: since before it was taken in, if this submission made it.
    pub(super) fn new(state: &AppState, task: &Task, follow: Option<Follow>) -> Self {
        let runs = task.status == Status::Running;
        let messages = runs.then(|| (task.attempt, state.hub.follow_messages(task.id, task.attempt)));
        Self { messages, since: follow.map(|follow| (task.version, follow)), ..Self::known(task) }
    }

    pub(super) fn known(task: &Task) -> Self {
        Self { task: task.id, name: names::prompt_id(task), messages: None, since: None }
    }
}

/// One client of a tenant.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) tenant: Tenant,
    pub(super) id: String,
    inner: Mutex<Inner>,
    /// The end of the mailbox.
    end: watch::Sender<Place>,
    /// There is something for the narrator to do.
    pub(super) poke: Notify,
    /// Counts what happens to prompts of the tenant.
    pub(super) stirs: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Inner {
    mailbox: Mailbox,
    /// Prompts that came in here and that the narrator does not know yet.
    fresh: Vec<Prompt>,
    /// The node at work.
    node: Option<String>,
    /// How many of its prompts have not ended, as was last told.
    remaining: i64,
    /// Since when nothing happens.
    quiet_since: Instant,
    /// What the tenant's count was when the client was last told something.
    stirs: u64,
    /// Something may have happened to its prompts that its narrator was not told.
    doubt: bool,
}

impl Client {
    pub(super) fn new(tenant: Tenant, id: String, stirs: Arc<AtomicU64>, shelf: Arc<Shelf>) -> Self {
        let inner = Inner {
            mailbox: Mailbox::new(shelf),
            fresh: Vec::new(),
            node: None,
            remaining: 0,
            quiet_since: Instant::now(),
            stirs: stirs.load(Ordering::Relaxed),
            // It may have had prompts before it was known here.
            doubt: true,
        };
        Self { tenant, id, inner: Mutex::new(inner), end: watch::channel(0).0, poke: Notify::new(), stirs }
    }

    /// How many of its prompts have not ended.
    pub(super) async fn unfinished(&self, state: &AppState) -> remuda_store::Result<i64> {
        state.store.unfinished(&self.tenant, Dialect::COMFYUI, Some(&self.id)).await
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- For sockets ------------------------------------------------------------------------------------------------

    pub(super) fn join(&self) -> (ReaderId, watch::Receiver<Place>) {
        let mut inner = self.inner();
        inner.quiet_since = Instant::now();
        let (id, _) = inner.mailbox.join();
        drop(inner);
        let mut end = self.end.subscribe();
        // The first look is for what is there already.
        end.mark_changed();
        self.poke.notify_one();
        (id, end)
    }

    pub(super) fn leave(&self, id: ReaderId, whole: bool) {
        let mut inner = self.inner();
        inner.mailbox.leave(id, whole);
        inner.quiet_since = Instant::now();
        drop(inner);
        self.poke.notify_one();
    }

    pub(super) fn arrived(&self, id: ReaderId, place: Place) {
        self.inner().mailbox.arrived(id, place);
    }

    /// The place behind what was handed over.
    pub(super) fn sent(&self, id: ReaderId) -> Place {
        self.inner().mailbox.sent(id)
    }

    /// The next message.
    pub(super) fn next(&self, id: ReaderId, labelled: bool) -> Option<Message> {
        self.inner().mailbox.next(id, labelled)
    }

    /// The node at work.
    pub(super) fn node(&self) -> Option<String> {
        self.inner().node.clone()
    }

    // --- For the narrator -------------------------------------------------------------------------------------------

    pub(super) fn tell(&self, text: String) {
        let mut inner = self.inner();
        inner.mailbox.push(text);
        let end = inner.mailbox.end();
        drop(inner);
        self.end.send_replace(end);
    }

    pub(super) fn show(&self, picture: Picture) {
        let mut inner = self.inner();
        inner.mailbox.show(picture);
        let end = inner.mailbox.end();
        drop(inner);
        self.end.send_replace(end);
    }

    pub(super) fn set_node(&self, node: Option<String>) {
        self.inner().node = node;
    }

    pub(super) fn set_remaining(&self, remaining: i64) {
        self.inner().remaining = remaining;
    }

    pub(super) fn remaining(&self) -> i64 {
        self.inner().remaining
    }

    pub(super) fn take_fresh(&self) -> Vec<Prompt> {
        std::mem::take(&mut self.inner().fresh)
    }

    pub(super) fn has_socket(&self) -> bool {
        self.inner().mailbox.has_readers()
    }

    /// Whether its prompts are to be looked for; asked once.
    pub(super) fn take_doubt(&self) -> bool {
        std::mem::take(&mut self.inner().doubt)
    }

    /// A prompt ended.
    pub(super) fn stir(&self) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
        self.inner().quiet_since = Instant::now();
    }

    /// Whether something happened to prompts of the tenant since this was last asked.
    pub(super) fn others_stirred(&self) -> bool {
        let stirs = self.stirs.load(Ordering::Relaxed);
        std::mem::replace(&mut self.inner().stirs, stirs) != stirs
    }

    // --- For the desk -----------------------------------------------------------------------------------------------

    /// Something may have happened to its prompts.
    pub(super) fn doubt(&self) {
        self.inner().doubt = true;
    }

    pub(super) fn submitted(&self, prompt: Prompt) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
        self.inner().fresh.push(prompt);
        self.poke.notify_one();
    }

    /// Whether nobody would miss it.
    pub(super) fn is_idle(&self, quiet: Duration) -> bool {
        let inner = self.inner();
        !inner.mailbox.has_readers() && inner.fresh.is_empty() && inner.quiet_since.elapsed() >= quiet
    }
}
