//! A task is not wanted any more, or not from this process.

use std::sync::Arc;

use comfyui::{Outcome, Whereabouts};
use futures_util::StreamExt as _;
use remuda_core::TaskResult;
use remuda_core::transition::Ending;
use remuda_files::{Files, Location};
use remuda_runner::source::foreign::{DeliveryEnding, Withdrawn};
use remuda_runner::source::{NewFile, Source as _};
use remuda_store::{Acquired, BeatRequest, ClaimRequest, LeaseBeat};

use super::rig::*;

fn called_off(ending: &DeliveryEnding) -> (&str, bool) {
    match ending {
        DeliveryEnding::CalledOff { reason, retry } => (reason, *retry),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_nobody_wants_is_cancelled_and_not_reported() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    rig.queue.give(&delivery("unwanted", &endless()));
    rendering(&sim, 1).await;
    rig.queue.say("unwanted", Withdrawn::Unwanted("the run was stopped".to_owned()));
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("ComfyUI to be free", async || client.queue_remaining().await.unwrap() == 0).await;
    until("it to be forgotten", async || process.source.counts() == (0, 0)).await;
    until("its file to go", async || rig.journal().is_empty()).await;
    rig.queue.give(&delivery("next", &picture()));
    let reports = rig.queue.heard(1).await;
    assert_eq!((reports.len(), reports[0].0.key.as_str()), (1, "next"));
    process.stop().await;
    sim.shutdown().await;
}

/// A picture is stored when the word comes that it is not wanted any more. Whether its runner may discard it, and whether
/// it is there after the end, which is a good one: too late to be stopped.
async fn files_after(over: Withdrawn) -> (bool, bool) {
    let (mut rig, sim) = (Rig::new(), sim().await);
    let outputs = tempfile::tempdir().unwrap();
    rig.sink = Some(Files::open(&Location::directory(outputs.path())).unwrap());
    let source = rig.open(&[&sim]).await.unwrap();
    let Acquired::Yes(worker) = source.acquire_worker(worker(&sim).spec).await.unwrap() else { panic!() };
    rig.queue.give(&delivery("unwanted", &picture()));
    let request = ClaimRequest {
        owner: rig.owner,
        worker: worker.spec.id,
        worker_fence: worker.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: BOUND,
    };
    let lease = source.claim(request).await.unwrap().unwrap().lease;
    let store = async || {
        let file = NewFile { n: 0, filename: "a.png".to_owned(), size: None };
        let bytes = futures_util::stream::iter([Ok("a picture".into())]).boxed();
        let delivered = source.deliver(lease.reference(), lease.attempt, file, bytes).await.unwrap();
        outputs.path().join(&delivered.key)
    };
    let stored = store().await;
    source.discard(lease.reference(), lease.attempt).await.unwrap();
    assert!(stored.is_file(), "it is wanted: {}", stored.display());
    rig.queue.say("unwanted", over);
    let beat = LeaseBeat { lease: lease.reference(), phase: lease.phase, progress: 1.0 };
    let request = BeatRequest { owner: rig.owner, leases: vec![beat], workers: Vec::new(), wait: BOUND };
    assert!(source.beat(request).await.unwrap().news[0].cancel);
    source.discard(lease.reference(), lease.attempt).await.unwrap();
    let discarded = !stored.exists();
    store().await;
    let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
    source.end(lease.reference(), ending).await.unwrap();
    assert!(rig.queue.reports().is_empty() && rig.journal().is_empty());
    let left = stored.exists();
    source.close(BOUND).await;
    sim.shutdown().await;
    (discarded, left)
}

/// Nobody will hear of them, so they go.
#[tokio::test]
async fn the_files_of_what_nobody_wants_are_not_kept() {
    let over = Withdrawn::Unwanted("the run was given up".to_owned());
    assert_eq!(files_after(over).await, (true, false));
}

/// They have the names of those that somebody has told of: another process, or this one before it was killed.
#[tokio::test]
async fn the_files_of_what_is_done_are_kept() {
    assert_eq!(files_after(Withdrawn::Done("somebody was faster".to_owned())).await, (false, true));
}

#[tokio::test]
async fn a_delivery_after_the_cancellation_is_rendered_anew() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    rig.slots = 2;
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    let first = delivery("back", &long(2.0));
    rig.queue.give(&first);
    rendering(&sim, 1).await;
    rig.queue.say("back", Withdrawn::Unwanted("a mistake".to_owned()));
    until("it to be heard", async || rig.queue.has_said("back")).await;
    held.release();
    rig.queue.give(&again(&first, 1));
    let reports = rig.queue.heard(1).await;
    assert_eq!((reports[0].0.attempt, reports[0].0.sent_as), (1, Some(reports[0].0.second_prompt_id)));
    result(&reports[0].1);
    process.stop().await;
    assert_eq!(rig.queue.reports().len(), 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn what_timed_out_renders_on_for_its_next_delivery() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    let first = delivery("slow", &picture());
    rig.queue.give(&first);
    rendering(&sim, 1).await;
    assert_eq!(rig.queue.asking(), 0, "the slot is taken");
    rig.queue.say("slow", Withdrawn::Superseded);
    until("the slot to be free", async || rig.queue.asking() == 1).await;
    rig.queue.give(&again(&first, 1));
    until("it to be delivered again", async || rig.queue.waiting() == 0).await;
    held.release();
    let reports = rig.queue.heard(1).await;
    assert_eq!(reports[0].0.attempt, 1);
    result(&reports[0].1);
    process.stop().await;
    assert_eq!((sim.stats().executions_total, rig.queue.reports().len()), (1, 1));
    sim.shutdown().await;
}

#[tokio::test]
async fn what_ended_after_its_time_waits_for_its_next_delivery() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    let first = delivery("slow", &picture());
    rig.queue.give(&first);
    rendering(&sim, 1).await;
    rig.queue.say("slow", Withdrawn::Superseded);
    // Another task uses the slot meanwhile, and waits behind it at ComfyUI.
    rig.queue.give(&delivery("other", &picture()));
    until("the slot to be used", async || rig.queue.waiting() == 0).await;
    held.release();
    let reports = rig.queue.heard(1).await;
    assert_eq!(reports[0].0.key, "other", "the late end is not said to a delivery that is over");
    until("it to end", async || process.source.counts() == (0, 0)).await;
    rig.queue.give(&again(&first, 1));
    let reports = rig.queue.heard(2).await;
    assert_eq!((reports[1].0.key.as_str(), reports[1].0.attempt), ("slow", 1));
    result(&reports[1].1);
    process.stop().await;
    assert_eq!(sim.stats().executions_total, 2);
    sim.shutdown().await;
}

#[tokio::test]
async fn what_somebody_else_has_is_let_go_of_and_renders_on() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    let delivery = delivery("theirs", &picture());
    rig.queue.give(&delivery);
    rendering(&sim, 1).await;
    rig.queue.say("theirs", Withdrawn::Elsewhere);
    until("it to be let go of", async || process.source.counts() == (0, 0) && rig.journal().is_empty()).await;
    until("its runner to know", async || process.herd.status().workers[0].leases.is_empty()).await;
    held.release();
    let client = comfyui::Client::new(&sim.url()).unwrap();
    let mut end = None;
    until("the prompt to end", async || match client.find(&delivery.prompt_id.into()).await.unwrap() {
        Whereabouts::Ended(entry) => {
            end = Some(Outcome::judge(*entry));
            true
        }
        Whereabouts::Absent => panic!("it was deleted"),
        _ => false,
    })
    .await;
    assert!(matches!(end, Some(Outcome::Succeeded(_))), "{end:?}");
    assert!(rig.queue.reports().is_empty());
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn when_the_process_stops_its_prompts_are_called_off() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    rig.slots = 2;
    let process = rig.start(&[&sim]).await;
    rig.queue.give(&delivery("first", &endless()));
    rendering(&sim, 1).await;
    rig.queue.give(&delivery("second", &endless()));
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("the second to wait there", async || client.queue_remaining().await.unwrap() == 2).await;
    process.source.call_off("the machine goes down");
    let reports = rig.queue.heard(2).await;
    for (_, ending) in &reports {
        assert_eq!(called_off(ending), ("the machine goes down", true));
    }
    assert_eq!(client.queue_remaining().await.unwrap(), 0);
    rig.queue.give(&delivery("third", &picture()));
    assert_eq!(process.stop().await, 0);
    assert_eq!((rig.queue.waiting(), rig.queue.asking()), (1, 0), "nothing new is asked for");
    assert!(rig.journal().is_empty());
    sim.shutdown().await;
}

#[tokio::test]
async fn a_herd_that_stops_gives_back_what_has_not_begun() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    rig.slots = 2;
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    rig.queue.give(&delivery("first", &picture()));
    rendering(&sim, 1).await;
    rig.queue.give(&delivery("second", &endless()));
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("the second to wait there", async || client.queue_remaining().await.unwrap() == 2).await;
    let given_back = async {
        until("the second to be taken out", async || client.queue_remaining().await.unwrap() == 1).await;
        held.release();
    };
    tokio::join!(process.herd.stop(BOUND), given_back);
    let reports = rig.queue.heard(2).await;
    let of = |key: &str| &reports.iter().find(|(delivery, _)| delivery.key == key).unwrap().1;
    assert!(called_off(of("second")).1, "it may be tried elsewhere");
    result(of("first"));
    assert_eq!(process.source.close(BOUND).await, 0);
    assert_eq!(sim.stats().executions_total, 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn what_waits_behind_a_render_goes_to_a_worker_that_is_idle() {
    let (mut rig, one, two) = (Rig::new(), sim().await, sim().await);
    rig.slots = 2;
    let process = rig.start(&[&one, &two]).await;
    process.herd.remove(&worker_id(&two));
    until("the second to be let go of", async || process.herd.status().workers.len() == 1).await;
    rig.queue.give(&delivery("first", &endless()));
    rendering(&one, 1).await;
    rig.queue.give(&delivery("second", &picture()));
    let client = comfyui::Client::new(&one.url()).unwrap();
    until("the second to wait there", async || client.queue_remaining().await.unwrap() == 2).await;
    assert!(process.herd.add(worker(&two)));
    let reports = rig.queue.heard(1).await;
    assert_eq!(reports[0].0.key, "second");
    assert_eq!((one.stats().executions_total, two.stats().executions_total), (1, 1));
    process.source.call_off("enough");
    rig.queue.heard(2).await;
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}
