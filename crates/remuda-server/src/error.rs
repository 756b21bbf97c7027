//! The one error of the HTTP edge: a status, a stable code, a text for the caller, and a second one for our log.
//!
//! Inner layers know nothing of statuses; the translations are all here.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use remuda_core::{IdError, TaskId};
use remuda_pool::NotDone;
use remuda_preflight::{PreflightError, Refusal, RefusalKind};
use serde::Serialize;
use utoipa::ToSchema;

use crate::service::ServiceError;
use crate::share::TurnedAway;

/// The code of a task that brings a secret while there is no key to keep it with.
pub(crate) const SECRET_KEY_NEEDED: &str = "secret_key_needed";

/// A result of a handler.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// How every error looks. `error` is a text, as it always was; the rest says more.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// For people: what is wrong with which part of the request, and what to do.
    pub(crate) error: String,
    /// For programs: does not change between versions.
    #[schema(value_type = String, example = "not_found")]
    pub(crate) code: &'static str,
    /// Details, where one line is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// The field, parameter or header at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// The node of the graph at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_id: Option<String>,
    /// The class of that node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) class_type: Option<String>,
    /// The input of that node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<String>,
    /// The task that the request was about, or that is in its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<String>,
    /// The state of that task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<String>,
    /// The limit that was met, by the name of its setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) limit: Option<&'static str>,
    /// Where the feed of events begins: a value for its `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<String>,
}

/// An answer that is not the one that was hoped for.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: Box<ErrorBody>,
    retry_after_s: Option<u32>,
    /// For the log, not for the caller.
    log: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> Self {
        let body = Box::new(ErrorBody { error: error.into(), code, ..ErrorBody::default() });
        Self { status, body, retry_after_s: None, log: None }
    }

    /// The request is not well formed.
    pub(crate) fn bad_request(code: &'static str, error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, error)
    }

    /// The request is well formed, and one of its fields is wrong.
    pub(crate) fn invalid(field: &str, error: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", error).field(field)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        let id: String = id.chars().take(120).collect();
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} {id}"))
    }

    pub(crate) fn no_task(id: TaskId) -> Self {
        Self::not_found("task", &id.to_string()).task(id)
    }

    pub(crate) fn forbidden(code: &'static str, error: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, error)
    }

    pub(crate) fn busy(what: &str) -> Self {
        let error = format!("too many {what} at once: try again in a moment");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", error).retry_after(1)
    }

    /// The caller has all of something that one caller may have. `limit` is the name of the setting.
    pub(crate) fn over_limit(limit: &'static str, error: impl Into<String>) -> Self {
        let mut new = Self::new(StatusCode::TOO_MANY_REQUESTS, "over_limit", error);
        new.body.limit = Some(limit);
        new.retry_after(1)
    }

    /// There is no memory for this request now. Whoever holds most hears it first.
    pub(crate) fn no_memory() -> Self {
        let error = "too many bytes are under way: read what was asked for, or try again in a moment";
        let mut new = Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", error).retry_after(2);
        new.body.limit = Some("server.memory");
        new
    }

    pub(crate) fn too_large(what: &str, limit: u64) -> Self {
        let error = format!("{what} is larger than the {limit} bytes that this server takes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error)
    }

    pub(crate) fn internal(log: impl Into<String>) -> Self {
        let error = "something went wrong inside the server; its log says what";
        let mut new = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error);
        new.log = Some(log.into());
        new
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        self.body.field = Some(field.into());
        self
    }

    pub(crate) fn task(mut self, task: TaskId) -> Self {
        self.body.task = Some(task.to_string());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl ApiError {
    /// When to come back.
    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        self.retry_after_s
    }

    /// Puts it into the log, if it is our own trouble. To be done once, where it is answered.
    pub(crate) fn note(&self) {
        if self.status.is_server_error() {
            let log = self.log.as_deref().unwrap_or(&self.body.error);
            tracing::warn!(http.status = self.status.as_u16(), error.code = self.body.code, "{log}");
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.note();
        let body = (*self.body).clone();
        let mut response = (self.status, Json(self.body)).into_response();
        // For layers that say the same in other words.
        response.extensions_mut().insert(body);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let value = HeaderValue::from_static("Bearer realm=\"remuda\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

impl From<remuda_store::Error> for ApiError {
    fn from(error: remuda_store::Error) -> Self {
        use remuda_store::Error;
        let text = error.to_string();
        let unavailable = |code| {
            let hint = "the store does not answer: try again in a moment; with an Idempotency-Key nothing is made twice";
            Self::new(StatusCode::SERVICE_UNAVAILABLE, code, hint).retry_after(2)
        };
        match error {
            Error::NotFound { what, id } => Self::not_found(what, &id),
            Error::Finished(status) => {
                let mut new = Self::new(StatusCode::CONFLICT, "finished", text);
                new.body.status = Some(status.to_string());
                new
            }
            Error::Conflict { task } => Self::new(StatusCode::CONFLICT, "idempotency_conflict", text)
                .field("Idempotency-Key")
                .task(task),
            Error::NoSecretKey { field } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, SECRET_KEY_NEEDED, text)
                    .field(format!("extra_data.{field}"))
            }
            Error::Fenced => Self::new(StatusCode::CONFLICT, "fenced", text),
            Error::Taken { .. } => Self::new(StatusCode::CONFLICT, "worker_taken", text).field("spec.id"),
            Error::TooMany { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "over_limit", text).retry_after(1)
            }
            Error::Full => Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", text).retry_after(30),
            Error::OverLimit { limit, message } => Self::over_limit(limit, format!("{message} ({limit})")),
            Error::Unavailable { .. } | Error::InUse { .. } => {
                let mut new = unavailable("store_unavailable");
                new.log = Some(text);
                new
            }
            Error::Closed => unavailable("stopping"),
            Error::Gone { first } => {
                let error =
                    format!("what followed that event is not kept any more: begin with ?after={first}");
                let mut new = Self::new(StatusCode::GONE, "gone", error).field("Last-Event-ID");
                new.body.first = Some(first.to_string());
                new
            }
            other => Self::internal(other.to_string()),
        }
    }
}

impl From<remuda_files::Error> for ApiError {
    fn from(error: remuda_files::Error) -> Self {
        use remuda_files::Error;
        // The texts name paths and buckets: they are for the log.
        let text = error.to_string();
        let mut new = match error {
            Error::NotFound { .. } | Error::Linked { .. } => {
                Self::new(StatusCode::NOT_FOUND, "file_missing", "the file is not in the file store any more")
            }
            Error::TooLarge { limit } => Self::too_large("the file", limit),
            Error::Full { .. } => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", "the file store is full")
                    .retry_after(30)
            }
            Error::Source(source) => {
                return Self::bad_request("upload_broken", format!("the upload broke off: {source}"));
            }
            Error::BadRange { size } => Self::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "bad_range",
                format!("the range begins after the end of the file, which has {size} bytes"),
            ),
            Error::Unavailable { .. } => {
                let hint = "the file store does not answer: try again in a moment";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "files_unavailable", hint).retry_after(5)
            }
            _ => return Self::internal(text),
        };
        new.log = Some(text);
        new
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let mut new = Self::new(StatusCode::UNPROCESSABLE_ENTITY, refusal.kind.as_str(), refusal.message);
        let field = match (refusal.kind, refusal.limit) {
            (RefusalKind::BadInput, _) | (_, Some("graph.files")) => "inputs",
            (_, Some("graph.targets")) => "partial_execution_targets",
            _ => "payload",
        };
        new.body.field = Some(field.to_owned());
        new.body.limit = refusal.limit;
        if let Some(place) = refusal.place {
            new.body.node_id = Some(place.node_id);
            new.body.class_type = place.class_type;
            new.body.input = place.input;
        }
        if !refusal.more.is_empty() {
            new.body.detail = Some(refusal.more.join("\n"));
        }
        new
    }
}

impl From<PreflightError> for ApiError {
    fn from(error: PreflightError) -> Self {
        match error {
            PreflightError::Refused(refusal) => refusal.into(),
            PreflightError::Store(error) => error.into(),
            PreflightError::NotDone(error) => error.into(),
        }
    }
}

/// Who is turned away hears by what.
impl From<TurnedAway> for ApiError {
    fn from(error: TurnedAway) -> Self {
        match error {
            TurnedAway::Busy { what } => Self::busy(what),
            TurnedAway::Share { what, setting } => {
                let error = format!("too many {what} of yours at once: wait for some to end ({setting})");
                Self::over_limit(setting, error)
            }
            TurnedAway::Memory => Self::no_memory(),
            TurnedAway::NotDone(error) => error.into(),
        }
    }
}

impl From<NotDone> for ApiError {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Busy => Self::busy("large requests"),
            NotDone::Share => Self::over_limit(
                "process.pool_queue",
                "too many of your large requests wait already: try again in a moment",
            ),
            NotDone::Stalled => {
                let error =
                    "what was sent is too complex: working on it took longer than process.watchdog allows";
                let mut new = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "too_complex", error);
                new.body.limit = Some("process.watchdog");
                new
            }
            NotDone::Panicked(text) => Self::internal(format!("a computation panicked: {text}")),
            NotDone::Closed => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")
            }
        }
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let text = error.to_string();
        match error {
            ServiceError::NoTask(id) => Self::no_task(id),
            ServiceError::ForeignTenant(_) => Self::forbidden("foreign_tenant", text),
            ServiceError::Running(id) => Self::new(StatusCode::CONFLICT, "running", text).task(id),
            ServiceError::Harmful(id) => Self::new(StatusCode::CONFLICT, "harmful", text).task(id),
            ServiceError::SecretGone { task, .. } => {
                Self::new(StatusCode::CONFLICT, "secret_gone", text).task(task)
            }
            ServiceError::NoOutput { task, .. } => {
                Self::new(StatusCode::NOT_FOUND, "no_such_output", text).task(task)
            }
            ServiceError::NoRoom => Self::over_limit("tasks.max_stored", text),
            ServiceError::NoAsset(sha256) => Self::not_found("asset", &sha256.to_string()),
            ServiceError::AssetInUse { task } => {
                Self::new(StatusCode::CONFLICT, "asset_in_use", text).task(task)
            }
            ServiceError::AssetGone { task, .. } => {
                Self::new(StatusCode::CONFLICT, "asset_gone", text).task(task)
            }
            ServiceError::TooLong(limit) => Self::too_large("the file", limit),
            ServiceError::TakenAway => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "taken_away", text).retry_after(1)
            }
            ServiceError::Files(error) => error.into(),
            ServiceError::Preflight(error) => error.into(),
            ServiceError::StoreAbout { task, source } => Self::from(source).task(task),
            ServiceError::Store(error) => error.into(),
            ServiceError::TurnedAway(error) => error.into(),
        }
    }
}

/// A name in a path that cannot be one.
impl From<IdError> for ApiError {
    fn from(error: IdError) -> Self {
        Self::bad_request("malformed_id", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_core::Status;
    use remuda_store::Error;

    #[test]
    fn every_trouble_of_the_store_has_its_status() {
        let task = TaskId::new();
        let unavailable =
            || Error::Unavailable { message: "connection refused to db.internal".to_owned(), source: None };
        let cases = [
            (Error::Full, 507, "disk_full", true),
            (
                Error::OverLimit { limit: "server.documents", message: "much".to_owned() },
                429,
                "over_limit",
                true,
            ),
            (unavailable(), 503, "store_unavailable", true),
            (Error::Closed, 503, "stopping", true),
            (Error::Fenced, 409, "fenced", false),
            (Error::Taken { id: "w".to_owned() }, 409, "worker_taken", false),
            (Error::TooMany { what: "workers" }, 429, "over_limit", true),
            (Error::Finished(Status::Failed), 409, "finished", false),
            (Error::Conflict { task }, 409, "idempotency_conflict", false),
            (Error::NotFound { what: "task", id: "x".to_owned() }, 404, "not_found", false),
            (Error::Corrupt("a secret of the inside".to_owned()), 500, "internal", false),
        ];
        for (error, status, code, come_back) in cases {
            let text = error.to_string();
            let found = ApiError::from(error);
            assert_eq!((found.status.as_u16(), found.body.code), (status, code), "{text}");
            assert!(!found.body.error.contains("internal") && !found.body.error.contains("secret"), "{text}");
            let response = found.into_response();
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), come_back, "{text}");
        }
    }

    #[test]
    fn troubles_of_the_file_store_do_not_tell_where_it_is() {
        let location = "s3://secret-bucket".to_owned();
        let detail = "/secret/path".to_owned();
        let cases = [
            (remuda_files::Error::Full { location: location.clone(), detail: detail.clone() }, 507),
            (remuda_files::Error::Unavailable { location: location.clone(), detail: detail.clone() }, 503),
            (remuda_files::Error::Denied { location: location.clone(), detail: detail.clone() }, 500),
            (remuda_files::Error::Other { location, detail }, 500),
            (remuda_files::Error::TooLarge { limit: 7 }, 413),
        ];
        for (error, status) in cases {
            let found = ApiError::from(error);
            assert_eq!(found.status.as_u16(), status);
            assert!(!found.body.error.contains("secret"), "{:?}", found.body);
        }
    }

    #[test]
    fn who_is_turned_away_hears_by_what() {
        for (error, status, code, limit, retry) in [
            (NotDone::Busy, 503, "busy", None, true),
            (NotDone::Share, 429, "over_limit", Some("process.pool_queue"), true),
            (NotDone::Stalled, 422, "too_complex", Some("process.watchdog"), false),
            (NotDone::Closed, 503, "stopping", None, false),
            (NotDone::Panicked("x".to_owned()), 500, "internal", None, false),
        ] {
            let new = ApiError::from(error);
            assert_eq!((new.status.as_u16(), new.body.code, new.body.limit), (status, code, limit));
            assert_eq!(new.retry_after_s().is_some(), retry, "{code}");
        }
    }
}
