//! A task that was handed to this worker.

use std::fmt;

use crate::client::Host;
use crate::error::Result;
use crate::proto;
use crate::value::Value;

/// A piece of work, whichever attempt: the same for every delivery of it.
///
/// Written as the ids of the workflow run and its parents, outermost first, joined by `_`, then `/` and the task's guid.
/// Unique within a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey(String);

impl TaskKey {
    /// Of a task run.
    pub fn of(_id: &proto::TaskRunId) -> Self {
        todo!()
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A task that was handed to this worker: its timeout runs.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The task as it came.
    pub task: proto::ScheduledTask,
    /// Who handed it out.
    pub host: Host,
    /// When it arrived here.
    pub at: tokio::time::Instant,
}

/// An input of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name; for people, since inputs are taken by their place.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// It must not be shown.
    pub masked: bool,
}

impl Delivery {
    /// Which piece of work it is.
    pub fn key(&self) -> TaskKey {
        todo!()
    }

    /// Its name at the server.
    pub fn task_run(&self) -> Result<&proto::TaskRunId> {
        todo!()
    }

    /// Which attempt, from 0.
    pub fn attempt(&self) -> i32 {
        self.task.attempt_number
    }

    /// The n-th input. One of a kind that this crate does not know is an error, not null.
    pub fn input(&self, _n: usize) -> Result<Input> {
        todo!()
    }
}
