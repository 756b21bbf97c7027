//! What ComfyUI says of a prompt reaches clients that speak ComfyUI themselves, and what they send reaches ComfyUI.

use comfyui_sim::Simulator;
use comfyui_sim::faults::Fault;
use remuda_core::{Dialect, FailureClass, NewTask, Origin, PromptExtra, Status, TaskId};
use remuda_frames::{FrameKind, Messages};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::rig::*;

/// The kinds of messages that a real ComfyUI 0.7.0 sent of a graph of four nodes, those about its queue left out.
const RECORDED: [&str; 17] = [
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
    "progress_state",
    "progress_state",
    "executing",
    "executed",
    "progress_state",
    "execution_success",
    "executing",
];

fn four_nodes() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 1_122_867}},
        "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "nearest-exact", "width": 32, "height": 32, "crop": "disabled"}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "rig/ok"}},
    })
}

/// As if it came through ComfyUI's own API.
fn native(new: &mut NewTask) {
    new.origin = Some(Origin { dialect: Dialect::COMFYUI, external_id: None, client: Some("me".into()) });
}

/// One message: its kind and data, or its number and bytes.
#[derive(Debug)]
enum Said {
    Text(String, Value),
    Binary(u32, bytes::Bytes),
}

/// Everything up to the end.
async fn read(mut messages: Messages) -> Vec<Said> {
    let mut said = Vec::new();
    while let Some(frame) = tokio::time::timeout(BOUND, messages.recv()).await.expect("in time") {
        said.push(match &frame.what {
            FrameKind::Message { kind, data } => {
                Said::Text(kind.clone(), serde_json::from_str(data).expect("JSON"))
            }
            FrameKind::Binary { event, bytes } => Said::Binary(*event, bytes.clone()),
            other => panic!("{other:?}"),
        });
    }
    said
}

fn kinds(said: &[Said]) -> Vec<&str> {
    let text = said.iter().filter_map(|said| match said {
        Said::Text(kind, _) => Some(kind.as_str()),
        Said::Binary(..) => None,
    });
    text.collect()
}

fn data<'a>(said: &'a [Said], wanted: &str) -> Vec<&'a Value> {
    let data = said.iter().filter_map(|said| match said {
        Said::Text(kind, data) if kind == wanted => Some(data),
        _ => None,
    });
    data.collect()
}

fn pictures(said: &[Said]) -> Vec<(u32, &bytes::Bytes)> {
    let binary = said.iter().filter_map(|said| match said {
        Said::Binary(event, bytes) => Some((*event, bytes)),
        Said::Text(..) => None,
    });
    binary.collect()
}

/// Submits a task and reads what is said of it, to its end.
async fn run(rig: &Rig, graph: &Value, change: impl FnOnce(&mut NewTask)) -> (TaskId, Vec<Said>) {
    let mut follower = None;
    let id = rig.submit_with(graph, |new| {
        change(new);
        follower = Some(rig.hub.follow_messages(new.id, 1));
    });
    let id = id.await;
    (id, read(follower.expect("a follower")).await)
}

#[tokio::test]
async fn messages_come_in_the_recorded_order_and_again_for_who_comes_late() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let (id, said) = run(&rig, &four_nodes(), native).await;
    assert_eq!(kinds(&said), RECORDED);
    let executing = data(&said, "executing");
    let nodes: Vec<_> = executing.iter().map(|data| data["node"].as_str()).collect();
    assert_eq!(nodes, [Some("1"), Some("2"), Some("3"), Some("4"), None]);
    let file = &data(&said, "executed")[0]["output"]["images"][0];
    let task = rig.completed(id).await;
    let delivered = &task.result.unwrap().files[0];
    assert_eq!(
        (&file["filename"], &file["subfolder"]),
        (&json!(delivered.filename), &json!(delivered.subfolder))
    );
    assert_eq!(delivered.subfolder, format!("remuda/{id}/rig"));
    let ids: std::collections::HashSet<_> =
        executing.iter().map(|data| data["prompt_id"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), 1);

    // Who comes late reads the same, of the states of nodes only the last.
    let late = read(rig.hub.follow_messages(id, 1)).await;
    let mut expected: Vec<_> = RECORDED.into_iter().filter(|kind| *kind != "progress_state").collect();
    expected.insert(expected.len() - 2, "progress_state");
    assert_eq!(kinds(&late), expected);
    let last = data(&late, "progress_state")[0]["nodes"].as_object().expect("nodes").len();
    assert_eq!(last, 4);

    // Tasks of Remuda's own API have no such readers.
    let (own, said) = run(&rig, &picture(), |_| {}).await;
    assert!(said.is_empty() && !rig.hub.has_messages(own, 1), "{said:?}");
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn pictures_texts_and_odd_numbers_arrive() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 256, "height": 256, "batch_size": 40, "color": 5}},
        "2": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "RigTextProgress", "inputs": {"text": "half way"}},
        "4": {"class_type": "RigNan", "inputs": {"seed": 3}},
    });
    let (id, said) = run(&rig, &graph, native).await;
    rig.completed(id).await;
    let all = pictures(&said);
    let results: Vec<_> = all.iter().filter(|(event, _)| *event == 4).collect();
    assert_eq!(results.len(), 40, "every picture of the batch");
    for (_, bytes) in results {
        let length = u32::from_be_bytes(bytes[..4].try_into().expect("a length")) as usize;
        let about: Value = serde_json::from_slice(&bytes[4..4 + length]).expect("JSON");
        assert_eq!((&about["node_id"], &about["image_type"]), (&json!("2"), &json!("image/png")));
        assert!(bytes[4 + length..].starts_with(b"\x89PNG"));
    }
    let text = all.iter().find(|(event, _)| *event == 3).expect("a text").1;
    assert!(text.ends_with(b"half way") && text.starts_with(b"\0\0\0\x013"), "{text:?}");
    let odd = data(&said, "executed").into_iter().find(|data| data["node"] == "4").expect("an output");
    assert!(odd["output"].to_string().contains("null"), "{odd}");
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn after_a_broken_socket_messages_go_on_and_none_comes_twice() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    until("it to be driven", async || herd.status().workers[0].driven).await;
    // Long enough to be connected again before it ends.
    let graph = long(6.0);
    let broken = async {
        rig.rendering(&sim, 1).await;
        sim.faults().add(Fault::drop_websocket().times(1));
    };
    let ((id, said), ()) = tokio::join!(run(&rig, &graph, native), broken);
    rig.completed(id).await;
    let kinds = kinds(&said);
    for once in ["execution_start", "execution_cached", "executed", "execution_success"] {
        assert_eq!(kinds.iter().filter(|kind| **kind == once).count(), 1, "{once} in {kinds:?}");
    }
    let steps: Vec<_> = data(&said, "progress").iter().map(|data| data["value"].as_f64()).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&Some(300.0)), "{steps:?}");
    assert!(data(&said, "executing").last().expect("an end")["node"].is_null());
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn who_adopts_a_render_goes_on_telling() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let killed = rig.herd(&[&sim]);
    let id = rig.submit_with(&long(3.0), native).await;
    until("something to be said", async || rig.hub.has_messages(id, 1)).await;
    drop(killed);
    let herd = rig.herd(&[&sim]);
    let said = read(rig.hub.follow_messages(id, 1)).await;
    let task = rig.completed(id).await;
    assert_eq!((task.attempt, sim.stats().executions_total), (1, 1));
    let kinds = kinds(&said);
    assert_eq!(
        (kinds[0], kinds.iter().filter(|kind| **kind == "execution_start").count()),
        ("execution_start", 1)
    );
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

/// A picture is saved before another branch raises: outputs run first when they can.
fn half_good() -> Value {
    let mut graph = picture();
    graph["4"] = json!({"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}});
    graph["5"] = json!({"class_type": "RigRaise", "inputs": {"kind": "ValueError", "message": "on purpose", "seed": 2, "image": ["4", 0]}});
    graph["6"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "never"}});
    graph
}

#[tokio::test]
async fn what_a_failed_prompt_left_before_is_kept() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let graph = half_good();
    let id = rig.submit_with(&graph, |new| {
        native(new);
        new.max_retries = 0;
    });
    let id = id.await;
    let task = rig.end_of(id).await;
    let error = task.error.expect("an error");
    assert_eq!((task.status, error.class), (Status::Failed, FailureClass::Execution));
    let details = error.details.expect("details").read();
    assert_eq!(
        (&details["exception_type"], &details["current_inputs"]["seed"][0]),
        (&json!("ValueError"), &json!(2))
    );
    let result = task.result.expect("a part");
    assert_eq!(result.files.iter().map(|file| file.node_id.as_str()).collect::<Vec<_>>(), ["3"]);
    assert_eq!(result.outputs.read()["3"]["images"][0]["filename"], result.files[0].filename);
    let bytes = rig.files.get(&result.files[0].key.parse().unwrap(), None).await.unwrap();
    assert!(bytes.bytes(1 << 24).await.unwrap().starts_with(b"\x89PNG"));
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("JSON")
}

/// What a native client sends beside the graph.
fn with_extra(extra_data: Option<&str>, targets: Option<&[&str]>) -> impl FnOnce(&mut NewTask) {
    let extra = PromptExtra {
        extra_data: extra_data.map(raw),
        targets: targets.map(|targets| targets.iter().map(|node| (*node).to_owned()).collect()),
        ..PromptExtra::default()
    };
    move |new| {
        native(new);
        new.input.extra = Some(Box::new(extra));
    }
}

async fn file_of(rig: &Rig, id: TaskId, n: usize) -> Vec<u8> {
    let result = rig.completed(id).await.result.expect("a result");
    let key = result.files[n].key.parse().expect("a key");
    rig.files.get(&key, None).await.expect("the file").bytes(1 << 24).await.expect("its bytes").to_vec()
}

/// How the running prompt stands in the simulator's queue.
async fn running(sim: &Simulator) -> comfyui::QueueItem {
    let client = comfyui::Client::new(&sim.url()).expect("an address");
    let mut found = None;
    until("a prompt to run", async || {
        found = client.queue().await.expect("a queue").running.pop();
        found.is_some()
    })
    .await;
    found.expect("one")
}

#[tokio::test]
async fn what_the_client_sent_reaches_the_file_and_the_marker_is_ours() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let extra = r#"{"extra_pnginfo": {"workflow": {"seed": 18446744073709551615, "nodes": []}}, "mine": 1e-05,
        "client_id": "forged", "remuda": "forged", "api_key_comfy_org": "comfyui-secret", "preview_method": "none"}"#;
    let held = hold(&sim);
    let id = rig.submit_with(&picture(), with_extra(Some(extra), None)).await;
    let item = running(&sim).await;
    held.release();
    let shown = json!(item.extra_data);
    assert_eq!((&shown["mine"], &shown["preview_method"]), (&json!(1e-05), &json!("none")));
    assert_eq!(shown["remuda"]["task"], json!(id));
    assert_ne!(shown["client_id"], "forged");
    let file = file_of(&rig, id, 0).await;
    let wanted = b"workflow\0{\"seed\": 18446744073709551615, \"nodes\": []}";
    assert!(file.windows(wanted.len()).any(|bytes| bytes == wanted));
    // What would make ComfyUI's list of jobs fail for everybody does not get there.
    let held = hold(&sim);
    let id =
        rig.submit_with(&picture(), with_extra(Some(r#"{"extra_pnginfo": "text", "mine": 2}"#), None)).await;
    let shown = json!(running(&sim).await.extra_data);
    held.release();
    assert_eq!((&shown["mine"], shown.get("extra_pnginfo")), (&json!(2), None));
    rig.completed(id).await;
    herd.stop(BOUND).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn only_the_chosen_outputs_run() {
    let (rig, sim) = (Rig::new().await, sim().await);
    let herd = rig.herd(&[&sim]);
    let mut graph = picture();
    graph["4"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "other"}});
    let id = rig.submit_with(&graph, with_extra(None, Some(&["4"]))).await;
    let files = rig.completed(id).await.result.expect("a result").files;
    assert_eq!(files.iter().map(|file| file.node_id.as_str()).collect::<Vec<_>>(), ["4"]);
    herd.stop(BOUND).await;
    sim.shutdown().await;
}
