//! Live frames of tasks that run at another gateway: one stream per task, however many follow it here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_core::{AttemptNo, TaskId};
use remuda_frames::{FrameHub, LiveFrames, Messages};
use remuda_sidecar::frames::Decoder;
use url::Url;

use crate::state::AppState;

/// A gateway that does not take the call within this time is not there.
const CONNECT: Duration = Duration::from_secs(3);

/// … and one that is silent for this long is gone. It sends signs of life more often.
const SILENCE: Duration = Duration::from_secs(30);

/// The stream of one task at one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    task: TaskId,
    gateway: String,
    /// What ComfyUI says of this attempt and later ones; otherwise progress and previews.
    messages: Option<AttemptNo>,
}

/// The streams that are open.
#[derive(Debug)]
pub(crate) struct Relays {
    /// Each has a hub of its own: what another stream said of the same task is not said again.
    open: Arc<Mutex<HashMap<Key, FrameHub>>>,
}

impl Relays {
    pub(crate) fn new() -> Self {
        Self { open: Arc::default() }
    }

    /// Progress and previews of a task that runs at `gateway`. The channel ends with the stream, whatever ends it.
    pub(crate) fn follow(&self, state: &AppState, task: TaskId, gateway: &str) -> LiveFrames {
        let key = Key { task, gateway: gateway.to_owned(), messages: None };
        self.open(state, key, |hub| hub.subscribe(task).1)
    }

    /// What ComfyUI says of a task that runs at `gateway`, as [`FrameHub::follow_messages`] tells it. It ends with the
    /// stream, whatever ends it.
    pub(crate) fn follow_messages(
        &self,
        state: &AppState,
        task: TaskId,
        attempt: AttemptNo,
        gateway: &str,
    ) -> Messages {
        let key = Key { task, gateway: gateway.to_owned(), messages: Some(attempt) };
        self.open(state, key, |hub| hub.follow_messages(task, attempt))
    }

    /// A reader of a stream, which is opened unless it is open.
    fn open<R>(&self, state: &AppState, key: Key, read: impl FnOnce(&FrameHub) -> R) -> R {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = open.get(&key) {
            return read(hub);
        }
        let hub = state.hub.beside();
        let reader = read(&hub);
        open.insert(key.clone(), hub.clone());
        drop(open);
        let state = state.clone();
        state.tasks.clone().spawn(async move {
            let stop = state.stop.clone();
            let ended = tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = pump(&state, &key, &hub) => ended,
            };
            if let Err(error) = ended {
                tracing::debug!(task = %key.task, gateway = key.gateway, "no frames from another gateway: {error}");
            }
            state.relays.remove(&key);
            hub.close(key.task);
        });
        reader
    }

    fn remove(&self, key: &Key) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Whether nobody follows any more. Then the stream is closed in the same moment: nobody can come between.
    fn abandoned(&self, key: &Key) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = open.get(key).is_none_or(|hub| !hub.is_followed(key.task));
        if abandoned {
            open.remove(key);
        }
        abandoned
    }
}

async fn pump(
    state: &AppState,
    key: &Key,
    hub: &FrameHub,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let task = key.task;
    let mut base = Url::parse(&key.gateway)?;
    if !base.path().ends_with('/') {
        base.set_path(&format!("{}/", base.path()));
    }
    let mut url = base.join(&format!("internal/v1/frames/{task}"))?;
    if let Some(attempt) = key.messages {
        url.query_pairs_mut().append_pair("messages", &attempt.to_string());
    }
    let cluster_key = &state.installation().await?.cluster_key;
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        // The cluster key goes to the address on the lease and nowhere else.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()?;
    let answer = client.get(url).bearer_auth(cluster_key).send().await?.error_for_status()?;
    let mut bytes = answer.bytes_stream();
    let mut decoder = Decoder::default();
    while let Some(piece) = bytes.next().await {
        decoder.feed(&piece?);
        while let Some(frame) = decoder.next_frame()? {
            if frame.task == task {
                hub.publish(frame);
            }
        }
        if state.relays.abandoned(key) {
            return Ok(());
        }
    }
    Ok(())
}
