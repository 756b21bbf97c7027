//! Remuda's own API as the commands use it.

mod error;
mod events;
mod types;

pub(crate) use error::{ApiError, exit_code};
pub(crate) use events::Events;
pub(crate) use types::{AssetView, TaskPage, TaskView, WorkerView};

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use reqwest::{Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt as _;
use url::Url;

/// No answer of a server is longer than this.
const LARGEST_ANSWER: usize = 256 << 20;

/// A Remuda server, and how it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    base: Url,
    key: Option<String>,
    http: reqwest::Client,
}

impl Api {
    pub(crate) fn new(base: &Url, key: Option<&str>) -> anyhow::Result<Self> {
        let mut base = base.clone();
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            // Counts between two pieces of an answer, so long downloads and event streams live.
            .read_timeout(Duration::from_secs(75))
            .user_agent(concat!("remuda/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("the HTTP client could not be made")?;
        Ok(Self { base, key: key.map(str::to_owned), http })
    }

    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let url = self.base.join(path).with_context(|| format!("{path:?} is not a path of {}", self.base))?;
        let request = self.http.request(method, url);
        Ok(match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    /// Sends, and turns every answer but a success into an error that says what to do.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, ApiError> {
        let answer = request.send().await.map_err(|source| ApiError::unreachable(&self.base, source))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(ApiError::refused(answer).await)
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ApiError> {
        let mut answer = self.send(request).await?;
        let unreachable = |source| ApiError::unreachable(&self.base, source);
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > LARGEST_ANSWER {
                return Err(ApiError::Endless { base: self.base.clone() });
            }
            bytes.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&bytes).map_err(|source| ApiError::Strange { base: self.base.clone(), source })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        Ok(self.json(self.request(Method::GET, path)?).await?)
    }

    pub(crate) async fn task(&self, id: &str) -> anyhow::Result<TaskView> {
        self.get(&format!("api/v1/tasks/{}", segment(id))).await
    }

    /// Uploads a file; its content is its name from then on.
    pub(crate) async fn upload(&self, path: &Path) -> anyhow::Result<AssetView> {
        let file =
            tokio::fs::File::open(path).await.with_context(|| format!("cannot read {}", path.display()))?;
        let length = file.metadata().await?.len();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(file, 256 * 1024));
        let request = self
            .request(Method::POST, "api/v1/assets")?
            .query(&[("filename", &name)])
            .header("content-length", length)
            .header("content-type", "application/octet-stream")
            .body(body);
        Ok(self.json(request).await?)
    }

    /// Downloads an output; it has its name only when it is whole.
    pub(crate) async fn download(&self, url: &str, to: &Path) -> anyhow::Result<u64> {
        let answer = self.send(self.request(Method::GET, url)?).await?;
        let partial = to.with_added_extension("part");
        let mut file = tokio::fs::File::create(&partial)
            .await
            .with_context(|| format!("cannot write {}", partial.display()))?;
        let mut stream = answer.bytes_stream();
        let mut size = 0;
        while let Some(piece) =
            stream.try_next().await.with_context(|| format!("the download of {url} broke"))?
        {
            file.write_all(&piece).await.with_context(|| format!("cannot write {}", partial.display()))?;
            size += piece.len() as u64;
        }
        file.flush().await?;
        tokio::fs::rename(&partial, to).await.with_context(|| format!("cannot write {}", to.display()))?;
        Ok(size)
    }
}

/// A part of a path, whatever somebody typed.
pub(crate) fn segment(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
