//! What a client is told of a prompt's life: the same words in the history and on the websocket.

use remuda_core::{Failure, FailureClass, JsonText, Status, Task, Timestamp};
use serde_json::{Value, json};

use crate::native::names;

/// Milliseconds, as ComfyUI counts time.
pub(crate) fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// Whether anything of it was ever given to a worker. A prompt that was cancelled before leaves no trace.
pub(crate) fn has_begun(task: &Task) -> bool {
    task.attempt > 0
}

/// When it began to render, as far as that is known: a worker may hold it for a while before.
fn begun_at(task: &Task) -> Timestamp {
    let claimed = task.started_at.or(task.finished_at).unwrap_or(task.created_at);
    let took = task.result.as_ref().and_then(|result| result.execution_ms);
    let (Some(end), Some(took)) = (task.finished_at, took) else { return claimed };
    let begun = end.as_millisecond().saturating_sub(took.max(0));
    Timestamp::from_millisecond(begun).map_or(claimed, |begun| begun.max(claimed))
}

/// `execution_start`.
pub(crate) fn start(task: &Task) -> (&'static str, Value) {
    ("execution_start", json!({"prompt_id": names::prompt_id(task), "timestamp": millis(begun_at(task))}))
}

/// `execution_cached`, when nothing is known of the cache.
pub(crate) fn cached(task: &Task) -> (&'static str, Value) {
    let id = names::prompt_id(task);
    ("execution_cached", json!({"nodes": [], "prompt_id": id, "timestamp": millis(begun_at(task))}))
}

/// When it began and ended, in milliseconds. None: it has not, or left no trace.
pub(crate) fn times(task: &Task) -> Option<(i64, i64)> {
    match task.status {
        Status::Completed | Status::Failed => {}
        Status::Cancelled if has_begun(task) => {}
        Status::Cancelled | Status::Pending | Status::Running => return None,
    }
    Some((millis(begun_at(task)), millis(task.finished_at.unwrap_or(task.created_at))))
}

/// How it ended: `execution_success`, `execution_error` or `execution_interrupted`. None: it has not, or there is nothing
/// to tell.
pub(crate) fn end(task: &Task) -> Option<(&'static str, Value)> {
    let id = names::prompt_id(task);
    let at = millis(task.finished_at.unwrap_or(task.created_at));
    match task.status {
        Status::Completed => Some(("execution_success", json!({"prompt_id": id, "timestamp": at}))),
        Status::Cancelled if has_begun(task) => {
            // Where it was stopped is not kept.
            let data =
                json!({"prompt_id": id, "node_id": "", "node_type": "", "executed": [], "timestamp": at});
            Some(("execution_interrupted", data))
        }
        Status::Failed => Some(("execution_error", error(task, &id, at))),
        Status::Cancelled | Status::Pending | Status::Running => None,
    }
}

/// The data of `execution_error`. What was no exception of a node is shown as one of ours.
fn error(task: &Task, id: &str, at: i64) -> Value {
    let unknown = Failure::new(FailureClass::Lost, "nobody knows why it failed");
    let failure = task.error.as_ref().unwrap_or(&unknown);
    let details = failure.details.as_ref().map(JsonText::read).unwrap_or_default();
    let detail = |name: &str| details.get(name);
    let text = |name: &str| detail(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let node_id = failure.node_id.clone().unwrap_or_default();
    let refused = detail("node_errors").and_then(|nodes| nodes.get(&node_id)?.get("class_type")?.as_str());
    let ours = format!("remuda.{}", failure.class);
    let executed = task.result.as_ref().map(|result| result.outputs.names()).unwrap_or_default();
    let mut data = json!({
        "prompt_id": id,
        "node_id": node_id,
        "node_type": text("node_type").or(refused).unwrap_or_default(),
        "executed": executed,
        "exception_message": text("exception_message").unwrap_or(&failure.message),
        "exception_type": text("exception_type").unwrap_or(&ours),
        "traceback": detail("traceback").filter(|lines| lines.is_array()).cloned().unwrap_or_else(|| json!([])),
        "current_inputs": {},
        "current_outputs": [],
        "timestamp": at,
    });
    if let (Some(nodes), Some(data)) = (detail("node_errors"), data.as_object_mut()) {
        data.insert("node_errors".to_owned(), nodes.clone());
    }
    data
}

/// `status` of a history entry: how it ended, and the messages on the way there.
pub(crate) fn status(task: &Task) -> Option<Value> {
    let good = task.status == Status::Completed;
    let messages = json!([start(task), cached(task), end(task)?]);
    Some(
        json!({"status_str": if good { "success" } else { "error" }, "completed": good, "messages": messages}),
    )
}
