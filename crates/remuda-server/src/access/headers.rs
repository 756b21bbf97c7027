//! What every answer tells a browser: not to guess what it is, and what it may do if it is a page.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, header};

use crate::state::AppState;

/// A page that nobody foresaw: it is shown, and does nothing.
const UNKNOWN: HeaderValue =
    HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'; base-uri 'none'");

/// The description of the API for people: its scripts and styles come with it.
const DOCS: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; \
     base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
);

/// ComfyUI's own page: extensions bring scripts of every kind, and some make others while they run.
const FRONTEND: HeaderValue = HeaderValue::from_static(
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
);

/// Types that a browser shows as a document in which scripts run.
const PAGES: [&str; 5] =
    ["text/html", "application/xhtml+xml", "image/svg+xml", "text/xml", "application/xml"];

/// Adds what the handler did not say itself.
pub(crate) async fn told_to_browsers(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let docs = request.uri().path().starts_with("/docs");
    let mut response = next.run(request).await;
    let told = response.headers_mut();
    told.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    // Within our own pages the origin of a request stays known: it is looked at before anything is changed.
    told.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
    let kind = told.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if PAGES.contains(&kind.as_str()) {
        let policy = if docs {
            DOCS
        } else if state.frontend.is_some() {
            FRONTEND
        } else {
            UNKNOWN
        };
        told.entry(header::CONTENT_SECURITY_POLICY).or_insert(policy);
    }
    response
}
