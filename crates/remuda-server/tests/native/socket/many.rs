//! Many prompts, many messages, and more than one gateway. The runner is the test.

use std::time::{Duration, Instant};

use bytes::Bytes;
use remuda_core::Claim;
use remuda_frames::{Frame, FrameKind};
use serde_json::{Value, json};

use super::peer::{Peer, Sent, kinds, remaining};
use crate::rig::BOUND;
use crate::support::{GRAPH, Gateway, Ground, JsonText as _, json as answered};

async fn submit(gateway: &Gateway, client: &str) -> String {
    let body = format!("{{\"prompt\": {GRAPH}, \"client_id\": \"{client}\"}}");
    let answer = gateway.post("/prompt").json_text(&body).send().await.unwrap();
    answered(answer, 200).await["prompt_id"].as_str().unwrap().to_owned()
}

fn say(gateway: &Gateway, claim: &Claim, kind: &str, data: Value) {
    let what = FrameKind::Message { kind: kind.to_owned(), data: data.to_string() };
    gateway.hub.publish(Frame { task: claim.task.id, attempt: claim.lease.attempt, what });
}

#[tokio::test]
async fn a_thousand_prompts_of_one_client_are_counted_and_told_one_by_one() {
    let gateway = Gateway::start().await;
    let mut peer = Peer::connect(&gateway, "a").await;
    peer.text().await;
    const PROMPTS: usize = 1000;
    let began = Instant::now();
    for _ in 0..PROMPTS {
        submit(&gateway, "a").await;
    }
    let texts = peer.until_some(|text| remaining(text) == Some(PROMPTS as i64)).await;
    // Once for each, and once for each look of the narrator.
    let most = PROMPTS + 10 + 2 * began.elapsed().as_secs() as usize;
    let only_numbers = texts.iter().all(|text| text["type"] == "status");
    assert!(texts.len() <= most && only_numbers, "{} of {most}", texts.len());
    let worker = gateway.worker().await;
    for n in 1..=20 {
        let claim = worker.claim().await;
        let prompt = claim.task.id.to_string();
        worker.complete(&claim, b"x").await;
        let texts = peer.end_of(&prompt).await;
        let left = texts.iter().rev().find_map(remaining);
        assert_eq!(left, Some((PROMPTS - n) as i64));
        assert!(kinds(&texts).contains(&"execution_success"));
    }
}

#[tokio::test]
async fn who_does_not_read_holds_up_nobody_and_still_hears_the_end() {
    let gateway = Gateway::start().await;
    let mut slow = Peer::connect(&gateway, "a").await;
    let mut quick = Peer::connect(&gateway, "a").await;
    let prompt = submit(&gateway, "a").await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    say(&gateway, &claim, "execution_start", json!({"prompt_id": claim.lease.prompt_id, "timestamp": 1}));
    quick.until("execution_start").await;
    let filler = "x".repeat(10_000);
    for n in 0..3000 {
        say(&gateway, &claim, "own_kind", json!({"n": n, "filler": filler}));
        let picture = FrameKind::Binary { event: 1, bytes: Bytes::from(vec![0; 10_000]) };
        gateway.hub.publish(Frame { task: claim.task.id, attempt: 1, what: picture });
        // Nobody is faster than this one.
        while quick.text().await["data"]["n"] != n {}
    }
    worker.complete(&claim, b"x").await;
    tokio::time::timeout(BOUND, quick.end_of(&prompt)).await.expect("in time");
    let texts = slow.end_of(&prompt).await;
    assert!(texts.len() < 3000, "more than is kept was kept: {}", texts.len());
    let expected = ["execution_success", "status", "executing"];
    assert_eq!(kinds(&texts)[texts.len() - 3..], expected);
}

#[tokio::test]
async fn a_socket_here_hears_of_a_prompt_that_came_in_and_runs_there() {
    let ground = Ground::new().await;
    let here = Gateway::on(ground.clone(), |_| {}).await;
    let there = Gateway::on(ground.clone(), |_| {}).await;
    let mut peer = Peer::connect(&here, "a").await;
    peer.text().await;
    let prompt = submit(&there, "a").await;
    let mut worker = there.worker().await;
    worker.gateway = Some(there.url.clone());
    let claim = worker.claim().await;
    let inner = claim.lease.prompt_id;
    say(&there, &claim, "execution_start", json!({"prompt_id": inner, "timestamp": 1}));
    say(&there, &claim, "execution_cached", json!({"prompt_id": inner, "nodes": []}));
    say(&there, &claim, "executing", json!({"prompt_id": inner, "node": "2", "display_node": "2"}));
    let texts = peer.until("executing").await;
    assert_eq!(texts.last().unwrap()["data"]["prompt_id"], prompt.as_str());
    let bytes = Bytes::from_static(b"\0\0\0\x02PNG");
    there.hub.publish(Frame { task: claim.task.id, attempt: 1, what: FrameKind::Binary { event: 1, bytes } });
    assert_eq!(peer.binary().await, b"\0\0\0\x01\0\0\0\x02PNG");
    worker.complete(&claim, b"x").await;
    let texts = peer.end_of(&prompt).await;
    assert!(kinds(&texts).contains(&"execution_success"), "{texts:?}");
    assert!(
        peer.next_within(Duration::from_millis(1500))
            .await
            .is_none_or(|sent| { matches!(&sent, Sent::Text(text) if text["type"] == "status") })
    );
}
