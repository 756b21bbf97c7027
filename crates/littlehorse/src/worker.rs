//! A worker around a task function.
//!
//! ```no_run
//! use littlehorse::{Client, Config, NewTaskDef, TaskContext, TaskError, Type, Worker};
//!
//! # async fn example() -> littlehorse::Result<()> {
//! let client = Client::new(Config::from_env()?)?;
//! let greet = NewTaskDef::new("greet").input("name", Type::Str).returns(Type::Str);
//! Worker::new(client, greet, |context: TaskContext, name: String| async move {
//!     if name.is_empty() {
//!         return Err(TaskError::exception("no-name", "whom shall I greet?"));
//!     }
//!     context.log("greeting");
//!     Ok(format!("hello, {name}"))
//! })
//! .register()
//! .slots(4)
//! .run()
//! .await
//! # }
//! ```

mod context;
mod error;
mod fit;
mod function;
mod log;
mod run;
mod slots;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use self::context::{CheckpointLog, TaskContext};
pub use self::error::TaskError;
pub use self::fit::Expected;
pub use self::function::{Call, Called, FromInput, IntoOutput, TaskFn};
pub use self::slots::Slots;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::intake::{Health, IntakeOptions};
use crate::proto;
use crate::task_def::{NewTaskDef, same, shape};

/// Which TaskDef a worker serves: its name, or all of it.
#[derive(Debug, Clone)]
pub enum ServedTask {
    /// One that is registered.
    Named(String),
    /// One of this shape.
    Defined(NewTaskDef),
}

impl From<&str> for ServedTask {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for ServedTask {
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

impl From<NewTaskDef> for ServedTask {
    fn from(def: NewTaskDef) -> Self {
        Self::Defined(def)
    }
}

impl ServedTask {
    fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Defined(def) => &def.request.name,
        }
    }
}

/// Serves one TaskDef with a function.
///
/// It asks for a task only when it has a place for it, over all hosts of the cluster together; it waits for a server that is
/// away, at the start and later; it reports every task until the server has heard it. A task that had to wait here for a
/// place is begun only if the server still wants it. A panic, inputs that cannot be read and
/// outputs that cannot be sent end the attempt with the fitting status, and never the worker.
///
/// Several TaskDefs in one process are several workers: clone the [`Client`], and give them the same [`Slots`] if they shall
/// share a limit.
pub struct Worker {
    client: Client,
    task: ServedTask,
    register: bool,
    slots: usize,
    shared: Option<Slots>,
    grace: Duration,
    intake: IntakeOptions,
    inputs: Vec<Expected>,
    function: Arc<dyn function::AnyFn>,
    health: watch::Sender<Health>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("task", &self.task).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for this TaskDef. The function takes a [`TaskContext`] and then the inputs of the task by their place.
    pub fn new<A, F>(client: Client, task: impl Into<ServedTask>, function: F) -> Self
    where
        A: 'static,
        F: TaskFn<A>,
    {
        let task = task.into();
        Self {
            slots: client.config().slots.max(1),
            intake: IntakeOptions::new(task.name()),
            client,
            task,
            register: false,
            shared: None,
            grace: Duration::from_secs(30),
            inputs: F::inputs(),
            function: Arc::new(function::Erased::new(function)),
            health: watch::Sender::new(Health::Starting),
        }
    }

    /// Registers the TaskDef first; it has to be given as a [`NewTaskDef`]. One that is registered already is fine; another
    /// one of the same name is an error that shows both.
    #[must_use]
    pub fn register(mut self) -> Self {
        self.register = true;
        self
    }

    /// How many tasks may run at once; otherwise what the settings say.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots.max(1);
        self
    }

    /// Shares a limit with other workers; the limit of this one stays as well.
    #[must_use]
    pub fn share(mut self, slots: &Slots) -> Self {
        self.shared = Some(slots.clone());
        self
    }

    /// How long running tasks may go on after the worker is asked to stop; otherwise 30 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The pause between two heartbeats; otherwise 10 s, which suits every version of the server.
    #[must_use]
    pub fn heartbeat(mut self, pause: Duration) -> Self {
        self.intake.heartbeat = pause;
        self
    }

    /// How the worker stands with the cluster, from now on.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Serves for ever. Returns only when it cannot begin: the TaskDef is not there, or does not fit the function.
    pub async fn run(self) -> Result<()> {
        self.run_until(std::future::pending()).await
    }

    /// Serves until `stop` ends. Then nothing more is asked for; what runs may end within the grace; what does not is dropped
    /// and reported as failed, so that the server can give it to somebody else. Without running tasks it returns at once.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        let def = tokio::select! {
            def = self.prepare() => def?,
            () = &mut stop => return Ok(()),
        };
        run::serve(&self, &def, stop).await;
        Ok(())
    }

    /// Registers and looks up the TaskDef. Waits for a server that is away.
    async fn prepare(&self) -> Result<proto::TaskDef> {
        let mut failures = 0;
        loop {
            match self.prepare_once().await {
                Err(error) if context::comes_back(&error) => {
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(task = self.task.name(), %error, "waiting for the server");
                    }
                    self.health.send_replace(Health::Unhealthy(error.to_string()));
                    tokio::time::sleep(crate::intake::backoff::failures(failures, rand::random())).await;
                }
                other => return other,
            }
        }
    }

    async fn prepare_once(&self) -> Result<proto::TaskDef> {
        if self.register {
            let ServedTask::Defined(def) = &self.task else {
                return Err(Error::Value {
                    what: format!("the TaskDef {}", self.task.name()),
                    reason: "to be registered it has to be given as a NewTaskDef, not by its name".to_owned(),
                });
            };
            self.client.put_task_def(def).await?.must_be(def)?;
        }
        let registered = self.client.get_task_def(self.task.name()).await?;
        if let ServedTask::Defined(def) = &self.task
            && !self.register
            && !same(&def.request, &registered)
        {
            return Err(Error::Differs {
                name: self.task.name().to_owned(),
                registered: shape(&registered),
                wanted: def.shape(),
            });
        }
        fit::check(&registered, &self.inputs)?;
        Ok(registered)
    }
}
