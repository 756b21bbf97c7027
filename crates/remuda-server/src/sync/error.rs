//! How the synchronous handler says that something went wrong: `{error, detail, prompt_id, node_errors, timestamp}`.
//!
//! | class | status |
//! | --- | --- |
//! | connection: no usable worker, the store or the files away, too much to do | 503 |
//! | timeout | 408 |
//! | task: ComfyUI refused the graph, or its execution failed | 400 |
//! | validation: the request is malformed | 422 |
//! | server | 500 |
//!
//! What is refused before the handler is reached, by the gate say, gets the same shape from [`refused`].

use std::borrow::Cow;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use remuda_core::{Failure, FailureClass, JsonText};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::answer::Left;
use crate::error::{ApiError, ErrorBody};
use crate::native::prompts::NativeError;
use crate::service::ServiceError;
use crate::share::TurnedAway;

/// Names the prompt on every answer that is about one.
pub(super) const PROMPT_ID: HeaderName = HeaderName::from_static("x-prompt-id");

/// How every error of the synchronous handler looks.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SyncErrorBody {
    /// What kind of trouble it is, in a few words.
    #[schema(example = "Task execution failed")]
    error: String,
    /// What happened, to what.
    detail: String,
    /// For programs: does not change between versions.
    #[schema(value_type = String, example = "task_failed")]
    code: Cow<'static, str>,
    /// The prompt, if there is one by now.
    prompt_id: Option<String>,
    /// By node, as ComfyUI tells them: `{"errors": [{"type", "message", "details", "extra_info"}], "dependent_outputs", "class_type"}`.
    #[schema(value_type = Object)]
    node_errors: Value,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Timestamp,
    /// The limit that was met, by the name of its setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    limit: Option<&'static str>,
    /// What was done before it failed, if something was.
    #[serde(flatten)]
    #[schema(ignore)]
    left: Option<Left>,
}

/// An answer of the synchronous handler that is not the one that was hoped for.
#[derive(Debug)]
pub(super) struct SyncError {
    status: StatusCode,
    body: Box<SyncErrorBody>,
    retry_after_s: Option<u32>,
}

impl SyncError {
    fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        error: &str,
        detail: impl Into<String>,
    ) -> Self {
        let body = Box::new(SyncErrorBody {
            error: error.to_owned(),
            detail: detail.into(),
            code: code.into(),
            prompt_id: None,
            node_errors: json!({}),
            timestamp: Timestamp::now(),
            limit: None,
            left: None,
        });
        Self { status, body, retry_after_s: None }
    }

    /// No ComfyUI can be asked, now.
    pub(super) fn connection(detail: impl Into<String>) -> Self {
        let error = "Connection to ComfyUI failed";
        let new = Self::new(StatusCode::SERVICE_UNAVAILABLE, "connection_failed", error, detail);
        Self { retry_after_s: Some(5), ..new }
    }

    /// This server ends before the prompt does.
    pub(super) fn stopping() -> Self {
        let detail = "the server is stopping; ask for the prompt under its id when it is back";
        let new = Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "Server is stopping", detail);
        Self { retry_after_s: Some(2), ..new }
    }

    pub(super) fn timeout(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "Timeout", detail)
    }

    pub(super) fn cancelled() -> Self {
        let detail = "somebody cancelled the prompt before it was done";
        Self::new(StatusCode::BAD_REQUEST, "cancelled", "Task was cancelled", detail)
    }

    /// There is a result, and nothing in it that the client accepts.
    pub(super) fn not_acceptable(detail: impl Into<String>) -> Self {
        let error = "No output is acceptable";
        Self::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", error, detail)
    }

    /// A task that failed.
    pub(super) fn failed(failure: Option<&Failure>) -> Self {
        let Some(failure) = failure else {
            return ApiError::internal("a task failed without a reason").into();
        };
        let detail = failure.message.clone();
        let new = match failure.class {
            FailureClass::Validation => {
                Self::new(StatusCode::BAD_REQUEST, "prompt_refused", "Prompt was refused", detail)
            }
            FailureClass::Execution | FailureClass::OutOfMemory | FailureClass::Harmful => {
                Self::new(StatusCode::BAD_REQUEST, "task_failed", "Task execution failed", detail)
            }
            FailureClass::Timeout => Self::timeout(detail),
            FailureClass::Cancelled => Self::cancelled(),
            FailureClass::Crash | FailureClass::Connection | FailureClass::Lost => Self::connection(detail),
            FailureClass::Delivery => {
                let error = "Result could not be stored";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "delivery_failed", error, detail)
            }
        };
        new.node_errors(node_errors(failure))
    }

    /// A body that cannot be read as a prompt.
    pub(super) fn malformed(error: NativeError) -> Self {
        match error.into_inner() {
            Ok(error) => error.into(),
            Err(NativeError { kind, message, details, .. }) => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                let detail = match kind == "no_prompt" {
                    true => format!("{message}: the body is {{\"prompt\": the workflow in API format}}"),
                    false => format!("{message}: {details}"),
                };
                Self::new(status, kind, "Validation failed", detail)
            }
        }
    }

    #[cfg(test)]
    pub(super) fn detail(&self) -> &str {
        &self.body.detail
    }

    /// Whether it is sure that nothing was queued.
    pub(super) fn is_refusal(&self) -> bool {
        self.status.is_client_error()
    }

    pub(super) fn prompt_id(mut self, id: impl Into<String>) -> Self {
        self.body.prompt_id = Some(id.into());
        self
    }

    /// What was done before it failed.
    pub(super) fn left(mut self, left: Option<Left>) -> Self {
        self.body.left = left;
        self
    }

    fn node_errors(mut self, errors: Value) -> Self {
        self.body.node_errors = errors;
        self
    }

    /// What another layer said, in this shape.
    fn of(status: StatusCode, body: ErrorBody) -> Self {
        // Whatever makes a request malformed is one class here.
        let malformed = [StatusCode::UNSUPPORTED_MEDIA_TYPE, StatusCode::BAD_REQUEST];
        let status = if malformed.contains(&status) { StatusCode::UNPROCESSABLE_ENTITY } else { status };
        let error = match status {
            StatusCode::UNPROCESSABLE_ENTITY => "Validation failed",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Access denied",
            StatusCode::REQUEST_TIMEOUT => "Timeout",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::PAYLOAD_TOO_LARGE => "Request is too large",
            StatusCode::METHOD_NOT_ALLOWED => "Method is not allowed",
            StatusCode::TOO_MANY_REQUESTS => "Limit is reached",
            StatusCode::SERVICE_UNAVAILABLE if body.code == "busy" => "Server is busy",
            StatusCode::SERVICE_UNAVAILABLE => "Service is not available",
            _ => "Server error",
        };
        let detail = match body.detail {
            Some(more) => format!("{}\n{more}", body.error),
            None => body.error,
        };
        let mut new = Self::new(status, body.code, error, detail);
        new.body.limit = body.limit;
        match body.task {
            Some(task) => new.prompt_id(task),
            None => new,
        }
    }
}

impl From<ApiError> for SyncError {
    fn from(error: ApiError) -> Self {
        error.note();
        let retry_after_s = error.retry_after_s();
        Self { retry_after_s, ..Self::of(error.status, *error.body) }
    }
}

impl From<ServiceError> for SyncError {
    fn from(error: ServiceError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<TurnedAway> for SyncError {
    fn from(error: TurnedAway) -> Self {
        ApiError::from(error).into()
    }
}

/// A prompt that was not taken in.
impl From<NativeError> for SyncError {
    fn from(error: NativeError) -> Self {
        let NativeError { kind, message, details, node_errors, .. } = match error.into_inner() {
            Ok(error) => return error.into(),
            Err(error) => error,
        };
        let status = if kind == "invalid_prompt_id" { StatusCode::CONFLICT } else { StatusCode::BAD_REQUEST };
        let detail = if details.is_empty() { message } else { format!("{message}: {details}") };
        Self::new(status, kind, "Prompt was refused", detail).node_errors(Value::Object(*node_errors))
    }
}

impl IntoResponse for SyncError {
    fn into_response(self) -> Response {
        let prompt_id = self.body.prompt_id.as_deref().and_then(|id| HeaderValue::from_str(id).ok());
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        if let Some(id) = prompt_id {
            headers.insert(PROMPT_ID, id);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// What a failure says of nodes, as ComfyUI says it.
fn node_errors(failure: &Failure) -> Value {
    let details = failure.details.as_ref().map(JsonText::read);
    let details = details.as_ref();
    // A refusal keeps ComfyUI's own words.
    if let Some(told) = details.and_then(|details| details.get("node_errors")).filter(|told| told.is_object())
    {
        return told.clone();
    }
    let Some(node) = &failure.node_id else { return json!({}) };
    let text = |name: &str| details.and_then(|details| details.get(name)?.as_str()).unwrap_or_default();
    let lines = details.and_then(|details| details.get("traceback")?.as_array());
    let traceback: String = lines.into_iter().flatten().filter_map(Value::as_str).collect();
    let kind = text("exception_type");
    let error = json!({
        "type": if kind.is_empty() { failure.class.as_str() } else { kind },
        "message": if text("exception_message").is_empty() { &failure.message } else { text("exception_message") },
        "details": traceback,
        "extra_info": {},
    });
    let mut errors = Map::new();
    errors.insert(
        node.clone(),
        json!({"errors": [error], "dependent_outputs": [], "class_type": text("node_type")}),
    );
    Value::Object(errors)
}

/// What was refused before the handler was reached, in its shape.
pub(super) fn refused(status: StatusCode, body: ErrorBody) -> Response {
    SyncError::of(status, body).into_response()
}
