//! One request, as handlers see it.

use super::body::{BodyError, RequestBody};
use super::reply::Reply;
use crate::engine::Dirs;
use crate::host::{Host, Life};
use crate::json::Json;
use http::HeaderMap;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use std::path::Path;
use std::sync::Arc;

/// A request on its way to a handler.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) host: Arc<Host>,
    pub(crate) life: Arc<Life>,
    pub(crate) parts: Parts,
    pub(crate) body: RequestBody,
    /// The decoded variable parts of the path, in order.
    pub(crate) params: Vec<String>,
    query: Vec<(String, String)>,
}

impl Call {
    pub(crate) fn new(host: Arc<Host>, life: Arc<Life>, parts: Parts, body: RequestBody) -> Self {
        let query = pairs(parts.uri.query().unwrap_or_default());
        Self { host, life, parts, body, params: Vec::new(), query }
    }

    /// The path as it was sent, still encoded.
    pub(crate) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// All decoded pairs of the query.
    pub(crate) fn query_pairs(&self) -> &[(String, String)] {
        &self.query
    }

    /// The first value of a name in the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether a name in the query says `true`.
    pub(crate) fn query_is_true(&self, name: &str) -> bool {
        self.query(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A variable part of the path.
    pub(crate) fn param(&self, index: usize) -> &str {
        self.params.get(index).map_or("", String::as_str)
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The text of a header.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.parts.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn dirs(&self) -> &Dirs {
        &self.host.dirs
    }

    /// The folder of `output`, `input` or `temp`.
    pub(crate) fn dir_of_type(&self, kind: &str) -> Option<&Path> {
        match kind {
            "output" => Some(&self.dirs().output),
            "input" => Some(&self.dirs().input),
            "temp" => Some(&self.dirs().temp),
            _ => None,
        }
    }

    /// The body as JSON, whatever its type says. What is not JSON is trouble.
    pub(crate) async fn json(&mut self) -> Result<Json, Reply> {
        let bytes = self.bytes().await?;
        Json::parse(&bytes).map_err(|_| Reply::trouble())
    }

    /// The whole body.
    pub(crate) async fn bytes(&mut self) -> Result<Vec<u8>, Reply> {
        let limit = self.life.config.max_upload_bytes;
        self.body.all().await.map_err(|error| body_refusal(&error, limit))
    }
}

/// The answer to a body that could not be read.
pub(crate) fn body_refusal(error: &BodyError, limit: u64) -> Reply {
    match error {
        BodyError::TooLarge => Reply::too_large(limit),
        BodyError::Broken => Reply::trouble(),
    }
}

/// The pairs of a query or of a form: `+` is a blank, bad escapes stay as they are.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        let spaced = part.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn a_query_is_read_as_yarl_does() {
        let expected = [("filename", "a b.png"), ("type", ""), ("x", "é+%zz"), ("flag", "")];
        let expected: Vec<_> = expected.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        assert_eq!(pairs("filename=a+b.png&type=&&x=%C3%A9%2B%zz&flag"), expected);
    }
}
