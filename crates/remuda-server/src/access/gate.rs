//! Nobody passes unnamed: every request but `/live` and `/ready` goes through here first.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use http::{Method, StatusCode};
use remuda_core::{ApiKey, KeyRecord};
use subtle::ConstantTimeEq as _;

use crate::access::Caller;
use crate::access::keys::Keys;
use crate::access::page;
use crate::access::presented::{Way, changes_something, presented, token, unauthorized};
use crate::error::{ApiError, ApiResult};
use crate::share::{Guest, Visit};
use crate::state::AppState;

/// For whoever watches over the process: they hold no key.
const OPEN: [&str; 2] = ["/live", "/ready"];

/// Routes for other gateways of the same installation. What else is below `/internal/` belongs to ComfyUI's own page.
pub(crate) const INTERNAL: &str = "/internal/v1/";

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
        let installation = state.installation().await?;
        let shown = presented(request.uri(), request.headers(), &page::cookie_name(installation))?;
        let shown = shown.filter(|shown| shown.way == Way::Chosen).map(|shown| shown.key).unwrap_or_default();
        let expected = &installation.cluster_key;
        if !bool::from(shown.as_bytes().ct_eq(expected.as_bytes())) {
            return Err(unauthorized("this route is for other gateways of the installation"));
        }
        request.extensions_mut().insert(ClusterCaller);
        return Ok(Visit::new(Arc::default(), state.memory.clone()).answer(next.run(request)).await);
    }
    let keys = state.keys.current().await?;
    let cookie = page::cookie_name(state.installation().await?);
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if uri.path() == "/"
        && *method == Method::GET
        && let Some(token) = token(uri)
    {
        let known = known(&keys, &token);
        return Ok(match known {
            Ok(_) => page::remember(&cookie, &token, page::is_secure(state.public_url.as_ref(), headers)),
            Err(error) if page::wants_page(method, uri, headers) => page::ask(error),
            Err(error) => return Err(error),
        });
    }
    let caller = match caller(&state, &keys, &cookie, &request) {
        Err(error) if error.status == StatusCode::UNAUTHORIZED && page::wants_page(method, uri, headers) => {
            return Ok(page::ask(error));
        }
        caller => caller?,
    };
    let guest = guest(&state, &caller, &request);
    if !state.rates.admit(&guest) {
        let error = "too many requests in a second: send fewer (server.rate)";
        return Err(ApiError::over_limit("server.rate", error));
    }
    request.extensions_mut().insert(caller);
    Ok(Visit::new(Arc::new(guest), state.memory.clone()).answer(next.run(request)).await)
}

/// Who is charged for the request.
fn guest(state: &AppState, caller: &Caller, request: &Request) -> Guest {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = peer.and_then(|peer| state.proxies.asks(peer.0.ip(), request.headers()));
    Guest { tenant: Some(caller.tenant.clone()), address }
}

fn caller(state: &AppState, keys: &Keys, cookie: &str, request: &Request) -> ApiResult<Caller> {
    let headers = request.headers();
    let mut shown = presented(request.uri(), headers, cookie)?;
    if keys.is_empty() {
        // A cookie of earlier days is nothing that anybody shows.
        shown = shown.filter(|shown| shown.way != Way::Cookie);
    }
    let Some(shown) = shown else {
        if keys.is_empty() {
            let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
            let peer =
                peer.ok_or_else(|| ApiError::internal("a request came without the address of its sender"))?;
            state.hosts.check(peer.0.ip(), request.uri(), headers)?;
            return Ok(Caller::local());
        }
        return Err(unauthorized("a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"));
    };
    let record = known(keys, &shown.key)?;
    if shown.way != Way::Chosen && changes_something(request.method(), headers) {
        // Any page can make a browser send this; only a page of ours may.
        state.hosts.check_page(request.uri(), headers, shown.way == Way::Cookie)?;
    }
    Ok(Caller::of_key(record))
}

fn known<'a>(keys: &'a Keys, key: &str) -> ApiResult<&'a KeyRecord> {
    keys.find(&ApiKey::presented(key.to_owned()))
        .ok_or_else(|| unauthorized("this key is not known, or was revoked"))
}
