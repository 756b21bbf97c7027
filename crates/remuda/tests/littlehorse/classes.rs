//! What is tried again and what is not, what is counted once, and what waited too long.

use std::time::Duration;

use littlehorse_double::NewRun;
use littlehorse_double::proto::TaskStatus;
use serde_json::json;

use crate::stage::{Stage, ended, graph, output};
use crate::support::{PATIENCE, post};

async fn fault(stage: &Stage, fault: serde_json::Value) {
    let (code, added) = post(&format!("{}/sim/faults", stage.sim.url()), None, fault.to_string()).await;
    assert_eq!(code, 200, "{added}");
}

#[tokio::test]
async fn checkpoints_are_counted_once() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let new =
        NewRun::json("order-1", graph(4, 6000).to_string()).timeout(Duration::from_secs(3)).attempts(50);
    let run = stage.double.schedule(new);
    let task = ended(&run).await;
    output(&task);
    assert!(task.attempts.len() > 1, "{task:?}");
    assert_eq!(run.checkpoints().len(), 1);
    let told: Vec<i32> = run.reports().iter().map(|seen| seen.report.total_checkpoints).collect();
    assert_eq!(told.last(), Some(&1), "{told:?}");
}

#[tokio::test]
async fn a_proxy_that_is_busy_for_a_moment_costs_no_ten_minutes() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    fault(&stage, json!({"kind": "error", "status": 503, "on": "POST /prompt", "times": 1})).await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(5, 50).to_string()).attempts(3));
    output(&ended(&run).await);
}

#[tokio::test]
async fn a_500_is_tried_again() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    fault(&stage, json!({"kind": "error", "status": 500, "on": "POST /prompt", "times": 4})).await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(6, 50).to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!(task.attempts[0].status(), TaskStatus::TaskFailed, "{task:?}");
    output(&task);
}

#[tokio::test]
async fn a_403_is_not_tried_again() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    fault(&stage, json!({"kind": "error", "status": 403, "on": "POST /prompt", "times": 1000})).await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(7, 50).to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!((task.attempts.len(), task.status()), (1, TaskStatus::TaskException), "{task:?}");
}

/// Two hosts deliver at once, and there is one slot: the second task waits in the worker. Its time runs out there, and another
/// worker gets its next attempt. When the slot is free at last, it is not to be rendered here as well.
#[tokio::test]
async fn what_waited_here_until_somebody_else_had_it_is_not_rendered() {
    let stage = Stage::with(littlehorse_double::Options::default().hosts(2)).await;
    let _worker = stage.worker().await;
    stage.double.until_parked(0, 1).await;
    stage.double.until_parked(1, 1).await;
    stage.sim.hold().await;
    let first = stage.double.schedule(NewRun::json("order-1", graph(8, 4000).to_string()).at(0).attempts(3));
    let second = stage.double.schedule(NewRun::json("order-2", graph(9, 4000).to_string()).at(1).attempts(3));
    stage.rendering().await;
    first.running(0).await;
    // It can only be so while the slot is taken.
    let both = tokio::time::timeout(PATIENCE, second.running(0)).await.is_ok();
    assert!(both, "the race was not met");
    let queue = crate::support::get(&format!("{}/queue", stage.sim.url()), None).await;
    let seed = &queue["queue_running"][0][2]["1"]["inputs"]["seed"];
    let (run, other) = if *seed == json!(9) { (&second, &first) } else { (&first, &second) };
    other.taken_by("somebody-else");
    stage.sim.release().await;
    output(&ended(run).await);
    // What waits here is first in line: when a third one is done, it has had its turn.
    let third = stage.double.schedule(NewRun::json("order-3", graph(10, 50).to_string()));
    output(&ended(&third).await);
    assert_eq!(stage.sim.executions().await, 2);
}
