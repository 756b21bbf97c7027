//! ComfyUI goes bad: each way has its own end, and the task goes on.

use std::time::Duration;

use comfyui_sim::Profile;
use comfyui_sim::faults::Fault;
use remuda_core::{FailureClass, Health, Status};

use super::rig::*;

#[tokio::test]
async fn a_lost_answer_to_the_submission_is_no_second_render() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    for fault in [Fault::lose_answer(), Fault::error_after(500), Fault::garbage()] {
        sim.faults().add(fault.on("POST /prompt").times(1));
        let id = rig.submit(&picture()).await;
        let task = rig.completed(id).await;
        assert_eq!((task.attempt, task.losses), (1, 0), "{:?}", rig.store.attempts(id, 1000).await);
    }
    assert_eq!(sim.stats().executions_total, 3);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

/// Without any answer it may come at any time: it is looked for, given up as a loss, and never sent twice.
#[tokio::test]
async fn a_submission_without_an_answer_is_a_loss_and_no_second_render() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&sim], |options, worker| {
        options.timing.unreachable = Duration::from_secs(3);
        let client = comfyui::Client::builder(&sim.url()).timeout(Duration::from_secs(10));
        worker.client = client.build().expect("an address");
    });
    let slow = sim.faults().add(Fault::slow(2 * BOUND).on("POST /prompt").times(1));
    let task = rig.completed(rig.submit(&picture()).await).await;
    assert_eq!((task.attempt, task.losses, sim.faults().hits(slow)), (2, 1, 1));
    assert_eq!(sim.stats().executions_total, 1);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_takes_no_prompts_rests_and_its_task_ends_with_what_it_answered() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    // A proxy that lets nobody write, for instance: all questions are answered.
    let closed = sim.faults().add(Fault::error(403).on("POST /prompt"));
    let id = rig.submit(&picture()).await;
    until("it to rest", async || {
        let report = &herd.status().workers[0].report;
        report.health == Health::Quarantined && report.reason.as_ref().is_some_and(|why| why.contains("403"))
    })
    .await;
    let task = rig.end_of(id).await;
    let error = task.error.unwrap();
    assert_eq!((task.status, error.class), (Status::Failed, FailureClass::Connection));
    assert!(error.message.contains("403"), "{}", error.message);
    sim.faults().remove(closed);
    rig.completed(rig.submit(&picture()).await).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

/// ComfyUI repeats what it does not like: however long that is, it is the task that is refused.
#[tokio::test]
async fn a_refusal_too_long_to_be_read_is_the_tasks_fault_and_no_loss() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    for values in [100_000, 600_000] {
        let many: Vec<_> = (0..values).map(|_| serde_json::json!({"": 0})).collect();
        let refused = serde_json::json!({
            "1": {"class_type": "EmptyImage",
                "inputs": {"width": {"k": many}, "height": 64, "batch_size": 1, "color": 0}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
        });
        let task = rig.end_of(rig.submit(&refused).await).await;
        let error = task.error.unwrap();
        assert_eq!((error.class, task.losses, task.attempt), (FailureClass::Validation, 0, 1), "{error}");
        let said = error.message.len() + error.details.map_or(0, |details| details.get().len());
        assert!(said < 300 << 10, "{said} bytes of {values} values are kept");
    }
    assert_ne!(herd.status().workers[0].report.health, Health::Quarantined);
    rig.completed(rig.submit(&picture()).await).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_mute_websocket_delays_and_loses_nothing() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&sim], |_, worker| {
        worker.session.greeting = Duration::from_secs(1);
    });
    sim.faults().add(Fault::mute_websocket());
    let ids = [rig.submit(&picture()).await, rig.submit(&long(0.5)).await, rig.submit(&picture()).await];
    for id in ids {
        rig.completed(id).await;
    }
    assert_eq!(sim.stats().executions_total, 3);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn the_tasks_of_a_restarted_comfyui_move_on() {
    let (rig, bad, good) = (Rig::new().await, sim().await, sim().await);
    let herd = rig.herd(&[&bad]);
    // It ends with the process in which it hangs.
    let _held = hold(&bad);
    let ids = [rig.submit(&picture()).await, rig.submit(&long(0.3)).await];
    rig.rendering(&bad, 1).await;
    herd.add(worker(&good));
    until("the other to be driven", async || herd.status().workers.iter().all(|worker| worker.driven)).await;
    bad.restart().await;
    for id in ids {
        rig.completed(id).await;
    }
    let first = rig.task(ids[0]).await;
    assert_eq!((first.losses, first.failures), (1, 0));
    herd.stop(BOUND).await;
    bad.shutdown().await;
    good.shutdown().await;
}

#[tokio::test]
async fn a_crashed_comfyui_gets_nothing_and_its_task_goes_elsewhere() {
    let (rig, bad, good) = (Rig::new().await, sim().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&bad], |options, worker| {
        options.timing.unreachable = Duration::from_secs(3);
        worker.session.unreachable_after = Duration::from_secs(3);
    });
    let _held = hold(&bad);
    let id = rig.submit(&picture()).await;
    rig.rendering(&bad, 1).await;
    bad.crash().await;
    until("it to be known as unreachable", async || {
        herd.status().workers[0].report.health == Health::Unreachable
    })
    .await;
    herd.add(worker(&good));
    let task = rig.completed(id).await;
    assert_eq!((task.losses, task.worker), (1, Some(worker_id(&good))));
    let attempts = rig.store.attempts(id, 1000).await.unwrap();
    assert_eq!(attempts[0].failure.as_ref().unwrap().class, FailureClass::Connection);
    bad.revive().await;
    until("it to be well again", async || {
        herd.status().workers.iter().all(|worker| worker.report.health == Health::Healthy)
    })
    .await;
    herd.stop(BOUND).await;
    bad.shutdown().await;
    good.shutdown().await;
}

#[tokio::test]
async fn a_dead_worker_thread_is_noticed_and_a_restart_heals_it() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&sim], |_, worker| {
        worker.session.stalled_after = Duration::from_secs(8);
    });
    sim.faults().add(Fault::zombie_worker());
    let ids = [rig.submit(&picture()).await, rig.submit(&picture()).await];
    until("it to be known as dead", async || herd.status().workers[0].report.health == Health::Zombie).await;
    let first = rig.until(ids[0], "to be lost", |task| task.losses > 0).await;
    assert_eq!((first.status, first.losses), (Status::Pending, 1), "nobody else could take it");
    sim.restart().await;
    for id in ids {
        rig.completed(id).await;
    }
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn lack_of_memory_frees_it_and_is_tried_once_more() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    sim.faults().add(Fault::out_of_memory().times(1));
    let id = rig.submit(&picture()).await;
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, task.failures), (2, 1));
    let attempts = rig.store.attempts(id, 1000).await.unwrap();
    assert_eq!(attempts[0].failure.as_ref().unwrap().class, FailureClass::OutOfMemory);
    sim.faults().add(Fault::out_of_memory());
    let id = rig.submit(&picture()).await;
    let task = rig.end_of(id).await;
    assert_eq!((task.status, task.failures), (Status::Failed, 2));
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn an_unhappy_worker_rests() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    sim.faults().add(Fault::crash_in_node().times(3));
    let id = rig.submit(&picture()).await;
    until("it to rest", async || {
        sim.revive().await;
        herd.status().workers[0].report.health == Health::Quarantined
    })
    .await;
    let task = rig.completed(id).await;
    assert_eq!(task.losses, 3);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn an_old_comfyui_that_chooses_its_own_ids_is_driven_and_adopted() {
    let rig = Rig::new().await;
    let config = comfyui_sim::SimConfig { profile: Profile::V0_3_30, ..Default::default() };
    let sim = comfyui_sim::Simulator::start(config).await.unwrap();
    let killed = rig.herd(&[&sim]);
    let id = rig.submit(&long(1.5)).await;
    rig.rendering(&sim, 1).await;
    drop(killed);
    let herd = rig.herd(&[&sim]);
    rig.completed(id).await;
    sim.faults().add(Fault::lose_answer().on("POST /prompt").times(1));
    let id = rig.submit(&picture()).await;
    rig.completed(id).await;
    assert_eq!(sim.stats().executions_total, 2);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}
