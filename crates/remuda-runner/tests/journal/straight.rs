//! The straight way, and how many at once.

use remuda_core::FailureClass;
use remuda_core::transition::Ending;
use remuda_files::{FileKey, Files, Location};
use remuda_runner::source::foreign::DeliveryEnding;
use serde_json::json;

use super::rig::*;

#[tokio::test]
async fn a_task_is_rendered_once_and_its_files_are_named_where_they_are() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let delivery = delivery("run/1", &picture());
    rig.queue.give(&delivery);
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!((of.sent_as, of.cookie), (Some(delivery.prompt_id), delivery.cookie));
    let files = &result(&ending).files;
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(
        (file.subfolder.as_str(), file.output.as_str()),
        ("pictures", "images"),
        "its path is its own"
    );
    assert_eq!((file.key.as_str(), file.size), ("", 0), "it is not fetched");
    assert!(sim.base_dir().join("output/pictures").join(&file.filename).exists());
    let client = comfyui::Client::new(&sim.url()).unwrap();
    let entry = client.history(&delivery.prompt_id.into()).await.unwrap();
    assert!(entry.is_some(), "another delivery may look for it");
    assert_eq!(sim.stats().executions_total, 1);
    until("its file to go", async || rig.journal().is_empty()).await;
    assert_eq!(rig.queue.begun(), [("run/1".to_owned(), worker_id(&sim))]);
    assert_eq!(process.source.counts(), (0, 0));
    assert_eq!(process.stop().await, 0);
    sim.shutdown().await;
}

#[tokio::test]
async fn outputs_of_every_kind_are_named_in_their_order() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 4, "color": 77}},
        "2": {"class_type": "SaveAnimatedWEBP", "inputs": {"images": ["1", 0], "filename_prefix": "a", "fps": 6.0, "lossless": true, "quality": 80, "method": "default"}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "4": {"class_type": "EmptyAudio", "inputs": {"duration": 0.5, "sample_rate": 44100, "channels": 2}},
        "5": {"class_type": "SaveAudio", "inputs": {"audio": ["4", 0], "filename_prefix": "sound/s"}},
    });
    rig.queue.give(&delivery("kinds", &graph));
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    let result = result(&ending);
    let kinds: Vec<_> = result.files.iter().map(|file| (file.n, file.output.as_str())).collect();
    assert!(kinds.iter().any(|(_, kind)| *kind == "audio"), "{kinds:?}");
    assert_eq!(result.files.iter().filter(|file| file.file_type == "temp").count(), 4);
    assert!(kinds.iter().enumerate().all(|(n, (number, _))| n as i32 == *number), "{kinds:?}");
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn with_a_sink_the_files_are_delivered_under_the_prompt_id() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    let outputs = tempfile::tempdir().unwrap();
    let sink = Files::open(&Location::directory(outputs.path())).unwrap();
    rig.sink = Some(sink.clone());
    let process = rig.start(&[&sim]).await;
    let delivery = delivery("sink", &picture());
    rig.queue.give(&delivery);
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    let [file] = result(&ending).files.as_slice() else { panic!("{ending:?}") };
    assert_eq!(file.key, format!("outputs/{}/0-{}", delivery.prompt_id, file.filename));
    let stored = sink.size(&FileKey::parse(&file.key).unwrap()).await.unwrap();
    assert_eq!(stored, Some(u64::try_from(file.size).unwrap()));
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn one_slot_means_one_at_a_time_whatever_the_workers() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let process = rig.start(&[&one, &two]).await;
    until("it to ask", async || rig.queue.asking() == 1).await;
    for n in 0..3 {
        rig.queue.give(&delivery(&format!("n{n}"), &long(0.3)));
    }
    let mut most = 0;
    until("all to be reported", async || {
        most = most.max(process.source.counts().0);
        rig.queue.reports().len() == 3
    })
    .await;
    assert_eq!((most, rig.queue.most_asking()), (1, 1));
    let keys: Vec<_> = rig.queue.reports().into_iter().map(|(delivery, _)| delivery.key).collect();
    assert_eq!(keys, ["n0", "n1", "n2"]);
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn with_more_slots_both_work_and_one_waits_at_comfyui() {
    let (mut rig, one, two) = (Rig::new(), sim().await, sim().await);
    rig.slots = 3;
    let process = rig.start(&[&one, &two]).await;
    until("it to ask for both", async || rig.queue.asking() == 2).await;
    let held = [hold(&one), hold(&two)];
    for n in 0..4 {
        rig.queue.give(&delivery(&format!("n{n}"), &long(0.3)));
    }
    rendering(&one, 1).await;
    rendering(&two, 1).await;
    until("the third to wait at a ComfyUI", async || rig.queue.waiting() == 1).await;
    assert_eq!(process.source.counts().0, 3);
    held.into_iter().for_each(Held::release);
    rig.queue.heard(4).await;
    assert_eq!(one.stats().executions_total + two.stats().executions_total, 4);
    assert!(rig.queue.frames() > 0, "progress is passed on");
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn a_graph_that_no_worker_has_the_nodes_for_fails_after_all_were_tried() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let process = rig.start(&[&one, &two]).await;
    rig.queue.give(&delivery("missing", &json!({"1": {"class_type": "NoSuchNode", "inputs": {}}})));
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    let DeliveryEnding::Ended(Ending::Failed { failure, .. }) = ending else { panic!("{ending:?}") };
    assert_eq!(failure.class, FailureClass::Validation);
    assert!(failure.message.contains("NoSuchNode"), "{failure:?}");
    let tried: std::collections::BTreeSet<_> = rig.queue.begun().into_iter().map(|(_, id)| id).collect();
    assert_eq!(tried.len(), 2);
    assert_eq!(one.stats().executions_total + two.stats().executions_total, 0);
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}
