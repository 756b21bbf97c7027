//! Live frames on their way to a gateway: bounded, lossy, a few batches in a second.
//!
//! Progress and previews go as the last of their kind. What ComfyUI said, word for word, goes whole and in order, and sooner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remuda_core::TaskId;
use reqwest::Method;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::link::{Link, Trouble};
use remuda_frames::{Frame, FrameKind, Mailbox};
use remuda_sidecar as sidecar;

/// Frames that wait for the next batch. More are dropped: the next ones say more than the old ones.
const WAITING: usize = 256;

/// The time between two batches.
const PACE: Duration = Duration::from_millis(100);

/// The same when messages wait: enough to gather those that come together.
const MESSAGE_PACE: Duration = Duration::from_millis(5);

/// The pause after a batch that did not arrive.
const REST: Duration = Duration::from_secs(2);

/// Messages that do not arrive are sent again for this long.
const AGAIN: Duration = Duration::from_secs(10);

/// What was said is on its way before the end is reported, if that takes no longer than this.
const FLUSH: Duration = Duration::from_secs(3);

/// Sends frames in the background until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Outlet {
    queue: mpsc::Sender<Frame>,
    messages: Arc<Mailbox>,
    /// How many messages were put in …
    put: Arc<AtomicU64>,
    /// … and how many of them are gone, one way or another.
    gone: watch::Receiver<u64>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Outlet {
    /// To be called within a Tokio runtime.
    pub(super) fn start(link: Arc<Link>) -> Self {
        let (queue, frames) = mpsc::channel(WAITING);
        let messages = Arc::<Mailbox>::default();
        let put = Arc::<AtomicU64>::default();
        let (sent, gone) = watch::channel(0);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        let sending = Sending { link, frames, messages: Arc::clone(&messages), put: Arc::clone(&put), sent };
        tasks.spawn(async move { stopped.run_until_cancelled(sending.run()).await });
        tasks.close();
        Self { queue, messages, put, gone, stop, tasks }
    }

    pub(super) fn put(&self, frame: Frame) {
        match frame.what {
            FrameKind::Message { .. } | FrameKind::Binary { .. } => {
                self.messages.push(Arc::new(frame));
                self.put.fetch_add(1, Ordering::AcqRel);
            }
            // A full queue, or one that was stopped, loses the frame.
            FrameKind::Progress { .. } | FrameKind::Preview { .. } => {
                drop(self.queue.try_send(finite(frame)));
            }
        }
    }

    /// Waits until the messages so far have arrived, or a little while: after the end of a task nobody takes them.
    pub(super) async fn flush(&self) {
        let put = self.put.load(Ordering::Acquire);
        let mut gone = self.gone.clone();
        let arrived = gone.wait_for(|gone| *gone >= put);
        let _in_vain = tokio::time::timeout(FLUSH, arrived).await;
    }

    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The side that sends.
struct Sending {
    link: Arc<Link>,
    frames: mpsc::Receiver<Frame>,
    messages: Arc<Mailbox>,
    put: Arc<AtomicU64>,
    sent: watch::Sender<u64>,
}

impl Sending {
    async fn run(mut self) {
        loop {
            let mut batch = Batch::default();
            let mut said = Vec::new();
            tokio::select! {
                frame = self.frames.recv() => match frame {
                    Some(frame) => batch.add(frame),
                    None => return,
                },
                message = self.messages.next() => said.extend(message),
            }
            if said.is_empty() {
                // A message that comes meanwhile does not wait.
                if let Ok(message) = tokio::time::timeout(PACE, self.messages.next()).await {
                    said.extend(message);
                }
            }
            if !said.is_empty() {
                tokio::time::sleep(MESSAGE_PACE).await;
            }
            while let Ok(frame) = self.frames.try_recv() {
                batch.add(frame);
            }
            // Those that were dropped because the gateway is slow are gone, too.
            let put = self.put.load(Ordering::Acquire);
            said.extend(std::iter::from_fn(|| self.messages.pop()));
            let progress = batch.0.into_values().map(Arc::new).collect();
            if !self.send(said, AGAIN).await || !self.send(progress, Duration::ZERO).await {
                tokio::time::sleep(REST).await;
            }
            self.sent.send_replace(put);
        }
    }

    /// Whether they arrived.
    async fn send(&self, mut rest: Vec<Arc<Frame>>, again: Duration) -> bool {
        let since = Instant::now();
        while !rest.is_empty() {
            let (body, taken) = sidecar::frames::encode(&rest);
            rest.drain(..taken.max(1).min(rest.len()));
            if body.is_empty() {
                continue;
            }
            let ask = self.link.send_bytes(Method::POST, &["frames"], sidecar::frames::MIME, body);
            while let Err(trouble) = self.link.ask(&ask).await {
                tracing::debug!(?trouble, "live frames did not reach the gateway");
                // What may have arrived is not said twice.
                if !matches!(trouble, Trouble::Unsent(_)) || since.elapsed() > again {
                    return false;
                }
                tokio::time::sleep(REST / 4).await;
            }
        }
        true
    }
}

/// The last progress and the last preview of every task.
#[derive(Debug, Default)]
struct Batch(BTreeMap<(TaskId, bool), Frame>);

impl Batch {
    fn add(&mut self, frame: Frame) {
        let preview = matches!(frame.what, FrameKind::Preview { .. });
        self.0.insert((frame.task, preview), frame);
    }
}

/// JSON has no numbers that are none.
fn finite(mut frame: Frame) -> Frame {
    if let FrameKind::Progress { fraction, value, max, .. } = &mut frame.what {
        for number in [fraction, value, max] {
            if !number.is_finite() {
                *number = 0.0;
            }
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(task: TaskId, fraction: f64) -> Frame {
        let what =
            FrameKind::Progress { fraction, node: None, value: f64::NAN, max: 1.0, nodes_done: 0, nodes: 1 };
        Frame { task, attempt: 1, what }
    }

    #[test]
    fn a_batch_has_the_last_of_each_kind_and_can_be_read() {
        let (one, two) = (TaskId::new(), TaskId::new());
        let preview = FrameKind::Preview { mime: "image/png".to_owned(), bytes: vec![1].into() };
        let mut batch = Batch::default();
        for frame in [progress(one, 0.1), progress(two, 0.5), progress(one, 0.2)] {
            batch.add(finite(frame));
        }
        batch.add(Frame { task: one, attempt: 1, what: preview });
        let frames: Vec<Frame> = batch.0.into_values().collect();
        assert_eq!(frames.len(), 3);
        let (body, _) = sidecar::frames::encode(&frames);
        assert_eq!(sidecar::frames::decode(body).unwrap(), frames);
        assert!(matches!(frames[0].what, FrameKind::Progress { fraction, .. } if fraction == 0.2));
    }
}
