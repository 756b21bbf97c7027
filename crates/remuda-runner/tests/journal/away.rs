//! The employer cannot be reached when a job ends.

use std::time::Duration;

use super::rig::*;

#[tokio::test]
async fn an_end_is_kept_until_it_is_heard_and_work_goes_on() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    rig.boss.away(true);
    rig.boss.give(&job("first", &picture()));
    until("its end to be kept", async || process.source.counts() == (0, 1)).await;
    rig.boss.give(&job("second", &picture()));
    until("the next to end, too", async || process.source.counts() == (0, 2)).await;
    assert!(rig.boss.reports().is_empty());
    rig.boss.away(false);
    let mut keys: Vec<_> = rig.boss.heard(2).await.into_iter().map(|(job, _)| job.key).collect();
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
    rig.boss.away(true);
    rig.boss.give(&job("kept", &picture()));
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
    rig.boss.away(true);
    let first = job("late", &picture());
    rig.boss.give(&first);
    until("its end to be kept", async || process.source.counts() == (0, 1)).await;
    rig.boss.give(&again(&first, 1));
    until("it to be delivered again", async || rig.boss.waiting() == 0).await;
    rig.boss.away(false);
    until("the newer one to hear it", async || rig.boss.reports().iter().any(|(job, _)| job.attempt == 1))
        .await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(sim.stats().executions_total, 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn an_employer_that_does_not_answer_is_asked_again() {
    let (rig, sim) = (Rig::new(), sim().await);
    rig.boss.deaf(2);
    rig.boss.give(&job("patience", &picture()));
    let process = rig.start(&[&sim]).await;
    result(&rig.boss.heard(1).await.remove(0).1);
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_sent() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    until("it to ask", async || rig.boss.asking() == 1).await;
    let journal = rig.folder().join("journal");
    std::fs::remove_dir(&journal).unwrap();
    rig.boss.give(&job("careful", &picture()));
    until("it to be handed out", async || rig.boss.waiting() == 0).await;
    assert_eq!((process.source.counts(), rig.boss.begun().len()), ((1, 0), 0));
    std::fs::create_dir(&journal).unwrap();
    result(&rig.boss.heard(1).await.remove(0).1);
    process.stop().await;
    assert_eq!(sim.stats().executions_total, 1);
    sim.shutdown().await;
}
