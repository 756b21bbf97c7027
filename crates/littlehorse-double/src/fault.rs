//! What can be made to go wrong, by the call.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use crate::journal::Method;

/// What goes wrong with one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is refused, and nothing is done.
    Refuse(Status),
    /// It is done, and then refused.
    DoneThenRefuse(Status),
    /// It is never answered, and nothing is done.
    Hang,
    /// It is done, and never answered.
    DoneThenHang,
    /// It is done and answered, but late.
    Late(Duration),
    /// A request for a task is answered at once, with nothing.
    Nothing,
}

/// The faults that wait for their calls.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    waiting: HashMap<Method, VecDeque<Fault>>,
}

impl Faults {
    pub(crate) fn add(&mut self, method: Method, fault: &Fault, times: usize) {
        self.waiting.entry(method).or_default().extend(std::iter::repeat_n(fault.clone(), times));
    }

    pub(crate) fn take(&mut self, method: Method) -> Option<Fault> {
        self.waiting.get_mut(&method)?.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// The refusal of a caller that has used up its quota, with the pause that it should make.
pub fn quota(pause: Duration) -> Status {
    let text = format!("Quota exceeded. Retry after {}ms.", pause.as_millis());
    let info = RetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(pause.subsec_nanos()).unwrap_or_default(),
        }),
    };
    let any = prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
        value: info.encode_to_vec(),
    };
    let details =
        RpcStatus { code: Code::ResourceExhausted as i32, message: text.clone(), details: vec![any] };
    Status::with_details(Code::ResourceExhausted, text, details.encode_to_vec().into())
}

/// The refusal of a server that cannot write anything down at the moment.
pub fn no_leader() -> Status {
    Status::unavailable("no leader")
}

/// The refusal of what does not fit into the server's log.
pub fn too_large() -> Status {
    Status::resource_exhausted("Record too large")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;

    #[test]
    fn a_quota_is_told_as_it_was_recorded() {
        let recorded = "CAgSI1F1b3RhIGV4Y2VlZGVkLiBSZXRyeSBhZnRlciAxNTAwbXMuGjYKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCgoICAEQgMq17gE=";
        let recorded = base64::engine::general_purpose::STANDARD.decode(recorded).unwrap();
        assert_eq!(quota(Duration::from_millis(1500)).details(), recorded);
        // Of a real server.
        let recorded = "CAgSIlF1b3RhIGV4Y2VlZGVkLiBSZXRyeSBhZnRlciA2NjZtcy4aNAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIICgYQgLXJvQI=";
        let recorded = base64::engine::general_purpose::STANDARD.decode(recorded).unwrap();
        assert_eq!(quota(Duration::from_millis(666)).details(), recorded);
    }
}
