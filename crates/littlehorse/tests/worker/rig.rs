//! What the tests share.

use std::time::Duration;

use littlehorse::{Client, Config, NewTaskDef, Type, Worker};
use littlehorse_double::proto::variable_value::Value;
use littlehorse_double::proto::{self, TaskAttempt, TaskStatus, task_attempt};
use littlehorse_double::{Double, NewRun, Options, Run};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) const TASK: &str = "execute-comfyui-workflow";
pub(crate) const WORKER: &str = "worker-under-test";
const SOON: Duration = Duration::from_secs(120);

pub(crate) async fn start() -> Double {
    Double::start(Options::default()).await.unwrap()
}

pub(crate) fn client(double: &Double) -> Client {
    let settings = [
        ("LHC_API_HOST", "127.0.0.1".to_owned()),
        ("LHC_API_PORT", double.port(0).to_string()),
        ("LHW_TASK_WORKER_ID", WORKER.to_owned()),
        ("LHW_NUM_WORKER_THREADS", "1".to_owned()),
    ];
    let lookup =
        |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    Client::new(Config::from_lookup(lookup).unwrap()).unwrap()
}

/// One JSON object in, one out.
pub(crate) fn json_task() -> NewTaskDef {
    NewTaskDef::new(TASK).input("workflow", Type::JsonObj).returns(Type::JsonObj)
}

pub(crate) fn json(double: &Double, id: &str, workflow: &str) -> Run {
    double.schedule(NewRun::json(id, workflow))
}

pub(crate) fn input(name: &str, value: Option<Value>) -> proto::VarNameAndVal {
    let value = Some(proto::VariableValue { value });
    proto::VarNameAndVal { var_name: name.to_owned(), value, masked: false }
}

/// A worker that runs in the background.
pub(crate) struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<littlehorse::Result<()>>,
}

impl Running {
    pub(crate) fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run_until(async { _ = stopped.await }));
        Self { stop: Some(stop), task }
    }

    /// Asks it to stop, and goes on.
    pub(crate) fn ask_to_stop(&mut self) {
        _ = self.stop.take();
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(self) -> littlehorse::Result<()> {
        soon(self.task).await.unwrap()
    }

    /// Stops it.
    pub(crate) async fn stop(mut self) {
        self.ask_to_stop();
        self.ended().await.unwrap();
    }
}

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it should have happened long ago")
}

/// The only attempt of a run that has ended.
pub(crate) async fn only_attempt(run: &Run) -> TaskAttempt {
    let mut attempts = soon(run.ended()).await.attempts;
    assert_eq!(attempts.len(), 1);
    attempts.remove(0)
}

/// The message of an error that a run ended with.
pub(crate) async fn error(run: &Run, status: TaskStatus) -> String {
    let attempt = only_attempt(run).await;
    assert_eq!(attempt.status(), status, "{attempt:?}");
    match attempt.result {
        Some(task_attempt::Result::Error(error)) => error.message,
        other => panic!("{other:?}"),
    }
}

/// The output that a run ended with.
pub(crate) async fn output(run: &Run) -> Option<Value> {
    let attempt = only_attempt(run).await;
    assert_eq!(attempt.status(), TaskStatus::TaskSuccess, "{attempt:?}");
    match attempt.result {
        Some(task_attempt::Result::Output(output)) => output.value,
        other => panic!("{other:?}"),
    }
}
