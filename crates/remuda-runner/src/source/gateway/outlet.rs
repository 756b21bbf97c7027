//! Live frames on their way to a gateway: bounded, lossy, a few batches in a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::TaskId;
use reqwest::Method;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::link::Link;
use crate::frames::{Frame, FrameKind};
use crate::wire;

/// Frames that wait for the next batch. More are dropped: the next ones say more than the old ones.
const WAITING: usize = 256;

/// The time between two batches.
const PACE: Duration = Duration::from_millis(100);

/// The pause after a batch that did not arrive.
const REST: Duration = Duration::from_secs(2);

/// Sends frames in the background until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Outlet {
    queue: mpsc::Sender<Frame>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Outlet {
    /// To be called within a Tokio runtime.
    pub(super) fn start(link: Arc<Link>) -> Self {
        let (queue, frames) = mpsc::channel(WAITING);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        tasks.spawn(async move { stopped.run_until_cancelled(run(link, frames)).await });
        tasks.close();
        Self { queue, stop, tasks }
    }

    pub(super) fn put(&self, frame: Frame) {
        // A full queue, or one that was stopped, loses the frame.
        drop(self.queue.try_send(finite(frame)));
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

async fn run(link: Arc<Link>, mut frames: mpsc::Receiver<Frame>) {
    while let Some(first) = frames.recv().await {
        let mut batch = Batch::default();
        batch.add(first);
        tokio::time::sleep(PACE).await;
        while let Ok(frame) = frames.try_recv() {
            batch.add(frame);
        }
        let mut rest = batch.0.into_values().collect::<Vec<_>>();
        while !rest.is_empty() {
            let (body, taken) = wire::frames::encode(&rest);
            rest.drain(..taken.max(1).min(rest.len()));
            if body.is_empty() {
                continue;
            }
            let ask = link.send_bytes(Method::POST, &["frames"], wire::frames::MIME, body);
            if let Err(trouble) = link.ask(&ask).await {
                tracing::debug!(?trouble, "live frames did not reach the gateway");
                tokio::time::sleep(REST).await;
                break;
            }
        }
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
        let (body, _) = wire::frames::encode(&frames);
        assert_eq!(wire::frames::decode(body).unwrap(), frames);
        assert!(matches!(frames[0].what, FrameKind::Progress { fraction, .. } if fraction == 0.2));
    }
}
