//! Servers that are away, or do not listen.

use std::sync::Arc;
use std::time::Duration;

use littlehorse::{TaskContext, Value, Worker};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Event, Fault, Method};
use tokio::sync::Semaphore;

use crate::rig::*;

/// A worker whose function waits for a permit.
fn gated(double: &littlehorse_double::Double) -> (Arc<Semaphore>, Worker) {
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let task = move |_: TaskContext, workflow: Value| {
        let open = Arc::clone(&open);
        async move {
            open.acquire().await?.forget();
            Ok(workflow)
        }
    };
    // With heartbeats so far apart that none but the first can be what helps.
    let worker =
        Worker::new(client(double), json_task(), task).register().heartbeat(Duration::from_secs(600));
    (gate, worker)
}

#[tokio::test]
async fn a_result_survives_a_server_that_is_away_when_the_task_ends() {
    let double = start().await;
    let (gate, worker) = gated(&double);
    let worker = Running::start(worker);
    let run = json(&double, "wfrun-1", "{}");
    soon(run.running(0)).await;
    double.down(0).await.unwrap();
    gate.add_permits(1);
    // It tries in vain for a while: the function has ended when its permit is gone.
    soon(async {
        while gate.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    double.up(0).unwrap();
    output(&run).await;
    // And the worker goes on.
    gate.add_permits(1);
    output(&json(&double, "wfrun-2", "{}")).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_report_is_repeated_until_it_is_heard() {
    let double = start().await;
    let (gate, worker) = gated(&double);
    gate.add_permits(2);
    double.inject(Method::ReportTask, Fault::Refuse(tonic::Status::unavailable("not now")), 2);
    double.inject(Method::ReportTask, Fault::DoneThenRefuse(tonic::Status::unavailable("lost")), 1);
    let worker = Running::start(worker);
    let run = json(&double, "wfrun-1", "{}");
    output(&run).await;
    assert!(run.reports()[0].heard);
    assert_eq!(double.journal().calls(Method::ReportTask), 3, "two were refused before");
    // The third was done although it was refused: the worker finds out, and goes on.
    output(&json(&double, "wfrun-2", "{}")).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_task_that_the_server_has_given_up_does_not_hold_its_place() {
    let double = start().await;
    let (gate, worker) = gated(&double);
    let worker = Running::start(worker);
    let run = json(&double, "wfrun-1", "{}");
    soon(run.running(0)).await;
    run.time_out();
    assert_eq!(soon(run.ended()).await.status(), TaskStatus::TaskTimeout);
    gate.add_permits(1);
    let seen = soon(run.reported(1)).await;
    assert!(!seen[0].heard);
    gate.add_permits(1);
    output(&json(&double, "wfrun-2", "{}")).await;
    worker.stop().await;
}

#[tokio::test]
async fn tasks_go_on_through_broken_streams_and_goodbyes() {
    let double = start().await;
    let (gate, worker) = gated(&double);
    let worker = Running::start(worker);
    gate.add_permits(6);
    for n in 0..3 {
        soon(double.until_parked(0, 1)).await;
        let opened = double.journal().calls(Method::PollTask);
        match n {
            0 => double.cut(0),
            1 => double.goaway(0),
            _ => double.reset_streams(0),
        }
        let anew = if n == 1 { 0 } else { 1 };
        // A task that is told to a stream which breaks at that moment is lost until its timeout.
        let is_opened = |event: &Event| event.method == Method::PollTask && event.is_beginning();
        soon(double.journal().count(opened + anew, is_opened)).await;
        output(&json(&double, &format!("wfrun-{n}"), "{}")).await;
        output(&json(&double, &format!("wfrun-{n}-again"), "{}")).await;
    }
    worker.stop().await;
}
