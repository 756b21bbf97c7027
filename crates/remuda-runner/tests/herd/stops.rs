//! Stopping exactly one prompt, giving back, and ending well.

use std::time::Duration;

use comfyui_sim::faults::Fault;
use remuda_core::{AttemptOutcome, FailureClass, Status};
use serde_json::json;

use super::rig::*;

async fn queue_of(sim: &comfyui_sim::Simulator) -> comfyui::Queue {
    comfyui::Client::new(&sim.url()).unwrap().queue().await.unwrap()
}

#[tokio::test]
async fn a_timeout_stops_that_prompt_and_no_other() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let id = rig.submit_with(&endless(), |new| new.timeout_s = 1).await;
    rig.rendering(&sim, 1).await;
    let foreign = submit_directly(&sim, &long(1.0), None).await;
    let task = rig.end_of(id).await;
    let error = task.error.unwrap();
    assert_eq!((task.status, error.class), (Status::Failed, FailureClass::Timeout), "{error}");
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("somebody else's prompt to end well", async || {
        client.history(&foreign).await.unwrap().is_some_and(|entry| entry.status.unwrap().completed)
    })
    .await;
    assert_eq!(sim.stats().executions_total, 2);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_deadline_stops_it_too() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let soon = remuda_core::Timestamp::now() + Duration::from_secs(2);
    let id = rig.submit_with(&endless(), |new| new.deadline = Some(soon)).await;
    assert_eq!(rig.end_of(id).await.error.unwrap().class, FailureClass::Timeout);
    assert!(queue_of(&sim).await.running.is_empty());
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn cancelling_stops_exactly_that_prompt_wherever_it_is() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let running = rig.submit(&endless()).await;
    rig.rendering(&sim, 1).await;
    let ahead = rig.submit(&endless()).await;
    until("one to wait at ComfyUI", async || queue_of(&sim).await.pending.len() == 1).await;
    let waiting = rig.submit(&long(0.2)).await;
    let last = rig.submit(&picture()).await;
    assert_eq!(rig.store.cancel(waiting).await.unwrap().status, Status::Cancelled);
    rig.store.cancel(ahead).await.unwrap();
    assert_eq!(rig.end_of(ahead).await.status, Status::Cancelled);
    assert_eq!(sim.stats().executions_total, 1, "it was taken out of the queue");
    assert_eq!(rig.task(running).await.status, Status::Running);
    rig.store.cancel(running).await.unwrap();
    let task = rig.end_of(running).await;
    assert_eq!(task.status, Status::Cancelled);
    rig.completed(last).await;
    assert_eq!(sim.stats().executions_total, 2);
    assert_eq!(rig.store.attempts(running, 1000).await.unwrap()[0].outcome, Some(AttemptOutcome::Cancelled));
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_was_sent_ahead_goes_to_a_worker_that_becomes_idle() {
    let (rig, busy, idle) = (Rig::new().await, sim().await, sim().await);
    let herd = rig.herd(&[&busy]);
    let long_one = rig.submit(&endless()).await;
    rig.rendering(&busy, 1).await;
    let next = rig.submit(&picture()).await;
    until("the next to wait at ComfyUI", async || queue_of(&busy).await.pending.len() == 1).await;
    herd.add(worker(&idle));
    let task = rig.completed(next).await;
    assert_eq!((task.worker, task.losses, task.failures), (Some(worker_id(&idle)), 0, 0));
    let attempts = rig.store.attempts(next, 1000).await.unwrap();
    assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Returned));
    assert!(queue_of(&busy).await.pending.is_empty());
    assert_eq!((busy.stats().executions_total, idle.stats().executions_total), (1, 1));
    rig.store.cancel(long_one).await.unwrap();
    rig.end_of(long_one).await;
    herd.stop(BOUND).await;
    busy.shutdown().await;
    idle.shutdown().await;
}

#[tokio::test]
async fn a_prompt_that_nobody_answers_for_is_stopped_and_others_are_not() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let installation = rig.store.installation().await.unwrap().id;
    let herd = rig.herd(&[&sim]);
    rig.completed(rig.submit(&picture()).await).await;
    let foreign = submit_directly(&sim, &long(2.0), Some(json!({"installation": uuid::Uuid::new_v4(), "task": uuid::Uuid::new_v4(), "attempt": 1, "fence": 1}))).await;
    let late = json!({"installation": installation, "task": uuid::Uuid::new_v4(), "attempt": 1, "fence": 3});
    let late = submit_directly(&sim, &endless(), Some(late)).await;
    until("it to be swept away", async || {
        let queue = queue_of(&sim).await;
        !queue.running.iter().chain(&queue.pending).any(|item| item.prompt_id == late)
    })
    .await;
    until("it to be counted", async || herd.status().counters.late_prompts_stopped == 1).await;
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("the foreign one to end well", async || {
        client.history(&foreign).await.unwrap().is_some_and(|entry| entry.status.unwrap().completed)
    })
    .await;
    rig.completed(rig.submit(&picture()).await).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_gives_back_what_did_not_begin() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let held = hold(&sim);
    let running = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    let ahead = rig.submit(&picture()).await;
    until("the next to wait at ComfyUI", async || queue_of(&sim).await.pending.len() == 1).await;
    let waiting = rig.submit(&picture()).await;
    let given_back = async {
        until("the next to be taken out", async || queue_of(&sim).await.pending.is_empty()).await;
        held.release();
    };
    tokio::join!(herd.stop(BOUND), given_back);
    assert_eq!(rig.task(running).await.status, Status::Completed);
    for id in [ahead, waiting] {
        assert_eq!(rig.task(id).await.status, Status::Pending);
    }
    assert_eq!(sim.stats().executions_total, 1);
    let again = rig.herd(&[&sim]);
    for id in [ahead, waiting] {
        rig.completed(id).await;
    }
    again.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_drain_that_is_too_short_leaves_the_render_to_be_adopted() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let held = hold(&sim);
    let id = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    herd.stop(Duration::from_millis(100)).await;
    assert_eq!(rig.task(id).await.status, Status::Running);
    assert_eq!(queue_of(&sim).await.running.len(), 1, "it was not cancelled");
    let again = rig.herd(&[&sim]);
    held.release();
    rig.completed(id).await;
    assert_eq!(sim.stats().executions_total, 1);
    again.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_prompt_that_does_not_stop_makes_its_worker_wait_and_not_its_task() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd_with(rig.owner, &[&sim], |options, _| {
        options.timing.stopping = Duration::from_secs(1);
        options.timing.stop_patience = Duration::from_secs(2);
    });
    let stuck = sim.faults().add(Fault::stuck_node().times(1));
    let id = rig.submit_with(&picture(), |new| new.timeout_s = 1).await;
    assert_eq!(rig.end_of(id).await.error.unwrap().class, FailureClass::Timeout);
    until("the worker to be known as dead", async || {
        herd.status().workers[0].report.health == remuda_core::Health::Zombie
    })
    .await;
    let next = rig.submit(&picture()).await;
    sim.faults().remove(stuck);
    rig.completed(next).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn of_a_prompt_that_is_in_the_queue_twice_one_is_taken_out() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let held = hold(&sim);
    let id = rig.submit(&picture()).await;
    rig.rendering(&sim, 1).await;
    // The submission of a frozen owner arrives late, under the same id.
    let lease = rig.store.lease(id).await.unwrap().unwrap();
    let mark = json!({"installation": rig.store.installation().await.unwrap().id, "task": id, "attempt": 1, "fence": 0});
    let late = comfyui::PromptRequest::new(comfyui::Workflow::parse(endless().to_string()).unwrap())
        .with_id(lease.prompt_id)
        .extra("remuda", mark);
    comfyui::Client::new(&sim.url()).unwrap().submit(&late).await.unwrap();
    until("it to be taken out", async || queue_of(&sim).await.pending.is_empty()).await;
    held.release();
    rig.completed(id).await;
    assert_eq!((sim.stats().executions_total, herd.status().counters.late_prompts_stopped), (1, 1));
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_kept_for_a_while_and_the_worker_goes_on() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    rig.completed(rig.submit(&picture()).await).await;
    let outputs = rig.files.path_on_disk(&"outputs/x".parse().unwrap()).unwrap().parent().unwrap().to_owned();
    // A file where the folder should be: no output can be written.
    std::fs::remove_dir_all(&outputs).unwrap();
    std::fs::write(&outputs, b"in the way").unwrap();
    let (first, second) = (rig.submit(&picture()).await, rig.submit(&picture()).await);
    rig.rendering(&sim, 3).await;
    std::fs::remove_file(&outputs).unwrap();
    for id in [first, second] {
        let task = rig.completed(id).await;
        let attempts = rig.store.attempts(id, 1000).await.unwrap();
        // A claim that is answered in the moment in which its worker turns idle, and asks anew, goes back before it begins.
        let begun =
            attempts.iter().filter(|attempt| attempt.outcome != Some(AttemptOutcome::Returned)).count();
        assert_eq!((begun, task.losses, task.result.unwrap().files.len()), (1, 0, 1), "{attempts:?}");
    }
    assert_eq!(sim.stats().executions_total, 3);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}
