//! Killed, stopped, out of time, delivered twice: no task is lost, none is rendered twice.

use std::time::Duration;

use littlehorse_double::NewRun;
use littlehorse_double::proto::TaskStatus;
use serde_json::json;

use crate::stage::{SOON, Stage, ended, endless, error, graph, last, output, until};
use crate::support::{PATIENCE, Running, get};

#[tokio::test]
async fn killed_in_mid_render_it_reports_what_it_finds() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 500).to_string()));
    stage.rendering().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let _worker = stage.worker().await;
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn what_ended_while_the_worker_was_dead_is_reported() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(2, 100).to_string()));
    stage.rendering().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    stage.sim.release().await;
    until("ComfyUI to be done", async || {
        let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
        queue["queue_running"].as_array().unwrap().is_empty()
    })
    .await;
    let _worker = stage.worker().await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn a_server_that_is_away_at_the_end_hears_of_it_when_it_is_back() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 100).to_string()));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    until("ComfyUI to be done", async || {
        let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
        queue["queue_running"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!(run.reports().len(), 0);
    stage.double.up(0).unwrap();
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn an_attempt_that_was_too_short_is_finished_by_the_next() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let new =
        NewRun::json("order-1", graph(4, 6000).to_string()).timeout(Duration::from_secs(2)).attempts(50);
    let run = stage.double.schedule(new);
    let task = ended(&run).await;
    let result = output(&task);
    assert!(task.attempts.len() > 1, "{task:?}");
    assert!(
        task.attempts.iter().rev().skip(1).all(|attempt| attempt.status() == TaskStatus::TaskTimeout),
        "{task:?}"
    );
    assert_eq!(stage.sim.executions().await, 1);
    let history = get(&format!("{}/history", stage.sim.url()), None).await;
    assert!(history[result["prompt_id"].as_str().unwrap()].is_object(), "{history}");
}

#[tokio::test]
async fn a_task_that_was_given_up_is_stopped_at_comfyui() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let run = stage.double.schedule(NewRun::json("order-1", endless(5).to_string()));
    stage.rendering().await;
    run.time_out();
    assert_eq!(ended(&run).await.status(), TaskStatus::TaskTimeout);
    until("the prompt to be stopped", async || {
        let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
        queue["queue_running"].as_array().unwrap().is_empty()
    })
    .await;
    // The slot is free again.
    let next = stage.double.schedule(NewRun::json("order-2", graph(6, 50).to_string()));
    output(&ended(&next).await);
}

#[tokio::test]
async fn two_comfyuis_and_two_slots_render_at_once() {
    let stage = Stage::new().await;
    let other = Running::sim(1).await;
    let both = format!("{},{}", stage.sim.url(), other.url());
    let env = [("COMFYUI_BASE_URL", both.as_str()), ("LHW_NUM_WORKER_THREADS", "2")];
    let worker = stage.worker_with(&[], &env).await;
    assert_eq!((&worker.first["slots"], worker.first["workers"].as_array().unwrap().len()), (&json!(2), 2));
    // Both workers wait for a task; otherwise the first to be ready could get two.
    stage.double.until_parked(0, 2).await;
    stage.sim.hold().await;
    other.hold().await;
    let runs: Vec<_> = (0..4)
        .map(|n| stage.double.schedule(NewRun::json(format!("order-{n}"), graph(10 + n, 100).to_string())))
        .collect();
    until("both to render", async || {
        let mut running = 0;
        for url in [stage.sim.url(), other.url()] {
            let queue = get(&format!("{url}/queue"), None).await;
            running += queue["queue_running"].as_array().unwrap().len();
        }
        running == 2
    })
    .await;
    stage.sim.release().await;
    other.release().await;
    for run in &runs {
        output(&ended(run).await);
    }
    // Who is done first takes the next.
    assert_eq!(stage.sim.executions().await + other.executions().await, 4);
}

#[tokio::test]
async fn one_slot_takes_one_task() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    stage.sim.hold().await;
    let first = stage.double.schedule(NewRun::json("order-1", graph(20, 100).to_string()));
    stage.rendering().await;
    let second = stage.double.schedule(NewRun::json("order-2", graph(21, 50).to_string()));
    assert_eq!(stage.double.parked(0), 0, "nothing is asked for while the slot is taken");
    stage.sim.release().await;
    output(&ended(&first).await);
    assert_eq!(second.task_run().unwrap().attempts.len(), 1);
    output(&ended(&second).await);
}

#[tokio::test]
async fn idle_it_stops_at_once() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    tokio::time::timeout(PATIENCE, stage.double.until_parked(0, 1)).await.unwrap();
    worker.program.term().unwrap();
    let exit = worker.program.wait_exit(SOON).await.unwrap();
    let said = worker.program.output();
    assert!(exit.success(), "{exit}: {said:?}");
    assert!(!said.iter().any(|line| line.contains("WARN")), "a stop is no trouble: {said:?}");
}

#[tokio::test]
async fn busy_it_ends_what_it_can_within_the_drain() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(30, 500).to_string()));
    stage.rendering().await;
    worker.program.term().unwrap();
    stage.sim.release().await;
    let exit = worker.program.wait_exit(PATIENCE).await.unwrap();
    assert!(exit.success(), "{exit}: {:?}", worker.program.output());
    output(&run.task_run().unwrap());
}

#[tokio::test]
async fn after_the_drain_it_stops_the_prompt_and_says_so() {
    let stage = Stage::new().await;
    let mut worker = stage.worker_with(&["--drain", "1s"], &[]).await;
    let run = stage.double.schedule(NewRun::json("order-1", endless(31).to_string()));
    stage.rendering().await;
    worker.program.term().unwrap();
    let exit = worker.program.wait_exit(PATIENCE).await.unwrap();
    assert!(exit.success(), "{exit}: {:?}", worker.program.output());
    let task = run.task_run().unwrap();
    assert_eq!(last(&task).status(), TaskStatus::TaskFailed, "{task:?}");
    assert!(error(last(&task)).contains("stopping"), "{task:?}");
    let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
    assert!(queue["queue_running"].as_array().unwrap().is_empty(), "{queue}");
}

#[tokio::test]
async fn after_the_drain_it_does_not_wait_for_a_comfyui_that_is_away() {
    let mut stage = Stage::new().await;
    let mut worker = stage.worker_with(&["--drain", "1s"], &[]).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(33, 100).to_string()));
    stage.rendering().await;
    stage.sim.program.stop().unwrap();
    stage.double.down(0).await.unwrap();
    worker.program.term().unwrap();
    let exit = worker.program.wait_exit(SOON).await.unwrap();
    assert!(exit.success(), "{exit}: {:?}", worker.program.output());
    // Nothing was stopped, and nothing is lost.
    stage.sim.program.cont().unwrap();
    stage.double.up(0).unwrap();
    let _worker = stage.worker().await;
    stage.sim.release().await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_the_render_is_adopted() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(32, 100).to_string()));
    stage.rendering().await;
    worker.program.term().unwrap();
    worker.program.wait_line("stopping", PATIENCE).await.unwrap();
    worker.program.term().unwrap();
    let exit = worker.program.wait_exit(SOON).await.unwrap();
    assert_eq!(exit.code(), Some(1), "{:?}", worker.program.output());
    let _worker = stage.worker().await;
    stage.sim.release().await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}
