//! The SDK alone: a function that serves a TaskDef.

use crate::support::PATIENCE;
use crate::{shared, started};
use littlehorse::{Client, Config, NewTaskDef, TaskContext, TaskError, Type, Worker};
use remuda_testbed::littlehorse::{Input, LittleHorseServer, RunStatus, TaskStatus, Workflow};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// A worker in this process.
struct Serving {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<littlehorse::Result<()>>,
}

impl Serving {
    fn start(worker: Worker) -> Serving {
        let (stop, stopped) = oneshot::channel();
        let until = async {
            let _ = stopped.await;
        };
        Serving { stop, ended: tokio::spawn(worker.register().run_until(until)) }
    }

    async fn stop(self) {
        self.stop.send(()).expect("the worker still runs");
        self.ended.await.expect("no panic").expect("it could begin");
    }
}

fn client(server: &LittleHorseServer) -> Client {
    let config = Config { host: "127.0.0.1".to_owned(), port: server.port(), ..Config::default() };
    Client::new(config).expect("a client")
}

/// A TaskDef that takes and returns JSON, as the real one.
fn task(name: &str) -> NewTaskDef {
    NewTaskDef::new(name).input("workflow", Type::JsonObj).returns(Type::JsonObj)
}

/// Does what the input says.
async fn obey(context: TaskContext, workflow: serde_json::Value) -> Result<serde_json::Value, TaskError> {
    context.log("obeying");
    match workflow["do"].as_str() {
        Some("refuse") => Err(TaskError::exception("will-not", "no")),
        Some("fail-once") if context.attempt() == 0 => Err(TaskError::failed("not yet")),
        _ => Ok(workflow),
    }
}

#[tokio::test]
async fn a_function_succeeds_fails_and_is_tried_again() {
    let server = shared().await;
    let worker = Serving::start(Worker::new(client(server), task("sdk-obey"), obey));
    let workflows = server.workflows();
    let workflow = Workflow::of("sdk-obey", Input::Json).retries(1);
    workflows.put(&workflow).await.expect("a workflow");
    let inputs = [
        ("sdk-fine", r#"{"do":"return"}"#),
        ("sdk-refused", r#"{"do":"refuse"}"#),
        ("sdk-late", r#"{"do":"fail-once"}"#),
    ];
    for (id, input) in inputs {
        workflows.run(&workflow, id, input).await.expect("a run");
    }

    let fine = workflows.ended("sdk-fine", PATIENCE).await.expect("an end");
    assert_eq!((fine.status, fine.output()), (RunStatus::Completed, Some(r#"{"do":"return"}"#)));
    assert!(fine.attempts[0].log.contains("obeying"), "{fine:?}");

    let refused = workflows.ended("sdk-refused", PATIENCE).await.expect("an end");
    assert_eq!((refused.status, refused.attempts.len()), (RunStatus::Exception, 1));
    let failure = refused.failure.expect("a failure");
    assert_eq!((failure.name.as_str(), failure.message.as_str()), ("will-not", "no"));

    let late = workflows.ended("sdk-late", PATIENCE).await.expect("an end");
    let statuses: Vec<_> = late.attempts.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [TaskStatus::TaskFailed, TaskStatus::TaskSuccess]);
    assert_eq!(late.status, RunStatus::Completed);
    worker.stop().await;
}

#[tokio::test]
async fn a_server_that_is_killed_hears_the_result_when_it_is_back() {
    let mut server = started().await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let function = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        move |_: TaskContext, workflow: serde_json::Value| {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            async move {
                begun.notify_one();
                go_on.notified().await;
                Ok::<_, TaskError>(workflow)
            }
        }
    };
    let worker = Serving::start(Worker::new(client(&server), task("sdk-patient"), function));
    let workflows = server.workflows();
    let workflow = Workflow::of("sdk-patient", Input::Json);
    workflows.put(&workflow).await.expect("a workflow");
    workflows.run(&workflow, "sdk-through", "{}").await.expect("a run");
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("the task is delivered");

    server.kill().await.expect("it can be killed");
    // It ends while nobody can be told.
    go_on.notify_one();
    server.start_again().await.expect("it comes back");
    let through = workflows.ended("sdk-through", PATIENCE).await.expect("an end");
    assert_eq!((through.status, through.attempts.len()), (RunStatus::Completed, 1), "{through:?}");

    // And the worker asks for more by itself.
    workflows.run(&workflow, "sdk-after", "{}").await.expect("a run");
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("the next one is delivered");
    go_on.notify_one();
    let after = workflows.ended("sdk-after", PATIENCE).await.expect("an end");
    assert_eq!(after.status, RunStatus::Completed, "{after:?}");
    worker.stop().await;
}

#[tokio::test]
async fn a_tenant_is_served_and_an_unknown_one_is_refused() {
    let server = shared().await;
    let tenant = |name: &str| {
        let config = client(server).config().clone();
        Client::new(Config { tenant: Some(name.to_owned()), ..config }).expect("a client")
    };
    let stranger = Worker::new(tenant("nobody"), task("sdk-tenant"), obey).register();
    let refused = tokio::time::timeout(PATIENCE, stranger.run()).await.expect("it says so at once");
    let refused = refused.expect_err("nobody is served").to_string();
    assert!(refused.ends_with("Tenant not allowed (as tenant nobody)"), "{refused}");

    let workflows = server.workflows().tenant("acme").await.expect("a tenant");
    let worker = Serving::start(Worker::new(tenant("acme"), task("sdk-tenant"), obey));
    let workflow = Workflow::of("sdk-tenant", Input::Json);
    workflows.put(&workflow).await.expect("a workflow");
    workflows.run(&workflow, "sdk-of-acme", "{}").await.expect("a run");
    let run = workflows.ended("sdk-of-acme", PATIENCE).await.expect("an end");
    assert_eq!(run.status, RunStatus::Completed, "{run:?}");
    assert_eq!(server.workflows().look("sdk-of-acme").await.expect("an answer"), None, "it is theirs alone");
    worker.stop().await;
}
