//! How workers end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use littlehorse::{TaskContext, Value, Worker};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{NewRun, What};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::rig::*;

/// Says so when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Rig {
    gate: Arc<Semaphore>,
    /// The function has begun.
    begun: Arc<Notify>,
    /// The function is gone.
    gone: Arc<AtomicBool>,
    worker: Worker,
}

fn rig(double: &littlehorse_double::Double) -> Rig {
    let (gate, gone) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(Notify::new());
    let (open, flag, begins) = (Arc::clone(&gate), Arc::clone(&gone), Arc::clone(&begun));
    let task = move |context: TaskContext, workflow: Value| {
        let (open, flag) = (Arc::clone(&open), Flag(Arc::clone(&flag)));
        begins.notify_one();
        async move {
            let _flag = flag;
            if workflow == Value::JsonObj(r#"{"polite":true}"#.to_owned()) {
                context.stopping().cancelled().await;
                context.log("ending early");
                return Ok(workflow);
            }
            open.acquire().await?.forget();
            Ok(workflow)
        }
    };
    let worker = Worker::new(client(double), json_task(), task).register();
    Rig { gate, begun, gone, worker }
}

#[tokio::test]
async fn an_idle_worker_stops_at_once() {
    let double = start().await;
    let worker = Running::start(rig(&double).worker);
    soon(double.until_parked(0, 1)).await;
    let begun = Instant::now();
    worker.stop().await;
    // A stream that does not end is waited for longer.
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    let events = double.journal().events();
    assert!(events.iter().any(|event| event.what == What::HalfClose), "it says that it asks no more");
}

#[tokio::test]
async fn what_runs_may_end_within_the_grace() {
    let double = start().await;
    let Rig { gate, begun, worker, .. } = rig(&double);
    let mut worker = Running::start(worker);
    let run = json(&double, "wfrun-1", "{}");
    soon(begun.notified()).await;
    worker.ask_to_stop();
    let late = json(&double, "wfrun-2", "{}");
    gate.add_permits(2);
    worker.ended().await.unwrap();
    assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskSuccess);
    assert_eq!(late.task_run().unwrap().status(), TaskStatus::TaskScheduled, "nothing new is taken");
}

#[tokio::test]
async fn a_task_can_end_early_when_the_worker_stops() {
    let double = start().await;
    let Rig { begun, worker, .. } = rig(&double);
    let worker = Running::start(worker);
    let run = json(&double, "wfrun-1", r#"{"polite":true}"#);
    soon(begun.notified()).await;
    worker.stop().await;
    assert_eq!(run.task_run().unwrap().status(), TaskStatus::TaskSuccess);
}

#[tokio::test]
async fn what_does_not_end_is_dropped_and_given_back() {
    let double = start().await;
    let Rig { gone, begun, worker, .. } = rig(&double);
    let worker = Running::start(worker.grace(Duration::from_millis(50)));
    let run = double.schedule(NewRun::json("wfrun-1", "{}").attempts(2));
    soon(begun.notified()).await;
    worker.stop().await;
    assert!(gone.load(Ordering::SeqCst));
    let seen = run.reports();
    assert!(seen[0].heard);
    assert_eq!(seen[0].report.status(), TaskStatus::TaskFailed);
    // The server gives it to somebody else.
    assert_eq!(run.task_run().unwrap().attempts.len(), 2);
}

#[tokio::test]
async fn a_task_that_comes_while_the_worker_stops_is_given_back() {
    let double = start().await;
    let mut worker = Running::start(rig(&double).worker);
    soon(double.until_parked(0, 1)).await;
    let late = double.schedule(NewRun::json("wfrun-1", "{}").held());
    worker.ask_to_stop();
    soon(double.journal().count(1, |event| event.what == What::HalfClose)).await;
    late.hand_to(0, 1, WORKER);
    worker.ended().await.unwrap();
    assert_eq!(error(&late, TaskStatus::TaskFailed).await, "the worker is stopping");
}

#[tokio::test]
async fn a_server_that_is_away_does_not_keep_a_worker_from_stopping() {
    let double = start().await;
    let Rig { gate, begun, worker, .. } = rig(&double);
    let worker = Running::start(worker.grace(Duration::from_millis(50)));
    json(&double, "wfrun-1", "{}");
    soon(begun.notified()).await;
    double.down(0).await.unwrap();
    gate.add_permits(1);
    worker.stop().await;
}
