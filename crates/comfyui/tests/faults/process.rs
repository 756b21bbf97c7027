//! The server process goes bad.

use super::*;

#[tokio::test]
async fn a_restart_loses_the_prompt_and_the_client_knows() {
    let server = server().await;
    let session = session(&server).await;
    let mut running = session.submit(nap(600.0)).await.expect("accepted");
    let pending = session.submit(nap(0.0)).await.expect("accepted");
    started(&mut running).await;
    server.sim().faults().add(Fault::restart().down_for(Duration::from_millis(300)));
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
    let options = SessionOptions { unreachable_after: Duration::from_secs(3), ..brisk() };
    let session = session_with(&server, options).await;
    let mut watch = session.submit(nap(600.0)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::crash());
    let outcome = end_of(watch, BOUND).await;
    assert!(matches!(outcome, Outcome::GaveUp(GaveUp::Unreachable { .. })), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn refused_connections_for_a_while_change_nothing() {
    let server = server().await;
    let session = session(&server).await;
    let mut watch = session.submit(nap(0.5)).await.expect("accepted");
    started(&mut watch).await;
    server.sim().faults().add(Fault::refuse_connections().lasting(Duration::from_millis(1_200)));
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_died_between_two_prompts_is_told_from_a_busy_one() {
    let server = server().await;
    let options = SessionOptions { worker_dead_after: Duration::from_millis(800), ..brisk() };
    let session = session_with(&server, options).await;
    let (running, fault) = stuck(&server, &session).await;
    // The contract's killer: one id and one number several times. The worker dies when it compares them.
    let twice = nap(0.0).number(50.0);
    for _ in 0..5 {
        let _ = session.client().submit(&twice).await;
    }
    let waiting = session.submit(nap(0.0).number(60.0)).await.expect("accepted");
    server.sim().faults().remove(fault);
    assert!(matches!(end_of(running, BOUND).await, Outcome::Succeeded(_)));
    let outcome = end_of(waiting, BOUND).await;
    assert!(matches!(outcome, Outcome::Lost(Lost::WorkerDead)), "{outcome:?}");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_died_in_a_prompt_does_not_hold_those_behind_it_for_ever() {
    let server = server().await;
    let options = SessionOptions { stalled_after: Duration::from_secs(2), ..brisk() };
    let session = Session::open(server.client(), options).await.expect("a session");
    // The prompt that kills it is shown as running for ever.
    server.sim().faults().add(Fault::zombie_worker());
    let killer = session.submit(nap(0.0)).await.expect("accepted");
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
async fn a_version_change_behind_the_address_is_noticed() {
    let server = server().await;
    let session = session(&server).await;
    assert!(session.client().capabilities().await.expect("capabilities").jobs);
    server.sim().faults().add(Fault::version(Profile::V0_3_64));
    let deadline = Instant::now() + BOUND;
    while session.client().capabilities().await.map_or(true, |known| known.jobs) {
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
    let (watch, fault) = stuck(&server, &session).await;
    let id = watch.prompt_id().clone();
    session.close().await;
    assert!(matches!(end_of(watch, BOUND).await, Outcome::GaveUp(GaveUp::SessionClosed)));
    let late = session.watch(&id).await;
    assert!(matches!(end_of(late, BOUND).await, Outcome::GaveUp(GaveUp::SessionClosed)));
    let again = self::session(&server).await;
    server.sim().faults().remove(fault);
    assert!(matches!(end_of(again.watch(&id).await, BOUND).await, Outcome::Succeeded(_)));
    again.close().await;
    server.stop().await;
}
