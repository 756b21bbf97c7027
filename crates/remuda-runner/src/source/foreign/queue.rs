//! What a foreign queue must be able to do, and what it may do besides.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::WorkerId;
use remuda_frames::Frame;

use super::{Delivery, DeliveryEnding, NextDelivery, Reported, Withdrawn};
use crate::source::Result;

/// The pause before a queue is asked again about a delivery that is over, while the next one is to come.
const NEXT: Duration = Duration::from_secs(5);

/// Somebody else's queue: it gives work to this process and hears how that ended.
///
/// Three methods make a queue: [`name`](Self::name), [`next`](Self::next) and [`report`](Self::report). The others have
/// defaults that are right for a queue that never takes work back and shows no progress.
#[async_trait]
pub trait ForeignQueue: fmt::Debug + Send + Sync + 'static {
    /// Which one: server, tenant, queue. What the journal has from another one is left alone, and so are its renders. A name
    /// that goes on after this one and a blank is this one's as well.
    fn name(&self) -> String;

    /// Whether a task that the journal has under another name is this queue's all the same: one server has many addresses.
    /// `false` when that cannot be said for certain.
    async fn recognises(&self, _name: &str, _delivery: &Delivery) -> bool {
        false
    }

    /// Waits for the next delivery. It is called when a ComfyUI is free, and not before. A call that is dropped has taken
    /// nothing.
    async fn next(&self) -> Result<Delivery>;

    /// Says how a delivery ended, once. After [`Unavailable`](crate::source::SourceError::Unavailable) the end is kept and
    /// said again, also after a restart: what was heard before must be [`Reported::Heard`] or [`Reported::TooLate`].
    async fn report(&self, delivery: &Delivery, ending: &DeliveryEnding) -> Result<Reported>;

    /// Returns when a queue that was away answers again: reports are tried at once then. Without it they are tried
    /// after their pauses only.
    async fn back(&self) {
        std::future::pending().await
    }

    /// Watches over a delivery under way, and returns when the queue does not want it from this process any more. This is
    /// the place for heartbeats, too: it runs from the delivery to its end.
    async fn watch(&self, _delivery: &Delivery) -> Withdrawn {
        std::future::pending().await
    }

    /// Watches on after [`Withdrawn::Superseded`]: until the next delivery turns out to be lost, or the work is over in another
    /// way. Says [`Withdrawn::Superseded`] again after a while, so that somebody can look whether this is still of interest.
    async fn watch_next(&self, delivery: &Delivery) -> NextDelivery {
        tokio::time::sleep(NEXT).await;
        NextDelivery::Withdrawn(self.watch(delivery).await)
    }

    /// The process is about to end: takes nothing more, and gives back what was taken and not handed out. Reports can still
    /// be sent.
    async fn close(&self) {}

    /// Whether it is known not to answer now: then the last reports are not tried for long when the process ends.
    fn is_away(&self) -> bool {
        false
    }

    /// Nothing of a task is left here. Never waits.
    fn gone(&self, _delivery: &Delivery) {}

    /// A task goes to a worker, under the id in [`Delivery::sent_as`]; `found`: it was there already. Never waits.
    fn begun(&self, _delivery: &Delivery, _worker: &WorkerId, _found: bool) {}

    /// The worker's ComfyUI has taken it. Never waits.
    fn sent(&self, _delivery: &Delivery) {}

    /// How many prompts run or wait before it at its ComfyUI. Never waits.
    fn queued(&self, _delivery: &Delivery, _ahead: usize) {}

    /// Live progress of a task. Never waits.
    fn frame(&self, _delivery: &Delivery, _frame: &Frame) {}
}
