//! An S3 server in this process, with buckets that are directories.

#![allow(clippy::expect_used, reason = "a fixture that cannot start ends its test")]

use std::path::{Path, PathBuf};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use remuda_files::{Files, Location};
use s3s::S3;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) const KEY: &str = "REMUDATESTKEY";
pub(crate) const SECRET: &str = "not-to-be-shown-5d1c";
pub(crate) const BUCKET: &str = "pictures";

/// Stops when it is dropped.
pub(crate) struct S3Server {
    folder: TempDir,
    pub(crate) endpoint: String,
    stop: CancellationToken,
}

impl S3Server {
    /// A server that keeps what it is given.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for buckets");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let storage = s3s_fs::FileSystem::new(folder.path()).expect("a file system");
        Self::with(folder, storage).await
    }

    /// A server that does what the test says.
    pub(crate) async fn start_with(storage: impl S3) -> Self {
        Self::with(tempfile::tempdir().expect("a folder"), storage).await
    }

    async fn with(folder: TempDir, storage: impl S3) -> Self {
        let mut service = S3ServiceBuilder::new(storage);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        let (stopped, connections) = (stop.clone(), TaskTracker::new());
        connections.clone().spawn(async move {
            while let Some(Ok((socket, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let serve = http1::Builder::new().serve_connection(TokioIo::new(socket), service.clone());
                let stopped = stopped.clone();
                connections.spawn(async move { stopped.run_until_cancelled(serve).await.map(drop) });
            }
        });
        Self { folder, endpoint, stop }
    }

    pub(crate) fn settings(&self, secret: &str) -> [(String, String); 4] {
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_REGION", "eu-1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    pub(crate) fn location(&self, text: &str) -> Location {
        text.parse::<Location>().expect("a location").with_settings(self.settings(SECRET))
    }

    /// A store with a prefix.
    pub(crate) fn files(&self) -> Files {
        Files::open(&self.location(&format!("s3://{BUCKET}/team/one"))).expect("a store")
    }

    /// What the server holds of unfinished uploads.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).expect("the server's folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| name(path).starts_with(".upload") || name(path).starts_with(".tmp")).collect()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
