//! What a task function knows of its task, and what it can do while it runs.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex as Turn;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::error::TaskError;
use super::log::Log;
use crate::client::Client;
use crate::delivery::{Delivery, TaskKey};
use crate::error::{Error, Result};
use crate::intake::backoff;
use crate::proto;
use crate::proto::put_checkpoint_response::FlowControlContinue;
use crate::report::REPORT_LIMIT;
use crate::value::Value;

/// How often a checkpoint is looked for before it is sent again.
const LOOKS: usize = 3;
/// The pause between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// What a task function knows of its task, and what it can do while it runs. Clones are the same.
#[derive(Clone)]
pub struct TaskContext {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    delivery: Arc<Delivery>,
    task_run: proto::TaskRunId,
    log: Mutex<Log>,
    /// The number of the next checkpoint. Held while one is made, so that they have an order.
    next: Turn<i32>,
    /// The checkpoints that the task has, this attempt's included.
    total: std::sync::atomic::AtomicI32,
    stopping: CancellationToken,
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskContext").field(&self.inner.delivery).finish()
    }
}

impl TaskContext {
    pub(super) fn new(client: Client, delivery: Arc<Delivery>, stopping: CancellationToken) -> Result<Self> {
        let task_run = delivery.task_run()?.clone();
        let observed = delivery.task.total_observed_checkpoints;
        let inner = Inner {
            client,
            delivery,
            task_run,
            log: Mutex::default(),
            next: Turn::new(0),
            total: observed.into(),
            stopping,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Writes a line to the log of the attempt, for the people of the workflow. Of a very long log the beginning and the end
    /// are kept.
    pub fn log(&self, text: impl fmt::Display) {
        self.lines().add(jiff::Timestamp::now(), &text.to_string());
    }

    /// The log so far.
    pub fn log_so_far(&self) -> Option<String> {
        self.lines().text()
    }

    /// Which piece of work this is: the same for every attempt, and unique within the tenant. Use it as the key of whatever
    /// must not be done twice.
    pub fn key(&self) -> TaskKey {
        TaskKey::of(&self.inner.task_run)
    }

    /// Which attempt, from 0.
    pub fn attempt(&self) -> i32 {
        self.inner.delivery.attempt()
    }

    /// The id of the workflow run, without its parents.
    pub fn wf_run_id(&self) -> &str {
        self.inner.task_run.wf_run_id.as_ref().map_or("", |run| run.id.as_str())
    }

    /// The id of the task, within its workflow run.
    pub fn task_run(&self) -> &proto::TaskRunId {
        &self.inner.task_run
    }

    /// The node of the workflow that the task belongs to.
    pub fn node_run(&self) -> Option<&proto::NodeRunId> {
        use proto::task_run_source::TaskRunSource as Source;
        match self.inner.delivery.task.source.as_ref()?.task_run_source.as_ref()? {
            Source::TaskNode(node) => node.node_run_id.as_ref(),
            Source::UserTaskTrigger(trigger) => trigger.node_run_id.as_ref(),
        }
    }

    /// The name of the TaskDef.
    pub fn task_name(&self) -> &str {
        self.inner.delivery.task.task_def_id.as_ref().map_or("", |id| id.name.as_str())
    }

    /// When this attempt was scheduled.
    pub fn scheduled_at(&self) -> Option<jiff::Timestamp> {
        let at = self.inner.delivery.task.created_at.as_ref()?;
        jiff::Timestamp::new(at.seconds, at.nanos).ok()
    }

    /// Whether the n-th input must not be shown.
    pub fn is_masked(&self, n: usize) -> bool {
        self.inner.delivery.task.variables.get(n).is_some_and(|input| input.masked)
    }

    /// The task as it came.
    pub fn delivery(&self) -> &Delivery {
        &self.inner.delivery
    }

    /// Ends when the worker is asked to stop. A task that looks at it can end early; when the grace is over, the function is
    /// dropped where it waits, and the server is told that the attempt failed.
    pub fn stopping(&self) -> &CancellationToken {
        &self.inner.stopping
    }

    /// Does something once, whatever becomes of this attempt: a later attempt gets the value of the first instead of doing it
    /// again. Checkpoints are told apart by their order, so make them in the same order in every attempt, and none within
    /// another. What is written to
    /// `CheckpointLog` is kept beside the value.
    ///
    /// Fails with [`TaskError::Superseded`] when the server has given this attempt up: hand it on, and nothing is reported.
    /// Waits through outages of the server.
    pub async fn checkpoint<T, F, Fut>(&self, make: F) -> Result<T, TaskError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(CheckpointLog) -> Fut,
        Fut: Future<Output = Result<T, TaskError>>,
    {
        let mut next = self.inner.next.lock().await;
        let id =
            proto::CheckpointId { task_run: Some(self.inner.task_run.clone()), checkpoint_number: *next };
        if *next < self.inner.delivery.task.total_observed_checkpoints {
            let kept = self.read(&id).await?.ok_or_else(|| {
                TaskError::failed(format!("checkpoint {} is not at the server any more", *next))
            })?;
            let value: Value = kept.value.unwrap_or_default().try_into()?;
            *next += 1;
            return Ok(value.to()?);
        }
        let log = CheckpointLog::default();
        let made = make(log.clone()).await?;
        let request = proto::PutCheckpointRequest {
            task_run_id: Some(self.inner.task_run.clone()),
            task_attempt: self.attempt(),
            value: Some(Value::infer(&made)?.into()),
            logs: Some(log.text()),
        };
        let bytes = request.encoded_len();
        if bytes > REPORT_LIMIT {
            let what = format!("checkpoint {}", *next);
            return Err(Error::TooLarge { what, bytes, limit: REPORT_LIMIT }.into());
        }
        self.store(&id, request).await?;
        *next += 1;
        self.inner.total.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(made)
    }

    /// The checkpoints that the task has now.
    pub(super) fn checkpoints(&self) -> i32 {
        self.inner.total.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Stores a checkpoint. After doubt it is looked up before it is sent again: twice would be two.
    async fn store(
        &self,
        id: &proto::CheckpointId,
        request: proto::PutCheckpointRequest,
    ) -> Result<(), TaskError> {
        let mut failures = 0;
        loop {
            match self.inner.client.put_checkpoint(request.clone()).await {
                Ok(answer) if answer.flow_control_continue_type() == FlowControlContinue::StopTask => {
                    return Err(TaskError::Superseded);
                }
                Ok(_) => return Ok(()),
                Err(error) if comes_back(&error) => {
                    failures += 1;
                    sleep(backoff::failures(failures, rand::random())).await;
                }
                Err(error) => return Err(error.into()),
            }
            // A server that answers again may still have it before it.
            for _ in 0..LOOKS {
                if self.read(id).await?.is_some() {
                    return Ok(());
                }
                sleep(BETWEEN_LOOKS).await;
            }
        }
    }

    /// Reads a checkpoint, if it is there.
    async fn read(&self, id: &proto::CheckpointId) -> Result<Option<proto::Checkpoint>> {
        let mut failures = 0;
        loop {
            match self.inner.client.get_checkpoint(id.clone()).await {
                Ok(kept) => return Ok(Some(kept)),
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) if comes_back(&error) => {
                    failures += 1;
                    sleep(backoff::failures(failures, rand::random())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Log> {
        self.inner.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the same can succeed later.
pub(super) fn comes_back(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable { .. }
            | Error::Exhausted { retry_after: Some(_), .. }
            | Error::Token { transient: true, .. }
    )
}

/// What is written while a checkpoint is made; it is kept beside the value.
#[derive(Debug, Clone, Default)]
pub struct CheckpointLog {
    lines: Arc<Mutex<Log>>,
}

impl CheckpointLog {
    /// Writes a line.
    pub fn log(&self, text: impl fmt::Display) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.add(jiff::Timestamp::now(), &text.to_string());
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).text().unwrap_or_default()
    }
}
