//! What is too large for the server.

use littlehorse_double::proto::{TaskRun, TaskStatus};
use littlehorse_double::{NewRun, Options, Oversize};
use serde_json::{Value, json};

use crate::rig::all_heard;
use crate::stage::{Stage, ended, error, graph, last, log, output};

/// A graph that leaves this many pictures.
fn many(pictures: u32) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": pictures, "color": 7}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "many"}},
    })
}

/// A task that leaves 100 pictures whose folder has a name of this many bytes. A second one is served in any case.
async fn oversized(options: Options, name: usize) -> TaskRun {
    let stage = Stage::with(options).await;
    let folder = format!("/{}", "x".repeat(name));
    let _worker = stage.worker_with(&[], &[("COMFYUI_OUTPUT_DIR", folder.as_str())]).await;
    let run = stage.double.schedule(NewRun::json("order-1", many(100).to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!(task.attempts.len(), 1, "the same again would be too large again: {task:?}");
    let next = stage.double.schedule(NewRun::json("order-2", graph(1, 50).to_string()));
    output(&ended(&next).await);
    assert_eq!(stage.sim.executions().await, 2);
    all_heard(stage.dir.path()).await;
    task
}

#[tokio::test]
async fn an_output_that_no_server_takes_is_told_without_being_sent() {
    let task = oversized(Options::default(), 10_000).await;
    assert_eq!(task.status(), TaskStatus::TaskOutputSerdeError, "{:?}", task.status());
    let message = error(last(&task));
    assert!(message.contains("100 outputs") && message.contains("bytes"), "{message}");
}

/// Servers whose limit is lower than ours say it in different ways, and some not at all.
#[tokio::test]
async fn an_output_that_this_server_does_not_take_is_told_in_the_end() {
    let limited = |oversize| Options { most_bytes: 100_000, oversize, ..Options::default() };
    let (exhausted, unavailable, swallowed) = tokio::join!(
        oversized(limited(Oversize::Exhausted), 2000),
        oversized(limited(Oversize::Unavailable), 2000),
        oversized(limited(Oversize::Swallowed), 2000),
    );
    for task in [&exhausted, &unavailable] {
        assert_eq!(task.status(), TaskStatus::TaskOutputSerdeError, "{:?}", task.status());
        assert!(error(last(task)).contains("100 outputs"), "{}", error(last(task)));
    }
    // There the server itself has said so.
    assert_eq!(swallowed.status(), TaskStatus::TaskOutputSerdeError);
}

#[tokio::test]
async fn a_result_is_worth_more_than_its_log() {
    let options = Options { most_bytes: 450, oversize: Oversize::Exhausted, ..Options::default() };
    let stage = Stage::with(options).await;
    let _worker = stage.worker().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(2, 3000).to_string()));
    let task = ended(&run).await;
    output(&task);
    assert_eq!(last(&task).log_output, None, "{}", log(last(&task)));
    all_heard(stage.dir.path()).await;
}
