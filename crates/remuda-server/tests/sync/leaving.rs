//! Clients that do not stay to the end.

use std::time::Duration;

use remuda_core::Status;
use remuda_testbed::wait;
use serde_json::json;

use crate::rig::{BOUND, Ranch, long, picture};
use crate::support::{Gateway, json as answer};

#[tokio::test]
async fn a_client_that_hangs_up_in_mid_render_leaves_nothing_running() {
    let ranch = Ranch::start(1).await;
    let asked = tokio::spawn(ranch.gateway.sync("?timeout=100", &json!({"prompt": long(100.0)})).send());
    ranch.rendering().await;
    asked.abort();
    ranch.gateway.until(Status::Cancelled).await;
    ranch.at_rest().await;
    ranch.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_while_its_prompt_waits_leaves_nothing_queued() {
    let gateway = Gateway::start().await;
    let asked = tokio::spawn(gateway.sync("?timeout=100", &json!({"prompt": picture()})).send());
    gateway.until(Status::Pending).await;
    asked.abort();
    gateway.until(Status::Cancelled).await;
}

#[tokio::test]
async fn many_that_hang_up_at_any_moment_leave_nothing() {
    let ranch = Ranch::start(2).await;
    for n in 0..20_u64 {
        let asked = tokio::spawn(ranch.gateway.sync("?timeout=100", &json!({"prompt": long(100.0)})).send());
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
    for (query, body) in [
        ("?timeout=0.3&on_disconnect=keep", json!({"prompt": long(1.5)})),
        ("?timeout=0.3", json!({"prompt": long(1.5), "keep": true})),
    ] {
        let response = gateway.sync(query, &body).send().await.unwrap();
        let header = response.headers()["x-prompt-id"].to_str().unwrap().to_owned();
        let later = answer(response, 202).await;
        assert_eq!(
            (&later["prompt_id"], &later["status"]),
            (&header.as_str().into(), &"running".into()),
            "{later}"
        );
        assert_eq!(later["url"].as_str().unwrap().replace("%2D", "-"), format!("/history/{header}"));
        let done = wait::until("the prompt to end", BOUND, async || {
            let task = ranch.task(&header).await;
            task.status.is_terminal().then_some(task)
        });
        let done = done.await.unwrap();
        assert_eq!((done.status, done.deadline), (Status::Completed, None));
    }
    ranch.stop().await;
}

#[tokio::test]
async fn a_kept_prompt_goes_on_when_its_client_hangs_up() {
    let ranch = Ranch::start(1).await;
    let asked = tokio::spawn(ranch.gateway.sync("", &json!({"prompt": long(1.5), "keep": true})).send());
    ranch.rendering().await;
    asked.abort();
    ranch.gateway.until(Status::Completed).await;
    ranch.stop().await;
}

#[tokio::test]
async fn the_same_prompt_id_again_is_the_same_prompt() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    let body = json!({"prompt": long(1.0), "prompt_id": "mine", "keep": true});
    assert_eq!(
        answer(gateway.sync("?timeout=0.2", &body).send().await.unwrap(), 202).await["prompt_id"],
        "mine"
    );
    let done = answer(gateway.sync("?timeout=30", &body).send().await.unwrap(), 200).await;
    assert_eq!((&done["prompt_id"], &done["status"]), (&"mine".into(), &"success".into()), "{done}");
    assert_eq!(ranch.sims[0].stats().executions_total, 1);
    let other = json!({"prompt": picture(), "prompt_id": "mine"});
    let conflict = answer(gateway.sync("", &other).send().await.unwrap(), 409).await;
    crate::pen::assert_shape(&conflict);
    ranch.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_says_so_and_names_the_prompt() {
    let gateway = Gateway::start().await;
    let asked = tokio::spawn(gateway.sync("?timeout=100", &json!({"prompt": picture()})).send());
    let task = gateway.until(Status::Pending).await;
    gateway.stop.cancel();
    let stopping = answer(asked.await.unwrap().unwrap(), 503).await;
    crate::pen::assert_shape(&stopping);
    assert_eq!(
        (&stopping["code"], &stopping["prompt_id"]),
        (&"stopping".into(), &task.id.to_string().into())
    );
}
