//! Our own worker says what the official SDK was recorded to say, wherever that is right.
//!
//! Every recording is in one of three lists: what is equal, up to what [`settle`] says; what must differ, with the reason
//! (those are played in [`different`]); and what says nothing of a worker.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

mod different;
#[path = "../scenarios/mod.rs"]
mod scenarios;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use littlehorse::{
    CheckpointLog, Client, Config, NewTaskDef, ServedTask, TaskContext, TaskError, Type, Value, Worker,
};
use littlehorse_double::recording::{Lane, Line, Transcript};
use remuda_testbed::wait;
use scenarios::{Scenario, listed};
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

const TASK: &str = "execute-comfyui-workflow";
const SOON: Duration = Duration::from_secs(120);

/// Played, and equal.
const EQUAL: [&str; 20] = [
    "success-json",
    "success-no-log",
    "success-null-output",
    "success-tenant-version",
    "business-exception",
    "business-exception-no-content",
    "unexpected-exception",
    "one-thread-three-tasks",
    "two-threads-four-tasks",
    "empty-poll-response",
    "worker-context-identity",
    "checkpoints",
    "report-retried",
    "server-restart-idle",
    "server-restart-busy",
    "shutdown-idle",
    "taskdef-conflict",
    "taskdef-missing",
    "tls-oauth-tenant",
    "mtls",
];

/// Not equal, and why that is right. They are played as well, and differ in exactly that: see [`different`].
const DIFFERENT: [(&str, &str); 10] = [
    ("input-bad-json", "the SDK never reports it and loses a thread; we report TASK_INPUT_VAR_SUB_ERROR"),
    ("output-not-serialisable", "the SDK lets it be tried again; we report TASK_OUTPUT_SERDE_ERROR"),
    (
        "rebalance",
        "the SDK's limit is per host; ours holds for all hosts, so that streams are closed and opened",
    ),
    ("report-resource-exhausted", "the SDK sends again what was too large; we send less"),
    ("report-hangs", "a retry after 30 s; the pauses are our own"),
    ("server-down-45s-busy", "the SDK gives a finished result up; we do not"),
    ("shutdown-busy-short", "the SDK has claimed a task beyond its threads, and runs it after the signal"),
    ("shutdown-busy-long", "the SDK's grace is the rest of its heartbeat interval; ours is a setting"),
    ("start-unreachable", "the SDK exits; we wait"),
    ("oauth-on-plaintext", "the SDK sends no token in clear; we do, as the Java SDK does, with a warning"),
];

/// A program that was written with the SDK.
const OTHER: [&str; 3] = ["origin-worker-success", "origin-worker-comfy-400", "origin-worker-comfy-error"];

#[test]
fn every_recording_is_in_one_list() {
    let files = std::fs::read_dir(scenarios::folder()).expect("the recordings").flatten();
    let files = files.filter_map(|file| file.file_name().into_string().ok());
    let recorded: BTreeSet<String> =
        files.filter_map(|file| file.strip_suffix(".json").map(str::to_owned)).collect();
    let different = DIFFERENT.iter().map(|(name, _)| *name);
    let named: Vec<&str> = EQUAL.into_iter().chain(different).chain(OTHER).collect();
    assert_eq!(named.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), recorded);
    assert_eq!(named.len(), recorded.len(), "one is in two lists");
}

#[tokio::test]
async fn our_worker_says_what_the_official_sdk_was_recorded_to_say() {
    // All at once, since most of the time they wait.
    let stage = tokio::task::LocalSet::new();
    let mut playing = tokio::task::JoinSet::new();
    for name in EQUAL {
        playing.spawn_local_on(async move { (name, play(name).await) }, &stage);
    }
    let mut wrong = Vec::new();
    while let Some(played) = stage.run_until(playing.join_next()).await {
        let (name, differences) = played.expect("a scenario that is played to its end");
        if !differences.is_empty() {
            wrong.push(format!("=== {name}\n{differences}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plays a scenario and says what is not as recorded.
async fn play(name: &'static str) -> String {
    let scenario = Scenario::new(name, Some(Arc::default())).await;
    scenario.prepare();
    let (worker, stop) = worker(&scenario);
    let running = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
    scenario.perform(|| stop.cancel()).await;
    // It ends by itself only where it was recorded to.
    let fails = name.starts_with("taskdef-");
    let ends = fails || name.starts_with("shutdown-");
    let mut said = String::new();
    let ended = || running.is_finished().then_some(());
    if ends && wait::until("the end of the worker", SOON, async || ended()).await.is_err() {
        said.push_str("it should have ended\n");
    }
    let differences = scenario.differences(|transcript| settle(name, transcript)).await;
    said.push_str(&listed(&differences));
    if !ends && running.is_finished() {
        said.push_str("\nit should not have ended");
    }
    stop.cancel();
    let ended = running.await.expect("no panic");
    if ended.is_err() != fails {
        said.push_str(&format!("\nit ended with {ended:?}"));
    }
    said
}

/// The worker of a scenario, and what ends it.
fn worker(scenario: &Scenario) -> (Worker, CancellationToken) {
    let name = scenario.name;
    let begun = scenario.begun.clone();
    let worker = Worker::new(client(scenario.settings()), task(name), move |context, workflow| {
        begun.iter().for_each(|begun| begun.notify_one());
        render(name, context, workflow)
    });
    let worker = if name == "taskdef-missing" { worker } else { worker.register() };
    (worker.heartbeat(Duration::from_secs(1)), CancellationToken::new())
}

/// What it serves.
fn task(name: &str) -> ServedTask {
    match name {
        "taskdef-missing" => ServedTask::from(TASK),
        _ => NewTaskDef::new(TASK).input("workflow", Type::JsonObj).returns(Type::JsonObj).into(),
    }
}

/// A client with these settings.
fn client(settings: Vec<(String, String)>) -> Client {
    Client::new(config(settings)).expect("a client")
}

fn config(settings: Vec<(String, String)>) -> Config {
    let find =
        |wanted: &str| settings.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    let config = Config::from_lookup(|name| match (find(name), name) {
        // The SDK asks for one task at a time, however many threads it has.
        (None, "LHW_NUM_WORKER_THREADS") => Some("1".to_owned()),
        (found, _) => found,
    });
    config.expect("settings")
}

/// What the task functions of the recordings do.
async fn render(name: &'static str, context: TaskContext, workflow: Json) -> Result<Value, TaskError> {
    let output = match name {
        "success-no-log" => json!({"prompt_id": "pid-1", "outputs": []}),
        "success-null-output" => return Ok(Value::Null),
        "business-exception" => {
            context.log("about to refuse");
            let content = Value::from_serialize(&json!({"node": "3"}), Type::JsonObj)?;
            let refusal = TaskError::exception("invalid-workflow", "node 3 has no class_type");
            return Err(refusal.with_content(content));
        }
        "business-exception-no-content" => {
            return Err(TaskError::exception("invalid-workflow", "no content given"));
        }
        "unexpected-exception" => {
            context.log("before failure");
            return Err(TaskError::failed("ComfyUI unreachable"));
        }
        "one-thread-three-tasks"
        | "two-threads-four-tasks"
        | "server-restart-busy"
        | "rebalance"
        | "server-down-45s-busy"
        | "shutdown-busy-short"
        | "shutdown-busy-long" => {
            let seconds = workflow["sleep"].as_f64().unwrap();
            context.log(format!("sleep {seconds:?}"));
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            json!({"prompt_id": workflow["id"], "outputs": []})
        }
        "worker-context-identity" => {
            let run = context.task_run().wf_run_id.clone().unwrap();
            let parent = run.parent_wf_run_id.map(|parent| parent.id).unwrap_or_default();
            let time = context.scheduled_at().unwrap().to_string();
            json!({
                // Our key is another one, which is unique beyond its workflow run.
                "idempotency_key": context.task_run().task_guid,
                "attempt": context.attempt(),
                "task_def": context.task_name(),
                "wf_run_id": context.wf_run_id(),
                "parent": parent,
                "node_run_position": context.node_run().unwrap().position,
                "scheduled_time": time,
            })
        }
        "checkpoints" => {
            let submit = |log: CheckpointLog| async move {
                log.log("submitted");
                Ok(json!({"prompt_id": "pid-1"}))
            };
            let prompt = context.checkpoint(submit).await?;
            if context.attempt() == 0 {
                return Err(TaskError::failed("lost after checkpoint"));
            }
            let second = context.checkpoint(|_| async { Ok("second".to_owned()) }).await?;
            json!({"prompt_id": prompt["prompt_id"], "outputs": [second]})
        }
        _ => {
            context.log("submit workflow");
            context.log("workflow complete");
            json!({"prompt_id": "pid-1", "outputs": ["/outputs/a.png"]})
        }
    };
    Ok(Value::from_serialize(&output, Type::JsonObj)?)
}

/// What need not be equal.
fn settle(name: &str, transcript: Transcript) -> Transcript {
    let transcript = transcript.map(|_, line| {
        // We give every call a deadline, the SDK only some.
        if matches!(line.kind.as_str(), "PutTaskDef" | "PutCheckpoint" | "GetCheckpoint") {
            line.deadline = None;
        }
        // JSON is compared by its meaning, which leaves blanks out.
        read_json(&mut line.message);
        if line.kind == "ReportTask" {
            report(line);
        }
        if let Some(task) = line.message.get_mut("result").and_then(Json::as_object_mut)
            && name == "worker-context-identity"
        {
            // The server of the recording forgot the parent in one of the two places where it belongs.
            task.remove("source");
        }
    });
    let mut transcript = transcript.without(|lane, line| left_out(name, lane, line));
    if name == "taskdef-missing" {
        // A TaskDef that was just registered cannot be seen at once, so that we ask again for some time.
        transcript.lanes.entry(Lane::Control).or_default().truncate(2);
    }
    transcript
}

fn report(line: &mut Line) {
    let Some(report) = line.message.as_object_mut() else { return };
    // The SDK says nothing of checkpoints; we say how many there are.
    report.remove("total_checkpoints");
    // A failure has a stack trace there and a message here; to the workflow it is the same, whatever its type.
    if report.contains_key("error") {
        report.insert("error".to_owned(), json!("<error>"));
    }
}

fn left_out(name: &str, lane: &Lane, line: &Line) -> bool {
    match (name, line.kind.as_str()) {
        // A stream that the test ends with the worker is not part of the recording.
        (_, "PollTask gone") => name != "shutdown-idle",
        // The SDK asks for one at a time in one stream; we ask for as many as we can run, each in a stream of its own.
        ("two-threads-four-tasks", _) => matches!(lane, Lane::Stream(..)),
        // The SDK claims one more than it runs; we ask whether a report that failed is still wanted.
        ("server-restart-busy", "PollTask ask" | "GetTaskRun" | "GetTaskRun answer") => true,
        // An attempt that was told to stop reports a failure there, which nobody hears, and nothing here.
        ("checkpoints", "ReportTask" | "ReportTask answer") => *lane == Lane::Task("wfrun-2/0-1".to_owned()),
        // We look at the one that is there, to show the difference.
        ("taskdef-conflict", "GetTaskDef" | "GetTaskDef answer") => true,
        _ => false,
    }
}

fn read_json(message: &mut Json) {
    match message {
        Json::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value.as_str().and_then(|text| serde_json::from_str::<Json>(text).ok()) {
                    Some(json) if name == "json_obj" => *value = json,
                    _ => read_json(value),
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(read_json),
        _ => {}
    }
}
