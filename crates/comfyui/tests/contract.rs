//! What every ComfyUI must do for this client, simulated or real.
//!
//! `COMFYUI_URL=http://127.0.0.1:8188 cargo test -p comfyui --test contract` runs the same assertions against a real
//! server. The workflows need no model, and nothing that belongs to others is touched.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod support;

use std::time::Duration;

use comfyui::{
    ByteRange, Cancelled, Error, Event, FileRef, JobsQuery, Outcome, PromptId, Upload, Whereabouts,
};
use serde_json::json;
use support::{Server, fresh, picture, request, slow};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_workflow_is_rendered_and_its_file_fetched() {
    let server = Server::pick().await;
    let session = server.session().await;
    let graph = picture();
    let mut watch = session.submit(request(&graph)).await.expect("accepted");
    let (mut started, mut nodes, mut outcome) = (false, Vec::new(), None);
    while let Some(event) = watch.next().await {
        match event {
            Event::Started => started = true,
            Event::Node { node, .. } => nodes.push(node),
            Event::Finished(end) => outcome = Some(end),
            _ => {}
        }
    }
    let success = outcome.expect("an end").into_result(watch.prompt_id()).expect("success");
    assert!(started);
    nodes.sort();
    assert_eq!(nodes, ["1", "2", "3", "4"]);
    assert!(success.cached_nodes.is_empty() && success.node_errors.is_empty());
    let files: Vec<_> = success.outputs.files().collect();
    assert_eq!(files.len(), 1);
    assert!(files[0].subfolder.starts_with("client-test/") && files[0].filename.ends_with(".png"));

    let client = session.client();
    let file = FileRef::from(files[0]);
    let whole = client.view(&file).await.expect("the file");
    assert_eq!(whole.content_type.as_deref(), Some("image/png"));
    let (len, whole) = (whole.len, whole.bytes(1 << 20).await.expect("bytes"));
    assert_eq!(len, Some(whole.len() as u64));
    assert!(whole.starts_with(b"\x89PNG"));
    // ComfyUI writes the graph into the picture.
    assert!(whole.windows(6).any(|window| window == b"prompt"));
    let part = client.view_range(&file, ByteRange { start: 1, end: Some(3) }).await.expect("a part");
    assert!(part.partial);
    assert_eq!(part.bytes(10).await.expect("bytes"), b"PNG");
    client.delete_history(std::slice::from_ref(watch.prompt_id())).await.expect("deleted");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn numbers_and_key_order_reach_the_server_untouched() {
    let server = Server::pick().await;
    let session = server.session().await;
    let mut graph = picture().to_string();
    // A node that leads nowhere is neither checked nor converted: the server shows what it got.
    let orphan = r#"{"class_type": "KSampler", "inputs": {"zeta": 1, "seed": 18446744073709551615, "cfg": 1e-05, "alpha": 8.0}}"#;
    graph.replace_range(0..1, &format!("{{\"77\": {orphan}, "));
    let workflow = comfyui::Workflow::parse(&graph).expect("a graph");
    assert_eq!(workflow.as_str(), graph);
    let watch = session.submit(comfyui::PromptRequest::new(workflow)).await.expect("accepted");
    let success = watch.finish().await.expect("success");
    assert!(
        success.entry.prompt.prompt.get().contains(orphan),
        "the server has {}",
        success.entry.prompt.prompt.get()
    );
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn an_identical_prompt_is_served_from_the_cache_with_its_outputs() {
    let server = Server::pick().await;
    let session = server.session().await;
    let graph = picture();
    let first = session.submit(request(&graph)).await.expect("accepted").finish().await.expect("success");
    let again = session.submit(request(&graph)).await.expect("accepted").finish().await.expect("success");
    assert!(again.cached_nodes.len() >= 4, "{:?}", again.cached_nodes);
    let name = |success: &comfyui::Success| {
        success.outputs.files().map(|file| file.filename.clone()).collect::<Vec<_>>()
    };
    assert_eq!(name(&first), name(&again));
    assert!(again.missing_files.is_empty());
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_bad_graph_is_refused_with_the_nodes_at_fault() {
    let server = Server::pick().await;
    let client = server.client();
    let mut graph = picture();
    graph["2"]["inputs"]["width"] = json!("wide");
    graph["2"]["inputs"]["crop"] = json!("sideways");
    let error = client.submit(&request(&graph)).await.expect_err("refused");
    let Error::Refused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.error.kind, "prompt_outputs_failed_validation");
    let node = refusal.node_errors.get("2").expect("node 2 is at fault");
    assert_eq!(node.class_type, "ImageScale");
    assert_eq!(node.dependent_outputs, ["4"]);
    let mut faults: Vec<_> = node.errors.iter().map(|e| (e.kind.as_str(), e.input_name())).collect();
    faults.sort();
    assert_eq!(faults, [("invalid_input_type", Some("width")), ("value_not_in_list", Some("crop"))]);
    assert!(error.to_string().contains("node 2 (ImageScale)"), "{error}");

    let unknown = json!({"1": {"class_type": "NoSuchNodeAnywhere", "inputs": {}}});
    let error = client.submit(&request(&unknown)).await.expect_err("refused");
    assert!(matches!(error, Error::Refused(_)), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_half_bad_graph_runs_its_good_half_and_says_so() {
    let server = Server::pick().await;
    let session = server.session().await;
    let mut graph = picture();
    graph["9"] = json!({"class_type": "PreviewImage", "inputs": {}});
    let watch = session.submit(request(&graph)).await.expect("accepted");
    assert!(watch.accepted().expect("submitted here").node_errors.contains_key("9"));
    let success = watch.finish().await.expect("success");
    assert_eq!(success.outputs.nodes.len(), 1);
    assert!(success.node_errors.contains_key("9"));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_failing_node_is_reported_with_its_name_and_the_finished_branch_kept() {
    let server = Server::pick().await;
    let session = server.session().await;
    let mut graph = picture();
    // Leaves the output folder: noticed only when it runs.
    graph["5"] = json!({"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "../../outside"}});
    let watch = session.submit(request(&graph)).await.expect("accepted");
    let error = watch.finish().await.expect_err("a failure");
    let Error::ExecutionFailed(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.node_id.as_str(), failure.node_type.as_str()), ("5", "SaveImage"));
    assert!(!failure.traceback.is_empty() && !failure.out_of_memory);
    session.close().await;
    server.stop().await;
}

/// What the server says of a prompt repeats all that was sent with it.
#[tokio::test]
async fn a_prompt_that_was_sent_with_much_is_found_and_cancelled() {
    let server = Server::pick().await;
    let session = server.session().await;
    let client = session.client();
    let much = request(&slow(client).await).extra("much", json!("m".repeat(17 << 20)));
    let watch = session.submit(much).await.expect("accepted");
    let found = client.find(watch.prompt_id()).await.expect("found");
    assert!(matches!(found, Whereabouts::Pending | Whereabouts::Running), "{found:?}");
    let stopped = client.cancel(watch.prompt_id(), PATIENCE).await.expect("cancelled");
    let may_stop = client.capabilities().await.expect("capabilities").interrupt_by_id;
    assert!(!may_stop || matches!(stopped, Cancelled::Removed | Cancelled::Ended(_)), "{stopped:?}");
    client.delete_history(std::slice::from_ref(watch.prompt_id())).await.expect("deleted");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn running_and_waiting_prompts_are_found_and_cancelled_and_no_other() {
    let server = Server::pick().await;
    let session = server.session().await;
    let client = session.client().clone();
    let mut running = session.submit(request(&slow(&client).await)).await.expect("accepted");
    let waiting = session.submit(request(&picture())).await.expect("accepted");
    let survivor = session.submit(request(&picture())).await.expect("accepted");
    let wait_for_start = async {
        while let Some(event) = running.next().await {
            if matches!(event, Event::Started) {
                return;
            }
        }
        panic!("ended before it started");
    };
    tokio::time::timeout(PATIENCE, wait_for_start).await.expect("starts");

    assert!(matches!(client.find(running.prompt_id()).await.expect("an answer"), Whereabouts::Running));
    assert!(matches!(client.find(waiting.prompt_id()).await.expect("an answer"), Whereabouts::Pending));
    assert!(matches!(client.find(&PromptId::random()).await.expect("an answer"), Whereabouts::Absent));
    let queue = client.queue().await.expect("the queue");
    assert_eq!(&queue.running[0].prompt_id, running.prompt_id());
    assert!(client.queue_remaining().await.expect("a number") >= 3);

    let removed = client.cancel(waiting.prompt_id(), PATIENCE).await.expect("cancelled");
    assert!(matches!(removed, Cancelled::Removed), "{removed:?}");
    assert!(matches!(waiting.outcome().await, Outcome::Deleted));
    let capabilities = client.capabilities().await.expect("capabilities");
    let stopped = client.cancel(running.prompt_id(), PATIENCE).await.expect("cancelled");
    if capabilities.interrupt_by_id {
        assert!(matches!(stopped, Cancelled::Ended(_)), "{stopped:?}");
        assert!(matches!(running.outcome().await, Outcome::Interrupted(_)));
    } else {
        // An old server would stop whatever runs: nothing was sent.
        assert!(matches!(stopped, Cancelled::StillRunning), "{stopped:?}");
        assert!(matches!(running.outcome().await, Outcome::Succeeded(_)));
    }
    survivor.finish().await.expect("the third was not touched");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_of_somebody_else_can_be_followed_also_after_its_end() {
    let server = Server::pick().await;
    let client = server.client();
    let accepted = client.submit(&request(&picture())).await.expect("accepted");
    let session = server.session().await;
    session.watch(&accepted.prompt_id).await.finish().await.expect("success");
    session.watch(&accepted.prompt_id).await.finish().await.expect("success again, from the history");
    let unknown = session.watch(&PromptId::random()).await.finish().await.expect_err("unknown");
    assert!(matches!(unknown, Error::Lost { lost: comfyui::Lost::NeverSeen, .. }), "{unknown}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn the_history_is_listed_paged_and_deleted_one_by_one() {
    let server = Server::pick().await;
    let session = server.session().await;
    let client = session.client();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let watch = session.submit(request(&picture())).await.expect("accepted");
        ids.push(watch.prompt_id().clone());
        watch.finish().await.expect("success");
    }
    let newest = client.history_page(Some(2), None).await.expect("a page");
    assert!(newest.len() <= 2);
    let entry = client.history(&ids[0]).await.expect("an answer").expect("an entry");
    assert!(entry.duration_ms().is_some());
    if client.capabilities().await.expect("capabilities").jobs {
        let job = client.job(&ids[0]).await.expect("an answer").expect("a job");
        assert_eq!(job.status, comfyui::JobStatus::Completed);
        let page = client.jobs(&JobsQuery { limit: Some(1), ..JobsQuery::default() }).await.expect("a page");
        assert_eq!(page.jobs.len(), 1);
    } else {
        assert!(matches!(client.jobs(&JobsQuery::default()).await, Err(Error::Unsupported { .. })));
    }
    client.delete_history(&ids[..1]).await.expect("deleted");
    assert!(client.history(&ids[0]).await.expect("an answer").is_none());
    assert!(client.history(&ids[1]).await.expect("an answer").is_some());
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn files_go_in_under_the_name_the_server_gives_and_come_out_whole() {
    let server = Server::pick().await;
    let client = server.client();
    let name = format!("größe {}.bin", fresh());
    let folder = format!("client-test-{}", fresh());
    let upload = |bytes: &'static str| Upload::from_bytes(&name, bytes).subfolder(&folder);
    let first = client.upload(upload("one")).await.expect("stored");
    assert_eq!((first.filename.as_str(), first.subfolder.as_str()), (name.as_str(), folder.as_str()));
    let same = client.upload(upload("one")).await.expect("stored");
    assert_eq!(first, same, "the same bytes are the same file");
    let other = client.upload(upload("two")).await.expect("stored");
    assert_ne!(first.filename, other.filename);
    client.upload(upload("three").overwrite(true)).await.expect("stored");
    let bytes = client.view(&first).await.expect("the file").bytes(100).await.expect("bytes");
    assert_eq!(bytes, b"three");
    assert!(client.file_exists(&other).await.expect("an answer"));
    let missing = FileRef::output("no-such-file.png");
    assert!(!client.file_exists(&missing).await.expect("an answer"));
    assert!(matches!(client.view(&missing).await, Err(Error::NotFound { .. })));
    server.stop().await;
}

#[tokio::test]
async fn an_uploaded_picture_is_used_and_a_mask_put_on_it() {
    let server = Server::pick().await;
    let session = server.session().await;
    let client = session.client();
    let success =
        session.submit(request(&picture())).await.expect("accepted").finish().await.expect("success");
    let made = FileRef::from(success.outputs.files().next().expect("a file"));
    let png = client.view(&made).await.expect("the file").bytes(1 << 20).await.expect("bytes");
    let placed =
        client.upload(Upload::from_bytes(&format!("{}.png", fresh()), png.clone())).await.expect("stored");
    let graph = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": placed.in_workflow()}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
    });
    let success = session.submit(request(&graph)).await.expect("accepted").finish().await.expect("success");
    assert_eq!(success.outputs.files().count(), 1);
    let mask = Upload::from_bytes(&format!("{}-mask.png", fresh()), png);
    let masked = client.upload_mask(mask, &placed).await.expect("stored");
    assert!(client.file_exists(&masked).await.expect("an answer"));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn the_server_tells_about_itself() {
    let server = Server::pick().await;
    let client = server.client();
    let stats = client.system_stats().await.expect("stats");
    assert!(!stats.devices.is_empty());
    let capabilities = client.capabilities().await.expect("capabilities");
    assert!(capabilities.version.is_some());
    assert_eq!(client.features().await.expect("an answer").is_some(), capabilities.feature_flags);
    let info = client.object_info().await.expect("nodes");
    assert!(info.get("SaveImage").is_some());
    assert!(client.object_info_of("SaveImage").await.expect("an answer").is_some());
    assert!(client.object_info_of("NoSuchNode").await.expect("an answer").is_none());
    let folders = client.model_folders().await.expect("folders");
    assert!(folders.iter().any(|folder| folder == "checkpoints"));
    assert!(client.models("checkpoints").await.expect("an answer").is_some());
    assert!(client.models("no_such_folder").await.expect("an answer").is_none());
    client.embeddings().await.expect("embeddings");
    client.extensions().await.expect("extensions");
    client.free(true, false).await.expect("taken");
    server.stop().await;
}

#[tokio::test]
async fn settings_and_user_files_are_kept() {
    let server = Server::pick().await;
    let client = server.client();
    let key = format!("client.test.{}", fresh());
    client.set_setting(&key, &json!({"on": true})).await.expect("stored");
    assert_eq!(client.setting(&key).await.expect("a setting"), json!({"on": true}));
    assert!(client.settings().await.expect("settings").contains_key(&key));

    let path = format!("client-test-{}/a b.json", fresh());
    let moved = path.replace("a b", "c");
    assert!(client.get_userdata(&path).await.expect("an answer").is_none());
    client.put_userdata(&path, "{}".into(), false).await.expect("stored");
    assert_eq!(client.get_userdata(&path).await.expect("an answer").as_deref(), Some(b"{}".as_slice()));
    let conflict = client.put_userdata(&path, "[]".into(), false).await.expect_err("it exists");
    assert!(matches!(conflict, Error::Status { status, .. } if status == 409), "{conflict}");
    client.move_userdata(&path, &moved, false).await.expect("moved");
    let folder = path.split('/').next().expect("a folder");
    let files = client.list_userdata(folder).await.expect("an answer").expect("a folder");
    assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["c.json"]);
    client.delete_userdata(&moved).await.expect("deleted");
    assert!(matches!(client.delete_userdata(&moved).await, Err(Error::NotFound { .. })));
    assert!(client.list_userdata("no-such-folder").await.expect("an answer").is_none());
    server.stop().await;
}
