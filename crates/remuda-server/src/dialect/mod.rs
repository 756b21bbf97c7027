//! Dialects: the APIs that clients already speak.
//!
//! A dialect is one module with its routes, its part of the description and the shape of its errors, and one line in
//! [`DIALECTS`]. Its handlers translate a request into a call of [`crate::service`] and what that returns into an answer.
//! Nothing elsewhere knows its name or its paths.

mod contest;
#[cfg(test)]
mod example;
#[cfg(test)]
mod tests;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use contest::Contest;

use crate::access::gate;
use crate::error::{ApiError, ErrorBody};
use crate::state::{AppState, Shared};
use crate::{native, routes, sync};

/// All of them. A path that two of them want is a route of the first; the second contests it.
pub(crate) const DIALECTS: &[Dialect] = &[routes::DIALECT, native::DIALECT, sync::DIALECT];

/// An API that clients already speak.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    /// Its routes, with their descriptions where they have one.
    pub(crate) routes: fn() -> OpenApiRouter<AppState>,
    /// How it says what was refused before its handler was reached: by the gate, say. `None`: as the task API does.
    pub(crate) refusal: Option<Refusal>,
    /// Routes of dialects before it that are its own when their bodies say so.
    pub(crate) contests: &'static [Contest],
    /// Which of its paths take a key from the query, because those who ask can send no headers: a browser's websockets and
    /// pictures. Each is named where its route is declared.
    pub(crate) key_in_query: fn(&str) -> bool,
    /// Whether some of its clients want to hear at once what happens to tasks that they did not ask about. `None`: they
    /// never do.
    pub(crate) listens: Option<fn(&Shared) -> bool>,
}

/// Whether a path takes a key from the query.
pub(crate) fn takes_key_in_query(path: &str) -> bool {
    DIALECTS.iter().any(|dialect| (dialect.key_in_query)(path))
}

/// For dialects whose clients can send headers.
pub(crate) fn nowhere(_: &str) -> bool {
    false
}

/// Whether clients of some dialect want to hear at once what happens to tasks that they did not ask about.
pub(crate) fn anybody_listens(state: &Shared) -> bool {
    DIALECTS.iter().filter_map(|dialect| dialect.listens).any(|listens| listens(state))
}

/// Says in a dialect's own shape what was refused.
pub(crate) type Refusal = fn(StatusCode, ErrorBody) -> Response;

/// The routes of these dialects under the layers that all requests pass: errors in the dialect's shape, panics, gate.
pub(crate) fn router(dialects: &'static [Dialect], state: &AppState) -> Router<AppState> {
    dialects.iter().fold(Router::new(), |all, dialect| {
        let (routes, _) = (dialect.routes)().split_for_parts();
        // Below the contests: another dialect may want a method that this one has not.
        let routes = routes.method_not_allowed_fallback(wrong_method);
        let routes = contest::contested(routes, dialects, state);
        all.merge(layered(routes, dialect.refusal, state))
    })
}

/// Routes under the layers that all requests pass, from the outside in: errors in shape, panics, gate.
pub(crate) fn layered(
    routes: Router<AppState>,
    refusal: Option<Refusal>,
    state: &AppState,
) -> Router<AppState> {
    let routes = routes
        .layer(middleware::from_fn_with_state(state.clone(), gate))
        // Bodies are bounded where they are read: a form may carry a file of any size that is allowed.
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(panicked));
    match refusal {
        Some(refusal) => {
            routes.layer(middleware::from_fn(move |request, next| in_shape(refusal, request, next)))
        }
        None => routes,
    }
}

/// Says in a dialect's own shape what was refused before its handler was reached.
async fn in_shape(refusal: Refusal, request: Request, next: Next) -> Response {
    shaped(Some(refusal), next.run(request).await)
}

/// An answer, in a dialect's own shape if it is a refusal in ours. Whatever it is, it has its shape then.
fn shaped(refusal: Option<Refusal>, mut response: Response) -> Response {
    let Some(body) = response.extensions_mut().remove::<ErrorBody>() else { return response };
    let Some(refusal) = refusal else { return response };
    let mut shaped = refusal(response.status(), body);
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE, header::ALLOW] {
        if let Some(value) = response.headers_mut().remove(&name) {
            shaped.headers_mut().insert(name, value);
        }
    }
    shaped
}

async fn wrong_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(120).collect();
    let error = format!("{} is not possible on {path}; / lists the routes", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", error)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    ApiError::internal(format!("a handler panicked: {}", text.unwrap_or_default())).into_response()
}
