//! How many tasks run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use littlehorse::{NewTaskDef, Slots, TaskContext, Type, Value, Worker};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Double, Method, NewRun, Options, Run};
use tokio::sync::{Semaphore, watch};

use crate::rig::*;

/// A function that waits for a permit, and counts how many wait at once.
#[derive(Clone)]
struct Gate {
    open: Arc<Semaphore>,
    inside: watch::Sender<usize>,
    most: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> Self {
        Self {
            open: Arc::new(Semaphore::new(0)),
            inside: watch::Sender::new(0),
            most: Arc::default(),
            calls: Arc::default(),
        }
    }

    fn worker(&self, double: &Double, def: NewTaskDef) -> Worker {
        let gate = self.clone();
        let task = move |_: TaskContext, _: Value| {
            let gate = gate.clone();
            async move {
                gate.calls.fetch_add(1, Ordering::SeqCst);
                gate.inside.send_modify(|inside| *inside += 1);
                gate.most.fetch_max(*gate.inside.borrow(), Ordering::SeqCst);
                gate.open.acquire().await?.forget();
                gate.inside.send_modify(|inside| *inside -= 1);
                Ok(Value::JsonObj("{}".to_owned()))
            }
        };
        Worker::new(client(double), def, task).register()
    }
}

fn statuses(runs: &[Run]) -> Vec<TaskStatus> {
    runs.iter().map(|run| run.task_run().unwrap().status()).collect()
}

#[tokio::test]
async fn with_one_place_nothing_is_claimed_beyond_it() {
    let double = start().await;
    let runs = ["wfrun-1", "wfrun-2", "wfrun-3"].map(|id| json(&double, id, "{}"));
    let gate = Gate::new();
    let worker = Running::start(gate.worker(&double, json_task()).slots(1));
    for n in 0..3 {
        soon(runs[n].running(0)).await;
        let mut expected = [TaskStatus::TaskScheduled; 3];
        expected[..n].fill(TaskStatus::TaskSuccess);
        expected[n] = TaskStatus::TaskRunning;
        assert_eq!(statuses(&runs), expected);
        assert_eq!(double.parked(0), 0, "no request while the place is taken");
        gate.open.add_permits(1);
        soon(runs[n].ended()).await;
    }
    soon(double.until_parked(0, 1)).await;
    assert_eq!(gate.most.load(Ordering::SeqCst), 1);
    worker.stop().await;
}

#[tokio::test]
async fn with_two_places_two_run_at_once() {
    let double = start().await;
    let gate = Gate::new();
    let worker = Running::start(gate.worker(&double, json_task()).slots(2));
    soon(double.until_parked(0, 2)).await;
    let runs = ["wfrun-1", "wfrun-2", "wfrun-3"].map(|id| json(&double, id, "{}"));
    soon(runs[0].running(0)).await;
    soon(runs[1].running(0)).await;
    soon(gate.inside.subscribe().wait_for(|inside| *inside == 2)).await.unwrap();
    assert_eq!(statuses(&runs)[2], TaskStatus::TaskScheduled);
    gate.open.add_permits(1);
    soon(runs[2].running(0)).await;
    gate.open.add_permits(2);
    for run in &runs {
        soon(run.ended()).await;
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), 2);
    worker.stop().await;
}

#[tokio::test]
async fn the_limit_holds_over_all_hosts_together() {
    let double = Double::start(Options::default().hosts(3)).await.unwrap();
    let gate = Gate::new();
    let worker = Running::start(gate.worker(&double, json_task()).slots(1));
    for host in 0..3 {
        soon(double.until_parked(host, 1)).await;
    }
    let first = double.schedule(NewRun::json("wfrun-1", "{}").at(2));
    soon(first.running(0)).await;
    for host in 0..3 {
        soon(double.until_parked(host, 0)).await;
    }
    let rest = [0, 1, 2].map(|host| double.schedule(NewRun::json(format!("wfrun-at-{host}"), "{}").at(host)));
    assert_eq!(statuses(&rest), [TaskStatus::TaskScheduled; 3]);
    gate.open.add_permits(4);
    for run in &rest {
        soon(run.ended()).await;
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), 1);
    worker.stop().await;
}

/// Both were given out at once, and the one that waits here runs out of time before its turn comes.
#[tokio::test]
async fn a_task_that_waited_until_its_time_was_over_is_not_begun() {
    let double = start().await;
    let gate = Gate::new();
    let slots = Slots::new(1);
    let other = NewTaskDef::new("other").input("x", Type::JsonObj);
    let workers = [
        Running::start(gate.worker(&double, json_task()).share(&slots)),
        Running::start(gate.worker(&double, other).share(&slots)),
    ];
    soon(double.until_parked(0, 2)).await;
    let runs = [json(&double, "wfrun-1", "{}"), double.schedule(NewRun::json("wfrun-2", "{}").task("other"))];
    soon(gate.inside.subscribe().wait_for(|inside| *inside == 1)).await.unwrap();
    for run in &runs {
        soon(run.running(0)).await;
    }
    // Whichever it is, it is given up. The one that runs is not asked for.
    runs.iter().for_each(Run::time_out);
    // Time has to pass for it: it is asked about only when it has waited.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    gate.open.add_permits(1);
    soon(double.journal().count(1, |event| event.method == Method::GetTaskRun)).await;
    let next = json(&double, "wfrun-3", "{}");
    gate.open.add_permits(1);
    assert_eq!(soon(next.ended()).await.status(), TaskStatus::TaskSuccess);
    let calls = gate.calls.load(Ordering::SeqCst);
    assert_eq!(calls, 2, "the first and the last");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test]
async fn workers_for_two_task_defs_can_share_their_places() {
    let double = start().await;
    let gate = Gate::new();
    let slots = Slots::new(1);
    let other = NewTaskDef::new("other").input("x", Type::JsonObj);
    let workers = [
        Running::start(gate.worker(&double, json_task()).slots(8).share(&slots)),
        Running::start(gate.worker(&double, other).slots(8).share(&slots)),
    ];
    // One free place: each asks for one task.
    soon(double.until_parked(0, 2)).await;
    let first = json(&double, "wfrun-1", "{}");
    soon(first.running(0)).await;
    soon(double.until_parked(0, 0)).await;
    let second = double.schedule(NewRun::json("wfrun-2", "{}").task("other"));
    assert_eq!(statuses(std::slice::from_ref(&second)), [TaskStatus::TaskScheduled]);
    gate.open.add_permits(1);
    soon(first.ended()).await;
    soon(second.running(0)).await;
    gate.open.add_permits(1);
    soon(second.ended()).await;
    // Both were given out at once: one of them waits for its turn here.
    soon(double.until_parked(0, 2)).await;
    let both = [json(&double, "wfrun-3", "{}"), double.schedule(NewRun::json("wfrun-4", "{}").task("other"))];
    gate.open.add_permits(2);
    for run in &both {
        assert_eq!(soon(run.ended()).await.status(), TaskStatus::TaskSuccess);
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), 1);
    for worker in workers {
        worker.stop().await;
    }
}
