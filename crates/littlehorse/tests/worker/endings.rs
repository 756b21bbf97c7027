//! How tasks end: what the function says, and what the server hears.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use littlehorse::{NewTaskDef, TaskContext, TaskError, Type, Value as Own, Worker};
use littlehorse_double::proto::variable_value::Value;
use littlehorse_double::proto::{TaskStatus, task_attempt};
use littlehorse_double::{Message, Method, NewRun, What};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::rig::*;

#[derive(Debug, Deserialize)]
struct Workflow {
    id: String,
    #[serde(default)]
    how: String,
}

#[derive(Debug, Serialize)]
struct Output {
    prompt_id: String,
    outputs: Vec<String>,
}

#[tokio::test]
async fn a_task_is_registered_run_and_reported() {
    let double = start().await;
    let run = json(&double, "wfrun-1", r#"{"id": "p1"}"#);
    let task = |context: TaskContext, workflow: Workflow| async move {
        context.log("submit workflow");
        context.log(format!("prompt {} done", workflow.id));
        Ok(Output { prompt_id: workflow.id, outputs: vec!["a.png".to_owned()] })
    };
    let worker = Running::start(Worker::new(client(&double), json_task(), task).register());
    let attempt = only_attempt(&run).await;
    let output = r#"{"prompt_id":"p1","outputs":["a.png"]}"#;
    assert_eq!(attempt.task_worker_id, WORKER);
    let Some(task_attempt::Result::Output(got)) = &attempt.result else { panic!("{attempt:?}") };
    assert_eq!(got.value, Some(Value::JsonObj(output.to_owned())));
    let Some(Value::Str(log)) = attempt.log_output.unwrap().value else { panic!("no log") };
    let lines: Vec<&str> = log.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    assert_eq!(lines, ["submit workflow", "prompt p1 done"]);
    assert!(log.starts_with("[20"), "{log}");
    worker.stop().await;
    // The calls of the official SDK, without its request for one task too many.
    let calls: Vec<String> = double
        .journal()
        .events()
        .iter()
        .filter(|event| event.is_beginning() || matches!(event.what, What::Asked(_)))
        .map(|event| event.method.to_string())
        .collect();
    assert_eq!(
        calls[..6],
        ["PutTaskDef", "GetTaskDef", "RegisterTaskWorker", "PollTask", "PollTask", "ReportTask"]
    );
    assert_eq!(double.journal().reports()[0].total_checkpoints, 0);
}

#[tokio::test]
async fn inputs_are_taken_by_their_place() {
    let double = start().await;
    let def = NewTaskDef::new("greet")
        .input("name", Type::Str)
        .input("times", Type::Int)
        .input("loud", Type::Bool)
        .input("raw", Type::JsonArr)
        .returns(Type::Str);
    let task = |context: TaskContext, name: String, times: u8, loud: Option<bool>, raw: Own| async move {
        assert!(context.is_masked(0) && !context.is_masked(1));
        Ok(format!("{name} {times} {loud:?} {raw:?}"))
    };
    let mut inputs = vec![
        input("0-other-name", Some(Value::Str("Ann".to_owned()))),
        input("x", Some(Value::Int(3))),
        input("y", None),
        input("z", Some(Value::JsonArr("[1, 2.50]".to_owned()))),
    ];
    inputs[0].masked = true;
    let run = double.schedule(NewRun::new("wfrun-1", inputs).task("greet"));
    let worker = Running::start(Worker::new(client(&double), def, task).register());
    let expected = r#"Ann 3 None JsonArr("[1, 2.50]")"#;
    assert_eq!(output(&run).await, Some(Value::Str(expected.to_owned())));
    worker.stop().await;
}

#[tokio::test]
async fn a_task_that_returns_nothing_has_an_output_all_the_same() {
    let double = start().await;
    let run = double.schedule(NewRun::new("wfrun-1", vec![]).task("quiet"));
    let def = NewTaskDef::new("quiet");
    let worker =
        Running::start(Worker::new(client(&double), def, |_: TaskContext| async { Ok(()) }).register());
    assert_eq!(output(&run).await, None);
    let report = &double.journal().reports()[0];
    assert!(report.result.is_some(), "a success without output breaks the workflow");
    assert!(report.log_output.is_none(), "nothing was said");
    worker.stop().await;
}

/// A worker that ends as its input says.
fn moody(double: &littlehorse_double::Double) -> Worker {
    let task = |_: TaskContext, workflow: Workflow| async move {
        match workflow.how.as_str() {
            "exception" => Err(TaskError::exception("out-of-stock", "no more horses")
                .with_content(Own::JsonObj(r#"{"left":0}"#.to_owned()))),
            "reserved" => Err(TaskError::exception("TIMEOUT", "it took too long")),
            "bad input" => Err(TaskError::BadInput("the moon is not a place".to_owned())),
            "error" => Ok(json!({"number": "seven".parse::<i32>()?})),
            "panic" => panic!("the floor is lava"),
            "array" => Ok(json!([1])),
            "large" => Ok(json!({"picture": "x".repeat(1_000_000)})),
            _ => Ok(json!({})),
        }
    };
    Worker::new(client(double), json_task(), task).register()
}

#[tokio::test]
async fn every_ending_has_its_status_and_the_place_is_free_again() {
    let double = start().await;
    // One place: every task but the first shows that the one before it left.
    let worker = Running::start(moody(&double).slots(1));
    let run = |how: &str| json(&double, how, &json!({"id": "p", "how": how}).to_string());

    let attempt = only_attempt(&run("exception")).await;
    assert_eq!(attempt.status(), TaskStatus::TaskException);
    let Some(task_attempt::Result::Exception(exception)) = attempt.result else { panic!("no exception") };
    assert_eq!((&*exception.name, &*exception.message), ("out-of-stock", "no more horses"));
    assert_eq!(exception.content.unwrap().value, Some(Value::JsonObj(r#"{"left":0}"#.to_owned())));

    let message = error(&run("reserved"), TaskStatus::TaskFailed).await;
    assert!(message.contains("TIMEOUT") && message.contains("it took too long"), "{message}");
    let message = error(&run("bad input"), TaskStatus::TaskInputVarSubError).await;
    assert_eq!(message, "the moon is not a place");
    let message = error(&run("error"), TaskStatus::TaskFailed).await;
    assert_eq!(message, "invalid digit found in string");
    let message = error(&run("panic"), TaskStatus::TaskFailed).await;
    assert_eq!(message, "the task panicked: the floor is lava");
    let message = error(&run("array"), TaskStatus::TaskOutputSerdeError).await;
    assert!(message.contains("JSON_OBJ"), "{message}");
    let message = error(&run("large"), TaskStatus::TaskOutputSerdeError).await;
    assert!(message.contains("900000"), "{message}");
    assert_eq!(output(&run("well")).await, Some(Value::JsonObj("{}".to_owned())));
    worker.stop().await;
}

#[tokio::test]
async fn inputs_that_cannot_be_read_are_told_and_never_hold_a_place() {
    let double = start().await;
    let worker = Running::start(moody(&double).slots(1));
    let message = error(&json(&double, "wfrun-1", r#"{"id": "#), TaskStatus::TaskInputVarSubError).await;
    assert!(message.starts_with("input 0 `workflow`: "), "{message}");
    let message = error(&json(&double, "wfrun-2", r#"{"id": 7}"#), TaskStatus::TaskInputVarSubError).await;
    assert!(message.contains("expected a string"), "{message}");
    // What is masked stays masked, also when it is wrong.
    let mut secret =
        input("workflow", Some(Value::JsonObj(r#"{"id": {"word": 5}, "how": 31337}"#.to_owned())));
    secret.masked = true;
    let masked = double.schedule(NewRun::new("wfrun-3", vec![secret]));
    let message = error(&masked, TaskStatus::TaskInputVarSubError).await;
    assert!(message.contains("masked") && !message.contains("31337"), "{message}");
    let missing = double.schedule(NewRun::new("wfrun-4", vec![]));
    error(&missing, TaskStatus::TaskInputVarSubError).await;
    output(&json(&double, "wfrun-5", r#"{"id": "p"}"#)).await;
    worker.stop().await;
}

#[tokio::test]
async fn an_output_that_cannot_be_written_is_told() {
    let double = start().await;
    let task = |_: TaskContext, _: Own| async { Ok(HashMap::from([(vec![1, 2], "no key of JSON")])) };
    let worker = Running::start(Worker::new(client(&double), json_task(), task).register());
    let message = error(&json(&double, "wfrun-1", "{}"), TaskStatus::TaskOutputSerdeError).await;
    assert!(message.contains("key must be a string"), "{message}");
    worker.stop().await;
}

#[tokio::test]
async fn a_failure_is_tried_again_and_the_task_knows_who_it_is() {
    let double = start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let task = move |context: TaskContext, _: Own| {
        let count = Arc::clone(&count);
        async move {
            let n = count.fetch_add(1, Ordering::SeqCst);
            assert_eq!(context.attempt() as usize, n);
            assert_eq!(context.key().as_str(), "parent_wfrun-1/0-1");
            assert_eq!((context.wf_run_id(), context.task_name()), ("wfrun-1", TASK));
            assert_eq!(context.node_run().unwrap().position, 1);
            assert!(context.scheduled_at().is_some());
            match n {
                0 => Err(TaskError::failed("the first one always fails")),
                _ => Ok(json!({"attempt": n})),
            }
        }
    };
    let worker = Running::start(Worker::new(client(&double), json_task(), task).register());
    let mut new = NewRun::json("wfrun-1", "{}").attempts(2);
    new.parents = vec!["parent".to_owned()];
    let ended = soon(double.schedule(new).ended()).await;
    let statuses: Vec<TaskStatus> = ended.attempts.iter().map(|attempt| attempt.status()).collect();
    assert_eq!(statuses, [TaskStatus::TaskFailed, TaskStatus::TaskSuccess], "{:?}", ended.attempts);
    worker.stop().await;
}

#[tokio::test]
async fn reports_go_to_the_host_that_delivered() {
    let double =
        littlehorse_double::Double::start(littlehorse_double::Options::default().hosts(2)).await.unwrap();
    let worker = Running::start(moody(&double));
    let run = double.schedule(NewRun::json("wfrun-1", r#"{"id": "p"}"#).at(1));
    output(&run).await;
    let report =
        double.journal().events().into_iter().find(|event| event.method == Method::ReportTask).unwrap();
    assert!(matches!(report.what, What::Call { message: Message::ReportTaskRun(_), .. }));
    assert_eq!(report.host, 1);
    worker.stop().await;
}
