//! Files in and out: `/view` and `/upload`.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::{StatusCode, header};
use serde::Deserialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::io::ReaderStream;

use crate::client::{Call, Client, text_of};
use crate::error::{Error, Result};
use crate::limits::{self, Body};
use crate::outputs::{FileType, OutputFile};

/// Names one file on the server.
///
/// ```
/// use comfyui::FileRef;
/// let file = FileRef::output("ok_00001_.png").in_subfolder("rig");
/// assert_eq!(file.subfolder, "rig");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// Name without folders: the server cuts them off.
    pub filename: String,
    /// Folder below the type's folder.
    pub subfolder: String,
    /// Which of the server's folders.
    pub file_type: FileType,
}

impl FileRef {
    /// A file in the output folder.
    #[must_use]
    pub fn output(filename: &str) -> Self {
        FileRef { filename: filename.to_owned(), subfolder: String::new(), file_type: FileType::Output }
    }

    /// The same in a subfolder.
    #[must_use]
    pub fn in_subfolder(mut self, subfolder: &str) -> Self {
        self.subfolder = subfolder.to_owned();
        self
    }

    /// How a workflow names it: `subfolder/name`, with ` [temp]` or ` [output]` where it is not an input.
    #[must_use]
    pub fn in_workflow(&self) -> String {
        let path = match self.subfolder.as_str() {
            "" => self.filename.clone(),
            folder => format!("{folder}/{}", self.filename),
        };
        match &self.file_type {
            FileType::Input => path,
            other => format!("{path} [{}]", other.as_str()),
        }
    }
}

impl From<&OutputFile> for FileRef {
    fn from(file: &OutputFile) -> Self {
        let [(_, filename), (_, subfolder), _] = file.view_query();
        FileRef {
            filename: filename.into_owned(),
            subfolder: subfolder.into_owned(),
            file_type: file.file_type.clone(),
        }
    }
}

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// Last byte, included; `None` is to the end.
    pub end: Option<u64>,
}

/// A file on its way here. Bytes come as they arrive; nothing is held back.
#[derive(Debug)]
pub struct Download {
    response: reqwest::Response,
    call: DownloadCall,
    /// Bytes in this answer, when the server tells.
    pub len: Option<u64>,
    /// Content type by file ending; not proof of anything.
    pub content_type: Option<String>,
    /// Changes when the file does.
    pub etag: Option<String>,
    /// Whether this is only the part that was asked for.
    pub partial: bool,
    limit: u64,
    slowest: u64,
    patience: Duration,
    begun: Instant,
    got: u64,
}

struct DownloadCall(Call);

impl std::fmt::Debug for DownloadCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.name())
    }
}

impl Download {
    /// The next bytes, `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks, stands still for the client's timeout, or is slower than [`crate::Limits::slowest`];
    /// [`Error::TooLarge`] when more comes than was announced or than [`crate::Limits::file`] allows.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        let chunk = self.response.chunk().await.map_err(|error| self.call.0.transport(error))?;
        let Some(chunk) = chunk else { return Ok(None) };
        self.got += chunk.len() as u64;
        if self.got > self.limit {
            return Err(self.call.0.too_large(self.limit));
        }
        // A byte now and then would hold it for ever.
        let due = self.patience + Duration::from_secs(self.got / self.slowest.max(1));
        if self.begun.elapsed() > due {
            return Err(Error::TimedOut { what: self.call.0.name(), after: self.begun.elapsed() });
        }
        Ok(Some(chunk))
    }

    /// Writes everything to `to` and tells how many bytes that was.
    ///
    /// # Errors
    /// As [`Download::chunk`], and [`Error::Input`] when writing fails; [`Error::Protocol`] when fewer bytes came than promised.
    pub async fn write_to(mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<u64> {
        let mut written = 0;
        let failed = |source| Error::Input { what: "the destination of a download".into(), source };
        while let Some(chunk) = self.chunk().await? {
            to.write_all(&chunk).await.map_err(failed)?;
            written += chunk.len() as u64;
        }
        to.flush().await.map_err(failed)?;
        match self.len {
            Some(len) if len != written => Err(Error::Protocol {
                what: self.call.0.name(),
                detail: format!("{written} bytes came of {len}"),
            }),
            _ => Ok(written),
        }
    }

    /// Everything at once, for small files; refuses more than `limit` bytes.
    ///
    /// # Errors
    /// As [`Download::chunk`], and [`Error::TooLarge`] above the limit.
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>> {
        self.limit = self.limit.min(limit as u64);
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

/// The bytes of an upload.
pub(crate) type Bytestream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// A file to put on the server. Any kind of file: the server stores it unread.
pub struct Upload {
    name: String,
    subfolder: String,
    file_type: FileType,
    overwrite: bool,
    len: Option<u64>,
    body: Bytestream,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("name", &self.name).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Upload {
    /// From memory.
    #[must_use]
    pub fn from_bytes(name: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let len = Some(bytes.len() as u64);
        Upload::from_stream(name, len, futures_util::stream::once(async move { Ok(bytes) }))
    }

    /// From a file on disk, read while it is sent.
    ///
    /// # Errors
    /// [`Error::Input`] when it cannot be opened.
    pub async fn from_file(name: &str, path: &Path) -> Result<Self> {
        let failed = |source| Error::Input { what: path.display().to_string(), source };
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let len = file.metadata().await.map_err(failed)?.len();
        Ok(Upload::from_stream(name, Some(len), ReaderStream::with_capacity(file, 64 * 1024)))
    }

    /// From any stream of bytes. With a length the server can refuse early, and a broken source is noticed.
    pub fn from_stream(
        name: &str,
        len: Option<u64>,
        stream: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Self {
        Upload {
            name: name.to_owned(),
            subfolder: String::new(),
            file_type: FileType::Input,
            overwrite: false,
            len,
            body: Box::pin(stream),
        }
    }

    /// Folder below the type's folder; made when missing.
    #[must_use]
    pub fn subfolder(mut self, subfolder: &str) -> Self {
        self.subfolder = subfolder.to_owned();
        self
    }

    /// Replaces another file of that name. Without it the server picks `name (1).ext`.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Which of the server's folders; the default is `input`.
    #[must_use]
    pub fn to_folder(mut self, file_type: FileType) -> Self {
        self.file_type = file_type;
        self
    }
}

/// Pieces in which an upload goes out, so that a slow but steady link shows signs of life.
const PIECE: usize = 64 * 1024;

/// Pings a watchdog with every piece the transport takes, so that a transfer may be long but not stand still, and
/// remembers when it was the source that failed.
struct Watched {
    body: Bytestream,
    piece: Bytes,
    /// Bytes that are still to come, when that is known.
    missing: Option<u64>,
    alive: Arc<Notify>,
    failure: Arc<Mutex<Option<std::io::Error>>>,
}

impl Watched {
    fn fail(&self, error: std::io::Error) -> Poll<Option<std::io::Result<Bytes>>> {
        let shown = std::io::Error::new(error.kind(), error.to_string());
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Poll::Ready(Some(Err(shown)))
    }
}

impl Stream for Watched {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.piece.is_empty() {
            match self.body.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(bytes))) => self.piece = bytes,
                Poll::Ready(Some(Err(error))) => return self.fail(error),
                Poll::Ready(None) if self.missing.is_some_and(|missing| missing > 0) => {
                    self.missing = None;
                    return self.fail(std::io::Error::new(
                        std::io::ErrorKind::UnexpectedEof,
                        "the source is shorter than it was said to be",
                    ));
                }
                Poll::Ready(None) => return Poll::Ready(None),
            }
        }
        self.alive.notify_one();
        let size = self.piece.len().min(PIECE);
        let piece = self.piece.split_to(size);
        self.missing = self.missing.map(|missing| missing.saturating_sub(size as u64));
        Poll::Ready(Some(Ok(piece)))
    }
}

impl Client {
    /// A file, as a stream.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not there.
    ///
    /// ```no_run
    /// # async fn f(client: comfyui::Client) -> Result<(), comfyui::Error> {
    /// let mut file = tokio::fs::File::create("fox.mp4").await.expect("a writable folder");
    /// let download = client.view(&comfyui::FileRef::output("fox_00001_.mp4").in_subfolder("video")).await?;
    /// let bytes = download.write_to(&mut file).await?;
    /// # Ok(()) }
    /// ```
    pub async fn view(&self, file: &FileRef) -> Result<Download> {
        self.download(self.view_call(file), file).await
    }

    /// A part of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Status`] 416 when the file is shorter.
    pub async fn view_range(&self, file: &FileRef, range: ByteRange) -> Result<Download> {
        let end = range.end.map(|end| end.to_string()).unwrap_or_default();
        self.download(self.view_call(file).range(format!("bytes={}-{end}", range.start)), file).await
    }

    /// Whether a file is there, without fetching it.
    ///
    /// # Errors
    /// As any call.
    pub async fn file_exists(&self, file: &FileRef) -> Result<bool> {
        match self.add_file(self.call(http::Method::HEAD, &["view"]).repeatable(), file).done().await {
            Ok(()) => Ok(true),
            Err(Error::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn view_call(&self, file: &FileRef) -> Call {
        self.add_file(self.get(&["view"]).repeatable(), file)
    }

    fn add_file(&self, call: Call, file: &FileRef) -> Call {
        call.query("filename", &file.filename)
            .query("subfolder", &file.subfolder)
            .query("type", file.file_type.as_str())
    }

    async fn download(&self, call: Call, file: &FileRef) -> Result<Download> {
        let response = call.stream().await.map_err(|error| match error {
            Error::Status { status: StatusCode::NOT_FOUND, .. } => {
                Error::NotFound { what: format!("file {:?}", file.in_workflow()) }
            }
            other => other,
        })?;
        let text = |name| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let encoded = response.headers().contains_key(header::CONTENT_ENCODING);
        let len = response.content_length().filter(|_| !encoded);
        let limits = self.limits();
        if len.is_some_and(|len| len > limits.file) {
            return Err(call.too_large(limits.file));
        }
        Ok(Download {
            len,
            limit: limits.file,
            slowest: limits.slowest,
            patience: self.timeout(),
            begun: Instant::now(),
            got: 0,
            content_type: text(header::CONTENT_TYPE),
            etag: text(header::ETAG),
            partial: response.status() == StatusCode::PARTIAL_CONTENT,
            response,
            call: DownloadCall(call),
        })
    }

    /// Puts a file into the server's input folder, streaming. **Use the returned name**: it can differ from the one sent.
    ///
    /// # Errors
    /// [`Error::Status`] 413 when it is larger than the server takes.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sim = comfyui_sim::Simulator::start(Default::default()).await?;
    /// # let client = comfyui::Client::new(&sim.url())?;
    /// use comfyui::Upload;
    /// let first = client.upload(Upload::from_bytes("cat.bin", "miaow")).await?;
    /// let other = client.upload(Upload::from_bytes("cat.bin", "purr")).await?;
    /// assert_eq!(first.in_workflow(), "cat.bin");
    /// assert_eq!(other.in_workflow(), "cat (1).bin");
    /// # sim.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn upload(&self, upload: Upload) -> Result<FileRef> {
        self.send_file(&["upload", "image"], upload, None).await
    }

    /// Puts a mask on an image that is already there: the mask's alpha replaces the image's.
    ///
    /// # Errors
    /// As [`Client::upload`].
    pub async fn upload_mask(&self, mask: Upload, original: &FileRef) -> Result<FileRef> {
        let original = serde_json::json!({
            "filename": original.filename,
            "subfolder": original.subfolder,
            "type": original.file_type.as_str(),
        });
        self.send_file(&["upload", "mask"], mask, Some(original.to_string())).await
    }

    async fn send_file(&self, route: &[&str], upload: Upload, original: Option<String>) -> Result<FileRef> {
        #[derive(Deserialize)]
        struct Answer {
            name: String,
            #[serde(default)]
            subfolder: String,
            #[serde(rename = "type")]
            file_type: String,
        }
        let call = self.post(route);
        let alive = Arc::new(Notify::new());
        let failure = Arc::new(Mutex::new(None));
        let body = reqwest::Body::wrap_stream(Watched {
            body: upload.body,
            piece: Bytes::new(),
            missing: upload.len,
            alive: Arc::clone(&alive),
            failure: Arc::clone(&failure),
        });
        let part = match upload.len {
            Some(len) => reqwest::multipart::Part::stream_with_length(body, len),
            None => reqwest::multipart::Part::stream(body),
        };
        let mut form = reqwest::multipart::Form::new()
            // The server keeps percent escapes as they are: file names go out as plain UTF-8.
            .percent_encode_noop()
            .text("type", upload.file_type.as_str().to_owned())
            .text("subfolder", upload.subfolder.clone());
        if upload.overwrite {
            form = form.text("overwrite", "true");
        }
        if let Some(original) = original {
            form = form.text("original_ref", original);
        }
        let name = upload.name.replace(['"', '\r', '\n'], "_");
        form = form.part("image", part.file_name(name));
        let sending = self.upload_client().post(self.endpoint(route)).multipart(form).send();
        let mut response = self.while_alive(sending, &alive, &call).await.map_err(|error| {
            match failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(source) => Error::Input { what: format!("upload {:?}", upload.name), source },
                None => error,
            }
        })?;
        let status = response.status();
        let reading = async {
            match status.is_success() {
                true => call.body(&mut response, call.until()).await,
                false => Ok(Body::from(limits::beginning(&mut response, limits::ERROR_BODY).await)),
            }
        };
        let body = match tokio::time::timeout(self.timeout(), reading).await {
            Ok(body) => body?,
            Err(_) => return Err(Error::TimedOut { what: call.name(), after: self.timeout() }),
        };
        if !status.is_success() {
            let body = text_of(&body.bytes);
            return Err(Error::Status {
                method: "POST",
                path: format!("/{}", route.join("/")),
                status,
                body,
            });
        }
        let answer: Answer = call.parse(&body.bytes)?;
        Ok(FileRef {
            filename: answer.name,
            subfolder: answer.subfolder,
            file_type: FileType::from(answer.file_type.as_str()),
        })
    }

    async fn while_alive(
        &self,
        sending: impl Future<Output = reqwest::Result<reqwest::Response>>,
        alive: &Notify,
        call: &Call,
    ) -> Result<reqwest::Response> {
        let idle: Duration = self.timeout();
        tokio::pin!(sending);
        loop {
            tokio::select! {
                response = &mut sending => return response.map_err(|error| call.transport(error)),
                moved = tokio::time::timeout(idle, alive.notified()) => if moved.is_err() {
                    return Err(Error::TimedOut { what: call.name(), after: idle });
                },
            }
        }
    }
}
