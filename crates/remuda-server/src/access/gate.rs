//! Nobody passes unnamed: every request but `/live` and `/ready` goes through here first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use remuda_core::ApiKey;
use subtle::ConstantTimeEq as _;

use crate::access::Caller;
use crate::access::failures::CLUSTER_KEY;
use crate::access::keys::{Keys, Known};
use crate::access::page;
use crate::access::presented::{Presented, Way, changes_something, presented, token, unauthorized};
use crate::access::tied::{Line, tie};
use crate::error::{ApiError, ApiResult};
use crate::share::{Address, Guest, Held, Visit};
use crate::state::AppState;

/// For whoever watches over the process: they hold no key.
pub(crate) const OPEN: [&str; 2] = ["/live", "/ready"];

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
    single_host(request.headers())?;
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
            if !shown.is_empty() {
                let address = address(&state, &request);
                failed(&state, address, CLUSTER_KEY, &shown).await?;
            }
            return Err(unauthorized("this route is for other gateways of the installation"));
        }
        request.extensions_mut().insert(ClusterCaller);
        let visit = Visit::new(Arc::default(), state.memory.clone());
        return Ok(visit.answer(request.method().clone(), next.run(request)).await);
    }
    let keys = state.keys.current().await?;
    let cookie = page::cookie_name(state.installation().await?);
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if uri.path() == "/"
        && *method == Method::GET
        && let Some(token) = token(uri)
    {
        // First, so that a page of another site learns nothing of the key either.
        let known = match state.hosts.check_login(uri, headers) {
            Ok(()) => known(&keys, &token).map(|_| ()),
            Err(error) => return Ok(page::ask(error, true)),
        };
        return Ok(match known {
            Ok(()) => page::remember(&cookie, &token, page::is_secure(state.public_url.as_ref(), headers)),
            Err(error) => {
                let (address, page) = (address(&state, &request), page::wants_page(method, uri, headers));
                failed(&state, address, "link or page", &token).await?;
                if !page {
                    return Err(error);
                }
                page::ask(error, true)
            }
        });
    }
    let caller = match caller(&state, &keys, &cookie, &request) {
        Ok(caller) => caller,
        Err(Refused { error, wrong }) => {
            let (address, page) = (address(&state, &request), page::wants_page(method, uri, headers));
            if let Some(wrong) = wrong {
                failed(&state, address, wrong.way.as_str(), &wrong.key).await?;
            }
            if page && error.status == StatusCode::UNAUTHORIZED {
                return Ok(page::ask(error, false));
            }
            return Err(error);
        }
    };
    let guest = Arc::new(guest(&state, &caller, &request));
    if !state.rates.admit(&guest) {
        let error = "too many requests in a second: send fewer (server.rate)";
        return Err(ApiError::over_limit("server.rate", error));
    }
    let pass = state.permits.connection(&guest)?;
    let admission = caller.admission().clone();
    if let Some(line) = request.extensions().get::<Line>() {
        line.busy_for(&admission);
    }
    request.extensions_mut().insert(caller);
    let visit = Visit::new(guest, state.memory.clone());
    let response = tokio::select! {
        biased;
        response = visit.answer(request.method().clone(), next.run(request)) => response,
        () = admission.over() => {
            return Err(unauthorized("this key was revoked, or a key is needed now, while the request was under way"));
        }
    };
    let response = tie(admission, response);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // A websocket is no request any more. It has a permit of its own.
        return Ok(response);
    }
    Ok(response.map(|body| Held::wrap(body, pass)))
}

/// Who is charged for the request.
fn guest(state: &AppState, caller: &Caller, request: &Request) -> Guest {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = peer.and_then(|peer| state.proxies.asks(peer.0.ip(), request.headers()));
    Guest { tenant: Some(caller.tenant.clone()), address }
}

/// A host is one name: what stands behind a comma would be looked at by some, and not by others.
fn single_host(headers: &HeaderMap) -> ApiResult<()> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let fine = |host: &HeaderValue| {
        let odd = |c: char| c.is_whitespace() || matches!(c, ',' | '/' | '@' | '\\' | '?' | '#');
        host.to_str().is_ok_and(|host| !host.contains(odd))
    };
    match (hosts.next(), hosts.next()) {
        (None, _) => Ok(()),
        (Some(host), None) if fine(host) => Ok(()),
        _ => Err(ApiError::bad_request("bad_host", "the Host header must name one host").field("Host")),
    }
}

/// Where a request comes from: what trusted proxies say, and of IPv6 the network.
fn address(state: &AppState, request: &Request) -> IpAddr {
    let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>() else {
        return IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    };
    state.proxies.asks(peer.ip(), request.headers()).map_or(peer.ip(), Address::ip)
}

/// Notes a wrong key. The refusal may take its time.
async fn failed(state: &AppState, address: IpAddr, way: &'static str, key: &str) -> ApiResult<()> {
    state.metrics.login_failures.inc();
    state.failures.note(address, way, key).await
}

/// Why somebody is not let in.
struct Refused {
    error: ApiError,
    /// The key that was shown and is none.
    wrong: Option<Presented>,
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self { error, wrong: None }
    }
}

fn caller(state: &AppState, keys: &Keys, cookie: &str, request: &Request) -> Result<Caller, Refused> {
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
            return Ok(Caller::local(state.keys.admit_without(keys)));
        }
        return Err(unauthorized("a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY").into());
    };
    let known = match known(keys, &shown.key) {
        Ok(known) => known,
        Err(error) => return Err(Refused { error, wrong: Some(shown) }),
    };
    if shown.way != Way::Chosen && changes_something(request.method(), headers) {
        // Any page can make a browser send this; only a page of ours may.
        state.hosts.check_page(request.uri(), headers, shown.way == Way::Cookie)?;
    }
    Ok(Caller::of_key(known, state.keys.admit(known)))
}

fn known<'a>(keys: &'a Keys, key: &str) -> ApiResult<&'a Known> {
    keys.find(&ApiKey::presented(key.to_owned()))
        .ok_or_else(|| unauthorized("this key is not known, or was revoked"))
}
