//! The straight way: claim, place, submit, watch, collect, report.

use std::time::Duration;

use remuda_core::Sha256;

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
        result.outputs["3"]["images"][0]["subfolder"]
            .as_str()
            .unwrap()
            .starts_with(&format!("remuda/{id}/pictures"))
    );
    herd.stop(Duration::from_secs(5)).await;
    let workers = rig.store.workers().await.unwrap();
    assert_eq!(workers.len(), 1);
    assert!(workers[0].report.object_info.is_some() && workers[0].report.identity.is_some());
    // Nothing of ours is left in ComfyUI's memory.
    let history = comfyui::Client::new(&sim.url()).unwrap().history_page(None, None).await.unwrap();
    assert!(history.is_empty());
    sim.shutdown().await;
}
