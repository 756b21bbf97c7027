//! What a synchronous request says.

use std::time::Duration;

use remuda_core::Priority;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::error::SyncError;
use crate::error::{ApiError, ApiResult};
use crate::extract::read_json;
use crate::native::prompts::{self, Prompt};
use crate::options::SyncOptions;

/// The most retries that can be asked for.
const MAX_RETRIES: i64 = 100;

/// How long to wait, and what happens to the prompt when nobody waits for it any more.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Query {
    /// How many seconds the render may take from the receipt of the request. 300 when absent, unless the server is
    /// configured otherwise; cut to the longest that the server allows.
    #[param(example = 60.0)]
    timeout: Option<f64>,
    /// `cancel` (when absent): a prompt whose client hangs up, or whose time is over, is cancelled. `keep`: it goes
    /// on, and the client asks for it later under its `prompt_id`.
    #[param(inline)]
    on_disconnect: Option<OnDisconnect>,
}

/// What happens to a prompt that nobody waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnDisconnect {
    /// It is cancelled.
    Cancel,
    /// It goes on.
    Keep,
}

/// One prompt to run to its end: what `POST /prompt` takes, and how to wait. Fields that are not known are ignored.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) struct PromptSync {
    /// The workflow in ComfyUI's API format. It reaches ComfyUI byte for byte.
    #[schema(value_type = Object)]
    prompt: Value,
    /// Whose websocket, if it has one, hears of the prompt.
    client_id: Option<String>,
    /// Your own id for the prompt. The same id with the same body is the same prompt, and with `keep` a request whose
    /// answer was lost can be sent again.
    #[schema(max_length = 200)]
    prompt_id: Option<String>,
    /// For ComfyUI, as it is.
    #[schema(value_type = Option<Object>)]
    extra_data: Option<Value>,
    /// Run these output nodes only.
    partial_execution_targets: Option<Vec<String>>,
    /// The files themselves in the answer, as base64, rather than only links.
    return_image_base64: Option<bool>,
    /// The same as `timeout` in the query, which wins.
    timeout: Option<f64>,
    /// The same as `on_disconnect=keep` in the query, which wins.
    keep: Option<bool>,
    /// 0 (lowest) to 9 (highest), 5 when absent.
    #[schema(minimum = 0, maximum = 9)]
    priority: Option<i64>,
    /// How often a failed render is tried again, 0 when absent: a client that waits wants to know. What is lost with a
    /// worker is rendered again in any case.
    #[schema(minimum = 0, maximum = 100)]
    max_retries: Option<i64>,
}

/// What is read of it here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    return_image_base64: Option<bool>,
    timeout: Option<f64>,
    keep: Option<bool>,
    priority: Option<i64>,
    max_retries: Option<i64>,
}

/// A request whose every field is in its bounds.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Without a deadline yet.
    pub(super) prompt: Prompt,
    pub(super) base64: bool,
    pub(super) keep: bool,
    pub(super) timeout: Duration,
}

/// Reads a body, whatever its content type says, and checks everything but the graph.
pub(super) fn read(bytes: &[u8], query: &Query, options: &SyncOptions) -> Result<Wanted, SyncError> {
    let fields: Fields = read_json(None, bytes)?;
    let mut prompt = prompts::read(bytes).map_err(SyncError::malformed)?;
    if !prompt.workflow.get().starts_with('{') {
        let error = "prompt must be an object: the workflow in API format";
        return Err(ApiError::invalid("prompt", error).into());
    }
    prompt.priority = match fields.priority {
        None => None,
        Some(value) => {
            let priority = Priority::new(value);
            Some(priority.map_err(|error| ApiError::invalid("priority", error.to_string()))?)
        }
    };
    prompt.max_retries = Some(match fields.max_retries {
        None => 0,
        Some(n @ 0..=MAX_RETRIES) => i32::try_from(n).unwrap_or(0),
        Some(n) => {
            let error = format!("max_retries is {n}; 0 to {MAX_RETRIES} are allowed");
            return Err(ApiError::invalid("max_retries", error).into());
        }
    });
    let keep = match query.on_disconnect {
        Some(on_disconnect) => on_disconnect == OnDisconnect::Keep,
        None => fields.keep.unwrap_or(false),
    };
    Ok(Wanted {
        prompt,
        base64: fields.return_image_base64.unwrap_or(false),
        keep,
        timeout: timeout(query.timeout.or(fields.timeout), options)?,
    })
}

fn timeout(seconds: Option<f64>, options: &SyncOptions) -> ApiResult<Duration> {
    let Some(seconds) = seconds else { return Ok(options.timeout) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout.min(options.longest)),
        // More seconds than fit.
        Err(_) if seconds.is_finite() && seconds > 0.0 => Ok(options.longest),
        _ => Err(ApiError::invalid("timeout", format!("timeout is {seconds}; write seconds, more than 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, query: &Query) -> Result<Wanted, String> {
        read(body.as_bytes(), query, &SyncOptions::default()).map_err(|error| error.detail().to_owned())
    }

    #[test]
    fn the_timeout_is_the_querys_then_the_bodys_then_the_servers_and_never_too_long() {
        let wait = |query, body| {
            let query = Query { timeout: query, ..Query::default() };
            check(body, &query).map(|wanted| wanted.timeout.as_secs_f64())
        };
        assert_eq!(wait(None, r#"{"prompt": {}}"#), Ok(300.0));
        assert_eq!(wait(None, r#"{"prompt": {}, "timeout": 1.5}"#), Ok(1.5));
        assert_eq!(wait(Some(2.0), r#"{"prompt": {}, "timeout": 1.5}"#), Ok(2.0));
        assert_eq!(wait(Some(1e9), r#"{"prompt": {}}"#), Ok(86_400.0));
        assert_eq!(wait(Some(1e300), r#"{"prompt": {}}"#), Ok(86_400.0));
        for never in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(wait(Some(never), r#"{"prompt": {}}"#).unwrap_err().starts_with("timeout"), "{never}");
        }
    }

    #[test]
    fn fields_out_of_bounds_are_named() {
        for (body, field) in [
            (r#"{}"#, "prompt"),
            (r#"{"prompt": [1]}"#, "prompt"),
            (r#"{"prompt": {}, "priority": 10}"#, "priority"),
            (r#"{"prompt": {}, "max_retries": -1}"#, "max_retries"),
            (r#"{"prompt": {}, "prompt_id": ""}"#, "prompt_id"),
            (r#"{"prompt": {}, "extra_data": []}"#, "extra_data"),
            (r#"{"prompt": {}, "keep": 1}"#, "keep"),
        ] {
            let detail = check(body, &Query::default()).map(|_| ()).unwrap_err();
            assert!(detail.contains(field), "{body}: {detail}");
        }
        assert!(check(r#"{"prompt": {}, "client_id": "", "unknown": 1}"#, &Query::default()).is_ok());
    }

    #[test]
    fn keep_is_said_in_the_body_or_the_query() {
        let keep = |body, on_disconnect| {
            check(body, &Query { on_disconnect, ..Query::default() }).map(|wanted| wanted.keep)
        };
        assert_eq!(keep(r#"{"prompt": {}}"#, None), Ok(false));
        assert_eq!(keep(r#"{"prompt": {}, "keep": true}"#, None), Ok(true));
        assert_eq!(keep(r#"{"prompt": {}, "keep": true}"#, Some(OnDisconnect::Cancel)), Ok(false));
        assert_eq!(keep(r#"{"prompt": {}}"#, Some(OnDisconnect::Keep)), Ok(true));
    }
}
