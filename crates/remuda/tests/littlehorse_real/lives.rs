//! Killed, restarted, out of time, two at once: nothing is lost, nothing is rendered twice.

use crate::stage::{Stage, graph, output, running};
use crate::support::{PATIENCE, Running};
use crate::{shared, started};
use remuda_testbed::littlehorse::{RunStatus, TaskStatus, Workflow};
use remuda_testbed::wait;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

#[tokio::test]
async fn a_worker_that_was_killed_goes_on_where_it_was() {
    let stage = Stage::new(shared().await, "killed").await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    stage.run("survives", graph(1, 500)).await;
    stage.renders().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let _worker = stage.worker().await;
    stage.sim.release().await;
    let run = stage.ended("survives").await;
    output(&run);
    assert_eq!(run.attempts.len(), 1, "{run:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

/// The attempt of the dead one times out, and the next one is given to somebody else with the same ComfyUI.
#[tokio::test]
async fn what_a_dead_worker_has_begun_is_adopted_by_another() {
    let mut stage = Stage::new(shared().await, "orphan").await;
    stage.workflow = stage.workflow.timeout(Duration::from_secs(5)).retries(30);
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    stage.run("inherited", graph(2, 7_000)).await;
    stage.renders().await;
    worker.program.kill_9().unwrap();
    drop(worker);
    let elsewhere = TempDir::new().unwrap();
    let _heir = stage.worker_with(elsewhere.path(), &stage.sim, &[]).await;
    stage.sim.release().await;
    let run = stage.ended("inherited").await;
    output(&run);
    assert_eq!(run.attempts[0].status, TaskStatus::TaskTimeout, "{run:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn an_attempt_that_was_too_short_is_finished_by_the_next() {
    let mut stage = Stage::new(shared().await, "short").await;
    stage.workflow = stage.workflow.timeout(Duration::from_secs(3)).retries(50);
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
        Workflow { name: "impatient".to_owned(), ..patient.clone().timeout(Duration::from_secs(10)) };
    let _worker = stage.worker().await;
    stage.run("too-long", graph(4, 600_000)).await;
    stage.renders().await;
    let run = stage.ended("too-long").await;
    assert_eq!((run.status, run.task), (RunStatus::Error, TaskStatus::TaskTimeout), "{run:?}");
    stage.is_idle().await;

    stage.workflow = patient.timeout(Duration::from_secs(600));
    stage.run("deleted", graph(5, 600_000)).await;
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
        stage.sim.hold().await;
        stage.run(id, graph(seed, 100)).await;
        stage.renders().await;
        if id == "stopped" {
            server.stop().await.unwrap()
        } else {
            server.kill().await.unwrap()
        }
        stage.sim.release().await;
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
    let stage = Stage::new(shared().await, "hundred").await;
    let pair = Pair::start(&stage).await;
    for n in 0..RUNS {
        stage.run(&format!("run-{n}"), graph(1_000 + n, 20)).await;
    }
    for attempts in pair.all_ended(&stage).await {
        assert_eq!(attempts, 1);
    }
}

/// What was on its way to a worker when the server died is given out again when its time is over.
#[tokio::test]
async fn a_server_that_is_killed_among_a_hundred_runs_loses_none() {
    let mut server = started().await;
    let mut stage = Stage::new(&server, "burst").await;
    stage.workflow = stage.workflow.timeout(Duration::from_secs(30)).retries(5);
    let pair = Pair::start(&stage).await;
    for n in 0..RUNS {
        stage.run(&format!("run-{n}"), graph(2_000 + n, 50)).await;
    }
    let begun = async || (stage.sim.executions().await >= RUNS / 10).then_some(());
    wait::until("a tenth of them", PATIENCE, begun).await.unwrap();
    server.kill().await.unwrap();
    server.start_again().await.unwrap();
    pair.all_ended(&stage).await;
}

const RUNS: u64 = 100;

/// A second worker beside the first, each with a ComfyUI and a journal of its own.
struct Pair {
    other: Running,
    data: TempDir,
    _workers: [Running; 2],
}

impl Pair {
    async fn start(stage: &Stage) -> Pair {
        let (other, data) = (Running::sim(1).await, TempDir::new().unwrap());
        let workers = [stage.worker().await, stage.worker_with(data.path(), &other, &[]).await];
        Pair { other, data, _workers: workers }
    }

    /// All went well, each was rendered once and has a picture of its own, and nothing is left behind. Returns how many
    /// attempts each took.
    async fn all_ended(&self, stage: &Stage) -> Vec<usize> {
        let (mut paths, mut attempts) = (BTreeSet::new(), Vec::new());
        for n in 0..RUNS {
            let run = stage.ended(&format!("run-{n}")).await;
            paths.insert(output(&run)["outputs"][0].as_str().unwrap().to_owned());
            attempts.push(run.attempts.len());
        }
        assert_eq!(paths.len() as u64, RUNS, "a picture of its own for each");
        let rendered = [stage.sim.executions().await, self.other.executions().await];
        assert_eq!(rendered.iter().sum::<u64>(), RUNS, "each once: {rendered:?}, attempts {attempts:?}");
        assert!(rendered.iter().all(|rendered| *rendered > 0), "one of two had nothing to do: {rendered:?}");
        for (sim, data) in [(&stage.sim, stage.dir.path()), (&self.other, self.data.path())] {
            assert_eq!(running(sim).await, 0);
            nothing_kept(data).await;
        }
        attempts
    }
}

/// Waits until a worker keeps no job on disk: what was heard is removed.
async fn nothing_kept(data: &Path) {
    let journal = data.join("littlehorse/journal");
    let empty = wait::until("an empty journal", PATIENCE, async || {
        match std::fs::read_dir(&journal).unwrap().count() {
            0 => Ok(()),
            some => Err(format!("{some} jobs")),
        }
    });
    empty.await.unwrap();
}
