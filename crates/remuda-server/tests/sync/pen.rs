//! What these tests share: requests, graphs, and a look at what is left at the ComfyUIs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comfyui::Client;
use remuda_core::{Status, Task};
use remuda_store::ListQuery;
use remuda_testbed::wait;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::rig::{BOUND, Ranch};
use crate::support::{Gateway, JsonText as _};

impl Gateway {
    /// One whose prompts wait for a worker as long as it takes.
    pub(crate) async fn patient() -> Self {
        Self::start_with(|options| options.sync.patience = 2 * BOUND).await
    }

    /// `POST /prompt_sync` with this query.
    pub(crate) fn sync(&self, query: &str, body: &Value) -> RequestBuilder {
        self.post(&format!("/prompt_sync{query}")).json_text(&body.to_string())
    }

    /// The only task there is.
    pub(crate) async fn only_task(&self) -> Option<Task> {
        let query = ListQuery { limit: 10, ..ListQuery::default() };
        let mut page = self.store().list(&query).await.unwrap();
        assert!(page.tasks.len() <= 1, "{page:?}");
        page.tasks.pop()
    }

    /// Waits until the only task there is is in this state.
    pub(crate) async fn until(&self, status: Status) -> Task {
        let waited =
            wait::until(format!("the task to be {status}"), BOUND, async || match self.only_task().await {
                Some(task) if task.status == status => Ok(task),
                other => Err(format!("{other:?}")),
            });
        waited.await.unwrap()
    }
}

impl Ranch {
    /// Waits until a ComfyUI renders.
    pub(crate) async fn rendering(&self) {
        let waited = wait::until("a ComfyUI to render", BOUND, async || {
            for sim in &self.sims {
                let queue =
                    Client::new(&sim.url()).unwrap().queue().await.map_err(|error| error.to_string())?;
                if !queue.running.is_empty() {
                    return Ok(());
                }
            }
            Err("all of them rest".to_owned())
        });
        waited.await.unwrap();
    }

    /// Waits until no ComfyUI has anything to do.
    pub(crate) async fn at_rest(&self) {
        let waited = wait::until("the ComfyUIs to rest", BOUND, async || {
            for sim in &self.sims {
                let queue =
                    Client::new(&sim.url()).unwrap().queue().await.map_err(|error| error.to_string())?;
                if !(queue.running.is_empty() && queue.pending.is_empty()) {
                    return Err(format!("{queue:?}"));
                }
            }
            Ok(())
        });
        waited.await.unwrap();
    }
}

/// The bytes behind a text of base64.
pub(crate) fn decoded(text: &Value) -> Vec<u8> {
    STANDARD.decode(text.as_str().expect("a text")).expect("base64")
}

/// A node that raises this exception, before a picture is saved.
pub(crate) fn raising(kind: &str) -> Value {
    json!({
        "1": {"class_type": "RigRaise", "inputs": {"kind": kind, "message": "too much", "seed": Uuid::new_v4().as_u64_pair().0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "never"}},
    })
}

/// The shape that every error has.
pub(crate) fn assert_shape(error: &Value) {
    let fields = ["error", "detail", "code", "prompt_id", "node_errors", "timestamp"];
    for field in fields {
        assert!(error.get(field).is_some(), "{field} is missing in {error}");
    }
    assert!(error["error"].is_string() && error["detail"].is_string(), "{error}");
    assert!(error["node_errors"].is_object(), "{error}");
    error["timestamp"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok()).expect("a moment");
}
