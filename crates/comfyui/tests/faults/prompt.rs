//! A prompt goes bad.

use super::*;

#[tokio::test]
async fn files_that_vanish_are_missing_when_they_are_fetched() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::files_gone().times(1));
    let success = session.submit(nap(0.0)).await.expect("accepted").finish().await.expect("success");
    let file = comfyui::FileRef::from(success.outputs.files().next().expect("a file"));
    assert!(!session.client().file_exists(&file).await.expect("an answer"));
    assert!(matches!(session.client().view(&file).await, Err(Error::NotFound { .. })));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn slow_nodes_are_waited_for() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::slow_nodes(5.0));
    let watch = session.submit(nap(0.3)).await.expect("accepted");
    assert!(
        matches!(end_of(watch, BOUND).await, Outcome::Succeeded(success) if success.duration_ms >= Some(1_000))
    );
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_stuck_in_a_node_ends_when_the_caller_says() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::stuck_node());
    let limit = Duration::from_millis(1_500);
    let watch = session.submit_for(nap(0.0), Some(limit)).await.expect("accepted");
    let outcome = end_of(watch, BOUND).await;
    assert!(matches!(outcome, Outcome::GaveUp(GaveUp::TimedOut { after }) if after == limit), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn lack_of_memory_is_its_own_error() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::out_of_memory().times(1));
    let error = session.submit(nap(0.0)).await.expect("accepted").finish().await.expect_err("no memory");
    assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    session.submit(nap(0.0)).await.expect("accepted").finish().await.expect("the next one has memory again");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_full_disk_names_the_node() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::disk_full().times(1));
    let error = session.submit(nap(0.0)).await.expect("accepted").finish().await.expect_err("no space");
    let Error::ExecutionFailed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.node_type, "SaveImage");
    assert!(failure.message.contains("No space left on device"), "{failure}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_cached_result_whose_files_are_gone_is_not_a_success() {
    let server = server().await;
    let session = session(&server).await;
    let graph = picture();
    let first = session.submit(request(&graph)).await.expect("accepted").finish().await.expect("success");
    let file = first.outputs.files().next().expect("a file");
    let path = server.sim().base_dir().join("output").join(&file.subfolder).join(&file.filename);
    std::fs::remove_file(&path).expect("the file is there");
    let error = session.submit(request(&graph)).await.expect("accepted").finish().await.expect_err("gone");
    let Error::OutputsGone { files, .. } = &error else { panic!("{error:?}") };
    assert_eq!(files[0].filename, file.filename);
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn deleted_from_the_queue_by_somebody_else_is_deleted() {
    let server = server().await;
    let session = session(&server).await;
    let (_running, _) = stuck(&server, &session).await;
    let pending = session.submit(nap(0.0)).await.expect("accepted");
    server.client().delete_pending(std::slice::from_ref(pending.prompt_id())).await.expect("deleted");
    assert!(matches!(end_of(pending, BOUND).await, Outcome::Deleted));
    session.close().await;
    server.stop().await;
}
