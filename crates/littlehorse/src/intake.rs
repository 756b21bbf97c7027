//! Asking for tasks, and only when one is wanted.

use std::time::Duration;

use crate::client::Client;
use crate::delivery::Delivery;
use crate::error::Result;

/// How tasks are asked for.
#[derive(Debug, Clone)]
pub struct IntakeOptions {
    /// The TaskDef.
    pub task: String,
    /// The pause between two heartbeats. Servers before 0.16 forget a worker after 15 s.
    pub heartbeat: Duration,
}

impl IntakeOptions {
    /// The defaults, for this TaskDef.
    pub fn new(task: impl Into<String>) -> Self {
        Self { task: task.into(), heartbeat: Duration::from_secs(10) }
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
    /// The last heartbeat failed; with the reason.
    Unhealthy(String),
}

/// Registers a worker, keeps its heartbeat, and polls every host that is assigned to it, but only while somebody waits in
/// [`Intake::take`].
#[derive(Debug)]
pub struct Intake {}

impl Intake {
    /// Begins to register. A server that is away is waited for.
    pub fn open(_client: Client, _options: IntakeOptions) -> Self {
        todo!()
    }

    /// Waits for a task. As many are asked for as calls of this wait; a call that is dropped takes nothing, and a task that
    /// was already on its way waits for the next call.
    pub async fn take(&self) -> Result<Delivery> {
        todo!()
    }

    /// How the worker stands with the cluster.
    pub fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        todo!()
    }

    /// Stops asking and closes the streams; what still arrived meanwhile is returned.
    pub async fn close(self) -> Vec<Delivery> {
        todo!()
    }
}
