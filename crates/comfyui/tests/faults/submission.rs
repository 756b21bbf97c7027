//! Requests and their answers go bad.

use super::*;

#[tokio::test]
async fn an_answer_lost_after_accepting_is_found_again_and_nothing_runs_twice() {
    let server = server().await;
    let session = session(&server).await;
    for fault in [Fault::lose_answer(), Fault::error_after(500), Fault::cut_answer()] {
        server.sim().faults().add(fault.clone().on("POST /prompt").times(1));
        let request = nap(0.05);
        let id = request.prompt_id().clone();
        let watch = session.submit(request).await.expect("found");
        assert_eq!(watch.prompt_id(), &id, "{fault:?}");
        assert!(watch.accepted().expect("submitted here").found_after_doubt, "{fault:?}");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)), "{fault:?}");
        assert_eq!(server.sim().stats().by_prompt.get(id.as_str()), Some(&1), "{fault:?}");
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_never_arrived_is_sent_again_and_runs_once() {
    let server = server().await;
    let session = session(&server).await;
    for fault in [Fault::reset(), Fault::error(500)] {
        server.sim().faults().add(fault.clone().on("POST /prompt").times(1));
        let request = nap(0.05);
        let id = request.prompt_id().clone();
        let watch = session.submit(request).await.expect("accepted at the second try");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)), "{fault:?}");
        assert_eq!(server.sim().stats().by_prompt.get(id.as_str()), Some(&1), "{fault:?}");
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn when_the_server_cannot_be_asked_the_submission_is_uncertain() {
    let server = server().await;
    let client =
        Client::builder(&server.url).timeout(Duration::from_secs(3)).retries(0).build().expect("an address");
    client.capabilities().await.expect("asked before");
    server.sim().faults().add(Fault::lose_answer().on("POST /prompt").times(1));
    server.sim().faults().add(Fault::hang().on("GET /**"));
    let request = nap(0.0);
    let error = client.submit(&request).await.expect_err("nobody knows");
    let Error::Uncertain { prompt_id, .. } = &error else { panic!("{error:?}") };
    assert_eq!(prompt_id, request.prompt_id());
    server.sim().faults().clear();
    assert!(!matches!(client.find(prompt_id).await.expect("an answer"), comfyui::Whereabouts::Absent));
    server.stop().await;
}

#[tokio::test]
async fn failing_slow_and_garbled_answers_are_worked_through() {
    let server = server().await;
    let session = session(&server).await;
    let faults = server.sim().faults();
    faults.add(Fault::error(500).on("GET /history/*").times(2));
    faults.add(Fault::garbage().on("GET /history/*").times(2));
    faults.add(Fault::cut_answer().on("GET /history/*").times(1));
    faults.add(Fault::hang().on("GET /history/*").times(1));
    faults.add(Fault::slow(Duration::from_millis(300)).on("GET /history/*").times(1));
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn requests_fail_typed_and_in_time() {
    let server = server().await;
    let client = |timeout| Client::builder(&server.url).timeout(timeout).retries(1).build();
    let hasty = client(Duration::from_millis(300)).expect("an address");
    let client = client(BOUND).expect("an address");
    let faults = server.sim().faults();

    let id = faults.add(Fault::hang().on("GET /queue"));
    assert!(matches!(hasty.queue().await, Err(Error::TimedOut { .. })));
    faults.remove(id);
    let id = faults.add(Fault::garbage().on("GET /queue"));
    assert!(matches!(client.queue().await, Err(Error::Protocol { .. })));
    faults.remove(id);
    let id = faults.add(Fault::error(503).on("GET /queue"));
    assert!(matches!(client.queue().await, Err(Error::Status { status, .. }) if status == 503));
    assert!(faults.hits(id) >= 2, "a safe call is repeated");
    faults.remove(id);
    faults.add(Fault::error(500).on("GET /queue").times(1));
    client.queue().await.expect("the second try");

    faults.add(Fault::crash());
    let error = client.queue().await.expect_err("nobody there");
    assert!(matches!(error, Error::Unreachable { sent: false, .. }), "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_download_that_stands_still_ends() {
    let server = server().await;
    let client =
        Client::builder(&server.url).timeout(Duration::from_secs(5)).retries(0).build().expect("an address");
    let path = server.sim().base_dir().join("output/big.bin");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    server.sim().faults().add(Fault::cut_answer().on("GET /view").times(1));
    let download = client.view(&comfyui::FileRef::output("big.bin")).await;
    let end = match download {
        Ok(download) => download.bytes(2 << 20).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(end.is_err());
    let whole = client.view(&comfyui::FileRef::output("big.bin")).await.expect("the file");
    assert_eq!(whole.bytes(2 << 20).await.expect("bytes").len(), 1 << 20);
    server.stop().await;
}

#[tokio::test]
async fn many_faults_at_random_lose_and_double_nothing() {
    let server = server().await;
    let session = session(&server).await;
    let faults = server.sim().faults();
    faults.add(Fault::lose_answer().on("POST /prompt").probability(0.2).seed(1));
    faults.add(Fault::error_after(500).on("POST /prompt").probability(0.1).seed(2));
    faults.add(Fault::reset().on("POST /prompt").probability(0.1).seed(3));
    faults.add(Fault::error(500).on("GET /history/*").probability(0.2).seed(4));
    faults.add(Fault::garbage().on("GET /api/jobs*").probability(0.2).seed(5));
    let mut ids = Vec::new();
    let mut watches = Vec::new();
    for _ in 0..40 {
        let request = nap(0.0);
        ids.push(request.prompt_id().clone());
        watches.push(session.submit(request).await.expect("accepted"));
    }
    for watch in watches {
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    }
    let stats = server.sim().stats();
    for id in ids {
        assert_eq!(stats.by_prompt.get(id.as_str()), Some(&1), "{id}");
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_submission_that_takes_longer_than_a_survey_is_not_taken_for_lost() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::slow(Duration::from_millis(1_500)).on("POST /prompt").times(1));
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_submission_without_an_answer_in_time_is_never_sent_twice() {
    let server = server().await;
    let client = Client::builder(&server.url).timeout(Duration::from_secs(2)).build().expect("an address");
    client.capabilities().await.expect("asked before");
    let slow = server.sim().faults().add(Fault::slow(BOUND).on("POST /prompt"));
    let error = client.submit(&nap(0.0)).await.expect_err("no answer");
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    assert_eq!(server.sim().faults().hits(slow), 1, "a slow server may still take it");
    server.stop().await;
}

#[tokio::test]
async fn an_unreadable_answer_is_looked_up() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::garbage().on("POST /prompt").times(1));
    let watch = session.submit(nap(0.0)).await.expect("found");
    assert!(watch.accepted().expect("submitted here").found_after_doubt);
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    assert_eq!(server.sim().stats().executions_total, 1);
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn the_404_of_a_proxy_does_not_mean_that_the_prompt_is_absent() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::lose_answer().on("POST /prompt").times(1));
    server.sim().faults().add(Fault::error(404).on("GET /jobs/*"));
    let watch = session.submit(nap(0.0)).await.expect("found by queue and history");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    assert_eq!(server.sim().stats().executions_total, 1);
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_whose_history_cannot_be_read_is_given_up() {
    let server = server().await;
    let options = SessionOptions { unreachable_after: Duration::from_secs(3), ..brisk() };
    let session = session_with(&server, options).await;
    server.sim().faults().add(Fault::error(500).on("GET /history/*"));
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    let outcome = end_of(watch, BOUND).await;
    assert!(matches!(outcome, Outcome::GaveUp(GaveUp::Unreachable { .. })), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_cancellation_keeps_its_bound() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(600.0)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::hang().on("GET /**"));
    let begun = Instant::now();
    let end = session.client().cancel(watch.prompt_id(), Duration::from_millis(500)).await;
    assert!(!matches!(end, Ok(comfyui::Cancelled::Ended(_) | comfyui::Cancelled::Removed)), "{end:?}");
    // Long before a single request is given up.
    assert!(begun.elapsed() < BOUND / 2, "{:?}", begun.elapsed());
    session.close().await;
    server.stop().await;
}
