//! Live frames of tasks that run at another gateway: one stream per task, however many follow it here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_core::TaskId;
use remuda_runner::frames::Frame;
use tokio::sync::broadcast;
use url::Url;

use crate::frame_wire::Decoder;
use crate::state::AppState;

/// How many frames a slow reader may be behind before it misses some.
const BACKLOG: usize = 64;

/// A gateway that does not take the call within this time is not there.
const CONNECT: Duration = Duration::from_secs(3);

/// … and one that is silent for so long is gone. It sends signs of life more often.
const SILENCE: Duration = Duration::from_secs(30);

type Key = (TaskId, String);

/// The streams that are open.
#[derive(Debug)]
pub(crate) struct Relays {
    open: Arc<Mutex<HashMap<Key, broadcast::Sender<Frame>>>>,
}

impl Relays {
    pub(crate) fn new() -> Self {
        Self { open: Arc::default() }
    }

    /// Frames of a task that runs at `gateway`. The channel ends with the stream, whatever ends it.
    pub(crate) fn follow(&self, state: &AppState, task: TaskId, gateway: &str) -> broadcast::Receiver<Frame> {
        let key = (task, gateway.to_owned());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = open.get(&key) {
            return sender.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BACKLOG);
        open.insert(key.clone(), sender.clone());
        drop(open);
        let state = state.clone();
        state.tasks.clone().spawn(async move {
            let stop = state.stop.clone();
            let ended = tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = pump(&state, &key, &sender) => ended,
            };
            if let Err(error) = ended {
                tracing::debug!(task = %key.0, gateway = key.1, "no frames from another gateway: {error}");
            }
            state.relays.remove(&key);
        });
        receiver
    }

    fn remove(&self, key: &Key) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Whether nobody follows any more. Then the stream is closed in the same moment: nobody can come between.
    fn abandoned(&self, key: &Key) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = open.get(key).is_none_or(|sender| sender.receiver_count() == 0);
        if abandoned {
            open.remove(key);
        }
        abandoned
    }
}

async fn pump(
    state: &AppState,
    key: &Key,
    sender: &broadcast::Sender<Frame>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (task, gateway) = key;
    let mut base = Url::parse(gateway)?;
    if !base.path().ends_with('/') {
        base.set_path(&format!("{}/", base.path()));
    }
    let url = base.join(&format!("internal/v1/frames/{task}"))?;
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
    let mut decoder = Decoder::new(*task);
    while let Some(piece) = bytes.next().await {
        decoder.feed(&piece?);
        while let Some(frame) = decoder.next()? {
            // Without a reader the frame is not wanted.
            drop(sender.send(frame));
        }
        if state.relays.abandoned(key) {
            return Ok(());
        }
    }
    Ok(())
}
