//! What the tests of the client share.

#![allow(dead_code, reason = "each test file uses its own part")]

use comfyui::{Client, PromptRequest, Session, SessionOptions, Workflow};
use comfyui_sim::{SimConfig, Simulator};
use serde_json::{Value, json};

/// A ComfyUI to test against: the one at `COMFYUI_URL`, or a simulator.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) simulator: Option<Simulator>,
}

impl Server {
    pub(crate) async fn pick() -> Server {
        match std::env::var("COMFYUI_URL") {
            Ok(url) if !url.is_empty() => Server { url, simulator: None },
            _ => Server::simulated(SimConfig::default()).await,
        }
    }

    pub(crate) async fn simulated(config: SimConfig) -> Server {
        let simulator = Simulator::start(config).await.expect("a simulator");
        Server { url: simulator.url(), simulator: Some(simulator) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url).expect("a valid address")
    }

    pub(crate) async fn session(&self) -> Session {
        Session::open(self.client(), SessionOptions::default()).await.expect("a session")
    }

    pub(crate) fn sim(&self) -> &Simulator {
        self.simulator.as_ref().expect("this test is for the simulator")
    }

    pub(crate) async fn stop(self) {
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }
}

/// A name nobody used before, so that tests can share a real server and never meet in its cache.
pub(crate) fn fresh() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

pub(crate) fn workflow(graph: &Value) -> Workflow {
    Workflow::parse(graph.to_string()).expect("a graph")
}

/// Four nodes that need no model; every call gives another picture.
pub(crate) fn picture() -> Value {
    let color =
        u32::from_be_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().expect("16 bytes")) % 0x1000000;
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": color}},
        "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "nearest-exact", "width": 32, "height": 32, "crop": "disabled"}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": format!("client-test/{}/picture", fresh())}}
    })
}

/// Takes at least ten seconds unless it is stopped, and can be stopped on the way.
pub(crate) async fn slow(client: &Client) -> Value {
    if client.object_info_of("RigProgress").await.expect("an answer").is_some() {
        return json!({
            "1": {"class_type": "RigProgress", "inputs": {"steps": 1000, "step_ms": 20, "preview": "none", "preview_size": 64, "seed": 1}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
        });
    }
    busy()
}

/// Keeps a real CPU busy for some seconds, one node after the other, without a model.
fn busy() -> Value {
    let mut graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 7}},
        "end": {"class_type": "PreviewImage", "inputs": {"images": ["s60", 0]}},
    });
    let mut last = "1".to_owned();
    for step in 0..=60 {
        let id = format!("s{step}");
        let size = 1500 + uuid::Uuid::new_v4().as_bytes()[0] as u64 * 2;
        graph[&id] = json!({"class_type": "ImageScale", "inputs": {
            "image": [last, 0], "upscale_method": "lanczos", "width": size, "height": size, "crop": "disabled"}});
        last = id;
    }
    graph
}

pub(crate) fn request(graph: &Value) -> PromptRequest {
    PromptRequest::new(workflow(graph))
}
