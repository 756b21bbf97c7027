//! ComfyUI dies, or the worker stands still for longer than an attempt may take.

use std::time::Duration;

use littlehorse_double::NewRun;
use littlehorse_double::proto::TaskStatus;
use serde_json::json;

use crate::rig::{all_heard, fault, idle};
use crate::stage::{Stage, ended, endless, error, graph, log, output, start};
use crate::support::{PATIENCE, Running};

#[tokio::test]
async fn a_comfyui_that_dies_in_mid_render_is_a_failure_and_the_retry_renders_again() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 100).to_string()).attempts(2));
    stage.rendering().await;
    fault(stage.sim.url(), json!({"kind": "crash", "down_ms": 1000})).await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 2, "{task:?}");
    assert_eq!(task.attempts[0].status(), TaskStatus::TaskFailed);
    assert!(!error(&task.attempts[0]).is_empty());
    let said = log(&task.attempts[1]);
    assert!(
        said.contains("submitted to") && !said.contains("taken up"),
        "nothing was there any more: {said}"
    );
    assert_eq!(stage.sim.executions().await, 2, "the first one was lost with ComfyUI");
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_comfyui_that_is_away_for_the_whole_attempt_gets_no_other_before_it_is_back() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    stage.sim.hold().await;
    let new = NewRun::json("order-1", graph(2, 100).to_string());
    let run = stage.double.schedule(new.attempts(20).timeout(Duration::from_secs(6)));
    stage.rendering().await;
    fault(stage.sim.url(), json!({"kind": "crash", "down_ms": 24_000})).await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts[0].status(), TaskStatus::TaskTimeout, "{task:?}");
    assert!(task.attempts.len() <= 3, "tasks are not asked for without a ComfyUI: {task:?}");
    assert_eq!(stage.sim.executions().await, 2, "the first one was lost with ComfyUI");
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_worker_that_stood_still_gives_its_result_to_the_next_attempt() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let new = NewRun::json("order-1", graph(3, 100).to_string());
    let run = stage.double.schedule(new.attempts(3).timeout(Duration::from_secs(10)));
    stage.rendering().await;
    worker.program.stop().unwrap();
    stage.sim.release().await;
    let timed_out = run.until(|task| task.attempts[0].status() == TaskStatus::TaskTimeout);
    tokio::time::timeout(PATIENCE, timed_out).await.unwrap();
    idle(stage.sim.url()).await;
    worker.program.cont().unwrap();
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 2, "{task:?}");
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_worker_that_stood_still_stops_what_was_given_up_meanwhile() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    let new = NewRun::json("order-1", endless(4).to_string()).timeout(Duration::from_secs(10));
    let run = stage.double.schedule(new);
    stage.rendering().await;
    worker.program.stop().unwrap();
    assert_eq!(ended(&run).await.status(), TaskStatus::TaskTimeout);
    worker.program.cont().unwrap();
    idle(stage.sim.url()).await;
    let next = stage.double.schedule(NewRun::json("order-2", graph(5, 50).to_string()));
    output(&ended(&next).await);
    all_heard(stage.dir.path()).await;
}

/// Two workers have one ComfyUI: what one has begun is finished by the other, and the first touches nothing then.
#[tokio::test]
async fn a_worker_that_stood_still_leaves_what_another_one_has_adopted() {
    let stage = Stage::new().await;
    let mut first = stage.worker().await;
    stage.sim.hold().await;
    let new = NewRun::json("order-1", graph(6, 1000).to_string());
    let run = stage.double.schedule(new.attempts(2).timeout(Duration::from_secs(600)));
    stage.rendering().await;
    first.program.stop().unwrap();
    run.time_out();
    let data = tempfile::tempdir().unwrap();
    let (port, folder) = (stage.double.port(0).to_string(), stage.output());
    let env = [
        ("LHC_API_HOST", "127.0.0.1"),
        ("LHC_API_PORT", port.as_str()),
        ("COMFYUI_BASE_URL", stage.sim.url()),
        ("COMFYUI_OUTPUT_DIR", folder.as_str()),
    ];
    let second = start(data.path(), &[], &env).await;
    tokio::time::timeout(PATIENCE, run.running(1)).await.unwrap();
    first.program.cont().unwrap();
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts[1].task_worker_id, second.first["worker_id"].as_str().unwrap());
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(data.path()).await;
    all_heard(stage.dir.path()).await;
}

/// Two workers have a ComfyUI each and deliver to one place, under the same names: what the faster one has told of stays.
#[tokio::test]
async fn a_worker_that_was_slower_leaves_the_files_of_the_other() {
    let (stage, sim) = (Stage::new().await, Running::sim(1).await);
    let (data, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = ["--output-dir", files.path().to_str().unwrap()];
    let mut first = stage.worker_with(&args, &[]).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(7, 100).to_string()).attempts(2));
    stage.rendering().await;
    first.program.stop().unwrap();
    run.time_out();
    let port = stage.double.port(0).to_string();
    let env =
        [("LHC_API_HOST", "127.0.0.1"), ("LHC_API_PORT", port.as_str()), ("COMFYUI_BASE_URL", sim.url())];
    let _second = start(data.path(), &args, &env).await;
    let result = output(&ended(&run).await);
    let paths: Vec<&str> =
        result["outputs"].as_array().unwrap().iter().filter_map(|path| path.as_str()).collect();
    let there = || paths.iter().all(|path| std::path::Path::new(path).is_file());
    assert!(!paths.is_empty() && there(), "{result}");
    first.program.cont().unwrap();
    first.program.wait_line("nobody wants it any more", PATIENCE).await.unwrap();
    stage.sim.release().await;
    all_heard(stage.dir.path()).await;
    // Whatever follows from the end of its render is done then.
    first.program.term().unwrap();
    first.program.wait_exit(PATIENCE).await.unwrap();
    assert!(there(), "{result}");
    assert_eq!((stage.sim.executions().await, sim.executions().await), (1, 1));
}
