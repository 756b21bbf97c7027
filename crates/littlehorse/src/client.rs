//! Calls to a server.

mod call;
mod channels;
mod reporting;
mod status;
mod token;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::{Config, Protocol};
use crate::error::{Error, Result};
use crate::proto;
use crate::report::REPORT_LIMIT;
use crate::task_def::{NewTaskDef, Registered, same};

/// A TaskDef that was just registered may be unknown for a moment.
const SETTLES: Duration = Duration::from_secs(2);

/// A server host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// A handle to a LittleHorse cluster; clones share its connections, one per host.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    bootstrap: Host,
    tenant: Option<MetadataValue<Ascii>>,
    channels: channels::Channels,
    tokens: Option<token::Tokens>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a handle. Nothing is asked yet; certificates are read, so that a wrong path is told now.
    pub fn new(config: Config) -> Result<Self> {
        // Servers refuse an empty name, and take none for `default`.
        let tenant = match config.tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
            None => None,
            Some(tenant) => Some(
                MetadataValue::try_from(tenant)
                    .map_err(|_| Error::config("LHC_TENANT_ID", "cannot be sent in a header"))?,
            ),
        };
        let bootstrap = Host { name: config.host.clone(), port: config.port };
        let channels = channels::Channels::new(&config)?;
        let tokens = token::Tokens::new(&config)?;
        if tokens.is_some() && config.protocol == Protocol::Plaintext {
            tracing::warn!("access tokens go over the network in clear: LHC_API_PROTOCOL is not TLS");
        }
        Ok(Self { inner: Arc::new(Inner { config, bootstrap, tenant, channels, tokens }) })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The host that the settings name.
    pub fn bootstrap(&self) -> &Host {
        &self.inner.bootstrap
    }

    /// Registers a TaskDef, or finds that it is registered already.
    pub async fn put_task_def(&self, def: &NewTaskDef) -> Result<Registered> {
        def.check()?;
        let put = self
            .ask("PutTaskDef", def.request.clone(), |mut stub, request| async move {
                stub.put_task_def(request).await
            })
            .await;
        match put {
            Ok(registered) => Ok(Registered::Same(registered)),
            Err(Error::Refused { code: tonic::Code::AlreadyExists, .. }) => {
                let registered = self.get_task_def(&def.request.name).await?;
                match same(&def.request, &registered) {
                    true => Ok(Registered::Same(registered)),
                    false => Ok(Registered::Differs(registered)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Looks a TaskDef up; waits a moment for one that was just registered.
    pub async fn get_task_def(&self, name: &str) -> Result<proto::TaskDef> {
        let until = tokio::time::Instant::now() + SETTLES;
        loop {
            let id = proto::TaskDefId { name: name.to_owned() };
            let got = self
                .ask("GetTaskDef", id, |mut stub, request| async move { stub.get_task_def(request).await })
                .await;
            match got {
                Err(Error::NotFound { .. }) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(SETTLES / 20).await;
                }
                Err(Error::NotFound { .. }) => {
                    return Err(Error::NotFound { what: format!("the TaskDef {name}") });
                }
                other => return other,
            }
        }
    }

    /// What the server knows of a task: status, timeout, attempts.
    pub async fn get_task_run(&self, id: &proto::TaskRunId) -> Result<proto::TaskRun> {
        self.ask(
            "GetTaskRun",
            id.clone(),
            |mut stub, request| async move { stub.get_task_run(request).await },
        )
        .await
    }

    /// Keeps a value for later attempts. One that is too large is not sent: the server would only say that it stumbled.
    pub async fn put_checkpoint(
        &self,
        request: proto::PutCheckpointRequest,
    ) -> Result<proto::PutCheckpointResponse> {
        let bytes = request.encoded_len();
        if bytes > REPORT_LIMIT {
            return Err(Error::TooLarge { what: "a checkpoint".into(), bytes, limit: REPORT_LIMIT });
        }
        self.call(self.bootstrap(), "PutCheckpoint", request, &|mut stub, request| async move {
            stub.put_checkpoint(request).await
        })
        .await
    }

    /// Reads a kept value.
    pub async fn get_checkpoint(&self, id: proto::CheckpointId) -> Result<proto::Checkpoint> {
        self.ask("GetCheckpoint", id, |mut stub, request| async move { stub.get_checkpoint(request).await })
            .await
    }

    /// The version of the server.
    pub async fn server_version(&self) -> Result<proto::LittleHorseVersion> {
        self.ask(
            "GetServerVersion",
            (),
            |mut stub, request| async move { stub.get_server_version(request).await },
        )
        .await
    }

    /// The heartbeat of this worker for a TaskDef: the answer says which hosts to poll.
    pub async fn register_task_worker(&self, task: &str) -> Result<proto::RegisterTaskWorkerResponse> {
        let request = proto::RegisterTaskWorkerRequest {
            task_worker_id: self.config().worker_id.clone(),
            task_def_id: Some(proto::TaskDefId { name: task.to_owned() }),
        };
        self.call(self.bootstrap(), "RegisterTaskWorker", request, &|mut stub, request| async move {
            stub.register_task_worker(request).await
        })
        .await
    }
}
