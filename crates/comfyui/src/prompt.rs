//! `POST /prompt`: what is sent, what is answered, and what to do when no answer comes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::client::{Client, excerpt, text_of};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{ClientId, PromptId};
use crate::lenient;
use crate::limits::{REFUSAL_BODY, REFUSAL_VALUES};
use crate::queue::Whereabouts;
use crate::workflow::Workflow;

/// One prompt to submit. The workflow goes out byte for byte.
///
/// ```
/// use comfyui::{PromptRequest, Workflow};
/// let workflow = Workflow::parse(r#"{"1": {"class_type": "RigText", "inputs": {"text": "hi"}}}"#)?;
/// let request = PromptRequest::new(workflow).front(true).extra("studio", "blue".into());
/// assert_eq!(request.prompt_id().as_str().len(), 36);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PromptRequest {
    workflow: Workflow,
    prompt_id: PromptId,
    client_id: Option<ClientId>,
    number: Option<f64>,
    front: bool,
    /// Shared between copies of the request: it may be long.
    extra_data: Arc<IndexMap<String, Box<RawValue>>>,
    marker: Option<(String, Value)>,
    targets: Option<Vec<String>>,
    resend_within: Option<Duration>,
}

impl PromptRequest {
    /// A request with a fresh id.
    #[must_use]
    pub fn new(workflow: Workflow) -> Self {
        PromptRequest {
            workflow,
            prompt_id: PromptId::random(),
            client_id: None,
            number: None,
            front: false,
            extra_data: Arc::default(),
            marker: None,
            targets: None,
            resend_within: None,
        }
    }

    /// A submission that failed is sent again only for this long; after that the error is returned, as one of a request that
    /// was not sent if the prompt is surely not there. For callers who must ask somebody before they send anything: a process
    /// may be stopped between two tries for longer than an answer holds.
    #[must_use]
    pub fn resend_within(mut self, time: Duration) -> Self {
        self.resend_within = Some(time);
        self
    }

    /// Uses an id that was recorded beforehand.
    #[must_use]
    pub fn with_id(mut self, id: uuid::Uuid) -> Self {
        self.prompt_id = id.into();
        self
    }

    /// Whose socket hears of it. A [`crate::Session`] sets its own; without one a fresh name is sent, because a prompt
    /// without `client_id` loses its outputs when it is served from the cache.
    #[must_use]
    pub fn client_id(mut self, client_id: ClientId) -> Self {
        self.client_id = Some(client_id);
        self
    }

    /// Priority: the lowest number runs first. Not finite is ignored, because it breaks the server's queue.
    #[must_use]
    pub fn number(mut self, number: f64) -> Self {
        self.number = number.is_finite().then_some(number);
        self
    }

    /// Runs before everything that waits; ignored by the server when `number` is given.
    #[must_use]
    pub fn front(mut self, front: bool) -> Self {
        self.front = front;
        self
    }

    /// One key of `extra_data`, which comes back in the queue and the history.
    #[must_use]
    pub fn extra(mut self, key: &str, value: Value) -> Self {
        // Text keys and finite numbers are all that a value can have: it can be written.
        if let Ok(value) = serde_json::value::to_raw_value(&value) {
            Arc::make_mut(&mut self.extra_data).insert(key.to_owned(), value);
        }
        self
    }

    /// Several keys of `extra_data`, which go out byte for byte.
    #[must_use]
    pub fn extra_data(mut self, extra: impl IntoIterator<Item = (String, Box<RawValue>)>) -> Self {
        Arc::make_mut(&mut self.extra_data).extend(extra);
        self
    }

    /// As [`PromptRequest::extra`], and names this prompt: on versions that ignore our id (before 0.3.45) the prompt is
    /// looked up by this value after doubt. It must be unique.
    #[must_use]
    pub fn marker(mut self, key: &str, value: Value) -> Self {
        self.marker = Some((key.to_owned(), value.clone()));
        self.extra(key, value)
    }

    /// The UI-format workflow that is written into the saved files. An object, because with anything else the server's
    /// `/api/jobs` fails for everybody.
    #[must_use]
    pub fn embed_ui_workflow(self, workflow: Map<String, Value>) -> Self {
        let mut info = Map::new();
        info.insert("workflow".into(), Value::Object(workflow));
        self.extra("extra_pnginfo", Value::Object(info))
    }

    /// Runs only these output nodes (0.3.48 and later).
    #[must_use]
    pub fn targets<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.targets = Some(nodes.into_iter().map(Into::into).collect());
        self
    }

    /// The id it is sent with.
    #[must_use]
    pub fn prompt_id(&self) -> &PromptId {
        &self.prompt_id
    }

    /// The workflow.
    #[must_use]
    pub fn workflow(&self) -> &Workflow {
        &self.workflow
    }

    /// Asks the [guard](crate::guard) about the whole request before it is sent.
    ///
    /// # Errors
    /// When the request cannot be written as JSON.
    ///
    /// ```
    /// use comfyui::{PromptRequest, Workflow};
    /// let workflow = Workflow::parse(r#"{"1": {"class_type": "SaveImage"}}"#)?;
    /// let report = PromptRequest::new(workflow).check(None)?;
    /// assert!(report.kills(), "a node without inputs ends the server's worker");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self, info: Option<&crate::ObjectInfo>) -> Result<guard::Report> {
        Ok(guard::check_request(self.body()?, info, &guard::Options::default()))
    }

    pub(crate) fn owner(&self) -> Option<&ClientId> {
        self.client_id.as_ref()
    }

    fn body(&self) -> Result<bytes::Bytes> {
        #[derive(Serialize)]
        struct Body<'a> {
            prompt: &'a RawValue,
            prompt_id: &'a PromptId,
            client_id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            number: Option<f64>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            front: bool,
            #[serde(skip_serializing_if = "IndexMap::is_empty")]
            extra_data: &'a IndexMap<String, Box<RawValue>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            partial_execution_targets: Option<&'a [String]>,
        }
        // Not the prompt id itself: the server orders and routes by these, and one name per prompt keeps frames apart.
        let fallback;
        let client_id = match &self.client_id {
            Some(client_id) => client_id.as_str(),
            None => {
                fallback = self.prompt_id.as_str().replace('-', "");
                &fallback
            }
        };
        let body = Body {
            prompt: self.workflow.as_raw(),
            prompt_id: &self.prompt_id,
            client_id,
            number: self.number,
            front: self.front,
            extra_data: &self.extra_data,
            partial_execution_targets: self.targets.as_deref(),
        };
        let extra: usize = self.extra_data.iter().map(|(key, value)| key.len() + value.get().len() + 8).sum();
        // All of it at once: a buffer that grows would take up to three times as much on the way.
        let mut bytes = Vec::with_capacity(self.workflow.as_str().len() + extra + 1024);
        serde_json::to_writer(&mut bytes, &body).map_err(|error| Error::Protocol {
            what: "POST /prompt".into(),
            detail: format!("the request cannot be written as JSON: {error}"),
        })?;
        Ok(bytes.into())
    }
}

impl fmt::Debug for PromptRequest {
    /// Of `extra_data` only the keys: it can hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptRequest")
            .field("prompt_id", &self.prompt_id)
            .field("client_id", &self.client_id)
            .field("number", &self.number)
            .field("front", &self.front)
            .field("extra_data", &self.extra_data.keys().collect::<Vec<_>>())
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

/// The server queued the prompt.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The id it has there: ours, or the server's own on versions before 0.3.45.
    pub prompt_id: PromptId,
    /// Its place in the order, `None` when it was found by looking instead of by the answer.
    pub number: Option<f64>,
    /// Outputs that will not run, although the others will: **200 can carry errors**.
    pub node_errors: NodeErrors,
    /// The answer was lost, and the prompt was found on the server.
    pub found_after_doubt: bool,
}

/// Errors per node id.
pub type NodeErrors = IndexMap<String, NodeError>;

/// What is wrong with one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeError {
    /// Its errors.
    #[serde(default)]
    pub errors: Vec<Problem>,
    /// Output nodes that cannot run because of it.
    #[serde(default)]
    pub dependent_outputs: Vec<String>,
    /// Class of the node.
    #[serde(default)]
    pub class_type: String,
}

/// One error, as the server words it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    /// For example `value_not_in_list`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// What it means.
    #[serde(default)]
    pub message: String,
    /// Details; often empty.
    #[serde(default)]
    pub details: String,
    /// More, by kind: `input_name`, `received_value`, `input_config`, …
    #[serde(default)]
    pub extra_info: Value,
}

impl Problem {
    /// The input it is about.
    #[must_use]
    pub fn input_name(&self) -> Option<&str> {
        self.extra_info.get("input_name")?.as_str()
    }
}

/// The server's refusal of a prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Refusal {
    /// The error of the whole.
    pub error: Problem,
    /// Errors of nodes.
    #[serde(default = "IndexMap::new", deserialize_with = "node_errors")]
    pub node_errors: NodeErrors,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", excerpt(&self.error.message))?;
        if !self.error.details.is_empty() && self.node_errors.is_empty() {
            write!(f, ": {}", excerpt(&self.error.details))?;
        }
        let all =
            self.node_errors.iter().flat_map(|(id, node)| node.errors.iter().map(move |one| (id, node, one)));
        for (id, node, problem) in all.clone().take(TOLD) {
            let (class, message) = (excerpt(&node.class_type), excerpt(&problem.message));
            write!(f, "; node {} ({class}): {message}", excerpt(id))?;
            if !problem.details.is_empty() {
                write!(f, ": {}", excerpt(&problem.details))?;
            }
        }
        match all.count().saturating_sub(TOLD) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// How many errors of nodes a refusal tells in words; a program reads them all.
const TOLD: usize = 20;

/// The real server writes `{}`, forks have been seen to write `[]` for "none".
fn node_errors<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NodeErrors, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

#[derive(Deserialize)]
struct Answer {
    prompt_id: PromptId,
    #[serde(default)]
    number: Option<f64>,
    #[serde(default = "IndexMap::new", deserialize_with = "node_errors")]
    node_errors: NodeErrors,
}

/// A refusal as far as it can be read. The server repeats what it does not like, which may be anything: with too much of it
/// the prompt is refused all the same.
fn refusal(bytes: &[u8], parse: impl FnOnce(&[u8]) -> Option<Refusal>) -> Option<Refusal> {
    /// The server's refusals begin with the error.
    const BEGINNING: usize = 100;
    let cut = bytes.len() as u64 >= REFUSAL_BODY;
    let readable = !cut && lenient::count_values(bytes, usize::MAX) <= REFUSAL_VALUES;
    if readable {
        return parse(bytes);
    }
    let begins = String::from_utf8_lossy(&bytes[..bytes.len().min(BEGINNING)]);
    begins.trim_start().trim_start_matches('{').trim_start().starts_with("\"error\"").then(|| Refusal {
        error: Problem {
            kind: "refused".into(),
            message: "the prompt was refused, and the reasons are too long to be read".into(),
            details: text_of(bytes).unwrap_or_default(),
            extra_info: Value::Null,
        },
        node_errors: NodeErrors::new(),
    })
}

/// A request of which the server surely knows nothing is one that was not sent.
fn not_there(mut doubt: Error) -> Error {
    if let Error::Unreachable { sent, .. } = &mut doubt {
        *sent = false;
    }
    doubt
}

impl Client {
    /// Submits a prompt, once.
    ///
    /// A lost answer or a 5xx does not mean "not queued". After such doubt the prompt is looked up on the server; it is
    /// sent again only when it is surely not there.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reasons; [`Error::Unreachable`] when nothing was sent;
    /// [`Error::Uncertain`] when the answer was lost and the server cannot be asked.
    pub async fn submit(&self, request: &PromptRequest) -> Result<Accepted> {
        let capabilities = self.capabilities().await?;
        if request.targets.is_some() && !capabilities.partial_targets {
            return Err(Error::Unsupported {
                what: "running chosen outputs only",
                version: capabilities.version,
            });
        }
        let body = request.body()?;
        let begun = Instant::now();
        let over = || request.resend_within.is_some_and(|time| begun.elapsed() > time);
        let mut tries = 0;
        loop {
            tries += 1;
            let doubt = match self.post_prompt(body.clone()).await {
                Ok(accepted) => return Ok(accepted),
                Err(error) => match error {
                    Error::Unreachable { sent: false, .. } if tries <= 3 => {
                        tokio::time::sleep(pause(tries)).await;
                        if over() {
                            return Err(error);
                        }
                        continue;
                    }
                    // Also a 200 whose body cannot be read.
                    Error::Unreachable { sent: true, .. }
                    | Error::TimedOut { .. }
                    | Error::TooLarge { .. }
                    | Error::Protocol { .. } => error,
                    Error::Status { status, .. } if status.is_server_error() => error,
                    error => return Err(error),
                },
            };
            tracing::warn!(prompt_id = %request.prompt_id, error = %doubt, "no answer to the submission: looking it up");
            let uncertain = |source: Error| Error::Uncertain {
                prompt_id: request.prompt_id.clone(),
                source: Box::new(source),
            };
            match self.look_after_doubt(request, capabilities.own_prompt_id).await {
                Ok(Some(prompt_id)) => {
                    return Ok(Accepted {
                        prompt_id,
                        number: None,
                        node_errors: NodeErrors::new(),
                        found_after_doubt: true,
                    });
                }
                // It may still be on its way through a slow server or proxy: another one would be a second render.
                Ok(None) if may_still_arrive(&doubt) => return Err(uncertain(doubt)),
                // A 500 that left nothing behind is the server's way to refuse a malformed request.
                Ok(None) if tries >= 3 => return Err(doubt),
                Ok(None) => {
                    tokio::time::sleep(pause(tries)).await;
                    if over() {
                        return Err(not_there(doubt));
                    }
                }
                Err(Error::Unsupported { .. }) => return Err(uncertain(doubt)),
                Err(error) => return Err(uncertain(error)),
            }
        }
    }

    async fn post_prompt(&self, body: bytes::Bytes) -> Result<Accepted> {
        let call = self.post(&["prompt"]).raw_body(body);
        let (status, body) = call.answer().await?;
        let bytes = &body.bytes;
        if status == StatusCode::OK {
            let answer: Answer = call.parse(bytes)?;
            return Ok(Accepted {
                prompt_id: answer.prompt_id,
                number: answer.number,
                node_errors: answer.node_errors,
                found_after_doubt: false,
            });
        }
        if status == StatusCode::BAD_REQUEST
            && let Some(refusal) = refusal(bytes, |bytes| call.parse(bytes).ok())
        {
            return Err(Error::Refused(Box::new(refusal)));
        }
        Err(Error::Status { method: "POST", path: "/prompt".into(), status, body: text_of(bytes) })
    }

    /// `Some(id)` when the prompt is there, `None` when it surely is not.
    async fn look_after_doubt(&self, request: &PromptRequest, own_id: bool) -> Result<Option<PromptId>> {
        // A request whose answer was lost can still be in the server's hands: it is absent only if it stays absent.
        for look in 0..2 {
            if look > 0 {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let found = if own_id {
                let place = self.find(&request.prompt_id).await?;
                (!matches!(place, Whereabouts::Absent)).then(|| request.prompt_id.clone())
            } else if let Some((key, value)) = &request.marker {
                self.find_marked(key, value).await?
            } else {
                return Err(Error::Unsupported { what: "finding a prompt without a marker", version: None });
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Whether a request without an answer can take effect later. A broken connection or ComfyUI's own 500 cannot.
fn may_still_arrive(doubt: &Error) -> bool {
    match doubt {
        Error::TimedOut { .. } | Error::Protocol { .. } | Error::TooLarge { .. } => true,
        Error::Status { status, .. } => *status != StatusCode::INTERNAL_SERVER_ERROR,
        _ => false,
    }
}

/// Grows with each try, and never in step with other clients.
pub(crate) fn pause(tries: u32) -> Duration {
    let base = 100u64 << tries.min(6);
    let jitter = u64::from(uuid::Uuid::new_v4().as_fields().0) % base;
    Duration::from_millis(base / 2 + jitter)
}
