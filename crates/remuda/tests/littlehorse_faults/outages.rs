//! The server is away, silent, or refuses for a while.

use std::time::{Duration, Instant};

use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Fault, Method, NewRun, Options, no_leader, quota};
use serde_json::json;

use crate::rig::{all_heard, begin, calls, fault, idle, journal};
use crate::stage::{Stage, ended, graph, output, text_run, until};
use crate::support::PATIENCE;

/// How long the server is away; `REMUDA_OUTAGE_S=300` for the five minutes that are promised.
fn outage() -> Duration {
    let seconds = std::env::var("REMUDA_OUTAGE_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

#[tokio::test]
async fn a_server_away_around_the_end_of_a_render_hears_of_it_once_it_is_back() {
    let stage = Stage::new().await;
    // The result is a large one: that a report is not heard for long is no reason to suspect its size.
    let folder = format!("/{}", "x".repeat(2000));
    let _worker = stage.worker_with(&[], &[("COMFYUI_OUTPUT_DIR", folder.as_str())]).await;
    let patient = outage() * 2 + PATIENCE;
    let new = |id: &str, seed| {
        let mut graph = graph(seed, 100);
        graph["3"] = json!({"class_type": "EmptyImage", "inputs":
            {"width": 8, "height": 8, "batch_size": 100, "color": seed}});
        graph["4"] =
            json!({"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "b"}});
        NewRun::json(id, graph.to_string()).timeout(patient).attempts(3)
    };
    stage.sim.hold().await;
    let run = stage.double.schedule(new("order-1", 1));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    let next = stage.double.schedule(new("order-2", 2));
    idle(stage.sim.url()).await;
    tokio::time::sleep(outage()).await;
    assert!(run.reports().is_empty());
    stage.double.up(0).unwrap();
    let back = Instant::now();
    let task = ended(&run).await;
    println!("away for {:?}, heard {:?} after the return", outage(), back.elapsed());
    assert_eq!(output(&task)["outputs"].as_array().unwrap().len(), 101);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(run.reports().len(), 1, "heard once");
    output(&ended(&next).await);
    assert_eq!(stage.sim.executions().await, 2);
    all_heard(stage.dir.path()).await;
}

/// Worker and ComfyUI are restarted while the server is away: only the journal knows the result.
#[tokio::test]
async fn a_result_survives_the_restart_of_everything_but_the_disk() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 100).to_string()).attempts(3));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    worker.program.wait_line("it is kept and sent again", PATIENCE).await.unwrap();
    worker.program.kill_9().unwrap();
    drop(worker);
    fault(stage.sim.url(), json!({"kind": "restart", "down_ms": 200})).await;
    // One that is killed while it waits for the server has changed nothing.
    let mut second = begin(&stage);
    second.wait_line("cannot be reached yet", PATIENCE).await.unwrap();
    second.kill_9().unwrap();
    drop(second);
    let mut third = begin(&stage);
    third.wait_line("cannot be reached yet", PATIENCE).await.unwrap();
    stage.double.up(0).unwrap();
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(stage.dir.path()).await;
}

/// A task that cannot be begun is reported like any other: the journal keeps that until it is heard.
#[tokio::test]
async fn a_refusal_survives_the_restart_of_the_worker() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.double.inject(Method::ReportTask, Fault::Refuse(no_leader()), 1000);
    let run = stage.double.schedule(text_run("order-1", "no graph").attempts(3));
    until("some tries", async || calls(&stage, Method::ReportTask).len() >= 5).await;
    let warnings =
        || worker.program.output().iter().filter(|line| line.contains("kept and sent again")).count();
    until("warnings after the first, the second and the fourth", async || warnings() >= 3).await;
    assert_eq!(warnings(), 3, "{:?}", worker.program.output());
    assert_eq!(journal(stage.dir.path()).len(), 1);
    worker.program.kill_9().unwrap();
    drop(worker);
    stage.double.mend();
    let _worker = stage.worker().await;
    let task = ended(&run).await;
    assert_eq!(task.status(), TaskStatus::TaskInputVarSubError, "{task:?}");
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    all_heard(stage.dir.path()).await;
    assert_eq!(stage.sim.executions().await, 0);
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_while_the_server_is_away_stops_and_the_next_one_reports() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(9, 100).to_string()));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    worker.program.term().unwrap();
    stage.sim.release().await;
    let exit = worker.program.wait_exit(PATIENCE).await.unwrap();
    assert!(exit.success(), "{exit}: {:?}", worker.program.output());
    let said = worker.program.output().join("\n");
    assert!(said.contains("some reports did not arrive"), "{said}");
    drop(worker);
    stage.double.up(0).unwrap();
    let _worker = stage.worker().await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(stage.dir.path()).await;
}

/// A report waits for the server, not for ComfyUI.
#[tokio::test]
async fn a_result_is_reported_after_a_restart_although_comfyui_is_away() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(4, 100).to_string()));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    worker.program.wait_line("it is kept and sent again", PATIENCE).await.unwrap();
    worker.program.kill_9().unwrap();
    drop(worker);
    let registered = calls(&stage, Method::RegisterTaskWorker).len();
    stage.double.up(0).unwrap();
    fault(stage.sim.url(), json!({"kind": "restart", "down_ms": 3_600_000})).await;
    let mut worker = begin(&stage);
    worker.wait_line("ComfyUI does not answer yet", PATIENCE).await.unwrap();
    output(&ended(&run).await);
    all_heard(stage.dir.path()).await;
    // Nothing is asked for that nobody could render.
    assert_eq!(calls(&stage, Method::RegisterTaskWorker).len(), registered, "by the first process");
}

#[tokio::test]
async fn a_host_that_is_gone_for_good_is_not_needed_for_the_report() {
    let stage = Stage::with(Options::default().hosts(2)).await;
    let _worker = stage.worker().await;
    tokio::time::timeout(PATIENCE, stage.double.until_parked(1, 1)).await.unwrap();
    // The one that delivers is the one of the settings.
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(5, 100).to_string()).at(0));
    stage.rendering().await;
    stage.double.down(0).await.unwrap();
    stage.sim.release().await;
    output(&ended(&run).await);
    let next = stage.double.schedule(NewRun::json("order-2", graph(6, 50).to_string()).at(1));
    output(&ended(&next).await);
    assert_eq!(stage.sim.executions().await, 2);
}

#[tokio::test]
async fn a_report_that_is_never_answered_is_made_again_after_its_deadline() {
    let silent = async |what: Fault, seed, reports| {
        let stage = Stage::new().await;
        let _worker = stage.worker().await;
        stage.double.inject(Method::ReportTask, what, 1);
        let run = stage.double.schedule(NewRun::json("order-1", graph(seed, 50).to_string()).attempts(3));
        // The slot is not held by a report.
        let next = stage.double.schedule(NewRun::json("order-2", graph(seed + 1, 50).to_string()));
        output(&ended(&next).await);
        let task = ended(&run).await;
        output(&task);
        assert_eq!(task.attempts.len(), 1, "{task:?}");
        all_heard(stage.dir.path()).await;
        assert_eq!(run.reports().len(), reports);
        assert_eq!(run.reports().iter().filter(|report| report.heard).count(), 1);
        assert_eq!(stage.sim.executions().await, 2);
    };
    // One that was written down, and whose answer is missing, is asked for and not sent again.
    tokio::join!(silent(Fault::Hang, 10, 1), silent(Fault::DoneThenHang, 20, 1));
}

#[tokio::test]
async fn a_quota_is_waited_for_as_long_as_the_server_says() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let pause = Duration::from_millis(1500);
    stage.double.inject(Method::ReportTask, Fault::Refuse(quota(pause)), 2);
    let run = stage.double.schedule(NewRun::json("order-1", graph(7, 50).to_string()));
    output(&ended(&run).await);
    let times = calls(&stage, Method::ReportTask);
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= pause.as_millis()), "{times:?}");
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_server_that_is_starting_is_waited_for() {
    let stage = Stage::new().await;
    stage.double.set_ready(0, false);
    let mut worker = begin(&stage);
    worker.wait_line("cannot be reached yet", PATIENCE).await.unwrap();
    stage.double.set_ready(0, true);
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(8, 100).to_string()));
    stage.rendering().await;
    // It is restarted in mid-render, and answers reports before anything else.
    stage.double.down(0).await.unwrap();
    stage.double.set_ready(0, false);
    stage.double.up(0).unwrap();
    stage.sim.release().await;
    idle(stage.sim.url()).await;
    stage.double.set_ready(0, true);
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}
