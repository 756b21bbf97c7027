//! Clients that do not stay to the end.

use std::time::Duration;

use comfyui_sim::faults::Fault;
use remuda_core::Status;
use remuda_store::ListQuery;
use remuda_testbed::wait;
use serde_json::json;

use crate::rig::{BOUND, Ranch, long, picture};
use crate::support::{Gateway, json as answer};

#[tokio::test]
async fn a_client_that_hangs_up_in_mid_render_leaves_nothing_running() {
    let ranch = Ranch::start(1).await;
    let asked = tokio::spawn(ranch.gateway.sync("?timeout=600", &json!({"prompt": long(600.0)})).send());
    ranch.rendering().await;
    asked.abort();
    ranch.gateway.until(Status::Cancelled).await;
    ranch.at_rest().await;
    ranch.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_while_its_prompt_waits_leaves_nothing_queued() {
    let gateway = Gateway::patient().await;
    let asked = tokio::spawn(gateway.sync("?timeout=600", &json!({"prompt": picture()})).send());
    gateway.until(Status::Pending).await;
    asked.abort();
    gateway.until(Status::Cancelled).await;
}

#[tokio::test]
async fn many_that_hang_up_at_any_moment_leave_nothing() {
    let ranch = Ranch::start(2).await;
    for n in 0..20_u64 {
        let asked = tokio::spawn(ranch.gateway.sync("?timeout=600", &json!({"prompt": long(600.0)})).send());
        // Another moment for each: while it is read, submitted, placed, rendered.
        tokio::time::sleep(Duration::from_millis(n * n / 4)).await;
        asked.abort();
    }
    let counted = wait::until("nothing to be left", BOUND, async || {
        let counts = ranch.gateway.store().counts(None).await.unwrap();
        let left = counts.pending + counts.running;
        // Some may not even have been taken in.
        if left == 0 && counts.completed == 0 { Ok(()) } else { Err(format!("{counts:?}")) }
    });
    counted.await.unwrap();
    ranch.at_rest().await;
    ranch.stop().await;
}

#[tokio::test]
async fn whoever_says_keep_asks_for_it_later() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    for (name, query, body) in [
        ("one", "?timeout=0.3&on_disconnect=keep", json!({"prompt": picture(), "prompt_id": "one"})),
        ("two", "?timeout=0.3", json!({"prompt": picture(), "prompt_id": "two", "keep": true})),
    ] {
        // However slow the machine is, it is not done in that time.
        let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
        let running = wait::until("a prompt that runs when the time is over", BOUND, async || {
            let response = gateway.sync(query, &body).send().await.unwrap();
            assert_eq!(response.headers()["x-prompt-id"], name);
            let later = answer(response, 202).await;
            assert_eq!(
                (&later["prompt_id"], &later["url"]),
                (&name.into(), &format!("/history/{name}").into())
            );
            // It may still have waited for its worker. Who asks again asks for the same prompt.
            if later["status"] == "running" { Ok(()) } else { Err(later.to_string()) }
        });
        running.await.unwrap();
        ranch.sims[0].faults().remove(stuck);
        assert_eq!(ranch.entry(name).await["status"]["status_str"], "success");
        let newest = ListQuery { limit: 1, ..ListQuery::default() };
        let done = gateway.store().list(&newest).await.unwrap().tasks.pop().unwrap();
        assert_eq!((done.status, done.deadline), (Status::Completed, None));
    }
    assert_eq!(ranch.sims[0].stats().executions_total, 2);
    ranch.stop().await;
}

#[tokio::test]
async fn a_kept_prompt_goes_on_when_its_client_hangs_up() {
    let ranch = Ranch::start(1).await;
    let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
    let asked = tokio::spawn(ranch.gateway.sync("", &json!({"prompt": picture(), "keep": true})).send());
    ranch.rendering().await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    ranch.sims[0].faults().remove(stuck);
    ranch.gateway.until(Status::Completed).await;
    ranch.stop().await;
}

#[tokio::test]
async fn the_same_prompt_id_again_is_the_same_prompt() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
    let body = json!({"prompt": picture(), "prompt_id": "mine", "keep": true});
    assert_eq!(
        answer(gateway.sync("?timeout=0.2", &body).send().await.unwrap(), 202).await["prompt_id"],
        "mine"
    );
    ranch.sims[0].faults().remove(stuck);
    let done = answer(gateway.sync("?timeout=100", &body).send().await.unwrap(), 200).await;
    assert_eq!((&done["prompt_id"], &done["status"]), (&"mine".into(), &"success".into()), "{done}");
    assert_eq!(ranch.sims[0].stats().executions_total, 1);
    let other = json!({"prompt": picture(), "prompt_id": "mine"});
    let conflict = answer(gateway.sync("", &other).send().await.unwrap(), 409).await;
    crate::pen::assert_shape(&conflict);
    ranch.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_says_so_and_names_the_prompt() {
    let gateway = Gateway::patient().await;
    let asked = tokio::spawn(gateway.sync("?timeout=600", &json!({"prompt": picture()})).send());
    let task = gateway.until(Status::Pending).await;
    gateway.stop.cancel();
    let stopping = answer(asked.await.unwrap().unwrap(), 503).await;
    crate::pen::assert_shape(&stopping);
    assert_eq!(
        (&stopping["code"], &stopping["prompt_id"]),
        (&"stopping".into(), &task.id.to_string().into())
    );
}
