//! The server is old.

use super::*;

#[tokio::test]
async fn old_servers_choose_the_id_and_are_found_by_the_marker() {
    for profile in [Profile::V0_3_30, Profile::V0_3_64] {
        let server = Server::simulated(SimConfig { profile, ..SimConfig::default() }).await;
        let session = session(&server).await;
        let own_id = session.client().capabilities().await.expect("capabilities").own_prompt_id;
        assert_eq!(own_id, profile != Profile::V0_3_30);
        let request = nap(0.05).marker("studio", json!({"task": fresh()}));
        let sent = request.prompt_id().clone();
        server.sim().faults().add(Fault::lose_answer().on("POST /prompt").times(1));
        let watch = session.submit(request).await.expect("found by its marker");
        assert_eq!(*watch.prompt_id() == sent, own_id);
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)), "{profile:?}");
        assert_eq!(server.sim().stats().executions_total, 1, "{profile:?}");
        session.close().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn an_old_server_is_never_sent_an_interrupt_that_could_hit_another() {
    let server = Server::simulated(SimConfig { profile: Profile::V0_3_30, ..SimConfig::default() }).await;
    let session = session(&server).await;
    let (foreign, fault) = stuck(&server, &session).await;
    let other = PromptId::random();
    assert_eq!(
        session.client().interrupt(&other).await.expect("an answer"),
        comfyui::Interrupt::WouldHitOthers
    );
    let old = comfyui::OldInterrupt::WhenAlone;
    assert_eq!(
        session.client().interrupt_with(&other, old).await.expect("an answer"),
        comfyui::Interrupt::WouldHitOthers
    );
    server.sim().faults().remove(fault);
    foreign.finish().await.expect("untouched");
    // Alone on the server it may be stopped, when the caller says so.
    let steps = json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": 30_000, "step_ms": 20, "preview": "none", "preview_size": 64, "seed": rand_seed()}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}
    });
    let mut alone = session.submit(request(&steps)).await.expect("accepted");
    started(&mut alone).await;
    session.client().cancel_with(alone.prompt_id(), BOUND, old).await.expect("cancelled");
    assert!(matches!(end_of(alone, BOUND).await, Outcome::Interrupted(_)));
    session.close().await;
    server.stop().await;
}
