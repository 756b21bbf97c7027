//! Refusals in the shape in which ComfyUI writes them.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use remuda_preflight::{PreflightError, Words};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, SECRET_KEY_NEEDED};
use crate::service::ServiceError;
use crate::share::TurnedAway;

/// An answer that is not the one that was hoped for, as ComfyUI words it:
/// `{"error": {type, message, details, extra_info}, "node_errors": {}}`.
#[derive(Debug)]
pub(crate) struct NativeError {
    pub(crate) status: StatusCode,
    /// `error.type`.
    pub(crate) kind: String,
    /// `error.message`.
    pub(crate) message: String,
    /// `error.details`.
    pub(crate) details: String,
    /// `error.extra_info`.
    pub(crate) extra_info: Box<Map<String, Value>>,
    /// What is wrong with which node.
    pub(crate) node_errors: Box<Map<String, Value>>,
    /// What it was before: its headers and its line in our log.
    inner: Option<Box<ApiError>>,
}

impl NativeError {
    /// The request is at fault.
    pub(crate) fn refused(kind: &str, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: kind.to_owned(),
            message: message.into(),
            details: details.into(),
            extra_info: Box::default(),
            node_errors: Box::default(),
            inner: None,
        }
    }

    /// There is no graph in it.
    pub(crate) fn no_prompt() -> Self {
        Self::refused("no_prompt", "No prompt provided", "No prompt provided")
    }

    /// Another task of the tenant is called so.
    pub(crate) fn in_use() -> Self {
        let details = "another prompt has this prompt_id; leave it out, or send a fresh UUID";
        Self::refused("invalid_prompt_id", "prompt_id is in use", details)
    }

    /// What it was before it got ComfyUI's words.
    pub(crate) fn into_inner(self) -> Result<ApiError, Self> {
        match self.inner {
            Some(inner) => Ok(*inner),
            None => Err(self),
        }
    }

    fn body(&self) -> Value {
        let error = json!({
            "type": self.kind, "message": self.message, "details": self.details, "extra_info": self.extra_info,
        });
        json!({"error": error, "node_errors": self.node_errors})
    }
}

impl IntoResponse for NativeError {
    fn into_response(mut self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(inner) = self.inner.take() {
            // It writes the log, and knows when the caller may come back.
            let inner = inner.into_response();
            if let Some(after) = inner.headers().get(http::header::RETRY_AFTER) {
                response.headers_mut().insert(http::header::RETRY_AFTER, after.clone());
            }
        }
        response
    }
}

impl From<Words> for NativeError {
    fn from(words: Words) -> Self {
        let Words { kind, message, details, extra_info, node_errors } = words;
        let (extra_info, node_errors) = (Box::new(extra_info), Box::new(node_errors));
        Self { extra_info, node_errors, ..Self::refused(kind, message, details) }
    }
}

impl From<ApiError> for NativeError {
    fn from(error: ApiError) -> Self {
        let body = &error.body;
        if body.code == SECRET_KEY_NEEDED {
            // ComfyUI refuses what is in a prompt with 400, whatever it is.
            let new = Self::refused(body.code, "A secret cannot be kept", body.error.clone());
            return Self { inner: Some(Box::new(error)), ..new };
        }
        let new = Self::refused(body.code, body.error.clone(), body.detail.clone().unwrap_or_default());
        let mut new = Self { status: error.status, ..new };
        if let Some(limit) = body.limit {
            new.extra_info.insert("limit".to_owned(), limit.into());
        }
        Self { inner: Some(Box::new(error)), ..new }
    }
}

impl From<remuda_store::Error> for NativeError {
    fn from(error: remuda_store::Error) -> Self {
        ApiError::from(error).into()
    }
}

impl From<TurnedAway> for NativeError {
    fn from(error: TurnedAway) -> Self {
        ApiError::from(error).into()
    }
}

impl From<ServiceError> for NativeError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Preflight(PreflightError::Refused(refusal)) => refusal.words().into(),
            ServiceError::Store(remuda_store::Error::Conflict { .. }) => Self::in_use(),
            other => ApiError::from(other).into(),
        }
    }
}
