//! What an answer of gRPC means.

use std::error::Error as _;
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use super::Host;
use crate::error::{Error, with_causes};

/// The part of `google.rpc.Status` that is looked at.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// How long the server wants us to wait, if it said so.
pub(super) fn retry_after(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    Duration::try_from(delay).ok()
}

/// What a failed call means. `advertised`: the host's name came from the server, not from the settings.
pub(super) fn error(method: &'static str, host: &Host, advertised: bool, status: &Status) -> Error {
    let message = || status.message().to_owned();
    match status.code() {
        Code::ResourceExhausted => {
            Error::Exhausted { method, message: message(), retry_after: retry_after(status.details()) }
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => away(host, advertised, status),
        // A status with a cause was made here, by a broken connection.
        _ if status.source().is_some() => away(host, advertised, status),
        Code::NotFound => Error::NotFound { what: format!("{method}: {}", status.message()) },
        code => Error::Refused { method, code, message: message() },
    }
}

pub(super) fn no_answer(host: &Host, method: &'static str, deadline: Duration) -> Error {
    Error::Unavailable {
        host: host.to_string(),
        reason: format!("no answer to {method} within {} s", deadline.as_secs_f64()),
    }
}

fn away(host: &Host, advertised: bool, status: &Status) -> Error {
    let mut reason = match status.source() {
        Some(cause) => with_causes(cause),
        None if status.message().is_empty() => status.code().description().to_owned(),
        None => status.message().to_owned(),
    };
    if status.source().is_some_and(is_unresolved) {
        reason = match advertised {
            true => format!(
                "the server advertises the name {:?}, which cannot be resolved from here; workers call servers by \
                 their advertised listeners (LHS_ADVERTISED_LISTENERS), so it has to be a name that they can \
                 resolve ({reason})",
                host.name
            ),
            false => {
                format!("the name {:?} of LHC_API_HOST cannot be resolved from here ({reason})", host.name)
            }
        };
    }
    Error::Unavailable { host: host.to_string(), reason }
}

/// Whether the deadline of a call was over, here or at the server.
pub(super) fn is_deadline(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded
        || causes(status.source()).any(|cause| cause.is::<tonic::TimeoutExpired>())
}

/// Whether a connection failed for want of an address. The connector has no type for it that others can see.
fn is_unresolved(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(Some(error)).any(|cause| cause.to_string().starts_with("dns error"))
}

fn causes<'a>(
    first: Option<&'a (dyn std::error::Error + 'static)>,
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(first, |error: &&'a (dyn std::error::Error + 'static)| (**error).source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;

    /// The trailers of recorded refusals.
    #[test]
    fn recorded_retry_infos_are_read() {
        let trailer = "CAgSI1F1b3RhIGV4Y2VlZGVkLiBSZXRyeSBhZnRlciAxNTAwbXMuGjYKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCgoICAEQgMq17gE=";
        let bytes = base64::engine::general_purpose::STANDARD.decode(trailer).unwrap();
        assert_eq!(retry_after(&bytes), Some(Duration::from_millis(1500)));
        assert_eq!(retry_after(&bytes[..bytes.len() - 20]), None);
        // By a real server 1.2.1.
        let trailer = "CAgSIlF1b3RhIGV4Y2VlZGVkLiBSZXRyeSBhZnRlciA2NjZtcy4aNAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIICgYQgLXJvQI=";
        let bytes = base64::engine::general_purpose::STANDARD.decode(trailer).unwrap();
        assert_eq!(retry_after(&bytes), Some(Duration::from_millis(666)));
        assert_eq!(retry_after(b""), None);
    }

    fn meant(code: Code) -> Error {
        let host = Host { name: "h".into(), port: 1 };
        error("GetTaskRun", &host, false, &Status::new(code, "words"))
    }

    #[test]
    fn codes_mean_what_can_be_done_about_them() {
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled] {
            assert_eq!(meant(code).to_string(), "h:1 does not answer: words");
            assert!(meant(code).is_transient());
        }
        assert_eq!(meant(Code::NotFound).to_string(), "GetTaskRun: words is not there");
        assert_eq!(
            meant(Code::PermissionDenied).to_string(),
            "GetTaskRun was refused (PermissionDenied): words"
        );
        assert!(meant(Code::Internal).is_transient() && !meant(Code::InvalidArgument).is_transient());
        assert!(matches!(meant(Code::ResourceExhausted), Error::Exhausted { retry_after: None, .. }));
    }
}
