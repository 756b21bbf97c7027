//! A process dies, or is frozen, in the middle of a render.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{EventKind, OwnerId, Status};
use remuda_store::ManualClock;

use super::rig::*;

#[tokio::test]
async fn a_killed_process_finds_its_render_again() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let held = hold(&sim);
    let id = rig.submit(&long(4.0)).await;
    rig.rendering(&sim, 1).await;
    drop(killed);
    rig.hub.close(id);
    let (_, mut frames) = rig.hub.subscribe(id);
    let herd = rig.herd(&[&sim]);
    until("it to be adopted", async || herd.status().counters.adoptions == 1).await;
    held.release();
    let frame = tokio::time::timeout(BOUND, frames.recv()).await.expect("in time");
    assert!(frame.is_some(), "its progress is seen again");
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, sim.stats().executions_total), (1, 1));
    assert_eq!(task.result.unwrap().files.len(), 1);
    assert_eq!(herd.status().counters.adoptions, 1);
    let events = rig.store.events(id, 0, 100).await.unwrap();
    assert!(events.iter().any(|event| event.kind == EventKind::Adopted));
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_render_that_ended_meanwhile_is_collected() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let held = hold(&sim);
    let ids = [rig.submit(&picture()).await, rig.submit(&picture()).await];
    rig.rendering(&sim, 1).await;
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("the second to wait there", async || !client.queue().await.unwrap().pending.is_empty()).await;
    drop(killed);
    held.release();
    until("ComfyUI to end both", async || client.queue_remaining().await.unwrap() == 0).await;
    let herd = rig.herd(&[&sim]);
    for id in ids {
        let task = rig.completed(id).await;
        assert_eq!(task.attempt, 1);
    }
    assert_eq!(sim.stats().executions_total, 2);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

/// Both do not fit into one answer to an adoption.
#[tokio::test]
async fn large_tasks_of_a_killed_process_are_all_found_again() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let held = hold(&sim);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut graph = picture();
        graph["3"]["_meta"] = serde_json::json!({"title": "t".repeat(5 << 20)});
        ids.push(rig.submit(&graph).await);
    }
    rig.rendering(&sim, 1).await;
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("the second to wait there", async || !client.queue().await.unwrap().pending.is_empty()).await;
    drop(killed);
    // It does not look at the queue again: what it does not find now, it does not find.
    let herd = rig.herd_with(rig.owner, &[&sim], |options, _| options.timing.sweep = 2 * BOUND);
    until("both to be adopted", async || herd.status().counters.adoptions == 2).await;
    held.release();
    for id in ids {
        assert_eq!(rig.completed(id).await.attempt, 1);
    }
    assert_eq!((sim.stats().executions_total, herd.status().counters.adoptions), (2, 2));
    // It goes on with other tasks, which it does not before everything is found.
    let next = rig.submit(&picture()).await;
    rig.completed(next).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_was_lost_with_a_restarted_comfyui_is_rendered_again() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let id = rig.submit(&endless()).await;
    rig.rendering(&sim, 1).await;
    until("the store to know that it renders", async || {
        rig.store.lease(id).await.unwrap().is_some_and(|lease| lease.rendering_since.is_some())
    })
    .await;
    drop(killed);
    sim.restart().await;
    let herd = rig.herd(&[&sim]);
    let task = rig.until(id, "to be tried again", |task| task.attempt == 2).await;
    assert_eq!((task.losses, task.failures), (1, 0));
    rig.store.cancel(id).await.unwrap();
    assert_eq!(rig.end_of(id).await.status, Status::Cancelled);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_task_of_a_killed_process_is_stopped_by_its_successor() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let id = rig.submit(&endless()).await;
    rig.rendering(&sim, 1).await;
    drop(killed);
    rig.store.cancel(id).await.unwrap();
    let herd = rig.herd(&[&sim]);
    assert_eq!(rig.end_of(id).await.status, Status::Cancelled);
    let client = comfyui::Client::new(&sim.url()).unwrap();
    assert_eq!(client.queue_remaining().await.unwrap(), 0);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_stays_away_does_not_keep_its_tasks() {
    let (rig, gone, there) = (Rig::new().await, sim().await, sim().await);
    let killed = rig.herd(&[&gone]);
    let _held = hold(&gone);
    let id = rig.submit(&picture()).await;
    rig.rendering(&gone, 1).await;
    drop(killed);
    gone.crash().await;
    let herd = rig.herd_with(rig.owner, &[&gone, &there], |options, _| {
        options.timing.unreachable = Duration::from_secs(3);
    });
    let task = rig.completed(id).await;
    assert_eq!((task.worker, task.losses), (Some(worker_id(&there)), 1));
    herd.stop(BOUND).await;
    gone.shutdown().await;
    there.shutdown().await;
}

#[tokio::test]
async fn of_two_processes_one_drives_and_the_other_takes_over_after_its_lease() {
    let clock = Arc::new(ManualClock::default());
    let given: Arc<dyn remuda_store::Clock> = clock.clone();
    let rig = Rig::with(|options| options.clock = Some(given)).await;
    let sim = sim().await;
    // Neither is the process that has the store open: their leases run out.
    let (first, second) = (OwnerId(uuid::Uuid::new_v4()), OwnerId(uuid::Uuid::new_v4()));
    let one = rig.herd_of(first, &[&sim]);
    until("the first to drive it", async || one.status().workers[0].driven).await;
    let two = rig.herd_of(second, &[&sim]);
    until("the second to see it taken", async || two.status().workers[0].held_by == Some(first)).await;
    let held = hold(&sim);
    let id = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    assert!(!two.status().workers[0].driven);
    drop(one);
    clock.advance(Duration::from_secs(31));
    until("the second to adopt it", async || two.status().counters.adoptions == 1).await;
    held.release();
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, sim.stats().executions_total), (1, 1));
    assert_eq!(two.status().counters.adoptions, 1);
    two.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn who_drives_a_worker_adopts_the_lease_of_another_when_it_runs_out() {
    let clock = Arc::new(ManualClock::default());
    let given: Arc<dyn remuda_store::Clock> = clock.clone();
    let rig = Rig::with(|options| options.clock = Some(given)).await;
    let sim = sim().await;
    let (first, second) = (OwnerId(uuid::Uuid::new_v4()), OwnerId(uuid::Uuid::new_v4()));
    let killed = rig.herd_of(first, &[&sim]);
    let held = hold(&sim);
    let id = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    drop(killed);
    // The worker is free at once, and the lease on the task is good for a while: at the takeover there is nothing to adopt.
    let workers = rig.store.workers().await.unwrap();
    rig.store.release_worker(workers[0].owner, &worker_id(&sim), workers[0].fence).await.unwrap();
    let herd = rig.herd_of(second, &[&sim]);
    let next = rig.submit(&picture()).await;
    let holder = async |task| rig.store.lease(task).await.unwrap().map(|lease| lease.owner);
    until("the next to be claimed", async || holder(next).await == Some(second)).await;
    assert_eq!((holder(id).await, herd.status().counters.adoptions), (Some(first), 0));
    // The second renews its own, and the first does not.
    let until_when = async |task| rig.store.lease(task).await.unwrap().unwrap().until;
    let before = until_when(next).await;
    clock.advance(Duration::from_secs(20));
    until("the second to renew its own", async || until_when(next).await > before).await;
    clock.advance(Duration::from_secs(11));
    until("the lease to run out and be taken", async || holder(id).await == Some(second)).await;
    held.release();
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, task.losses, herd.status().counters.adoptions), (1, 0, 1));
    rig.completed(next).await;
    assert_eq!(sim.stats().executions_total, 2);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_runs_on_a_worker_that_was_taken_out_is_ended_there() {
    let (rig, old, new) = (Rig::new().await, sim().await, sim().await);
    let killed = rig.herd(&[&old]);
    let held = hold(&old);
    let id = rig.submit(&picture()).await;
    rig.rendering(&old, 1).await;
    drop(killed);
    let herd = rig.herd(&[&new]);
    assert!(herd.retire(worker(&old)));
    let next = rig.submit(&picture()).await;
    assert_eq!(rig.completed(next).await.worker, Some(worker_id(&new)));
    held.release();
    let task = rig.completed(id).await;
    assert_eq!((task.worker, task.attempt), (Some(worker_id(&old)), 1));
    until("it to be let go", async || herd.add(worker(&old))).await;
    assert_eq!((old.stats().executions_total, new.stats().executions_total), (1, 1));
    herd.stop(BOUND).await;
    old.shutdown().await;
    new.shutdown().await;
}

#[tokio::test]
async fn a_submission_that_was_never_made_is_made_once() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    rig.completed(rig.submit(&picture()).await).await;
    // It is claimed, and ComfyUI does not get it.
    let hang = sim.faults().add(comfyui_sim::faults::Fault::hang().on("POST /prompt"));
    let id = rig.submit(&picture()).await;
    until("it to be sent", async || sim.faults().hits(hang) > 0).await;
    drop(killed);
    sim.faults().clear();
    let herd = rig.herd(&[&sim]);
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, task.losses, sim.stats().executions_total), (1, 0, 2));
    assert_eq!(herd.status().counters.resubmissions, 1);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn another_comfyui_behind_the_same_address_is_not_taken_for_the_old_one() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    rig.completed(rig.submit(&picture()).await).await;
    let hang = sim.faults().add(comfyui_sim::faults::Fault::hang().on("POST /prompt"));
    let id = rig.submit(&picture()).await;
    until("it to be sent", async || sim.faults().hits(hang) > 0).await;
    drop(killed);
    sim.faults().clear();
    sim.restart().await;
    std::fs::remove_dir_all(sim.base_dir().join("input/remuda")).unwrap();
    let herd = rig.herd(&[&sim]);
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, task.losses), (2, 1));
    assert_eq!(herd.status().counters.resubmissions, 0);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}
