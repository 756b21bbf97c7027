//! The key that a request shows, and where: some ways are chosen by whoever sends the request, others are added by a browser
//! to whatever a page makes it send.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use url::form_urlencoded;

use crate::dialect::takes_key_in_query;
use crate::error::{ApiError, ApiResult};

/// The name of the parameter.
const TOKEN: &str = "token";

/// How a key was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In a header or in the query: by whoever sends the request.
    Chosen,
    /// As a password, which a browser may add by itself.
    Password,
    /// In our cookie, which a browser always adds by itself.
    Cookie,
}

impl Way {
    /// For the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Chosen => "header or query",
            Self::Password => "password",
            Self::Cookie => "cookie",
        }
    }
}

/// A key as it was shown; not looked at yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Presented {
    pub(super) key: String,
    pub(super) way: Way,
}

/// The key that the request shows. What is written into a header counts before the query, and that before the cookie.
pub(super) fn presented(uri: &Uri, headers: &HeaderMap, cookie_name: &str) -> ApiResult<Option<Presented>> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or_default();
        let (scheme, value) = text.split_once(' ').unwrap_or((text, ""));
        let (key, way) = match value.trim() {
            key if scheme.eq_ignore_ascii_case("bearer") => (Some(key.to_owned()), Way::Chosen),
            pair if scheme.eq_ignore_ascii_case("basic") => (password(pair), Way::Password),
            _ => (None, Way::Chosen),
        };
        return match key.filter(|key| !key.is_empty()) {
            Some(key) => Ok(Some(Presented { key, way })),
            None => Err(unauthorized("Authorization must be: Bearer KEY, or Basic with the key as password")),
        };
    }
    match headers.get("x-api-key").map(|value| value.to_str().unwrap_or_default().trim()) {
        Some("") => return Err(unauthorized("X-API-Key is empty")),
        Some(key) => return Ok(Some(Presented { key: key.to_owned(), way: Way::Chosen })),
        None => {}
    }
    if takes_key_in_query(uri.path())
        && let Some(key) = token(uri)
    {
        return Ok(Some(Presented { key, way: Way::Chosen }));
    }
    Ok(cookie(headers, cookie_name).map(|key| Presented { key, way: Way::Cookie }))
}

/// `?token=KEY`.
pub(super) fn token(uri: &Uri) -> Option<String> {
    let pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    let token = pairs.into_iter().find(|(name, value)| name == TOKEN && !value.is_empty());
    token.map(|(_, value)| value.trim().to_owned())
}

/// The password of `user:password`; the user does not matter.
fn password(pair: &str) -> Option<String> {
    let pair = String::from_utf8(STANDARD.decode(pair).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.trim().to_owned())
}

fn cookie(headers: &HeaderMap, wanted: &str) -> Option<String> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value.to_owned())
}

/// Whether the request changes something, or opens a way to: a page of another site must not make a browser do it.
pub(super) fn changes_something(method: &Method, headers: &HeaderMap) -> bool {
    let harmless = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    !harmless || headers.contains_key(header::UPGRADE)
}

pub(super) fn unauthorized(error: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn shown(uri: &'static str, headers: &[(&'static str, &str)]) -> Option<(String, Way)> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            })
            .collect();
        let found = presented(&Uri::from_static(uri), &headers, "remuda-1").ok()?;
        found.map(|presented| (presented.key, presented.way))
    }

    #[test]
    fn keys_are_found_where_clients_can_put_them() {
        let basic = format!("Basic {}", STANDARD.encode("anyone:rmd_k"));
        for (uri, headers, expected) in [
            ("/queue", vec![("authorization", "Bearer rmd_k")], Some(Way::Chosen)),
            ("/queue", vec![("authorization", basic.as_str())], Some(Way::Password)),
            ("/queue", vec![("x-api-key", "rmd_k")], Some(Way::Chosen)),
            ("/queue", vec![("cookie", "a=b; remuda-1=rmd_k")], Some(Way::Cookie)),
            ("/queue", vec![("cookie", "remuda-2=rmd_k")], None),
            ("/queue?token=rmd_k", vec![], None),
            ("/ws?clientId=1&token=rmd_k", vec![], Some(Way::Chosen)),
            ("/api/view?token=rmd_k", vec![("cookie", "remuda-1=other")], Some(Way::Chosen)),
            ("/view?token=other", vec![("x-api-key", "rmd_k")], Some(Way::Chosen)),
            ("/view?token=", vec![], None),
            ("/api/ws?token=rmd_k", vec![], Some(Way::Chosen)),
            ("/api/api/ws?token=rmd_k", vec![], None),
            ("/viewed?token=rmd_k", vec![], None),
            ("/api/v1/tasks?token=rmd_k", vec![], None),
        ] {
            let expected = expected.map(|way| ("rmd_k".to_owned(), way));
            assert_eq!(shown(uri, &headers), expected, "{uri} {headers:?}");
        }
        for broken in ["Bearer", "Bearer ", "Basic !", "Basic cm1k", "Digest x"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(broken));
            assert!(presented(&Uri::from_static("/"), &headers, "x").is_err(), "{broken}");
        }
    }
}
