//! ComfyUI's own page, from a folder.
//!
//! Its files are served where no route of ours is. The page is at `/`, where else the index of our API is.

mod folder;

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use tower::ServiceExt as _;
use tower_http::CompressionLevel;
use tower_http::compression::Compression;
use tower_http::services::ServeDir;

pub use folder::{NoFrontend, frontend_folder};

/// The longest name, and the longest path, that a file system has.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4096;

/// The files of the page.
#[derive(Clone)]
pub(crate) struct Frontend {
    files: Compression<ServeDir>,
    /// Where the files are; what a name leads to must be below it.
    root: Arc<PathBuf>,
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
        let root = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        Self { files: Compression::new(files).quality(CompressionLevel::Fastest), root: Arc::new(root) }
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
        if !self.has(uri.path()).await {
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

impl Frontend {
    /// Whether the path names a file of the folder: no hidden one, and none elsewhere that a link leads to.
    async fn has(&self, path: &str) -> bool {
        let Ok(path) = percent_decode_str(path).decode_utf8() else { return false };
        let mut file = self.root.as_ref().clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let plain =
                part.len() <= LONGEST_NAME && !part.starts_with('.') && !part.contains(['\\', '\0', ':']);
            if !plain {
                return false;
            }
            file.push(part);
        }
        if file.as_os_str().len() > LONGEST_PATH {
            return false;
        }
        // Whatever is wrong with it, it is not there.
        let real = tokio::fs::canonicalize(&file).await;
        real.is_ok_and(|real| real.starts_with(self.root.as_ref()) && real.is_file())
    }
}

/// Scripts and styles have their version in their names; the page that names them must be fresh.
fn kept_for(path: &str) -> &'static str {
    let versioned = path.starts_with("/assets/") && (path.ends_with(".js") || path.ends_with(".css"));
    if versioned { "private, max-age=31536000, immutable" } else { "private, no-cache" }
}
