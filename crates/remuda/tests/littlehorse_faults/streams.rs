//! Streams break, hosts are dealt anew, tasks are delivered twice.

use littlehorse_double::{Double, NewRun, Options, What};

use crate::rig::all_heard;
use crate::stage::{Stage, ended, graph, output, until};
use crate::support::PATIENCE;

/// The ways in which streams break.
#[derive(Debug, Clone, Copy)]
enum Breaks {
    Cut,
    Goaway,
    Reset,
}

fn break_streams(double: &Double, how: Breaks) {
    match how {
        Breaks::Cut => double.cut(0),
        Breaks::Goaway => double.goaway(0),
        Breaks::Reset => double.reset_streams(0),
    }
}

/// How often a task was asked for.
fn asked(stage: &Stage) -> usize {
    stage.double.journal().events().iter().filter(|event| matches!(event.what, What::Asked(_))).count()
}

#[tokio::test]
async fn streams_that_break_lose_nothing() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let mut seed = 0;
    for how in [Breaks::Cut, Breaks::Goaway, Breaks::Reset] {
        // While it waits for a task …
        tokio::time::timeout(PATIENCE, stage.double.until_parked(0, 1)).await.unwrap();
        let before = asked(&stage);
        break_streams(&stage.double, how);
        // A task that is on its way in a stream that breaks is lost until its timeout. After GOAWAY a stream goes on.
        let anew = || matches!(how, Breaks::Goaway) || asked(&stage) > before;
        until("a new stream", async || anew()).await;
        let new = |what: &str, seed, millis| {
            NewRun::json(format!("{what}-{how:?}").to_lowercase(), graph(seed, millis).to_string())
        };
        stage.sim.hold().await;
        let run = stage.double.schedule(new("waits", seed, 100));
        // … and while it renders.
        stage.rendering().await;
        break_streams(&stage.double, how);
        stage.sim.release().await;
        let task = ended(&run).await;
        output(&task);
        assert_eq!(task.attempts.len(), 1, "{how:?}: {task:?}");
        let run = stage.double.schedule(new("next", seed + 1, 50));
        output(&ended(&run).await);
        seed += 2;
    }
    assert_eq!(stage.sim.executions().await, seed);
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_task_that_is_delivered_twice_is_rendered_once() {
    let stage = Stage::new().await;
    // A second slot, so that something is asked for in mid-render.
    let _worker = stage.worker_with(&[], &[("LHW_NUM_WORKER_THREADS", "2")]).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 100).to_string()));
    stage.rendering().await;
    until("the next to be asked for", async || run.deliver_again()).await;
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    // Once more after its end, when the report was answered: before that, it would be the same report.
    all_heard(stage.dir.path()).await;
    until("the next to be asked for", async || run.deliver_again()).await;
    let reports = tokio::time::timeout(PATIENCE, run.reported(2)).await.unwrap();
    assert_eq!(reports.iter().filter(|report| report.heard).count(), 1);
    assert_eq!(reports[0].report.result, reports[1].report.result, "and both say the same");
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn tasks_follow_when_hosts_are_dealt_anew() {
    let stage = Stage::with(Options::default().hosts(3)).await;
    stage.double.assign("mover", Some(vec![0, 1]));
    let _worker = stage.worker_with(&[], &[("LHW_TASK_WORKER_ID", "mover")]).await;
    tokio::time::timeout(PATIENCE, stage.double.until_parked(1, 1)).await.unwrap();
    stage.sim.hold().await;
    let first = stage.double.schedule(NewRun::json("order-1", graph(2, 100).to_string()).at(1));
    stage.rendering().await;
    // In mid-render the host that delivered it goes to somebody else; a broken stream makes the worker ask for its hosts.
    stage.double.assign("mover", Some(vec![2]));
    stage.double.set_healthy(Some(false));
    stage.double.reset_streams(0);
    stage.double.reset_streams(1);
    stage.sim.release().await;
    output(&ended(&first).await);
    let next = stage.double.schedule(NewRun::json("order-2", graph(3, 50).to_string()).at(2));
    output(&ended(&next).await);
    stage.double.set_healthy(None);
    tokio::time::timeout(PATIENCE, stage.double.until_parked(2, 1)).await.unwrap();
    until("nothing to be asked of what is not ours any more", async || {
        (stage.double.parked(0), stage.double.parked(1)) == (0, 0)
    })
    .await;
    assert_eq!(stage.sim.executions().await, 2);
    all_heard(stage.dir.path()).await;
}
