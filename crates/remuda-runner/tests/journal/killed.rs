//! The process is killed, and another takes its place.

use std::path::PathBuf;
use std::sync::Arc;

use remuda_runner::source::foreign::{ForeignOptions, ForeignSource};

use super::rig::*;

#[tokio::test]
async fn a_killed_process_finds_its_render_again() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let killed = rig.start(&[&one, &two]).await;
    let held = [hold(&one), hold(&two)];
    let delivery = delivery("long", &picture());
    rig.queue.give(&delivery);
    until("a render to begin", async || one.stats().executions_total + two.stats().executions_total == 1)
        .await;
    killed.kill();
    let process = rig.start(&[&one, &two]).await;
    held.into_iter().for_each(Held::release);
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!((of.key, of.cookie), (delivery.key, delivery.cookie));
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!(one.stats().executions_total + two.stats().executions_total, 1);
    until("its file to go", async || rig.journal().is_empty()).await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(rig.queue.reports().len(), 1);
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn a_render_that_comfyui_forgot_is_a_loss_and_not_sent_again() {
    let (rig, sim) = (Rig::new(), sim().await);
    let killed = rig.start(&[&sim]).await;
    rig.queue.give(&delivery("long", &endless()));
    rendering(&sim, 1).await;
    // A file that is being replaced is there under another name for a moment.
    let noted =
        |file: PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"rendering\""));
    until("the journal to know that it renders", async || rig.journal().into_iter().any(noted)).await;
    killed.kill();
    sim.restart().await;
    let process = rig.start(&[&sim]).await;
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    let text = format!("{ending:?}");
    assert!(text.contains("Crash") && text.contains("forgot it"), "{text}");
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_report_that_nobody_heard_is_made_by_the_next_process() {
    let (rig, sim) = (Rig::new(), sim().await);
    let killed = rig.start(&[&sim]).await;
    rig.queue.away(true);
    let delivery = delivery("unheard", &picture());
    rig.queue.give(&delivery);
    let kept = || rig.journal().first().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    until("its end to be in the journal", async || kept().is_some_and(|text| text.contains("completed")))
        .await;
    killed.kill();
    // ComfyUI knows nothing of it any more.
    sim.restart().await;
    rig.queue.away(false);
    let process = rig.start(&[&sim]).await;
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!((of.key, of.cookie), (delivery.key, delivery.cookie));
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!(process.stop().await, 0);
    assert_eq!(sim.stats().executions_total, 1);
    assert!(rig.journal().is_empty(), "{:?}", rig.journal());
    sim.shutdown().await;
}

#[tokio::test]
async fn what_a_worker_had_that_is_gone_is_looked_for_and_done_elsewhere() {
    let (rig, gone, there) = (Rig::new(), sim().await, sim().await);
    let killed = rig.start(&[&gone]).await;
    let _held = hold(&gone);
    rig.queue.give(&delivery("moved", &picture()));
    rendering(&gone, 1).await;
    killed.kill();
    gone.crash().await;
    let process = rig.start(&[&there]).await;
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!(there.stats().executions_total, 1);
    process.stop().await;
    gone.shutdown().await;
    there.shutdown().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_blocks_no_start() {
    let (rig, sim) = (Rig::new(), sim().await);
    let journal = rig.folder().join("journal");
    std::fs::create_dir_all(&journal).unwrap();
    std::fs::write(journal.join("torn.json"), "{\"version\": 1, \"employer\": \"the qu").unwrap();
    let process = rig.start(&[&sim]).await;
    rig.queue.give(&delivery("next", &picture()));
    result(&rig.queue.heard(1).await.remove(0).1);
    until("only the torn one to be left", async || rig.journal().len() == 1).await;
    assert_eq!(rig.journal(), [journal.join("torn.unreadable")]);
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_journal_has_one_process() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let options =
        ForeignOptions { folder: rig.folder(), owner: rig.owner, slots: 1, workers: Vec::new(), sink: None };
    let queue: Arc<TestQueue> = Arc::clone(&rig.queue);
    let error = ForeignSource::open(queue, options).await.unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    process.stop().await;
    sim.shutdown().await;
}
