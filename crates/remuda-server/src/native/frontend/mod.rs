//! ComfyUI's own page, from a folder.
//!
//! Its files are served where no route of ours is. The page is at `/`, where else the index of our API is.

mod folder;

use std::convert::Infallible;
use std::fmt;
use std::path::Path;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use tower::ServiceExt as _;
use tower_http::CompressionLevel;
use tower_http::compression::Compression;
use tower_http::services::ServeDir;

pub use folder::{NoFrontend, frontend_folder};

/// The files of the page.
#[derive(Clone)]
pub(crate) struct Frontend {
    files: Compression<ServeDir>,
}

impl fmt::Debug for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frontend").finish_non_exhaustive()
    }
}

impl Frontend {
    /// From a folder that [`frontend_folder`] found.
    pub(crate) fn new(folder: &Path) -> Self {
        let files = ServeDir::new(folder).append_index_html_on_directories(false);
        Self { files: Compression::new(files).quality(CompressionLevel::Fastest) }
    }

    /// The page, for whoever does not rather want JSON.
    pub(crate) async fn page(&self, method: &Method, asked: &HeaderMap) -> Option<Response> {
        let accepted = asked.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
        if accepted.contains("application/json") && !accepted.contains("text/html") {
            return None;
        }
        self.file(method, &Uri::from_static("/index.html"), asked).await
    }

    /// One of the files; `None` when there is none.
    pub(crate) async fn file(&self, method: &Method, uri: &Uri, asked: &HeaderMap) -> Option<Response> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return None;
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = asked.clone();
        let Ok::<_, Infallible>(response) = self.files.clone().oneshot(request).await;
        // Trouble with reading is trouble; everything else that is no file is not there.
        if response.status().is_client_error() && response.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            return None;
        }
        let mut response = response.map(Body::new).into_response();
        let told = response.headers_mut();
        told.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept_for(uri.path())));
        told.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        told.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"));
        Some(response)
    }
}

/// Scripts and styles have their version in their names; the page that names them must be fresh.
fn kept_for(path: &str) -> &'static str {
    let versioned = path.starts_with("/assets/") && (path.ends_with(".js") || path.ends_with(".css"));
    if versioned { "private, max-age=31536000, immutable" } else { "private, no-cache" }
}
