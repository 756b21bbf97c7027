//! Asking for tasks, and only when one is wanted.
//!
//! ```text
//!  take() ──▶ desk ──requests──▶ one task per stream ──▶ hosts
//!    ▲          │ ▲                     │
//!    └─delivery─┘ └──────answers────────┘
//!               ▲ assigned hosts
//!             heart ──RegisterTaskWorker──▶ server
//! ```
//!
//! `core` decides; `desk` holds it and carries its steps out; `stream` reads one stream; `heart` registers and keeps
//! registering.

pub(crate) mod backoff;
mod core;
mod desk;
mod heart;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;

use self::core::WaiterId;
use self::desk::Desk;
use crate::client::{Client, Host};
use crate::delivery::Delivery;
use crate::error::{Error, Result};

/// How tasks are asked for.
#[derive(Debug, Clone)]
pub struct IntakeOptions {
    /// The TaskDef.
    pub task: String,
    /// The pause between two heartbeats. Servers before 0.16 forget a worker after 15 s.
    pub heartbeat: Duration,
    /// How soon a host answers that has tasks waiting. Several such hosts are asked in turn, this far apart, so that no
    /// more tasks come at once than are wanted; a host that had nothing waiting is asked at once.
    pub soon: Duration,
    /// How long a stream is read on after its request was withdrawn: a task may be on its way, and would be lost until
    /// its timeout.
    pub linger: Duration,
    /// The same, when the intake is closed.
    pub closing: Duration,
}

impl IntakeOptions {
    /// The defaults, for this TaskDef.
    pub fn new(task: impl Into<String>) -> Self {
        Self {
            task: task.into(),
            heartbeat: Duration::from_secs(10),
            soon: Duration::from_millis(50),
            linger: Duration::from_secs(2),
            closing: Duration::from_millis(500),
        }
    }
}

/// How the worker stands with the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Not heard yet.
    Starting,
    /// Heartbeats are answered.
    Healthy,
    /// The cluster deals its tasks anew.
    Rebalancing,
    /// The last heartbeat failed, or a host that is assigned to us cannot be reached again and again; with the reason.
    Unhealthy(String),
}

/// Registers a worker, keeps its heartbeat, and polls every host that is assigned to it, but only while somebody waits in
/// [`Intake::take`].
///
/// Dropped without [`Intake::close`], it lets go of its streams at once; a task that is on its way is then lost until its
/// timeout.
#[derive(Debug)]
pub struct Intake {
    desk: Arc<Desk>,
    /// Ends all tasks of the intake with it.
    _guard: DropGuard,
}

impl Intake {
    /// Begins to register. A server that is away is waited for. Needs a Tokio runtime around it.
    pub fn open(client: Client, options: IntakeOptions) -> Self {
        Self::open_with(client, options, watch::Sender::new(Health::Starting))
    }

    /// As [`Intake::open`], with somebody else's board for the health.
    pub(crate) fn open_with(client: Client, options: IntakeOptions, health: watch::Sender<Health>) -> Self {
        let desk = Arc::new(Desk::new(client, options, health));
        let guard = desk.stop.clone().drop_guard();
        desk.tracker.spawn(heart::beat(Arc::clone(&desk)));
        desk.tracker.spawn(desk::keep_time(Arc::clone(&desk)));
        Self { desk, _guard: guard }
    }

    /// Waits for a task. As many are asked for as calls of this wait; a call that is dropped takes nothing, and a task that
    /// was already on its way waits for the next call.
    ///
    /// Fails only with [`Error::Closed`].
    pub async fn take(&self) -> Result<Delivery> {
        let (sender, receiver) = oneshot::channel();
        let mut wait = match self.desk.want(sender)? {
            desk::Wanted::Here(delivery) => return Ok(*delivery),
            desk::Wanted::Waiting(id) => Wait { desk: &self.desk, id, receiver },
        };
        (&mut wait.receiver).await.map_err(|_| Error::Closed)
    }

    /// Puts back a task that was taken and is not begun: it is the first for the next call of [`Intake::take`]. Once the
    /// intake is closed nobody will ask for it, and it is returned.
    pub fn put_back(&self, delivery: Delivery) -> Option<Delivery> {
        self.desk.put_back(delivery)
    }

    /// The hosts that are assigned to the worker. Any of them takes its reports.
    pub fn hosts(&self) -> Vec<Host> {
        self.desk.hosts()
    }

    /// How the worker stands with the cluster.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.desk.health.subscribe()
    }

    /// Stops asking and closes the streams; what still arrived meanwhile is returned. Calls that wait in [`Intake::take`]
    /// end with [`Error::Closed`].
    pub async fn close(&self) -> Vec<Delivery> {
        self.desk.close().await
    }
}

/// A call that waits. Dropped, it gives back what it got and did not hand on.
#[derive(Debug)]
struct Wait<'a> {
    desk: &'a Arc<Desk>,
    id: WaiterId,
    receiver: oneshot::Receiver<Delivery>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.receiver.is_terminated() {
            return;
        }
        self.receiver.close();
        self.desk.unwant(self.id, self.receiver.try_recv().ok());
    }
}
