//! Nobody passes unnamed: every request but `/live` and `/ready` goes through here first.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use remuda_core::ApiKey;
use subtle::ConstantTimeEq as _;

use crate::access::Caller;
use crate::access::keys::Keys;
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// For whoever watches over the process: they hold no key.
const OPEN: [&str; 2] = ["/live", "/ready"];

/// Routes for other gateways of the same installation.
pub(crate) const INTERNAL: &str = "/internal/";

/// Another gateway of this installation.
#[derive(Debug, Clone)]
pub(crate) struct ClusterCaller;

impl<S: Sync> FromRequestParts<S> for ClusterCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| unauthorized("this route is for other gateways"))
    }
}

/// Finds out who asks, or refuses.
pub(crate) async fn gate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    if OPEN.contains(&path) {
        return Ok(next.run(request).await);
    }
    if path.starts_with(INTERNAL) {
        let presented = presented(request.headers())?.unwrap_or_default();
        let expected = &state.installation().await?.cluster_key;
        if !bool::from(presented.as_bytes().ct_eq(expected.as_bytes())) {
            return Err(unauthorized("this route is for other gateways of the installation"));
        }
        request.extensions_mut().insert(ClusterCaller);
        return Ok(next.run(request).await);
    }
    let keys = state.keys.current().await?;
    let caller = caller(&state, &keys, &request)?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

fn caller(state: &AppState, keys: &Keys, request: &Request) -> ApiResult<Caller> {
    match presented(request.headers())? {
        Some(presented) => match keys.find(&ApiKey::presented(presented)) {
            Some(record) => Ok(Caller::of_key(record)),
            None => Err(unauthorized("this key is not known, or was revoked")),
        },
        None if keys.is_empty() => {
            let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
            let peer =
                peer.ok_or_else(|| ApiError::internal("a request came without the address of its sender"))?;
            state.hosts.check(peer.0.ip(), request.uri(), request.headers())?;
            Ok(Caller::local())
        }
        None => Err(unauthorized("a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")),
    }
}

/// The key that the request shows.
fn presented(headers: &HeaderMap) -> ApiResult<Option<String>> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or_default();
        let (scheme, key) = text.split_once(' ').unwrap_or((text, ""));
        if !scheme.eq_ignore_ascii_case("bearer") || key.trim().is_empty() {
            return Err(unauthorized("Authorization must be: Bearer KEY"));
        }
        return Ok(Some(key.trim().to_owned()));
    }
    match headers.get("x-api-key").map(|value| value.to_str().unwrap_or_default().trim()) {
        Some("") => Err(unauthorized("X-API-Key is empty")),
        key => Ok(key.map(str::to_owned)),
    }
}

fn unauthorized(error: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", error)
}
