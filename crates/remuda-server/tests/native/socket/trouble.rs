//! Prompts that do not go well, and workers that do not.

use comfyui_sim::faults::Fault;
use remuda_testbed::wait;
use serde_json::{Value, json};

use super::peer::{Peer, kinds, news, remaining};
use super::whole::body;
use crate::rig::{BOUND, Ranch, long, picture};

async fn submit(ranch: &Ranch, graph: &Value) -> String {
    ranch.prompt_with(body(graph, "a")).await["prompt_id"].as_str().expect("an id").to_owned()
}

fn count(texts: &[Value], kind: &str) -> usize {
    texts.iter().filter(|text| text["type"] == kind).count()
}

#[tokio::test]
async fn a_prompt_whose_worker_dies_looks_like_a_slow_one() {
    let ranch = Ranch::start(2).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    // Whoever begins is not done before it dies.
    let slow = ranch.sims.iter().map(|sim| sim.faults().add(Fault::slow_nodes(100.0)));
    let slow: Vec<_> = slow.collect();
    let prompt = submit(&ranch, &long(0.5)).await;
    let mut texts = peer.until("progress").await;
    let worker = ranch.task(&prompt).await.worker.expect("it runs");
    let workers = ranch.gateway.store().workers().await.unwrap();
    let endpoint = &workers.iter().find(|known| known.spec.id == worker).unwrap().spec.endpoint;
    let dies = ranch.sims.iter().position(|sim| sim.url() == *endpoint).unwrap();
    assert!(ranch.sims[1 - dies].faults().remove(slow[1 - dies]));
    ranch.sims[dies].crash().await;
    texts.extend(peer.end_of(&prompt).await);
    for kind in ["execution_start", "execution_cached", "executed", "execution_success"] {
        assert_eq!(count(&texts, kind), 1, "{kind}");
    }
    assert_eq!(count(&texts, "execution_error"), 0);
    let zero = texts.iter().filter(|text| remaining(text) == Some(0)).count();
    assert_eq!(zero, 2, "before the prompt, and after it");
    assert!(ranch.task(&prompt).await.attempt > 1, "it was tried again");
    ranch.stop().await;
}

#[tokio::test]
async fn a_prompt_that_is_cancelled_while_it_runs_is_interrupted() {
    let ranch = Ranch::start(1).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    let prompt = submit(&ranch, &long(600.0)).await;
    let waiting = submit(&ranch, &picture()).await;
    peer.until("progress").await;
    let delete = |id: &str| ranch.gateway.delete(&format!("/api/v1/tasks/{id}")).send();
    assert!(delete(&waiting).await.unwrap().status().is_success());
    let texts = peer.until_some(|text| remaining(text) == Some(1)).await;
    assert!(
        texts.iter().all(|text| text["data"]["prompt_id"] != waiting.as_str()),
        "one that waited just goes"
    );
    assert!(delete(&prompt).await.unwrap().status().is_success());
    let texts = peer.end_of(&prompt).await;
    assert_eq!(kinds(&texts)[texts.len() - 3..], ["execution_interrupted", "status", "executing"]);
    let data = &texts[texts.len() - 3]["data"];
    assert_eq!((&data["prompt_id"], &data["node_id"]), (&json!(prompt), &json!("1")));
    assert_eq!((&data["node_type"], &data["executed"]), (&json!("RigProgress"), &json!([])));
    assert_eq!(remaining(&texts[texts.len() - 2]), Some(0));
    ranch.stop().await;
}

#[tokio::test]
async fn an_exception_is_told_as_comfyui_tells_it() {
    let ranch = Ranch::start_with(1, |options| options.defaults.max_retries = 0).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 1}},
        "2": {"class_type": "RigRaise", "inputs": {"kind": "ValueError", "message": "no", "seed": 1, "image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "err"}},
    });
    let prompt = submit(&ranch, &graph).await;
    let texts = peer.end_of(&prompt).await;
    let expected = [
        "status",
        "status",
        "execution_start",
        "execution_cached",
        "executing",
        "executing",
        "execution_error",
        "status",
        "executing",
    ];
    let told = news(&texts).into_iter().map(|text| text["type"].as_str().unwrap());
    assert_eq!(told.filter(|kind| *kind != "progress_state").collect::<Vec<_>>(), expected);
    let data = &texts[texts.len() - 3]["data"];
    for field in ["traceback", "current_inputs", "current_outputs", "timestamp"] {
        assert!(data.get(field).is_some(), "{field} in {data}");
    }
    assert_eq!((&data["prompt_id"], &data["node_id"]), (&json!(prompt), &json!("2")));
    assert_eq!((&data["exception_type"], &data["executed"]), (&json!("ValueError"), &json!(["1"])));
    assert_eq!((&data["node_type"], &data["exception_message"]), (&json!("RigRaise"), &json!("no\n")));
    ranch.stop().await;
}

#[tokio::test]
async fn without_a_word_from_comfyui_the_end_is_told_from_the_result() {
    let mut ranch = Ranch::start(0).await;
    ranch.add_surveyed().await;
    let graph = picture();
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    ranch.sims[0].faults().add(Fault::mute_websocket());
    let prompt = submit(&ranch, &graph).await;
    let texts = peer.end_of(&prompt).await;
    assert_eq!((count(&texts, "execution_start"), count(&texts, "execution_cached")), (1, 1));
    assert_eq!((count(&texts, "executed"), count(&texts, "execution_success")), (1, 1));
    let waited = wait::until("the queue to be empty", BOUND, async || {
        let left = ranch.gateway.store().counts(None).await.unwrap();
        if left.running == 0 { Ok(()) } else { Err(format!("{left:?}")) }
    });
    waited.await.unwrap();
    ranch.stop().await;
}

#[tokio::test]
async fn who_waits_in_silence_is_told_again_that_there_is_something_to_wait_for() {
    let ranch = Ranch::start(1).await;
    let mut peer = Peer::connect(&ranch.gateway, "a").await;
    ranch.sims[0].faults().add(Fault::stuck_node());
    let prompt = submit(&ranch, &picture()).await;
    peer.until("executing").await;
    // Nothing happens any more, and some clients would take that for a broken connection.
    peer.until_some(|text| remaining(text) == Some(1)).await;
    ranch.sims[0].faults().clear();
    let texts = peer.end_of(&prompt).await;
    assert_eq!(texts.iter().filter(|text| remaining(text) == Some(0)).count(), 1, "only at the end");
    ranch.stop().await;
}
