//! What can go wrong between a command and its server, and the exit code that scripts see.

use std::process::ExitCode;

use reqwest::{Response, StatusCode};
use url::Url;

/// Why a request to the server did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// Nobody answers.
    #[error(
        "no Remuda answers at {base}: start one with `remuda serve`, or name another with --server\n  {reason}"
    )]
    Unreachable { base: Url, reason: String },
    /// The server said no.
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    /// The server answered something else.
    #[error("{base} does not answer as a Remuda does ({source}): is it one?")]
    Strange { base: Url, source: serde_json::Error },
    /// The server does not come to an end.
    #[error("{base} does not answer as a Remuda does (its answer has no end): is it one?")]
    Endless { base: Url },
}

impl ApiError {
    pub(super) fn unreachable(base: &Url, source: reqwest::Error) -> Self {
        let mut reason = source.to_string();
        let mut cause = std::error::Error::source(&source);
        while let Some(next) = cause {
            reason = next.to_string();
            cause = next.source();
        }
        Self::Unreachable { base: base.clone(), reason }
    }

    pub(super) async fn refused(answer: Response) -> Self {
        let status = answer.status();
        // Somebody in between may say anything, at any length.
        let mut body = Vec::new();
        let mut answer = answer;
        while let Ok(Some(chunk)) = answer.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > 1 << 20 {
                break;
            }
        }
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let mut message = text("error").unwrap_or_else(|| format!("the server answered {status}"));
        for (name, label) in [("field", "field"), ("node_id", "node"), ("detail", "detail")] {
            if let Some(value) = text(name).filter(|value| !message.contains(value.as_str())) {
                message = format!("{message}\n  {label}: {value}");
            }
        }
        let hint = match status {
            StatusCode::UNAUTHORIZED => {
                "\n  give a key with --key or REMUDA_API_KEY; `remuda keys make` makes one"
            }
            StatusCode::FORBIDDEN => {
                "\n  the key does not allow this; `remuda keys list` shows what each allows"
            }
            StatusCode::SERVICE_UNAVAILABLE => "\n  try again in a moment",
            _ => "",
        };
        Self::Refused { status, message: message + hint }
    }
}

/// The exit code of a command that ended with this error:
/// 1 something went wrong, 2 the request was refused as wrong, 3 no server, 4 no such thing or too late for it.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code = match error.downcast_ref::<ApiError>() {
        Some(ApiError::Unreachable { .. } | ApiError::Strange { .. } | ApiError::Endless { .. }) => 3,
        Some(ApiError::Refused { status, .. }) => match *status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::GONE => 4,
            status if status.is_client_error() => 2,
            _ => 1,
        },
        None => 1,
    };
    ExitCode::from(code)
}
