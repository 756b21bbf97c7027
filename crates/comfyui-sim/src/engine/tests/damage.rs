//! What kills the worker, and what goes wrong on request.

use super::{Rig, at};
use crate::config::Profile;
use crate::engine::PromptFaults;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn what_kills_the_worker_leaves_the_prompt_running() {
    let text =
        r#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "fine"}}}, "client_id": "me"}"#;
    for poison in [
        r#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "a"}}, "2": {"class_type": "ImageInvert"}}}"#,
        r#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "a"}}, "2": {"class_type": "ImageInvert", "inputs": null}}}"#,
        r#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "a", "more": ["99", 0]}}}}"#,
        r#"{"prompt": {"1": {"class_type": "RigRaise", "inputs": {"kind": "SystemExit", "message": "", "seed": 1}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}}}"#,
    ] {
        let mut rig = Rig::new(Profile::V0_7_0);
        assert_eq!(rig.submit(poison).0, 200, "{poison}");
        tokio::time::timeout(Duration::from_secs(60), &mut rig.worker)
            .await
            .expect("the worker dies")
            .unwrap();
        assert_eq!(rig.submit(text).0, 200);
        assert_eq!(rig.engine.queue_remaining(), 2);
        assert!(!rig.engine.process_end().is_cancelled());
    }
}

#[tokio::test]
async fn faults_strike_on_request() {
    let rig = Rig::new(Profile::V0_7_0);
    let save = |number: u32| {
        format!(
            r#"{{"prompt": {{"1": {{"class_type": "EmptyImage", "inputs": {{"width": 8, "height": 8, "batch_size": 1, "color": {number}}}}},
                "2": {{"class_type": "SaveImage", "inputs": {{"images": ["1", 0], "filename_prefix": "f"}}}}}}, "client_id": "me"}}"#
        )
    };
    *rig.faults.0.lock().unwrap() = PromptFaults { disk_full: true, ..PromptFaults::default() };
    let (entry, _) = rig.run(&save(1)).await;
    let message = at(&entry, "status/messages/last/1/exception_message").str();
    assert!(message.starts_with("[Errno 28] No space left on device: '"), "{message}");

    *rig.faults.0.lock().unwrap() = PromptFaults { out_of_memory: true, ..PromptFaults::default() };
    let (entry, _) = rig.run(&save(2)).await;
    assert_eq!(at(&entry, "status/messages/last/1/exception_type").str(), "torch.OutOfMemoryError");

    *rig.faults.0.lock().unwrap() = PromptFaults { files_gone: true, ..PromptFaults::default() };
    let (entry, _) = rig.run(&save(3)).await;
    let file = at(&entry, "outputs/2/images/0/filename").str();
    assert!(!rig.base.path().join("output").join(file).exists());

    let released = CancellationToken::new();
    *rig.faults.0.lock().unwrap() = PromptFaults { hang: Some(released.clone()), ..PromptFaults::default() };
    let (_, answer) = rig.submit(&save(4));
    let id = at(&answer, "prompt_id").str();
    rig.until("it does not start", |rig| rig.engine.running_node_of("me").as_deref() == Some("1")).await;
    assert!(rig.history(&id).is_none());
    released.cancel();
    rig.until("it does not go on", |rig| rig.history(&id).is_some()).await;
    assert_eq!(rig.engine.running_node_of("me"), None);

    *rig.faults.0.lock().unwrap() = PromptFaults { crash: true, ..PromptFaults::default() };
    rig.submit(&save(5));
    tokio::time::timeout(Duration::from_secs(60), rig.engine.process_end().cancelled())
        .await
        .expect("the process ends");
}
