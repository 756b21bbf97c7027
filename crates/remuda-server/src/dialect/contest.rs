//! Two dialects want the same route: the body says whose it is.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::MethodRouter;
use http::Method;
use tower::ServiceExt as _;

use super::{Dialect, Refusal, shaped};
use crate::error::ApiResult;
use crate::extract::read_body_with;
use crate::state::AppState;

/// A route of another dialect, for bodies that only this one's clients send.
#[derive(Debug, Clone)]
pub(crate) struct Contest {
    /// The method.
    pub(crate) method: Method,
    /// The path, without parameters.
    pub(crate) path: &'static str,
    /// Whether a body is this dialect's. Grows with the body and no faster.
    pub(crate) is_ours: fn(&[u8]) -> bool,
    /// Answers it then.
    pub(crate) handler: fn() -> MethodRouter<AppState>,
}

/// What is contested, and by whom.
type Contested = Arc<Vec<Contestant>>;

/// A dialect that wants a route of another.
#[derive(Debug)]
struct Contestant {
    contest: Contest,
    handler: MethodRouter,
    /// The shape of the dialect's errors.
    refusal: Option<Refusal>,
}

/// Puts the contests of all dialects before the routes of one.
pub(super) fn contested(
    routes: Router<AppState>,
    dialects: &[Dialect],
    state: &AppState,
) -> Router<AppState> {
    let contests = dialects.iter().flat_map(|dialect| {
        dialect.contests.iter().map(|contest| Contestant {
            contest: contest.clone(),
            handler: (contest.handler)().with_state(state.clone()),
            refusal: dialect.refusal,
        })
    });
    let contests: Vec<_> = contests.collect();
    if contests.is_empty() {
        return routes;
    }
    routes.layer(middleware::from_fn_with_state((state.clone(), Arc::new(contests)), decide))
}

async fn decide(
    State((state, contests)): State<(AppState, Contested)>,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let (method, path) = (request.method(), request.uri().path());
    let wanted: Vec<_> =
        contests.iter().filter(|one| one.contest.method == *method && one.contest.path == path).collect();
    if wanted.is_empty() {
        return Ok(next.run(request).await);
    }
    let (parts, body) = request.into_parts();
    let (most, time) = (state.limits.body, state.limits.body_time);
    let (bytes, permit) =
        read_body_with(&parts.headers, body, most, time, state.permits.submission()).await?;
    let tests: Vec<_> = wanted.iter().map(|one| one.contest.is_ours).collect();
    let (text, size) = (bytes.clone(), bytes.len());
    let whose = move || tests.iter().position(|is_ours| is_ours(&text));
    let tenant = parts.extensions.get::<crate::access::Caller>().map(|caller| caller.tenant.clone());
    let tenant = tenant.unwrap_or_else(remuda_core::Tenant::default_tenant);
    let whose = state.compute_admitted("looking whose a request is", &tenant, &permit, size, whose).await?;
    // Whoever answers counts the body again.
    drop(permit);
    let request = Request::from_parts(parts, Body::from(bytes));
    match whose.and_then(|place| wanted.get(place)) {
        Some(one) => {
            let Ok(response) = one.handler.clone().oneshot(request).await;
            Ok(shaped(one.refusal, response))
        }
        None => Ok(next.run(request).await),
    }
}
