//! The queue cannot be reached when a task ends.

use std::time::Duration;

use super::rig::*;

#[tokio::test]
async fn an_end_is_kept_until_it_is_heard_and_work_goes_on() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    rig.queue.away(true);
    rig.queue.give(&delivery("first", &picture()));
    until("its end to be kept", async || process.source.counts() == (0, 1)).await;
    rig.queue.give(&delivery("second", &picture()));
    until("the next to end, too", async || process.source.counts() == (0, 2)).await;
    assert!(rig.queue.reports().is_empty());
    rig.queue.away(false);
    let mut keys: Vec<_> = rig.queue.heard(2).await.into_iter().map(|(delivery, _)| delivery.key).collect();
    keys.sort();
    assert_eq!(keys, ["first", "second"]);
    until("the journal to be empty", async || rig.journal().is_empty()).await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(sim.stats().executions_total, 2);
    sim.shutdown().await;
}

#[tokio::test]
async fn what_is_not_heard_before_the_end_is_counted_and_stays() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    rig.queue.away(true);
    rig.queue.give(&delivery("kept", &picture()));
    until("its end to be kept", async || process.source.counts() == (0, 1)).await;
    process.herd.stop(BOUND).await;
    assert_eq!(process.source.close(Duration::from_millis(100)).await, 1);
    assert_eq!(rig.journal().len(), 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn a_newer_delivery_hears_what_the_older_one_could_not() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    rig.queue.away(true);
    let first = delivery("late", &picture());
    rig.queue.give(&first);
    until("its end to be kept", async || process.source.counts() == (0, 1)).await;
    rig.queue.give(&again(&first, 1));
    until("it to be delivered again", async || rig.queue.waiting() == 0).await;
    rig.queue.away(false);
    until("the newer one to hear it", async || {
        rig.queue.reports().iter().any(|(delivery, _)| delivery.attempt == 1)
    })
    .await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(sim.stats().executions_total, 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn a_queue_that_does_not_answer_is_asked_again() {
    let (rig, sim) = (Rig::new(), sim().await);
    rig.queue.deaf(2);
    rig.queue.give(&delivery("patience", &picture()));
    let process = rig.start(&[&sim]).await;
    result(&rig.queue.heard(1).await.remove(0).1);
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_sent() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    until("it to ask", async || rig.queue.asking() == 1).await;
    let journal = rig.folder().join("journal");
    std::fs::remove_dir(&journal).unwrap();
    rig.queue.give(&delivery("careful", &picture()));
    until("it to be handed out", async || rig.queue.waiting() == 0).await;
    assert_eq!((process.source.counts(), rig.queue.begun().len()), ((1, 0), 0));
    std::fs::create_dir(&journal).unwrap();
    result(&rig.queue.heard(1).await.remove(0).1);
    process.stop().await;
    assert_eq!(sim.stats().executions_total, 1);
    sim.shutdown().await;
}
