//! A task is handed to the worker and lost on its way, while the worker has its result, or will have it.

use std::time::Duration;

use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Backoff, NewRun};

use crate::rig::{all_heard, idle, journal};
use crate::stage::{Stage, ended, graph, last, log, output, start, until};
use crate::support::{PATIENCE, Running};

fn name(worker: &Running) -> &str {
    worker.first["worker_id"].as_str().unwrap()
}

/// The worker looks at the task right after this, if it has not ended.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Its next attempt comes when the test says so: however late that is, the task is not given up.
fn with_a_next(new: NewRun) -> NewRun {
    let long = Duration::from_secs(3600);
    let mut new = new.timeout(TIMEOUT).attempts(2);
    new.backoff = Some(Backoff { base: long, most: long, factor: 1.0 });
    new
}

#[tokio::test]
async fn the_next_attempt_of_what_renders_is_taken_up_although_it_never_came() {
    let stage = Stage::new().await;
    // A second slot, so that something is asked for in mid-render.
    let mut worker = stage.worker_with(&[], &[("LHW_NUM_WORKER_THREADS", "2")]).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(with_a_next(NewRun::json("order-1", graph(1, 100).to_string())));
    stage.rendering().await;
    run.taken_by(name(&worker));
    worker.program.wait_line("was lost on its way", PATIENCE).await.unwrap();
    // It was only slow: the same attempt, once more.
    until("the next to be asked for", async || run.deliver_again()).await;
    // Said for the first time when it was taken up.
    let again = |line: &&String| line.contains("delivered again while it is under way");
    until("it to come", async || worker.program.output().iter().filter(again).count() >= 2).await;
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    let statuses: Vec<TaskStatus> = task.attempts.iter().map(|attempt| attempt.status()).collect();
    assert_eq!(statuses, [TaskStatus::TaskTimeout, TaskStatus::TaskSuccess]);
    assert!(log(last(&task)).contains("attempt 1 was lost on its way"), "{}", log(last(&task)));
    all_heard(stage.dir.path()).await;
    assert_eq!((stage.sim.executions().await, run.reports().len()), (1, 1));
}

#[tokio::test]
async fn the_next_attempt_of_what_has_ended_is_answered_although_it_never_came() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(with_a_next(NewRun::json("order-1", graph(2, 100).to_string())));
    worker.program.wait_line("the render goes on for that", PATIENCE).await.unwrap();
    stage.sim.release().await;
    idle(stage.sim.url()).await;
    until("nothing to be under way", async || journal(stage.dir.path()).is_empty()).await;
    assert!(run.reports().is_empty(), "nobody waits for it");
    run.taken_by(name(&worker));
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 2, "{task:?}");
    all_heard(stage.dir.path()).await;
    assert_eq!((stage.sim.executions().await, run.reports().len()), (1, 1));
}

/// The process that was handed the next attempt is dead, and so is the stream in which it came.
#[tokio::test]
async fn the_next_attempt_that_was_lost_with_the_process_is_taken_up_by_the_next() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 100).to_string()));
    stage.rendering().await;
    worker.program.kill_9().unwrap();
    run.taken_by(name(&worker));
    drop(worker);
    let mut worker = stage.worker().await;
    worker.program.wait_line("was lost on its way", PATIENCE).await.unwrap();
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 2, "{task:?}");
    all_heard(stage.dir.path()).await;
    assert_eq!((stage.sim.executions().await, run.reports().len()), (1, 1));
}

/// What an earlier attempt has left at the server tells the people where it was.
#[tokio::test]
async fn an_attempt_elsewhere_is_told_where_it_was() {
    let stage = Stage::new().await;
    let mut first = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(4, 100).to_string()).attempts(2));
    until("a checkpoint", async || !run.checkpoints().is_empty()).await;
    first.program.kill_9().unwrap();
    let (there, sim) = (first.first["workers"][0].as_str().unwrap().to_owned(), Running::sim(1).await);
    let data = tempfile::tempdir().unwrap();
    let port = stage.double.port(0).to_string();
    let env = [
        ("LHC_API_HOST", "127.0.0.1"),
        ("LHC_API_PORT", port.as_str()),
        ("COMFYUI_BASE_URL", sim.url()),
        ("COMFYUI_OUTPUT_DIR", "/out"),
    ];
    let mut second = start(data.path(), &[], &env).await;
    sim.hold().await;
    run.time_out();
    second.program.wait_line("an earlier attempt was elsewhere", PATIENCE).await.unwrap();
    sim.release().await;
    let task = ended(&run).await;
    output(&task);
    let said = log(last(&task));
    assert!(said.contains(&format!("an earlier attempt was at {there} as prompt")), "{said}");
    assert_eq!(sim.executions().await, 1);
}
