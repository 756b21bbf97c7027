//! How much at once.

use remuda_core::Status;
use remuda_testbed::wait;
use serde_json::json;
use tokio::task::JoinSet;

use crate::pen::assert_shape;
use crate::rig::{BOUND, Ranch, picture};
use crate::support::{Gateway, json as answer};

#[tokio::test]
async fn more_requests_than_allowed_are_turned_away_until_one_is_done() {
    let gateway = Gateway::start_with(|options| {
        options.limits.sync = 1;
        options.sync.patience = 2 * BOUND;
    })
    .await;
    let first = tokio::spawn(gateway.sync("?timeout=600", &json!({"prompt": picture()})).send());
    gateway.until(Status::Pending).await;
    let response = gateway.sync("", &json!({"prompt": picture()})).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    let busy = answer(response, 503).await;
    assert_shape(&busy);
    assert_eq!((&busy["error"], &busy["code"]), (&"Server is busy".into(), &"busy".into()));
    first.abort();
    let free = wait::until("room for another", BOUND, async || {
        // There is nobody to render it, and that is the answer of a handler that has room.
        let response = gateway.sync("?timeout=0.01", &json!({"prompt": picture()})).send().await.unwrap();
        let told = answer(response, 503).await;
        if told["code"] == "busy" { Err(told.to_string()) } else { Ok(()) }
    });
    free.await.unwrap();
}

#[tokio::test]
async fn two_hundred_at_once_on_four_comfyuis_get_a_picture_each() {
    // Room for all of them: nobody is sent away for waiting too long.
    let ranch = Ranch::start_with(4, |options| options.limits.submissions = 256).await;
    let mut asked = JoinSet::new();
    for _ in 0..200 {
        let body = json!({"prompt": picture(), "return_image_base64": true});
        let request = ranch.gateway.sync("?timeout=600", &body).timeout(6 * BOUND);
        asked.spawn(async move { answer(request.send().await.unwrap(), 200).await });
    }
    let mut ids = std::collections::BTreeSet::new();
    while let Some(done) = asked.join_next().await {
        let done = done.unwrap();
        assert!(crate::pen::decoded(&done["images"]["3"][0]["data"]).starts_with(b"\x89PNG"), "{done}");
        ids.insert(done["prompt_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 200);
    let executed: u64 = ranch.sims.iter().map(|sim| sim.stats().executions_total).sum();
    assert_eq!(executed, 200);
    ranch.stop().await;
}
