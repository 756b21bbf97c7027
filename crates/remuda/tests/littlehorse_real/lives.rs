//! Killed, restarted, out of time, two at once: nothing is lost, nothing is rendered twice.

use crate::stage::{Stage, graph, output, running};
use crate::support::{PATIENCE, Running};
use crate::{shared, started};
use remuda_testbed::littlehorse::{RunStatus, TaskStatus, Workflow};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

#[tokio::test]
async fn a_worker_that_was_killed_goes_on_where_it_was() {
    let stage = Stage::new(shared().await, "killed").await;
    let mut worker = stage.worker().await;
    stage.run("survives", graph(1, 4_000)).await;
    stage.renders().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let _worker = stage.worker().await;
    let run = stage.ended("survives").await;
    output(&run);
    assert_eq!(run.attempts.len(), 1, "{run:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

/// The attempt of the dead one times out, and the next one is given to somebody else with the same ComfyUI.
#[tokio::test]
async fn what_a_dead_worker_has_begun_is_adopted_by_another() {
    let mut stage = Stage::new(shared().await, "orphan").await;
    stage.workflow = stage.workflow.timeout(Duration::from_secs(5)).retries(3);
    let mut worker = stage.worker().await;
    stage.run("inherited", graph(2, 7_000)).await;
    stage.renders().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let elsewhere = TempDir::new().unwrap();
    let _heir = stage.worker_with(elsewhere.path(), &stage.sim, &[]).await;
    let run = stage.ended("inherited").await;
    output(&run);
    assert_eq!(run.attempts[0].status, TaskStatus::TaskTimeout, "{run:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn an_attempt_that_was_too_short_is_finished_by_the_next() {
    let mut stage = Stage::new(shared().await, "short").await;
    stage.workflow = stage.workflow.timeout(Duration::from_secs(3)).retries(9);
    let _worker = stage.worker().await;
    stage.run("longer", graph(3, 8_000)).await;
    let run = stage.ended("longer").await;
    output(&run);
    assert!(run.attempts.len() > 1, "{run:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_stopped() {
    let mut stage = Stage::new(shared().await, "given-up").await;
    let patient = stage.workflow.clone();
    stage.workflow =
        Workflow { name: "impatient".to_owned(), ..patient.clone().timeout(Duration::from_secs(3)) };
    let _worker = stage.worker().await;
    stage.run("too-long", graph(4, 60_000)).await;
    stage.renders().await;
    let run = stage.ended("too-long").await;
    assert_eq!((run.status, run.task), (RunStatus::Error, TaskStatus::TaskTimeout), "{run:?}");
    stage.is_idle().await;

    stage.workflow = patient.timeout(Duration::from_secs(600));
    stage.run("deleted", graph(5, 60_000)).await;
    stage.renders().await;
    stage.workflows.delete("deleted").await.unwrap();
    stage.is_idle().await;

    // There is room for others again.
    stage.run("next", graph(6, 100)).await;
    output(&stage.ended("next").await);
}

#[tokio::test]
async fn a_server_that_is_away_at_the_end_hears_of_it_when_it_is_back() {
    let mut server = started().await;
    let stage = Stage::new(&server, "away").await;
    let _worker = stage.worker().await;
    for (id, seed) in [("stopped", 7), ("killed", 8)] {
        stage.run(id, graph(seed, 1_500)).await;
        stage.renders().await;
        if id == "stopped" {
            server.stop().await.unwrap()
        } else {
            server.kill().await.unwrap()
        }
        stage.is_idle().await;
        server.start_again().await.unwrap();
        let run = stage.ended(id).await;
        output(&run);
        assert_eq!(run.attempts.len(), 1, "{run:?}");
    }
    assert_eq!(stage.sim.executions().await, 2);
}

#[tokio::test]
async fn two_workers_share_a_hundred_runs() {
    const RUNS: u64 = 100;
    let stage = Stage::new(shared().await, "hundred").await;
    let (other, data) = (Running::sim(1).await, TempDir::new().unwrap());
    let _first = stage.worker().await;
    let _second = stage.worker_with(data.path(), &other, &[]).await;
    for n in 0..RUNS {
        stage.run(&format!("run-{n}"), graph(1_000 + n, 20)).await;
    }
    let mut paths = Vec::new();
    for n in 0..RUNS {
        let run = stage.ended(&format!("run-{n}")).await;
        assert_eq!(run.attempts.len(), 1, "{run:?}");
        paths.push(output(&run)["outputs"][0].as_str().unwrap().to_owned());
    }
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len() as u64, RUNS, "a picture of its own for each");
    let rendered = [stage.sim.executions().await, other.executions().await];
    assert_eq!(rendered.iter().sum::<u64>(), RUNS);
    assert!(rendered.iter().all(|rendered| *rendered > 0), "one of two had nothing to do: {rendered:?}");
    for (sim, data) in [(&stage.sim, stage.dir.path()), (&other, data.path())] {
        assert_eq!(running(sim).await, 0);
        assert_eq!(kept(data).await, 0, "what was heard is not kept");
    }
}

/// How many jobs a worker still keeps on disk, once it has had the time to remove them.
async fn kept(data: &Path) -> usize {
    let journal = data.join("littlehorse/journal");
    let entries = || std::fs::read_dir(&journal).expect("a journal").count();
    let gone = remuda_testbed::wait::until("an empty journal", PATIENCE, async || match entries() {
        0 => Ok(0),
        some => Err(some),
    });
    gone.await.unwrap_or_else(|_| entries())
}
