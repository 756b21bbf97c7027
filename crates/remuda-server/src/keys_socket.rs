//! Keys over a socket in the data directory, for `remuda keys` while a server runs.
//!
//! One line of JSON asks, one line answers. Only the user who runs the server can open the socket; whoever can, could
//! read the store as well.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::{ApiKey, KeyId, KeyRecord, Scopes, Tenant};
use remuda_store::{Clock as _, KeyStore, SystemClock};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::state::AppState;

/// The socket's name in the data directory.
pub const NAME: &str = "keys.sock";

/// A line longer than this is refused.
const MAX_LINE: u64 = 1 << 20;

/// How long an answer takes at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest name of a key, in bytes.
const MAX_NAME: usize = 200;

/// What to do with keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyRequest {
    /// Make one.
    Make {
        /// What it is for, in its maker's words.
        name: String,
        /// The tenant whose tasks it sees.
        tenant: Tenant,
        /// What it allows.
        scopes: Scopes,
    },
    /// Show all of them, also revoked ones.
    List,
    /// Make one useless.
    Revoke {
        /// Which.
        id: KeyId,
    },
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub enum KeyReply {
    /// A key was made.
    Made {
        /// The key itself: shown this once.
        key: String,
        /// What is kept of it.
        record: KeyRecord,
    },
    /// All keys, oldest first.
    Keys {
        /// All of them.
        keys: Vec<KeyRecord>,
    },
    /// A key was revoked.
    Revoked {
        /// Which.
        record: KeyRecord,
    },
    /// Nothing was done.
    Refused {
        /// Why.
        error: String,
    },
}

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No server runs on this data directory: the store can be opened directly.
    #[error("no server runs on {0}")]
    NotRunning(PathBuf),
    /// The server said no.
    #[error("{0}")]
    Refused(String),
    /// The socket is there, and speaking with it failed.
    #[error("the server behind {path} does not answer: {source}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// The keys of a running server. What is changed through it counts at once.
#[derive(Debug, Clone)]
pub struct KeysHandle {
    state: AppState,
}

impl KeysHandle {
    pub(crate) fn new(state: AppState) -> Self {
        Self { state }
    }

    async fn perform(&self, request: KeyRequest) -> KeyReply {
        let reply = perform(&*self.state.store, request).await;
        if let Err(error) = self.state.keys.refresh().await {
            tracing::debug!(%error, "the keys could not be read again; they will be within a second");
        }
        reply.unwrap_or_else(|error| KeyReply::Refused { error: error.to_string() })
    }
}

/// Does it on a store. For `remuda keys` when no server runs, and for the server itself.
pub async fn perform(store: &dyn KeyStore, request: KeyRequest) -> remuda_store::Result<KeyReply> {
    match request {
        KeyRequest::Make { name, .. } if name.len() > MAX_NAME || name.chars().any(char::is_control) => {
            Ok(KeyReply::Refused {
                error: format!("a key's name has at most {MAX_NAME} bytes and no control characters"),
            })
        }
        KeyRequest::Make { scopes, .. } if scopes.is_empty() => Ok(KeyReply::Refused {
            error: "a key without a scope allows nothing: give it submit, read, worker or admin".to_owned(),
        }),
        KeyRequest::Make { name, tenant, scopes } => {
            let key = ApiKey::generate(&mut rand::rng());
            let record = KeyRecord {
                id: KeyId(Uuid::now_v7()),
                name,
                tenant,
                scopes,
                hash: key.hash(),
                created_at: SystemClock.now(),
                revoked_at: None,
            };
            store.add_key(record.clone()).await?;
            tracing::info!(key.id = %record.id, key.tenant = %record.tenant, "a key was made");
            Ok(KeyReply::Made { key: key.reveal().to_owned(), record })
        }
        KeyRequest::List => Ok(KeyReply::Keys { keys: store.keys().await? }),
        KeyRequest::Revoke { id } => {
            let record = store.revoke_key(id).await?;
            tracing::info!(key.id = %record.id, "a key was revoked");
            Ok(KeyReply::Revoked { record })
        }
    }
}

/// Answers on `<data>/keys.sock` until `shutdown`.
pub async fn serve(data: &Path, keys: KeysHandle, shutdown: CancellationToken) -> io::Result<()> {
    KeysSocket::open(data)?.serve(keys, shutdown).await
}

/// The socket of a data directory. Who calls it waits until it is served.
#[derive(Debug)]
pub struct KeysSocket {
    path: PathBuf,
    listener: UnixListener,
    owner: u32,
}

impl KeysSocket {
    /// Opens `<data>/keys.sock`. What an earlier process left there is replaced: the caller holds the data directory.
    pub fn open(data: &Path) -> io::Result<Self> {
        let path = data.join(NAME);
        let listener = bind(data, &path)?;
        let owner = std::fs::metadata(&path)?.uid();
        Ok(Self { path, listener, owner })
    }

    /// Answers until `shutdown`.
    pub async fn serve(self, keys: KeysHandle, shutdown: CancellationToken) -> io::Result<()> {
        let Self { path, listener, owner } = self;
        answer_all(&listener, owner, &keys, &shutdown).await;
        drop(listener);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

async fn answer_all(listener: &UnixListener, owner: u32, keys: &KeysHandle, shutdown: &CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the keys socket could not accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // The rights of the file say so already, on systems that look at them.
        let trusted = stream.peer_cred().is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0);
        if !trusted {
            tracing::warn!("another user tried to open the keys socket");
            continue;
        }
        // One at a time: nobody makes keys in a hurry.
        tokio::select! {
            () = shutdown.cancelled() => return,
            answered = tokio::time::timeout(PATIENCE, answer(stream, keys)) => {
                if let Ok(Err(error)) = answered {
                    tracing::debug!(%error, "a caller of the keys socket went away");
                }
            }
        }
    }
}

/// Binds where nobody else can look, takes the rights away, and only then puts the socket in its place: at no moment can
/// another user open it, whatever the umask.
fn bind(data: &Path, path: &Path) -> io::Result<UnixListener> {
    let explain = |error: io::Error| {
        let hint = if path.as_os_str().len() > 90 { " (its path may be too long for a socket)" } else { "" };
        io::Error::new(error.kind(), format!("cannot make the socket {}{hint}: {error}", path.display()))
    };
    let private = data.join(".keys");
    match std::fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(explain(error)),
        _ => {}
    }
    std::fs::DirBuilder::new().mode(0o700).create(&private).map_err(explain)?;
    let hidden = private.join("s");
    let listener = UnixListener::bind(&hidden).map_err(explain)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600)).map_err(explain)?;
    std::fs::rename(&hidden, path).map_err(explain)?;
    std::fs::remove_dir(&private).map_err(explain)?;
    Ok(listener)
}

async fn answer(stream: UnixStream, keys: &KeysHandle) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read.take(MAX_LINE)).lines();
    while let Some(line) = lines.next_line().await? {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => keys.perform(request).await,
            Err(error) => KeyReply::Refused { error: format!("the request is not understood: {error}") },
        };
        write.write_all(&to_line(&reply)?).await?;
    }
    Ok(())
}

fn to_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// Asks the server that runs on this data directory.
pub async fn call(data: &Path, request: &KeyRequest) -> Result<KeyReply, CallError> {
    let path = data.join(NAME);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Err(CallError::NotRunning(data.to_owned()));
        }
        Err(source) => return Err(CallError::Broken { path, source }),
    };
    let asked = tokio::time::timeout(PATIENCE, ask(stream, request)).await;
    let reply = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match reply.map_err(|source| CallError::Broken { path, source })? {
        KeyReply::Refused { error } => Err(CallError::Refused(error)),
        reply => Ok(reply),
    }
}

async fn ask(stream: UnixStream, request: &KeyRequest) -> io::Result<KeyReply> {
    let (read, mut write) = stream.into_split();
    write.write_all(&to_line(request)?).await?;
    let mut line = String::new();
    BufReader::new(read).read_line(&mut line).await?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line).map_err(io::Error::other)
}
