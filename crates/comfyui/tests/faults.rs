//! The client under every fault the simulator can make: the right typed end, within the stated bound.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod support;

use std::time::{Duration, Instant};

use comfyui::{
    Client, Error, Event, GaveUp, Lost, Outcome, PromptId, PromptRequest, Session, SessionOptions, Watch,
};
use comfyui_sim::faults::{Fault, FaultKind};
use comfyui_sim::{Profile, SimConfig};
use serde_json::json;
use support::{Server, fresh, picture, request, workflow};

/// The defaults scaled down, so that bounds of a minute become bounds of a second or two.
fn brisk() -> SessionOptions {
    SessionOptions {
        survey: Duration::from_millis(500),
        survey_blind: Duration::from_millis(100),
        look_timeout: Duration::from_millis(1_000),
        worker_dead_after: Duration::from_millis(800),
        stalled_after: Duration::from_secs(60),
        unreachable_after: Duration::from_secs(3),
        greeting: Duration::from_millis(500),
        ping: Duration::from_millis(300),
        silence: Duration::from_millis(900),
        longest_backoff: Duration::from_millis(200),
        ..SessionOptions::default()
    }
}

async fn server() -> Server {
    Server::simulated(SimConfig::default()).await
}

async fn session(server: &Server) -> Session {
    let client = Client::builder(&server.url)
        .timeout(Duration::from_secs(2))
        .build()
        .expect("an address");
    Session::open(client, brisk()).await.expect("a session")
}

/// Sleeps in one node, then saves.
fn nap(seconds: f64) -> PromptRequest {
    let graph = json!({
        "1": {"class_type": "RigSleep", "inputs": {"seconds": seconds, "seed": rand_seed()}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": format!("nap/{}", fresh())}}
    });
    request(&graph)
}

fn rand_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// The end of a watch, which must come within `bound`; the bound is generous because CI machines are slow, and a hang is for ever.
async fn end_of(watch: Watch, bound: Duration) -> Outcome {
    let begun = Instant::now();
    match tokio::time::timeout(bound, watch.outcome()).await {
        Ok(outcome) => outcome,
        Err(_) => panic!("no end within {bound:?} (waited {:?})", begun.elapsed()),
    }
}

async fn started(watch: &mut Watch) {
    let wait = async {
        while let Some(event) = watch.next().await {
            match event {
                Event::Started => return,
                Event::Finished(outcome) => panic!("ended too early: {outcome:?}"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("it starts");
}

/// Which test shows the client under which fault. A new kind of fault does not compile until it has one.
#[test]
fn every_fault_has_its_test() {
    let test_of = |kind: &FaultKind| match kind {
        FaultKind::Slow { .. } | FaultKind::Garbage | FaultKind::CutAnswer => {
            "failing_slow_and_garbled_answers_are_worked_through"
        }
        FaultKind::Hang => "requests_fail_typed_and_in_time",
        FaultKind::Reset | FaultKind::Error { .. } => {
            "a_request_that_never_arrived_is_sent_again_and_runs_once"
        }
        FaultKind::HalfOpen | FaultKind::HalfOpenWebsocket { .. } => "half_open_connections_are_noticed",
        FaultKind::LoseAnswer | FaultKind::ErrorAfter { .. } => {
            "an_answer_lost_after_accepting_is_found_again_and_nothing_runs_twice"
        }
        FaultKind::MuteWebsocket { .. } => "a_mute_websocket_delays_and_does_not_hang",
        FaultKind::DropWebsocket { .. } => "a_dropped_websocket_is_survived_and_reopened",
        FaultKind::Refuse => "refused_connections_for_a_while_change_nothing",
        FaultKind::Restart { .. } => "a_restart_loses_the_prompt_and_the_client_knows",
        FaultKind::Crash { .. } => "a_crashed_server_is_given_up_after_the_bound",
        FaultKind::Version { .. } => "a_version_change_behind_the_address_is_noticed",
        FaultKind::ZombieWorker => "a_worker_that_died_in_a_prompt_does_not_hold_those_behind_it_for_ever",
        FaultKind::OutOfMemory => "lack_of_memory_is_its_own_error",
        FaultKind::DiskFull => "a_full_disk_names_the_node",
        FaultKind::FilesGone => "files_that_vanish_are_missing_when_they_are_fetched",
        FaultKind::StuckNode => "a_prompt_stuck_in_a_node_ends_when_the_caller_says",
        FaultKind::CrashInNode => "a_crash_in_the_middle_of_a_prompt_is_a_restart_to_the_client",
        FaultKind::SlowNodes { .. } => "slow_nodes_are_waited_for",
    };
    let source = include_str!("faults.rs");
    for kind in [
        FaultKind::Hang,
        FaultKind::FilesGone,
        FaultKind::CrashInNode,
        FaultKind::ZombieWorker,
    ] {
        assert!(
            source.contains(&format!("async fn {}()", test_of(&kind))),
            "{kind:?}"
        );
    }
}

const BOUND: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_mute_websocket_delays_and_does_not_hang() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::mute_websocket());
    for _ in 0..2 {
        let watch = session.submit(nap(0.2)).await.expect("accepted");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_dropped_websocket_is_survived_and_reopened() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(1.0)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::drop_websocket().times(1));
    let (mut lost, mut back, mut end) = (false, false, None);
    while let Some(event) = watch.next().await {
        match event {
            Event::Connection { up: false } => lost = true,
            Event::Connection { up: true } => back = true,
            Event::Finished(outcome) => end = Some(outcome),
            _ => {}
        }
    }
    assert!(lost && back, "lost {lost}, back {back}");
    assert!(matches!(end, Some(Outcome::Succeeded(_))));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn without_any_websocket_everything_still_ends() {
    let server = server().await;
    server.sim().faults().add(Fault::error(500).on("GET /ws"));
    let session = session(&server).await;
    assert!(!session.is_connected());
    let watch = session.submit(nap(0.1)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn half_open_connections_are_noticed() {
    let server = server().await;
    let session = session(&server).await;
    // The socket swallows everything, pings included; so does one connection that asks about the queue.
    let mut watch = session.submit(nap(1.5)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::half_open_websocket().times(1));
    server
        .sim()
        .faults()
        .add(Fault::half_open().on("GET /jobs").times(1));
    let (mut lost, mut back, mut end) = (false, false, None);
    while let Some(event) = tokio::time::timeout(BOUND, watch.next()).await.expect("news") {
        match event {
            Event::Connection { up: false } => lost = true,
            Event::Connection { up: true } => back = true,
            Event::Finished(outcome) => end = Some(outcome),
            _ => {}
        }
    }
    assert!(matches!(end, Some(Outcome::Succeeded(_))), "{end:?}");
    assert!(
        lost && back,
        "the silence was noticed ({lost}) and a new socket opened ({back})"
    );
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_forgotten_client_id_is_replaced() {
    let server = server().await;
    let name = comfyui::ClientId::random();
    // The server's trap: when the older of two sockets with one id goes, the newer one is forgotten, and stays open.
    let url = format!("{}/ws?clientId={name}", server.url.replace("http://", "ws://"));
    let (older, _) = tokio_tungstenite::connect_async(&url).await.expect("a socket");
    let options = SessionOptions {
        client_id: Some(name.clone()),
        ..brisk()
    };
    let session = Session::open(server.client(), options).await.expect("a session");
    drop(older);
    let deadline = Instant::now() + BOUND;
    while session.client_id() == name {
        assert!(Instant::now() < deadline, "still believes in its name");
        let watch = session.submit(nap(1.0)).await.expect("accepted");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    }
    while !session.is_connected() {
        assert!(Instant::now() < deadline, "no socket under the new name");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut watch = session.submit(nap(0.0)).await.expect("accepted");
    let mut nodes = 0;
    while let Some(event) = watch.next().await {
        nodes += usize::from(matches!(event, Event::Node { .. }));
    }
    assert_eq!(nodes, 2, "frames arrive again");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn an_answer_lost_after_accepting_is_found_again_and_nothing_runs_twice() {
    let server = server().await;
    let session = session(&server).await;
    for fault in [Fault::lose_answer(), Fault::error_after(500), Fault::cut_answer()] {
        server
            .sim()
            .faults()
            .add(fault.clone().on("POST /prompt").times(1));
        let request = nap(0.05);
        let id = request.prompt_id().clone();
        let watch = session.submit(request).await.expect("found");
        assert_eq!(watch.prompt_id(), &id, "{fault:?}");
        assert!(
            watch.accepted().expect("submitted here").found_after_doubt,
            "{fault:?}"
        );
        assert!(
            matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)),
            "{fault:?}"
        );
        assert_eq!(
            server.sim().stats().by_prompt.get(id.as_str()),
            Some(&1),
            "{fault:?}"
        );
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_never_arrived_is_sent_again_and_runs_once() {
    let server = server().await;
    let session = session(&server).await;
    for fault in [Fault::reset(), Fault::error(500)] {
        server
            .sim()
            .faults()
            .add(fault.clone().on("POST /prompt").times(1));
        let request = nap(0.05);
        let id = request.prompt_id().clone();
        let watch = session.submit(request).await.expect("accepted at the second try");
        assert!(
            matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)),
            "{fault:?}"
        );
        assert_eq!(
            server.sim().stats().by_prompt.get(id.as_str()),
            Some(&1),
            "{fault:?}"
        );
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn when_the_server_cannot_be_asked_the_submission_is_uncertain() {
    let server = server().await;
    let client = Client::builder(&server.url)
        .timeout(Duration::from_millis(300))
        .retries(0)
        .build()
        .expect("an address");
    client.capabilities().await.expect("asked before");
    server
        .sim()
        .faults()
        .add(Fault::lose_answer().on("POST /prompt").times(1));
    server.sim().faults().add(Fault::hang().on("GET /**"));
    let request = nap(0.0);
    let error = client.submit(&request).await.expect_err("nobody knows");
    let Error::Uncertain { prompt_id, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(prompt_id, request.prompt_id());
    server.sim().faults().clear();
    assert!(!matches!(
        client.find(prompt_id).await.expect("an answer"),
        comfyui::Whereabouts::Absent
    ));
    server.stop().await;
}

#[tokio::test]
async fn a_restart_loses_the_prompt_and_the_client_knows() {
    let server = server().await;
    let session = session(&server).await;
    let mut running = session.submit(nap(30.0)).await.expect("accepted");
    let pending = session.submit(nap(0.0)).await.expect("accepted");
    started(&mut running).await;
    server
        .sim()
        .faults()
        .add(Fault::restart().down_for(Duration::from_millis(300)));
    for watch in [running, pending] {
        let outcome = end_of(watch, BOUND).await;
        assert!(matches!(outcome, Outcome::Lost(Lost::Restarted)), "{outcome:?}");
    }
    // And the session goes on.
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_crashed_server_is_given_up_after_the_bound() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(30.0)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::crash());
    let outcome = end_of(watch, BOUND).await;
    assert!(
        matches!(outcome, Outcome::GaveUp(GaveUp::Unreachable { .. })),
        "{outcome:?}"
    );
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn refused_connections_for_a_while_change_nothing() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(0.5)).await.expect("accepted");
    started(&mut watch).await;
    server
        .sim()
        .faults()
        .add(Fault::refuse_connections().lasting(Duration::from_millis(1_200)));
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_died_between_two_prompts_is_told_from_a_busy_one() {
    let server = server().await;
    let session = session(&server).await;
    let mut running = session.submit(nap(0.5)).await.expect("accepted");
    started(&mut running).await;
    // The contract's killer: one id and one number several times. The worker dies when it compares them.
    let twice = nap(0.0).number(50.0);
    for _ in 0..5 {
        let _ = session.client().submit(&twice).await;
    }
    let waiting = session.submit(nap(0.0).number(60.0)).await.expect("accepted");
    assert!(matches!(end_of(running, BOUND).await, Outcome::Succeeded(_)));
    let outcome = end_of(waiting, BOUND).await;
    assert!(matches!(outcome, Outcome::Lost(Lost::WorkerDead)), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_died_in_a_prompt_does_not_hold_those_behind_it_for_ever() {
    let server = server().await;
    let options = SessionOptions {
        stalled_after: Duration::from_secs(2),
        ..brisk()
    };
    let session = Session::open(server.client(), options).await.expect("a session");
    // Another of the contract's killers: accepted, and shown as running for ever.
    let killer =
        json!({"1": {"class_type": "RigText", "inputs": {"text": fresh()}}, "9": {"class_type": "RigText"}});
    let killer = session
        .submit(PromptRequest::new(workflow(&killer)))
        .await
        .expect("accepted");
    let waiting = session.submit(nap(0.0)).await.expect("accepted");
    for watch in [killer, waiting] {
        let outcome = end_of(watch, BOUND).await;
        assert!(matches!(outcome, Outcome::Lost(Lost::Stalled)), "{outcome:?}");
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_prompt_is_a_restart_to_the_client() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::crash_in_node().times(1));
    let watch = session.submit(nap(0.3)).await.expect("accepted");
    server.sim().wait_for(comfyui_sim::Condition::Down).await;
    server.sim().revive().await;
    let outcome = end_of(watch, BOUND).await;
    assert!(matches!(outcome, Outcome::Lost(Lost::Restarted)), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn files_that_vanish_are_missing_when_they_are_fetched() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::files_gone().times(1));
    let success = session
        .submit(nap(0.0))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect("success");
    let file = comfyui::FileRef::from(success.outputs.files().next().expect("a file"));
    assert!(!session.client().file_exists(&file).await.expect("an answer"));
    assert!(matches!(
        session.client().view(&file).await,
        Err(Error::NotFound { .. })
    ));
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
    assert!(
        matches!(outcome, Outcome::GaveUp(GaveUp::TimedOut { after }) if after == limit),
        "{outcome:?}"
    );
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn lack_of_memory_is_its_own_error() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::out_of_memory().times(1));
    let error = session
        .submit(nap(0.0))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect_err("no memory");
    assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    session
        .submit(nap(0.0))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect("the next one has memory again");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_full_disk_names_the_node() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::disk_full().times(1));
    let error = session
        .submit(nap(0.0))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect_err("no space");
    let Error::ExecutionFailed(failure) = &error else {
        panic!("{error:?}")
    };
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
    let first = session
        .submit(request(&graph))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect("success");
    let file = first.outputs.files().next().expect("a file");
    let path = server
        .sim()
        .base_dir()
        .join("output")
        .join(&file.subfolder)
        .join(&file.filename);
    std::fs::remove_file(&path).expect("the file is there");
    let error = session
        .submit(request(&graph))
        .await
        .expect("accepted")
        .finish()
        .await
        .expect_err("gone");
    let Error::OutputsGone { files, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(files[0].filename, file.filename);
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn deleted_from_the_queue_by_somebody_else_is_deleted() {
    let server = server().await;
    let session = session(&server).await;
    let mut running = session.submit(nap(2.0)).await.expect("accepted");
    started(&mut running).await;
    let pending = session.submit(nap(0.0)).await.expect("accepted");
    server
        .client()
        .delete_pending(std::slice::from_ref(pending.prompt_id()))
        .await
        .expect("deleted");
    assert!(matches!(end_of(pending, BOUND).await, Outcome::Deleted));
    session.close().await;
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
    faults.add(
        Fault::slow(Duration::from_millis(300))
            .on("GET /history/*")
            .times(1),
    );
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn requests_fail_typed_and_in_time() {
    let server = server().await;
    let client = Client::builder(&server.url)
        .timeout(Duration::from_millis(300))
        .retries(1)
        .build()
        .expect("an address");
    let faults = server.sim().faults();

    let id = faults.add(Fault::hang().on("GET /queue"));
    assert!(matches!(client.queue().await, Err(Error::TimedOut { .. })));
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
    assert!(
        matches!(error, Error::Unreachable { sent: false, .. }),
        "{error:?}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_download_that_stands_still_ends() {
    let server = server().await;
    let client = Client::builder(&server.url)
        .timeout(Duration::from_millis(400))
        .retries(0)
        .build()
        .expect("an address");
    let path = server.sim().base_dir().join("output/big.bin");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    server
        .sim()
        .faults()
        .add(Fault::cut_answer().on("GET /view").times(1));
    let download = client.view(&comfyui::FileRef::output("big.bin")).await;
    let end = match download {
        Ok(download) => download.bytes(2 << 20).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(end.is_err());
    let whole = client
        .view(&comfyui::FileRef::output("big.bin"))
        .await
        .expect("the file");
    assert_eq!(whole.bytes(2 << 20).await.expect("bytes").len(), 1 << 20);
    server.stop().await;
}

#[tokio::test]
async fn old_servers_choose_the_id_and_are_found_by_the_marker() {
    for profile in [Profile::V0_3_30, Profile::V0_3_64] {
        let server = Server::simulated(SimConfig {
            profile,
            ..SimConfig::default()
        })
        .await;
        let session = session(&server).await;
        let own_id = session
            .client()
            .capabilities()
            .await
            .expect("capabilities")
            .own_prompt_id;
        assert_eq!(own_id, profile != Profile::V0_3_30);
        let request = nap(0.05).marker("studio", json!({"task": fresh()}));
        let sent = request.prompt_id().clone();
        server
            .sim()
            .faults()
            .add(Fault::lose_answer().on("POST /prompt").times(1));
        let watch = session.submit(request).await.expect("found by its marker");
        assert_eq!(*watch.prompt_id() == sent, own_id);
        assert!(
            matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)),
            "{profile:?}"
        );
        assert_eq!(server.sim().stats().executions_total, 1, "{profile:?}");
        session.close().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn an_old_server_is_never_sent_an_interrupt_that_could_hit_another() {
    let server = Server::simulated(SimConfig {
        profile: Profile::V0_3_30,
        ..SimConfig::default()
    })
    .await;
    let session = session(&server).await;
    let mut foreign = session.submit(nap(0.6)).await.expect("accepted");
    started(&mut foreign).await;
    let other = PromptId::random();
    assert_eq!(
        session.client().interrupt(&other).await.expect("an answer"),
        comfyui::Interrupt::WouldHitOthers
    );
    let old = comfyui::OldInterrupt::WhenAlone;
    assert_eq!(
        session
            .client()
            .interrupt_with(&other, old)
            .await
            .expect("an answer"),
        comfyui::Interrupt::WouldHitOthers
    );
    foreign.finish().await.expect("untouched");
    // Alone on the server it may be stopped, when the caller says so.
    let steps = json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": 400, "step_ms": 20, "preview": "none", "preview_size": 64, "seed": rand_seed()}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}
    });
    let mut alone = session.submit(request(&steps)).await.expect("accepted");
    started(&mut alone).await;
    session
        .client()
        .cancel_with(alone.prompt_id(), BOUND, old)
        .await
        .expect("cancelled");
    assert!(matches!(end_of(alone, BOUND).await, Outcome::Interrupted(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_version_change_behind_the_address_is_noticed() {
    let server = server().await;
    let session = session(&server).await;
    assert!(session.client().capabilities().await.expect("capabilities").jobs);
    server.sim().faults().add(Fault::version(Profile::V0_3_64));
    let deadline = Instant::now() + BOUND;
    while session
        .client()
        .capabilities()
        .await
        .map_or(true, |known| known.jobs)
    {
        assert!(Instant::now() < deadline, "still believes in /api/jobs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let watch = session.submit(nap(0.0)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn closing_a_session_ends_its_watches_and_touches_nothing() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(0.5)).await.expect("accepted");
    let id = watch.prompt_id().clone();
    started(&mut watch).await;
    session.close().await;
    assert!(matches!(
        end_of(watch, BOUND).await,
        Outcome::GaveUp(GaveUp::SessionClosed)
    ));
    let late = session.watch(&id).await;
    assert!(matches!(
        end_of(late, BOUND).await,
        Outcome::GaveUp(GaveUp::SessionClosed)
    ));
    let again = self::session(&server).await;
    assert!(matches!(
        end_of(again.watch(&id).await, BOUND).await,
        Outcome::Succeeded(_)
    ));
    again.close().await;
    server.stop().await;
}

#[tokio::test]
async fn many_faults_at_random_lose_and_double_nothing() {
    let server = server().await;
    let session = session(&server).await;
    let faults = server.sim().faults();
    faults.add(Fault::lose_answer().on("POST /prompt").probability(0.2).seed(1));
    faults.add(
        Fault::error_after(500)
            .on("POST /prompt")
            .probability(0.1)
            .seed(2),
    );
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
