//! The routes under their layers.

use std::future::poll_fn;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa_swagger_ui::SwaggerUi;

use crate::access::{ANY_ORIGIN, told_to_browsers};
use crate::dialect::{self, DIALECTS};
use crate::error::ApiError;
use crate::routes;
use crate::state::AppState;

/// Everything that a request passes, from the outside in: count, headers for browsers, CORS, then those of its dialect.
pub(crate) fn router(state: AppState) -> Router {
    let docs = SwaggerUi::new("/docs").url("/openapi.json", routes::described());
    let rest = routes::internal().merge(docs).fallback(nothing_there);
    let router = dialect::router(DIALECTS, &state).merge(dialect::layered(rest, None, &state));
    let router = match cors(&state.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    let router = router.layer(middleware::from_fn_with_state(state.clone(), told_to_browsers));
    router.layer(middleware::from_fn_with_state(state.clone(), count)).with_state(state)
}

async fn nothing_there(State(state): State<AppState>, request: Request) -> Response {
    if let Some(frontend) = &state.frontend
        && let Some(file) = frontend.file(request.method(), request.uri(), request.headers()).await
    {
        return file;
    }
    let path: String = request.uri().path().chars().take(120).collect();
    ApiError::new(StatusCode::NOT_FOUND, "no_such_route", format!("there is no route {path}; / lists them"))
        .into_response()
}

fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == ANY_ORIGIN) {
        AllowOrigin::any()
    } else {
        let listed = origins.iter().map(|origin| origin.trim_end_matches('/'));
        AllowOrigin::list(listed.filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let asked = ["idempotency-key", "last-event-id", "prefer", "x-api-key"].map(HeaderName::from_static);
    let standard =
        [header::AUTHORIZATION, header::CONTENT_TYPE, header::RANGE, header::IF_NONE_MATCH, header::IF_RANGE];
    let shown = [
        header::LOCATION,
        header::ETAG,
        header::CONTENT_RANGE,
        header::CONTENT_DISPOSITION,
        header::RETRY_AFTER,
        HeaderName::from_static("x-prompt-id"),
    ];
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE])
            .allow_headers(asked.into_iter().chain(standard).collect::<Vec<_>>())
            .expose_headers(shown),
    )
}

/// What the watchdog calls a request that no route answers.
static UNKNOWN: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("a request without a route"));

async fn count(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route: Option<Arc<str>> = request.extensions().get::<MatchedPath>().map(|path| path.as_str().into());
    let named = route.clone().unwrap_or_else(|| Arc::clone(&UNKNOWN));
    let mut answer = std::pin::pin!(next.run(request));
    let response = poll_fn(|cx| state.pool.turn(&named, || answer.as_mut().poll(cx))).await;
    let (status, took) = (response.status().as_u16(), began.elapsed());
    state.metrics.answered(&method, route.as_deref(), status, took);
    tracing::debug!(
        http.method = %method,
        http.route = route.as_deref().unwrap_or("unknown"),
        http.status = status,
        took_ms = took.as_secs_f64() * 1e3,
        "answered"
    );
    response
}
