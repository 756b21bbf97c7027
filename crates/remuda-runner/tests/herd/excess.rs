//! A ComfyUI that sends more than it may is put aside, with the reason said, and no task is lost by it.

use std::time::Duration;

use comfyui::{Client, Limits};
use comfyui_sim::Simulator;
use comfyui_sim::faults::Fault;
use remuda_core::{FailureClass, Health, Status};
use remuda_runner::{Herd, HerdOptions, WorkerConfig};

use super::rig::*;

/// Small bounds and short rests, so that the tests move little and do not wait long.
fn bounded(sim: &Simulator) -> impl Fn(&mut HerdOptions, &mut WorkerConfig) {
    let url = sim.url();
    move |options, worker| {
        options.quarantine.rest = Duration::from_secs(2);
        options.timing.unreachable = Duration::from_secs(5);
        worker.session.unreachable_after = Duration::from_secs(5);
        let limits = Limits { answer: 1 << 20, history: 2 << 20, file: 1 << 20, ..Limits::default() };
        if worker.spec.endpoint == url {
            worker.client = Client::builder(&url)
                .timeout(Duration::from_secs(60))
                .limits(limits)
                .build()
                .expect("an address");
        }
    }
}

async fn put_aside(herd: &Herd, sim: &Simulator, what: &str) {
    let id = worker_id(sim);
    until("it to be put aside", async || {
        let status = herd.status();
        let worker = status.workers.iter().find(|worker| worker.spec.id == id).expect("the worker");
        let reason = worker.report.reason.clone().unwrap_or_default();
        worker.report.health == Health::Quarantined && reason.contains(what) && reason.contains("larger than")
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_answers_without_end_is_put_aside_and_comes_back_when_it_is_well() {
    for (fault, what) in [
        (Fault::endless().on("GET /object_info"), "/object_info"),
        (Fault::gzip_bomb().on("GET /system_stats"), "/system_stats"),
        (Fault::huge_object_info(100_000), "/object_info"),
    ] {
        let (rig, sim) = (Rig::new().await, sim().await);
        let fault = sim.faults().add(fault);
        let herd = rig.herd_with(rig.owner, &[&sim], bounded(&sim));
        put_aside(&herd, &sim, what).await;
        let id = rig.submit(&picture()).await;
        sim.faults().remove(fault);
        let task = rig.completed(id).await;
        assert_eq!((task.attempt, task.losses), (1, 0), "it waited");
        herd.stop(BOUND).await;
        sim.shutdown().await;
    }
}

#[tokio::test]
async fn tasks_go_elsewhere_while_a_worker_is_put_aside() {
    let rig = Rig::new().await;
    let (bad, good) = (sim().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&bad, &good], bounded(&bad));
    rig.completed(rig.submit(&picture()).await).await;
    bad.faults().add(Fault::endless().on("GET /queue"));
    put_aside(&herd, &bad, "/queue").await;
    for _ in 0..3 {
        rig.completed(rig.submit(&picture()).await).await;
    }
    herd.stop(BOUND).await;
    bad.shutdown().await;
    good.shutdown().await;
}

#[tokio::test]
async fn a_result_that_is_too_large_is_a_clear_failure_and_the_worker_goes_on() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&sim], bounded(&sim));
    let fault = sim.faults().add(Fault::huge_history(3 << 20));
    let id = rig.submit(&picture()).await;
    let task = rig.end_of(id).await;
    let error = task.error.unwrap();
    assert_eq!((task.status, error.class, task.attempt), (Status::Failed, FailureClass::Delivery, 1));
    assert!(
        error.message.contains("/history/") && error.message.contains("workers.max_history"),
        "{}",
        error.message
    );
    sim.faults().remove(fault);

    let file = sim.faults().add(Fault::endless().on("GET /view"));
    let id = rig.submit(&picture()).await;
    let task = rig.end_of(id).await;
    let error = task.error.unwrap();
    assert_eq!((task.status, error.class, task.attempt), (Status::Failed, FailureClass::Delivery, 1));
    assert!(error.message.contains("tasks.max_output_size"), "{}", error.message);
    sim.faults().remove(file);
    rig.completed(rig.submit(&picture()).await).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn more_files_and_longer_reports_than_allowed_are_a_failure_that_names_the_setting() {
    for (files, bytes, setting) in [(0, 1 << 20, "graph.output_files"), (10, 10, "tasks.max_result_size")] {
        let (rig, sim) = (Rig::new().await, sim().await);
        let herd = rig.herd_with(rig.owner, &[&sim], |options, _| {
            options.results.files = files;
            options.results.bytes = bytes;
        });
        let task = rig.end_of(rig.submit(&picture()).await).await;
        let error = task.error.unwrap();
        assert_eq!((error.class, task.attempt), (FailureClass::Delivery, 1));
        assert!(error.message.contains(setting), "{}", error.message);
        herd.stop(BOUND).await;
        sim.shutdown().await;
    }
}
