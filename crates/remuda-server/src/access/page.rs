//! The way in for people with a browser: a page that asks for the key, and the cookie that keeps it.

use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use remuda_core::Installation;
use url::Url;

use crate::error::ApiError;

/// How long a browser keeps the key: 30 days.
const KEPT_S: u32 = 30 * 86_400;

/// What the page may do: show itself, and send the form here.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Where the reason of a refusal stands in the page.
const WHY: &str = "{why}";

/// Asks for a key; what is typed in comes back as `/?token=KEY`.
const PAGE: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Remuda</title>\
<meta name=\"viewport\" content=\"width=device-width\"><meta name=\"referrer\" content=\"no-referrer\">\
<style>body{font:16px/1.5 system-ui;max-width:30em;margin:4em auto;padding:0 1em}input{width:100%;padding:.4em}</style>\
</head><body><h1>Remuda</h1><p>{why}</p><form action=\"/\" method=\"get\">\
<label>Key <input name=\"token\" type=\"password\" autofocus autocomplete=\"current-password\"></label>\
<p><button>Go on</button></p></form></body></html>\n";

/// The name of the cookie. Browsers send cookies to every port of a host: each installation has a name of its own.
pub(super) fn cookie_name(installation: &Installation) -> String {
    let id = installation.id.simple().to_string();
    format!("remuda-{}", &id[..8])
}

/// Whether somebody with a browser wants to see the page.
pub(super) fn wants_page(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let html = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    uri.path() == "/"
        && matches!(*method, Method::GET | Method::HEAD)
        && html.into_iter().any(|accepted| accepted.contains("text/html"))
}

/// A refusal as a page on which a key can be typed in. `tried`: one was, and the page says what was wrong with it.
pub(super) fn ask(error: ApiError, tried: bool) -> Response {
    let why = if tried { sentence(&error.body.error) } else { "This server needs a key.".to_owned() };
    let mut response = error.into_response();
    let page = Html(PAGE.replace(WHY, &why)).into_response();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.headers_mut().extend(page.headers().clone());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    *response.body_mut() = page.into_body();
    response
}

/// A text of ours as a sentence for people, safe in a page.
fn sentence(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// Keeps the key in a cookie and shows the page without it in its address.
pub(super) fn remember(name: &str, key: &str, secure: bool) -> Response {
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{name}={key}; Path=/; Max-Age={KEPT_S}; HttpOnly; SameSite=Strict{secure}");
    let Ok(cookie) = HeaderValue::from_str(&cookie) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::SET_COOKIE, cookie);
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    (StatusCode::SEE_OTHER, headers).into_response()
}

/// Whether the browser speaks to us, or to what stands in front of us, over TLS.
pub(super) fn is_secure(public_url: Option<&Url>, headers: &HeaderMap) -> bool {
    let forwarded = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    public_url.is_some_and(|url| url.scheme() == "https")
        || forwarded.is_some_and(|proto| proto.split(',').next().unwrap_or_default().trim() == "https")
}
