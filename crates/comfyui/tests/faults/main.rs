//! The client under every fault the simulator can make: the right typed end, within the stated bound.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

#[path = "../support/mod.rs"]
mod support;

mod excess;
mod process;
mod prompt;
mod socket;
mod submission;
mod versions;

use std::time::{Duration, Instant};

use comfyui::{
    Client, Error, Event, GaveUp, Lost, Outcome, PromptId, PromptRequest, Session, SessionOptions, Watch,
};
use comfyui_sim::faults::{Fault, FaultId, FaultKind};
use comfyui_sim::{Profile, SimConfig};
use serde_json::json;
use support::{Server, fresh, picture, request};

/// The pauses of the defaults scaled down, so that the tests do not take minutes. What ends something stays as patient
/// as it is: a busy machine must not look like a broken server. Tests of those ends set them.
fn brisk() -> SessionOptions {
    SessionOptions {
        survey: Duration::from_millis(500),
        survey_blind: Duration::from_millis(100),
        look_timeout: Duration::from_secs(2),
        greeting: Duration::from_secs(2),
        longest_backoff: Duration::from_millis(200),
        ..SessionOptions::default()
    }
}

async fn server() -> Server {
    Server::simulated(SimConfig::default()).await
}

async fn session(server: &Server) -> Session {
    session_with(server, brisk()).await
}

async fn session_with(server: &Server, options: SessionOptions) -> Session {
    let client = Client::builder(&server.url).timeout(BOUND).build().expect("an address");
    Session::open(client, options).await.expect("a session")
}

/// A prompt that is in its first node until the fault is removed.
async fn stuck(server: &Server, session: &Session) -> (Watch, FaultId) {
    let fault = server.sim().faults().add(Fault::stuck_node().times(1));
    let mut watch = session.submit(nap(0.0)).await.expect("accepted");
    started(&mut watch).await;
    (watch, fault)
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
    tokio::time::timeout(BOUND, wait).await.expect("it starts");
}

/// Generous, because CI machines are slow, and a hang is for ever.
const BOUND: Duration = Duration::from_secs(90);

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
        FaultKind::Endless { .. } | FaultKind::GzipBomb { .. } => {
            "an_answer_without_end_is_cut_off_on_every_route"
        }
        FaultKind::HugeObjectInfo { .. } => {
            "the_default_bounds_take_the_real_answers_and_refuse_two_hundred_thousand_nodes"
        }
        FaultKind::HugeHistory { .. } => {
            "a_history_entry_that_is_too_large_is_the_end_of_its_prompt_and_of_no_other"
        }
        FaultKind::Trickle { .. } => "an_answer_that_comes_byte_by_byte_has_a_time_of_its_own",
        FaultKind::FloodWebsocket { .. } => {
            "a_flood_on_the_socket_is_read_slowly_and_prompts_end_all_the_same"
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
    let sources = [
        include_str!("excess.rs"),
        include_str!("socket.rs"),
        include_str!("submission.rs"),
        include_str!("process.rs"),
        include_str!("prompt.rs"),
        include_str!("versions.rs"),
    ];
    let one_of_each = [
        Fault::slow(BOUND),
        Fault::hang(),
        Fault::reset(),
        Fault::error(500),
        Fault::half_open(),
        Fault::lose_answer(),
        Fault::error_after(500),
        Fault::garbage(),
        Fault::cut_answer(),
        Fault::endless(),
        Fault::gzip_bomb(),
        Fault::huge_object_info(1),
        Fault::huge_history(1),
        Fault::trickle(BOUND),
        Fault::flood_websocket(1),
        Fault::mute_websocket(),
        Fault::drop_websocket(),
        Fault::half_open_websocket(),
        Fault::refuse_connections(),
        Fault::restart(),
        Fault::crash(),
        Fault::version(Profile::V0_3_30),
        Fault::zombie_worker(),
        Fault::out_of_memory(),
        Fault::disk_full(),
        Fault::files_gone(),
        Fault::stuck_node(),
        Fault::crash_in_node(),
        Fault::slow_nodes(2.0),
    ];
    for fault in one_of_each {
        let test = format!("async fn {}()", test_of(fault.kind()));
        assert!(sources.iter().any(|source| source.contains(&test)), "no test for {fault:?}");
    }
}
