//! The straight way: claim, place, submit, watch, collect, report.

use comfyui_sim::{SimConfig, Simulator};
use remuda_core::{FailureClass, Placement, Sha256, Status};
use remuda_frames::FrameKind;
use serde_json::json;

use super::rig::*;

#[tokio::test]
async fn a_task_is_rendered_once_and_its_picture_delivered() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let id = rig.submit(&picture()).await;
    let task = rig.completed(id).await;
    let result = task.result.expect("a result");
    assert_eq!(result.files.len(), 1);
    let file = &result.files[0];
    assert_eq!(
        (file.mime.as_str(), file.file_type.as_str(), file.node_id.as_str()),
        ("image/png", "output", "3")
    );
    let bytes = rig.files.get(&file.key.parse().unwrap(), None).await.unwrap().bytes(1 << 20).await.unwrap();
    assert!(bytes.starts_with(b"\x89PNG"));
    assert_eq!((Sha256::of(&bytes), bytes.len() as i64), (file.sha256, file.size));
    assert_eq!(sim.stats().executions_total, 1);
    assert!(
        result.outputs.read()["3"]["images"][0]["subfolder"]
            .as_str()
            .unwrap()
            .starts_with(&format!("remuda/{id}/pictures"))
    );
    herd.stop(BOUND).await;
    let workers = rig.store.workers().await.unwrap();
    assert_eq!(workers.len(), 1);
    assert!(workers[0].report.object_info.is_some() && workers[0].report.identity.is_some());
    // Nothing of ours is left in ComfyUI's memory.
    let history = comfyui::Client::new(&sim.url()).unwrap().history_page(None, None).await.unwrap();
    assert!(history.is_empty());
    sim.shutdown().await;
}

#[tokio::test]
async fn inputs_are_placed_and_the_graph_names_them() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let png = std::fs::read(sim.base_dir().join("input/example.png")).ok();
    let png = match png {
        Some(png) => png,
        None => a_png(&sim).await,
    };
    let (key, stored) = rig.files.put_content_addressed(bytes_stream(&png), None).await.unwrap();
    let graph = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "my cat.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "cat"}},
    });
    let herd = rig.herd(&[&sim]);
    let folder = sim.base_dir().join("input/remuda");
    let name = format!("{}-my_cat.png", &stored.sha256.to_string()[..16]);
    for n in 0..3 {
        if n == 2 {
            // Somebody tidied ComfyUI's folder: it is placed again.
            std::fs::remove_file(folder.join(&name)).unwrap();
        }
        let placement = Placement {
            node_id: "1".into(),
            input: "image".into(),
            sha256: Sha256(stored.sha256.0),
            key: key.to_string(),
            filename: "my cat.png".into(),
        };
        let id = rig.submit_with(&graph, |new| new.input.placements.push(placement)).await;
        assert_eq!(rig.completed(id).await.result.unwrap().files.len(), 1);
    }
    let placed: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("identity"))
        .collect();
    assert_eq!(placed, [name], "under one name, used by all");
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

fn bytes_stream(
    bytes: &[u8],
) -> impl futures_util::Stream<Item = Result<bytes::Bytes, std::io::Error>> + Send + use<> {
    futures_util::stream::iter([Ok(bytes::Bytes::copy_from_slice(bytes))])
}

/// A picture, as the simulator paints it.
async fn a_png(sim: &comfyui_sim::Simulator) -> Vec<u8> {
    let session = comfyui::Session::open(comfyui::Client::new(&sim.url()).unwrap(), brisk()).await.unwrap();
    let workflow = comfyui::Workflow::parse(picture().to_string()).unwrap();
    let success =
        session.submit(comfyui::PromptRequest::new(workflow)).await.unwrap().finish().await.unwrap();
    let file = comfyui::FileRef::from(success.outputs.files().next().unwrap());
    session.client().view(&file).await.unwrap().bytes(1 << 20).await.unwrap()
}

#[tokio::test]
async fn outputs_of_every_kind_are_delivered_with_their_hashes() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 4, "color": 77}},
        "2": {"class_type": "SaveAnimatedWEBP", "inputs": {"images": ["1", 0], "filename_prefix": "a", "fps": 6.0, "lossless": true, "quality": 80, "method": "default"}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "4": {"class_type": "EmptyAudio", "inputs": {"duration": 0.5, "sample_rate": 44100, "channels": 2}},
        "5": {"class_type": "SaveAudio", "inputs": {"audio": ["4", 0], "filename_prefix": "a"}},
    });
    let id = rig.submit(&graph).await;
    let result = rig.completed(id).await.result.unwrap();
    let mut kinds: Vec<_> =
        result.files.iter().map(|file| (file.mime.as_str(), file.file_type.as_str())).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, [("audio/flac", "output"), ("image/png", "temp"), ("image/webp", "output")]);
    for (n, file) in result.files.iter().enumerate() {
        let bytes =
            rig.files.get(&file.key.parse().unwrap(), None).await.unwrap().bytes(1 << 24).await.unwrap();
        assert_eq!((file.n as usize, file.sha256, file.size), (n, Sha256::of(&bytes), bytes.len() as i64));
    }
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn progress_and_previews_are_seen_while_it_renders() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let mut new = remuda_core::NewTask::new(serde_json::value::to_raw_value(&long(1.0)).unwrap());
    new.workflow_id = Some("watched".into());
    let (_, mut frames) = rig.hub.subscribe(new.id);
    let id = new.id;
    let since = std::time::Instant::now();
    rig.store.submit(new).await.unwrap();
    let (mut progress, mut previews) = (Vec::new(), 0);
    // The end of the task is the end of the channel.
    while let Some(frame) = tokio::time::timeout(BOUND, frames.recv()).await.unwrap() {
        match &frame.what {
            FrameKind::Progress { fraction, .. } => progress.push(*fraction),
            FrameKind::Message { .. } | FrameKind::Binary { .. } => panic!("nobody asked for these"),
            FrameKind::Preview { mime, bytes } => {
                assert!(mime == "image/jpeg" && bytes.starts_with(&[0xff, 0xd8]));
                previews += 1;
            }
        }
    }
    assert!(progress.is_sorted() && progress.len() > 3, "{progress:?}");
    // The render makes fifty of them; at most four in a second are passed on.
    let most = 1 + since.elapsed().as_millis() / 250;
    assert!((1..=most).contains(&previews), "{previews} previews instead of {most}");
    rig.completed(id).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn the_next_prompt_waits_in_comfyuis_queue_while_one_renders() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let held = hold(&sim);
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(rig.submit(&picture()).await);
    }
    let client = comfyui::Client::new(&sim.url()).unwrap();
    until("one to render and one to wait", async || {
        let queue = client.queue().await.unwrap();
        queue.running.len() == 1 && queue.pending.len() == 1
    })
    .await;
    held.release();
    for id in ids {
        rig.completed(id).await;
    }
    assert_eq!(sim.stats().executions_total, 4);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_comfyui_refuses_fails_once_with_its_words_and_what_kills_is_never_sent() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let refused = json!({"1": {"class_type": "EmptyImage", "inputs": {"width": -5, "height": 64, "batch_size": 1, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}});
    let task = rig.submit(&refused).await;
    let error = rig.end_of(task).await.error.unwrap();
    assert_eq!(error.class, FailureClass::Validation);
    assert_eq!(
        error.details.unwrap().read()["node_errors"]["1"]["errors"][0]["type"],
        "value_smaller_than_min"
    );
    let deadly = json!({"1": {"class_type": "EmptyImage"},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}}});
    let task = rig.submit(&deadly).await;
    let error = rig.end_of(task).await.error.unwrap();
    assert_eq!((error.class, error.node_id.as_deref()), (FailureClass::Validation, Some("1")));
    assert_eq!(sim.stats().executions_total, 0);
    rig.submit(&picture()).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

fn rare() -> serde_json::Value {
    json!({
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "rare.safetensors"}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 2]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
    })
}

#[tokio::test]
async fn a_task_finds_the_one_worker_that_has_its_model() {
    let rig = Rig::new().await;
    let poor = sim().await;
    let mut config = SimConfig::default();
    config.models.get_mut("checkpoints").unwrap().push("rare.safetensors".into());
    let rich = Simulator::start(config).await.unwrap();
    let herd = rig.herd(&[&poor]);
    // Nobody is known that has it: it fails, instead of waiting for ever.
    let task = rig.end_of(rig.submit(&rare()).await).await;
    let error = task.error.unwrap();
    assert_eq!((task.status, error.class), (Status::Failed, FailureClass::Validation));
    assert!(error.message.contains("lacks model rare.safetensors"), "{}", error.message);
    // Somebody is known, and away.
    let away = rig.herd(&[&rich]);
    let known =
        async || rig.store.workers().await.unwrap().iter().all(|known| known.report.object_info.is_some());
    until("both to be known", async || rig.store.workers().await.unwrap().len() == 2 && known().await).await;
    away.stop(BOUND).await;
    let id = rig.submit(&rare()).await;
    let waiting =
        rig.until(id, "to be given back", |task| task.attempt == 1 && task.status == Status::Pending).await;
    assert_ne!(waiting.lane, remuda_core::LaneId::any());
    herd.add(worker(&rich));
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, task.worker), (2, Some(worker_id(&rich))));
    assert_eq!((poor.stats().executions_total, task.failures, task.losses), (0, 0, 0));
    herd.stop(BOUND).await;
    poor.shutdown().await;
    rich.shutdown().await;
}
