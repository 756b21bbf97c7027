//! Whole prompts: a gateway, a herd and simulated ComfyUIs.

use comfyui_sim::faults::Fault;
use serde_json::{Value, json};

use super::peer::{Peer, Sent, kinds, news, remaining};
use crate::rig::{Ranch, long, picture};

/// The types of the recording of a picture by ComfyUI 0.7.0, for three nodes.
const RECORDED: [&str; 17] = [
    "status",
    "status",
    "execution_start",
    "execution_cached",
    "progress_state",
    "executing",
    "progress_state",
    "progress_state",
    "executing",
    "progress_state",
    "progress_state",
    "executing",
    "executed",
    "progress_state",
    "execution_success",
    "status",
    "executing",
];

/// … without `progress_state`: of steps that were over before anybody could listen only the last is known. And without
/// the first number of prompts, which the second repeats.
fn recorded() -> Vec<&'static str> {
    RECORDED[1..].iter().copied().filter(|kind| *kind != "progress_state").collect()
}

/// What was told, in the same way; before the start stands a number, and behind the files the last state, as recorded.
fn lasting(texts: &[Value]) -> Vec<&str> {
    let kinds = kinds(texts);
    let at = |kind: &str| kinds.iter().position(|told| *told == kind).expect(kind);
    let (start, end) = (at("execution_start"), at("execution_success"));
    assert_eq!(kinds[start - 1], "status", "{kinds:?}");
    assert_eq!(kinds[end - 2..end], ["executed", "progress_state"], "{kinds:?}");
    let news = news(texts).into_iter().map(|text| text["type"].as_str().unwrap());
    news.filter(|kind| *kind != "progress_state").collect()
}

pub(crate) fn body(graph: &Value, client: &str) -> Value {
    json!({"prompt": graph, "client_id": client})
}

async fn submit(ranch: &Ranch, graph: &Value, client: &str) -> String {
    let answer = ranch.prompt_with(body(graph, client)).await;
    answer["prompt_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_picture_is_told_in_the_recorded_order_and_is_there_when_it_is_told() {
    let ranch = Ranch::start(1).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    let first = peer.text().await;
    assert_eq!(
        (&first["type"], &first["data"]["sid"], remaining(&first)),
        (&"status".into(), &"a".into(), Some(0))
    );
    let prompt = submit(&ranch, &picture(), "a").await;
    let texts = peer.end_of(&prompt).await;
    assert_eq!(lasting(&texts), recorded());
    let counts: Vec<i64> = news(&texts).into_iter().filter_map(remaining).collect();
    assert_eq!(counts, [1, 0]);
    for text in texts.iter().filter(|text| text["type"] != "status") {
        assert_eq!(text["data"]["prompt_id"], prompt.as_str(), "{text}");
    }
    for text in texts.iter().filter(|text| text["type"] == "progress_state") {
        for node in text["data"]["nodes"].as_object().unwrap().values() {
            assert_eq!(node["prompt_id"], prompt.as_str());
        }
    }
    let executed = texts.iter().find(|text| text["type"] == "executed").unwrap();
    let file = &executed["data"]["output"]["images"][0];
    assert_eq!(file["type"], "output");
    assert!(file["subfolder"].as_str().unwrap().starts_with(&format!("remuda/{prompt}")), "{file}");
    assert_eq!(ranch.task(&prompt).await.status, remuda_core::Status::Completed);
    peer.leave().await;
    ranch.stop().await;
}

#[tokio::test]
async fn who_breaks_off_in_the_middle_goes_on_where_it_was() {
    let ranch = Ranch::start(1).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    // Not before somebody listens.
    let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
    let prompt = submit(&ranch, &long(100.0), "a").await;
    let begun = peer.until("executing").await;
    assert!(kinds(&begun).contains(&"execution_start"));
    ranch.sims[0].faults().remove(stuck);
    let before = peer.until("progress").await;
    // Without a farewell.
    drop(peer);
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    // Further than it can have come in between.
    let known = step(before.last().unwrap());
    let texts = peer.until_some(|text| text["type"] == "progress" && step(text) == known + 75).await;
    assert_eq!((texts[0]["data"]["sid"].as_str(), remaining(&texts[0])), (Some("a"), Some(1)));
    assert_eq!(texts[1], json!({"type": "executing", "data": {"node": "1"}}));
    let steps: Vec<i64> =
        before.iter().chain(&texts).filter(|text| text["type"] == "progress").map(step).collect();
    let told: std::collections::BTreeSet<i64> = steps.iter().copied().collect();
    assert!(told.iter().copied().eq(1..=known + 75), "every step was told: {told:?}");
    let stopped = ranch.gateway.delete(&format!("/api/v1/tasks/{prompt}")).send().await.unwrap();
    assert!(stopped.status().is_success());
    peer.end_of(&prompt).await;
    ranch.stop().await;
}

fn step(text: &Value) -> i64 {
    text["data"]["value"].as_i64().unwrap()
}

#[tokio::test]
async fn what_happened_before_the_socket_came_is_told_from_the_beginning() {
    let ranch = Ranch::start(1).await;
    let mut other = Peer::connect(&ranch.gateway, "other").await;
    let prompt = submit(&ranch, &picture(), "late").await;
    let after = submit(&ranch, &picture(), "other").await;
    let texts = other.end_of(&after).await;
    let strange: Vec<&Value> = texts
        .iter()
        .filter(|text| text["type"] != "status" && text["data"]["prompt_id"] != after.as_str())
        .collect();
    assert!(strange.is_empty(), "others' prompts are not told: {strange:?}");
    // Results are stored beside each other: the later prompt's may be there first.
    ranch.entry(&prompt).await;
    let mut peer = Peer::connect(&ranch.gateway, "late").await;
    let first = peer.text().await;
    assert_eq!((first["data"]["sid"].as_str(), remaining(&first)), (Some("late"), Some(0)));
    let texts = peer.end_of(&prompt).await;
    assert_eq!(lasting(&texts), recorded());
    ranch.stop().await;
}

#[tokio::test]
async fn two_sockets_of_one_client_hear_the_same_and_outlive_each_other() {
    let ranch = Ranch::start(1).await;
    let mut older = Peer::connect(&ranch.gateway, "a").await;
    let mut newer = Peer::connect(&ranch.gateway, "a").await;
    let (_, _) = (older.text().await, newer.text().await);
    let prompt = submit(&ranch, &picture(), "a").await;
    assert_eq!(news(&older.end_of(&prompt).await), news(&newer.end_of(&prompt).await));
    older.leave().await;
    let prompt = submit(&ranch, &picture(), "a").await;
    assert_eq!(lasting(&newer.end_of(&prompt).await), recorded());
    ranch.stop().await;
}

#[tokio::test]
async fn previews_come_as_the_socket_understands_them() {
    let ranch = Ranch::start(1).await;
    let mut plain = Peer::connect(&ranch.gateway, "a").await;
    let mut labelled = Peer::connect(&ranch.gateway, "a").await;
    labelled.introduce().await;
    // Pictures are not kept for who comes late: there are none before somebody listens.
    let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
    let prompt = submit(&ranch, &long(0.2), "a").await;
    plain.until("executing").await;
    ranch.sims[0].faults().remove(stuck);
    let order = async |peer: &mut Peer| {
        let (mut order, mut pictures) = (Vec::new(), Vec::new());
        loop {
            match peer.next().await {
                Sent::Binary(bytes) => {
                    order.push("picture".to_owned());
                    pictures.push(bytes);
                }
                Sent::Text(text) if text["type"] == "progress" => order.push("progress".to_owned()),
                Sent::Text(text) if text["data"]["node"].is_null() && text["type"] == "executing" => break,
                Sent::Text(_) => {}
                Sent::Closed(code) => panic!("{code:?}"),
            }
        }
        (order, pictures)
    };
    let (plain_order, plain_pictures) = order(&mut plain).await;
    let (labelled_order, labelled_pictures) = order(&mut labelled).await;
    assert_eq!(plain_order[..4], ["progress", "picture", "progress", "picture"]);
    assert_eq!(labelled_order[..4], ["picture", "progress", "picture", "progress"]);
    assert_eq!((plain_pictures.len(), labelled_pictures.len()), (10, 10));
    for bytes in &plain_pictures {
        assert_eq!(bytes[..10], [0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xd8]);
    }
    for bytes in &labelled_pictures {
        let length = usize::try_from(u32::from_be_bytes(bytes[4..8].try_into().unwrap())).unwrap();
        let label: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!((bytes[3], label["prompt_id"].as_str()), (4, Some(prompt.as_str())));
        assert_eq!(bytes[8 + length..][..2], [0xff, 0xd8]);
    }
    ranch.stop().await;
}
