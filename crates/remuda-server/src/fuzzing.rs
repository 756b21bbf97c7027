//! The routes without a listener, for the fuzz targets in `fuzz/`.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;

use crate::options::ServerOptions;
use crate::state::AppState;

/// Everything that a request passes once its head is read.
pub fn router(options: ServerOptions) -> Router {
    crate::router::router(AppState::new(options))
}

/// Says where a request comes from, as a listener would.
pub fn from(mut request: Request<Body>, peer: SocketAddr) -> Request<Body> {
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}
