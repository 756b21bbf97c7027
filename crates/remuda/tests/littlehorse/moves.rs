//! Another address, another task, another server: what the journal has from before is not lost, and not stopped.

use littlehorse_double::{Double, NewRun, Options};

use crate::stage::{Stage, ended, graph, output, until};
use crate::support::{PATIENCE, get};

/// Kills a worker in mid-render and starts one with other settings, which is to finish that.
async fn starts_again_with(env: &[(&str, &str)]) {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 500).to_string()));
    stage.rendering().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let _worker = stage.worker_with(&[], env).await;
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn under_another_address_of_the_server_the_render_is_finished() {
    starts_again_with(&[("LHC_API_HOST", "localhost")]).await;
}

#[tokio::test]
async fn with_another_task_the_render_is_finished() {
    starts_again_with(&[("LHW_TASK_NAME", "another-task")]).await;
}

#[tokio::test]
async fn a_result_that_was_not_heard_is_told_under_another_address() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(2, 100).to_string()));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    worker.program.wait_line("the report of its end did not arrive", PATIENCE).await.unwrap();
    worker.program.kill_9().unwrap();
    drop(worker);
    stage.double.up(0).unwrap();
    let _worker = stage.worker_with(&[], &[("LHC_API_HOST", "localhost")]).await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn a_worker_for_another_server_spares_the_render() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 3000).to_string()));
    stage.rendering().await;
    worker.program.kill_9().unwrap();
    drop(worker);

    let other = Double::start(Options::default()).await.unwrap();
    let port = other.port(0).to_string();
    let mut worker = stage.worker_with(&[], &[("LHC_API_PORT", &port)]).await;
    worker.program.wait_line("is spared", PATIENCE).await.unwrap();
    stage.sim.release().await;
    until("ComfyUI to be done", async || {
        let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
        queue["queue_running"].as_array().unwrap().is_empty()
    })
    .await;
    // The worker is free for the other server now.
    let next = other.schedule(NewRun::json("order-2", graph(4, 50).to_string()));
    output(&ended(&next).await);
    assert!(run.reports().is_empty(), "it is nobody's business there");
    worker.program.kill_9().unwrap();
    drop(worker);

    let _worker = stage.worker().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(stage.sim.executions().await, 2);
}
